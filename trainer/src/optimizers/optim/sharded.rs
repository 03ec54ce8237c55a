//! [`Sharded`]: an optimizer whose state is divided among the processes that train together.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tch::Tensor;

use super::divided::{DividedGradients, world_of};
use super::{Optimizer, ParamGroup};
use crate::distributed::Share;
use crate::error::{BuildError, Error, Result};
use crate::model::vars::{Var, Vars};
use crate::values::facts::SettingList;

/// Divides the state of an optimizer among the [processes](crate::distributed) that train together:
/// stage 1 of ZeRO (Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion
/// Parameter Models*, 2020), or with [`gradients`](Sharded::gradients) stage 2.
///
/// Use this when the state of the optimizer, or the state and the gradients, do not fit in the
/// memory of one rank. The [guide](crate::guide::optimizers#memory-on-several-ranks) shows what
/// each stage needs and sends.
///
/// Each parameter belongs to one rank, which keeps the parameter's state, updates the parameter and
/// broadcasts the result. The shares have about the same number of elements, and a parameter is
/// never split. In stage 1, the weights are bit-identical to those without `Sharded`. When a
/// checkpoint is saved, each rank writes its own share. A run can resume on a different number of
/// ranks, or without `Sharded`. In a single process, `Sharded` does the same as the inner
/// optimizer.
///
/// ```
/// use trainer::optim::{AdamW, Group, Sharded};
///
/// let optimizer = Sharded::new(AdamW::new(1e-3).group("*.bias", Group::new().weight_decay(0.0)));
/// let optimizer = optimizer.gradients(true);
/// ```
///
/// [`groups`](Optimizer::groups) contains all parameters on every rank. To change a setting,
/// change it on every rank. [`state`](Optimizer::state) contains the share of this rank.
///
/// Works with every optimizer of this crate except [`Tch`](super::Tch), and with custom optimizers
/// that implement [`bind_share`](Optimizer::bind_share). Any other optimizer is an error when the
/// trainer is built.
#[doc(alias("ZeroRedundancyOptimizer", "ZeRO"))]
#[derive(Debug)]
pub struct Sharded<O> {
    inner: O,
    gradients: bool,
    bucket_bytes: u64,
    once_per_window: bool,
    share: Share,
    /// The rank that each parameter belongs to.
    owners: BTreeMap<String, u32>,
    /// The parameters of each rank.
    shares: Vec<Vec<Tensor>>,
    /// Where the gradients are, if they are divided.
    divided: Option<DividedGradients>,
}

impl<O: Optimizer> Sharded<O> {
    /// Creates the optimizer that divides the state of `inner`.
    #[must_use]
    pub fn new(inner: O) -> Self {
        Sharded {
            inner,
            gradients: false,
            bucket_bytes: 4 << 20,
            once_per_window: false,
            share: Share { rank: 0, of: 1 },
            owners: BTreeMap::new(),
            shares: Vec::new(),
            divided: None,
        }
    }

    /// Sets whether the gradients are divided, too: stage 2 of ZeRO. Defaults to `false`.
    ///
    /// While a backward pass runs, each gradient is sent to the rank that the parameter belongs to,
    /// which averages it over all ranks, and dropped everywhere else. This sends less than stage 1,
    /// which averages every gradient on every rank. After the pass, [`Cx::grads`](crate::Cx::grads)
    /// has this rank's share only. What a hook computes from gradients must then be combined over
    /// the ranks, as the [guide](crate::guide::distributed#hooks) shows; the methods of
    /// [`Cx`](crate::Cx) and the built-in hooks do so.
    ///
    /// The gradients are added in the order of the ranks, so they do not depend on
    /// [`bucket_bytes`](Sharded::bucket_bytes). With two ranks and without accumulation, the
    /// weights are bit-identical to those of stage 1. Otherwise, they are equal up to rounding:
    /// libtorch's reducer adds in another order. A parameter without a gradient on any rank has
    /// none, without `find_unused` of [`DataParallel`](crate::hooks::DataParallel), whose settings
    /// do not matter.
    ///
    /// Parameters on a GPU are an error when the trainer is built: this never ran there.
    #[must_use]
    pub fn gradients(mut self, divide: bool) -> Self {
        self.gradients = divide;
        self
    }

    /// Sets how many bytes of gradients are sent at a time, at least 1. Defaults to 4 MiB. A rank
    /// needs memory for about four such buckets. On more than about 64 ranks, larger ones need
    /// fewer messages. Only matters with [`gradients`](Sharded::gradients).
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        self.bucket_bytes = bytes;
        self
    }

    /// Sets whether the gradients are divided once in an accumulation window, in its last backward
    /// pass, instead of in each pass. Defaults to `false`. This sends less, but until then each
    /// rank keeps all gradients, as in stage 1. Only matters with [`gradients`](Sharded::gradients)
    /// and [accumulation](crate::TrainerBuilder::accumulate).
    #[must_use]
    pub fn once_per_window(mut self, once: bool) -> Self {
        self.once_per_window = once;
        self
    }

    /// Returns the mistakes in the settings, given the variables.
    fn mistakes(&self, vars: &Vars) -> Vec<String> {
        let mut mistakes = Vec::new();
        if self.bucket_bytes == 0 {
            mistakes.push("`Sharded::new(…).bucket_bytes(0)`: expected at least 1".to_owned());
        }
        if self.gradients && vars.share().of > 1 {
            let on_gpu = vars.parameters().find(|var| var.tensor.device().is_cuda());
            mistakes.extend(on_gpu.map(|var| {
                format!(
                    "`Sharded::new(…).gradients(true)` cannot divide the gradient of `{}`, which is on {:?}: this never ran on a GPU; \
                     remove `.gradients(true)`, which divides the state only",
                    var.name,
                    var.tensor.device()
                )
            }));
        }
        mistakes
    }
}

