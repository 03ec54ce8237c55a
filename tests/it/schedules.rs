//! Learning-rate schedules compared with those of PyTorch, from the file that
//! `reference/schedules.py` writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::hooks::{HyperparameterSchedule, PlateauState, ReduceOnPlateau};
use trainer::prelude::*;
use trainer::schedule::{
    Constant, Cosine, CosineRestarts, Exponential, Linear, MultiStep, OneCycle, Polynomial, StepDecay,
};

use crate::model::{self, message};
use crate::support::device;

/// The base learning rate of the reference.
const BASE: f64 = 0.05;

fn reference() -> HashMap<String, Vec<f64>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/schedules.safetensors");
    let tensors = Tensor::read_safetensors(path).unwrap().into_iter();
    tensors.map(|(name, values)| (name, Vec::try_from(values).unwrap())).collect()
}

/// Returns the schedules of the reference, by their names there.
fn schedules() -> Vec<(&'static str, Box<dyn Schedule>)> {
    fn of(schedule: impl Schedule) -> Box<dyn Schedule> {
        Box::new(schedule)
    }
    let decays = Constant::new(0.5).over(50).then(200, Exponential::new(0.995));
    vec![
        ("constant", of(Constant::new(0.25).over(300))),
        ("linear", of(Linear::to(1.0).starting_at(1.0 / 3.0).over(400))),
        ("linear_down", of(Linear::to(0.0))),
        ("cosine", of(Cosine::to(0.0))),
        ("cosine_eta_min", of(Cosine::to(0.002 / BASE))),
        ("restarts", of(CosineRestarts::every(150))),
        ("restarts_growing", of(CosineRestarts::every(70).growing(2).to(0.001 / BASE))),
        ("exponential", of(Exponential::new(0.995))),
        ("step", of(StepDecay::new(130, 0.3))),
        ("multi_step", of(MultiStep::new([100, 350, 900], 0.2))),
        ("polynomial_1", of(Polynomial::new(1.0))),
        ("polynomial_2", of(Polynomial::new(2.0).over(600))),
        ("one_cycle", of(OneCycle::new())),
        ("one_cycle_linear", of(OneCycle::new().linear(true).pct_start(0.123).div_factor(10.0))),
        ("one_cycle_three", of(OneCycle::new().three_phase(true).final_div_factor(100.0))),
        ("one_cycle_linear_three", of(OneCycle::new().three_phase(true).linear(true).pct_start(0.4567))),
        ("sequential", of(Cosine::to(0.0).warm_up(100).starting_at(0.1))),
        ("sequential_of_three", of(decays.then(500, StepDecay::new(100, 0.5)))),
        ("chained", of(Constant::new(0.1).over(300).times(Exponential::new(0.999)))),
        // The same schedules, written in another way.
        ("constant", of(Constant::new(0.25).then(300, Constant::new(1.0)))),
        ("linear", of(Linear::to(1.0).starting_at(1.0 / 3.0).over(0.4))),
        ("multi_step", of(MultiStep::new([0.1, 0.35, 0.9], 0.2))),
        ("polynomial_1", of(Linear::to(0.0).over(1000))),
        ("sequential", of(Linear::to(1.0).starting_at(0.1).then(0.1, Cosine::to(0.0)))),
        ("exponential", of(|step: u64| 0.995_f64.powf(step as f64))),
    ]
}

/// Returns the largest deviation of values from the reference, relative to the base rate.
fn deviation(values: impl Iterator<Item = f64>, expected: &[f64], base: f64) -> f64 {
    let pairs: Vec<_> = values.zip(expected).collect();
    assert_eq!(pairs.len(), expected.len());
    pairs.iter().map(|(own, theirs)| (own / base - *theirs / BASE).abs()).fold(0.0, f64::max)
}

#[test]
fn a_thousand_values_of_each_schedule_match_pytorch() {
    let reference = reference();
    for (name, schedule) in schedules() {
        schedule.check(Some(1000)).unwrap();
        let values = (0..1000).map(|step| BASE * schedule.factor(step, Some(1000)).unwrap());
        let off = deviation(values, &reference[name], BASE);
        println!("{name}: within {off:.1e} of the base");
        assert!(off <= 1e-12, "{name} deviates by {off:e}");
    }
}

