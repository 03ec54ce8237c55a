//! [`Meter`]: the running reductions of the values logged under one name.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::libtorch;
use crate::log::history::ByName;
use crate::phase::Phase;
use crate::values::float::Float;

/// A value to log: a number or a scalar tensor.
#[derive(Debug)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A tensor with one element.
    Tensor(Tensor),
}

/// A value that can be logged: a number, or a tensor with one element.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be logged as a metric",
    label = "not a number or a tensor",
    note = "log a number or a tensor with one element; a `bool` is logged as `f64::from(flag)`",
    note = "log text with `cx.log_text(name, text)`"
)]
pub trait IntoValue {
    /// Converts the value.
    fn into_value(self) -> Value;
}

#[diagnostic::do_not_recommend]
impl<T: Into<Value>> IntoValue for T {
    fn into_value(self) -> Value {
        self.into()
    }
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

/// Determines how all values logged under one name in a pass are reduced to one number. How a loss
/// is reduced over the elements of one batch is tch's `Reduction`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduce {
    /// The mean, weighted by the [weights](crate::Task::weight) of the batches or by those passed
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

impl Reduce {
    /// Combines the result so far with the next number. Returns `next` if there is no result yet.
    pub(super) fn join(self, before: Option<f64>, next: f64) -> f64 {
        let Some(before) = before else { return next };
        match self {
            Reduce::Mean | Reduce::Sum => before + next,
            Reduce::Last => next,
            Reduce::Min if next < before || next.is_nan() => next,
            Reduce::Max if next > before || next.is_nan() => next,
            Reduce::Min | Reduce::Max => before,
        }
    }

    /// Combines the results of two ranks. For [`Last`](Reduce::Last), prefers the first rank's
    /// value.
    pub(super) fn join_ranks(self, first: Option<f64>, other: Option<f64>) -> Option<f64> {
        match (first, other) {
            (Some(_), Some(other)) if self != Reduce::Last => Some(self.join(first, other)),
            (first, other) => first.or(other),
        }
    }
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

/// A running reduction of the values logged under one name.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// The reduction of the numbers so far; for a mean, their weighted sum.
    pub(super) known: Option<f64>,
    /// The reduction of the tensors that have not been read yet, on their device.
    pub(super) unread: Option<Tensor>,
    /// For a mean, the sum of the weights so far.
    pub(super) weight: f64,
}

impl Sum {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_none() && self.unread.is_none()
    }

    /// Adds the term of a batch with this weight. For a mean, the caller has already multiplied the
    /// term by the weight.
    fn add(&mut self, reduce: Reduce, term: &Value, weight: f64) {
        if reduce == Reduce::Mean {
            self.weight += weight;
        }
        match term {
            Value::Number(number) => {
                self.known = Some(reduce.join(self.known, *number));
                if reduce == Reduce::Last {
                    self.unread = None;
                }
            }
            Value::Tensor(tensor) => {
                self.unread = Some(match self.unread.take() {
                    None => tensor.shallow_clone(),
                    Some(before) => match reduce {
                        Reduce::Mean | Reduce::Sum => before + tensor,
                        Reduce::Last => tensor.shallow_clone(),
                        Reduce::Min => before.minimum(tensor),
                        Reduce::Max => before.maximum(tensor),
                    },
                });
                if reduce == Reduce::Last {
                    self.known = None;
                }
            }
        }
    }

    /// Adds `value`, which was read from the tensor in `unread`, and drops that tensor.
    pub(super) fn read(&mut self, reduce: Reduce, value: f64) {
        self.unread = None;
        self.known = Some(reduce.join(self.known, value));
    }

    /// Returns the result of the known values, or `None` if there are none.
    pub(super) fn result(&self, reduce: Reduce) -> Option<f64> {
        let value = self.known?;
        Some(if reduce == Reduce::Mean { value / self.weight } else { value })
    }
}

