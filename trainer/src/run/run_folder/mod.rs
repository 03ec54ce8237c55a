//! [`RunFolder`]: the folder of a run, and `run.json`, which records its settings and environment.

mod clock;
mod git;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub(crate) use clock::now;
pub(crate) use git::commit;

use crate::error::Result;
use crate::io::files::{
    Links, create_folders, create_new_folder, entries, in_file, is_folder, metadata, name_of, open,
    read_start, replace_file,
};

/// The folder of a run, set by [`run_folder`](crate::TrainerBuilder::run_folder).
///
/// The path may be a link to a folder. Inside it, no link is followed, only regular files are
/// opened, and only what this crate wrote is replaced or removed: if something else has the name of
/// a file of the run, the run is refused, or its file is numbered. A file that is replaced is
/// complete at any time.
///
/// ```
/// use trainer::RunFolder;
///
/// let first = RunFolder::new("runs/first");
/// let next = RunFolder::numbered("runs"); // runs/0001, runs/0002, …
/// ```
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RunFolder {
    path: PathBuf,
    /// Whether `path` is the folder that contains the numbered ones.
    #[serde(default, rename = "numbered")]
    is_numbered: bool,
}

impl RunFolder {
    /// Uses the folder at this path. It is created if it does not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        RunFolder { path: path.into(), is_numbered: false }
    }

    /// Uses a new folder inside `parent`, named after the next free number: `0001`, `0002`, …. With
    /// [`resume`](crate::TrainerBuilder::resume), uses the run with the highest number, unless it
    /// has finished. A folder or link that is named after a number, but holds no run of this crate,
    /// is not used.
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
        create_folders(&self.path)?;
        let path_of = |number: u64| self.path.join(format!("{number:04}"));
        let number_of = |path: &PathBuf| {
            let number = name_of(path).parse().ok()?;
            (path_of(number) == *path && RunFile::is_in(path)).then_some(number)
        };
        let last = entries(&self.path)?.iter().filter_map(number_of).max().unwrap_or(0);
        if is_resuming && last > 0 {
            let path = path_of(last);
            match RunFile::load(&path)? {
                Some(file) if file.status == Status::Finished => {}
                _ => return Ok(path),
            }
        }
        let mut number = last;
        loop {
            number = number.checked_add(1).ok_or_else(|| {
                in_file(&path_of(number), "there is no higher number for the next run: rename this folder")
            })?;
            // If the name is taken, by another process or otherwise, the next one is tried.
            if create_new_folder(&path_of(number))? {
                return Ok(path_of(number));
            }
        }
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

    /// Whether a folder, which is not a link, holds a run of this crate.
    fn is_in(folder: &Path) -> bool {
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }

        let bytes = read_run_file(&folder.join(RUN_FILE)).ok().flatten().filter(|_| is_folder(folder));
        let head = bytes.and_then(|bytes| serde_json::from_slice::<Head>(&bytes).ok());
        head.is_some_and(|head| head.format == FORMAT)
    }

    /// Reads the file in this folder. Returns `None` if there is none, or an error if it is not the
    /// `run.json` of a run.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(RUN_FILE);
        let Some(bytes) = read_run_file(&path)? else { return Ok(None) };
        let read: RunFile = serde_json::from_slice(&bytes).map_err(|error| {
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
        replace_file(&path, is_ours, |file| file.write(text.as_bytes()))
    }
}

/// Returns the content of a `run.json`; `None` if there is none.
fn read_run_file(path: &Path) -> Result<Option<Vec<u8>>> {
    if metadata(path)?.is_none() {
        return Ok(None);
    }
    let (file, length) = open(path, Links::Refuse)?;
    if length > MAX_BYTES {
        return Err(in_file(
            path,
            format!(
                "expected a `run.json` of at most {MAX_BYTES} bytes, found {length} bytes: move the file elsewhere"
            ),
        ));
    }
    read_start(path, &file, length).map(Some)
}
