//! Reading the folders of runs: complete, running, killed, damaged and foreign ones.

#![allow(clippy::disallowed_methods, reason = "tests write the folders that they read")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use trainer_formats::Float;
use trainer_formats::run::{
    CSV_FILE, Extreme, Goal, JSON_LINES_FILE, Metric, Point, Points, Process, RUN_FILE, Run, RunFile, Span,
    Status, runs_in,
};

/// An empty folder, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trainer-formats-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const STARTED: &str = "2026-11-21T10:00:00Z";

fn run_file(status: Status) -> RunFile {
    let mut file = RunFile::new("fit", STARTED.to_owned());
    file.status = status;
    file
}

fn text_of(file: &RunFile) -> String {
    file.to_text().unwrap()
}

const HEADER: &str = "optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value\n";
const JSON: &str = concat!(
    r#"{"optimizer_steps":50,"epoch":0,"batches_seen":50,"samples_seen":3200,"time":1795305599.125,"#,
    r#""phase":"train","span":"steps","train/loss":0.5,"train/odd":"NaN","train/text":"a text","#,
    r#""train/weights":{"min":0.0,"limits":[1,2],"counts":[3]}}"#,
    "\n"
);

fn values(points: &[Point]) -> Vec<(u64, &str, f64)> {
    points.iter().map(|point| (point.optimizer_steps, &*point.name, point.value)).collect()
}

#[test]
fn run_files_of_this_and_earlier_versions_are_read() {
    let mut file = run_file(Status::Finished);
    let metric = Metric::new(Extreme::new(f64::NAN, 0, 5), Some(Goal::Maximize));
    file.metrics.insert("valid/accuracy".to_owned(), metric);
    file.process = Some(Process::current());
    let back = RunFile::parse(text_of(&file).as_bytes()).unwrap();
    assert_eq!(text_of(&back), text_of(&file));

    // A file without metrics and processes, as in early versions, and with a later field.
    let mut json: serde_json::Value = serde_json::from_str(&text_of(&file)).unwrap();
    let fields = json.as_object_mut().unwrap();
    fields.remove("metrics");
    fields.remove("process");
    fields.insert("later".to_owned(), 1.into());
    let old = RunFile::parse(json.to_string().as_bytes()).unwrap();
    assert_eq!((old.status, old.metrics.len(), old.process), (Status::Finished, 0, None));
}

/// `tests/runs` has one run folder for each form of the format. A change that adds a form must add
/// a folder.
#[test]
fn runs_of_earlier_versions_remain_readable() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runs");
    let found = runs_in(&folder).unwrap();
    let names: Vec<_> = found.iter().map(|found| found.path.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["first", "with-metrics"]);
    for run in found.into_iter().map(|found| found.run.unwrap()) {
        assert_eq!((run.status(), run.file().hyperparameters["lr"].as_f64()), (Status::Finished, Some(0.01)));
        let metrics = run.metrics().unwrap();
        let accuracy = &metrics["valid/accuracy"];
        assert_eq!(accuracy.max.map(|max| (max.value, max.epoch)), Some((Float(0.9721448467966574), 7)));
        assert_eq!(metrics["valid/loss"].goal, Some(Goal::Minimize));
    }
}

