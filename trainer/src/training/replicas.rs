//! Comparing the states of the ranks, which must be equal.

use tch::{Kind, Tensor};

use crate::distributed::{Unequal, World};
use crate::error::{Error, Result};
use crate::libtorch;
use crate::model::vars::Var;
use crate::model::vars::Vars;
use crate::optim::Optimizers;
use crate::run::{Model, Ranks};
use crate::values::float::exact;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// The parameters, and the floating-point buffers, which `DataParallel` has averaged by then.
    /// Other buffers may differ between ranks.
    Weights,
    /// The weights, and the states of the optimizers whose states are not divided among the ranks.
    /// A checkpoint has those of rank 0 only.
    WeightsAndOptimizers,
}

/// Returns an error if the states of the ranks differ. `when` says when they were compared. The
/// states may differ if each rank trains by itself.
pub(super) fn compare(model: &Model, ranks: &Ranks, compared: Compared, when: &str) -> Result<()> {
    if ranks.world.is_solo() || ranks.train_separately {
        Ok(())
    } else {
        compare_tensors(&tensors(&model.vars, &model.optimizers, compared)?, &ranks.world, when)
    }
}

/// Returns the tensors to compare, each with its description.
#[cold]
fn tensors(vars: &Vars, optimizers: &Optimizers, compared: Compared) -> Result<Vec<(String, Tensor)>> {
    let is_shared = |var: &&Var| var.is_parameter || var.tensor.is_floating_point();
    let shared = vars.iter().filter(is_shared);
    let mut list: Vec<(String, Tensor)> =
        shared.map(|var| (format!("`{}`", var.name), var.tensor.detach())).collect();
    if compared == Compared::WeightsAndOptimizers {
        for (_, optimizer, ..) in optimizers.parts() {
            if !optimizer.state_is_divided()? {
                let state = optimizer.state().into_iter();
                list.extend(state.map(|(name, tensor)| (format!("the optimizer's state `{name}`"), tensor)));
            }
        }
    }
    Ok(list)
}

#[cold]
fn compare_tensors(list: &[(String, Tensor)], world: &World, when: &str) -> Result<()> {
    let hashes = list.iter().map(|(name, tensor)| Ok((name, hash(tensor, name)?.to_hex().to_string())));
    let hashes = hashes.collect::<Result<Vec<_>>>()?;
    let mut all = blake3::Hasher::new();
    for (name, hash) in &hashes {
        all.update(name.as_bytes()).update(hash.as_bytes());
    }
    let own = all.finalize().to_hex().to_string();
    if world.difference(&own, "the comparison of the weights")?.is_none() {
        return Ok(());
    }
    let hashes: Vec<(String, String)> = hashes.into_iter().map(|(name, hash)| (name.clone(), hash)).collect();
    let Some(Unequal { of_main, rank, of_rank }) =
        world.difference(&hashes, "the comparison of each weight")?
    else {
        return Ok(());
    };
    let count = of_main.len().max(of_rank.len());
    let nth = (0..count).find(|nth| of_main.get(*nth) != of_rank.get(*nth)).unwrap_or(0);
    let names = [&of_main, &of_rank].map(|list| list.get(nth).map(|(name, _)| name.as_str()));
    let what = match names {
        [Some(main), Some(other)] if main == other => {
            let element = first_difference(list.get(nth).map(|(_, tensor)| tensor), world, rank)?;
            format!("{main} on rank {rank} differs from rank 0{element}")
        }
        [Some(name), _] => format!("{name} exists on rank 0, but not on rank {rank}"),
        [None, name] => format!("{} exists on rank {rank}, but not on rank 0", name.unwrap_or_default()),
    };
    Err(Error::usage(format!(
        "the ranks no longer train the same model: {when}, {what}; look for a hook or a task that changes the weights differently \
         on each rank, for example with random numbers, and broadcast what it adds (`World::broadcast`)"
    )))
}

/// Describes the first element in which the tensor of a rank differs from that of rank 0. This is a
/// collective: all ranks must call it.
fn first_difference(own: Option<&Tensor>, world: &World, rank: u32) -> Result<String> {
    let kind_and_size = own.map(|own| format!("{:?} {:?}", own.kind(), own.size()));
    let is_comparable = kind_and_size.is_some() && own.is_some_and(|own| own.numel() > 0);
    let what = "the comparison of one weight";
    let differs = world.difference(&(kind_and_size, is_comparable), what)?.is_some();
    let Some(own) = own.filter(|_| is_comparable && !differs) else { return Ok(String::new()) };
    let _no_grad = tch::no_grad_guard();
    let own = libtorch::on_host(own, "a weight")?;
    let main = own.copy();
    world.send([&main], 0, what)?;
    let [own, main] = [&own, &main].map(|tensor| tensor.to_kind(Kind::Double).view([-1]));
    let is_equal = own.eq_tensor(&main).logical_or(&own.isnan().logical_and(&main.isnan()));
    let differs = is_equal.logical_not();
    let nth = differs.to_kind(Kind::Int).argmax(0, false).int64_value(&[]);
    let found = (differs.any().int64_value(&[]) != 0).then(|| {
        let [own, main] = [&own, &main].map(|tensor| exact(tensor.double_value(&[nth])));
        format!(" (element {nth} is {main} on rank 0, but {own} on rank {rank})")
    });
    let of_ranks: Vec<Option<String>> = world.gather_named(&found, what)?;
    Ok(of_ranks.into_iter().nth(rank as usize).flatten().unwrap_or_default())
}

fn hash(tensor: &Tensor, name: &str) -> Result<blake3::Hash> {
    Ok(blake3::hash(&libtorch::bytes(tensor, name)?))
}
