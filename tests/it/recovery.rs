//! Resuming: which checkpoint, what it restores, and what a program is told about it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use trainer::checkpoint::{self, CheckpointFolder};
use trainer::hooks::Checkpoint;
use trainer::prelude::*;
use trainer::{CancelToken, TrainerBuilder};

use crate::files::forge;
use crate::model::{self, builder};
use crate::resume::scratch;

/// Cancels after this many training batches.
fn cancelled_at<T: Task>(at: Option<u64>, builder: TrainerBuilder<T>) -> TrainerBuilder<T> {
    let token = CancelToken::new();
    builder.cancel_token(token.clone()).on::<AfterStep>("cancel", move |cx| {
        if cx.phase() == Phase::Train && Some(cx.counters().batches_seen) == at {
            token.cancel();
        }
    })
}

fn weights(trainer: &Trainer<impl Task>) -> Vec<f32> {
    let all: Vec<Tensor> = trainer.vars().iter().map(|var| var.tensor.view([-1])).collect();
    Vec::try_from(&Tensor::cat(&all, 0)).unwrap()
}

#[test]
fn a_cancel_in_the_sanity_check_leaves_a_run_that_can_be_resumed() {
    let run = |folder: &Path, cancel_in: Option<u64>| {
        let token = CancelToken::new();
        let cancel = token.clone();
        let mut checks = 0;
        let mut trainer = builder()
            .sanity_steps(2)
            .hook(Checkpoint::new(folder))
            .cancel_token(token)
            .resume("auto")
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
        Ok::<_, Error>((trainer.counters(), weights(&trainer)))
    };
    let whole = scratch("sanity-whole");
    let expected = run(&whole, None).unwrap();
    for cancel_in in [1, 2] {
        let folder = scratch("sanity");
        let error = run(&folder, Some(cancel_in)).unwrap_err();
        assert!(error.is_cancelled() && error.cleanup().is_empty(), "{error}");
        assert_eq!(checkpoint::newest(&folder).is_some(), cancel_in == 2, "of the first fit");
        assert_eq!(run(&folder, None).unwrap(), expected);
        fs::remove_dir_all(&folder).unwrap();
    }
    // A hook that asks for one then is told.
    let path = whole.join("mine");
    let token = CancelToken::new();
    let mut trainer = builder()
        .sanity_steps(1)
        .cancel_token(token.clone())
        .on::<BeforeSanityCheck>("cancel", move |_| token.cancel())
        .on::<AfterCancel>("save", move |cx| cx.save_checkpoint(&path))
        .build()
        .unwrap();
    let error = trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap_err().to_string();
    assert!(
        error.contains("there is nothing to save outside of a `fit`, or before its sanity check is over"),
        "{error}"
    );
    fs::remove_dir_all(&whole).unwrap();
}

