//! The files of a rank other than rank 0: the tensors of its part of a checkpoint, and a JSON file
//! that describes them and repeats the name of the save. Rank 0 writes the manifest once the JSON
//! files of all ranks are complete, and collects nothing else from the other ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::files::{RANK_FILES, rank_file};
use super::manifest::{SavedBy, Values};
use super::sealed::{VERSION, read_sealed, write_sealed};
use super::tensors::{self, FileDigest};
use super::{NamedTensors, States};
use crate::error::{Error, FileError, Result};
use crate::io::files::{create, in_file, is_folder, sync};

/// The value of the field `format` in every JSON file.
const FORMAT: &str = "trainer checkpoint of a rank";

/// The content of `rank-00001.json`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RankState {
    format: String,
    version: u64,
    rank: u32,
    /// The name of the save, which is also in the manifest.
    save: String,
    /// The states that differ between ranks, by part and without their tensors.
    pub(crate) parts: BTreeMap<String, Values>,
    /// The parts whose state is divided among the ranks, if this rank has a share of it.
    shares: BTreeSet<String>,
    /// The length and hash of `rank-00001.safetensors`.
    tensors: FileDigest,
}

/// Returns the prefix under which this rank's share of a part stores its tensors.
fn of_share(part: &str) -> String {
    format!("share/{part}: ")
}

impl RankState {
    /// Writes the files of a rank: the states that differ between ranks, and its shares of the
    /// states that are divided among the ranks. The JSON file is written last. Both files are on
    /// disk when this function returns.
    pub(crate) fn write(folder: &Path, rank: u32, saved_by: &SavedBy, states: &States) -> Result<()> {
        if !is_folder(folder) {
            return Err(in_file(
                folder,
                format!(
                    "rank {rank} does not see this folder, which rank 0 has created for the checkpoint: write checkpoints to \
                     one folder that all ranks can write"
                ),
            ));
        }
        let [tensors, text] = RANK_FILES.map(|extension| folder.join(rank_file(rank, extension)));
        let mut all = NamedTensors::new();
        let mut parts = BTreeMap::new();
        let mut shares = BTreeSet::new();
        for (part, saved) in states {
            let of = |prefix: String, tensors: &BTreeMap<String, Tensor>| -> NamedTensors {
                tensors.iter().map(|(name, own)| (format!("{prefix}{name}"), own.shallow_clone())).collect()
            };
            all.extend(of(format!("{part}/"), &saved.tensors));
            all.extend(of(of_share(part), &saved.shares));
            if saved.shares.is_empty() {
                parts.insert(part.clone(), saved.values.clone());
            } else {
                shares.insert(part.clone());
            }
        }
        let tensors = tensors::write(&mut create(&tensors)?, &all)?;
        let save = saved_by.save.clone();
        let state =
            RankState { format: FORMAT.to_owned(), version: VERSION, rank, save, parts, shares, tensors };
        write_sealed(&text, &state)?;
        Ok(sync(folder)?)
    }

    /// Reads the JSON file of a rank.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file and the rank if the file is missing, changed or
    /// damaged, or if it belongs to a different save.
    pub(crate) fn load(folder: &Path, rank: u32, saved_by: &SavedBy) -> Result<Self> {
        let path = folder.join(rank_file(rank, RANK_FILES[1]));
        let state: RankState = read_sealed(&path, FORMAT).map_err(|error| of_rank(rank, error))?;
        if state.rank == rank && state.save == saved_by.save {
            return Ok(state);
        }
        let text = format!(
            "this file belongs to rank {} and to a different save than the manifest, which expects rank {rank} here: the folder mixes the \
             files of several checkpoints; use another checkpoint",
            state.rank
        );
        Err(in_file(&path, text))
    }

    /// Reads the tensors that the JSON file describes.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file and the rank if the file is missing, changed or
    /// damaged.
    pub(crate) fn load_tensors(&self, folder: &Path) -> Result<BTreeMap<String, Tensor>> {
        let path = folder.join(rank_file(self.rank, RANK_FILES[0]));
        tensors::load_own(&path, &self.tensors).map_err(|error| of_rank(self.rank, error))
    }

    /// Returns the states of the rank: those that differ between ranks, and its shares of the
    /// states that are divided among the ranks.
    pub(crate) fn states(self, mut tensors: BTreeMap<String, Tensor>) -> States {
        let mut states = States::new();
        for part in self.shares {
            let saved = states.entry(part.clone()).or_default();
            saved.shares = super::states::take(&mut tensors, &of_share(&part));
        }
        for (part, values) in self.parts {
            let saved = states.entry(part.clone()).or_default();
            saved.tensors = super::states::take(&mut tensors, &format!("{part}/"));
            saved.values = values;
        }
        states
    }
}

/// Adds the rank to an error about one of its files.
fn of_rank(rank: u32, error: Error) -> Error {
    match error {
        Error::File(error) => {
            let FileError { path, source, .. } = *error;
            in_file(&path, format!("the state of rank {rank} cannot be read: {source}"))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{RankState, SavedBy, States};

    #[test]
    fn a_folder_that_a_rank_does_not_see_is_reported_with_the_rank() {
        let folder = Path::new("/nowhere/.writing-step-00000004-1");
        let error = RankState::write(folder, 3, &SavedBy::now(4), &States::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/nowhere/.writing-step-00000004-1: rank 3 does not see this folder, which rank 0 has created for the checkpoint: \
             write checkpoints to one folder that all ranks can write"
        );
    }
}
