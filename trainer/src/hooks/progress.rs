//! Progress in a terminal, in a log file and in CI.

#[cfg(feature = "dashboard")]
mod dashboard;

use std::fmt::Write;
use std::io::IsTerminal;
use std::iter;
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use trainer_formats::{columns_within, one_line};
use unicode_width::UnicodeWidthStr;

#[cfg(feature = "dashboard")]
pub use dashboard::Dashboard;

use super::pace::Pace;
use super::{monitors, stages};
use crate::Metrics;
use crate::error::did_you_mean;
use crate::lifecycle::HasMetrics;
use crate::prelude::own::*;
use crate::values::float::readable;
use crate::{DivertedLines, divert_lines, print_line};

/// The key under which each checkpoint saves the metrics of the epochs.
const EPOCHS: &str = "trainer::hooks::Progress";

/// The minimum time between two reads of the loss. On a GPU, each read synchronizes with the
/// device.
const BETWEEN_READS: Duration = Duration::from_millis(200);

/// Shows the progress of a run.
///
/// Use this when a bar and a line for each epoch are enough. For a full-screen view with curves,
/// use `Dashboard` (feature `dashboard`).
///
/// - If standard error is a terminal, a live bar shows the current pass, with its rate, the
///   remaining time, the loss, and the metrics selected with [`show`](Progress::show).
/// - Otherwise, as in a log file or in CI, a long pass prints a line with the remaining time on
///   standard output [every minute](Progress::line_every).
///
///   The remaining time is that of the fit, or of the pass if the length of the fit is not known.
/// - In both cases, each epoch, and each validation or test outside of an epoch, prints a line of
///   metrics on standard output. Values of individual classes, such as `valid/accuracy/3`, and of
///   monitors, such as `train/grad_norm/fc1.weight`, are omitted. A fit of several epochs ends with
///   a [table](Progress::table).
///
/// Epochs are numbered from 1. Use [`print_line`] instead of `println!` to print above the bar.
///
/// ```
/// use std::time::Duration;
///
/// use trainer::hooks::Progress;
///
/// let progress = Progress::new().show("accuracy").line_every(Duration::from_secs(30));
/// ```
#[doc(alias("ProgressBar", "TQDMProgressBar", "RichProgressBar", "ProgbarLogger", "tqdm"))]
#[doc(alias("enable_progress_bar", "verbose"))]
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Prints lines above the bar, while it is drawn.
    diverted: Option<DivertedLines>,
    last_read: Instant,
    /// When the epoch began or, outside of an epoch, when the entry point began.
    began: Instant,
    /// The pace of the current pass, in batches.
    pace: Pace,
    /// The pace of the fit, in optimizer steps; `None` before its first training batch.
    fit_pace: Option<Pace>,
    last_line: Instant,
    line_every: Duration,
    shown: Vec<String>,
    has_table: bool,
    /// The metrics of each epoch of this fit, including those before a resume; empty without a
    /// table.
    epochs: Vec<(u64, Metrics)>,
    /// Whether the entry point is `fit`.
    in_fit: bool,
    /// The phase of the current pass.
    phase: Option<Phase>,
    in_terminal: bool,
    /// Whether a dashboard shows the progress, so that neither a bar nor lines within a pass are
    /// shown.
    is_hidden: bool,
}

impl Default for Progress {
    fn default() -> Self {
        let now = Instant::now();
        Progress {
            bar: ProgressBar::hidden(),
            diverted: None,
            last_read: now,
            began: now,
            pace: Pace::start(0),
            fit_pace: None,
            last_line: now,
            line_every: Duration::from_secs(60),
            shown: Vec::new(),
            has_table: true,
            epochs: Vec::new(),
            in_fit: false,
            phase: None,
            in_terminal: false,
            is_hidden: false,
        }
    }
}

impl Progress {
    /// Creates the hook with its default settings.
    #[must_use]
    pub fn new() -> Self {
        Progress::default()
    }

