//! The operations that change files and folders.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::panic::resume_unwind;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use crate::{Error, Links, Result, folder_of, in_file, is_folder, metadata, open_with};

/// Permits every operation. With the feature `faults`, `fault::permit` takes its place, and can
/// make operations fail.
#[cfg(not(feature = "faults"))]
fn permit(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(feature = "faults")]
use crate::fault::permit;

/// The number of bytes that are written before the disk begins to store them.
const FLUSHED: usize = 1 << 25;

/// An open file that is written.
#[derive(Debug)]
pub struct Output {
    file: File,
    path: PathBuf,
    /// Asks the thread of [`while_flushed`](Output::while_flushed) to flush, and the number of
    /// bytes since it was last asked.
    flusher: Option<(SyncSender<()>, usize)>,
}

impl Output {
    fn new(file: File, path: &Path) -> Self {
        Output { file, path: path.to_owned(), flusher: None }
    }

    /// Returns the path under which the file was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open file, for reading and locking it.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the open file, for example to pass it to another process as its output.
    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }

    /// Returns the current length of the file.
    ///
    /// # Errors
    ///
    /// Returns an error if the system does not report it.
    pub fn length(&self) -> Result<u64> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(|error| in_file(&self.path, error))
    }

    /// Whether the path still leads to this file, which was not removed or replaced.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let (Ok(own), Ok(there)) = (self.file.metadata(), fs::symlink_metadata(&self.path)) else {
            return false;
        };
        is_same(&own, &there)
    }

    /// Writes at the current position.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Err(error) = permit(&self.path) {
            let _ = self.file.write_all(&bytes[..bytes.len() / 2]); // as a kill or a full disk may
            return Err(in_file(&self.path, error));
        }
        self.file.write_all(bytes).map_err(|error| in_file(&self.path, error))?;
        if let Some((flusher, unflushed)) = &mut self.flusher {
            *unflushed += bytes.len();
            if *unflushed >= FLUSHED && flusher.try_send(()).is_ok() {
                *unflushed = 0;
            }
        }
        Ok(())
    }

    /// Calls `work`, which writes much, while another thread makes the disk store what is already
    /// written. A later [`sync`](Output::sync) then has little to wait for.
    ///
    /// # Errors
    ///
    /// Returns the error of `work`, or an error if what it wrote cannot be stored.
    pub fn while_flushed<T, E: From<Error>>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let Ok(file) = self.file.try_clone() else { return work(self) };
        let (sender, requests) = sync_channel(1);
        thread::scope(|scope| {
            let flush = move || requests.iter().try_for_each(|()| unless_tested(|| file.sync_data()));
            let Ok(flushing) = thread::Builder::new().spawn_scoped(scope, flush) else { return work(self) };
            self.flusher = Some((sender, 0));
            let done = work(WithFlusher(self).0);
            let flushed = flushing.join().unwrap_or_else(|panic| resume_unwind(panic));
            // The system reports a failure only once, so that `sync` may not see it.
            done.and_then(|done| flushed.map(|()| done).map_err(|error| in_file(&self.path, error).into()))
        })
    }

    /// Writes at a position, counted from the start of the file.
    pub fn write_at(&mut self, position: u64, bytes: &[u8]) -> Result<()> {
        self.file.seek(SeekFrom::Start(position)).map_err(|error| in_file(&self.path, error))?;
        self.write(bytes)
    }

    /// Shortens the file to this length.
    pub fn cut(&self, length: u64) -> Result<()> {
        let cut = permit(&self.path).and_then(|()| self.file.set_len(length));
        cut.map_err(|error| in_file(&self.path, error))
    }

    /// Waits until the content is on disk.
    pub fn sync(&self) -> Result<()> {
        permit(&self.path).and_then(|()| sync_file(&self.file)).map_err(|error| in_file(&self.path, error))
    }
}

