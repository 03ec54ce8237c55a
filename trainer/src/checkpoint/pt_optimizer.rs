//! Loading the state of one of PyTorch's optimizers into one of this crate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tch::{Kind, Tensor};

use super::pt::{Key, SavedOptimizer};
use super::weights::conversion;
use super::{LoadWeights, Loaded, Mismatch, NamedTensors, tensors};
use crate::error::{Error, Result, shortened};
use crate::io::files::in_file;
use crate::io::format::{self, Format};
use crate::libtorch::wide_kind;
use crate::optim::{Optimizer, ParamGroup};

/// Loads the state of one of PyTorch's optimizers, as `torch.save` writes its `state_dict`, into
/// the optimizer of this crate with the same algorithm, so that a run that PyTorch began continues
/// here: the running means, the momentum and the step counts.
///
/// ```
/// use trainer::checkpoint::{LoadWeights, load_optimizer};
/// # use trainer::prelude::*;
/// # fn load(mut trainer: Trainer<impl Task>) -> Result<()> {
/// // A checkpoint of Lightning, whose module has the network as `self.net`.
/// let names = ["net.fc1.weight", "net.fc1.bias", "net.fc2.weight", "net.fc2.bias"];
/// let how = LoadWeights::new().rename_pattern("net.*", "*");
/// trainer.load_weights("last.ckpt", &how.section("state_dict"))?;
/// let how = LoadWeights::new().rename_pattern("net.*", "*");
/// let how = how.section("optimizer_states").section("0");
/// load_optimizer(trainer.optimizer_mut()?, "last.ckpt", &names, &how)?;
/// # Ok(())
/// # }
/// ```
///
/// PyTorch stores the parameters without names, in the order in which the optimizer was given them.
/// `names` are their names in that order, which Python prints:
///
/// ```python
/// names = {p: name for name, p in model.named_parameters()}
/// print([names[p] for group in optimizer.param_groups for p in group["params"]])
/// ```
///
/// If the file has names, as for an optimizer that was created with `model.named_parameters()` and
/// in the files of `torch.distributed.checkpoint`, `names` may be empty. `how` selects the section
/// of the file, renames and skips, as for [weights](crate::Trainer::load_weights), and decides
/// whether parameters may be missing from the file, or unexpected in it.
///
/// The hyperparameters stay those of this optimizer, and must be equal to those in the file. The
/// learning rate is not compared, because a schedule may have changed it; if the file has the
/// values of a one-cycle or cyclic schedule, neither are the momentum and the first beta. Counters
/// and schedules begin at 0: a schedule that continues at step `n` is
/// `move |step: u64| schedule.factor(step + n, Some(total)).unwrap()`.
///
/// # Errors
///
/// Returns an error if
///
/// - the file cannot be read, is damaged, or has no state of an optimizer at the section;
/// - the number of names is not that of the parameters in the file;
/// - the file was written by another algorithm, or with other hyperparameters;
/// - parameters are missing or unexpected and [`partial`](LoadWeights::partial) is not set, or
///   shapes differ and [`skip_mismatched`](LoadWeights::skip_mismatched) is not set;
/// - `optimizer` is a [`Tch`](crate::optim::Tch), whose state cannot be set.
///
/// After an error, the optimizer is unchanged.
#[doc(alias("optimizer_states", "load_state_dict"))]
pub fn load_optimizer(
    optimizer: &mut dyn Optimizer,
    path: impl AsRef<Path>,
    names: &[impl AsRef<str>],
    how: &LoadWeights<'_>,
) -> Result<Loaded> {
    let path = path.as_ref();
    let names: Vec<String> = names.iter().map(|name| name.as_ref().to_owned()).collect();
    load(optimizer, path, names, how).map_err(|error| in_file(path, error))
}

/// How Python prints the names of the parameters of an optimizer in their order.
const PRINT: &str = "`names = {p: name for name, p in model.named_parameters()}; print([names[p] for group in \
                     optimizer.param_groups for p in group[\"params\"]])` prints them in Python";

