//! Variables that are added, replaced or removed after the trainer is built.

use std::fs;

use trainer::TrainerBuilder;
use trainer::hooks::{Checkpoint, HyperparameterSchedule};
use trainer::optim::Group;
use trainer::prelude::*;
use trainer::schedule::Linear;
use trainer::testing::Harness;

use crate::model::{message, rows};
use crate::support::{cancelled_at, device, exact_state, scratch};

/// A task with one layer, and a second one after `grow`.
struct Growing {
    vars: nn::VarStore,
    body: nn::Linear,
    head: Option<nn::Linear>,
}

impl Growing {
    fn new() -> Self {
        tch::set_num_threads(1);
        let vars = nn::VarStore::new(device());
        let body = filled(nn::linear(vars.root() / "body", 4, 3, Default::default()), 0.3);
        Growing { vars, body, head: None }
    }

    fn grow(&mut self) {
        if self.head.is_none() {
            let head = nn::linear(self.vars.root() / "head", 3, 3, Default::default());
            self.head = Some(filled(head, 0.2));
        }
    }
}

fn filled(layer: nn::Linear, scale: f64) -> nn::Linear {
    let _guard = tch::no_grad_guard();
    for tensor in std::iter::once(&layer.ws).chain(&layer.bs) {
        let count = i64::try_from(tensor.numel()).unwrap();
        let wave = (Tensor::arange(count, (Kind::Float, device())) + 1.0).sin() * scale;
        tensor.shallow_clone().copy_(&wave.view_as(tensor));
    }
    layer
}

impl Task for Growing {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        let hidden = inputs.apply(&self.body);
        Ok(match &self.head {
            Some(head) => hidden.relu().apply(head),
            None => hidden,
        })
    }
    fn loss(&mut self, pred: &Tensor, (_, labels): &Self::Batch) -> Result<Tensor> {
        Ok(pred.cross_entropy_for_logits(labels))
    }
}

fn builder() -> TrainerBuilder<Growing> {
    Trainer::builder(Growing::new()).optimizer(AdamW::new(0.01)).discover(Discover::None)
}

/// Adds a hook that adds the head in `setup` if it is missing.
fn with_growing_hook(builder: TrainerBuilder<Growing>) -> TrainerBuilder<Growing> {
    builder.on::<Setup>("grow", |cx| cx.task_mut::<Growing>().unwrap().grow())
}

#[test]
fn layers_added_in_setup_are_trained_like_those_present_at_build() {
    let mut task = Growing::new();
    task.grow();
    let schedule = || HyperparameterSchedule::lr(Linear::to(0.0));
    let whole = Trainer::builder(task).optimizer(AdamW::new(0.01)).discover(Discover::None);
    let mut whole = whole.hook(schedule()).epochs(2).build().unwrap();
    let mut grown = with_growing_hook(builder()).hook(schedule()).epochs(2).build().unwrap();
    assert_eq!(grown.vars().iter().count(), 2);
    // In the second fit, `setup` finds the head and nothing is bound again.
    for _ in 0..2 {
        whole.fit(&mut rows(12), None).unwrap();
        grown.fit(&mut rows(12), None).unwrap();
        assert_eq!(grown.vars().iter().count(), 4);
        assert_eq!(exact_state(&grown), exact_state(&whole));
    }
    let steps = grown.optimizer().unwrap().state().into_iter().find(|(name, _)| name == "step/head.weight");
    assert_eq!(steps.unwrap().1.double_value(&[]), 12.0);
}

