//! Recording libtorch's operators and kernels.

use std::ops::Range;
use std::path::PathBuf;

use super::{refused, stages};
use crate::checkpoint::{SettingList, Settings};
use crate::io::files::create_numbered;
use crate::prelude::own::*;
use crate::profile::KernelTrace;

/// Records, with libtorch's profiler, every libtorch operator and kernel in a range of training
/// batches, and writes a trace.
///
/// Use this when you want to look inside an operation: [`profile`](crate::TrainerBuilder::profile)
/// may report that `backward` is slow, and this trace shows which of its operators are slow. On a
/// GPU, it also shows when each kernel ran. Record only a few batches, because traces are large,
/// and skip the first ones, which are slower than the others.
///
/// ```
/// use trainer::hooks::KernelProfiler;
/// use trainer::prelude::*;
///
/// fn watched(builder: trainer::TrainerBuilder<impl Task>) -> trainer::TrainerBuilder<impl Task> {
///     builder.hook(KernelProfiler::new("kernels.json", 10..13))
/// }
/// ```
///
/// The file is in Chrome's trace format, for <https://ui.perfetto.dev> or `chrome://tracing`. If
/// `kernels.json` exists, the trace is written to `kernels-2.json`, and so on. Batches are counted
/// from 0 over all epochs, like [`batches_seen`](Counters::batches_seen). Everything that runs
/// between two batches of the range, such as hooks or a validation, is recorded too.
///
/// libtorch has only one profiler per process, so starting a recording during another one is an
/// error. If the run ends within the range, for whatever reason, the trace is written at
/// `teardown`. The hook runs only in the process of rank 0. libtorch prints lines on standard error
/// when a recording begins and ends; the environment variable `KINETO_LOG_LEVEL=99` silences most
/// of them.
#[doc(alias("PyTorchProfiler", "torch.profiler"))]
#[derive(Debug)]
pub struct KernelProfiler {
    path: PathBuf,
    batches: Range<u64>,
    shapes: bool,
    trace: Option<KernelTrace>,
    /// Whether a batch of the range has begun in this fit.
    is_reached: bool,
}

impl KernelProfiler {
    /// Records these training batches, and writes the trace to the file `path`.
    pub fn new(path: impl Into<PathBuf>, batches: Range<u64>) -> Self {
        KernelProfiler { path: path.into(), batches, shapes: false, trace: None, is_reached: false }
    }

    /// Whether to record the shapes of the operators' inputs. Defaults to `false`.
    #[must_use]
    pub fn shapes(mut self, shapes: bool) -> Self {
        self.shapes = shapes;
        self
    }

    /// Ends the recording, if there is one, and writes it.
    fn finish(&mut self) -> Result<()> {
        let Some(trace) = self.trace.take() else { return Ok(()) };
        trace.save(create_numbered(&self.path)?.path())
    }
}

#[hook(in = stages::Last, settings, writes, may_fail)]
impl KernelProfiler {
    /// Returns an error if the range is empty, or if the folder of the file does not exist.
    #[hook(only = train)]
    fn setup(&mut self, _: &Cx<Main<Setup>>) -> Result<()> {
        self.is_reached = false;
        match self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) if !folder.is_dir() => Err(Error::fatal(format!(
                "the trace cannot be written: `{}` is not an existing folder; create it",
                folder.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Begins the recording.
    #[hook(only = train)]
    fn before_step(&mut self, cx: &Cx<Main<BeforeStep>>) -> Result<()> {
        if self.trace.is_none() && self.batches.contains(&cx.counters().batches_seen) {
            self.is_reached = true;
            self.trace = Some(KernelTrace::start(cx.device(), self.shapes)?);
        }
        Ok(())
    }

    /// Ends the recording after the last batch of the range.
    #[hook(only = train, in = stages::First)]
    fn after_step(&mut self, cx: &Cx<Main<AfterStep>>) -> Result<()> {
        if self.trace.is_some() && cx.counters().batches_seen >= self.batches.end {
            self.finish()
        } else {
            Ok(())
        }
    }

    /// Warns if the fit did not reach the range.
    fn after_fit(&mut self, cx: &Cx<Main<AfterFit>>) {
        let seen = cx.counters().batches_seen;
        if !self.is_reached && seen <= self.batches.start {
            cx.warn(format!(
                "`KernelProfiler` recorded none of the batches {:?}, because the number of training batches is only {seen}",
                self.batches
            ));
        }
    }

    /// Ends the recording if the run ended within the range.
    fn teardown(&mut self, _: &Cx<Main<Teardown>>) -> Result<()> {
        self.finish()
    }
}

/// Lists no settings, because the hook only observes.
#[diagnostic::do_not_recommend]
impl Settings for KernelProfiler {
    fn settings(&self) -> SettingList {
        SettingList::new()
    }

    fn mistakes(&self) -> Vec<String> {
        let batches = &self.batches;
        let message = format!(
            "`KernelProfiler::new(…, {batches:?})` records nothing: expected a range of batches, such as `10..13`"
        );
        refused([(batches.is_empty(), message)])
    }
}
