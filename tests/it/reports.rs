//! The logger `Report`: its file after every end of a run.

use std::fs;
use std::path::Path;

use trainer::TrainerBuilder;
use trainer::hooks::{Checkpoint, EarlyStopping};
use trainer::loggers::{Csv, Report};
use trainer::metrics::{ConfusionMatrix, Metric};
use trainer::prelude::*;
use trainer_formats::report;
use trainer_formats::run::Run;

use crate::model::{self, message, rows};
use crate::support::{cancelled_at, device, scratch};

/// A run of three epochs with four batches each, and a validation after each epoch.
fn builder(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    model::builder()
        .epochs(3)
        .seed(1)
        .run_folder(folder)
        .record_every(Every::Steps(1))
        .profile(true)
        .hook(Report::new())
        .hook(ConfusionMatrix::multiclass(3).per_class(true))
        .hook(EarlyStopping::new("valid/loss", Goal::Minimize).patience(100))
        .hook(Checkpoint::in_run_folder().every(Every::Steps(2)).on_cancel(false))
        .on::<AfterTrainEpoch>("media", |cx| {
            cx.log_text("note", format!("epoch <{}>", cx.counters().epoch));
            cx.log_image("gray", Tensor::ones([1, 2, 2], (Kind::Float, device())));
        })
        .on::<BeforeFit>("warns", |cx| cx.warn("watch <this>"))
}

fn fit(trainer: &mut Trainer<impl Task<Batch = (Tensor, Tensor)>>) -> Result<trainer::Summary> {
    trainer.fit(&mut rows(16), Some(&mut rows(8)))
}

fn html(folder: &Path) -> String {
    fs::read_to_string(folder.join(report::REPORT_FILE)).unwrap()
}

/// Returns the section of the curves.
fn curves(html: &str) -> &str {
    let (_, rest) = html.split_once("<section class=\"curves\">").expect("the report has curves");
    rest.split_once("</section>").unwrap().0
}

/// Returns the report that a program writes from the folder.
fn from_outside(folder: &Path) -> String {
    let mut report = report::Report::new();
    report.add(&Run::open(folder).unwrap());
    assert_eq!(report.notes(), Vec::<String>::new());
    report.html(std::time::SystemTime::now())
}

