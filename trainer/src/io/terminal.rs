//! Terminal output: lines above a progress bar, the capabilities of the terminal, and texts without
//! line breaks. Nothing else in this crate prints: `clippy.toml` forbids it.
//!
//! If a stream cannot be written to, as with a closed pipe (`… | head`) or a full disk, the run
//! continues without an error.

use std::fmt::{self, Display};
use std::io::{IsTerminal, Write};
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use console::Term;
use trainer_formats::visible;

use crate::error::discard_panic;

/// A stream on which a line is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

/// A line that the trainer or a hook is about to print: see [`divert_lines`].
#[derive(Clone, Debug)]
pub struct Line {
    stream: Stream,
    /// A text whose every part is [`visible`] or a style of this crate.
    text: String,
}

impl Line {
    /// The text, which can contain line breaks, and styles for a terminal.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the line is printed on a terminal, rather than into a file or a pipe.
    #[must_use]
    pub fn is_on_terminal(&self) -> bool {
        match self.stream {
            Stream::Stdout => std::io::stdout().is_terminal(),
            Stream::Stderr => std::io::stderr().is_terminal(),
        }
    }

    /// Prints the line, even while lines are diverted.
    pub fn print(&self) {
        let text = &self.text;
        let _ = match self.stream {
            Stream::Stdout => writeln!(std::io::stdout(), "{text}"),
            Stream::Stderr => writeln!(std::io::stderr(), "{text}"),
        };
    }
}

/// A function that receives lines.
type Take = Arc<dyn Fn(Line) + Send + Sync>;

/// The function that receives the lines, if they are diverted.
static DIVERTED: Mutex<Option<Take>> = Mutex::new(None);

/// Lines are diverted until this is dropped: see [`divert_lines`].
#[must_use = "lines are diverted until this is dropped"]
pub struct DivertedLines(Take);

/// Passes each line that [`print_line`], [`eprint_line`] and the trainer print, such as a warning,
/// to `take` instead of printing it. For a hook that draws on the terminal: a progress bar must be
/// hidden while the line is [printed](Line::print), and a view that fills the screen shows the line
/// itself.
///
/// The last call counts. `take` is called on the thread that prints.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// let lines = Arc::new(Mutex::new(Vec::new()));
/// let taken = Arc::clone(&lines);
/// let diverted = trainer::divert_lines(move |line| taken.lock().unwrap().push(line.text().to_owned()));
/// trainer::print_line("above the bar");
/// drop(diverted);
/// trainer::print_line("on standard output");
/// assert_eq!(*lines.lock().unwrap(), ["above the bar"]);
/// ```
pub fn divert_lines(take: impl Fn(Line) + Send + Sync + 'static) -> DivertedLines {
    let take: Take = Arc::new(take);
    *DIVERTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&take));
    DivertedLines(take)
}

impl Drop for DivertedLines {
    fn drop(&mut self) {
        let mut current = DIVERTED.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|current| Arc::ptr_eq(current, &self.0));
    }
}

impl fmt::Debug for DivertedLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DivertedLines").finish_non_exhaustive()
    }
}

fn print(stream: Stream, text: String) {
    let line = Line { stream, text };
    let take = DIVERTED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match take {
        Some(take) => take(line),
        None => line.print(),
    }
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
    print(Stream::Stdout, visible(&line.to_string()).into_owned());
}

/// Prints a text like [`print_line`], with the styles that this crate has put into it. Its other
/// parts must be [`one_line`] or [`visible`].
pub(crate) fn print_styled_line(line: String) {
    print(Stream::Stdout, line);
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

/// Prints a line on standard error, like [`print_line`] on standard output.
pub fn eprint_line(line: impl Display) {
    print(Stream::Stderr, visible(&line.to_string()).into_owned());
}

/// Prints a line on standard error in a way that libtest captures. For tests, which draw no bar.
pub(crate) fn eprint_captured(line: &str) {
    #[expect(clippy::disallowed_macros, reason = "libtest captures nothing else")]
    let printed = catch_unwind(|| eprintln!("{}", visible(line)));
    if let Err(payload) = printed {
        discard_panic(payload);
    }
}

/// Returns a text on one line that cannot affect the output around it.
pub(crate) fn one_line(text: &str) -> String {
    trainer_formats::one_line(text).into_owned()
}
