//! Which checkpoints a run writes after an error, keeps, and resumes from: one that is not exact
//! never takes the place of one that is, and a damaged or missing one is reported.

use std::fs;
use std::path::{Path, PathBuf};

use trainer::checkpoint::{self, CheckpointFolder};
use trainer::hooks::{Checkpoint, Ema};
use trainer::prelude::*;
use trainer::{HookOptions, Summary, Tape, TrainerBuilder, stages};

use crate::model::{self, builder};
use crate::support::{alone, exact_state, scratch};

type Final = Vec<(String, Vec<u64>)>;

/// Returns the builder of a run of three epochs of four batches.
fn program(
    folder: &Path,
    checkpoint: Checkpoint,
) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)> + use<>> {
    builder().epochs(3).run_folder(folder).resume(Resume::Auto).hook(checkpoint).hook(Ema::new(0.9))
}

fn fit(builder: TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>>) -> (Result<Summary>, Final) {
    let mut trainer = builder.build().unwrap();
    let result = trainer.fit(&mut model::rows(16), None);
    (result, exact_state(&trainer))
}

fn steps(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder.join("checkpoints")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".trainer-lock");
    names.sort();
    names
}

/// Makes a hook fail at the end of a batch, after `Checkpoint` has requested a checkpoint.
fn fails_at<T: Task>(builder: TrainerBuilder<T>, batch: u64) -> TrainerBuilder<T> {
    builder.on::<AfterStep>(HookOptions::named("fails").in_set(stages::Last), move |cx| {
        if cx.counters().batches_seen == batch { Err(Error::msg("on fire")) } else { Ok(()) }
    })
}

#[test]
fn a_requested_checkpoint_is_not_written_inexactly_after_an_error() {
    alone(fails_after_a_request);
}

fn fails_after_a_request() {
    const NEVER: u64 = u64::MAX;
    let (_, expected) = fit(fails_at(program(&scratch("exact-whole"), Checkpoint::in_run_folder()), NEVER));
    for on_error in [false, true] {
        let folder = scratch("exact-requested");
        let checkpoint = || Checkpoint::in_run_folder().every(Every::Steps(1)).on_error(on_error);
        let (failed, _) = fit(fails_at(program(&folder, checkpoint()), 6));
        assert!(failed.unwrap_err().to_string().contains("on fire"));
        // The exact one is not pruned in favor of the one of the error.
        let inexact = on_error.then_some("step-00000006");
        assert_eq!(steps(&folder), ["step-00000005"].into_iter().chain(inexact).collect::<Vec<_>>());
        let run = fs::read_to_string(folder.join("run.json")).unwrap();
        assert!(
            run.contains("step-00000006: this checkpoint is not written, because the run failed"),
            "{run}"
        );
        let locked = CheckpointFolder::lock(folder.join("checkpoints")).unwrap();
        assert!(locked.is_exact(5) && !locked.is_exact(6));
        drop(locked);

        let (resumed, state) = fit(fails_at(program(&folder, checkpoint()), NEVER));
        let warnings = resumed.unwrap().warnings;
        let skipped = warnings.iter().filter(|text| text.contains("cannot resume exactly from it")).count();
        assert_eq!(skipped, usize::from(on_error), "{warnings:?}");
        assert!(state == expected);
        assert_eq!(steps(&folder), ["step-00000012"]);
    }
}

#[test]
fn an_inexact_checkpoint_does_not_replace_an_exact_one() {
    let folder = scratch("exact-replaced");
    let best = folder.join("best");
    let [at_epoch, at_error] = [best.clone(), best.clone()];
    let builder = program(&folder, Checkpoint::in_run_folder())
        .on::<AfterEpoch>("save", move |cx| cx.save_checkpoint(&at_epoch))
        .on::<AfterError>("save", move |cx| cx.save_checkpoint(&at_error));
    fit(fails_at(builder, 6)).0.unwrap_err();
    checkpoint::verify(&best).unwrap();
    let manifest = fs::read_to_string(best.join("manifest.json")).unwrap();
    assert!(!manifest.contains("after an error in the middle of a step"), "{manifest}");
    let run = fs::read_to_string(folder.join("run.json")).unwrap();
    assert!(run.contains("best: the checkpoint there is not replaced"), "{run}");
}

#[test]
fn a_folder_with_only_inexact_checkpoints_is_refused_or_resumed_on_request() {
    let folder = scratch("exact-none");
    let checkpoint = || Checkpoint::in_run_folder().on_error(true);
    fit(fails_at(program(&folder, checkpoint()), 2)).0.unwrap_err();
    let error = fit(fails_at(program(&folder, checkpoint()), 100)).0.unwrap_err().to_string();
    assert!(error.contains("cannot resume exactly from this checkpoint"), "{error}");
    fit(fails_at(program(&folder, checkpoint()), 100).allow_inexact_resume(true)).0.unwrap();
}

