//! [`EndOfReplay`]: the hook that ends a replay after its last batch.

use std::path::PathBuf;

use crate::checkpoint::folder::CheckpointFolder;
use crate::prelude::own::*;
use crate::run::{Run, SaveMode, SaveRequest};
use crate::training::tape::{self, Recorder};

/// Ends a replay after its last batch.
pub(super) struct EndOfReplay {
    /// The replay ends after this many training batches, counted from the start of the recorded
    /// run.
    pub(super) until: u64,
    /// The checkpoint folder in which the final state is saved, if a fork will start from it.
    pub(super) fork: Option<PathBuf>,
}

#[hook(in = stages::Last, writes)]
impl EndOfReplay {
    /// Trains no batch if the checkpoint was written after the last one.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) {
        self.end_after_batch(cx.as_run());
    }

    /// A batch that is skipped has no `after_step`.
    #[hook(only = train)]
    fn before_step(&mut self, cx: &Cx<BeforeStep>) {
        self.end_after_batch(cx.as_run());
    }

    #[hook(only = train)]
    fn after_step(&mut self, cx: &Cx<AfterStep>) {
        self.end_after_batch(cx.as_run());
    }

    /// Ends the tape before the checkpoint of the fork, which the recorded run did not write.
    #[hook(in = stages::First)]
    fn before_save_checkpoint(&mut self, cx: &Cx<BeforeSaveCheckpoint>) {
        tape::read(cx.as_run().layers(), Recorder::end);
    }
}

impl EndOfReplay {
    /// After the last batch, ends the run before the next one, and requests the checkpoint of the
    /// fork, which is the only one that a replay writes.
    fn end_after_batch(&mut self, run: &Run) {
        if run.progress().train_batches != self.until {
            return;
        }
        run.cancellation().end_replay();
        if let Some(folder) = &self.fork {
            let folder = folder.join(CheckpointFolder::name(run.counters().batches_seen));
            *run.checkpoints().requests.borrow_mut() = vec![SaveRequest { folder, mode: SaveMode::Now }];
        }
    }
}
