//! Metric logging, and the reduction of each metric to one number per pass over data.
//!
//! A tensor on the CPU is read when it is logged. Reading a tensor on another device would
//! synchronize with the device, so the reduction is computed on the device, and read at the end of
//! the pass or for a record. A checkpoint saves the unread reduction as a tensor.

mod goal;
pub(crate) mod history;
mod merge;
pub(crate) mod record;
mod state;
mod sum;
pub(crate) mod summary;

use std::cell::Cell;
use std::fmt;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result, shortened};
use crate::log::history::{History, Metrics};
use crate::moments::counters::Counters;
use crate::phase::{Phase, PhaseSet};
pub use goal::Goal;
pub(crate) use merge::Joined;
pub(crate) use state::LogState;
pub(crate) use sum::{LateScalar, Sum, Window};

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
    /// The mean, weighted by the [weights](crate::Task::weight) of the batches, or by those passed
    /// to [`Cx::log_weighted`](crate::Cx::log_weighted).
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

/// The running reductions of one metric in one phase.
#[derive(Debug)]
struct Meter {
    phase: Phase,
    name: String,
    reduce: Reduce,
    /// The reduction over the current pass.
    pass: Sum,
    /// The reduction since the last record. It is separate from `pass`, so that the interval of
    /// records does not change the last bits of a pass's metric.
    window: Sum,
    /// The value logged last; `None` if nothing was logged in this pass.
    last: Option<Value>,
    /// Whether it was last logged by a hook that runs on rank 0 only.
    is_main_only: bool,
}

impl Meter {
    /// Adds a value with this weight to the pass and, if `has_window` is set, to the window. A mean
    /// ignores a value of weight 0.
    fn add(&mut self, value: Value, weight: f64, has_window: bool) {
        if self.reduce == Reduce::Mean && weight == 0.0 {
            return; // a mean over no elements, which is NaN
        }
        let factor = if self.reduce == Reduce::Mean { weight } else { 1.0 };
        let term = match &value {
            Value::Number(number) => Value::Number(number * factor),
            Value::Tensor(tensor) if factor == 1.0 => Value::Tensor(tensor.shallow_clone()),
            Value::Tensor(tensor) => Value::Tensor(tensor * factor),
        };
        self.pass.add(self.reduce, &term, weight);
        if has_window {
            self.window.add(self.reduce, &term, weight);
        }
        self.last = Some(value);
    }

    /// Discards everything logged in the current pass, but keeps the window.
    fn restart(&mut self) {
        (self.pass, self.last) = (Sum::default(), None);
    }
}

/// All metrics of a run.
#[derive(Default)]
pub(crate) struct Log {
    meters: Vec<Meter>,
    /// The index after the meter that was used last. Most hooks log the same names in the same
    /// order, so this is usually the index of the next one.
    next: usize,
    /// The error of the first value that could not be logged. `log` returns nothing, so that calls
    /// need no `?`.
    pub(crate) failed: Option<Error>,
    /// The names of the metrics that hooks are going to log in validation.
    pub(crate) expected: Vec<String>,
    /// The reduced metrics of all phases in the current epoch, or of the current entry point.
    pub(crate) metrics: Metrics,
    /// The metrics that are newer than the last row of the history.
    row: Metrics,
    pub(crate) history: History,
    /// The number of tensors read.
    reads: Cell<u64>,
    /// Whether tensors on the CPU are left unread too, for tests without another device.
    pub(crate) leaves_unread: bool,
    /// The phases in which a hook at `after_record` runs, on any rank.
    watched: PhaseSet,
    /// Whether records are created within passes.
    has_windows: bool,
    /// Whether the hook that is logging runs on rank 0 only.
    pub(crate) is_main_only: bool,
    /// The metrics that the next record of their phase will contain: the metrics of passes, and the
    /// values logged between batches.
    rows: Vec<(Phase, String, f64)>,
}

impl Log {
    /// Creates a log whose values are recorded in these phases; with `has_windows`, within passes
    /// too.
    pub(crate) fn recorded(watched: PhaseSet, has_windows: bool) -> Self {
        Log { watched, has_windows, ..Log::default() }
    }

    /// Records the error of a value that cannot be logged, unless one is already recorded. The
    /// message shortens `name`.
    #[cold]
    pub(crate) fn cannot_log(&mut self, name: &str, error: &Error) {
        let name = shortened(name);
        let error = Error::usage(format!("cannot log `{name}`: {error}"));
        self.failed.get_or_insert(error);
    }

