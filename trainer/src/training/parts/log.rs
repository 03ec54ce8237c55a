//! What hooks have logged and is not in the history yet, and the numbers of records.

use std::borrow::Cow;

use super::part::{Part, Scope, is_count, require, value};
use crate::checkpoint::Saved;
use crate::error::Result;
use crate::log::LogState;
use crate::run::Run;

/// The log, except for the history.
pub(super) struct Logged;

const LOG: &str = "log";

impl Part for Logged {
    fn name(&self) -> Cow<'static, str> {
        LOG.into()
    }

    fn scope(&self) -> Scope {
        Scope::Rank
    }

    fn decides(&self, _run: &Run) -> bool {
        false
    }

    fn save(&self, run: &Run) -> Result<Saved> {
        let (state, tensors) = LogState::of(&run.log.borrow())?;
        let mut saved = saved(&state)?;
        saved.tensors.extend(tensors);
        Ok(saved)
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        require(LOG, &[("meters", state(saved)?.is_sound(is_count))])
    }

    fn load(&self, run: &mut Run, saved: &Saved) -> Result<()> {
        let device = run.model.device;
        state(saved)?.restore(run.log.get_mut(), |name| Some(saved.tensors.get(name)?.to_device(device)));
        Ok(())
    }

    /// Rank 0 gets the running reductions of all ranks, so that they are counted once, and what its
    /// next record contains.
    fn join(&self, rank: u32, states: Vec<Saved>) -> Result<Saved> {
        let mut logs = Vec::new();
        for saved in &states {
            let mut log = state(saved)?;
            log.read(&saved.tensors)?;
            logs.push(log);
        }
        let mut logs = logs.into_iter();
        let first = logs.next().unwrap_or_default();
        if rank > 0 {
            return saved(&first.of_another_rank());
        }
        let mut saved = saved(&logs.fold(first, LogState::join))?;
        let tensors = states.into_iter().next().unwrap_or_default().tensors;
        saved.tensors.extend(tensors.into_iter().filter(|(name, _)| LogState::is_of_media(name)));
        Ok(saved)
    }
}

/// Saves a state as several values, because one text would be long.
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
