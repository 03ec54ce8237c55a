//! Hooks of a program that do what built-in hooks do: settings that `build` checks and loggers
//! record, and checkpoints that `Resume::Auto` finds.

use std::path::{Path, PathBuf};

use trainer::checkpoint::{Resume, SettingList, Settings};
use trainer::prelude::*;

use crate::model::{self, builder, message};
use crate::support::{cancelled_at, exact_state, scratch};

/// Scales the gradients by a factor.
struct Scaled {
    factor: f64,
}

impl Settings for Scaled {
    fn settings(&self) -> SettingList {
        let Scaled { factor } = self;
        SettingList::new().with("factor", factor).with("unit", "one")
    }

    fn mistakes(&self) -> Vec<String> {
        let mistake = format!("`factor` is {}: expected a positive number", self.factor);
        if self.factor > 0.0 { Vec::new() } else { vec![mistake] }
    }
}

#[hook(settings, trial)]
impl Scaled {
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        cx.unscale_grads(1.0 / self.factor).map(drop)
    }
}

/// Writes a checkpoint after each epoch, always into the same folder.
struct Latest {
    folder: PathBuf,
}

impl Settings for Latest {
    fn settings(&self) -> SettingList {
        let Latest { folder: _ } = self; // where a run is saved does not decide its result
        SettingList::new()
    }

    fn checkpoints(&self, run_folder: Option<&Path>) -> Option<PathBuf> {
        Some(run_folder?.join(&self.folder))
    }
}

#[hook(settings)]
impl Latest {
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) {
        let run_folder = cx.run_folder().expect("the test sets one");
        cx.save_checkpoint(run_folder.join(&self.folder));
    }
}

#[test]
fn build_reports_the_invalid_settings_of_all_hooks_together() {
    let error =
        builder().hook(Scaled { factor: 0.0 }).hook(Scaled { factor: -1.0 }).epochs(0).build().unwrap_err();
    insta::assert_snapshot!(message(&error), @r"
    the trainer cannot be built, for 3 reasons:
    - `.epochs(0)` trains nothing: expected at least 1; to evaluate only, call `validate` or `test`
    - hook `it::third_party::Scaled`: `factor` is 0: expected a positive number
    - hook `it::third_party::Scaled`: `factor` is -1: expected a positive number
    ");
}

#[test]
fn settings_of_hooks_are_recorded_as_hyperparameters() {
    let trainer =
        builder().hook(Scaled { factor: 0.5 }).hook(Scaled { factor: 2.0 }).clip_grad_norm(1.0).epochs(1);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let list = std::sync::Arc::clone(&seen);
    let mut trainer = trainer
        .on::<BeforeFit>("list", move |cx| list.lock().unwrap().extend(cx.hyperparameters()))
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let seen = seen.lock().unwrap();
    let value = |name: &str| seen.iter().find(|(own, _)| own == name).map(|(_, value)| value.to_string());
    assert_eq!(value("Scaled.factor").as_deref(), Some("0.5"));
    assert_eq!(value("Scaled2.factor").as_deref(), Some("2"));
    assert_eq!(value("Scaled.unit").as_deref(), Some("one"));
    assert_eq!(value("ClipGradNorm.max_norm").as_deref(), Some("1"));
    let clash = builder().hook(Scaled { factor: 0.5 }).hyperparameter("Scaled.factor", 1.0).epochs(1).build();
    assert!(message(&clash.unwrap_err()).contains("the trainer records its own `Scaled.factor`"));
}

#[test]
fn resume_auto_finds_the_checkpoints_of_a_custom_hook() {
    let folder = scratch("third-party");
    let program = |name: &str, cancelled: Option<u64>| {
        let latest = Latest { folder: "latest".into() };
        cancelled_at(cancelled, builder())
            .hook(latest)
            .run_folder(folder.join(name))
            .resume(Resume::Auto)
            .epochs(3)
            .seed(4)
    };
    let mut whole = program("whole", None).build().unwrap();
    whole.fit(&mut model::rows(16), None).unwrap();
    let mut killed = program("killed", Some(6)).build().unwrap();
    killed.fit(&mut model::rows(16), None).unwrap_err();
    let mut resumed = program("killed", None).build().unwrap();
    assert!(resumed.is_resuming());
    resumed.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(exact_state(&resumed), exact_state(&whole));
}
