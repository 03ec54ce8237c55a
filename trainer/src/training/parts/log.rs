//! The logged values that are not in the history yet, and the numbers of records.

use std::borrow::Cow;

use super::{Part, Scope, is_count, require, value};
use crate::checkpoint::Saved;
use crate::error::Result;
use crate::log::LogState;
use crate::log::record::PendingState;
use crate::phase::Phase;
use crate::run::Run;

/// The running reductions and the metrics of the log.
pub(super) struct LoggedValues;

const LOG: &str = "log";

impl Part for LoggedValues {
    fn name(&self) -> Cow<'static, str> {
        LOG.into()
    }

    fn scope(&self) -> Scope {
        Scope::Rank
    }

    fn save(&self, run: &Run) -> Result<Saved> {
        let (state, unread) = run.log.state()?;
        let mut saved = Saved::new();
        saved.value("value", &state)?;
        saved.tensors.extend(unread);
        Ok(saved)
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        let state: LogState = value(LOG, "value", saved)?;
        require(LOG, &[("value", state.is_sound())])
    }

    fn load(&self, run: &mut Run, saved: &Saved) -> Result<()> {
        let device = run.model.device;
        let unread = |name: &str| Some(saved.tensors.get(name)?.to_device(device));
        run.log.restore(&value(LOG, "value", saved)?, unread);
        Ok(())
    }

    /// Rank 0 gets the running reductions of all ranks, so that they are counted once.
    fn join(&self, rank: u32, states: Vec<Saved>) -> Result<Saved> {
        let mut logs = Vec::new();
        for saved in &states {
            let mut log: LogState = value(LOG, "value", saved)?;
            log.read(&saved.tensors)?;
            logs.push(log);
        }
        let mut logs = logs.into_iter();
        let first = logs.next().unwrap_or_default();
        let joined = if rank == 0 { logs.fold(first, LogState::join) } else { first.without_meters() };
        let mut saved = Saved::new();
        saved.value("value", &joined)?;
        Ok(saved)
    }
}

/// The numbers of records, and the histograms, images and texts that are waiting for theirs.
pub(super) struct RecordCounts;

const RECORDS: &str = "records";

impl Part for RecordCounts {
    fn name(&self) -> Cow<'static, str> {
        RECORDS.into()
    }

    fn scope(&self) -> Scope {
        Scope::Rank
    }

    fn save(&self, run: &Run) -> Result<Saved> {
        let (pending, tensors) = run.records.state();
        let mut saved = Saved::new();
        saved.value("counts", &run.records.counts)?;
        saved.value("pending", &pending)?;
        saved.tensors.extend(tensors);
        Ok(saved)
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        let counts: [[u64; 2]; Phase::ALL.len()] = value(RECORDS, "counts", saved)?;
        value::<Vec<PendingState>>(RECORDS, "pending", saved)?;
        require(RECORDS, &[("counts", counts.into_iter().flatten().all(is_count))])
    }

    fn load(&self, run: &mut Run, saved: &Saved) -> Result<()> {
        let device = run.model.device;
        let tensor = |name: &str| Some(saved.tensors.get(name)?.to_device(device));
        let pending: Vec<PendingState> = value(RECORDS, "pending", saved)?;
        run.records.restore(&pending, value(RECORDS, "counts", saved)?, tensor);
        Ok(())
    }

    /// The values of rank 0 are recorded once, by rank 0.
    fn join(&self, rank: u32, states: Vec<Saved>) -> Result<Saved> {
        let mut first = states.into_iter().next().unwrap_or_default();
        if rank > 0 {
            let counts = first.values.remove("counts");
            first = Saved::new();
            first.values.extend(counts.map(|counts| ("counts".to_owned(), counts)));
            first.value::<[PendingState]>("pending", &[])?;
        }
        Ok(first)
    }
}
