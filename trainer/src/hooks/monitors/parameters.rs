//! Norms and distributions of gradients, weights and updates.

use super::Interval;
use crate::checkpoint::{SettingList, Settings};
use crate::distributed::Op;
use crate::hooks::{refused, stages};
use crate::modules::Patterns;
use crate::prelude::own::*;
use crate::{Var, norms};

/// Logs the norms of gradients, weights and updates, for each parameter and over all parameters,
/// and with [`histograms`](ParameterMonitor::histograms) their distributions.
///
/// Use this when a model does not learn, or when you choose a learning rate.
///
/// | enabled by | logs | histogram |
/// |---|---|---|
/// | [`gradients`](ParameterMonitor::gradients) (default) | `train/grad_norm/<parameter>`, `train/grad_norm` | `train/gradients/<parameter>` |
/// | [`weights`](ParameterMonitor::weights) | `train/weight_norm/<parameter>`, `train/weight_norm` | `train/weights/<parameter>` |
/// | [`updates`](ParameterMonitor::updates) | `train/update_norm/<parameter>`, `train/update_norm`, `train/update_ratio/<parameter>`, `train/update_ratio` | `train/updates/<parameter>` |
///
/// The ratio is the norm of the update divided by the norm of the weights before the update; about
/// 1e-3 is usual for a network that learns well. If several parts of the model have their own
/// optimizers, the norm over all parameters is logged separately for each part:
/// `train/grad_norm/generator`.
///
/// ```
/// use trainer::hooks::ParameterMonitor;
/// use trainer::modules::Patterns;
/// use trainer::prelude::*;
///
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(ParameterMonitor::new("*.weight").updates(true).every(2)) // or `Patterns::all()`
///     .build()?;
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// let summary = trainer.fit(&mut InMemory::new((inputs, labels))?.batch_size(16), None)?;
/// assert!(summary.metrics["train/grad_norm/fc.weight"] > 0.0);
/// assert!(summary.metrics["train/update_ratio"] < 0.1);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// - **The gradients** are those of an optimizer step: after accumulation and the unscaling by
///   [`Amp`](crate::hooks::Amp), but before clipping. A step that a hook such as
///   [`NanGuard`](crate::hooks::NanGuard) skips is not observed.
/// - **The weights** are those before the step. **The updates** are the changes made by the step
///   and by inner hooks; they are 0 if an inner hook skipped the step.
/// - **A parameter without a gradient** has no values for gradients and updates: it is frozen, or
///   the loss does not depend on it. For a **sparse gradient**, only the stored values count.
/// - **NaN and infinity** are logged as they are; histograms omit such elements. The ratio of
///   weights that are all zero is infinite, or NaN if the update is zero too.
/// - **The value of an epoch** is the mean over its recorded steps. Histograms are logged only in
///   steps after which a record is due.
/// - **The cost** of a step that is not recorded is one comparison. In a recorded step, libtorch's
///   [foreach kernels](crate::norms) compute the norms, without waiting for a GPU. With `updates`,
///   the weights are copied before the step and subtracted after it, which needs memory for the
///   copy and the difference.
/// - **On several ranks**, gradients that are [divided](crate::optim::Sharded::gradients) have the
///   same norms as those of one process, but no histograms: enabling both is an error when `fit`
///   begins.
/// - **Resuming**: there is no state to save, and a resumed run logs the same values as an
///   uninterrupted one.
#[doc(alias = "track_grad_norm")]
#[derive(Debug)]
pub struct ParameterMonitor {
    parameters: Patterns,
    interval: Interval,
    gradients: bool,
    weights: bool,
    updates: bool,
    histograms: bool,
    per_parameter: bool,
}

impl ParameterMonitor {
    /// Monitors the parameters with these names: a pattern such as `"encoder.*"`, several patterns,
    /// or [`Patterns`]. A pattern that matches no parameter is an error when `fit` begins, unless
    /// it is optional.
    #[must_use]
    pub fn new(parameters: impl Into<Patterns>) -> Self {
        ParameterMonitor {
            parameters: parameters.into(),
            interval: Interval::default(),
            gradients: true,
            weights: false,
            updates: false,
            histograms: false,
            per_parameter: true,
        }
    }

    /// Whether gradients are logged. Defaults to `true`.
    #[must_use]
    pub fn gradients(mut self, log: bool) -> Self {
        self.gradients = log;
        self
    }

    /// Whether weights are logged. Defaults to `false`.
    #[must_use]
    pub fn weights(mut self, log: bool) -> Self {
        self.weights = log;
        self
    }

