//! What the check-up sees in a fit.

use std::collections::BTreeMap;

use tch::Tensor;

use super::rules;
use crate::hooks::{HyperparameterSchedule, ReduceOnPlateau};
use crate::libtorch::Flow;
use crate::prelude::own::*;
use crate::{Leaf, Vars};

/// The largest number of batches of a fit whose operators are recorded: a tensor that was created
/// for a batch is not in the graph of the next one.
const RECORDED: u64 = 2;

/// What was seen of the gradient of a parameter.
#[derive(Debug)]
enum Gradient {
    /// It was never there.
    None,
    /// It was 0. The tensor holds the number of its elements that were not, since this was read
    /// last, so that the device is seldom waited for.
    Zero(Tensor),
    /// It was not 0.
    Seen,
}

/// A parameter.
#[derive(Debug)]
struct Parameter {
    /// The number of its changes at the start of the fit.
    changes: u64,
    /// The index of its optimizer.
    optimizer: Option<usize>,
    /// Whether it was trained when the current epoch began.
    is_trained: bool,
    /// The number of epochs in which it was trained.
    epochs: u64,
    gradient: Gradient,
    /// Whether the loss depended on it.
    is_in_graph: bool,
    /// Whether an operator used it.
    is_used: bool,
    /// Whether the prediction was computed from it by operators that record gradients.
    is_in_pred: bool,
}

/// What was seen in a fit.
#[derive(Debug)]
pub(super) struct Watch {
    vars: Vars,
    /// One for each parameter of `vars`.
    parameters: Vec<Parameter>,
    /// The number of optimizer steps before the fit.
    steps: u64,
    /// The number of parameters that were 0 when the first gradient of 0 was seen.
    zeros: Option<u64>,
    /// The current epoch.
    epoch: Option<u64>,
    /// The number of batches whose operators were recorded.
    recorded: u64,
    /// The number of backward passes.
    backwards: u64,
    /// Whether an operator has chosen something by values, so that other batches can use other
    /// layers.
    selects: bool,
    /// Whether all operators were recorded.
    is_complete: bool,
    /// The leaves of no store, with the number of their changes: those of this batch, and those of
    /// all recorded batches.
    foreign: [Vec<(Leaf, u64)>; 2],
    is_second_order: bool,
    input: Input,
    /// For each optimizer, its part, the number of its steps before the fit, and whether all of its
    /// learning rates have been 0.
    rates: Vec<(String, u64, bool)>,
}

/// What the recorded batches say about their inputs.
#[derive(Debug, Default)]
struct Input {
    is_used: bool,
    /// What was computed without the input.
    what: &'static str,
    /// The tensors of the recorded batches.
    batches: Vec<Vec<Tensor>>,
}

impl Watch {
    /// Decides the rules about settings.
    pub(super) fn begin(cx: &Cx<BeforeStep>) -> Result<Self> {
        schedules(cx)?;
        let mut of_optimizers = Vec::new();
        let mut rates = Vec::new();
        for (nth, part) in cx.parts().enumerate() {
            let groups = cx.optimizer_of(part)?.groups();
            of_optimizers.extend(
                groups.iter().flat_map(|group| group.names().map(move |name| (name.to_owned(), nth))),
            );
            rates.push((part.to_owned(), cx.steps_of(part)?, !groups.is_empty()));
        }
        let of_optimizers: BTreeMap<String, usize> = of_optimizers.into_iter().collect();
        let vars = cx.vars();
        let parameters = vars.parameters().map(|var| Parameter {
            changes: var.changes(),
            optimizer: of_optimizers.get(&var.name).copied(),
            is_trained: false,
            epochs: 0,
            gradient: Gradient::None,
            is_in_graph: false,
            is_used: false,
            is_in_pred: false,
        });
        Ok(Watch {
            parameters: parameters.collect(),
            vars,
            steps: cx.counters().optimizer_steps,
            zeros: None,
            epoch: None,
            recorded: 0,
            backwards: 0,
            selects: false,
            is_complete: true,
            foreign: Default::default(),
            is_second_order: false,
            input: Input::default(),
            rates,
        })
    }