/// An output whose flusher ends with this value, also if a panic drops it.
struct WithFlusher<'o>(&'o mut Output);

impl Drop for WithFlusher<'_> {
    fn drop(&mut self) {
        self.0.flusher = None;
    }
}

#[cfg(unix)]
fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;

    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same(_: &fs::Metadata, other: &fs::Metadata) -> bool {
    other.is_file()
}

/// Creates a file, which must not exist yet.
pub fn create(path: &Path) -> Result<Output> {
    try_create(path).map_err(|error| in_file(path, error))
}

pub(super) fn try_create(path: &Path) -> io::Result<Output> {
    permit(path)?;
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    Ok(Output::new(file, path))
}

/// Opens a file for reading and writing, creating it if it does not exist, and returns it with its
/// length.
pub fn open_or_create(path: &Path) -> Result<(Output, u64)> {
    loop {
        match open_with(File::options().read(true).write(true), path, Links::Refuse) {
            Ok((file, length)) => return Ok((Output::new(file, path), length)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(in_file(path, error)),
        }
        match try_create(path) {
            Ok(created) => {
                sync(folder_of(path))?;
                return Ok((created, 0));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // in the meantime
            Err(error) => return Err(in_file(path, error)),
        }
    }
}

/// Opens a file for appending, creating it if it does not exist, for example to pass it to another
/// process as its output.
pub fn append(path: &Path) -> Result<File> {
    let (file, _) = open_or_create(path)?;
    drop(file);
    let opened = open_with(File::options().append(true), path, Links::Refuse);
    opened.map(|(file, _)| file).map_err(|error| in_file(path, error))
}

/// Creates a new file at `path`. If `path` exists, adds the first free number to the name of the
/// file, as in `run-2.json` or `run-2.trace.json`.
pub fn create_numbered(path: &Path) -> Result<Output> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (stem, suffix) = name.split_at(name.find('.').filter(|at| *at > 0).unwrap_or(name.len()));
    for number in 1_u32.. {
        let numbered = match number {
            1 => path.to_owned(),
            number => path.with_file_name(format!("{stem}-{number}{suffix}")),
        };
        match try_create(&numbered) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map_err(|error| in_file(&numbered, error)),
        }
    }
    Err(in_file(path, "every numbered name is taken: remove some of these files"))
}

/// Writes a small new file, and waits until it is on disk.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = create(path)?;
    file.write(bytes)?;
    file.sync()
}

/// Creates `path` as a hard link to the file `from`, and appends `bytes` to it. Returns `false`,
/// without creating `path`, if `from` is not `length` bytes long or cannot be linked.
///
/// Existing bytes do not change, so `from` remains valid up to its recorded length.
pub fn link_and_append(from: &Path, length: u64, path: &Path, bytes: &[u8]) -> Result<bool> {
    let is_as_written =
        fs::symlink_metadata(from).is_ok_and(|metadata| metadata.is_file() && metadata.len() == length);
    if !is_as_written || permit(path).and_then(|()| fs::hard_link(from, path)).is_err() {
        return Ok(false);
    }
    let opened = open_with(File::options().append(true), path, Links::Refuse);
    let (file, _) = opened.map_err(|error| in_file(path, error))?;
    let mut file = Output::new(file, path);
    file.write(bytes)?;
    file.sync()?;
    Ok(true)
}