/// The running reductions of one metric in one phase.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) phase: Phase,
    pub(super) name: String,
    pub(super) reduce: Reduce,
    /// The reduction over the current pass.
    pub(super) pass: Sum,
    /// The reduction since the last record. It is separate from `pass`, so that the record interval
    /// does not affect the last bits of a pass's metric.
    pub(super) window: Sum,
    /// The last logged value; `None` if nothing was logged in this pass.
    pub(super) last: Option<Value>,
    /// Whether the metric was last logged by a hook that runs on rank 0 only.
    pub(super) is_main_only: bool,
    pub(super) by: LoggedBy,
}

/// Which hook has logged a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoggedBy {
    /// None that is known: after a resume, until a hook logs the metric again.
    Unknown,
    /// The hook with this index, most recently.
    Hook(usize),
    /// Different hooks, which was reported, and most recently the one with this index.
    Shared(usize),
}

impl LoggedBy {
    pub(super) fn hook(self) -> Option<usize> {
        match self {
            LoggedBy::Unknown => None,
            LoggedBy::Hook(hook) | LoggedBy::Shared(hook) => Some(hook),
        }
    }

    /// Notes that a hook has logged the metric, or code whose hook is not known. Returns the hook
    /// that logged it before, if it was another one, and this was not reported.
    pub(super) fn replace(&mut self, hook: Option<usize>) -> Option<usize> {
        let (next, other) = match (*self, hook) {
            (LoggedBy::Hook(other), Some(hook)) => (LoggedBy::Hook(hook), Some(other)),
            (LoggedBy::Shared(_), Some(hook)) => (LoggedBy::Shared(hook), None),
            (shared @ LoggedBy::Shared(_), None) => (shared, None),
            (_, Some(hook)) => (LoggedBy::Hook(hook), None),
            (_, None) => (LoggedBy::Unknown, None),
        };
        *self = next;
        other.filter(|other| hook != Some(*other))
    }

    /// Notes that it was reported that different hooks log the metric.
    pub(super) fn shared(self) -> Self {
        self.hook().map_or(self, LoggedBy::Shared)
    }
}

impl Meter {
    pub(super) fn new(phase: Phase, name: String, reduce: Reduce) -> Self {
        Meter {
            phase,
            name,
            reduce,
            pass: Sum::default(),
            window: Sum::default(),
            last: None,
            is_main_only: false,
            by: LoggedBy::Unknown,
        }
    }

    /// Adds a value with this weight to the pass and, if `has_window` is set, to the window. A mean
    /// ignores a value of weight 0.
    pub(super) fn add(&mut self, value: Value, weight: f64, has_window: bool) {
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
    pub(super) fn restart(&mut self) {
        self.pass = Sum::default();
        self.last = None;
    }

    /// Ends a pass, and returns its result.
    pub(super) fn close(&mut self, reader: &Reader) -> Result<Option<f64>> {
        reader.read_sum(&mut self.pass, self.reduce)?;
        let result = self.pass.result(self.reduce);
        if result.is_some() {
            self.restart();
        }
        Ok(result)
    }

    /// Ends the window, and returns its result, or `None` if nothing was logged in the window.
    pub(super) fn close_window(&mut self) -> Option<Scalar> {
        let sum = std::mem::take(&mut self.window);
        if sum.unread.is_some() {
            return Some(Scalar::Late(self.reduce, sum));
        }
        sum.result(self.reduce).map(Scalar::Number)
    }

    /// The name with its phase.
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.phase, self.name)
    }
}

/// The meters of a run, in the order in which they were created.
#[derive(Debug, Default)]
pub(super) struct Meters {
    all: Vec<Meter>,
    /// For each phase, the index of each meter by name.
    by_name: [ByName<usize>; Phase::ALL.len()],
    /// The likely index of the meter used next: the index that follows the last meter used. It is
    /// usually right, because most hooks log the same names in the same order.
    next: usize,
}