    /// Begins a batch, and returns whether to record its operators.
    pub(super) fn begin_batch(&mut self, cx: &Cx<BeforeStep>) -> Result<bool> {
        if self.epoch != Some(cx.counters().epoch) {
            self.end_epoch(cx)?;
            self.epoch = Some(cx.counters().epoch);
            for (var, parameter) in self.vars.parameters().zip(&mut self.parameters) {
                parameter.is_trained = var.tensor.requires_grad();
            }
            if let Some(batches) = cx.plan().batches.filter(|_| !cx.plan().is_limited)
                && cx.plan().accumulation > batches
            {
                rules::ACCUMULATION.warn(cx, &[&cx.plan().accumulation.to_string(), &batches.to_string()]);
            }
        }
        Ok(self.recorded < RECORDED)
    }

    /// Looks at the graph and the gradients. Returns whether nothing is left to see.
    pub(super) fn after_backward(&mut self, flow: Option<&Flow>, cx: &Cx<AfterBackward>) -> Result<bool> {
        let _no_grad = tch::no_grad_guard();
        if let Some(flow) = flow {
            self.look_at_graph(cx)?;
            self.look_at_flow(flow, cx)?;
        }
        self.backwards += 1;
        let reads = self.backwards.is_power_of_two();
        let mut is_done = true;
        let mut has_zero = false;
        for (var, parameter) in self.vars.parameters().zip(&mut self.parameters) {
            if !cx.has_grad_of(&var.name) {
                parameter.gradient = Gradient::Seen; // the rank that has it looks at it
            }
            if let Gradient::Seen = parameter.gradient {
                continue;
            }
            let gradient = var.tensor.grad();
            if gradient.defined() {
                parameter.look_at(&gradient, reads)?;
                has_zero |= matches!(parameter.gradient, Gradient::Zero(_));
            }
            is_done &= matches!(parameter.gradient, Gradient::Seen) || !var.tensor.requires_grad();
        }
        if has_zero && self.zeros.is_none() {
            let mut zeros = 0;
            for var in self.vars.parameters() {
                zeros += u64::from(!is_not_0(&count_not_0(&var.tensor)?)?);
            }
            self.zeros = Some(zeros);
        }
        Ok(is_done && flow.is_none())
    }

    /// Sorts the leaves of the graph into parameters and others.
    fn look_at_graph(&mut self, cx: &Cx<AfterBackward>) -> Result<()> {
        let leaves = cx.loss_leaves()?;
        self.is_second_order |= leaves.contain_gradients;
        let mut batch = Vec::new();
        cx.visit_batch(|tensor| batch.push(tensor.shallow_clone()));
        let names: Vec<&str> = self.vars.parameters().map(|var| &*var.name).collect(); // sorted
        for leaf in leaves.leaves {
            let parameter = leaf.var.as_ref().and_then(|name| names.binary_search(&&**name).ok());
            if let Some(nth) = parameter {
                self.parameters[nth].is_in_graph = true;
            } else if !batch.iter().any(|own| leaf.is(own))
                && !self.foreign[0].iter().any(|(known, _)| known.is(&leaf.tensor))
            {
                let changes = leaf.changes();
                self.foreign[0].push((leaf, changes));
            }
        }
        Ok(())
    }

