//! Weights files, which other programs, such as Python, can read and write.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use tch::Tensor;

use super::files::{self, in_file, shortened};
use super::{NamedTensors, tensors};
use crate::error::{Error, Result, suggestion};
use crate::vars::Vars;

/// Options for loading weights from a file into a task:
/// [`Trainer::load_weights`](crate::Trainer::load_weights).
///
/// Names are those of PyTorch's `state_dict` if the layers have the same names: `fc1.weight`,
/// `bn.running_mean`. PyTorch's counters `num_batches_tracked`, which tch does not have, are
/// skipped.
#[derive(Default)]
pub struct LoadWeights<'a> {
    rename: Option<Rename<'a>>,
    partial: bool,
}

/// Maps a name in the file to the name of a variable of the task.
type Rename<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

impl<'a> LoadWeights<'a> {
    /// Loads every variable of the task, by its own name.
    #[must_use]
    pub fn new() -> Self {
        LoadWeights::default()
    }

    /// Maps names in the file to names in the task; `None` skips a tensor.
    #[must_use]
    pub fn rename(mut self, rename: impl Fn(&str) -> Option<String> + 'a) -> Self {
        self.rename = Some(Box::new(rename));
        self
    }

    /// Whether names may be missing or unexpected: variables that the file does not have then stay
    /// as they are. [`Loaded`] lists both. Defaults to `false`.
    #[must_use]
    pub fn partial(mut self, partial: bool) -> Self {
        self.partial = partial;
        self
    }
}

impl fmt::Debug for LoadWeights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadWeights").field("partial", &self.partial).finish_non_exhaustive()
    }
}

/// The result of loading weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// Variables of the task that have new values.
    pub loaded: Vec<String>,
    /// Variables of the task that the file does not have.
    pub missing: Vec<String>,
    /// Names in the file that the task does not have.
    pub unexpected: Vec<String>,
    /// Whether the values come from the averages of a checkpoint.
    pub is_averaged: bool,
}

/// Atomically writes variables as a `safetensors` file. Replaces only a file of that format.
pub(crate) fn save(vars: &Vars, path: &Path) -> Result<()> {
    let write = |aside: &Path| tensors::write(aside, &named(vars)).map(drop);
    files::replace_file(path, tensors::check_format, write)
}

/// Loads a `safetensors` file, or the weights of a checkpoint folder, into variables.
pub(crate) fn load(vars: &Vars, path: &Path, how: &LoadWeights<'_>) -> Result<Loaded> {
    let folder = path;
    let path = &if files::is_file(&folder.join(files::MANIFEST)) {
        folder.join(files::MODEL)
    } else {
        folder.to_owned()
    };
    let mut file = tensors::load(path)?;
    let averages = folder.join(files::AVERAGES);
    let is_averaged = path != folder && files::is_file(&averages);
    if is_averaged {
        file.extend(tensors::load(&averages)?);
    }
    let mut saved = BTreeMap::new();
    let mut report = Loaded { is_averaged, ..Loaded::default() };
    for (name, tensor) in file {
        let own = how.rename.as_ref().map_or_else(|| Some(name.clone()), |rename| rename(&name));
        let Some(own) = own else { continue };
        if vars.get(&own).is_ok() {
            if saved.insert(own.clone(), tensor).is_some() {
                return Err(in_file(
                    path,
                    format!("two of its tensors are renamed to `{own}`: give each a different name"),
                ));
            }
        } else if !name.ends_with("num_batches_tracked") {
            report.unexpected.push(name); // except PyTorch's counters, which tch does not have
        }
    }
    let mut copies = Vec::new();
    for (name, own) in named(vars) {
        match saved.get(&name) {
            None => report.missing.push(name),
            Some(tensor) => {
                same_shape(path, &name, &own, tensor)?;
                copies.push((own, tensor.shallow_clone()));
                report.loaded.push(name);
            }
        }
    }
    if !(how.partial || report.missing.is_empty() && report.unexpected.is_empty()) {
        return Err(differs(
            path,
            &report.missing,
            &report.unexpected,
            ": load part of it with `LoadWeights::new().partial(true)`, or map names with `.rename(…)`",
        ));
    }
    copy(copies)?;
    if is_averaged {
        eprintln!(
            "loaded the averaged weights, {}; the live ones are in {}",
            averages.display(),
            path.display()
        );
    }
    Ok(report)
}

fn named(vars: &Vars) -> NamedTensors {
    vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect()
}

/// Tensors, each with its new value.
pub(crate) type Copies = Vec<(Tensor, Tensor)>;

/// Pairs each variable with its saved value. Returns an error unless every name, shape and dtype
/// matches.
pub(crate) fn fitting(path: &Path, own: NamedTensors, saved: &BTreeMap<String, Tensor>) -> Result<Copies> {
    let missing: Vec<String> =
        own.iter().map(|(name, _)| name.clone()).filter(|name| !saved.contains_key(name)).collect();
    let is_own = |name: &&String| own.iter().any(|(other, _)| other == *name);
    let unexpected: Vec<String> = saved.keys().filter(|name| !is_own(name)).cloned().collect();
    if !(missing.is_empty() && unexpected.is_empty()) {
        return Err(differs(
            path,
            &missing,
            &unexpected,
            ": is it a checkpoint of the same model, with the same optimizer?",
        ));
    }
    let mut copies = Copies::new();
    for (name, own) in own {
        let tensor = &saved[&name];
        same_shape(path, &name, &own, tensor)?;
        if own.kind() != tensor.kind() {
            let text = format!(
                "`{name}` has the dtype {:?} in the file, and {:?} in this trainer",
                tensor.kind(),
                own.kind()
            );
            return Err(in_file(path, text));
        }
        copies.push((own, tensor.shallow_clone()));
    }
    Ok(copies)
}

fn same_shape(path: &Path, name: &str, own: &Tensor, saved: &Tensor) -> Result<()> {
    let (own, saved) = (own.size(), saved.size());
    if own == saved {
        return Ok(());
    }
    Err(in_file(path, format!("`{name}` has the shape {saved:?} in the file, and {own:?} in this trainer")))
}

fn differs(path: &Path, missing: &[String], unexpected: &[String], help: &str) -> Error {
    let list = |names: &[String], others: &[String]| {
        let first = names
            .iter()
            .take(3)
            .map(|name| (shortened(name), suggestion(name, others.iter().map(String::as_str))))
            .map(|(name, similar)| format!("`{name}`{similar}"));
        let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
        first.collect::<Vec<_>>().join(", ") + &more
    };
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing: {}", list(missing, unexpected)));
    }
    if !unexpected.is_empty() {
        parts.push(format!("unexpected: {}", list(unexpected, &[])));
    }
    in_file(path, format!("{}{help}", parts.join("; ")))
}

/// Copies the new values into the tensors, whose storage stays the same.
pub(crate) fn copy(copies: Copies) -> Result<()> {
    let _no_grad = tch::no_grad_guard();
    for (mut own, saved) in copies {
        own.f_copy_(&saved)?;
    }
    Ok(())
}
