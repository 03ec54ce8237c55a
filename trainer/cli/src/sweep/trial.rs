//! [`Trial`]: one run of the program of a sweep, in its own process group.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use serde_json::{Map, Value as Json};
use trainer_files::{Links, append, in_file, metadata, open};
use trainer_formats::run::{RUN_FILE, Run, Status, text_of_setting};
use trainer_formats::sweep::SweepFile;

use super::file::Plan;
use crate::output::Failure;

/// The signal that Ctrl-C sends.
pub(crate) const INTERRUPT: i32 = 2;

/// The number of bytes at the end of a log in which its last line is searched.
const LOG_END: u64 = 1 << 16;

/// How the program of a trial ended.
pub(crate) type Ended = io::Result<ExitStatus>;

/// A trial: its values, its run folder and its command.
pub(crate) struct Trial {
    values: Vec<(String, Json)>,
    folder: PathBuf,
    program: String,
    arguments: Vec<String>,
}

impl Trial {
    pub(crate) fn new(plan: &Plan, program: &[String], number: usize, values: &[(String, Json)]) -> Self {
        let mut arguments = program[1..].to_vec();
        for (name, value) in values {
            let value = text_of_setting(value);
            let filled = |word: &String| word.replace("{name}", name).replace("{value}", &value);
            arguments.extend(plan.arguments.iter().map(filled));
        }
        Trial {
            values: values.to_vec(),
            folder: plan.folder.join(SweepFile::folder_name(number)),
            program: program[0].clone(),
            arguments,
        }
    }

    pub(crate) fn values(&self) -> &[(String, Json)] {
        &self.values
    }

    pub(crate) fn to_json(&self) -> Map<String, Json> {
        self.values.iter().cloned().collect()
    }

    /// Returns the run folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the program and its arguments.
    pub(crate) fn command_line(&self) -> Vec<&str> {
        [&*self.program].into_iter().chain(self.arguments.iter().map(String::as_str)).collect()
    }

    /// Returns the file that captures the program's output: `0001.log`, next to the run folder.
    fn log(&self) -> PathBuf {
        self.folder.with_extension("log")
    }

    /// Starts the program. When it exits, calls `ended` on another thread.
    pub(crate) fn start(&self, ended: impl FnOnce(Ended) + Send + 'static) -> Result<ProcessGroup, Failure> {
        let log = self.log();
        let cannot = |error: io::Error| Failure::new(format!("{}: {error}", log.display()));
        if metadata(&self.folder)?.is_some_and(|found| !found.is_dir()) {
            let why = "expected the folder of the trial, found a link or a file: move it elsewhere";
            return Err(in_file(&self.folder, why).into());
        }
        let output = append(&log)?;
        let folder = std::path::absolute(&self.folder).map_err(cannot)?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env("TRAINER_RUN_FOLDER", folder)
            .stdin(Stdio::null())
            .stderr(output.try_clone().map_err(cannot)?)
            .stdout(output);
        // A terminal sends Ctrl-C only to the sweep's process group, so the sweep passes it on.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start `{}`: {error}", self.program)))?;
        let group = ProcessGroup::of(&child);
        thread::spawn(move || ended(child.wait()));
        Ok(group)
    }

    /// Returns the run of the trial if its program exited without an error and the run has
    /// finished. Otherwise, returns what went wrong.
    pub(crate) fn outcome(&self, ended: &Ended) -> Result<Run, String> {
        let status = ended.as_ref().map_err(|error| format!("cannot wait for its process: {error}"))?;
        if !status.success() {
            let last = last_line(&self.log());
            let last = last.map_or_else(String::new, |line| format!(": {line}"));
            return Err(format!("{status}{last}"));
        }
        if !self.folder.join(RUN_FILE).exists() {
            return Err(format!(
                "the program ended without an error, but wrote no run into {}: give its trainer a run folder, \
                 `.run_folder(RunFolder::numbered(\"runs\"))`, which the sweep then overrides",
                self.folder.display()
            ));
        }
        let run = Run::open(&self.folder).map_err(|error| error.to_string())?;
        match run.status() {
            Status::Finished => Ok(run),
            other => Err(format!("the program ended without an error, but its run is {}", other.name())),
        }
    }
}

/// Returns whether a folder contains a run that has finished.
pub(crate) fn has_finished(folder: &Path) -> bool {
    Run::open(folder).is_ok_and(|run| run.status() == Status::Finished)
}

/// Returns the last nonempty line of a log file.
fn last_line(log: &Path) -> Option<String> {
    let (mut file, length) = open(log, Links::Refuse).ok()?;
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_END))).ok()?;
    file.take(LOG_END).read_to_end(&mut end).ok()?;
    let text = String::from_utf8_lossy(&end);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Formats the values: `lr 0.1, width 64`.
pub(crate) fn text_of_values(values: &[(String, Json)]) -> String {
    let texts = values.iter().map(|(name, value)| format!("{name} {}", text_of_setting(value)));
    texts.collect::<Vec<_>>().join(", ")
}

/// A process and the processes that it starts.
#[derive(Clone, Copy)]
pub(crate) struct ProcessGroup(u32);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        ProcessGroup(child.id())
    }

    /// Sends a signal to the processes that are still running.
    #[cfg(unix)]
    pub(crate) fn signal(self, signal: i32) {
        use rustix::process::{Pid, Signal, kill_process_group};

        let group = i32::try_from(self.0).ok().and_then(Pid::from_raw);
        if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(signal)) {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Does nothing: on Windows, the console sends Ctrl-C to all its processes.
    #[cfg(not(unix))]
    pub(crate) fn signal(self, _: i32) {
        let _ = self.0;
    }
}

/// A listener for the signals that end a sweep.
pub(crate) struct Signals {
    #[cfg(unix)]
    handle: signal_hook::iterator::Handle,
}

impl Signals {
    /// Listens for signals on a new thread, and calls `received` there for each of them.
    #[cfg(unix)]
    pub(crate) fn listen(received: impl Fn(i32) + Send + 'static) -> io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        thread::spawn(move || signals.forever().for_each(received));
        Ok(Signals { handle })
    }

    #[cfg(not(unix))]
    pub(crate) fn listen(_: impl Fn(i32) + Send + 'static) -> io::Result<Self> {
        Ok(Signals {})
    }

    /// Ends the thread that listens for signals.
    pub(crate) fn close(&self) {
        #[cfg(unix)]
        self.handle.close();
    }
}
