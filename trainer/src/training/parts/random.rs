//! The state of the random numbers.

use std::borrow::Cow;

use tch::{Device, Tensor};

use super::part::{Part, Scope};
use crate::checkpoint::Saved;
use crate::checkpoint::files::STATE;
use crate::checkpoint::progress::FitState;
use crate::error::Result;
use crate::libtorch;
use crate::run::Model;

/// The random state of libtorch.
pub(crate) struct RandomState;

impl RandomState {
    /// Returns the current state, or on the CPU the state `before_draw` of the next batch, which
    /// the resumed run draws again.
    pub(super) fn save(&self, before_draw: Option<&Tensor>, device: Device) -> Result<Saved> {
        let before_draw = before_draw.map(Tensor::shallow_clone);
        let cpu = before_draw.map_or_else(|| libtorch::random_state(Device::Cpu), Ok)?;
        let mut saved = Saved::new();
        saved.set_tensor("cpu", &cpu)?;
        if let Device::Cuda(_) = device {
            saved.set_tensor("cuda", &libtorch::random_state(device)?)?;
        }
        Ok(saved)
    }

    /// Loads a saved state.
    pub(super) fn load(&self, device: Device, saved: &Saved) -> Result<()> {
        if let Some(state) = saved.tensors.get("cpu") {
            libtorch::set_random_state(Device::Cpu, state)?;
        }
        if let (Device::Cuda(_), Some(state)) = (device, saved.tensors.get("cuda")) {
            libtorch::set_random_state(device, state)?;
        }
        Ok(())
    }
}

impl Part for RandomState {
    fn name(&self) -> Cow<'static, str> {
        "random".into()
    }

    fn scope(&self) -> Scope {
        Scope::Rank
    }

    fn file(&self) -> Option<&'static str> {
        Some(STATE)
    }

    fn why_inexact(&self, _fit: &FitState, model: &Model) -> Option<String> {
        let device = model.device;
        let is_saved = matches!(device, Device::Cpu | Device::Cuda(_));
        (!is_saved).then(|| format!("the random state of {device:?} cannot be saved"))
    }

    fn check(&self, _fit: &FitState, model: &Model, saved: &Saved, why: &mut Vec<String>) -> Result<()> {
        if !saved.tensors.contains_key("cpu") {
            why.push("the checkpoint does not contain the random state of the CPU".to_owned());
        }
        if matches!(model.device, Device::Cuda(_)) && !saved.tensors.contains_key("cuda") {
            why.push("the checkpoint does not contain the random state of the GPU".to_owned());
        }
        Ok(())
    }

    /// The ranks draw different numbers: each except rank 0 keeps its own state.
    fn merged(&self, rank: u32, _written_by: u32, merged: Saved) -> Result<Saved> {
        Ok(if rank == 0 { merged } else { Saved::new() })
    }
}
