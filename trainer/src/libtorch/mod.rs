//! Calls into the C++ shim, which provides what tch does not. All unsafe code of the crate is here.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use tch::{Device, TchError, Tensor};
use torch_sys::C_tensor;

mod autocast;
mod event;
mod grad_hook;
mod kernel_trace;
mod monitors;
mod shared_vars;

pub(crate) use autocast::{AutocastGuard, Precision};
pub(crate) use event::Event;
pub(crate) use grad_hook::{on_grad, remove_on_grad};
pub(crate) use kernel_trace::KernelTrace;
#[cfg(feature = "nvml")]
pub(crate) use monitors::cuda_bus_id;
pub(crate) use monitors::{CudaMemory, norms};
pub(crate) use shared_vars::SharedVars;
pub use shared_vars::Var;

use crate::error::{Error, Result};

unsafe extern "C" {
    fn trainer_free(message: *mut c_char);
    fn trainer_version() -> *const c_char;
    fn trainer_unfit(param: *const C_tensor) -> *mut c_char;
    fn trainer_check_params(list: *mut Params) -> *mut c_char;
    fn trainer_identity(tensor: *const C_tensor) -> *const c_void;
    fn trainer_memory(param: *const C_tensor, begin: *mut usize, bytes: *mut usize) -> bool;
    fn trainer_bytes(tensor: *const C_tensor, begin: *mut *const c_void, bytes: *mut usize) -> *mut c_char;
    fn trainer_rows(tensor: *const C_tensor) -> i64;
    fn trainer_drop_grads(params: *const *mut C_tensor, count: usize) -> *mut c_char;
    fn trainer_backward(loss: *const C_tensor, params: *const *mut C_tensor, count: usize) -> *mut c_char;
    fn trainer_scale_grads(list: *mut Params, factor: f64) -> *mut c_char;
    fn trainer_lerp(
        from: *const *mut C_tensor,
        to: *const *mut C_tensor,
        count: usize,
        weight: f64,
    ) -> *mut c_char;
    fn trainer_unscale_grads(list: *mut Params, factor: f64, finite: *mut bool) -> *mut c_char;
    fn trainer_clip_grad_norm(list: *mut Params, max_norm: f64, norm: *mut *mut C_tensor) -> *mut c_char;
    fn trainer_clip_grad_value(list: *mut Params, max_value: f64) -> *mut c_char;
    fn trainer_set_grad(param: *mut C_tensor, grad: *const C_tensor) -> *mut c_char;
    fn trainer_on_grad(
        tensor: *const C_tensor,
        call: unsafe extern "C" fn(*const c_void, *mut C_tensor, *mut *mut c_char) -> *mut C_tensor,
        forget: unsafe extern "C" fn(*mut c_void),
        with: *mut c_void,
        id: *mut u32,
    ) -> *mut c_char;
    fn trainer_remove_on_grad(tensor: *const C_tensor, id: u32) -> *mut c_char;
    fn trainer_random_state(cuda: i64, state: *mut *mut C_tensor) -> *mut c_char;
    fn trainer_set_random_state(cuda: i64, state: *const C_tensor) -> *mut c_char;
    fn trainer_modes() -> Flags;
    fn trainer_set_modes(modes: Flags);
    fn trainer_record_gradients(record: bool) -> bool;
    fn trainer_sgd(lists: *mut Lists, with: *const Sgd) -> *mut c_char;
    fn trainer_adam(lists: *mut Lists, with: *const Adam) -> *mut c_char;
    fn trainer_adagrad(lists: *mut Lists, with: *const Adagrad) -> *mut c_char;
    fn trainer_rmsprop(lists: *mut Lists, with: *const RmsProp) -> *mut c_char;
    fn trainer_lion(lists: *mut Lists, with: *const Lion) -> *mut c_char;
    fn trainer_muon(lists: *mut Lists, with: *const Muon) -> *mut c_char;
}

unsafe extern "C" {
    /// Flushes an output stream of the C library, or all of them if `stream` is null.
    fn fflush(stream: *mut c_void) -> c_int;
}

