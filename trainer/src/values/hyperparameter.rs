//! [`Hyperparameter`]: a value that is recorded with a run.

use std::fmt;

/// A value that the results of a run depend on, which loggers record together with the results.
/// [`hyperparameter`](crate::TrainerBuilder::hyperparameter) adds one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Hyperparameter {
    /// A number.
    Number(f64),
    /// A boolean.
    Bool(bool),
    /// Any other value, as text.
    Text(String),
}

impl fmt::Display for Hyperparameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hyperparameter::Number(number) => write!(f, "{number}"),
            Hyperparameter::Bool(switch) => write!(f, "{switch}"),
            Hyperparameter::Text(text) => f.write_str(text),
        }
    }
}

impl From<bool> for Hyperparameter {
    fn from(switch: bool) -> Self {
        Hyperparameter::Bool(switch)
    }
}

impl From<&str> for Hyperparameter {
    fn from(text: &str) -> Self {
        Hyperparameter::Text(text.to_owned())
    }
}

impl From<String> for Hyperparameter {
    fn from(text: String) -> Self {
        Hyperparameter::Text(text)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl From<$number> for Hyperparameter {
            fn from(number: $number) -> Self {
                #[allow(clippy::cast_precision_loss, clippy::cast_lossless)]
                Hyperparameter::Number(number as f64)
            }
        }
    )*};
}

numbers!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, isize, usize);
