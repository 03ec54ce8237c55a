//! [`MetricHook`]: the hook that measures a metric in a trainer.

use std::collections::BTreeMap;
use std::fmt;

use tch::{Device, Tensor};

use super::{Metric, NoValue, States};
use crate::PhaseSet;
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::hook::stages;
use crate::lifecycle::CanLog;
use crate::prelude::own::*;
use crate::run::dispatch::added::IntoHook;

/// A function that returns the prediction and the target of a batch, or `None` to skip the batch.
type Inputs = Box<dyn Fn(&Cx<AfterStep>) -> Result<Option<(Tensor, Tensor)>> + Send>;

/// A function that returns the group of each sample of a batch.
type Groups = Box<dyn Fn(&Cx<AfterStep>) -> Result<Tensor> + Send>;

/// A hook that updates a metric after each batch, and logs it at the end of each pass over data.
/// `.hook(metric)` creates one, and so do the methods of [`Metric`] that return a `MetricHook`.
///
/// By default, the metric is measured during validation and testing, and logged under its name:
/// `valid/accuracy`, `test/accuracy`. Checkpoints save its state, even in the middle of a pass. The
/// predictions and targets come from [`Task::metric_inputs`], which the task must implement unless
/// [`inputs`](MetricHook::inputs) is set. Batches of [weight](Task::weight) 0 are skipped.
///
/// With [named loaders](crate::data::NamedLoaders), each loader has its own value, such as
/// `valid/clean/accuracy`.
///
/// A metric with several values, such as one for each class, is logged as `valid/accuracy/0`,
/// `valid/accuracy/1` and so on. The elements of a matrix are logged only if `per_class` is set. A
/// metric that can [draw itself](Metric::image), such as the confusion matrix, is also logged as an
/// image. A pass without data logs nothing.
///
/// ```
/// use trainer::metrics::{Accuracy, FBeta, Metric};
/// use trainer::prelude::*;
///
/// fn with_metrics(builder: trainer::TrainerBuilder<impl Task>) -> trainer::TrainerBuilder<impl Task> {
///     builder
///         .hook(Accuracy::multiclass(10).per_class(true)) // valid/accuracy, valid/accuracy/0, …
///         .hook(Accuracy::multiclass(10).top_k(5).named("top5"))
///         .hook(FBeta::multiclass(10).only([Phase::Train, Phase::Valid]))
/// }
/// ```
#[doc(alias = "MetricCollection")]
pub struct MetricHook<M> {
    metric: M,
    name: String,
    is_per_class: bool,
    /// The names of the classes; empty if they are numbered.
    class_names: Vec<String>,
    phases: Vec<Phase>,
    inputs: Option<Inputs>,
    groups: Option<Groups>,
    /// The metric's state and last value, for each phase and loader in which it has been measured.
    passes: Vec<MeasuredPass>,
}

/// The phases in which a metric can be measured.
const MEASURED: [Phase; 4] = [Phase::Train, Phase::Sanity, Phase::Valid, Phase::Test];

/// The metric's state and last value in one phase, for one loader.
#[derive(Debug)]
struct MeasuredPass {
    phase: Phase,
    /// The name of the loader; empty if it has none.
    loader: String,
    states: States,
    /// The value of the last completed pass with data; `None` before the first.
    value: Option<Tensor>,
    /// Whether a warning has said that a pass had no value.
    is_reported: bool,
}

impl<M: Metric> MetricHook<M> {
    /// Creates a hook for validation and testing.
    #[must_use]
    pub fn new(metric: M) -> Self {
        MetricHook {
            name: metric.name(),
            passes: Vec::new(),
            metric,
            is_per_class: false,
            class_names: Vec::new(),
            phases: vec![Phase::Valid, Phase::Test],
            inputs: None,
            groups: None,
        }
    }

    /// Sets the name under which the metric is logged and reported in errors. Defaults to the
    /// metric's own name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets whether to also log a value for each class, such as `valid/accuracy/3`. Entry points
    /// return an error if the metric [has no such values](Metric::compute_per_class).
    #[must_use]
    pub fn per_class(mut self, per_class: bool) -> Self {
        self.is_per_class = per_class;
        self
    }

