//! [`Process`]: the process that writes a run, and whether it still exists.

use std::fs;
use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

/// A process, identified so that a later process with the same ID is not mistaken for it.
///
/// On systems other than Linux, all fields except `id` are `None`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Process {
    /// The ID of the process.
    pub id: u32,
    /// The name of the host.
    #[serde(default)]
    pub host: Option<String>,
    /// The ID of the host's last boot.
    #[serde(default)]
    pub boot: Option<String>,
    /// The namespace of the process ID. Each container has a namespace of its own.
    #[serde(default)]
    pub namespace: Option<String>,
    /// When the process started, in clock ticks since the boot, because process IDs are reused.
    #[serde(default)]
    pub started: Option<u64>,
}

impl Process {
    /// Returns this process.
    #[must_use]
    pub fn current() -> Self {
        let id = std::process::id();
        let text = |path| Some(fs::read_to_string(path).ok()?.trim().to_owned());
        Process {
            id,
            host: text("/proc/sys/kernel/hostname"),
            boot: text("/proc/sys/kernel/random/boot_id"),
            namespace: fs::read_link("/proc/self/ns/pid").ok().map(|link| link.display().to_string()),
            started: fs::read_to_string("/proc/self/stat").ok().and_then(|stat| start_of(&stat)),
        }
    }

    /// Returns whether the process still exists. Returns `None` if that cannot be determined, for
    /// example because the process belongs to a different host or container, or because this system
    /// is not Linux.
    #[must_use]
    pub fn exists(&self) -> Option<bool> {
        self.exists_beside(&Process::current())
    }

    /// Returns whether the process exists, as seen by the process `here`.
    fn exists_beside(&self, here: &Process) -> Option<bool> {
        let (started, boot) = (self.started?, self.boot.as_ref()?);
        if self.host.is_none() || self.host != here.host {
            return None;
        }
        if Some(boot) != here.boot.as_ref() {
            return Some(false);
        }
        if self.namespace != here.namespace {
            return None;
        }
        match fs::read_to_string(format!("/proc/{}/stat", self.id)) {
            Ok(stat) => Some(start_of(&stat) == Some(started)),
            // If the processes of other users are hidden, then so is the process with ID 1.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::exists("/proc/1").ok().filter(|is_visible| *is_visible).map(|_| false)
            }
            Err(_) => None,
        }
    }
}

/// Returns when a process started, given the text of its `/proc/<id>/stat`. Returns `None` for a
/// process that has ended but is still listed there because its parent has not waited for it.
fn start_of(stat: &str) -> Option<u64> {
    // The second field is the name of the program, which may contain any characters.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_identified_by_more_than_its_id_and_exists_until_it_ends() {
        let own = Process::current();
        assert_eq!(own.exists(), Some(true));
        let other = |change: fn(&mut Process)| {
            let mut other = own.clone();
            change(&mut other);
            other.exists()
        };
        assert_eq!(other(|other| other.started = other.started.map(|ticks| ticks + 1)), Some(false));
        assert_eq!(other(|other| other.boot = Some("another".into())), Some(false));
        assert_eq!(other(|other| other.id = u32::MAX), Some(false));
        assert_eq!(other(|other| other.host = Some("another".into())), None);
        assert_eq!(other(|other| other.namespace = Some("another".into())), None);
        assert_eq!(other(|other| other.started = None), None);
    }

    #[test]
    fn a_zombie_process_does_not_exist() {
        let fields = "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 77 0";
        assert_eq!(start_of(&format!("3 (a) b) S {fields}")), Some(77));
        assert_eq!(start_of(&format!("3 (a) b) Z {fields}")), None);
        assert_eq!(start_of("3"), None);
    }
}
