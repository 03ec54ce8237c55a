//! Units that are dead or saturated throughout an epoch.

use std::collections::BTreeMap;

use super::{is_at_least_0, refused};
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::lifecycle::HasOutput;
use crate::modules::Patterns;
use crate::prelude::own::*;

/// Finds dead units: those whose output is zero for every sample of a training epoch, so that a
/// ReLU passes no gradient to them (Lu et al., *Dying ReLU and Initialization*, 2019).
///
/// Use this when the network has ReLUs. For bounded activations, use [`SaturatedUnits`].
///
/// At the end of each epoch, the hook logs the fraction of dead units in each module as
/// `train/dead_units/<module>`. [`units`](DeadUnits::units) returns the indices of the dead units.
/// By default, a unit is an index along dimension 1 of an output: a channel of
/// `[batch, channels, …]`.
///
/// ```
/// use trainer::hooks::DeadUnits;
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "net";
/// let net = modules::seq(&path)
///     .add(nn::linear(&path / 0, 4, 8, Default::default()))
///     .add_as("relu", nn::func(Tensor::relu))
///     .add(nn::linear(&path / 2, 8, 2, Default::default()));
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(DeadUnits::new("*.relu"))
///     .build()?;
///
/// let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// let summary = trainer.fit(&mut InMemory::new((inputs, labels))?.batch_size(16), None)?;
/// assert!(summary.metrics["train/dead_units/net.relu"] < 1.0);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// Checkpoints in the middle of an epoch include the activity recorded so far.
#[derive(Debug)]
pub struct DeadUnits {
    tracker: Tracker,
    threshold: f64,
}

/// Finds saturated units: those whose output is close to a bound of a bounded activation, such as
/// tanh or the sigmoid, for every sample of a training epoch. At such an output, the gradient of
/// the activation is close to 0 (Glorot and Bengio, *Understanding the difficulty of training deep
/// feedforward neural networks*, 2010).
///
/// Use this when the network has bounded activations. For ReLUs, use [`DeadUnits`].
///
/// At the end of each epoch, the hook logs the fraction of saturated units in each module as
/// `train/saturated_units/<module>`. [`units`](SaturatedUnits::units) returns the indices of the
/// saturated units. Units are defined as for [`DeadUnits`].
///
/// ```
/// use trainer::hooks::SaturatedUnits;
///
/// let tanh = SaturatedUnits::new("*.tanh", -1.0, 1.0).margin(0.05);
/// ```
#[derive(Debug)]
pub struct SaturatedUnits {
    tracker: Tracker,
    lower: f64,
    upper: f64,
    margin: f64,
}

impl DeadUnits {
    /// Observes the modules with these names: a pattern such as `"*.relu"`, several patterns, or
    /// [`Patterns`].
    #[must_use]
    pub fn new(modules: impl Into<Patterns>) -> Self {
        DeadUnits { tracker: Tracker::new(modules.into()), threshold: 0.0 }
    }

    /// An output counts as zero if its magnitude is at most this threshold. Defaults to 0.
    #[must_use]
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = threshold;
        self
    }
}

impl SaturatedUnits {
    /// Observes the modules with these names, whose outputs are between `lower` and `upper`.
    #[must_use]
    pub fn new(modules: impl Into<Patterns>, lower: f64, upper: f64) -> Self {
        SaturatedUnits { tracker: Tracker::new(modules.into()), lower, upper, margin: 0.05 }
    }

    /// An output counts as saturated if its distance from a bound is at most this fraction of the
    /// range between the bounds. Defaults to 0.05.
    #[must_use]
    pub fn margin(mut self, margin: f64) -> Self {
        self.margin = margin;
        self
    }
}

#[hook(only = train, state = self.tracker, settings, may_fail)]
impl DeadUnits {
    /// Clears the activity of the previous epoch.
    fn before_train_epoch(&mut self, _: &Cx<BeforeTrainEpoch>) {
        self.tracker.active.clear();
    }

    /// Records which units are active in one output.
    #[hook(of = self.tracker.modules)]
    fn after_module_forward(&mut self, cx: &Cx<AfterModuleForward>) -> Result<()> {
        let threshold = self.threshold;
        self.tracker.observe(cx, |output| output.abs().gt(threshold))
    }

    /// Logs the fractions of dead units.
    fn after_train_epoch(&mut self, cx: &Cx<AfterTrainEpoch>) -> Result<()> {
        self.tracker.report("dead_units", cx)
    }
}

#[hook(only = train, state = self.tracker, settings, may_fail)]
impl SaturatedUnits {
    /// Clears the activity of the previous epoch.
    fn before_train_epoch(&mut self, _: &Cx<BeforeTrainEpoch>) {
        self.tracker.active.clear();
    }

    /// Records which units are not saturated in one output.
    #[hook(of = self.tracker.modules)]
    fn after_module_forward(&mut self, cx: &Cx<AfterModuleForward>) -> Result<()> {
        let margin = self.margin * (self.upper - self.lower);
        let lower = self.lower + margin;
        let upper = self.upper - margin;
        self.tracker.observe(cx, |output| output.gt(lower).logical_and(&output.lt(upper)))
    }

    /// Logs the fractions of saturated units.
    fn after_train_epoch(&mut self, cx: &Cx<AfterTrainEpoch>) -> Result<()> {
        self.tracker.report("saturated_units", cx)
    }
}

