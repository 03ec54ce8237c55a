//! The sections of the page. A section without content writes nothing; [`absent`] then says what is
//! missing.

mod media;
mod metrics;
mod overview;
mod program;

use std::fmt::{self, Write};
use std::time::Duration;

pub(super) use self::media::{images, texts};
pub(super) use self::metrics::{curves, matrices, metrics};
pub(super) use self::overview::{errors_and_warnings, notes, overview};
pub(super) use self::program::{data_and_settings, environment, hooks, profiles};
use super::escape::Text;
use super::matrix::Matrix;
use super::plot::COLORS;
use super::{Content, Report};

/// The limits on the texts in a report: texts per name, characters per text, and total bytes.
const MAX_TEXTS: usize = 8;
const MAX_CHARACTERS: usize = 20_000;
const MAX_TEXT_BYTES: usize = 8 << 20;
/// Confusion matrices with more rows than this are not shown.
const MAX_SIDE: usize = 64;
/// The maximum number of characters shown for each warning and each setting.
const MAX_LINE: usize = 2000;
const MAX_VALUE: usize = 400;

/// A text, and the number of characters after which it is cut off.
struct Clipped<'t>(&'t str, usize);

impl fmt::Display for Clipped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Clipped(text, length) = *self;
        match text.char_indices().nth(length) {
            None => Text(text).fmt(f),
            Some((end, _)) => {
                write!(f, "{}… ({} characters)", Text(&text[..end]), text.chars().count())
            }
        }
    }
}

/// Returns a square in the color of a run, or an empty string if there is only one run.
fn swatch(report: &Report, run: usize) -> String {
    if report.runs.len() == 1 {
        return String::new();
    }
    let hollow = if run >= COLORS { " hollow" } else { "" };
    format!("<i class=\"swatch c{}{hollow}\"></i>", run % COLORS)
}

/// Returns the class of a table with one column per run, which makes it fit on a printed page.
fn column_class(report: &Report) -> &'static str {
    if report.runs.len() > COLORS { " class=\"many\"" } else { "" }
}

/// Writes a heading for the part about one run, if there are several runs.
fn run_heading(out: &mut String, report: &Report, run: usize) {
    if report.runs.len() > 1 {
        let _ = writeln!(out, "<h3>{}{}</h3>", swatch(report, run), Text(&report.runs[run].name));
    }
}

/// Formats a duration with its two largest units: `1 h 5 min`.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats an RFC 3339 time for people: `2026-11-21 23:59:58 UTC`.
fn time(text: &str) -> String {
    text.replacen('T', " ", 1).replacen('Z', " UTC", 1)
}

/// Formats a number with its noun: `1 step`, `2 steps`.
fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Writes a line that names what no run has recorded, and how to record it.
pub(super) fn absent(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
    if report.runs.is_empty() {
        return;
    }
    let none = |is_there: fn(&Content) -> bool| !report.runs.iter().any(is_there);
    let mut absent = Vec::new();
    if none(|run| !run.points.is_empty()) {
        absent.push(
            "curves (a logger: <code>Report</code>, <code>Csv</code> or <code>JsonLines</code>)".to_owned(),
        );
    }
    if none(|run| !run.file.profiles.is_empty()) {
        absent.push("a profile (<code>.profile(true)</code> on the builder)".to_owned());
    }
    // A confusion matrix that is not recorded element by element is an image.
    if none(|run| !run.media.images.is_empty()) {
        let matrix = if matrices.iter().all(Vec::is_empty) { ", <code>ConfusionMatrix</code>" } else { "" };
        absent
            .push(format!("images (<code>cx.log_image</code>{matrix}, with the logger <code>Report</code>)"));
    }
    if none(|run| !run.media.texts.is_empty()) {
        absent.push(
            "texts (<code>cx.log_text</code>, with the logger <code>Report</code> or <code>JsonLines</code>)"
                .to_owned(),
        );
    }
    if !absent.is_empty() {
        let _ = writeln!(out, "<p class=\"quiet\">Not recorded: {}.</p>", absent.join("; "));
    }
}
