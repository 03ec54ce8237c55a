//! The only unsafe code: calls into the C++ shim for what tch leaves out.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::error::{Error, Result};

unsafe extern "C" {
    fn trainer_free(message: *mut c_char);
    fn trainer_rows(tensor: *const C_tensor) -> i64;
    fn trainer_drop_grads(params: *const *mut C_tensor, count: usize) -> *mut c_char;
    fn trainer_backward(loss: *const C_tensor, params: *const *mut C_tensor, count: usize) -> *mut c_char;
    fn trainer_scale_grads(params: *const *mut C_tensor, count: usize, factor: f64) -> *mut c_char;
    fn trainer_clip_grad_norm(
        params: *const *mut C_tensor,
        count: usize,
        max_norm: f64,
        norm: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn trainer_clip_grad_value(params: *const *mut C_tensor, count: usize, max_value: f64) -> *mut c_char;
    fn trainer_modes() -> Modes;
    fn trainer_set_modes(modes: Modes);
    fn trainer_sgd(
        params: *const *mut C_tensor,
        momentum_buffers: *const *mut C_tensor,
        count: usize,
        lr: f64,
        momentum: f64,
        weight_decay: f64,
        nesterov: bool,
    ) -> *mut c_char;
    fn trainer_adamw(
        params: *const *mut C_tensor,
        exp_avgs: *const *mut C_tensor,
        exp_avg_sqs: *const *mut C_tensor,
        steps: *const *mut C_tensor,
        count: usize,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
    ) -> *mut c_char;
}

/// Tensors, and beside them their handles in the form that the shim takes.
#[derive(Debug)]
pub(crate) struct TensorList {
    tensors: Vec<Tensor>,
    handles: Vec<*mut C_tensor>,
}

// SAFETY: the handles belong to the tensors in the same value, and `Tensor` is `Send`.
unsafe impl Send for TensorList {}

impl FromIterator<Tensor> for TensorList {
    fn from_iter<I: IntoIterator<Item = Tensor>>(tensors: I) -> Self {
        let tensors: Vec<_> = tensors.into_iter().collect();
        // A handle is the address of the C++ object that the `Tensor` owns, so it survives moves.
        let handles = tensors.iter().map(|tensor| tensor.as_ptr().cast_mut()).collect();
        TensorList { tensors, handles }
    }
}

impl TensorList {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }
}

/// The settings of one step of SGD.
pub(crate) struct Sgd {
    pub(crate) lr: f64,
    pub(crate) momentum: f64,
    pub(crate) weight_decay: f64,
    pub(crate) nesterov: bool,
}

/// The settings of one step of AdamW.
pub(crate) struct AdamW {
    pub(crate) lr: f64,
    pub(crate) betas: (f64, f64),
    pub(crate) weight_decay: f64,
    pub(crate) eps: f64,
}

/// The size of a tensor's first dimension, if it has one. Allocates nothing.
pub(crate) fn rows(tensor: &Tensor) -> Option<u64> {
    // SAFETY: the handle is alive, and the shim only reads.
    u64::try_from(unsafe { trainer_rows(tensor.as_ptr()) }).ok()
}

/// Sets the gradients of the parameters to none.
pub(crate) fn drop_grads(params: &TensorList) -> Result<()> {
    // SAFETY: the handles are alive, and there are as many as is said.
    outcome(unsafe { trainer_drop_grads(params.handles.as_ptr(), params.handles.len()) })
}

/// The backward pass of a loss of one element, for these parameters alone: no other tensor gets a gradient.
pub(crate) fn backward(loss: &Tensor, params: &TensorList) -> Result<()> {
    // SAFETY: the handles are alive, and there are as many as is said.
    outcome(unsafe { trainer_backward(loss.as_ptr(), params.handles.as_ptr(), params.handles.len()) })
}

/// Multiplies the gradients of the parameters that have one.
pub(crate) fn scale_grads(params: &TensorList, factor: f64) -> Result<()> {
    // SAFETY: the handles are alive, and there are as many as is said.
    outcome(unsafe { trainer_scale_grads(params.handles.as_ptr(), params.handles.len(), factor) })
}

