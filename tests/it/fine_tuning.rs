//! Freezing and thawing on a schedule, and layer-wise learning rates.

use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::hooks::{Checkpoint, Freeze};
use trainer::modules::Patterns;
use trainer::optim::{Adam, Group};
use trainer::prelude::*;

use crate::model::{self, rows};
use crate::support::{cancelled_at, exact_state, scratch};

fn builder() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(model::task()).optimizer(AdamW::new(0.01)).discover(Discover::None)
}

/// Returns the value of every parameter at the start of each epoch, and at the end of the last.
fn weights_by_epoch<T: Task<Batch = (Tensor, Tensor)>>(
    builder: TrainerBuilder<T>,
    batches: i64,
) -> Vec<Vec<(String, Tensor)>> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&found);
    let values = |vars: &trainer::Vars| -> Vec<(String, Tensor)> {
        vars.parameters().map(|var| (var.name.clone(), var.tensor.detach().copy())).collect()
    };
    let options = HookOptions::named("note").ord(-1000);
    let builder =
        builder.on::<BeforeEpoch>(options, move |cx| notes.lock().unwrap().push(values(&cx.vars())));
    let mut trainer = builder.build().unwrap();
    trainer.fit(&mut rows(batches * 4), None).unwrap();
    let mut found = std::mem::take(&mut *found.lock().unwrap());
    found.push(values(trainer.vars()));
    found
}

/// Returns the names of the parameters that changed in each epoch.
fn changes(weights: &[Vec<(String, Tensor)>]) -> Vec<Vec<&str>> {
    let changed = |pair: &[Vec<(String, Tensor)>]| {
        pair[0]
            .iter()
            .zip(pair[1].iter())
            .filter(|(before, after)| before.1 != after.1)
            .map(|(before, _)| before.0.as_str())
            .fold(Vec::new(), |mut names, name| {
                // Borrowed from `weights`, because the argument of the closure has a shorter
                // lifetime.
                names.push(weights[0].iter().find(|(known, _)| known == name).unwrap().0.as_str());
                names
            })
    };
    weights.windows(2).map(changed).collect()
}

const FC2: [&str; 2] = ["fc2.bias", "fc2.weight"];
const ALL: [&str; 4] = ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"];

#[test]
fn parameters_are_frozen_and_thawed_at_their_epochs() {
    let freeze =
        Freeze::new("fc1.*").thaw_at(1, "*.weight").thaw_at(2, "fc1.*").freeze_at(3, ["fc1.*", "fc2.bias"]);
    let weights = weights_by_epoch(builder().epochs(4).hook(freeze), 3);
    let partly = ["fc1.weight", "fc2.bias", "fc2.weight"];
    assert_eq!(changes(&weights), [&FC2[..], &partly, &ALL, &["fc2.weight"]]);
}

#[test]
fn freezing_and_thawing_can_be_scheduled_by_optimizer_step() {
    // Windows of two batches: 3 steps in each epoch of 6 batches.
    let freeze = Freeze::nothing().freeze_at(3, "fc1.*").thaw_at(6, "fc1.*").by_step(true);
    let weights = weights_by_epoch(builder().epochs(3).accumulate(2).hook(freeze), 6);
    assert_eq!(changes(&weights), [&ALL[..], &FC2, &ALL]);
}

#[test]
fn frozen_parameters_have_no_gradient_and_their_group_takes_no_step() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let mut trainer = Trainer::builder(model::task())
        .optimizer(AdamW::new(0.01).group("fc1.*", Group::new().frozen(true)).group("fc2.bias", Group::new()))
        .discover(Discover::None)
        .epochs(2)
        .hook(Freeze::new("fc2.bias").thaw_at(1, ["fc1.*", "fc2.bias"]))
        .on::<BeforeOptStep>("note", move |cx| {
            let with_gradient = cx.grads().count();
            let groups = cx.optimizer()?.groups();
            notes
                .lock()
                .unwrap()
                .push((with_gradient, groups.iter().filter(|group| group.is_frozen()).count()));
            Ok(())
        })
        .build()
        .unwrap();
    let has_state = |trainer: &Trainer<_>, name: &str| {
        trainer.optimizer().unwrap().state().iter().any(|(known, _)| known == name)
    };
    assert!(!has_state(&trainer, "exp_avg/fc1.weight"), "a frozen group has no state");
    trainer.fit(&mut rows(4), None).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(1, 2), (4, 0)]);
    assert!(has_state(&trainer, "exp_avg/fc1.weight"), "state is created when the group is thawed");
    let steps =
        trainer.optimizer().unwrap().state().into_iter().find(|(name, _)| name == "step/fc2.bias").unwrap().1;
    assert_eq!(steps.double_value(&[]), 1.0, "the frozen epoch took no step");
}

