//! Parameter groups: parameters that are updated with the same settings.

use std::collections::HashSet;

use tch::Tensor;
use wildmatch::WildMatch;

use super::algorithm::{Algorithm, SHARED, StateSlot};
use super::optimizer_core::OptimizerCore;
use crate::error::{BuildError, Error, Result, in_other_case, suggestion_among};
use crate::libtorch::{self, Parameters, TensorList};
use crate::model::vars::{Var, Vars};

/// A set of parameters that are updated with the same settings: the parameters of one `VarStore`
/// group that match the same [pattern](super::AdamW::group), or no pattern.
///
/// The hyperparameters can be read and set during training: [`lr`](ParamGroup::lr) and
/// [`weight_decay`](ParamGroup::weight_decay) as fields, all of them by [name](ParamGroup::set).
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Starts weight decay in the second epoch.
/// #[hook(only = train)]
/// fn decay(cx: &mut Cx<BeforeEpoch>) -> Result<()> {
///     let weight_decay = if cx.counters().epoch == 0 { 0.0 } else { 0.1 };
///     for group in cx.optimizer_mut()?.groups_mut() {
///         group.weight_decay = weight_decay;
///     }
///     Ok(())
/// }
/// # fn main() {}
/// ```
#[doc(alias = "param_groups")]
#[derive(Debug)]
#[non_exhaustive]
pub struct ParamGroup {
    /// The learning rate.
    pub lr: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// The group number in the `VarStore`, as set by `nn::Path::set_group`.
    pub group: usize,
    pattern: Option<String>,
    algorithm: &'static Algorithm,
    /// The values of the algorithm's settings, in the order of [`Algorithm::settings`].
    values: Vec<f64>,
    frozen: bool,
    parameters: Parameters,
    /// The parameters that this process updates: all of them, unless the optimizer is
    /// [sharded](super::Sharded).
    own: Parameters,
    /// For each of the algorithm's state slots, one tensor per parameter in `own`; `None` until it
    /// is needed.
    state: Vec<Option<TensorList>>,
}

/// The name of the group of the parameters that no pattern matches.
pub(crate) const DEFAULT: &str = "default";

/// A placeholder for the algorithm of an optimizer that is implemented elsewhere and keeps its own
/// state and hyperparameters.
static UNKNOWN: Algorithm = Algorithm::new("this optimizer", |_| Ok(()));

impl ParamGroup {
    /// Splits the parameters of a task into the groups of its `VarStore`, each with these settings.
    /// Useful as a starting point for custom optimizers.
    #[must_use]
    pub fn split(vars: &Vars, lr: f64, weight_decay: f64) -> Vec<ParamGroup> {
        let core = OptimizerCore::new(&UNKNOWN, lr, weight_decay);
        members(vars, &[])
            .into_iter()
            .map(|((_, group), vars)| ParamGroup::new(&core, group, &vars, &|_| true))
            .collect()
    }

    fn new(core: &OptimizerCore, group: usize, vars: &[&Var], is_own: &dyn Fn(&str) -> bool) -> Self {
        let own = vars.iter().filter(|var| is_own(&var.name));
        ParamGroup {
            lr: core.lr,
            weight_decay: core.weight_decay,
            group,
            pattern: None,
            algorithm: core.algorithm,
            values: core.values.clone(),
            frozen: false,
            parameters: vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect(),
            own: own.map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect(),
            state: core.algorithm.state.iter().map(|_| None).collect(),
        }
    }

    /// Returns the pattern that defines this group, if there is one: see
    /// [`AdamW::group`](super::AdamW::group).
    #[must_use]
    pub fn pattern(&self) -> Option<&str> {
        self.pattern.as_deref()
    }

    /// Returns the name of this group in the names of values, such as `*.bias`: its pattern, or
    /// `default` for parameters that no pattern matches. For a group of the `VarStore` other than
    /// 0, its number follows: `default#1`.
    #[must_use]
    pub fn label(&self) -> String {
        let pattern = self.pattern().unwrap_or(DEFAULT);
        if self.group == 0 { pattern.to_owned() } else { format!("{pattern}#{}", self.group) }
    }

