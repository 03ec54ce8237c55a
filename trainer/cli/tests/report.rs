//! `trainer report`: the files that it writes for small runs, and the errors that it reports.

#![allow(clippy::disallowed_methods, reason = "tests write the folders of runs")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value as Json, json};
use trainer_formats::run::{Live, Process};

/// Returns a new, empty folder for one test.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("trainer-report-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs the command in this folder.
fn report(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.arg("report").args(arguments).current_dir(folder).output().unwrap()
}

/// Returns the report about these runs, without its style sheet and script.
fn html(folder: &Path, runs: &[&str]) -> String {
    let output = report(folder, runs);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "report.html\n");
    without_code(&fs::read_to_string(folder.join("report.html")).unwrap())
}

fn without_code(html: &str) -> String {
    let cut = |html: &str, start: &str, end: &str| {
        let (before, rest) = html.split_once(start).unwrap();
        let (_, after) = rest.split_once(end).unwrap();
        format!("{before}{start}…{end}{after}")
    };
    cut(&cut(html, "<style>", "</style>"), "<script>", "</script>")
}

/// Returns every file below a folder, with its content.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Returns the `run.json` of a finished run, without any optional fields.
fn run_json() -> Json {
    json!({
        "format": "trainer run", "version": 1, "status": "finished", "entry": "fit",
        "started": "2026-11-21T10:00:00Z", "resumed": [], "ended": "2026-11-21T10:01:05Z",
        "error": null, "stopped": null, "trainer": "0.1.0", "libtorch": "2.13.0", "rustc": "rustc 1.95.0",
        "git_commit": null, "device": "Cpu", "threads": 1, "seed": 3, "command_line": ["digits"],
        "settings": {}, "hyperparameters": {}, "hooks": []
    })
}

fn write_run(folder: &Path, run: &Json, files: &[(&str, String)]) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("run.json"), run.to_string()).unwrap();
    for (name, content) in files {
        fs::write(folder.join(name), content).unwrap();
    }
}

/// Returns the line of a record; `values` are its numbers, texts and images.
fn record(step: u64, phase: &str, span: &str, values: &Json) -> String {
    let mut record = json!({
        "optimizer_steps": step, "epoch": step / 20, "batches_seen": step, "samples_seen": 8 * step,
        // The run began at 2026-11-21T10:00:00Z.
        "time": 1_795_255_200 + step, "phase": phase, "span": span
    });
    record.as_object_mut().unwrap().extend(values.as_object().unwrap().clone());
    format!("{record}\n")
}

/// Returns the records of 40 steps in two epochs.
fn records(scale: f64) -> String {
    let mut lines = String::new();
    for step in (5_u32..=40).step_by(5) {
        let loss = scale / f64::from(step);
        let ratio = match step {
            15 => json!("NaN"),
            20 => json!("inf"),
            _ => json!(f64::from(step) / 10.0),
        };
        lines +=
            &record(step.into(), "train", "steps", &json!({ "train/loss": loss, "train/layers/fc1": ratio }));
        if step % 20 == 0 {
            let confusion = json!({
                "valid/loss": 1.25 * loss,
                "valid/confusion_matrix/dog/dog": step, "valid/confusion_matrix/dog/cat": 1,
                "valid/confusion_matrix/cat/dog": 0, "valid/confusion_matrix/cat/cat": 7,
                "valid/hyperparameter/beta1": 0.9, "valid/hyperparameter/lr": 0.1 / f64::from(step),
            });
            lines += &record(step.into(), "valid", "pass", &confusion);
            lines += &record(step.into(), "train", "pass", &json!({ "train/loss": 2.0 * loss }));
        }
    }
    lines
}

