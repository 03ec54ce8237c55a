//! [`Call`]: a collective that the program calls, described so that the ranks can compare it.

use std::borrow::Borrow;
use std::fmt::{Display, Write};

use tch::Tensor;

use crate::error::{Error, Result};
use crate::libtorch::{self, Form};

/// The description of a collective that the program calls. The ranks compare it before they
/// exchange data.
#[derive(Debug)]
pub(super) struct Call {
    /// The method and the name of the collective: `` `all_reduce("largest")` ``.
    pub(super) what: String,
    /// The properties that must be the same on all ranks.
    pub(super) compared: String,
    /// The description for error messages: `compared`, and the source location of the call.
    pub(super) text: String,
}

/// Describes a tensor whose dtype and shape must be the same on all ranks.
pub(super) fn described(tensor: &Tensor) -> String {
    let mut text = String::new();
    libtorch::describe(tensor, &mut text);
    text
}

/// Returns an error unless the ranks can exchange a tensor. If `in_place` is set, the result is
/// written into the tensor. `name` identifies the tensor in the error.
pub(super) fn check_exchanged(tensor: &Tensor, in_place: bool, name: impl Display) -> Result<()> {
    libtorch::check_readable(tensor, &name)?;
    if libtorch::form(tensor) != Form::Dense {
        return Err(Error::usage(format!(
            "{name} is {}, but ranks only exchange dense tensors: pass `to_dense` of it",
            described(tensor)
        )));
    }
    if in_place && tensor.size().iter().zip(tensor.stride()).any(|(size, stride)| *size > 1 && stride == 0) {
        return Err(Error::usage(format!(
            "{name} has elements that share memory, so the result cannot be written into it: pass a copy, `.copy()`"
        )));
    }
    Ok(())
}

/// Checks named tensors like [`check_exchanged`].
pub(super) fn check_all<N: AsRef<str>, T: Borrow<Tensor>>(list: &[(N, T)]) -> Result<()> {
    list.iter().try_for_each(|(name, tensor)| {
        check_exchanged(tensor.borrow(), true, format_args!("the tensor `{}`", name.as_ref()))
    })
}

/// Sorts named tensors by name, the order in which the ranks combine them.
///
/// # Errors
///
/// Returns an error if two tensors have the same name.
pub(super) fn sorted<N: AsRef<str>, T: Borrow<Tensor>>(
    method: &str,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Result<Vec<(N, T)>> {
    let mut list: Vec<(N, T)> = tensors.into_iter().collect();
    list.sort_by(|(one, _), (other, _)| one.as_ref().cmp(other.as_ref()));
    let twice = list.windows(2).find(|pair| pair[0].0.as_ref() == pair[1].0.as_ref());
    if let Some(pair) = twice {
        return Err(Error::usage(format!(
            "`{method}` received two tensors named `{}`: give each a unique name, by which the ranks match them",
            pair[0].0.as_ref()
        )));
    }
    Ok(list)
}

/// Describes named tensors whose names, dtypes and shapes must be the same on all ranks.
pub(super) fn listed<N: AsRef<str>, T: Borrow<Tensor>>(list: &[(N, T)]) -> String {
    let mut text = format!(" of {} tensors", list.len());
    for (nth, (name, tensor)) in list.iter().enumerate() {
        let separator = if nth == 0 { ": " } else { ", " };
        let _ = write!(text, "{separator}`{}` {}", name.as_ref(), described(tensor.borrow()));
    }
    text
}

/// Returns the description of a collective as an error message shows it: in backticks, unless it
/// already starts with a backtick.
pub(super) fn quoted(what: &str) -> String {
    if what.starts_with('`') { what.to_owned() } else { format!("`{what}`") }
}
