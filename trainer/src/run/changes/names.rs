//! [`Kind`] and [`Names`]: the kinds and the names of the values that a run can change.

use std::collections::HashMap;

/// The kinds of values that a run can change. Code that changes none of these values changes
/// nothing that training depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Parameter,
    Buffer,
    /// Whether a variable requires a gradient.
    IsTrained,
    Gradient,
    OptimizerState,
    LearningRate,
    /// Any other setting of a parameter group.
    Hyperparameter,
    Batch,
    BatchWeight,
    Prediction,
    Loss,
    LossScale,
    /// The output of a named module.
    ModuleOutput,
    /// The gradient of the output of a named module.
    OutputGradient,
    Random,
    SkipRequest,
    EpochRequest,
    StopRequest,
    /// The state of the hook value in this slot.
    State(u32),
}

impl Kind {
    /// Returns what a list of a hook's changes calls this kind. `own` is the slot of the hook's own
    /// value, if the hook has one.
    pub(crate) fn name(self, own: Option<u32>) -> &'static str {
        match self {
            Kind::Parameter => "weights",
            Kind::Buffer => "buffers",
            Kind::IsTrained => "trained parameters",
            Kind::Gradient => "gradients",
            Kind::OptimizerState => "optimizer state",
            Kind::LearningRate => "learning rate",
            Kind::Hyperparameter => "hyperparameters",
            Kind::Batch => "batch",
            Kind::BatchWeight => "batch weight",
            Kind::Prediction => "prediction",
            Kind::Loss => "loss",
            Kind::LossScale => "loss scale",
            Kind::ModuleOutput => "module output",
            Kind::OutputGradient => "gradient of a module's output",
            Kind::Random => "random state",
            Kind::SkipRequest => "request to skip the batch",
            Kind::EpochRequest => "request to end the epoch",
            Kind::StopRequest => "request to stop",
            Kind::State(slot) if own == Some(slot) => "its state",
            Kind::State(_) => "state of another hook",
        }
    }
}

/// The names of values, each with a number.
#[derive(Default)]
pub(crate) struct Names {
    numbers: HashMap<String, u32>,
    /// The names by number.
    list: Vec<(String, Kind)>,
    /// The number of names that [`take_new`](Self::take_new) has returned.
    taken: usize,
}

impl Names {
    /// Returns the number assigned to a name. A new name is added, as the name of a value of this
    /// kind.
    pub(super) fn number(&mut self, kind: Kind, name: &str) -> u32 {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        let number = u32::try_from(self.list.len()).expect("fewer than 2³² values");
        self.list.push((name.to_owned(), kind));
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Returns the number of a name, if it has one.
    pub(super) fn known(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The name with this number.
    pub(crate) fn name(&self, number: u32) -> &str {
        &self.list[number as usize].0
    }

    /// The kind of the value whose name has this number.
    pub(crate) fn kind(&self, number: u32) -> Kind {
        self.list[number as usize].1
    }

    /// Returns the names that are new since the last call, in the order of their numbers.
    pub(crate) fn take_new(&mut self) -> Vec<String> {
        let new = self.list[self.taken..].iter().map(|(name, _)| name.clone()).collect();
        self.taken = self.list.len();
        new
    }
}