#[test]
fn a_schedule_keeps_its_final_value() {
    let ends: [(Box<dyn Schedule>, f64); 5] = [
        (Box::new(Linear::to(0.5).over(10)), 0.5),
        (Box::new(Cosine::to(0.25).over(10)), 0.25),
        (Box::new(Polynomial::new(2.0).over(10)), 0.0),
        (Box::new(OneCycle::new().div_factor(2.0).final_div_factor(2.0).over(10)), 0.25),
        (Box::new(Cosine::to(0.25).over(8).warm_up(2)), 0.25),
    ];
    for (schedule, end) in ends {
        for step in [10, 11, 17, 1_000_000] {
            assert!((schedule.factor(step, None).unwrap() - end).abs() < 1e-15);
        }
    }
}

#[test]
fn fractional_lengths_are_valid_for_runs_of_any_length() {
    for run in 1..=12 {
        for (name, schedule) in [
            ("warm-up", Box::new(Cosine::to(0.0).warm_up(0.1)) as Box<dyn Schedule>),
            ("milestones", Box::new(MultiStep::new([0.5, 0.6], 0.1))),
            (
                "in turn",
                Box::new(Linear::to(0.5).then(0.5, Constant::new(0.5)).then(0.6, Polynomial::new(1.0))),
            ),
            ("restarts", Box::new(CosineRestarts::every(0.05).growing(2))),
            ("decay", Box::new(StepDecay::new(0.05, 0.9))),
            ("one cycle", Box::new(OneCycle::new())),
            ("three phases", Box::new(OneCycle::new().three_phase(true).pct_start(0.5))),
        ] {
            schedule.check(Some(run)).unwrap();
            for step in 0..run + 2 {
                let factor = schedule.factor(step, Some(run)).unwrap();
                assert!((0.0..=1.0).contains(&factor), "{name} of {run}: {factor} at {step}");
            }
        }
    }
}

type Rates = Arc<Mutex<Vec<Vec<f64>>>>;

/// Adds a hook that records the learning rate of every group after each optimizer step.
fn record_rates<T: Task>(builder: TrainerBuilder<T>) -> (TrainerBuilder<T>, Rates) {
    let rates = Rates::default();
    let notes = Arc::clone(&rates);
    let builder = builder.on::<AfterOptStep>("note", move |cx| notes.lock().unwrap().push(cx.lrs().to_vec()));
    (builder, rates)
}

fn take_rates(rates: &Rates) -> Vec<f64> {
    std::mem::take(&mut *rates.lock().unwrap()).into_iter().map(|groups| groups[0]).collect()
}

fn builder() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    model::builder().optimizer(Sgd::new(BASE))
}

/// Returns the rates of `fits` consecutive fits with the same trainer.
fn rates_of_run<T: Task<Batch = (Tensor, Tensor)>>(
    builder: TrainerBuilder<T>,
    rows: i64,
    fits: usize,
) -> Vec<f64> {
    let (builder, rates) = record_rates(builder);
    let mut trainer = builder.build().unwrap();
    for _ in 0..fits {
        trainer.fit(&mut model::rows(rows), None).unwrap();
    }
    take_rates(&rates)
}

#[test]
fn a_run_uses_the_rates_of_its_schedule() {
    let reference = reference();
    for (name, schedule) in schedules() {
        // Batches of 4 rows.
        let rates = rates_of_run(builder().epochs(50).hook(HyperparameterSchedule::lr(schedule)), 80, 1);
        let off = deviation(rates.into_iter(), &reference[name], BASE);
        assert!(off <= 1e-12, "{name} deviates by {off:e}");
    }
}

