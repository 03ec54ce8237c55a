//! [`RunFile`]: the content of `run.json`, which the trainer writes and other programs read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::metric::Metrics;
use super::profile::Profile;
use trainer_files::Process;

/// The name of the file in a run folder that describes the run.
pub const RUN_FILE: &str = "run.json";
/// The maximum size of a `run.json` that is read, in bytes.
pub const MAX_BYTES: u64 = 1 << 24;
/// The maximum number of warnings that `run.json` keeps.
pub const MAX_WARNINGS: usize = 100;

const FORMAT: &str = "trainer run";
/// The version of the format. It is increased if older readers would misunderstand the file. A new
/// field does not require a new version, because it has a default for files without it.
const VERSION: u64 = 1;

/// The status of a run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The run is in progress. In `run.json`, this status may also mean that the process was
    /// killed.
    Running,
    /// The last entry point returned its result.
    Finished,
    /// The last entry point returned an error, or panicked.
    Failed,
    /// The last entry point was cancelled, by a signal or by the program.
    Cancelled,
    /// The run begins with a part of a different run, and has not been trained yet.
    Forked,
    /// The process ended during an entry point. `run.json` never has this status;
    /// [`Run::status`](super::Run::status) infers it.
    Killed,
}

impl Status {
    /// Returns the name that the status has in JSON, such as `finished`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Finished => "finished",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
            Status::Forked => "forked",
            Status::Killed => "killed",
        }
    }
}

/// The content of `run.json`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunFile {
    format: String,
    version: u64,
    /// The status that the trainer recorded. It is never [`Killed`](Status::Killed):
    /// [`Run::status`](super::Run::status) detects that a run was killed.
    pub status: Status,
    /// The most recent entry point: `fit`, `validate`, `test` or `predict`.
    pub entry: String,
    /// Each kind of entry point of the run, in the order in which it was first called; empty in
    /// older files.
    #[serde(default)]
    pub entries: Vec<String>,
    /// When the run began, in RFC 3339; see [`parse_time`](super::parse_time).
    pub started: String,
    /// The times at which the run was resumed.
    pub resumed: Vec<String>,
    /// When the last entry point ended.
    pub ended: Option<String>,
    /// The error that ended the run.
    pub error: Option<String>,
    /// The reason why the last fit stopped early.
    pub stopped: Option<String>,
    /// A description of each roll-back in the last fit: from which batch to which earlier batch,
    /// and why.
    #[serde(default)]
    pub roll_backs: Vec<String>,
    /// The process of rank 0, which writes the files of the run. After a resume, this is the new
    /// process.
    #[serde(default)]
    pub process: Option<Process>,
    /// The metrics of all entry points that have ended.
    #[serde(default)]
    pub metrics: Metrics,
    /// The first [`MAX_WARNINGS`] warnings of the entry points that have ended.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The most recent profile of each kind of entry point that was measured.
    #[serde(default)]
    pub profiles: Vec<Profile>,
    /// The version of the `trainer` crate.
    pub trainer: String,
    /// The version of libtorch.
    pub libtorch: String,
    /// The version of the compiler.
    pub rustc: String,
    /// The commit of the git repository that contains the working directory.
    pub git_commit: Option<String>,
    /// The first 16 hexadecimal digits of the BLAKE3 hash of the executable.
    #[serde(default)]
    pub executable: Option<String>,
    /// The device of the task.
    pub device: String,
    /// The number of libtorch threads.
    pub threads: i32,
    /// The launcher of the processes that train together, and their number: `SLURM, 8 processes`.
    #[serde(default)]
    pub launcher: Option<String>,
    /// The seed of the trainer.
    pub seed: Option<u64>,
    /// The command line, unless the program keeps it out of the file.
    pub command_line: Option<Vec<String>>,
    /// The folder in which the program was started, if the command line is recorded.
    #[serde(default)]
    pub working_folder: Option<String>,
    /// The part of another run that this run begins with, if any.
    #[serde(default)]
    pub origin: Option<Origin>,
    /// The settings of the trainer, as text.
    pub settings: BTreeMap<String, String>,
    /// The hyperparameters of the program, the optimizers, the trainer and its hooks.
    pub hyperparameters: BTreeMap<String, Json>,
    /// Each hook with its moment, in the order of the lifecycle:
    /// `my_hooks::clamp at before_opt_step`.
    pub hooks: Vec<String>,
    /// The data that each phase has read last: `train.rows`, `train.batch_size`, and, for a named
    /// loader, `valid/clean.rows`.
    #[serde(default)]
    pub data: BTreeMap<String, Json>,
}

/// The part of another run that a run begins with.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The folder of that run, as named by the program.
    pub run: String,
    /// The number of training batches in that part.
    pub batches: u64,
}

