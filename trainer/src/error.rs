//! The one error type, and what each of its messages says: what went wrong, where, and what to do.

use std::any::Any;
use std::fmt;

use tch::TchError;

use crate::cancel::CancelledBy;
use crate::counters::Counters;
use crate::moment::Moment;
use crate::phase::Phase;

/// Any error, boxed: what a hook may fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// `Result` with the trainer's [`Error`] unless another is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Every variant is one pointer wide, so that a result costs nothing to pass on.
///
/// `Debug` prints the same text as `Display`, because that is what a `main` that returns it shows.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A hook failed.
    #[error(transparent)]
    Hook(Box<HookError>),
    /// An operation of the task or a loader failed.
    #[error(transparent)]
    Operation(Box<OperationError>),
    /// The run was cancelled, by a signal or a [`CancelToken`](crate::CancelToken).
    #[error(transparent)]
    Cancelled(Box<CancelledError>),
    /// The trainer could not be built. All mistakes are listed.
    #[error(transparent)]
    Build(Box<BuildError>),
    /// The way the trainer was used cannot work.
    #[error("{0}")]
    Usage(Box<String>),
    /// libtorch refused.
    #[error("{}", brief(.0))]
    Torch(Box<TchError>),
    /// The code that the trainer ran panicked. The panic goes on after `after_error` and `teardown`; that of a loader's
    /// thread has ended there.
    #[error("{0}")]
    Panic(Box<String>),
    /// Any other error, from a task, a loader or a hook.
    #[error("{0}")]
    Other(#[source] Box<BoxError>),
}

impl Error {
    /// An error with this text.
    pub fn msg(text: impl Into<String>) -> Self {
        Error::Other(Box::new(text.into().into()))
    }

    /// Wraps any error.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Error::Other(Box::new(error.into()))
    }

    /// Where in a run it happened, if that is known.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match self {
            Error::Hook(error) => Some(error.place),
            Error::Operation(error) => Some(error.place),
            Error::Cancelled(error) => Some(error.place),
            _ => None,
        }
    }

    /// Was the run cancelled? Or, for a hook that runs another trainer, that one's?
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Cancelled(_) => true,
            Error::Hook(error) => error.source.downcast_ref::<Error>().is_some_and(Error::is_cancelled),
            Error::Operation(error) => error.source.is_cancelled(),
            _ => false,
        }
    }

    /// What failed after it on the way out, in `after_error`, `after_cancel` and `teardown`.
    #[must_use]
    pub fn cleanup(&self) -> &[Error] {
        match self {
            Error::Hook(error) => &error.cleanup,
            Error::Operation(error) => &error.cleanup,
            Error::Cancelled(error) => &error.cleanup,
            _ => &[],
        }
    }

    /// Where the errors of the way out are kept; none for an error that has no place.
    pub(crate) fn cleanup_mut(&mut self) -> Option<&mut Vec<Error>> {
        match self {
            Error::Hook(error) => Some(&mut error.cleanup),
            Error::Operation(error) => Some(&mut error.cleanup),
            Error::Cancelled(error) => Some(&mut error.cleanup),
            _ => None,
        }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Error::Usage(Box::new(text.into()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<TchError> for Error {
    fn from(error: TchError) -> Self {
        Error::Torch(Box::new(error))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::new(error)
    }
}

impl From<BoxError> for Error {
    fn from(error: BoxError) -> Self {
        // A hook that passes on one of our own errors must not bury it one level deeper.
        match error.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => Error::Other(Box::new(other)),
        }
    }
}

/// libtorch's messages carry a C++ backtrace, which says nothing to its users.
fn brief(error: &TchError) -> String {
    let text = error.to_string();
    let end = text.find("\nException raised from").unwrap_or(text.len());
    text[..end].trim_end().to_owned()
}

/// Where in a run something happened. Epochs and steps are counted from 0, as in [`Counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The point or operation.
    pub moment: &'static str,
    /// The operation of another lifecycle that it came in.
    pub within: Option<&'static str>,
    /// The phase.
    pub phase: Phase,
    /// The counters at that moment.
    pub counters: Counters,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counters { epoch, batch_idx, .. } = self.counters;
        f.write_str(self.moment)?;
        if let Some(operation) = self.within {
            write!(f, " in {operation}")?;
        }
        if self.moment == crate::lifecycle::at::setup::INFO.name {
            return Ok(()); // before anything is counted
        }
        match self.phase {
            Phase::Train => write!(f, ", epoch {epoch}, batch {batch_idx}"),
            phase if phase.name() == self.moment => write!(f, ", epoch {epoch}, batch {batch_idx}"),
            phase => write!(f, " ({phase}), epoch {epoch}, batch {batch_idx}"),
        }
    }
}

