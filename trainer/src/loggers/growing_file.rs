//! [`GrowingFile`]: a file that a run appends to, without missing or duplicate rows after a resume.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::checkpoint::{Saved, State};
use crate::io::files::{
    Links, Output, create_folders, create_folders_below, folder_of, free_name, metadata, move_aside, name_of,
    open, open_or_create, read_start, remove_files_left_unfinished, replace_file,
};
use crate::prelude::*;

/// The maximum number of bytes kept in memory while the file cannot be written.
const MAX_PENDING: usize = 16 << 20;

/// A file that a run appends to. Its length, its hash and the rows that could not be written yet
/// are part of the run's checkpoints, so a resumed run continues it exactly: no row is missing or
/// duplicated.
///
/// Use this when a hook writes a file at several points. To write one text for each record,
/// [`ToFile`](super::ToFile) is enough.
///
/// A logger calls [`begin`](GrowingFile::begin) at `setup` and
/// [`continue_after_resume`](GrowingFile::continue_after_resume) at `after_load_checkpoint`, writes
/// with [`append`](GrowingFile::append), calls [`finish`](GrowingFile::finish) at `teardown`, and
/// saves the [`State`] of the file as its own:
///
/// ```standalone_crate
/// use trainer::loggers::GrowingFile;
/// use trainer::prelude::*;
///
/// /// A line for each epoch.
/// struct Epochs(GrowingFile);
///
/// #[hook(state = self.0, writes, may_fail)]
/// impl Epochs {
///     fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
///         self.0.begin(cx)
///     }
///
///     fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
///         self.0.continue_after_resume(cx)
///     }
///
///     fn after_epoch(&mut self, cx: &Cx<Main<AfterEpoch>>) -> Result<()> {
///         let line = format!("{} {}\n", cx.counters().epoch, cx.metrics()["train/loss"]);
///         self.0.append(cx, line.as_bytes())
///     }
///
///     fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
///         self.0.finish(cx)
///     }
/// }
///
/// # fn main() {
/// let epochs = Epochs(GrowingFile::in_run_folder("epochs.txt"));
/// # }
/// ```
///
/// Rows that an interrupted run wrote after its last checkpoint are not deleted: the resumed run
/// moves them to `<file>.before-resume-<n>`. A run that [rolls back](crate::Cx::roll_back) does the
/// same. A resume is refused if the file no longer begins with the rows that it had at the time of
/// the checkpoint; nothing has been moved by then. Links are not followed: the file itself must be
/// a regular file, and if it is in the run folder, its path must not go through a link to another
/// folder.
///
/// If an operation on the file fails, the run continues, unless the file is
/// [`strict`](GrowingFile::strict). Give your hook the key [`may_fail`](crate::language::may_fail),
/// so that none of its own failures ends the run either. Errors that a file returns are marked with
/// [`Error::fatal`] and end the run even then: the file is strict, or cannot be used as the program
/// asks.
#[derive(Debug)]
pub struct GrowingFile {
    place: Place,
    path: PathBuf,
    is_strict: bool,
    file: Option<Output>,
    /// The number of bytes that belong to the run; `None` until it is known.
    position: Option<u64>,
    /// The CRC-32C of the first `position` bytes.
    crc: u32,
    /// The bytes that could not be written yet.
    pending: Vec<u8>,
    /// The number of bytes that were dropped because there were too many to keep.
    lost: u64,
    has_failed: bool,
    /// Whether the last write failed, and may have written some of its bytes.
    is_torn: bool,
    /// The error of a failed sync, until the next write reports it.
    failed_sync: RefCell<Option<Error>>,
    /// Whether writing is disabled, because the run is a smoke test.
    is_off: bool,
    /// Whether a fit that resumes has not restored the run yet. Until then, the file stays as it
    /// is, because the resume may be refused.
    waits: bool,
}

/// The location of the file.
#[derive(Clone, Debug)]
enum Place {
    /// At a path that the program chose.
    At,
    /// In the run folder, which is not known yet.
    InRunFolder,
    /// In this run folder.
    In(PathBuf),
}

