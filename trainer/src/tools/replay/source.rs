//! [`Source`]: the checkpoint that a replay begins with, and the tape that it is compared with.

use std::ops::Range;
use std::path::{Path, PathBuf};

use trainer_formats::tape::{Event, Process, Tape as TapeReader, file_name};

use crate::Tape;
use crate::checkpoint::files::MANIFEST;
use crate::checkpoint::folder::newest_first;
use crate::checkpoint::manifest::Progress;
use crate::checkpoint::verify;
use crate::error::{Error, Result};
use crate::hooks::IN_RUN_FOLDER;
use crate::io::files::{in_file, is_file};
use crate::run::reports::Reports;

/// The parts of a recorded run that a replay needs.
pub(super) struct Source {
    /// The newest checkpoint from before the first batch, and the progress of the run at that
    /// checkpoint.
    pub(super) checkpoint: Option<(PathBuf, Progress)>,
    /// The tape of the run, and the settings with which it was recorded.
    pub(super) tape: Option<(PathBuf, Tape)>,
}

impl Source {
    /// Finds the checkpoint and the tape of the recorded run in the folder `path`.
    pub(super) fn find(reports: &Reports, path: &Path, batches: &Range<u64>) -> Result<Self> {
        if batches.is_empty() {
            return Err(Error::usage(format!(
                "a replay of the training batches {}..{} is empty: expected a range with a batch",
                batches.start, batches.end
            )));
        }
        if !path.is_dir() {
            return Err(in_file(path, "there is no folder at this path: pass the folder of a run"));
        }
        let tape = tape(reports.rank(), path)?;
        let checkpoint = checkpoint(reports, path, batches.start)?;
        if checkpoint.is_none() && tape.is_none() {
            let why = "this folder has neither a checkpoint from before the first batch of the replay nor a tape: a replay \
                       begins at a checkpoint, or at the start of the run if a tape can confirm that both starts are the same";
            return Err(in_file(path, why));
        }
        Ok(Source { checkpoint, tape })
    }
}

/// Returns the newest undamaged checkpoint of the run from before training batch `start`.
fn checkpoint(reports: &Reports, path: &Path, start: u64) -> Result<Option<(PathBuf, Progress)>> {
    if is_file(&path.join(MANIFEST)) {
        let progress = Progress::load(path).filter(|progress| progress.train_batches <= start);
        let why =
            "this checkpoint was written after the first batch of the replay: pass the folder of the run";
        return progress.map(|progress| Some((path.to_owned(), progress))).ok_or_else(|| in_file(path, why));
    }
    let candidates =
        [path.join(IN_RUN_FOLDER), path.to_owned()].into_iter().flat_map(|folder| newest_first(&folder));
    for candidate in candidates {
        // The progress of a damaged checkpoint may not be readable.
        let Some(progress) = Progress::load(&candidate).filter(|progress| progress.train_batches <= start)
        else {
            continue;
        };
        match verify(&candidate) {
            Ok(()) => return Ok(Some((candidate, progress))),
            Err(error) => reports.warn(format!("skipped a damaged checkpoint: {error}")),
        }
    }
    Ok(None)
}

/// Returns the tape of the run, if it has one. `path` is the folder of the run, its folder of
/// checkpoints, or a checkpoint in that folder.
fn tape(rank: u32, path: &Path) -> Result<Option<(PathBuf, Tape)>> {
    let is_run = |folder: &&Path| path == *folder || path.starts_with(folder.join(IN_RUN_FOLDER));
    let tapes = path.ancestors().take(3).filter(is_run).map(|folder| folder.join(file_name(rank)));
    let Some(path) = tapes.into_iter().find(|path| is_file(path)) else { return Ok(None) };
    let mut events = TapeReader::open(&path).map_err(Error::new)?;
    let Some(Event::Process(process)) = events.next().transpose().map_err(Error::new)? else {
        return Err(in_file(&path, "this tape is empty: remove it to replay the run without a comparison"));
    };
    let Process { level, ref batches, paranoid, .. } = *process;
    let settings = Tape { level, batches: batches.clone(), ..Tape::full() }.paranoid(paranoid);
    Ok(Some((path, settings)))
}