/// Returns the rank that each parameter belongs to. A parameter that has a rank in `known` keeps
/// it, because that rank has the parameter's state. The other parameters, from the largest to the
/// smallest, are each assigned to the rank that has the fewest elements so far.
fn assign(vars: &Vars, known: &BTreeMap<String, u32>, ranks: u32) -> BTreeMap<String, u32> {
    let mut loads = vec![0; ranks as usize];
    let mut owners = BTreeMap::new();
    let (old, mut new): (Vec<&Var>, Vec<&Var>) =
        vars.parameters().partition(|var| known.contains_key(&var.name));
    new.sort_by_key(|var| Reverse(var.tensor.numel()));
    for var in old.into_iter().chain(new) {
        let least = (0..ranks).min_by_key(|rank| loads[*rank as usize]).unwrap_or(0);
        let owner = known.get(&var.name).copied().unwrap_or(least);
        loads[owner as usize] += var.tensor.numel();
        owners.insert(var.name.clone(), owner);
    }
    owners
}

impl<O: Optimizer> Optimizer for Sharded<O> {
    fn bind(&mut self, vars: &Vars) -> Result<()> {
        let mistakes = self.mistakes(vars);
        if !mistakes.is_empty() {
            return Err(Error::Build(Box::new(BuildError { mistakes })));
        }
        self.share = vars.share();
        let owners = assign(vars, &self.owners, self.share.of);
        self.inner.bind_share(vars, &|name| owners.get(name) == Some(&self.share.rank))?;
        let shares = (0..self.share.of).map(|rank| {
            let own = vars.parameters().filter(|var| owners.get(&var.name) == Some(&rank));
            own.map(|var| var.tensor.shallow_clone()).collect()
        });
        self.shares = shares.collect();
        let are_divided = self.divided.as_ref().is_some_and(DividedGradients::are_divided);
        self.divided = (self.gradients && self.share.of > 1)
            .then(|| DividedGradients::new(vars, &owners, self.bucket_bytes, self.once_per_window));
        if let Some(divided) = &self.divided {
            divided.set_divided(are_divided);
        }
        self.owners = owners;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let world = world_of(self.share)?;
        if self.divided.as_ref().is_some_and(|divided| !divided.are_divided()) {
            return Err(Error::usage(
                "the gradients of a `Sharded` optimizer with `.gradients(true)` are not divided: if another optimizer wraps it, \
                 implement `Optimizer::divided_gradients` for that one; otherwise, compute gradients with `step.backward` \
                 or `cx.backward`",
            ));
        }
        self.inner.step()?;
        for (owner, share) in (0..).zip(&self.shares) {
            // Frozen parameters were not updated.
            let trained = share.iter().filter(|parameter| parameter.requires_grad());
            world.send(trained, owner, "the parameters that a rank has updated")?;
        }
        Ok(())
    }

    fn zero_grad(&mut self) -> Result<()> {
        if let Some(divided) = &self.divided {
            divided.set_divided(false);
        }
        self.inner.zero_grad()
    }

    fn groups(&self) -> &[ParamGroup] {
        self.inner.groups()
    }

    fn groups_mut(&mut self) -> &mut [ParamGroup] {
        self.inner.groups_mut()
    }

    fn settings(&self) -> SettingList {
        let Sharded {
            inner,
            gradients,
            bucket_bytes,
            once_per_window,
            owners: _,
            share: _,
            shares: _,
            divided: _,
        } = self;
        let settings = inner.settings();
        if !gradients {
            return settings.with("sharded", true);
        }
        // A resume may change the buckets, as it may add `Sharded` itself, but sums of gradients
        // that are divided have other last bits.
        let how = if *once_per_window { "once per window" } else { "in each batch" };
        settings
            .with("sharded", format_args!("in buckets of {bucket_bytes} bytes"))
            .with("divided_gradients", format_args!("{how}"))
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        self.inner.state()
    }

    fn state_is_complete(&self) -> bool {
        self.inner.state_is_complete()
    }

    fn state_is_divided(&self) -> Result<bool> {
        world_of(self.share).map(|world| !world.is_solo())
    }

    fn divided_gradients(&self) -> Option<&DividedGradients> {
        self.divided.as_ref()
    }

    /// Also returns `true` for a name that belongs to no rank, so that the inner optimizer reports
    /// this name.
    fn is_in_share(&self, name: &str) -> bool {
        let owner = name.split_once('/').and_then(|(_, parameter)| self.owners.get(parameter));
        owner.is_none_or(|owner| *owner == self.share.rank)
    }

    fn load_state(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        let own = state.iter().filter(|(name, _)| self.is_in_share(name));
        let own: Vec<_> = own.map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
        self.inner.load_state(&own)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, nn};

    use super::*;

    #[test]
    fn parameters_are_assigned_evenly_and_keep_their_rank() {
        let vs = nn::VarStore::new(Device::Cpu);
        for (name, size) in [("a", 100), ("b", 60), ("c", 50), ("d", 10)] {
            let _ = vs.root().zeros(name, &[size]);
        }
        let first = assign(&Vars::from_store(&vs), &BTreeMap::new(), 2);
        assert_eq!(first.values().copied().collect::<Vec<_>>(), [0, 1, 1, 0]);
        let _ = vs.root().zeros("aa", &[1000]);
        let second = assign(&Vars::from_store(&vs), &first, 2);
        assert!(first.iter().all(|(name, owner)| second[name] == *owner));
        assert_eq!(second["aa"], 0);
        let third = assign(&Vars::from_store(&vs), &BTreeMap::new(), 8);
        assert_eq!(third.values().copied().collect::<Vec<_>>(), [1, 0, 2, 3, 4]);
    }
}
