//! What hooks and the loop log, averaged over an epoch.
//!
//! On the CPU a tensor is read when it is logged. On a device that works by itself, reading would
//! make the program wait for it, so the sum is kept there until the end of the epoch.

use std::fmt;
use std::ops::Index;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::phase::Phase;

/// A number or a tensor of one element.
#[derive(Debug)]
pub enum Value {
    /// Known.
    Number(f64),
    /// Not read yet.
    Tensor(Tensor),
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Value::Tensor(tensor)
    }
}

impl From<&Tensor> for Value {
    fn from(tensor: &Tensor) -> Self {
        Value::Tensor(tensor.shallow_clone())
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl From<$number> for Value {
            fn from(number: $number) -> Self {
                #[allow(clippy::cast_precision_loss, clippy::cast_lossless)]
                Value::Number(number as f64)
            }
        }
    )*};
}

numbers!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, isize, usize);

/// Means over one epoch, each named `phase/name`: `train/loss`, `valid/accuracy`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// The value of this name: `valid/loss`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// All of them, in the order in which they were first logged.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    fn set(&mut self, name: String, value: f64) {
        match self.0.iter_mut().find(|(own, _)| *own == name) {
            Some((_, own)) => *own = value,
            None => self.0.push((name, value)),
        }
    }
}

/// For a metric that is known to be there: `metrics["valid/loss"]`.
///
/// # Panics
///
/// When it is not; the message lists those that are.
impl Index<&str> for Metrics {
    type Output = f64;

    fn index(&self, name: &str) -> &f64 {
        match self.0.iter().find(|(own, _)| own == name) {
            Some((_, value)) => value,
            None => {
                let names: Vec<_> = self.iter().map(|(name, _)| format!("`{name}`")).collect();
                panic!("no metric is named `{name}`; there are {}", names.join(", "))
            }
        }
    }
}

/// `train/loss 0.0353  valid/loss 0.0719`.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (name, value)) in self.iter().enumerate() {
            let between = if nth == 0 { "" } else { "  " };
            write!(f, "{between}{name} {value:.4}")?;
        }
        Ok(())
    }
}

/// The name under which the trainer logs the loss itself.
pub(crate) const LOSS: &str = "loss";

/// The running mean of one metric in one phase.
#[derive(Debug)]
struct Meter {
    phase: Phase,
    name: String,
    sum: f64,
    weight: f64,
    /// The part of the sum that is not read yet, on its device.
    unread: Option<Tensor>,
}

impl Meter {
    fn add(&mut self, value: Value, weight: f64) -> Result<()> {
        if weight == 0.0 {
            return Ok(()); // the mean over no row is NaN
        }
        match value {
            Value::Number(number) => self.sum += number * weight,
            Value::Tensor(tensor) if tensor.device() == Device::Cpu => self.sum += read(&tensor)? * weight,
            Value::Tensor(tensor) => {
                if tensor.numel() != 1 {
                    return Err(not_a_number(&tensor));
                }
                let kind = if tensor.device() == Device::Mps { Kind::Float } else { Kind::Double };
                let value = tensor.detach().to_kind(kind).reshape([] as [i64; 0]) * weight;
                self.unread = Some(match self.unread.take() {
                    None => value,
                    Some(sum) => sum + value,
                });
            }
        }
        self.weight += weight;
        Ok(())
    }

    fn take_mean(&mut self) -> Result<f64> {
        if let Some(unread) = self.unread.take() {
            self.sum += read(&unread)?;
        }
        let mean = self.sum / self.weight;
        (self.sum, self.weight) = (0.0, 0.0);
        Ok(mean)
    }
}

fn read(tensor: &Tensor) -> Result<f64> {
    tensor.f_double_value(&[]).map_err(|_| not_a_number(tensor))
}

fn not_a_number(tensor: &Tensor) -> Error {
    Error::usage(format!("expected one number, found a tensor of shape {:?}", tensor.size()))
}

/// Everything that is being logged.
#[derive(Default)]
pub(crate) struct Log {
    meters: Vec<Meter>,
    /// The first value that could not be logged. `log` itself returns nothing, to stay one line.
    pub(crate) failed: Option<Error>,
    /// The means of the epochs that ended last, one phase beside the other.
    pub(crate) metrics: Metrics,
}

impl Log {
    /// Adds to the mean over the current pass.
    pub(crate) fn add(&mut self, phase: Phase, name: &str, value: Value, weight: f64) -> Result<()> {
        let known = self.meters.iter().position(|meter| meter.phase == phase && meter.name == name);
        let index = known.unwrap_or_else(|| {
            let name = name.to_owned();
            self.meters.push(Meter { phase, name, sum: 0.0, weight: 0.0, unread: None });
            self.meters.len() - 1
        });
        self.meters[index].add(value, weight)
    }

    /// Sets a metric at once.
    pub(crate) fn set(&mut self, phase: Phase, name: &str, value: Value) -> Result<()> {
        let value = match value {
            Value::Number(number) => number,
            Value::Tensor(tensor) => read(&tensor)?,
        };
        self.metrics.set(format!("{phase}/{name}"), value);
        Ok(())
    }

    /// Forgets all that an earlier entry of the trainer has left.
    pub(crate) fn clear(&mut self) {
        self.metrics.clear();
        self.failed = None;
    }

    /// Forgets what a pass that broke off has left.
    pub(crate) fn restart(&mut self, phase: Phase) {
        for meter in self.meters.iter_mut().filter(|meter| meter.phase == phase) {
            (meter.sum, meter.weight, meter.unread) = (0.0, 0.0, None);
        }
    }

    /// Ends a pass over the data: its means become the phase's metrics.
    pub(crate) fn finish(&mut self, phase: Phase) -> Result<()> {
        for meter in self.meters.iter_mut().filter(|meter| meter.phase == phase && meter.weight > 0.0) {
            let mean = meter.take_mean()?;
            self.metrics.set(format!("{phase}/{}", meter.name), mean);
        }
        Ok(())
    }
}
