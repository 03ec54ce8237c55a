//! Small values: amounts, intervals, settings as text, lossless floats, hyperparameters.

pub(crate) mod amount;
pub(crate) mod every;
pub(crate) mod facts;
pub(crate) mod float;
pub(crate) mod hyperparameter;
pub(crate) mod paths;