    /// Sets the names of the classes, so that values per class are logged as `valid/accuracy/cat`
    /// instead of `valid/accuracy/3`, and elements of a matrix as
    /// `valid/confusion_matrix/cat/dog`. Use it together with
    /// [`per_class`](MetricHook::per_class), and for any metric with several values. The first pass
    /// returns an error if the metric has another number of classes.
    ///
    /// ```
    /// use trainer::metrics::{Accuracy, Metric};
    ///
    /// let accuracy = Accuracy::multiclass(3).per_class(true).class_names(["cat", "dog", "fish"]);
    /// ```
    #[must_use]
    pub fn class_names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.class_names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the phases in which the metric is measured: [`Phase::Train`], [`Phase::Valid`] (with
    /// the sanity check) and [`Phase::Test`]. Defaults to `Valid` and `Test`.
    #[must_use]
    pub fn only(mut self, phases: impl Into<PhaseSet>) -> Self {
        self.phases = phases.into().iter().collect();
        self
    }

    /// Sets the function that returns this metric's predictions and targets, instead of
    /// [`Task::metric_inputs`]. `B` and `P` are the task's batch and prediction types. If `inputs`
    /// returns `None`, the batch is skipped.
    ///
    /// ```
    /// use trainer::metrics::{MeanSquaredError, Metric};
    /// use trainer::prelude::*;
    ///
    /// // Only the error of the first output.
    /// let first = MeanSquaredError::new()
    ///     .inputs(|(_, targets): &(Tensor, Tensor), pred: &Tensor| Some((pred.select(1, 0), targets.select(1, 0))))
    ///     .named("mse_of_first");
    /// ```
    #[must_use]
    pub fn inputs<B: 'static, P: 'static>(
        mut self,
        inputs: impl Fn(&B, &P) -> Option<(Tensor, Tensor)> + Send + 'static,
    ) -> Self {
        self.inputs = Some(Box::new(move |cx| Ok(inputs(cx.batch::<B>()?, cx.pred::<P>()?))));
        self
    }

    /// Sets the function that returns the group of each sample of a batch, as integers of shape
    /// `[n]`. Use it for a metric that needs groups, such as [`PerGroup`](super::PerGroup). `B` is
    /// the task's batch type.
    #[must_use]
    pub fn groups<B: 'static>(mut self, groups: impl Fn(&B) -> Tensor + Send + 'static) -> Self {
        self.groups = Some(Box::new(move |cx| Ok(groups(cx.batch::<B>()?))));
        self
    }

    /// The metric, with its settings but without data.
    pub fn metric(&self) -> &M {
        &self.metric
    }

    /// The value of the last completed pass with data in this phase, on the CPU. `None` before the
    /// first such pass. For a named loader, see [`value_of`](MetricHook::value_of).
    #[must_use]
    pub fn value(&self, phase: Phase) -> Option<&Tensor> {
        self.value_of(phase, "")
    }

    /// The value of the last completed pass with data over this
    /// [named loader](crate::data::NamedLoaders) in this phase, on the CPU. `None` before the first
    /// such pass.
    #[must_use]
    pub fn value_of(&self, phase: Phase, loader: &str) -> Option<&Tensor> {
        self.find(phase, loader).and_then(|pass| self.passes[pass].value.as_ref())
    }

    /// Returns the index in `passes` of this phase and loader, or `None` if there is no entry yet.
    fn find(&self, phase: Phase, loader: &str) -> Option<usize> {
        self.passes.iter().position(|pass| pass.phase == phase && pass.loader == loader)
    }

    /// Returns the index in `passes` of this phase and loader. Adds an entry if there is none.
    fn find_or_add(&mut self, phase: Phase, loader: &str) -> usize {
        self.find(phase, loader).unwrap_or_else(|| {
            let states = self.metric.states().blank();
            self.passes.push(MeasuredPass {
                phase,
                loader: loader.to_owned(),
                states,
                value: None,
                is_reported: false,
            });
            self.passes.len() - 1
        })
    }

