//! [`Dashboard`]: a full-screen view of the run, instead of [`Progress`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

#[cfg(unix)]
use signal_hook::consts::SIGUSR1;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{raise, unregister};
use signal_hook::{SigId, flag};
use trainer_formats::run::{Points, Span};
use trainer_tui::{Action, Requests, Screen, State, Theme, View, check_screen, draw, next_key};

use super::Progress;
use crate::prelude::own::*;
use crate::stages;
use crate::{DivertedLines, Line, divert_lines, print_line};

/// The time between two updates of the screen.
const FRAME: Duration = Duration::from_millis(250);
/// The maximum number of lines that are printed when the terminal is restored.
const MAX_LINES: usize = 1000;

/// Shows the run in a full-screen view, instead of [`Progress`]: the curves of the metrics, the
/// progress and the remaining time, the hooks with their times and last logged values, warnings,
/// memory, and printed lines. The command `trainer watch` shows the same for a run folder.
///
/// Use this when you watch the run in its own terminal. To watch it from another terminal, or only
/// occasionally, use the command.
///
/// The key `?` lists the keys: `q` closes the view, and the run continues with the bar of
/// [`Progress`]; `s` stops the run, and `c` requests a checkpoint, both after a confirmation;
/// Ctrl-C cancels the run as it does without a dashboard.
///
/// - The times of hooks need a profile, [`profile(true)`](crate::TrainerBuilder::profile) or
///   `TRAINER_PROFILE`.
/// - If standard error or standard input is not a terminal, as in a log file, in CI or in the
///   background, this hook does what [`Progress`] does.
/// - Warnings, and lines that [`print_line`](crate::print_line) prints, are shown in the log. They
///   are printed when the terminal is restored: at the end of the entry point, after a panic, or
///   when a signal cancels the run. A plain `println!` corrupts the view until Ctrl-L redraws it.
///
/// ```
/// use trainer::hooks::{Dashboard, Progress};
///
/// let dashboard = Dashboard::new();
/// let with_accuracy = Dashboard::with(Progress::new().show("accuracy"));
/// ```
#[derive(Debug, Default)]
pub struct Dashboard {
    progress: Progress,
    /// The view, while it is shown.
    shown: Option<Shown>,
}

/// A view that is drawn by a thread.
#[derive(Debug)]
struct Shown {
    shared: Arc<Mutex<Shared>>,
    thread: JoinHandle<()>,
    /// When the view was opened.
    began: Instant,
    /// The number of optimizer steps before training began.
    first_step: Option<u64>,
    due: Instant,
    _signals: Signals,
}

/// The state that the run and the drawing thread share.
#[derive(Debug)]
struct Shared {
    state: State,
    /// The lines to print when the terminal is restored.
    lines: VecDeque<Line>,
    /// The number of earlier lines that were dropped, because there were more than `MAX_LINES`.
    dropped: u64,
    handles_signals: bool,
    /// Passes lines to the view, until the terminal is restored.
    diverted: Option<DivertedLines>,
    /// Whether the terminal has been restored. If so, lines are printed directly.
    is_given_back: bool,
    /// Whether a signal was received. If so, the view must close: the run is about to end, and a
    /// second signal would not restore the terminal.
    is_signalled: Arc<AtomicBool>,
    /// Whether the entry point is ending. If so, the view must close.
    ends: bool,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dashboard {
    /// Creates the hook with its default settings.
    #[must_use]
    pub fn new() -> Self {
        Dashboard::default()
    }

    /// Creates the hook with the settings of a [`Progress`], which apply to the lines that the
    /// dashboard prints.
    #[must_use]
    pub fn with(progress: Progress) -> Self {
        Dashboard { progress, shown: None }
    }

    /// Opens the view, if there is a terminal.
    fn open<P>(&mut self, cx: &Cx<P>) {
        self.close();
        let screen = match check_screen(trainer_tui::Stream::Stderr) {
            Ok(()) => Screen::open(trainer_tui::Stream::Stderr),
            Err(_) => return,
        };
        let screen = match screen {
            Ok(screen) => screen,
            Err(error) => {
                cx.warn(format!(
                    "the dashboard cannot be shown, so lines of progress are shown instead: {error}"
                ));
                return;
            }
        };
        let title = cx.run_folder().map_or_else(|| "run".to_owned(), |folder| folder.display().to_string());
        let signals = if cx.handles_signals() { Signals::watch() } else { Signals::default() };
        let shared = Arc::new(Mutex::new(Shared {
            state: State::new(title),
            lines: VecDeque::new(),
            dropped: 0,
            handles_signals: cx.handles_signals(),
            diverted: None,
            is_given_back: false,
            is_signalled: Arc::clone(&signals.is_received),
            ends: false,
        }));
        let of_lines = Arc::clone(&shared);
        let diverted = divert_lines(move |line| lock(&of_lines).add_line(line));
        lock(&shared).diverted = Some(diverted);
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("dashboard".into()).spawn(move || show(screen, &of_thread));
        match thread {
            Ok(thread) => {
                let now = Instant::now();
                self.shown =
                    Some(Shown { shared, thread, began: now, first_step: None, due: now, _signals: signals });
            }
            Err(error) => {
                give_back(&shared);
                cx.warn(format!(
                    "the dashboard cannot be shown, so lines of progress are shown instead: {error}"
                ));
            }
        }
    }

    /// Closes the view, and waits until the terminal is restored.
    fn close(&mut self) {
        if let Some(Shown { shared, thread, .. }) = self.shown.take() {
            lock(&shared).ends = true;
            // If the thread panicked, the panic has been reported, and the terminal was restored.
            let _ = thread.join();
        }
        self.progress.is_hidden = false;
    }

    /// Updates the view if `is_due` is set, or if the last update was at least `FRAME` ago.
    fn update<P>(&mut self, cx: &Cx<P>, is_due: bool) {
        if self.shown.as_ref().is_some_and(|shown| shown.thread.is_finished()) {
            // The user has closed the view.
            self.close();
            self.progress.in_terminal = true;
        }
        let Some(Shown { shared, began, first_step, due, .. }) = &mut self.shown else { return };
        if is_due || *due <= Instant::now() {
            let mut live = cx.live();
            live.elapsed = began.elapsed().as_secs_f64();
            live.first_step = first_step.unwrap_or(live.first_step);
            lock(shared).state.set_live(live);
            *due = Instant::now() + FRAME;
        }
    }
}

impl Shared {
    /// Shows a line in the view. If its stream is not a terminal, or if the terminal has been
    /// restored, prints it directly.
    fn add_line(&mut self, line: Line) {
        if self.is_given_back {
            return line.print();
        }
        line.text().lines().for_each(|line| self.state.add_line(line));
        if !line.is_on_terminal() {
            return line.print();
        }
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
            self.dropped += 1;
        }
        self.lines.push_back(line);
    }
}

