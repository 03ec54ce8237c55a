//! The folders of real runs, as `trainer-formats` reads them: status and metrics after every end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use trainer::TrainerBuilder;
use trainer::hooks::{Checkpoint, EarlyStopping};
use trainer::loggers::{Csv, JsonLines};
use trainer::metrics::Accuracy;
use trainer::prelude::*;
use trainer_formats::run::{
    CSV_FILE, Goal, JSON_LINES_FILE, Metrics, Points, Process, Run, Span, Status, metrics_of, runs_in,
};

use crate::model::{self, rows};
use crate::support::{cancelled_at, child_process, scratch, tree};

/// A run of three epochs with four batches each, and a validation after each epoch.
fn builder(folder: impl Into<PathBuf>) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    model::builder()
        .epochs(3)
        .run_folder(folder.into())
        .record_every(Every::Steps(2))
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(Accuracy::multiclass(3))
        .hook(EarlyStopping::new("valid/accuracy", Goal::Maximize).patience(100))
        .hook(Checkpoint::in_run_folder().every(Every::Steps(4)))
}

fn open(folder: &Path) -> Run {
    let before = tree(folder);
    let run = Run::open(folder).unwrap();
    run.metrics().unwrap();
    assert_eq!(tree(folder), before, "reading a run changes nothing in its folder");
    run
}

/// The metrics without their goals, which the file of a logger does not have.
fn without_goals(metrics: &Metrics) -> Metrics {
    let mut metrics = metrics.clone();
    metrics.values_mut().for_each(|metric| metric.goal = None);
    metrics
}

/// The metrics in the file of a logger.
fn logged(folder: &Path, name: &str) -> Metrics {
    without_goals(&metrics_of(&Points::open(folder.join(name)).read().unwrap().points))
}

