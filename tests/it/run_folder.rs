//! Run folders: `run.json`, numbered folders, and locks.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::Value as Json;
use trainer::hooks::{Checkpoint, HyperparameterSchedule};
use trainer::loggers::Csv;
use trainer::prelude::*;
use trainer::schedule::Constant;
use trainer::{CancelToken, RunFolder};

use crate::model::{self, builder, message};
use crate::support::{cancelled_at, scratch};

fn run_file(folder: &Path) -> Json {
    serde_json::from_str(&fs::read_to_string(folder.join("run.json")).unwrap()).unwrap()
}

#[test]
fn run_json_describes_the_run_and_its_end() {
    let folder = scratch("run-folder").join("first");
    let seen = folder.clone();
    let mut trainer = builder()
        .run_folder(&folder)
        .seed(3)
        .epochs(2)
        .hyperparameter("width", 64)
        .hyperparameter("activation", "relu")
        .hook(Csv::new())
        .on::<BeforeFit>("running", move |cx| {
            assert_eq!(cx.run_folder(), Some(seen.as_path()));
            assert_eq!(
                (&run_file(&seen)["status"], &run_file(&seen)["ended"]),
                (&"running".into(), &Json::Null)
            );
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let file = run_file(&folder);
    for (field, value) in [
        ("status", Json::from("finished")),
        ("entry", "fit".into()),
        ("seed", 3.into()),
        ("device", "Cpu".into()),
        ("threads", 1.into()),
        ("libtorch", "2.13.0".into()),
        ("error", Json::Null),
    ] {
        assert_eq!(file[field], value, "{field}");
    }
    assert!(file["rustc"].as_str().unwrap().starts_with("rustc 1."), "{file}");
    assert!(file["command_line"][0].as_str().is_some());
    assert!(file["ended"].as_str() >= file["started"].as_str());
    let values = &file["hyperparameters"];
    assert_eq!((&values["width"], &values["activation"]), (&64.0.into(), &"relu".into()));
    assert_eq!(
        (&values["optimizer"], &values["lr"], &values["epochs"]),
        (&"Sgd".into(), &0.1.into(), &2.0.into())
    );
    assert_eq!(file["settings"]["epochs"], "2");
    assert!(
        file["hooks"].as_array().unwrap().iter().any(|hook| hook == "trainer::loggers::Csv at after_record"),
        "{file}"
    );

    // Another entry point of the same trainer belongs to the run.
    trainer.test(&mut model::rows(8)).unwrap();
    assert_eq!(
        (&run_file(&folder)["entry"], &run_file(&folder)["started"]),
        (&"test".into(), &file["started"])
    );
    assert!(fs::read_to_string(folder.join("values.csv")).unwrap().contains("test,pass,test/loss"));
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

#[test]
fn run_json_remembers_the_data_and_why_the_fit_stopped() {
    use trainer::data::NamedLoaders;
    use trainer::metrics::{MeanSquaredError, Metric, R2Score};
    use trainer::optim::{AdamW, Group};

    let folder = scratch("run-remembers").join("run");
    let optimizer = AdamW::new(0.01).group("fc1.*", Group::new().lr(0.002));
    let inputs = |(_, labels): &(Tensor, Tensor), _: &Tensor| {
        let labels = labels.to_kind(Kind::Float);
        Some((labels.shallow_clone(), labels))
    };
    let mut trainer = builder()
        .optimizer(optimizer)
        .run_folder(&folder)
        .epochs(3)
        .hook(MeanSquaredError::new().root(true).inputs(inputs).named("rmse"))
        .hook(R2Score::new().inputs(inputs).named("r2"))
        .on::<AfterEpoch>("stops", |cx| cx.stop("enough"))
        .build()
        .unwrap();
    let rows: Vec<(Vec<f32>, i64)> = (0..10).map(|nth| (vec![nth as f32; 4], nth % 3)).collect();
    let mut train = DataLoader::new(rows.clone()).batch_size(4).shuffle(7).workers(2).prefetch(1);
    let valid =
        NamedLoaders::new().add("clean", model::rows(8)).add("noisy", model::rows(12).drop_last(true));
    trainer.fit(&mut train, Some(&mut { valid })).unwrap();
    trainer.test(&mut DataLoader::new(rows).batch_size(5).with_fingerprint("v2").prefetch(2)).unwrap();
    let file = run_file(&folder);
    assert_eq!((&file["stopped"], &file["entry"]), (&"enough".into(), &"test".into()));
    assert_eq!(file["entries"], serde_json::json!(["fit", "test"]));
    assert_eq!(file["executable"].as_str().unwrap().len(), 16);
    for (name, value) in [
        ("train.rows", Json::from(10.0)),
        ("train.batch_size", 4.0.into()),
        ("train.shuffle", 7.0.into()),
        ("train.workers", 2.0.into()),
        ("train.batches", 3.0.into()),
        ("train.fingerprint", "unknown content: 10 rows, batch size 4, shuffled with seed 7".into()),
        ("valid/clean.rows", 8.0.into()),
        ("valid/clean.shuffle", Json::Null),
        ("valid/noisy.drop_last", true.into()),
        ("test.batch_size", 5.0.into()),
        ("test.prefetch", 2.0.into()),
    ] {
        assert_eq!(file["data"][name], value, "{name} in {:#}", file["data"]);
    }
    assert!(file["data"]["test.fingerprint"].as_str().unwrap().ends_with("content <v2>"));
    for (name, value) in [
        ("MetricHook(rmse).name", Json::from("rmse")),
        ("MetricHook(r2).name", "r2".into()),
        ("lr", 0.01.into()),
        ("fc1.*.lr", 0.002.into()),
    ] {
        assert_eq!(file["hyperparameters"][name], value, "{name}");
    }
    assert_eq!(file["metrics"]["valid/clean/r2"]["goal"], "maximize");
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

#[test]
fn run_json_has_the_status_of_every_exit() {
    let root = scratch("run-status");
    let mut failed = builder()
        .run_folder(root.join("failed"))
        .record_command_line(false)
        .on::<AfterLoss>("fails", |_| Err(Error::msg("no")))
        .build()
        .unwrap();
    failed.fit(&mut model::rows(8), None).unwrap_err();
    let file = run_file(&root.join("failed"));
    assert_eq!((&file["status"], &file["command_line"]), (&"failed".into(), &Json::Null));
    assert!(file["error"].as_str().unwrap().ends_with(": no"), "{file}");

    let mut cancelled = cancelled_at(Some(1), builder()).run_folder(root.join("cancelled")).build().unwrap();
    cancelled.fit(&mut model::rows(8), None).unwrap_err();
    assert_eq!(run_file(&root.join("cancelled"))["status"], "cancelled");

    let stops = |cx: &mut Cx<AfterStep>| cx.stop("enough");
    let mut stopped =
        builder().epochs(3).run_folder(root.join("stopped")).on::<AfterStep>("stops", stops).build().unwrap();
    stopped.fit(&mut model::rows(8), None).unwrap();
    let file = run_file(&root.join("stopped"));
    assert_eq!((&file["status"], &file["stopped"]), (&"finished".into(), &"enough".into()));

    let mut panics = builder()
        .run_folder(root.join("panic"))
        .on::<AfterStep>("panics", |cx| assert!(cx.counters().batches_seen > 9, "no"))
        .build()
        .unwrap();
    let panic = std::panic::AssertUnwindSafe(|| panics.fit(&mut model::rows(8), None));
    std::panic::catch_unwind(panic).unwrap_err();
    assert_eq!(run_file(&root.join("panic"))["status"], "failed");
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_folder_that_holds_another_run_is_refused_unless_it_is_resumed() {
    let folder = scratch("run-refused");
    let run = |resume: bool, at: Option<u64>| {
        let builder = cancelled_at(at, builder())
            .epochs(2)
            .run_folder(&folder)
            .hook(Checkpoint::in_run_folder().every(Every::Steps(1)));
        let builder = if resume { builder.resume(Resume::Auto) } else { builder };
        builder.build().unwrap().fit(&mut model::rows(8), None)
    };
    assert!(run(false, Some(3)).unwrap_err().is_cancelled());
    assert!(folder.join("checkpoints/step-00000003").is_dir());
    let before = run_file(&folder);
    let error = message(&run(false, None).unwrap_err());
    assert!(
        error.contains("this folder holds another run") && error.contains("and was cancelled"),
        "{error}"
    );
    assert_eq!(run_file(&folder), before);
    assert_eq!(run(true, None).unwrap().counters.batches_seen, 4);
    let after = run_file(&folder);
    assert_eq!((&after["status"], &after["started"]), (&"finished".into(), &before["started"]));
    assert_eq!(after["resumed"].as_array().unwrap().len(), 1);

    fs::write(folder.join("run.json"), "{}").unwrap();
    let error = message(&run(true, None).unwrap_err());
    assert!(error.contains("run.json: expected a `run.json` that this trainer wrote"), "{error}");
    assert_eq!(fs::read_to_string(folder.join("run.json")).unwrap(), "{}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn two_trainers_cannot_use_one_run_folder_at_once() {
    let folder = scratch("run-lock");
    let mut inner =
        builder().run_folder(&folder).resume(Resume::Auto).hook(Checkpoint::in_run_folder()).build().unwrap();
    let mut outer = builder()
        .run_folder(&folder)
        .on::<BeforeFit>("nested", move |_| {
            let error = inner.fit(&mut model::rows(8), None).unwrap_err().to_string();
            assert!(error.contains("locked by another trainer"), "{error}");
        })
        .build()
        .unwrap();
    outer.fit(&mut model::rows(8), None).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn numbered_folders_count_up_and_resume_the_last_unfinished_run() {
    let root = scratch("run-numbered");
    fs::create_dir(root.join("other")).unwrap();
    let run = |resume: bool, cancel: bool| {
        let token = CancelToken::new();
        let builder = builder()
            .run_folder(RunFolder::numbered(&root))
            .hook(Checkpoint::in_run_folder())
            .cancel_token(token.clone())
            .on::<AfterStep>("cancel", move |_| {
                if cancel {
                    token.cancel();
                }
            });
        let builder = if resume { builder.resume(Resume::Auto) } else { builder };
        let mut trainer = builder.build().unwrap();
        let _ = trainer.fit(&mut model::rows(8), None);
        trainer.run_folder().unwrap().strip_prefix(&root).unwrap().display().to_string()
    };
    assert_eq!(run(false, false), "0001");
    assert_eq!(run(true, true), "0002");
    assert_eq!(run(false, true), "0003");
    assert_eq!(run(true, false), "0003");
    assert_eq!(run(true, false), "0004");
    // Folders and links with a number that hold no run of this crate are not used.
    for other in ["0005", "9999", "20261122", "18446744073709551615"] {
        fs::create_dir(root.join(other)).unwrap();
    }
    fs::write(root.join("20261122/run.json"), "{\"format\": \"another\"}").unwrap();
    std::os::unix::fs::symlink(root.join("0003"), root.join("9000")).unwrap();
    assert_eq!(run(true, true), "0006");
    assert_eq!(run(true, false), "0006");
    assert_eq!(fs::read_dir(root.join("20261122")).unwrap().count(), 1);
    // Numbers may have gaps, and they end.
    fs::remove_dir_all(root.join("9999")).unwrap();
    fs::rename(root.join("0006"), root.join("9999")).unwrap();
    assert_eq!(run(false, false), "10000");
    fs::remove_dir(root.join("18446744073709551615")).unwrap();
    fs::rename(root.join("10000"), root.join("18446744073709551615")).unwrap();
    let error =
        builder().run_folder(RunFolder::numbered(&root)).build().unwrap().fit(&mut model::rows(8), None);
    assert!(error.unwrap_err().to_string().contains("there is no higher number for the next run"));
    fs::remove_dir_all(root.join("18446744073709551615")).unwrap();
    let error = builder()
        .rank(1)
        .run_folder(RunFolder::numbered(&root))
        .build()
        .unwrap()
        .fit(&mut model::rows(8), None);
    assert!(error.unwrap_err().to_string().contains("use one path in all processes"));
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn hyperparameters_with_the_same_name_are_refused() {
    let error =
        builder().hyperparameter("a", 1).hyperparameter("a", 2).hyperparameter("", 3).build().unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("`.hyperparameter(\"a\", …)` is set twice") && error.contains("expected a name"),
        "{error}"
    );
}

#[test]
fn hyperparameters_that_the_trainer_records_itself_are_refused() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let mut looking = builder()
        .epochs(3)
        .on::<Setup>("names", move |cx| {
            *seen.lock().unwrap() = cx.hyperparameters().into_iter().map(|(name, _)| name).collect();
        })
        .build()
        .unwrap();
    looking.fit(&mut model::rows(4), None).unwrap();
    let names = std::mem::take(&mut *names.lock().unwrap());
    assert!(names.iter().any(|name| name == "lr") && names.iter().any(|name| name == "epochs"), "{names:?}");
    for name in names {
        let error = builder().epochs(3).hyperparameter(&*name, 8.0).build().unwrap_err().to_string();
        assert!(error.contains(&format!("the trainer records its own `{name}`")), "{error}");
    }
}

#[test]
fn the_error_for_a_finished_run_does_not_suggest_an_unchanged_resume() {
    let root = scratch("run-finished");
    let run =
        || builder().epochs(1).run_folder(root.join("run")).build().unwrap().fit(&mut model::rows(4), None);
    run().unwrap();
    let error = run().unwrap_err().to_string();
    assert!(error.contains("has finished: choose another folder, such as `RunFolder::numbered("), "{error}");
    assert!(error.contains("raise its `.epochs(…)` and add `.resume(Resume::Auto)`"), "{error}");
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn checkpoints_without_a_run_folder_are_refused() {
    let mut trainer = builder().hook(Checkpoint::in_run_folder()).build().unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err();
    assert!(error.to_string().contains("`Checkpoint::in_run_folder()` needs a run folder"), "{error}");
}

#[test]
fn a_resume_with_different_hyperparameters_is_refused() {
    let folder = scratch("run-folder-hyperparameters");
    let make = |width: i64| {
        let builder = builder().epochs(3).hyperparameter("width", width);
        builder.hook(Checkpoint::new(&folder)).resume(Resume::Auto)
    };
    let mut trainer = cancelled_at(Some(4), make(64)).build().unwrap();
    assert!(trainer.fit(&mut model::rows(12), None).unwrap_err().is_cancelled());
    drop(trainer);
    let error = cancelled_at(None, make(32)).build().unwrap().fit(&mut model::rows(12), None).unwrap_err();
    let expected = "- `.hyperparameter(\"width\", …)` was 64 when the checkpoint was written and is now 32";
    assert!(error.to_string().contains(expected), "{error}");
    cancelled_at(None, make(64)).build().unwrap().fit(&mut model::rows(12), None).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn run_json_has_the_settings_of_the_last_resumed_fit() {
    let folder = scratch("run-folder-resumed");
    let make = |epochs, width: i64, inexact| {
        let builder = builder().epochs(epochs).hyperparameter("width", width).run_folder(&folder);
        let builder = builder.hook(HyperparameterSchedule::lr(Constant::new(0.5)));
        builder.hook(Checkpoint::in_run_folder()).resume(Resume::Auto).allow_inexact_resume(inexact)
    };
    let recorded = || {
        let file = run_file(&folder);
        let values = &file["hyperparameters"];
        let whole = |value: &Json| value.as_f64().unwrap() as i64;
        assert_eq!(values["lr"], 0.1, "the rate that the program sets");
        (file["settings"]["epochs"].clone(), whole(&values["epochs"]), whole(&values["width"]))
    };
    let mut trainer = cancelled_at(Some(4), make(30, 64, false)).build().unwrap();
    assert!(trainer.fit(&mut model::rows(12), None).unwrap_err().is_cancelled());
    drop(trainer);
    let started = run_file(&folder)["started"].clone();
    assert_eq!(recorded(), ("30".into(), 30, 64));

    // A refused resume changes nothing.
    let mut trainer = cancelled_at(None, make(5, 32, false)).build().unwrap();
    assert!(message(&trainer.fit(&mut model::rows(12), None).unwrap_err()).contains("cannot resume exactly"));
    drop(trainer);
    assert_eq!(recorded(), ("30".into(), 30, 64));

    cancelled_at(None, make(5, 32, true)).build().unwrap().fit(&mut model::rows(12), None).unwrap();
    assert_eq!(recorded(), ("5".into(), 5, 32));
    let file = run_file(&folder);
    assert_eq!((&file["started"], file["resumed"].as_array().unwrap().len()), (&started, 2));
    assert_eq!(file["status"], "finished");
    fs::remove_dir_all(&folder).unwrap();
}