    /// Looks at what the loss and the prediction were computed from.
    fn look_at_flow(&mut self, flow: &Flow, cx: &Cx<AfterBackward>) -> Result<()> {
        let parameters: Vec<_> = self.vars.parameters().map(|var| var.tensor.shallow_clone()).collect();
        let uses = flow.uses(&parameters)?;
        let (_, is_known) = flow.sources(&cx.loss(), false, &[])?;
        self.selects |= uses.selects || !is_known;
        self.is_complete &= !uses.has_failed;
        let mut preds = Vec::new();
        cx.visit_pred(|tensor| {
            if tensor.requires_grad() {
                preds.push(tensor.shallow_clone());
            }
        });
        for (parameter, used) in self.parameters.iter_mut().zip(uses.used) {
            parameter.is_used |= used;
        }
        for pred in &preds {
            let (found, _) = flow.sources(pred, true, &parameters)?;
            self.parameters
                .iter_mut()
                .zip(found)
                .for_each(|(parameter, found)| parameter.is_in_pred |= found);
        }
        let mut batch = Vec::new();
        cx.visit_batch(|tensor| batch.push(tensor.shallow_clone()));
        let depends = |of: &Tensor| -> Result<bool> {
            let (found, is_known) = flow.sources(of, false, &batch)?;
            Ok(!is_known || found.contains(&true))
        };
        let mut without = "";
        if !depends(&cx.loss())? {
            without = "the loss";
        } else if batch.len() > 1 && !preds.is_empty() {
            let mut is_any = false;
            for pred in &preds {
                is_any |= depends(pred)?;
            }
            without = if is_any { "" } else { "the prediction" };
        }
        if without.is_empty() || batch.is_empty() || uses.has_failed {
            self.input.is_used = true;
        } else {
            self.input.what = without;
            self.input.batches.push(batch);
        }
        Ok(())
    }

    /// Ends a batch whose operators were recorded.
    pub(super) fn end_batch(&mut self) {
        self.recorded += 1;
        let [batch, all] = &mut self.foreign;
        if self.recorded == 1 {
            std::mem::swap(batch, all);
            if all.is_empty()
                && self.input.is_used
                && self.parameters.iter().all(|parameter| parameter.is_in_graph)
            {
                self.recorded = RECORDED; // a second one would show no more
            }
        } else {
            // Others were created for one of the batches.
            all.retain(|(leaf, _)| batch.iter().any(|(other, _)| leaf.is(&other.tensor)));
        }
        batch.clear();
    }