#[test]
fn entries_that_were_over_return_what_they_returned() {
    let run = |folder: &Path, cancel_at: Option<u64>| {
        let settings = builder().epochs(2).hook(Checkpoint::new(folder)).resume("auto");
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
        Ok::<_, Error>((numbers.map(f64::to_bits), test.counters, second.history, weights(&trainer)))
    };
    let whole = scratch("entries-whole");
    let expected = run(&whole, None).unwrap();
    for cancel_at in [1, 3, 5, 7, 10] {
        let folder = scratch("entries");
        assert!(run(&folder, Some(cancel_at)).unwrap_err().is_cancelled());
        assert_eq!(run(&folder, None).unwrap(), expected, "cancelled at {cancel_at}");
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::remove_dir_all(&whole).unwrap();
}

#[test]
fn the_newest_checkpoint_is_the_one_that_came_furthest_whatever_the_clock_says() {
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
    // A later fit is further than an earlier one, also where its counters are lower.
    forge(&folder.join("step-00000004"), |json| json["run"]["progress"]["fits_begun"] = 2.into());
    assert_eq!(checkpoint::newest(&folder), Some(folder.join("step-00000004")));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn numbers_that_no_run_has_are_refused() {
    let folder = scratch("numbers");
    let mut trainer = builder().hook(Checkpoint::new(&folder)).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    drop(trainer);
    let own = folder.join("step-00000002");
    let manifest = fs::read(own.join("manifest.json")).unwrap();
    let numbers: [(&[&str], &str); 12] = [
        (&["run", "progress", "counters", "optimizer_steps"], "run.progress.counters"),
        (&["run", "progress", "counters", "batches_seen"], "run.progress.counters"),
        (&["run", "progress", "epochs_begun"], "run.progress.epochs_begun"),
        (&["run", "progress", "epochs_done"], "run.progress.epochs_done"),
        (&["run", "progress", "train_batches"], "run.progress.train_batches"),
        (&["run", "fit", "position", "train"], "run.fit.position"),
        (&["run", "fit", "window", "size"], "run.fit.window"),
        (&["run", "fit", "start", "steps"], "run.fit.start"),
        (&["run", "fit", "start", "spent", "secs"], "run.fit.start"),
        (&["run", "progress", "fits_begun"], "run.progress.fits_begun"),
        (&["run", "progress", "batches"], "run.progress.batches"),
        (&["optimizers", "0", "steps"], "optimizers"),
    ];
    for (path, field) in numbers {
        forge(&own, |json| {
            let target = path.iter().fold(json, |json, key| match key.parse::<usize>() {
                Ok(nth) => &mut json[nth],
                Err(_) => &mut json[*key],
            });
            *target = (u64::MAX - 1).into();
        });
        let error =
            builder().epochs(2).resume(&*own).build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
        assert!(error.to_string().contains(&format!("its field `{field}` has an invalid value")), "{error}");
        fs::write(own.join("manifest.json"), &manifest).unwrap();
    }
    // A name of megabytes does not come back whole.
    forge(&own, |json| {
        json["states"] = serde_json::json!([{
            "hook": "x".repeat(6_500_000), "nth": 0, "values": {}, "tensors": []
        }]);
    });
    let error =
        builder().epochs(2).resume(&*own).build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
    assert!(error.to_string().len() < 2_500, "{}", error.to_string().len());
    fs::remove_dir_all(&folder).unwrap();
}

/// State with every kind of nothing.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Nothing {
    outer: Option<Option<u8>>,
    unit: Option<()>,
    deep: Vec<Option<Option<Option<()>>>>,
}

#[hook(state)]
impl Nothing {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

#[test]
fn state_comes_back_without_loss_or_is_refused_when_it_is_saved() {
    let folder = scratch("lossless");
    let nothing = Nothing {
        outer: Some(None),
        unit: Some(()),
        deep: vec![None, Some(None), Some(Some(None)), Some(Some(Some(())))],
    };
    let mut first = builder().hook(nothing.clone()).hook(Checkpoint::new(&folder)).build().unwrap();
    first.fit(&mut model::rows(8), None).unwrap();
    drop(first);
    let mut second = builder()
        .epochs(2)
        .hook(Nothing::default())
        .hook(Checkpoint::new(&folder))
        .resume("auto")
        .build()
        .unwrap();
    second.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(second.hook::<Nothing>(), Some(&nothing));

    /// Forgets what it counted.
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
        error.contains("Forgets`: it does not come back as it was saved: `(steps:2)` becomes `(steps:0)`"),
        "{error}"
    );
    fs::remove_dir_all(&lossy).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_history_is_appended_to_and_the_manifest_does_not_grow() {
    let folder = scratch("appended");
    let run = |epochs: u64| {
        let hook = Checkpoint::new(&folder).keep_last(1000);
        let mut trainer = builder().epochs(epochs).hook(hook).resume("auto").build().unwrap();
        trainer.fit(&mut model::rows(8), None).unwrap().history
    };
    assert_eq!(run(60).len(), 60);
    let file =
        |step: u64, name: &str| fs::metadata(folder.join(CheckpointFolder::name(step)).join(name)).unwrap();
    let growth =
        |from: u64, to: u64| file(to, "manifest.json").len().abs_diff(file(from, "manifest.json").len());
    assert!(growth(20, 120) < 200, "{}", growth(20, 120));
    assert_eq!(file(2, "history.jsonl").ino(), file(120, "history.jsonl").ino(), "one file for all of them");
    // Each still has its own part of it, and a run that resumes from an old one writes a file of its own.
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
    // Damage before the recorded length is noticed, after it there is nothing to notice.
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
fn the_best_are_judged_after_each_validation() {
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
    // The weights of that moment: 4 of 8 batches.
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".trainer-lock", "step-00000004", "step-00000006", "step-00000008"]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_lock_is_free_as_soon_as_it_is_dropped_also_while_processes_are_started() {
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

const TOLD: &str = "TRAINER_TESTS_TOLD";

/// Resumes a run with other settings, in a process of its own, whose standard error is read.
#[test]
#[ignore = "a part of the next test, run by it in a process of its own"]
fn tells() {
    let folder = std::path::PathBuf::from(std::env::var(TOLD).unwrap());
    let fit = |epochs, lr| {
        let hook = Checkpoint::new(&folder);
        let mut trainer =
            builder().epochs(epochs).optimizer(AdamW::new(lr)).hook(hook).resume("auto").build().unwrap();
        trainer.fit(&mut model::rows(8), None).unwrap();
        assert_eq!(trainer.optimizer().unwrap().groups()[0].lr, 0.01);
    };
    fit(2, 0.01);
    eprintln!("--- more epochs and another rate");
    fit(3, 0.05);
    eprintln!("--- the same again");
    fit(3, 0.05);
}

#[test]
fn a_resume_says_what_it_resumed_and_which_values_hold() {
    let folder = scratch("told");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recovery::tells", "--ignored", "--nocapture"])
        .env(TOLD, &folder)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap().replace(&folder.display().to_string(), "…");
    assert!(output.status.success(), "{text}");
    assert_eq!(
        text,
        "--- more epochs and another rate\n\
         resumed from …/step-00000004: epoch 1, batch 2 of 2, 4 optimizer steps\n\
         resumed from …/step-00000004: `.epochs(…)` was 2 when it was written, and is 3 now, which holds\n\
         resumed from …/step-00000004: the optimizer's `lr` was 0.01 when training began, and the program sets 0.05 now: what \
         the checkpoint holds continues; change it at `after_load_checkpoint`\n\
         --- the same again\n\
         resumed from …/step-00000006: epoch 2, batch 2 of 2, 6 optimizer steps\n\
         resumed from …/step-00000006: the optimizer's `lr` was 0.01 when training began, and the program sets 0.05 now: what \
         the checkpoint holds continues; change it at `after_load_checkpoint`\n\
         nothing is left to train: the resumed fit had already finished\n"
    );
    fs::remove_dir_all(&folder).unwrap();
}
