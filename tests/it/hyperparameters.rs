//! Schedules of hyperparameters other than the learning rate, and of fields of other hooks.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use trainer::TrainerBuilder;
use trainer::hooks::{Checkpoint, FieldSchedule, HyperparameterSchedule};
use trainer::optim::{Adagrad, Group};
use trainer::prelude::*;
use trainer::schedule::{Constant, Linear, OneCycle, WarmUp};

use crate::model::{self, rows};
use crate::support::{cancelled_at, exact_state, scratch};

fn with(optimizer: impl Optimizer + 'static) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(model::task()).optimizer(optimizer).discover(Discover::None)
}

type Values = Arc<Mutex<Vec<Vec<f64>>>>;

/// Adds a hook that records a hyperparameter of every group after each optimizer step.
fn recorded<T: Task>(builder: TrainerBuilder<T>, name: &'static str) -> (TrainerBuilder<T>, Values) {
    let values = Values::default();
    let notes = Arc::clone(&values);
    let builder = builder.on::<AfterOptStep>("note", move |cx| {
        let groups = cx.optimizer()?.groups().iter();
        notes.lock().unwrap().push(groups.map(|group| group.get(name)).collect::<Result<_>>()?);
        Ok(())
    });
    (builder, values)
}

fn values_of_run<T: Task<Batch = (Tensor, Tensor)>>(
    builder: TrainerBuilder<T>,
    name: &'static str,
    batches: i64,
) -> Vec<Vec<f64>> {
    let (builder, values) = recorded(builder, name);
    builder.build().unwrap().fit(&mut rows(batches * 4), None).unwrap();
    std::mem::take(&mut *values.lock().unwrap())
}

#[test]
fn the_momentum_of_one_cycle_matches_pytorch() {
    // Written by `tests/reference/schedules.py`.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/schedules.safetensors");
    let reference = Tensor::read_safetensors(path).unwrap();
    let linear = OneCycle::new().linear(true).pct_start(0.123).div_factor(10.0);
    let cycles = [
        ("one_cycle.momentum", OneCycle::new().momentum(0.85, 0.95)),
        ("one_cycle_linear.momentum", linear.momentum(0.5, 0.95)),
        (
            "one_cycle_three.momentum",
            OneCycle::new().three_phase(true).final_div_factor(100.0).momentum(0.85, 0.99),
        ),
    ];
    for (name, cycle) in cycles {
        let expected = reference.iter().find(|(known, _)| known == name).unwrap();
        let expected: Vec<f64> = Vec::try_from(&expected.1).unwrap();
        let is_close = |values: &[f64], what: &str| {
            assert_eq!(values.len(), 1000);
            let off =
                values.iter().zip(&expected).map(|(own, theirs)| (own - theirs).abs()).fold(0.0, f64::max);
            assert!(off <= 1e-12, "{what}: {name} deviates by {off:e}");
        };
        let values: Vec<_> = (0..1000).map(|step| cycle.factor(step, Some(1000)).unwrap()).collect();
        is_close(&values, "closed form");
        let schedule = || HyperparameterSchedule::momentum(cycle);
        let by_sgd =
            values_of_run(with(Sgd::new(0.01).momentum(0.9)).epochs(50).hook(schedule()), "momentum", 20);
        is_close(&by_sgd.concat(), "SGD");
        let by_adam = values_of_run(with(AdamW::new(0.01)).epochs(50).hook(schedule()), "beta1", 20);
        is_close(&by_adam.concat(), "AdamW");
    }
}

#[test]
fn factors_scale_the_value_of_each_selected_group() {
    let optimizer = || AdamW::new(0.01).weight_decay(0.1).group("fc1.*", Group::new().weight_decay(0.4));
    let decay = || HyperparameterSchedule::factors("weight_decay", Linear::to(0.0));
    let all = values_of_run(with(optimizer()).hook(decay()), "weight_decay", 4);
    // The group without a pattern comes first.
    assert_eq!(all, [[0.1, 0.4], [0.1 * 0.75, 0.4 * 0.75], [0.05, 0.2], [0.025, 0.1]]);
    let one = values_of_run(with(optimizer()).hook(decay().group("fc1.*")), "weight_decay", 4);
    assert_eq!(one, [[0.1, 0.4], [0.1, 0.4 * 0.75], [0.1, 0.2], [0.1, 0.1]]);
    let rest = values_of_run(with(optimizer()).hook(decay().ungrouped()), "weight_decay", 4);
    assert_eq!(rest, [[0.1, 0.4], [0.1 * 0.75, 0.4], [0.05, 0.4], [0.025, 0.4]]);
    let rates = values_of_run(
        with(optimizer()).hook(HyperparameterSchedule::lr(Linear::to(0.0)).group("fc1.*")),
        "lr",
        4,
    );
    assert_eq!(rates, [[0.01, 0.01], [0.01, 0.01 * 0.75], [0.01, 0.005], [0.01, 0.0025]]);
}

