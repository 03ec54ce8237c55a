//! [`RunFolder`]: the folder of a run, and `run.json`, which records its settings and environment.

mod clock;
mod git;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub(crate) use clock::now;
pub(crate) use git::commit;

use crate::checkpoint::files::{Links, in_file, open, read_start, replace_file, write};
use crate::error::Result;

/// The folder of a run, set by [`run_folder`](crate::TrainerBuilder::run_folder).
///
/// ```
/// use trainer::RunFolder;
///
/// let first = RunFolder::new("runs/first");
/// let next = RunFolder::numbered("runs"); // runs/0001, runs/0002, …
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
    is_numbered: bool,
}

impl RunFolder {
    /// Uses the folder at this path. It is created if it does not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        RunFolder { path: path.into(), is_numbered: false }
    }

    /// Uses a new folder inside `parent`, named after the next free number: `0001`, `0002`, …. With
    /// [`resume`](crate::TrainerBuilder::resume), uses the folder with the highest number, unless
    /// its run has finished.
    pub fn numbered(parent: impl Into<PathBuf>) -> Self {
        RunFolder { path: parent.into(), is_numbered: true }
    }

    /// Whether the folder is named after a number, so that its path is unknown until the run
    /// begins.
    pub(crate) fn is_numbered(&self) -> bool {
        self.is_numbered
    }

    /// Returns the path. Creates the folder if it is numbered and new.
    pub(crate) fn resolve(&self, is_resuming: bool) -> Result<PathBuf> {
        if !self.is_numbered {
            return Ok(self.path.clone());
        }
        fs::create_dir_all(&self.path).map_err(|error| in_file(&self.path, error))?;
        let entries = fs::read_dir(&self.path).map_err(|error| in_file(&self.path, error))?;
        let number = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let is_number = name.len() >= 4 && name.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| name.parse::<u64>().ok()).flatten()
        };
        let last = entries.flatten().filter_map(number).max().unwrap_or(0);
        let path_of = |number: u64| self.path.join(format!("{number:04}"));
        if is_resuming && last > 0 {
            let path = path_of(last);
            match RunFile::load(&path)? {
                Some(file) if file.status == Status::Finished => {}
                _ => return Ok(path),
            }
        }
        for number in last + 1.. {
            let path = path_of(number);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {} // another process took it
                Err(error) => return Err(in_file(&path, error)),
            }
        }
        unreachable!("the loop ends at a free number")
    }
}

impl<P: Into<PathBuf>> From<P> for RunFolder {
    fn from(path: P) -> Self {
        RunFolder::new(path)
    }
}

/// The status of a run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// The run is in progress, or its process was killed.
    Running,
    Finished,
    Failed,
    Cancelled,
}

/// The name of the file that describes the run.
pub(crate) const RUN_FILE: &str = "run.json";

const FORMAT: &str = "trainer run";
const VERSION: u64 = 1;
const MAX_BYTES: u64 = 1 << 24;

/// The content of `run.json`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RunFile {
    format: String,
    version: u64,
    pub(crate) status: Status,
    /// The most recent entry point.
    pub(crate) entry: String,
    pub(crate) started: String,
    /// The times at which the run was resumed.
    pub(crate) resumed: Vec<String>,
    pub(crate) ended: Option<String>,
    /// The error that ended the run.
    pub(crate) error: Option<String>,
    /// The reason why the run stopped early.
    pub(crate) stopped: Option<String>,
    /// The version of this crate.
    pub(crate) trainer: String,
    pub(crate) libtorch: String,
    pub(crate) rustc: String,
    /// The commit of the git repository that contains the working directory.
    pub(crate) git_commit: Option<String>,
    pub(crate) device: String,
    /// The number of libtorch threads.
    pub(crate) threads: i32,
    pub(crate) seed: Option<u64>,
    pub(crate) command_line: Option<Vec<String>>,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) hyperparameters: BTreeMap<String, Json>,
    /// Each hook and its moment, in the order of the lifecycle.
    pub(crate) hooks: Vec<String>,
}

impl RunFile {
    /// Creates the content for a run that begins now. Fields that are not known yet are empty.
    pub(crate) fn begin(entry: &str) -> Self {
        RunFile {
            format: FORMAT.to_owned(),
            version: VERSION,
            status: Status::Running,
            entry: entry.to_owned(),
            started: now(),
            resumed: Vec::new(),
            ended: None,
            error: None,
            stopped: None,
            trainer: env!("CARGO_PKG_VERSION").to_owned(),
            libtorch: crate::libtorch::version(),
            rustc: env!("TRAINER_RUSTC").to_owned(),
            git_commit: commit(),
            device: String::new(),
            threads: tch::get_num_threads(),
            seed: None,
            command_line: None,
            settings: BTreeMap::new(),
            hyperparameters: BTreeMap::new(),
            hooks: Vec::new(),
        }
    }

    /// Reads the file in this folder. Returns `None` if there is none, or an error if it is not the
    /// `run.json` of a run.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(RUN_FILE);
        if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(None);
        }
        let (file, length) = open(&path, Links::Refuse)?;
        if length > MAX_BYTES {
            return Err(in_file(
                &path,
                format!(
                    "expected a `run.json` of at most {MAX_BYTES} bytes, found {length} bytes: move the file elsewhere"
                ),
            ));
        }
        let read: RunFile = serde_json::from_slice(&read_start(&path, &file, length)?).map_err(|error| {
            in_file(
                &path,
                format!("expected a `run.json` that this trainer wrote: {error}; move the file elsewhere"),
            )
        })?;
        if (read.format.as_str(), read.version) != (FORMAT, VERSION) {
            return Err(in_file(
                &path,
                format!(
                    "expected a `run.json` of format `{FORMAT}`, version {VERSION}, found `{}`, version {}: move the file elsewhere",
                    read.format, read.version
                ),
            ));
        }
        Ok(Some(read))
    }

    /// Writes the file into this folder, replacing an earlier one. Returns an error if the existing
    /// file is not the `run.json` of a run.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(RUN_FILE);
        let text = serde_json::to_string_pretty(self).map_err(|error| in_file(&path, error))?;
        let is_ours = |_: &Path| Self::load(folder).map(drop);
        replace_file(&path, is_ours, |aside| write(aside, text.as_bytes()))
    }
}
