//! Optimizers on libtorch's fused kernels, which hold their state as tensors.

mod adamw;
mod parts;
mod sgd;

pub use adamw::AdamW;
pub(crate) use parts::Optimizers;
pub use sgd::Sgd;
use tch::Tensor;

use crate::error::{Error, Result};
use crate::libtorch::TensorList;
use crate::vars::{Var, Vars};

/// Updates parameters by their gradients.
pub trait Optimizer: Send {
    /// Takes the parameters of a task; called once, when the trainer is built.
    ///
    /// # Errors
    ///
    /// When it cannot update one of them.
    fn bind(&mut self, vars: &Vars) -> Result<()>;

    /// Updates every parameter that has a gradient.
    ///
    /// # Errors
    ///
    /// Those of libtorch.
    fn step(&mut self) -> Result<()>;

    /// Drops the gradients.
    ///
    /// # Errors
    ///
    /// Those of libtorch.
    fn zero_grad(&mut self) -> Result<()>;

    /// The parameter groups.
    fn groups(&self) -> &[ParamGroup];

    /// The parameter groups, to be changed: the learning rate, say.
    fn groups_mut(&mut self) -> &mut [ParamGroup];

    /// Its state by name, `exp_avg/fc1.weight`. The tensors share their storage with it.
    fn state(&self) -> Vec<(String, Tensor)>;
}

/// Parameters that are updated in the same way: those of one group of the `VarStore`.
#[derive(Debug)]
#[non_exhaustive]
pub struct ParamGroup {
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// The number of the group, as set by `nn::Path::set_group`.
    pub group: usize,
    names: Vec<String>,
    parameters: TensorList,
}

impl ParamGroup {
    /// The parameters of a task in their groups, each with these settings: where an optimizer of
    /// one's own begins.
    #[must_use]
    pub fn split(vars: &Vars, lr: f64, weight_decay: f64) -> Vec<ParamGroup> {
        let mut groups: Vec<(usize, Vec<&Var>)> = Vec::new();
        for var in vars.parameters() {
            match groups.iter_mut().find(|(group, _)| *group == var.group) {
                Some((_, members)) => members.push(var),
                None => groups.push((var.group, vec![var])),
            }
        }
        groups.sort_by_key(|(group, _)| *group);
        let group = |(group, members): (usize, Vec<&Var>)| ParamGroup {
            lr,
            weight_decay,
            group,
            names: members.iter().map(|var| var.name.clone()).collect(),
            parameters: members.iter().map(|var| var.tensor.shallow_clone()).collect(),
        };
        groups.into_iter().map(group).collect()
    }

    /// The names of its parameters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Its parameters, in the order of [`names`](ParamGroup::names).
    pub fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.parameters.iter()
    }

    /// A tensor beside each parameter, like it.
    fn zeros_like(&self) -> TensorList {
        self.parameters.iter().map(Tensor::zeros_like).collect()
    }

    /// State tensors under their names.
    fn named<'a>(
        &'a self,
        what: &'a str,
        state: &'a TensorList,
    ) -> impl Iterator<Item = (String, Tensor)> + 'a {
        self.names
            .iter()
            .zip(state.iter())
            .map(move |(name, tensor)| (format!("{what}/{name}"), tensor.shallow_clone()))
    }
}

/// A hyperparameter outside of its range would train, and badly.
fn check(name: &str, value: f64, range: std::ops::Range<f64>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let upper = if range.end.is_finite() { format!(" and below {}", range.end) } else { String::new() };
    Err(Error::usage(format!("the optimizer's {name} must be at least {}{upper}, not {value}", range.start)))
}
