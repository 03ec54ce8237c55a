//! A progress bar on a terminal, and a line for each epoch.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::ord;
use crate::Metrics;
use crate::prelude::*;

/// The loss is read this often at most: on a GPU, reading waits for it.
const BETWEEN_READS: Duration = Duration::from_millis(200);

/// Shows how far training is: a live bar on standard error if that is a terminal, and a line of
/// metrics on standard output after each epoch.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    last_read: Instant,
    epoch_began: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        let now = Instant::now();
        Progress { bar: ProgressBar::hidden(), last_read: now, epoch_began: now }
    }
}

impl Progress {
    /// A bar that is drawn from the first epoch on.
    #[must_use]
    pub fn new() -> Self {
        Progress::default()
    }

    fn begin(&mut self, what: String, batches: Option<u64>) {
        self.bar.finish_and_clear();
        if !std::io::stderr().is_terminal() {
            return;
        }
        self.bar = batches.map_or_else(ProgressBar::no_length, ProgressBar::new);
        let template = "{prefix} {bar:24.cyan/dim} {pos}/{len}  {rate}  eta {eta}  {msg}";
        let style = ProgressStyle::with_template(template).expect("a valid template");
        self.bar.set_style(style.with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
            let _ = write!(text, "{:.0} batches/s", state.per_sec());
        }));
        self.bar.set_prefix(what);
    }

    fn line(&self, title: &str, metrics: &Metrics) {
        let values: Vec<_> = metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        let seconds = self.epoch_began.elapsed().as_secs_f64();
        self.bar.suspend(|| println!("{title}  {}  {seconds:.1} s", values.join("  ")));
    }
}

#[hook(ord = ord::PROGRESS)]
impl Progress {
    /// Begins the clock of the epoch.
    fn before_epoch(&mut self, _: &mut Cx<BeforeEpoch>) {
        self.epoch_began = Instant::now();
    }

    /// Draws an empty bar when a pass begins.
    fn before_step(&mut self, cx: &mut Cx<BeforeStep>) {
        if cx.step().batch_idx == 0 {
            let what = format!("{} {}/{}", cx.phase(), cx.step().epoch + 1, cx.epochs().max(1));
            self.begin(what, cx.batches());
        }
    }

    /// Moves the bar.
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_position(cx.step().batch_idx);
        if self.last_read.elapsed() > BETWEEN_READS {
            self.last_read = Instant::now();
            self.bar.set_message(format!("loss {:.4}", cx.loss().double_value(&[])));
        }
    }

    /// Prints the epoch's metrics.
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) {
        self.bar.finish_and_clear();
        let width = cx.epochs().to_string().len();
        let title = format!("epoch {:>width$}/{}", cx.step().epoch + 1, cx.epochs());
        self.line(&title, cx.metrics());
    }

    /// Takes the bar away, whatever happened.
    fn teardown(&mut self, _: &mut Cx<Teardown>) {
        self.bar.finish_and_clear();
    }
}