    /// Returns the name of the algorithm that updates this group, such as `AdamW`.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        self.algorithm.name
    }

    /// Returns the names of the parameters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parameters.names()
    }

    /// Returns the parameters, in the order of [`names`](ParamGroup::names).
    pub fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.parameters.tensors().iter()
    }

    /// Returns every hyperparameter by name, `lr` and `weight_decay` first. Boolean ones, such as
    /// `frozen` and `amsgrad`, are 1 or 0.
    pub fn settings(&self) -> impl Iterator<Item = (&str, f64)> {
        let shared = [self.lr, self.weight_decay, f64::from(u8::from(self.frozen))];
        let own =
            self.algorithm.settings.iter().zip(&self.values).map(|(setting, value)| (setting.name, *value));
        SHARED.iter().map(|setting| setting.name).zip(shared).chain(own)
    }

    /// Returns the value of the hyperparameter with this name, such as `lr` or `beta1`.
    ///
    /// # Errors
    ///
    /// Returns an error if the optimizer has no hyperparameter with this name. The error suggests a
    /// similar name.
    pub fn get(&self, name: &str) -> Result<f64> {
        match self.settings().find(|(known, _)| *known == name) {
            Some((_, value)) => Ok(value),
            None => Err(self.algorithm.has_no(name)),
        }
    }

    /// Sets the hyperparameter with this name, starting with the next step. If the new value
    /// requires additional state, as `amsgrad` does, the state is created unless it exists already.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the optimizer has no hyperparameter with this name;
    /// - the value is invalid;
    /// - libtorch fails.
    pub fn set(&mut self, name: &str, value: f64) -> Result<()> {
        let before = self.get(name)?;
        let was_frozen = self.frozen;
        self.assign(name, value)?;
        let switched = if self.frozen == was_frozen { Ok(()) } else { self.switch_gradients() };
        switched.and_then(|()| self.create_state()).inspect_err(|_| {
            // A step needs the state that the settings require: without it, restore the old value.
            let _ = self.assign(name, before);
        })
    }

    /// Returns whether the parameters are frozen, either by the program or because all of them were
    /// frozen (`requires_grad` was off) when the trainer was built. A group that was frozen when
    /// the trainer was built has no state until it is thawed.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Freezes the parameters or, if `frozen` is `false`, thaws all parameters of a frozen group.
    /// Frozen parameters get no gradient (`requires_grad` is off). Their optimizer state is kept.
    /// If the group has no state because it was frozen from the start, thawing creates it.
    ///
    /// In a group that [is not frozen](ParamGroup::is_frozen), individual frozen parameters are
    /// thawed only by [`set_frozen_where`](ParamGroup::set_frozen_where).
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn set_frozen(&mut self, frozen: bool) -> Result<()> {
        self.set("frozen", f64::from(u8::from(frozen)))
    }

    /// Freezes the parameters whose names satisfy `accepts`, or thaws them if `frozen` is `false`.
    /// Other parameters are unchanged. Returns the number of parameters that were frozen or thawed.
    ///
    /// A frozen parameter gets no gradient, and steps skip it. A group whose parameters are all
    /// frozen [is frozen](ParamGroup::is_frozen) itself.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn set_frozen_where(&mut self, frozen: bool, mut accepts: impl FnMut(&str) -> bool) -> Result<usize> {
        let is_chosen: Vec<bool> = self
            .names()
            .zip(self.parameters())
            .map(|(name, parameter)| parameter.requires_grad() == frozen && accepts(name))
            .collect();
        let count = is_chosen.iter().filter(|is_chosen| **is_chosen).count();
        if count == 0 {
            return Ok(0);
        }
        let stays_frozen: Vec<bool> = (self.parameters().zip(&is_chosen))
            .map(|(parameter, is_chosen)| if *is_chosen { frozen } else { !parameter.requires_grad() })
            .collect();
        if self.frozen {
            self.set("frozen", 0.0)?; // this thaws all parameters
        }
        for (parameter, is_frozen) in self.parameters().zip(&stays_frozen) {
            let _ = parameter.f_set_requires_grad(!is_frozen)?;
        }
        if frozen {
            let chosen =
                self.names().zip(self.parameters()).zip(&is_chosen).filter(|(_, is_chosen)| **is_chosen);
            let chosen =
                chosen.map(|((name, parameter), _)| (name.to_owned(), parameter.shallow_clone())).collect();
            libtorch::drop_grads(&chosen)?;
            if stays_frozen.iter().all(|is_frozen| *is_frozen) {
                self.set("frozen", 1.0)?;
            }
        }
        Ok(count)
    }

    /// Sets a hyperparameter without applying its effects on gradients and state.
    fn assign(&mut self, name: &str, value: f64) -> Result<()> {
        if let Some(shared) = SHARED.iter().find(|setting| setting.name == name) {
            shared.check(value)?;
            match name {
                "lr" => self.lr = value,
                "weight_decay" => self.weight_decay = value,
                _ => self.frozen = value != 0.0,
            }
        } else {
            let index = self.algorithm.index_of(name)?;
            self.algorithm.settings[index].check(value)?;
            self.values[index] = value;
        }
        Ok(())
    }

    /// If the group is frozen, turns off the gradients of its parameters and drops existing ones.
    /// Otherwise turns the gradients on.
    fn switch_gradients(&self) -> Result<()> {
        for parameter in self.parameters() {
            let _ = parameter.f_set_requires_grad(!self.frozen)?;
        }
        if self.frozen { self.drop_grads() } else { Ok(()) }
    }

    /// Creates the state that the current settings require and that does not exist yet, unless the
    /// group is frozen.
    fn create_state(&mut self) -> Result<()> {
        for (nth, slot) in self.algorithm.state.iter().enumerate() {
            if self.needs(slot)? && !self.frozen {
                self.create_state_slot(nth)?;
            }
        }
        Ok(())
    }

    /// Whether the current settings require a state.
    fn needs(&self, slot: &StateSlot) -> Result<bool> {
        slot.only_with.map_or(Ok(true), |name| self.get(name).map(|value| value != 0.0))
    }

    /// Creates one state slot, unless it exists.
    fn create_state_slot(&mut self, nth: usize) -> Result<()> {
        if self.state[nth].is_none() {
            let slot = &self.algorithm.state[nth];
            let start = slot.starts_at.map_or(Ok(0.0), |name| self.get(name))?;
            let created = self.own.tensors().iter().map(|parameter| slot.create(parameter, start));
            self.state[nth] = Some(created.collect::<Result<_>>()?);
        }
        Ok(())
    }

    /// Creates the state slots that a checkpoint contains, even those that the current settings do
    /// not require: a frozen group may have state from before it was frozen.
    pub(super) fn create_state_for(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        for (nth, slot) in self.algorithm.state.iter().enumerate() {
            let is_saved = state.iter().any(|(name, _)| {
                let parameter = name.strip_prefix(slot.name).and_then(|rest| rest.strip_prefix('/'));
                parameter.is_some_and(|parameter| self.own.names().any(|known| known == parameter))
            });
            if is_saved {
                self.create_state_slot(nth)?;
            }
        }
        Ok(())
    }

    /// Describes the saved step counts that are negative, not integers or not finite.
    pub(super) fn impossible_counts(&self, saved: &[(String, Tensor)]) -> Vec<String> {
        let counts = self.algorithm.state.iter().filter(|slot| slot.counts_steps());
        let names: HashSet<_> =
            counts.flat_map(|slot| self.own.names().map(|name| format!("{}/{name}", slot.name))).collect();
        let impossible = saved
            .iter()
            .filter(|(name, count)| names.contains(name) && count.numel() == 1)
            .filter_map(|(name, count)| {
                let value = count.f_double_value(&vec![0; count.dim()]).unwrap_or(f64::NAN);
                let is_possible = value.is_finite() && value >= 0.0 && value.fract() == 0.0;
                (!is_possible).then(|| format!("`{name}` is {value}, not a step count"))
            });
        impossible.collect()
    }

    /// Returns the state tensors by name, such as `exp_avg/fc1.weight`.
    pub(super) fn state(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.algorithm.state.iter().zip(&self.state).flat_map(|(slot, state)| {
            let own = self.own.names().zip(state.iter().flat_map(TensorList::iter));
            own.map(|(name, tensor)| (format!("{}/{name}", slot.name), tensor.shallow_clone()))
        })
    }

    /// Returns the names of the state that the algorithm needs for each parameter with the current
    /// settings, such as `exp_avg`.
    pub(crate) fn state_names(&self) -> impl Iterator<Item = &'static str> {
        let slots = self.algorithm.state.iter();
        slots.filter(|slot| self.needs(slot).unwrap_or(true)).map(|slot| slot.name)
    }

    pub(super) fn drop_grads(&self) -> Result<()> {
        libtorch::drop_grads(&self.parameters)
    }

    pub(super) fn step(&self) -> Result<()> {
        if self.frozen { Ok(()) } else { (self.algorithm.step)(self) }
    }

    /// Returns the parameters that the step of an [`Algorithm`] updates, in the order of
    /// [`names`](ParamGroup::names): those that have a gradient and whose state this process holds.
    pub fn updates(&self) -> impl Iterator<Item = Update<'_>> {
        let own = self.own.names().zip(self.own.tensors().iter()).enumerate();
        own.filter(|(_, (_, parameter))| parameter.grad().defined()).map(|(nth, (name, parameter))| {
            let state = self.state.iter().flatten().filter_map(|list| list.iter().nth(nth));
            Update {
                name,
                parameter: parameter.detach(),
                grad: parameter.grad(),
                state: state.map(Tensor::shallow_clone).collect(),
            }
        })
    }

    /// Returns the values of the algorithm's settings. Panics unless there are exactly `N`.
    pub(super) fn values<const N: usize>(&self) -> [f64; N] {
        self.values.as_slice().try_into().expect("a value for each setting")
    }

    /// Returns the parameters that this process updates, in the form that the kernels take.
    pub(super) fn list(&self) -> &Parameters {
        &self.own
    }

    /// Returns the tensors of a state slot. Panics unless the current settings require this slot.
    pub(super) fn slot(&self, nth: usize) -> &TensorList {
        self.state[nth]
            .as_ref()
            .expect("required state is created with the group, when it is thawed, and when a setting changes")
    }
}