#[test]
fn a_schedule_counts_optimizer_steps_or_epochs() {
    let reference = reference();
    let cosine = || HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(100).starting_at(0.1));
    let accumulated = rates_of_run(builder().epochs(250).accumulate(2).hook(cosine()), 28, 1);
    let bounded = rates_of_run(builder().max_steps(1000).hook(cosine()), 28, 1);
    let by_epoch = rates_of_run(builder().epochs(1000).hook(cosine().by_epoch(true)), 8, 1);
    assert!(by_epoch.chunks(2).all(|steps| steps[0] == steps[1]));
    let by_epoch = by_epoch.into_iter().step_by(2).collect();
    for (how, rates) in [("accumulated", accumulated), ("bounded", bounded), ("by epoch", by_epoch)] {
        let off = deviation(rates.into_iter(), &reference["sequential"], BASE);
        assert!(off <= 1e-12, "{how}: deviates by {off:e}");
    }
}

#[test]
fn a_second_fit_continues_the_schedule() {
    // With a length in steps, two fits equal one of twice the length.
    let schedule = || HyperparameterSchedule::lr(Cosine::to(0.0).over(40).warm_up(5));
    assert_eq!(
        rates_of_run(builder().epochs(3).hook(schedule()), 40, 2),
        rates_of_run(builder().epochs(6).hook(schedule()), 40, 1)
    );
    // With a length of the whole run, the second fit makes the run longer.
    let rates = rates_of_run(builder().epochs(2).hook(HyperparameterSchedule::lr(Linear::to(0.0))), 20, 2);
    let expected = |steps: std::ops::Range<u64>, run: f64| steps.map(move |n| BASE * (1.0 - n as f64 / run));
    let expected: Vec<_> = expected(0..10, 10.0).chain(expected(10..20, 20.0)).collect();
    assert!(rates.iter().zip(&expected).all(|(own, by_hand)| (own - by_hand).abs() < 1e-15), "{rates:?}");
    assert_eq!(rates.len(), expected.len());
    let by_epoch = HyperparameterSchedule::lr(Linear::to(0.0)).by_epoch(true);
    assert_eq!(rates_of_run(builder().epochs(1).hook(by_epoch), 4, 2), [BASE, BASE * 0.5]);
}

/// Returns a task with two layers, each in its own group.
fn two_groups() -> impl Task<Batch = (Tensor, Tensor)> {
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let first = nn::linear(&root / "fc1", 4, 8, Default::default());
    let net = nn::seq().add(first).add(nn::linear(root.set_group(1) / "fc2", 8, 3, Default::default()));
    Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels))
}

#[test]
fn each_group_is_scaled_relative_to_its_own_rate() {
    let builder =
        Trainer::builder(two_groups()).optimizer(AdamW::new(BASE)).discover(Discover::None).epochs(4);
    let (builder, rates) =
        record_rates(builder.hook(HyperparameterSchedule::lr(Polynomial::new(2.0).warm_up(3))));
    let mut trainer = builder.build().unwrap();
    trainer.optimizer_mut().unwrap().groups_mut()[1].lr = 0.001;
    trainer.fit(&mut model::rows(20), None).unwrap();
    let schedule = Polynomial::new(2.0).warm_up(3);
    for (step, groups) in rates.lock().unwrap().iter().enumerate() {
        let factor = schedule.factor(step as u64, Some(20)).unwrap();
        assert_eq!(groups[..], [BASE * factor, 0.001 * factor]);
    }
    assert_eq!(rates.lock().unwrap().len(), 20);
}

/// A task with two weights, each with its own optimizer. Unless `both` is set, the right one only
/// steps with every second batch.
struct Pair {
    vars: nn::VarStore,
    weights: [Tensor; 2],
    both: bool,
}

impl Pair {
    fn new(both: bool) -> Self {
        let vars = nn::VarStore::new(device());
        let weights = ["left", "right"].map(|name| (vars.root() / name).ones("weight", &[1]));
        Pair { vars, weights, both }
    }
}

