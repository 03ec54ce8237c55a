//! Checkpoints that earlier versions of the format wrote: one process those in
//! `tests/reference/checkpoints/<version>`, two ranks with a sharded optimizer those in
//! `tests/reference/checkpoints-of-ranks/<version>`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trainer::TrainerBuilder;
use trainer::checkpoint;
use trainer::hooks::EarlyStopping;
use trainer::optim::Sharded;
use trainer::prelude::*;
#[cfg(target_os = "linux")]
use trainer::testing::{Ranks, once};

use crate::model;

/// The version of the format that this trainer writes.
const VERSION: u64 = 8;

/// The versions that this trainer reads.
const READ: [u64; 2] = [7, VERSION];

/// The number of training batches after which the checkpoint was written, within the second
/// accumulation window of the second epoch.
const WRITTEN_AFTER: u64 = 7;

/// Adds up the numbers of batches and ranks, so that its state depends on every step, and on the
/// rank.
#[derive(Default, Deserialize, Serialize)]
struct BatchSum {
    sum: u64,
}

#[hook(state)]
impl BatchSum {
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        self.sum += cx.counters().batches_seen + u64::from(cx.rank());
    }
}

fn reference(version: u64) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("reference/checkpoints/{version}"))
}

#[cfg(target_os = "linux")]
fn reference_of_ranks(version: u64) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("reference/checkpoints-of-ranks/{version}"))
}

/// Trains two epochs of four batches, with two batches in each accumulation window. Saves a
/// checkpoint if there is a folder.
fn builder(folder: Option<PathBuf>) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    model::builder()
        .optimizer(Sharded::new(AdamW::new(0.01))) // in one process, it does the same as `AdamW`
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
    assert!(READ.iter().all(|version| versions.contains(version)), "{versions:?}");
    for version in versions.into_iter().filter(|version| !READ.contains(version)) {
        let folder = reference(version);
        let expected = format!(
            "{}: its `version` is {version}, but this trainer reads versions {} to {VERSION}: resume with the version of \
             `trainer` that wrote it",
            folder.join("manifest.json").display(),
            READ[0]
        );
        assert_eq!(checkpoint::verify(&folder).unwrap_err().to_string(), expected);
        let resumed = train(builder(None).resume(&*folder).allow_inexact_resume(true));
        let error = resumed.unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
    }
}

/// Checks that a run that resumed from a reference checkpoint ends like an uninterrupted one. The
/// checkpoint may have been written with another version of libtorch, and on another CPU, where
/// sums are rounded differently.
fn check((summary, sum): (Summary, u64), (expected, expected_sum): &(Summary, u64)) {
    // Before version 8, the optimizer of the reference was not sharded.
    let is_expected =
        |warning: &String| ["libtorch", "version", "sharded"].iter().any(|word| warning.contains(word));
    assert!(summary.warnings.iter().all(is_expected), "{:?}", summary.warnings);
    assert_eq!(summary.counters, expected.counters);
    assert_eq!(summary.history.steps(), expected.history.steps());
    assert_eq!(sum, *expected_sum);
    for (name, value) in expected.metrics.iter() {
        let resumed = summary.metrics[name];
        assert!((resumed - value).abs() < 1e-6, "{name}: {resumed}, expected {value}");
    }
}

#[test]
fn checkpoints_of_every_supported_version_resume_exactly() {
    let expected = train(builder(None)).unwrap();
    for version in READ {
        let folder = reference(version);
        checkpoint::verify(&folder).unwrap();
        check(train(builder(None).resume(&*folder).allow_inexact_resume(true)).unwrap(), &expected);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_checkpoint_of_several_ranks_resumes_exactly() -> Result<()> {
    Ranks::new(2).run(|| {
        let expected = train(builder(None))?;
        for version in READ {
            let folder = reference_of_ranks(version);
            checkpoint::verify(&folder)?;
            check(train(builder(None).resume(&*folder).allow_inexact_resume(true))?, &expected);
        }
        Ok(())
    })?;
    // In one process, the shares of both ranks are joined.
    for version in READ {
        let folder = reference_of_ranks(version);
        let (summary, _) = train(builder(None).resume(&*folder).allow_inexact_resume(true))?;
        assert_eq!(summary.counters.batches_seen, 8);
    }
    Ok(())
}

/// Writes the checkpoints of the current version: `TRAINER_TESTS_WRITE=1 cargo test -p tests --test
/// it -- --ignored write_the_reference_checkpoints`.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "writes reference files into the repository"]
fn write_the_reference_checkpoints() {
    // Whoever runs all ignored tests does not mean this one.
    if std::env::var_os("TRAINER_TESTS_WRITE").is_none() {
        return;
    }
    once(|| {
        for folder in [reference(VERSION), reference_of_ranks(VERSION)] {
            let _ = fs::remove_dir_all(folder);
        }
        train(builder(Some(reference(VERSION)))).unwrap();
    });
    Ranks::new(2).run(|| train(builder(Some(reference_of_ranks(VERSION)))).map(drop)).unwrap();
}
