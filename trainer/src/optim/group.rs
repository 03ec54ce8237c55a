//! Parameter groups: what is updated in the same way.

use std::collections::HashSet;

use tch::Tensor;
use wildmatch::WildMatch;

use super::base::Base;
use super::rule::{Rule, SHARED};
use crate::error::{BuildError, Error, Result, suggestion};
use crate::libtorch::{self, Parameters, TensorList};
use crate::vars::{Var, Vars};

/// Parameters that are updated in the same way: those of one group of the `VarStore` that one
/// [pattern](super::AdamW::group) matches, or none.
///
/// Its hyperparameters can be read and set while training: [`lr`](ParamGroup::lr) and
/// [`weight_decay`](ParamGroup::weight_decay) as fields, all of them by [name](ParamGroup::set).
#[derive(Debug)]
#[non_exhaustive]
pub struct ParamGroup {
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// The number of the group, as set by `nn::Path::set_group`.
    pub group: usize,
    pattern: Option<String>,
    rule: &'static Rule,
    /// Beside each of the rule's settings.
    values: Vec<f64>,
    frozen: bool,
    parameters: Parameters,
    /// Beside each of the rule's slots, once it is needed: a tensor for each parameter.
    state: Vec<Option<TensorList>>,
}

/// The rule of an optimizer that is written elsewhere: it keeps its own state and hyperparameters.
static ELSEWHERE: Rule =
    Rule { name: "this optimizer", settings: &[], state: &[], refuses: |_| None, step: |_| Ok(()) };

impl ParamGroup {
    /// The parameters of a task in the groups of the `VarStore`, each with these settings: where an optimizer
    /// of one's own begins.
    #[must_use]
    pub fn split(vars: &Vars, lr: f64, weight_decay: f64) -> Vec<ParamGroup> {
        let base = Base::new(&ELSEWHERE, lr, weight_decay);
        members(vars, &[]).into_iter().map(|((_, group), vars)| ParamGroup::of(&base, group, &vars)).collect()
    }

    fn of(base: &Base, group: usize, vars: &[&Var]) -> Self {
        ParamGroup {
            lr: base.lr,
            weight_decay: base.weight_decay,
            group,
            pattern: None,
            rule: base.rule,
            values: base.values.clone(),
            frozen: false,
            parameters: vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect(),
            state: base.rule.state.iter().map(|_| None).collect(),
        }
    }

    /// The pattern that its parameters match: [`AdamW::group`](super::AdamW::group).
    #[must_use]
    pub fn pattern(&self) -> Option<&str> {
        self.pattern.as_deref()
    }

