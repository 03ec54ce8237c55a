//! [`Reducer`]: averaging gradients over all ranks.

use tch::{Kind, Tensor};

use super::world::World;
use crate::error::{Error, Result};
use crate::libtorch::TensorList;
use crate::libtorch::dist::RawReducer;

/// Averages gradients over all ranks while a backward pass computes them: libtorch's
/// `c10d::Reducer`.
#[derive(Debug)]
pub struct Reducer {
    raw: RawReducer,
    world: World,
    find_unused: bool,
}

impl Reducer {
    /// Creates a reducer for these named parameters that sends buckets of `bucket_bytes` bytes.
    /// With `find_unused`, it finds the parameters that a loss does not depend on. A collective.
    ///
    /// # Errors
    ///
    /// Returns an error if the parameters differ between the ranks.
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
        let raw = world.collective("the reducer of the gradients", |group| {
            RawReducer::new(group, &list, &names, bytes, find_unused)
        })?;
        Ok(Reducer { raw, world: world.clone(), find_unused })
    }

    /// Sends gradients in this dtype of 16 bits, which halves the traffic of `f32` parameters. They
    /// are added in it too. Called once, before the first backward pass.
    ///
    /// # Errors
    ///
    /// Returns an error if the dtype is neither [`Kind::BFloat16`] nor [`Kind::Half`].
    pub fn compress(&self, kind: Kind) -> Result<()> {
        match kind {
            Kind::BFloat16 | Kind::Half => self.raw.compress(kind == Kind::BFloat16),
            kind => Err(Error::usage(format!(
                "gradients cannot be compressed to {kind:?}: expected `Kind::BFloat16` or `Kind::Half`"
            ))),
        }
    }

    /// Prepares for a backward pass whose gradients are averaged.
    ///
    /// # Errors
    ///
    /// Returns an error if a parameter had no gradient in the previous backward pass.
    pub fn prepare(&self, loss: &Tensor) -> Result<()> {
        self.raw.prepare(self.find_unused.then_some(loss))
    }

    /// Checks, after the backward pass, that every parameter had a gradient.
    ///
    /// # Errors
    ///
    /// Returns an error if a parameter had none.
    pub fn check(&self) -> Result<()> {
        self.raw.check()
    }

    /// Returns the error of a failed backward pass, with what is known of the other ranks.
    #[must_use]
    pub fn explained(&self, error: &crate::Error) -> crate::Error {
        self.world.explained("the reduction of the gradients", error)
    }
}
