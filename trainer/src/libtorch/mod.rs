//! Calls into the C++ functions of `trainer-sys`, which provide what tch does not. All unsafe code
//! of the crate is here.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;

use tch::{Kind, TchError, Tensor};
use trainer_sys::{
    trainer_check_params, trainer_free, trainer_identity, trainer_memory, trainer_rows, trainer_unfit,
    trainer_version,
};

mod autocast;
mod batch_norm;
mod checkpointing;
pub mod cuda;
#[cfg_attr(not(feature = "distributed"), path = "no_dist.rs")]
pub(crate) mod dist;
#[cfg(test)]
mod entry_points;
mod event;
mod flops;
mod grad_hook;
mod gradients;
mod graph;
mod heap;
mod kernel_trace;
mod linear_cross_entropy;
mod modes;
mod monitors;
mod one_thread;
mod optimizers;
mod random;
mod readable;
mod scan;
mod shared_vars;
mod tensor_memory;
mod tensors;
mod waits;
mod warnings;

pub use autocast::Autocast;
pub(crate) use batch_norm::{SingleValue, Statistics, StatisticsGuard};
pub(crate) use checkpointing::{CheckpointedRegion, RegionPause};
pub(crate) use event::{Event, enter_stream, record_stream, upload};
pub(crate) use flops::FlopCounter;
pub(crate) use grad_hook::{AccumulatedHook, on_accumulated, on_grad};
pub(crate) use gradients::{
    backward, clip_grad_norm, clip_grad_value, drop_grads, scale_grads, set_grad, unscale_grads,
};
pub(crate) use graph::{Flow, changes, leaves};
pub use heap::Heap;
pub(crate) use heap::HeapGuard;
pub use kernel_trace::KernelTrace;
pub(crate) use linear_cross_entropy::{HeadLoss, linear_cross_entropy};
pub use modes::MatmulPrecision;
pub(crate) use modes::{GradMode, GradModeGuard, ModeRequest, Modes};
pub(crate) use monitors::norms;
pub use one_thread::OnAnyThread;
pub(crate) use one_thread::stays_on_its_thread;
pub(crate) use optimizers::{
    Adagrad, Adam, Lion, Muon, RmsProp, Sgd, adagrad, adam, lion, muon, rms_prop, sgd,
};
pub use random::RandomState;
pub(crate) use random::{DrawWatch, random_state, set_random_state};
pub(crate) use readable::{Form, bytes, check_readable, copied, dense, describe, form, on_host};
pub(crate) use scan::{Aspect, Scan, cpu_capability, hash_of_bytes, hash_of_random_state};
pub(crate) use shared_vars::SharedVars;
pub use shared_vars::Var;
pub(crate) use tensor_memory::{MemoryCounter, storage};
pub use tensors::wide;
pub(crate) use tensors::{Parameters, TensorList, lerp, wide_kind};
#[cfg(test)]
pub(crate) use waits::imitate_wait;
pub(crate) use waits::{count_waits, waits};
pub(crate) use warnings::{LossWatch, Warnings};

use crate::error::{Error, Result};

unsafe extern "C" {
    /// Flushes an output stream of the C library, or all of them if `stream` is null.
    fn fflush(stream: *mut c_void) -> c_int;
}

/// Flushes all output streams of the C library, through which libtorch prints.
pub(crate) fn flush_c_streams() {
    // SAFETY: null stands for all streams; each is locked while it is flushed.
    unsafe { fflush(std::ptr::null_mut()) };
}

/// Returns the reason why the kernels cannot update a parameter, or `None` if they can. In a
/// message, the returned phrase follows the name of the parameter.
pub(crate) fn unfit(param: &Tensor) -> Option<String> {
    // SAFETY: the handle is alive, and the shim only reads.
    let message = unsafe { trainer_unfit(param.as_ptr()) };
    (!message.is_null()).then(|| text_of(message))
}

/// Returns an error if the kernels can no longer update one of the parameters. Each optimizer step
/// performs the same check.
pub(crate) fn check_params(params: &Parameters) -> Result<()> {
    // SAFETY: the handles are alive, and `count` is their number.
    params.call(|list| unsafe { trainer_check_params(list) })
}

/// Returns a number that identifies the tensor: for two handles that are both alive, the numbers
/// are equal if and only if the handles refer to the same tensor.
pub(crate) fn identity(tensor: &Tensor) -> usize {
    // SAFETY: the handle is alive, and the shim only reads.
    unsafe { trainer_identity(tensor.as_ptr()) }.addr()
}

/// Returns the memory that a parameter occupies, as addresses on its device; `None` if the kernels
/// cannot update the parameter.
pub(crate) fn memory(param: &Tensor) -> Option<Range<usize>> {
    let mut begin = 0;
    let mut bytes = 0;
    // SAFETY: the handle is alive, and the shim only reads it and writes two numbers.
    unsafe { trainer_memory(param.as_ptr(), &raw mut begin, &raw mut bytes) }.then(|| begin..begin + bytes)
}

