//! `live.json`: the current state of the run, updated about once a second for programs that follow
//! it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use tch::Device;
use trainer_formats::run::{HookTime, LIVE_FILE, Live, LiveHook, LiveValue};

use crate::error::{BoxError, Result};
use crate::io::files::{Links, in_file, open, read_start, read_text, replace_volatile_file};
use crate::libtorch::cuda;
use crate::phase::Phase;
use crate::run::context::Cx;
use crate::run::layers::{Call, Layer, Target};
use crate::run::profile::{hook_names, time_of_hook};
use crate::run::{Run, Table};

/// The time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of bytes that suffice to recognize a file that this crate wrote.
const HEAD_BYTES: u64 = 64;

/// The description of a running entry point.
#[derive(Debug)]
pub(crate) struct LiveState {
    /// When the entry point began.
    began: Instant,
    /// When the file is due to be written again.
    due: Instant,
    /// Whether training has begun. From then on, `first_step` no longer changes.
    has_trained: bool,
    /// The content that was written last.
    pub(crate) content: Live,
    /// The thread that writes the file, so that training does not wait for a slow disk. The first
    /// and the last write do not use it.
    writer: Option<JoinHandle<Result<()>>>,
}

/// Returns the initial description of an entry point. The file is written before the first batch.
pub(crate) fn begun(table: &Table, phase: Phase) -> LiveState {
    let mut live = Live::new(phase.entry(), phase.name());
    let moments = table.hooks().iter().map(|hook| hook.definition.moment.path());
    let names = hook_names(table);
    live.hooks = names.into_iter().zip(moments).map(|(name, moment)| LiveHook::new(name, moment)).collect();
    let now = Instant::now();
    LiveState { began: now, due: now, has_trained: false, content: live, writer: None }
}

/// The layer that writes the file before a batch is drawn, if an update is due. Only a run with a
/// folder has it.
#[derive(Default)]
pub(crate) struct LiveFile(Mutex<Option<LiveState>>);

impl Layer for LiveFile {
    fn call(&self, call: &mut Call<'_>) -> Result<(), BoxError> {
        if call.target == Target::Loader {
            self.write(call.run, false);
        }
        call.run()
    }
}

impl LiveFile {
    fn lock(&self) -> MutexGuard<'_, Option<LiveState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an entry point.
    pub(super) fn begin(&self, table: &Table, phase: Phase) {
        *self.lock() = Some(begun(table, phase));
    }

    /// Writes the file if an update is due or the entry point has ended. Before the first batch and
    /// at the end, it is written immediately; otherwise it is written on a thread, unless that
    /// thread is still busy.
    pub(super) fn write(&self, run: &Run, has_ended: bool) {
        let mut held = self.lock();
        let (Some(state), Some(folder)) = (&mut *held, run.folder_state().path()) else { return };
        let now = Instant::now();
        if !has_ended {
            if now < state.due {
                return;
            }
            state.due = now + INTERVAL;
            if state.writer.as_ref().is_some_and(|writer| !writer.is_finished()) {
                return;
            }
        }
        let is_first = state.content.written == 0.0;
        update(run, state);
        state.content.takes_checkpoint_requests &= !has_ended;
        // Writing is not retried: a full or slow disk has better uses.
        if let Err(error) = state.write(folder.to_owned(), is_first || has_ended) {
            *held = None;
            run.reports().warn(format!("`trainer watch` cannot follow this entry point: {error}"));
        }
        if has_ended {
            *held = None;
        }
    }
}

impl LiveState {
    /// Writes the content: immediately, or else on a thread.
    #[cold]
    fn write(&mut self, folder: PathBuf, immediately: bool) -> Result<()> {
        // A panic of the thread has already been printed, and affects only this file.
        self.writer.take().map_or(Ok(()), |writer| writer.join().unwrap_or(Ok(())))?;
        if immediately {
            return replace(&folder, &self.content);
        }
        let content = self.content.clone();
        let writer = thread::Builder::new().name("live.json".into());
        self.writer = Some(writer.spawn(move || replace(&folder, &content))?);
        Ok(())
    }
}

/// Replaces the file, unless another program wrote it.
fn replace(folder: &Path, live: &Live) -> Result<()> {
    let path = folder.join(LIVE_FILE);
    let text = live.to_text().map_err(|error| in_file(&path, error))?;
    let is_ours = |path: &Path| {
        let (file, length) = open(path, Links::Refuse)?;
        if Live::is_of_trainer(&read_start(path, &file, length.min(HEAD_BYTES))?) {
            return Ok(());
        }
        Err(in_file(path, "expected a `live.json` that this trainer wrote: move the file elsewhere"))
    };
    replace_volatile_file(&path, is_ours, |file| Ok(file.write(text.as_bytes())?))
}

/// Updates the description of the run. Reads nothing from the device.
pub(crate) fn update(run: &Run, state: &mut LiveState) {
    let LiveState { began, has_trained, content: live, .. } = state;
    let counters = run.counters();
    live.set_time(SystemTime::now());
    live.elapsed = began.elapsed().as_secs_f64();
    live.phase = run.phase().name().to_owned();
    live.loader = run.at().loader().map(|name| name.to_string());
    (live.epoch, live.batch, live.batches) = (counters.epoch, counters.batch_idx, run.progress().batches);
    (live.optimizer_steps, live.samples_seen) = (counters.optimizer_steps, counters.samples_seen);
    let plan = &run.fit().plan;
    (live.epochs, live.planned_steps) = if run.fit().is_running {
        (plan.epochs, plan.planned_steps)
    } else {
        (live.epochs, live.planned_steps)
    };
    if !*has_trained {
        live.first_step = counters.optimizer_steps;
        *has_trained = run.fit().is_running && run.phase() == Phase::Train;
    }
    live.memory = process_memory("VmRSS");
    live.device_memory = match run.device() {
        device @ Device::Cuda(_) => cuda::memory(device).ok().map(|memory| memory.allocated),
        _ => None,
    };
    for (nth, hook) in live.hooks.iter_mut().enumerate() {
        hook.time = time_of_hook(run.layers(), nth).map(|(calls, nanos)| HookTime { calls, nanos });
    }
    let log = run.logs();
    live.logged = log.sources().map(|(name, hook, value)| LiveValue::new(name, hook, value)).collect();
    live.warnings.clone_from(&run.reports().warnings());
    live.checkpoint = run.checkpoints().written.as_ref().map(|path| path.display().to_string());
    live.takes_checkpoint_requests =
        run.cancellation().handles_signals() && run.why_no_checkpoint().is_none();
}

/// # The description of the run
impl<P> Cx<P> {
    /// The state of the run, as `live.json` describes it: the position, the hooks with their times,
    /// the logged values and the warnings. For a hook that shows the run while it is running, such
    /// as [`Dashboard`](crate::hooks::Dashboard). Reads nothing from the device.
    ///
    /// `elapsed` is 0, and `first_step` is the current step: a hook that shows them notes when it
    /// began.
    #[must_use]
    pub fn live(&self) -> Live {
        let run = self.as_run();
        let mut state = begun(&run.hooks().table, run.phase());
        update(run, &mut state);
        state.content.elapsed = 0.0;
        state.content.first_step = state.content.optimizer_steps;
        state.content
    }
}

/// Returns the number of bytes of memory that the process occupies (`VmRSS`), or its peak
/// (`VmHWM`); `None` except on Linux, which reports them in a file.
pub(crate) fn process_memory(what: &str) -> Option<u64> {
    let status = read_text(Path::new("/proc/self/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
