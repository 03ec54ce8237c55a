//! Lists of tensors and parameters in the form that the shim takes.

use std::ffi::c_char;

use tch::{Kind, Tensor};
use trainer_sys::{C_tensor, Params, trainer_lerp};

use super::{failure, outcome, text_of};
use crate::error::{Error, Result};

/// A list of tensors, with their handles in the form that the shim takes.
#[derive(Debug, Default)]
pub(crate) struct TensorList {
    tensors: Vec<Tensor>,
    pub(super) handles: Vec<*mut C_tensor>,
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

/// Parameters with their names, for error messages.
#[derive(Debug, Default)]
pub(crate) struct Parameters {
    names: Vec<String>,
    pub(super) tensors: TensorList,
}

impl FromIterator<(String, Tensor)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(parameters: I) -> Self {
        let (names, tensors): (_, Vec<_>) = parameters.into_iter().unzip();
        Parameters { names, tensors: tensors.into_iter().collect() }
    }
}

impl Parameters {
    /// Returns other handles of the same parameters.
    pub(crate) fn shallow_clone(&self) -> Self {
        self.names.iter().cloned().zip(self.tensors.iter().map(Tensor::shallow_clone)).collect()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub(crate) fn tensors(&self) -> &TensorList {
        &self.tensors
    }

    /// Calls a function of the shim. An error names the parameter that it concerns.
    pub(super) fn call(&self, function: impl FnOnce(&mut Params) -> *mut c_char) -> Result<()> {
        let handles = &self.tensors.handles;
        let mut list = Params { params: handles.as_ptr(), count: handles.len(), current: handles.len() };
        self.outcome(function(&mut list), list.current)
    }

    /// Converts the shim's message, if there is one, to an error. The error names the parameter
    /// with the index `current`, if there is one.
    #[inline]
    pub(super) fn outcome(&self, message: *mut c_char, current: usize) -> Result<()> {
        if message.is_null() {
            return Ok(());
        }
        Err(match self.names.get(current) {
            Some(name) => Error::usage(format!("the parameter `{name}` {}", text_of(message))),
            None => failure(message),
        })
    }
}

/// Interpolates linearly, in place, from each tensor in `from` to its counterpart in `to`:
/// `from += weight * (to - from)`.
///
/// # Panics
///
/// Panics if the lists differ in length.
pub(crate) fn lerp(from: &TensorList, to: &TensorList, weight: f64) -> Result<()> {
    assert_eq!(from.len(), to.len(), "expected lists of the same length");
    // SAFETY: the handles are alive, and both lists have `count` of them, as was just checked.
    outcome(unsafe { trainer_lerp(from.handles.as_ptr(), to.handles.as_ptr(), from.len(), weight) })
}

/// Returns the dtype in which sums, averages and states of tensors of this dtype are kept: `Float`
/// for half precision.
pub(crate) fn wide_kind(kind: Kind) -> Kind {
    if matches!(kind, Kind::Half | Kind::BFloat16) { Kind::Float } else { kind }
}

/// Converts a half-precision tensor to `f32`, in which its sums, averages and states are kept: in
/// `bf16`, a term is lost as soon as the sum is 256 times as large. Returns a tensor of another
/// dtype as it is.
///
/// ```
/// use trainer::prelude::*;
///
/// let half = Tensor::ones([2], (Kind::BFloat16, Device::Cpu));
/// assert_eq!(trainer::wide(&half).kind(), Kind::Float);
/// assert_eq!(trainer::wide(&half.to_kind(Kind::Double)).kind(), Kind::Double);
/// ```
pub fn wide(tensor: &Tensor) -> Tensor {
    tensor.to_kind(wide_kind(tensor.kind()))
}
