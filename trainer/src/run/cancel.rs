//! Requests that reach a run from outside: a signal or a [`CancelToken`] cancels the run, and
//! SIGUSR1 requests a checkpoint.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
#[cfg(unix)]
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{self, unregister};
use signal_hook::{SigId, flag};

use crate::error::{CancelledBy, Error, Result};
use crate::io::files::read_text;
use crate::libtorch;
use crate::phase::Phase;

/// Cancels runs from another thread or another part of the program.
///
/// The current batch is finished; then `after_cancel` and `teardown` fire, and the entry point
/// returns [`Error::Cancelled`]. A token stays cancelled until [`reset`](CancelToken::reset) is
/// called: until then, every entry point that starts with it is cancelled before its first batch.
///
/// ```
/// use trainer::CancelToken;
///
/// let token = CancelToken::new();
/// let clone = token.clone(); // pass the other one to the builder: `.cancel_token(token)`
/// std::thread::spawn(move || clone.cancel()).join().unwrap();
/// assert!(token.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Creates a token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        CancelToken::default()
    }

    /// Cancels every run that uses this token or a clone of it.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the token is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the cancellation, so that new runs can use the token.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What cancels a run.
#[derive(Debug)]
pub(crate) struct Cancellation {
    token: CancelToken,
    /// Whether signals cancel the run.
    handles_signals: bool,
    /// Whether the run ends after the current batch of training, which is the last of a replay.
    is_at_end_of_replay: Cell<bool>,
}

impl Cancellation {
    pub(crate) fn new(token: CancelToken) -> Self {
        Cancellation { token, handles_signals: false, is_at_end_of_replay: Cell::new(false) }
    }

    /// Sets whether signals cancel the run.
    pub(crate) fn handle_signals(&mut self, handles: bool) {
        self.handles_signals = handles;
    }

    pub(crate) fn handles_signals(&self) -> bool {
        self.handles_signals
    }

    /// Returns what has requested in this process that the run be cancelled: the token or a signal.
    /// `None` if nothing has.
    #[inline]
    pub(crate) fn request(&self) -> Option<CancelledBy> {
        if self.token.is_cancelled() {
            Some(CancelledBy::Token)
        } else if self.handles_signals {
            received_signal()
        } else {
            None
        }
    }

    /// Ends the run after the current batch of training and the validation that is due after it.
    pub(crate) fn end_replay(&self) {
        self.is_at_end_of_replay.set(true);
    }

    /// Returns the end of the replay if the last of its batches has been trained.
    #[inline]
    pub(crate) fn end_of_replay(&self, phase: Phase) -> Option<CancelledBy> {
        (self.is_at_end_of_replay.get() && phase == Phase::Train).then_some(CancelledBy::EndOfReplay)
    }

    /// Begins an entry point.
    pub(crate) fn begin(&mut self) {
        self.is_at_end_of_replay.set(false);
    }
}

/// How an entry point of the trainer reacts to SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed
/// terminal).
///
/// SIGUSR1 is also handled: it requests a checkpoint, which
/// [`Checkpoint`](crate::hooks::Checkpoint) writes after the current batch of training, and the run
/// continues. After the first entry point of a program, SIGUSR1 has no effect between entry points,
/// because its default effect would end the program. Windows has neither SIGUSR1 nor SIGHUP.
///
/// Unless this is [`Ignore`](OnSignal::Ignore), the first SIGINT, SIGTERM or SIGHUP cancels the
/// run: the current batch is finished, and `after_cancel` and `teardown` fire. A second such signal
/// ends the program immediately. Outside of entry points, these signals have the same effect as
/// without the trainer. A program that installs its own handlers after its first entry point must
/// use [`Ignore`](OnSignal::Ignore). On Linux, if SIGHUP was ignored when the program started, as
/// with `nohup`, the program continues to ignore it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnSignal {
    /// Ends the program after `teardown`, with the exit status that shells report for the signal:
    /// 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP. This is the default.
    ///
    /// The last checkpoint is complete at that time, and buffered output (`print!`, C streams) is
    /// flushed for at most two seconds. Neither the code after the entry point, nor destructors,
    /// nor handlers registered with C's `atexit` run, because libtorch's own destructors crash
    /// while other threads still use libtorch. A program that needs any of these must use
    /// [`Return`](OnSignal::Return).
    #[default]
    Exit,
    /// Returns [`Error::Cancelled`] from the entry point, and the program continues.
    Return,
    /// Installs no signal handlers. For a program that handles signals itself, for example with a
    /// [`CancelToken`].
    Ignore,
}

