//! A hash of the state that decides how training continues.

use tch::Device;

use super::parts;
use crate::checkpoint::Saved;
use crate::error::Result;
use crate::libtorch;
use crate::run::Run;

/// Returns a hash of all parts of the run that decide what it computes next, and that are equal
/// each time it comes here. Every rank must call this.
pub(crate) fn of(run: &Run) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for part in parts::deciding(run) {
        add(&mut hasher, &part.name(), &part.save(run)?)?;
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
    for (name, tensor) in saved.tensors.iter().chain(&saved.averages) {
        let tensor = tensor.detach();
        let shape = format!("{name} {:?} {:?}", tensor.kind(), tensor.size());
        hasher.update(&(shape.len() as u64).to_le_bytes());
        hasher.update(shape.as_bytes());
        hasher.update(libtorch::bytes(&tensor.f_to_device(Device::Cpu)?.f_contiguous()?)?);
    }
    Ok(())
}
