//! The states of the ranks in a checkpoint.

use std::collections::BTreeMap;

use tch::Tensor;

use crate::checkpoint::NamedTensors;
use crate::checkpoint::manifest::{Manifest, RankState, of_rank};
use crate::distributed::World;
use crate::error::{Error, Result};
use crate::log::LogState;

/// The prefix of the values that hooks save at `before_save_checkpoint`; only those of rank 0 are
/// saved.
const SAVED: &str = "saved/";

/// Adds the states of the other ranks to the checkpoint that rank 0 writes.
///
/// Every rank must call this. `state` contains the tensors of this rank, except those of the model
/// and of the optimizers.
pub(super) fn gather(world: &World, manifest: &mut Manifest, state: &mut NamedTensors) -> Result<()> {
    if world.is_solo() {
        return Ok(());
    }
    let own = serde_json::to_value((&manifest.run.log, &manifest.run.media, &manifest.states)).map_err(
        |error| {
            Error::usage(format!("the state of rank {} cannot be written as JSON: {error}", world.rank()))
        },
    )?;
    let states = world.gather_named(&own, "the states of the ranks in a checkpoint")?;
    let own: NamedTensors = state
        .iter()
        .filter(|(name, _)| !name.starts_with(SAVED))
        .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
        .collect();
    let tensors = world.collect_tensors(&own)?;
    for (rank, (json, tensors)) in (1..).zip(states.into_iter().skip(1).zip(tensors)) {
        let (log, media, states) = serde_json::from_value(json)
            .map_err(|error| Error::usage(format!("the state of rank {rank} cannot be read: {error}")))?;
        manifest.ranks.push(RankState { log, media, states });
        state.extend(tensors.into_iter().map(|(name, tensor)| (of_rank(rank, &name), tensor)));
    }
    Ok(())
}

/// Replaces the state of rank 0 in a loaded checkpoint with the state of this rank. If the
/// checkpoint was written by a different number of ranks, keeps the hook states of rank 0 instead,
/// merges the logs and averages the gradients of all ranks, and returns the reason why the resume
/// is not exact.
pub(super) fn select(
    manifest: &mut Manifest,
    state: &mut BTreeMap<String, Tensor>,
    rank: u32,
    size: u32,
) -> Option<String> {
    let ranks = std::mem::take(&mut manifest.ranks);
    let written_by = 1 + ranks.len();
    let others: BTreeMap<String, Tensor> =
        state.extract_if(.., |name, _| name.starts_with("rank/")).collect();
    if written_by == size as usize {
        if let Some(own) = ranks.into_iter().nth((rank as usize).wrapping_sub(1)) {
            (manifest.run.log, manifest.run.media, manifest.states) = (own.log, own.media, own.states);
            state.retain(|name, _| name.starts_with(SAVED));
            let prefix = of_rank(rank, "");
            state.extend(
                others
                    .into_iter()
                    .filter_map(|(name, tensor)| Some((name.strip_prefix(&prefix)?.to_owned(), tensor))),
            );
        }
        return None;
    }
    // Rank 0 gets the running sums of all ranks, so that they are counted once. The gradients in an
    // open accumulation window are averaged over the ranks that wrote them.
    let log = std::mem::take(&mut manifest.run.log);
    manifest.run.log = if rank == 0 {
        let mut log = log;
        log.join(&ranks.iter().map(|rank| &rank.log).collect::<Vec<&LogState>>());
        log
    } else {
        manifest.run.media.clear();
        log.without_meters()
    };
    let _no_grad = tch::no_grad_guard();
    for (name, tensor) in &others {
        let Some((_, name)) = name.strip_prefix("rank/").and_then(|name| name.split_once('/')) else {
            continue;
        };
        if !name.starts_with("grad/") {
            continue;
        }
        let sum = match state.get(name) {
            Some(sum) => sum + tensor,
            None => tensor.shallow_clone(),
        };
        state.insert(name.to_owned(), sum);
    }
    for (_, tensor) in state.iter_mut().filter(|(name, _)| written_by > 1 && name.starts_with("grad/")) {
        *tensor = &*tensor / written_by as f64;
    }
    if rank > 0 {
        state.retain(|name, _| !name.starts_with("random/"));
    }
    Some(format!(
        "it was written by {written_by} process{es} that trained together, and there {are} {size} now: the ranks draw different \
         random numbers, and sums are rounded differently",
        es = if written_by == 1 { "" } else { "es" },
        are = if size == 1 { "is" } else { "are" },
    ))
}
