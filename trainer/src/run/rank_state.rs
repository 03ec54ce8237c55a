//! The part of a run's state that concerns the other ranks.

use std::collections::BTreeSet;

use tch::Tensor;

use super::StepData;
use crate::distributed::World;
use crate::error::CancelledBy;
use crate::optim::Optimizers;

/// The part of a run's state that concerns the other ranks.
pub(crate) struct Ranks {
    /// The world of the current entry point.
    pub(crate) world: World,
    /// The world that the program passed to the builder; `None` to use the world that the
    /// environment describes.
    pub(crate) given: Option<World>,
    /// Whether an error has disconnected this process from the others in the current entry point.
    pub(crate) has_left: bool,
    /// Whether a hook at `before_step` may skip a batch of training.
    pub(crate) may_skip: bool,
    pub(crate) agreed: Agreed,
    /// Whether the current batch has no row for this rank. The rank then borrows a row from another
    /// rank or, if its own data has ended, uses a copy of its first batch.
    pub(crate) is_borrowed: bool,
    /// The random state of libtorch before the next batch was drawn, which a checkpoint saves
    /// because the resumed run draws that batch again.
    pub(crate) random_before_draw: Option<Tensor>,
    /// Whether each rank trains by itself, so that the weights of the ranks differ.
    pub(crate) train_separately: bool,
    /// The parts of the model whose gradients are averages over all ranks.
    pub(crate) averaged: BTreeSet<String>,
}

impl Ranks {
    /// The state at the start of an entry point in this world.
    pub(crate) fn begin(world: World, given: Option<World>) -> Self {
        Ranks {
            world,
            given,
            has_left: false,
            may_skip: false,
            agreed: Agreed::default(),
            is_borrowed: false,
            random_before_draw: None,
            train_separately: false,
            averaged: BTreeSet::new(),
        }
    }

    /// The weight with which the gradients of the current batch enter the accumulation window: the
    /// weight of the batch over all ranks, or on this rank if each rank trains by itself.
    #[inline]
    pub(crate) fn gradient_weight(&self, step: &StepData) -> f64 {
        if self.train_separately { step.weight } else { step.total.weight }
    }

    /// The factor by which the backward pass scales the loss.
    pub(crate) fn loss_factor(&self, optimizers: &Optimizers, step: &StepData) -> f64 {
        step.loss_scale * optimizers.weight_factor(self.gradient_weight(step)) * self.rank_factor(step)
    }

    /// Notes that the gradients of the current part are not averages over all ranks, because a
    /// backward pass adds to them.
    #[inline]
    pub(crate) fn note_own_gradients(&mut self, optimizers: &Optimizers) {
        if !self.averaged.is_empty() {
            self.averaged.remove(optimizers.current_name());
        }
    }

    /// The factor by which this rank scales its loss, so that the mean of the gradients over all
    /// ranks is the gradient of the mean loss; 1 if all ranks have the same weight, or if each rank
    /// trains by itself.
    #[inline]
    pub(crate) fn rank_factor(&self, step: &StepData) -> f64 {
        if self.train_separately {
            return 1.0;
        }
        f64::from(self.world.size()) * step.weight / step.total.weight
    }
}

/// What the ranks have agreed on besides [`Requests`](super::Requests). It takes effect once all
/// ranks know of it.
#[derive(Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) cancelled: Option<CancelledBy>,
    pub(crate) saves: SavesOfRanks,
}

/// The checkpoints of a rank before a batch. Those of all ranks are the last of theirs in this
/// order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SavesOfRanks {
    #[default]
    None,
    /// A rank is writing a checkpoint in the background.
    Writing,
    /// A hook has requested a checkpoint.
    Requested,
}

impl SavesOfRanks {
    pub(crate) const ALL: [Self; 3] = [SavesOfRanks::None, SavesOfRanks::Writing, SavesOfRanks::Requested];
}

/// The weight and the number of samples of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) weight: f64,
    pub(crate) samples: f64,
}
