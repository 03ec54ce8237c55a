//! Requests to a run, sent as signals to its process. Before each signal, a check makes sure that
//! the process ID still belongs to that process.

use rustix::process::Signal;
use trainer_formats::run::{Process, Status};
use trainer_tui::Requests;

use super::source::Source;

/// Sends the user's requests to a run.
#[derive(Default)]
pub(crate) struct Sender {
    /// The process that was asked to stop, if any.
    stopped: Option<Process>,
}

impl Sender {
    /// Returns the requests that the run accepts.
    pub(crate) fn requests(&self, source: &Source) -> Requests {
        let stop = process(source).map(|process| {
            let title = source.state().title();
            if self.stopped.as_ref() == Some(process) {
                format!("process {} was asked to stop: end it at once, without a checkpoint?", process.id)
            } else {
                format!("stop {title}, process {}?", process.id)
            }
        });
        let checkpoint = process(source).and_then(|process| {
            let is_taken = source.state().live().is_some_and(|live| live.takes_checkpoint_requests);
            if is_taken {
                Ok(format!("request a checkpoint from {}, process {}?", source.state().title(), process.id))
            } else {
                Err("the run accepts no checkpoint requests now: this requires the hook `Checkpoint`, a running `fit` (not a replay or a smoke \
                     test), and signal handling"
                    .into())
            }
        });
        Requests { stop, checkpoint }
    }

    /// Asks the run to stop, and returns a message for the user.
    pub(crate) fn stop(&mut self, source: &Source) -> String {
        let sent = process(source).and_then(|process| {
            send(process, Signal::TERM)?;
            self.stopped = Some(process.clone());
            Ok("SIGTERM was sent: the run ends after its current batch".to_owned())
        });
        sent.unwrap_or_else(|why| why)
    }

    /// Requests a checkpoint, and returns a message for the user.
    pub(crate) fn checkpoint(&mut self, source: &Source) -> String {
        // The run may have ended since the user was asked to confirm.
        let sent = self.requests(source).checkpoint.and_then(|_| {
            send(process(source)?, Signal::USR1)?;
            Ok("SIGUSR1 was sent: the run writes a checkpoint after its current batch".to_owned())
        });
        sent.unwrap_or_else(|why| why)
    }
}

/// Returns the process of a run on this host, or the reason why it cannot be sent a signal.
fn process(source: &Source) -> Result<&Process, String> {
    let run = source.run().ok_or("`run.json` cannot be read")?;
    if run.status() != Status::Running {
        return Err(format!("the run is {}, not running", run.status().name()));
    }
    let process = run.file().process.as_ref();
    let process = process.ok_or("`run.json` has no process ID, because an older trainer wrote it")?;
    check(process).map(|()| process)
}

/// Returns an error unless the process exists on this host.
fn check(process: &Process) -> Result<(), String> {
    match process.exists() {
        Some(true) => Ok(()),
        Some(false) => Err(format!("process {} has ended", process.id)),
        None => Err(match &process.host {
            Some(host) if Process::current().host.as_ref() == Some(host) => {
                format!("process {} cannot be seen from here: run `trainer watch` where it runs", process.id)
            }
            Some(host) => {
                format!("the run is on `{host}`, process {}: run `trainer watch` there", process.id)
            }
            None => format!("the host of process {} is unknown", process.id),
        }),
    }
}

/// Sends a signal to a process, unless its ID now belongs to a different process.
#[cfg(target_os = "linux")]
fn send(process: &Process, signal: Signal) -> Result<(), String> {
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};

    let failed = |error: Errno| match error {
        Errno::SRCH => format!("process {} has ended", process.id),
        other => format!("process {} cannot be sent a signal: {other}", process.id),
    };
    let id = i32::try_from(process.id).ok().and_then(Pid::from_raw);
    let id = id.ok_or_else(|| format!("{} is not a valid process ID", process.id))?;
    match pidfd_open(id, PidfdFlags::empty()) {
        // An open descriptor always refers to the same process, so the check can follow.
        Ok(opened) => check(process).and_then(|()| pidfd_send_signal(&opened, signal).map_err(failed)),
        Err(Errno::NOSYS) => check(process).and_then(|()| kill_process(id, signal).map_err(failed)),
        Err(error) => Err(failed(error)),
    }
}

/// Returns an error, because only Linux reports when a process started.
#[cfg(not(target_os = "linux"))]
fn send(process: &Process, _: Signal) -> Result<(), String> {
    check(process)
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "a test has files of its own")]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Returns the identity of a child process.
    fn identity(id: u32) -> Process {
        let mut process = Process::current();
        process.id = id;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        process.started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().ok();
        process
    }

    #[test]
    fn only_the_process_of_the_run_gets_a_signal() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = identity(child.id());
        assert_eq!(process.exists(), Some(true));
        type Change = fn(&mut Process);
        let others: [(Change, &str); 4] = [
            (|other| other.started = other.started.map(|ticks| ticks + 1), "has ended"),
            (|other| other.host = Some("far".into()), "the run is on `far`"),
            (|other| other.namespace = Some("pid:[1]".into()), "cannot be seen from here"),
            (|other| other.boot = Some("other".into()), "has ended"),
        ];
        for (change, expected) in others {
            let mut other = process.clone();
            change(&mut other);
            let error = send(&other, Signal::TERM).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(child.try_wait().unwrap().is_none(), "none of them was sent");
        send(&process, Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(15));
        let error = send(&process, Signal::TERM).unwrap_err();
        assert!(error.contains("has ended"), "{error}");
    }
}