    /// Returns the index in `passes` of the current phase and loader, or `None` if the metric is
    /// not measured in this phase.
    fn measured<P>(&mut self, cx: &Cx<P>) -> Option<usize> {
        let phase = cx.phase();
        let as_set = if phase == Phase::Sanity { Phase::Valid } else { phase };
        let is_measured = self.phases.contains(&as_set) && MEASURED.contains(&phase);
        is_measured.then(|| self.find_or_add(phase, cx.loader().unwrap_or_default()))
    }

    /// Swaps the state of this pass into the metric, calls `body` with the metric, and swaps the
    /// state back.
    fn with<R>(&mut self, pass: usize, body: impl FnOnce(&mut M) -> Result<R>) -> Result<R> {
        std::mem::swap(self.metric.states_mut(), &mut self.passes[pass].states);
        let result = body(&mut self.metric);
        std::mem::swap(self.metric.states_mut(), &mut self.passes[pass].states);
        result.map_err(|error| self.with_name(error))
    }

    /// Returns an error that contains the name under which the metric is logged.
    fn error(&self, text: &str) -> Error {
        self.with_name(self.metric.error(text))
    }

    /// Replaces the metric's name in an error with the name under which the metric is logged. If
    /// the two names are the same, returns the error unchanged. The error may come from the metric
    /// or from a metric that it wraps.
    fn with_name(&self, error: Error) -> Error {
        let Error::Usage(text) = &error else { return error };
        match text.strip_prefix("metric `").and_then(|text| text.split_once("`: ")) {
            Some((_, text)) if self.name != self.metric.name() => {
                Error::usage(format!("metric `{}`: {text}", self.name))
            }
            _ => error,
        }
    }

    fn begin<P>(&mut self, cx: &Cx<P>) {
        if let Some(pass) = self.measured(cx) {
            self.passes[pass].states.reset();
        }
    }

    fn end<P: CanLog + OnAllRanks>(&mut self, cx: &Cx<P>) -> Result<()> {
        // A rank without data takes part as well, because the others wait for it. A pass that has
        // no data on any rank logs nothing.
        let Some(pass) = self.measured_on_all_ranks(cx)? else { return Ok(()) };
        let is_per_class = self.is_per_class;
        let has_record = cx.is_record_due();
        let computed = self.with(pass, |metric| {
            let each = if is_per_class { metric.compute_per_class()? } else { None };
            let image = if has_record { metric.image()? } else { None };
            Ok((metric.compute()?, each, image))
        });
        let (value, each, image) = match computed {
            Ok(computed) => computed,
            Err(error) => {
                let Some(NoValue { of_pass, .. }) = error.downcast_ref() else { return Err(error) };
                if !std::mem::replace(&mut self.passes[pass].is_reported, true) {
                    let name = format!("{}/{}", self.passes[pass].key(), self.name);
                    cx.warn(format!("`{name}` has no value, because {of_pass}"));
                }
                return Ok(());
            }
        };
        if let Some(image) = image {
            cx.log_image(&self.name, image);
        }
        let value = value.to_device(Device::Cpu).to_kind(Kind::Double);
        if value.dim() < 2 {
            self.log(cx, &value)?;
        }
        if let Some(each) = each {
            self.log(cx, &each.to_device(Device::Cpu).to_kind(Kind::Double))?;
        }
        self.passes[pass].value = Some(value);
        Ok(())
    }

    /// Logs a scalar under the name of the metric, and the elements of a larger tensor by class.
    fn log<P: CanLog>(&self, cx: &Cx<P>, value: &Tensor) -> Result<()> {
        let (size, classes) = (value.size(), &self.class_names[..]);
        match size.first() {
            Some(&count) if !classes.is_empty() && count != classes.len() as i64 => Err(self.error(
                &format!("`.class_names(…)` has {} names, but the metric has {count} classes", classes.len()),
            )),
            _ => {
                // In a matrix, the columns are classes, too; in anything larger, they are not.
                let inner = if size.len() == 2 { classes } else { &[] };
                log(cx, &self.name, value, [classes, inner]);
                Ok(())
            }
        }
    }
}

