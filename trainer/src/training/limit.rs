//! [`Limit`] and [`Every`]: how much of the data the loop uses, and how often it does something.

use std::fmt;

/// A limit on the batches of a pass over data: a number of batches, `10`, or a fraction of them,
/// `0.1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit(Amount);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    /// May be negative until it is checked, when the trainer is built.
    Batches(i128),
    Fraction(f64),
}

macro_rules! numbers_of_batches {
    ($($number:ty),*) => {$(
        impl From<$number> for Limit {
            fn from(batches: $number) -> Self {
                Limit(Amount::Batches(batches as i128))
            }
        }
    )*};
}

numbers_of_batches!(i32, i64, u32, u64, usize);

impl From<f64> for Limit {
    fn from(fraction: f64) -> Self {
        Limit(Amount::Fraction(fraction))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Amount::Batches(batches) => write!(f, "{batches}"),
            Amount::Fraction(fraction) => write!(f, "{fraction:?}"),
        }
    }
}

impl Limit {
    /// Converts the limit to a number of batches, given the number in the pass if it is known.
    pub(super) fn resolve(self, batches: Option<u64>, setting: &str) -> Result<u64, String> {
        match (self.0, batches) {
            (Amount::Batches(limit), _) => Ok(u64::try_from(limit).unwrap_or(u64::MAX)),
            (Amount::Fraction(fraction), Some(batches)) => {
                match floor_with_tolerance(batches as f64 * fraction) {
                    0 => Err(format!(
                        "`.{setting}({self})` of {batches} batches is less than one: use a larger fraction, or a number of batches"
                    )),
                    some => Ok(some),
                }
            }
            (Amount::Fraction(_), None) => Err(format!(
                "`.{setting}({self})` is a fraction, but the loader does not report its number of batches: use a number of \
                 batches"
            )),
        }
    }

    /// Adds a message if the limit is not valid.
    pub(super) fn check(self, setting: &str, mistakes: &mut Vec<String>) {
        let mistake = match self.0 {
            Amount::Batches(batches) if batches > 0 => return,
            Amount::Batches(_) if setting == "limit_valid_batches" => {
                "this validates nothing: pass no validation data to `fit` instead".to_owned()
            }
            Amount::Batches(_) => "expected at least 1".to_owned(),
            Amount::Fraction(fraction) => match fraction_mistake(fraction) {
                None => return,
                Some(mistake) => mistake,
            },
        };
        mistakes.push(format!("`.{setting}({self})`: {mistake}"));
    }
}

/// Rounds down, except that a number just below an integer, such as 9.999…, is that integer:
/// products with a fraction are not exact.
fn floor_with_tolerance(number: f64) -> u64 {
    (number + 1e-9 * number.max(1.0)) as u64
}

/// Whether the batch that was just done ends an interval of `fraction` of a pass with `batches`
/// batches.
pub(crate) fn ends_interval(fraction: f64, batches: u64, done: u64) -> bool {
    let ended = |done: u64| floor_with_tolerance(done as f64 / (batches as f64 * fraction));
    ended(done) > ended(done.saturating_sub(1))
}

/// Returns the reason why a fraction is invalid, if it is.
pub(super) fn fraction_mistake(fraction: f64) -> Option<String> {
    let hint = if fraction > 1.0 && fraction.fract() == 0.0 && fraction < 1e9 {
        format!("; for a number of batches, write `{fraction}` without the decimal point")
    } else {
        String::new()
    };
    (!(fraction > 0.0 && fraction <= 1.0))
        .then(|| format!("expected a fraction above 0.0 and at most 1.0{hint}"))
}

/// An interval of the loop.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Every {
    /// Every `n` epochs.
    Epochs(u64),
    /// Every `n` optimizer steps, counted over all epochs.
    Steps(u64),
    /// After each interval of this fraction of the batches of an epoch: `Fraction(0.25)` is four
    /// times per epoch.
    Fraction(f64),
}
