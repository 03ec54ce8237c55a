//! [`Console`]: metrics as lines on standard output.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::stages;
use crate::Span;
use crate::prelude::own::*;
use crate::values::float::readable;

/// Prints the numbers of each record within an epoch as a line on standard output, if standard
/// output is a file, a pipe or a CI log rather than a terminal. In a terminal,
/// [`Progress`](crate::hooks::Progress) shows them.
///
/// Use this when the output goes to a log file or CI, and should include numbers from within an
/// epoch.
///
/// ```text
/// step 150  epoch 2/10  train/loss 0.3783  train/lr 0.0010
/// ```
#[doc(alias("PrinterCallback", "TextLoggerHook"))]
#[derive(Debug)]
pub struct Console {
    every_steps: u64,
    every_time: Duration,
    in_terminal: bool,
    /// The optimizer step and the time of the last line.
    last: (u64, Option<Instant>),
}

impl Default for Console {
    fn default() -> Self {
        Console { every_steps: 0, every_time: Duration::ZERO, in_terminal: false, last: (0, None) }
    }
}

impl Console {
    /// Creates a logger that prints a line for each record within an epoch.
    #[must_use]
    pub fn new() -> Self {
        Console::default()
    }

    /// Prints at most one line every `steps` optimizer steps. Defaults to 0: every record.
    #[must_use]
    pub fn every_steps(mut self, steps: u64) -> Self {
        self.every_steps = steps;
        self
    }

    /// Prints at most one line per interval of this length. Defaults to zero: every record.
    #[must_use]
    pub fn every_time(mut self, time: Duration) -> Self {
        self.every_time = time;
        self
    }

    /// Whether to print even if standard output is a terminal. Defaults to `false`.
    #[must_use]
    pub fn in_terminal(mut self, print: bool) -> Self {
        self.in_terminal = print;
        self
    }
}

#[hook(in = stages::Loggers, may_fail)]
impl Console {
    /// Prints a record within an epoch, if a line is due.
    #[hook(only = train)]
    fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) {
        let record = cx.record();
        let Counters { optimizer_steps, epoch, .. } = cx.counters();
        let (last_step, last_time) = self.last;
        let is_due = optimizer_steps >= last_step.saturating_add(self.every_steps)
            && last_time.is_none_or(|time| time.elapsed() >= self.every_time);
        if record.span() != Span::Steps || !is_due {
            return;
        }
        if !self.in_terminal && std::io::stdout().is_terminal() {
            return;
        }
        self.last = (optimizer_steps, Some(Instant::now()));
        let of = cx.plan().epochs.map_or_else(String::new, |epochs| format!("/{epochs}"));
        let values: String =
            record.scalars().map(|(name, value)| format!("  {name} {}", readable(value))).collect();
        crate::print_line(format!("step {optimizer_steps}  epoch {}{of}{values}", epoch + 1));
    }
}
