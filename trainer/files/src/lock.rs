//! Locks of folders, and of files that are being written.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Process, Result, create, create_folders, in_file, open_or_create, read_small, remove_file};

/// The file that is locked while a trainer uses a folder.
const LOCK: &str = ".trainer-lock";
/// On a file system without locks, the file that exists while a trainer uses a folder. It names the
/// process.
const OWNER: &str = ".trainer-lock-owner";
/// Exists while a process replaces the owner file of a process that no longer exists.
const TAKEOVER: &str = ".trainer-lock-takeover";
/// The maximum size of an owner file that is read, in bytes.
const MAX_OWNER_BYTES: u64 = 1 << 12;

/// The answer to a request for a lock.
#[derive(PartialEq, Eq)]
enum Answer {
    Locked,
    LockedByAnother,
    /// The file system has no locks: some of Lustre, of NFS without its daemon, and of FUSE.
    NoLocks,
}

/// Locks a file without waiting.
fn try_lock(file: &File) -> io::Result<Answer> {
    #[cfg(feature = "faults")]
    if crate::fault::has_no_locks() {
        return Ok(Answer::NoLocks);
    }
    match file.try_lock() {
        Ok(()) => Ok(Answer::Locked),
        Err(TryLockError::WouldBlock) => Ok(Answer::LockedByAnother),
        Err(TryLockError::Error(error)) if has_no_locks(&error) => Ok(Answer::NoLocks),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether an error says that the file system has no locks (`ENOSYS`, `EOPNOTSUPP`, `ENOLCK`,
/// `EINVAL`), or none for this kind of file (`EBADF`: on NFS, a folder cannot be locked).
fn has_no_locks(error: &io::Error) -> bool {
    #[cfg(unix)]
    if let Some(libc::ENOLCK | libc::EBADF) = error.raw_os_error() {
        return true;
    }
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput)
}

/// The lock of a folder, released when dropped.
///
/// The lock is that of the operating system on the file `.trainer-lock`, which ends with the
/// process. Where the file system has none, the file `.trainer-lock-owner` takes its place, with
/// the host, the ID and the start of the process. One that a killed process on this host has left
/// is replaced.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
    /// The owner file, on a file system without locks.
    owner: Option<PathBuf>,
}

impl Lock {
    /// Locks a folder. Creates the folder if it does not exist.
    pub fn acquire(folder: &Path) -> Result<Self> {
        Self::acquire_or(folder, "the folder is locked by another trainer: give each run its own folder")
    }

    /// Locks a folder, like [`acquire`](Lock::acquire). If it is locked, returns an error with the
    /// text `busy`.
    pub fn acquire_or(folder: &Path, busy: &str) -> Result<Self> {
        create_folders(folder)?;
        let path = folder.join(LOCK);
        let (file, _) = open_or_create(&path)?;
        let owner = match try_lock(file.file()).map_err(|error| in_file(&path, error))? {
            Answer::Locked => None,
            Answer::LockedByAnother => return Err(in_file(folder, busy.to_owned())),
            Answer::NoLocks => Some(own(folder, busy)?),
        };
        Ok(Lock { path, file: file.into_file(), owner })
    }

    /// Whether the folder still contains the locked file; `false` if the folder was removed or
    /// replaced in the meantime. On platforms other than Unix, a replacement is not detected.
    #[must_use]
    pub fn is_held(&self) -> bool {
        is_at(&self.file, &self.path)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        match &self.owner {
            Some(owner) if self.is_held() => drop(remove_file(owner)),
            Some(_) => {}
            // Closing the file is not enough: a child process that was forked and has not called
            // `exec` yet shares the open file, and with it the lock.
            None => drop(self.file.unlock()),
        }
    }
}

/// Creates the owner file of a folder, and returns its path.
fn own(folder: &Path, busy: &str) -> Result<PathBuf> {
    let path = folder.join(OWNER);
    if create_owner(&path)? {
        return Ok(path);
    }
    let held = |who: String| {
        let file = path.display();
        let why = format!(
            "{busy} (by {who}; this file system has no locks: if that process has ended, remove {file})"
        );
        Err(in_file(folder, why))
    };
    // Only one process at a time looks whether the owner has ended, so none removes the file of
    // another that has just replaced it.
    let takeover = folder.join(TAKEOVER);
    if !create_owner(&takeover)? {
        return held(format!("the process in {}, which is taking it over", takeover.display()));
    }
    let owner = read_small(&path, MAX_OWNER_BYTES).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let owned = match &owner {
        Some(owner) if Process::exists(owner) == Some(false) => {
            remove_file(&path).and_then(|()| create_owner(&path))
        }
        _ => Ok(false),
    };
    remove_file(&takeover)?;
    match (owned?, owner) {
        (true, _) => Ok(path),
        (false, Some(owner)) => {
            held(format!("process {} on {}", owner.id, owner.host.as_deref().unwrap_or("an unknown host")))
        }
        (false, None) => held("an unknown process".to_owned()),
    }
}

/// Creates a file that names this process. Returns `false` if it exists.
fn create_owner(path: &Path) -> Result<bool> {
    let text = serde_json::to_vec(&Process::current()).map_err(|error| in_file(path, error))?;
    match create(path) {
        Ok(mut file) => file.write(&text).map(|()| true),
        Err(error) if error.is_present() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns a string that identifies the lock file of a folder. The string differs between folders,
/// and is the same on all hosts that share the folder. Returns `None` if the metadata of the file
/// cannot be read.
#[must_use]
pub fn lock_identity(folder: &Path) -> Option<String> {
    let metadata = fs::symlink_metadata(folder.join(LOCK)).ok()?;
    let modified = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let number = 0;
    Some(format!("{} {number}", modified.as_nanos()))
}

/// The lock of a temporary file or folder, held by the process that writes it. A file or folder
/// whose lock is held is not a leftover of a killed process.
#[derive(Debug)]
pub struct Claim(File);

impl Claim {
    /// Claims a temporary file or folder. Returns `None` if another process is writing it, or if it
    /// was removed in the meantime. On a file system without locks, nothing counts as claimed.
    pub(super) fn of(path: &Path, file: File) -> Option<Self> {
        let is_free = !matches!(try_lock(&file), Ok(Answer::LockedByAnother));
        let claim = Claim(file);
        (is_free && is_at(&claim.0, path)).then_some(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.0.unlock(); // see `Lock`
    }
}

/// Whether the file at a path is this open file.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let [own, at_path] = [file.metadata(), fs::symlink_metadata(path)]
            .map(|metadata| metadata.ok().map(|metadata| (metadata.dev(), metadata.ino())));
        own == at_path
    }
    #[cfg(not(unix))]
    {
        file.metadata().is_ok() && path.exists()
    }
}

#[cfg(all(test, feature = "faults", target_os = "linux"))]
mod tests {
    use super::*;
    use crate::fault::without_locks;
    use crate::{TemporaryFolder, write};

    #[test]
    fn a_folder_on_a_file_system_without_locks_is_locked_by_a_file_that_outlives_no_process() {
        let root = TemporaryFolder::create("no-locks").unwrap();
        let folder = root.path().join("run");
        let owner = folder.join(OWNER);
        without_locks(|| {
            let lock = Lock::acquire(&folder).unwrap();
            assert!(lock.is_held() && owner.exists());
            let error = Lock::acquire(&folder).unwrap_err().to_string();
            let advice = format!("if that process has ended, remove {})", owner.display());
            assert!(error.contains("locked by another trainer") && error.ends_with(&advice), "{error}");
            assert!(error.contains(&format!("process {} on ", std::process::id())), "{error}");
            drop(lock);
            assert!(!owner.exists());

            // A process that was killed on this host.
            let mut dead = Process::current();
            dead.started = dead.started.map(|ticks| ticks + 1);
            write(&owner, &serde_json::to_vec(&dead).unwrap()).unwrap();
            drop(Lock::acquire(&folder).unwrap());
            // Of processes on other hosts, and of damaged files, nothing is known: the advice
            // helps.
            dead.host = Some("far".to_owned());
            for unknown in [serde_json::to_vec(&dead).unwrap(), Vec::new(), b"[".to_vec()] {
                write(&owner, &unknown).unwrap();
                let error = Lock::acquire(&folder).unwrap_err().to_string();
                assert!(error.ends_with(&advice), "{error}");
                remove_file(&owner).unwrap();
                drop(Lock::acquire(&folder).unwrap());
            }
            let names: Vec<_> = crate::entries(&folder).unwrap();
            assert_eq!(names, [folder.join(LOCK)]);
        });
        let lock = Lock::acquire(&folder).unwrap();
        assert!(!owner.exists() && Lock::acquire(&folder).is_err());
        drop(lock);
    }

    #[test]
    fn only_errors_that_deny_a_lock_at_all_count_as_no_locks() {
        for code in [libc::ENOSYS, libc::EOPNOTSUPP, libc::ENOLCK, libc::EINVAL, libc::EBADF] {
            assert!(has_no_locks(&io::Error::from_raw_os_error(code)), "{code}");
        }
        for code in [libc::EIO, libc::EINTR, libc::EACCES, libc::ESTALE, libc::ENOSPC] {
            assert!(!has_no_locks(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }
}