impl Task for Pair {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, _: &Self::Batch, _: Mode) -> Result<Tensor> {
        Ok(&self.weights[0] + &self.weights[1])
    }
    fn loss(&mut self, pred: &Tensor, _: &Self::Batch) -> Result<Tensor> {
        Ok(pred.square().sum(Kind::Float))
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let predicted = step.pred()?;
        let scored = step.loss(predicted)?;
        let left = step.backward_of("left", scored)?;
        let stepped = step.opt_step(left)?;
        if !step.task().both && step.counters().batch_idx.is_multiple_of(2) {
            return Ok(stepped);
        }
        let predicted = step.pred()?;
        let scored = step.loss(predicted)?;
        let right = step.backward_of("right", scored)?;
        step.opt_step(right)
    }
}

/// Returns the rates of each of the two parts over two epochs of 10 batches.
fn rates_of_parts(both: bool, hooks: Vec<HyperparameterSchedule>) -> HashMap<String, Vec<f64>> {
    let rates = Arc::<Mutex<HashMap<String, Vec<f64>>>>::default();
    let notes = Arc::clone(&rates);
    let builder = Trainer::builder(Pair::new(both))
        .optimizer_of("left", Sgd::new(0.1))
        .optimizer_of("right", Sgd::new(0.01))
        .discover(Discover::None)
        .epochs(2)
        .on::<AfterOptStep>("note", move |cx| {
            let mut notes = notes.lock().unwrap();
            notes.entry(cx.part().to_owned()).or_default().push(cx.lrs()[0]);
        });
    let mut trainer = hooks.into_iter().fold(builder, TrainerBuilder::hook).build().unwrap();
    trainer.fit(&mut model::rows(40), None).unwrap();
    std::mem::take(&mut *rates.lock().unwrap())
}

#[test]
fn every_optimizer_is_scheduled_by_the_steps_of_the_run() {
    let line =
        |lr: f64, run: u32| (0..run).map(|n| lr * (1.0 - f64::from(n) / f64::from(run))).collect::<Vec<_>>();
    let rates = rates_of_parts(true, vec![HyperparameterSchedule::lr(Linear::to(0.0))]);
    assert_eq!((&rates["left"], &rates["right"]), (&line(0.1, 20), &line(0.01, 20)));
    // A part that takes half as many steps still ends its schedule with the run.
    let rates = rates_of_parts(false, vec![HyperparameterSchedule::lr(Linear::to(0.0))]);
    let each_second = |rates: &[f64]| rates.iter().skip(1).step_by(2).copied().collect::<Vec<_>>();
    assert_eq!((&rates["left"], &rates["right"]), (&line(0.1, 20), &each_second(&line(0.01, 20))));
    // One schedule for each part, then for one of them.
    let of = |part: &str, schedule: Linear| HyperparameterSchedule::lr(schedule).part(part);
    let rates =
        rates_of_parts(true, vec![of("right", Linear::to(0.0)), of("left", Linear::to(0.0).over(40))]);
    assert_eq!((&rates["left"], &rates["right"]), (&line(0.1, 40)[..20].to_vec(), &line(0.01, 20)));
    let rates = rates_of_parts(true, vec![of("right", Linear::to(0.0))]);
    assert_eq!((&rates["left"], &rates["right"]), (&vec![0.1; 20], &line(0.01, 20)));
}

/// Skips every second optimizer step, beginning with the first.
#[derive(Default)]
struct Skips(u64);

#[hook]
impl Skips {
    fn skip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        self.0 += 1;
        if self.0.is_multiple_of(2) { next.run(cx) } else { Ok(next.skip()) }
    }
}

#[test]
fn skipped_optimizer_steps_do_not_advance_a_schedule() {
    let halving = || HyperparameterSchedule::lr(Exponential::new(0.5));
    let rates = rates_of_run(builder().hook(halving()).hook(Skips::default()), 24, 1);
    assert_eq!(rates, [BASE, BASE * 0.5, BASE * 0.25]);
}

