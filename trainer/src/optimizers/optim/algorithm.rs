//! The definition of an optimization algorithm: its hyperparameters, its state and its step.

use tch::{Device, Kind, Tensor};

use super::ParamGroup;
use crate::error::{Error, Result, did_you_mean};
use crate::libtorch::wide_kind;

/// The definition of an optimization algorithm. See [`Custom`](super::Custom) for an example.
///
/// Each parameter is updated independently of the others.
#[derive(Debug)]
pub struct Algorithm {
    /// The name of the optimizer.
    pub(super) name: &'static str,
    /// The hyperparameters of the algorithm, except the [`SHARED`] ones.
    pub(super) settings: &'static [Setting],
    /// The state that the algorithm keeps for each parameter.
    pub(super) state: &'static [StateSlot],
    /// Returns the reason why the algorithm cannot update a group, or `None` if it can.
    pub(super) refuses: fn(&ParamGroup) -> Option<String>,
    /// Updates the parameters of a group, skipping those without a gradient.
    pub(super) step: fn(&ParamGroup) -> Result<()>,
}

/// The hyperparameters that every group has.
pub(super) const SHARED: [Setting; 3] = [
    Setting { name: "lr", constraint: Constraint::AtLeast(0.0), default: 0.0 },
    Setting { name: "weight_decay", constraint: Constraint::AtLeast(0.0), default: 0.0 },
    Setting::flag("frozen", false),
];

/// A hyperparameter of an [`Algorithm`]: its name, its valid values and its default.
#[derive(Debug)]
pub struct Setting {
    pub(super) name: &'static str,
    pub(super) constraint: Constraint,
    pub(super) default: f64,
}

/// The values that a hyperparameter may have. libtorch accepts other values without an error, but
/// trains badly with them.
#[derive(Debug)]
pub(super) enum Constraint {
    /// A finite number of at least this value.
    AtLeast(f64),
    /// At least 0 and below 1.
    Fraction,
    /// An integer in this range.
    Whole(std::ops::Range<u32>),
    /// 0 or 1.
    Flag,
}

impl Setting {
    /// Creates a setting for a finite number of at least `least`.
    #[must_use]
    pub const fn at_least(name: &'static str, least: f64, default: f64) -> Self {
        Setting { name, constraint: Constraint::AtLeast(least), default }
    }

    /// Creates a setting for a number of at least 0 and below 1.
    #[must_use]
    pub const fn fraction(name: &'static str, default: f64) -> Self {
        Setting { name, constraint: Constraint::Fraction, default }
    }

    /// Creates a setting for a whole number in `range`.
    #[must_use]
    pub const fn whole(name: &'static str, range: std::ops::Range<u32>, default: f64) -> Self {
        Setting { name, constraint: Constraint::Whole(range), default }
    }

    /// Creates a flag: a setting whose value is 1 if it is set and 0 otherwise.
    #[must_use]
    pub const fn flag(name: &'static str, default: bool) -> Self {
        Setting { name, constraint: Constraint::Flag, default: if default { 1.0 } else { 0.0 } }
    }

    /// Returns an error if the value is invalid.
    pub(super) fn check(&self, value: f64) -> Result<()> {
        let is_valid = match &self.constraint {
            Constraint::AtLeast(least) => value >= *least && value.is_finite(),
            Constraint::Fraction => (0.0..1.0).contains(&value),
            Constraint::Whole(range) => {
                value.fract() == 0.0 && (f64::from(range.start)..f64::from(range.end)).contains(&value)
            }
            Constraint::Flag => value == 0.0 || value == 1.0,
        };
        if is_valid {
            return Ok(());
        }
        // Schedules call this at every step, so the text is built only for an invalid value.
        let expected = match &self.constraint {
            Constraint::AtLeast(_) if value == f64::INFINITY => "a finite number".to_owned(),
            Constraint::AtLeast(least) => format!("at least {least}"),
            Constraint::Fraction => "at least 0 and below 1".to_owned(),
            Constraint::Whole(range) => {
                format!("a whole number, at least {} and below {}", range.start, range.end)
            }
            Constraint::Flag => "0 or 1".to_owned(),
        };
        Err(Error::usage(format!("the optimizer's `{}` is {value}: expected {expected}", self.name)))
    }
}

impl Algorithm {
    /// Creates an algorithm without hyperparameters of its own and without state. `name` is the
    /// name of the optimizer in messages and checkpoints. `step` updates the parameters that
    /// [`ParamGroup::updates`] returns for a group.
    #[must_use]
    pub const fn new(name: &'static str, step: fn(&ParamGroup) -> Result<()>) -> Self {
        Algorithm { name, settings: &[], state: &[], refuses: |_| None, step }
    }

