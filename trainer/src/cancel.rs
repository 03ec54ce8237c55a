//! How a run is cancelled from outside of it: by a signal, or by a [`CancelToken`].

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{Error, Result};

/// Cancels runs from another thread, or from another part of the program.
///
/// The step that is running is finished; then `after_cancel` and `teardown` fire, and the entry returns
/// [`Error::Cancelled`]. A token stays cancelled until [`reset`](CancelToken::reset): an entry that begins with it is cancelled
/// before its first batch.
///
/// ```
/// use trainer::CancelToken;
///
/// let token = CancelToken::new();
/// let in_thread = token.clone(); // `.cancel_token(token)` gives the trainer the other
/// std::thread::spawn(move || in_thread.cancel()).join().unwrap();
/// assert!(token.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        CancelToken::default()
    }

    /// Cancels every run that was given this token or a clone of it.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Has it been cancelled?
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets runs begin with it again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What an entry of the trainer does when Ctrl-C (SIGINT) or SIGTERM asks the program to end while it runs.
///
/// Where the trainer listens, a first signal lets the step finish, and `after_cancel` and `teardown` run; a second ends the
/// program at once. Before and after an entry a signal does what it does without the trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSignal {
    /// It then ends the program, as the signal would have done, with the status that shells give: 130 for SIGINT, 143 for
    /// SIGTERM. What stands after the entry does not run. This is what a trainer does unless told otherwise.
    #[default]
    Exit,
    /// It then returns [`Error::Cancelled`], and the program goes on.
    Return,
    /// The trainer does not listen: for a program that handles signals itself, with a [`CancelToken`].
    Ignore,
}

/// Who cancelled a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelledBy {
    /// A [`CancelToken`].
    Token,
    /// SIGINT: Ctrl-C, most often.
    Sigint,
    /// SIGTERM: what `kill`, and the schedulers of clusters and containers, send.
    Sigterm,
}

impl CancelledBy {
    /// The exit status that a shell gives a program that was ended so.
    #[must_use]
    pub fn exit_status(self) -> i32 {
        match self {
            CancelledBy::Token => 1,
            CancelledBy::Sigint => 128 + SIGINT,
            CancelledBy::Sigterm => 128 + SIGTERM,
        }
    }
}

impl fmt::Display for CancelledBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CancelledBy::Token => "a cancel token",
            CancelledBy::Sigint => "SIGINT (Ctrl-C)",
            CancelledBy::Sigterm => "SIGTERM",
        })
    }
}

/// The signal that came, or 0. Signals are the whole process's, and so are these.
static CAME: AtomicUsize = AtomicUsize::new(0);
/// One came: the next ends the program.
static ASKED: AtomicBool = AtomicBool::new(false);
/// No entry that listens is running: a signal does what it does without the trainer.
static IDLE: AtomicBool = AtomicBool::new(true);
static LISTENERS: Mutex<Listeners> = Mutex::new(Listeners { installed: false, entries: 0 });
static ONE_LEFT: Condvar = Condvar::new();

struct Listeners {
    installed: bool,
    /// How many entries are running that listen, of all threads.
    entries: usize,
}

thread_local! {
    /// How many of them run on this thread, one within the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

fn listeners() -> MutexGuard<'static, Listeners> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The signal that asked the program to end while an entry is running.
#[inline]
pub(crate) fn signal() -> Option<CancelledBy> {
    match CAME.load(Ordering::Relaxed) {
        0 => None,
        came => Some(if came == SIGTERM as usize { CancelledBy::Sigterm } else { CancelledBy::Sigint }),
    }
}

/// An entry that listens to signals, for as long as it runs.
pub(crate) struct Listening(());

impl Listening {
    pub(crate) fn begin() -> Result<Self> {
        let mut listeners = listeners();
        if !listeners.installed {
            install().map_err(|error| {
                let text = format!(
                    "cannot listen to signals ({error}): `.on_signal(OnSignal::Ignore)` does without"
                );
                Error::usage(text)
            })?;
            listeners.installed = true;
        }
        listeners.entries += 1;
        IDLE.store(false, Ordering::SeqCst);
        DEPTH.set(DEPTH.get() + 1);
        Ok(Listening(()))
    }

    /// Ends the program if a signal asked for it. Not while an entry is running further outside, or on another thread: those
    /// clean up first.
    /// Says last words first.
    pub(crate) fn exit_if_asked(self, last_words: impl FnOnce()) {
        let Some(by) = signal().filter(|_| DEPTH.get() == 1) else { return };
        last_words();
        let mut listeners = listeners();
        listeners.entries -= 1;
        ONE_LEFT.notify_all();
        while listeners.entries > 0 {
            listeners = ONE_LEFT.wait(listeners).unwrap_or_else(PoisonError::into_inner);
        }
        std::process::exit(by.exit_status());
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        let mut listeners = listeners();
        listeners.entries -= 1;
        if listeners.entries == 0 {
            IDLE.store(true, Ordering::SeqCst);
            ASKED.store(false, Ordering::SeqCst);
            CAME.store(0, Ordering::SeqCst);
        }
        ONE_LEFT.notify_all();
    }
}

/// What a signal does, in this order.
fn install() -> io::Result<()> {
    for (signal, by) in [(SIGINT, CancelledBy::Sigint), (SIGTERM, CancelledBy::Sigterm)] {
        flag::register_conditional_default(signal, &IDLE)?;
        flag::register_conditional_shutdown(signal, by.exit_status(), &ASKED)?;
        flag::register(signal, &ASKED)?;
        flag::register_usize(signal, &CAME, signal as usize)?;
    }
    Ok(())
}
