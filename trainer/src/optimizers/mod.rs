//! Optimizers and learning-rate schedules.

pub mod optim;
pub mod schedule;