#[test]
fn rate_changes_by_other_hooks_are_kept() {
    let at = |step: u64, change: fn(&mut f64)| {
        move |cx: &mut Cx<AfterStep>| -> Result<()> {
            if cx.counters().optimizer_steps == step {
                change(&mut cx.optimizer_mut()?.groups_mut()[0].lr);
            }
            Ok(())
        }
    };
    // A change scales the later values: 1, 3/4, then half of 1/2 and of 1/4.
    let line = || HyperparameterSchedule::lr(Linear::to(0.0));
    let halved = builder().hook(line()).on::<AfterStep>("halve", at(2, |lr| *lr *= 0.5));
    assert_eq!(rates_of_run(halved, 16, 1), [1.0, 0.75, 0.25, 0.125].map(|factor| BASE * factor));
    // A rate of 0 cannot be scaled, so the new rate becomes the base.
    let from_zero = || HyperparameterSchedule::lr(|step: u64| if step == 0 { 0.0 } else { 0.5 });
    let set = builder().hook(from_zero()).on::<AfterStep>("set", at(1, |lr| *lr = 0.4));
    assert_eq!(rates_of_run(set, 12, 1), [0.0, 0.2, 0.2]);
    // A change after the last step of a fit scales the next fit; a rate set between fits becomes
    // the base.
    let (changed, rates) =
        record_rates(builder().hook(line()).on::<AfterStep>("halve", at(4, |lr| *lr *= 0.5)));
    let mut trainer = changed.build().unwrap();
    trainer.fit(&mut model::rows(16), None).unwrap();
    trainer.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(take_rates(&rates)[4..], [0.5, 0.375, 0.25, 0.125].map(|factor| BASE * 0.5 * factor));
    trainer.optimizer_mut().unwrap().groups_mut()[0].lr = 0.3;
    trainer.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(take_rates(&rates), [4.0, 3.0, 2.0, 1.0].map(|left| 0.3 * (1.0 - (12.0 - left) / 12.0)));
}

#[test]
fn factors_of_schedules_by_step_and_by_epoch_are_multiplied() {
    let rates = rates_of_run(
        builder()
            .epochs(5)
            .hook(HyperparameterSchedule::lr(Cosine::to(0.5).warm_up(7)))
            .hook(HyperparameterSchedule::lr(StepDecay::new(2, 0.1)).by_epoch(true)),
        40,
        1,
    );
    assert_eq!(rates.len(), 50);
    for (step, rate) in (0..).zip(rates) {
        let by_step = Cosine::to(0.5).warm_up(7).factor(step, Some(50)).unwrap();
        let by_epoch = StepDecay::new(2, 0.1).factor(step / 10, None).unwrap();
        assert!((rate / BASE - by_step * by_epoch).abs() < 1e-12, "{step}: {rate}");
    }
}

