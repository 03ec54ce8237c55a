//! Tests of the files that a kill or a full disk leaves behind, in runs that write all kinds of
//! files.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::ToFile;
use crate::checkpoint;
use crate::hooks::Checkpoint;
use crate::io::files::fault::{killed_after, set_full};
use crate::io::files::{self, TemporaryFolder};
use crate::prelude::*;
use crate::{CancelToken, TrainerBuilder};

/// Returns the builder of a trainer with a small task that writes into this folder.
fn builder(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(&vs.root() / "fc", 2, 2, Default::default());
    // Not random: other tests draw from the same generator at the same time.
    for mut tensor in vs.trainable_variables() {
        tch::no_grad(|| drop(tensor.fill_(0.3)));
    }
    Trainer::builder(Supervised::new(vs, net, Tensor::cross_entropy_for_logits))
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .epochs(3)
        .run_folder(folder)
        .record_every(Every::Steps(1))
        .resume(Resume::Auto)
}

/// Returns the data for an epoch of two batches.
fn rows() -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(8, (Kind::Float, Device::Cpu)).view([4, 2]).sin();
    InMemory::new((inputs, Tensor::from_slice(&[0_i64, 1, 1, 0]))).unwrap().batch_size(2)
}

/// Returns a logger of the loss at each step, without times.
fn losses() -> ToFile {
    ToFile::in_run_folder("losses", |record, out| {
        let steps = record.counters().optimizer_steps;
        for (name, value) in record.scalars() {
            out.extend(format!("{steps} {name} {value}\n").bytes());
        }
        Ok(())
    })
}

/// Returns the paths of all files and folders below a folder, relative to it.
fn names(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for path in files::entries(folder).unwrap() {
        let relative = path.strip_prefix(folder).unwrap().to_owned();
        if path.is_dir() {
            found.extend(names(&path).into_iter().map(|name| relative.join(name)));
        }
        found.insert(relative);
    }
    found
}

#[test]
fn a_run_killed_at_any_file_operation_and_resumed_leaves_no_stray_files() {
    // One checkpoint is replaced in each epoch, and contains a file of the user.
    let run = |folder: &Path| {
        let best = folder.join("best");
        let save = {
            let best = best.clone();
            move |cx: &mut Cx<AfterEpoch>| cx.save_checkpoint(&best)
        };
        let checkpoints = Checkpoint::in_run_folder().keep_last(1).keep_best(1, "train/loss", Goal::Minimize);
        let builder = builder(folder).hook(checkpoints).hook(losses());
        let builder = builder.on::<AfterEpoch>("save", save);
        let builder = builder.on::<AfterSaveCheckpoint>("annotate", move |_| {
            let notes = best.join("notes");
            if best.is_dir() && !notes.exists() {
                fs::write(notes, "mine").unwrap();
            }
        });
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut rows(), None)
    };
    let root = TemporaryFolder::create("trainer-kills").unwrap();
    let uninterrupted = root.path().join("uninterrupted");
    run(&uninterrupted).unwrap();
    let expected = names(&uninterrupted);
    let losses = fs::read_to_string(uninterrupted.join("losses")).unwrap();
    let mut kills = 0;
    loop {
        let folder = root.path().join(kills.to_string());
        let was_killed = killed_after(kills, || drop(run(&folder)));
        if was_killed {
            // Complete checkpoints stay complete.
            for checkpoint in checkpoint_folders(&folder.join("checkpoints")) {
                checkpoint::verify(&checkpoint).unwrap();
            }
            killed_after(kills / 2, || drop(run(&folder)));
            run(&folder).unwrap();
        }
        let mut left = names(&folder);
        left.retain(|name| !name.to_string_lossy().contains(".before-resume-"));
        assert_eq!(left, expected, "killed after {kills} operations");
        assert_eq!(fs::read_to_string(folder.join("losses")).unwrap(), losses, "{kills}");
        for checkpoint in checkpoint_folders(&folder.join("checkpoints")) {
            checkpoint::verify(&checkpoint).unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
        if !was_killed {
            break;
        }
        kills += 1;
    }
    assert!(kills > 100, "only {kills} operations were counted");
}

/// Returns the paths in a folder that are named like checkpoints.
fn checkpoint_folders(folder: &Path) -> Vec<PathBuf> {
    let mut found = files::entries(folder).unwrap_or_default();
    found.retain(|path| files::name_of(path).starts_with("step-"));
    found
}

/// Returns a hook that, if `is_full` is set, makes the file of [`losses`] unwritable from the
/// second epoch on.
fn full(folder: &Path, is_full: bool) -> impl FnMut(&mut Cx<BeforeEpoch>) + use<> {
    let path = folder.join("losses");
    move |cx| {
        if is_full && cx.counters().epoch == 1 {
            set_full(Some(&path));
        }
    }
}

#[test]
fn rows_that_could_not_be_written_before_a_checkpoint_are_written_after_a_resume() {
    let root = TemporaryFolder::create("trainer-full-resumed").unwrap();
    let run = |name: &str, is_full: bool, cancels: bool| {
        let folder = root.path().join(name);
        let builder = builder(&folder).hook(losses()).hook(Checkpoint::in_run_folder());
        let builder = builder.on::<BeforeEpoch>("full", full(&folder, is_full));
        let token = CancelToken::new();
        let builder = builder.cancel_token(token.clone()).on::<AfterEpoch>("cancel", move |cx| {
            if cancels && cx.counters().epoch == 1 {
                token.cancel();
            }
        });
        let result = builder.build().unwrap().fit(&mut rows(), None);
        set_full(None);
        (result, fs::read_to_string(folder.join("losses")).unwrap())
    };
    let (_, expected) = run("uninterrupted", false, false);
    let (cancelled, written) = run("full", true, true);
    assert!(cancelled.unwrap_err().is_cancelled());
    let (_, complete) = run("cancelled", false, true);
    assert!(written.len() < complete.len(), "{written}");
    let (resumed, written) = run("full", false, false);
    assert_eq!(resumed.unwrap().incomplete_logs, [""; 0]);
    assert_eq!(written, expected);
}

#[test]
fn a_run_that_ends_with_unwritten_rows_says_so_in_its_result() {
    let root = TemporaryFolder::create("trainer-full").unwrap();
    let folder = root.path().join("run");
    let mut trainer = builder(&folder)
        .hook(Checkpoint::in_run_folder())
        .hook(losses())
        .on::<BeforeEpoch>("full", full(&folder, true))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut rows(), None).unwrap();
    let path = folder.join("losses").display().to_string();
    assert_eq!(summary.incomplete_logs, [path]);
    let warnings = summary.warnings;
    assert!(warnings[0].contains("the run continues"), "{warnings:?}");
    assert!(warnings.last().unwrap().ends_with("bytes of rows are missing from the file"), "{warnings:?}");
    // The next entry point writes them.
    set_full(None);
    assert_eq!(trainer.validate(&mut rows()).unwrap().incomplete_logs, [""; 0]);
    let written = fs::read_to_string(folder.join("losses")).unwrap();
    assert!(written.contains("6 train/loss"), "{written}");

    let folder = root.path().join("strict");
    let logger = losses().strict(true);
    let mut trainer = builder(&folder)
        .hook(Checkpoint::in_run_folder())
        .hook(logger)
        .on::<BeforeEpoch>("full", full(&folder, true))
        .build()
        .unwrap();
    let error = trainer.fit(&mut rows(), None).unwrap_err().to_string();
    set_full(None);
    assert!(error.contains("`ToFile` failed at after_record"), "{error}");
}
