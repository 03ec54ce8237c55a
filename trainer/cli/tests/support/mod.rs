//! Folders with runs for tests, and helpers that run the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};
use trainer_formats::run::{Extreme, Goal, Metric, RUN_FILE, RunFile, Status, format_time};

/// An empty folder, removed when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trainer-cli-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes the folder of a run.
    pub(crate) fn run(&self, path: &str, file: &RunFile) {
        self.write(&format!("{path}/{RUN_FILE}"), &file.to_text().unwrap());
    }

    /// Returns the command with these arguments in this folder, for a terminal of this width.
    pub(crate) fn command(&self, width: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        command
            .current_dir(&self.0)
            .args(arguments)
            .env("COLUMNS", width.to_string())
            .env_remove("CLICOLOR_FORCE");
        command
    }

    /// Returns the command's standard output. The command must succeed and change no files.
    pub(crate) fn print(&self, width: usize, arguments: &[&str]) -> String {
        let before = tree(&self.0);
        let output = self.command(width, arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(tree(&self.0), before, "the command changes nothing");
        text(&output.stdout)
    }

    /// Returns the command's standard error. The command must fail with status 2.
    pub(crate) fn fail(&self, arguments: &[&str]) -> String {
        let output = self.command(80, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        text(&output.stderr)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Parses each line as JSON, and looks for its fields in the guide.
pub(crate) fn objects(text: &str) -> Vec<Json> {
    let objects: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let page = include_str!("../../../guide/runs.md");
    let (_, table) = page.split_once("## For scripts").unwrap();
    let of_run_file = serde_json::to_value(run_file(0, 1.0, 1, Status::Finished)).unwrap();
    for field in objects.iter().flat_map(|object| object.as_object().unwrap().keys()) {
        let is_documented = table.contains(&format!("`{field}`")) || table.contains(&format!("\"{field}\""));
        assert!(is_documented || of_run_file.get(field).is_some(), "guide/runs.md lacks `{field}`");
    }
    objects
}

/// Returns everything below a folder, with the contents of the files.
fn tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// Returns a run that began `age` seconds ago and took 200 seconds.
pub(crate) fn run_file(age: u64, lr: f64, width: u64, status: Status) -> RunFile {
    let started = SystemTime::now() - Duration::from_secs(age);
    let mut file = RunFile::new("fit", format_time(started));
    file.status = status;
    file.ended = (status != Status::Running).then(|| format_time(started + Duration::from_secs(200)));
    file.trainer = "0.1.0".to_owned();
    file.libtorch = "2.13.0".to_owned();
    file.rustc = "rustc 1.95.0".to_owned();
    file.git_commit = Some("1234567890123456789012345678901234567890".to_owned());
    file.device = "Cpu".to_owned();
    file.threads = 1;
    file.seed = Some(1);
    let command = ["my-program", "--lr", &lr.to_string(), "--width", &width.to_string()];
    file.command_line = Some(command.map(str::to_owned).to_vec());
    let settings = [
        ("lr", json!(lr)),
        ("width", json!(width)),
        ("epochs", json!(12.0)),
        ("activation", json!("relu")),
        ("EarlyStopping.patience", json!(4.0)),
    ];
    file.hyperparameters = settings.map(|(name, value)| (name.to_owned(), value)).into();
    let data =
        [("train.rows", json!(1440.0)), ("train.batch_size", json!(32.0)), ("train.workers", json!(0.0))];
    file.data = data.map(|(name, value)| (name.to_owned(), value)).into();
    let hooks = [
        "my_program::gradient_norm at before_opt_step",
        "trainer::metrics::MetricHook(accuracy) at after_step",
        "trainer::hooks::LrSchedule at before_opt_step",
        "trainer::loggers::Csv at after_record",
    ];
    file.hooks = hooks.map(str::to_owned).to_vec();
    file.process = Some(serde_json::from_value(json!({ "id": 4711, "host": "host" })).unwrap());
    file
}

/// Adds a metric with these values, one for each epoch.
pub(crate) fn measure(file: &mut RunFile, name: &str, goal: Option<Goal>, values: &[f64]) {
    let mut values = values
        .iter()
        .enumerate()
        .map(|(epoch, value)| Extreme::new(*value, epoch as u64, (epoch as u64 + 1) * 45));
    let mut metric = Metric::new(values.next().unwrap(), goal);
    values.for_each(|value| metric.add(value));
    file.metrics.insert(name.to_owned(), metric);
}
