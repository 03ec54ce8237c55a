//! `trainer watch` in a pseudoterminal.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "tests write the folders that the command reads")]

#[allow(dead_code, reason = "the tests of the other commands need more of it")]
mod support;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use support::{Scratch, run_file};
use trainer_formats::run::Status;

/// The escape sequences at the beginning and end of a view.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// The command, and the user's end of its pseudoterminal.
struct Watch {
    child: Child,
    terminal: File,
    written: String,
}

impl Watch {
    /// Starts the command in a terminal of 80 × 24, and waits until it has drawn the name of the
    /// run.
    fn start(scratch: &Scratch) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let path = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let mut command = scratch.command(80, &["watch", "runs/0001"]);
        command.env("TERM", "xterm-256color").stdin(open()).stdout(open()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // Only the child may keep its end of the pseudoterminal open, so the command is dropped.
        drop(command);
        let mut watch = Watch { child, terminal: terminal.into(), written: String::new() };
        while !watch.written.contains("0001") {
            assert!(watch.read(), "{}", watch.written);
        }
        watch
    }

    /// Reads the output. Returns whether the other end of the pseudoterminal is still open.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.terminal.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) | Ok(0) => return false,
                Ok(count) => {
                    self.written += &String::from_utf8_lossy(&bytes[..count]);
                    return true;
                }
            }
        }
    }
}

/// Waits until a process exits, and kills it if it does not exit.
fn end_of(mut child: Child) -> (ExitStatus, String) {
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > Duration::from_secs(60) => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the command does not end");
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    (status, errors)
}

fn running(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.run("runs/0001", &run_file(60, 0.1, 64, Status::Running));
    scratch
}

#[test]
fn the_command_ends_when_its_terminal_is_closed() {
    let scratch = running("watch-closed");
    // The terminal closes while the command waits for a key, or while it draws.
    for pause in [0, 5, 50, 300, 600] {
        let Watch { child, terminal, .. } = Watch::start(&scratch);
        thread::sleep(Duration::from_millis(pause));
        drop(terminal);
        let (status, errors) = end_of(child);
        assert_eq!(status.code(), Some(2), "{errors}");
        assert!(errors.contains("the terminal cannot be used: "), "{errors}");
    }
}

#[test]
fn closing_the_view_with_a_key_restores_the_terminal() {
    let scratch = running("watch-left");
    // Several keys at once: help, close the help, quit.
    for keys in ["q", "??q", "\x03"] {
        let mut watch = Watch::start(&scratch);
        assert_eq!((watch.written.matches(ENTER).count(), watch.written.matches(LEAVE).count()), (1, 0));
        watch.terminal.write_all(keys.as_bytes()).unwrap();
        while watch.read() {}
        assert_eq!(watch.written.matches(LEAVE).count(), 1, "{}", watch.written);
        let (status, errors) = end_of(watch.child);
        assert_eq!((status.code(), errors.as_str()), (Some(0), ""));
    }
}
