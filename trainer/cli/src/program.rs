//! [`Program`]: the program of a run, which is started again to repeat a part of the run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use trainer_formats::run::Run;
use trainer_formats::tape;

use crate::output::Failure;

/// The maximum number of lines shown from a program's error output.
const SHOWN: usize = 12;

/// The program of a run.
pub(crate) struct Program {
    /// The folder of the run, as a path that does not depend on the working directory.
    run: PathBuf,
    words: Vec<String>,
    folder: Option<PathBuf>,
}

impl Program {
    /// Returns the program that wrote the run in this folder: the command line in `run.json`, or
    /// `given` if that is not empty.
    pub(crate) fn of(run: &Path, given: &[String]) -> Result<Self, Failure> {
        let path =
            fs::canonicalize(run).map_err(|error| Failure::new(format!("{}: {error}", run.display())))?;
        if !given.is_empty() {
            return Ok(Program { run: path, words: given.to_vec(), folder: None });
        }
        let file = Run::open(&path)?.file().clone();
        let Some(words) = file.command_line.filter(|words| !words.is_empty()) else {
            return Err(Failure::new(format!(
                "{}: run.json has no command line, so the program of the run must be given: add `-- PROGRAM ARGUMENTS`",
                run.display()
            )));
        };
        if path.join(tape::file_name(1)).is_file() {
            return Err(Failure::new(format!(
                "{}: the run has several ranks, so its launcher must be given: add `-- torchrun … PROGRAM ARGUMENTS`",
                run.display()
            )));
        }
        Ok(Program { run: path, words, folder: file.working_folder.map(PathBuf::from) })
    }

    /// Starts the program to repeat `part` of the run, such as `28..35`, and waits until it exits.
    /// If `tapes` is given, the program writes tapes into that folder.
    pub(crate) fn repeat(&self, part: &str, tapes: Option<&Path>) -> Result<Output, Failure> {
        let Program { run, words, folder } = self;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command.env("TRAINER_REPLAY", format!("{}@{part}", run.display()));
        for variable in ["TRAINER_TAPE", "TRAINER_RUN_FOLDER", "TRAINER_REPLAY_TAPE"] {
            command.env_remove(variable);
        }
        command.envs(tapes.map(|tapes| ("TRAINER_REPLAY_TAPE", tapes)));
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        command.output().map_err(|error| Failure::new(format!("{} cannot be started: {error}", self.shown())))
    }

    /// Returns the command line as text.
    pub(crate) fn shown(&self) -> String {
        match &self.words[..] {
            [shell, option, command] if (&**shell, &**option) == ("sh", "-c") => {
                format!("`{}`", command.trim_start_matches("exec "))
            }
            words => format!("`{}`", words.join(" ")),
        }
    }
}

/// Returns the end of a program's output to standard error.
pub(crate) fn errors(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}
