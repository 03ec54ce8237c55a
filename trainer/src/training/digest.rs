//! A hash of the state that decides how training continues.

use tch::{Device, Tensor};

use super::parts;
use crate::checkpoint::Saved;
use crate::error::Result;
use crate::libtorch;
use crate::run::Run;

/// Returns a hash of the parts of the run that decide what it computes next. Includes only parts
/// that are equal each time the run reaches the same position. Every rank must call this.
pub(crate) fn of(run: &Run) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut shares = blake3::Hasher::new();
    let mut is_divided = false;
    for part in parts::deciding(run) {
        is_divided |= part.is_divided(run);
        let saved = part.save(run)?;
        add(&mut hasher, &part.name(), &saved)?;
        add_tensors(&mut shares, saved.shares.iter())?;
    }
    if is_divided {
        let own = shares.finalize().to_hex().to_string();
        for of_rank in run.ranks.world.gather_named(&own, "the hash of the state")? {
            hasher.update(of_rank.as_bytes());
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn add(hasher: &mut blake3::Hasher, name: &str, saved: &Saved) -> Result<()> {
    let mut text = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    text(name);
    for (key, value) in &saved.values {
        text(key);
        text(value);
    }
    add_tensors(hasher, saved.tensors.iter().chain(&saved.averages))
}

fn add_tensors<'a>(
    hasher: &mut blake3::Hasher,
    tensors: impl Iterator<Item = (&'a String, &'a Tensor)>,
) -> Result<()> {
    for (name, tensor) in tensors {
        let tensor = tensor.detach();
        let shape = format!("{name} {:?} {:?}", tensor.kind(), tensor.size());
        hasher.update(&(shape.len() as u64).to_le_bytes());
        hasher.update(shape.as_bytes());
        hasher.update(libtorch::bytes(&tensor.f_to_device(Device::Cpu)?.f_contiguous()?)?);
    }
    Ok(())
}