#[test]
fn the_report_of_a_finished_run_shows_what_it_recorded() {
    let folder = scratch("report-finished").join("run");
    let mut trainer = builder(&folder).build().unwrap();
    fit(&mut trainer).unwrap();
    let html = html(&folder);
    for text in [
        "<b class=\"status finished\">finished</b>",
        "12 steps · 3 epochs",
        "<li>watch &lt;this&gt;</li>",
        "<code>valid/confusion_matrix</code>",
        "<pre>epoch &lt;2&gt;</pre>",
        "src=\"data:image/png;base64,iVBORw0KGgo",
        "<h2>Profile</h2>",
        "<code>trainer::loggers::Report</code>",
        "<dt>libtorch</dt><dd><code>2.13.0</code></dd>",
    ] {
        assert!(html.contains(text), "{text}\n{html}");
    }
    assert!(!html.contains("Not recorded"), "{html}");
    // The image of the matrix is left out, because its elements are shown.
    assert_eq!(html.matches("<code>valid/confusion_matrix</code>").count(), 1, "{html}");
    assert!(
        fs::read_to_string(folder.join("report.jsonl"))
            .unwrap()
            .contains("\"valid/confusion_matrix\":{\"height\"")
    );
    assert_eq!(curves(&html), curves(&from_outside(&folder)));
    // What the report says of the end is what `run.json` says.
    let run = Run::open(&folder).unwrap();
    assert_eq!(run.file().warnings, ["watch <this>"]);
    assert_eq!(run.file().profiles.len(), 1);
    let profile = &run.file().profiles[0];
    assert_eq!(
        (profile.entry.as_str(), profile.rows.iter().map(|row| row.self_ns).sum()),
        ("fit", profile.total_ns)
    );

    // A later entry point of the same run has its own profile, and replaces the report.
    trainer.test(&mut rows(8)).unwrap();
    let html = self::html(&folder);
    assert!(html.contains("<code>fit, test</code> · 12 steps"), "{html}");
    assert!(html.contains("test/loss"), "{html}");
    let entries: Vec<_> =
        Run::open(&folder).unwrap().file().profiles.iter().map(|own| own.entry.clone()).collect();
    assert_eq!(entries, ["fit", "test"]);
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

#[test]
fn failed_and_cancelled_runs_have_a_report() {
    let root = scratch("report-cut");
    let fails = |cx: &mut Cx<AfterLoss>| {
        let fails = cx.phase() == Phase::Train && cx.counters().batches_seen == 5;
        if fails { Err(Error::msg("the <end>")) } else { Ok(()) }
    };
    let error = fit(&mut builder(&root.join("failed")).on::<AfterLoss>("fails", fails).build().unwrap());
    assert!(error.is_err());
    fit(&mut cancelled_at(Some(5), builder(&root.join("cancelled"))).build().unwrap()).unwrap_err();
    for (name, text) in [("failed", "the &lt;end&gt;</pre>"), ("cancelled", "cancelled")] {
        let folder = root.join(name);
        let html = html(&folder);
        assert!(html.contains(&format!("<b class=\"status {name}\">{name}</b>")), "{html}");
        assert!(html.contains("<h2>Error</h2>") && html.contains(text), "{html}");
        assert_eq!(curves(&html), curves(&from_outside(&folder)));
        let error = Run::open(&folder).unwrap().file().error.clone().unwrap();
        assert!(
            html.contains(&error.replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")),
            "{error}\n{html}"
        );
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_resumed_run_has_the_curves_of_an_uninterrupted_one() {
    let root = scratch("report-resumed");
    let run = |name: &str, at: Option<u64>| {
        fit(&mut cancelled_at(at, builder(&root.join(name))).resume(Resume::Auto).build().unwrap())
    };
    run("whole", None).unwrap();
    // The checkpoint is two steps before the end.
    run("cut", Some(7)).unwrap_err();
    run("cut", None).unwrap();
    let [whole, cut] = ["whole", "cut"].map(|name| html(&root.join(name)));
    let paths = |html: &str| -> Vec<String> {
        let lines = curves(html).split("<path class=\"line ").skip(1);
        lines.map(|line| line.split("/>").next().unwrap().to_owned()).collect()
    };
    assert!(!paths(&whole).is_empty());
    assert_eq!(paths(&whole), paths(&cut));
    assert_eq!((whole.matches("class=\"resume\"").count(), cut.contains("class=\"resume\"")), (0, true));
    assert!(cut.contains("<p>Resumed ") && cut.contains("<b class=\"status finished\">"), "{cut}");
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_file_that_is_not_a_report_is_not_replaced() {
    let folder = scratch("report-foreign");
    let path = folder.join(report::REPORT_FILE);
    fs::write(&path, "<!doctype html>mine").unwrap();
    let error = message(&fit(&mut builder(&folder).build().unwrap()).unwrap_err());
    assert!(error.contains("`Report` failed at setup"), "{error}");
    assert!(
        error.ends_with("this is not a report of the trainer, so it is not replaced: move it elsewhere"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "<!doctype html>mine");

    // One that appears during the run is a warning.
    fs::remove_dir_all(&folder).unwrap();
    let planted = path.clone();
    let plants = move |_: &mut Cx<AfterFit>| fs::write(&planted, "mine").map_err(Error::new);
    let summary = fit(&mut builder(&folder).on::<AfterFit>("plants", plants).build().unwrap()).unwrap();
    assert!(
        summary.warnings.iter().any(|text| text.contains("the report was not written: ")),
        "{:?}",
        summary.warnings
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_report_requires_a_run_folder_and_is_not_written_by_a_smoke_test() {
    let error = model::builder().hook(Report::new()).build().unwrap().fit(&mut rows(8), None).unwrap_err();
    assert!(message(&error).contains("set `.run_folder(\"runs/first\")`"), "{error}");

    let folder = scratch("report-smoke").join("run");
    let mut trainer = builder(&folder).fast_dev_run(2).build().unwrap();
    fit(&mut trainer).unwrap();
    assert!(!folder.exists());
    let mut trainer =
        model::builder().run_folder(&folder).hook(Csv::new()).hook(Report::new()).build().unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    assert!(html(&folder).contains("Not recorded: a profile ("), "{}", html(&folder));
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}
