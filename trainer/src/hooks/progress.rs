//! Progress bars and a line of metrics for each epoch.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::ord;
use crate::Metrics;
use crate::prelude::*;

/// The minimum time between two reads of the loss. On a GPU each read synchronizes.
const BETWEEN_READS: Duration = Duration::from_millis(200);

/// Shows the progress of a run: a live bar on standard error if that is a terminal, and a line of
/// metrics on standard output after each epoch, and after a validation or test outside of one.
/// Epochs are shown from 1. Values of single classes, such as `valid/accuracy/3`, are not printed.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    last_read: Instant,
    began: Instant,
    /// Whether the entry point is `fit`.
    in_fit: bool,
    /// The phase whose bar is shown.
    phase: Option<Phase>,
}

impl Default for Progress {
    fn default() -> Self {
        let now = Instant::now();
        Progress { bar: ProgressBar::hidden(), last_read: now, began: now, in_fit: false, phase: None }
    }
}

impl Progress {
    /// Creates the hook. Nothing is printed before the first pass.
    #[must_use]
    pub fn new() -> Self {
        Progress::default()
    }

    /// Draws an empty bar, if standard error is a terminal.
    fn begin(&mut self, what: String, batches: Option<u64>) {
        self.bar.finish_and_clear();
        if !std::io::stderr().is_terminal() {
            return;
        }
        self.bar = batches.map_or_else(ProgressBar::no_length, ProgressBar::new);
        let template = match batches {
            Some(_) => "{prefix} {bar:24.cyan/dim} {pos}/{len}  {rate}  eta {eta}  {msg}",
            None => "{prefix} {spinner} {pos}  {rate}  {msg}",
        };
        let style = ProgressStyle::with_template(template).expect("a valid template");
        self.bar.set_style(style.with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
            let _ = write!(text, "{:.0} batches/s", state.per_sec());
        }));
        self.bar.set_prefix(what);
    }

    /// Whether this phase belongs to an epoch and is summarized on the epoch's line.
    fn is_of_epoch(&self, phase: Phase) -> bool {
        self.in_fit && phase != Phase::Sanity
    }

    /// Prints a line of metrics.
    fn line(&self, title: &str, metrics: &Metrics) {
        self.bar.finish_and_clear();
        let shown = metrics.iter().filter(|(name, _)| !is_of_class(name));
        let shown: Metrics = shown.map(|(name, value)| (name.to_owned(), value)).collect();
        println!("{title}  {shown}  {:.1} s", self.began.elapsed().as_secs_f64());
    }
}

/// Whether a metric is that of a single class, such as `valid/accuracy/3`.
fn is_of_class(name: &str) -> bool {
    name.matches('/').count() > 1 && name.rsplit('/').next().is_some_and(|last| last.parse::<u64>().is_ok())
}

/// Formats an epoch, which is counted from 0, as ` 3/10`.
fn nth(epoch: u64, epochs: Option<u64>) -> String {
    let width = epochs.map_or(1, |epochs| epochs.to_string().len());
    let of = epochs.map_or_else(String::new, |epochs| format!("/{epochs}"));
    format!("{:>width$}{of}", epoch + 1)
}

#[hook(ord = ord::PROGRESS, single)]
impl Progress {
    /// Starts the clock.
    fn setup(&mut self, cx: &mut Cx<Setup>) {
        (self.began, self.in_fit) = (Instant::now(), cx.phase() == Phase::Train);
    }

    /// Starts the clock of the epoch.
    fn before_epoch(&mut self, _: &mut Cx<BeforeEpoch>) {
        self.began = Instant::now();
    }

    /// Draws an empty bar when a pass begins.
    fn before_step(&mut self, cx: &mut Cx<BeforeStep>) {
        // A validation in the middle of an epoch replaces its bar.
        if cx.counters().batch_idx == 0 || self.phase != Some(cx.phase()) {
            self.phase = Some(cx.phase());
            let epoch = if self.is_of_epoch(cx.phase()) {
                format!(" {}", nth(cx.counters().epoch, cx.epochs()))
            } else {
                String::new()
            };
            self.begin(format!("{}{epoch}", cx.phase()), cx.batches());
        }
    }

    /// Moves the bar.
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_position(cx.counters().batch_idx);
        if self.last_read.elapsed() > BETWEEN_READS {
            self.last_read = Instant::now();
            if let Some(loss) = cx.step_loss() {
                self.bar.set_message(format!("loss {:.4}", loss.double_value(&[])));
            }
        }
    }

    /// Prints the epoch's metrics.
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) {
        self.line(&format!("epoch {}", nth(cx.counters().epoch, cx.epochs())), cx.metrics());
    }

    /// Prints the metrics of a validation outside of training.
    fn after_valid(&mut self, cx: &mut Cx<AfterValid>) {
        if !self.is_of_epoch(cx.phase()) {
            self.line(cx.phase().name(), cx.metrics());
        }
    }

    /// Prints the metrics of the test.
    fn after_test(&mut self, cx: &mut Cx<AfterTest>) {
        self.line("test", cx.metrics());
    }

    /// Removes the bar.
    fn teardown(&mut self, _: &mut Cx<Teardown>) {
        self.bar.finish_and_clear();
    }
}
