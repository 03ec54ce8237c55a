//! The thread that sends the spool file to the server.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::client::{Client, Failure, MAX_METRICS};

/// The time before the first retry of a request.
const RETRY: Duration = Duration::from_millis(500);

/// The maximum time between two retries.
const MAX_RETRY: Duration = Duration::from_secs(10);

/// The time for which rows are collected before a request.
const GATHER: Duration = Duration::from_millis(500);

/// The end of an entry point.
pub(super) struct End {
    /// The status of the run.
    pub(super) status: &'static str,
    /// The time at which it ended, in milliseconds since the Unix epoch.
    pub(super) time: u64,
    /// The time after which a failed request is not retried.
    pub(super) deadline: Instant,
}

/// The work of the thread.
pub(super) struct Job {
    pub(super) client: Client,
    pub(super) run: String,
    pub(super) spool: PathBuf,
    /// The number of bytes of the spool file that were already sent.
    pub(super) sent: u64,
    /// Whether the run is resumed, so that the server may already have some of its rows.
    pub(super) is_resumed: bool,
}

/// A handle to the running thread.
pub(super) struct Sending {
    thread: JoinHandle<u64>,
    end: Sender<End>,
    problems: Arc<Mutex<Vec<String>>>,
}

impl Sending {
    pub(super) fn start(job: Job) -> std::io::Result<Self> {
        let (end, ends) = channel();
        let problems = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&problems);
        let thread = std::thread::Builder::new().name("mlflow".into()).spawn(move || {
            Worker { job, ends, end: None, last_steps: HashMap::new(), problems: noted, is_away: false }.run()
        })?;
        Ok(Sending { thread, end, problems })
    }

    /// Takes the problems reported since the last call.
    pub(super) fn problems(&self) -> Vec<String> {
        std::mem::take(&mut *self.problems.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the thread, after it has sent everything or the deadline has passed. Returns the number
    /// of bytes of the spool file that were sent so far, and the problems.
    pub(super) fn finish(self, end: End) -> (u64, Vec<String>) {
        let Sending { thread, end: ends, problems } = self;
        let _ = ends.send(end);
        let sent = thread.join().unwrap_or(0);
        let problems = std::mem::take(&mut *problems.lock().unwrap_or_else(PoisonError::into_inner));
        (sent, problems)
    }
}

struct Worker {
    job: Job,
    ends: Receiver<End>,
    end: Option<End>,
    /// The last step of each metric that the server had when the run was resumed.
    last_steps: HashMap<String, u64>,
    problems: Arc<Mutex<Vec<String>>>,
    /// Whether the server was unreachable at the last attempt.
    is_away: bool,
}

impl Worker {
    fn run(mut self) -> u64 {
        if self.job.is_resumed {
            let (client, run) = (self.job.client.clone(), self.job.run.clone());
            match self.attempt(|| {
                client.set_status(&run, "RUNNING", None)?;
                client.last_steps(&run)
            }) {
                Some(steps) => self.last_steps.extend(steps),
                None => return self.job.sent,
            }
        }
        loop {
            self.wait(GATHER);
            let is_ending = self.end.is_some();
            let Some(is_empty) = self.send_batch() else { return self.job.sent };
            if is_empty && is_ending {
                break;
            }
        }
        if let Some(End { status, time, .. }) = self.end {
            let (client, run) = (self.job.client.clone(), self.job.run.clone());
            self.attempt(|| client.set_status(&run, status, Some(time)));
        }
        self.job.sent
    }

    /// Waits for this time, but not beyond the end of the entry point.
    fn wait(&mut self, time: Duration) {
        if self.end.is_some() {
            return;
        }
        match self.ends.recv_timeout(time) {
            Ok(end) => self.end = Some(end),
            Err(RecvTimeoutError::Timeout) => {}
            // The trainer was dropped.
            Err(RecvTimeoutError::Disconnected) => {
                self.end = Some(End { status: "KILLED", time: 0, deadline: Instant::now() });
            }
        }
    }

    /// Sends the next rows of the spool file. Returns whether there were none, or `None` if time is
    /// up or the file cannot be read.
    fn send_batch(&mut self) -> Option<bool> {
        let (rows, bytes) = match self.read() {
            Ok(read) => read,
            Err(error) => {
                self.note(format!(
                    "cannot read {}: {error}; no values are sent to the server until the next entry point",
                    self.job.spool.display()
                ));
                return None;
            }
        };
        if bytes == 0 {
            return Some(true);
        }
        if !rows.is_empty() {
            let (client, run) = (self.job.client.clone(), self.job.run.clone());
            self.attempt(|| client.log_metrics(&run, &rows))?;
        }
        self.job.sent += bytes;
        Some(false)
    }

    /// Reads the next complete rows of the spool file, at most [`MAX_METRICS`], without those that
    /// the server already has. Also returns the number of bytes read.
    fn read(&self) -> std::io::Result<(Vec<Json>, u64)> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let mut file = match File::open(&self.job.spool) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((rows, 0)),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.job.sent))?;
        let (mut reader, mut line) = (BufReader::new(file), String::new());
        while rows.len() < MAX_METRICS {
            line.clear();
            let length = reader.read_line(&mut line)?;
            if !line.ends_with('\n') {
                break; // the line is still being written
            }
            bytes += length as u64;
            let Ok(row) = serde_json::from_str::<Json>(&line) else { continue };
            let (key, step) = (row["key"].as_str().unwrap_or_default(), row["step"].as_u64().unwrap_or(0));
            if self.last_steps.get(key).is_none_or(|last| step > *last) {
                rows.push(
                    json!({ "key": key, "value": row["value"], "timestamp": row["timestamp"], "step": step }),
                );
            }
        }
        Ok((rows, bytes))
    }

    /// Sends a request, and retries it while the server is unreachable. Returns `None` if time is
    /// up. A request that the server rejects is reported and skipped, with the default as the
    /// result.
    fn attempt<T: Default>(&mut self, request: impl Fn() -> Result<T, Failure>) -> Option<T> {
        let mut pause = RETRY;
        loop {
            match request() {
                Ok(answer) => {
                    self.is_away = false;
                    return Some(answer);
                }
                Err(error @ Failure::Refused(_)) => {
                    self.note(format!(
                        "the server rejected a request, which is not retried: {}",
                        error.text()
                    ));
                    return Some(T::default());
                }
                Err(error @ Failure::Temporary(_)) => {
                    if !std::mem::replace(&mut self.is_away, true) {
                        self.note(format!("a request failed and will be retried: {}", error.text()));
                    }
                }
            }
            self.wait(pause);
            if let Some(end) = &self.end {
                if Instant::now() >= end.deadline {
                    self.note(
                        "not all values were sent: the rest is in `mlflow.jsonl` in the run folder, and a resumed run sends it"
                            .to_owned(),
                    );
                    return None;
                }
                std::thread::sleep(RETRY);
            }
            pause = (pause * 2).min(MAX_RETRY);
        }
    }

    fn note(&self, problem: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }
}
