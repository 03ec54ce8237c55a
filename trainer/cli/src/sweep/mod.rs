//! `trainer sweep`: runs a program once for each trial, with several trials at once. If the sweep
//! is started again, it continues where it stopped.

mod file;
mod search;
mod state;
mod trial;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use serde_json::{Map, Value as Json, json};
use trainer_formats::run::{Run, Status, ranked};
use trainer_formats::sweep::TrialState;

use self::file::Plan;
use self::state::State;
use self::trial::{Ended, Trial, text_of_values};
use crate::SweepArguments;
use crate::facts::value;
use crate::output::{BAD, FAINT, Failure, GOOD, HEADING, Output, counted, duration, open, quoted};

/// An event that the sweep waits for.
enum Event {
    /// The program of this trial has exited.
    Ended(usize, Ended),
    /// The sweep has received this signal.
    Signal(i32),
}

/// Runs those trials of a sweep file that have not finished yet.
pub(crate) fn run(arguments: &SweepArguments, out: &mut Output) -> Result<ExitCode, Failure> {
    let plan = Plan::read(&arguments.file)?;
    if arguments.dry_run {
        return dry_run(&plan, &arguments.program, out);
    }
    let mut state = State::open(&plan, &arguments.program, &arguments.file)?;
    refuse_running(&state)?;
    let count = state.trials().len();
    let finished = state.count(TrialState::Finished);
    if !out.is_json() {
        let folder = plan.folder.display();
        let earlier =
            if finished > 0 { format!(", {finished} of them finished earlier") } else { String::new() };
        out.line(format!("{HEADING}{}{HEADING:#} in {folder}{earlier}", counted(count, "trial")))?;
    }
    let mut sweep = Sweep::new(&plan, &arguments.program)?;
    // If the output is closed, the trials are still stopped in an orderly way.
    let result = sweep.run(&mut state, out);
    let ended = sweep.finish(&mut state, out);
    result.and(ended)?;
    report(&plan, &state, &sweep, out)?;
    Ok(match (sweep.signal, state.count(TrialState::Failed)) {
        (Some(signal), _) => ExitCode::from(128_u8.wrapping_add(u8::try_from(signal).unwrap_or(0))),
        (None, 0) => ExitCode::SUCCESS,
        (None, _) => ExitCode::FAILURE,
    })
}