/// Flushes every output stream of the C library, which libtorch prints to.
pub(crate) fn flush_c_streams() {
    // SAFETY: null stands for all streams; each is locked while it is flushed.
    unsafe { fflush(std::ptr::null_mut()) };
}

/// A list of tensors, with their handles in the form that the shim takes.
#[derive(Debug, Default)]
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

/// Parameters with their names, which error messages contain.
#[derive(Debug, Default)]
pub(crate) struct Parameters {
    names: Vec<String>,
    tensors: TensorList,
}

impl FromIterator<(String, Tensor)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(parameters: I) -> Self {
        let (names, tensors): (_, Vec<_>) = parameters.into_iter().unzip();
        Parameters { names, tensors: tensors.into_iter().collect() }
    }
}

impl Parameters {
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub(crate) fn tensors(&self) -> &TensorList {
        &self.tensors
    }

    /// Calls a function of the shim. An error names the parameter that it is about.
    fn call(&self, function: impl FnOnce(&mut Params) -> *mut c_char) -> Result<()> {
        let handles = &self.tensors.handles;
        let mut list = Params { params: handles.as_ptr(), count: handles.len(), current: handles.len() };
        let message = function(&mut list);
        self.outcome(message, list.current)
    }

    /// Converts the shim's message, if there is one, to an error about the parameter with this
    /// index, if there is one.
    #[inline]
    fn outcome(&self, message: *mut c_char, current: usize) -> Result<()> {
        if message.is_null() {
            return Ok(());
        }
        Err(match self.names.get(current) {
            Some(name) => Error::usage(format!("the parameter `{name}` {}", text_of(message))),
            None => failure(message),
        })
    }
}

/// The parameters that a function of the shim works on.
#[repr(C)]
struct Params {
    params: *const *mut C_tensor,
    count: usize,
    /// Set by the shim to the index of the parameter that its error is about, or to `count`.
    current: usize,
}

/// Returns why the kernels cannot update a parameter, as a phrase that follows its name; `None` if
/// they can.
pub(crate) fn unfit(param: &Tensor) -> Option<String> {
    // SAFETY: the handle is alive, and the shim only reads.
    let message = unsafe { trainer_unfit(param.as_ptr()) };
    (!message.is_null()).then(|| text_of(message))
}

/// Checks that the kernels can still update every parameter, like each optimizer step does.
pub(crate) fn check_params(params: &Parameters) -> Result<()> {
    // SAFETY: the handles are alive, and `count` is their number.
    params.call(|list| unsafe { trainer_check_params(list) })
}

/// Returns a number that is equal for two handles, while both are alive, exactly if they refer to
/// the same tensor.
pub(crate) fn identity(tensor: &Tensor) -> usize {
    // SAFETY: the handle is alive, and the shim only reads.
    unsafe { trainer_identity(tensor.as_ptr()) }.addr()
}

/// Returns the memory that a parameter occupies, as addresses on its device; `None` if the kernels
/// cannot update the parameter.
pub(crate) fn memory(param: &Tensor) -> Option<Range<usize>> {
    let (mut begin, mut bytes) = (0, 0);
    // SAFETY: the handle is alive, and the shim only reads it and writes two numbers.
    unsafe { trainer_memory(param.as_ptr(), &raw mut begin, &raw mut bytes) }.then(|| begin..begin + bytes)
}

/// Returns the version of libtorch that the shim was compiled against: `2.13.0`.
pub(crate) fn version() -> String {
    // SAFETY: the shim returns a string literal.
    unsafe { CStr::from_ptr(trainer_version()) }.to_string_lossy().into_owned()
}

/// Returns the size of a tensor's first dimension, if it has one. Does not allocate.
pub(crate) fn rows(tensor: &Tensor) -> Option<u64> {
    // SAFETY: the handle is alive, and the shim only reads.
    u64::try_from(unsafe { trainer_rows(tensor.as_ptr()) }).ok()
}

