//! [`Sharded`]: an optimizer whose state is divided among the processes that train together.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tch::Tensor;

use super::{Optimizer, ParamGroup};
use crate::distributed::{Share, World};
use crate::error::{Error, Result};
use crate::model::vars::{Var, Vars};
use crate::values::facts::SettingList;

/// Divides the state of an optimizer among the [processes](crate::distributed) that train together:
/// stage 1 of ZeRO (Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion
/// Parameter Models*, 2020).
///
/// Use this when the state of the optimizer does not fit in the memory of one rank.
///
/// Each parameter belongs to one rank, which keeps the parameter's state, updates the parameter and
/// broadcasts the result. The shares have about the same number of elements, and a parameter is
/// never split. The weights are bit-identical to those without `Sharded`. When a checkpoint is
/// saved, each rank writes its own share. A run can resume on a different number of ranks, or
/// without `Sharded`. In a single process, `Sharded` does the same as the inner optimizer.
///
/// ```
/// use trainer::optim::{AdamW, Group, Sharded};
///
/// let optimizer = Sharded::new(AdamW::new(1e-3).group("*.bias", Group::new().weight_decay(0.0)));
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
    share: Share,
    /// The rank that each parameter belongs to.
    owners: BTreeMap<String, u32>,
    /// The parameters of each rank.
    shares: Vec<Vec<Tensor>>,
}

impl<O: Optimizer> Sharded<O> {
    /// Creates the optimizer that divides the state of `inner`.
    #[must_use]
    pub fn new(inner: O) -> Self {
        Sharded { inner, share: Share { rank: 0, of: 1 }, owners: BTreeMap::new(), shares: Vec::new() }
    }

    /// Returns the processes that train together. Returns an error if they cannot be reached, which
    /// is the case outside of `fit` and after another rank has failed.
    fn world(&self) -> Result<World> {
        let world = World::current();
        if world.share() != self.share {
            return Err(Error::usage(format!(
                "a `Sharded` optimizer has the state of rank {} only, and cannot reach the other ranks: it is used outside of \
                 `fit`, or another rank failed; for `find_batch_size` in several processes, build the trainer \
                 with the inner optimizer",
                self.share.rank
            )));
        }
        Ok(world)
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
        self.share = vars.share();
        let owners = assign(vars, &self.owners, self.share.of);
        self.inner.bind_share(vars, &|name| owners.get(name) == Some(&self.share.rank))?;
        let shares = (0..self.share.of).map(|rank| {
            let own = vars.parameters().filter(|var| owners.get(&var.name) == Some(&rank));
            own.map(|var| var.tensor.shallow_clone()).collect()
        });
        self.shares = shares.collect();
        self.owners = owners;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let world = self.world()?;
        self.inner.step()?;
        for (owner, share) in (0..).zip(&self.shares) {
            // Frozen parameters were not updated.
            let trained = share.iter().filter(|parameter| parameter.requires_grad());
            world.send(trained, owner, "the parameters that a rank has updated")?;
        }
        Ok(())
    }

    fn zero_grad(&mut self) -> Result<()> {
        self.inner.zero_grad()
    }

    fn groups(&self) -> &[ParamGroup] {
        self.inner.groups()
    }

    fn groups_mut(&mut self) -> &mut [ParamGroup] {
        self.inner.groups_mut()
    }

    fn settings(&self) -> SettingList {
        let Sharded { inner, owners: _, share: _, shares: _ } = self;
        inner.settings().with("sharded", true)
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        self.inner.state()
    }

    fn state_is_complete(&self) -> bool {
        self.inner.state_is_complete()
    }

    fn state_is_divided(&self) -> Result<bool> {
        self.world().map(|world| !world.is_solo())
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