/// Returns the version of libtorch that the shim was compiled against, such as `2.13.0`.
pub(crate) fn version() -> String {
    // SAFETY: the shim returns a string literal.
    unsafe { CStr::from_ptr(trainer_version()) }.to_string_lossy().into_owned()
}

/// Returns the size of a tensor's first dimension, if it has one. Does not allocate.
pub(crate) fn rows(tensor: &Tensor) -> Option<u64> {
    // SAFETY: the handle is alive, and the shim only reads.
    u64::try_from(unsafe { trainer_rows(tensor.as_ptr()) }).ok()
}

/// Builds a CPU tensor whose elements are a copy of these bytes. All bytes from files and other
/// processes are converted to tensors here.
///
/// # Errors
///
/// Returns an error if the number of bytes does not match the shape and dtype, or if the byte of a
/// `Bool` is neither 0 nor 1: libtorch uses these bytes as counts, and would write past the end of
/// a result.
#[expect(clippy::disallowed_methods, reason = "checks what tch does not")]
pub(crate) fn from_bytes(data: &[u8], shape: &[i64], kind: Kind) -> Result<Tensor> {
    let expected = shape
        .iter()
        .try_fold(kind.elt_size_in_bytes(), |bytes, size| bytes.checked_mul(usize::try_from(*size).ok()?));
    if expected != Some(data.len()) {
        return Err(Error::msg(format!("{} bytes are not a {kind:?} tensor of shape {shape:?}", data.len())));
    }
    if kind == Kind::Bool && data.iter().any(|byte| *byte > 1) {
        return Err(Error::msg(
            "it has bytes that are neither `true` nor `false`: the file is corrupted; save it again",
        ));
    }
    Ok(Tensor::f_from_data_size(data, shape, kind)?)
}

/// Converts the shim's message, if there is one, to an error.
#[inline]
fn outcome(message: *mut c_char) -> Result<()> {
    if message.is_null() { Ok(()) } else { Err(failure(message)) }
}

impl From<TchError> for Error {
    fn from(error: TchError) -> Self {
        Error::Torch(Box::new(error.into()))
    }
}

/// Converts a message of the shim to a libtorch error.
#[cold]
fn failure(message: *mut c_char) -> Error {
    TchError::Torch(text_of(message)).into()
}

/// Returns the text of a message of the shim, and frees the message.
#[cold]
fn text_of(message: *mut c_char) -> String {
    // SAFETY: the shim allocated this null-terminated string, which is not used after it is freed.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        trainer_free(message);
        text
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn a_gradient_of_another_shape_dtype_or_layout_is_not_set() {
        let zeros = |size: &[i64], kind| Tensor::zeros(size, (kind, Device::Cpu));
        let param = zeros(&[2, 3], Kind::Float).set_requires_grad(true);
        let result = |grad: &Tensor| set_grad("w", &param, grad).map_err(|error| error.to_string());
        let refused = |text: &str| Err(format!("the parameter `w` {text}"));
        assert_eq!(
            result(&zeros(&[3, 2], Kind::Float)),
            refused("has the shape [2, 3], but its gradient has [3, 2]")
        );
        assert_eq!(
            result(&zeros(&[2, 3], Kind::Uint8)),
            refused("has dtype Float, but its gradient has Byte")
        );
        assert_eq!(
            result(&zeros(&[2, 3], Kind::Double)),
            refused("has dtype Float, but its gradient has Double")
        );
        let sparse = zeros(&[2, 3], Kind::Float).to_sparse_sparse_dim(2);
        assert_eq!(result(&sparse), refused("has a gradient with the layout Sparse: expected a dense one"));
        assert_eq!(result(&Tensor::new()), refused("is an undefined tensor, or its gradient is one"));
        assert!(!param.grad().defined());
        let ones = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
        result(&ones).unwrap();
        assert_eq!(param.grad(), ones);
    }

    #[test]
    fn undefined_losses_and_parameters_are_errors() {
        let param = Tensor::zeros([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let params = Parameters::from_iter([("w".to_owned(), param)]);
        assert!(backward(&Tensor::new(), Some(&params)).unwrap_err().to_string().contains("undefined"));
        let params = Parameters::from_iter([("w".to_owned(), Tensor::new())]);
        drop_grads(&params).unwrap();
        assert!(scale_grads(&params, 2.0).unwrap_err().to_string().starts_with("the parameter `w`"));
    }

    #[test]
    fn tensors_without_dimensions_have_no_row_count() {
        assert_eq!(rows(&Tensor::zeros([4, 3], (Kind::Float, Device::Cpu))), Some(4));
        assert_eq!(rows(&Tensor::from(1.0)), None);
        assert_eq!(rows(&Tensor::new()), None);
    }
}
