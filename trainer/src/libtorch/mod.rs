//! The only unsafe code: calls into the C++ shim for what tch leaves out.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use tch::{Device, TchError, Tensor};
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
    fn trainer_set_grad(param: *mut C_tensor, grad: *const C_tensor) -> *mut c_char;
    fn trainer_random_state(cuda: i64, state: *mut *mut C_tensor) -> *mut c_char;
    fn trainer_set_random_state(cuda: i64, state: *const C_tensor) -> *mut c_char;
    fn trainer_modes() -> Flags;
    fn trainer_set_modes(modes: Flags);
    fn trainer_record_gradients(record: bool) -> bool;
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

/// Gives a parameter a gradient: a copy of this.
pub(crate) fn set_grad(param: &Tensor, grad: &Tensor) -> Result<()> {
    // SAFETY: the handles are alive; the shim checks that the gradient fits.
    outcome(unsafe { trainer_set_grad(param.as_ptr().cast_mut(), grad.as_ptr()) })
}

/// The state of a generator of random numbers: the CPU's, or that of a CUDA device.
pub(crate) fn random_state(device: Device) -> Result<Tensor> {
    let mut state = std::ptr::null_mut();
    // SAFETY: the shim writes one handle, or leaves null.
    outcome(unsafe { trainer_random_state(cuda(device), &raw mut state) })?;
    // SAFETY: without a message there is a handle, which belongs to nobody else.
    Ok(unsafe { Tensor::from_ptr(state) })
}

/// Puts a generator of random numbers into a state that it had.
pub(crate) fn set_random_state(device: Device, state: &Tensor) -> Result<()> {
    // SAFETY: the handle is alive; libtorch checks what it holds.
    outcome(unsafe { trainer_set_random_state(cuda(device), state.as_ptr()) })
}

/// The number of a CUDA device; -1 for the CPU.
fn cuda(device: Device) -> i64 {
    match device {
        Device::Cuda(nth) => i64::try_from(nth).unwrap_or(i64::MAX),
        _ => -1,
    }
}

/// What a tensor holds, byte for byte.
///
/// # Panics
///
/// When it is not contiguous on the CPU.
pub(crate) fn bytes(tensor: &Tensor) -> &[u8] {
    assert!(tensor.device() == Device::Cpu && tensor.is_contiguous(), "contiguous on the CPU");
    let count = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if count == 0 {
        return &[];
    }
    // SAFETY: a contiguous tensor on the CPU has so many bytes from its pointer on, and lives as long as the slice. Nobody
    // writes to it meanwhile: the trainer does not compute while it saves.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), count) }
}

/// What libtorch does on the side, for the whole process.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Flags {
    deterministic: bool,
    deterministic_warns_only: bool,
    detects_anomalies: bool,
    checks_nan: bool,
}

/// How many entries, of all threads, want which of them; and how they were before the first.
#[derive(Default)]
struct Wanted {
    deterministic: usize,
    detect_anomaly: usize,
    before: Flags,
}

static WANTED: Mutex<Wanted> = Mutex::new(Wanted {
    deterministic: 0,
    detect_anomaly: 0,
    before: Flags {
        deterministic: false,
        deterministic_warns_only: false,
        detects_anomalies: false,
        checks_nan: false,
    },
});

/// Modes of libtorch that an entry wants for as long as it lives.
pub(crate) struct Modes {
    deterministic: bool,
    detect_anomaly: bool,
}

impl Modes {
    pub(crate) fn begin(deterministic: bool, detect_anomaly: bool) -> Self {
        let modes = Modes { deterministic, detect_anomaly };
        modes.change(|count| count + 1);
        modes
    }

    /// With one more, or one less, who wants them.
    fn change(&self, step: impl Fn(usize) -> usize) {
        if !(self.deterministic || self.detect_anomaly) {
            return;
        }
        let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.deterministic + wanted.detect_anomaly == 0 {
            // SAFETY: it only reads flags of libtorch's.
            wanted.before = unsafe { trainer_modes() };
        }
        if self.deterministic {
            wanted.deterministic = step(wanted.deterministic);
        }
        if self.detect_anomaly {
            wanted.detect_anomaly = step(wanted.detect_anomaly);
        }
        let mut flags = wanted.before;
        if wanted.deterministic > 0 {
            (flags.deterministic, flags.deterministic_warns_only) = (true, false);
        }
        if wanted.detect_anomaly > 0 {
            (flags.detects_anomalies, flags.checks_nan) = (true, true);
        }
        // SAFETY: it only sets flags of libtorch's.
        unsafe { trainer_set_modes(flags) };
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        self.change(|count| count.saturating_sub(1));
    }
}

/// Gradients are recorded on this thread; as before when it is dropped.
pub(crate) struct Gradients(bool);

impl Gradients {
    pub(crate) fn recorded() -> Self {
        Gradients(Gradients::record())
    }

    /// Records them, whatever was left behind. Were they?
    pub(crate) fn record() -> bool {
        // SAFETY: it only sets a flag of this thread's.
        unsafe { trainer_record_gradients(true) }
    }
}

impl Drop for Gradients {
    fn drop(&mut self) {
        // SAFETY: it only sets a flag of this thread's.
        unsafe { trainer_record_gradients(self.0) };
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