/// A parameter that the step of an [`Algorithm`] updates, with its gradient and its state. The
/// tensors share their storage with those of the model and the optimizer. The algorithm changes
/// them in place, and these changes are not recorded for a backward pass.
#[derive(Debug)]
#[non_exhaustive]
pub struct Update<'g> {
    /// The name of the parameter.
    pub name: &'g str,
    /// The parameter.
    pub parameter: Tensor,
    /// Its gradient, in the dtype of the parameter.
    pub grad: Tensor,
    /// The state of the algorithm, in the order of [`Algorithm::state`]. Tensors that no settings
    /// have required so far are omitted.
    pub state: Vec<Tensor>,
}

/// Settings for the parameters that match a pattern: see [`AdamW::group`](super::AdamW::group).
///
/// ```
/// use trainer::optim::{AdamW, Group};
///
/// let optimizer = AdamW::new(1e-3)
///     .group("*.bias", Group::new().weight_decay(0.0))
///     .group("encoder.*", Group::new().lr(1e-5).set("beta2", 0.98))
///     .group("head.*", Group::new().frozen(true));
/// ```
#[derive(Debug, Default)]
pub struct Group {
    /// The optimizer that updates the group; `None` if the enclosing optimizer does.
    optimizer: Option<Box<OptimizerCore>>,
    settings: Vec<(String, f64)>,
}

