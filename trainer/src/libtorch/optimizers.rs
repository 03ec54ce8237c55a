//! The kernels of the optimizers.

use std::ffi::c_char;

pub(crate) use trainer_sys::{Adagrad, Adam, Lion, Muon, RmsProp, Sgd};
use trainer_sys::{
    Lists, trainer_adagrad, trainer_adam, trainer_lion, trainer_muon, trainer_rmsprop, trainer_sgd,
};

use super::tensors::{Parameters, TensorList};
use crate::error::Result;

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
    let state = state.map(handles);
    let steps = handles(steps);
    let mut lists = Lists { params: own.handles.as_ptr(), state, steps, count, current: count };
    // SAFETY: the handles are alive; each list is null or has `count` handles, as was just checked;
    // the shim checks the tensors themselves. The caller guarantees that every list that the kernel
    // reads is non-null.
    let message = unsafe { kernel(&raw mut lists, with) };
    params.outcome(message, lists.current)
}

/// Takes a step of SGD. `momentum` contains the momentum buffers and the step counts, which are on
/// the CPU; it is `None` without momentum.
pub(crate) fn sgd(with: &Sgd, params: &Parameters, momentum: Option<[&TensorList; 2]>) -> Result<()> {
    let (buffers, steps) = momentum.map(|[buffers, steps]| (buffers, steps)).unzip();
    let without = Sgd { momentum: 0.0, nesterov: false, dampening: 0.0, ..*with };
    let with = if momentum.is_some() { with } else { &without };
    // SAFETY: the kernel reads no state without momentum, and both lists with it.
    unsafe { step(trainer_sgd, params, [buffers, None, None], steps, with) }
}

/// Takes a step of Adam or AdamW.
pub(crate) fn adam(
    with: &Adam,
    params: &Parameters,
    [exp_avg, exp_avg_sq, steps]: [&TensorList; 3],
    max_exp_avg_sq: Option<&TensorList>,
) -> Result<()> {
    let with = Adam { amsgrad: max_exp_avg_sq.is_some(), ..*with };
    let state = [Some(exp_avg), Some(exp_avg_sq), max_exp_avg_sq];
    // SAFETY: the kernel reads the third list only with `amsgrad`.
    unsafe { step(trainer_adam, params, state, Some(steps), &with) }
}

/// Takes a step of Adagrad.
pub(crate) fn adagrad(with: &Adagrad, params: &Parameters, [sum, steps]: [&TensorList; 2]) -> Result<()> {
    // SAFETY: the kernel reads these two lists.
    unsafe { step(trainer_adagrad, params, [Some(sum), None, None], Some(steps), with) }
}

/// Takes a step of RMSprop. With `grad_avg`, the average of the gradients, the step is that of
/// centered RMSprop. With `momentum_buffer`, it includes momentum.
pub(crate) fn rms_prop(
    with: &RmsProp,
    params: &Parameters,
    square_avg: &TensorList,
    grad_avg: Option<&TensorList>,
    momentum_buffer: Option<&TensorList>,
) -> Result<()> {
    // SAFETY: the kernel reads the first list, and checks whether the others are null.
    unsafe { step(trainer_rmsprop, params, [Some(square_avg), grad_avg, momentum_buffer], None, with) }
}

/// Takes a step of Lion.
pub(crate) fn lion(with: &Lion, params: &Parameters, exp_avg: &TensorList) -> Result<()> {
    // SAFETY: the kernel reads this list.
    unsafe { step(trainer_lion, params, [Some(exp_avg), None, None], None, with) }
}

/// Takes a step of Muon. Every parameter must be a matrix; libtorch returns an error otherwise.
pub(crate) fn muon(with: &Muon, params: &Parameters, momentum_buffer: &TensorList) -> Result<()> {
    // SAFETY: the kernel reads this list.
    unsafe { step(trainer_muon, params, [Some(momentum_buffer), None, None], None, with) }
}
