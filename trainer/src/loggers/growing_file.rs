//! [`GrowingFile`]: a file that a run appends to, without missing or duplicate rows after a resume.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::checkpoint::{Saved, State};
use crate::error::{BoxError, FileError};
use crate::prelude::*;

/// The maximum number of bytes kept in memory while the file cannot be written.
const MAX_PENDING: usize = 16 << 20;

/// A file that a run appends to. Its length is part of the run's checkpoints, so a resumed run
/// continues it exactly: no row is missing or duplicated.
///
/// A logger calls [`begin`](GrowingFile::begin) at `setup` and
/// [`continue_after_resume`](GrowingFile::continue_after_resume) at `after_load_checkpoint`, writes
/// with [`append`](GrowingFile::append), and delegates its [`State`] to the file:
///
/// ```standalone_crate
/// use trainer::checkpoint::{Saved, State};
/// use trainer::loggers::GrowingFile;
/// use trainer::prelude::*;
///
/// /// A line for each epoch.
/// struct Epochs(GrowingFile);
///
/// #[hook(main_only, state)]
/// impl Epochs {
///     fn setup(&mut self, cx: &mut Cx<Main<Setup>>) -> Result<()> {
///         self.0.begin(cx)
///     }
///
///     fn after_load_checkpoint(&mut self, _: &mut Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
///         self.0.continue_after_resume()
///     }
///
///     fn after_epoch(&mut self, cx: &mut Cx<Main<AfterEpoch>>) -> Result<()> {
///         let line = format!("{} {}\n", cx.counters().epoch, cx.metrics()["train/loss"]);
///         self.0.append(cx, line.as_bytes())
///     }
/// }
///
/// impl State for Epochs {
///     fn save(&self) -> Result<Saved> {
///         self.0.save()
///     }
///
///     fn load(&mut self, saved: &Saved) -> Result<()> {
///         self.0.load(saved)
///     }
/// }
///
/// # fn main() {
/// let epochs = Epochs(GrowingFile::in_run_folder("epochs.txt"));
/// # }
/// ```
///
/// Rows that an interrupted run wrote after its last checkpoint are not deleted: the resumed run
/// moves them to `<file>.before-resume-<n>`. A file that is shorter than at the time of the
/// checkpoint is an error; other changes to the file are not detected.
#[derive(Debug)]
pub struct GrowingFile {
    place: Place,
    path: PathBuf,
    is_strict: bool,
    file: Option<File>,
    /// The number of bytes that belong to the run; `None` until it is known.
    position: Option<u64>,
    /// The bytes that could not be written yet.
    pending: Vec<u8>,
    has_failed: bool,
    /// Whether writing is disabled, in a smoke test.
    is_off: bool,
}