#[test]
fn invalid_schedules_are_refused_by_build_or_when_training_begins() {
    let fit = |hook: HyperparameterSchedule| {
        let built = builder().epochs(10).hook(hook).build();
        message(&built.and_then(|mut trainer| trainer.fit(&mut model::rows(40), None)).unwrap_err())
    };
    fn case(schedule: impl Schedule) -> HyperparameterSchedule {
        HyperparameterSchedule::lr(schedule)
    }
    let all = Constant::new(1.0);
    let cases = [
        (
            case(Constant::new(-0.1)),
            "the factor of `Constant` is -0.1: expected a finite number of at least 0.0",
        ),
        (
            case(Exponential::new(f64::NAN)),
            "the gamma of `Exponential` is NaN: expected a finite number of at least 0.0",
        ),
        (
            case(Linear::to(0.0).starting_at(f64::INFINITY)),
            "the start of `Linear` is inf: expected a finite number of at least 0.0",
        ),
        (case(Cosine::to(0.0).over(0)), "`Cosine::to(…).over(0)`: expected a number of steps of at least 1"),
        (
            case(CosineRestarts::every(-3)),
            "`CosineRestarts::every(-3)`: expected a number of steps of at least 1",
        ),
        (
            case(CosineRestarts::every(3).growing(0)),
            "`CosineRestarts::every(…).growing(0)`: expected at least 1",
        ),
        (
            case(Linear::to(0.0).over(0.0)),
            "`Linear::to(…).over(0.0)`: expected a fraction above 0.0 and at most 1.0",
        ),
        (
            case(Linear::to(0.0).over(f64::NAN)),
            "`Linear::to(…).over(NaN)`: expected a fraction above 0.0 and at most 1.0",
        ),
        (
            case(all.warm_up(30.0)),
            "`.warm_up(30.0)`: expected a fraction above 0.0 and at most 1.0; for a number, write `30` without the decimal point",
        ),
        (
            case(all.warm_up(101)),
            "`.warm_up(101)` exceeds the run of 100 steps: use fewer steps, or a fraction such as `.warm_up(0.1)`",
        ),
        (
            case(all.warm_up(9).starting_at(-1.0)),
            "the start of `warm_up` is -1.0: expected a finite number of at least 0.0",
        ),
        (
            case(all.then(101, all)),
            "`.then(101, …)` exceeds the run of 100 steps: use fewer steps, or a fraction such as `.then(0.1, …)`",
        ),
        (
            case(all.then(50, all).then(20, all)),
            "`.then(…, …)`: 20 follows 50: expected strictly increasing steps",
        ),
        (
            case(all.then(50, Cosine::to(-1.0))),
            "the end of `Cosine` is -1.0: expected a finite number of at least 0.0",
        ),
        (
            case(all.times(all.warm_up(10).times(Exponential::new(-1.0)))),
            "the gamma of `Exponential` is -1.0: expected a finite number of at least 0.0",
        ),
        (
            case(MultiStep::new([30, 30], 0.1)),
            "`MultiStep::new([…], …)`: 30 follows 30: expected strictly increasing steps",
        ),
        (
            case(MultiStep::new([0.5, 0.2], 0.1)),
            "`MultiStep::new([…], …)`: 0.2 follows 0.5: expected strictly increasing steps",
        ),
        (case(Polynomial::new(0.0)), "`Polynomial::new(0.0)`: expected a finite power above 0.0"),
        (
            case(OneCycle::new().pct_start(1.0)),
            "`OneCycle::new().pct_start(1.0)`: expected a fraction above 0.0 and below 1.0",
        ),
        (
            case(OneCycle::new().pct_start(0.6).three_phase(true)),
            "`OneCycle::new().pct_start(0.6)`: expected a fraction above 0.0 and at most 0.5 with three phases",
        ),
        (
            case(OneCycle::new().div_factor(0.0)),
            "`OneCycle::new().div_factor(0.0)`: expected a finite number above 0.0",
        ),
        (
            case(all.warm_up(11)).by_epoch(true),
            "`.warm_up(11)` exceeds the run of 10 steps: use fewer steps, or a fraction such as `.warm_up(0.1)`",
        ),
        (
            case(all).part("generator"),
            "no optimizer is registered for part `generator`, only for the whole model: replace `.optimizer(…)` with `.optimizer_of(\"generator\", AdamW::new(1e-3))`",
        ),
    ];
    for (hook, expected) in cases {
        let error = fit(hook);
        // What depends on the run is only known when it begins.
        let depends_on_run = ["exceeds the run", "no optimizer"].iter().any(|part| expected.contains(part));
        let fit = "`HyperparameterSchedule` failed at before_fit, epoch 0, batch 0: ";
        let place = if depends_on_run { fit } else { "hook `trainer::hooks::HyperparameterSchedule`: " };
        assert!(error.ends_with(&format!("{place}{expected}")), "{error}");
    }
    // An invalid value that only appears later is reported before it is used.
    let late = fit(case(|step: u64| if step == 3 { -1.0 } else { 1.0 }));
    let text = "before_opt_step, epoch 0, batch 3: the schedule returned the factor -1.0 at step 3: expected a finite number of at least 0.0";
    assert!(late.ends_with(text), "{late}");
}