impl Meters {
    /// Returns the meter of a name, creating the meter if it does not exist.
    pub(super) fn of(&mut self, phase: Phase, name: &str, reduce: Reduce) -> &mut Meter {
        let is_it = |meter: &Meter| meter.phase == phase && meter.name == name;
        let index = if self.all.get(self.next).is_some_and(is_it) {
            self.next
        } else {
            let known = self.by_name[phase as usize].get(name).copied();
            known.unwrap_or_else(|| self.push(Meter::new(phase, name.to_owned(), reduce)))
        };
        self.next = index + 1;
        &mut self.all[index]
    }

    fn push(&mut self, meter: Meter) -> usize {
        let index = self.all.len();
        self.by_name[meter.phase as usize].insert(meter.name.clone(), index);
        self.all.push(meter);
        index
    }

    pub(super) fn get_mut(&mut self, phase: Phase, name: &str) -> Option<&mut Meter> {
        let index = *self.by_name[phase as usize].get(name)?;
        Some(&mut self.all[index])
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Meter> {
        self.all.iter()
    }

    pub(super) fn of_phase(&mut self, phase: Phase) -> impl Iterator<Item = &mut Meter> {
        self.all.iter_mut().filter(move |meter| meter.phase == phase)
    }
}

impl FromIterator<Meter> for Meters {
    fn from_iter<I: IntoIterator<Item = Meter>>(meters: I) -> Self {
        let mut all = Meters::default();
        for meter in meters {
            all.push(meter);
        }
        all
    }
}

/// A number for a record, which may still be on a device.
#[derive(Debug)]
pub(super) enum Scalar {
    Number(f64),
    /// A reduction that includes a tensor whose value has not been read yet.
    Late(Reduce, Sum),
}

/// Reads logged tensors, and counts the reads. Nothing else in the log synchronizes with a device.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The number of tensors read.
    pub(super) reads: Cell<u64>,
    /// Whether tensors on the CPU are also left unread, for tests without another device.
    pub(super) leaves_unread: bool,
}

impl Reader {
    /// Reads a tensor on the CPU immediately. Converts any other tensor to a scalar on its device,
    /// to be reduced there and read later.
    pub(super) fn settle(&self, value: Value) -> Result<Value> {
        let tensor = match value {
            Value::Tensor(tensor) => tensor,
            number => return Ok(number),
        };
        libtorch::check_readable(&tensor, "the tensor")?;
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

    /// Returns the value of a tensor with one element, and counts the read. Waits for the tensor's
    /// device.
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

    /// Returns a value as a number.
    pub(super) fn number(&self, value: &Value) -> Result<f64> {
        match value {
            Value::Number(number) => Ok(*number),
            Value::Tensor(tensor) => self.read(tensor),
        }
    }

    /// If part of a reduction is still on a device, copies its value to the CPU.
    pub(super) fn read_sum(&self, sum: &mut Sum, reduce: Reduce) -> Result<()> {
        if let Some(tensor) = sum.unread.take() {
            sum.read(reduce, self.read(&tensor)?);
        }
        Ok(())
    }
}

/// Returns the error for a tensor that does not have exactly one element.
fn not_a_scalar(tensor: &Tensor) -> Error {
    Error::usage(format!(
        "expected a scalar, found a tensor of shape {:?}: reduce it, for example with `.mean(Kind::Float)`",
        tensor.size()
    ))
}

/// A [`Sum`] in a checkpoint, without its unread tensor, which is saved separately by name.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct SumState {
    known: Option<Float>,
    weight: Float,
}

impl SumState {
    fn of(sum: &Sum) -> Self {
        SumState { known: sum.known.map(Float), weight: Float(sum.weight) }
    }

    fn is_sound(self) -> bool {
        self.weight.0 >= 0.0 && self.weight.0.is_finite()
    }

    fn sum(self, unread: Option<Tensor>) -> Sum {
        Sum { known: self.known.map(|known| known.0), unread, weight: self.weight.0 }
    }

