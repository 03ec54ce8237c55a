//! A resume refuses what decides the result and differs, and accepts what only observes.

use std::fs;

use trainer::TrainerBuilder;
use trainer::checkpoint::{Resume, SettingList, Settings};
use trainer::hooks::{Checkpoint, Ema, GradientNoise, HyperparameterSchedule, Progress, SystemMonitor};
use trainer::loggers::Csv;
use trainer::prelude::*;
use trainer::schedule::Cosine;

use crate::files::forge;
use crate::model;
use crate::support::{exact_state, own_warnings, scratch};

/// Adds to the gradients.
struct Push {
    by: f64,
    steps: u64,
}

impl Settings for Push {
    fn settings(&self) -> SettingList {
        let Push { by, steps: _ } = self;
        SettingList::new().with("by", by)
    }
}

#[hook(settings, only = train)]
impl Push {
    fn after_backward(&mut self, cx: &mut Cx<AfterBackward>) {
        self.steps += 1;
        for (_, mut grad) in cx.grads() {
            grad += self.by;
        }
    }
}

fn push(by: f64) -> Push {
    Push { by, steps: 0 }
}

/// Trains one epoch, then resumes with other settings for a second one, and returns the error.
fn resumed<T, U>(
    name: &str,
    first: TrainerBuilder<T>,
    second: TrainerBuilder<U>,
) -> Result<Trainer<U>, String>
where
    T: Task<Batch = (Tensor, Tensor)>,
    U: Task<Batch = (Tensor, Tensor)>,
{
    let folder = scratch(name);
    let mut first = first.hook(Checkpoint::new(&folder)).build().unwrap();
    first.fit(&mut model::rows(8), None).unwrap();
    drop(first);
    let second = second.epochs(2).hook(Checkpoint::new(&folder).keep_last(2)).resume(Resume::Auto);
    let mut second = second.build().unwrap();
    let result = second.fit(&mut model::rows(8), None);
    fs::remove_dir_all(&folder).unwrap();
    result.map(|_| second).map_err(|error| error.to_string())
}

#[test]
fn a_refused_resume_lists_each_changed_hook_optimizer_and_setting() {
    let builder = model::builder;
    let double = |cx: &mut Cx<AfterBackward>| {
        for (_, mut grad) in cx.grads() {
            grad *= 2.0;
        }
    };
    let none = |_: &mut Cx<AfterBackward>| ();
    let lr = |schedule: Cosine| builder().hook(HyperparameterSchedule::lr(schedule));
    let noise = "trainer::hooks::GradientNoise";
    let cases = [
        (
            resumed("facts-removed", builder().on::<AfterBackward>("double", double), builder()).err(),
            vec!["the hook `double at after_backward` was present when the checkpoint was written and is now missing".to_owned()],
        ),
        (
            resumed("facts-added", builder(), builder().hook(GradientNoise::new(0.1))).err(),
            vec![format!("the hook `{noise}` was missing when the checkpoint was written and is now present")],
        ),
        (
            resumed(
                "facts-noise",
                builder().hook(GradientNoise::new(0.1)),
                builder().hook(GradientNoise::new(0.2).gamma(0.5)),
            )
            .err(),
            vec![
                format!("`{noise}.eta` was 0.1 when the checkpoint was written and is now 0.2"),
                format!("`{noise}.gamma` was 0.55 when the checkpoint was written and is now 0.5"),
            ],
        ),
        (
            resumed(
                "facts-order",
                builder().on::<AfterBackward>("double", double).on::<AfterBackward>("none", none),
                builder().on::<AfterBackward>("none", none).on::<AfterBackward>("double", double),
            )
            .err(),
            vec![
                "the order at `after_backward` was double at after_backward, none at after_backward when the checkpoint was written \
                 and is now none at after_backward, double at after_backward"
                    .to_owned(),
            ],
        ),
        (
            resumed("facts-own", builder().hook(push(0.1)), builder().hook(push(0.2))).err(),
            vec!["`it::comparison::Push.by` was 0.1 when the checkpoint was written and is now 0.2".to_owned()],
        ),
        (
            resumed("facts-schedule", lr(Cosine::to(0.0)), lr(Cosine::to(0.1))).err(),
            vec!["`trainer::hooks::HyperparameterSchedule.schedule.end` was 0.0 when the checkpoint was written and is now 0.1".to_owned()],
        ),
        (
            resumed(
                "facts-optimizer",
                builder().optimizer(Sgd::new(0.1).momentum(0.9)),
                builder().optimizer(Sgd::new(0.1).momentum(0.8)),
            )
            .err(),
            vec![
                "`optimizer.momentum` was 0.9 when the checkpoint was written and is now 0.8; the value in the checkpoint applies: \
                 to change it on purpose, set it at `after_load_checkpoint`"
                    .to_owned(),
            ],
        ),
    ];
    for (error, lines) in cases {
        let error = error.expect("refused");
        let (_, found) = error.split_once("without `.resume(…)`:\n- ").expect(&error);
        assert_eq!(found.split("\n- ").collect::<Vec<_>>(), lines);
    }
}

#[test]
fn a_resume_with_different_observers_is_exact() {
    let plain = resumed("facts-plain", model::builder(), model::builder()).unwrap();
    let folder = scratch("facts-csv");
    let file = folder.join("values.csv");
    let observed = || model::builder().hook(Csv::at(&file)).hook(Progress::new()).hook(SystemMonitor::new());
    let added = resumed("facts-observed", model::builder(), observed()).unwrap();
    assert_eq!(exact_state(&added), exact_state(&plain));
    drop(added);
    fs::remove_dir_all(&folder).unwrap();
    let removed = resumed("facts-unobserved", observed(), model::builder()).unwrap();
    assert_eq!(exact_state(&removed), exact_state(&plain));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_resumed_run_can_be_changed_on_purpose_after_loading_the_checkpoint() {
    let slower = model::builder().on::<AfterLoadCheckpoint>("slower", |cx| {
        for group in cx.optimizer_mut()?.groups_mut() {
            group.lr = 0.01;
        }
        Ok(())
    });
    let trainer = resumed("facts-purpose", model::builder(), slower).unwrap();
    assert_eq!(trainer.optimizer().unwrap().groups()[0].lr, 0.01);
}

#[test]
fn a_different_version_of_a_hook_crate_causes_a_warning_with_both_versions() {
    let folder = scratch("facts-version");
    let builder = |epochs| model::builder().hook(Ema::new(0.9)).epochs(epochs).hook(Checkpoint::new(&folder));
    builder(1).build().unwrap().fit(&mut model::rows(8), None).unwrap();
    let newest = trainer::checkpoint::newest(&folder).unwrap();
    forge(&newest, |json| {
        for hook in json["facts"]["hooks"].as_object_mut().unwrap().values_mut() {
            hook["package"][1] = "0.0.1".into();
        }
    });
    let summary = builder(2).resume(Resume::Auto).build().unwrap().fit(&mut model::rows(8), None).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        own_warnings(&summary),
        [format!(
            "the hooks of `trainer` have version {version}, but the resumed run used version 0.0.1: results \
             may differ"
        )]
    );
    fs::remove_dir_all(&folder).unwrap();
}