    /// Decides the rules about an epoch that has ended.
    fn end_epoch<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        for (part, _, are_0) in &mut self.rates {
            *are_0 &= cx.optimizer_of(part)?.groups().iter().all(|group| group.lr == 0.0);
        }
        if self.epoch.is_none() {
            return Ok(());
        }
        for (var, parameter) in self.vars.parameters().zip(&mut self.parameters) {
            parameter.epochs += u64::from(parameter.is_trained && var.tensor.requires_grad());
        }
        let untrained = self.names(|var, parameter| {
            parameter.is_in_graph && parameter.optimizer.is_none() && parameter.is_unchanged(var)
        });
        if !untrained.is_empty() {
            rules::NO_OPTIMIZER.warn(cx, &[&folded(&untrained)]);
        }
        if self.recorded >= RECORDED && !self.is_second_order {
            let foreign = std::mem::take(&mut self.foreign[1]).into_iter();
            let foreign: Vec<_> = foreign.filter(|(leaf, before)| leaf.changes() == *before).collect();
            if !foreign.is_empty() {
                let shapes: Vec<_> =
                    foreign.iter().map(|(leaf, _)| format!("{:?}", leaf.tensor.size())).collect();
                let what = if shapes.len() == 1 { "a tensor of shape" } else { "tensors of the shapes" };
                rules::FOREIGN.warn(cx, &[&format!("{what} {}", at_most(&shapes, "and"))]);
            }
        }
        let Input { is_used, what, batches } = &mut self.input;
        if !*is_used && batches.windows(2).any(|pair| !are_equal(&pair[0], &pair[1])) {
            rules::NO_INPUT.warn(cx, &[what]);
        }
        if self.recorded >= RECORDED {
            batches.clear();
        }
        Ok(())
    }

    /// Decides the rules about the whole fit.
    pub(super) fn end(&mut self, trained: &mut Vec<String>, cx: &Cx<AfterFit>) -> Result<()> {
        self.end_epoch(cx)?;
        for parameter in &mut self.parameters {
            if let Gradient::Zero(other) = &parameter.gradient
                && is_not_0(other)?
            {
                parameter.gradient = Gradient::Seen;
            }
        }
        let had = self.names(|_, parameter| matches!(parameter.gradient, Gradient::Seen));
        trained.extend(had);
        trained.sort();
        trained.dedup();
        if cx.is_fast_dev_run() || self.backwards < 2 {
            return Ok(());
        }
        let mut has_stepped = Vec::new();
        for (part, before, _) in &self.rates {
            has_stepped.push(cx.steps_of(part)? > *before);
        }
        let steps = cx.counters().optimizer_steps - self.steps;
        let is_settled = steps > self.zeros.unwrap_or(0);
        let never = |var: &crate::Var, parameter: &Parameter| {
            parameter.epochs > 0
                && parameter.optimizer.is_some_and(|nth| has_stepped[nth])
                && trained.binary_search(&var.name).is_err()
                && !(self.selects && self.has_twin(var))
        };
        let without = |var: &crate::Var, parameter: &Parameter| {
            matches!(parameter.gradient, Gradient::None)
                && self.is_complete
                && self.recorded > 0
                && !parameter.is_in_graph
                && parameter.is_unchanged(var)
                && never(var, parameter)
        };
        let unused = self.names(|var, parameter| without(var, parameter) && !parameter.is_used);
        let cut = self.names(|var, parameter| without(var, parameter) && parameter.is_in_pred);
        let zero = self.names(|var, parameter| {
            let is_zero = matches!(parameter.gradient, Gradient::Zero(_));
            is_zero && is_settled && never(var, parameter) && !self.is_of_trained_layer(var)
        });
        let unchanged = self.names(|var, parameter| {
            let is_reached = parameter.is_in_graph || matches!(parameter.gradient, Gradient::Seen);
            is_reached && parameter.epochs > 0 && parameter.optimizer.is_some() && parameter.is_unchanged(var)
        });
        for (rule, names) in
            [(rules::UNUSED, unused), (rules::CUT, cut), (rules::ZERO, zero), (rules::UNCHANGED, unchanged)]
        {
            if !names.is_empty() {
                rule.warn(cx, &[&folded(&names)]);
            }
        }
        for ((part, _, are_0), has_stepped) in self.rates.iter().zip(has_stepped) {
            if *are_0 && has_stepped {
                let of = if part.is_empty() { String::new() } else { format!(" of `{part}`") };
                rules::NO_RATE.warn(cx, &[&format!("the optimizer{of}")]);
            }
        }
        Ok(())
    }

    /// Returns the names of the parameters that are trained and for which `is` holds.
    fn names(&self, is: impl Fn(&crate::Var, &Parameter) -> bool) -> Vec<String> {
        let all = self.vars.parameters().zip(&self.parameters);
        let found = all.filter(|(var, parameter)| var.tensor.requires_grad() && is(var, parameter));
        found.map(|(var, _)| var.name.clone()).collect()
    }

    /// Whether another parameter of the same layer had a gradient. The effect of a bias on a
    /// difference, as that of a critic, is 0.
    fn is_of_trained_layer(&self, var: &crate::Var) -> bool {
        let layer = |name: &str| name.rsplit_once('.').map(|(layer, _)| layer.to_owned());
        let own = layer(&var.name);
        own.is_some()
            && self.vars.parameters().zip(&self.parameters).any(|(other, parameter)| {
                matches!(parameter.gradient, Gradient::Seen) && layer(&other.name) == own
            })
    }

    /// Whether a parameter of the same shape, whose name differs only in a number, had a gradient:
    /// another expert of a mixture.
    fn has_twin(&self, var: &crate::Var) -> bool {
        let without_digits = |name: &str| name.replace(|letter: char| letter.is_ascii_digit(), "");
        let name = without_digits(&var.name);
        self.vars.parameters().zip(&self.parameters).any(|(other, parameter)| {
            matches!(parameter.gradient, Gradient::Seen)
                && other.name != var.name
                && other.tensor.size() == var.tensor.size()
                && without_digits(&other.name) == name
        })
    }
}