    /// What updates it: `AdamW`.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        self.rule.name
    }

    /// The names of its parameters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parameters.names()
    }

    /// Its parameters, in the order of [`names`](ParamGroup::names).
    pub fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.parameters.tensors().iter()
    }

    /// Every hyperparameter by name, `lr` and `weight_decay` first. What is either so or not, `frozen` or `amsgrad`, is 1 or 0.
    pub fn settings(&self) -> impl Iterator<Item = (&str, f64)> {
        let shared = [self.lr, self.weight_decay, f64::from(u8::from(self.frozen))];
        let own = self.rule.settings.iter().zip(&self.values).map(|(setting, value)| (setting.name, *value));
        SHARED.iter().map(|setting| setting.name).zip(shared).chain(own)
    }

    /// A hyperparameter by its name: `lr`, `beta1`.
    ///
    /// # Errors
    ///
    /// When the optimizer has none of that name; the message names the most similar one.
    pub fn get(&self, name: &str) -> Result<f64> {
        match self.settings().find(|(known, _)| *known == name) {
            Some((_, value)) => Ok(value),
            None => Err(self.rule.has_no(name)),
        }
    }

    /// Sets a hyperparameter by its name, from the next step on. State that the optimizer needs now, and did not before, begins
    /// anew: that of `amsgrad`, say.
    ///
    /// # Errors
    ///
    /// When the optimizer has none of that name, or when it cannot have that value.
    pub fn set(&mut self, name: &str, value: f64) -> Result<()> {
        let before = self.get(name)?;
        let was_frozen = self.frozen;
        self.assign(name, value)?;
        let switched = if self.frozen == was_frozen { Ok(()) } else { self.switch_gradients() };
        switched.and_then(|()| self.make_state()).inspect_err(|_| {
            // A step relies on the state that its settings need.
            let _ = self.assign(name, before);
        })
    }

    /// Are its parameters left as they are?
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Freezes its parameters, which then get no gradient (`requires_grad` is off), or thaws them all. What the optimizer
    /// remembers of them stays; that of a group that was frozen from the beginning is made now.
    ///
    /// # Errors
    ///
    /// Those of libtorch.
    pub fn set_frozen(&mut self, frozen: bool) -> Result<()> {
        self.set("frozen", f64::from(u8::from(frozen)))
    }

    /// Sets a hyperparameter, and nothing else yet.
    fn assign(&mut self, name: &str, value: f64) -> Result<()> {
        if let Some(shared) = SHARED.iter().find(|setting| setting.name == name) {
            shared.check(value)?;
            match name {
                "lr" => self.lr = value,
                "weight_decay" => self.weight_decay = value,
                _ => self.frozen = value != 0.0,
            }
        } else {
            let index = self.rule.index_of(name)?;
            self.rule.settings[index].check(value)?;
            self.values[index] = value;
        }
        Ok(())
    }

    /// What is frozen gets no gradient, and keeps none.
    fn switch_gradients(&self) -> Result<()> {
        for parameter in self.parameters() {
            let _ = parameter.f_set_requires_grad(!self.frozen)?;
        }
        if self.frozen { self.drop_grads() } else { Ok(()) }
    }

    /// Makes the state that is needed and not there.
    fn make_state(&mut self) -> Result<()> {
        for (nth, slot) in self.rule.state.iter().enumerate() {
            let is_needed =
                slot.only_with.map_or(Ok(true), |name| self.get(name).map(|value| value != 0.0))?;
            if is_needed && !self.frozen {
                self.make_slot(nth)?;
            }
        }
        Ok(())
    }

    fn make_slot(&mut self, nth: usize) -> Result<()> {
        if self.state[nth].is_none() {
            let slot = &self.rule.state[nth];
            let start = slot.starts_at.map_or(Ok(0.0), |name| self.get(name))?;
            let beside = |parameter| slot.beside(parameter, start);
            self.state[nth] = Some(self.parameters().map(beside).collect::<Result<_>>()?);
        }
        Ok(())
    }

    /// Makes the state of these names, which a checkpoint has: a group that is frozen now may have some from before.
    pub(super) fn make_state_of(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        for (nth, slot) in self.rule.state.iter().enumerate() {
            let has = |(name, _): &(String, Tensor)| {
                let parameter = name.strip_prefix(slot.name).and_then(|rest| rest.strip_prefix('/'));
                parameter.is_some_and(|parameter| self.names().any(|known| known == parameter))
            };
            if state.iter().any(has) {
                self.make_slot(nth)?;
            }
        }
        Ok(())
    }

    /// Describes the saved counts of steps that no run reaches.
    pub(super) fn impossible_counts(&self, saved: &[(String, Tensor)]) -> Vec<String> {
        let counts = self.rule.state.iter().filter(|slot| slot.counts_steps());
        let names: HashSet<_> =
            counts.flat_map(|slot| self.names().map(|name| format!("{}/{name}", slot.name))).collect();
        let impossible = saved
            .iter()
            .filter(|(name, count)| names.contains(name) && count.numel() == 1)
            .filter_map(|(name, count)| {
                let value = count.f_double_value(&vec![0; count.dim()]).unwrap_or(f64::NAN);
                let is_possible = value.is_finite() && value >= 0.0 && value.fract() == 0.0;
                (!is_possible).then(|| format!("`{name}` is {value}, not a count of steps"))
            });
        impossible.collect()
    }

    /// Its state by name, `exp_avg/fc1.weight`.
    pub(super) fn state(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.rule.state.iter().zip(&self.state).flat_map(|(slot, state)| {
            let tensors = state.iter().flat_map(TensorList::iter);
            self.names().zip(tensors).map(|(name, it)| (format!("{}/{name}", slot.name), it.shallow_clone()))
        })
    }

    pub(super) fn drop_grads(&self) -> Result<()> {
        libtorch::drop_grads(&self.parameters)
    }

    pub(super) fn step(&self) -> Result<()> {
        if self.frozen { Ok(()) } else { (self.rule.step)(self) }
    }

    /// For a rule: the values of its settings, as many as it has.
    pub(super) fn values<const N: usize>(&self) -> [f64; N] {
        self.values.as_slice().try_into().expect("a value for each setting")
    }

    /// For a rule: what it updates.
    pub(super) fn list(&self) -> &Parameters {
        &self.parameters
    }

    /// For a rule: the state of a slot that it needs.
    pub(super) fn slot(&self, nth: usize) -> &TensorList {
        self.state[nth].as_ref().expect("made when the group was, or when it was thawed or set")
    }
}

/// How the parameters that match a pattern differ from the others: [`AdamW::group`](super::AdamW::group).
///
/// ```
/// use trainer::optim::{AdamW, Group};
///
/// let optimizer = AdamW::new(1e-3)
///     .group("*.bias", Group::new().weight_decay(0.0))
///     .group("encoder.*", Group::new().lr(1e-5).set("beta2", 0.98))
///     .group("head.*", Group::new().frozen());
/// ```
#[derive(Debug, Default)]
pub struct Group {
    /// One of its own, in the place of the one that the group is in.
    optimizer: Option<Box<Base>>,
    settings: Vec<(String, f64)>,
}

