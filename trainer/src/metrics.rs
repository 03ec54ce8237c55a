//! What hooks and the loop log, reduced to one number for each pass over data.
//!
//! On the CPU a tensor is read when it is logged. On a device that works by itself, reading would
//! make the program wait for it, so the sum is kept there until the end of the pass.

use std::cell::Cell;
use std::fmt;
use std::ops::Index;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::history::History;
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

/// How the values that are logged under one name over a pass become one number.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum Reduce {
    /// Their mean, weighted by the [weights](crate::Task::weight) of the batches.
    #[default]
    Mean,
    /// The last of them.
    Last,
    /// Their sum.
    Sum,
    /// The smallest; NaN if one of them is.
    Min,
    /// The largest; NaN if one of them is.
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

/// One number for each name, `phase/name`: `train/loss`, `valid/accuracy`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
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

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn set(&mut self, name: String, value: f64) {
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

/// The running reduction of one metric in one phase.
#[derive(Debug)]
struct Meter {
    phase: Phase,
    name: String,
    reduce: Reduce,
    /// What is known of it; of a mean the weighted sum.
    known: Option<f64>,
    /// The rest, which is not read yet, on its device.
    unread: Option<Tensor>,
    /// Of a mean: the weights so far.
    weight: f64,
    /// What was logged last; none if nothing was in this pass.
    last: Option<Value>,
}

impl Meter {
    fn add(&mut self, value: Value, weight: f64) {
        if self.reduce == Reduce::Mean {
            if weight == 0.0 {
                return; // the mean over no row is NaN
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

    fn restart(&mut self) {
        (self.known, self.unread, self.weight, self.last) = (None, None, 0.0, None);
    }
}

/// Everything that is being logged.
#[derive(Default)]
pub(crate) struct Log {
    meters: Vec<Meter>,
    /// The first value that could not be logged. `log` itself returns nothing, to stay one line.
    pub(crate) failed: Option<Error>,
    /// What the passes of the current epoch, or of the current entry, gave, one phase beside the other.
    pub(crate) metrics: Metrics,
    /// What is new since the last row of the history.
    row: Metrics,
    pub(crate) history: History,
    /// How many tensors were read.
    reads: Cell<u64>,
    /// Tensors on the CPU are left unread too: for a test, where there is no other device.
    pub(crate) leaves_unread: bool,
}

impl Log {
    /// Adds to the reduction over the current pass.
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
                "its {} was logged before, and now its {reduce}",
                meter.reduce
            )));
        }
        meter.add(value, weight);
        Ok(())
    }

    /// A number, or a tensor that can become one later without more ado.
    fn settle(&self, value: Value) -> Result<Value> {
        let tensor = match value {
            Value::Tensor(tensor) => tensor,
            number => return Ok(number),
        };
        if tensor.device() == Device::Cpu && !self.leaves_unread {
            return Ok(Value::Number(self.read(&tensor)?));
        }
        if tensor.numel() != 1 {
            return Err(not_a_number(&tensor));
        }
        let kind = if tensor.device() == Device::Mps { Kind::Float } else { Kind::Double };
        // A copy: the caller may go on computing with its own in place.
        Ok(Value::Tensor(tensor.detach().to_dtype(kind, false, true).reshape([] as [i64; 0])))
    }

    /// The one place where a value is waited for.
    fn read(&self, tensor: &Tensor) -> Result<f64> {
        self.reads.set(self.reads.get() + 1);
        tensor.f_double_value(&[]).map_err(|_| not_a_number(tensor))
    }

    /// How many tensors were read so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Sets a metric at once.
    pub(crate) fn set(&mut self, phase: Phase, name: &str, value: Value) -> Result<()> {
        let value = match value {
            Value::Number(number) => number,
            Value::Tensor(tensor) => self.read(&tensor)?,
        };
        self.put(phase, name, value);
        Ok(())
    }

    fn put(&mut self, phase: Phase, name: &str, value: f64) {
        let name = format!("{phase}/{name}");
        if phase != Phase::Sanity {
            self.row.set(name.clone(), value);
        }
        self.metrics.set(name, value);
    }

    /// What was logged last in the pass that is running.
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

    /// Forgets all that an earlier entry of the trainer has left.
    pub(crate) fn clear(&mut self) {
        self.metrics.clear();
        self.row.clear();
        self.history = History::default();
        self.failed = None;
    }

    /// Forgets what a pass that broke off has left.
    pub(crate) fn restart(&mut self, phase: Phase) {
        self.meters.iter_mut().filter(|meter| meter.phase == phase).for_each(Meter::restart);
    }

    /// Ends a pass over the data: what was logged in it becomes the phase's metrics.
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

    /// Makes what is new a row of the history.
    pub(crate) fn record(&mut self, step: Counters) {
        if !self.row.is_empty() {
            self.history.record(step, &self.row);
            self.row.clear();
        }
    }
}

/// A meter, in a checkpoint.
#[derive(Debug, Deserialize, Serialize)]
struct MeterState {
    phase: Phase,
    name: String,
    reduce: Reduce,
    known: Option<Float>,
    weight: Float,
    last: Option<Float>,
}

/// What is logged, in a checkpoint. Tensors that are not read yet are saved beside it, and so is the history.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct LogState {
    meters: Vec<MeterState>,
    metrics: Vec<(String, Float)>,
    row: Vec<(String, Float)>,
}

impl LogState {
    /// Whether a run can have written it.
    pub(crate) fn is_sound(&self) -> bool {
        self.meters.iter().all(|meter| meter.weight.0 >= 0.0 && meter.weight.0.is_finite())
    }
}

impl Log {
    /// The state for a checkpoint: what is known, and by name the tensors that are not read yet.
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

    /// Restores the state of a checkpoint.
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
            Metrics(values.iter().map(|(name, value)| (name.clone(), value.0)).collect())
        };
        self.meters = state.meters.iter().map(meter).collect();
        (self.metrics, self.row) = (metrics(&state.metrics), metrics(&state.row));
        self.history = history;
    }
}

fn not_a_number(tensor: &Tensor) -> Error {
    Error::usage(format!("expected one number, found a tensor of shape {:?}", tensor.size()))
}
