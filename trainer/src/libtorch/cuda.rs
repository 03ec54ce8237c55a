//! NVIDIA GPUs: whether libtorch can use them, and the memory of libtorch's allocator.

use std::ffi::c_int;
use std::fmt;

use tch::Device;
use trainer_sys::{
    trainer_cuda_bus_id, trainer_cuda_empty_cache, trainer_cuda_memory, trainer_cuda_reset_peaks,
    trainer_cuda_support,
};

use super::random::cuda;
use super::{outcome, text_of};
use crate::error::{Error, Result};

/// Whether libtorch can use an NVIDIA GPU in this process, and if not, why. `Display` explains the
/// reason and what to do about it.
///
/// ```
/// use trainer::cuda::{CudaSupport, support};
///
/// if support() != CudaSupport::Ready {
///     println!("no GPU: {}", support());
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaSupport {
    /// There is at least one GPU.
    Ready,
    /// This libtorch was built without CUDA.
    NotBuilt,
    /// There is no NVIDIA driver.
    NoDriver,
    /// The driver is too old for the CUDA version of this libtorch.
    DriverTooOld {
        /// The CUDA version that the driver supports, as major and minor.
        supports: (u32, u32),
        /// The CUDA version that this libtorch was built for.
        needs: (u32, u32),
    },
    /// There is a driver, but no GPU is visible to this process.
    NoDevice,
    /// Loading libtorch's library for GPUs or starting CUDA failed.
    Failed(String),
    /// Either there is no GPU, or this libtorch was built without CUDA. The two can be
    /// distinguished only on Linux.
    Unknown,
}

impl fmt::Display for CudaSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaSupport::Ready => write!(f, "there is an NVIDIA GPU"),
            CudaSupport::NotBuilt => write!(
                f,
                "this libtorch was built without CUDA: run `make libtorch CUDA=1`, or set `LIBTORCH` to a build for CUDA"
            ),
            CudaSupport::NoDriver => write!(
                f,
                "there is no NVIDIA driver (no `libcuda.so.1`): install it, or start the container with the GPUs of its host, \
                 `--gpus all`"
            ),
            CudaSupport::DriverTooOld { supports, needs } => write!(
                f,
                "the NVIDIA driver is too old: it supports CUDA {}.{}, but this libtorch needs {}.{}; install a newer driver",
                supports.0, supports.1, needs.0, needs.1
            ),
            CudaSupport::NoDevice => {
                write!(f, "the NVIDIA driver reports no GPU")?;
                match std::env::var("CUDA_VISIBLE_DEVICES") {
                    Ok(visible) => write!(
                        f,
                        ": the environment variable `CUDA_VISIBLE_DEVICES` is `{visible}`; unset it, or set it to the index of a \
                         GPU that `nvidia-smi` lists"
                    ),
                    Err(_) => write!(f, ": check that `nvidia-smi` lists one"),
                }
            }
            CudaSupport::Failed(why) => write!(f, "CUDA cannot be initialized: {why}"),
            CudaSupport::Unknown => {
                write!(f, "there is no NVIDIA GPU, or this libtorch was built without CUDA")
            }
        }
    }
}

/// Returns whether libtorch can use an NVIDIA GPU in this process, and if not, why.
#[must_use]
pub fn support() -> CudaSupport {
    let mut found = trainer_sys::CudaSupport::default();
    // SAFETY: the shim writes one struct, or returns a message.
    let message = unsafe { trainer_cuda_support(&raw mut found) };
    if !message.is_null() {
        return CudaSupport::Failed(text_of(message));
    }
    of(found)
}

fn of(found: trainer_sys::CudaSupport) -> CudaSupport {
    let version = |version: i32| {
        let version = u32::try_from(version).unwrap_or_default();
        (version / 1000, version % 1000 / 10)
    };
    match found.what {
        0 => CudaSupport::Ready,
        1 => CudaSupport::NotBuilt,
        2 => CudaSupport::NoDriver,
        3 => CudaSupport::DriverTooOld { supports: version(found.driver), needs: version(found.needed) },
        4 => CudaSupport::NoDevice,
        _ => CudaSupport::Unknown,
    }
}

/// The memory of a CUDA device in bytes, as libtorch's allocator counts it.
///
/// ```
/// use trainer::cuda;
/// use trainer::prelude::*;
///
/// # fn print(device: Device) -> Result<()> {
/// let memory = cuda::memory(device)?;
/// println!("{} MB, at most {} MB", memory.allocated / 1_000_000, memory.peak_allocated / 1_000_000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaMemory {
    /// The memory that tensors occupy.
    pub allocated: u64,
    /// The maximum of `allocated` since the program started, or since [`reset_peaks`].
    pub peak_allocated: u64,
    /// The memory that the allocator holds, including memory that no tensor occupies.
    pub reserved: u64,
    /// The maximum of `reserved` since the program started, or since [`reset_peaks`].
    pub peak_reserved: u64,
}

