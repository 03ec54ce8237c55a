//! [`Output`]: what the command prints, as text that fits the terminal, or as JSON.

use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anstyle::AnsiColor;
use serde_json::{Value as Json, json};
use trainer_formats::run::{self, Run, Status};
use trainer_formats::{visible, visible_json};

/// The reason why a command ends without a result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A message for the user.
    Message(String),
    /// The reader of the output has closed it.
    OutputClosed,
}

impl Failure {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Failure::Message(message.to_string())
    }
}

impl From<run::Error> for Failure {
    fn from(error: run::Error) -> Self {
        Failure::new(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::new(format!("cannot write the output: {error}")),
        }
    }
}

/// Standard output, as text or as JSON.
///
/// Styles are omitted if the output is not a terminal, or if `NO_COLOR` is set.
pub(crate) struct Output {
    is_json: bool,
    width: Option<usize>,
    out: anstream::AutoStream<io::Stdout>,
}

impl Output {
    pub(crate) fn new(is_json: bool) -> Self {
        Output { is_json, width: width(), out: anstream::AutoStream::auto(io::stdout()) }
    }

    /// Whether the output is JSON: the command prints nothing but [objects](Output::object).
    pub(crate) fn is_json(&self) -> bool {
        self.is_json
    }

    /// The number of columns of the terminal; `None` if lines may have any length.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// Prints one or more lines.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        writeln!(self.out, "{}", rendered(&text.to_string()))?;
        Ok(())
    }

    /// Prints an object on a line.
    pub(crate) fn object(&mut self, object: &Json) -> Result<(), Failure> {
        writeln!(self.out, "{}", visible_json(&object.to_string()))?;
        Ok(())
    }

    /// Prints a warning to standard error. A failure to do so is ignored.
    pub(crate) fn warning(&self, message: &str) {
        let _ = writeln!(anstream::stderr(), "{}", rendered(&format!("{ENDED}warning:{ENDED:#} {message}")));
    }

    /// Prints an error to standard error. A failure to do so is ignored.
    pub(crate) fn error(&self, message: &str) {
        let mut err = anstream::stderr();
        let _ = if self.is_json {
            writeln!(err, "{}", visible_json(&json!({ "error": message }).to_string()))
        } else {
            writeln!(err, "{}", rendered(&format!("{BAD}error:{BAD:#} {message}")))
        };
    }
}

/// Returns the width that tables must fit into: the value of the environment variable `COLUMNS`, or
/// else the width of the terminal.
fn width() -> Option<usize> {
    let requested = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let own = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    requested.or_else(own).filter(|width| *width > 0)
}

/// The style of a text. `{style}` begins it and `{style:#}` ends it, as with anstyle, but what is
/// written is a noncharacter: [`Output`] shows every other control character as an escape, and only
/// then replaces these by escape sequences. A text from a file cannot style or move what is
/// printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style(usize);

const STYLES: [anstyle::Style; 7] = [
    anstyle::Style::new(),
    anstyle::Style::new().bold(),
    anstyle::Style::new().dimmed(),
    AnsiColor::Green.on_default(),
    AnsiColor::Red.on_default().bold(),
    AnsiColor::Cyan.on_default(),
    AnsiColor::Yellow.on_default(),
];
pub(crate) const PLAIN: Style = Style(0);
pub(crate) const HEADING: Style = Style(1);
pub(crate) const FAINT: Style = Style(2);
pub(crate) const GOOD: Style = Style(3);
pub(crate) const BAD: Style = Style(4);
const BUSY: Style = Style(5);
const ENDED: Style = Style(6);

/// The noncharacter that ends a style. Those that begin one precede it.
const END: char = '\u{fdef}';

impl Style {
    fn mark(self) -> char {
        char::from_u32(END as u32 - 1 - u32::try_from(self.0).unwrap_or(0)).unwrap_or(END)
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PLAIN => Ok(()),
            _ if f.alternate() => f.write_char(END),
            style => f.write_char(style.mark()),
        }
    }
}