/// The reason why a file is not a valid `run.json`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotARun {
    /// Another program wrote the file.
    #[error("expected a file of format `{FORMAT}`, found {0}")]
    Foreign(String),
    /// A later version of the trainer wrote the file.
    #[error(
        "the file has version {0} of its format, but this program reads versions up to {VERSION}: update this program"
    )]
    Newer(u64),
    /// The file is damaged.
    #[error("{0}")]
    Damaged(String),
}

impl RunFile {
    /// Returns the content for a run that begins now. Fields that are not known yet are empty.
    #[must_use]
    pub fn new(entry: &str, started: String) -> Self {
        RunFile {
            format: FORMAT.to_owned(),
            version: VERSION,
            status: Status::Running,
            entry: entry.to_owned(),
            entries: Vec::new(),
            started,
            resumed: Vec::new(),
            ended: None,
            error: None,
            stopped: None,
            roll_backs: Vec::new(),
            process: None,
            metrics: Metrics::new(),
            warnings: Vec::new(),
            profiles: Vec::new(),
            trainer: String::new(),
            libtorch: String::new(),
            rustc: String::new(),
            git_commit: None,
            executable: None,
            device: String::new(),
            threads: 0,
            launcher: None,
            seed: None,
            command_line: None,
            working_folder: None,
            origin: None,
            settings: BTreeMap::new(),
            hyperparameters: BTreeMap::new(),
            hooks: Vec::new(),
            data: BTreeMap::new(),
        }
    }

    /// Replaces the description of the program, its settings, its machine and its hooks with that
    /// in `now`. The history of the run stays.
    pub fn describe_as(&mut self, now: RunFile) {
        // Without `..`, so that each new field is in one of the two groups.
        let RunFile {
            // The history of the run:
            format: _,
            version: _,
            status: _,
            entry: _,
            entries: _,
            started: _,
            resumed: _,
            ended: _,
            error: _,
            stopped: _,
            roll_backs: _,
            process: _,
            metrics: _,
            warnings: _,
            profiles: _,
            origin: _,
            data: _,
            // The description:
            trainer,
            libtorch,
            rustc,
            git_commit,
            executable,
            device,
            threads,
            launcher,
            seed,
            command_line,
            working_folder,
            settings,
            hyperparameters,
            hooks,
        } = now;
        (self.trainer, self.libtorch, self.rustc) = (trainer, libtorch, rustc);
        (self.git_commit, self.executable) = (git_commit, executable);
        (self.device, self.threads, self.launcher, self.seed) = (device, threads, launcher, seed);
        (self.command_line, self.working_folder) = (command_line, working_folder);
        (self.settings, self.hyperparameters, self.hooks) = (settings, hyperparameters, hooks);
    }

    /// Returns whether these bytes are a `run.json` that the trainer wrote, in any version. They
    /// must be valid JSON, but the other fields may be invalid.
    #[must_use]
    pub fn is_of_trainer(bytes: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }

        serde_json::from_slice::<Head>(bytes).is_ok_and(|head| head.format == FORMAT)
    }

    /// Parses a `run.json` of this version or any earlier one.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is not the `run.json` of a run, is damaged, or has a later
    /// version.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotARun> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            format: Json,
            #[serde(default)]
            version: u64,
        }

        let damaged = |error: serde_json::Error| NotARun::Damaged(error.to_string());
        // In almost all cases, the file has this version.
        if let Ok(file) = serde_json::from_slice::<Self>(bytes)
            && (file.format.as_str(), file.version) == (FORMAT, VERSION)
        {
            return Ok(file);
        }
        let head: Head = serde_json::from_slice(bytes).map_err(damaged)?;
        match head.format {
            Json::String(format) if format == FORMAT => {}
            Json::Null => return Err(NotARun::Foreign("none".to_owned())),
            other => return Err(NotARun::Foreign(format!("`{}`", other.to_string().trim_matches('"')))),
        }
        if head.version > VERSION {
            return Err(NotARun::Newer(head.version));
        }
        serde_json::from_slice(bytes).map_err(damaged)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    ///
    /// Returns an error if serialization fails.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }

    /// Returns the kinds of entry points of the run, as text: `fit, test`.
    #[must_use]
    pub fn entries(&self) -> String {
        if self.entries.is_empty() { self.entry.clone() } else { self.entries.join(", ") }
    }

    /// Returns facts about the environment as pairs of name and text, for comparing runs.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("device", self.device.clone()),
            ("threads", self.threads.to_string()),
            ("git commit", self.git_commit.clone().unwrap_or_default()),
            ("executable", self.executable.clone().unwrap_or_default()),
            ("trainer", self.trainer.clone()),
            ("libtorch", self.libtorch.clone()),
            ("rustc", self.rustc.clone()),
            ("host", self.process.as_ref().and_then(|process| process.host.clone()).unwrap_or_default()),
            ("command line", self.command_line.as_deref().unwrap_or_default().join(" ")),
        ]
    }
}
