//! What a checkpoint says of itself, in a file to be read by people too.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::folder::{in_file, read, write};
use super::tensors::Seal;
use crate::counters::StepState;
use crate::error::Result;
use crate::training::{FitPlace, Window};

/// The name of the file.
pub(super) const NAME: &str = "manifest.json";

const FORMAT: &str = "trainer checkpoint";

/// Of the format; a newer one is refused.
const VERSION: u64 = 1;

/// What a checkpoint says of itself.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Manifest {
    format: String,
    version: u64,
    /// The version of this crate that wrote it.
    trainer: String,
    /// How many threads libtorch computed with: another number gives other last bits.
    pub(super) threads: i32,
    pub(super) device: String,
    pub(super) run: RunState,
    pub(super) optimizers: Vec<OptimizerState>,
    /// Every hook that there was, in the order of the lifecycle.
    pub(super) hooks: Vec<String>,
    /// The states of those that keep one.
    pub(super) states: Vec<HookState>,
    /// What hooks saved at `before_save_checkpoint`.
    pub(super) saved: BTreeMap<String, Json>,
    /// What would keep a run from going on from here as if nothing had happened.
    pub(super) inexact: Vec<String>,
    pub(super) files: BTreeMap<String, Seal>,
}

/// The counters of a run, and its place in the epoch.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct RunState {
    pub(super) step: StepState,
    pub(super) epochs_begun: u64,
    pub(super) epochs_done: u64,
    pub(super) train_batches: u64,
    pub(super) place: FitPlace,
    pub(super) window: Window,
    /// Epochs and optimizer steps when the fit began.
    pub(super) began: (u64, u64),
    /// How long it has taken.
    pub(super) spent: Duration,
    pub(super) stop: Option<String>,
    pub(super) end_epoch: bool,
    /// What was logged, metrics and history: numbers may be NaN there.
    pub(super) log: Json,
}

/// The settings of an optimizer: its tensors are in a file of their own.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct OptimizerState {
    /// The part of the model; empty for the whole.
    pub(super) part: String,
    /// For each parameter group its hyperparameters.
    pub(super) groups: Json,
    /// The learning rates of its last step.
    pub(super) used_lrs: Json,
    /// How many steps it has taken.
    pub(super) steps: u64,
}

/// The state of one value with hooks.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct HookState {
    /// Its type.
    pub(super) hook: String,
    /// Which of the values of that type, from 0.
    pub(super) nth: usize,
    pub(super) values: BTreeMap<String, Json>,
    /// The names of its tensors.
    pub(super) tensors: Vec<String>,
}

impl Manifest {
    pub(super) fn new(threads: i32, device: String, run: RunState, inexact: Vec<String>) -> Self {
        Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            trainer: env!("CARGO_PKG_VERSION").to_owned(),
            threads,
            device,
            run,
            optimizers: Vec::new(),
            hooks: Vec::new(),
            states: Vec::new(),
            saved: BTreeMap::new(),
            inexact,
            files: BTreeMap::new(),
        }
    }

    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(NAME);
        let mut json = serde_json::to_value(self).map_err(|error| in_file(&path, error))?;
        let hash = hash(&json);
        if let Some(fields) = json.as_object_mut() {
            fields.insert(HASH.to_owned(), hash.into());
        }
        let text = serde_json::to_string_pretty(&json).map_err(|error| in_file(&path, error))?;
        write(&path, text.as_bytes())
    }

    pub(super) fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(NAME);
        let mut json: Json = serde_json::from_slice(&read(&path)?)
            .map_err(|error| in_file(&path, format!("it is no JSON: {error}")))?;
        if json.get("format").and_then(Json::as_str) != Some(FORMAT) {
            let text = format!("its field `format` is not `{FORMAT}`: it is no checkpoint of this trainer");
            return Err(in_file(&path, text));
        }
        match json.get("version").and_then(Json::as_u64) {
            Some(VERSION) => {}
            Some(newer) if newer > VERSION => {
                let text = format!(
                    "its `version` is {newer}, and this trainer reads {VERSION}: a newer trainer wrote it"
                );
                return Err(in_file(&path, text));
            }
            _ => return Err(in_file(&path, "its field `version` is no number that a trainer has written")),
        }
        let seal = json.as_object_mut().and_then(|fields| fields.remove(HASH));
        if seal != Some(hash(&json).into()) {
            return Err(in_file(
                &path,
                "its hash is not the one with which it was written: it was changed, or damaged",
            ));
        }
        serde_path_to_error::deserialize(&json).map_err(|error| {
            in_file(&path, format!("its field `{}` cannot be understood: {}", error.path(), error.inner()))
        })
    }
}

/// The field that tells whether the others are as they were written.
const HASH: &str = "blake3";

fn hash(json: &Json) -> String {
    blake3::hash(json.to_string().as_bytes()).to_hex().to_string()
}
