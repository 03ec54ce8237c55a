//! Reading the values of tensors. Everything that hashes, saves, sends or logs a tensor uses these
//! functions, because the values of a tensor are not always in its memory: it can be undefined, on
//! the device `meta`, sparse, lazily negated or conjugated, or its storage can be freed.

use std::ffi::c_char;
use std::fmt::{Display, Write};
use std::ops::Deref;

use tch::Tensor;
use trainer_sys::{C_tensor, trainer_bytes, trainer_copy, trainer_dense, trainer_form, trainer_unreadable};

use super::text_of;
use crate::error::{Error, Result};

/// What kind of tensor a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Dense,
    Undefined,
    /// A list of tensors of different shapes.
    Nested,
    /// Any of the sparse layouts.
    Sparse,
    /// A layout that only libtorch's kernels know, such as mkldnn.
    Opaque,
    /// On the device `meta`, without values.
    Meta,
}

/// Returns what kind of tensor it is.
pub(crate) fn form(tensor: &Tensor) -> Form {
    // SAFETY: the handle is alive, and the shim only reads.
    match unsafe { trainer_form(tensor.as_ptr()) } {
        0 => Form::Dense,
        1 => Form::Undefined,
        2 => Form::Nested,
        3 => Form::Sparse,
        5 => Form::Meta,
        _ => Form::Opaque,
    }
}

/// Appends the dtype and the shape of a tensor, and what is unusual about it. Never panics.
pub(crate) fn describe(tensor: &Tensor, text: &mut String) {
    let form = form(tensor);
    let suffix = match form {
        Form::Undefined => return text.push_str("an undefined tensor"),
        Form::Nested => return text.push_str("a nested tensor"),
        Form::Dense => "",
        Form::Sparse => " (sparse)",
        Form::Opaque => " (mkldnn)",
        Form::Meta => " (on the device `meta`)",
    };
    let _ = match tensor.f_kind() {
        Ok(kind) => write!(text, "{kind:?} {:?}{suffix}", tensor.size()),
        Err(_) => write!(text, "a tensor of another dtype, {:?}{suffix}", tensor.size()),
    };
}

/// Returns an error unless the values of a tensor can be read. `name` identifies the tensor in the
/// error.
pub(crate) fn check_readable(tensor: &Tensor, name: impl Display) -> Result<()> {
    // SAFETY: the handle is alive, and the shim only reads, or returns a message.
    let message = unsafe { trainer_unreadable(tensor.as_ptr()) };
    if message.is_null() { Ok(()) } else { Err(refusal(name, &text_of(message))) }
}

/// Returns a dense tensor with the values of a tensor, on its device. Shares the memory of the
/// tensor if that is possible. Does not synchronize with the device, unless the tensor is sparse.
///
/// # Errors
///
/// Returns an error that begins with `name` if the values cannot be read.
pub(crate) fn dense(tensor: &Tensor, name: impl Display) -> Result<Tensor> {
    converted(tensor, false, trainer_dense, name)
}

/// Returns a dense and contiguous tensor on the CPU with the values of a tensor. Shares the memory
/// of the tensor if that is possible.
///
/// # Errors
///
/// Returns an error that begins with `name` if the values cannot be read.
pub(crate) fn on_host(tensor: &Tensor, name: impl Display) -> Result<Tensor> {
    converted(tensor, true, trainer_dense, name)
}

/// Returns a copy of a tensor, which keeps its layout but not its graph, on its device or, if
/// `on_host` is set, on the CPU.
///
/// # Errors
///
/// Returns an error that begins with `name` if the values cannot be read or copied.
pub(crate) fn copied(tensor: &Tensor, on_host: bool, name: impl Display) -> Result<Tensor> {
    converted(tensor, on_host, trainer_copy, name)
}

/// A function of the shim that writes a handle or returns a message.
type Convert = unsafe extern "C" fn(*const C_tensor, bool, *mut *mut C_tensor) -> *mut c_char;

fn converted(tensor: &Tensor, on_host: bool, convert: Convert, name: impl Display) -> Result<Tensor> {
    let mut values: *mut C_tensor = std::ptr::null_mut();
    // SAFETY: the handle is alive; the shim writes one handle, or returns a message.
    let message = unsafe { convert(tensor.as_ptr(), on_host, &raw mut values) };
    if !message.is_null() {
        return Err(refusal(name, &text_of(message)));
    }
    // SAFETY: without a message there is a handle, which nothing else owns.
    Ok(unsafe { Tensor::from_ptr(values) })
}

#[cold]
fn refusal(name: impl Display, why: &str) -> Error {
    Error::usage(format!("{name} {why}"))
}

/// The elements of a tensor on the host, in the order of its contiguous form.
#[derive(Debug)]
pub(crate) struct Bytes {
    /// Owns the memory.
    _values: Tensor,
    begin: *const u8,
    count: usize,
}

/// Returns the elements of a tensor as bytes. Copies them only if the tensor is not a contiguous
/// tensor on the CPU.
///
/// # Errors
///
/// Returns an error that begins with `name` if the values cannot be read.
pub(crate) fn bytes(tensor: &Tensor, name: impl Display) -> Result<Bytes> {
    let values = on_host(tensor, name)?;
    let mut begin = std::ptr::null();
    let mut count = 0;
    // SAFETY: the handle is alive, and the shim has made the tensor contiguous and checked that its
    // storage has all elements; it writes a pointer and a number.
    unsafe { trainer_bytes(values.as_ptr(), &raw mut begin, &raw mut count) };
    Ok(Bytes { _values: values, begin: begin.cast(), count })
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: the storage has `count` bytes starting at `begin`, and `_values` keeps it alive.
        // No other thread writes to it during that time: the trainer does not compute while it
        // reads.
        unsafe { std::slice::from_raw_parts(self.begin, self.count) }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

    #[test]
    fn bytes_are_those_of_the_values() {
        let numbers = Tensor::arange(12, FLOAT).view([4, 3]);
        let read = |tensor: &Tensor| {
            let bytes = bytes(tensor, "x").unwrap();
            bytes.as_chunks::<4>().0.iter().map(|each| f32::from_ne_bytes(*each)).collect::<Vec<_>>()
        };
        assert_eq!(read(&numbers.narrow(0, 1, 1)), [3.0, 4.0, 5.0]);
        assert_eq!(read(&numbers.tr().narrow(0, 1, 1)), [1.0, 4.0, 7.0, 10.0]);
        assert_eq!(read(&numbers.narrow(0, 1, 1).internal_neg_view()), [-3.0, -4.0, -5.0]);
        assert_eq!(read(&numbers.narrow(0, 0, 1).narrow(1, 1, 1).expand([2, 2], false)), [1.0; 4]);
        assert_eq!(read(&numbers.narrow(0, 0, 2).to_sparse_sparse_dim(2)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(read(&Tensor::internal_efficientzerotensor([2], FLOAT)), [0.0; 2]);
        assert!(read(&numbers.narrow(0, 1, 0)).is_empty());
        let shared = on_host(&numbers, "x").unwrap();
        assert_eq!(shared.data_ptr(), numbers.data_ptr(), "a plain tensor is not copied");
    }

    #[test]
    fn errors_begin_with_the_name() {
        let error = bytes(&Tensor::new(), "`x`").unwrap_err().to_string();
        assert_eq!(error, "`x` is an undefined tensor, which has no values: pass one that was computed");
    }
}