#[test]
fn a_finished_run_has_its_last_and_best_metrics() {
    let folder = scratch("formats-finished").join("run");
    let mut trainer = builder(&folder).build().unwrap();
    let summary = trainer.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
    let run = open(&folder);
    assert_eq!((run.status(), run.file().entry.as_str()), (Status::Finished, "fit"));
    assert!(run.duration(std::time::SystemTime::now()).is_some());
    assert_eq!(run.file().process.as_ref().unwrap().exists(), Process::current().exists());

    let metrics = run.metrics().unwrap();
    assert_eq!(metrics, run.file().metrics);
    assert_eq!(metrics.len(), summary.metrics.iter().count());
    for (name, value) in summary.metrics.iter() {
        let metric = &metrics[name];
        let values: Vec<f64> = summary.history.points(name).map(|(_, value)| value).collect();
        assert_eq!(metric.last.0, value, "{name}");
        assert_eq!(
            metric.min.unwrap().value.0,
            values.iter().copied().fold(f64::INFINITY, f64::min),
            "{name}"
        );
        assert_eq!(
            metric.max.unwrap().value.0,
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            "{name}"
        );
    }
    let goal = |name: &str| metrics[name].goal;
    assert_eq!((goal("valid/accuracy"), goal("train/loss")), (Some(Goal::Maximize), Some(Goal::Minimize)));
    assert_eq!(goal("valid/loss"), Some(Goal::Minimize));
    assert_eq!(metrics["valid/accuracy"].best(), metrics["valid/accuracy"].max);

    // Both loggers have the same metrics, at the same steps, and each point of the run.
    for name in [CSV_FILE, JSON_LINES_FILE] {
        assert_eq!(logged(&folder, name), without_goals(&metrics), "{name}");
        let points = Points::open(folder.join(name)).read().unwrap().points;
        let steps: Vec<u64> = points
            .iter()
            .filter(|point| point.span == Span::Steps && &*point.name == "train/loss")
            .map(|point| point.optimizer_steps)
            .collect();
        assert_eq!(steps, [2, 4, 6, 8, 10, 12], "{name}");
    }

    // A later entry point adds its metrics, and keeps those of the fit.
    trainer.test(&mut rows(8)).unwrap();
    let run = open(&folder);
    assert_eq!(run.file().entry, "test");
    assert!(run.file().metrics.contains_key("test/loss"));
    assert_eq!(run.file().metrics["valid/accuracy"], metrics["valid/accuracy"]);
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

#[test]
fn failed_and_cancelled_runs_keep_the_metrics_recorded_until_then() {
    let root = scratch("formats-cut");
    let fails_at = |point: u64| {
        move |cx: &mut Cx<AfterLoss>| {
            let fails = cx.phase() == Phase::Train && cx.counters().batches_seen == point;
            if fails { Err(Error::msg("no")) } else { Ok(()) }
        }
    };
    let mut failed = builder(root.join("failed")).on::<AfterLoss>("fails", fails_at(9)).build().unwrap();
    failed.fit(&mut rows(16), Some(&mut rows(8))).unwrap_err();
    let mut cancelled = cancelled_at(Some(9), builder(root.join("cancelled"))).build().unwrap();
    cancelled.fit(&mut rows(16), Some(&mut rows(8))).unwrap_err();
    // The metrics of the epoch are not in the history yet when the validation after it fails.
    let in_valid =
        |cx: &mut Cx<BeforeValid>| if cx.counters().epoch > 0 { Err(Error::msg("no")) } else { Ok(()) };
    let mut late = builder(root.join("late")).on::<BeforeValid>("fails", in_valid).build().unwrap();
    late.fit(&mut rows(16), Some(&mut rows(8))).unwrap_err();
    for (name, status) in
        [("failed", Status::Failed), ("cancelled", Status::Cancelled), ("late", Status::Failed)]
    {
        let run = open(&root.join(name));
        assert_eq!(run.status(), status, "{name}");
        assert!(run.file().error.is_some() && run.file().ended.is_some(), "{name}");
        assert_eq!(without_goals(&run.file().metrics), logged(run.path(), CSV_FILE), "{name}");
        assert_eq!(run.file().metrics["train/loss"].min.unwrap().optimizer_steps, 8, "{name}");
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_resumed_run_has_the_metrics_of_an_uninterrupted_one() {
    let root = scratch("formats-resumed");
    let fit = |name: &str, at: Option<u64>| {
        let builder = cancelled_at(at, builder(root.join(name))).resume(Resume::Auto);
        builder.build().unwrap().fit(&mut rows(16), Some(&mut rows(8)))
    };
    fit("whole", None).unwrap();
    fit("cut", Some(7)).unwrap_err();
    fit("cut", None).unwrap();
    let [whole, cut] = ["whole", "cut"].map(|name| open(&root.join(name)));
    assert_eq!(cut.file().resumed.len(), 1);
    assert_eq!(cut.file().metrics, whole.file().metrics);
    fs::remove_dir_all(&root).unwrap();
}

/// Trains until it is killed.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_until_it_is_killed() {
    let folder = std::env::var_os("TRAINER_RUN_FOLDER").unwrap();
    let ready = Path::new(&folder).join("ready");
    let waits = move |cx: &mut Cx<AfterStep>| {
        if cx.phase() == Phase::Train && cx.counters().batches_seen == 9 {
            fs::write(&ready, "").unwrap();
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
    };
    // The environment chooses another folder than the builder.
    let mut trainer = builder("not-this-folder").on::<AfterStep>("waits", waits).build().unwrap();
    trainer.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn the_environment_selects_the_folder_and_a_run_whose_process_is_gone_has_the_status_killed() {
    let root = scratch("formats-killed");
    let folder = root.join("run");
    let mut child: Command = child_process("run_formats::trains_until_it_is_killed");
    child.env("TRAINER_RUN_FOLDER", &folder).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    while !folder.join("ready").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "the process has ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let run = open(&folder);
    assert_eq!(run.status(), Status::Running);
    // The values in `run.json` come when the run ends; before, they are those of a logger.
    assert!(run.file().metrics.is_empty());
    assert_eq!(run.metrics().unwrap()["train/loss"].min.unwrap().optimizer_steps, 8);

    child.kill().unwrap();
    // Until its parent waits for it, the process is a zombie.
    while open(&folder).status() == Status::Running {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(open(&folder).status(), Status::Killed);
    child.wait().unwrap();
    assert_eq!(open(&folder).status(), Status::Killed);
    assert!(open(&folder).metrics().unwrap().contains_key("valid/accuracy"));
    assert_eq!(runs_in(&root).unwrap().len(), 1);

    // A resume is another process.
    let resumed = builder(&folder).resume(Resume::Auto).on::<AfterStep>("waits", |_| ());
    let mut resumed = resumed.build().unwrap();
    resumed.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
    let run = open(&folder);
    assert_eq!(run.status(), Status::Finished);
    assert_eq!(run.file().process.as_ref().unwrap().id, std::process::id());
    fs::remove_dir_all(&root).unwrap();
}
