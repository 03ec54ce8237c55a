//! Checkpoints that earlier versions of the format wrote: `tests/reference/checkpoints/<version>`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trainer::TrainerBuilder;
use trainer::checkpoint;
use trainer::hooks::EarlyStopping;
use trainer::prelude::*;

use crate::model;

/// The version of the format that this trainer writes.
const VERSION: u64 = 7;

/// The number of training batches after which the checkpoint was written, within the second
/// accumulation window of the second epoch.
const WRITTEN_AFTER: u64 = 7;

/// Adds up the numbers of batches, so that its state depends on every step.
#[derive(Default, Deserialize, Serialize)]
struct BatchSum {
    sum: u64,
}

#[hook(state)]
impl BatchSum {
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        self.sum += cx.counters().batches_seen;
    }
}

fn reference(version: u64) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("reference/checkpoints/{version}"))
}

/// Trains two epochs of four batches, with two batches in each accumulation window. Saves a
/// checkpoint if there is a folder.
fn builder(folder: Option<PathBuf>) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    model::builder()
        .optimizer(AdamW::new(0.01))
        .epochs(2)
        .accumulate(2)
        .hook(BatchSum::default())
        .hook(EarlyStopping::new("train/loss", Goal::Minimize))
        .on::<AfterStep>("save", move |cx| {
            if let Some(folder) = folder.as_ref().filter(|_| cx.counters().batches_seen == WRITTEN_AFTER) {
                cx.save_checkpoint(folder);
            }
        })
}

fn train(builder: TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>>) -> Result<(Summary, u64)> {
    let mut trainer = builder.seed(7).build()?;
    let summary = trainer.fit(&mut model::rows(16), None)?;
    let sum = trainer.hook::<BatchSum>().unwrap().sum;
    Ok((summary, sum))
}

#[test]
fn checkpoints_of_earlier_versions_are_refused_with_both_versions() {
    let entries = fs::read_dir(reference(VERSION).parent().unwrap()).unwrap();
    let versions: Vec<u64> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    assert!(versions.contains(&VERSION) && versions.contains(&(VERSION - 1)), "{versions:?}");
    for version in versions.into_iter().filter(|version| *version != VERSION) {
        let folder = reference(version);
        let expected = format!(
            "{}: its `version` is {version}, but this trainer reads version {VERSION}: resume with the version of `trainer` \
             that wrote it",
            folder.join("manifest.json").display()
        );
        assert_eq!(checkpoint::verify(&folder).unwrap_err().to_string(), expected);
        let resumed = train(builder(None).resume(&*folder).allow_inexact_resume(true));
        let error = resumed.unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
    }
}

/// The checkpoint may have been written with another version of libtorch, and on another CPU, where
/// sums are rounded differently.
#[test]
fn a_checkpoint_of_this_version_resumes_exactly() {
    let folder = reference(VERSION);
    checkpoint::verify(&folder).unwrap();
    let (expected, expected_sum) = train(builder(None)).unwrap();
    let (summary, sum) = train(builder(None).resume(&*folder).allow_inexact_resume(true)).unwrap();
    let is_about_versions = |warning: &String| warning.contains("libtorch") || warning.contains("version");
    assert!(summary.warnings.iter().all(is_about_versions), "{:?}", summary.warnings);
    assert_eq!(summary.counters, expected.counters);
    assert_eq!(summary.history.steps(), expected.history.steps());
    assert_eq!(sum, expected_sum);
    for (name, value) in expected.metrics.iter() {
        let resumed = summary.metrics[name];
        assert!((resumed - value).abs() < 1e-6, "{name}: {resumed}, expected {value}");
    }
}

/// Writes the checkpoint of the current version: `TRAINER_TESTS_WRITE=1 cargo test -p tests --test
/// it -- --ignored write_the_reference_checkpoint`.
#[test]
#[ignore = "writes a reference file into the repository"]
fn write_the_reference_checkpoint() {
    // Whoever runs all ignored tests does not mean this one.
    if std::env::var_os("TRAINER_TESTS_WRITE").is_none() {
        return;
    }
    let folder = reference(VERSION);
    let _ = fs::remove_dir_all(&folder);
    train(builder(Some(folder))).unwrap();
}