/// Returns a run with everything that a report can show: its `run.json` and its records.
fn full_run() -> (Json, String) {
    let mut run = run_json();
    run["resumed"] = json!(["2026-11-21T10:00:26Z"]);
    run["stopped"] = json!("enough");
    run["entries"] = json!(["fit", "test"]);
    run["data"] = json!({ "train.rows": 1440.0, "train.batch_size": 32.0 });
    run["warnings"] = json!(["the loss is large"]);
    run["hyperparameters"] = json!({ "lr": 0.1, "optimizer": "Sgd", "epochs": 2.0, "nesterov": false });
    run["hooks"] = json!([
        "trainer::hooks::Progress at before_step",
        "trainer::loggers::Report at after_record",
        "mine::clamp at after_record",
    ]);
    run["metrics"] = json!({
        "valid/loss": { "last": 0.03125, "min": { "value": 0.03125, "epoch": 1, "optimizer_steps": 40 },
            "max": { "value": 0.0625, "epoch": 0, "optimizer_steps": 20 }, "goal": "minimize" },
        "train/loss": { "last": 0.05, "min": { "value": 0.05, "epoch": 2, "optimizer_steps": 40 },
            "max": { "value": 0.1, "epoch": 1, "optimizer_steps": 20 }, "goal": "minimize" }
    });
    let row = |kind: &str, name: &str, moment: Json, own: u64| {
        json!({
            "kind": kind, "name": name, "moment": moment, "phase": "train", "calls": 40,
            "total_ns": own, "self_ns": own, "mean_ns": own / 40, "max_ns": own / 2,
        })
    };
    run["profiles"] = json!([{
        "entry": "fit", "total_ns": 4_000_000_000_u64,
        "rows": [
            row("operation", "backward", Json::Null, 3_000_000_000),
            row("hook", "mine::clamp", json!("after_record"), 999_000_000),
            row("data", "data", Json::Null, 1_000_000),
        ],
    }]);
    let media = json!({
        "train/note": "first line\nsecond line",
        "train/picture": { "png": "iVBORw0KGgo=", "width": 8, "height": 8 },
        "train/histogram": { "min": 0.0, "max": 1.0 },
    });
    (run, records(1.0) + &record(40, "train", "rest", &media))
}

