//! [`Hyperparameter`]: a value that is recorded with a run.

use std::fmt;

use crate::values::float::exact;

/// A value that the results of a run depend on. Loggers record it together with the results.
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

/// A hyperparameter that the program has set.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) name: String,
    pub(crate) value: Hyperparameter,
    pub(crate) by: GivenBy,
}

/// How a program sets a hyperparameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "only the feature `cli` has settings"))]
pub(crate) enum GivenBy {
    /// By a call on the builder.
    Call,
    /// By a setting of the program, which a file or the command line can change.
    Setting,
    /// By a setting that a resumed run may change.
    ChangeableSetting,
}

impl Given {
    /// Returns the name as messages show it: the builder call, or the command-line argument.
    pub(crate) fn shown(&self) -> String {
        match self.by {
            GivenBy::Call => format!(".hyperparameter(\"{}\", …)", self.name),
            GivenBy::Setting | GivenBy::ChangeableSetting => format!("--{}", self.name),
        }
    }

    /// Returns the value as messages show it.
    pub(crate) fn text(&self) -> String {
        match self.value {
            Hyperparameter::Number(number) => exact(number),
            _ => self.value.to_string(),
        }
    }
}

impl Hyperparameter {
    /// Returns the value that the text of a setting stands for.
    pub(crate) fn of_setting(text: &str) -> Self {
        match (text.parse::<f64>(), text) {
            (Ok(number), _) => number.into(),
            (_, "true") => true.into(),
            (_, "false") => false.into(),
            (_, text) => text.trim_matches('"').into(),
        }
    }
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
