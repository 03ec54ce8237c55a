//! [`RunFolder`]: the folder of a run, and `run.json`, which records its settings and environment.

mod git;
mod program;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use trainer_formats::run::{MAX_BYTES, RUN_FILE, format_time};

pub(crate) use program::program;
pub use trainer_formats::run::RunFile;
pub(crate) use trainer_formats::run::Status;

use crate::error::Result;
use crate::io::files::{
    Links, create_folders, create_new_folder, entries, in_file, is_folder, metadata, name_of, open,
    read_start, replace_file,
};

/// The folder of a run, set by [`run_folder`](crate::TrainerBuilder::run_folder).
///
/// The path may be a link to a folder. Inside the folder, no link is followed, only regular files
/// are opened, and only files that this crate wrote are replaced or removed. If something else
/// already has the name of a file that the run writes, either the run is refused or a number is
/// added to the name of the new file. Files are replaced atomically.
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
    /// Whether `path` is the folder that contains the numbered folders.
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
    /// has finished. A folder or link that has a number as its name but holds no run of this crate
    /// is not used.
    pub fn numbered(parent: impl Into<PathBuf>) -> Self {
        RunFolder { path: parent.into(), is_numbered: true }
    }

    /// Returns the folder that the environment variable `TRAINER_RUN_FOLDER` names, or this folder
    /// if the variable is unset or empty.
    pub(crate) fn or_requested(self) -> Self {
        match std::env::var_os("TRAINER_RUN_FOLDER") {
            Some(path) if !path.is_empty() => RunFolder::new(path),
            _ => self,
        }
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
            (path_of(number) == *path && holds_run(path)).then_some(number)
        };
        let last = entries(&self.path)?.iter().filter_map(number_of).max().unwrap_or(0);
        if is_resuming && last > 0 {
            let path = path_of(last);
            match load_run_file(&path)? {
                Some(file) if file.status == Status::Finished => {}
                _ => return Ok(path),
            }
        }
        let mut number = last;
        loop {
            number = number.checked_add(1).ok_or_else(|| {
                in_file(&path_of(number), "there is no higher number for the next run: rename this folder")
            })?;
            // If the name is taken, for example by another process, try the next one.
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

/// Creates the content of `run.json` for a run that begins now. Fields that are not known yet are
/// empty.
pub(crate) fn new_run_file(entry: &str) -> RunFile {
    let mut file = RunFile::new(entry, now());
    file.trainer = env!("CARGO_PKG_VERSION").to_owned();
    file.libtorch = crate::libtorch::version();
    file.rustc = env!("TRAINER_RUSTC").to_owned();
    [file.executable, file.git_commit] = program();
    file.threads = tch::get_num_threads();
    file
}

/// Returns the current time in RFC 3339 format, in UTC: `2026-11-21T23:59:58Z`.
pub(crate) fn now() -> String {
    format_time(SystemTime::now())
}

/// Whether this is a folder, not a link, that holds a run of this crate.
fn holds_run(folder: &Path) -> bool {
    let bytes = read_run_file(&folder.join(RUN_FILE)).ok().flatten().filter(|_| is_folder(folder));
    bytes.is_some_and(|bytes| RunFile::is_of_trainer(&bytes))
}

/// Reads the `run.json` in this folder. Returns `None` if there is no such file, or an error if the
/// file is not the `run.json` of a run.
pub(crate) fn load_run_file(folder: &Path) -> Result<Option<RunFile>> {
    let path = folder.join(RUN_FILE);
    let Some(bytes) = read_run_file(&path)? else { return Ok(None) };
    let read = RunFile::parse(&bytes).map_err(|error| {
        in_file(
            &path,
            format!("expected a `run.json` that this trainer wrote: {error}; move the file elsewhere"),
        )
    })?;
    Ok(Some(read))
}

/// Writes `run.json` into this folder, replacing an earlier one. Returns an error if the existing
/// file is not the `run.json` of a run.
pub(crate) fn write_run_file(file: &RunFile, folder: &Path) -> Result<()> {
    let path = folder.join(RUN_FILE);
    let text = file.to_text().map_err(|error| in_file(&path, error))?;
    let is_ours = |_: &Path| load_run_file(folder).map(drop);
    replace_file(&path, is_ours, |file| Ok(file.write(text.as_bytes())?))
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
    Ok(read_start(path, &file, length).map(Some)?)
}