/// Shows the view until the entry point ends, the user closes it, or a signal cancels the run.
fn show(screen: Screen, shared: &Mutex<Shared>) {
    /// Restores the terminal when dropped, even after a panic.
    struct Showing<'a>(Option<Screen>, &'a Mutex<Shared>);

    impl Drop for Showing<'_> {
        fn drop(&mut self) {
            self.0 = None;
            give_back(self.1);
        }
    }

    let mut showing = Showing(Some(screen), shared);
    let signal = match &mut showing.0 {
        Some(screen) => react(screen, shared),
        None => None,
    };
    drop(showing);
    if let Some(signal) = signal {
        // Raised only after the terminal is restored, because the signal may end the program at
        // once.
        let _ = raise(signal);
    }
}

/// Draws the view and handles keys until the view is closed. If a key cancels or stops the run,
/// returns the signal to raise.
fn react(screen: &mut Screen, shared: &Mutex<Shared>) -> Option<i32> {
    let theme = Theme::of_environment();
    let mut view = View::new(true);
    let must_close = || {
        let shared = lock(shared);
        shared.ends || shared.is_signalled.load(Ordering::Relaxed)
    };
    while !must_close() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let drawn = screen.draw(|frame| draw(frame, &lock(shared).state, &view, theme, now));
        if !matches!(drawn, Ok(true)) {
            return None;
        }
        let Ok(key) = next_key(FRAME) else { return None };
        let Some(key) = key else { continue };
        let action = {
            let shared = lock(shared);
            view.press(key, &shared.state, &requests(&shared))
        };
        match action {
            None => {}
            Some(Action::Close) => return None,
            Some(Action::Interrupt) => return Some(SIGINT),
            Some(Action::Stop) => return Some(SIGTERM),
            Some(Action::Checkpoint) => {
                #[cfg(unix)]
                let _ = raise(SIGUSR1);
                view.show_message("the checkpoint follows the current batch");
            }
            Some(Action::Redraw) => drop(screen.redraw()),
        }
    }
    None
}

fn requests(shared: &Shared) -> Requests {
    let takes = shared.state.live().is_some_and(|live| live.takes_checkpoint_requests);
    let ask = |is_possible: bool, question: &str, why: &str| {
        if is_possible { Ok(question.to_owned()) } else { Err(why.to_owned()) }
    };
    Requests {
        stop: ask(
            shared.handles_signals,
            "stop this run?",
            "this run does not handle signals (`OnSignal::Ignore`): a signal would end the program at once",
        ),
        checkpoint: ask(
            takes,
            "write a checkpoint?",
            "cannot write a checkpoint now: this requires the hook `Checkpoint`, a running `fit` (not a replay or a smoke \
                     test), and signal handling",
        ),
    }
}