/// Clips the gradients of the parameters by their norm, that of all as one vector; gives the norm before.
pub(crate) fn clip_grad_norm(params: &TensorList, max_norm: f64) -> Result<Tensor> {
    let mut norm = std::ptr::null_mut();
    // SAFETY: the handles are alive, and there are as many as is said; the shim writes one handle, or leaves null.
    outcome(unsafe {
        trainer_clip_grad_norm(params.handles.as_ptr(), params.handles.len(), max_norm, &raw mut norm)
    })?;
    // SAFETY: without a message there is a handle, which belongs to nobody else.
    Ok(unsafe { Tensor::from_ptr(norm) })
}

/// Clips each element of the gradients of the parameters.
pub(crate) fn clip_grad_value(params: &TensorList, max_value: f64) -> Result<()> {
    // SAFETY: the handles are alive, and there are as many as is said.
    outcome(unsafe { trainer_clip_grad_value(params.handles.as_ptr(), params.handles.len(), max_value) })
}

/// What libtorch does on the side: gradients are recorded on this thread; the rest is the whole process's.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Modes {
    records_gradients: bool,
    deterministic: bool,
    deterministic_warns_only: bool,
    detects_anomalies: bool,
    checks_nan: bool,
}

/// Sets modes, and puts back those before when it is dropped.
pub(crate) struct ModesGuard(Modes);

impl Modes {
    /// Gradients are recorded from now on, and the other two are on if they are asked for.
    pub(crate) fn begin(deterministic: bool, detect_anomaly: bool) -> ModesGuard {
        let before = Modes::current();
        let mut modes = Modes { records_gradients: true, ..before };
        if deterministic {
            (modes.deterministic, modes.deterministic_warns_only) = (true, false);
        }
        if detect_anomaly {
            (modes.detects_anomalies, modes.checks_nan) = (true, true);
        }
        modes.set();
        ModesGuard(before)
    }

    /// Records gradients, whatever was left behind.
    pub(crate) fn record_gradients() {
        Modes { records_gradients: true, ..Modes::current() }.set();
    }

    fn current() -> Self {
        // SAFETY: it only reads flags of libtorch's.
        unsafe { trainer_modes() }
    }

    fn set(self) {
        // SAFETY: it only sets flags of libtorch's.
        unsafe { trainer_set_modes(self) }
    }
}

impl Drop for ModesGuard {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// One step of SGD. With momentum: a buffer for each parameter.
pub(crate) fn sgd(params: &TensorList, momentum: Option<&TensorList>, settings: &Sgd) -> Result<()> {
    let Sgd { lr, momentum: factor, weight_decay, nesterov } = *settings;
    let count = params.len();
    assert!(momentum.is_none_or(|buffers| buffers.len() == count), "a buffer for each parameter");
    let buffers = momentum.map_or(std::ptr::null(), |buffers| buffers.handles.as_ptr());
    // SAFETY: the handles are alive; each list is null or has `count` entries, as was just checked; the
    // shim checks what the tensors themselves are.
    outcome(unsafe {
        trainer_sgd(params.handles.as_ptr(), buffers, count, lr, factor, weight_decay, nesterov)
    })
}

/// One step of AdamW.
pub(crate) fn adamw(
    params: &TensorList,
    exp_avgs: &TensorList,
    exp_avg_sqs: &TensorList,
    steps: &TensorList,
    settings: &AdamW,
) -> Result<()> {
    let AdamW { lr, betas: (beta1, beta2), weight_decay, eps } = *settings;
    let count = params.len();
    assert!(
        [exp_avgs, exp_avg_sqs, steps].iter().all(|list| list.len() == count),
        "state for each parameter"
    );
    // SAFETY: the handles are alive, and every list has `count` entries, as was just checked; the shim
    // checks what the tensors themselves are.
    outcome(unsafe {
        trainer_adamw(
            params.handles.as_ptr(),
            exp_avgs.handles.as_ptr(),
            exp_avg_sqs.handles.as_ptr(),
            steps.handles.as_ptr(),
            count,
            lr,
            beta1,
            beta2,
            weight_decay,
            eps,
        )
    })
}

/// The message of the shim, if it left one.
#[inline]
fn outcome(message: *mut c_char) -> Result<()> {
    if message.is_null() { Ok(()) } else { Err(failure(message)) }
}

#[cold]
fn failure(message: *mut c_char) -> Error {
    // SAFETY: the shim gave a string of its own that ends in a null, and it is not used again once freed.
    let text = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        trainer_free(message);
        text
    };
    TchError::Torch(text).into()
}
