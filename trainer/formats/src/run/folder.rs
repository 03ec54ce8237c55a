//! [`Run`]: the folder of a run, and [`runs_in`], which finds the runs in a folder.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::file::{MAX_BYTES, NotARun, RUN_FILE, RunFile, Status};
use super::metric::{Metrics, metrics_of};
use super::points::{Point, Points};
use super::time::parse_time;
use trainer_files::{Error, entries, in_file, metadata, name_of, read_small};

/// A snapshot of a run folder at the time it was opened. Reading a folder never changes it.
#[derive(Clone, Debug)]
pub struct Run {
    path: PathBuf,
    file: RunFile,
    status: Status,
}

impl Run {
    /// Reads the `run.json` in a folder.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder holds no run, or if its `run.json` is damaged or was written
    /// by a different program.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = folder.into();
        let file = path.join(RUN_FILE);
        let bytes = read_small(&file, MAX_BYTES).map_err(|error| match error.is_missing() {
            true if path.is_dir() => in_file(&path, "this folder holds no run: it has no `run.json`"),
            true => in_file(&path, error.source),
            false => error,
        })?;
        let content = RunFile::parse(&bytes).map_err(|error| match error {
            NotARun::Damaged(why) => in_file(&file, format!("damaged: {why}")),
            other => in_file(&file, other.to_string()),
        })?;
        let exists = || content.process.as_ref().and_then(|process| process.exists());
        let status = match content.status {
            Status::Running if exists() == Some(false) => Status::Killed,
            recorded => recorded,
        };
        Ok(Run { path, file: content, status })
    }

    /// Returns the run in this folder, given the content of its `run.json`.
    #[must_use]
    pub fn with_file(folder: impl Into<PathBuf>, file: RunFile) -> Self {
        Run { path: folder.into(), status: file.status, file }
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of `run.json`.
    #[must_use]
    pub fn file(&self) -> &RunFile {
        &self.file
    }

    /// Returns the status. A run is [`Killed`](Status::Killed) if its process no longer exists on
    /// this host. A run on a different host, or written by an earlier version of the trainer,
    /// remains [`Running`](Status::Running).
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns when the run began.
    #[must_use]
    pub fn started(&self) -> Option<SystemTime> {
        parse_time(&self.file.started)
    }

    /// Returns when the run ended. For a killed run, whose end is not known, this is the time of
    /// the last change in its folder.
    #[must_use]
    pub fn ended(&self) -> Option<SystemTime> {
        match self.status {
            Status::Running => None,
            Status::Killed => self.last_change(),
            _ => parse_time(self.file.ended.as_deref()?),
        }
    }

    /// Returns the time from the start of the run to its end, or to `now` while it is running. This
    /// includes the pauses before resumes.
    #[must_use]
    pub fn duration(&self, now: SystemTime) -> Option<Duration> {
        let end = if self.status == Status::Running { now } else { self.ended()? };
        end.duration_since(self.started()?).ok()
    }

    /// Returns when a file in the folder was last changed.
    fn last_change(&self) -> Option<SystemTime> {
        let entries = entries(&self.path).ok()?;
        entries.iter().filter_map(|entry| metadata(entry).ok()??.modified().ok()).max()
    }

    /// Opens the file of a logger of the run, as described at [`Points::in_folder`]. Returns `None`
    /// if the run has no such file.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be determined whether such a file exists.
    pub fn points(&self) -> Result<Option<Points>, Error> {
        Points::in_folder(&self.path)
    }

    /// Returns the metrics of the run, by name. They are read from `run.json` if the run has ended.
    /// While it is running, or if its process was killed, they are read from the file of a logger.
    ///
    /// # Errors
    ///
    /// Returns an error if the file of the logger cannot be read.
    pub fn metrics(&self) -> Result<Metrics, Error> {
        if self.has_all_metrics() {
            return Ok(self.file.metrics.clone());
        }
        let points = self.points()?.map(|mut points| points.read()).transpose()?;
        Ok(self.metrics_with(&points.map(|update| update.points).unwrap_or_default()))
    }

    /// Whether `run.json` has the metrics of the whole run.
    fn has_all_metrics(&self) -> bool {
        !matches!(self.status, Status::Running | Status::Killed) && !self.file.metrics.is_empty()
    }

    /// Returns the metrics of the run, like [`metrics`](Run::metrics), given the points of its
    /// logger.
    pub(crate) fn metrics_with(&self, points: &[Point]) -> Metrics {
        if self.has_all_metrics() {
            return self.file.metrics.clone();
        }
        let mut metrics = metrics_of(points);
        for (name, earlier) in &self.file.metrics {
            match metrics.get_mut(name) {
                Some(metric) => metric.goal = metric.goal.or(earlier.goal),
                None => drop(metrics.insert(name.clone(), earlier.clone())),
            }
        }
        metrics
    }
}

/// A folder that [`runs_in`] found.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// The path of the folder.
    pub path: PathBuf,
    /// The run, or the reason why it cannot be read.
    pub run: Result<Run, Error>,
}

/// Finds the runs in a folder. If the folder itself is a run, returns only that run. Otherwise,
/// returns the runs in the folder and one level below, such as the trials of a sweep. Runs with an
/// unreadable `run.json`, and folders that cannot be read, are included with the reason. Numbered
/// folders are in numeric order.
///
/// # Errors
///
/// Returns an error if the folder cannot be read.
pub fn runs_in(folder: impl AsRef<Path>) -> Result<Vec<Found>, Error> {
    let mut found = Vec::new();
    find(folder.as_ref(), 2, &mut found)?;
    Ok(found)
}

fn find(folder: &Path, levels: u32, found: &mut Vec<Found>) -> Result<(), Error> {
    if metadata(&folder.join(RUN_FILE)).is_ok_and(|found| found.is_some()) {
        found.push(Found { path: folder.to_owned(), run: Run::open(folder) });
        return Ok(());
    }
    if levels == 0 {
        return Ok(());
    }
    let mut folders = entries(folder)?;
    folders.retain(|path| path.is_dir()); // A folder of runs may have links to others.
    folders.sort_by_cached_key(|path| (name_of(path).parse().unwrap_or(u64::MAX), path.clone()));
    for path in folders {
        match find(&path, levels - 1, found) {
            Err(error) if error.is_missing() => {} // removed in the meantime
            Err(error) => found.push(Found { path, run: Err(error) }),
            Ok(()) => {}
        }
    }
    Ok(())
}
