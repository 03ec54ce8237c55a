//! `trainer runs`, `show` and `compare` on the folders of runs.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "tests write the folders that the command reads"
)]

mod support;

use serde_json::json;
use support::{Scratch, measure, objects, run_file, text};
use trainer_formats::run::{Goal, RunFile, Status};

const HOUR: u64 = 3600;

/// Creates the six runs that the guide shows, which differ in status and values.
fn six(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    let runs = [
        ("0001", 50 * HOUR, 0.001, 64, Status::Finished, 0.3699, 0.9331),
        ("0002", 5 * HOUR, 0.01, 64, Status::Finished, 0.0932, 0.9721),
        ("0003", 4 * HOUR, 0.1, 64, Status::Finished, 0.1092, 0.9666),
        ("0010", 3 * HOUR, 0.01, 256, Status::Failed, f64::NAN, 0.1),
        ("0011", 2 * HOUR, 0.02, 64, Status::Cancelled, 0.1521, 0.9624),
    ];
    for (name, age, lr, width, status, loss, accuracy) in runs {
        let mut file = run_file(age, lr, width, status);
        measure(&mut file, "train/loss", Some(Goal::Minimize), &[1.5, loss / 2.0]);
        measure(&mut file, "valid/loss", Some(Goal::Minimize), &[1.0, loss / 2.0, loss]);
        measure(&mut file, "valid/accuracy", Some(Goal::Maximize), &[0.5, accuracy + 0.01, accuracy]);
        measure(&mut file, "valid/accuracy/0", None, &[accuracy]);
        if status == Status::Failed {
            file.error = Some("the loss is NaN at after_loss, epoch 2, batch 3".to_owned());
        }
        scratch.run(&format!("runs/{name}"), &file);
    }
    let mut running = run_file(26 * HOUR + 1800, 0.05, 64, Status::Running);
    running.hooks.insert(1, "trainer::hooks::ClipGradNorm::clip around opt_step".to_owned());
    running.git_commit = Some("9".repeat(40));
    scratch.run("runs/best try", &running);
    scratch.write(
        "runs/best try/values.csv",
        "optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value\n\
         45,0,45,1440,1.5,train,pass,train/loss,0.75\n45,0,45,1440,1.5,valid,pass,valid/loss,0.5\n\
         90,1,90,2880,1.5,valid,pass,valid/loss,0.25\n90,1,90,2880,1.5,va",
    );
    scratch
}

/// Returns the first column of each line except the first line.
fn first_words(text: &str) -> Vec<&str> {
    text.lines().skip(1).filter_map(|line| line.split("  ").next()).collect()
}

#[test]
fn runs_are_listed_within_the_width_of_the_terminal() {
    let scratch = six("list");
    insta::assert_snapshot!("runs_80", scratch.print(80, &["runs"]));
    insta::assert_snapshot!("runs_120", scratch.print(120, &["runs"]));
    insta::assert_snapshot!("runs_sorted_80", scratch.print(80, &["runs", "--sort", "valid/accuracy"]));
    for width in [20, 40, 80, 120, 200] {
        let text = scratch.print(width, &["runs"]);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        assert!(!text.contains('\u{1b}'), "colors without a terminal: {text}");
    }
}