/// Sets the gradients of the parameters to none.
pub(crate) fn drop_grads(params: &Parameters) -> Result<()> {
    let handles = &params.tensors.handles;
    // SAFETY: the handles are alive, and `count` is their number.
    outcome(unsafe { trainer_drop_grads(handles.as_ptr(), handles.len()) })
}

/// Runs the backward pass of a scalar loss for these parameters alone: no other tensor gets a
/// gradient.
pub(crate) fn backward(loss: &Tensor, params: &Parameters) -> Result<()> {
    let handles = &params.tensors.handles;
    // SAFETY: the handles are alive, and `count` is their number.
    outcome(unsafe { trainer_backward(loss.as_ptr(), handles.as_ptr(), handles.len()) })
}

/// Multiplies the gradients of the parameters that have one.
pub(crate) fn scale_grads(params: &Parameters, factor: f64) -> Result<()> {
    // SAFETY: the handles are alive, and `count` is their number.
    params.call(|list| unsafe { trainer_scale_grads(list, factor) })
}

/// Moves each tensor in `from` towards its counterpart in `to`, in place: `from + weight * (to -
/// from)`.
///
/// # Panics
///
/// Panics if the lists differ in length.
pub(crate) fn lerp(from: &TensorList, to: &TensorList, weight: f64) -> Result<()> {
    assert_eq!(from.len(), to.len(), "one tensor for each");
    // SAFETY: the handles are alive, and both lists have `count` of them, as was just checked.
    outcome(unsafe { trainer_lerp(from.handles.as_ptr(), to.handles.as_ptr(), from.len(), weight) })
}

/// Multiplies the gradients of the parameters that have one. Returns whether all of them were
/// finite. Waits for the device.
pub(crate) fn unscale_grads(params: &Parameters, factor: f64) -> Result<bool> {
    let mut finite = true;
    // SAFETY: the handles are alive, and `count` is their number; the shim writes one `bool`.
    params.call(|list| unsafe { trainer_unscale_grads(list, factor, &raw mut finite) })?;
    Ok(finite)
}

/// Clips the gradients of the parameters by their total norm, and returns the norm before clipping.
pub(crate) fn clip_grad_norm(params: &Parameters, max_norm: f64) -> Result<Tensor> {
    let mut norm = std::ptr::null_mut();
    // SAFETY: the handles are alive, and `count` is their number; the shim writes one handle, or
    // leaves null.
    params.call(|list| unsafe { trainer_clip_grad_norm(list, max_norm, &raw mut norm) })?;
    // SAFETY: without a message there is a handle, which nothing else owns.
    Ok(unsafe { Tensor::from_ptr(norm) })
}

/// Clamps each element of the gradients of the parameters to `[-max_value, max_value]`.
pub(crate) fn clip_grad_value(params: &Parameters, max_value: f64) -> Result<()> {
    // SAFETY: the handles are alive, and `count` is their number.
    params.call(|list| unsafe { trainer_clip_grad_value(list, max_value) })
}

/// Sets the gradient of the parameter to a copy of `grad`, which must have its shape and dtype.
/// Errors contain `name`.
pub(crate) fn set_grad(name: &str, param: &Tensor, grad: &Tensor) -> Result<()> {
    // SAFETY: the handles are alive; the shim checks that the gradient fits.
    let message = unsafe { trainer_set_grad(param.as_ptr().cast_mut(), grad.as_ptr()) };
    if message.is_null() {
        return Ok(());
    }
    Err(Error::usage(format!("the parameter `{name}` {}", text_of(message))))
}

/// Returns the state of the random number generator of the CPU or of a CUDA device.
pub(crate) fn random_state(device: Device) -> Result<Tensor> {
    let mut state = std::ptr::null_mut();
    // SAFETY: the shim writes one handle, or leaves null.
    outcome(unsafe { trainer_random_state(cuda(device), &raw mut state) })?;
    // SAFETY: without a message there is a handle, which nothing else owns.
    Ok(unsafe { Tensor::from_ptr(state) })
}