/// The signals that cancel a run.
const CANCELLING: &[(i32, CancelledBy)] = &[
    (SIGINT, CancelledBy::Sigint),
    (SIGTERM, CancelledBy::Sigterm),
    #[cfg(unix)]
    (SIGHUP, CancelledBy::Sighup),
];

/// The signal that was received while an entry point was running, or 0. Like signals themselves,
/// this is shared by the entire process.
static RECEIVED_SIGNAL: AtomicUsize = AtomicUsize::new(0);
/// Whether a signal was received, so that the next one ends the program.
static SHUTDOWN_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether no entry point that handles signals is running, so that a signal has its default effect.
static NO_ACTIVE_RUN: AtomicBool = AtomicBool::new(true);
/// Whether SIGUSR1 was received while an entry point was running and has not been handled yet.
static CHECKPOINT_REQUESTED: AtomicBool = AtomicBool::new(false);
static HANDLERS: Mutex<Handlers> = Mutex::new(Handlers {
    defaults_registered: false,
    actions: Vec::new(),
    active_entries: 0,
    exit_requested: false,
});

/// The signal handlers of the process, which all running entry points share.
struct Handlers {
    /// Whether the handlers that give signals their default effect between entry points are
    /// registered.
    defaults_registered: bool,
    /// The actions that are registered while entry points are running.
    actions: Vec<SigId>,
    /// The number of running entry points that handle signals, on all threads.
    active_entries: usize,
    /// Whether an entry point with [`OnSignal::Exit`] was cancelled, so that the last active entry
    /// point ends the program.
    exit_requested: bool,
}

/// Returns the signal that was received while an entry point was running, if any.
#[inline]
pub(crate) fn received_signal() -> Option<CancelledBy> {
    match RECEIVED_SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        received => CANCELLING.iter().find(|(signal, _)| *signal as usize == received).map(|(_, by)| *by),
    }
}

/// Returns whether SIGUSR1 was received while an entry point was running, and clears the request.
#[inline]
pub(crate) fn take_checkpoint_request() -> bool {
    // Write only if there is a request: a write invalidates the caches of other processors.
    CHECKPOINT_REQUESTED.load(Ordering::Relaxed) && CHECKPOINT_REQUESTED.swap(false, Ordering::Relaxed)
}

/// Keeps the signal handlers installed while an entry point runs.
pub(crate) struct SignalGuard(());

impl SignalGuard {
    /// Installs the signal handlers, unless another running entry point already did.
    ///
    /// # Errors
    ///
    /// Returns an error if the handlers cannot be installed.
    pub(crate) fn install() -> Result<Self> {
        let mut handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
        if handlers.active_entries == 0 {
            handlers.install().map_err(|error| {
                let text = format!(
                    "cannot install signal handlers ({error}): use `.on_signal(OnSignal::Ignore)` to run without them"
                );
                Error::usage(text)
            })?;
        }
        handlers.active_entries += 1;
        NO_ACTIVE_RUN.store(false, Ordering::SeqCst);
        Ok(SignalGuard(()))
    }