    /// Whether updates, and their ratios to the weights, are logged. Defaults to `false`.
    #[must_use]
    pub fn updates(mut self, log: bool) -> Self {
        self.updates = log;
        self
    }

    /// Whether histograms of the logged gradients, weights and updates are recorded too. Defaults
    /// to `false`.
    #[must_use]
    pub fn histograms(mut self, log: bool) -> Self {
        self.histograms = log;
        self
    }

    /// Whether the norms of each parameter are logged, in addition to those over all parameters.
    /// Defaults to `true`.
    #[must_use]
    pub fn per_parameter(mut self, log: bool) -> Self {
        self.per_parameter = log;
        self
    }

    /// Logs in every `n`-th step of each optimizer. Defaults to the steps after which a record is
    /// [due](Cx::is_record_due), which requires a logger.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.interval = Interval(Some(n));
        self
    }

    /// Returns an error if a setting is invalid.
    fn check<P>(&self, cx: &Cx<P>) -> Result<()> {
        let vars = cx.vars();
        let names: Vec<&str> = vars.parameters().map(|var| var.name.as_str()).collect();
        for pattern in self.parameters.iter().filter(|pattern| !pattern.is_optional()) {
            if !names.iter().any(|name| pattern.matches(name)) {
                return Err(Error::fatal(format!(
                    "`ParameterMonitor::new(\"{pattern}\")`: no parameter matches{}",
                    pattern.did_you_mean(names.iter().copied())
                )));
            }
        }
        for part in cx.parts() {
            if self.histograms && self.gradients && cx.optimizer_of(part)?.divided_gradients().is_some() {
                return Err(Error::fatal(
                    "`ParameterMonitor` cannot record histograms of gradients that the optimizer divides among the ranks: use \
                     `.gradients(false)` or `.histograms(false)`, or remove `.gradients(true)` from `Sharded`",
                ));
            }
        }
        Ok(())
    }

    /// Logs the norm over all tensors and, if `per_parameter` is set, the norm of each.
    fn log_norms(&self, what: &str, names: &[&str], norms: &Tensor, cx: &Cx<OptStep>) -> Result<()> {
        let total = if cx.part().is_empty() { what.to_owned() } else { format!("{what}/{}", cx.part()) };
        cx.log_weighted(total, total_of(norms)?, 1.0);
        self.log_each(what, names, norms, cx)
    }

    /// Logs a value for each parameter, if `per_parameter` is set. Values on a GPU are logged as
    /// tensors, without reading them.
    fn log_each(&self, what: &str, names: &[&str], values: &Tensor, cx: &Cx<OptStep>) -> Result<()> {
        if !self.per_parameter {
            return Ok(());
        }
        if values.device() == Device::Cpu {
            let values = Vec::<f64>::try_from(values.f_to_kind(Kind::Double)?)?;
            for (name, value) in names.iter().zip(values) {
                cx.log_weighted(format!("{what}/{name}"), value, 1.0);
            }
        } else {
            for (name, value) in names.iter().zip(values.f_unbind(0)?) {
                cx.log_weighted(format!("{what}/{name}"), value, 1.0);
            }
        }
        Ok(())
    }

    /// Logs the distributions of all tensors that are not empty, if histograms are enabled and a
    /// record is due.
    fn log_histograms(&self, what: &str, names: &[&str], tensors: &[Tensor], cx: &Cx<OptStep>) {
        if self.histograms && cx.is_record_due() {
            for (name, tensor) in names.iter().zip(tensors) {
                let stored = if tensor.is_sparse() { tensor.coalesce().values() } else { tensor.detach() };
                if stored.numel() > 0 {
                    cx.log_histogram(format!("{what}/{name}"), stored);
                }
            }
        }
    }

    /// Runs a step, and logs its values.
    #[cold]
    fn run_observed(&self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        let vars = cx.vars();
        let part = cx.part();
        let own = vars.parameters().filter(|var| var.is_in(part));
        let chosen: Vec<&Var> = own.filter(|var| self.parameters.matches(&var.name)).collect();
        let (mut with_grad, grads): (Vec<&Var>, Vec<Tensor>) =
            chosen.iter().map(|var| (*var, var.tensor.grad())).filter(|(_, grad)| grad.defined()).unzip();
        let mut of_grads = None;
        if cx.grads_are_divided() {
            let all = of_all_ranks(&chosen, &with_grad, &norms(&grads)?, cx)?;
            (with_grad, of_grads) = (all.0, Some(all.1));
        }
        let names_with_grad: Vec<&str> = with_grad.iter().map(|var| var.name.as_str()).collect();
        if self.gradients && !with_grad.is_empty() {
            let of_grads = of_grads.map_or_else(|| norms(&grads), Ok)?;
            self.log_norms("grad_norm", &names_with_grad, &of_grads, cx)?;
            self.log_histograms("gradients", &names_with_grad, &grads, cx);
        }
        if self.weights && !chosen.is_empty() {
            let names: Vec<&str> = chosen.iter().map(|var| var.name.as_str()).collect();
            let weights: Vec<Tensor> = chosen.iter().map(|var| var.tensor.detach()).collect();
            self.log_norms("weight_norm", &names, &norms(&weights)?, cx)?;
            self.log_histograms("weights", &names, &weights, cx);
        }
        if !self.updates || with_grad.is_empty() {
            return next.run(cx);
        }
        let before: Vec<Tensor> = with_grad.iter().map(|var| var.tensor.detach().copy()).collect();
        let done = next.run(cx)?;
        let updates = with_grad.iter().zip(&before);
        let updates = updates.map(|(var, before)| Ok(var.tensor.detach().f_sub(before)?));
        let updates: Vec<Tensor> = updates.collect::<Result<_>>()?;
        let of_updates = norms(&updates)?;
        let of_weights = norms(&before)?;
        let ratio = total_of(&of_updates)?.f_div(&total_of(&of_weights)?)?;
        let total = match cx.part() {
            "" => "update_ratio".to_owned(),
            part => format!("update_ratio/{part}"),
        };
        cx.log_weighted(total, ratio, 1.0);
        self.log_each("update_ratio", &names_with_grad, &of_updates.f_div(&of_weights)?, cx)?;
        self.log_norms("update_norm", &names_with_grad, &of_updates, cx)?;
        self.log_histograms("updates", &names_with_grad, &updates, cx);
        Ok(done)
    }
}