impl GrowingFile {
    /// Creates a handle to the file at this path, without opening it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        GrowingFile {
            place: Place::At,
            path: path.into(),
            is_strict: false,
            file: None,
            position: None,
            crc: 0,
            pending: Vec::new(),
            lost: 0,
            has_failed: false,
            is_torn: false,
            failed_sync: RefCell::new(None),
            is_off: false,
            waits: false,
        }
    }

    /// Creates a handle to the file with this name in the
    /// [run folder](crate::TrainerBuilder::run_folder), without opening it.
    pub fn in_run_folder(name: impl Into<PathBuf>) -> Self {
        GrowingFile { place: Place::InRunFolder, ..GrowingFile::at(name) }
    }

    /// Creates a handle to another file in the same folder.
    pub(super) fn beside(&self, name: &str) -> Self {
        let mut file = GrowingFile::at(self.path.with_file_name(name));
        file.place = self.place.clone();
        file.is_strict = self.is_strict;
        (file.is_off, file.waits) = (self.is_off, self.waits);
        file
    }

    /// Whether a failed operation on the file ends the run. Defaults to `false`: a failure is a
    /// [warning](crate::Cx::warn), and up to 16 MiB of rows stay in memory and in checkpoints until
    /// the file can be written again. If more rows are waiting, all of them are dropped, with
    /// another warning. Rows that are missing from the file when an entry point ends are reported
    /// in [`Summary::incomplete_logs`](crate::Summary::incomplete_logs).
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.is_strict = strict;
        self
    }

    /// The path of the file, or only the name of the file while the run folder is not known yet.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the run has not appended anything to the file yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position.unwrap_or(0) == 0 && self.pending.is_empty()
    }

    /// The number of bytes that were written.
    #[cfg(feature = "mlflow")]
    pub(super) fn length(&self) -> u64 {
        self.position.unwrap_or(0)
    }

    /// The length that the file has when everything that was appended is in it.
    #[cfg(feature = "wandb")]
    pub(super) fn end(&self) -> u64 {
        self.position.unwrap_or(0) + self.pending.len() as u64
    }

    /// Whether everything that was appended is in the file.
    pub(super) fn is_complete(&self) -> bool {
        self.pending.is_empty() && self.lost == 0
    }

    /// Prepares the file for an entry point, and creates it for a new run; call this at `setup`.
    /// With [`fast_dev_run`](crate::TrainerBuilder::fast_dev_run), nothing is written.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the file contains data of an earlier run that is not resumed;
    /// - it is not a regular file;
    /// - it belongs in a run folder and the run has none;
    /// - it cannot be written and is [`strict`](GrowingFile::strict).
    pub fn begin<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        self.is_off = cx.is_fast_dev_run();
        if self.is_off {
            return Ok(());
        }
        if let Place::InRunFolder = self.place {
            let folder = cx.run_folder().ok_or_else(|| {
                Error::fatal(format!(
                    "`{}` belongs in the run folder, but the trainer has none: set `.run_folder(\"runs/first\")`, or give \
                     the logger a path",
                    self.path.display()
                ))
            })?;
            self.path = folder.join(&self.path);
            self.place = Place::In(folder.to_owned());
        }
        self.waits = cx.is_resuming() && cx.phase() == Phase::Train;
        if self.position.is_some() {
            return Ok(());
        }
        // The position of a resumed file is in the checkpoint, which is not loaded yet.
        let is_new = !cx.is_resuming();
        let opened = match metadata(&self.path) {
            Ok(None) if !is_new => return Ok(()),
            Ok(_) => self.open_file(),
            Err(error) => Err(error.into()),
        };
        match opened {
            Ok((_, length)) if is_new && length > 0 => {
                let text = "this file contains data of an earlier run: resume that run with `.resume(Resume::Auto)`, or \
                            choose another path";
                return Err(Error::fatal(Error::in_file(&self.path, text)));
            }
            Ok((file, _)) if is_new => self.file = Some(file),
            Ok(_) => {}
            Err(error) if error.is_fault() => self.failed(cx, error)?,
            Err(error) => return Err(Error::fatal(error)),
        }
        if is_new {
            self.position = Some(0);
        }
        Ok(())
    }

    /// Continues the file in a resumed run, and writes the rows that could not be written before
    /// the checkpoint; call this at `after_load_checkpoint`. Data beyond the position in the
    /// checkpoint is moved to a separate file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written and is [`strict`](GrowingFile::strict).
    pub fn continue_after_resume<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        if self.is_off {
            return Ok(());
        }
        self.waits = false;
        self.position.get_or_insert(0);
        self.file = None;
        let opened = remove_left_unfinished(&self.path).and_then(|()| self.open(cx));
        match opened {
            Ok(()) => self.write_or_warn(cx),
            Err(error) => self.failed(cx, error),
        }
    }

    /// Appends bytes. If the file cannot be written, the bytes are kept, and a later call writes
    /// them; see [`strict`](GrowingFile::strict).
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written and is [`strict`](GrowingFile::strict).
    pub fn append<P>(&mut self, cx: &Cx<P>, bytes: &[u8]) -> Result<()> {
        if self.is_off {
            return Ok(());
        }
        if let Err(error) = self.pending.try_reserve(bytes.len()) {
            self.lost += bytes.len() as u64;
            return self.failed(cx, Error::in_file(&self.path, error));
        }
        self.pending.extend_from_slice(bytes);
        self.write_or_warn(cx)
    }

    /// Writes the rows that could not be written yet, and waits until the file is on disk; call
    /// this at `teardown`. If rows are still missing, warns, and adds the file to
    /// [`Summary::incomplete_logs`](crate::Summary::incomplete_logs).
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written and is [`strict`](GrowingFile::strict).
    pub fn finish<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        if self.is_off || self.is_waiting(cx) {
            return Ok(());
        }
        let written = self.write_pending(cx).and_then(|()| self.check_in_place());
        let why = match written {
            Ok(()) if self.lost == 0 => {
                let Some(Err(error)) = self.file.as_ref().map(Output::sync) else { return Ok(()) };
                if self.is_strict {
                    return Err(Error::fatal(error));
                }
                cx.warn(not_synced(&error.into()));
                return Ok(());
            }
            Ok(()) => {
                Error::in_file(&self.path, "some rows were dropped while the file could not be written")
            }
            Err(error) => error,
        };
        if self.is_strict {
            return Err(Error::fatal(why));
        }
        let missing = match self.pending.len() as u64 + self.lost {
            0 => String::new(),
            missing => format!("; {missing} bytes of rows are missing from the file"),
        };
        cx.warn_incomplete(self.path.display().to_string(), format!("{why}{missing}"));
        Ok(())
    }

    /// Writes bytes that are only at the end of a complete file: the next bytes that are appended
    /// replace them. Call this after [`finish`](GrowingFile::finish).
    #[cfg(feature = "wandb")]
    pub(super) fn end_with<P>(&mut self, cx: &Cx<P>, bytes: &[u8]) -> Result<()> {
        let is_complete = self.is_complete() && !self.is_empty();
        if self.is_off || self.is_waiting(cx) || !is_complete {
            return Ok(());
        }
        match self.make_ready(cx).and_then(|()| self.write_end(bytes)) {
            Err(error) if self.is_strict => Err(Error::fatal(error)),
            other => other,
        }
    }

    #[cfg(feature = "wandb")]
    fn write_end(&mut self, bytes: &[u8]) -> Result<()> {
        let (Some(file), Some(position)) = (&mut self.file, self.position) else { return Ok(()) };
        self.is_torn = true; // so that the next write removes them
        file.write_at(position, bytes)?;
        Ok(file.sync()?)
    }

    /// Whether a fit that resumes has not restored the run yet.
    fn is_waiting<P>(&mut self, cx: &Cx<P>) -> bool {
        self.waits &= cx.is_resuming();
        self.waits
    }

    /// Writes the pending rows. Unless the file is strict, a failure is a warning.
    fn write_or_warn<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        if self.is_waiting(cx) {
            return Ok(());
        }
        if let Some(error) = self.failed_sync.take() {
            cx.warn(not_synced(&error));
        }
        match self.write_pending(cx) {
            Ok(()) => {
                self.has_failed = false;
                Ok(())
            }
            Err(error) => self.failed(cx, error),
        }
    }

    /// Reports a failed operation, unless the previous one has failed too. Returns the error if the
    /// file is strict.
    fn failed<P>(&mut self, cx: &Cx<P>, error: Error) -> Result<()> {
        if self.is_strict {
            return Err(Error::fatal(error));
        }
        if self.pending.len() > MAX_PENDING {
            self.lost += self.pending.len() as u64;
            self.pending.clear();
            cx.warn(format!(
                "rows of {} are lost: the file could not be written, and the unwritten rows exceeded 16 MiB",
                self.path.display()
            ));
        }
        if !std::mem::replace(&mut self.has_failed, true) {
            cx.warn(format!(
                "{error}; the run continues, keeps the rows in memory and in checkpoints, and tries again with the next rows"
            ));
        }
        Ok(())
    }

    fn write_pending<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.make_ready(cx)?;
        let (Some(file), Some(position)) = (&mut self.file, self.position) else { return Ok(()) };
        let written = file.write_at(position, &self.pending);
        self.is_torn = written.is_err();
        written?;
        self.position = Some(position + self.pending.len() as u64);
        self.crc = crc32c::crc32c_append(self.crc, &self.pending);
        self.pending.clear();
        Ok(())
    }

    /// Opens the file unless it is open, and removes what a failed write has left at its end.
    /// Returns an error if the file has other content beyond the position.
    fn make_ready<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        if self.check_in_place().is_err() {
            self.file = None;
        }
        self.open(cx)?;
        let (Some(file), Some(position)) = (&self.file, self.position) else { return Ok(()) };
        let length = file.length()?;
        if length > position && self.is_torn {
            file.cut(position)?;
        } else if length != position {
            let text = format!(
                "the file has {length} bytes, but this hook has written {position}: another hook or program writes this \
                 file; give each its own"
            );
            return Err(Error::in_file(&self.path, text));
        }
        Ok(())
    }

    /// Returns an error if the open file is no longer the file at the path.
    fn check_in_place(&self) -> Result<()> {
        match &self.file {
            Some(file) if !file.is_in_place() => {
                Err(Error::in_file(&self.path, "the file was removed or replaced during the run: restore it"))
            }
            _ => Ok(()),
        }
    }

    /// Opens the file unless it is open, creating it if necessary, and moves any content beyond the
    /// position to a separate file. Returns an error if the file does not begin with the rows of
    /// the run.
    fn open<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let position = *self.position.get_or_insert(0);
        if position > 0 && metadata(&self.path)?.is_none() {
            return Err(self.too_short(0, position));
        }
        let (mut file, length) = self.open_file()?;
        self.check_start(file.file(), length)?;
        if length > position && position == 0 {
            // Nothing shows that this run wrote it, so it is kept as it is.
            drop(file);
            let aside = move_aside(&self.path, before_resume)?;
            cx.warn(format!(
                "{}: the file had content that is not in the checkpoint; this content was moved to {}",
                self.path.display(),
                aside.display()
            ));
            (file, _) = self.open_file()?;
        } else if length > position {
            move_tail(&file, position)?;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Returns an error if the file exists but does not begin with the rows of the checkpoint, or
    /// if it is missing. Changes nothing. If the file cannot be read now, that is left to the first
    /// operation that needs it.
    fn check_before_resume(&self) -> Result<()> {
        let position = self.position.unwrap_or(0);
        if position == 0 || self.is_off || matches!(self.place, Place::InRunFolder) {
            return Ok(());
        }
        let checked = metadata(&self.path).map_err(Error::from).and_then(|found| match found {
            None => Err(self.too_short(0, position)),
            Some(_) => {
                let (file, length) = open(&self.path, Links::Refuse)?;
                self.check_start(&file, length)
            }
        });
        match checked {
            Err(error) if self.is_strict || !error.is_fault() => Err(Error::fatal(error)),
            _ => Ok(()),
        }
    }

    /// Returns an error if a file of this length does not begin with the rows of the run.
    fn check_start(&self, file: &File, length: u64) -> Result<()> {
        let position = self.position.unwrap_or(0);
        if length < position {
            return Err(self.too_short(length, position));
        }
        if crc_of(&self.path, file, position)? != self.crc {
            let text = format!(
                "the first {position} bytes of the file have changed since the {}: restore it, or resume from an earlier \
                 checkpoint",
                self.since()
            );
            return Err(Error::in_file(&self.path, text));
        }
        Ok(())
    }

    fn too_short(&self, length: u64, position: u64) -> Error {
        let text = format!(
            "the file has {length} bytes, but had {position} when the {}: restore it, or resume from an earlier checkpoint",
            self.since()
        );
        Error::in_file(&self.path, text)
    }

    /// Describes when the file had the content that the run expects.
    fn since(&self) -> &'static str {
        if self.waits { "checkpoint was written" } else { "run last wrote it" }
    }

    /// Opens the file, and creates it and its folder if they do not exist.
    fn open_file(&self) -> Result<(Output, u64)> {
        self.create_folder(folder_of(&self.path))?;
        Ok(open_or_create(&self.path)?)
    }

    /// Creates a folder, without following links within the run folder.
    pub(super) fn create_folder(&self, folder: &Path) -> Result<()> {
        match &self.place {
            Place::In(root) => Ok(create_folders_below(root, folder)?),
            _ => Ok(create_folders(folder)?),
        }
    }
}

