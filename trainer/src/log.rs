//! Metric logging, and the reduction of each metric to one number per pass over data.
//!
//! On the CPU, a tensor is read when it is logged. On another device, reading would synchronize
//! with the device, so the reduction is computed there and read at the end of the pass.

use std::cell::Cell;
use std::fmt;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::history::{History, Metrics};
use crate::phase::Phase;

/// A value to log: a number or a scalar tensor.
#[derive(Debug)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A tensor with one element.
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

/// The reduction of all values logged under one name in a pass to one number.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum Reduce {
    /// The mean, weighted by the [weights](crate::Task::weight) of the batches.
    #[default]
    Mean,
    /// The last value.
    Last,
    /// The sum.
    Sum,
    /// The smallest value; NaN if any value is NaN.
    Min,
    /// The largest value; NaN if any value is NaN.
    Max,
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduce::Mean => "mean",
            Reduce::Last => "last",
            Reduce::Sum => "sum",
            Reduce::Min => "min",
            Reduce::Max => "max",
        })
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

/// The name under which the trainer logs the loss itself.
pub(crate) const LOSS: &str = "loss";

/// The running reduction of one metric in one phase.
#[derive(Debug)]
struct Meter {
    phase: Phase,
    name: String,
    reduce: Reduce,
    /// The reduction of the numbers so far; for a mean, their weighted sum.
    known: Option<f64>,
    /// The running reduction of the tensors that are not read yet, on their device.
    unread: Option<Tensor>,
    /// For a mean, the sum of the weights so far.
    weight: f64,
    /// The value logged last; `None` if nothing was logged in this pass.
    last: Option<Value>,
}

impl Meter {
    /// Adds a value of a batch with this weight.
    fn add(&mut self, value: Value, weight: f64) {
        if self.reduce == Reduce::Mean {
            if weight == 0.0 {
                return; // a mean over no elements, which is NaN
            }
            self.weight += weight;
        }
        let factor = if self.reduce == Reduce::Mean { weight } else { 1.0 };
        match &value {
            Value::Number(number) => {
                self.known = Some(self.join(self.known, number * factor));
                if self.reduce == Reduce::Last {
                    self.unread = None;
                }
            }
            Value::Tensor(tensor) => {
                let term = if factor == 1.0 { tensor.shallow_clone() } else { tensor * factor };
                self.unread = Some(match self.unread.take() {
                    None => term,
                    Some(before) => match self.reduce {
                        Reduce::Mean | Reduce::Sum => before + term,
                        Reduce::Last => term,
                        Reduce::Min => before.minimum(&term),
                        Reduce::Max => before.maximum(&term),
                    },
                });
                if self.reduce == Reduce::Last {
                    self.known = None;
                }
            }
        }
        self.last = Some(value);
    }

    /// Reduces two numbers to one.
    fn join(&self, before: Option<f64>, next: f64) -> f64 {
        let Some(before) = before else { return next };
        match self.reduce {
            Reduce::Mean | Reduce::Sum => before + next,
            Reduce::Last => next,
            Reduce::Min if next < before || next.is_nan() => next,
            Reduce::Max if next > before || next.is_nan() => next,
            Reduce::Min | Reduce::Max => before,
        }
    }

    /// Discards everything logged in the current pass.
    fn restart(&mut self) {
        (self.known, self.unread, self.weight, self.last) = (None, None, 0.0, None);
    }
}

/// All metrics of a run.
#[derive(Default)]
pub(crate) struct Log {
    meters: Vec<Meter>,
    /// The error of the first value that could not be logged. `log` returns nothing, so that calls
    /// need no `?`.
    pub(crate) failed: Option<Error>,
    /// The reduced metrics of all phases in the current epoch, or of the current entry point.
    pub(crate) metrics: Metrics,
    /// The metrics that are newer than the last row of the history.
    row: Metrics,
    pub(crate) history: History,
    /// The number of tensors read.
    reads: Cell<u64>,
    /// Whether tensors on the CPU are left unread too, for tests without another device.
    pub(crate) leaves_unread: bool,
}