    /// Also shows the last value of a metric of the current phase, such as `accuracy`. An epoch
    /// that logs no such metric causes a warning.
    #[must_use]
    pub fn show(mut self, metric: impl Into<String>) -> Self {
        self.shown.push(metric.into());
        self
    }

    /// The minimum time between two lines of a pass if standard error is not a terminal. Defaults
    /// to one minute.
    #[must_use]
    pub fn line_every(mut self, time: Duration) -> Self {
        self.line_every = time;
        self
    }

    /// Whether a fit of more than one epoch ends with a table of the last, the lowest and the
    /// highest value of each metric. Defaults to `true`.
    #[must_use]
    pub fn table(mut self, table: bool) -> Self {
        self.has_table = table;
        self
    }

    /// Begins a pass: draws an empty bar, if standard error is a terminal.
    fn begin(&mut self, what: &str, cx: &Cx<Main<BeforeStep>>) {
        self.clear();
        self.pace = Pace::start(cx.counters().batch_idx);
        self.last_line = Instant::now();
        if !self.in_terminal {
            return;
        }
        self.bar = cx.plan().batches.map_or_else(ProgressBar::no_length, ProgressBar::new);
        let template = match cx.plan().batches {
            Some(_) => "{prefix} {bar:16.cyan/dim} {pos}/{len}  {rate}  {wide_msg}",
            None => "{prefix} {spinner} {pos}  {rate}  {wide_msg}",
        };
        let style = ProgressStyle::with_template(template).expect("a valid template");
        self.bar.set_style(style.with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
            let _ = write!(text, "{:.0} batches/s", state.per_sec());
        }));
        self.bar.set_prefix(one_line(what).into_owned());
        let bar = self.bar.clone();
        self.diverted = Some(divert_lines(move |line| bar.suspend(|| line.print())));
    }

    /// Removes the bar.
    fn clear(&mut self) {
        self.bar.finish_and_clear();
        self.diverted = None;
    }

    /// Whether this phase belongs to an epoch and is summarized on the epoch's line.
    fn is_of_epoch(&self, phase: Phase) -> bool {
        self.in_fit && phase != Phase::Sanity
    }

    /// The name of the current pass, such as `train  3/10`.
    fn pass<P>(&self, cx: &Cx<P>) -> String {
        let phase = with_loader(cx, ' ');
        if self.is_of_epoch(cx.phase()) {
            format!("{phase} {}", nth(cx.counters().epoch, cx.plan().epochs))
        } else {
            phase
        }
    }

    /// Formats the loss and the selected metrics of the batch. Synchronizes with the device.
    fn values(&self, cx: &Cx<Main<AfterStep>>) -> Result<String> {
        let mut text = cx
            .step_loss()
            .map_or_else(String::new, |loss| format!("loss {}", readable(loss.double_value(&[]))));
        if !self.shown.is_empty() {
            let logged = cx.logged()?;
            for name in &self.shown {
                if let Some(value) = logged.get(&format!("{}/{name}", with_loader(cx, '/'))) {
                    let _ = write!(text, "  {name} {}", readable(value));
                }
            }
        }
        Ok(text)
    }

    /// Prints the progress of the pass.
    fn progress_line(&self, cx: &Cx<Main<AfterStep>>) -> Result<()> {
        let done = cx.counters().batch_idx;
        let rate = self.pace.per_second(done);
        let of = cx.plan().batches.map_or_else(String::new, |batches| format!("/{batches}"));
        print_line(format!(
            "{}  batch {done}{of}  {}  {rate:.1} batches/s  {}",
            self.pass(cx),
            self.values(cx)?,
            self.eta(cx)
        ));
        Ok(())
    }

    /// Formats the time until the fit ends or, if that is not known, until the pass ends. Returns
    /// nothing if neither is known.
    fn eta(&self, cx: &Cx<Main<AfterStep>>) -> String {
        let steps = cx.counters().optimizer_steps;
        let of_fit = self.fit_pace.as_ref().zip(cx.plan().steps.filter(|_| self.in_fit));
        let of_fit = of_fit.map(|(pace, planned)| pace.remaining(steps, planned));
        let of_pass = cx.plan().batches.map(|batches| self.pace.remaining(cx.counters().batch_idx, batches));
        let seconds = of_fit.filter(|seconds| seconds.is_finite()).or(of_pass);
        seconds.map_or_else(String::new, |seconds| format!("eta {}", rough(seconds)))
    }

    /// Prints a line with the metrics of the current loader, after a pass outside of an epoch.
    fn pass_line<P: HasMetrics>(&mut self, cx: &Cx<P>) {
        let prefix = with_loader(cx, '/') + "/";
        let metrics = cx.metrics();
        let own = metrics.iter().filter(|(name, _)| cx.loader().is_none() || name.starts_with(&prefix));
        let own: Metrics = own.map(|(name, value)| (name.to_owned(), value)).collect();
        self.line(&with_loader(cx, ' '), &own);
    }

    /// Prints a line of metrics, without those of individual classes and monitors.
    fn line(&mut self, title: &str, metrics: &Metrics) {
        self.clear();
        let shown = metrics.iter().filter(|(name, _)| !is_detail(name));
        let values = shown.map(|(name, value)| format!("{name} {}", readable(value)));
        let time = format!("{:.1} s", self.began.elapsed().as_secs_f64());
        let parts: Vec<String> = iter::once(title.to_owned()).chain(values).chain([time]).collect();
        print_line(broken(&parts, columns()));
    }
}