/// Returns the memory use of a CUDA device, without waiting for the device. The values are those of
/// PyTorch's `torch.cuda.memory_allocated` and related functions.
///
/// # Errors
///
/// Returns an error if the device is not a CUDA device, or is not available.
pub fn memory(device: Device) -> Result<CudaMemory> {
    let cuda = index(device)?;
    let mut found = trainer_sys::CudaMemory::default();
    // SAFETY: the shim writes one struct, or returns a message.
    outcome(unsafe { trainer_cuda_memory(cuda, &raw mut found) })?;
    let bytes = |count: i64| u64::try_from(count).unwrap_or_default();
    Ok(CudaMemory {
        allocated: bytes(found.allocated),
        peak_allocated: bytes(found.peak_allocated),
        reserved: bytes(found.reserved),
        peak_reserved: bytes(found.peak_reserved),
    })
}

/// Resets the peaks of a CUDA device to the memory that is allocated and reserved now, like
/// PyTorch's `torch.cuda.reset_peak_memory_stats`.
///
/// # Errors
///
/// Returns an error if the device is not a CUDA device, or is not available.
pub fn reset_peaks(device: Device) -> Result<()> {
    let cuda = index(device)?;
    // SAFETY: the shim only changes counts, or returns a message.
    outcome(unsafe { trainer_cuda_reset_peaks(cuda) })
}

/// Releases the unused memory of libtorch's allocator to the driver, on all CUDA devices.
///
/// Unused memory is memory that the allocator holds, but no tensor occupies. Waits for the devices.
/// Does nothing if there is no CUDA device.
///
/// Other programs can then use the memory, and this program can use it for tensors of other sizes.
/// Later allocations are slower until the allocator holds memory again.
///
/// # Errors
///
/// Returns an error if libtorch fails.
pub fn empty_cache() -> Result<()> {
    if !tch::Cuda::is_available() {
        return Ok(());
    }
    // SAFETY: the shim frees only memory that no tensor occupies, or returns a message.
    outcome(unsafe { trainer_cuda_empty_cache() })
}

/// Returns the index of a CUDA device, or an error if the device is not available or not a CUDA
/// device.
fn index(device: Device) -> Result<i64> {
    if !matches!(device, Device::Cuda(_)) {
        return Err(Error::usage(format!(
            "libtorch only tracks the memory of CUDA devices, but the device is {device:?}"
        )));
    }
    if let Err(why) = check_available(device) {
        return Err(Error::usage(format!("{device:?} cannot be used: {why}")));
    }
    Ok(cuda(device))
}

/// Returns an error with the reason if a CUDA device cannot be used.
pub(crate) fn check_available(device: Device) -> Result<(), String> {
    let Device::Cuda(nth) = device else { return Ok(()) };
    match support() {
        CudaSupport::Ready => {}
        missing => return Err(missing.to_string()),
    }
    match tch::Cuda::device_count() {
        count if i64::try_from(nth).is_ok_and(|nth| nth < count) => Ok(()),
        1 => Err("there is one CUDA device, `Device::Cuda(0)`".into()),
        count => Err(format!("there are {count} CUDA devices, numbered from 0")),
    }
}

/// Returns the PCI bus ID of a CUDA device, such as `0000:18:00.0`, by which NVML and `nvidia-smi`
/// identify it: they number all GPUs of the machine, and not only those that the process sees.
/// Returns `None` if the CUDA runtime is not loaded or has no such device.
#[must_use]
pub fn bus_id(nth: usize) -> Option<String> {
    let mut text = [0_u8; 32];
    let nth = i64::try_from(nth).ok()?;
    let size = c_int::try_from(text.len()).ok()?;
    // SAFETY: the shim writes at most `size` bytes, with a null at the end, if it returns true.
    let is_known = unsafe { trainer_cuda_bus_id(nth, text.as_mut_ptr().cast(), size) };
    let end = text.iter().position(|byte| *byte == 0).filter(|_| is_known)?;
    String::from_utf8(text[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_distinct_message_that_says_what_to_do() {
        let found = |what| of(trainer_sys::CudaSupport { what, driver: 12_020, needed: 13_000 });
        let reasons = [
            (found(1), "was built without CUDA: run `make libtorch CUDA=1`"),
            (found(2), "there is no NVIDIA driver (no `libcuda.so.1`): install it"),
            (found(3), "it supports CUDA 12.2, but this libtorch needs 13.0; install a newer driver"),
            (found(4), "the NVIDIA driver reports no GPU: "),
            (
                CudaSupport::Failed("system not yet initialized (CUDA error 802)".into()),
                "not yet initialized",
            ),
            (found(5), "there is no NVIDIA GPU, or this libtorch was built without CUDA"),
        ];
        for (nth, (reason, words)) in reasons.iter().enumerate() {
            let text = reason.to_string();
            let with: Vec<_> = reasons.iter().filter(|(_, words)| text.contains(words)).collect();
            assert_eq!(with, [&reasons[nth]], "{text} has the words {words:?}, and only these");
        }
        assert_eq!(found(0), CudaSupport::Ready);
    }

    #[test]
    fn a_device_that_cannot_be_used_is_an_error_with_the_reason() {
        let error = memory(Device::Cpu).unwrap_err().to_string();
        assert_eq!(error, "libtorch only tracks the memory of CUDA devices, but the device is Cpu");
        empty_cache().unwrap();
        if support() != CudaSupport::Ready {
            let error = reset_peaks(Device::Cuda(0)).unwrap_err().to_string();
            assert_eq!(error, format!("Cuda(0) cannot be used: {}", support()));
        }
    }
}