impl Log {
    /// Adds a value to its reduction over the current pass.
    pub(crate) fn add(
        &mut self,
        phase: Phase,
        reduce: Reduce,
        name: &str,
        value: Value,
        weight: f64,
    ) -> Result<()> {
        let value = self.settle(value)?;
        let known = self.meters.iter().position(|meter| meter.phase == phase && meter.name == name);
        let index = known.unwrap_or_else(|| {
            let name = name.to_owned();
            self.meters.push(Meter {
                phase,
                name,
                reduce,
                known: None,
                unread: None,
                weight: 0.0,
                last: None,
            });
            self.meters.len() - 1
        });
        let meter = &mut self.meters[index];
        if meter.reduce != reduce {
            return Err(Error::usage(format!(
                "it was already logged with the reduction {}, now with {reduce}",
                meter.reduce
            )));
        }
        meter.add(value, weight);
        Ok(())
    }

    /// Reads a tensor on the CPU. Otherwise converts it to a scalar on its device that can be
    /// reduced and read later.
    fn settle(&self, value: Value) -> Result<Value> {
        let tensor = match value {
            Value::Tensor(tensor) => tensor,
            number => return Ok(number),
        };
        if tensor.device() == Device::Cpu && !self.leaves_unread {
            return Ok(Value::Number(self.read(&tensor)?));
        }
        if tensor.numel() != 1 {
            return Err(not_a_scalar(&tensor));
        }
        let kind = if tensor.device() == Device::Mps { Kind::Float } else { Kind::Double };
        // A copy, because the caller may change its tensor in place.
        Ok(Value::Tensor(tensor.detach().to_dtype(kind, false, true).reshape([] as [i64; 0])))
    }

    /// Reads a tensor. This is the only function that synchronizes with a device.
    fn read(&self, tensor: &Tensor) -> Result<f64> {
        self.reads.set(self.reads.get() + 1);
        tensor.f_double_value(&[]).map_err(|_| not_a_scalar(tensor))
    }

    /// Returns the number of tensors read so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Sets a metric directly, without a reduction over a pass.
    pub(crate) fn set(&mut self, phase: Phase, name: &str, value: Value) -> Result<()> {
        let value = match value {
            Value::Number(number) => number,
            Value::Tensor(tensor) => self.read(&tensor)?,
        };
        self.put(phase, name, value);
        Ok(())
    }

    /// Sets a reduced metric.
    fn put(&mut self, phase: Phase, name: &str, value: f64) {
        let name = format!("{phase}/{name}");
        if phase != Phase::Sanity {
            self.row.set(name.clone(), value);
        }
        self.metrics.set(name, value);
    }

    /// Returns the most recently logged value of each metric in the current pass.
    pub(crate) fn latest(&self, phase: Phase) -> Result<Metrics> {
        let mut latest = Metrics::default();
        for meter in self.meters.iter().filter(|meter| meter.phase == phase) {
            let value = match &meter.last {
                None => continue,
                Some(Value::Number(number)) => *number,
                Some(Value::Tensor(tensor)) => self.read(tensor)?,
            };
            latest.set(format!("{phase}/{}", meter.name), value);
        }
        Ok(latest)
    }

    /// Discards the results of an earlier entry point.
    pub(crate) fn clear(&mut self) {
        self.metrics.clear();
        self.row.clear();
        self.history = History::default();
        self.failed = None;
    }

    /// Discards what an interrupted pass logged.
    pub(crate) fn restart(&mut self, phase: Phase) {
        self.meters.iter_mut().filter(|meter| meter.phase == phase).for_each(Meter::restart);
    }

