//! The thread that sends the spool file to the server.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::client::{Client, Failure, MAX_METRICS};
use crate::error;
use crate::io::files::{Links, metadata, open};

/// The time before the first retry of a request.
const RETRY: Duration = Duration::from_millis(500);

/// The maximum time between two retries.
const MAX_RETRY: Duration = Duration::from_secs(10);

/// How long rows are collected before a request is sent.
const GATHER: Duration = Duration::from_millis(500);

/// Tells the thread that the entry point is ending.
pub(super) struct End {
    /// The status of the run.
    pub(super) status: &'static str,
    /// The time at which the run ended, in milliseconds since the Unix epoch.
    pub(super) time: u64,
    /// The time after which a failed request is not retried.
    pub(super) deadline: Instant,
}

/// What the thread sends, and where: the spool file, and the run on the server.
pub(super) struct Job {
    pub(super) client: Client,
    pub(super) run: String,
    pub(super) spool: PathBuf,
    /// The number of bytes of the spool file that were already sent.
    pub(super) sent: u64,
    /// Whether the run is resumed, in which case the server may already have some of its rows.
    pub(super) is_resumed: bool,
}

/// A handle to the running thread.
pub(super) struct Sending {
    end: Sender<End>,
    /// Receives `true` or `false` when the thread ends: whether everything was sent.
    done: Receiver<bool>,
    sent: Arc<AtomicU64>,
    problems: Arc<Mutex<Vec<String>>>,
}

/// What the thread has sent by the end of an entry point.
pub(super) struct Sent {
    /// The number of bytes of the spool file that were sent so far.
    pub(super) bytes: u64,
    /// Whether everything was sent, including the final status of the run.
    pub(super) has_ended: bool,
    pub(super) problems: Vec<String>,
}

impl Sending {
    pub(super) fn start(job: Job) -> std::io::Result<Self> {
        let (end, ends) = channel();
        let (when_done, done) = channel();
        let sent = Arc::new(AtomicU64::new(job.sent));
        let problems = Arc::<Mutex<Vec<String>>>::default();
        let mut worker = Worker {
            job,
            ends,
            end: None,
            last_steps: HashMap::new(),
            sent: Arc::clone(&sent),
            problems: Arc::clone(&problems),
            is_away: false,
        };
        std::thread::Builder::new().name("mlflow".into()).spawn(move || {
            let _ = when_done.send(worker.run());
        })?;
        Ok(Sending { end, done, sent, problems })
    }

    /// Takes the problems reported since the last call.
    pub(super) fn problems(&self) -> Vec<String> {
        std::mem::take(&mut *self.problems.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until everything is sent or the deadline has passed. If a request has no answer by
    /// then, this function stops waiting for it. The thread ends as soon as that request ends.
    pub(super) fn finish(self, end: End) -> Sent {
        let deadline = end.deadline;
        let _ = self.end.send(end);
        let left = deadline.saturating_duration_since(Instant::now());
        let has_ended = self.done.recv_timeout(left).unwrap_or(false);
        Sent { bytes: self.sent.load(Ordering::Acquire), has_ended, problems: self.problems() }
    }
}

struct Worker {
    job: Job,
    ends: Receiver<End>,
    end: Option<End>,
    /// For each metric, the last step that the server had when the run was resumed.
    last_steps: HashMap<String, u64>,
    /// A copy of `job.sent` that the trainer's thread can read.
    sent: Arc<AtomicU64>,
    problems: Arc<Mutex<Vec<String>>>,
    /// Whether the server was unreachable at the last attempt.
    is_away: bool,
}

impl Worker {
    /// Sends the rows until the entry point ends. Returns whether everything was sent.
    fn run(&mut self) -> bool {
        let client = self.job.client.clone();
        let run = self.job.run.clone();
        if self.job.is_resumed {
            match self.attempt(|| {
                client.set_status(&run, "RUNNING", None)?;
                client.last_steps(&run)
            }) {
                Some(steps) => self.last_steps.extend(steps),
                None => return false,
            }
        }
        loop {
            self.wait(GATHER);
            let is_ending = self.end.is_some();
            let Some(is_empty) = self.send_batch() else { return false };
            if is_empty && is_ending {
                break;
            }
        }
        let Some(End { status, time, .. }) = self.end else { return true };
        self.attempt(|| client.set_status(&run, status, Some(time))).is_some()
    }

    /// Waits for this time, or until the entry point ends.
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

    /// Sends the next rows of the spool file. Returns `Some(true)` if there were no rows to send,
    /// `Some(false)` otherwise, and `None` if time is up or the file cannot be read.
    fn send_batch(&mut self) -> Option<bool> {
        let (rows, bytes) = match self.read() {
            Ok(read) => read,
            Err(error) => {
                self.note(format!("{error}; no values are sent to the server until the next entry point"));
                return None;
            }
        };
        if bytes == 0 {
            return Some(true);
        }
        if !rows.is_empty() {
            let client = self.job.client.clone();
            let run = self.job.run.clone();
            self.attempt(|| client.log_metrics(&run, &rows))?;
        }
        self.job.sent += bytes;
        self.sent.store(self.job.sent, Ordering::Release);
        Some(false)
    }

    /// Reads the next complete rows of the spool file, at most [`MAX_METRICS`], and skips rows that
    /// the server already has. Also returns the number of bytes read.
    fn read(&self) -> error::Result<(Vec<Json>, u64)> {
        let mut rows = Vec::new();
        let mut bytes = 0;
        let path = &self.job.spool;
        if metadata(path)?.is_none() {
            return Ok((rows, 0));
        }
        let (mut file, _) = open(path, Links::Refuse)?;
        file.seek(SeekFrom::Start(self.job.sent)).map_err(|error| error::Error::in_file(path, error))?;
        let mut reader = BufReader::new(file);
        let mut line = String::new();
        while rows.len() < MAX_METRICS {
            line.clear();
            let length = reader.read_line(&mut line).map_err(|error| error::Error::in_file(path, error))?;
            if !line.ends_with('\n') {
                break; // the line is still being written
            }
            bytes += length as u64;
            let Ok(row) = serde_json::from_str::<Json>(&line) else { continue };
            let key = row["key"].as_str().unwrap_or_default();
            let step = row["step"].as_u64().unwrap_or(0);
            if self.last_steps.get(key).is_none_or(|last| step > *last) {
                rows.push(
                    json!({ "key": key, "value": row["value"], "timestamp": row["timestamp"], "step": step }),
                );
            }
        }
        Ok((rows, bytes))
    }

    /// Sends a request, and retries it while the server is unreachable. Returns `None` if time is
    /// up. If the server rejects the request, reports this and returns the default of `T`.
    fn attempt<T: Default>(&mut self, request: impl Fn() -> Result<T, Failure>) -> Option<T> {
        let mut pause = RETRY;
        loop {
            if self.end.as_ref().is_some_and(|end| Instant::now() >= end.deadline) {
                return None;
            }
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
            if self.end.is_some() {
                std::thread::sleep(RETRY);
            }
            pause = (pause * 2).min(MAX_RETRY);
        }
    }

    fn note(&self, problem: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }
}
