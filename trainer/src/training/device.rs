//! The device of the task: which devices are available, why a run is on the CPU, and whether each
//! rank has its own GPU.

use std::sync::Once;

use serde::{Deserialize, Serialize};
use tch::{Cuda, Device};
use trainer_formats::run::Process;

use crate::distributed::Launch;
use crate::error::{Error, Result};
use crate::libtorch::cuda::{self, CudaSupport};
use crate::run::reports::Reports;

/// Returns the first available of CUDA, MPS and CPU. If there are several CUDA devices, returns the
/// one for this process's rank on the host.
pub(crate) fn first_device() -> Device {
    if cuda::support() == CudaSupport::Ready {
        // `build` reports a mistake in the variables of the launcher.
        let local = Launch::from_env().ok().flatten().map_or(0, |launch| launch.local_rank());
        return Device::Cuda(nth_device(local, Cuda::device_count()));
    }
    if tch::utils::has_mps() { Device::Mps } else { Device::Cpu }
}

/// Returns the index of the CUDA device for a rank on its host. If a launcher shows each rank only
/// its own GPU, that GPU is device 0 on every rank. `check_one_gpu_each` returns an error if ranks
/// share a GPU.
fn nth_device(local_rank: u32, devices: i64) -> usize {
    local_rank as usize % usize::try_from(devices).unwrap_or(1).max(1)
}

/// Returns an error with the reason if a device cannot be used.
pub(super) fn check_available(device: Device) -> Result<(), String> {
    match device {
        Device::Cpu => Ok(()),
        Device::Cuda(_) => cuda::check_available(device),
        Device::Mps if tch::utils::has_mps() => Ok(()),
        Device::Vulkan if tch::utils::has_vulkan() => Ok(()),
        Device::Mps | Device::Vulkan => Err("this libtorch was built without support for it".into()),
    }
}

/// Returns the kind of a device from its `Debug` output: `Cuda` for `Cuda(1)`. The ranks of a host
/// have GPUs with different numbers, but a checkpoint records only the device of rank 0.
pub(super) fn kind_of(device: &str) -> &str {
    device.split_once('(').map_or(device, |(kind, _)| kind)
}

/// Prints, once per process, why a run is on the CPU although libtorch was built for CUDA. Without
/// this line, the unused GPU might go unnoticed for hours.
pub(super) fn say_why_on_cpu(device: Device, requested: Option<Device>, reports: &Reports) {
    static ONCE: Once = Once::new();
    if device != Device::Cpu || ONCE.is_completed() {
        return;
    }
    ONCE.call_once(|| {
        if let Some(text) = why_on_cpu(&cuda::support(), requested) {
            reports.notice(&text);
        }
    });
}

/// Returns the line that explains why a run is on the CPU; `None` if there is nothing to explain.
/// `set` is the device that the program has set.
fn why_on_cpu(support: &CudaSupport, set: Option<Device>) -> Option<String> {
    match (support, set) {
        // A GPU cannot be used, or the program chose the CPU.
        (CudaSupport::NotBuilt | CudaSupport::Unknown, _) | (CudaSupport::Ready, Some(_)) => None,
        (CudaSupport::Ready, None) => Some(
            "note: the task is on the CPU, although there is an NVIDIA GPU: `.auto_device()` uses it, and \
             `.device(Device::Cpu)` silences this note"
                .to_owned(),
        ),
        (missing, _) => Some(format!("note: the task is on the CPU: {missing}")),
    }
}

/// The identity of a GPU, which is the same in all processes on one machine.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Gpu {
    /// The ID of the machine's last boot, which all containers on the machine share.
    boot: Option<String>,
    /// The PCI address of the GPU: `0000:18:00.0`.
    bus_id: String,
}

impl Gpu {
    /// Returns the identity of a CUDA device; `None` for any other device, or if it is not known.
    pub(super) fn of(device: Device) -> Option<Self> {
        let Device::Cuda(nth) = device else { return None };
        Some(Gpu { boot: Process::current().boot, bus_id: cuda::bus_id(nth)? })
    }
}

/// Returns an error if two ranks use the same GPU. NCCL needs one GPU per rank, and may otherwise
/// wait forever.
pub(super) fn check_one_gpu_each<'a>(of_ranks: impl IntoIterator<Item = &'a Option<Gpu>>) -> Result<()> {
    let mut known: Vec<(usize, &Gpu)> = Vec::new();
    for (rank, gpu) in of_ranks.into_iter().enumerate() {
        let Some(gpu) = gpu else { continue };
        if let Some((other, _)) = known.iter().find(|(_, known)| *known == gpu) {
            return Err(Error::usage(format!(
                "ranks {other} and {rank} are both on GPU {} of one machine: start one process for each GPU, and give \
                 each its own, with `.auto_device()` or `.device(Device::Cuda(launch.local_rank() as usize))`",
                gpu.bus_id
            )));
        }
        known.push((rank, gpu));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_of_a_host_takes_its_own_gpu() {
        assert_eq!([0, 1, 2, 3].map(|local| nth_device(local, 4)), [0, 1, 2, 3]);
        assert_eq!([0, 1].map(|local| nth_device(local, 1)), [0, 0], "each may see another one");
    }

    #[test]
    fn gpus_with_different_indices_are_the_same_kind_of_device() {
        let kinds = [Device::Cpu, Device::Cuda(0), Device::Cuda(11), Device::Mps];
        let kinds = kinds.map(|device| kind_of(&format!("{device:?}")).to_owned());
        assert_eq!(kinds, ["Cpu", "Cuda", "Cuda", "Mps"]);
    }

    #[test]
    fn two_ranks_on_one_gpu_are_an_error_that_names_them() {
        let gpu = |boot: &str, bus_id: &str| Some(Gpu { boot: Some(boot.into()), bus_id: bus_id.into() });
        let one_each = [gpu("a", "18"), gpu("a", "19"), None, gpu("b", "18"), None];
        assert!(check_one_gpu_each(&one_each).is_ok());
        let shared = [gpu("a", "18"), gpu("b", "18"), gpu("a", "18")];
        let error = check_one_gpu_each(&shared).unwrap_err().to_string();
        assert!(error.starts_with("ranks 0 and 2 are both on GPU 18 of one machine: start one"), "{error}");
    }

    #[test]
    fn a_run_on_the_cpu_says_why_if_a_gpu_was_expected() {
        let (cpu, unset) = (Some(Device::Cpu), None);
        for set in [cpu, unset] {
            assert_eq!(why_on_cpu(&CudaSupport::NotBuilt, set), None);
            for missing in [CudaSupport::NoDriver, CudaSupport::NoDevice] {
                let text = why_on_cpu(&missing, set).unwrap();
                assert_eq!(text, format!("note: the task is on the CPU: {missing}"));
            }
        }
        assert_eq!(why_on_cpu(&CudaSupport::Ready, cpu), None, "the program has said so");
        assert!(why_on_cpu(&CudaSupport::Ready, unset).unwrap().contains("although there is an NVIDIA GPU"));
    }
}