/// Logs a scalar as `name`, and the elements of a larger tensor as `name/0` and so on, with the
/// names of the classes of the first two dimensions, if they have names. An element that is NaN has
/// no value, such as that of a label without targets.
fn log<P: CanLog>(cx: &Cx<P>, name: &str, value: &Tensor, classes: [&[String]; 2]) {
    if value.dim() == 0 {
        cx.log(name, value.double_value(&[]));
        return;
    }
    let [outer, inner] = classes;
    for nth in 0..value.size()[0] {
        let element = value.get(nth);
        if element.dim() > 0 || !element.double_value(&[]).is_nan() {
            let class = usize::try_from(nth).ok().and_then(|nth| outer.get(nth));
            let class = class.map_or_else(|| nth.to_string(), Clone::clone);
            log(cx, &format!("{name}/{class}"), &element, [inner, &[]]);
        }
    }
}

#[hook(state, in = stages::Metrics, settings)]
impl<M: Metric> MetricHook<M> {
    /// Checks that the predictions and targets are available, and the values per class.
    #[hook(only(train, valid, test))]
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        if self.is_per_class && matches!(self.metric.compute_per_class(), Ok(None)) {
            return Err(self.error("it has no values per class: remove `.per_class(true)`"));
        }
        if self.phases.contains(&Phase::Valid) {
            cx.expect_metric(&self.name);
        }
        if self.inputs.is_none() && !cx.has_metric_inputs() {
            return Err(self.error(
                "the task does not provide predictions and targets: implement `Task::metric_inputs`, or call \
                 `.inputs(|batch: &MyBatch, pred: &MyPred| …)` on the metric",
            ));
        }
        Ok(())
    }

    /// Clears the state for the pass that begins.
    fn before_train_epoch(&mut self, cx: &Cx<BeforeTrainEpoch>) {
        self.begin(cx);
    }

    /// Clears the state for the pass that begins.
    fn before_valid(&mut self, cx: &Cx<BeforeValid>) {
        self.begin(cx);
    }

    /// Clears the state for the pass that begins.
    fn before_test(&mut self, cx: &Cx<BeforeTest>) {
        self.begin(cx);
    }

    /// Updates the metric with the batch.
    fn after_step(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        let Some(pass) = self.measured(cx).filter(|_| cx.weight() > 0.0) else { return Ok(()) };
        let inputs = match &self.inputs {
            Some(inputs) => inputs(cx)?,
            None => cx.metric_inputs()?,
        };
        let Some((pred, target)) = inputs else { return Ok(()) };
        let groups = self.groups.as_ref().map(|groups| groups(cx)).transpose()?;
        let _no_grad = tch::no_grad_guard();
        self.with(pass, |metric| match groups {
            Some(groups) => metric.update_groups(&pred, &target, &groups),
            None => metric.update(&pred, &target),
        })
    }

    /// Logs the value of the pass.
    fn after_train_epoch(&mut self, cx: &Cx<AfterTrainEpoch>) -> Result<()> {
        self.end(cx)
    }

    /// Logs the value of the pass.
    fn after_valid(&mut self, cx: &Cx<AfterValid>) -> Result<()> {
        self.end(cx)
    }

    /// Logs the value of the pass.
    fn after_test(&mut self, cx: &Cx<AfterTest>) -> Result<()> {
        self.end(cx)
    }
}

impl<M: Metric> MetricHook<M> {
    /// Merges the states of all ranks. Returns the index in `passes` of the current phase and
    /// loader, or `None` if the metric is not measured in this phase or has no data.
    fn measured_on_all_ranks<P: OnAllRanks>(&mut self, cx: &Cx<P>) -> Result<Option<usize>> {
        let Some(pass) = self.measured(cx) else { return Ok(None) };
        let states = &mut self.passes[pass].states;
        if cx.vars().share().of > 1 {
            *states = states.of_all_ranks(&cx.world())?;
        }
        Ok((!states.is_empty()).then_some(pass))
    }
}

impl MeasuredPass {
    /// The prefix of the pass's tensors in a checkpoint: `valid`, or `valid@clean` for a named
    /// loader.
    fn key(&self) -> String {
        let MeasuredPass { phase, loader, .. } = self;
        if loader.is_empty() { phase.to_string() } else { format!("{phase}@{loader}") }
    }
}