impl Group {
    /// Creates a group with the same settings as the optimizer.
    #[must_use]
    pub fn new() -> Self {
        Group::default()
    }

    /// Sets the learning rate.
    #[must_use]
    pub fn lr(self, lr: f64) -> Self {
        self.set("lr", lr)
    }

    /// Sets the weight decay.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        self.set("weight_decay", weight_decay)
    }

    /// Sets whether the parameters are frozen. Frozen parameters get no gradients and are not
    /// updated until [`ParamGroup::set_frozen`] thaws them. Defaults to `false`.
    #[must_use]
    pub fn frozen(self, frozen: bool) -> Self {
        self.set("frozen", f64::from(u8::from(frozen)))
    }

    /// Sets any hyperparameter of the optimizer by name, like [`ParamGroup::set`]. An unknown name
    /// or an invalid value is an error when the trainer is built.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: f64) -> Self {
        self.settings.push((name.into(), value));
        self
    }

    pub(super) fn with_optimizer(optimizer: OptimizerCore) -> Self {
        Group { optimizer: Some(Box::new(optimizer)), settings: Vec::new() }
    }
}

/// Parameters, keyed by the index of the first pattern that matches, if any, and by their group in
/// the `VarStore`.
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

/// Creates the groups of an optimizer, with the state of the parameters that `is_own` accepts.
/// Returns an error that lists all mistakes if there are any.
pub(super) fn bind(
    core: &OptimizerCore,
    vars: &Vars,
    is_own: &dyn Fn(&str) -> bool,
) -> Result<Vec<ParamGroup>> {
    let mut mistakes = Vec::new();
    let mut note = |place: &str, error: Error| mistakes.push(format!("{place}{error}"));
    core.check().for_each(|error| note("", error));
    let patterns: Vec<_> = core.groups_by.iter().map(|(pattern, _)| WildMatch::new(pattern)).collect();
    let mut groups = Vec::new();
    let members = members(vars, &patterns);
    for (nth, (pattern, _)) in core.groups_by.iter().enumerate() {
        if !vars.may_grow() && !members.iter().any(|((matched, _), _)| *matched == Some(nth)) {
            note(&group_call(pattern), matches_nothing(pattern, &patterns[nth], vars));
        }
    }
    for ((nth, group), vars) in members {
        groups.push(match nth.map(|nth| &core.groups_by[nth]) {
            None => ParamGroup::new(core, group, &vars, is_own),
            Some((pattern, settings)) => {
                let its = settings.optimizer.as_deref();
                let mut group = ParamGroup::new(its.unwrap_or(core), group, &vars, is_own);
                group.pattern = Some(pattern.clone());
                group
            }
        });
    }
    for (pattern, Group { optimizer, settings }) in &core.groups_by {
        if let Some(core) = optimizer {
            core.check().for_each(|error| note(&group_call(pattern), error));
            if !core.groups_by.is_empty() {
                let error = "an optimizer inside a group cannot have groups: add them to the outer optimizer";
                note(&group_call(pattern), Error::usage(error));
            }
        }
        for (name, value) in settings {
            // All groups of one pattern have the same settings, so a mistake is reported once.
            let of_pattern = groups.iter_mut().filter(|group| group.pattern() == Some(pattern));
            let result: Vec<_> = of_pattern.filter_map(|group| group.assign(name, *value).err()).collect();
            result.into_iter().take(1).for_each(|error| note(&group_call(pattern), error));
        }
    }
    mistakes.extend(unfit(vars));
    for refused in groups.iter().filter_map(|group| (group.algorithm.refuses)(group)) {
        if !mistakes.contains(&refused) {
            mistakes.push(refused);
        }
    }
    if !mistakes.is_empty() {
        return Err(Error::Build(Box::new(BuildError { mistakes })));
    }
    for group in &mut groups {
        if group.frozen || !group.parameters().any(Tensor::requires_grad) {
            group.frozen = true;
            group.switch_gradients()?;
        }
        group.create_state()?;
    }
    Ok(groups)
}

/// Describes the parameters that the kernels cannot update.
pub(super) fn unfit(vars: &Vars) -> Vec<String> {
    let unfit = vars
        .parameters()
        .filter_map(|var| Some(format!("the parameter `{}` {}", var.name, libtorch::unfit(&var.tensor)?)));
    unfit.collect()
}

/// Returns the prefix of errors about one pattern.
fn group_call(pattern: &str) -> String {
    format!("`.group(\"{pattern}\", …)`: ")
}

fn matches_nothing(pattern: &str, wild: &WildMatch, vars: &Vars) -> Error {
    if vars.parameters().any(|var| wild.matches(&var.name)) {
        return Error::usage(
            "every parameter that it matches is already in an earlier group, because the first matching pattern wins: \
             add this group before that one",
        );
    }
    let names = || vars.parameters().map(|var| var.name.as_str());
    let similar = in_other_case(pattern, names()).unwrap_or_else(|| suggestion_among(pattern, names()));
    Error::usage(format!("no parameter matches{similar}"))
}