#[test]
fn scheduled_values_override_the_hyperparameter_per_step_or_per_epoch() {
    let beta = |step: u64| 0.9 + step as f64 / 100.0;
    let by_step = HyperparameterSchedule::values("beta2", beta);
    let values = values_of_run(with(AdamW::new(0.01)).epochs(2).hook(by_step), "beta2", 2);
    assert_eq!(values, [0, 1, 2, 3].map(|step| vec![beta(step)]));
    let by_epoch = HyperparameterSchedule::values("beta2", beta).by_epoch(true);
    let values = values_of_run(with(AdamW::new(0.01)).epochs(2).hook(by_epoch), "beta2", 2);
    assert_eq!(values, [0, 0, 1, 1].map(|epoch| vec![beta(epoch)]));
}

#[test]
fn unknown_names_and_invalid_values_are_refused() {
    fn error<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>) -> String {
        builder.build().and_then(|mut trainer| trainer.fit(&mut rows(8), None)).unwrap_err().to_string()
    }
    fn values(name: &str, schedule: impl Schedule) -> HyperparameterSchedule {
        HyperparameterSchedule::values(name, schedule)
    }
    let adam = || AdamW::new(0.01).group("fc1.*", Group::new());
    let unknown = error(with(adam()).hook(values("beta", Constant::new(0.9))));
    assert!(unknown.contains("AdamW has no hyperparameter `beta`"), "{unknown}");
    let group = error(with(adam()).hook(values("beta1", Constant::new(0.9)).group("fc1*")));
    assert!(group.contains("is for the group `fc1*`, which no optimizer has"), "{group}");
    assert!(group.contains("the groups are `fc1.*`"), "{group}");
    let every = || AdamW::new(0.01).group("*", Group::new());
    let rest = error(with(every()).hook(values("beta1", Constant::new(0.9)).ungrouped()));
    assert!(rest.contains("but every parameter is in a group: remove `.ungrouped()`"), "{rest}");
    let momentum = error(with(Adagrad::new(0.01)).hook(HyperparameterSchedule::momentum(Constant::new(0.9))));
    let text = "Adagrad has neither `momentum` nor `beta1`: restrict the schedule with `.part(…)` or";
    assert!(momentum.contains(text), "{momentum}");
    let invalid = error(with(adam()).hook(values("beta1", |step: u64| 0.5 + step as f64 / 2.0)));
    assert!(
        invalid.contains(
            "the schedule of `beta1` at step 1: the optimizer's `beta1` is 1: expected at least 0 and below 1"
        ),
        "{invalid}"
    );
    let cycle =
        error(with(adam()).hook(HyperparameterSchedule::momentum(OneCycle::new().momentum(0.95, 0.85))));
    assert!(
        cycle.contains("`OneCycle::new().momentum(0.95, 0.85)`: expected the lower momentum first"),
        "{cycle}"
    );
    let field = error(
        with(adam())
            .hook(FieldSchedule::new(Linear::to(1.0), |noise: &mut Noise, scale| noise.scale = scale)),
    );
    assert!(field.contains("Noise"), "{field}");
    let noise = Noise { scale: 0.0, seen: Vec::new() };
    let nan = |step: u64| if step == 0 { 0.1 } else { f64::NAN };
    let schedule = FieldSchedule::new(nan, |noise: &mut Noise, scale| noise.scale = scale);
    let nan = error(with(adam()).hook(noise).hook(schedule));
    assert!(nan.contains("the schedule returned the value NaN at step 1"), "{nan}");
}

