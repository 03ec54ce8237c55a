//! Checkpoints: which are kept, which are refused, and what they restore.

use std::fs;
use std::path::{Path, PathBuf};

use tch::nn::OptimizerConfig;
use trainer::checkpoint::{self, LoadWeights};
use trainer::data::from_fn;
use trainer::hooks::{Checkpoint, EarlyStopping, ReduceOnPlateau};
use trainer::prelude::*;
use trainer::testing::Harness;
use trainer::{CancelToken, OnSignal, TrainerBuilder};

use crate::model::{self, builder};
use crate::support::{Random, cancelled_at, device, exact_state, scratch};

/// Returns the text of an error, with the test's folder replaced by `…`.
fn message(error: &impl ToString, folder: &Path) -> String {
    model::message(error).replace(&folder.display().to_string(), "…")
}

/// Returns the sorted names of a folder's entries, without the lock file.
fn entry_names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != ".trainer-lock").collect();
    names.sort();
    names
}

#[test]
fn only_the_last_and_the_best_checkpoints_are_kept() {
    let folder = scratch("kept");
    // A metric whose best value is in the second epoch, and the next best in the fourth.
    let metric = |cx: &mut Cx<AfterTrainEpoch>| {
        let value = [3.0, 1.0, 2.0, 1.5, 4.0][usize::try_from(cx.counters().epoch).unwrap()];
        cx.log("value", value);
    };
    let hook = Checkpoint::new(&folder).keep_last(2).keep_best(2, "train/value", Goal::Minimize);
    let mut trainer = builder().epochs(5).on::<AfterTrainEpoch>("metric", metric).hook(hook).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(entry_names(&folder), ["step-00000004", "step-00000008", "step-00000010"]);
    let hook = trainer.hook::<Checkpoint>().unwrap();
    assert_eq!(hook.best(), Some((folder.join("step-00000004"), 1.0)));
    assert_eq!(hook.newest(), Some(folder.join("step-00000010")));
    assert_eq!(checkpoint::newest(&folder), hook.newest());

    let unknown = Checkpoint::new(scratch("unknown")).keep_best(1, "train/los", Goal::Minimize);
    let error = builder().hook(unknown).build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
    let expected = "no metric is named `train/los`; the metrics are `train/loss`; did you mean `train/loss`?";
    assert!(error.to_string().ends_with(expected), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_run_cancelled_after_any_batch_resumes_bit_for_bit() {
    let settings = || {
        let data = (model::rows(20).shuffle(5), model::rows(12));
        let settings =
            builder().epochs(2).accumulate(2).validate_every(Every::Fraction(0.5)).clip_grad_norm(0.3);
        (settings.optimizer(AdamW::new(0.01)).on_signal(OnSignal::Ignore), data)
    };
    let (uninterrupted, (mut train, mut valid)) = settings();
    let mut uninterrupted = uninterrupted.build().unwrap();
    let summary = uninterrupted.fit(&mut train, Some(&mut valid)).unwrap();

    // `at` counts the batches of all phases.
    let mut cancelled = 0;
    for at in 1..=40 {
        let folder = scratch("cancelled");
        let token = CancelToken::new();
        let (settings_of_first, (mut train, mut valid)) = settings();
        let mut steps = 0;
        let cancel = token.clone();
        let mut first = settings_of_first
            .hook(Checkpoint::new(&folder).every(Every::Epochs(100)).in_background(at % 2 == 0))
            .cancel_token(token)
            .on::<AfterStep>("cancel", move |_| {
                steps += 1;
                if steps == at {
                    cancel.cancel();
                }
            })
            .build()
            .unwrap();
        if first.fit(&mut train, Some(&mut valid)).is_ok() {
            break;
        }
        cancelled += 1;
        drop(first);
        let (settings_of_second, (mut train, mut valid)) = settings();
        let mut second = settings_of_second
            .hook(Checkpoint::new(&folder).every(Every::Epochs(100)))
            .on::<AfterStep>("cancel", |_| ())
            .resume(Resume::Auto)
            .build()
            .unwrap();
        let resumed = second.fit(&mut train, Some(&mut valid)).unwrap();
        assert_eq!(exact_state(&second), exact_state(&uninterrupted), "after {at} steps");
        assert_eq!(
            (&resumed.counters, &resumed.metrics),
            (&summary.counters, &summary.metrics),
            "after {at} steps"
        );
        assert_eq!(resumed.history, summary.history, "after {at} steps");
        // A second fit is not resumed.
        second.fit(&mut train, Some(&mut valid)).unwrap();
        assert_eq!(second.counters().epoch, 3);
        fs::remove_dir_all(&folder).unwrap();
    }
    assert!(cancelled > 20, "training and validation: {cancelled}");
}

/// Returns a folder with three checkpoints.
fn three_checkpoints(name: &str) -> PathBuf {
    let folder = scratch(name);
    let mut trainer = builder().epochs(3).hook(Checkpoint::new(&folder).keep_last(3)).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    folder
}

fn resumed_from(folder: &Path) -> Result<Counters> {
    let mut trainer = builder().epochs(3).resume(folder).build()?;
    trainer.fit(&mut model::rows(8), None).map(|summary| summary.counters)
}

#[test]
fn a_damaged_checkpoint_is_skipped_in_favor_of_the_previous_one() {
    let folder = three_checkpoints("damaged");
    assert_eq!(resumed_from(&folder).unwrap().batches_seen, 6);
    let newest = folder.join("step-00000006");
    let path = newest.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(
        message(&resumed_from(&newest).unwrap_err(), &folder),
        "failed at load_checkpoint, epoch 0, batch 0: …/step-00000006/model.safetensors: its hash differs from the \
         recorded one: the file was changed or damaged; restore it, or use another checkpoint"
    );
    assert_eq!(
        resumed_from(&folder).unwrap().batches_seen,
        6,
        "resumed from the previous one, then one more epoch"
    );
    for name in entry_names(&folder) {
        fs::write(folder.join(name).join("manifest.json"), "{}").unwrap();
    }
    let error = message(&resumed_from(&folder).unwrap_err(), &folder);
    assert!(
        error.starts_with(
            "…: all checkpoints in this folder are incomplete or damaged; restore one of them, or choose another folder:\n- …/step-00000006/manifest.json: its field `format`"
        ),
        "{error}"
    );
    assert_eq!(
        message(&resumed_from(&scratch("empty")).unwrap_err(), &scratch("empty")),
        "…: `.resume(…)` found no checkpoint in this folder: pass the path of a checkpoint, or of the folder of a `Checkpoint` hook"
    );
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn incompatible_checkpoints_are_refused_with_the_file_and_the_field() {
    let folder = three_checkpoints("fits");
    let own = folder.join("step-00000002");
    let manifest = own.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from));
        fs::write(&manifest, text.replace(from, to)).unwrap();
        let error = message(&checkpoint::verify(&own).unwrap_err(), &folder);
        fs::write(&manifest, &text).unwrap();
        error
    };
    assert_eq!(
        with("\"version\": 8", "\"version\": 3"),
        "…/step-00000002/manifest.json: its `version` is 3, but this trainer reads versions 7 to 8: resume with the version of \
         `trainer` that wrote it"
    );
    assert_eq!(
        with("batches_seen:2", "batches_seen:3"),
        "…/step-00000002/manifest.json: its hash differs from the recorded one: the file was changed or damaged; \
         restore it, or use another checkpoint"
    );
    assert!(with("{", "").contains("manifest.json: the file contains invalid JSON"));
    assert!(
        with("trainer checkpoint", "lightning").contains("its field `format` is not `trainer checkpoint`")
    );

    // Another model, then another optimizer.
    let vs = nn::VarStore::new(device());
    let net = nn::linear(vs.root() / "fc1", 4, 9, Default::default());
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let other = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).resume(&*own);
    let error = message(&other.build().unwrap().fit(&mut model::rows(8), None).unwrap_err(), &folder);
    assert!(error.contains("model.safetensors: unexpected: `fc2.bias`, `fc2.weight`"), "{error}");
    let mut other = builder().optimizer(AdamW::new(0.1)).resume(&*own).build().unwrap();
    let error = message(&other.fit(&mut model::rows(8), None).unwrap_err(), &folder);
    assert!(error.contains("optimizer.safetensors"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn inexact_resume_is_refused_unless_allowed() {
    let refused = |first: TrainerBuilder<_>, second: TrainerBuilder<_>, stream: bool| {
        let folder = scratch("inexact");
        let hook = || Checkpoint::new(&folder).every(Every::Steps(1));
        let mut first = cancelled_at(Some(1), first.hook(hook())).build().unwrap();
        first.fit(&mut model::rows(16), None).unwrap_err();
        drop(first);
        let mut loader: Box<dyn Loader<(Tensor, Tensor)>> = if stream {
            Box::new(from_fn(|_| model::rows(16).batches(0, 0).unwrap().collect::<Vec<_>>()))
        } else {
            Box::new(model::rows(16))
        };
        let mut second = cancelled_at(None, second.hook(hook()).resume(Resume::Auto)).build().unwrap();
        let result = second.fit(&mut loader, None).map(|summary| summary.counters.batches_seen);
        fs::remove_dir_all(&folder).unwrap();
        result.map_err(|error| message(&error, &folder))
    };
    let reasons = |result: Result<u64, String>| {
        result.unwrap_err().split_once("without `.resume(…)`:\n").unwrap().1.to_owned()
    };
    let plain = model::builder;
    assert_eq!(refused(plain(), plain(), false), Ok(4));
    assert!(reasons(refused(plain(), plain(), true)).contains("as `from_fn(…).deterministic(true)` does"));
    assert_eq!(refused(plain(), plain().allow_inexact_resume(true), true), Ok(4));
    let stopping = || EarlyStopping::new("train/loss", Goal::Minimize);
    assert!(
        reasons(refused(plain().hook(stopping()), plain(), false))
            .contains("EarlyStopping`, which this trainer does not have")
    );
    assert!(
        reasons(refused(plain(), plain().hook(stopping()), false))
            .contains("EarlyStopping` is new: the checkpoint has no state for it")
    );
    let tch = || {
        let task = model::task();
        let optimizer = trainer::optim::Tch::new(nn::Sgd::default(), task.vars(), 0.1).unwrap();
        let _ = nn::Sgd::default().build(task.vars(), 0.1);
        Trainer::builder(task).optimizer(optimizer).discover(Discover::None)
    };
    let folder = scratch("tch");
    let mut first = tch().hook(Checkpoint::new(&folder)).build().unwrap();
    first.fit(&mut model::rows(8), None).unwrap();
    drop(first);
    let mut second = tch().hook(Checkpoint::new(&folder)).resume(Resume::Auto).build().unwrap();
    let error = message(&second.fit(&mut model::rows(8), None).unwrap_err(), &folder);
    assert!(
        error.contains("the state of the optimizer cannot be read, as is the case for tch's own optimizers"),
        "{error}"
    );
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn unusable_checkpoint_folders_and_failed_writes_are_reported() {
    let folder = scratch("locked");
    let locked = folder.clone();
    let mut trainer = builder()
        .hook(Checkpoint::new(&folder))
        .on::<BeforeEpoch>("another", move |_| {
            let mut other = builder().hook(Checkpoint::new(&locked)).build().unwrap();
            let error = message(&other.fit(&mut model::rows(8), None).unwrap_err(), &locked);
            assert!(
                error.contains("…: the folder is locked by another trainer: give each run its own folder"),
                "{error}"
            );
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(entry_names(&folder), ["step-00000002"]);

    // A path below a file cannot be a folder.
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    let mut trainer = builder().hook(Checkpoint::new(file.join("below"))).build().unwrap();
    let error = message(&trainer.fit(&mut model::rows(8), None).unwrap_err(), &folder);
    assert!(error.contains("failed at setup") && error.contains("…/file: "), "{error}");
    // A new run in an old folder could later be mistaken for the old run.
    let mut anew = builder().hook(Checkpoint::new(&folder)).build().unwrap();
    let error = message(&anew.fit(&mut model::rows(8), None).unwrap_err(), &folder);
    assert!(
        error.contains(
            "…: this folder has checkpoints of an earlier run: choose another folder, or continue that run with `.resume(Resume::Auto)`"
        ),
        "{error}"
    );
    fs::remove_file(&file).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    // A checkpoint whose write fails is removed, and the last good one stays.
    let mut trainer = builder()
        .epochs(2)
        .hook(Checkpoint::new(&folder).keep_last(1))
        .on::<BeforeSaveCheckpoint>("complex", |cx| {
            if cx.counters().epoch == 1 {
                let complex = Tensor::zeros([1], (Kind::ComplexFloat, device()));
                cx.save_tensor("complex", &complex)?;
            }
            Ok(())
        })
        .build()
        .unwrap();
    let error = message(&trainer.fit(&mut model::rows(12), None).unwrap_err(), &folder);
    assert!(
        error.contains("`saved/complex` has the dtype ComplexFloat, which safetensors does not support"),
        "{error}"
    );
    assert_eq!(entry_names(&folder), ["step-00000003"], "the last good checkpoint");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_run_that_fails_before_the_fit_begins_writes_no_checkpoint() {
    let folder = scratch("not-begun");
    let token = CancelToken::new();
    token.cancel();
    let early = |cx: &mut Cx<Setup>| -> Result<()> { Err(Error::msg(format!("early, in {}", cx.phase()))) };
    let hook = || Checkpoint::new(&folder).on_error(true);
    let mut trainer = builder().hook(hook()).on::<Setup>("early", early).build().unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err();
    assert!(error.cleanup().is_empty() && error.to_string().ends_with("early, in train"), "{error}");
    assert_eq!(entry_names(&folder), [""; 0]);
    // Once the fit has begun, a cancel writes a checkpoint.
    let mut trainer = builder().hook(hook()).cancel_token(token).build().unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err();
    assert!(matches!(&error, Error::Cancelled(_)) && error.cleanup().is_empty(), "{error}");
    assert_eq!(entry_names(&folder), ["step-00000000"]);
    fs::remove_dir_all(&folder).unwrap();
}

/// Skips every other optimizer step and keeps its gradients for the next.
struct EveryOther;

#[hook]
impl EveryOther {
    fn every_other(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if cx.counters().batches_seen.is_multiple_of(2) { Ok(next.skip()) } else { next.run(cx) }
    }
}

#[test]
fn gradients_kept_by_a_hook_are_restored() {
    let run = |folder: &Path, cancel_at: Option<u64>| {
        let settings = builder().hook(EveryOther).hook(Checkpoint::new(folder)).resume(Resume::Auto);
        let mut trainer = cancelled_at(cancel_at, settings).build().unwrap();
        trainer.fit(&mut model::rows(24), None).ok().map(|_| exact_state(&trainer))
    };
    let uninterrupted = scratch("whole-gradients");
    let expected = run(&uninterrupted, None);
    for at in 1..=5 {
        let folder = scratch("kept-gradients");
        assert_eq!(run(&folder, Some(at)), None);
        assert_eq!(run(&folder, None), expected, "after step {at}");
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::remove_dir_all(&uninterrupted).unwrap();
}

#[test]
fn a_program_with_two_fits_resumes_the_interrupted_one() {
    let run = |folder: &Path, cancel_at: Option<u64>| {
        let mut trainer =
            cancelled_at(cancel_at, builder().epochs(2).hook(Checkpoint::new(folder)).resume(Resume::Auto))
                .build()
                .unwrap();
        trainer.fit(&mut model::rows(8), None).ok()?;
        trainer.fit(&mut model::rows(12).shuffle(4), None).ok()?;
        Some((trainer.counters(), exact_state(&trainer)))
    };
    let uninterrupted = scratch("whole-fits");
    let expected = run(&uninterrupted, None).unwrap();
    assert_eq!(expected.0.batches_seen, 10);
    for at in [2, 3, 5, 6, 9] {
        let folder = scratch("two-fits");
        assert_eq!(run(&folder, Some(at)), None);
        assert_eq!(run(&folder, None).unwrap(), expected, "after step {at}");
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::remove_dir_all(&uninterrupted).unwrap();
}

#[test]
fn pruning_keeps_folders_with_other_names() {
    let folder = three_checkpoints("others");
    fs::rename(folder.join("step-00000002"), folder.join("published-v1")).unwrap();
    let best = folder.join("mine");
    let mut trainer = builder()
        .epochs(5)
        .hook(Checkpoint::new(&folder).keep_last(1))
        .on::<AfterEpoch>("mine", move |cx| cx.save_checkpoint(&best))
        .resume(Resume::Auto)
        .allow_inexact_resume(true)
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(entry_names(&folder), ["mine", "published-v1", "step-00000010"]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn changed_settings_data_and_optimizer_are_refused_on_resume() {
    let folder = three_checkpoints("settings");
    let other = || builder().epochs(4).accumulate(2).clip_grad_norm(0.5).resume(&*folder);
    let error = message(&other().build().unwrap().fit(&mut model::rows(8), None).unwrap_err(), &folder);
    let (_, reasons) = error.split_once("without `.resume(…)`:\n").unwrap();
    assert_eq!(
        reasons,
        "- `.accumulate(…)` was not set when the checkpoint was written and is now [(0, 2)]\n\
         - the hook `trainer::hooks::ClipGradNorm` was missing when the checkpoint was written and is now present"
    );
    let mut data = builder().epochs(4).resume(&*folder).build().unwrap();
    let error = message(&data.fit(&mut model::rows(12).shuffle(3).prefetch(2), None).unwrap_err(), &folder);
    assert!(
        error.contains(
            "- the training data was 8 rows, batch size 4, not shuffled, content <"
        ) && error.contains(
            "> when the checkpoint was written and is now 12 rows, batch size 4, shuffled with seed 3, content <"
        ),
        "{error}"
    );
    other().allow_inexact_resume(true).build().unwrap().fit(&mut model::rows(8), None).unwrap();
    let mut untrained = builder().resume(&*folder).build().unwrap();
    let error = message(&untrained.test(&mut model::rows(8)).unwrap_err(), &folder);
    assert!(error.contains("`test` cannot run before the `fit` that `.resume(…)` continues"), "{error}");
    let mut adam =
        builder().epochs(4).optimizer(trainer::optim::Adam::new(0.1)).resume(&*folder).build().unwrap();
    let error = message(&adam.fit(&mut model::rows(8), None).unwrap_err(), &folder);
    assert!(error.contains("the optimizer is Sgd in the checkpoint, but Adam in this trainer"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_checkpoint_written_after_a_panic_cannot_be_resumed() {
    let folder = scratch("torn");
    let hook = || Checkpoint::new(&folder).every(Every::Epochs(9)).on_error(true).in_background(true);
    let mut trainer = builder()
        .hook(hook())
        .on::<AfterBackward>("panic", |cx| assert!(cx.counters().batches_seen < 1, "on purpose"))
        .build()
        .unwrap();
    let panic =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trainer.fit(&mut model::rows(8), None)));
    assert!(panic.is_err());
    drop(trainer);
    assert_eq!(entry_names(&folder), ["step-00000001"]);
    let mut resumed = builder().hook(hook()).resume(Resume::Auto).build().unwrap();
    let error = message(&resumed.fit(&mut model::rows(8), None).unwrap_err(), &folder);
    assert!(error.contains("the checkpoint was written after an error in the middle of a step"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn hooks_save_and_load_their_own_values_and_tensors() {
    let folder = scratch("added");
    let mut first = builder()
        .hook(Checkpoint::new(&folder))
        .on::<BeforeSaveCheckpoint>("save", |cx| {
            let steps = cx.counters().batches_seen;
            cx.save("steps", (steps, f64::NEG_INFINITY, "#odd"))?;
            cx.save_tensor("ones", &Tensor::ones([2, 2], (Kind::BFloat16, device())))?;
            let again = cx.save("steps", 1).unwrap_err().to_string();
            assert_eq!(again, "a value is already saved under `steps`: choose another key");
            assert!(cx.checkpoint().ends_with("step-00000002"));
            Ok(())
        })
        .build()
        .unwrap();
    first.fit(&mut model::rows(8), None).unwrap();
    drop(first);
    let mut second = builder()
        .epochs(2)
        .resume(&*folder)
        .on::<BeforeSaveCheckpoint>("save", |_| ())
        .on::<AfterLoadCheckpoint>("load", |cx| {
            let saved: (u64, f64, String) = cx.saved().get("steps")?;
            assert_eq!(saved, (2, f64::NEG_INFINITY, "#odd".to_owned()));
            assert_eq!(cx.saved().get_tensor("ones")?.sum(Kind::Float).double_value(&[]), 4.0);
            let error = cx.saved().get::<u64>("stepz").unwrap_err().to_string();
            assert_eq!(error, "no value is saved under `stepz`; did you mean `steps`?");
            assert_eq!(cx.counters().batches_seen, 2, "the counters are restored");
            cx.log("loaded", 1);
            Ok(())
        })
        .build()
        .unwrap();
    let summary = second.fit(&mut model::rows(8), None).unwrap();
    assert_eq!((summary.metrics.get("train/loaded"), summary.counters.batches_seen), (Some(1.0), 4));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn early_stopping_stops_after_patience_or_at_a_threshold() {
    let epochs = |stopping: EarlyStopping, values: &[f64]| {
        let harness = Harness::small().hook(stopping).epochs(values.len() as u64);
        let harness = harness.configure(|builder| {
            let mut values = Vec::from(values).into_iter();
            builder.on::<AfterTrainEpoch>("metric", move |cx| cx.log("value", values.next().unwrap_or(0.0)))
        });
        let outcome = harness.run().unwrap();
        (outcome.summary().history.len(), outcome.summary().stopped.clone())
    };
    let lower = || EarlyStopping::new("train/value", Goal::Minimize);
    let higher = || EarlyStopping::new("train/value", Goal::Maximize);
    let (stopped, reason) = epochs(lower().patience(2), &[3.0, 2.0, 2.0, 2.5, 1.0]);
    assert_eq!(
        (stopped, reason.as_deref()),
        (4, Some("`train/value` has not improved on 2 in 2 checks in a row"))
    );
    assert_eq!(epochs(higher().patience(2), &[3.0, 2.0, 3.5, 1.0, 1.0, 9.0]).0, 5);
    assert_eq!(epochs(lower().patience(2).min_delta(0.5), &[3.0, 2.9, 2.8, 1.0]).0, 3);
    assert_eq!(epochs(lower(), &[3.0, f64::NAN, 1.0]).1.as_deref(), Some("`train/value` is NaN"));
    assert_eq!(epochs(lower().check_finite(false), &[3.0, f64::NAN, 1.0]).1, None);
    assert_eq!(epochs(higher().stop_at(0.9), &[0.5, 0.9, 1.0]).0, 2);
    assert_eq!(epochs(lower().diverge_at(10.0), &[5.0, 11.0, 1.0]).0, 2);
}

/// Corrupts the files of a checkpoint in 10,000 ways: each is reported or has no effect, and none
/// causes a panic.
#[test]
fn corrupted_files_are_reported_without_panicking() {
    let folder = three_checkpoints("corrupted");
    let own = folder.join("step-00000002");
    let files = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.safetensors"];
    let originals: Vec<Vec<u8>> = files.iter().map(|file| fs::read(own.join(file)).unwrap()).collect();
    let mut trainer = builder().build().unwrap();
    let mut numbers = Random(0x9e37_79b9_7f4a_7c15);
    let mut random = |below| numbers.below(below);
    let mut refused = 0;
    let rounds = 10_000;
    for round in 0..rounds {
        let which = round % files.len();
        let path = own.join(files[which]);
        let mut bytes = originals[which].clone();
        match random(6) {
            0 => bytes.truncate(random(bytes.len())),
            1 => bytes.extend((0..random(64)).map(|byte| u8::try_from(byte).unwrap())),
            2 => bytes.clear(),
            // A header length of 2^64 - 1 bytes.
            3 => bytes[..8.min(originals[which].len())].fill(0xff),
            _ => {
                for _ in 0..=random(4) {
                    // More often in the header than in the data.
                    let at = if random(3) == 0 { random(bytes.len()) } else { random(bytes.len().min(400)) };
                    bytes[at] ^= 1 << random(8);
                }
            }
        }
        if bytes == originals[which] {
            continue;
        }
        fs::write(&path, &bytes).unwrap();
        match checkpoint::verify(&own) {
            Ok(()) => assert_eq!(which, 0, "only a change of white space in the manifest is accepted"),
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains(files[which]), "{error}");
            }
        }
        if which == 1 {
            // A weights file without its manifest has no recorded hash.
            let _ = trainer.load_weights(&path, &LoadWeights::new().partial(true));
        }
        fs::write(&path, &originals[which]).unwrap();
    }
    assert!(refused > rounds * 9 / 10, "{refused}");
    checkpoint::verify(&own).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn weights_are_loaded_with_renamed_parameters() {
    let folder = scratch("weights");
    let path = folder.join("weights.safetensors");
    let mut first = builder().build().unwrap();
    first.fit(&mut model::rows(8), None).unwrap();
    first.save_weights(&path).unwrap();
    assert_eq!(entry_names(&folder), ["weights.safetensors"]);
    let mut second = builder().build().unwrap();
    let report = second.load_weights(&path, &LoadWeights::new()).unwrap();
    assert_eq!(report.loaded, ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]);
    assert_eq!(exact_state(&first), exact_state(&second));

    // Written by PyTorch: `tests/reference/weights.py`.
    let theirs = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/state_dict.safetensors");
    let error = second.load_weights(theirs, &LoadWeights::new()).unwrap_err().to_string();
    assert!(
        error.contains("`fc1.bias` (similar: `net.fc1.bias`), `fc1.weight` (similar: `net.fc1.weight`)"),
        "{error}"
    );
    let unprefixed = LoadWeights::new().rename(|name| name.strip_prefix("net.").map(str::to_owned));
    let error = second.load_weights(theirs, &unprefixed).unwrap_err().to_string();
    assert!(
        error.contains("unexpected: `net.bn.bias`, `net.bn.running_mean`, `net.bn.running_var` and 1 more"),
        "{error}"
    );
    let report = second.load_weights(theirs, &unprefixed.partial(true)).unwrap();
    assert_eq!((report.loaded.len(), report.missing.len(), report.unexpected.len()), (4, 0, 4));
    let weight = second.vars().get("fc1.weight").unwrap();
    assert_eq!(
        weight.get(0).get(1).double_value(&[]),
        1.0,
        "row 0, column 1 of the file, which contains 0, 1, 2, …"
    );
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_metric_that_a_fit_cannot_measure_is_refused_at_its_start() {
    type Add<T> = fn(TrainerBuilder<T>) -> TrainerBuilder<T>;
    let hooks: [(&str, Add<_>); 3] = [
        ("keep_best", |builder| {
            let folder = scratch("unmeasured");
            builder.hook(Checkpoint::new(folder).keep_best(1, "valid/loss", Goal::Minimize))
        }),
        ("EarlyStopping", |builder| builder.hook(EarlyStopping::new("valid/loss", Goal::Minimize))),
        ("ReduceOnPlateau", |builder| builder.hook(ReduceOnPlateau::new("valid/loss", Goal::Minimize))),
    ];
    for (name, add) in hooks {
        let mut trainer = add(builder().epochs(1)).build().unwrap();
        let error = trainer.fit(&mut model::rows(8), None).unwrap_err().to_string();
        assert!(
            error.contains("`valid/loss` will never be measured, because this fit does not validate: pass validation data"),
            "{name}: {error}"
        );
        assert_eq!(trainer.counters().batches_seen, 0, "{name}");
        trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();
    }
}