#[test]
fn a_schedule_over_the_whole_run_requires_a_known_length() {
    let stream = || {
        let mut rows = model::rows(24);
        let batches: Vec<_> = rows.batches(0, 0).unwrap().map(Result::unwrap).collect();
        let own = move |(inputs, labels): &(Tensor, Tensor)| (inputs.shallow_clone(), labels.shallow_clone());
        trainer::data::from_fn(move |_| batches.iter().map(own).collect::<Vec<_>>())
    };
    let fit = |builder: TrainerBuilder<_>, hook: HyperparameterSchedule| {
        let (builder, rates) = record_rates(builder.hook(hook));
        builder.build().unwrap().fit(&mut stream(), None).map(|_| take_rates(&rates))
    };
    let error =
        message(&fit(model::builder().epochs(2), HyperparameterSchedule::lr(Cosine::to(0.0))).unwrap_err());
    let text = "failed at before_fit, epoch 0, batch 0: `Cosine::to(…).over(1.0)` is a fraction of the run, whose length in steps is \
                unknown, because the loader does not report how many batches it has, `.epochs(…)` is not set on the builder, or \
                `train_step` takes more steps than `Task::steps_per_batch` returns: use a number of steps instead, \
                `Cosine::to(…).over(1000)`, or end the run with `.max_steps(…)`";
    assert!(error.ends_with(text), "{error}");
    let line = [1.0, 0.75, 0.5, 0.25, 0.0, 0.0].map(|factor| 0.1 * factor);
    assert_eq!(fit(model::builder(), HyperparameterSchedule::lr(Linear::to(0.0).over(4))).unwrap(), line);
    assert_eq!(
        fit(model::builder().max_steps(4), HyperparameterSchedule::lr(Linear::to(0.0))).unwrap(),
        line[..4]
    );
    let by_epoch = HyperparameterSchedule::lr(Linear::to(0.0)).by_epoch(true);
    assert_eq!(fit(model::builder().epochs(2), by_epoch).unwrap()[5..7], [0.1, 0.05]);
}

/// Returns a builder whose metric `<phase>/recorded` takes these values in turn, and the recorded
/// rates.
fn recorded(
    values: Vec<f64>,
    hook: ReduceOnPlateau,
) -> (TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>>, Rates) {
    let mut of_train = values.clone().into_iter();
    let mut of_valid = values.into_iter();
    let builder = builder()
        .on::<AfterTrainEpoch>("record", move |cx| cx.log("recorded", of_train.next().unwrap_or(0.0)))
        .on::<AfterValid>("record_valid", move |cx| cx.log("recorded", of_valid.next().unwrap_or(0.0)));
    record_rates(builder.hook(hook))
}

#[test]
fn reduce_on_plateau_matches_pytorch() {
    let reference = reference();
    let metric = &reference["plateau.metric"];
    for phase in ["train", "valid"] {
        let of = |better| ReduceOnPlateau::new(format!("{phase}/recorded"), better);
        let cases = [
            ("rel", of(Goal::Minimize).patience(5).cooldown(3).factor(0.5).min_lr(1e-4)),
            ("abs", of(Goal::Minimize).patience(20).factor(0.7).threshold_abs(0.01)),
            ("max", of(Goal::Maximize).threshold(0.02).cooldown(30)),
        ];
        for (name, hook) in cases {
            let (builder, rates) = recorded(metric.clone(), hook);
            let mut trainer = builder.epochs(1000).build().unwrap();
            trainer.fit(&mut model::rows(4), Some(&mut model::rows(4))).unwrap();
            let expected = &reference[&format!("plateau.{name}")];
            let off = deviation(take_rates(&rates).into_iter(), expected, BASE);
            assert!(off <= 1e-12, "{name} of {phase} deviates by {off:e}");
            let state = trainer.hook::<ReduceOnPlateau>().unwrap().state();
            let changes = expected.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;
            assert!(changes > 5 && state.reductions >= changes, "{name}: {changes} {state:?}");
        }
    }
}