/// A hook failed: which, where, and why.
#[derive(Debug, thiserror::Error)]
#[error("{} failed at {place}: {source}{}", Named(hook, file, *line), Cleanup(cleanup))]
#[non_exhaustive]
pub struct HookError {
    /// Its path: `my_crate::clip`, `my_crate::GradientMonitor::after_backward`.
    pub hook: String,
    /// The file that it is written in, as rustc saw it.
    pub file: &'static str,
    /// The line of its name.
    pub line: u32,
    /// Where in the run it failed.
    pub place: Place,
    /// What it failed with.
    pub source: BoxError,
    /// What failed after it on the way out.
    pub cleanup: Vec<Error>,
}

/// A hook as its user knows it: for a built-in one, its type alone.
struct Named<'a>(&'a str, &'a str, u32);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Named(hook, file, line) = self;
        match hook.strip_prefix("trainer::hooks::").and_then(|path| path.rsplit("::").nth(1)) {
            Some(built_in) => write!(f, "`{built_in}`"),
            None => write!(f, "hook `{hook}` ({file}:{line})"),
        }
    }
}

/// An operation failed: which, where, on what data, and why.
#[derive(Debug, thiserror::Error)]
#[error("failed at {place}{on}: {source}{}", Cleanup(cleanup))]
#[non_exhaustive]
pub struct OperationError {
    /// Where in the run it failed.
    pub place: Place,
    /// The shapes of the batch, if there was one: ` on a batch of …`.
    pub on: String,
    /// What it failed with.
    pub source: Error,
    /// What failed after it on the way out.
    pub cleanup: Vec<Error>,
}

/// A run was cancelled: by whom, and where it ended.
#[derive(Debug, thiserror::Error)]
#[error("cancelled by {by} at {place}{}", Cleanup(cleanup))]
#[non_exhaustive]
pub struct CancelledError {
    /// Who asked for it.
    pub by: CancelledBy,
    /// Where in the run it ended.
    pub place: Place,
    /// What failed after it on the way out.
    pub cleanup: Vec<Error>,
}

/// The errors of the way out, after the first.
struct Cleanup<'a>(&'a [Error]);

impl fmt::Display for Cleanup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|error| write!(f, "\n- and on the way out: {error}"))
    }
}

/// Everything that kept a trainer from being built.
#[derive(Debug)]
#[non_exhaustive]
pub struct BuildError {
    /// One message for each mistake.
    pub mistakes: Vec<String>,
}

impl std::error::Error for BuildError {}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mistakes[..] {
            [one] => write!(f, "the trainer cannot be built: {one}"),
            many => {
                write!(f, "the trainer cannot be built, for {} reasons:", many.len())?;
                many.iter().try_for_each(|mistake| write!(f, "\n- {mistake}"))
            }
        }
    }
}

/// The candidate that is most similar to a name, for "did you mean".
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, candidate)| candidate)
}

/// "; did you mean `x`?", or nothing.
pub(crate) fn suggestion<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, candidates).map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}

/// Returns the message of a panic, `panicked: …`, shortened to what libtorch said if tch panicked on its error.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text =
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    // tch unwraps errors of libtorch, whose text is then in debug format within the panic's message.
    let said = text.split_once("on an `Err` value: Torch(\"").map_or(&*text, |(_, said)| said);
    format!("panicked: {}", said.split("\\nException raised from").next().unwrap_or(said))
}