/// Checkpoints save the state of each phase and loader as tensors, and the values of the last
/// passes.
#[diagnostic::do_not_recommend]
impl<M: Metric> State for MetricHook<M> {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        for pass in &self.passes {
            let key = pass.key();
            for (name, tensor) in pass.states.tensors() {
                saved.set_tensor(&format!("{key}/state/{name}"), &tensor.contiguous())?;
            }
            if let Some(value) = &pass.value {
                saved.set_tensor(&format!("{key}/value"), value)?;
            }
        }
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.passes.clear();
        let mut states: BTreeMap<usize, BTreeMap<String, Tensor>> = BTreeMap::new();
        for (key, tensor) in saved.tensors() {
            let Some((pass, rest)) = key.split_once('/') else { continue };
            let (phase, loader) = pass.split_once('@').unwrap_or((pass, ""));
            let Some(phase) = MEASURED.into_iter().find(|measured| measured.name() == phase) else {
                continue;
            };
            let pass = self.find_or_add(phase, loader);
            if let Some(name) = rest.strip_prefix("state/") {
                states.entry(pass).or_default().insert(name.to_owned(), tensor.shallow_clone());
            } else if rest == "value" {
                self.passes[pass].value = Some(tensor.copy());
            }
        }
        states.iter().try_for_each(|(pass, tensors)| self.passes[*pass].states.load(tensors))
    }

    /// The name under which the metric is logged.
    fn label(&self) -> Option<String> {
        Some(self.name.clone())
    }
}

/// A marker type for the `IntoHook` implementation that converts a [`Metric`] to a hook.
#[derive(Debug)]
pub enum AsMetric {}

impl<M: Metric> IntoHook<AsMetric> for M {
    type Hook = MetricHook<M>;

    fn into_hook(self) -> MetricHook<M> {
        MetricHook::new(self)
    }
}

impl<M: Metric> fmt::Debug for MetricHook<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("MetricHook");
        debug
            .field("name", &self.name)
            .field("phases", &self.phases)
            .field("is_per_class", &self.is_per_class);
        debug.finish_non_exhaustive()
    }
}

#[diagnostic::do_not_recommend]
impl<M: Metric> Settings for MetricHook<M> {
    fn settings(&self) -> SettingList {
        let MetricHook { metric, name, is_per_class, class_names, phases, inputs: _, groups: _, passes: _ } =
            self;
        let class_names = Some(class_names.join(", ")).filter(|names| !names.is_empty());
        SettingList::new()
            .with("metric", format_args!("{}", metric.name()))
            .with("name", name)
            .with("per_class", is_per_class)
            .with_optional("class_names", class_names)
            .with("phases", phases)
    }

    fn goals(&self) -> Vec<(String, Goal)> {
        self.metric.goal().map(|goal| (self.name.clone(), goal)).into_iter().collect()
    }

    fn mistakes(&self) -> Vec<String> {
        let phases = &self.phases;
        let is_measured = |phase: &Phase| matches!(phase, Phase::Train | Phase::Valid | Phase::Test);
        let of_metric = self.metric.check().map_err(|error| self.with_name(error)).err();
        let names = &self.class_names;
        let is_invalid = |name: &String| name.is_empty() || name.contains(['/', '@']) || name.trim() != name;
        let invalid = names.iter().find(|name| is_invalid(name));
        let twice = names.iter().enumerate().find(|(nth, name)| names[..*nth].contains(name));
        let own = [
            (
                invalid.is_some(),
                format!(
                    "`.class_names(…)` contains {:?}, which cannot be part of the name of a metric: expected a nonempty name \
                     without `/`, `@` or surrounding spaces",
                    invalid.map_or("", String::as_str)
                ),
            ),
            (
                twice.is_some(),
                format!("`.class_names(…)` contains {:?} twice", twice.map_or("", |(_, name)| name.as_str())),
            ),
            (
                phases.is_empty() || !phases.iter().all(is_measured),
                format!("`.only({phases:?})`: expected one or more of `Train`, `Valid` and `Test`"),
            ),
            (
                self.metric.needs_groups() && self.groups.is_none(),
                "it needs the group of each sample: call `.groups(|batch: &MyBatch| …)`".to_owned(),
            ),
        ];
        let own = own.iter().filter(|(is_mistake, _)| *is_mistake).map(|(_, text)| self.error(text));
        of_metric.into_iter().chain(own).map(|error| error.to_string()).collect()
    }
}
