//! The state of the random numbers.

use std::borrow::Cow;

use tch::{Device, Tensor};

use super::part::{Part, Scope};
use crate::checkpoint::Saved;
use crate::checkpoint::files::STATE;
use crate::checkpoint::progress::FitState;
use crate::error::Result;
use crate::libtorch;
use crate::run::{Model, Run};

/// The random state of libtorch.
pub(super) struct RandomState;

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

    fn save(&self, run: &Run) -> Result<Saved> {
        let before_draw = run.ranks().random_before_draw.as_ref().map(Tensor::shallow_clone);
        let cpu = before_draw.map_or_else(|| libtorch::random_state(Device::Cpu), Ok)?;
        let mut saved = Saved::new();
        saved.set_tensor("cpu", &cpu)?;
        if let Device::Cuda(_) = run.device() {
            saved.set_tensor("cuda", &libtorch::random_state(run.device())?)?;
        }
        Ok(saved)
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

    fn load(&self, run: &mut Run, saved: &Saved) -> Result<()> {
        if let Some(state) = saved.tensors.get("cpu") {
            libtorch::set_random_state(Device::Cpu, state)?;
        }
        if let (Device::Cuda(_), Some(state)) = (run.device(), saved.tensors.get("cuda")) {
            libtorch::set_random_state(run.device(), state)?;
        }
        Ok(())
    }

    /// The ranks draw different numbers: each except rank 0 keeps its own state.
    fn merged(&self, rank: u32, _written_by: u32, merged: Saved) -> Result<Saved> {
        Ok(if rank == 0 { merged } else { Saved::new() })
    }
}
