//! How much of the data, and how often: numbers and shares.

use std::fmt;

/// How many batches of a pass over data: a number of them, `10`, or a share of all, `0.1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit(Amount);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    /// Checked when the trainer is built: a negative one is a mistake.
    Batches(i128),
    Share(f64),
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
    fn from(share: f64) -> Self {
        Limit(Amount::Share(share))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Amount::Batches(batches) => write!(f, "{batches}"),
            Amount::Share(share) => write!(f, "{share:?}"),
        }
    }
}

impl Limit {
    /// How many batches that is, of so many if that is known.
    pub(super) fn of(self, batches: Option<u64>, setting: &str) -> Result<u64, String> {
        match (self.0, batches) {
            (Amount::Batches(limit), _) => Ok(u64::try_from(limit).unwrap_or(u64::MAX)),
            (Amount::Share(share), Some(batches)) => match whole(batches as f64 * share) {
                0 => Err(format!(
                    "`.{setting}({self})` of {batches} batches leaves none: give a larger share, or a number"
                )),
                some => Ok(some),
            },
            (Amount::Share(_), None) => Err(format!(
                "`.{setting}({self})` is a share, and the loader does not say how many batches it has: give a number"
            )),
        }
    }

    pub(super) fn check(self, setting: &str, mistakes: &mut Vec<String>) {
        let mistake = match self.0 {
            Amount::Batches(batches) if batches > 0 => return,
            Amount::Batches(_) if setting == "limit_valid_batches" => {
                "nothing would be validated: give `fit` no validation data instead".to_owned()
            }
            Amount::Batches(_) => "expected at least one batch".to_owned(),
            Amount::Share(share) => match share_mistake(share) {
                None => return,
                Some(mistake) => mistake,
            },
        };
        mistakes.push(format!("`.{setting}({self})`: {mistake}"));
    }
}

/// How many whole ones that is: a share of a number is not exact, and 9.999… is 10.
fn whole(number: f64) -> u64 {
    (number + 1e-9 * number.max(1.0)) as u64
}

/// Does one of the shares of a pass of so many batches end with this batch, the last of those that are done?
pub(crate) fn ends_share(share: f64, batches: u64, done: u64) -> bool {
    let ended = |done: u64| whole(done as f64 / (batches as f64 * share));
    ended(done) > ended(done.saturating_sub(1))
}

/// What is wrong with a share of a whole, if anything.
pub(super) fn share_mistake(share: f64) -> Option<String> {
    let hint = if share > 1.0 && share.fract() == 0.0 && share < 1e9 {
        format!("; for a number of batches, write `{share}` without the point")
    } else {
        String::new()
    };
    (!(share > 0.0 && share <= 1.0)).then(|| format!("a share is above 0.0 and at most 1.0{hint}"))
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Every {
    /// After each so many epochs.
    Epochs(u64),
    /// After each so many optimizer steps, within the epoch, over all epochs.
    Steps(u64),
    /// After each such share of the batches of an epoch: `Fraction(0.25)` is four times an epoch.
    Fraction(f64),
}
