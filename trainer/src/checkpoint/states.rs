//! How checkpoint files store the states of all parts of a run, such as hooks and optimizers.

use std::collections::BTreeMap;
use std::path::Path;

use tch::Tensor;

use super::files::{AVERAGES, MODEL, OPTIMIZER, STATE};
use super::manifest::{Manifest, Values};
use super::rank::RankState;
use super::read::open_files;
use super::{NamedTensors, Saved};
use crate::error::Result;

/// The saved state of each part of a run, by the name of the part.
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

/// Returns the values of the states, without their tensors, by the names of the parts.
pub(crate) fn values_of(states: &States) -> BTreeMap<String, Values> {
    states.iter().map(|(name, saved)| (name.clone(), saved.values.clone())).collect()
}

fn named(prefix: &str, tensors: &BTreeMap<String, Tensor>) -> impl Iterator<Item = (String, Tensor)> {
    tensors.iter().map(move |(name, tensor)| (format!("{prefix}{name}"), tensor.shallow_clone()))
}

/// The data that rank 0 writes into a checkpoint besides its manifest: the tensors of the parts,
/// and those that hooks have added.
pub(crate) struct Tensors {
    pub(crate) states: States,
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
            if let Some((_, all)) = found {
                all.extend(named(&prefix, &saved.tensors).chain(named(&prefix, &saved.shares)));
            }
            files[3].1.extend(named("", &saved.averages));
        }
        files[2].1.extend(named(SAVED, &self.saved.tensors));
        files.into_iter().filter(|(name, tensors)| *name != AVERAGES || !tensors.is_empty()).collect()
    }
}

/// The content of a checkpoint. Each rank reads only what it needs.
pub(crate) struct SavedStates<'c> {
    folder: &'c Path,
    manifest: &'c Manifest,
    /// The states of the parts of rank 0, including its shares of divided states.
    pub(crate) main: States,
    /// The states of the other ranks, if the checkpoint has version 7 of the format; otherwise
    /// empty.
    before_8: Vec<States>,
    averages: BTreeMap<String, Tensor>,
    /// The values and tensors that hooks have added.
    pub(crate) added: Saved,
}

impl<'c> SavedStates<'c> {
    /// Reads the files of rank 0. A tensor that belongs to no part is ignored, unless it is in the
    /// file of the model.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is missing or damaged.
    pub(crate) fn load(folder: &'c Path, manifest: &'c Manifest) -> Result<Self> {
        // All files are verified before a tensor is read.
        let mut opened = open_files(folder, manifest)?;
        let mut model = opened.remove(MODEL);
        let mut files = BTreeMap::new();
        for (name, file) in opened {
            files.insert(name, file.read_all()?);
        }
        let mut ranks = Vec::new();
        for (rank, parts) in std::iter::once(&manifest.parts).chain(&manifest.ranks).enumerate() {
            let mut states = States::new();
            for (part, values) in parts {
                let (file, prefix) = match rank {
                    0 => place_of(part),
                    _ => (STATE, format!("rank/{rank}/{part}/")),
                };
                let mut saved = Saved { values: values.clone(), ..Saved::new() };
                if let Some(tensors) = files.get_mut(file) {
                    saved.tensors = take(tensors, &prefix);
                }
                if file == MODEL {
                    saved.unread = model.take();
                }
                states.insert(part.clone(), saved);
            }
            ranks.push(states);
        }
        let mut added = Saved { values: manifest.saved.clone(), ..Saved::new() };
        if let Some(tensors) = files.get_mut(STATE) {
            added.tensors = take(tensors, SAVED);
        }
        let averages = files.remove(AVERAGES).unwrap_or_default();
        let mut ranks = ranks.into_iter();
        let main = ranks.next().unwrap_or_default();
        let mut states =
            SavedStates { folder, manifest, main: States::new(), before_8: ranks.collect(), averages, added };
        states.main = states.with_averages(main);
        Ok(states)
    }

    /// Adds the averages, which are equal on all ranks, to the states of a rank.
    fn with_averages(&self, mut states: States) -> States {
        if let Some(saved) = self.manifest.averages.as_ref().and_then(|part| states.get_mut(part)) {
            saved.averages = named("", &self.averages).collect();
        }
        states
    }

    /// Takes the states of a rank other than rank 0: those that differ between ranks, and its
    /// shares of the states that are divided among the ranks.
    ///
    /// # Errors
    ///
    /// Returns an error if a file of the rank is missing or damaged.
    pub(crate) fn take_rank(&mut self, rank: u32) -> Result<States> {
        let Some(saved_by) = &self.manifest.saved_by else {
            let states = self.before_8.get_mut((rank as usize).wrapping_sub(1));
            let states = states.map(std::mem::take).unwrap_or_default();
            return Ok(self.with_averages(states));
        };
        let state = RankState::load(self.folder, rank, saved_by)?;
        let tensors = state.load_tensors(self.folder)?;
        Ok(self.with_averages(state.states(tensors)))
    }
}

/// Removes the tensors whose names begin with a prefix, and returns them without the prefix in
/// their names.
pub(super) fn take(tensors: &mut BTreeMap<String, Tensor>, prefix: &str) -> BTreeMap<String, Tensor> {
    let taken = tensors.extract_if(.., |name, _| name.starts_with(prefix));
    taken.map(|(name, tensor)| (name[prefix.len()..].to_owned(), tensor)).collect()
}
