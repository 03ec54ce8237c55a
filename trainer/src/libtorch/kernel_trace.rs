//! libtorch's profiler of operators and kernels.

use std::ffi::CString;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use tch::Device;
use trainer_sys::{trainer_profiler_enabled, trainer_profiler_start, trainer_profiler_stop};

use super::{failure, text_of};
use crate::error::{Error, Result};

/// Whether a [`KernelTrace`] exists. libtorch has only one collector for the whole process.
static IS_RECORDING: AtomicBool = AtomicBool::new(false);

/// A recording of the operators that this thread calls and, on a GPU, of their kernels, by
/// libtorch's profiler. Dropping it discards the recording.
///
/// Use [`KernelProfiler`](crate::hooks::KernelProfiler) to record a range of batches, and this type
/// to record something else, such as one operation or a part of a program.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::profile::KernelTrace;
///
/// # let path = std::env::temp_dir().join(format!("trainer-product-{}.json", std::process::id()));
/// let trace = KernelTrace::start(Device::Cpu, true)?;
/// let matrix = Tensor::randn([64, 64], (Kind::Float, Device::Cpu));
/// let product = matrix.matmul(&matrix);
/// trace.save(&path)?; // open it in chrome://tracing or ui.perfetto.dev
/// # assert!(std::fs::read_to_string(&path)?.contains("aten::matmul"));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct KernelTrace {
    is_recording: bool,
}

impl KernelTrace {
    /// Starts a recording. On a CUDA `device`, it includes the kernels. `shapes` says whether it
    /// includes the shapes of the operators' inputs.
    ///
    /// # Errors
    ///
    /// Returns an error if another recording is active, or if libtorch cannot start its profiler.
    pub fn start(device: Device, shapes: bool) -> Result<Self> {
        // SAFETY: the shim only reads thread-local state of libtorch.
        let is_enabled = || unsafe { trainer_profiler_enabled() };
        if IS_RECORDING.swap(true, Ordering::AcqRel) {
            return Err(busy());
        }
        // From here on, dropping `trace` clears the flag.
        let mut trace = KernelTrace { is_recording: false };
        if is_enabled() {
            return Err(busy());
        }
        // SAFETY: the shim takes two flags, and reports every exception of libtorch.
        let message = unsafe { trainer_profiler_start(matches!(device, Device::Cuda(_)), shapes) };
        trace.is_recording = is_enabled();
        if message.is_null() { Ok(trace) } else { Err(failure(message)) }
    }

    /// Ends the recording and writes it to a file, replacing any existing file.
    ///
    /// # Errors
    ///
    /// Returns an error if the path is not valid UTF-8, if libtorch cannot write the file, or if
    /// the recording began on another thread.
    pub fn save(mut self, path: &Path) -> Result<()> {
        let text = path.to_str().and_then(|path| CString::new(path).ok());
        let text = text.ok_or_else(|| {
            Error::usage(format!("libtorch cannot write to `{}`: expected a path in UTF-8", path.display()))
        })?;
        self.is_recording = false;
        // SAFETY: the path is a null-terminated string that outlives the call.
        let message = unsafe { trainer_profiler_stop(text.as_ptr()) };
        if message.is_null() { Ok(()) } else { Err(failure(message)) }
    }
}

impl Drop for KernelTrace {
    fn drop(&mut self) {
        if self.is_recording {
            // SAFETY: a null path discards the recording.
            let message = unsafe { trainer_profiler_stop(ptr::null()) };
            if !message.is_null() {
                drop(text_of(message));
            }
        }
        IS_RECORDING.store(false, Ordering::Release);
    }
}

fn busy() -> Error {
    Error::usage(
        "another recording of libtorch's profiler is active, and a process can only have one: record the ranges one after the other",
    )
}
