//! The kernels of the optimizers.

use std::ffi::c_char;

use torch_sys::C_tensor;

use super::tensors::{Parameters, TensorList};
use crate::error::Result;

unsafe extern "C" {
    fn trainer_sgd(lists: *mut Lists, with: *const Sgd) -> *mut c_char;
    fn trainer_adam(lists: *mut Lists, with: *const Adam) -> *mut c_char;
    fn trainer_adagrad(lists: *mut Lists, with: *const Adagrad) -> *mut c_char;
    fn trainer_rmsprop(lists: *mut Lists, with: *const RmsProp) -> *mut c_char;
    fn trainer_lion(lists: *mut Lists, with: *const Lion) -> *mut c_char;
    fn trainer_muon(lists: *mut Lists, with: *const Muon) -> *mut c_char;
}

/// The tensors that one step of an optimizer works on: the parameters, their state, and their step
/// counts.
#[repr(C)]
struct Lists {
    params: *const *mut C_tensor,
    state: [*const *mut C_tensor; 3],
    steps: *const *mut C_tensor,
    count: usize,
    /// Set by the shim: the index of the parameter that its error concerns, or `count` if the error
    /// does not concern a single parameter.
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
        assert!(list.is_none_or(|list| list.len() == count), "expected one state tensor per parameter");
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
    /// Takes the step. `momentum` contains the momentum buffers, and the step counts on the CPU;
    /// `None` without momentum.
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
    /// Takes the step. With `grad_avg`, the average of the gradients, it is centered; with
    /// `momentum_buffer`, it uses momentum.
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