/// Damages a file of a checkpoint. Checkpoints may share files, so the file is replaced.
fn damage(path: &Path, how: &str) {
    let mut bytes = fs::read(path).unwrap();
    fs::remove_file(path).unwrap();
    match how {
        "missing" => return,
        "a folder" => return fs::create_dir(path).unwrap(),
        "empty" => bytes.clear(),
        "truncated" => bytes.truncate(bytes.len() / 2),
        "changed" => {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        _ => unreachable!(),
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_resume_says_which_damaged_checkpoint_it_skips_and_the_next_save_replaces_it() {
    alone(resumes_beside_damage);
}

fn resumes_beside_damage() {
    let whole = scratch("damaged-whole");
    let checkpoint = || Checkpoint::in_run_folder().keep_last(3);
    let (_, expected) = fit(program(&whole, checkpoint()));
    let files = fs::read_dir(whole.join("checkpoints/step-00000012")).unwrap();
    let files: Vec<String> = files.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files.len(), 6, "{files:?}");
    for file in &files {
        for how in ["missing", "empty", "truncated", "changed", "a folder"] {
            let what = format!("{file}: {how}");
            let folder = scratch("damaged");
            fit(program(&folder, checkpoint())).0.unwrap();
            damage(&folder.join("checkpoints/step-00000012").join(file), how);
            for _ in 0..2 {
                // The epoch is trained again, and its checkpoint replaces the damaged one.
                let (resumed, state) = fit(program(&folder, checkpoint()));
                let warnings = resumed.unwrap_or_else(|error| panic!("{what}: {error}")).warnings;
                let skipped: Vec<_> = warnings.iter().filter(|text| text.contains("skipped")).collect();
                assert!(skipped.iter().all(|text| text.contains("step-00000012")), "{what}: {warnings:?}");
                assert!(state == expected, "{what}");
                let newest = folder.join("checkpoints/step-00000012");
                checkpoint::verify(&newest).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(steps(&folder), ["step-00000004", "step-00000008", "step-00000012"], "{what}");
                if skipped.is_empty() {
                    break; // the second time
                }
            }
        }
    }
}

#[test]
fn a_folder_of_someone_else_with_the_name_of_a_step_is_not_taken_for_a_checkpoint() {
    let folder = scratch("damaged-foreign");
    let foreign = folder.join("checkpoints/step-00000012");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("model.safetensors"), "mine").unwrap();
    let error = fit(program(&folder, Checkpoint::in_run_folder())).0.unwrap_err().to_string();
    assert!(error.contains("this folder is not a checkpoint of this trainer"), "{error}");
    assert_eq!(fs::read_to_string(foreign.join("model.safetensors")).unwrap(), "mine");
}

/// Returns a program that keeps the checkpoints with the best score; the score of each epoch is
/// given.
fn scored(
    folder: &Path,
    epochs: u64,
    metric: &str,
    count: usize,
) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)> + use<>> {
    let checkpoint = Checkpoint::in_run_folder().keep_best(count, metric, Goal::Minimize);
    program(folder, checkpoint).epochs(epochs).on::<AfterTrainEpoch>("score", |cx| {
        let score = [0.1, 0.5, 0.4, 0.05][cx.counters().epoch as usize];
        cx.log("score", score);
        cx.log("other", 100.0 * score);
    })
}

#[test]
fn a_best_checkpoint_that_was_moved_away_is_missed_and_not_replaced_by_a_worse_one() {
    type Harm = fn(&Path);
    let harms: [Harm; 3] = [
        |best| fs::rename(best, best.with_file_name("my best")).unwrap(),
        |best| fs::rename(best, best.parent().unwrap().with_file_name("elsewhere")).unwrap(),
        |best| fs::remove_dir_all(best).unwrap(),
    ];
    for harm in harms {
        let folder = scratch("best-moved");
        fit(scored(&folder, 2, "train/score", 1)).0.unwrap();
        let best = folder.join("checkpoints/step-00000004");
        harm(&best);
        let mut trainer = scored(&folder, 3, "train/score", 1).build().unwrap();
        let summary = trainer.fit(&mut model::rows(16), None).unwrap();
        let missing = summary.warnings.iter().filter(|text| {
            text.contains(
                "step-00000004: this checkpoint, one of the best with train/score 0.1, is no longer there",
            )
        });
        assert_eq!(missing.count(), 1, "{:?}", summary.warnings);
        let kept = trainer.hook::<Checkpoint>().unwrap().best();
        assert_eq!(kept, Some((best, 0.1)));
        // A better one takes its place, without a word.
        let mut trainer = scored(&folder, 4, "train/score", 1).build().unwrap();
        trainer.fit(&mut model::rows(16), None).unwrap();
        let kept = trainer.hook::<Checkpoint>().unwrap().best();
        assert_eq!(kept, Some((folder.join("checkpoints/step-00000016"), 0.05)));
    }
}

#[test]
fn the_best_values_of_a_different_metric_are_not_compared() {
    let folder = scratch("best-changed");
    fit(scored(&folder, 2, "train/score", 1)).0.unwrap();
    let mut trainer = scored(&folder, 3, "train/other", 1).build().unwrap();
    let summary = trainer.fit(&mut model::rows(16), None).unwrap();
    let found =
        summary.warnings.iter().any(|text| text.contains("`.keep_best(…)` compared train/score (Minimize)"));
    assert!(found, "{:?}", summary.warnings);
    assert_eq!(trainer.hook::<Checkpoint>().unwrap().best().unwrap().1, 40.0);
}

#[test]
fn a_finished_program_that_is_started_again_adds_nothing_to_its_tape() {
    alone(restarts_with_a_tape);
}

fn restarts_with_a_tape() {
    for every in [Every::Steps(100), Every::Steps(2), Every::Epochs(1)] {
        for tape in [Tape::steps(5), Tape::steps(4), Tape::full()] {
            let program = |folder: &PathBuf| {
                program(folder, Checkpoint::in_run_folder().every(every)).seed(3).tape(tape.clone())
            };
            let [once, again] = ["tape-once", "tape-again"].map(scratch);
            fit(program(&once)).0.unwrap();
            for _ in 0..3 {
                fit(program(&again)).0.unwrap();
            }
            let [one, other] = [&once, &again].map(|folder| folder.join("run.tape"));
            let found = trainer_formats::tape::difference(one, other).unwrap();
            assert!(found.is_empty() && found.end.is_none(), "{every:?} {tape:?}: {found}");
        }
    }
}
