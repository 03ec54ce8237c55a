//! The manifest: the JSON file that describes a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::files::{FORMAT, MANIFEST, MAX_MANIFEST_BYTES};
use super::tensors::FileDigest;
use super::text::from_text;
use crate::checkpoint::progress::LoopState;
use crate::error::Result;
use crate::io::files::{Links, in_file, open, read_start, write};
use crate::libtorch;
use crate::values::facts::Facts;

/// The version of the format. Checkpoints with any other version are refused.
const VERSION: u64 = 7;

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
    /// The number of libtorch threads: with another number, results may differ in the last bits.
    pub(crate) threads: i32,
    pub(crate) device: String,
    /// The time at which the checkpoint was written, in milliseconds since 1970.
    written_at: u64,
    /// What decides the result, as the program has set it.
    pub(crate) facts: Facts,
    /// The settings of the builder and of the program that a resumed run may change.
    pub(crate) length: BTreeMap<String, String>,
    /// The states of the parts of the run, without their tensors: of all parts on rank 0.
    pub(crate) parts: BTreeMap<String, Values>,
    /// The states of the parts that differ between ranks, for ranks 1, 2 and so on; empty unless
    /// several processes trained together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ranks: Vec<BTreeMap<String, Values>>,
    /// The parts that a resume does not miss.
    pub(crate) left_out: BTreeSet<String>,
    /// The part that saved the averages, if one did.
    pub(crate) averages: Option<String>,
    /// The values that hooks saved at `before_save_checkpoint`, as text.
    pub(crate) saved: Values,
    /// The reasons why a run cannot resume exactly from this checkpoint.
    pub(crate) inexact: Vec<String>,
    pub(crate) files: BTreeMap<String, FileDigest>,
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
            ranks: Vec::new(),
            left_out: BTreeSet::new(),
            averages: None,
            saved: Values::new(),
            inexact: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(MANIFEST);
        let mut json = serde_json::to_value(self).map_err(|error| in_file(&path, error))?;
        let hash = hash(&json);
        if let Some(fields) = json.as_object_mut() {
            fields.insert(HASH.to_owned(), hash.into());
        }
        let mut text = Growing(Vec::new());
        serde_json::to_writer_pretty(&mut text, &json).map_err(|error| in_file(&path, error))?;
        let Growing(text) = text;
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            let text = format!(
                "the states of hooks make the manifest {} bytes long, over the limit of {MAX_MANIFEST_BYTES}: save large state as tensors",
                text.len()
            );
            return Err(in_file(&path, text));
        }
        write(&path, &text)
    }

    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let mut json: Json = serde_json::from_slice(&read(&path)?).map_err(|error| {
            in_file(
                &path,
                format!("the file contains invalid JSON: {error}; restore it, or use another checkpoint"),
            )
        })?;
        if json.get("format").and_then(Json::as_str) != Some(FORMAT) {
            let text = format!(
                "its field `format` is not `{FORMAT}`: this is not a checkpoint of this trainer; use another checkpoint"
            );
            return Err(in_file(&path, text));
        }
        match json.get("version").and_then(Json::as_u64) {
            Some(VERSION) => {}
            Some(other) => {
                let text = format!(
                    "its `version` is {other}, but this trainer reads version {VERSION}: resume with the version of `trainer` \
                     that wrote it"
                );
                return Err(in_file(&path, text));
            }
            None => {
                return Err(in_file(
                    &path,
                    "its field `version` is missing or not a number: the file was changed or damaged; \
                     restore it, or use another checkpoint",
                ));
            }
        }
        let digest = json.as_object_mut().and_then(|fields| fields.remove(HASH));
        if digest != Some(hash(&json).into()) {
            return Err(in_file(
                &path,
                "its hash differs from the recorded one: the file was changed or damaged; restore it, or use another checkpoint",
            ));
        }
        serde_path_to_error::deserialize(&json).map_err(|error| {
            in_file(
                &path,
                format!(
                    "its field `{}` cannot be read: {}; restore the file, or use another checkpoint",
                    error.path(),
                    error.inner()
                ),
            )
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let (file, length) = open(path, Links::Refuse)?;
    if length > MAX_MANIFEST_BYTES {
        return Err(in_file(
            path,
            format!(
                "expected a manifest of at most {MAX_MANIFEST_BYTES} bytes, found a file of {length} bytes: \
                 restore it, or use another checkpoint"
            ),
        ));
    }
    read_start(path, &file, length)
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

/// The field that holds the hash of all other fields.
const HASH: &str = "blake3";

/// Returns the hash of the compact text, without storing the text.
fn hash(json: &Json) -> String {
    let mut hasher = blake3::Hasher::new();
    serde_json::to_writer(&mut hasher, json).expect("a hasher accepts every byte");
    hasher.finalize().to_hex().to_string()
}

/// Bytes in memory, whose growth can fail.
struct Growing(Vec<u8>);

impl io::Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_reserve(bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