/// Restores the state of the random number generator of the CPU or of a CUDA device.
pub(crate) fn set_random_state(device: Device, state: &Tensor) -> Result<()> {
    // SAFETY: the handle is alive; libtorch checks the contents of the tensor.
    outcome(unsafe { trainer_set_random_state(cuda(device), state.as_ptr()) })
}

/// Returns the index of a CUDA device, or -1 for the CPU.
fn cuda(device: Device) -> i64 {
    match device {
        Device::Cuda(nth) => i64::try_from(nth).unwrap_or(i64::MAX),
        _ => -1,
    }
}

/// Returns the elements of a tensor as bytes.
///
/// # Errors
///
/// Returns an error if the tensor is not contiguous, not on the CPU, or has no memory for its
/// elements.
pub(crate) fn bytes(tensor: &Tensor) -> Result<&[u8]> {
    let (mut begin, mut count) = (std::ptr::null(), 0);
    // SAFETY: the handle is alive; the shim writes a pointer and a number, or returns a message.
    outcome(unsafe { trainer_bytes(tensor.as_ptr(), &raw mut begin, &raw mut count) })?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the shim checked that the tensor's storage has `count` bytes starting at `begin`, and
    // the storage lives as long as the slice. No other thread writes to it meanwhile: the trainer
    // does not compute while it saves.
    Ok(unsafe { std::slice::from_raw_parts(begin.cast::<u8>(), count) })
}

/// The process-wide modes of libtorch.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Flags {
    deterministic: bool,
    deterministic_warns_only: bool,
    detects_anomalies: bool,
    checks_nan: bool,
}

/// Reference counts of active requests per mode, over all threads, and the flags to restore after
/// the last one.
#[derive(Default)]
struct ModeRequests {
    deterministic: usize,
    detect_anomaly: usize,
    before: Flags,
}

static MODE_REQUESTS: Mutex<ModeRequests> = Mutex::new(ModeRequests {
    deterministic: 0,
    detect_anomaly: 0,
    before: Flags {
        deterministic: false,
        deterministic_warns_only: false,
        detects_anomalies: false,
        checks_nan: false,
    },
});

/// Requests modes of libtorch for as long as the value lives.
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

    /// Changes the counts of the requested modes, and sets libtorch's flags accordingly.
    fn change(&self, step: impl Fn(usize) -> usize) {
        if !(self.deterministic || self.detect_anomaly) {
            return;
        }
        let mut requests = MODE_REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.deterministic + requests.detect_anomaly == 0 {
            // SAFETY: the call only reads flags of libtorch.
            requests.before = unsafe { trainer_modes() };
        }
        if self.deterministic {
            requests.deterministic = step(requests.deterministic);
        }
        if self.detect_anomaly {
            requests.detect_anomaly = step(requests.detect_anomaly);
        }
        let mut flags = requests.before;
        if requests.deterministic > 0 {
            (flags.deterministic, flags.deterministic_warns_only) = (true, false);
        }
        if requests.detect_anomaly > 0 {
            (flags.detects_anomalies, flags.checks_nan) = (true, true);
        }
        // SAFETY: the call only sets flags of libtorch.
        unsafe { trainer_set_modes(flags) };
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        self.change(|count| count.saturating_sub(1));
    }
}

/// Enables gradient recording on this thread, and restores the previous mode when dropped.
pub(crate) struct GradModeGuard(bool);

impl GradModeGuard {
    pub(crate) fn recorded() -> Self {
        GradModeGuard(GradModeGuard::record())
    }

    /// Enables gradient recording without restoring it later. Returns whether it was enabled
    /// before.
    pub(crate) fn record() -> bool {
        // SAFETY: the call only sets a flag of this thread.
        unsafe { trainer_record_gradients(true) }
    }
}

impl Drop for GradModeGuard {
    fn drop(&mut self) {
        // SAFETY: the call only sets a flag of this thread.
        unsafe { trainer_record_gradients(self.0) };
    }
}