/// The warning about a failed sync.
fn not_synced(error: &Error) -> String {
    format!("{error}; rows may be missing from the file if the machine fails")
}

/// Returns the CRC-32C of the first `length` bytes of a file.
fn crc_of(path: &Path, mut reader: &File, length: u64) -> Result<u32> {
    reader.seek(SeekFrom::Start(0)).map_err(|error| Error::in_file(path, error))?;
    let mut crc = 0;
    let mut left = length;
    let mut buffer = vec![0; 1 << 16];
    while left > 0 {
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = reader.read(&mut buffer[..room]).map_err(|error| Error::in_file(path, error))?;
        if read == 0 {
            return Err(Error::in_file(path, "the file became shorter while it was read: try again"));
        }
        crc = crc32c::crc32c_append(crc, &buffer[..read]);
        left -= read as u64;
    }
    Ok(crc)
}

/// Returns the name of a file for the rows that were written after the checkpoint. TensorBoard
/// reads every file with `tfevents` in its name, so this name avoids that word.
fn before_resume(name: &str, number: u64) -> String {
    format!("{}.before-resume-{number}", name.replace("tfevents", "tf-events"))
}

/// Removes the temporary files that remain if the process was killed while it moved rows aside, in
/// a resume or a roll-back.
fn remove_left_unfinished(path: &Path) -> Result<()> {
    let folder = folder_of(path);
    if metadata(folder)?.is_none() {
        return Ok(());
    }
    let first = before_resume(name_of(path), 0);
    let before_number = first.trim_end_matches('0');
    let is_aside =
        |name: &str| name.strip_prefix(before_number).is_some_and(|number| number.parse::<u64>().is_ok());
    Ok(remove_files_left_unfinished(folder, is_aside)?)
}