/// Returns what is printed to a terminal for a text with styles.
fn rendered(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let is_mark = |letter| letter == END || (1..STYLES.len()).any(|style| Style(style).mark() == letter);
    while let Some(at) = rest.find(is_mark) {
        shown += &visible(&rest[..at]);
        let letter = rest[at..].chars().next().unwrap_or(END);
        let style = (1..STYLES.len()).find(|style| Style(*style).mark() == letter);
        let _ = match style {
            Some(style) => write!(shown, "{}", STYLES[style]),
            None => write!(shown, "{}", anstyle::Reset),
        };
        rest = &rest[at + letter.len_utf8()..];
    }
    shown + &visible(rest)
}

/// Returns the style in which a status is printed.
pub(crate) fn style_of(status: Status) -> Style {
    match status {
        Status::Running => BUSY,
        Status::Finished => GOOD,
        Status::Failed => BAD,
        Status::Cancelled | Status::Forked | Status::Killed => ENDED,
    }
}

/// Formats a duration with its two largest units: `45s`, `3m 20s`, `2h 05m`, `3d 04h`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if minutes == 0 => format!("{seconds}s"),
        () if hours == 0 => format!("{minutes}m {:02}s", seconds % 60),
        () if days == 0 => format!("{hours}h {:02}m", minutes % 60),
        () => format!("{days}d {:02}h", hours % 24),
    }
}

/// Formats an age with its largest unit: `45s`, `3m`, `2h`, `3d`.
pub(crate) fn age(age: Duration) -> String {
    let text = duration(age);
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Returns words as a command line that a POSIX shell splits into the same words.
pub(crate) fn quoted<W: AsRef<str>>(words: &[W]) -> String {
    let is_plain = |word: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-+=./:,@%".contains(&byte);
        !word.is_empty() && word.bytes().all(plain)
    };
    // `=` in the first word would make it an assignment.
    let quote = |(nth, word): (usize, &W)| match word.as_ref() {
        word if is_plain(word) && (nth > 0 || !word.contains('=')) => word.to_owned(),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().enumerate().map(quote).collect::<Vec<_>>().join(" ")
}

/// Returns a count with its noun: `1 run`, `2 runs`, `2 batches`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let ending = match count {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{count} {noun}{ending}")
}

/// Returns "; did you mean `x`?" for the most similar candidate, or an empty string if none is
/// similar.
pub(crate) fn suggestion<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let similar = candidates.into_iter().map(|candidate| (strsim::jaro_winkler(name, candidate), candidate));
    let nearest =
        similar.filter(|(similarity, _)| *similarity > 0.75).max_by(|one, other| one.0.total_cmp(&other.0));
    nearest.map_or_else(String::new, |(_, nearest)| format!("; did you mean `{nearest}`?"))
}

/// Opens a run, given the path of its folder or its name in `runs`.
pub(crate) fn open(path: &Path) -> Result<Run, Failure> {
    Ok(Run::open(find(path)?)?)
}

/// Returns the path of a folder, given that path or the folder's name in `runs`.
pub(crate) fn find(path: &Path) -> Result<PathBuf, Failure> {
    let in_runs = Path::new("runs").join(path);
    match (path.exists(), in_runs.exists()) {
        (true, _) => Ok(path.to_owned()),
        (false, true) => Ok(in_runs),
        (false, false) => Err(Failure::new(format!(
            "there is no run {}, and no {}: `trainer runs` lists the runs in `runs`",
            path.display(),
            in_runs.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_their_two_largest_units() {
        let text = |seconds| (duration(Duration::from_secs(seconds)), age(Duration::from_secs(seconds)));
        for (seconds, long, short) in [
            (0, "0s", "0s"),
            (59, "59s", "59s"),
            (60, "1m 00s", "1m"),
            (3_725, "1h 02m", "1h"),
            (86_399, "23h 59m", "23h"),
            (270_000, "3d 03h", "3d"),
        ] {
            assert_eq!(text(seconds), (long.to_owned(), short.to_owned()));
        }
    }
}