    /// Adds a value to its reduction over the current pass and, in a training pass with records, to
    /// its reduction since the last record.
    pub(crate) fn add(
        &mut self,
        phase: Phase,
        reduce: Reduce,
        name: &str,
        value: Value,
        weight: f64,
    ) -> Result<()> {
        let value = self.settle(value)?;
        let index = self.index_of(phase, name, reduce);
        let has_window = self.has_windows && phase == Phase::Train && self.watched.contains(phase);
        let meter = &mut self.meters[index];
        meter.is_main_only = self.is_main_only;
        if meter.reduce != reduce {
            return Err(Error::usage(format!(
                "it was already logged with the reduction {}, and is now logged with {reduce}: use one reduction for each name",
                meter.reduce
            )));
        }
        meter.add(value, weight, has_window);
        Ok(())
    }

    /// Returns the index of a meter, which is created if it does not exist.
    fn index_of(&mut self, phase: Phase, name: &str, reduce: Reduce) -> usize {
        let count = self.meters.len();
        let known = (self.next..count)
            .chain(0..self.next.min(count))
            .find(|&index| self.meters[index].phase == phase && self.meters[index].name == name);
        let index = known.unwrap_or_else(|| {
            let name = name.to_owned();
            self.meters.push(Meter {
                phase,
                name,
                reduce,
                pass: Sum::default(),
                window: Sum::default(),
                last: None,
                is_main_only: self.is_main_only,
            });
            self.meters.len() - 1
        });
        self.next = index + 1;
        index
    }

    /// Reads a tensor on the CPU immediately. Converts any other tensor to a scalar on its device,
    /// to be reduced there and read later.
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

    /// Reads a tensor. No other function of the log synchronizes with a device.
    fn read(&self, tensor: &Tensor) -> Result<f64> {
        self.reads.set(self.reads.get() + 1);
        tensor.f_double_value(&[]).map_err(|error| match tensor.numel() {
            1 => Error::usage(format!(
                "cannot read a tensor of dtype {:?} as a number: {}",
                tensor.kind(),
                Error::from(error)
            )),
            _ => not_a_scalar(tensor),
        })
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

    /// Sets a reduced metric, and adds it to the next record of the phase and, except in the sanity
    /// check, to the next row of the history.
    fn put(&mut self, phase: Phase, name: &str, value: f64) {
        let name = format!("{phase}/{name}");
        if self.watched.contains(phase) {
            match self.rows.iter_mut().find(|(of, own, _)| *of == phase && *own == name) {
                Some((.., own)) => *own = value,
                None => self.rows.push((phase, name.clone(), value)),
            }
        }
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
        self.expected.clear();
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
            let unread = self.meters[index].pass.unread.take();
            let rest = unread.map(|tensor| self.read(&tensor)).transpose()?;
            let meter = &mut self.meters[index];
            let Some(value) = meter.pass.result(meter.reduce, rest) else { continue };
            meter.restart();
            let name = std::mem::take(&mut meter.name);
            self.put(phase, &name, value);
            self.meters[index].name = name;
        }
        Ok(())
    }

    /// Takes the values logged since the last record, in training batches and between them, and the
    /// metrics of passes that no record contains yet.
    pub(crate) fn take_window(&mut self, phase: Phase) -> Window {
        let mut taken = Window::default();
        for meter in self.meters.iter_mut().filter(|meter| meter.phase == phase && !meter.window.is_empty()) {
            let mut window = std::mem::take(&mut meter.window);
            if let Some(tensor) = window.unread.take() {
                let index = taken.scalars.len();
                taken.late.push(LateScalar { index, reduce: meter.reduce, sum: window, tensor });
                taken.scalars.push((format!("{phase}/{}", meter.name), f64::NAN));
            } else if let Some(value) = window.result(meter.reduce, None) {
                taken.scalars.push((format!("{phase}/{}", meter.name), value));
            }
        }
        taken.scalars.extend(self.take_rows(phase));
        taken
    }

    /// Takes the metrics of the last pass, and the values logged between batches.
    pub(crate) fn take_rows(&mut self, phase: Phase) -> Vec<(String, f64)> {
        let rows = self.rows.extract_if(.., |(of, ..)| *of == phase);
        rows.map(|(_, name, value)| (name, value)).collect()
    }

    /// Adds the new metrics to the history as a row.
    pub(crate) fn record(&mut self, step: Counters) {
        if !self.row.is_empty() {
            self.history.record(step, &self.row);
            self.row.clear();
        }
    }
}

/// Returns the error for a tensor that does not have exactly one element.
fn not_a_scalar(tensor: &Tensor) -> Error {
    Error::usage(format!(
        "expected a scalar, found a tensor of shape {:?}: reduce it, for example with `.mean(Kind::Float)`",
        tensor.size()
    ))
}
