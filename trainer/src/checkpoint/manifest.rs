//! What a checkpoint says of itself, in a file to be read by people too.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::folder::{in_file, read, write};
use super::tensors::Seal;
use crate::counters::StepState;
use crate::error::Result;
use crate::libtorch;
use crate::optim::Gathered;
use crate::training::{FitPlace, Window};

/// The name of the file.
pub(super) const NAME: &str = "manifest.json";

const FORMAT: &str = "trainer checkpoint";

/// Of the format; a newer one is refused.
const VERSION: u64 = 2;

/// What a checkpoint says of itself.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Manifest {
    format: String,
    version: u64,
    /// The version of this crate that wrote it.
    trainer: String,
    /// The version of libtorch.
    pub(super) libtorch: String,
    /// How many threads libtorch computed with: another number gives other last bits.
    pub(super) threads: i32,
    pub(super) device: String,
    /// When it was written, in milliseconds since 1970: the newest is the last.
    written_at: u64,
    /// What the builder was told that decides how the run goes on.
    pub(super) settings: BTreeMap<String, String>,
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
    /// How many fits had begun, this one included.
    pub(super) fits: u64,
    /// What decides which batches the loaders of training and of validation give.
    pub(super) data: [Option<String>; 2],
    /// How many batches the pass had.
    pub(super) batches: Option<u64>,
    pub(super) stop: Option<String>,
    pub(super) end_epoch: bool,
    pub(super) is_cut_short: bool,
    /// The part of the model whose optimizer stepped last.
    pub(super) optimizer: String,
    /// The parameters that are not trained.
    pub(super) frozen: Vec<String>,
    /// What was logged, metrics and history: numbers may be NaN there.
    pub(super) log: Json,
}

/// The settings of an optimizer: its tensors are in a file of their own.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct OptimizerState {
    /// The part of the model; empty for the whole.
    pub(super) part: String,
    /// For each parameter group what updates it: `AdamW`.
    pub(super) rules: Vec<String>,
    /// For each parameter group its hyperparameters.
    pub(super) groups: Json,
    /// The learning rates of its last step.
    pub(super) used_lrs: Json,
    /// How many steps it has taken.
    pub(super) steps: u64,
    /// The weights of the batches that its gradients are summed over.
    pub(super) gathered: Gathered,
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
            libtorch: libtorch::version(),
            threads,
            device,
            written_at: now(),
            settings: BTreeMap::new(),
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
        let manifest: Manifest = serde_path_to_error::deserialize(&json).map_err(|error| {
            in_file(&path, format!("its field `{}` cannot be understood: {}", error.path(), error.inner()))
        })?;
        manifest
            .check()
            .map_err(|field| in_file(&path, format!("its field `{field}` is none that a run has")))?;
        Ok(manifest)
    }
}

impl Manifest {
    /// Are its numbers such as a run has? Its hash tells damage, not what another program made up.
    fn check(&self) -> Result<(), &'static str> {
        const MOST: u64 = 1 << 53;
        let RunState { step, epochs_begun, epochs_done, train_batches, place, window, began, spent, .. } =
            &self.run;
        let StepState { epoch, batch_idx, global_step, optimizer_step, samples_seen } = *step;
        let fields = [
            (
                "run.step",
                [epoch, batch_idx, global_step, optimizer_step, samples_seen].into_iter().max() < Some(MOST),
            ),
            ("run.epochs_begun", *epochs_begun < MOST),
            ("run.epochs_done", epochs_done <= epochs_begun),
            ("run.train_batches", *train_batches < MOST),
            ("run.place", place.train < MOST && place.valid < MOST),
            ("run.window", window.filled <= window.size.max(1) && window.size < MOST),
            ("optimizers.gathered", self.optimizers.iter().all(|its| its.gathered.is_sound())),
            ("run.began", began.0 <= *epochs_begun && began.1 <= optimizer_step),
            ("run.spent", spent.as_secs() < MOST),
        ];
        fields.into_iter().find(|(_, is_sound)| !is_sound).map_or(Ok(()), |(field, _)| Err(field))
    }

    /// When the checkpoint in this folder was written, if that can be read.
    pub(super) fn written_at(folder: &Path) -> Option<u64> {
        let json: Json = serde_json::from_slice(&read(&folder.join(NAME)).ok()?).ok()?;
        json.get("written_at")?.as_u64()
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The field that tells whether the others are as they were written.
const HASH: &str = "blake3";

fn hash(json: &Json) -> String {
    blake3::hash(json.to_string().as_bytes()).to_hex().to_string()
}
