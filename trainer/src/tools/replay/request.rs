//! Replays that are requested by environment variables.

use std::ops::Range;
use std::path::{Path, PathBuf};

use trainer_formats::tape::{MAGIC, file_name};

use super::end::EndOfReplay;
use super::source::Source;
use crate::Tape;
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::io::files::create;
use crate::io::terminal::print_line;
use crate::training::Trainer;
use crate::training::replay::REQUEST;
use crate::training::task::Task;

/// The environment variable with the folder for the tape of a requested replay.
const TAPE_FOLDER: &str = "TRAINER_REPLAY_TAPE";

/// A replay that the environment requests.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    run: PathBuf,
    batches: Range<u64>,
}

impl Request {
    /// Parses `runs/0007@4170..4175`.
    fn parse(text: &str) -> Result<Self, String> {
        let parsed = text.rsplit_once('@').and_then(|(run, batches)| {
            let (start, end) = batches.split_once("..")?;
            Some(Request { run: run.into(), batches: start.parse().ok()?..end.parse().ok()? })
        });
        parsed.filter(|request| !request.run.as_os_str().is_empty()).ok_or_else(|| {
            format!(
                "`{REQUEST}={text}`: expected the folder of a run and training batches, as in `runs/0007@4170..4175`"
            )
        })
    }
}

/// # Replays that the environment requests
impl<T: Task> Trainer<T> {
    /// [Replays](Trainer::replay) what the environment variable `TRAINER_REPLAY` requests, such as
    /// `runs/0007@4170..4175`, and prints a line about the result. Returns whether the variable is
    /// set.
    ///
    /// Call this in a program that trains, so that `trainer diff --replay`, which starts the
    /// program with this variable, can repeat a part of a run. To repeat one in code, as with
    /// another hook, call [`replay`](Trainer::replay). While the variable is set, an entry point
    /// returns an error if the program has not called this method first, so that the program does
    /// not train by mistake.
    ///
    /// ```no_run
    /// # use trainer::prelude::*;
    /// # fn train(task: impl Task<Batch = Tensor>, train: &mut InMemory<Tensor>) -> Result<()> {
    /// let mut trainer = Trainer::builder(task).optimizer(AdamW::new(1e-3)).run_folder("runs/first").build()?;
    /// if trainer.replay_requested(train, None)? {
    ///     return Ok(());
    /// }
    /// trainer.fit(train, None)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With `TRAINER_REPLAY_TAPE=folder`, each rank writes a [full tape](crate::Tape::full) of the
    /// batches into this folder, and the batches are not compared with the tape of the run.
    ///
    /// # Errors
    ///
    /// Returns an error if the value of the variable is invalid, or if [`replay`](Trainer::replay)
    /// returns an error.
    pub fn replay_requested(
        &mut self,
        train: &mut dyn Loader<T::Batch>,
        valid: Option<&mut dyn Loader<T::Batch>>,
    ) -> Result<bool> {
        let Ok(text) = std::env::var(REQUEST) else { return Ok(false) };
        let Request { run, batches } = Request::parse(&text).map_err(Error::usage)?;
        let (replayed, outcome) = match std::env::var_os(TAPE_FOLDER) {
            None => {
                let replayed = self.replay(train, valid, &run, batches.clone())?;
                let outcome = match replayed.compared {
                    None => "there is no tape to compare it with".to_owned(),
                    Some(0) => {
                        "the tape of the run has no entries for these batches, so nothing was compared"
                            .to_owned()
                    }
                    Some(changes) => format!("it is equal to the run in all {changes} changes on its tape"),
                };
                (replayed, outcome)
            }
            Some(folder) => {
                let path = Path::new(&folder).join(file_name(self.run.rank()));
                let source = Source::find(self.run.reports(), &run, &batches)?;
                let tape = Tape::full().batches(batches.clone());
                let end = EndOfReplay { until: batches.end, fork: None };
                let (replayed, records) = self.repeat(train, valid, &source, end, Some(tape))?;
                self.check_reached(&batches)?;
                create(&path)?.write(&[MAGIC, &records].concat())?;
                (replayed, format!("its tape is {}", path.display()))
            }
        };
        if self.is_main() {
            let from =
                replayed.from.map_or_else(|| "the start".to_owned(), |path| path.display().to_string());
            let Range { start, end } = batches;
            print_line(format!(
                "replayed the training batches {start}..{end} of {} from {from}: {outcome}",
                run.display()
            ));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_or_refused() {
        for (text, run, batches) in
            [("runs/7@3..9", "runs/7", 3..9), ("a@b@0..1", "a@b", 0..1), ("/x y/@10..20", "/x y/", 10..20)]
        {
            assert_eq!(Request::parse(text), Ok(Request { run: run.into(), batches }), "{text}");
        }
        for text in [
            "",
            "runs/7",
            "runs/7@3",
            "runs/7@3..",
            "runs/7@..3",
            "runs/7@a..b",
            "@1..2",
            "runs/7@-1..2",
            "runs/7@stretch:3",
        ] {
            assert!(Request::parse(text).unwrap_err().ends_with("`runs/0007@4170..4175`"), "{text}");
        }
    }
}