    /// Sets the algorithm's own hyperparameters. Every algorithm also has `lr`, `weight_decay` and
    /// `frozen`.
    #[must_use]
    pub const fn settings(self, settings: &'static [Setting]) -> Self {
        Algorithm { settings, ..self }
    }

    /// Sets the state that the algorithm keeps for each parameter.
    #[must_use]
    pub const fn state(self, state: &'static [StateSlot]) -> Self {
        Algorithm { state, ..self }
    }

    /// Sets a function that checks whether the algorithm can update a group. If it cannot, for
    /// example because of the shape of a parameter, the function returns the reason, and building
    /// the trainer fails with an error that contains the reason.
    #[must_use]
    pub const fn refuses(self, refuses: fn(&ParamGroup) -> Option<String>) -> Self {
        Algorithm { refuses, ..self }
    }

    /// Returns the names of all hyperparameters, shared ones included.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        SHARED.iter().chain(self.settings).map(|setting| setting.name)
    }

    /// Returns the index of a hyperparameter among the algorithm's own settings.
    pub(super) fn index_of(&self, name: &str) -> Result<usize> {
        self.settings.iter().position(|setting| setting.name == name).ok_or_else(|| self.has_no(name))
    }

    /// Returns the error for an unknown hyperparameter.
    pub(super) fn has_no(&self, name: &str) -> Error {
        let known = self.names().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ");
        let similar = did_you_mean(name, self.names());
        Error::usage(format!("{} has no hyperparameter `{name}`: it has {known}{similar}", self.name))
    }
}

/// A tensor that an [`Algorithm`] keeps for each parameter.
///
/// For a parameter in half precision, the state is in `f32`.
#[derive(Debug)]
pub struct StateSlot {
    /// The prefix of the tensors' names, such as `exp_avg`.
    pub(super) name: &'static str,
    kind: StateKind,
    /// The hyperparameter that must be non-zero for this state to be required. `None` if the state
    /// is always required.
    pub(super) only_with: Option<&'static str>,
    /// The hyperparameter that holds the initial value. If `None`, the state starts at 0.
    pub(super) starts_at: Option<&'static str>,
}

#[derive(Debug)]
enum StateKind {
    /// One number per element of the parameter.
    Elements,
    /// The number of steps in which the parameter had a gradient, on the parameter's device.
    Steps,
    /// The number of steps in which the parameter had a gradient, on the CPU, where reading it
    /// never synchronizes with a device.
    StepsOnCpu,
}

impl StateSlot {
    /// Creates a state with one number for each element of the parameter, initially 0. `name` is
    /// the prefix of the names of its tensors, such as `exp_avg`.
    #[must_use]
    pub const fn elements(name: &'static str) -> Self {
        StateSlot { name, kind: StateKind::Elements, only_with: None, starts_at: None }
    }

    /// Creates a state named `step`: the number of steps in which the parameter had a gradient, as
    /// a scalar on the parameter's device. The algorithm itself must count the steps.
    #[must_use]
    pub const fn steps() -> Self {
        StateSlot { kind: StateKind::Steps, ..StateSlot::elements("step") }
    }

    pub(super) const fn steps_on_cpu() -> Self {
        StateSlot { kind: StateKind::StepsOnCpu, ..StateSlot::elements("step") }
    }

    /// Keeps the state only if this hyperparameter is not 0.
    #[must_use]
    pub const fn only_with(self, setting: &'static str) -> Self {
        StateSlot { only_with: Some(setting), ..self }
    }

    /// Sets the initial value to the value of this hyperparameter.
    #[must_use]
    pub const fn starting_at(self, setting: &'static str) -> Self {
        StateSlot { starts_at: Some(setting), ..self }
    }

    /// Returns whether this state is a step count.
    pub(super) fn counts_steps(&self) -> bool {
        !matches!(self.kind, StateKind::Elements)
    }

    /// Creates the state of one parameter, filled with `start`.
    pub(super) fn create(&self, parameter: &Tensor, start: f64) -> Result<Tensor> {
        let device = match self.kind {
            StateKind::Elements => {
                let like = parameter.f_detach()?.f_to_kind(wide_kind(parameter.kind()))?;
                return Ok(like.f_full_like(start)?);
            }
            StateKind::Steps => parameter.device(),
            StateKind::StepsOnCpu => Device::Cpu,
        };
        Ok(Tensor::f_full([0; 0], start, (Kind::Float, device))?)
    }
}