#[test]
fn plateau_state_round_trips_through_json() {
    let (builder, _) = recorded(
        vec![0.1 + 0.2, 0.5, 0.7],
        ReduceOnPlateau::new("train/recorded", Goal::Minimize).patience(5),
    );
    let mut trainer = builder.epochs(3).build().unwrap();
    trainer.fit(&mut model::rows(4), None).unwrap();
    let state = trainer.hook::<ReduceOnPlateau>().unwrap().state();
    assert_eq!((state.best, state.bad), (Some(0.1 + 0.2), 2));
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<PlateauState>(&text).unwrap(), state);
}

#[test]
fn reduce_on_plateau_counts_only_validations_within_a_fit() {
    let hook = ReduceOnPlateau::new("valid/recorded", Goal::Minimize).factor(0.5).patience(1);
    let (builder, rates) = recorded(vec![1.0; 5], hook);
    let mut trainer = builder.validate_every(Every::Steps(1)).sanity_batches(1).build().unwrap();
    for _ in 0..3 {
        trainer.validate(&mut model::rows(4)).unwrap();
    }
    // The metric is 1 in these three validations, in the sanity check and once more, then 0: one
    // improvement, then none.
    trainer.fit(&mut model::rows(24), Some(&mut model::rows(4))).unwrap();
    let full = [BASE; 4];
    assert_eq!(take_rates(&rates), [&full[..], &[BASE * 0.5; 2]].concat());
}

#[test]
fn a_schedule_continues_from_a_reduced_rate() {
    let hook = ReduceOnPlateau::new("train/recorded", Goal::Minimize).factor(0.1).patience(0);
    let (builder, rates) = recorded(vec![1.0, 1.0, 0.5, 0.25], hook);
    let builder = builder.hook(HyperparameterSchedule::lr(Linear::to(0.0)));
    builder.epochs(4).build().unwrap().fit(&mut model::rows(4), None).unwrap();
    let expected = [1.0, 0.75, 0.05, 0.025].map(|factor| BASE * factor);
    assert!(take_rates(&rates).iter().zip(expected).all(|(own, by_hand)| (own - by_hand).abs() < 1e-16));
}

#[test]
fn reduce_on_plateau_refuses_unknown_metrics() {
    let fit = |hook: ReduceOnPlateau, validates: bool| {
        let mut trainer = builder().epochs(2).hook(hook).build().unwrap();
        let mut valid = model::rows(4);
        let error = trainer
            .fit(&mut model::rows(8), validates.then_some(&mut valid as &mut dyn Loader<_>))
            .unwrap_err();
        message(&error).split_once(" failed at ").unwrap().1.to_owned()
    };
    let of = |metric: &str| ReduceOnPlateau::new(metric, Goal::Minimize);
    let cases = [
        (
            of("valid/los"),
            true,
            "before_fit, epoch 0, batch 0: no metric named `valid/los` will be logged; the metrics are `valid/loss`; did you mean \
             `valid/loss`?",
        ),
        (
            of("train/los"),
            true,
            "after_train_epoch, epoch 0, batch 2: no metric is named `train/los`; the metrics are `train/loss`; did you mean \
             `train/loss`?",
        ),
        (
            of("valid/loss"),
            false,
            "before_fit, epoch 0, batch 0: `valid/loss` will never be measured, because this fit does not validate: pass \
             validation data, `fit(&mut train, Some(&mut valid))`, and set `.validate_every(…)` so that a validation is due within the fit",
        ),
        (
            of("loss"),
            true,
            "before_fit, epoch 0, batch 0: `loss` is not the name of a metric in training or validation: expected `train/…` or `valid/…`",
        ),
        (
            of("valid/loss").part("generator"),
            true,
            "before_fit, epoch 0, batch 0: no optimizer is registered for part `generator`, only for the whole model: \
             replace `.optimizer(…)` with `.optimizer_of(\"generator\", AdamW::new(1e-3))`",
        ),
    ];
    for (hook, validates, expected) in cases {
        assert_eq!(fit(hook, validates), expected);
    }
    // Stopping before the first validation is not an error.
    let stopped = builder().hook(of("valid/loss")).on::<AfterStep>("stop", |cx| cx.stop("enough"));
    stopped.build().unwrap().fit(&mut model::rows(8), Some(&mut model::rows(4))).unwrap();
}