/// Implements the methods that both hooks share, and [`State`].
macro_rules! common {
    ($($hook:ident: $units:literal),*) => {$(
        impl $hook {
            /// The dimension of an output that indexes the units. A negative number counts from the
            /// end. Defaults to 1.
            #[must_use]
            pub fn unit_dim(mut self, dim: i64) -> Self {
                self.tracker.dim = dim;
                self
            }

            #[doc = concat!("Returns the indices of the ", $units, " of a module in the most recently completed ")]
            /// epoch, or `None` if the module was not called in it.
            #[must_use]
            pub fn units(&self, module: &str) -> Option<&[i64]> {
                self.tracker.found.get(module).map(Vec::as_slice)
            }
        }
    )*};
}

common!(DeadUnits: "dead units", SaturatedUnits: "saturated units");

/// Records which units of modules are active at least once in an epoch.
#[derive(Debug)]
struct Tracker {
    modules: Patterns,
    dim: i64,
    /// For each module, whether each unit was active in the current epoch: a boolean tensor.
    active: BTreeMap<String, Tensor>,
    /// For each module, the indices of the units that were inactive throughout the most recently
    /// completed epoch.
    found: BTreeMap<String, Vec<i64>>,
}

impl Tracker {
    fn new(modules: Patterns) -> Self {
        Tracker { modules, dim: 1, active: BTreeMap::new(), found: BTreeMap::new() }
    }

    /// Records the units that are active in an output: those with at least one `true` element in
    /// the tensor that `is_active` returns. Returns an error if the output lacks the dimension of
    /// the units, or if its number of units has changed.
    fn observe<P: HasOutput + crate::lifecycle::HasModule>(
        &mut self,
        cx: &Cx<P>,
        is_active: impl FnOnce(&Tensor) -> Tensor,
    ) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let output = cx.output();
        let dims = output.dim() as i64;
        let dim = if self.dim < 0 { self.dim + dims } else { self.dim };
        if !(0..dims).contains(&dim) {
            return Err(Error::fatal(format!(
                "the output of `{}` has the shape {:?}, which has no dimension {}: set the dimension of the units with `.unit_dim(…)`",
                cx.module(),
                output.size(),
                self.dim
            )));
        }
        let units = output.size()[dim as usize];
        let active = is_active(output).transpose(0, dim).reshape([units, -1]).any_dim(1, false);
        let active = match self.active.get(cx.module()) {
            None => active,
            Some(known) if known.numel() as i64 == units => {
                known.to_device(active.device()).logical_or(&active)
            }
            Some(known) => {
                return Err(Error::fatal(format!(
                    "`{}` has {units} units, but had {} before: modules of different sizes need different names",
                    cx.module(),
                    known.numel()
                )));
            }
        };
        self.active.insert(cx.module().to_owned(), active);
        Ok(())
    }

    /// Logs the fraction of inactive units of each module, and keeps the indices of these units.
    fn report(&mut self, metric: &str, cx: &Cx<AfterTrainEpoch>) -> Result<()> {
        self.found.clear();
        for (module, active) in &self.active {
            let inactive = active.logical_not();
            cx.log(format!("{metric}/{module}"), inactive.to_kind(Kind::Double).mean(Kind::Double));
            self.found.insert(module.clone(), Vec::try_from(inactive.nonzero().view([-1]))?);
        }
        Ok(())
    }
}

/// Saves the recorded activity and the units found. The settings come from the program.
#[diagnostic::do_not_recommend]
impl State for Tracker {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("found", &self.found)?;
        for (module, active) in &self.active {
            saved.set_tensor(module, &active.to_kind(Kind::Uint8))?;
        }
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.found = saved.get("found")?;
        let active = saved.tensors().map(|(module, active)| (module.to_owned(), active.to_kind(Kind::Bool)));
        self.active = active.collect();
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for DeadUnits {
    fn settings(&self) -> SettingList {
        let DeadUnits { tracker, threshold } = self;
        tracker.settings().with("threshold", threshold)
    }

    fn mistakes(&self) -> Vec<String> {
        let threshold = self.threshold;
        let message = format!("`.threshold({threshold:?})`: expected a finite number of at least 0.0");
        refused([(!is_at_least_0(threshold), message)])
    }
}

#[diagnostic::do_not_recommend]
impl Settings for SaturatedUnits {
    fn settings(&self) -> SettingList {
        let SaturatedUnits { tracker, lower, upper, margin } = self;
        tracker.settings().with("lower", lower).with("upper", upper).with("margin", margin)
    }

    fn mistakes(&self) -> Vec<String> {
        let SaturatedUnits { lower, upper, margin, .. } = *self;
        refused([
            (
                !(lower.is_finite() && upper.is_finite() && lower < upper),
                format!(
                    "`SaturatedUnits::new(…, {lower:?}, {upper:?})`: expected finite bounds, the lower one first"
                ),
            ),
            (
                !(0.0..0.5).contains(&margin),
                format!("`.margin({margin:?})`: expected at least 0.0 and below 0.5"),
            ),
        ])
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Tracker {
    fn settings(&self) -> SettingList {
        let Tracker { modules, dim, active: _, found: _ } = self;
        SettingList::new().with("modules", modules).with("unit_dim", dim)
    }
}
