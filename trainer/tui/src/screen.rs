//! [`Screen`]: a terminal that is borrowed for the view and always restored.

use std::io::{self, IsTerminal, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{execute, style};
use ratatui::{Frame, Terminal};

/// The stream on which the view is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    fn is_terminal(self) -> bool {
        match self {
            Stream::Stdout => io::stdout().is_terminal(),
            Stream::Stderr => io::stderr().is_terminal(),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Stdout => io::stdout().write(bytes),
            Stream::Stderr => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Stdout => io::stdout().flush(),
            Stream::Stderr => io::stderr().flush(),
        }
    }
}

/// The reason why a view cannot be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoScreen {
    /// The output or input is not a terminal, or it is a terminal that cannot move its cursor.
    NoTerminal,
    /// The process runs in the background of its terminal, so using the terminal would stop it.
    Background,
}

/// Checks whether a view can be shown on a stream.
///
/// # Errors
///
/// Returns an error with the reason if the view cannot be shown.
pub fn check_screen(stream: Stream) -> Result<(), NoScreen> {
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    if is_dumb || !stream.is_terminal() || !io::stdin().is_terminal() {
        return Err(NoScreen::NoTerminal);
    }
    #[cfg(unix)]
    if rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group != rustix::process::getpgrp()) {
        return Err(NoScreen::Background);
    }
    Ok(())
}

/// Whether a screen is open. The code that changes this to false must also restore the terminal.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// Whether the screen is on standard output.
static IS_ON_STDOUT: AtomicBool = AtomicBool::new(false);

/// A terminal that shows nothing but the view. It is restored when this value is dropped, and
/// before the message of a panic on any thread is printed.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stream>>,
    stream: Stream,
}

impl Screen {
    /// Borrows the terminal of a stream. A process can have only one screen at a time.
    ///
    /// # Errors
    ///
    /// Returns an error if there is already a screen, or if the terminal cannot be used.
    pub fn open(stream: Stream) -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let previous = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                give_back();
                previous(info);
            }));
        });
        if IS_OPEN.swap(true, Ordering::SeqCst) {
            return Err(io::Error::other("the terminal already shows a view of this process"));
        }
        IS_ON_STDOUT.store(stream == Stream::Stdout, Ordering::SeqCst);
        let opened = enable_raw_mode()
            .and_then(|()| execute!(&mut { stream }, EnterAlternateScreen))
            .and_then(|()| Terminal::new(CrosstermBackend::new(stream)));
        match opened {
            Ok(mut terminal) => {
                let _ = terminal.clear();
                Ok(Screen { terminal, stream })
            }
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Draws the view at the current size of the terminal. Returns whether the screen is still
    /// open; a panic closes it.
    ///
    /// # Errors
    ///
    /// Returns an error if writing to the terminal fails.
    pub fn draw(&mut self, content: impl FnOnce(&mut Frame<'_>)) -> io::Result<bool> {
        if !IS_OPEN.load(Ordering::SeqCst) {
            return Ok(false);
        }
        self.terminal.draw(content)?;
        let is_open = IS_OPEN.load(Ordering::SeqCst);
        if !is_open {
            restore(self.stream); // a panic closed it during drawing
        }
        Ok(is_open)
    }

    /// Forgets what the terminal shows, so that the next drawing is complete.
    ///
    /// # Errors
    ///
    /// Returns an error if writing to the terminal fails.
    pub fn redraw(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal, unless that was done already.
fn give_back() {
    if IS_OPEN.swap(false, Ordering::SeqCst) {
        restore(if IS_ON_STDOUT.load(Ordering::SeqCst) { Stream::Stdout } else { Stream::Stderr });
    }
}

/// Restores the terminal. Errors cannot be reported here, and are ignored.
fn restore(mut stream: Stream) {
    let _ = disable_raw_mode();
    let _ = execute!(&mut stream, style::ResetColor, LeaveAlternateScreen, Show);
}

/// Waits at most `timeout` for a key. Returns `None` if no key was pressed, or if the terminal was
/// resized and must be redrawn.
///
/// # Errors
///
/// Returns an error if the terminal cannot be read, for example because it was closed.
pub fn next_key(timeout: Duration) -> io::Result<Option<KeyEvent>> {
    // `event::poll` never returns if the terminal is closed in the meantime, so it must not be used
    // to wait.
    wait_for_input(Duration::ZERO)?;
    let has_event = || event::poll(Duration::ZERO);
    if !(has_event()? || wait_for_input(timeout)? && has_event()?) {
        return Ok(None);
    }
    match event::read()? {
        Event::Key(key) if key.kind != KeyEventKind::Release => Ok(Some(key)),
        _ => Ok(None),
    }
}

/// Waits at most `timeout` for input from the terminal. Returns whether there is input. A signal,
/// such as the one sent when the terminal is resized, ends the wait.
///
/// # Errors
///
/// Returns an error if the terminal was closed.
#[cfg(unix)]
fn wait_for_input(timeout: Duration) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;

    let input = io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(&mut polled, Some(&timeout)) {
        Err(Errno::INTR) => return Ok(false),
        Err(error) => return Err(error.into()),
        Ok(_) => {}
    }
    let found = polled[0].revents();
    if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the terminal was closed"));
    }
    Ok(found.contains(PollFlags::IN))
}

/// Waits at most `timeout` for input from the terminal. Returns whether there is input.
///
/// # Errors
///
/// Returns an error if the terminal cannot be read.
#[cfg(not(unix))]
fn wait_for_input(timeout: Duration) -> io::Result<bool> {
    event::poll(timeout)
}
