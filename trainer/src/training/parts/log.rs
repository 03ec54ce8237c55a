//! The logged values that are not in the history yet, and the state of the records.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tch::{Device, Tensor};

use super::part::{Part, Scope, is_count, require, value};
use crate::checkpoint::Saved;
use crate::error::Result;
use crate::log::{Log, LogState};

/// The log, except for the history.
pub(crate) struct Logged;

const LOG: &str = "log";

impl Logged {
    /// Returns the current state.
    pub(super) fn save(&self, log: &Log) -> Result<Saved> {
        let (state, tensors) = LogState::of(log)?;
        let mut saved = saved(&state)?;
        saved.tensors.extend(tensors);
        Ok(saved)
    }

    /// Loads a saved state, whose values move to the device of the run.
    pub(super) fn load(&self, log: &mut Log, device: Device, saved: &Saved) -> Result<()> {
        state(saved)?.restore(log, |name| Some(saved.tensors.get(name)?.to_device(device)));
        Ok(())
    }
}

impl Part for Logged {
    fn name(&self) -> Cow<'static, str> {
        LOG.into()
    }

    fn scope(&self) -> Scope {
        Scope::Rank
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        require(LOG, &[("meters", state(saved)?.is_sound(is_count))])
    }

    /// Rank 0 takes over the running reductions of all ranks, so that each is counted once, and
    /// keeps the content of its own next record.
    fn merge(&self, rank: u32, merged: &mut Saved, other: Saved) -> Result<()> {
        if rank == 0 {
            let joined = read(merged)?.join(read(&other)?);
            *merged = with_media(&joined, std::mem::take(&mut merged.tensors))?;
        }
        Ok(())
    }

    fn merged(&self, rank: u32, _written_by: u32, merged: Saved) -> Result<Saved> {
        match rank {
            0 => with_media(&read(&merged)?, merged.tensors),
            _ => saved(&state(&merged)?.of_another_rank()),
        }
    }
}

/// Returns the saved state of the log, in which numbers replace the values that were saved as
/// tensors.
fn read(saved: &Saved) -> Result<LogState> {
    let mut log = state(saved)?;
    log.read(&saved.tensors)?;
    Ok(log)
}

/// Saves a state that `read` has returned, and keeps only the tensors of histograms and images.
fn with_media(state: &LogState, mut tensors: BTreeMap<String, Tensor>) -> Result<Saved> {
    tensors.retain(|name, _| LogState::is_of_media(name));
    Ok(Saved { tensors, ..saved(state)? })
}

/// Saves a state as several values, because a single value would be a long text.
fn saved(state: &LogState) -> Result<Saved> {
    let LogState { meters, closed, records } = state;
    let mut saved = Saved::new();
    saved.set("meters", meters)?;
    saved.set("closed", closed)?;
    saved.set("records", records)?;
    Ok(saved)
}

fn state(saved: &Saved) -> Result<LogState> {
    Ok(LogState {
        meters: value(LOG, "meters", saved)?,
        closed: value(LOG, "closed", saved)?,
        records: value(LOG, "records", saved)?,
    })
}
