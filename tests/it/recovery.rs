//! Resuming: the choice of the checkpoint, the restored state, and the report.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use trainer::CancelToken;
use trainer::checkpoint::{self, CheckpointFolder};
use trainer::hooks::Checkpoint;
use trainer::prelude::*;

use crate::files::forge;
use crate::model::{self, builder};
use crate::support::{self, cancelled_at, exact_state, scratch};

#[test]
fn a_run_cancelled_in_the_sanity_check_can_be_resumed() {
    let run = |folder: &Path, cancel_in: Option<u64>| {
        let token = CancelToken::new();
        let cancel = token.clone();
        let mut checks = 0;
        let mut trainer = builder()
            .sanity_batches(2)
            .hook(Checkpoint::new(folder))
            .cancel_token(token)
            .resume(Resume::Auto)
            .on::<BeforeSanityCheck>("cancel", move |_| {
                checks += 1;
                if Some(checks) == cancel_in {
                    cancel.cancel();
                }
            })
            .build()
            .unwrap();
        let mut fit = || trainer.fit(&mut model::rows(8).shuffle(1), Some(&mut model::rows(8)));
        fit()?;
        fit()?;
        Ok::<_, Error>((trainer.counters(), exact_state(&trainer)))
    };
    let uninterrupted = scratch("sanity-whole");
    let expected = run(&uninterrupted, None).unwrap();
    for cancel_in in [1, 2] {
        let folder = scratch("sanity");
        let error = run(&folder, Some(cancel_in)).unwrap_err();
        assert!(error.is_cancelled() && error.cleanup().is_empty(), "{error}");
        assert_eq!(checkpoint::newest(&folder).is_some(), cancel_in == 2, "the first fit wrote one");
        assert_eq!(run(&folder, None).unwrap(), expected);
        fs::remove_dir_all(&folder).unwrap();
    }
    // A hook that requests a checkpoint before the fit has begun gets an error.
    let path = uninterrupted.join("mine");
    let token = CancelToken::new();
    let mut trainer = builder()
        .sanity_batches(1)
        .cancel_token(token.clone())
        .on::<BeforeSanityCheck>("cancel", move |_| token.cancel())
        .on::<AfterCancel>("save", move |cx| cx.save_checkpoint(&path))
        .build()
        .unwrap();
    let error = trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap_err().to_string();
    assert!(
        error.contains("no checkpoint can be saved outside of a `fit` or during its sanity check"),
        "{error}"
    );
    fs::remove_dir_all(&uninterrupted).unwrap();
}

