//! [`Call`]: a collective that the program calls, as the ranks compare it.

use std::borrow::Borrow;
use std::fmt::Write;
use std::panic::Location;

use tch::Tensor;

use super::links::Links;
use crate::error::{Error, Result};
use crate::moment::MomentInfo;

/// A collective that the program calls, as the ranks compare it before they exchange data.
#[derive(Debug)]
pub(super) struct Call {
    /// Its method and name: `` `all_reduce("largest")` ``.
    pub(super) what: String,
    /// What must be the same on all ranks.
    pub(super) compared: String,
    /// The description for error messages: `compared`, and where the call is in the source.
    pub(super) text: String,
}

impl Links {
    /// Describes the next collective that the program calls. `details` is what must be the same on
    /// all ranks, apart from the place of the call.
    ///
    /// # Errors
    ///
    /// Returns an error if collectives are not allowed here, without counting the call.
    #[track_caller]
    pub(super) fn call(&self, method: &str, name: &str, details: &str) -> Result<Call> {
        let what = format!("`{method}({name:?})`");
        self.check_allowed(&what)?;
        let nth = self.shared.count_call();
        let mut compared = format!("{what}{details}");
        if let Some(place) = &self.place {
            let _ = write!(compared, " in {place}");
        }
        let number = format!(", collective {nth} of this batch");
        let text = format!("{compared}{number} ({})", Location::caller());
        compared.push_str(&number);
        Ok(Call { what, compared, text })
    }

    /// Returns this world for a hook, whose collectives then name it.
    pub(super) fn at(&self, hook: Option<&str>, moment: &MomentInfo) -> Links {
        let place = match hook {
            Some(hook) => format!("`{hook}` at `{}`", moment.path()),
            None => format!("`{}`", moment.path()),
        };
        Links { place: Some(place.into()), ..self.clone() }
    }

    /// Begins the count of the collectives that the program calls in a batch.
    pub(super) fn begin_batch(&self) {
        self.shared.reset_calls();
    }
}

/// Describes a tensor whose dtype and shape must be the same on all ranks.
pub(super) fn described(tensor: &Tensor) -> String {
    format!("{:?} {:?}", tensor.kind(), tensor.size())
}

/// Returns named tensors in the order of their names, in which the ranks combine them.
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
            "`{method}` received two tensors named `{}`: give each its own name, by which the ranks match it",
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