/// The tensors that one step of an optimizer works on. `steps` are the step counts of the
/// parameters.
#[repr(C)]
struct Lists {
    params: *const *mut C_tensor,
    state: [*const *mut C_tensor; 3],
    steps: *const *mut C_tensor,
    count: usize,
    /// Set by the shim to the index of the parameter that its error is about, or to `count`.
    current: usize,
}

/// Runs a kernel on the parameters that have a gradient.
///
/// # Panics
///
/// Panics if a state list does not have one tensor per parameter.
///
/// # Safety
///
/// Every list that the kernel reads must be `Some`.
unsafe fn step<S>(
    kernel: unsafe extern "C" fn(*mut Lists, *const S) -> *mut c_char,
    params: &Parameters,
    state: [Option<&TensorList>; 3],
    steps: Option<&TensorList>,
    with: &S,
) -> Result<()> {
    let own = &params.tensors;
    let count = own.len();
    let handles = |list: Option<&TensorList>| {
        assert!(list.is_none_or(|list| list.len() == count), "one state tensor per parameter");
        list.map_or(std::ptr::null(), |list| list.handles.as_ptr())
    };
    let (state, steps) = (state.map(handles), handles(steps));
    let mut lists = Lists { params: own.handles.as_ptr(), state, steps, count, current: count };
    // SAFETY: the handles are alive; each list is null or has `count` handles, as was just checked;
    // the shim checks the tensors themselves. The caller guarantees that every list that the kernel
    // reads is non-null.
    let message = unsafe { kernel(&raw mut lists, with) };
    params.outcome(message, lists.current)
}

/// The settings of one SGD step.
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
    /// Takes the step. With momentum, `momentum` contains its buffers and step counts on the CPU;
    /// without it, `None`.
    pub(crate) fn step(&self, params: &Parameters, momentum: Option<[&TensorList; 2]>) -> Result<()> {
        let (buffers, steps) = momentum.map(|[buffers, steps]| (buffers, steps)).unzip();
        let without = Sgd { momentum: 0.0, nesterov: false, dampening: 0.0, ..*self };
        let with = if momentum.is_some() { self } else { &without };
        // SAFETY: the kernel reads no state without momentum, and both lists with it.
        unsafe { step(trainer_sgd, params, [buffers, None, None], steps, with) }
    }
}

/// The settings of one Adam step, or of one AdamW step if `decoupled`.
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
        params: &Parameters,
        [exp_avg, exp_avg_sq, steps]: [&TensorList; 3],
        max_exp_avg_sq: Option<&TensorList>,
    ) -> Result<()> {
        let with = Adam { amsgrad: max_exp_avg_sq.is_some(), ..*self };
        let state = [Some(exp_avg), Some(exp_avg_sq), max_exp_avg_sq];
        // SAFETY: the kernel reads the third list only with `amsgrad`.
        unsafe { step(trainer_adam, params, state, Some(steps), &with) }
    }
}

/// The settings of one Adagrad step.
#[repr(C)]
pub(crate) struct Adagrad {
    pub(crate) lr: f64,
    pub(crate) lr_decay: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) maximize: bool,
}

impl Adagrad {
    pub(crate) fn step(&self, params: &Parameters, [sum, steps]: [&TensorList; 2]) -> Result<()> {
        // SAFETY: the kernel reads these two lists.
        unsafe { step(trainer_adagrad, params, [Some(sum), None, None], Some(steps), self) }
    }
}

/// The settings of one RMSprop step.
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
    /// Takes the step: centered if `grad_avg` is given, with momentum if `momentum_buffer` is.
    pub(crate) fn step(
        &self,
        params: &Parameters,
        square_avg: &TensorList,
        grad_avg: Option<&TensorList>,
        momentum_buffer: Option<&TensorList>,
    ) -> Result<()> {
        // SAFETY: the kernel reads the first list, and checks whether the others are null.
        unsafe { step(trainer_rmsprop, params, [Some(square_avg), grad_avg, momentum_buffer], None, self) }
    }
}

