//! The position of the loop, the pending requests of hooks, and the entry points that have ended.

use std::borrow::Cow;

use super::part::{Part, is_count, require, value};
use crate::checkpoint::Saved;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::progress::{FitState, LoopState};
use crate::data::is_same;
use crate::error::{Result, shortened};
use crate::moments::counters::Counters;
use crate::run::{CheckpointState, Model, Requests, RunHooks, SavedRequests};

/// The counters of the loop, and the position, the start and the accumulation window of the fit.
pub(crate) struct Position;

const LOOP: &str = "loop";

impl Position {
    /// Returns the current state.
    pub(super) fn save(&self, progress: &LoopState, fit: &FitState) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("progress", progress)?;
        saved.set("fit", &fit.with_positions())?;
        Ok(saved)
    }

    /// Returns a saved state.
    pub(super) fn load(&self, saved: &Saved) -> Result<(LoopState, FitState)> {
        Ok((value(LOOP, "progress", saved)?, value(LOOP, "fit", saved)?))
    }
}

impl Part for Position {
    fn name(&self) -> Cow<'static, str> {
        LOOP.into()
    }

    fn why_inexact(&self, fit: &FitState, _model: &Model) -> Option<String> {
        fit.failed_mid_step
            .then(|| "the checkpoint was written after an error in the middle of a step".to_owned())
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        let progress: LoopState = value(LOOP, "progress", saved)?;
        let FitState { start, position, window, .. } = value(LOOP, "fit", saved)?;
        let Counters { epoch, batch_idx, batches_seen, optimizer_steps, samples_seen } = progress.counters;
        let numbers = [epoch, batch_idx, batches_seen, optimizer_steps, samples_seen];
        let is_past_start = start.epochs <= progress.epochs_begun && start.steps <= optimizer_steps;
        require(
            LOOP,
            &[
                ("progress.counters", numbers.into_iter().all(is_count)),
                ("progress.batch_number", is_count(progress.batch_number)),
                ("progress.epochs_begun", is_count(progress.epochs_begun)),
                ("progress.epochs_done", progress.epochs_done <= progress.epochs_begun),
                ("progress.train_batches", is_count(progress.train_batches)),
                ("progress.fits_begun", progress.fits_begun > 0 && is_count(progress.fits_begun)),
                ("progress.batches", progress.batches.is_none_or(is_count)),
                ("fit.position", is_count(position.train) && is_count(position.valid)),
                ("fit.position.loader", is_count(position.loader)),
                ("fit.position.steps_before", position.steps_before <= optimizer_steps),
                ("fit.window", window.is_sound(is_count)),
                ("fit.start", is_past_start && is_count(start.spent().as_secs())),
            ],
        )
    }

    fn check(&self, fit: &FitState, _model: &Model, saved: &Saved, why: &mut Vec<String>) -> Result<()> {
        let saved: FitState = value(LOOP, "fit", saved)?;
        for ((here, there), what) in fit.data.iter().zip(&saved.data).zip(["training", "validation"]) {
            if !is_same(there, here) {
                let there = shortened(there);
                why.push(format!(
                    "the {what} data was {there} when the checkpoint was written and is now {here}"
                ));
            }
        }
        Ok(())
    }
}

/// The requests of hooks that the loop has not carried out yet.
pub(crate) struct PendingRequests;

const REQUESTS: &str = "requests";

impl PendingRequests {
    /// Returns the current state.
    pub(super) fn save(&self, requests: &Requests) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("value", &requests.saved())?;
        Ok(saved)
    }

    /// Returns a saved state. `is_solo` says whether there are no other ranks.
    pub(super) fn load(&self, is_solo: bool, saved: &Saved) -> Result<Requests> {
        Ok(Requests::restored(value(REQUESTS, "value", saved)?, is_solo))
    }
}

impl Part for PendingRequests {
    fn name(&self) -> Cow<'static, str> {
        REQUESTS.into()
    }

    fn rolls_back(&self, _hooks: &RunHooks) -> bool {
        false
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        value::<SavedRequests>(REQUESTS, "value", saved).map(drop)
    }
}

/// The entry points that have ended but are not in the history file: calls to `predict`.
pub(crate) struct Entries;

const ENTRIES: &str = "entries";

impl Entries {
    /// Returns the current state.
    pub(super) fn save(&self, checkpoints: &CheckpointState) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("predictions", &checkpoints.predictions)?;
        Ok(saved)
    }

    /// Loads a saved state.
    pub(super) fn load(&self, checkpoints: &mut CheckpointState, saved: &Saved) -> Result<()> {
        checkpoints.predictions = predictions_in(saved)?;
        Ok(())
    }
}

impl Part for Entries {
    fn name(&self) -> Cow<'static, str> {
        ENTRIES.into()
    }

    fn rolls_back(&self, _hooks: &RunHooks) -> bool {
        false
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        require(ENTRIES, &[("predictions", is_count(predictions_in(saved)?))])
    }
}

fn predictions_in(saved: &Saved) -> Result<u64> {
    value(ENTRIES, "predictions", saved)
}

/// Returns the number of calls to `predict` that had ended when a checkpoint was written.
pub(in crate::training) fn predictions(manifest: &Manifest) -> Result<u64> {
    let values = manifest.parts.get(ENTRIES).cloned().unwrap_or_default();
    predictions_in(&Saved { values, ..Saved::new() })
}
