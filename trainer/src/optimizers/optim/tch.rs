//! The optimizers of tch.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::{Tensor, nn};

use super::{Optimizer, ParamGroup, group};
use crate::error::{BuildError, Error, Result, panic_text};
use crate::libtorch;
use crate::model::vars::Vars;

/// One of tch's optimizers, for a whole model.
///
/// Use this when you need an optimizer of tch that this crate does not have.
///
/// tch does not expose the state of its optimizers: [`state`](Optimizer::state) is empty and not
/// [complete](Optimizer::state_is_complete), so a run cannot be resumed exactly. Only `lr`,
/// `weight_decay` and `frozen` can be set during training. The weight decay is NaN until it is set,
/// because tch does not expose it. A frozen group gets no gradient, and therefore no update.
///
/// ```
/// use trainer::optim::Tch;
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// let vs = nn::VarStore::new(Device::Cpu);
/// let net = nn::linear(&vs.root() / "fc", 4, 2, Default::default());
/// let adam = Tch::new(nn::Adam::default(), &vs, 1e-3)?;
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task).optimizer(adam).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tch {
    optimizer: nn::Optimizer,
    lr: f64,
    groups: Vec<ParamGroup>,
    /// The learning rate and weight decay that tch's optimizer uses for each group; NaN if unknown.
    given: Vec<[f64; 2]>,
}

impl Tch {
    /// Builds the optimizer for the `VarStore` of the task, with this learning rate.
    ///
    /// # Errors
    ///
    /// Returns an error if tch fails to build the optimizer.
    pub fn new(config: impl nn::OptimizerConfig, vs: &nn::VarStore, lr: f64) -> Result<Self> {
        Ok(Tch { optimizer: config.build(vs, lr)?, lr, groups: Vec::new(), given: Vec::new() })
    }
}

impl Optimizer for Tch {
    fn bind(&mut self, vars: &Vars) -> Result<()> {
        let mut own: Vec<_> = self.optimizer.trainable_variables().iter().map(libtorch::identity).collect();
        let mut given: Vec<_> = vars.parameters().map(|var| libtorch::identity(&var.tensor)).collect();
        own.sort_unstable();
        given.sort_unstable();
        if own != given {
            return Err(Error::usage(
                "this `Tch` optimizer updates every parameter of the `VarStore` that it was built for, but those are not \
                 the parameters that it was added for: build it for the task's `VarStore`, \
                 `Tch::new(nn::Adam::default(), &vs, 1e-3)?`, and pass it to `.optimizer(…)`",
            ));
        }
        let mistakes = group::unfit(vars);
        if !mistakes.is_empty() {
            return Err(Error::Build(Box::new(BuildError { mistakes })));
        }
        self.groups = ParamGroup::split(vars, self.lr, f64::NAN);
        self.given = vec![[self.lr, f64::NAN]; self.groups.len()];
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        for (group, [lr, weight_decay]) in self.groups.iter().zip(&mut self.given) {
            if group.lr != *lr {
                *lr = group.lr;
                self.optimizer.set_lr_group(group.group, *lr);
            }
            if !group.weight_decay.is_nan() && group.weight_decay != *weight_decay {
                *weight_decay = group.weight_decay;
                self.optimizer.set_weight_decay_group(group.group, *weight_decay);
            }
        }
        self.groups.iter().try_for_each(|group| libtorch::check_params(group.list()))?;
        // tch panics if libtorch fails; the optimizer is still usable afterwards.
        catch_unwind(AssertUnwindSafe(|| self.optimizer.step())).map_err(|panic| {
            let text = panic_text(&*panic);
            let named = self.groups.iter().flat_map(|group| group.names().zip(group.parameters()));
            let sparse = named.filter(|(_, parameter)| {
                let grad = parameter.grad();
                grad.defined() && grad.is_sparse()
            });
            let sparse: Vec<_> = sparse.map(|(name, _)| format!("`{name}`")).collect();
            Error::msg(match &sparse[..] {
                [] => format!("tch's optimizer failed: {text}"),
                sparse => format!(
                    "tch's optimizer failed: {text}; most of tch's optimizers do not support sparse gradients, which \
                     these parameters have: {}",
                    sparse.join(", ")
                ),
            })
        })
    }

    fn zero_grad(&mut self) -> Result<()> {
        self.groups.iter().try_for_each(ParamGroup::drop_grads)
    }

    fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    fn groups_mut(&mut self) -> &mut [ParamGroup] {
        &mut self.groups
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        Vec::new()
    }

    fn state_is_complete(&self) -> bool {
        false
    }
}
