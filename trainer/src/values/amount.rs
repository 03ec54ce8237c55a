//! [`Amount`]: a number, or a fraction of the whole.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number, such as `500`, or a fraction of a whole, such as `0.1`.
///
/// For limits such as [`limit_train_batches`](crate::TrainerBuilder::limit_train_batches), the
/// whole is the number of batches in a pass. For a [schedule](crate::schedule), it is the number of
/// steps in the run. A number must be at least 1; a fraction must be above 0.0 and at most 1.0.
/// Otherwise, `build` or the start of training returns an error.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::Linear;
///
/// # fn short<T: Task>(builder: trainer::TrainerBuilder<T>) -> trainer::TrainerBuilder<T> {
/// let schedule = Linear::to(0.0).over(500); // 500 steps
/// let schedule = Linear::to(0.0).over(0.5); // half of the run
/// builder.limit_train_batches(10).limit_valid_batches(0.1)
/// # }
/// ```
#[derive(Clone, Copy, Deserialize, PartialEq, Serialize)]
#[serde(from = "Plain", into = "Plain")]
pub struct Amount(pub(crate) AmountKind);

/// The value of an [`Amount`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AmountKind {
    /// Signed, so that a negative number is reported when the amount is used.
    Number(i128),
    Fraction(f64),
}

/// An [`Amount`] in a file: an integer, or a number with a decimal point.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Plain {
    Number(i64),
    Fraction(f64),
}

impl From<Plain> for Amount {
    fn from(plain: Plain) -> Self {
        match plain {
            Plain::Number(number) => number.into(),
            Plain::Fraction(fraction) => fraction.into(),
        }
    }
}

impl From<Amount> for Plain {
    fn from(amount: Amount) -> Self {
        match amount.0 {
            AmountKind::Number(number) => Plain::Number(i64::try_from(number).unwrap_or(i64::MAX)),
            AmountKind::Fraction(fraction) => Plain::Fraction(fraction),
        }
    }
}

macro_rules! from_integers {
    ($($number:ty),*) => {$(
        impl From<$number> for Amount {
            fn from(number: $number) -> Self {
                Amount(AmountKind::Number(number as i128))
            }
        }
    )*};
}

from_integers!(i32, i64, u32, u64, usize);

impl From<f64> for Amount {
    fn from(fraction: f64) -> Self {
        Amount(AmountKind::Fraction(fraction))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            AmountKind::Number(number) => write!(f, "{number}"),
            AmountKind::Fraction(fraction) => write!(f, "{fraction:?}"),
        }
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Methods for an amount that counts batches.
impl Amount {
    /// Converts the amount to a number of batches. `batches` is the number of batches in the pass,
    /// if it is known. Returns an error message if the amount is a fraction, and either `batches`
    /// is `None` or the result is less than one batch.
    pub(crate) fn batches(self, batches: Option<u64>, setting: &str) -> Result<u64, String> {
        match (self.0, batches) {
            (AmountKind::Number(limit), _) => Ok(u64::try_from(limit).unwrap_or(u64::MAX)),
            (AmountKind::Fraction(fraction), Some(batches)) => {
                match floor_with_tolerance(batches as f64 * fraction) {
                    0 => Err(format!(
                        "`.{setting}({self})` is less than one batch, because the number of batches in a pass is {batches}: use a larger fraction, or a number of batches"
                    )),
                    some => Ok(some),
                }
            }
            (AmountKind::Fraction(_), None) => Err(format!(
                "`.{setting}({self})` is a fraction, but the loader does not report its number of batches: use a number of \
                 batches"
            )),
        }
    }

    /// Adds a message to `mistakes` if the amount is invalid.
    pub(crate) fn check(self, setting: &str, mistakes: &mut Vec<String>) {
        let mistake = match self.0 {
            AmountKind::Number(batches) if batches > 0 => return,
            AmountKind::Number(_) if setting == "limit_valid_batches" => {
                "this validates nothing: pass no validation data to `fit` instead".to_owned()
            }
            AmountKind::Number(_) => "expected at least 1".to_owned(),
            AmountKind::Fraction(fraction) => match fraction_mistake(fraction) {
                None => return,
                Some(mistake) => mistake,
            },
        };
        mistakes.push(format!("`.{setting}({self})`: {mistake}"));
    }
}

/// Rounds down, except that a number just below an integer, such as 9.999…, is rounded up to that
/// integer, because products with a fraction are not exact.
pub(crate) fn floor_with_tolerance(number: f64) -> u64 {
    (number + 1e-9 * number.max(1.0)) as u64
}

/// Returns the reason why a fraction is invalid, or `None` if it is valid.
pub(crate) fn fraction_mistake(fraction: f64) -> Option<String> {
    let hint = if fraction > 1.0 && fraction.fract() == 0.0 && fraction < 1e9 {
        format!("; for a number, write `{fraction}` without the decimal point")
    } else {
        String::new()
    };
    (!(fraction > 0.0 && fraction <= 1.0))
        .then(|| format!("expected a fraction above 0.0 and at most 1.0{hint}"))
}
