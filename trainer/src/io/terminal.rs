//! Terminal output: lines above a progress bar, the capabilities of the terminal, and texts without
//! line breaks. Nothing else in this crate prints: `clippy.toml` forbids it.
//!
//! If a stream cannot be written to, as with a closed pipe (`… | head`) or a full disk, the run
//! continues without an error.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use console::Term;
use indicatif::ProgressBar;
use trainer_formats::visible;

use crate::error::discard_panic;

/// The progress bar on the terminal, if one is drawn.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A function that receives the lines printed while a hook uses the whole terminal. Returns whether
/// it took the line.
type Sink = Arc<dyn Fn(Stream, &str) -> bool + Send + Sync>;

/// The stream on which a line is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn is_terminal(self) -> bool {
        match self {
            Stream::Stdout => std::io::stdout().is_terminal(),
            Stream::Stderr => std::io::stderr().is_terminal(),
        }
    }

    /// Prints a text whose every part is [`visible`] or a style of this crate.
    fn print_styled(self, line: &str) {
        let _ = match self {
            Stream::Stdout => writeln!(std::io::stdout(), "{line}"),
            Stream::Stderr => writeln!(std::io::stderr(), "{line}"),
        };
    }

    fn print(self, line: &str) {
        self.print_styled(&visible(line));
    }
}

static SINK: Mutex<Option<Sink>> = Mutex::new(None);

/// Sets the function that receives lines instead of the terminal; `None` restores the terminal. A
/// stream that is not a terminal still receives its lines.
#[cfg(feature = "dashboard")]
pub(crate) fn set_sink(sink: Option<Sink>) {
    *SINK.lock().unwrap_or_else(PoisonError::into_inner) = sink;
}

/// Passes a line to the sink, if there is one. Returns `true` if the line must not be printed,
/// because the sink has taken it and the stream is a terminal.
fn is_taken(stream: Stream, line: &str) -> bool {
    let sink = SINK.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(sink) = sink else { return false };
    sink(stream, line) && stream.is_terminal()
}

/// Prints a line on standard output. If a progress bar is drawn, the line appears above the bar.
/// While a dashboard is shown, the line appears in its log.
///
/// If [`Progress`](crate::hooks::Progress) draws a bar on the same terminal, a plain `println!`
/// leaves part of the bar in front of its text.
///
/// Control characters except line breaks and tabs are printed as escapes such as `\u{1b}`, as in
/// everything that the trainer prints, because a text may come from a file or a server.
pub fn print_line(line: impl Display) {
    print_styled_line(&visible(&line.to_string()));
}

/// Prints a text like [`print_line`], with the styles that this crate has put into it. Its other
/// parts must be [`one_line`] or [`visible`].
pub(crate) fn print_styled_line(line: &str) {
    if !is_taken(Stream::Stdout, line) {
        beside_bar(|| Stream::Stdout.print_styled(line));
    }
}

/// The terminal to which standard output is connected.
pub(crate) struct Terminal {
    pub(crate) columns: usize,
    /// Whether the terminal shows colors, and neither `NO_COLOR` nor `CLICOLOR` forbids them.
    pub(crate) colors: bool,
}

/// The number of columns assumed for a terminal that does not report its width.
pub(crate) const COLUMNS: usize = 80;

/// Returns the terminal to which standard output is connected, if any.
pub(crate) fn of_stdout() -> Option<Terminal> {
    let terminal = Term::stdout();
    let columns = terminal.size_checked().map(|(_, columns)| usize::from(columns));
    terminal.is_term().then(|| Terminal {
        columns: columns.filter(|columns| *columns > 0).unwrap_or(COLUMNS),
        colors: console::colors_enabled(),
    })
}

/// Prints a line on standard error. If a progress bar is drawn, the line appears above the bar.
/// While a dashboard is shown, the line appears in its log.
pub(crate) fn eprint_line(line: &str) {
    if is_taken(Stream::Stderr, line) {
        return;
    }
    beside_bar(|| Stream::Stderr.print(line));
}

/// Prints a line that was only shown in a dashboard. Does nothing if the stream is not a terminal,
/// because the stream then has the line already.
#[cfg(feature = "dashboard")]
pub(crate) fn print_shown(stream: Stream, line: &str) {
    if stream.is_terminal() {
        stream.print(line);
    }
}

/// Prints a line on standard error in a way that libtest captures. For tests, which draw no bar.
pub(crate) fn eprint_captured(line: &str) {
    #[expect(clippy::disallowed_macros, reason = "libtest captures nothing else")]
    let printed = catch_unwind(|| eprintln!("{}", visible(line)));
    if let Err(payload) = printed {
        discard_panic(payload);
    }
}

/// Hides the bar while `print` runs.
fn beside_bar(print: impl FnOnce()) {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Sets the bar above which lines are printed.
pub(crate) fn set_bar(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Returns a text on one line that cannot affect the output around it.
pub(crate) fn one_line(text: &str) -> String {
    trainer_formats::one_line(text).into_owned()
}
