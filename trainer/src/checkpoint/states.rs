//! The saved states of the parts of a run, in the files of a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use tch::Tensor;

use super::files::{AVERAGES, MODEL, OPTIMIZER, STATE};
use super::manifest::{Manifest, Values};
use super::read::load_tensors;
use super::{NamedTensors, Saved};
use crate::error::Result;

/// The saved states of the parts of a run, by the names of the parts.
pub(crate) type States = BTreeMap<String, Saved>;

/// The prefix of the tensors that hooks add to a checkpoint.
const SAVED: &str = "saved/";

/// Returns the file that contains the tensors of a part, and the prefix of their names in it.
fn place_of(part: &str) -> (&'static str, String) {
    match part.split_once('/') {
        None if part == "variables" => (MODEL, String::new()),
        None if part == "optimizer" => (OPTIMIZER, String::new()),
        Some(("optimizer", of)) => (OPTIMIZER, format!("{of}: ")),
        _ => (STATE, format!("{part}/")),
    }
}

/// Returns the prefix of the tensors of a rank other than rank 0.
fn of_rank(rank: usize) -> String {
    format!("rank/{rank}/")
}

/// The states of the parts of one rank, each with its name.
pub(crate) fn values_of(states: &States) -> BTreeMap<String, Values> {
    states.iter().map(|(name, saved)| (name.clone(), saved.values.clone())).collect()
}

/// The tensors of the parts of one rank, each named after its part. They share their storage with
/// the run.
pub(crate) fn tensors_of(states: &States) -> NamedTensors {
    let mut all = NamedTensors::new();
    for (part, saved) in states {
        all.extend(named(&format!("{part}/"), &saved.tensors));
    }
    all
}

fn named(prefix: &str, tensors: &BTreeMap<String, Tensor>) -> impl Iterator<Item = (String, Tensor)> {
    tensors.iter().map(move |(name, tensor)| (format!("{prefix}{name}"), tensor.shallow_clone()))
}

/// The tensors of a checkpoint: those of the parts of rank 0, those of the other ranks as
/// [`tensors_of`] names them, and those that hooks have added.
pub(crate) struct Tensors {
    pub(crate) states: States,
    pub(crate) ranks: Vec<BTreeMap<String, Tensor>>,
    pub(crate) saved: Saved,
}

impl Tensors {
    /// Copies the tensors, because training continues to change the originals.
    pub(crate) fn own_their_memory(&mut self) -> Result<()> {
        self.states.values_mut().chain([&mut self.saved]).try_for_each(Saved::own_its_memory)
    }

    /// Returns the content of each file. A checkpoint without averages has no file for them.
    pub(crate) fn files(&self) -> Vec<(&'static str, NamedTensors)> {
        let mut files = [MODEL, OPTIMIZER, STATE, AVERAGES].map(|file| (file, NamedTensors::new()));
        for (part, saved) in &self.states {
            let (file, prefix) = place_of(part);
            let found = files.iter_mut().find(|(name, _)| *name == file);
            found.into_iter().for_each(|(_, all)| all.extend(named(&prefix, &saved.tensors)));
            files[3].1.extend(named("", &saved.averages));
        }
        for (rank, tensors) in (1..).zip(&self.ranks) {
            files[2].1.extend(named(&of_rank(rank), tensors));
        }
        files[2].1.extend(named(SAVED, &self.saved.tensors));
        files.into_iter().filter(|(name, tensors)| *name != AVERAGES || !tensors.is_empty()).collect()
    }
}

/// Reads what a checkpoint contains: the states of the parts of each rank, and what hooks have
/// added. A tensor that belongs to none of them is ignored, unless it is one of the model.
///
/// # Errors
///
/// Returns an error if a file is missing or damaged.
pub(crate) fn load_states(folder: &Path, manifest: &Manifest) -> Result<(Vec<States>, Saved)> {
    let [model, optimizer, state, averages] = load_tensors(folder, manifest)?;
    let mut files = BTreeMap::from([(MODEL, model), (OPTIMIZER, optimizer), (STATE, state)]);
    let mut ranks = Vec::new();
    for (rank, parts) in std::iter::once(&manifest.parts).chain(&manifest.ranks).enumerate() {
        let mut states = States::new();
        for (part, values) in parts {
            let (file, prefix) = match rank {
                0 => place_of(part),
                _ => (STATE, format!("{}{part}/", of_rank(rank))),
            };
            let mut saved = Saved { values: values.clone(), ..Saved::new() };
            if let Some(tensors) = files.get_mut(file) {
                saved.tensors = take(tensors, &prefix);
            }
            if manifest.averages.as_ref() == Some(part) {
                saved.averages = named("", &averages).collect();
            }
            states.insert(part.clone(), saved);
        }
        ranks.push(states);
    }
    let mut saved = Saved { values: manifest.saved.clone(), ..Saved::new() };
    if let Some(tensors) = files.get_mut(STATE) {
        saved.tensors = take(tensors, SAVED);
    }
    Ok((ranks, saved))
}

/// Removes and returns the tensors whose names begin with a prefix, without it.
fn take(tensors: &mut BTreeMap<String, Tensor>, prefix: &str) -> BTreeMap<String, Tensor> {
    let taken = tensors.extract_if(.., |name, _| name.starts_with(prefix));
    taken.map(|(name, tensor)| (name[prefix.len()..].to_owned(), tensor)).collect()
}
