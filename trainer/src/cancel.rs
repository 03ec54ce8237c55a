//! How a run is cancelled from outside of it: by a signal, or by a [`CancelToken`].

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{self, unregister};
use signal_hook::{SigId, flag};

use crate::error::{Error, Result};
use crate::libtorch;

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
/// program at once. Before and after an entry a signal does what it does without the trainer; a program that installs
/// handlers of its own after its first entry says [`Ignore`](OnSignal::Ignore).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSignal {
    /// Ends the program afterwards, with the status that shells report for the signal: 130 for SIGINT, 143 for SIGTERM. This is
    /// the default.
    ///
    /// By then the last checkpoint is complete, and buffered output (`print!`, C streams) is flushed, for at most two seconds.
    /// Nothing else runs: neither the code after the entry, nor destructors, nor handlers registered with C's `atexit`, because
    /// libtorch's own destructors crash while other threads still use it. A program that needs any of these chooses
    /// [`Return`](OnSignal::Return).
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
static LISTENERS: Mutex<Listeners> =
    Mutex::new(Listeners { is_prepared: false, actions: Vec::new(), entries: 0, exits: false });

struct Listeners {
    /// What a signal does while no entry runs is settled.
    is_prepared: bool,
    /// What it does besides while one does.
    actions: Vec<SigId>,
    /// How many entries are running that listen, of all threads.
    entries: usize,
    /// The last of them ends the program: one that was to do so is over.
    exits: bool,
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
        let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
        if listeners.entries == 0 {
            listeners.listen().map_err(|error| {
                let text = format!(
                    "cannot listen to signals ({error}): `.on_signal(OnSignal::Ignore)` does without"
                );
                Error::usage(text)
            })?;
        }
        listeners.entries += 1;
        IDLE.store(false, Ordering::SeqCst);
        Ok(Listening(()))
    }

    /// The entry is over. Gives the signal that came; ends the program, after these last words, if the signal is to and no entry
    /// further outside, or on another thread, has still to clean up: then the last of them does.
    pub(crate) fn end(self, exits: bool, last_words: impl FnOnce()) -> Option<CancelledBy> {
        std::mem::forget(self);
        let came = signal();
        if exits && came.is_some() {
            last_words();
        }
        leave(exits)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        leave(false);
    }
}

fn leave(exits: bool) -> Option<CancelledBy> {
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    listeners.entries -= 1;
    if listeners.entries == 0 {
        IDLE.store(true, Ordering::SeqCst); // before the last look: what comes later does what it always does
    }
    let came = signal();
    listeners.exits |= exits && came.is_some();
    if listeners.entries == 0 {
        if let (true, Some(by)) = (listeners.exits, came) {
            exit(by.exit_status());
        }
        for action in listeners.actions.drain(..) {
            unregister(action);
        }
        ASKED.store(false, Ordering::SeqCst);
        CAME.store(0, Ordering::SeqCst);
    }
    came
}

/// How long flushing may delay the exit.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// Flushes buffered output and ends the program without running destructors or `atexit` handlers: those of libtorch crash while
/// other threads use it.
fn exit(status: i32) -> ! {
    // Flushing waits for a thread that holds a stream, and for a reader of a full pipe: perhaps for ever.
    let _ = thread::Builder::new().name("exit".into()).spawn(move || {
        thread::sleep(FLUSH_TIME);
        low_level::exit(status)
    });
    let _ = io::stdout().flush();
    let _ = io::stderr().flush();
    libtorch::flush_c_streams();
    low_level::exit(status)
}

impl Listeners {
    /// From now on, until the last entry is over, a signal cancels, and a second one ends the program.
    ///
    /// An entry listens also where the program ignores the signal: a shell's script lets what it starts in the background
    /// ignore SIGINT, and whoever sends one to a training run means it.
    fn listen(&mut self) -> io::Result<()> {
        for (signal, by) in [(SIGINT, CancelledBy::Sigint), (SIGTERM, CancelledBy::Sigterm)] {
            // To listen takes the place of what a signal does by itself, for good; what the program has said it does is kept.
            let is_said = || is_in_mask("SigIgn", signal) || is_in_mask("SigCgt", signal);
            if !self.is_prepared && !is_said() {
                flag::register_conditional_default(signal, &IDLE)?;
            }
            self.actions.push(flag::register_conditional_shutdown(signal, by.exit_status(), &ASKED)?);
            self.actions.push(flag::register(signal, &ASKED)?);
            self.actions.push(flag::register_usize(signal, &CAME, signal as usize)?);
        }
        self.is_prepared = true;
        Ok(())
    }
}

/// Is a signal among those that the kernel lists so for this process? Nowhere but on Linux is that known without more ado.
fn is_in_mask(list: &str, signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(list)?.strip_prefix(':'));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