/// Returns the parameters that have a gradient on any rank, of gradients that are divided among the
/// ranks, and the norm of each.
fn of_all_ranks<'v>(
    chosen: &[&'v Var],
    own: &[&'v Var],
    of_own: &Tensor,
    cx: &Cx<OptStep>,
) -> Result<(Vec<&'v Var>, Tensor)> {
    let mut values = Vec::<f64>::try_from(of_own.f_to_kind(Kind::Double)?)?.into_iter();
    let mut own = own.iter().map(|var| &*var.name).peekable();
    // The norm of each, and whether it exists.
    let known = chosen.iter().flat_map(|var| match own.next_if_eq(&&*var.name) {
        Some(_) => [values.next().unwrap_or(0.0), 1.0],
        None => [0.0, 0.0],
    });
    let known = Tensor::from_slice(&known.collect::<Vec<_>>());
    cx.world().all_reduce("the norms of the divided gradients", &known, Op::Sum)?;
    let known = Vec::<f64>::try_from(&known)?;
    let found = chosen.iter().zip(known.chunks_exact(2)).filter(|(_, known)| known[1] > 0.0);
    let (found, of_found): (Vec<&Var>, Vec<f64>) = found.map(|(var, known)| (*var, known[0])).unzip();
    Ok((found, Tensor::from_slice(&of_found)))
}

/// Returns the norm of all tensors as one vector, from the norm of each.
fn total_of(each: &Tensor) -> Result<Tensor> {
    Ok(norms([each])?.f_get(0)?)
}

#[hook(in = stages::Monitors, only = train, single, settings, may_fail)]
impl ParameterMonitor {
    /// Returns an error if a setting is invalid.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.check(cx)
    }

    /// Repeats the check of `before_fit` for a resumed fit.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) -> Result<()> {
        self.check(cx)
    }

    /// Logs the values of a step if they are due.
    #[hook(observes)]
    fn observe(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if self.interval.is_due_before_step(cx) { self.run_observed(cx, next) } else { next.run(cx) }
    }
}

/// Lists no settings, because the hook only observes.
#[diagnostic::do_not_recommend]
impl Settings for ParameterMonitor {
    fn settings(&self) -> SettingList {
        SettingList::new()
    }

    fn mistakes(&self) -> Vec<String> {
        let nothing = refused([(
            !(self.gradients || self.weights || self.updates),
            "`ParameterMonitor` logs nothing: enable `.gradients(true)`, `.weights(true)` or `.updates(true)`"
                .to_owned(),
        )]);
        self.interval.mistakes().into_iter().chain(nothing).collect()
    }
}
