//! [`Reducer`]: averaging gradients over all ranks.

use tch::{Kind, Tensor};

use super::call::described;
use super::links::Links;
use super::{Unequal, World, watch};
use crate::error::{Error, Result};
use crate::libtorch::TensorList;
use crate::libtorch::dist::RawReducer;

/// The name that errors use for a backward pass that averages gradients.
pub(super) const REDUCTION: &str = "the reduction of the gradients";

/// Averages gradients over all ranks while a backward pass computes them: libtorch's
/// `c10d::Reducer`.
#[derive(Debug)]
pub struct Reducer {
    /// The reducer and its connections; `None` if there is only one rank.
    linked: Option<(RawReducer, Links)>,
    find_unused: bool,
}

/// Returns an error if a parameter is not stored in the same order on all ranks, as libtorch's
/// reducer requires.
pub(super) fn check_layout(links: &Links, names: &[String], list: &TensorList) -> Result<()> {
    let described = |(name, tensor): (&String, &Tensor)| {
        format!("`{name}` is a {} with the strides {:?}", described(tensor), tensor.stride())
    };
    let own: Vec<String> = names.iter().zip(list.iter()).map(described).collect();
    let what = "the comparison of the parameters that are averaged";
    let Some(Unequal { of_main, rank, of_rank }) = links.difference(&own, what)? else { return Ok(()) };
    let mut pairs = of_main.iter().zip(&of_rank);
    let (main, other) = pairs.find(|(main, other)| main != other).unwrap_or((&own[0], &own[0]));
    Err(Error::usage(format!(
        "the gradients of the ranks cannot be averaged, because their parameters differ: {main} on rank 0, but {other} on rank \
         {rank}; create the model with the same shapes and the same memory format, such as channels last, on every rank"
    )))
}

impl Reducer {
    /// Creates a reducer for these named parameters. It sends gradients in buckets of about
    /// `bucket_bytes` bytes; the first bucket is limited to 1 MiB. If `find_unused` is true, a loss
    /// need not depend on all parameters. This is a collective.
    ///
    /// # Errors
    ///
    /// Returns an error if the parameters differ between the ranks, and in the same cases as
    /// [`World::all_reduce`].
    pub fn new<'a>(
        world: &World,
        params: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
        bucket_bytes: u64,
        find_unused: bool,
    ) -> Result<Self> {
        let (names, list): (Vec<String>, Vec<Tensor>) =
            params.into_iter().map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone())).unzip();
        let list: TensorList = list.into_iter().collect();
        let bytes = i64::try_from(bucket_bytes).unwrap_or(i64::MAX);
        let linked = world.links.as_ref().map(|links| {
            check_layout(links, &names, &list)?;
            let raw = links.collective(watch::Kind::Data, "the reducer of the gradients", |group| {
                RawReducer::new(group, &list, &names, bytes, find_unused)
            })?;
            Ok::<_, Error>((raw, links.clone()))
        });
        Ok(Reducer { linked: linked.transpose()?, find_unused })
    }

    /// Makes the reducer send and sum gradients in this 16-bit dtype. This halves the traffic of
    /// `f32` parameters. Call this once, before the first backward pass.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the dtype is neither [`Kind::BFloat16`] nor [`Kind::Half`];
    /// - this was called before;
    /// - this process has disconnected from the other ranks.
    pub fn compress(&self, kind: Kind) -> Result<()> {
        match (kind, &self.linked) {
            (Kind::BFloat16 | Kind::Half, None) => Ok(()),
            (Kind::BFloat16 | Kind::Half, Some((raw, _))) => raw.compress(kind == Kind::BFloat16),
            (kind, _) => Err(Error::usage(format!(
                "gradients cannot be compressed to {kind:?}: expected `Kind::BFloat16` or `Kind::Half`"
            ))),
        }
    }

    /// Declares that every backward pass uses the same parameters, as `static_graph` of PyTorch's
    /// `DistributedDataParallel` does. Parameters that the first pass does not use are then
    /// allowed, but no later pass may use them. Call this once, before the first backward pass, and
    /// call [`finish`](Reducer::finish) after each backward pass.
    ///
    /// # Errors
    ///
    /// Returns an error if this process has disconnected from the other ranks.
    pub fn set_static_graph(&self) -> Result<()> {
        self.linked.as_ref().map_or(Ok(()), |(raw, _)| raw.set_static_graph())
    }

    /// Prepares for a backward pass whose gradients are averaged.
    ///
    /// # Errors
    ///
    /// Returns an error if a parameter had no gradient in the previous backward pass, or if this
    /// process has disconnected from the other ranks.
    pub fn prepare(&self, loss: &Tensor) -> Result<()> {
        let Some((raw, links)) = &self.linked else { return Ok(()) };
        links.shared.watch.begin_backward(REDUCTION);
        raw.prepare(self.find_unused.then_some(loss))
    }

    /// Sends the gradients of the first backward pass of a static graph. Does nothing after any
    /// other pass.
    ///
    /// # Errors
    ///
    /// Returns an error if another rank failed, died or did not call this within the timeout.
    pub fn finish(&self) -> Result<()> {
        self.linked.as_ref().map_or(Ok(()), |(raw, _)| raw.finish())
    }

    /// Checks that the backward pass computed a gradient for every parameter. Call this after the
    /// pass.
    ///
    /// # Errors
    ///
    /// Returns an error if a parameter has no gradient.
    pub fn check(&self) -> Result<()> {
        let Some((raw, links)) = &self.linked else { return Ok(()) };
        links.shared.watch.end_backward();
        raw.check()
    }

    /// Returns the error of a failed backward pass, with an explanation of what happened to other
    /// ranks.
    #[must_use]
    pub fn explained(&self, error: Error) -> Error {
        let Some((_, links)) = &self.linked else { return error };
        links.shared.watch.abandon_backward();
        links.explained(REDUCTION, &error)
    }
}
