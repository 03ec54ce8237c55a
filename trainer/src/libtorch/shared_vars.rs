//! Variables that several threads may read.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use tch::Tensor;

/// One variable of a task.
#[derive(Debug)]
#[non_exhaustive]
pub struct Var {
    /// The path in the `VarStore`, such as `fc1.weight`.
    pub name: String,
    /// The tensor, which shares its storage with the task's tensor.
    pub tensor: Tensor,
    /// Whether the variable is a parameter, as opposed to a buffer such as the running mean of a
    /// batch norm.
    pub is_parameter: bool,
    /// The parameter group, as set by `nn::Path::set_group`. Defaults to 0.
    pub group: usize,
}

/// A list of variables that threads may share, because it only hands out shared references.
#[derive(Debug)]
pub(crate) struct SharedVars {
    vars: Vec<Var>,
    /// Whether averages of the variables exist.
    has_averages: AtomicBool,
}

// SAFETY: nothing hands out a `&mut Var`, so threads only read the handles of the tensors, which
// they may do concurrently. Through a `&Tensor`, a thread can do nothing that it could not do
// through a shallow clone, which tch allows sending to it. The other fields of `Var` are plain
// data.
unsafe impl Sync for SharedVars {}

impl SharedVars {
    pub(crate) fn new(vars: Vec<Var>) -> Self {
        SharedVars { vars, has_averages: AtomicBool::new(false) }
    }

    pub(crate) fn has_averages(&self) -> bool {
        self.has_averages.load(Ordering::Relaxed)
    }

    pub(crate) fn set_has_averages(&self, has_averages: bool) {
        self.has_averages.store(has_averages, Ordering::Relaxed);
    }
}

impl Deref for SharedVars {
    type Target = [Var];

    fn deref(&self) -> &[Var] {
        &self.vars
    }
}
