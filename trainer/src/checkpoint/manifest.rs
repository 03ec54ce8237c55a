//! The manifest: the JSON file that describes a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::files::{FORMAT, MANIFEST};
use super::sealed::{VERSION, read, read_sealed, write_sealed};
use super::tensors::FileDigest;
use super::text::from_text;
use crate::checkpoint::progress::LoopState;
use crate::error::Result;
use crate::libtorch;
use crate::values::facts::Facts;

/// The values of a saved state as text, by key.
pub(crate) type Values = BTreeMap<String, String>;

/// The content of `manifest.json`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Manifest {
    format: String,
    version: u64,
    /// The version of this crate that wrote the checkpoint.
    trainer: String,
    /// The version of libtorch.
    pub(crate) libtorch: String,
    /// The number of libtorch threads. With a different number, results may differ in the last
    /// bits.
    pub(crate) threads: i32,
    pub(crate) device: String,
    /// The time at which the checkpoint was written, in milliseconds since 1970.
    written_at: u64,
    /// The settings and hooks of the program that determine the result.
    pub(crate) facts: Facts,
    /// The builder's and the program's settings that a resumed run may change.
    pub(crate) length: BTreeMap<String, String>,
    /// The states of all parts of the run on rank 0, without their tensors.
    pub(crate) parts: BTreeMap<String, Values>,
    /// The ranks that wrote the checkpoint, if several processes trained together. Each rank except
    /// rank 0 wrote its own rank files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) saved_by: Option<SavedBy>,
    /// Only in version 7: the states that differ between ranks, for ranks 1, 2 and so on. The
    /// tensors of these states are in the files of rank 0.
    #[serde(default, skip_serializing)]
    pub(crate) ranks: Vec<BTreeMap<String, Values>>,
    /// The parts that a resumed program may lack.
    pub(crate) left_out: BTreeSet<String>,
    /// The part that saved averaged weights, if any.
    pub(crate) averages: Option<String>,
    /// The values that hooks saved at `before_save_checkpoint`, as text.
    pub(crate) saved: Values,
    /// The reasons why a run cannot resume exactly from this checkpoint.
    pub(crate) inexact: Vec<String>,
    pub(crate) files: BTreeMap<String, FileDigest>,
    /// The hash of the executable that wrote the checkpoint, and the commit of its repository.
    #[serde(default)]
    pub(crate) program: [Option<String>; 2],
}

/// The ranks that wrote a checkpoint.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct SavedBy {
    /// The number of ranks, at least 2.
    pub(crate) ranks: u32,
    /// The name of this save, which the files of all ranks repeat.
    pub(crate) save: String,
}

impl SavedBy {
    /// Describes a save that begins now, with a new unique name.
    pub(crate) fn now(ranks: u32) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        SavedBy { ranks, save: format!("{:x}-{:x}", since.as_nanos(), std::process::id()) }
    }
}

impl Manifest {
    pub(crate) fn new(threads: i32, device: String) -> Self {
        Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            trainer: env!("CARGO_PKG_VERSION").to_owned(),
            libtorch: libtorch::version(),
            threads,
            device,
            written_at: now(),
            facts: Facts::default(),
            length: BTreeMap::new(),
            parts: BTreeMap::new(),
            saved_by: None,
            ranks: Vec::new(),
            left_out: BTreeSet::new(),
            averages: None,
            saved: Values::new(),
            inexact: Vec::new(),
            files: BTreeMap::new(),
            program: [None, None],
        }
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        write_sealed(&folder.join(MANIFEST), self)
    }

    pub(crate) fn load(folder: &Path) -> Result<Self> {
        read_sealed(&folder.join(MANIFEST), FORMAT)
    }

    /// The number of ranks that wrote the checkpoint.
    pub(crate) fn size(&self) -> u32 {
        let before_8 = u32::try_from(1 + self.ranks.len()).unwrap_or(u32::MAX);
        self.saved_by.as_ref().map_or(before_8, |saved_by| saved_by.ranks)
    }
}

/// The progress of a run, ordered by its counters; the time of writing only breaks ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Progress {
    /// The number of fits that had begun.
    pub(crate) fits: u64,
    /// The number of training batches.
    pub(crate) train_batches: u64,
    epochs_done: u64,
    written_at: u64,
}

impl Progress {
    /// Reads the progress from the manifest in a folder; `None` if the manifest cannot be read. Its
    /// hash is not verified.
    pub(crate) fn load(folder: &Path) -> Option<Self> {
        #[derive(Deserialize)]
        struct Head {
            parts: Parts,
            written_at: u64,
        }
        #[derive(Deserialize)]
        struct Parts {
            r#loop: Loop,
        }
        #[derive(Deserialize)]
        struct Loop {
            progress: String,
        }
        let Head { parts, written_at } = serde_json::from_slice(&read(&folder.join(MANIFEST)).ok()?).ok()?;
        let LoopState { fits_begun: fits, train_batches, epochs_done, .. } =
            from_text(&parts.r#loop.progress).ok()?;
        Some(Progress { fits, train_batches, epochs_done, written_at })
    }

    /// Estimates the progress of a checkpoint whose manifest cannot be read, from the step in its
    /// name and the modification time of its folder. The estimate is greater than the progress of
    /// any checkpoint whose manifest can be read.
    pub(crate) fn of_damaged(step: u64, modified: Duration) -> Self {
        let written_at = u64::try_from(modified.as_millis()).unwrap_or_default();
        Progress { fits: u64::MAX, train_batches: step, epochs_done: 0, written_at }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