#[test]
fn layers_added_for_a_second_fit_do_not_reset_the_others() {
    let optimizer =
        AdamW::new(0.01).group("head.*", Group::new().lr(0.5)).group("body.bias", Group::new().frozen(true));
    let mut trainer = Trainer::builder(Growing::new())
        .optimizer(optimizer)
        .discover(Discover::None)
        .on::<Setup>("grow_later", |cx| {
            if cx.counters().batches_seen > 0 || cx.phase() == Phase::Test {
                cx.task_mut::<Growing>()?.grow();
            }
            Ok(())
        })
        .build()
        .unwrap();
    // The pattern for the head matches nothing in the first `setup`.
    let error = trainer.fit(&mut rows(8), None).unwrap_err();
    assert!(message(&error).contains("`.group(\"head.*\", …)`: no parameter matches"), "{error}");
    trainer.test(&mut rows(8)).unwrap();
    let group = trainer.optimizer().unwrap().groups().iter().find(|group| group.pattern() == Some("head.*"));
    assert_eq!(group.unwrap().names().collect::<Vec<_>>(), ["head.bias", "head.weight"]);

    let mut trainer = Trainer::builder(Growing::new())
        .optimizer(
            AdamW::new(0.01)
                .group("*.bias", Group::new().lr(0.5))
                .group("body.weight", Group::new().lr(0.25)),
        )
        .discover(Discover::None)
        .hook(HyperparameterSchedule::lr(Linear::to(0.5).over(4)))
        .on::<Setup>("grow_later", |cx| {
            if cx.counters().batches_seen > 0 {
                cx.task_mut::<Growing>()?.grow();
            }
            Ok(())
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    trainer.optimizer_mut().unwrap().groups_mut()[1].set("beta2", 0.9).unwrap();
    let before = exact_state(&trainer);
    trainer.validate(&mut rows(8)).unwrap();
    let after = exact_state(&trainer);
    for known in &before {
        assert!(after.contains(known), "{}", known.0);
    }
    let (_, average) = after.iter().find(|(name, _)| name == "exp_avg/head.weight").unwrap();
    assert!(average.iter().all(|bits| *bits == 0));
    let groups = trainer.optimizer().unwrap().groups();
    let settings: Vec<_> =
        groups.iter().map(|group| (group.pattern(), group.get("beta2").unwrap())).collect();
    assert_eq!(settings, [(None, 0.999), (Some("*.bias"), 0.999), (Some("body.weight"), 0.9)]);
    // The schedule continues for the known groups, and also applies to the new one.
    trainer.fit(&mut rows(8), None).unwrap();
    let lrs: Vec<_> = trainer.optimizer().unwrap().groups().iter().map(|group| group.lr).collect();
    assert_eq!(lrs, [0.01, 0.5, 0.25].map(|lr| lr * 0.625));
}

#[test]
fn a_pattern_for_a_layer_added_in_setup_is_checked_after_setup() {
    let groups = || AdamW::new(0.01).group("head.*", Group::new().lr(0.5));
    let of =
        |optimizer: AdamW| Trainer::builder(Growing::new()).optimizer(optimizer).discover(Discover::None);
    let mut trainer = with_growing_hook(of(groups())).build().unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    assert_eq!(trainer.optimizer().unwrap().groups()[0].names().count(), 2);

    // Without a hook at `setup`, the pattern is refused at build; other mistakes always are.
    let error = message(&of(groups()).build().unwrap_err());
    assert!(error.contains("`.group(\"head.*\", …)`: no parameter matches"), "{error}");
    let error = message(&with_growing_hook(of(groups().weight_decay(-1.0))).build().unwrap_err());
    assert!(error.contains("weight_decay") && !error.contains("\nhead"), "{error}");
    // A pattern that does not match the new layers either is refused before training.
    let misspelled = AdamW::new(0.01).group("haed.*", Group::new().lr(0.5));
    let error =
        message(&with_growing_hook(of(misspelled)).build().unwrap().fit(&mut rows(8), None).unwrap_err());
    assert!(
        error.starts_with("failed at fit, epoch 0, batch 0: `.group(\"haed.*\", …)`: no parameter matches"),
        "{error}"
    );
}

#[test]
fn a_part_of_the_model_may_be_added_in_setup() {
    let parts = || {
        let builder = Trainer::builder(Growing::new()).discover(Discover::None);
        builder.optimizer_of("head", Sgd::new(0.1))
    };
    let error = message(&parts().build().unwrap_err());
    assert!(error.contains("`.optimizer_of(\"head\", …)`: no parameter name starts with this"), "{error}");
    let mut trainer = with_growing_hook(parts()).build().unwrap();
    let before = trainer.vars().get("body.weight").unwrap().copy();
    trainer.fit(&mut rows(8), None).unwrap();
    assert_eq!(trainer.vars().get("body.weight").unwrap(), before);
    assert_eq!(trainer.optimizer_of("head").unwrap().groups()[0].names().count(), 2);
    let error = message(
        &with_growing_hook(parts().optimizer(Sgd::new(0.1)))
            .build()
            .unwrap()
            .fit(&mut rows(8), None)
            .unwrap_err(),
    );
    assert!(error.contains("`head.bias` would be updated twice"), "{error}");
}

/// Changes the `VarStore` during training. Returns the error at the end of that pass.
fn refused(change: impl Fn(&mut Growing) + Send + 'static) -> String {
    let mut trainer = builder()
        .epochs(2)
        .on::<AfterStep>("change", move |cx| {
            if cx.counters().batches_seen == 1 {
                change(cx.task_mut::<Growing>()?);
            }
            Ok(())
        })
        .build()
        .unwrap();
    let error = message(&trainer.fit(&mut rows(8), None).unwrap_err());
    assert_eq!(trainer.counters().batches_seen, 2);
    error
}

#[test]
fn variables_that_change_after_setup_are_refused_at_the_end_of_the_epoch() {
    let advice = "when the optimizers no longer pick up changes: change layers in a hook at `setup`, or before the trainer \
                  is built";
    assert_eq!(
        refused(Growing::grow),
        format!(
            "failed at train_epoch, epoch 0, batch 2: `head.bias`, `head.weight` were added to the task's `VarStore` after `setup`, {advice}"
        )
    );
    let replaced = refused(|task| {
        let mut locked = task.vars.variables_.lock().unwrap();
        locked.named_variables.insert("body.bias".into(), Tensor::zeros([3], (Kind::Float, device())));
    });
    assert!(
        replaced.contains("`body.bias` was replaced in the task's `VarStore` after `setup`"),
        "{replaced}"
    );
    let removed =
        refused(|task| drop(task.vars.variables_.lock().unwrap().named_variables.remove("body.bias")));
    assert!(
        removed.contains("`body.bias` was removed from the task's `VarStore` after `setup`"),
        "{removed}"
    );
    let many =
        refused(|task| (0..9).for_each(|nth| drop(task.vars.root().zeros(&format!("new{nth}"), &[1]))));
    assert!(many.contains("`new4` and 4 more were added"), "{many}");
}

#[test]
fn a_variable_replaced_in_setup_is_trained() {
    let mut trainer = builder()
        .on::<Setup>("replace", |cx| {
            let task = cx.task_mut::<Growing>()?;
            task.vars = nn::VarStore::new(device());
            task.body = filled(nn::linear(task.vars.root() / "body", 4, 3, Default::default()), 0.1);
            task.head = None;
            task.grow();
            Ok(())
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    let trained = trainer.vars().get("body.weight").unwrap();
    assert_eq!(trained.data_ptr(), trainer.task().body.ws.data_ptr());
    let untrained = filled(nn::linear(nn::VarStore::new(device()).root(), 4, 3, Default::default()), 0.1);
    assert_ne!(trained, untrained.ws);
    assert_eq!(trainer.optimizer().unwrap().groups()[0].names().count(), 4);
}

#[test]
fn moving_the_var_store_does_not_count_as_a_change_of_variables() {
    let mut trainer = builder().on::<AfterStep>("move", |cx| {
        cx.task_mut::<Growing>().unwrap().vars.set_device(Device::Cpu);
    });
    trainer = trainer.on::<AfterStep>("set_data", |cx| {
        let vars = cx.task_mut::<Growing>().unwrap().vars.variables();
        for tensor in vars.into_values() {
            tensor.shallow_clone().set_data(&tensor.detach().copy());
        }
    });
    trainer.epochs(2).build().unwrap().fit(&mut rows(8), None).unwrap();
}

#[test]
fn a_run_with_a_layer_added_in_setup_resumes_exactly() {
    let folder = scratch("grown");
    let run = |at: Option<u64>, resume: bool| {
        let mut builder = with_growing_hook(builder()).epochs(3);
        if at.is_some() || resume {
            builder = builder.hook(Checkpoint::new(&folder));
        }
        if resume {
            builder = builder.resume(Resume::Auto);
        }
        let mut trainer = cancelled_at(at, builder).build().unwrap();
        let outcome = trainer.fit(&mut rows(16), None);
        (outcome.is_ok(), exact_state(&trainer))
    };
    let (_, uninterrupted) = run(None, false);
    assert!(!run(Some(3), false).0);
    assert!(!run(Some(7), true).0);
    assert_eq!(run(None, true), (true, uninterrupted));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn names_compare_with_strings_in_both_directions() {
    let outcome = Harness::small()
        .on::<AfterBackward>(|cx| {
            let first = cx.vars().parameters().next().unwrap().name.clone();
            let (name, _) = cx.grads().next().unwrap();
            let (text, owned): (&str, String) = (&first, first.clone());
            assert!(name == owned);
            assert!(owned == name);
            assert!(name == text);
            assert!(text == name);
            assert!(name == *text);
            assert!(*text == name);
            assert!(name != "other");
            assert!("other" != name);
            let names = [first.clone()];
            assert!(names.iter().any(|known| *known == name));
        })
        .run();
    outcome.unwrap();
    let named = nn::func(Tensor::relu).named("relu");
    let owned = String::from("relu");
    assert!(*named.name() == "relu");
    assert!("relu" == *named.name());
    assert!(owned == *named.name());
}