/// Adds `scale` to the inputs. Random noise would depend on the tests that run in parallel.
#[derive(Deserialize, Serialize)]
struct Noise {
    scale: f64,
    /// The scale used for each batch, in any phase.
    seen: Vec<f64>,
}

#[hook(state)]
impl Noise {
    fn after_transfer(&mut self, cx: &mut Cx<AfterTransfer>) -> Result<()> {
        self.seen.push(self.scale);
        let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>()?;
        *inputs = &*inputs + self.scale;
        Ok(())
    }
}

#[test]
fn a_cancelled_run_resumes_with_its_schedules() {
    let run = |at: Option<u64>, name: &str| {
        let folder = scratch(name);
        let make = || {
            let optimizer = Sgd::new(0.05).momentum(0.9).group("fc2.*", Group::new().weight_decay(0.1));
            let cycle = OneCycle::new();
            with(optimizer)
                .epochs(3)
                .hook(Noise { scale: 9.0, seen: Vec::new() })
                .hook(HyperparameterSchedule::lr(cycle))
                .hook(HyperparameterSchedule::momentum(cycle.momentum(0.5, 0.95)))
                .hook(HyperparameterSchedule::factors("weight_decay", Linear::to(0.1)).group("fc2.*"))
                .hook(FieldSchedule::new(Linear::to(0.0), |noise: &mut Noise, scale| noise.scale = scale))
                .hook(Checkpoint::new(&folder))
                .resume(Resume::Auto)
        };
        if at.is_some() {
            let mut trainer = cancelled_at(at, make()).build().unwrap();
            assert!(trainer.fit(&mut rows(12), Some(&mut rows(8))).unwrap_err().is_cancelled());
        }
        let mut trainer = cancelled_at(None, make()).build().unwrap();
        trainer.fit(&mut rows(12), Some(&mut rows(8))).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let seen: Vec<u64> =
            trainer.hook::<Noise>().unwrap().seen.iter().map(|scale| scale.to_bits()).collect();
        (seen, exact_state(&trainer))
    };
    let whole = run(None, "hyper-whole");
    for at in 1..9 {
        assert_eq!(run(Some(at), "hyper-cancelled"), whole, "cancelled after batch {at}");
    }
}

/// Scales nothing: the hook that is scheduled.
struct Unused;

#[hook]
impl Unused {
    fn setup(&mut self, _: &mut Cx<Setup>) {}
}

/// Returns the error of a fit that is resumed with `then` in place of `first`, which are both of
/// one type.
fn refused_in_a_resumed_fit<H: trainer::Hooks>(first: H, then: H) -> String {
    let folder = scratch("resumed-settings");
    let make = |hook: H| {
        let builder = Trainer::builder(model::named_task()).optimizer(Sgd::new(0.1).momentum(0.9));
        let builder = builder.discover(Discover::None).epochs(3).hook(Checkpoint::new(&folder));
        builder.resume(Resume::Auto).hook(Unused).hook(hook)
    };
    let mut trainer = cancelled_at(Some(4), make(first)).build().unwrap();
    assert!(trainer.fit(&mut rows(12), None).unwrap_err().is_cancelled());
    drop(trainer);
    let changed = cancelled_at(None, make(then)).allow_inexact_resume(true);
    let error = changed.build().unwrap().fit(&mut rows(12), None).unwrap_err().to_string();
    std::fs::remove_dir_all(&folder).unwrap();
    error
}

#[test]
fn settings_are_checked_in_a_resumed_fit_too() {
    let long = || Linear::to(0.0).warm_up(100);
    let short = || Linear::to(0.0).warm_up(2);
    let of_field = |schedule: WarmUp<Linear>| FieldSchedule::new(schedule, |_: &mut Unused, _| {});
    let momentum = |name: &str| HyperparameterSchedule::values(name, Linear::to(0.5));
    let cases = [
        (refused_in_a_resumed_fit(of_field(short()), of_field(long())), "exceeds the run of 9 steps"),
        (
            refused_in_a_resumed_fit(HyperparameterSchedule::lr(short()), HyperparameterSchedule::lr(long())),
            "exceeds the run of 9 steps",
        ),
        (
            refused_in_a_resumed_fit(momentum("momentum"), momentum("momentum").group("fc9.*")),
            "which no optimizer has",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error}, not {expected}");
    }
}