fn load(
    optimizer: &mut dyn Optimizer,
    path: &Path,
    names: Vec<String>,
    how: &LoadWeights<'_>,
) -> Result<Loaded> {
    if !optimizer.state_is_complete() {
        return Err(Error::usage(
            "the state of this optimizer cannot be set, as is the case for tch's own optimizers: use an optimizer of this crate",
        ));
    }
    let bytes = tensors::read(path)?;
    if !bytes.starts_with(b"PK\x03\x04") {
        let format = Format::of(&bytes);
        return Err(Error::msg(format::unexpected(&bytes, format, "the state of an optimizer", conversion)));
    }
    let mut saved = SavedOptimizer::open(&bytes, &how.section, conversion)?;
    let names = how.rules.apply(&names_in(&saved, names)?)?;
    let read = Reading::of(&mut saved, names, optimizer)?;
    read.refuse(how)?;
    let Reading { report, found, .. } = read;
    // What the file does not have stays as it is.
    let is_found = |name: &str| name.split_once('/').is_some_and(|(_, own)| found.contains_key(own));
    let kept: Vec<_> = optimizer.state().into_iter().filter(|(name, _)| !is_found(name)).collect();
    let state: NamedTensors = kept.into_iter().chain(found.into_values().flatten()).collect();
    optimizer.load_state(&state)?;
    Ok(report)
}

/// What a file has for an optimizer.
#[derive(Default)]
struct Reading {
    report: Loaded,
    /// What differs in the algorithm and its settings.
    mistakes: BTreeSet<String>,
    /// The state of each parameter, under the names that it has here.
    found: BTreeMap<String, NamedTensors>,
}

impl Reading {
    /// Reads the state of the parameters, which have these names here. A parameter without a name
    /// is skipped.
    fn of(
        saved: &mut SavedOptimizer<'_>,
        names: Vec<Option<String>>,
        optimizer: &dyn Optimizer,
    ) -> Result<Self> {
        let mut read = Reading::default();
        let own = own_parameters(optimizer);
        let parameters = saved.groups.iter().enumerate();
        let parameters =
            parameters.flat_map(|(nth, group)| group.parameters.iter().map(move |key| (nth, *key)));
        let parameters: Vec<_> = parameters.collect();
        let mut known = BTreeSet::new();
        for ((group, key), name) in parameters.into_iter().zip(names) {
            let Some(name) = name else { continue };
            match own.get(&name) {
                None => read.report.unexpected.push(name),
                Some(parameter) => {
                    if !known.insert(name.clone()) {
                        return Err(Error::usage(format!(
                            "two of the parameters have the name `{name}`: give each its own"
                        )));
                    }
                    read.mistakes.extend(differences(parameter.group, saved, group));
                    read.parameter(saved, key, name, parameter)?;
                }
            }
        }
        let absent = own.into_iter().filter(|(name, parameter)| {
            let group = parameter.group;
            !known.contains(name) && !group.is_frozen() && group.state_names().next().is_some()
        });
        read.report.missing.extend(absent.map(|(name, _)| name));
        Ok(read)
    }

    /// Reads the state of one parameter.
    fn parameter<'a>(
        &mut self,
        saved: &mut SavedOptimizer<'a>,
        key: Key<'a>,
        name: String,
        own: &OwnParameter<'_>,
    ) -> Result<()> {
        let in_file = saved.names_of(key);
        let wanted: Vec<_> = own.group.state_names().collect();
        if in_file.is_empty() && !wanted.is_empty() {
            self.report.missing.push(name);
            return Ok(());
        }
        // PyTorch counts the steps of RMSprop, which nothing depends on, and not those of SGD, of
        // which only the first differs.
        let foreign = in_file.iter().find(|known| !wanted.contains(known) && **known != STEPS);
        let lacking = wanted.iter().find(|known| !in_file.contains(known) && **known != STEPS);
        if let Some(state) = foreign.or(lacking) {
            let (has, lacks) = if foreign.is_some() { ("there", "here") } else { ("here", "there") };
            let state = shortened(state);
            self.mistakes.insert(format!("the parameters have the state `{state}` {has}, but not {lacks}"));
            return Ok(());
        }
        let mut values = NamedTensors::new();
        for slot in wanted {
            let value = if in_file.contains(&slot) { saved.value(key, slot)? } else { Tensor::from(1.0) };
            let (size, kind) = match slot {
                STEPS => (Vec::new(), Kind::Float),
                _ => (own.tensor.size(), wide_kind(own.tensor.kind())),
            };
            if value.size() != size && !(slot == STEPS && value.numel() == 1) {
                self.report.mismatched.push(Mismatch { name, file: value.size(), task: size });
                return Ok(());
            }
            values.push((format!("{slot}/{name}"), value.f_to_kind(kind)?.f_view(&*size)?));
        }
        self.found.insert(name.clone(), values);
        self.report.loaded.push(name);
        Ok(())
    }

    /// Returns an error if there are differences that `how` does not allow.
    fn refuse(&self, how: &LoadWeights<'_>) -> Result<()> {
        let Loaded { unexpected, missing, mismatched, .. } = &self.report;
        let listed = |names: &[String]| {
            let shown: Vec<_> = names.iter().take(3).map(|name| format!("`{}`", shortened(name))).collect();
            let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
            shown.join(", ") + &more
        };
        let mut parts: Vec<String> = self.mistakes.iter().cloned().collect();
        let mut help = Vec::new();
        if !parts.is_empty() {
            help.push("use the optimizer and the settings with which the file was written");
        }
        if !how.partial && !unexpected.is_empty() {
            parts.push(format!("this optimizer does not have {}", listed(unexpected)));
            help.push("map names with `.rename_pattern(…)`, or leave some out with `.skip(…)`");
        }
        if !how.partial && !missing.is_empty() {
            parts.push(format!("the file has no state of {}", listed(missing)));
            help.push(
                "`.partial(true)` keeps the state that they have here, for parameters that had no gradient there",
            );
        }
        if !how.skip_mismatched
            && let Some(first) = mismatched.first()
        {
            parts.push(format!("the state of {first}"));
            help.push(
                "pass the names in the order of the optimizer, or keep the state here with `.skip_mismatched(true)`",
            );
        }
        if parts.is_empty() {
            return Ok(());
        }
        let (parts, help) = (parts.join("; "), help.join("; "));
        Err(Error::usage(format!("the state of the optimizer does not fit: {parts}: {help}")))
    }
}