/// Where the file is.
#[derive(Debug)]
enum Place {
    At,
    InRunFolder,
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
            pending: Vec::new(),
            has_failed: false,
            is_off: false,
        }
    }

    /// Creates a handle to the file with this name in the
    /// [run folder](crate::TrainerBuilder::run_folder), without opening it.
    pub fn in_run_folder(name: impl Into<PathBuf>) -> Self {
        GrowingFile { place: Place::InRunFolder, ..GrowingFile::at(name) }
    }

    /// Whether a failed write ends the run. Defaults to `false`: a failed write is a
    /// [warning](crate::Cx::warn), and up to 16 MiB of rows stay in memory until the file can be
    /// written again. If there are more, all of them are dropped with another warning.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.is_strict = strict;
        self
    }

    /// The path of the file; only its name until the run folder is known.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the run has not appended anything to the file yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position.unwrap_or(0) == 0 && self.pending.is_empty()
    }

    /// Prepares the file for an entry point, and creates it for a new run; call this at `setup`.
    /// With [`fast_dev_run`](crate::TrainerBuilder::fast_dev_run), nothing is written.
    ///
    /// # Errors
    ///
    /// Returns an error if the file contains data of an earlier run that is not resumed, if it
    /// cannot be written, or if it belongs in a run folder and the run has none.
    pub fn begin<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        self.is_off = cx.is_fast_dev_run();
        if self.is_off {
            return Ok(());
        }
        if let Place::InRunFolder = self.place {
            let folder = cx.run_folder().ok_or_else(|| {
                Error::msg(format!(
                    "`{}` belongs in the run folder, but the trainer has none: set `.run_folder(\"runs/first\")`, or give \
                     the logger a path",
                    self.path.display()
                ))
            })?;
            (self.place, self.path) = (Place::At, folder.join(&self.path));
        }
        if self.position.is_some() || cx.is_resuming() {
            return Ok(());
        }
        if fs::metadata(&self.path).is_ok_and(|file| file.len() > 0) {
            return Err(self.error(
                "this file contains data of an earlier run: resume that run with `.resume(Resume::Auto)`, or choose \
                 another path",
            ));
        }
        self.open()
    }

    /// Continues the file in a resumed run; call this at `after_load_checkpoint`. Data beyond the
    /// position in the checkpoint is moved to a separate file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is shorter than at the time of the checkpoint, or cannot be
    /// written.
    pub fn continue_after_resume(&mut self) -> Result<()> {
        if self.is_off {
            return Ok(());
        }
        self.position.get_or_insert(0);
        self.file = None;
        self.open()
    }

    /// Appends bytes. If the file cannot be written, they are kept, and a later call writes them;
    /// see [`strict`](GrowingFile::strict).
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written and is [`strict`](GrowingFile::strict).
    pub fn append<P>(&mut self, cx: &mut Cx<P>, bytes: &[u8]) -> Result<()> {
        if self.is_off {
            return Ok(());
        }
        self.pending.extend_from_slice(bytes);
        let Err(error) = self.write_pending() else {
            self.has_failed = false;
            return Ok(());
        };
        if self.is_strict {
            return Err(error);
        }
        if self.pending.len() > MAX_PENDING {
            self.pending.clear();
            cx.warn(format!(
                "rows of {} are lost: the file could not be written, and the unwritten rows exceeded 16 MiB",
                self.path.display()
            ));
        }
        if !std::mem::replace(&mut self.has_failed, true) {
            cx.warn(format!(
                "{error}; the run continues, and the rows are written once the file can be written again"
            ));
        }
        Ok(())
    }

    fn write_pending(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.open()?;
        let (Some(file), Some(position)) = (&mut self.file, self.position) else { return Ok(()) };
        // After a partial write, the same bytes are written again.
        let written = file.seek(SeekFrom::Start(position)).and_then(|_| file.write_all(&self.pending));
        if let Err(error) = written {
            return Err(self.error(error));
        }
        self.position = Some(position + self.pending.len() as u64);
        self.pending.clear();
        Ok(())
    }

    /// Opens the file unless it is open, creating it if necessary, and moves any content beyond the
    /// position to a separate file. Returns an error if the file ends before the position.
    fn open(&mut self) -> Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let position = *self.position.get_or_insert(0);
        let opened = (|| {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file =
                File::options().read(true).write(true).create(true).truncate(false).open(&self.path)?;
            let length = file.metadata()?.len();
            if length < position {
                let text = format!(
                    "it has {length} bytes, but had {position} when the checkpoint was written: restore it, or resume \
                     from an earlier checkpoint"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if length > position {
                move_tail(&self.path, &mut file, position)?;
            }
            Ok(file)
        })();
        self.file = Some(opened.map_err(|error| self.error(error))?);
        Ok(())
    }

    fn error(&self, error: impl Into<BoxError>) -> Error {
        Error::File(Box::new(FileError { path: self.path.clone(), source: error.into() }))
    }
}

/// Moves the content beyond a position to a new file.
fn move_tail(path: &Path, file: &mut File, position: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(position))?;
    let mut aside = create_free(path)?;
    io::copy(&mut Read::by_ref(file), &mut aside)?;
    aside.sync_all()?;
    file.set_len(position)
}

/// Creates `<file>.before-resume-<n>` with the lowest unused `n`. TensorBoard reads every file with
/// `tfevents` in its name, so the new name avoids that word.
fn create_free(path: &Path) -> io::Result<File> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().replace("tfevents", "tf-events");
    let mut n = 1_u64;
    loop {
        match File::create_new(path.with_file_name(format!("{name}.before-resume-{n}"))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => n += 1,
            created => return created,
        }
    }
}

/// The state is the number of bytes that belong to the run. Saving it syncs them to disk; a failed
/// sync is an error only with [`strict`](GrowingFile::strict).
#[diagnostic::do_not_recommend]
impl State for GrowingFile {
    fn save(&self) -> Result<Saved> {
        if let Some(Err(error)) = self.file.as_ref().map(File::sync_data)
            && self.is_strict
        {
            return Err(self.error(error));
        }
        let mut saved = Saved::new();
        saved.value("position", &self.position)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.position = Some(saved.get::<Option<u64>>("position")?.unwrap_or(0));
        (self.file, self.pending) = (None, Vec::new());
        Ok(())
    }
}