#[test]
fn entry_points_that_already_finished_return_their_recorded_results() {
    let run = |folder: &Path, cancel_at: Option<u64>| {
        let settings = builder().epochs(2).hook(Checkpoint::new(folder)).resume(Resume::Auto);
        let mut trainer = cancelled_at(cancel_at, settings).build().unwrap();
        let before = trainer.validate(&mut model::rows(8))?.metrics["valid/loss"];
        let first = trainer.fit(&mut model::rows(8), None)?.metrics["train/loss"];
        let test = trainer.test(&mut model::rows(12))?;
        trainer.predict(&mut model::rows(4))?;
        let is_resuming = trainer.is_resuming();
        assert_eq!(trainer.save_weights(folder.join("first.safetensors")).is_err(), is_resuming);
        let second = trainer.fit(&mut model::rows(12).shuffle(4), None)?;
        let after = trainer.test(&mut model::rows(12))?;
        let numbers = [
            before,
            first,
            test.metrics["test/loss"],
            second.metrics["train/loss"],
            after.metrics["test/loss"],
        ];
        Ok::<_, Error>((numbers.map(f64::to_bits), test.counters, second.history, exact_state(&trainer)))
    };
    let uninterrupted = scratch("entries-whole");
    let expected = run(&uninterrupted, None).unwrap();
    for cancel_at in [1, 3, 5, 7, 10] {
        let folder = scratch("entries");
        assert!(run(&folder, Some(cancel_at)).unwrap_err().is_cancelled());
        assert_eq!(run(&folder, None).unwrap(), expected, "cancelled at {cancel_at}");
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::remove_dir_all(&uninterrupted).unwrap();
}

/// Sets a number in the text of a value: that of the field `name`, or all of it without a name.
fn set(value: &mut serde_json::Value, name: &str, number: u64) {
    let text = value.as_str().unwrap();
    let (start, end) = if name.is_empty() {
        (0, text.len())
    } else {
        let found = ["(", ","].iter().find_map(|before| text.find(&format!("{before}{name}:"))).unwrap();
        let start = found + name.len() + 2;
        let start = start + if text[start..].starts_with("Some(") { "Some(".len() } else { 0 };
        (start, start + text[start..].find([',', ')']).unwrap())
    };
    *value = format!("{}{number}{}", &text[..start], &text[end..]).into();
}

#[test]
fn the_newest_checkpoint_is_chosen_by_progress_not_by_time() {
    let folder = scratch("clock");
    let mut trainer = builder().epochs(4).hook(Checkpoint::new(&folder).keep_last(4)).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    drop(trainer);
    let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
    let milliseconds =
        u64::try_from(tomorrow.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let old = folder.join("step-00000002");
    forge(&old, |json| json["written_at"] = milliseconds.into());
    fs::File::open(old.join("manifest.json")).unwrap().set_modified(tomorrow).unwrap();
    assert_eq!(checkpoint::newest(&folder), Some(folder.join("step-00000008")));
    assert_eq!(CheckpointFolder::lock(&folder).unwrap().steps(), [8, 6, 4, 2]);
    // A later fit is further than an earlier one, even if its counters are lower.
    forge(&folder.join("step-00000004"), |json| set(&mut json["parts"]["loop"]["progress"], "fits_begun", 2));
    assert_eq!(checkpoint::newest(&folder), Some(folder.join("step-00000004")));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn impossible_counters_in_a_manifest_are_refused() {
    let folder = scratch("numbers");
    let mut trainer = builder().hook(Checkpoint::new(&folder)).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    drop(trainer);
    let own = folder.join("step-00000002");
    let manifest = fs::read(own.join("manifest.json")).unwrap();
    let numbers = [
        ("loop", "progress", "optimizer_steps", "progress.counters"),
        ("loop", "progress", "batches_seen", "progress.counters"),
        ("loop", "progress", "epochs_begun", "progress.epochs_begun"),
        ("loop", "progress", "epochs_done", "progress.epochs_done"),
        ("loop", "progress", "train_batches", "progress.train_batches"),
        ("loop", "progress", "fits_begun", "progress.fits_begun"),
        ("loop", "progress", "batches", "progress.batches"),
        ("loop", "fit", "train", "fit.position"),
        ("loop", "fit", "size", "fit.window"),
        ("loop", "fit", "steps", "fit.start"),
        ("loop", "fit", "secs", "fit.start"),
        ("entries", "predictions", "", "predictions"),
        ("optimizer", "steps", "", "steps"),
    ];
    for (part, key, name, field) in numbers {
        let field = format!("parts.{part}.{field}");
        forge(&own, |json| set(&mut json["parts"][part][key], name, u64::MAX - 1));
        let error =
            builder().epochs(2).resume(&*own).build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
        assert!(error.to_string().contains(&format!("its field `{field}` has an invalid value")), "{error}");
        fs::write(own.join("manifest.json"), &manifest).unwrap();
    }
    // A name of several megabytes is shortened in the error.
    forge(&own, |json| {
        json["parts"][format!("hook/{}/0", "x".repeat(6_500_000))] = serde_json::json!({});
    });
    let error =
        builder().epochs(2).resume(&*own).build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
    assert!(error.to_string().len() < 2_500, "{}", error.to_string().len());
    fs::remove_dir_all(&folder).unwrap();
}

/// State with nested options and units.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct NestedOptions {
    outer: Option<Option<u8>>,
    unit: Option<()>,
    deep: Vec<Option<Option<Option<()>>>>,
}

#[hook(state)]
impl NestedOptions {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

#[test]
fn hook_state_is_restored_losslessly_or_refused_when_saved() {
    let folder = scratch("lossless");
    let options = NestedOptions {
        outer: Some(None),
        unit: Some(()),
        deep: vec![None, Some(None), Some(Some(None)), Some(Some(Some(())))],
    };
    let mut first = builder().hook(options.clone()).hook(Checkpoint::new(&folder)).build().unwrap();
    first.fit(&mut model::rows(8), None).unwrap();
    drop(first);
    let mut second = builder()
        .epochs(2)
        .hook(NestedOptions::default())
        .hook(Checkpoint::new(&folder))
        .resume(Resume::Auto)
        .allow_inexact_resume(true)
        .build()
        .unwrap();
    second.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(second.hook::<NestedOptions>().unwrap(), &options);

    /// A hook whose state loses a field when it is loaded.
    #[derive(Default, Deserialize, Serialize)]
    struct Forgets {
        #[serde(skip_deserializing)]
        steps: u64,
    }
    #[hook(state)]
    impl Forgets {
        fn after_step(&mut self, _: &mut Cx<AfterStep>) {
            self.steps += 1;
        }
    }
    let lossy = scratch("lossy");
    let mut trainer = builder().hook(Forgets::default()).hook(Checkpoint::new(&lossy)).build().unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err().to_string();
    assert!(
        error.contains(
            "Forgets` cannot be saved: the value changes when it is saved and loaded: `(steps:2)` becomes `(steps:0)`"
        ),
        "{error}"
    );
    fs::remove_dir_all(&lossy).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn history_is_appended_and_the_manifest_does_not_grow() {
    let folder = scratch("appended");
    let run = |epochs: u64| {
        let hook = Checkpoint::new(&folder).keep_last(1000);
        let mut trainer = builder().epochs(epochs).hook(hook).resume(Resume::Auto).build().unwrap();
        trainer.fit(&mut model::rows(8), None).unwrap().history
    };
    assert_eq!(run(60).len(), 60);
    let file =
        |step: u64, name: &str| fs::metadata(folder.join(CheckpointFolder::name(step)).join(name)).unwrap();
    let growth =
        |from: u64, to: u64| file(to, "manifest.json").len().abs_diff(file(from, "manifest.json").len());
    assert!(growth(20, 120) < 200, "{}", growth(20, 120));
    assert_eq!(
        file(2, "history.jsonl").ino(),
        file(120, "history.jsonl").ino(),
        "all checkpoints share one file"
    );
    // Each checkpoint uses its own prefix of the file, and a run that resumes from an old one
    // starts a new file.
    for step in [2, 60, 120] {
        checkpoint::verify(folder.join(CheckpointFolder::name(step))).unwrap();
    }
    let mut trainer = builder().epochs(31).resume(folder.join(CheckpointFolder::name(60))).build().unwrap();
    assert_eq!(trainer.fit(&mut model::rows(8), None).unwrap().history.len(), 31);
    let copy = scratch("copied");
    for entry in fs::read_dir(folder.join(CheckpointFolder::name(60))).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let mut trainer = builder().epochs(32).resume(&*copy).build().unwrap();
    assert_eq!(trainer.fit(&mut model::rows(8), None).unwrap().history.len(), 32);
    for step in (62..=120).step_by(2) {
        fs::remove_dir_all(folder.join(CheckpointFolder::name(step))).unwrap();
    }
    assert_eq!(run(33).len(), 33);
    assert_ne!(file(60, "history.jsonl").ino(), file(66, "history.jsonl").ino());
    // Bytes after the recorded length are ignored; damage before it is detected.
    let path = folder.join(CheckpointFolder::name(2)).join("history.jsonl");
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend(b"{\"row\": of a process that was killed");
    fs::write(&path, &bytes).unwrap();
    checkpoint::verify(path.parent().unwrap()).unwrap();
    bytes[5] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = checkpoint::verify(path.parent().unwrap()).unwrap_err().to_string();
    assert!(error.contains("history.jsonl: its hash differs"), "{error}");
    fs::remove_dir_all(&copy).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_best_checkpoints_are_chosen_after_each_validation() {
    let folder = scratch("within");
    let losses = [0.9, 0.2, 0.5, 0.7];
    let mut validations = 0;
    let mut trainer = builder()
        .epochs(1)
        .validate_every(Every::Steps(2))
        .hook(Checkpoint::new(&folder).every(Every::Epochs(10)).keep_best(2, "valid/score", Goal::Minimize))
        .on::<AfterStep>("score", move |cx| {
            if cx.phase() == Phase::Valid {
                if cx.counters().batch_idx == 1 {
                    validations += 1;
                }
                cx.log("score", losses[validations - 1]);
            }
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(32), Some(&mut model::rows(8))).unwrap();
    let hook = trainer.hook::<Checkpoint>().unwrap();
    assert_eq!(hook.best(), Some((folder.join("step-00000004"), 0.2)));
    // The checkpoint of the best validation, after 4 of 8 batches, is kept.
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".trainer-lock", "step-00000004", "step-00000006", "step-00000008"]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_dropped_lock_is_released_even_while_processes_are_spawned() {
    let folder = scratch("forked");
    let refused = std::thread::scope(|scope| {
        let starts = scope.spawn(|| {
            for _ in 0..200 {
                Command::new("true").status().unwrap();
            }
        });
        let mut refused = 0;
        while !starts.is_finished() {
            refused += u32::from(CheckpointFolder::lock(&folder).is_err());
        }
        refused
    });
    assert_eq!(refused, 0);
    fs::remove_dir_all(&folder).unwrap();
}

/// The environment variable with the checkpoint folder of the child process.
const FOLDER: &str = "TRAINER_TESTS_RESUME_FOLDER";

/// A hook whose field is in no checkpoint.
struct Unsaved(u64);

#[hook]
impl Unsaved {
    fn after_step(&mut self, _: &Cx<AfterStep>) {
        self.0 += 1;
    }
}

/// A hook whose field is changed by its additional block only.
struct UnsavedInMore(u64);

#[hook]
impl UnsavedInMore {
    fn before_step(&self, _: &Cx<BeforeStep>) {}
}

#[hook(more)]
impl UnsavedInMore {
    fn after_step(&mut self, _: &Cx<AfterStep>) {
        self.0 += 1;
    }
}

/// A hook without a field that changes.
struct Unchanged(u64);

#[hook]
impl Unchanged {
    fn after_step(&self, _: &Cx<AfterStep>) {
        assert_eq!(self.0, 1);
    }
}

/// The program under test: resumes a run with other settings, and stops another one.
#[test]
#[ignore = "run by the next test in a child process"]
fn resumes_with_other_settings() {
    let folder = std::path::PathBuf::from(std::env::var(FOLDER).unwrap());
    let fit = |epochs, lr, inexact| -> trainer::Result<()> {
        let hook = Checkpoint::new(&folder);
        let mut trainer = builder()
            .epochs(epochs)
            .optimizer(AdamW::new(lr))
            .hook(hook)
            .hook(Unsaved(0))
            .hook(UnsavedInMore(0))
            .hook(Unchanged(1))
            .resume(Resume::Auto)
            .allow_inexact_resume(inexact)
            .build()
            .unwrap();
        trainer.fit(&mut model::rows(8), None)?;
        assert_eq!(trainer.optimizer().unwrap().groups()[0].lr, 0.01);
        Ok(())
    };
    fit(2, 0.01, false).unwrap();
    eprintln!("--- more epochs and another rate");
    eprintln!("{}", fit(3, 0.05, false).unwrap_err());
    fit(3, 0.05, true).unwrap();
    eprintln!("--- the same again");
    fit(3, 0.05, false).unwrap();
    eprintln!("--- another executable");
    let manifest = folder.join("step-00000006/manifest.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    json["program"] = serde_json::json!(["0123456789abcdef", "c0ffee"]);
    fs::write(manifest, support::sealed(json)).unwrap();
    fit(3, 0.05, false).unwrap();
    eprintln!("--- a hook stops the run");
    let mut trainer = builder().on::<AfterStep>("stop", |cx| cx.stop("enough")).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
}

#[test]
fn a_resume_reports_its_checkpoint_and_which_settings_apply() {
    let folder = scratch("reported");
    let output = support::child_process("recovery::resumes_with_other_settings")
        .env(FOLDER, &folder)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap().replace(&folder.display().to_string(), "…");
    assert!(output.status.success(), "{text}");
    let (text, rebuilt) = text.split_once("--- another executable\n").unwrap();
    // With a build of libtorch for GPUs, a run on the CPU says so.
    let lines = text.split_inclusive('\n').filter(|line| !line.starts_with("note: the task is on the CPU"));
    let mut hash = blake3::Hasher::new();
    hash.update_reader(fs::File::open(std::env::current_exe().unwrap()).unwrap()).unwrap();
    let expected = format!(
        "resumed from …/step-00000006: the program was rebuilt since the checkpoint was written: its executable was \
         0123456789abcdef of commit c0ffee, and is now {}",
        &hash.finalize().to_hex()[..16]
    );
    assert!(rebuilt.contains(&expected), "{rebuilt}");
    assert!(rebuilt.ends_with("--- a hook stops the run\nstopped early: enough\n"), "{rebuilt}");
    assert_eq!(
        lines.collect::<String>(),
        "--- more epochs and another rate\n\
         failed at load_checkpoint, epoch 0, batch 0: …/step-00000004: cannot resume exactly from this checkpoint: \
         remove these causes, or resume inexactly with `.allow_inexact_resume(true)`, or start a new run in another folder, \
         without `.resume(…)`:\n\
         - `optimizer.lr` was 0.01 when the checkpoint was written and is now 0.05; the value in the checkpoint applies: to change it \
         on purpose, set it at `after_load_checkpoint`\n\
         warning: resuming inexactly from …/step-00000004: `optimizer.lr` was 0.01 when the checkpoint was written and is now 0.05; the \
         value in the checkpoint applies: to change it on purpose, set it at `after_load_checkpoint`\n\
         resumed from …/step-00000004: after 2 epochs, 4 optimizer steps\n\
         resumed from …/step-00000004: `.epochs(…)` was 2 when the checkpoint was written; the current value, 3, applies\n\
         resumed from …/step-00000004: the fields of `it::recovery::Unsaved` start with the values of the program: if they matter, write \
         `#[hook(state)]`, which saves them in checkpoints; if none of them changes, take `&self` in its hooks\n\
         resumed from …/step-00000004: the fields of `it::recovery::UnsavedInMore` start with the values of the program: if they matter, write \
         `#[hook(state)]`, which saves them in checkpoints; if none of them changes, take `&self` in its hooks\n\
         --- the same again\n\
         resumed from …/step-00000006: after 3 epochs, 6 optimizer steps\n\
         resumed from …/step-00000006: the fields of `it::recovery::Unsaved` start with the values of the program: if they matter, write \
         `#[hook(state)]`, which saves them in checkpoints; if none of them changes, take `&self` in its hooks\n\
         resumed from …/step-00000006: the fields of `it::recovery::UnsavedInMore` start with the values of the program: if they matter, write \
         `#[hook(state)]`, which saves them in checkpoints; if none of them changes, take `&self` in its hooks\n\
         nothing is left to train in the resumed fit: it has begun all of its epochs: set `.epochs(4)` or more\n"
    );
    fs::remove_dir_all(&folder).unwrap();
}