#[test]
fn schedules_that_change_nothing_or_freeze_everything_are_refused() {
    let cases = [
        (
            Freeze::new("encoder.*"),
            "`Freeze::new(\"encoder.*\")`: no parameter of an optimizer matches `encoder.*`",
        ),
        (Freeze::new(["fc1.*", "fc1.wieght"]), "matches `fc1.wieght`; did you mean `fc1.weight`?"),
        (
            Freeze::new("fc1.*").thaw_at(2, "fc2.*"),
            "`.thaw_at(2, \"fc2.*\")`: none of these parameters is frozen",
        ),
        (
            Freeze::new("fc1.*").thaw_at(1, "fc1.*").thaw_at(2, "fc1.bias"),
            "`.thaw_at(2, \"fc1.bias\")`: none",
        ),
        (Freeze::new("*"), "`Freeze::new(\"*\")` leaves no parameter to train"),
        (
            Freeze::nothing().freeze_at(1, ["fc1.*", "fc2.*"]),
            "`.freeze_at(1, [\"fc1.*\", \"fc2.*\"])` leaves no",
        ),
        (Freeze::nothing().thaw_at(0, "fc1.*"), "none of these parameters is frozen"),
    ];
    for (freeze, expected) in cases {
        let mut trainer = builder().epochs(3).hook(freeze).build().unwrap();
        let error = trainer.fit(&mut rows(4), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(trainer.vars().parameters().all(|var| var.tensor.requires_grad()));
    }
}

#[test]
fn an_optional_pattern_may_match_nothing() {
    let patterns = || Patterns::default().optional("encoder.*");
    let freeze = Freeze::new("fc1.*").freeze_at(1, patterns()).thaw_at(2, patterns());
    let mut trainer = builder().epochs(3).hook(freeze).build().unwrap();
    trainer.fit(&mut rows(4), None).unwrap();
    let trained = trainer.vars().parameters().filter(|var| var.tensor.requires_grad());
    assert_eq!(trained.map(|var| var.name.clone()).collect::<Vec<_>>(), ["fc2.bias", "fc2.weight"]);
}

#[test]
fn a_cancelled_run_resumes_with_its_frozen_parameters() {
    let run = |at: Option<u64>, name: &str| {
        let folder = scratch(name);
        let make = || {
            let freeze =
                Freeze::new("fc1.*").thaw_at(1, "fc1.weight").thaw_at(2, "fc1.*").freeze_at(3, "fc2.*");
            let optimizer = Adam::new(0.01).group("fc1.bias", Group::new());
            let builder =
                Trainer::builder(model::task()).optimizer(optimizer).discover(Discover::None).epochs(4);
            builder.hook(freeze).hook(Checkpoint::new(&folder)).resume(Resume::Auto)
        };
        if at.is_some() {
            let mut trainer = cancelled_at(at, make()).build().unwrap();
            assert!(trainer.fit(&mut rows(12), None).unwrap_err().is_cancelled());
        }
        let mut trainer = cancelled_at(None, make()).build().unwrap();
        trainer.fit(&mut rows(12), None).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        exact_state(&trainer)
    };
    let whole = run(None, "freeze-whole");
    for at in 1..12 {
        assert_eq!(run(Some(at), "freeze-cancelled"), whole, "cancelled after batch {at}");
    }
}

#[test]
fn layer_decay_scales_the_learning_rates_that_no_group_sets() {
    let rates = |optimizer: AdamW| -> Vec<(String, f64)> {
        let trainer =
            Trainer::builder(model::task()).optimizer(optimizer).discover(Discover::None).build().unwrap();
        let groups = trainer.optimizer().unwrap().groups();
        groups.iter().flat_map(|group| group.names().map(|name| (name.to_owned(), group.lr))).collect()
    };
    let mut found =
        rates(AdamW::new(1.0).group("fc1.bias", Group::new().lr(5.0)).layer_decay(0.5, ["fc1.*", "fc2.*"]));
    found.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [("fc1.bias", 5.0), ("fc1.weight", 0.5), ("fc2.bias", 1.0), ("fc2.weight", 1.0)];
    assert_eq!(found, expected.map(|(name, rate)| (name.to_owned(), rate)));

    let error = |optimizer: AdamW| {
        let builder = Trainer::builder(model::task()).optimizer(optimizer).discover(Discover::None);
        builder.build().unwrap_err().to_string()
    };
    let invalid = error(AdamW::new(1.0).layer_decay(f64::NAN, ["fc1.*", "fc2.*"]));
    assert!(invalid.contains("`.layer_decay(NaN, …)`: expected a finite factor above 0"), "{invalid}");
    let unmatched = error(AdamW::new(1.0).layer_decay(0.5, ["fc0.*", "fc1.*"]));
    assert!(unmatched.contains("`.group(\"fc0.*\", …)`: no parameter matches"), "{unmatched}");
}
