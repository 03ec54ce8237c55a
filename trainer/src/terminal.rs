//! Printing lines above a progress bar.

use std::fmt::Display;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

/// The progress bar on the terminal, if one is drawn.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Prints a line on standard output, above the progress bar if one is drawn.
///
/// A plain `println!` while [`Progress`](crate::hooks::Progress) draws a bar on the same terminal
/// leaves a part of the bar in front of its text.
pub fn print_line(line: impl Display) {
    beside_bar(|| {
        // A closed pipe, as in `… | head`, is not an error of the run.
        let _ = writeln!(std::io::stdout(), "{line}");
    });
}

/// Prints a line on standard error, above the progress bar if one is drawn.
pub(crate) fn eprint_line(line: &str) {
    beside_bar(|| {
        let _ = writeln!(std::io::stderr(), "{line}");
    });
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
