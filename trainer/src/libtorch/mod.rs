//! The only unsafe code: calls into the C++ shim for what tch leaves out.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use tch::{Device, TchError, Tensor};
use torch_sys::C_tensor;

use crate::error::{Error, Result};
use crate::vars::Var;

unsafe extern "C" {
    fn trainer_free(message: *mut c_char);
    fn trainer_version() -> *const c_char;
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
    fn trainer_sgd(lists: *const Lists, with: *const Sgd) -> *mut c_char;
    fn trainer_adam(lists: *const Lists, with: *const Adam) -> *mut c_char;
    fn trainer_adagrad(lists: *const Lists, with: *const Adagrad) -> *mut c_char;
    fn trainer_rmsprop(lists: *const Lists, with: *const RmsProp) -> *mut c_char;
    fn trainer_lion(lists: *const Lists, with: *const Lion) -> *mut c_char;
    fn trainer_muon(lists: *const Lists, with: *const Muon) -> *mut c_char;
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

/// Tensors, or what holds some, that several handles share, to be read only.
#[derive(Debug)]
pub(crate) struct Shared<T>(T);

impl<T: Send> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Shared(value)
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

// SAFETY: nothing hands out a `&mut` to the value, so that the handles in it are only read, which threads may do at
// once. Through a `&Tensor` another thread can do nothing that it could not through a shallow clone, which tch lets one
// send to it. `Vec<Var>` is the only value, and holds nothing but tensors and plain data.
unsafe impl Sync for Shared<Vec<Var>> {}

/// The version of libtorch that this was built with: `2.13.0`.
pub(crate) fn version() -> String {
    // SAFETY: it is a string literal of the shim's.
    unsafe { CStr::from_ptr(trainer_version()) }.to_string_lossy().into_owned()
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

/// What one step of an optimizer is given.
#[repr(C)]
struct Lists {
    params: *const *mut C_tensor,
    state: [*const *mut C_tensor; 3],
    steps: *const *mut C_tensor,
    count: usize,
}

/// Runs a kernel on the parameters that have a gradient.
///
/// # Safety
///
/// The kernel needs no more state than it is given.
unsafe fn step<S>(
    kernel: unsafe extern "C" fn(*const Lists, *const S) -> *mut c_char,
    params: &TensorList,
    state: [Option<&TensorList>; 3],
    steps: Option<&TensorList>,
    with: &S,
) -> Result<()> {
    let count = params.len();
    let handles = |list: Option<&TensorList>| {
        assert!(list.is_none_or(|list| list.len() == count), "state for each parameter");
        list.map_or(std::ptr::null(), |list| list.handles.as_ptr())
    };
    let lists =
        Lists { params: params.handles.as_ptr(), state: state.map(handles), steps: handles(steps), count };
    // SAFETY: the handles are alive; each list is null or has `count` entries, as was just checked; the
    // shim checks what the tensors themselves are. That none is null that must not be is the caller's part.
    outcome(unsafe { kernel(&raw const lists, with) })
}

/// One step of SGD.
#[repr(C)]
pub(crate) struct Sgd {
    pub(crate) lr: f64,
    pub(crate) momentum: f64,
    pub(crate) dampening: f64,
    pub(crate) weight_decay: f64,
    pub(crate) nesterov: bool,
    pub(crate) maximize: bool,
}

impl Sgd {
    /// With momentum: its buffers, and counts of steps on the CPU.
    pub(crate) fn step(&self, params: &TensorList, momentum: Option<[&TensorList; 2]>) -> Result<()> {
        let (buffers, steps) = momentum.map(|[buffers, steps]| (buffers, steps)).unzip();
        let without = Sgd { momentum: 0.0, nesterov: false, dampening: 0.0, ..*self };
        let with = if momentum.is_some() { self } else { &without };
        // SAFETY: without momentum it takes no state, and with it both lists.
        unsafe { step(trainer_sgd, params, [buffers, None, None], steps, with) }
    }
}

/// One step of Adam, or with its weight decay decoupled of AdamW.
#[repr(C)]
pub(crate) struct Adam {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) decoupled: bool,
    pub(crate) amsgrad: bool,
    pub(crate) maximize: bool,
}

impl Adam {
    pub(crate) fn step(
        &self,
        params: &TensorList,
        [exp_avg, exp_avg_sq, steps]: [&TensorList; 3],
        max_exp_avg_sq: Option<&TensorList>,
    ) -> Result<()> {
        let with = Adam { amsgrad: max_exp_avg_sq.is_some(), ..*self };
        let state = [Some(exp_avg), Some(exp_avg_sq), max_exp_avg_sq];
        // SAFETY: the third is needed with `amsgrad` alone.
        unsafe { step(trainer_adam, params, state, Some(steps), &with) }
    }
}

/// One step of Adagrad.
#[repr(C)]
pub(crate) struct Adagrad {
    pub(crate) lr: f64,
    pub(crate) lr_decay: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) maximize: bool,
}

impl Adagrad {
    pub(crate) fn step(&self, params: &TensorList, [sum, steps]: [&TensorList; 2]) -> Result<()> {
        // SAFETY: it needs these two.
        unsafe { step(trainer_adagrad, params, [Some(sum), None, None], Some(steps), self) }
    }
}

/// One step of RMSprop.
#[repr(C)]
pub(crate) struct RmsProp {
    pub(crate) lr: f64,
    pub(crate) alpha: f64,
    pub(crate) eps: f64,
    pub(crate) momentum: f64,
    pub(crate) weight_decay: f64,
    pub(crate) maximize: bool,
}

impl RmsProp {
    /// The second list makes it the centred variant, the third gives it momentum.
    pub(crate) fn step(
        &self,
        params: &TensorList,
        square_avg: &TensorList,
        grad_avg: Option<&TensorList>,
        momentum_buffer: Option<&TensorList>,
    ) -> Result<()> {
        // SAFETY: it needs the first, and looks whether the others are there.
        unsafe { step(trainer_rmsprop, params, [Some(square_avg), grad_avg, momentum_buffer], None, self) }
    }
}

/// One step of Lion.
#[repr(C)]
pub(crate) struct Lion {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) maximize: bool,
}

impl Lion {
    pub(crate) fn step(&self, params: &TensorList, exp_avg: &TensorList) -> Result<()> {
        // SAFETY: it needs this one.
        unsafe { step(trainer_lion, params, [Some(exp_avg), None, None], None, self) }
    }
}

/// One step of Muon.
#[repr(C)]
pub(crate) struct Muon {
    pub(crate) lr: f64,
    pub(crate) momentum: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) ns_steps: i64,
    pub(crate) nesterov: bool,
    pub(crate) full_precision: bool,
    pub(crate) match_rms_adamw: bool,
    pub(crate) maximize: bool,
}

impl Muon {
    /// The parameters are matrices; libtorch says so if one is not.
    pub(crate) fn step(&self, params: &TensorList, momentum_buffer: &TensorList) -> Result<()> {
        // SAFETY: it needs this one.
        unsafe { step(trainer_muon, params, [Some(momentum_buffer), None, None], None, self) }
    }
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
