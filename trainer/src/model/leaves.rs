//! [`Leaves`]: what a loss depends on.

use std::collections::HashMap;

use tch::Tensor;

use super::vars::{VarName, Vars};
use crate::error::Result;
use crate::libtorch::{self, identity};

/// The leaves of a loss: see [`Cx::loss_leaves`](crate::Cx::loss_leaves).
#[derive(Debug)]
#[non_exhaustive]
pub struct Leaves {
    /// The leaves, each once.
    pub leaves: Vec<Leaf>,
    /// Whether the graph contains gradients, as that of a gradient penalty does.
    pub contain_gradients: bool,
}

/// A tensor that a backward pass would compute the gradient of.
#[derive(Debug)]
#[non_exhaustive]
pub struct Leaf {
    /// The tensor.
    pub tensor: Tensor,
    /// The name of the variable that the tensor is; `None` if it is not one of the task's.
    pub var: Option<VarName>,
}

impl Leaf {
    /// Whether the other tensor is a handle to the same tensor, rather than one with equal values.
    #[must_use]
    pub fn is(&self, other: &Tensor) -> bool {
        identity(&self.tensor) == identity(other)
    }

    /// Returns a number that grows with each change of the tensor in place, like
    /// [`Var::changes`](crate::Var::changes).
    #[must_use]
    pub fn changes(&self) -> u64 {
        libtorch::changes(&self.tensor)
    }
}

impl Leaves {
    /// Returns the leaves of the graph of `loss`.
    pub(crate) fn of(loss: &Tensor, vars: &Vars) -> Result<Self> {
        let (tensors, contain_gradients) = libtorch::leaves(loss)?;
        let names: HashMap<usize, VarName> = vars.names().collect();
        let leaves =
            tensors.into_iter().map(|tensor| Leaf { var: names.get(&identity(&tensor)).cloned(), tensor });
        Ok(Leaves { leaves: leaves.collect(), contain_gradients })
    }
}