#[test]
fn runs_are_sorted_by_metrics_settings_and_fields() {
    let scratch = six("sort");
    let sorted = |key: &str| {
        let text = scratch.print(200, &["runs", "--sort", key]);
        first_words(&text).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    // If the goal is known, the best run comes first. NaN and runs without a value come last.
    assert_eq!(sorted("valid/loss"), ["0002", "0003", "0011", "best try", "0001", "0010"]);
    assert_eq!(sorted("-valid/loss"), ["0001", "best try", "0011", "0003", "0002", "0010"]);
    assert_eq!(sorted("valid/accuracy"), ["0002", "0003", "0011", "0001", "0010", "best try"]);
    assert_eq!(sorted("-valid/accuracy"), sorted("valid/accuracy"));
    assert_eq!(sorted("valid/accuracy/0"), ["0010", "0001", "0011", "0003", "0002", "best try"]);
    assert_eq!(sorted("-valid/accuracy/0")[..2], ["0002", "0003"]);
    assert_eq!(sorted("lr")[..3], ["0001", "0002", "0010"]);
    assert_eq!(sorted("-started")[0], "0011");
    assert_eq!(sorted("-name")[0], "best try");
    assert_eq!(sorted("status")[0], "0011");
    let best = scratch.print(200, &["runs", "--sort", "valid/accuracy", "--best", "--json"]);
    assert_eq!(objects(&best)[0]["run"], "0002");
}

#[test]
fn runs_that_read_other_data_differ() {
    let scratch = Scratch::new("data");
    for (name, batch_size) in [("0001", 16.0), ("0002", 320.0)] {
        let mut file = run_file(HOUR, 0.1, 64, Status::Finished);
        file.data.insert("train.batch_size".to_owned(), json!(batch_size));
        file.entries = ["fit", "test"].map(str::to_owned).to_vec();
        file.entry = "test".to_owned();
        file.stopped = Some("`valid/loss` has not improved".to_owned());
        for (metric, values) in
            [("train/hyperparameter/lr", [0.1, 0.2]), ("train/hyperparameter/beta1", [0.9; 2])]
        {
            measure(&mut file, metric, None, &values);
        }
        scratch.run(&format!("runs/{name}"), &file);
    }
    let text = scratch.print(80, &["compare", "0001", "0002"]);
    let (_, data) = text.split_once("\ndata\n").unwrap();
    let words: Vec<_> = data.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(words, ["train.batch_size", "16", "320"], "{text}");
    let listed = scratch.print(80, &["runs", "--filter", "train.batch_size>100"]);
    assert_eq!(first_words(&listed), ["0002"], "{listed}");
    for width in [60, 80] {
        let shown = scratch.print(width, &["show", "0002"]);
        assert!(shown.contains("entry     fit, test\n") && shown.contains("stopped   `valid/loss` has not"));
        assert!(shown.lines().all(|line| line.chars().count() <= width), "{shown}");
        let (_, shown) = shown.split_once("\nmetrics\n").unwrap();
        insta::assert_snapshot!(format!("show_data_{width}"), shown.split_once("\nenvironment").unwrap().0);
    }
}

#[test]
fn filters_compare_numbers_and_texts() {
    let scratch = six("filter");
    let filtered = |filters: &[&str]| {
        let mut arguments = vec!["runs", "--json"];
        filters.iter().for_each(|filter| arguments.extend(["--filter", filter]));
        let text = scratch.print(80, &arguments);
        objects(&text).iter().map(|run| run["run"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(filtered(&["status=finished"]), ["0001", "0002", "0003"]);
    assert_eq!(filtered(&["status=finished", "lr<0.05"]), ["0001", "0002"]);
    assert_eq!(filtered(&["lr=1e-2"]), ["0002", "0010"]);
    assert_eq!(filtered(&["lr>=0.05"]), ["0003", "best try"]);
    assert_eq!(filtered(&["valid/accuracy > 0.96"]), ["0002", "0003", "0011"]);
    // A run without a value is unequal to any value.
    assert_eq!(filtered(&["valid/accuracy!=0.1"]), ["0001", "0002", "0003", "0011", "best try"]);
    assert_eq!(filtered(&["activation=relu", "duration<=200"]).len(), 5);
    assert_eq!(filtered(&["lr=7"]), Vec::<String>::new());
    let none = scratch.print(80, &["runs", "--filter", "lr=7"]);
    assert_eq!(none, "no run matches the filters in runs\n");
}

#[test]
fn mistakes_are_errors_that_say_what_to_write() {
    let scratch = six("mistakes");
    for (arguments, expected) in [
        (&["runs", "--sort", "valid/los"][..], "named `valid/los`; did you mean `valid/loss`?"),
        (&["runs", "--filter", "statsu=finished"], "named `statsu`; did you mean `status`?"),
        (&["runs", "--filter", "lr"], "the filter `lr` is not a comparison: write `status=finished`"),
        (&["runs", "--filter", "=3"], "the filter `=3` is not a comparison"),
        (&["runs", "--metric", "acuracy"], "no run has a setting or metric named `acuracy`"),
        (
            &["runs", "elsewhere"],
            "the folder elsewhere does not exist: pass the folder that contains the runs",
        ),
        (&["show", "0009"], "there is no run 0009, and no runs/0009"),
        (&["show", "runs"], "runs: this folder holds no run: it has no `run.json`"),
        (&["compare", "0001", "0009"], "there is no run 0009"),
    ] {
        let error = scratch.fail(arguments);
        assert!(error.starts_with("error: ") && error.contains(expected), "{error}");
    }
    let error = objects(&scratch.fail(&["runs", "elsewhere", "--json"]));
    assert!(error[0]["error"].as_str().unwrap().contains("does not exist"), "{error:?}");
}

#[test]
fn damaged_and_foreign_runs_are_listed_with_the_reason() {
    let scratch = Scratch::new("damaged");
    scratch.run("runs/0001", &run_file(2 * HOUR, 0.1, 8, Status::Finished));
    scratch.write("runs/0002/run.json", "{\"format\": \"trainer run\", \"ver");
    scratch.write("runs/0003/run.json", "{\"format\": \"another\"}");
    scratch.run("runs/0004", &run_file(26 * HOUR + 1800, 0.1, 8, Status::Running));
    scratch.write("runs/0004/values.csv", "not,the,header\n");
    insta::assert_snapshot!("damaged", scratch.print(120, &["runs"]));
    let runs = objects(&scratch.print(80, &["runs", "--json"]));
    assert_eq!(runs.len(), 4);
    assert_eq!((&runs[2]["run"], &runs[2]["status"]), (&json!("0002"), &json!("damaged")));
    assert!(runs[3]["error"].as_str().unwrap().contains("found `another`"), "{runs:?}");
    // A filter lists only runs that are known to match it.
    assert_eq!(objects(&scratch.print(80, &["runs", "--json", "--filter", "lr=0.1"])).len(), 2);
    std::fs::create_dir(scratch.0.join("empty")).unwrap();
    assert_eq!(scratch.print(80, &["runs", "empty"]), "there are no runs in empty\n");
}

#[test]
fn the_json_of_a_run_contains_everything_known_about_it() {
    let scratch = six("json");
    let runs = objects(&scratch.print(80, &["runs", "--json"]));
    assert_eq!(runs.len(), 6);
    let run = &runs[1];
    assert_eq!(
        (&run["run"], &run["path"], &run["status"]),
        (&json!("0002"), &json!("runs/0002"), &json!("finished"))
    );
    assert_eq!((&run["duration_seconds"], &run["settings"]["lr"]), (&json!(200), &json!(0.01)));
    let accuracy = &run["metrics"]["valid/accuracy"];
    assert_eq!((&accuracy["last"], &accuracy["goal"]), (&json!(0.9721), &json!("maximize")));
    assert_eq!(accuracy["best"]["epoch"], 1);
    assert_eq!(runs[3]["metrics"]["valid/loss"]["last"], "NaN");
    assert!(runs[3]["error"].as_str().unwrap().starts_with("the loss is NaN"));
    assert_eq!(runs[5]["metrics"]["valid/loss"]["last"], 0.25, "of a run that has not ended");
    let shown = objects(&scratch.print(80, &["show", "--json", "0002"]));
    assert_eq!((shown.len(), &shown[0]["hooks"][3]), (1, &json!("trainer::loggers::Csv at after_record")));
}

#[test]
fn everything_known_about_a_run_is_shown() {
    let scratch = six("show");
    let started = |file: &RunFile| (file.started.replace('T', " ").replace('Z', ""), file.ended.clone());
    for (name, width) in [("0010", 80), ("best try", 120)] {
        let folder = scratch.0.join("runs").join(name);
        let run = trainer_formats::run::Run::open(folder).unwrap();
        let (began, ended) = started(run.file());
        let ended = ended.map(|ended| ended.replace('T', " ").replace('Z', ""));
        let shown = scratch.print(width, &["show", name]).replace(&began, "<started>");
        let shown = ended.map_or(shown.clone(), |ended| shown.replace(&ended, "<ended>"));
        // The size depends on the name of the host and the times.
        let lines = shown.lines().filter(|line| !line.contains("run.json")).collect::<Vec<_>>();
        insta::assert_snapshot!(format!("show_{width}"), lines.join("\n"));
    }
}

#[test]
fn a_comparison_of_runs_lists_differences_first() {
    let scratch = six("compare");
    let all = ["compare", "0001", "0002", "0003", "0010", "0011", "best try"];
    insta::assert_snapshot!("compare_80", scratch.print(80, &all));
    insta::assert_snapshot!("compare_120", scratch.print(120, &all));
    insta::assert_snapshot!(
        "compare_all",
        scratch.print(80, &["compare", "--all", "runs/0001", "runs/0002"])
    );
    for width in [60, 80, 120] {
        let text = scratch.print(width, &all);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
    }
    let facts = objects(&scratch.print(80, &["compare", "--json", "0001", "0002"]));
    let first_equal = facts.iter().position(|fact| fact["differs"] == false).unwrap();
    assert!(facts[first_equal..].iter().all(|fact| fact["differs"] == false), "what differs is first");
    let lr = facts.iter().find(|fact| fact["name"] == "lr").unwrap();
    assert_eq!(lr["values"], json!({ "runs/0001": 0.001, "runs/0002": 0.01 }));
}

#[test]
fn a_different_order_of_the_same_hooks_is_shown_as_a_difference() {
    let scratch = Scratch::new("order");
    let mut file = run_file(60, 0.1, 8, Status::Finished);
    scratch.run("runs/one", &file);
    file.hooks.swap(0, 1);
    scratch.run("runs/other", &file);
    let text = scratch.print(80, &["compare", "one", "other"]);
    assert!(text.contains("order of the common hooks"), "{text}");
}

#[test]
fn trials_of_a_sweep_are_listed_below_their_folder() {
    let scratch = six("nested");
    scratch.run("runs/lr/0001", &run_file(60, 0.3, 8, Status::Finished));
    let text = scratch.print(80, &["runs"]);
    assert!(first_words(&text).contains(&"lr/0001"), "{text}");
    let text = scratch.print(80, &["runs", "runs/lr"]);
    assert_eq!(first_words(&text), ["0001"]);
}

#[test]
fn a_closed_output_is_not_an_error() {
    let scratch = six("closed");
    let mut child = scratch.command(80, &["runs", "--json"]);
    let mut child =
        child.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn a_thousand_runs_are_listed_sorted_and_filtered() {
    let scratch = Scratch::new("thousand");
    for number in 0..1000 {
        let mut file = run_file(number * 60, 0.1 / (number + 1) as f64, number, Status::Finished);
        // As many metrics as in a run with per-class metrics and monitors.
        for metric in 0..40 {
            measure(&mut file, &format!("valid/metric-{metric}"), None, &[0.5, 0.25]);
        }
        for setting in 0..40 {
            file.hyperparameters.insert(format!("Hook.setting-{setting}"), json!(setting));
        }
        file.hooks = (0..60).map(|hook| format!("trainer::hooks::Hook{hook} at after_step")).collect();
        scratch.run(&format!("runs/{number:04}"), &file);
    }
    for arguments in
        [&["runs"][..], &["runs", "--sort", "valid/metric-7", "--filter", "lr<0.05"], &["runs", "--json"]]
    {
        let output = scratch.command(120, arguments).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let is_shown = |number: &str| text(&output.stdout).contains(number);
        assert!(is_shown("0999") && (arguments.len() > 2 || is_shown("0000")), "{arguments:?}");
    }
}