/// Prints the lines that were only shown in the view. Later lines are printed directly.
fn give_back(shared: &Mutex<Shared>) {
    loop {
        let lines = {
            let mut shared = lock(shared);
            let lines = std::mem::take(&mut shared.lines);
            shared.is_given_back = lines.is_empty();
            lines
        };
        if lines.is_empty() {
            break;
        }
        lines.iter().for_each(Line::print);
    }
    let (diverted, dropped) = {
        let mut shared = lock(shared);
        (shared.diverted.take(), std::mem::take(&mut shared.dropped))
    };
    drop(diverted);
    if dropped > 0 {
        print_line(format!("({dropped} earlier lines were only shown in the dashboard)"));
    }
}

/// Notes signals that cancel the run, until it is dropped.
#[derive(Debug, Default)]
struct Signals {
    is_received: Arc<AtomicBool>,
    actions: Vec<SigId>,
}

impl Signals {
    fn watch() -> Self {
        let is_received = Arc::new(AtomicBool::new(false));
        let actions = [SIGINT, SIGTERM].map(|signal| flag::register(signal, Arc::clone(&is_received)));
        Signals { is_received, actions: actions.into_iter().flatten().collect() }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for action in self.actions.drain(..) {
            unregister(action);
        }
    }
}

#[hook(in = stages::Display, single, may_fail)]
impl Dashboard {
    /// Opens the view. Returns an error if the trainer also has a [`Progress`].
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        if cx.hook::<Progress>().is_ok() {
            return Err(Error::fatal(
                "`Dashboard` and `Progress` cannot share the terminal: remove one of them; `Dashboard::with(progress)` takes \
                 the settings of a `Progress`",
            ));
        }
        self.open(cx);
        self.progress.is_hidden = self.shown.is_some();
        self.progress.setup(cx);
        self.update(cx, true);
        Ok(())
    }

    /// Starts the clock of the epoch.
    fn before_epoch(&mut self, cx: &Cx<Main<BeforeEpoch>>) {
        self.progress.before_epoch(cx);
    }

    /// Shows that a pass begins.
    fn before_step(&mut self, cx: &Cx<Main<BeforeStep>>) {
        if let (Phase::Train, Some(shown)) = (cx.phase(), &mut self.shown) {
            shown.first_step.get_or_insert(cx.counters().optimizer_steps);
        }
        self.update(cx, cx.counters().batch_idx == 0);
        if self.shown.is_none() {
            self.progress.before_step(cx);
        }
    }

    /// Shows the progress.
    fn after_step(&mut self, cx: &Cx<Main<AfterStep>>) -> Result<()> {
        self.update(cx, false);
        self.progress.after_step(cx)
    }

    /// Adds the values of a record to the curves.
    #[hook(only(train, valid, test, predict))]
    fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) {
        let Some(Shown { shared, .. }) = &self.shown else { return };
        let record = cx.record();
        let span = match record.span() {
            crate::Span::Steps => Span::Steps,
            crate::Span::Pass => Span::Pass,
            crate::Span::Rest => Span::Rest,
        };
        let mut shared = lock(shared);
        for (name, value) in record.scalars() {
            shared.state.add(name, span, record.counters().optimizer_steps, value);
        }
    }

    /// Prints the metrics of the epoch.
    fn after_epoch(&mut self, cx: &Cx<Main<AfterEpoch>>) {
        self.progress.after_epoch(cx);
        self.update(cx, true);
    }

    /// Prints the metrics of a validation outside of an epoch.
    fn after_valid(&mut self, cx: &Cx<Main<AfterValid>>) {
        self.progress.after_valid(cx);
    }

    /// Prints the metrics of the test.
    fn after_test(&mut self, cx: &Cx<Main<AfterTest>>) {
        self.progress.after_test(cx);
    }

    /// Adds the metrics of the epochs to the checkpoint.
    fn before_save_checkpoint(&mut self, cx: &Cx<Main<BeforeSaveCheckpoint>>) -> Result<()> {
        self.progress.before_save_checkpoint(cx)
    }

    /// Restores the metrics of the epochs before the checkpoint, and reads the curves from the file
    /// of a logger.
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        self.progress.after_load_checkpoint(cx)?;
        let (Some(Shown { shared, .. }), Some(folder)) = (&self.shown, cx.run_folder()) else {
            return Ok(());
        };
        let points =
            Points::in_folder(folder).and_then(|points| points.map(|mut own| own.read()).transpose());
        match points {
            Ok(update) => {
                let last = cx.counters().optimizer_steps;
                let mut shared = lock(shared);
                for point in update.into_iter().flat_map(|update| update.points) {
                    // The logger may not yet have removed the rows that were written after the
                    // checkpoint.
                    if point.optimizer_steps <= last {
                        shared.state.add(&point.name, point.span, point.optimizer_steps, point.value);
                    }
                }
            }
            Err(error) => cx.warn(format!("the dashboard shows no curves from before the resume: {error}")),
        }
        Ok(())
    }

    /// Prints the table of the fit.
    fn after_fit(&mut self, cx: &Cx<Main<AfterFit>>) {
        self.progress.after_fit(cx);
    }

    /// Restores the terminal.
    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) {
        self.close();
        self.progress.teardown(cx);
    }
}
