//! [`DividedGradients`]: which gradients a rank has if they are divided among the ranks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use crate::distributed::{Exchange, Held, Op, Share, World};
use crate::error::{Error, Result};
use crate::model::norms::norms;
use crate::model::vars::Vars;

/// The gradients of an optimizer that are divided among the processes that train together, as
/// [`Sharded::gradients`](super::Sharded::gradients) does: which of them this rank has, and the
/// exchange that divides them. Everything that reads gradients asks this value. An optimizer that
/// wraps another one returns the value of the inner optimizer.
#[derive(Debug)]
pub struct DividedGradients {
    share: Share,
    once_per_window: bool,
    bucket_bytes: u64,
    parameters: Vec<Owned>,
    held: Held,
    /// Created in the first backward pass, and anew when parameters are frozen or thawed.
    exchange: RefCell<Option<Exchange>>,
    /// For each parameter, whether `exchange` was created for it.
    exchanged: RefCell<Vec<bool>>,
    /// Whether this rank had rows in any pass whose gradients are not exchanged yet.
    has_rows: Cell<bool>,
}

/// A parameter, and the rank that it belongs to.
#[derive(Debug)]
struct Owned {
    name: String,
    tensor: Tensor,
    owner: u32,
}

/// A backward pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassPlan {
    /// Whether it belongs to the last batch of an accumulation window.
    pub(crate) is_last: bool,
    /// Whether this rank has rows in the batch.
    pub(crate) has_rows: bool,
}

/// Returns the processes that train together. Returns an error if they cannot be reached, which is
/// the case outside of `fit` and after another rank has failed.
pub(super) fn world_of(share: Share) -> Result<World> {
    let world = World::current();
    if world.share() != share {
        return Err(Error::usage(format!(
            "a `Sharded` optimizer has the state of rank {} only, and cannot reach the other ranks: it is used outside of \
             `fit`, or another rank failed; for `find_batch_size` in several processes, build the trainer \
             with the inner optimizer",
            share.rank
        )));
    }
    Ok(world)
}

impl DividedGradients {
    pub(super) fn new(
        vars: &Vars,
        owners: &BTreeMap<String, u32>,
        bucket_bytes: u64,
        once_per_window: bool,
    ) -> Self {
        let owned = vars.parameters().filter_map(|var| {
            let owner = *owners.get(&var.name)?;
            Some(Owned { name: var.name.clone(), tensor: var.tensor.shallow_clone(), owner })
        });
        DividedGradients {
            share: vars.share(),
            once_per_window,
            bucket_bytes,
            parameters: owned.collect(),
            held: Held::default(),
            exchange: RefCell::default(),
            exchanged: RefCell::default(),
            has_rows: Cell::new(false),
        }
    }

    /// Whether this rank has the gradients of its own parameters, averaged over all ranks, and no
    /// others. This is the case from the end of a backward pass until the gradients are dropped;
    /// with [`once_per_window`](super::Sharded::once_per_window), from the end of the last backward
    /// pass of a window.
    #[must_use]
    pub fn are_divided(&self) -> bool {
        self.held.is_share()
    }

    /// Returns the rank that a parameter belongs to, or `None` if the optimizer does not update it.
    #[must_use]
    pub fn owner_of(&self, parameter: &str) -> Option<u32> {
        self.parameters.iter().find(|own| own.name == parameter).map(|own| own.owner)
    }

    /// Records whether the gradients that exist, if any, are divided.
    pub(crate) fn set_divided(&self, are_divided: bool) {
        self.held.set_share(are_divided);
        self.has_rows.set(false);
    }

    /// Whether the gradient of this parameter, if it exists, is a sum over all ranks.
    pub(crate) fn has_sum_of(&self, parameter: &str) -> bool {
        self.are_divided() && self.owner_of(parameter).is_some()
    }

    /// Whether this rank owns a parameter.
    pub(crate) fn is_own(&self, parameter: &str) -> bool {
        self.owner_of(parameter) == Some(self.share.rank)
    }

    /// Runs the backward pass of a loss and divides its gradients.
    ///
    /// # Errors
    ///
    /// Returns the error of the pass, or an error if it computes no gradient on this rank or if the
    /// other ranks cannot be reached.
    pub(crate) fn backward(
        &self,
        loss: &Tensor,
        pass: PassPlan,
        run: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if self.once_per_window && !pass.is_last && !self.are_divided() {
            world_of(self.share)?;
            self.has_rows.set(self.has_rows.get() | pass.has_rows);
            return run();
        }
        if self.exchange(Some(loss), pass.has_rows, run)? == 0 {
            return Err(Error::usage(
                "no parameter of the optimizer has a gradient in this backward pass: check that the network was built on the \
                 task's `VarStore`, and that the loss depends on a parameter that is trained",
            ));
        }
        Ok(())
    }

    /// Divides the gradients that no pass has divided yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the other ranks cannot be reached.
    pub(crate) fn complete(&self) -> Result<()> {
        if self.are_divided() { Ok(()) } else { self.exchange(None, true, &mut || Ok(())).map(drop) }
    }

    fn exchange(
        &self,
        loss: Option<&Tensor>,
        has_rows: bool,
        run: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        let world = world_of(self.share)?;
        let mut exchange = self.exchange.borrow_mut();
        let mut exchanged = self.exchanged.borrow_mut();
        let trained = || self.parameters.iter().map(|own| own.tensor.requires_grad());
        let is_known = exchange.as_ref().is_some_and(|exchange| exchange.is_of(&world));
        if !is_known || !exchanged.iter().copied().eq(trained()) {
            // Detects that parameters were frozen or thawed in this batch on some ranks only: the
            // other ranks do not get here.
            world.barrier("a change of the parameters whose gradients are divided")?;
            *exchange = None;
            exchanged.clear();
            let own = self.parameters.iter().filter(|own| own.tensor.requires_grad());
            let own = own.map(|own| (own.name.as_str(), &own.tensor, own.owner));
            *exchange = Exchange::new(&world, own, self.bucket_bytes, &self.held)?;
            exchanged.extend(trained());
        }
        let Some(exchange) = &*exchange else { return Ok(0) }; // one rank only: nothing is divided
        let has_rows = self.has_rows.take() | has_rows;
        exchange.during(loss, has_rows, run)
    }

    /// Returns the norm of the gradients of all ranks as one vector, given that of this rank's
    /// share. This is a collective.
    ///
    /// # Errors
    ///
    /// Returns an error if the ranks do not all call this.
    pub(crate) fn norm(&self, own: &[Tensor]) -> Result<Tensor> {
        let total = norms([&norms(own)?])?;
        if !self.are_divided() {
            return Ok(total.f_get(0)?);
        }
        // The ranks may have gradients of different dtypes, or none.
        let squared = total.f_to_kind(Kind::Double)?.f_square()?;
        world_of(self.share)?.all_reduce("the norm of the divided gradients", &squared, Op::Sum)?;
        let kind = self.parameters.iter().map(|own| own.tensor.kind()).find(|kind| *kind == Kind::Double);
        Ok(squared.f_sqrt()?.f_get(0)?.f_to_kind(kind.unwrap_or(Kind::Float))?)
    }

    /// Returns whether a condition on the gradients of each rank holds on all ranks. This is a
    /// collective if the gradients are divided.
    ///
    /// # Errors
    ///
    /// Returns an error if the ranks do not all call this.
    pub(crate) fn all(&self, what: &str, holds: bool) -> Result<bool> {
        if !self.are_divided() {
            return Ok(holds);
        }
        Ok(!world_of(self.share)?.any(what, !holds)?)
    }
}
