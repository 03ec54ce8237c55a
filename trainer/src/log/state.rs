//! The state of the log in checkpoints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::sum::Sum;
use super::{Log, Meter, Reduce, Value};
use crate::error::Result;
use crate::log::history::Metrics;
use crate::phase::Phase;
use crate::values::float::Float;

/// The state of a [`Meter`] in a checkpoint.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct MeterState {
    phase: Phase,
    name: String,
    reduce: Reduce,
    known: Option<Float>,
    weight: Float,
    last: Option<Float>,
    /// The reduction of the numbers since the last record, and the sum of their weights.
    window: (Option<Float>, Float),
    is_main_only: bool,
}

/// The state of a [`Log`] in a checkpoint. Unread tensors and the history are saved separately.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct LogState {
    meters: Vec<MeterState>,
    metrics: Vec<(String, Float)>,
    row: Vec<(String, Float)>,
    /// The values that the next record of their phase will contain: metrics of passes, and values
    /// logged between batches.
    rows: Vec<(Phase, String, Float)>,
}

impl LogState {
    /// Returns whether all weights are finite and at least 0.
    pub(crate) fn is_sound(&self) -> bool {
        let is_weight = |weight: Float| weight.0 >= 0.0 && weight.0.is_finite();
        self.meters.iter().all(|meter| is_weight(meter.weight) && is_weight(meter.window.1))
    }

    /// Adds the unread tensors of the same checkpoint to the running reductions.
    ///
    /// # Errors
    ///
    /// Returns an error if one of them is not a scalar.
    pub(crate) fn read(&mut self, unread: &BTreeMap<String, Tensor>) -> Result<()> {
        let number = |name: &str| unread.get(name).map(|tensor| tensor.f_double_value(&[])).transpose();
        for meter in &mut self.meters {
            let MeterState { phase, ref name, reduce, .. } = *meter;
            if let Some(value) = number(&format!("{phase}/{name}"))? {
                meter.known = Some(Float(reduce.join(meter.known.map(|it| it.0), value)));
            }
            if let Some(value) = number(&format!("window/{phase}/{name}"))? {
                meter.window.0 = Some(Float(reduce.join(meter.window.0.map(|it| it.0), value)));
            }
        }
        Ok(())
    }

    /// Adds the running reductions of another rank to these, for a run that resumes with another
    /// number of ranks.
    pub(crate) fn join(mut self, other: LogState) -> Self {
        for theirs in other.meters {
            let own = self.meters.iter_mut().find(|own| own.phase == theirs.phase && own.name == theirs.name);
            let Some(own) = own else {
                self.meters.push(theirs);
                continue;
            };
            own.known = joined(own.known, theirs.known, own.reduce);
            own.weight.0 += theirs.weight.0;
            own.window.0 = joined(own.window.0, theirs.window.0, own.reduce);
            own.window.1.0 += theirs.window.1.0;
            own.last = own.last.or(theirs.last);
        }
        self
    }

    /// Removes the running reductions, which rank 0 then has.
    pub(crate) fn without_meters(mut self) -> Self {
        self.meters.clear();
        self
    }
}

fn joined(known: Option<Float>, other: Option<Float>, reduce: Reduce) -> Option<Float> {
    match (known, other) {
        (Some(known), Some(other)) if reduce != Reduce::Last => {
            Some(Float(reduce.join(Some(known.0), other.0)))
        }
        (known, other) => known.or(other),
    }
}

impl Log {
    /// Returns the state for a checkpoint, and the unread tensors by name.
    pub(crate) fn state(&self) -> Result<(LogState, Vec<(String, Tensor)>)> {
        let (mut meters, mut unread) = (Vec::new(), Vec::new());
        for meter in &self.meters {
            let Meter { phase, ref name, reduce, ref pass, ref window, is_main_only, .. } = *meter;
            let last = match &meter.last {
                None => None,
                Some(Value::Number(number)) => Some(*number),
                Some(Value::Tensor(tensor)) => Some(self.read(tensor)?),
            };
            unread.extend(pass.unread.as_ref().map(|it| (format!("{phase}/{name}"), it.shallow_clone())));
            // A copy, because it may be the tensor of `pass`, and a file stores each storage once.
            unread.extend(window.unread.as_ref().map(|it| (format!("window/{phase}/{name}"), it.copy())));
            let (known, weight, last) = (pass.known.map(Float), Float(pass.weight), last.map(Float));
            let window = (window.known.map(Float), Float(window.weight));
            let name = name.clone();
            meters.push(MeterState { phase, name, reduce, known, weight, last, window, is_main_only });
        }
        let floats =
            |metrics: &Metrics| metrics.iter().map(|(name, value)| (name.to_owned(), Float(value))).collect();
        let rows =
            self.rows.iter().map(|(phase, name, value)| (*phase, name.clone(), Float(*value))).collect();
        let state = LogState { meters, metrics: floats(&self.metrics), row: floats(&self.row), rows };
        Ok((state, unread))
    }

    /// Restores the state from a checkpoint. The history is unchanged.
    pub(crate) fn restore(&mut self, state: &LogState, unread: impl Fn(&str) -> Option<Tensor>) {
        let meter = |meter: &MeterState| {
            let MeterState { phase, ref name, reduce, known, weight, last, window, is_main_only } = *meter;
            let sum = |known: Option<Float>, weight: Float, name: &str| Sum {
                known: known.map(|it| it.0),
                unread: unread(name),
                weight: weight.0,
            };
            let pass = sum(known, weight, &format!("{phase}/{name}"));
            let window = sum(window.0, window.1, &format!("window/{phase}/{name}"));
            Meter {
                phase,
                name: name.clone(),
                reduce,
                pass,
                window,
                last: last.map(|it| Value::Number(it.0)),
                is_main_only,
            }
        };
        let metrics = |values: &[(String, Float)]| {
            values.iter().map(|(name, value)| (name.clone(), value.0)).collect::<Metrics>()
        };
        self.meters = state.meters.iter().map(meter).collect();
        (self.metrics, self.row) = (metrics(&state.metrics), metrics(&state.row));
        self.rows = state.rows.iter().map(|(phase, name, value)| (*phase, name.clone(), value.0)).collect();
    }
}