/// The settings of one Lion step.
#[repr(C)]
pub(crate) struct Lion {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) maximize: bool,
}

impl Lion {
    pub(crate) fn step(&self, params: &Parameters, exp_avg: &TensorList) -> Result<()> {
        // SAFETY: the kernel reads this list.
        unsafe { step(trainer_lion, params, [Some(exp_avg), None, None], None, self) }
    }
}

/// The settings of one Muon step.
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
    /// Takes the step. Every parameter must be a matrix; libtorch returns an error otherwise.
    pub(crate) fn step(&self, params: &Parameters, momentum_buffer: &TensorList) -> Result<()> {
        // SAFETY: the kernel reads this list.
        unsafe { step(trainer_muon, params, [Some(momentum_buffer), None, None], None, self) }
    }
}

/// Converts the shim's message, if there is one, to an error.
#[inline]
fn outcome(message: *mut c_char) -> Result<()> {
    if message.is_null() { Ok(()) } else { Err(failure(message)) }
}

/// Converts a message of the shim to an error of libtorch.
#[cold]
fn failure(message: *mut c_char) -> Error {
    TchError::Torch(text_of(message)).into()
}

/// Returns the text of a message of the shim, and frees the message.
#[cold]
fn text_of(message: *mut c_char) -> String {
    // SAFETY: the shim allocated this null-terminated string, and it is not used again after it is
    // freed.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        trainer_free(message);
        text
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[test]
    fn a_gradient_of_another_shape_dtype_or_layout_is_not_set() {
        let on_cpu = |kind| (kind, Device::Cpu);
        let param = Tensor::zeros([2, 3], on_cpu(Kind::Float)).set_requires_grad(true);
        let result = |grad: &Tensor| set_grad("w", &param, grad).map_err(|error| error.to_string());
        let refused = |text: &str| Err(format!("the parameter `w` {text}"));
        let zeros = |size: &[i64], kind| Tensor::zeros(size, on_cpu(kind));
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
        assert_eq!(result(&Tensor::new()), refused("is an undefined tensor, or its gradient is"));
        assert!(!param.grad().defined());
        result(&Tensor::ones([2, 3], on_cpu(Kind::Float))).unwrap();
        assert_eq!(param.grad(), Tensor::ones([2, 3], on_cpu(Kind::Float)));
    }

    #[test]
    fn only_the_bytes_of_tensors_with_memory_are_read() {
        let zeros = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
        assert_eq!(bytes(&zeros).unwrap(), [0; 48]);
        assert_eq!(bytes(&zeros.narrow(0, 1, 2)).unwrap().len(), 24);
        assert_eq!(bytes(&zeros.narrow(0, 1, 0)).unwrap(), [0; 0]);
        let refused = [
            zeros.tr(),
            zeros.narrow(1, 1, 2),
            zeros.narrow(0, 0, 1).expand([4, 3], false),
            zeros.internal_neg_view(),
            zeros.to_sparse_sparse_dim(2),
            Tensor::internal_efficientzerotensor([4, 3], (Kind::Float, Device::Cpu)),
            Tensor::new(),
        ];
        for tensor in refused {
            assert!(bytes(&tensor).is_err());
        }
    }

    #[test]
    fn undefined_losses_and_parameters_are_errors() {
        let param = Tensor::zeros([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let params = Parameters::from_iter([("w".to_owned(), param)]);
        assert!(backward(&Tensor::new(), &params).unwrap_err().to_string().contains("undefined"));
        let params = Parameters::from_iter([("w".to_owned(), Tensor::new())]);
        drop_grads(&params).unwrap();
        assert!(scale_grads(&params, 2.0).unwrap_err().to_string().starts_with("the parameter `w`"));
    }

    #[test]
    fn rows_of_tensors_without_a_first_dimension_are_none() {
        assert_eq!(rows(&Tensor::zeros([4, 3], (Kind::Float, Device::Cpu))), Some(4));
        assert_eq!(rows(&Tensor::from(1.0)), None);
        assert_eq!(rows(&Tensor::new()), None);
    }
}