impl Group {
    /// As the others.
    #[must_use]
    pub fn new() -> Self {
        Group::default()
    }

    /// Learning rate.
    #[must_use]
    pub fn lr(self, lr: f64) -> Self {
        self.set("lr", lr)
    }

    /// Weight decay.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        self.set("weight_decay", weight_decay)
    }

    /// Left as they are, without gradients, until [`ParamGroup::set_frozen`] thaws them.
    #[must_use]
    pub fn frozen(self) -> Self {
        self.set("frozen", 1.0)
    }

    /// Any hyperparameter of the optimizer, as [`ParamGroup::set`] takes it. One that it does not have is an error when the
    /// trainer is built.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: f64) -> Self {
        self.settings.push((name.into(), value));
        self
    }

    pub(super) fn by(optimizer: Base) -> Self {
        Group { optimizer: Some(Box::new(optimizer)), settings: Vec::new() }
    }
}

/// The parameters by the pattern that matches first, if one does, and by their group in the `VarStore`; in that order.
type Members<'a> = Vec<((Option<usize>, usize), Vec<&'a Var>)>;

fn members<'a>(vars: &'a Vars, patterns: &[WildMatch]) -> Members<'a> {
    let mut groups: Members<'a> = Vec::new();
    for var in vars.parameters() {
        let key = (patterns.iter().position(|pattern| pattern.matches(&var.name)), var.group);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(var),
            None => groups.push((key, vec![var])),
        }
    }
    groups.sort_by_key(|(key, _)| *key);
    groups
}

/// The groups of an optimizer, with their state. All mistakes are told.
pub(super) fn bind(base: &Base, vars: &Vars) -> Result<Vec<ParamGroup>> {
    let mut mistakes = Vec::new();
    let mut note = |place: &str, error: Error| mistakes.push(format!("{place}{error}"));
    base.check().for_each(|error| note("", error));
    let patterns: Vec<_> = base.groups_by.iter().map(|(pattern, _)| WildMatch::new(pattern)).collect();
    let mut groups = Vec::new();
    let members = members(vars, &patterns);
    for (nth, (pattern, _)) in base.groups_by.iter().enumerate() {
        if !vars.may_grow() && !members.iter().any(|((matched, _), _)| *matched == Some(nth)) {
            note(&place(pattern), matches_nothing(pattern, &patterns[nth], vars));
        }
    }
    for ((nth, group), vars) in members {
        groups.push(match nth.map(|nth| &base.groups_by[nth]) {
            None => ParamGroup::of(base, group, &vars),
            Some((pattern, settings)) => {
                let its = settings.optimizer.as_deref();
                let mut group = ParamGroup::of(its.unwrap_or(base), group, &vars);
                group.pattern = Some(pattern.clone());
                group
            }
        });
    }
    for (pattern, Group { optimizer, settings }) in &base.groups_by {
        if let Some(base) = optimizer {
            base.check().for_each(|error| note(&place(pattern), error));
            if !base.groups_by.is_empty() {
                let error =
                    "an optimizer within a group has no groups of its own: give them to the outer one";
                note(&place(pattern), Error::usage(error));
            }
        }
        for (name, value) in settings {
            // Groups of one pattern are alike, so that one mistake is told once.
            let of_pattern = groups.iter_mut().filter(|group| group.pattern() == Some(pattern));
            let result: Vec<_> = of_pattern.filter_map(|group| group.assign(name, *value).err()).collect();
            result.into_iter().take(1).for_each(|error| note(&place(pattern), error));
        }
    }
    mistakes.extend(unfit(vars));
    for refused in groups.iter().filter_map(|group| (group.rule.refuses)(group)) {
        if !mistakes.contains(&refused) {
            mistakes.push(refused);
        }
    }
    if !mistakes.is_empty() {
        return Err(Error::Build(Box::new(BuildError { mistakes })));
    }
    for group in &mut groups {
        if group.frozen {
            group.switch_gradients()?;
        }
        group.make_state()?;
    }
    Ok(groups)
}

/// Describes the parameters that the optimizers here cannot update.
pub(super) fn unfit(vars: &Vars) -> Vec<String> {
    let why = |var: &Var| Some(format!("the parameter `{}` {}", var.name, libtorch::unfit(&var.tensor)?));
    vars.parameters().filter_map(why).collect()
}

fn place(pattern: &str) -> String {
    format!("`.group(\"{pattern}\", …)`: ")
}

fn matches_nothing(pattern: &str, wild: &WildMatch, vars: &Vars) -> Error {
    if vars.parameters().any(|var| wild.matches(&var.name)) {
        return Error::usage(
            "every parameter that it matches is in a group before it: the first that matches has it",
        );
    }
    let similar = suggestion(pattern, vars.parameters().map(|var| var.name.as_str()));
    Error::usage(format!("it matches no parameter{similar}"))
}
