//! Forks: runs that begin with a part of another run.

use std::fs;
use std::path::Path;

use trainer::hooks::Checkpoint;
use trainer::loggers::{Csv, JsonLines, TensorBoard};
use trainer::prelude::*;
use trainer::{Tape, TrainerBuilder};
use trainer_formats::run::{RUN_FILE, RunFile, Status};
use trainer_formats::tape::difference;

use crate::replay::{EPOCH, TOTAL, builder, data, held_out};
use crate::support::{child_process, exact_state, scratch, tree};

/// A program with everything that writes.
fn program(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    builder()
        .run_folder(folder)
        .hook(Checkpoint::in_run_folder().every(Every::Steps(3)).keep_last(100))
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(TensorBoard::new())
        .tape(Tape::full())
}

/// Trains what is left of a run, and returns its state at the end.
fn train<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>) -> Vec<(String, Vec<u64>)> {
    let mut trainer = builder.build().unwrap();
    trainer.fit(&mut data(), Some(&mut held_out())).unwrap();
    exact_state(&trainer)
}

fn fork(run: &Path, batch: u64, into: &Path) -> Result<()> {
    builder().build()?.fork(&mut data(), Some(&mut held_out()), run, batch, into).map(drop)
}

/// The number of training batches before the one that [`skipping`] skips.
const SKIPPED: u64 = EPOCH + 2;

fn skipping<T: Task>(builder: TrainerBuilder<T>) -> TrainerBuilder<T> {
    builder.on::<BeforeStep>(HookOptions::named("skip").only(Phase::Train), |cx| {
        if EPOCH * cx.counters().epoch + cx.counters().batch_idx == SKIPPED {
            cx.skip_batch();
        }
    })
}

fn run_file(folder: &Path) -> RunFile {
    RunFile::parse(&fs::read(folder.join(RUN_FILE)).unwrap()).unwrap()
}

#[test]
#[ignore = "run by another test in a child process"]
fn forks_in_a_separate_process() {
    let root = scratch("fork");
    let run = root.join("run");
    let end = train(program(&run));
    let before = tree(&run);
    for batch in [1, 6, 8, 11, 17, TOTAL - 1] {
        let into = root.join(format!("same-{batch}"));
        fork(&run, batch, &into).unwrap();
        let file = run_file(&into);
        assert_eq!(file.status, Status::Forked);
        assert_eq!(file.origin.as_ref().unwrap().batches, batch);
        // The same program comes to the same end.
        assert_eq!(train(program(&into).resume(Resume::Auto)), end, "{batch}");
        let file = run_file(&into);
        assert_eq!((file.status, file.origin.unwrap().run), (Status::Finished, run.display().to_string()));
        let found = difference(run.join("run.tape"), into.join("run.tape")).unwrap();
        assert!(found.is_empty() && found.compared > 5, "{batch}: {found}");
        assert!(found.only.is_empty() && found.end.is_none(), "{batch}: {found}");
        let rows = fs::read_to_string(into.join("values.csv")).unwrap();
        assert!(rows.lines().count() > 1, "{batch}: {rows}");
    }
    // After a batch that a hook has skipped.
    let skipped = root.join("skipped");
    let end = train(skipping(program(&skipped)));
    let into = root.join("after-skipped");
    let mut forked = skipping(builder()).build().unwrap();
    forked.fork(&mut data(), Some(&mut held_out()), &skipped, SKIPPED + 1, &into).unwrap();
    assert_eq!(forked.counters().batches_seen, SKIPPED);
    assert_eq!(train(skipping(program(&into)).resume(Resume::Auto)), end);
    // Without a hook, or with another one, from there on.
    let into = root.join("changed");
    fork(&run, 17, &into).unwrap();
    let changed = |builder: TrainerBuilder<_>| {
        builder.on::<BeforeOptStep>("halve", |cx| {
            let _guard = tch::no_grad_guard();
            let _ = cx.grad("fc2.bias").unwrap().g_mul_scalar_(0.5);
        })
    };
    let refused =
        changed(program(&into)).resume(Resume::Auto).build().unwrap().fit(&mut data(), Some(&mut held_out()));
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("the hook `halve at before_opt_step` was missing when the checkpoint was written"),
        "{text}"
    );
    assert_eq!(text.matches("\n- ").count(), 1, "{text}");
    assert_ne!(train(changed(program(&into)).resume(Resume::Auto).allow_inexact_resume(true)), end);
    let found = difference(run.join("run.tape"), into.join("run.tape")).unwrap().to_string();
    assert!(
        found.starts_with(
            "train batch 17 (epoch 2): only the second run has the hook `halve` at before_opt_step"
        ),
        "{found}"
    );
    assert_eq!(tree(&run), before, "the recorded run does not change");
    // Mistakes.
    let text = fork(&run, 17, &into).unwrap_err().to_string();
    assert!(text.ends_with("changed: this folder holds a run: fork into a new folder"), "{text}");
    let text = fork(&run, 0, &root.join("start")).unwrap_err().to_string();
    assert!(text.starts_with("a `fork` before training batch 0 would be a new run"), "{text}");
    let text = fork(&run, TOTAL + 1, &root.join("beyond")).unwrap_err().to_string();
    assert_eq!(text, "the run has only 40 training batches: it cannot be forked before batch 41");
    let forked = root.join("forgotten");
    fork(&run, 9, &forked).unwrap();
    let text =
        program(&forked).build().unwrap().fit(&mut data(), Some(&mut held_out())).unwrap_err().to_string();
    assert!(
        text.contains("is a fork of another run: resume that run with `.resume(Resume::Auto)`"),
        "{text}"
    );
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_fork_continues_another_run_and_leaves_that_run_unchanged() {
    let output = child_process("fork::forks_in_a_separate_process").output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
