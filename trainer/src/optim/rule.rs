//! What distinguishes one optimizer from another.

use tch::{Device, Kind, Tensor};

use super::ParamGroup;
use crate::error::{Error, Result, suggestion};

/// How the parameters of a group are updated.
#[derive(Debug)]
pub(super) struct Rule {
    /// The name of the optimizer.
    pub(super) name: &'static str,
    /// Its hyperparameters beside those that all have.
    pub(super) settings: &'static [Setting],
    /// What it remembers of each parameter.
    pub(super) state: &'static [Slot],
    /// Why it cannot update a group as it was built, if it cannot.
    pub(super) refuses: fn(&ParamGroup) -> Option<String>,
    /// Updates the parameters of a group that have a gradient.
    pub(super) step: fn(&ParamGroup) -> Result<()>,
}

/// What every group has.
pub(super) const SHARED: [Setting; 3] = [
    Setting { name: "lr", valid: Valid::AtLeast(0.0), default: 0.0 },
    Setting { name: "weight_decay", valid: Valid::AtLeast(0.0), default: 0.0 },
    Setting::flag("frozen", false),
];

/// One hyperparameter.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) valid: Valid,
    pub(super) default: f64,
}

/// What a hyperparameter may be; outside of it, it would train, and badly.
#[derive(Debug)]
pub(super) enum Valid {
    /// This or more, and finite.
    AtLeast(f64),
    /// From 0 to below 1.
    Fraction,
    /// A whole number, of these.
    Whole(std::ops::Range<u32>),
    /// 0 or 1.
    Flag,
}

impl Setting {
    pub(super) const fn at_least_0(name: &'static str, default: f64) -> Self {
        Setting { name, valid: Valid::AtLeast(0.0), default }
    }

    pub(super) const fn fraction(name: &'static str, default: f64) -> Self {
        Setting { name, valid: Valid::Fraction, default }
    }

    pub(super) const fn flag(name: &'static str, default: bool) -> Self {
        Setting { name, valid: Valid::Flag, default: if default { 1.0 } else { 0.0 } }
    }

    /// Refuses a value that this one cannot have.
    pub(super) fn check(&self, value: f64) -> Result<()> {
        let (is_valid, must) = match &self.valid {
            Valid::AtLeast(least) => (value >= *least && value.is_finite(), format!("at least {least}")),
            Valid::Fraction => ((0.0..1.0).contains(&value), "at least 0 and below 1".to_owned()),
            Valid::Whole(range) => (
                value.fract() == 0.0 && (f64::from(range.start)..f64::from(range.end)).contains(&value),
                format!("a whole number, at least {} and below {}", range.start, range.end),
            ),
            Valid::Flag => (value == 0.0 || value == 1.0, "0 or 1".to_owned()),
        };
        if is_valid {
            return Ok(());
        }
        Err(Error::usage(format!("the optimizer's {} must be {must}, not {value}", self.name)))
    }
}

impl Rule {
    /// The names of all hyperparameters.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        SHARED.iter().chain(self.settings).map(|setting| setting.name)
    }

    /// The place of a hyperparameter among the rule's own.
    pub(super) fn index_of(&self, name: &str) -> Result<usize> {
        self.settings.iter().position(|setting| setting.name == name).ok_or_else(|| self.has_no(name))
    }

    pub(super) fn has_no(&self, name: &str) -> Error {
        let known = self.names().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ");
        let similar = suggestion(name, self.names());
        Error::usage(format!("{} has no hyperparameter `{name}`, but {known}{similar}", self.name))
    }
}

/// What a rule remembers of each parameter: one tensor beside it.
#[derive(Debug)]
pub(super) struct Slot {
    /// What its names begin with: `exp_avg`.
    pub(super) name: &'static str,
    kind: SlotKind,
    /// The hyperparameter without which, when it is 0, there is none.
    pub(super) only_with: Option<&'static str>,
    /// The hyperparameter that it begins as; else as zeros.
    pub(super) starts_at: Option<&'static str>,
}

#[derive(Debug)]
enum SlotKind {
    /// A number for each element of the parameter.
    Elements,
    /// A count of the steps that the parameter had a gradient in, on its device.
    Steps,
    /// The same on the CPU, where it can be read without waiting.
    StepsOnCpu,
}

impl Slot {
    pub(super) const fn elements(name: &'static str) -> Self {
        Slot { name, kind: SlotKind::Elements, only_with: None, starts_at: None }
    }

    pub(super) const fn steps() -> Self {
        Slot { kind: SlotKind::Steps, ..Slot::elements("step") }
    }

    pub(super) const fn steps_on_cpu() -> Self {
        Slot { kind: SlotKind::StepsOnCpu, ..Slot::elements("step") }
    }

    pub(super) const fn only_with(self, setting: &'static str) -> Self {
        Slot { only_with: Some(setting), ..self }
    }

    pub(super) const fn starting_at(self, setting: &'static str) -> Self {
        Slot { starts_at: Some(setting), ..self }
    }

    /// Whether it is a count of steps.
    pub(super) fn counts_steps(&self) -> bool {
        !matches!(self.kind, SlotKind::Elements)
    }

    /// The tensor beside a parameter, as it begins.
    pub(super) fn beside(&self, parameter: &Tensor, start: f64) -> Result<Tensor> {
        let steps = |device| Tensor::f_full([0; 0], start, (Kind::Float, device));
        Ok(match self.kind {
            SlotKind::Elements => {
                let like = parameter.f_detach()?.f_to_kind(computed_in(parameter.kind()))?;
                like.f_full_like(start)?
            }
            SlotKind::Steps => steps(parameter.device())?,
            SlotKind::StepsOnCpu => steps(Device::Cpu)?,
        })
    }
}

/// Kinds of few digits are computed with in float, and their state is kept in it.
fn computed_in(kind: Kind) -> Kind {
    match kind {
        Kind::BFloat16 | Kind::Half => Kind::Float,
        kind => kind,
    }
}
