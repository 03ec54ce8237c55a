//! [`Program`]: the program of a run, which is started again to repeat a part of the run. It is
//! always named by the person who types the command, never by a file of the run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::output::{Failure, quoted};

/// The maximum number of lines shown from a program's error output.
const SHOWN: usize = 12;

/// The program of a run.
pub(crate) struct Program {
    /// The folder of the run, as a path that does not depend on the working directory.
    run: PathBuf,
    words: Vec<String>,
}

impl Program {
    /// Returns the program that wrote the run in this folder.
    pub(crate) fn of(run: &Path, words: Vec<String>) -> Result<Self, Failure> {
        let run =
            fs::canonicalize(run).map_err(|error| Failure::new(format!("{}: {error}", run.display())))?;
        Ok(Program { run, words })
    }

    /// Starts the program to repeat `part` of the run, such as `28..35`, and waits until it exits.
    /// The program writes tapes into the folder `tapes`.
    pub(crate) fn repeat(&self, part: &str, tapes: &Path) -> Result<Output, Failure> {
        let Program { run, words } = self;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        for variable in ["TRAINER_TAPE", "TRAINER_RUN_FOLDER"] {
            command.env_remove(variable);
        }
        command.env("TRAINER_REPLAY", format!("{}@{part}", run.display()));
        command.env("TRAINER_REPLAY_TAPE", tapes);
        command.output().map_err(|error| Failure::new(format!("{} cannot be started: {error}", self.shown())))
    }

    /// Returns the command line as text.
    pub(crate) fn shown(&self) -> String {
        match &self.words[..] {
            [shell, option, command] if (&**shell, &**option) == ("sh", "-c") => {
                format!("`{}`", command.trim_start_matches("exec "))
            }
            words => format!("`{}`", quoted(words)),
        }
    }
}

/// Returns the end of a program's output to standard error.
pub(crate) fn errors(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}