/// Prints the command of each trial.
fn dry_run(plan: &Plan, program: &[String], out: &mut Output) -> Result<ExitCode, Failure> {
    for (nth, values) in search::trials(plan).into_iter().enumerate() {
        let trial = Trial::new(plan, program, nth + 1, &values);
        if out.is_json() {
            let values: Map<_, _> = values.into_iter().collect();
            out.object(&json!({
                "trial": nth + 1, "values": values, "run": trial.folder(), "command": trial.command_line(),
            }))?;
        } else {
            out.line(quoted(&trial.command_line()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns an error if a trial is still running, which can happen if `trainer sweep` was killed.
fn refuse_running(state: &State) -> Result<(), Failure> {
    for number in 1..=state.trials().len() {
        let folder = state.folder_of(number);
        let Ok(run) = Run::open(&folder) else { continue };
        let process = run.file().process.as_ref().filter(|process| process.exists() == Some(true));
        if let Some(process) = process.filter(|_| run.status() == Status::Running) {
            return Err(Failure::new(format!(
                "{}: trial {number} is still running, as process {}, although its sweep has ended: wait until it ends, or \
                 end it with `kill -INT {}`, and start the sweep again",
                folder.display(),
                process.id,
                process.id
            )));
        }
    }
    Ok(())
}

/// The state of the running sweep.
struct Sweep<'p> {
    plan: &'p Plan,
    program: &'p [String],
    events: Receiver<Event>,
    sender: Sender<Event>,
    running: BTreeMap<usize, Running>,
    /// A handle for ending the thread that waits for signals.
    signals: trial::Signals,
    /// The first signal that was received.
    signal: Option<i32>,
    /// Whether the sweep has used up its time budget.
    is_over: bool,
}

/// A running trial.
struct Running {
    trial: Trial,
    process: trial::ProcessGroup,
    started: Instant,
}

impl<'p> Sweep<'p> {
    fn new(plan: &'p Plan, program: &'p [String]) -> Result<Self, Failure> {
        let (sender, events) = channel();
        let to_loop = sender.clone();
        let signals = trial::Signals::listen(move |signal| drop(to_loop.send(Event::Signal(signal))))
            .map_err(|error| Failure::new(format!("cannot install signal handlers: {error}")))?;
        Ok(Sweep {
            plan,
            program,
            events,
            sender,
            running: BTreeMap::new(),
            signals,
            signal: None,
            is_over: false,
        })
    }

    /// Starts each trial that has not finished. Waits until all of them have ended, the time budget
    /// is used up, or a signal is received.
    fn run(&mut self, state: &mut State, out: &mut Output) -> Result<(), Failure> {
        let deadline = self.plan.budget.map(|budget| Instant::now() + budget);
        let waiting = (1..=state.trials().len())
            .filter(|number| state.trials()[number - 1].state != TrialState::Finished);
        let mut waiting = waiting.collect::<Vec<_>>().into_iter();
        loop {
            while self.running.len() < self.plan.jobs {
                let Some(number) = waiting.next() else { break };
                self.start(number, state, out)?;
            }
            if self.running.is_empty() {
                return Ok(());
            }
            let event = match deadline {
                Some(deadline) => {
                    self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                }
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Ended(number, ended)) => self.end(number, &ended, state, out)?,
                Ok(Event::Signal(signal)) => {
                    self.signal = Some(signal);
                    return Ok(());
                }
                Err(_) => {
                    self.is_over = true;
                    return Ok(());
                }
            }
        }
    }

    /// Ends the trials that are still running, and waits for them. Any further signal is passed on
    /// to them.
    fn finish(&mut self, state: &mut State, out: &mut Output) -> Result<(), Failure> {
        let mut result = Ok(());
        if !self.running.is_empty() {
            let why = match self.signal {
                Some(_) => "cancelled",
                None if self.is_over => "the budget is used up",
                None => "the sweep failed",
            };
            let waits = counted(self.running.len(), "running trial");
            result = message(out, "stopping", &format!("{why}: ending {waits}, which may write checkpoints"));
            self.pass_on(self.signal.unwrap_or(trial::INTERRUPT));
        }
        while !self.running.is_empty() {
            match self.events.recv() {
                Ok(Event::Ended(number, ended)) => result = result.and(self.end(number, &ended, state, out)),
                Ok(Event::Signal(signal)) => {
                    self.signal.get_or_insert(signal);
                    self.pass_on(signal);
                }
                Err(_) => break,
            }
        }
        self.signals.close();
        result
    }

    fn pass_on(&self, signal: i32) {
        self.running.values().for_each(|running| running.process.signal(signal));
    }

    fn start(&mut self, number: usize, state: &mut State, out: &mut Output) -> Result<(), Failure> {
        let trial = Trial::new(self.plan, self.program, number, &state.trials()[number - 1].values);
        let sender = self.sender.clone();
        let process = trial.start(move |ended| drop(sender.send(Event::Ended(number, ended))))?;
        state.set(number, TrialState::Started)?;
        let of = state.trials().len();
        if out.is_json() {
            out.object(&json!({ "event": "started", "trial": number, "of": of, "run": trial.folder(), "values": trial.to_json() }))?;
        } else {
            out.line(format!("trial {number}/{of} started   {}", text_of_values(trial.values())))?;
        }
        self.running.insert(number, Running { trial, process, started: Instant::now() });
        Ok(())
    }

    fn end(
        &mut self,
        number: usize,
        ended: &Ended,
        state: &mut State,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let Some(Running { trial, started, .. }) = self.running.remove(&number) else { return Ok(()) };
        let is_stopped = self.signal.is_some() || self.is_over;
        let outcome = trial.outcome(ended);
        let became = match &outcome {
            Ok(_) => TrialState::Finished,
            Err(_) if is_stopped => TrialState::Stopped,
            Err(_) => TrialState::Failed,
        };
        state.set(number, became)?;
        let of = state.trials().len();
        let took = started.elapsed();
        if out.is_json() {
            return out.object(&json!({
                "event": became.name(),
                "trial": number,
                "of": of,
                "run": trial.folder(),
                "values": trial.to_json(),
                "seconds": took.as_secs_f64(),
                "error": outcome.err().filter(|_| became == TrialState::Failed),
            }));
        }
        let took = duration(took);
        out.line(match outcome {
            Ok(run) => {
                let metric = metric_of(&run).unwrap_or_default();
                format!("trial {number}/{of} {GOOD}finished{GOOD:#}  after {took}  {metric}")
            }
            Err(_) if is_stopped => format!("trial {number}/{of} stopped   after {took}"),
            Err(error) => format!("trial {number}/{of} {BAD}failed{BAD:#}    after {took}: {error}"),
        })
    }
}

/// Formats the most important metric of a run: `valid/loss 0.0705`.
fn metric_of(run: &Run) -> Option<String> {
    let metrics = run.metrics().ok()?;
    let name = *ranked([&metrics].into_iter()).first()?;
    Some(format!("{name} {}", value(metrics[name].last)))
}

fn message(out: &mut Output, event: &str, text: &str) -> Result<(), Failure> {
    if out.is_json() { out.object(&json!({ "event": event, "message": text })) } else { out.line(text) }
}

/// Prints how far the sweep has progressed, and what to do next.
fn report(plan: &Plan, state: &State, sweep: &Sweep<'_>, out: &mut Output) -> Result<(), Failure> {
    let count = |wanted: TrialState| state.count(wanted);
    let states = [TrialState::Finished, TrialState::Failed, TrialState::Stopped, TrialState::Waiting];
    if out.is_json() {
        let counts: Map<_, _> =
            states.into_iter().map(|state| (state.name().to_owned(), Json::from(count(state)))).collect();
        return out.object(&json!({ "event": "ended", "folder": plan.folder, "trials": counts }));
    }
    let counts: Vec<String> = states
        .into_iter()
        .filter(|state| count(*state) > 0)
        .map(|state| format!("{} {}", count(state), state.name()))
        .collect();
    out.line(format!("{HEADING}{}{HEADING:#}", counts.join(", ")))?;
    if count(TrialState::Failed) > 0 {
        out.line(
            "the output of each trial is in its log file, such as 0001.log; run the same command to start failed trials again",
        )?;
    } else if sweep.is_over || sweep.signal.is_some() {
        out.line("run the same command to continue")?;
    }
    let metric = (1..=state.trials().len()).find_map(|number| {
        let run = open(&state.folder_of(number)).ok()?;
        let metrics = run.metrics().ok()?;
        ranked([&metrics].into_iter()).first().map(|name| (*name).to_owned())
    });
    if let Some(metric) = metric {
        let folder = plan.folder.display().to_string();
        out.line(format!("{FAINT}{}{FAINT:#}", quoted(&["trainer", "runs", &folder, "--sort", &metric])))?;
    }
    Ok(())
}