/// Moves the content beyond a position to a new file.
fn move_tail(file: &Output, position: u64) -> Result<()> {
    let path = file.path();
    let mut reader = file.file();
    reader.seek(SeekFrom::Start(position)).map_err(|error| Error::in_file(path, error))?;
    let mut tail = Vec::new();
    reader.read_to_end(&mut tail).map_err(|error| Error::in_file(path, error))?;
    let (free, newest) = free_name(path, before_resume)?;
    if newest.is_none_or(|newest| !has_content(&newest, &tail)) {
        replace_file(&free, |_| Ok(()), |aside| aside.write(&tail))?;
    } // otherwise, the process was killed before it cut the file
    Ok(file.cut(position)?)
}

/// Whether a file has this content.
fn has_content(path: &Path, content: &[u8]) -> bool {
    let read = open(path, Links::Refuse).and_then(|(file, length)| {
        if length == content.len() as u64 { read_start(path, &file, length) } else { Ok(Vec::new()) }
    });
    read.is_ok_and(|read| read == content)
}

/// The state is the number of bytes that belong to the run, their hash, and the rows that could not
/// be written yet. Saving it syncs the file to disk; a failed sync is an error only with
/// [`strict`](GrowingFile::strict).
#[diagnostic::do_not_recommend]
impl State for GrowingFile {
    fn save(&self) -> Result<Saved> {
        if let Some(Err(error)) = self.file.as_ref().map(Output::sync) {
            if self.is_strict {
                return Err(Error::fatal(error));
            }
            self.failed_sync.replace(Some(error.into()));
        }
        let mut saved = Saved::new();
        saved.set("position", &self.position)?;
        saved.set("crc", &self.crc)?;
        saved.set("lost", &self.lost)?;
        if !self.pending.is_empty() {
            saved.set_tensor("pending", &Tensor::from_slice(&self.pending))?;
        }
        Ok(saved)
    }

    /// Restores the position. In a resume, returns an error if the file does not begin with the
    /// rows that it had at the time of the checkpoint.
    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.position = Some(saved.get::<Option<u64>>("position")?.unwrap_or(0));
        self.crc = saved.get("crc")?;
        self.lost = saved.get("lost")?;
        self.pending = match saved.tensors().find(|(key, _)| *key == "pending") {
            Some((_, pending)) => Vec::try_from(pending)?,
            None => Vec::new(),
        };
        self.file = None;
        if self.waits { self.check_before_resume() } else { Ok(()) }
    }
}