#[test]
fn files_that_do_not_belong_to_a_run_are_refused_with_the_file_and_the_reason() {
    let scratch = Scratch::new("refused");
    let newer = text_of(&run_file(Status::Finished)).replace("\"version\": 1", "\"version\": 2");
    for (name, text, why) in [
        ("damaged", "{", "run.json: damaged: EOF while parsing"),
        ("field", r#"{"format": "trainer run", "version": 1}"#, "run.json: damaged: missing field `status`"),
        ("foreign", "{}", "run.json: expected a file of format `trainer run`, found none"),
        (
            "other",
            r#"{"format": "other"}"#,
            "run.json: expected a file of format `trainer run`, found `other`",
        ),
        ("newer", &newer, "run.json: the file has version 2 of its format"),
    ] {
        scratch.write(&format!("{name}/{RUN_FILE}"), text);
        let error = Run::open(scratch.0.join(name)).unwrap_err().to_string();
        assert!(error.contains(&format!("{name}/{why}")), "{error}");
    }
    fs::create_dir(scratch.0.join("empty")).unwrap();
    let error = Run::open(scratch.0.join("empty")).unwrap_err().to_string();
    assert!(error.ends_with("empty: this folder holds no run: it has no `run.json`"), "{error}");
    let error = Run::open(scratch.0.join("absent")).unwrap_err();
    assert!(error.path.ends_with("absent"), "{error}");
    fs::create_dir_all(scratch.0.join("folder").join(RUN_FILE)).unwrap();
    assert!(Run::open(scratch.0.join("folder")).unwrap_err().to_string().contains("expected a file"));
}

#[test]
fn runs_are_found_in_numerical_order_even_one_folder_deeper() {
    let scratch = Scratch::new("found");
    let text = text_of(&run_file(Status::Finished));
    for name in ["0002", "0010", "9999", "10000", "named", "sweep/0001", "sweep/0002", "a/b/too-deep"] {
        scratch.write(&format!("{name}/{RUN_FILE}"), &text);
    }
    scratch.write("0003/run.json", "{");
    scratch.write("notes/readme.txt", "");
    scratch.write("0001/checkpoints/0001/other.json", "{}");
    let found = runs_in(&scratch.0).unwrap();
    let names: Vec<_> =
        found.iter().map(|found| found.path.strip_prefix(&scratch.0).unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["0002", "0003", "0010", "9999", "10000", "named", "sweep/0001", "sweep/0002"]);
    let damaged: Vec<_> =
        found.iter().filter(|found| found.run.is_err()).map(|found| found.path.clone()).collect();
    assert_eq!(damaged, [scratch.0.join("0003")]);
    // The folder of a run contains only that run.
    assert_eq!(runs_in(scratch.0.join("0002")).unwrap().len(), 1);
    assert!(runs_in(scratch.0.join("absent")).is_err());
}

#[test]
fn a_run_is_killed_if_its_process_no_longer_exists() {
    let scratch = Scratch::new("killed");
    let status = |change: fn(&mut Process), recorded| {
        let mut file = run_file(recorded);
        let mut process = Process::current();
        change(&mut process);
        file.process = Some(process);
        scratch.write(RUN_FILE, &text_of(&file));
        Run::open(&scratch.0).unwrap().status()
    };
    assert_eq!(status(|_| (), Status::Running), Status::Running);
    let another_host = |process: &mut Process| process.host = Some("another".to_owned());
    assert_eq!(status(another_host, Status::Running), Status::Running);
    if cfg!(target_os = "linux") {
        let reused = |process: &mut Process| process.started = process.started.map(|ticks| ticks + 1);
        assert_eq!(status(reused, Status::Running), Status::Killed);
        assert_eq!(status(reused, Status::Cancelled), Status::Cancelled);
    }
    scratch.write(RUN_FILE, &text_of(&run_file(Status::Running)));
    assert_eq!(Run::open(&scratch.0).unwrap().status(), Status::Running);
}

#[test]
fn the_duration_is_measured_from_the_start_to_the_end_or_until_now() {
    let scratch = Scratch::new("duration");
    let mut file = run_file(Status::Finished);
    file.ended = Some("2026-11-21T11:30:00Z".to_owned());
    scratch.write(RUN_FILE, &text_of(&file));
    let run = Run::open(&scratch.0).unwrap();
    let now = run.started().unwrap() + Duration::from_secs(60);
    assert_eq!(run.started().unwrap().duration_since(UNIX_EPOCH).unwrap().as_secs(), 1_795_255_200);
    assert_eq!(run.duration(now), Some(Duration::from_secs(5400)));
    scratch.write(RUN_FILE, &text_of(&run_file(Status::Running)));
    assert_eq!(Run::open(&scratch.0).unwrap().duration(now), Some(Duration::from_secs(60)));
}

#[test]
fn metrics_of_a_run_that_has_not_ended_are_read_from_its_logger() {
    let scratch = Scratch::new("metrics");
    scratch.write(RUN_FILE, &text_of(&run_file(Status::Running)));
    let run = Run::open(&scratch.0).unwrap();
    assert!(run.metrics().unwrap().is_empty());
    let csv = format!(
        "{HEADER}10,0,10,320,1.5,train,steps,train/loss,9\n\
         20,0,20,640,2.5,train,pass,train/loss,0.5\n20,0,20,640,2.5,valid,pass,valid/accuracy,0.9\n\
         40,1,40,1280,3.5,train,pass,train/loss,0.75\n"
    );
    scratch.write(CSV_FILE, &csv);
    let metrics = run.metrics().unwrap();
    let loss = &metrics["train/loss"];
    assert_eq!((loss.last, loss.best()), (Float(0.75), Some(Extreme::new(0.5, 0, 20))));
    assert_eq!((metrics["valid/accuracy"].last, metrics["valid/accuracy"].best()), (Float(0.9), None));

    // After the run has ended, its metrics are read from `run.json`.
    let mut file = run_file(Status::Cancelled);
    file.metrics.insert("train/loss".to_owned(), Metric::new(Extreme::new(0.25, 2, 60), None));
    scratch.write(RUN_FILE, &text_of(&file));
    assert_eq!(Run::open(&scratch.0).unwrap().metrics().unwrap()["train/loss"].last, Float(0.25));
}

#[test]
fn both_loggers_yield_the_same_points() {
    let scratch = Scratch::new("loggers");
    let csv = format!(
        "{HEADER}50,0,50,3200,1795305599.125,train,steps,train/loss,0.5\n\
         50,0,50,3200,1795305599.125,train,steps,train/odd,NaN\n"
    );
    let mut points = [(CSV_FILE, &*csv), (JSON_LINES_FILE, JSON)]
        .map(|(name, text)| Points::open(scratch.write(name, text)).read().unwrap().points);
    for points in &mut points {
        assert!(points[1].value.is_nan());
        points[1].value = 0.0;
    }
    assert_eq!(points[0], points[1]);
    let point = &points[0][0];
    assert_eq!((point.batches_seen, point.samples_seen, point.time), (50, 3200, 1_795_305_599.125));
    assert_eq!(
        (&*point.phase, point.span, &*point.name, point.value),
        ("train", Span::Steps, "train/loss", 0.5)
    );
    assert_eq!(Points::in_folder(&scratch.0).unwrap().unwrap().path(), scratch.0.join(CSV_FILE));
}

#[test]
fn a_growing_file_is_followed_and_a_resume_is_detected() {
    let scratch = Scratch::new("followed");
    let row =
        |step: u64, name: &str, value: f64| format!("{step},0,{step},0,{step}.5,train,pass,{name},{value}\n");
    let path = scratch.write(CSV_FILE, &HEADER[..20]);
    let append = |text: &str| {
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
    };
    let mut points = Points::open(&path);
    assert!(points.read().unwrap().points.is_empty());
    append(&HEADER[20..]);
    append(&row(1, "a", 0.5));
    let second = row(2, "\"with \"\"quotes\"\", commas\nand lines\"", 0.25);
    append(&second[..second.len() - 4]);
    assert_eq!(values(&points.read().unwrap().points), [(1, "a", 0.5)]);
    append(&second[second.len() - 4..]);
    let update = points.read().unwrap();
    let expected = [(2, "with \"quotes\", commas\nand lines", 0.25)];
    assert_eq!((update.is_restart, &*values(&update.points)), (false, &expected[..]));
    assert_eq!(points.read().unwrap().points, []);

    // A resume removes the rows since its checkpoint, and writes more than there were.
    let resumed =
        format!("{HEADER}{}{}{}", row(1, "a", 0.5), row(2, "b", 0.125), row(3, "b", 0.0625).repeat(9));
    fs::write(&path, resumed).unwrap();
    let update = points.read().unwrap();
    assert_eq!((update.is_restart, update.points.len()), (true, 11));
    append(&row(4, "b", 1.0));
    assert_eq!(values(&points.read().unwrap().points), [(4, "b", 1.0)]);
    fs::write(&path, HEADER).unwrap();
    let update = points.read().unwrap();
    assert_eq!((update.is_restart, update.points.len()), (true, 0));
}

#[test]
fn invalid_lines_are_errors_with_their_line_number() {
    let scratch = Scratch::new("lines");
    let good = "1,0,1,0,1,train,pass,a,1\n";
    for (name, text, why) in [
        ("a.csv", "step,value\n".to_owned(), "a.csv: line 1: expected the header `optimizer_steps,epoch"),
        ("b.csv", format!("{HEADER}{good}1,0,1\n"), "b.csv: line 3: expected a number, found ``"),
        ("c.csv", format!("{HEADER}{}", good.replace("pass", "x")), "c.csv: line 2: unknown span `x`"),
        ("d.jsonl", format!("{JSON}{{}}\n"), "d.jsonl: line 2: `batches_seen` is missing"),
        ("e.jsonl", "[]\n".to_owned(), "e.jsonl: line 1: invalid type: sequence"),
        ("f.jsonl", "\u{0}\u{0}\n".to_owned(), "f.jsonl: line 1: "),
    ] {
        let error = Points::open(scratch.write(name, &text)).read().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(
        Points::open(Path::new("absent.csv")).read().unwrap_err().to_string().starts_with("absent.csv: ")
    );
}