    /// Ends a pass over the data: reduces what it logged to the metrics of the phase.
    pub(crate) fn finish(&mut self, phase: Phase) -> Result<()> {
        for index in 0..self.meters.len() {
            if self.meters[index].phase != phase || self.meters[index].last.is_none() {
                continue;
            }
            let unread = self.meters[index].unread.take();
            let rest = unread.map(|tensor| self.read(&tensor)).transpose()?;
            let meter = &mut self.meters[index];
            let Some(mut value) = rest.map(|rest| meter.join(meter.known, rest)).or(meter.known) else {
                continue;
            };
            if meter.reduce == Reduce::Mean {
                value /= meter.weight;
            }
            meter.restart();
            let name = std::mem::take(&mut meter.name);
            self.put(phase, &name, value);
            self.meters[index].name = name;
        }
        Ok(())
    }

    /// Adds the new metrics to the history as a row.
    pub(crate) fn record(&mut self, step: Counters) {
        if !self.row.is_empty() {
            self.history.record(step, &self.row);
            self.row.clear();
        }
    }
}

/// The state of a [`Meter`] in a checkpoint.
#[derive(Debug, Deserialize, Serialize)]
struct MeterState {
    phase: Phase,
    name: String,
    reduce: Reduce,
    known: Option<Float>,
    weight: Float,
    last: Option<Float>,
}

/// The state of a [`Log`] in a checkpoint. Unread tensors and the history are saved separately.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct LogState {
    meters: Vec<MeterState>,
    metrics: Vec<(String, Float)>,
    row: Vec<(String, Float)>,
}

impl LogState {
    /// Returns whether the values are possible in a run.
    pub(crate) fn is_sound(&self) -> bool {
        self.meters.iter().all(|meter| meter.weight.0 >= 0.0 && meter.weight.0.is_finite())
    }
}

impl Log {
    /// Returns the state for a checkpoint, and the unread tensors by name.
    pub(crate) fn state(&self) -> Result<(LogState, Vec<(String, Tensor)>)> {
        let (mut meters, mut unread) = (Vec::new(), Vec::new());
        for meter in &self.meters {
            let Meter { phase, ref name, reduce, known, weight, .. } = *meter;
            let last = match &meter.last {
                None => None,
                Some(Value::Number(number)) => Some(*number),
                Some(Value::Tensor(tensor)) => Some(self.read(tensor)?),
            };
            unread.extend(meter.unread.as_ref().map(|it| (format!("{phase}/{name}"), it.shallow_clone())));
            let (known, weight, last) = (known.map(Float), Float(weight), last.map(Float));
            meters.push(MeterState { phase, name: name.clone(), reduce, known, weight, last });
        }
        let floats =
            |metrics: &Metrics| metrics.iter().map(|(name, value)| (name.to_owned(), Float(value))).collect();
        let state = LogState { meters, metrics: floats(&self.metrics), row: floats(&self.row) };
        Ok((state, unread))
    }

    /// Restores the state from a checkpoint.
    pub(crate) fn restore(
        &mut self,
        state: &LogState,
        history: History,
        unread: impl Fn(&str) -> Option<Tensor>,
    ) {
        let meter = |meter: &MeterState| {
            let MeterState { phase, ref name, reduce, known, weight, last } = *meter;
            let unread = unread(&format!("{phase}/{name}"));
            let (known, last) = (known.map(|it| it.0), last.map(|it| Value::Number(it.0)));
            Meter { phase, name: name.clone(), reduce, known, unread, weight: weight.0, last }
        };
        let metrics = |values: &[(String, Float)]| {
            values.iter().map(|(name, value)| (name.clone(), value.0)).collect::<Metrics>()
        };
        self.meters = state.meters.iter().map(meter).collect();
        (self.metrics, self.row) = (metrics(&state.metrics), metrics(&state.row));
        self.history = history;
    }
}

/// Returns the error for a tensor that does not have exactly one element.
fn not_a_scalar(tensor: &Tensor) -> Error {
    Error::usage(format!("expected a scalar, found a tensor of shape {:?}", tensor.size()))
}
