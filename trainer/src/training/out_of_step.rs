//! The values that must be equal on all ranks, and the errors of ranks that are out of step.

use crate::distributed::{Unequal, World};
use crate::error::{Error, Result, shortened};
use crate::model::vars::Vars;
use crate::optim::Optimizers;
use crate::run::Ranks;
use crate::values::float::exact;

/// The progress of a rank: the number of batches, the number of optimizer steps, and the total
/// weight of the batches in the accumulation window.
pub(super) type Counters = (u64, u64, f64);

/// Returns a hash of the set of trained parameters. The hash has 52 bits, so an `f64` represents it
/// exactly.
pub(super) fn trained_hash(vars: &Vars) -> f64 {
    hash(vars.parameters().map(|var| u64::from(var.tensor.requires_grad())))
}

/// Returns a hash of the current settings of all optimizers, such as their learning rates. Hooks
/// may have changed them since the ranks compared their programs. 0 if each rank trains by itself.
pub(super) fn settings_hash(optimizers: &Optimizers, ranks: &Ranks) -> f64 {
    if ranks.train_separately {
        return 0.0;
    }
    let groups = optimizers.parts().flat_map(|(_, optimizer, ..)| optimizer.groups());
    hash(groups.flat_map(|group| group.settings().map(|(_, value)| value.to_bits())))
}

/// Returns a hash that an `f64` represents exactly: 52 bits.
fn hash(values: impl Iterator<Item = u64>) -> f64 {
    let mix = |hash: u64, value: u64| {
        (hash ^ value).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    };
    (values.fold(0, mix) >> 12) as f64
}

/// Returns the error for ranks whose optimizers have different settings. Every rank must call this.
#[cold]
pub(super) fn differently_set(optimizers: &Optimizers, world: &World) -> Result<Error> {
    let mut own: Vec<(String, String)> = Vec::new();
    for (part, optimizer, ..) in optimizers.parts() {
        let part = if part.is_empty() { String::new() } else { format!(" of `{part}`") };
        for (nth, group) in optimizer.groups().iter().enumerate() {
            let group_name =
                group.pattern().map_or_else(|| nth.to_string(), |pattern| format!("`{pattern}`"));
            let named =
                |name: &str| format!("`{name}` of the parameter group {group_name} of the optimizer{part}");
            own.extend(group.settings().map(|(name, value)| (named(name), exact(value))));
        }
    }
    let what = match world.difference(&own, "the comparison of the settings of the optimizers")? {
        None => String::new(),
        Some(Unequal { of_main, rank, of_rank }) => {
            let mut pairs = of_main.iter().zip(&of_rank);
            let pair = pairs.find(|(main, other)| main != other);
            pair.map_or_else(String::new, |((name, main), (_, other))| {
                format!(": {name} is {main} on rank 0, but {other} on rank {rank}")
            })
        }
    };
    Ok(Error::usage(format!(
        "the ranks are out of step, because their optimizers have different settings{what}; make hooks set the same values on every \
         rank, for example from numbers that are averaged over the ranks (`World::average`)"
    )))
}

/// Returns the error for ranks that train different parameters. Every rank must call this.
#[cold]
pub(super) fn differently_frozen(vars: &Vars, world: &World) -> Result<Error> {
    let frozen = vars.parameters().filter(|var| !var.tensor.requires_grad());
    let frozen: Vec<String> = frozen.map(|var| var.name.clone()).collect();
    let what = match world.difference(&frozen, "the comparison of the frozen parameters")? {
        None => String::new(),
        Some(Unequal { of_main, rank, of_rank }) => {
            let [main, other] = [(&of_main, &of_rank), (&of_rank, &of_main)]
                .map(|(one, other)| one.iter().find(|name| !other.contains(name)));
            let (name, frozen, trained) = main.map_or((other, rank, 0), |name| (Some(name), 0, rank));
            let name = name.map_or("", String::as_str);
            format!(": `{}` is frozen on rank {frozen}, but trained on rank {trained}", shortened(name))
        }
    };
    Ok(Error::usage(format!(
        "the ranks are out of step, because they train different parameters{what}; make hooks freeze and thaw the same \
         parameters on every rank"
    )))
}

/// Returns the error for ranks that have not trained the same number of batches and steps, or have
/// not accumulated the gradients of the same batches. Every rank must call this.
#[cold]
pub(super) fn out_of_step(own: Counters, world: &World) -> Result<Error> {
    let what = match world.difference(&own, "the comparison of the counters")? {
        None => String::new(),
        Some(Unequal { of_main: (batches, steps, weight), rank, of_rank }) => {
            let (other_batches, other_steps, other_weight) = of_rank;
            let accumulated = if weight == other_weight {
                String::new()
            } else {
                format!(", and gradients of weight {weight} and {other_weight} are accumulated")
            };
            format!(
                ": rank 0 has trained {batches} batches and taken {steps} optimizer steps, but rank {rank} has trained \
                 {other_batches} and taken {other_steps}{accumulated}"
            )
        }
    };
    Ok(Error::usage(format!(
        "the ranks are out of step{what}; a hook skipped work on one rank only: make it decide the same way on every rank"
    )))
}
