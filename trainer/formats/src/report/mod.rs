//! The report about one or more runs: a single HTML file. It needs no network, and uses JavaScript
//! only for smoothing and for showing the values at the pointer.
//!
//! ```no_run
//! use std::time::SystemTime;
//!
//! use trainer_formats::report::Report;
//! use trainer_formats::run::Run;
//!
//! let mut report = Report::new();
//! report.add(&Run::open("runs/0001")?);
//! std::fs::write("report.html", report.html(SystemTime::now()))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same runs always yield the same report. A line of the report lists what the runs did not
//! record.

mod curves;
mod escape;
mod matrix;
mod media;
mod page;
mod plot;
mod sections;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

pub use media::base64;

use crate::run::{Live, Metrics, Point, Run, RunFile, Status};
use media::Media;

/// The name of the file that the logger `Report` writes to the folder of a run.
pub const REPORT_FILE: &str = "report.html";

/// The maximum number of runs in a report.
pub const MAX_RUNS: usize = 16;

/// The start of every report. Programs recognize reports by this text.
const START: &str = "<!doctype html>\n<meta name=\"generator\" content=\"trainer report\">\n";

/// Returns whether a file that starts with these bytes is a report.
#[must_use]
pub fn is_report(start: &[u8]) -> bool {
    start.starts_with(START.as_bytes())
}

/// The content of a report.
#[derive(Clone, Debug, Default)]
pub struct Report {
    runs: Vec<Content>,
    notes: Vec<String>,
}

/// What a report shows about a run.
#[derive(Clone, Debug)]
struct Content {
    /// The last parts of the path of the run folder, which distinguish the run from the others.
    name: String,
    /// All parts of the path.
    path: Vec<String>,
    file: RunFile,
    status: Status,
    started: Option<SystemTime>,
    ended: Option<SystemTime>,
    metrics: Metrics,
    points: Vec<Point>,
    media: Media,
    warnings: Vec<String>,
    /// Descriptions of what could not be read, and why.
    problems: Vec<String>,
}

impl Content {
    /// Returns the time from the start of the run to its end, or to `now` while it is running.
    fn duration(&self, now: SystemTime) -> Option<Duration> {
        let end = if self.status == Status::Running { now } else { self.ended? };
        end.duration_since(self.started?).ok()
    }

    fn read(run: &Run) -> Self {
        let mut problems = Vec::new();
        let points = match run.points() {
            Ok(Some(mut points)) => points.read().map(|update| update.points),
            Ok(None) => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let points = points.unwrap_or_else(|error| {
            problems.push(format!("the curves are missing: {error}"));
            Vec::new()
        });
        let media = Media::read(run.path()).unwrap_or_else(|error| {
            problems.push(format!("text and images are missing: {error}"));
            Media::default()
        });
        let mut warnings = run.file().warnings.clone();
        if matches!(run.status(), Status::Running | Status::Killed) {
            // `run.json` contains the warnings of an entry point only after it has ended.
            match Live::in_folder(run.path()) {
                Ok(live) => {
                    let new = live.into_iter().flat_map(|live| live.warnings);
                    warnings.extend(new.filter(|warning| !run.file().warnings.contains(warning)));
                }
                Err(error) => problems.push(format!("warnings may be missing: {error}")),
            }
        }
        Content {
            name: String::new(),
            path: path_of(run),
            warnings,
            file: run.file().clone(),
            status: run.status(),
            started: run.started(),
            ended: run.ended(),
            metrics: run.metrics_with(&points),
            points,
            media,
            problems,
        }
    }
}

/// Returns the components of the path of a run's folder.
fn path_of(run: &Run) -> Vec<String> {
    let path = run.path().canonicalize().unwrap_or_else(|_| run.path().to_owned());
    path.iter().map(|part| part.to_string_lossy().into_owned()).collect()
}

/// Returns the last components of a path: `runs/0001`.
fn last_parts(path: &[String], count: usize) -> String {
    path[path.len().saturating_sub(count)..].join("/")
}

impl Report {
    /// Creates a report without runs.
    #[must_use]
    pub fn new() -> Self {
        Report::default()
    }

    /// Adds what a run has recorded. If something cannot be read, the report says so. Runs after
    /// the first [`MAX_RUNS`] are left out, with a note in the report. A run that was already added
    /// is not added again.
    pub fn add(&mut self, run: &Run) {
        if self.runs.len() == MAX_RUNS {
            let name = last_parts(&path_of(run), 2);
            self.note(format!("{name} is left out: a report shows at most {MAX_RUNS} runs"));
            return;
        }
        let new = Content::read(run);
        if !self.runs.iter().any(|own| own.path == new.path) {
            self.runs.push(new);
            self.name_runs();
        }
    }

    /// Names the runs by the fewest path components, at least two, that distinguish them.
    fn name_runs(&mut self) {
        for count in 2.. {
            let names: BTreeSet<String> = self.runs.iter().map(|run| last_parts(&run.path, count)).collect();
            if names.len() == self.runs.len() {
                self.runs.iter_mut().for_each(|run| run.name = last_parts(&run.path, count));
                return;
            }
        }
    }

    /// Adds a note at the top of the report, for example why a run could not be read.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Returns the number of runs in the report.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Returns the notes at the top of the report: what is left out or cannot be read, and why.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let of_runs = self.runs.iter().flat_map(|run| {
            run.problems.iter().map(|problem| {
                if self.runs.len() > 1 { format!("{}: {problem}", run.name) } else { problem.clone() }
            })
        });
        self.notes.iter().cloned().chain(of_runs).collect()
    }

    /// Returns the content of the HTML file. `now` is taken as the end of a run that is in
    /// progress.
    #[must_use]
    pub fn html(&self, now: SystemTime) -> String {
        page::page(self, now)
    }
}
