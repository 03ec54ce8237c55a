//! [`State`]: everything that is known about a run.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use trainer_formats::run::{Live, RunFile, Span, Status};

use crate::Curve;

/// The maximum number of lines that the log keeps.
const MAX_LINES: usize = 1000;
/// The time in seconds over which the pace of batches is measured.
const PACE_TIME: f64 = 10.0;

/// The known state of a run, independent of any terminal or clock.
#[derive(Clone, Debug)]
pub struct State {
    title: String,
    status: Status,
    is_resumed: bool,
    ending: Option<String>,
    /// The hooks listed in `run.json`, for a run without `live.json`.
    hooks: Vec<String>,
    live: Option<Live>,
    /// The time, phase and number of batches at the latest updates.
    pace: VecDeque<(f64, String, u64)>,
    curves: BTreeMap<String, Curve>,
    lines: VecDeque<String>,
    problem: Option<String>,
}

/// The progress of a fit and the time that remains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remaining {
    /// The fraction of the optimizer steps that have been taken.
    pub fraction: f64,
    /// The remaining seconds at the pace of this entry point, if known.
    pub seconds: Option<f64>,
}

impl State {
    /// Returns the state of a run about which nothing is known yet. `title` names the run.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        State {
            title: title.into(),
            status: Status::Running,
            is_resumed: false,
            ending: None,
            hooks: Vec::new(),
            live: None,
            pace: VecDeque::new(),
            curves: BTreeMap::new(),
            lines: VecDeque::new(),
            problem: None,
        }
    }

    /// Updates the state from `run.json`, and sets the run's actual status.
    pub fn set_run(&mut self, file: &RunFile, status: Status) {
        self.status = status;
        self.is_resumed = !file.resumed.is_empty();
        self.ending = file.error.clone().or_else(|| file.stopped.clone());
        self.hooks.clone_from(&file.hooks);
    }

    /// Updates what the run is doing.
    pub fn set_live(&mut self, live: Live) {
        let at = (live.written, live.phase.clone(), live.batch);
        let is_same = |known: &(f64, String, u64)| known.1 == at.1 && known.2 <= at.2 && known.0 <= at.0;
        if self.pace.back().is_some_and(|last| !is_same(last)) {
            self.pace.clear();
        }
        if self.pace.back() != Some(&at) {
            self.pace.push_back(at);
        }
        while self.pace.len() > 2 && live.written - self.pace[1].0 >= PACE_TIME {
            self.pace.pop_front();
        }
        self.live = Some(live);
    }

    /// Adds a value of a metric, measured after this number of optimizer steps.
    pub fn add(&mut self, name: &str, span: Span, optimizer_steps: u64, value: f64) {
        // Most names are already known.
        let curve = match self.curves.get_mut(name) {
            Some(known) => known,
            None => self.curves.entry(name.to_owned()).or_default(),
        };
        curve.add(span == Span::Pass, optimizer_steps, value);
    }

    /// Forgets all values, because they will be added again.
    pub fn restart(&mut self) {
        self.curves.clear();
    }

    /// Adds a line to the log.
    pub fn add_line(&mut self, line: impl Into<String>) {
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line.into());
    }

    /// Sets the problem that makes the view incomplete, such as a file that cannot be read.
    pub fn set_problem(&mut self, problem: Option<String>) {
        self.problem = problem;
    }

    /// Returns the title.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns whether the run was resumed.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Returns why the run ended, if it did not reach its planned end.
    #[must_use]
    pub fn ending(&self) -> Option<&str> {
        self.ending.as_deref()
    }

    /// Returns the problem that makes the view incomplete.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns what the run was last reported to be doing.
    #[must_use]
    pub fn live(&self) -> Option<&Live> {
        self.live.as_ref()
    }

    /// Returns the hooks as `run.json` lists them.
    #[must_use]
    pub fn hooks(&self) -> &[String] {
        &self.hooks
    }

    /// Returns the names of the metrics.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.curves.keys().map(String::as_str)
    }

    /// Returns the curve of a metric.
    #[must_use]
    pub fn curve(&self, name: &str) -> Option<&Curve> {
        self.curves.get(name)
    }

    /// Returns the last value of a metric.
    #[must_use]
    pub fn last(&self, name: &str) -> Option<f64> {
        self.curves.get(name).and_then(Curve::last)
    }

    /// Returns the lines of the log.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator {
        self.lines.iter().map(String::as_str)
    }

    /// Returns the batches per second of the current pass, measured over the last few seconds.
    #[must_use]
    pub fn batches_per_second(&self) -> Option<f64> {
        let (first, last) = (self.pace.front()?, self.pace.back()?);
        (last.0 > first.0).then(|| (last.2 - first.2) as f64 / (last.0 - first.0))
    }

    /// Returns how much of the fit remains, if the number of its steps is known.
    #[must_use]
    pub fn remaining(&self) -> Option<Remaining> {
        let live = self.live.as_ref()?;
        let planned = live.planned_steps.filter(|planned| *planned > 0)?;
        let fraction = (live.optimizer_steps as f64 / planned as f64).min(1.0);
        let taken = live.optimizer_steps.saturating_sub(live.first_step);
        let left = planned.saturating_sub(live.optimizer_steps) as f64;
        let seconds = (taken > 0).then(|| left * live.elapsed / taken as f64);
        Some(Remaining { fraction, seconds: seconds.filter(|_| self.status == Status::Running) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(written: f64, phase: &str, batch: u64) -> Live {
        let mut live = Live::new("fit", phase);
        (live.written, live.batch) = (written, batch);
        live
    }

    #[test]
    fn the_pace_is_measured_over_the_last_seconds_of_the_current_pass() {
        let mut state = State::new("run");
        assert_eq!(state.batches_per_second(), None);
        for second in 0..30 {
            let batch = if second < 15 { second } else { 15 + (second - 15) * 3 };
            state.set_live(live(second as f64, "train", batch));
        }
        assert_eq!(state.batches_per_second(), Some(3.0));
        state.set_live(live(30.0, "valid", 0));
        assert_eq!(state.batches_per_second(), None);
        state.set_live(live(31.0, "valid", 50));
        assert_eq!(state.batches_per_second(), Some(50.0));
        state.set_live(live(32.0, "valid", 0));
        assert_eq!(state.batches_per_second(), None, "a new pass");
    }

    #[test]
    fn the_remaining_time_is_estimated_from_the_steps_since_the_resume() {
        let mut state = State::new("run");
        let mut now = live(0.0, "train", 0);
        (now.optimizer_steps, now.first_step, now.planned_steps, now.elapsed) = (60, 50, Some(100), 5.0);
        state.set_live(now.clone());
        assert_eq!(state.remaining(), Some(Remaining { fraction: 0.6, seconds: Some(20.0) }));
        now.optimizer_steps = 50;
        state.set_live(now.clone());
        assert_eq!(state.remaining(), Some(Remaining { fraction: 0.5, seconds: None }));
        now.planned_steps = None;
        state.set_live(now);
        assert_eq!(state.remaining(), None);
    }

    #[test]
    fn a_restart_discards_the_values_read_before_it() {
        let mut state = State::new("run");
        for step in 1..=5 {
            state.add("train/loss", Span::Steps, step, 1.0);
        }
        state.restart();
        for step in 1..=3 {
            state.add("train/loss", Span::Steps, step, 2.0);
        }
        let curve = state.curve("train/loss").unwrap();
        assert_eq!(curve.steps(), [(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)]);
    }

    #[test]
    fn the_log_keeps_its_last_lines() {
        let mut state = State::new("run");
        (0..MAX_LINES + 5).for_each(|nth| state.add_line(nth.to_string()));
        assert_eq!((state.lines().len(), state.lines().next()), (MAX_LINES, Some("5")));
    }
}
