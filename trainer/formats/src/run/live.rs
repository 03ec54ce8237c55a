//! [`Live`]: what a run is doing right now, which the trainer writes about once a second.

use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use trainer_files::{Error, Links, in_file, open, read_start};

use super::file::MAX_BYTES;
use crate::float::Float;

/// The name of the file in a run folder that describes what the run is currently doing.
pub const LIVE_FILE: &str = "live.json";

/// The beginning of the file in all versions. The trainer does not wait until the file is on disk,
/// so a power loss may leave only the first bytes of the file, or zeros instead of its bytes.
const BEGIN: &str = "{\"format\":\"trainer live\"";
const FORMAT: &str = "trainer live";
const VERSION: u64 = 1;

/// The current activity of a run: the content of `live.json`. The trainer replaces the file at most
/// once a second, and when an entry point ends. Only programs that follow a run read it; nothing
/// else depends on it.
///
/// Counts and times are those of the process of rank 0.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Live {
    format: String,
    version: u64,
    /// When the file was written, in seconds since the Unix epoch.
    pub written: f64,
    /// The entry point: `fit`, `validate`, `test` or `predict`.
    pub entry: String,
    /// The time since the entry point began, in seconds.
    pub elapsed: f64,
    /// The phase: `train`, `sanity`, `valid`, `test` or `predict`.
    pub phase: String,
    /// The name of the loader, if it has one.
    #[serde(default)]
    pub loader: Option<String>,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The number of epochs after which the fit ends, if known in advance.
    #[serde(default)]
    pub epochs: Option<u64>,
    /// The number of completed batches in the current pass.
    pub batch: u64,
    /// The number of batches in the current pass, if known.
    #[serde(default)]
    pub batches: Option<u64>,
    /// The number of optimizer steps so far.
    pub optimizer_steps: u64,
    /// The number of optimizer steps before the entry point began or was resumed.
    #[serde(default)]
    pub first_step: u64,
    /// The number of optimizer steps after which the fit ends, if known in advance.
    #[serde(default)]
    pub planned_steps: Option<u64>,
    /// The number of training samples so far.
    pub samples_seen: u64,
    /// The memory of the process, in bytes, on systems that report it.
    #[serde(default)]
    pub memory: Option<u64>,
    /// The memory in bytes that libtorch has allocated on the task's device, if that is a GPU.
    #[serde(default)]
    pub device_memory: Option<u64>,
    /// The hooks, in the order of the trainer's hook table.
    #[serde(default)]
    pub hooks: Vec<LiveHook>,
    /// The logged values.
    #[serde(default)]
    pub logged: Vec<LiveValue>,
    /// The warnings of the entry point.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The newest checkpoint that this process has written.
    #[serde(default)]
    pub checkpoint: Option<String>,
    /// Whether the process writes a checkpoint when it receives SIGUSR1. If not, the signal may
    /// terminate the process.
    #[serde(default)]
    pub takes_checkpoint_requests: bool,
}

/// A hook of a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LiveHook {
    /// The path of the hook.
    pub name: String,
    /// The point at which the hook runs, or the operation that it wraps.
    pub moment: String,
    /// The number and time of the hook's calls in this entry point, if the run has a profile.
    #[serde(default)]
    pub time: Option<HookTime>,
}

impl LiveHook {
    /// Returns a hook without measured times.
    #[must_use]
    pub fn new(name: String, moment: String) -> Self {
        LiveHook { name, moment, time: None }
    }
}

/// The calls of a hook, summed over all phases.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct HookTime {
    /// The number of calls.
    pub calls: u64,
    /// The time of all calls in nanoseconds, excluding the operation that the hook wraps.
    pub nanos: u64,
}

/// A value that was logged in the current entry point.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LiveValue {
    /// The name, with its phase: `train/loss`.
    pub name: String,
    /// The index in [`Live::hooks`] of the hook that logs it; `None` for the trainer itself.
    #[serde(default)]
    pub hook: Option<usize>,
    /// The value in the last pass over data. `None` until a pass has ended, because the value may
    /// still be on a device.
    #[serde(default)]
    pub value: Option<Float>,
}

impl LiveValue {
    /// Returns a value with its name and its hook.
    #[must_use]
    pub fn new(name: String, hook: Option<usize>, value: Option<f64>) -> Self {
        LiveValue { name, hook, value: value.map(Float) }
    }
}

impl Live {
    /// Returns the activity of an entry point at its very start.
    #[must_use]
    pub fn new(entry: &str, phase: &str) -> Self {
        Live {
            format: FORMAT.to_owned(),
            version: VERSION,
            written: 0.0,
            entry: entry.to_owned(),
            elapsed: 0.0,
            phase: phase.to_owned(),
            loader: None,
            epoch: 0,
            epochs: None,
            batch: 0,
            batches: None,
            optimizer_steps: 0,
            first_step: 0,
            planned_steps: None,
            samples_seen: 0,
            memory: None,
            device_memory: None,
            hooks: Vec::new(),
            logged: Vec::new(),
            warnings: Vec::new(),
            checkpoint: None,
            takes_checkpoint_requests: false,
        }
    }

    /// Returns whether these bytes are a `live.json` that the trainer wrote, or the remains of such
    /// a file after a power loss: its first bytes, or zeros.
    #[must_use]
    pub fn is_of_trainer(bytes: &[u8]) -> bool {
        bytes.iter().zip(BEGIN.as_bytes()).all(|(byte, expected)| byte == expected || *byte == 0)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    ///
    /// Returns an error if serialization fails.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Reads the `live.json` in the folder of a run. Returns `None` if the file does not exist, was
    /// damaged by a power loss, or has an unknown later version.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or was not written by the trainer.
    pub fn in_folder(folder: impl AsRef<Path>) -> Result<Option<Self>, Error> {
        let path = folder.as_ref().join(LIVE_FILE);
        let (file, length) = match open(&path, Links::Refuse) {
            Err(error) if error.is_missing() => return Ok(None),
            opened => opened?,
        };
        let bytes = read_start(&path, &file, length.min(MAX_BYTES))?;
        if !Live::is_of_trainer(&bytes) {
            return Err(in_file(&path, "expected a `live.json` that the trainer wrote"));
        }
        Ok(serde_json::from_slice::<Live>(&bytes).ok().filter(|live| live.version <= VERSION))
    }

    /// Sets the time at which the file was written.
    pub fn set_time(&mut self, time: SystemTime) {
        self.written = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_recognized_by_its_beginning_and_read_as_it_was_written() {
        let mut live = Live::new("fit", "train");
        live.hooks.push(LiveHook::new("a::b".into(), "after_step".into()));
        live.logged.push(LiveValue::new("train/loss".into(), None, Some(f64::INFINITY)));
        let text = live.to_text().unwrap();
        assert!(text.starts_with(BEGIN), "{text}");
        assert_eq!(serde_json::from_str::<Live>(&text).unwrap(), live);
        for length in 0..text.len() {
            assert!(Live::is_of_trainer(&text.as_bytes()[..length]), "{length}");
        }
        assert!(Live::is_of_trainer(&[0; 100]));
        for other in ["[]", "{\"format\":\"trainer run\"", " {", "text"] {
            assert!(!Live::is_of_trainer(other.as_bytes()), "{other}");
        }
    }
}
