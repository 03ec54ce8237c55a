//! [`Source`]: reads the folder of a run while the run writes to it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use trainer_formats::run::{Error, LIVE_FILE, Live, Points, RUN_FILE, Run, Status};
use trainer_tui::State;

/// The identity of a file: its inode number, its length and its modification time.
type Stamp = (u64, u64, i64, i64);

/// Updates a [`State`] from the folder of a run. Unchanged files are not read again, and only the
/// new lines of a logger's file are read.
pub(crate) struct Source {
    folder: PathBuf,
    state: State,
    run: Option<(Stamp, Run)>,
    live: Option<Stamp>,
    points: Option<Points>,
}

impl Source {
    pub(crate) fn new(folder: PathBuf) -> Self {
        let state = State::new(folder.display().to_string());
        Source { folder, state, run: None, live: None, points: None }
    }

    /// Returns what is known about the run.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the run, if its `run.json` could be read.
    pub(crate) fn run(&self) -> Option<&Run> {
        self.run.as_ref().map(|(_, run)| run)
    }

    /// Reads everything that has changed.
    pub(crate) fn read(&mut self) {
        let results = [self.read_run(), self.read_live(), self.read_points()];
        let error = results.into_iter().find_map(Result::err);
        self.state.set_problem(error.map(|error| error.to_string()));
    }

    fn read_run(&mut self) -> Result<(), Error> {
        let stamp = stamp(&self.folder.join(RUN_FILE));
        let is_current = self.run.as_ref().is_some_and(|(known, run)| {
            let process = run.file().process.as_ref().filter(|_| run.status() == Status::Running);
            Some(*known) == stamp && process.is_none_or(|process| process.exists() != Some(false))
        });
        if !is_current {
            let run = Run::open(&self.folder)?;
            self.state.set_run(run.file(), run.status());
            self.run = Some((stamp.unwrap_or_default(), run));
        }
        Ok(())
    }

    fn read_live(&mut self) -> Result<(), Error> {
        let stamp = stamp(&self.folder.join(LIVE_FILE));
        if stamp != self.live {
            if let Some(live) = Live::in_folder(&self.folder)? {
                self.state.set_live(live);
            }
            self.live = stamp;
        }
        Ok(())
    }

    fn read_points(&mut self) -> Result<(), Error> {
        if self.points.is_none() {
            self.points = Points::in_folder(&self.folder)?;
        }
        let Some(points) = &mut self.points else { return Ok(()) };
        let update = match points.read() {
            Ok(update) => update,
            Err(error) => {
                // The file may have been moved, or replaced by a different logger's file.
                self.points = None;
                self.state.restart();
                return Err(error);
            }
        };
        if update.is_restart {
            self.state.restart();
        }
        for point in update.points {
            self.state.add(&point.name, point.span, point.optimizer_steps, point.value);
        }
        Ok(())
    }
}

/// Returns the identity of a file; `None` if the file does not exist.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test has files of its own")]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use trainer_formats::run::RunFile;

    use super::*;

    const HEADER: &str = "optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value\n";

    fn row(step: u64, value: f64) -> String {
        format!("{step},0,{step},{step},1.0,train,steps,train/loss,{value}\n")
    }

    #[test]
    fn a_resumed_run_is_shown_as_one_curve() {
        let folder = std::env::temp_dir().join(format!("trainer-watch-source-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = RunFile::new("fit", "2026-11-21T10:00:00Z".to_owned());
        fs::write(folder.join(RUN_FILE), file.to_text().unwrap()).unwrap();
        let mut source = Source::new(folder.clone());
        source.read();
        assert_eq!((source.state().problem(), source.state().names().count()), (None, 0));

        let values = folder.join("values.csv");
        let rows = |steps: std::ops::RangeInclusive<u64>, factor: f64| {
            steps.map(|step| row(step, step as f64 * factor)).collect::<String>()
        };
        fs::write(&values, format!("{HEADER}{}", rows(1..=3, 1.0))).unwrap();
        source.read();
        let mut end = OpenOptions::new().append(true).open(&values).unwrap();
        end.write_all(rows(4..=6, 1.0).as_bytes()).unwrap();
        source.read();
        let curve = |source: &Source| source.state().curve("train/loss").unwrap().steps().to_vec();
        assert_eq!(curve(&source).len(), 6);

        // The resume removes the rows since the checkpoint at step 3, and continues.
        fs::write(&values, format!("{HEADER}{}{}", rows(1..=3, 1.0), rows(4..=5, 10.0))).unwrap();
        source.read();
        let expected = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 40.0), (5.0, 50.0)];
        assert_eq!(curve(&source), expected);

        // A damaged file is reported, and read again once it is whole.
        fs::write(&values, "no header\n").unwrap();
        source.read();
        assert!(source.state().problem().is_some_and(|problem| problem.contains("values.csv")));
        fs::write(&values, format!("{HEADER}{}", rows(1..=2, 1.0))).unwrap();
        source.read();
        assert_eq!((source.state().problem(), curve(&source).len()), (None, 2));
        fs::remove_dir_all(&folder).unwrap();
    }
}
