//! The manifest: the JSON file that describes a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::files::{FORMAT, MANIFEST, MAX_MANIFEST_BYTES};
use super::tensors::FileDigest;
use crate::counters::Counters;
use crate::error::Result;
use crate::facts::Facts;
use crate::files::{Links, in_file, open, read_start, write};
use crate::float::Float;
use crate::libtorch;
use crate::log::LogState;
use crate::optim::{Accumulated, Optimizer, ParamGroup};
use crate::phase::Phase;
use crate::progress::{FitState, LoopState};
use crate::record::MediaState;

/// The version of the format. Checkpoints with any other version are refused.
const VERSION: u64 = 4;

/// The exclusive upper limit on numbers of batches, steps, epochs and samples: `f64` represents
/// every integer up to this one exactly.
const MAX_COUNT: u64 = 1 << 53;

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
    /// The settings of the builder that a resumed run may change.
    pub(crate) length: BTreeMap<String, String>,
    pub(crate) run: RunState,
    pub(crate) optimizers: Vec<OptimizerState>,
    /// The states of ranks 1, 2 and so on; empty unless several processes trained together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ranks: Vec<RankState>,
    /// The saved states of hooks.
    pub(crate) states: Vec<HookState>,
    /// The values that hooks saved at `before_save_checkpoint`, as text.
    pub(crate) saved: BTreeMap<String, String>,
    /// The reasons why a run cannot resume exactly from this checkpoint.
    pub(crate) inexact: Vec<String>,
    pub(crate) files: BTreeMap<String, FileDigest>,
}

/// The state of a run, except for its optimizers and hooks.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RunState {
    pub(crate) progress: LoopState,
    pub(crate) fit: FitState,
    /// The number of calls of `predict` that have ended, with or without an error.
    pub(crate) predictions: u64,
    pub(crate) stop: Option<String>,
    pub(crate) end_epoch: bool,
    pub(crate) is_cut_short: bool,
    /// The part of the model that the current optimizer updates; empty for the whole model.
    pub(crate) optimizer: String,
    /// The names of the frozen parameters.
    pub(crate) frozen: Vec<String>,
    /// The state of the log, without the history.
    pub(crate) log: LogState,
    /// The histograms, images and texts that are waiting for their record.
    pub(crate) media: Vec<MediaState>,
    /// For each phase, the number of records of steps and the number of records of passes.
    pub(crate) records: [[u64; 2]; Phase::ALL.len()],
}

/// The part of a run's state that differs between ranks, for a rank other than rank 0. Its tensors
/// are in the files that rank 0 writes, under the names that [`of_rank`] returns.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RankState {
    pub(crate) log: LogState,
    pub(crate) media: Vec<MediaState>,
    pub(crate) states: Vec<HookState>,
}

/// The name under which a checkpoint stores a tensor of a rank other than rank 0.
pub(crate) fn of_rank(rank: u32, name: &str) -> String {
    format!("rank/{rank}/{name}")
}

/// Hyperparameters by name, one map for each parameter group.
pub(crate) type Hyperparameters = Vec<BTreeMap<String, Float>>;

/// The current hyperparameters of an optimizer.
pub(crate) fn hyperparameters(optimizer: &dyn Optimizer) -> Hyperparameters {
    let of_group =
        |group: &ParamGroup| group.settings().map(|(name, value)| (name.to_owned(), Float(value))).collect();
    optimizer.groups().iter().map(of_group).collect()
}

/// The state of an optimizer without its tensors, which are in a separate file.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct OptimizerState {
    /// The part of the model; empty for the whole model.
    pub(crate) part: String,
    /// The algorithm of each parameter group, such as `AdamW`.
    pub(crate) rules: Vec<String>,
    /// The hyperparameters of each parameter group.
    pub(crate) groups: Hyperparameters,
    /// The learning rates of its last step.
    pub(crate) used_lrs: Vec<Float>,
    /// The number of steps it has taken.
    pub(crate) steps: u64,
    /// The weights of the batches whose gradients it has accumulated.
    pub(crate) accumulated: Accumulated,
}

/// The state of one value with hooks.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct HookState {
    /// The type of the value.
    pub(crate) hook: String,
    /// The index of the value among the values of its type.
    pub(crate) nth: usize,
    /// The saved values as text, by key.
    pub(crate) values: BTreeMap<String, String>,
    /// The keys of the saved tensors.
    pub(crate) tensors: Vec<String>,
    /// Whether this value saved the averages.
    pub(crate) has_averages: bool,
    /// Whether a resume does not compare this value.
    pub(crate) is_left_out: bool,
}