/// The state that counts the steps of a parameter.
const STEPS: &str = "step";

/// A parameter of the optimizer, and its group.
struct OwnParameter<'o> {
    group: &'o ParamGroup,
    tensor: &'o Tensor,
}

fn own_parameters(optimizer: &dyn Optimizer) -> BTreeMap<String, OwnParameter<'_>> {
    let each = optimizer.groups().iter().flat_map(|group| {
        let named = group.names().zip(group.parameters());
        named.map(move |(name, tensor)| (name.to_owned(), OwnParameter { group, tensor }))
    });
    each.collect()
}

/// Returns the names of the parameters in the file, in their order.
fn names_in(saved: &SavedOptimizer<'_>, given: Vec<String>) -> Result<Vec<String>> {
    let count: usize = saved.groups.iter().map(|group| group.parameters.len()).sum();
    let mut names = Vec::new();
    for group in &saved.groups {
        match &group.names {
            Some(own) => names.extend(own.iter().map(|name| (*name).to_owned())),
            None => names.extend(group.parameters.iter().filter_map(|key| match key {
                Key::Name(name) => Some((*name).to_owned()),
                Key::Position(_) => None,
            })),
        }
    }
    if given.is_empty() && names.len() != count {
        return Err(Error::usage(format!(
            "the state of the optimizer has {count} parameters without names: pass their names in its order; {PRINT}"
        )));
    }
    let names = if given.is_empty() { names } else { given };
    if names.len() != count {
        return Err(Error::usage(format!(
            "the state of the optimizer has {count} parameters, but there are {} names: pass one for each, in the order of \
             the optimizer; {PRINT}",
            names.len()
        )));
    }
    Ok(names)
}

/// Describes the settings of a group that differ from those of a group in the file.
fn differences(own: &ParamGroup, saved: &SavedOptimizer<'_>, group: usize) -> Vec<String> {
    let mut found = Vec::new();
    if let (Some(decoupled), "Adam" | "AdamW") =
        (saved.number(group, "decoupled_weight_decay", None), own.algorithm())
        && (decoupled != 0.0) != (own.algorithm() == "AdamW")
    {
        let is = if decoupled == 0.0 { "not decoupled" } else { "decoupled" };
        found.push(format!("the weight decay is {is} there, unlike in {}", own.algorithm()));
    }
    // The schedules that move the momentum write this setting.
    let moves_momentum = saved.has(group, "max_momentum");
    for (name, value) in own.settings() {
        let theirs = match name {
            "lr" | "frozen" | "full_precision" => continue,
            "momentum" | "beta1" if moves_momentum => continue,
            "beta1" => saved.number(group, "betas", Some(0)),
            "beta2" => saved.number(group, "betas", Some(1)),
            "maximize" if !saved.has(group, name) => Some(0.0),
            "match_rms_adamw" if saved.has(group, "adjust_lr_fn") => {
                Some(f64::from(u8::from(saved.text(group, "adjust_lr_fn") == Some(name))))
            }
            name => saved.number(group, name, None),
        };
        match theirs {
            None => {
                found.push(format!(
                    "`{name}` of {} is not in the file, or not a number there",
                    own.algorithm()
                ));
            }
            Some(theirs) if theirs != value => {
                found.push(format!("`{name}` is {theirs} there, but {value} here"));
            }
            Some(_) => {}
        }
    }
    found
}
