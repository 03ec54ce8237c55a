//! Recording the outputs of modules.

use std::collections::BTreeMap;

use super::refused;
use crate::PhaseSet;
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::modules::Patterns;
use crate::prelude::own::*;

/// Keeps detached copies of the outputs of modules, by name, for feature extraction, visualization
/// and tests.
///
/// Use this when the program needs the outputs themselves. To log statistics instead, use
/// [`ActivationStats`](super::ActivationStats).
///
/// ```
/// use trainer::hooks::FeatureRecorder;
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "encoder";
/// let encoder = modules::seq(&path)
///     .add(nn::linear(&path / 0, 4, 8, Default::default()))
///     .add_fn(Tensor::relu);
/// let net = nn::seq().add(encoder).add(nn::linear(vs.root() / "head", 8, 2, Default::default()));
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task).hook(FeatureRecorder::new("encoder.*").all(true)).build()?;
///
/// let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// let labels = Tensor::zeros([64], (Kind::Int64, Device::Cpu));
/// trainer.predict(&mut InMemory::new((inputs, labels))?.batch_size(16))?;
/// let recorder = trainer.hook::<FeatureRecorder>().expect("it was added");
/// assert_eq!(recorder.names().collect::<Vec<_>>(), ["encoder.0", "encoder.1"]);
/// assert_eq!(recorder.features("encoder.1")?.size(), [64, 8]);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// By default, the hook keeps the outputs of the most recent batch. With
/// [`all`](FeatureRecorder::all), it keeps the outputs of every batch of the most recent pass over
/// data. A module that is called several times in a batch has several outputs. Checkpoints contain
/// all recorded outputs.
#[doc(alias = "register_forward_hook")]
#[derive(Debug)]
pub struct FeatureRecorder {
    modules: Patterns,
    phases: PhaseSet,
    keeps_all: bool,
    device: Option<Device>,
    outputs: BTreeMap<String, Vec<Tensor>>,
}

impl FeatureRecorder {
    /// Records the outputs of the modules with these names: a pattern such as `"encoder.*"`,
    /// several patterns, or [`Patterns`].
    #[must_use]
    pub fn new(modules: impl Into<Patterns>) -> Self {
        FeatureRecorder {
            modules: modules.into(),
            phases: PhaseSet::from_phases(&Phase::ALL),
            keeps_all: false,
            device: None,
            outputs: BTreeMap::new(),
        }
    }

    /// Whether to keep the outputs of every batch of a pass, rather than only those of the most
    /// recent batch. Defaults to `false`.
    #[must_use]
    pub fn all(mut self, all: bool) -> Self {
        self.keeps_all = all;
        self
    }

    /// Limits recording to one phase, or to several: `only([Phase::Valid, Phase::Test])`. Defaults
    /// to all phases.
    #[must_use]
    pub fn only(mut self, phases: impl Into<PhaseSet>) -> Self {
        self.phases = phases.into();
        self
    }

    /// Copies the outputs to this device. Defaults to the device of each output.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// The names of the modules that were recorded, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.outputs.keys().map(String::as_str)
    }

    /// The recorded outputs of a module, in the order of its calls; empty if there are none.
    pub fn outputs(&self, module: &str) -> &[Tensor] {
        self.outputs.get(module).map_or(&[], Vec::as_slice)
    }

    /// Returns the recorded outputs of a module, concatenated along their first dimension.
    ///
    /// # Errors
    ///
    /// Returns an error if no output of the module was recorded, or if its outputs differ in a
    /// dimension other than the first.
    pub fn features(&self, module: &str) -> Result<Tensor> {
        match self.outputs(module) {
            [] => {
                let names: Vec<_> = self.names().map(|name| format!("`{name}`")).collect();
                let recorded = if names.is_empty() {
                    ": no recorded module has been called yet".to_owned()
                } else {
                    format!("; the recorded modules are {}", names.join(", "))
                };
                Err(Error::msg(format!("no output of `{module}` was recorded{recorded}")))
            }
            [one] => Ok(one.shallow_clone()),
            several => Ok(Tensor::f_cat(several, 0)?),
        }
    }

    fn records(&self, phase: Phase) -> bool {
        self.phases.contains(phase)
    }

    /// Drops the recorded outputs before those of a new batch or pass, if this phase is recorded.
    fn begin(&mut self, phase: Phase) {
        if self.records(phase) {
            self.outputs.clear();
        }
    }
}

#[hook(state, settings)]
impl FeatureRecorder {
    /// Records one output.
    #[hook(of = self.modules)]
    fn after_module_forward(&mut self, cx: &Cx<AfterModuleForward>) {
        if !self.records(cx.phase()) {
            return;
        }
        let _no_grad = tch::no_grad_guard();
        // A copy, because an in-place operation may change the output later.
        let output = cx.output().detach().to_device(self.device.unwrap_or(cx.output().device())).copy();
        match self.outputs.get_mut(cx.module()) {
            Some(outputs) => outputs.push(output),
            None => drop(self.outputs.insert(cx.module().to_owned(), vec![output])),
        }
    }

    fn before_step(&mut self, cx: &Cx<BeforeStep>) {
        if !self.keeps_all {
            self.begin(cx.phase());
        }
    }

    fn before_predict_step(&mut self, cx: &Cx<BeforePredictStep>) {
        if !self.keeps_all {
            self.begin(cx.phase());
        }
    }

    fn before_train_epoch(&mut self, cx: &Cx<BeforeTrainEpoch>) {
        self.begin(cx.phase());
    }

    fn before_valid(&mut self, cx: &Cx<BeforeValid>) {
        self.begin(cx.phase());
    }

    fn before_test(&mut self, cx: &Cx<BeforeTest>) {
        self.begin(cx.phase());
    }

    fn before_predict(&mut self, cx: &Cx<BeforePredict>) {
        self.begin(cx.phase());
    }
}

/// Saves the outputs. The settings come from the program.
#[diagnostic::do_not_recommend]
impl State for FeatureRecorder {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        let counts: BTreeMap<_, _> =
            self.outputs.iter().map(|(name, outputs)| (name, outputs.len())).collect();
        saved.set("counts", &counts)?;
        for (name, outputs) in &self.outputs {
            for (nth, output) in outputs.iter().enumerate() {
                saved.set_tensor(&format!("{name}/{nth}"), output)?;
            }
        }
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        let counts: BTreeMap<String, usize> = saved.get("counts")?;
        self.outputs.clear();
        for (name, count) in counts {
            let outputs = (0..count).map(|nth| Ok(saved.get_tensor(&format!("{name}/{nth}"))?.copy()));
            let outputs = outputs.collect::<Result<_>>()?;
            self.outputs.insert(name, outputs);
        }
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for FeatureRecorder {
    fn settings(&self) -> SettingList {
        let FeatureRecorder { modules, phases, keeps_all, device, outputs: _ } = self;
        SettingList::new()
            .with("modules", modules)
            .with("only", phases)
            .with("all", keeps_all)
            .with_optional("device", device.as_ref())
    }

    fn mistakes(&self) -> Vec<String> {
        refused([(self.phases == PhaseSet::NONE, "`.only([])`: expected at least one phase".to_owned())])
    }
}