impl Manifest {
    pub(crate) fn new(threads: i32, device: String, run: RunState, inexact: Vec<String>) -> Self {
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
            run,
            optimizers: Vec::new(),
            ranks: Vec::new(),
            states: Vec::new(),
            saved: BTreeMap::new(),
            inexact,
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
        let text = serde_json::to_string_pretty(&json).map_err(|error| in_file(&path, error))?;
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            let text = format!(
                "the states of hooks make the manifest {} bytes long, over the limit of {MAX_MANIFEST_BYTES}: save large state as tensors",
                text.len()
            );
            return Err(in_file(&path, text));
        }
        write(&path, text.as_bytes())
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
        let manifest: Manifest = serde_path_to_error::deserialize(&json).map_err(|error| {
            in_file(
                &path,
                format!(
                    "its field `{}` cannot be read: {}; restore the file, or use another checkpoint",
                    error.path(),
                    error.inner()
                ),
            )
        })?;
        manifest.check().map_err(|field| {
            in_file(
                &path,
                format!(
                    "its field `{field}` has an invalid value: restore the file, or use another checkpoint"
                ),
            )
        })?;
        Ok(manifest)
    }

    /// Returns, as an error, the name of the first field with a value that no run can have. The
    /// hash detects damage, but not a manifest that another program wrote.
    fn check(&self) -> Result<(), &'static str> {
        let RunState { progress, fit, .. } = &self.run;
        let Counters { epoch, batch_idx, batches_seen, optimizer_steps, samples_seen } = progress.counters;
        let numbers = [epoch, batch_idx, batches_seen, optimizer_steps, samples_seen];
        let fields = [
            ("run.progress.counters", numbers.into_iter().all(|it| it < MAX_COUNT)),
            ("run.progress.batch_number", progress.batch_number < MAX_COUNT),
            ("run.progress.epochs_begun", progress.epochs_begun < MAX_COUNT),
            ("run.progress.epochs_done", progress.epochs_done <= progress.epochs_begun),
            ("run.progress.train_batches", progress.train_batches < MAX_COUNT),
            ("run.progress.fits_begun", (1..MAX_COUNT).contains(&progress.fits_begun)),
            ("run.progress.batches", progress.batches.is_none_or(|batches| batches < MAX_COUNT)),
            ("run.fit.position", fit.position.train < MAX_COUNT && fit.position.valid < MAX_COUNT),
            ("run.fit.position.loader", fit.position.loader < MAX_COUNT),
            ("run.fit.position.steps_before", fit.position.steps_before <= optimizer_steps),
            ("run.fit.window", fit.window.filled <= fit.window.size.max(1) && fit.window.size < MAX_COUNT),
            (
                "run.fit.start",
                fit.start.epochs <= progress.epochs_begun
                    && fit.start.steps <= optimizer_steps
                    && fit.start.spent().as_secs() < MAX_COUNT,
            ),
            ("run.predictions", self.run.predictions < MAX_COUNT),
            ("run.log", self.run.log.is_sound()),
            ("ranks", self.ranks.iter().all(|rank| rank.log.is_sound())),
            ("run.records", self.run.records.iter().flatten().all(|it| *it < MAX_COUNT)),
            ("optimizers", self.optimizers.iter().all(|it| it.steps < MAX_COUNT)),
            ("optimizers.rules", self.optimizers.iter().all(|it| it.rules.len() == it.groups.len())),
            ("optimizers.accumulated", self.optimizers.iter().all(|it| it.accumulated.is_sound())),
        ];
        fields.into_iter().find(|(_, is_sound)| !is_sound).map_or(Ok(()), |(field, _)| Err(field))
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
    fits: u64,
    train_batches: u64,
    epochs_done: u64,
    written_at: u64,
}

impl Progress {
    /// Reads the progress from the manifest in a folder; `None` if the manifest cannot be read. Its
    /// hash is not verified.
    pub(crate) fn load(folder: &Path) -> Option<Self> {
        #[derive(Deserialize)]
        struct Loop {
            fits_begun: u64,
            train_batches: u64,
            epochs_done: u64,
        }
        #[derive(Deserialize)]
        struct Run {
            progress: Loop,
        }
        #[derive(Deserialize)]
        struct Head {
            run: Run,
            written_at: u64,
        }
        let Head { run, written_at } = serde_json::from_slice(&read(&folder.join(MANIFEST)).ok()?).ok()?;
        let Loop { fits_begun: fits, train_batches, epochs_done } = run.progress;
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

fn hash(json: &Json) -> String {
    blake3::hash(json.to_string().as_bytes()).to_hex().to_string()
}
