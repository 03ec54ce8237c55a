//! Weights by themselves: to be shared with other programs, Python's among them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use tch::Tensor;

use super::folder::{folder_of, in_file, sync};
use super::{MODEL, Named, tensors};
use crate::error::{Error, Result, suggestion};
use crate::task::Task;
use crate::training::Trainer;
use crate::vars::Vars;

/// How weights from elsewhere become those of a task: [`Trainer::load_weights`].
///
/// Names are those of PyTorch's `state_dict` where the layers are named alike: `fc1.weight`, `bn.running_mean`. Its counters
/// `num_batches_tracked`, which tch does not have, are passed over.
#[derive(Default)]
pub struct LoadWeights<'a> {
    rename: Option<Rename<'a>>,
    partial: bool,
}

/// The name of a variable of the task, for a name in the file.
type Rename<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

impl<'a> LoadWeights<'a> {
    /// Every variable of the task, by its own name.
    #[must_use]
    pub fn new() -> Self {
        LoadWeights::default()
    }

    /// What a name in the file is called in the task; `None` leaves it out.
    #[must_use]
    pub fn rename(mut self, rename: impl Fn(&str) -> Option<String> + 'a) -> Self {
        self.rename = Some(Box::new(rename));
        self
    }

    /// What is missing in the file stays as it is, and what is left over there is passed over; [`Loaded`] tells both.
    #[must_use]
    pub fn partial(mut self) -> Self {
        self.partial = true;
        self
    }
}

impl fmt::Debug for LoadWeights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadWeights").field("partial", &self.partial).finish_non_exhaustive()
    }
}

/// What became of weights that were loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// Variables of the task that have new values.
    pub loaded: Vec<String>,
    /// Variables of the task that the file has not.
    pub missing: Vec<String>,
    /// Names in the file that the task has not.
    pub left_over: Vec<String>,
}

impl<T: Task> Trainer<T> {
    /// Writes the variables of the task, buffers included, as a `safetensors` file, which Python reads as a `state_dict`. The file
    /// is there whole or not at all.
    ///
    /// # Errors
    ///
    /// Those of the disk; they name the file.
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".writing-{}", std::process::id()));
        let written = tensors::write(aside.as_ref(), &named(self.vars()))
            .and_then(|_| fs::rename(&aside, path).map_err(|error| in_file(path, error)))
            .and_then(|()| sync(folder_of(path)));
        if written.is_err() {
            let _ = fs::remove_file(&aside);
        }
        written
    }

    /// Reads weights from a `safetensors` file or from a checkpoint folder into the variables of the task. Numbers of
    /// another kind are converted.
    ///
    /// # Errors
    ///
    /// A file that is none or is damaged, a shape that differs, and, unless they are to be loaded in
    /// [part](LoadWeights::partial), variables that are missing there or left over. Nothing has been changed then.
    pub fn load_weights(&mut self, path: impl AsRef<Path>, how: &LoadWeights<'_>) -> Result<Loaded> {
        let path = path.as_ref();
        let of_checkpoint = path.join(MODEL);
        let path = if of_checkpoint.is_file() { &of_checkpoint } else { path };
        let file = tensors::load(path, None)?;
        let mut saved = BTreeMap::new();
        let mut report = Loaded::default();
        for (name, tensor) in file {
            let own = how.rename.as_ref().map_or_else(|| Some(name.clone()), |rename| rename(&name));
            let Some(own) = own else { continue };
            if self.vars().get(&own).is_ok() {
                if saved.insert(own.clone(), tensor).is_some() {
                    return Err(in_file(path, format!("two of its tensors are renamed to `{own}`")));
                }
            } else if !name.ends_with("num_batches_tracked") {
                report.left_over.push(name); // but for PyTorch's counters, which tch does not have
            }
        }
        let mut copies = Vec::new();
        for (name, own) in named(self.vars()) {
            match saved.get(&name) {
                None => report.missing.push(name),
                Some(tensor) => {
                    same_shape(path, &name, &own, tensor)?;
                    copies.push((own, tensor.shallow_clone()));
                    report.loaded.push(name);
                }
            }
        }
        if !(how.partial || report.missing.is_empty() && report.left_over.is_empty()) {
            return Err(differs(
                path,
                &report.missing,
                &report.left_over,
                ": load them in part with `LoadWeights::new().partial()`, or `.rename(…)` them",
            ));
        }
        copy(copies)?;
        Ok(report)
    }
}

fn named(vars: &Vars) -> Named {
    vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect()
}

/// Tensors, each with the one that is to be copied into it.
pub(super) type Copies = Vec<(Tensor, Tensor)>;

/// What is there on both sides, if all is and if it fits.
pub(super) fn fitting(path: &Path, own: Named, saved: &BTreeMap<String, Tensor>) -> Result<Copies> {
    let missing: Vec<String> =
        own.iter().map(|(name, _)| name.clone()).filter(|name| !saved.contains_key(name)).collect();
    let is_own = |name: &&String| own.iter().any(|(other, _)| other == *name);
    let left_over: Vec<String> = saved.keys().filter(|name| !is_own(name)).cloned().collect();
    if !(missing.is_empty() && left_over.is_empty()) {
        return Err(differs(
            path,
            &missing,
            &left_over,
            ": is it a checkpoint of the same model, with the same optimizer?",
        ));
    }
    let mut copies = Copies::new();
    for (name, own) in own {
        let tensor = &saved[&name];
        same_shape(path, &name, &own, tensor)?;
        if own.kind() != tensor.kind() {
            let text = format!("`{name}` is of kind {:?} there, and {:?} here", tensor.kind(), own.kind());
            return Err(in_file(path, text));
        }
        copies.push((own, tensor.shallow_clone()));
    }
    Ok(copies)
}

fn same_shape(path: &Path, name: &str, own: &Tensor, saved: &Tensor) -> Result<()> {
    let (own, saved) = (own.size(), saved.size());
    if own == saved {
        Ok(())
    } else {
        Err(in_file(path, format!("`{name}` has the shape {saved:?} there, and {own:?} here")))
    }
}

fn differs(path: &Path, missing: &[String], left_over: &[String], help: &str) -> Error {
    let list = |names: &[String], others: &[String]| {
        let first = names
            .iter()
            .take(3)
            .map(|name| format!("`{name}`{}", suggestion(name, others.iter().map(String::as_str))));
        let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
        first.collect::<Vec<_>>().join(", ") + &more
    };
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{} missing there", list(missing, left_over)));
    }
    if !left_over.is_empty() {
        parts.push(format!("{} left over there", list(left_over, &[])));
    }
    in_file(path, format!("{}{help}", parts.join("; ")))
}

/// Copies values into tensors, which keep their place in memory.
pub(super) fn copy(copies: Copies) -> Result<()> {
    let _no_grad = tch::no_grad_guard();
    for (mut own, saved) in copies {
        own.f_copy_(&saved)?;
    }
    Ok(())
}
