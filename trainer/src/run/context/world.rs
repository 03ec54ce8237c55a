//! Methods of [`Cx`] for training in several processes.

use super::Cx;
use crate::distributed::World;
use crate::error::{Error, Result};
use crate::lifecycle::{Setup, available};
use crate::moment::OnAllRanks;

/// # Several processes
impl<P> Cx<P> {
    /// Whether this is the main process: the process of rank 0, which logs and saves.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.run.rank() == 0
    }

    /// The rank of this process among those that train together, from 0. Their number is
    /// [`cx.vars().share().of`](crate::Vars::share).
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.as_run().rank()
    }

    /// The processes that train together; a process that trains alone is a world of one rank, in
    /// which collectives return immediately. Most methods of [`World`] are collectives, which a
    /// hook must call on every rank, so a hook with [`Main`](crate::Main) in its context has no
    /// access to it. Errors of these collectives name the hook and its moment.
    ///
    #[doc = available!(OnAllRanks)]
    #[must_use]
    pub fn world(&self) -> World
    where
        P: OnAllRanks,
    {
        let run = self.as_run();
        if run.ranks.world.is_solo() {
            return World::solo();
        }
        let hook = run.at.place.hook.map(|id| run.hooks.table.hook(id).definition.origin.name());
        run.ranks.world.at(hook.as_deref(), P::INFO)
    }

    /// Whether the gradients of the [current part](Cx::part) are averages over all ranks: always if
    /// they are [divided](Cx::grads_are_divided), and otherwise `false` after a backward pass,
    /// until a hook calls [`set_grads_averaged`](Cx::set_grads_averaged).
    #[must_use]
    pub fn grads_are_averaged(&self) -> bool {
        self.grads_are_divided() || self.as_run().ranks.averaged.contains(self.part())
    }

    /// Declares that the gradients of the [current part](Cx::part) are averages over all ranks, for
    /// a hook that averages them itself. [`DataParallel`](crate::hooks::DataParallel) then leaves
    /// them unchanged.
    ///
    #[doc = available!(OnAllRanks)]
    pub fn set_grads_averaged(&mut self)
    where
        P: OnAllRanks,
    {
        let part = self.part().to_owned();
        self.run_mut().ranks.averaged.insert(part);
    }
}

/// # Several processes: at `setup`
impl Cx<Setup> {
    /// Declares that each rank trains by itself in this entry point, as
    /// [`LocalSgd`](crate::hooks::LocalSgd) does. The loss is scaled as in a single process, so the
    /// gradients are those of the rank's own batches. The ranks may have different weights in
    /// evaluations and checkpoints, and each rank saves its own weights and optimizer state. A hook
    /// that calls this must average the weights itself, and must keep
    /// [`DataParallel`](crate::hooks::DataParallel) out of the trainer with
    /// [`single = DataParallel`](crate::language::single). Call it on all ranks. Does nothing in a
    /// single process.
    ///
    /// # Errors
    ///
    /// Returns an error if an optimizer is [`Sharded`](crate::optim::Sharded).
    pub fn train_separately(&mut self) -> Result<()> {
        let run = self.run_mut();
        if run.ranks.world.is_solo() {
            return Ok(());
        }
        let is_sharded =
            |settings: crate::values::facts::SettingList| settings.into_values().contains_key("sharded");
        if run.model.optimizers.parts().any(|(_, optimizer, ..)| is_sharded(optimizer.settings())) {
            return Err(Error::usage(
                "the ranks cannot train separately with a `Sharded` optimizer, of which each rank updates only some parameters: use \
                 the inner optimizer",
            ));
        }
        run.ranks.train_separately = true;
        Ok(())
    }
}
