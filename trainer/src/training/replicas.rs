//! Comparing the weights of the ranks, which must be equal.

use tch::{Device, Tensor};

use crate::distributed::{Unequal, World};
use crate::error::{Error, Result};
use crate::libtorch;
use crate::model::vars::Var;
use crate::run::Run;

/// Returns an error if the weights of the ranks differ. `when` says when they were compared.
///
/// Compares the hashes of the parameters and of the floating-point buffers, which
/// `DataParallel` has averaged by then. Other buffers may differ between ranks, and so may the
/// weights if each rank trains by itself.
pub(super) fn compare(run: &Run, when: &str) -> Result<()> {
    if run.ranks.world.is_solo() || run.ranks.train_separately {
        Ok(())
    } else {
        compare_weights(run, &run.ranks.world, when)
    }
}

#[cold]
fn compare_weights(run: &Run, world: &World, when: &str) -> Result<()> {
    let is_shared = |var: &&Var| var.is_parameter || var.tensor.is_floating_point();
    let vars: Vec<&Var> = run.model.vars.iter().filter(is_shared).collect();
    let hashes = vars.iter().map(|var| hash(&var.tensor)).collect::<Result<Vec<_>>>()?;
    let mut all = blake3::Hasher::new();
    hashes.iter().for_each(|hash| {
        all.update(hash.as_bytes());
    });
    let own = all.finalize().to_hex().to_string();
    if world.difference(&own, "the comparison of the weights")?.is_none() {
        return Ok(());
    }
    let hashes: Vec<String> = hashes.iter().map(|hash| hash.to_hex().to_string()).collect();
    let Some(Unequal { of_main, rank, of_rank }) =
        world.difference(&hashes, "the comparison of each weight")?
    else {
        return Ok(());
    };
    let nth = (0..vars.len()).find(|nth| of_main.get(*nth) != of_rank.get(*nth));
    Err(Error::usage(format!(
        "the ranks no longer train the same model: {when}, `{}` on rank {rank} differs from rank 0; look for a hook or a task \
         that changes the weights differently on each rank, for example with random numbers, and broadcast what it adds \
         (`World::broadcast`)",
        nth.map_or("", |nth| &vars[nth].name),
    )))
}

fn hash(tensor: &Tensor) -> Result<blake3::Hash> {
    let on_cpu = tensor.detach().f_to_device(Device::Cpu)?.f_contiguous()?;
    Ok(blake3::hash(libtorch::bytes(&on_cpu)?))
}