#[test]
fn a_complete_run_has_every_section_in_the_report() {
    let folder = scratch("full");
    let (run, lines) = full_run();
    write_run(&folder.join("runs/0001"), &run, &[("report.jsonl", lines)]);
    let before = tree(&folder.join("runs/0001"));
    insta::assert_snapshot!("full", html(&folder, &["runs/0001"]));
    assert_eq!(tree(&folder.join("runs/0001")), before);
    // An earlier report is replaced, here with identical content.
    let first = fs::read(folder.join("report.html")).unwrap();
    html(&folder, &["runs/0001"]);
    assert_eq!(fs::read(folder.join("report.html")).unwrap(), first);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_run_without_records_has_a_report_that_lists_what_was_not_recorded() {
    let folder = scratch("empty");
    write_run(&folder.join("runs/0001"), &run_json(), &[]);
    insta::assert_snapshot!("empty", html(&folder, &["runs/0001"]));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn several_runs_are_compared() {
    let folder = scratch("several");
    let (mut run, lines) = full_run();
    // The metrics of these runs are read from their records.
    run["metrics"] = json!({});
    for (name, scale) in [("0001", 1.0), ("0002", 0.5)] {
        run["hyperparameters"]["lr"] = json!(scale);
        let lines = if name == "0001" { lines.clone() } else { records(scale) };
        write_run(&folder.join("runs").join(name), &run, &[("records.jsonl", lines)]);
    }
    // A folder that contains runs stands for all of them.
    insta::assert_snapshot!("several", html(&folder, &["runs"]));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn recorded_text_is_never_executed_as_code() {
    let hostile = "\"'><b onclick=x>&</code></script><script>alert(1)</script>";
    let folder = scratch("hostile");
    let mut run = run_json();
    for field in [
        "started",
        "ended",
        "stopped",
        "error",
        "trainer",
        "libtorch",
        "rustc",
        "git_commit",
        "device",
        "entry",
    ] {
        run[field] = json!(hostile);
    }
    run["status"] = json!("failed");
    for field in ["resumed", "warnings", "command_line", "hooks"] {
        run[field] = json!([hostile, format!("{hostile} at {hostile}")]);
    }
    run["hyperparameters"] = json!({ hostile: hostile, "list": [hostile] });
    run["profiles"] = json!([{ "entry": hostile, "total_ns": 2, "rows": [{
        "kind": hostile, "name": hostile, "moment": hostile, "phase": hostile, "calls": 1,
        "total_ns": 1, "self_ns": 1, "mean_ns": 1, "max_ns": 1,
    }] }]);
    let mut lines = String::new();
    for step in 0..3 {
        lines += &record(
            step,
            hostile,
            "pass",
            &json!({
                format!("{hostile}/{hostile}/value"): if step == 1 { json!("NaN") } else { json!(step) },
                format!("{hostile}/text"): hostile,
                format!("{hostile}/image"): { "png": "AAAA", "width": 8 },
                format!("{hostile}/forged"): { "png": hostile, "width": hostile },
                format!("{hostile}/0/0"): 1, format!("{hostile}/0/1"): 1,
                format!("{hostile}/1/0"): 1, format!("{hostile}/1/1"): 1,
            }),
        );
    }
    for name in ["1", "<img src=x onerror=alert(1)>"] {
        write_run(&folder.join("runs").join(name), &run, &[("report.jsonl", lines.clone())]);
    }
    for runs in [&["runs/1"][..], &["runs"]] {
        let html = html(&folder, runs);
        assert!(html.matches("&lt;script&gt;alert(1)&lt;/script&gt;").count() > 30, "{html}");
        // Texts of users do not become markup: the page has none of these strings.
        let own = ["<b onclick", "<img src=x", "<script>alert", "&lt;/script>", "\"'>", "png;base64,\""];
        for text in own {
            assert!(!html.contains(text), "{text}\n{html}");
        }
        assert_eq!(html.matches("<script").count(), 1, "{html}");
        assert!(html.contains("default-src 'none'"));
        assert_eq!(
            html.matches("data:image/png;base64,AAAA\"").count(),
            if runs == ["runs"] { 6 } else { 3 }
        );
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn unreadable_files_are_named_and_the_rest_is_shown() {
    let folder = scratch("damaged");
    let csv = "optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value\n1,0,1,8,x,train,steps,train/loss,1\n";
    write_run(
        &folder.join("runs/0001"),
        &run_json(),
        &[("values.csv", csv.to_owned()), ("report.jsonl", "{\"optimizer_steps\":}\n".to_owned())],
    );
    let output = report(&folder, &["runs/0001"]);
    let html = fs::read_to_string(folder.join("report.html")).unwrap();
    for text in [&html, &String::from_utf8(output.stderr).unwrap()] {
        assert!(text.contains("the curves are missing: runs/0001/values.csv: line 2: "), "{text}");
        assert!(text.contains("text and images are missing: runs/0001/report.jsonl: line 1: "), "{text}");
    }
    assert!(html.contains("<h2>Environment</h2>"));

    // A run with a damaged `run.json` is left out if there are others, and an error if it is alone.
    fs::create_dir(folder.join("runs/0002")).unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    fs::write(folder.join("runs/0002/run.json"), "{").unwrap();
    let output = report(&folder, &["runs"]);
    assert!(output.status.success());
    assert!(
        fs::read_to_string(folder.join("report.html")).unwrap().contains("runs/0002/run.json: damaged: ")
    );
    for (run, message) in [
        ("runs/0002", "error: runs/0002/run.json: damaged: "),
        (
            "absent",
            "error: there is no run absent, and no runs/absent: `trainer runs` lists the runs in `runs`",
        ),
        ("empty", "error: empty: this folder holds no run: neither it nor a folder in it has a `run.json`"),
        ("runs/0001/values.csv", "error: runs/0001/values.csv: Not a directory"),
    ] {
        let output = report(&folder, &[run, "-o", "other.html"]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.starts_with(message), "{text}");
        assert!(!folder.join("other.html").exists());
    }
    // An incomplete last line is not considered damage.
    write_run(
        &folder.join("runs/0001"),
        &run_json(),
        &[("values.csv", String::new()), ("report.jsonl", records(1.0) + "{\"opt")],
    );
    assert_eq!(report(&folder, &["runs/0001"]).stderr, b"");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn only_reports_are_replaced_and_run_folders_are_never_written_to() {
    let folder = scratch("refused");
    write_run(&folder.join("run"), &run_json(), &[]);
    fs::write(folder.join("report.html"), "<!doctype html>\n<p>mine</p>").unwrap();
    fs::create_dir(folder.join("folder.html")).unwrap();
    for (output, message) in [
        (
            "report.html",
            "error: report.html: this is not a report, so it is not replaced: choose another path with `-o`\n",
        ),
        (
            "folder.html",
            "error: folder.html: this is not a report, so it is not replaced: choose another path with `-o`\n",
        ),
        (
            "run/report.html",
            "error: run: this folder holds a run, which the command does not change: choose another path with `-o`\n",
        ),
        ("absent/report.html", "error: absent: No such file or directory (os error 2)\n"),
    ] {
        let output = report(&folder, &["run", "-o", output]);
        assert_eq!(
            (output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()),
            (Some(2), message)
        );
    }
    assert_eq!(fs::read_to_string(folder.join("report.html")).unwrap(), "<!doctype html>\n<p>mine</p>");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_report_has_at_most_sixteen_runs_and_says_which_are_left_out() {
    let folder = scratch("many");
    for number in 1..=18 {
        write_run(&folder.join(format!("runs/{number:04}")), &run_json(), &[("report.jsonl", records(1.0))]);
    }
    let output = report(&folder, &["runs"]);
    let text = String::from_utf8(output.stderr).unwrap();
    let left_out = ["0017", "0018"]
        .map(|name| format!("warning: runs/{name} is left out: a report shows at most 16 runs\n"));
    assert_eq!(text, left_out.concat());
    fs::remove_dir_all(&folder).unwrap();
}

/// Returns the report about these runs, after checking that all of its coordinates are finite
/// numbers and that it requests no other file.
fn checked(folder: &Path, runs: &[&str]) -> String {
    let html = html(folder, runs);
    let coordinates = html.split(" d=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    for path in coordinates {
        let is_number = |text: &str| text.parse::<f64>().is_ok_and(f64::is_finite);
        let mut numbers =
            path.split(|at: char| at.is_ascii_alphabetic() || at == ' ').filter(|text| !text.is_empty());
        // A relative command may write `-3-3` for two numbers.
        assert!(numbers.all(|text| is_number(text) || text.split('-').skip(1).all(is_number)), "{path}");
    }
    let whole = fs::read_to_string(folder.join("report.html")).unwrap();
    for request in ["<link", "<a ", "<iframe", "<script src", "@import", "url("] {
        assert!(!whole.contains(request), "{request}: the file needs no other file and no network");
    }
    assert!(whole.split(" src=\"").skip(1).all(|source| source.starts_with("data:image/png;base64,")));
    html
}

/// Writes a run with these values of a metric, one for each step.
fn write_values(folder: &Path, values: &[f64]) {
    let record_of = |(step, value): (usize, &f64)| {
        let value = if value.is_finite() { json!(value) } else { json!(value.to_string()) };
        record(step as u64, "train", "steps", &json!({ "train/x": value }))
    };
    write_run(folder, &run_json(), &[("report.jsonl", values.iter().enumerate().map(record_of).collect())]);
}

#[test]
fn extreme_values_are_plotted_with_labels_or_the_missing_plot_is_explained() {
    let folder = scratch("extreme");
    let [nan, inf] = [f64::NAN, f64::INFINITY];
    let label = |text: &str| format!(">{text}</text>");
    for (values, expected) in [
        (vec![0.0; 3], vec![label("-1.0"), label("0"), label("1.0")]),
        (vec![1e-30, 2e-30], vec![label("1e-30"), label("2e-30")]),
        (vec![-1e30, 1e30], vec![label("-1e30"), label("0"), label("1e30")]),
        (vec![f64::MAX, -f64::MAX], vec![label("-1e300"), label("1e300")]),
        (
            vec![nan, nan],
            vec![label("no finite value"), "2 values are NaN or infinite, the first at step 0".into()],
        ),
        (
            vec![1.0, inf, 2.0, -inf, nan],
            vec![label("1.0"), "3 values are NaN or infinite, the first at step 1".into()],
        ),
        (vec![-2.0, -1.0], vec![label("no positive value"), label("-2.0")]),
        (vec![1.0], vec!["Not recorded: ".into()]),
        (vec![], vec!["Not recorded: curves (".into()]),
    ] {
        write_values(&folder.join("runs/0001"), &values);
        let html = checked(&folder, &["0001"]);
        for text in expected {
            assert!(html.contains(&text), "{values:?}: {text}\n{html}");
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn many_metrics_and_long_runs_make_a_file_that_a_browser_can_show() {
    let folder = scratch("large");
    let mut lines = String::new();
    for step in 0..500_u32 {
        let values =
            (0..200).map(|nth| (format!("train/group{}/m{nth}", nth % 20), json!(f64::from(step).sin())));
        lines += &record(step.into(), "train", "steps", &values.collect());
    }
    for name in ["0001", "0002"] {
        write_run(&folder.join("runs").join(name), &run_json(), &[("report.jsonl", lines.clone())]);
    }
    let html = checked(&folder, &["runs"]);
    assert_eq!(html.matches("<figure class=\"plot\"").count(), 200);
    assert!(html.len() < 10 << 20, "{}", html.len());

    let steps: Vec<f64> = (0..50_000).map(f64::from).collect();
    write_values(&folder.join("long"), &steps);
    let html = checked(&folder, &["long"]);
    assert!(html.len() < 200 << 10, "{}", html.len());
    assert!(html.contains(">40k</text>"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn confusion_matrices_are_shown_up_to_a_limit_of_classes() {
    let folder = scratch("matrices");
    for (classes, expected) in [
        (2, "<table class=\"\">"),
        (50, "<table class=\"dense\">"),
        (70, "70 classes are too many to be shown."),
    ] {
        let elements = (0..classes * classes).map(|nth| {
            let (row, column) = (nth / classes, nth % classes);
            (format!("valid/matrix/{row}/{column}"), json!(u32::from(row == column)))
        });
        let line = record(1, "valid", "pass", &elements.collect());
        write_run(&folder.join("runs/0001"), &run_json(), &[("report.jsonl", line)]);
        let html = checked(&folder, &["0001"]);
        assert!(html.contains(expected), "{classes}");
        assert!(!html.contains("valid/matrix/0/1"), "its elements are not metrics of their own");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn long_text_is_clipped_and_its_length_is_shown() {
    let folder = scratch("long-texts");
    let long = "<".repeat(30_000);
    let mut run = run_json();
    run["hyperparameters"] = json!({ "long": long });
    run["warnings"] = json!([long]);
    run["error"] = json!(long);
    let line = record(1, "train", "rest", &json!({ "train/text": long, "train/image": { "png": "AAAA" } }));
    write_run(&folder.join("runs/0001"), &run, &[("report.jsonl", line)]);
    let html = checked(&folder, &["0001"]);
    assert_eq!(html.matches("… (30000 characters)").count(), 4);
    assert_eq!(html.matches("&lt;").count(), 400 + 2_000 + 20_000 + 20_000);
    fs::remove_dir_all(&folder).unwrap();
}

/// The report shows the state of a run: that it is running, was killed, or was forked from another
/// run.
#[test]
fn running_killed_and_forked_runs_are_marked_as_such() {
    let folder = scratch("states");
    let mut live = Live::new("fit", "train");
    live.warnings.push("not in run.json yet".to_owned());
    let mut run = run_json();
    run["ended"] = Json::Null;
    run["status"] = json!("running");
    let files = [("report.jsonl", records(1.0)), ("live.json", live.to_text().unwrap())];
    write_run(&folder.join("runs/0001"), &run, &files);
    let html = checked(&folder, &["0001"]);
    assert!(html.contains("<b class=\"status running\">running</b> · <code>fit</code> · 40 steps"), "{html}");
    assert!(html.contains("<li>not in run.json yet</li>"), "{html}");

    // A process with this ID exists, but it started at a different time.
    let mut process = Process::current();
    process.started = Some(1);
    run["process"] = json!(process);
    write_run(&folder.join("runs/0001"), &run, &files);
    if cfg!(target_os = "linux") {
        let html = checked(&folder, &["0001"]);
        assert!(html.contains("<b class=\"status killed\">killed</b>"), "{html}");
        assert!(html.contains("<li>not in run.json yet</li>"), "{html}");
    }
    // A warning names the damaged `live.json`.
    fs::write(folder.join("runs/0001/live.json"), "{}").unwrap();
    let output = report(&folder, &["0001"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("warning: warnings may be missing: runs/0001/live.json: "), "{text}");

    run["status"] = json!("forked");
    run["origin"] = json!({ "run": "runs/<0001>", "batches": 300 });
    write_run(&folder.join("runs/0002"), &run, &[]);
    let html = checked(&folder, &["0002"]);
    assert!(html.contains("<b class=\"status forked\">forked</b>"), "{html}");
    assert!(
        html.contains("Begins with the state of <code>runs/&lt;0001&gt;</code> before training batch 300"),
        "{html}"
    );
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn runs_with_different_metrics_and_equal_names_are_distinguished() {
    let folder = scratch("different");
    for (path, metric) in [("a/runs/0001", "valid/one"), ("b/runs/0001", "valid/other")] {
        let lines = record(1, "valid", "pass", &json!({ metric: 1.0 }))
            + &record(2, "valid", "pass", &json!({ metric: 2.0 }));
        write_run(&folder.join(path), &run_json(), &[("report.jsonl", lines)]);
    }
    // The same run, given twice, is shown once.
    let html = checked(&folder, &["a/runs/0001", "b/runs/0001", "a/runs/../runs/0001"]);
    assert!(html.contains("<h1>2 runs</h1>"), "{html}");
    for text in [
        "a/runs/0001</th>",
        "b/runs/0001</th>",
        "<code>valid/one</code>",
        "<code>valid/other</code>",
        ">–</td>",
    ] {
        assert!(html.contains(text), "{text}\n{html}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn runs_of_earlier_versions_have_a_report() {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/runs");
    let folder = scratch("earlier");
    for entry in fs::read_dir(runs).unwrap() {
        let run = entry.unwrap().path();
        let html = checked(&folder, &[run.to_str().unwrap()]);
        assert!(html.contains("<h2>Environment</h2>"), "{html}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_result_is_also_available_as_json() {
    let folder = scratch("json");
    write_run(&folder.join("runs/0001"), &run_json(), &[("values.csv", "x\n".to_owned())]);
    let output = report(&folder, &["0001", "--json"]);
    let result: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&result["report"], &result["runs"]), (&json!("report.html"), &json!(1)));
    assert!(result["warnings"][0].as_str().unwrap().starts_with("the curves are missing: "), "{result}");
    assert_eq!(output.stderr, b"");
    fs::remove_dir_all(&folder).unwrap();
}