/// The width of the terminal on standard output. A file or a pipe has no limit.
fn columns() -> usize {
    let size = Term::stdout().size_checked();
    size.map_or(usize::MAX, |(_, columns)| if columns == 0 { 80 } else { columns.into() })
}

/// Joins parts into lines of at most this width, unless a part is longer itself. Lines after the
/// first are indented below its second part.
fn broken(parts: &[String], width: usize) -> String {
    let indent = parts[0].width() + 2;
    let (mut text, mut used) = (parts[0].clone(), parts[0].width());
    for part in &parts[1..] {
        if used + 2 + part.width() > width && used > indent {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            used = indent;
        } else {
            text.push_str("  ");
            used += 2;
        }
        text.push_str(part);
        used += part.width();
    }
    text
}

/// Formats the phase. If the loader has a name, the separator and the name follow.
fn with_loader<P>(cx: &Cx<P>, separator: char) -> String {
    let phase = cx.phase();
    cx.loader().map_or_else(|| phase.to_string(), |loader| format!("{phase}{separator}{loader}"))
}

/// Whether lines and tables omit a metric, because it belongs to a single class or a monitor.
fn is_detail(name: &str) -> bool {
    is_of_class(name) || monitors::is_detail(name)
}

/// Whether a metric belongs to a single class, such as `valid/accuracy/3`.
fn is_of_class(name: &str) -> bool {
    name.matches('/').count() > 1 && name.rsplit('/').next().is_some_and(|last| last.parse::<u64>().is_ok())
}

/// Formats the number of an epoch, given its index: ` 3/10` for the index 2.
fn nth(epoch: u64, epochs: Option<u64>) -> String {
    let width = epochs.map_or(1, |epochs| epochs.to_string().len());
    let of = epochs.map_or_else(String::new, |epochs| format!("/{epochs}"));
    format!("{:>width$}{of}", epoch + 1)
}