impl Parameter {
    /// Looks at a gradient of this batch. Waits for the device if `reads` is set.
    fn look_at(&mut self, gradient: &Tensor, reads: bool) -> Result<()> {
        if gradient.is_sparse() {
            self.gradient = Gradient::Seen;
            return Ok(());
        }
        let own = count_not_0(gradient)?;
        let other = match &self.gradient {
            Gradient::Zero(before) => before.f_add(&own)?,
            _ => own,
        };
        let is_seen = reads && is_not_0(&other)?;
        self.gradient = if is_seen { Gradient::Seen } else { Gradient::Zero(other) };
        Ok(())
    }

    /// Whether nothing has changed the parameter in the fit.
    fn is_unchanged(&self, var: &crate::Var) -> bool {
        var.changes() == self.changes
    }
}

/// Whether two batches have the same values.
fn are_equal(one: &[Tensor], other: &[Tensor]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.f_equal(other).unwrap_or(false))
}

/// Counts the elements that are not 0, NaN among them. Unlike `any`, which first converts the
/// tensor, allocates only the result on the CPU.
fn count_not_0(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.f_count_nonzero(None)?)
}

fn is_not_0(count: &Tensor) -> Result<bool> {
    Ok(count.f_int64_value(&[])? != 0)
}

/// Names schedules that contradict each other, and those that end too early.
fn schedules(cx: &Cx<BeforeStep>) -> Result<()> {
    let all: Vec<_> = cx.hooks::<HyperparameterSchedule>().collect();
    for (nth, schedule) in all.iter().enumerate() {
        for other in &all[..nth] {
            if let Some(name) = schedule.sets_what_sets(other, cx)? {
                rules::TWO_SCHEDULES.warn(cx, &[&name]);
            }
        }
        if schedule.sets_lr() && schedule.changes_late(cx) {
            for plateau in cx.hooks::<ReduceOnPlateau>() {
                if schedule.has_part_of(plateau.of_part()) {
                    let part = plateau.of_part().map(|part| format!("`{part}`"));
                    rules::SCHEDULE_AND_PLATEAU.warn(cx, &[part.as_deref().unwrap_or("the model")]);
                }
            }
        }
        if let Some([end, run]) = schedule.ends_early(cx).filter(|_| !cx.is_fast_dev_run()) {
            rules::SCHEDULE_ENDS.warn(cx, &[&end, &run]);
        }
    }
    Ok(())
}

/// Lists names, and only the layers of many.
fn folded(names: &[String]) -> String {
    const SHOWN: usize = 4;
    if names.len() <= SHOWN {
        let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        return at_most(&quoted, "and");
    }
    let mut layers: Vec<(&str, usize)> = Vec::new();
    for name in names {
        let layer = name.split_once('.').map_or(name.as_str(), |(layer, _)| layer);
        match layers.last_mut() {
            Some((known, count)) if *known == layer => *count += 1,
            _ => layers.push((layer, 1)),
        }
    }
    let listed = layers.iter().map(|(layer, count)| match count {
        1 => format!("`{layer}…`"),
        count => format!("{count} parameters of `{layer}`"),
    });
    at_most(&listed.collect::<Vec<_>>(), "and")
}

/// Joins texts, and counts those after the first ones.
fn at_most(texts: &[String], and: &str) -> String {
    const SHOWN: usize = 4;
    match texts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] if texts.len() <= SHOWN => format!("{} {and} {last}", first.join(", ")),
        _ => format!("{} {and} {} more", texts[..SHOWN].join(", "), texts.len() - SHOWN),
    }
}