/// Creates a folder. Returns `false` if the path already exists.
pub fn create_new_folder(path: &Path) -> Result<bool> {
    match try_create_folder(path) {
        Ok(()) => sync(folder_of(path)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(in_file(path, error)),
    }
}

/// Creates a folder, which must not exist yet.
pub(super) fn try_create_folder(path: &Path) -> io::Result<()> {
    permit(path)?;
    fs::create_dir(path)
}

/// Creates a folder and its parents, unless they exist, at a path that the program has chosen.
/// Existing folders on this path may be links. Waits until the new folders are on disk.
pub fn create_folders(path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    create_folders(folder_of(path))?;
    create_unless_present(path, Path::is_dir)
}

/// Creates the folder `path` and the folders between `root` and `path`, unless they exist. None of
/// these folders may be a link. `root` must exist.
pub fn create_folders_below(root: &Path, path: &Path) -> Result<()> {
    for folder in folders_below(root, path)? {
        match metadata(&folder)? {
            Some(found) if found.is_dir() => {}
            Some(found) => {
                let found = if found.is_symlink() { "a symbolic link" } else { "a file" };
                return Err(in_file(&folder, format!("expected a folder, found {found}: move it elsewhere")));
            }
            None => create_unless_present(&folder, is_folder)?,
        }
    }
    Ok(())
}

/// Returns the folders between `root` and `path`, outermost first, followed by `path` itself.
fn folders_below(root: &Path, path: &Path) -> Result<Vec<PathBuf>> {
    let mut folder = root.to_owned();
    let relative = path.strip_prefix(root).ok();
    let folders = relative.into_iter().flat_map(Path::components).map(|component| {
        let Component::Normal(name) = component else { return None };
        folder.push(name);
        Some(folder.clone())
    });
    let folders: Option<Vec<_>> = folders.collect();
    folders
        .filter(|_| relative.is_some())
        .ok_or_else(|| in_file(path, format!("expected a path inside of the folder `{}`", root.display())))
}

fn create_unless_present(path: &Path, is_present: fn(&Path) -> bool) -> Result<()> {
    if create_new_folder(path)? || is_present(path) {
        return Ok(());
    }
    Err(in_file(path, "expected a folder, found something else: move it elsewhere"))
}

/// Renames a file or a folder. The caller makes sure that `to` may be replaced.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    permit(to).and_then(|()| fs::rename(from, to)).map_err(|error| in_file(to, error))
}

/// Removes a file that this crate wrote. A file that does not exist is not an error.
pub fn remove_file(path: &Path) -> Result<()> {
    match permit(path).and_then(|()| fs::remove_file(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(in_file(path, error)),
        _ => Ok(()),
    }
}

/// Removes a folder if it is empty.
pub fn remove_empty_folder(path: &Path) -> Result<()> {
    match permit(path).and_then(|()| fs::remove_dir(path)) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
            Err(in_file(path, error))
        }
        _ => Ok(()),
    }
}

/// Waits until the entries of a folder are on disk. Does nothing on platforms other than Unix.
pub fn sync(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        match permit(folder).and_then(|()| File::open(folder)).and_then(|folder| sync_file(&folder)) {
            Err(error) if has_no_sync(&error) => {}
            synced => synced.map_err(|error| in_file(folder, error))?,
        }
    }
    Ok(())
}

/// Whether an error says that the file system cannot sync folders, as on some of CIFS and FUSE
/// (`EINVAL`, `ENOSYS`, `EOPNOTSUPP`, `EBADF`).
fn has_no_sync(error: &io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::EBADF) {
        return true;
    }
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput)
}

/// Waits until the content of a file is on disk, except in a process that tests faults.
fn sync_file(file: &File) -> io::Result<()> {
    unless_tested(|| file.sync_all())
}

fn unless_tested(sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    #[cfg(feature = "faults")]
    if crate::fault::is_used() {
        return Ok(());
    }
    sync()
}

/// Tries the names that `make` returns for the numbers 1, 2, …, and returns the first path next to
/// `path` that is free. Also returns the path with the previous number, which exists, if there is
/// one.
pub fn free_name(path: &Path, make: impl Fn(&str, u64) -> String) -> Result<(PathBuf, Option<PathBuf>)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut newest = None;
    for number in 1.. {
        let free = path.with_file_name(make(&name, number));
        if metadata(&free)?.is_none() {
            return Ok((free, newest));
        }
        newest = Some(free);
    }
    Err(in_file(path, "every numbered name is taken: remove some of these files"))
}