    /// Adds the value of `unread`, the unread tensor that the same checkpoint saved for this
    /// reduction.
    fn read(&mut self, reduce: Reduce, unread: Option<&Tensor>) -> Result<()> {
        if let Some(tensor) = unread {
            let value = tensor.f_double_value(&[])?;
            self.known = Some(Float(reduce.join(self.known.map(|known| known.0), value)));
        }
        Ok(())
    }

    /// Adds the reduction of another rank.
    fn join(&mut self, other: SumState, reduce: Reduce) {
        let known = reduce.join_ranks(self.known.map(|known| known.0), other.known.map(|known| known.0));
        self.known = known.map(Float);
        self.weight.0 += other.weight.0;
    }
}

/// A [`Meter`] in a checkpoint.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct MeterState {
    phase: Phase,
    name: String,
    reduce: Reduce,
    pass: SumState,
    window: SumState,
    last: Option<Float>,
    is_main_only: bool,
}

impl MeterState {
    /// Empties the running reductions: the metric counts as logged, by another rank.
    pub(super) fn empty(&mut self) {
        let none = SumState::of(&Sum::default());
        (self.pass, self.window) = (none, none);
    }

    /// Returns the state of a meter. Adds its unread tensors, by name, to `tensors`.
    pub(super) fn of(meter: &Meter, reader: &Reader, tensors: &mut Vec<(String, Tensor)>) -> Result<Self> {
        let last = meter.last.as_ref().map(|value| reader.number(value)).transpose()?;
        let state = MeterState {
            phase: meter.phase,
            name: meter.name.clone(),
            reduce: meter.reduce,
            pass: SumState::of(&meter.pass),
            window: SumState::of(&meter.window),
            last: last.map(Float),
            is_main_only: meter.is_main_only,
        };
        if let Some(tensor) = &meter.pass.unread {
            tensors.push((state.key(PASS), tensor.shallow_clone()));
        }
        if let Some(tensor) = &meter.window.unread {
            // A copy, because it may share its storage with the tensor of `pass`, and a file stores
            // each storage only once.
            tensors.push((state.key(WINDOW), tensor.copy()));
        }
        Ok(state)
    }

    /// Whether all weights are finite and at least 0.
    pub(super) fn is_sound(&self) -> bool {
        self.pass.is_sound() && self.window.is_sound()
    }

    /// Rebuilds the meter from this state and its unread tensors.
    pub(super) fn meter(&self, unread: impl Fn(&str) -> Option<Tensor>) -> Meter {
        Meter {
            phase: self.phase,
            name: self.name.clone(),
            reduce: self.reduce,
            pass: self.pass.sum(unread(&self.key(PASS))),
            window: self.window.sum(unread(&self.key(WINDOW))),
            last: self.last.map(|last| Value::Number(last.0)),
            is_main_only: self.is_main_only,
            by: LoggedBy::Unknown,
        }
    }

    /// Adds the values of the unread tensors from the same checkpoint to the running reductions.
    ///
    /// # Errors
    ///
    /// Returns an error if one of the tensors is not a scalar.
    pub(super) fn read(&mut self, unread: &BTreeMap<String, Tensor>) -> Result<()> {
        let reduce = self.reduce;
        self.pass.read(reduce, unread.get(&self.key(PASS)))?;
        self.window.read(reduce, unread.get(&self.key(WINDOW)))
    }

    /// Adds the running reductions of another rank.
    pub(super) fn join(&mut self, other: &MeterState) {
        self.pass.join(other.pass, self.reduce);
        self.window.join(other.window, self.reduce);
        self.last = self.last.or(other.last);
    }

    /// Returns what identifies the meter.
    pub(super) fn key_of_meter(&self) -> (usize, String) {
        (self.phase as usize, self.name.clone())
    }

    /// Returns the name under which a checkpoint stores one of this meter's unread tensors.
    fn key(&self, of: &str) -> String {
        format!("{of}/{}/{}", self.phase, self.name)
    }
}

const PASS: &str = "pass";
const WINDOW: &str = "window";
