//! `live.json`: the current state of the run, updated about once a second for programs that follow
//! it.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tch::Device;
use trainer_formats::run::{HookTime, LIVE_FILE, Live, LiveHook, LiveValue};

use crate::error::Result;
use crate::io::files::{Links, in_file, open, read_start, read_text, replace_volatile_file};
use crate::libtorch::cuda;
use crate::phase::Phase;
use crate::run::profile::{hook_names, time_of_hook};
use crate::run::{LiveState, Run, Table};

/// The time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of bytes that suffice to recognize a file that this crate wrote.
const HEAD_BYTES: u64 = 64;

/// Returns the initial description of an entry point. The file is written before the first batch.
pub(crate) fn begun(table: &Table, phase: Phase) -> LiveState {
    let mut live = Live::new(phase.entry(), phase.name());
    let moments = table.hooks().iter().map(|hook| hook.definition.moment.path());
    let names = hook_names(table);
    live.hooks = names.into_iter().zip(moments).map(|(name, moment)| LiveHook::new(name, moment)).collect();
    let now = Instant::now();
    LiveState { began: now, due: now, has_trained: false, content: live, writer: None }
}

/// Writes the file if an update is due. Without a run folder, the check costs one branch;
/// otherwise, it reads the clock once.
#[inline]
pub(super) fn write_if_due(run: &mut Run) {
    if let Some(live) = &run.folder_state().live
        && live.due <= Instant::now()
    {
        write(run, false);
    }
}

/// Writes the file when an entry point ends.
pub(super) fn end(run: &mut Run) {
    write(run, true);
    run.folder_state_mut().live = None;
}

/// Writes the file. Before the first batch and at the end, it is written immediately; otherwise it
/// is written on a thread, unless that thread is still busy.
#[cold]
fn write(run: &mut Run, has_ended: bool) {
    let (Some(mut state), Some(folder)) =
        (run.folder_state_mut().live.take(), run.folder_state().path.clone())
    else {
        return;
    };
    state.due = Instant::now() + INTERVAL;
    if !has_ended && state.writer.as_ref().is_some_and(|writer| !writer.is_finished()) {
        run.folder_state_mut().live = Some(state);
        return;
    }
    let is_first = state.content.written == 0.0;
    // A panic of the thread has already been printed, and affects only this file.
    let earlier = state.writer.take().map_or(Ok(()), |writer| writer.join().unwrap_or(Ok(())));
    update(run, &mut state);
    state.content.takes_checkpoint_requests &= !has_ended;
    let content = state.content.clone();
    let written = earlier.and_then(|()| {
        if is_first || has_ended {
            return replace(&folder, &content);
        }
        let writer = thread::Builder::new().name("live.json".into());
        state.writer = Some(writer.spawn(move || replace(&folder, &content))?);
        Ok(())
    });
    match written {
        Ok(()) => run.folder_state_mut().live = Some(state),
        // Writing is not retried: a full or slow disk has better uses.
        Err(error) => run.reports().warn(format!("`trainer watch` cannot follow this entry point: {error}")),
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
    live.loader = run.loader().map(|name| name.to_string());
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
    live.memory = resident_bytes();
    live.device_memory = match run.device() {
        device @ Device::Cuda(_) => cuda::memory(device).ok().map(|memory| memory.allocated),
        _ => None,
    };
    for (nth, hook) in live.hooks.iter_mut().enumerate() {
        hook.time = time_of_hook(run, nth).map(|(calls, nanos)| HookTime { calls, nanos });
    }
    let log = run.logs();
    live.logged = log.sources().map(|(name, hook, value)| LiveValue::new(name, hook, value)).collect();
    live.warnings.clone_from(&run.reports().warnings());
    live.checkpoint = run.checkpoints().written.as_ref().map(|path| path.display().to_string());
    live.takes_checkpoint_requests = run.handles_signals() && run.why_no_checkpoint().is_none();
}

/// Returns the number of bytes of memory that the process occupies; `None` except on Linux, which
/// reports it in a file.
fn resident_bytes() -> Option<u64> {
    let status = read_text(Path::new("/proc/self/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