    /// Ends the entry point, and returns the signal that was received, if any.
    ///
    /// If a signal was received and `exits` is set, calls `report`, after which the program must
    /// end. This entry point ends the program if no other entry point is active in the process.
    /// Otherwise, the last active entry point ends the program after its own cleanup.
    pub(crate) fn end(self, exits: bool, report: impl FnOnce()) -> Option<CancelledBy> {
        std::mem::forget(self);
        if exits && received_signal().is_some() {
            report();
        }
        end_entry(exits)
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        end_entry(false);
    }
}

/// Ends an entry point that handles signals, and returns the signal that was received, if any.
///
/// The last active entry point also uninstalls the handlers or, if an exit was requested, ends the
/// program.
fn end_entry(exits: bool) -> Option<CancelledBy> {
    let mut handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
    handlers.active_entries -= 1;
    if handlers.active_entries == 0 {
        // Stored before the signal is read: a later signal already has its default effect.
        NO_ACTIVE_RUN.store(true, Ordering::SeqCst);
    }
    let received = received_signal();
    handlers.exit_requested |= exits && received.is_some();
    if handlers.active_entries == 0 {
        if let (true, Some(by)) = (handlers.exit_requested, received) {
            exit(by.exit_status());
        }
        for action in handlers.actions.drain(..) {
            unregister(action);
        }
        SHUTDOWN_REQUESTED.store(false, Ordering::SeqCst);
        RECEIVED_SIGNAL.store(0, Ordering::SeqCst);
        CHECKPOINT_REQUESTED.store(false, Ordering::SeqCst);
    }
    received
}

/// The longest time for which flushing may delay the exit.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// Flushes buffered output and ends the program without running destructors or `atexit` handlers,
/// because libtorch's destructors crash while other threads use libtorch.
fn exit(status: i32) -> ! {
    // Flushing can block: on a thread that holds the lock of a stream, or on a full pipe.
    let _ = thread::Builder::new().name("exit".into()).spawn(move || {
        thread::sleep(FLUSH_TIME);
        low_level::exit(status)
    });
    let _ = io::stdout().flush();
    let _ = io::stderr().flush();
    libtorch::flush_c_streams();
    low_level::exit(status)
}

impl Handlers {
    /// Installs the handlers: until the last active entry point ends, a signal cancels the run, and
    /// a second one ends the program.
    ///
    /// SIGINT cancels the run even if the process was started with SIGINT ignored. Shell scripts
    /// start background processes this way, but a SIGINT that is sent to a training run is still
    /// meant to cancel the run. An ignored SIGHUP stays ignored, because that is the purpose of
    /// `nohup`.
    fn install(&mut self) -> io::Result<()> {
        for &(signal, by) in CANCELLING {
            if by == CancelledBy::Sighup && is_in_mask("SigIgn", signal) {
                continue;
            }
            // The first handler permanently replaces the default effect of a signal, so that effect
            // is registered as well, unless the program has chosen a different one.
            let has_disposition = || is_in_mask("SigIgn", signal) || is_in_mask("SigCgt", signal);
            if !self.defaults_registered && !has_disposition() {
                flag::register_conditional_default(signal, &NO_ACTIVE_RUN)?;
            }
            let shutdown =
                flag::register_conditional_shutdown(signal, by.exit_status(), &SHUTDOWN_REQUESTED)?;
            self.actions.push(shutdown);
            self.actions.push(flag::register(signal, &SHUTDOWN_REQUESTED)?);
            self.actions.push(flag::register_usize(signal, &RECEIVED_SIGNAL, signal as usize)?);
        }
        #[cfg(unix)]
        self.actions.push(flag::register(SIGUSR1, &CHECKPOINT_REQUESTED)?);
        self.defaults_registered = true;
        Ok(())
    }
}

/// Whether a signal is in the signal mask `name` of this process: `SigIgn` (ignored) or `SigCgt`
/// (caught). Only Linux exposes these masks, in `/proc/self/status`; elsewhere the result is
/// `false`.
fn is_in_mask(name: &str, signal: i32) -> bool {
    let status = read_text(Path::new("/proc/self/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
