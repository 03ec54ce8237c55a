//! The state of a run that concerns the other ranks.

use std::collections::BTreeSet;

use tch::Tensor;

use super::Run;
use crate::distributed::World;
use crate::error::CancelledBy;

/// The state of a run that concerns the other ranks.
#[derive(Default)]
pub(crate) struct Ranks {
    /// The world of the current entry point; `None` if it runs in one process.
    pub(crate) world: Option<World>,
    /// The world that the program joined itself and passed to the builder.
    pub(crate) joined: Option<World>,
    /// Whether the launcher's environment variables are ignored.
    pub(crate) is_single: bool,
    /// Whether an error has disconnected this process from the others in the current entry point.
    pub(crate) has_left: bool,
    /// Whether a hook at `before_step` may skip a batch of training.
    pub(crate) may_skip: bool,
    pub(crate) agreed: Agreed,
    pub(crate) batch: BatchOfRanks,
    /// The random state of libtorch before the next batch was drawn, which a checkpoint saves
    /// because the resumed run draws that batch again.
    pub(crate) random_before_draw: Option<Tensor>,
    /// Whether any rank has a next batch in the current pass.
    pub(crate) others_have_batches: bool,
    /// The parts of the model whose gradients are averages over all ranks.
    pub(crate) averaged: BTreeSet<String>,
}

/// The requests that the ranks have agreed on. A request of one rank takes effect once all ranks
/// know of it.
#[derive(Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) cancelled: Option<CancelledBy>,
    pub(crate) stop: bool,
    pub(crate) end_epoch: bool,
    /// Whether checkpoints were requested.
    pub(crate) saves: bool,
}

/// The current batch, as all ranks see it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchOfRanks {
    /// The sum of the weights of all ranks' shares.
    pub(crate) weight: f64,
    /// The total number of samples of all ranks.
    pub(crate) samples: f64,
    /// Whether the batch has no row for this rank, which then borrows one of another rank.
    pub(crate) is_borrowed: bool,
}

impl Run {
    /// Whether a stop was requested, and all ranks know of it.
    #[inline]
    pub(crate) fn stop_is_agreed(&self) -> bool {
        self.requests.stop.is_some() && (self.ranks.world.is_none() || self.ranks.agreed.stop)
    }

    /// Whether the end of the pass was requested, and all ranks know of it.
    #[inline]
    pub(crate) fn end_epoch_is_agreed(&self) -> bool {
        self.requests.end_epoch && (self.ranks.world.is_none() || self.ranks.agreed.end_epoch)
    }

    /// Records that the gradients of the current part are not averages over all ranks, because a
    /// backward pass adds to them.
    #[inline]
    pub(crate) fn note_own_gradients(&mut self) {
        if self.ranks.world.is_some() {
            self.ranks.averaged.remove(self.model.optimizers.current_name());
        }
    }

    /// Records whether the hook that is logging runs on rank 0 only.
    #[inline]
    pub(crate) fn note_logging_rank(&mut self) {
        if self.ranks.world.is_some() {
            let hook = self.place.hook.map(|id| self.hooks.table.hook(id));
            self.log.is_main_only = hook.is_some_and(|hook| hook.definition.main_only);
        }
    }

    /// The weight of the current batch over all ranks.
    #[inline]
    pub(crate) fn weight_of_ranks(&self) -> f64 {
        if self.ranks.world.is_some() { self.ranks.batch.weight } else { self.step.weight }
    }

    /// The factor by which this rank scales its loss, so that the mean of the gradients over all
    /// ranks is the gradient of the mean loss; 1 if all ranks have the same weight.
    #[inline]
    pub(crate) fn rank_factor(&self) -> f64 {
        match &self.ranks.world {
            Some(world) => f64::from(world.size()) * self.step.weight / self.ranks.batch.weight,
            None => 1.0,
        }
    }
}