/// Formats a number of seconds as a rough duration: `12 s`, `3 min`, `2 h 5 min`.
fn rough(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match seconds {
        0..100 => format!("{seconds} s"),
        100..5400 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Formats each metric's last, lowest and highest value, with the epochs of the extremes, in lines
/// of at most this width.
fn table(epochs: &[(u64, Metrics)], width: usize) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in epochs.iter().flat_map(|(_, metrics)| metrics.iter()) {
        if !is_detail(name) && !names.contains(&name) {
            names.push(name);
        }
    }
    let mut rows = vec![["metric".to_owned(), "last".to_owned(), "lowest".to_owned(), "highest".to_owned()]];
    for name in names {
        let values = epochs.iter().filter_map(|(epoch, metrics)| Some((epoch + 1, metrics.get(name)?)));
        let values: Vec<(u64, f64)> = values.collect();
        let numbers = values.iter().filter(|(_, value)| !value.is_nan());
        let lowest = numbers.clone().min_by(|one, other| one.1.total_cmp(&other.1));
        let highest = numbers.max_by(|one, other| one.1.total_cmp(&other.1));
        let last = values.last().map_or_else(|| "-".to_owned(), |(_, value)| readable(*value));
        let [lowest, highest] = [lowest, highest].map(|found| match found {
            Some((epoch, value)) => format!("{} ({epoch})", readable(*value)),
            None => "-".to_owned(),
        });
        rows.push([name.to_owned(), last, lowest, highest]);
    }
    columns_within(&rows, 1, width).join("\n")
}

#[hook(in = stages::Display, single, may_fail)]
impl Progress {
    /// Starts the clock, and prints the run folder of a `fit`.
    fn setup(&mut self, cx: &Cx<Main<Setup>>) {
        self.began = Instant::now();
        self.in_fit = cx.phase() == Phase::Train;
        self.fit_pace = None;
        self.phase = None;
        self.in_terminal = !self.is_hidden && std::io::stderr().is_terminal();
        self.epochs.clear();
        if let Some(folder) = cx.run_folder().filter(|_| self.in_fit) {
            print_line(format!("run folder: {}", folder.display()));
        }
    }

    /// Starts the clock of the epoch.
    fn before_epoch(&mut self, _: &Cx<Main<BeforeEpoch>>) {
        self.began = Instant::now();
    }

    /// Draws an empty bar when a pass begins.
    fn before_step(&mut self, cx: &Cx<Main<BeforeStep>>) {
        // A validation in the middle of an epoch replaces the bar of training.
        if cx.counters().batch_idx == 0 || self.phase != Some(cx.phase()) {
            self.phase = Some(cx.phase());
            self.begin(&self.pass(cx), cx);
        }
        if cx.phase() == Phase::Train && self.fit_pace.is_none() {
            self.fit_pace = Some(Pace::start(cx.counters().optimizer_steps));
        }
    }

    /// Moves the bar, or prints a line if one is due.
    fn after_step(&mut self, cx: &Cx<Main<AfterStep>>) -> Result<()> {
        if self.is_hidden {
            return Ok(());
        }
        if !self.in_terminal {
            if self.last_line.elapsed() >= self.line_every {
                self.last_line = Instant::now();
                self.progress_line(cx)?;
            }
            return Ok(());
        }
        self.bar.set_position(cx.counters().batch_idx);
        if self.last_read.elapsed() > BETWEEN_READS {
            self.last_read = Instant::now();
            let text = format!("{}  {}", self.eta(cx), self.values(cx)?);
            self.bar.set_message(one_line(text.trim()).into_owned());
        }
        Ok(())
    }

    /// Prints the metrics of the epoch, and records them for the table.
    fn after_epoch(&mut self, cx: &Cx<Main<AfterEpoch>>) {
        for name in &self.shown {
            let end = format!("/{name}");
            if !cx.metrics().iter().any(|(known, _)| known.ends_with(&end)) {
                let metrics = cx.metrics();
                let names = metrics.iter();
                let names = names.map(|(known, _)| known.split_once('/').map_or(known, |(_, name)| name));
                let similar = did_you_mean(name, names);
                cx.warn(format!(
                    "`Progress::show(\"{name}\")` shows nothing, because no such metric was logged{similar}"
                ));
            }
        }
        self.line(&format!("epoch {}", nth(cx.counters().epoch, cx.plan().epochs)), &cx.metrics());
        if self.has_table {
            self.epochs.push((cx.counters().epoch, cx.metrics().clone()));
        }
    }

    /// Prints the metrics of a validation outside of an epoch, such as the sanity check.
    fn after_valid(&mut self, cx: &Cx<Main<AfterValid>>) {
        if !self.is_of_epoch(cx.phase()) {
            self.pass_line(cx);
        }
    }

    /// Prints the metrics of the test.
    fn after_test(&mut self, cx: &Cx<Main<AfterTest>>) {
        self.pass_line(cx);
    }

    /// Adds the metrics of the epochs to the checkpoint.
    fn before_save_checkpoint(&mut self, cx: &Cx<Main<BeforeSaveCheckpoint>>) -> Result<()> {
        if self.epochs.is_empty() { Ok(()) } else { cx.save(EPOCHS, &self.epochs) }
    }

    /// Restores the metrics of the epochs before the checkpoint.
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        if self.has_table && cx.saved().contains(EPOCHS) {
            self.epochs = cx.saved().get(EPOCHS)?;
        }
        Ok(())
    }

    /// Prints the table of the fit.
    fn after_fit(&mut self, _: &Cx<Main<AfterFit>>) {
        if self.epochs.len() > 1 {
            print_line(format!("\n{}", table(&self.epochs, columns())));
        }
    }

    /// Removes the bar.
    fn teardown(&mut self, _: &Cx<Main<Teardown>>) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(values: &[(&str, f64)]) -> Metrics {
        values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn the_table_shows_the_last_value_and_the_extremes_with_their_epochs() {
        let epochs = [
            (0, metrics(&[("train/loss", 2.0), ("valid/accuracy", 0.5)])),
            (1, metrics(&[("train/loss", 0.5)])),
            (2, metrics(&[("train/loss", f64::NAN), ("valid/accuracy", 0.75)])),
        ];
        let expected = "\
metric            last      lowest     highest
train/loss         NaN  0.5000 (2)  2.0000 (1)
valid/accuracy  0.7500  0.5000 (1)  0.7500 (3)";
        assert_eq!(table(&epochs, 80), expected);
        let narrow = table(&[(0, metrics(&[("valid/accuracy_of_all_classes", 0.5)]))], 50);
        assert!(
            narrow.lines().all(|line| line.width() <= 50) && narrow.contains("valid/accuracy_of…"),
            "{narrow}"
        );
    }

    #[test]
    fn lines_of_an_epoch_are_broken_between_metrics() {
        let parts = [
            "epoch  3/10",
            "train/loss 0.6021",
            "valid/accuracy 0.9310",
            "valid/f1 0.9205",
            "valid/loss 0.5712",
            "valid/perplexity 12.1034",
            "1.2 s",
        ];
        let parts = parts.map(str::to_owned);
        assert_eq!(
            broken(&parts, 80),
            "\
epoch  3/10  train/loss 0.6021  valid/accuracy 0.9310  valid/f1 0.9205
             valid/loss 0.5712  valid/perplexity 12.1034  1.2 s"
        );
        assert_eq!(
            broken(&parts, 60),
            "\
epoch  3/10  train/loss 0.6021  valid/accuracy 0.9310
             valid/f1 0.9205  valid/loss 0.5712
             valid/perplexity 12.1034  1.2 s"
        );
        assert_eq!(broken(&parts, usize::MAX), parts.join("  "));
        assert_eq!(broken(&parts, 8).lines().count(), 6, "a long part has a line of its own");
    }

    #[test]
    fn times_are_rounded_to_their_leading_units() {
        assert_eq!(
            [0.4, 99.0, 119.0, 3599.0, 7500.0].map(rough),
            ["0 s", "99 s", "2 min", "60 min", "2 h 5 min"]
        );
    }
}
