//! [`Error`], the error type of the crate.

use std::any::Any;
use std::collections::TryReserveError;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use trainer_files::Error as FileError;
pub(crate) use trainer_formats::{quoted, shortened};
use wildmatch::WildMatch;

use crate::moment::Moment;
use crate::moments::counters::Counters;
use crate::phase::Phase;

/// A boxed error of any type. Hooks can return any error that converts into it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A `Result` whose error type defaults to the trainer's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the trainer. Every variant is one pointer wide, so that a `Result` is cheap to
/// return.
///
/// `Display` already includes the underlying error's message, so `source()` skips the underlying
/// error and returns its source instead. To get the underlying error itself, use
/// [`downcast_ref`](Error::downcast_ref). `Debug` prints the same text as `Display`, because Rust
/// uses `Debug` to print an error returned from `main`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A hook failed.
    #[error(transparent)]
    Hook(Box<HookError>),
    /// An operation of the task, of a loader or of the trainer failed.
    #[error(transparent)]
    Operation(Box<OperationError>),
    /// The run was cancelled, by a signal or a [`CancelToken`](crate::CancelToken).
    #[error(transparent)]
    Cancelled(Box<CancelledError>),
    /// The trainer could not be built. The message lists all mistakes.
    #[error(transparent)]
    Build(Box<BuildError>),
    /// The trainer was used incorrectly.
    #[error("{0}")]
    Usage(Box<String>),
    /// A file could not be read or written, or its content was invalid.
    ///
    /// ```
    /// use std::io;
    /// use trainer::Error;
    ///
    /// let Err(error) = trainer::checkpoint::verify("no/such/folder") else { unreachable!() };
    /// assert!(matches!(&error, Error::File(file) if file.path.ends_with("manifest.json")));
    /// let io = error.downcast_ref::<io::Error>().unwrap();
    /// assert_eq!(io.kind(), io::ErrorKind::NotFound);
    /// ```
    #[error(transparent)]
    File(Box<FileError>),
    /// libtorch returned an error: [`downcast_ref`](Error::downcast_ref) returns it as a
    /// [`tch::TchError`].
    ///
    /// ```
    /// use trainer::prelude::*;
    ///
    /// let error = Error::from(Tensor::from_slice(&[1.0, 2.0]).f_reshape([3]).unwrap_err());
    /// assert!(matches!(error, Error::Torch(_)));
    /// assert!(error.downcast_ref::<tch::TchError>().is_some());
    /// ```
    #[error("{}", without_backtrace(.0))]
    Torch(Box<BoxError>),
    /// A hook, the task or other code called by the trainer panicked. The panic resumes after
    /// `after_error` and `teardown`, unless it came from a loader thread or from a thread that
    /// wrote a checkpoint in the background.
    #[error("{0}")]
    Panic(Box<String>),
    /// An error that ends the run even if a hook that [may fail](crate::language::may_fail) returns
    /// it: see [`Error::fatal`].
    #[error("{0}")]
    Fatal(Box<BoxError>),
    /// Any other error, from a task, a loader or a hook.
    #[error(transparent)]
    Other(Box<BoxError>),
}

impl Error {
    /// Creates an error with this message.
    pub fn msg(text: impl Into<String>) -> Self {
        Error::Other(Box::new(text.into().into()))
    }

    /// Wraps any error.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Error::Other(Box::new(error.into()))
    }

    /// Marks an error so that it ends the run even if a hook that
    /// [may fail](crate::language::may_fail) returns it: the program uses the hook in a way that
    /// cannot work, or asked for errors. The mark is removed when the hook returns.
    pub fn fatal(error: impl Into<BoxError>) -> Self {
        Error::Fatal(Box::new(error.into()))
    }

    /// Returns the location in the run at which the error occurred, if it is known.
    #[must_use]
    pub fn location(&self) -> Option<Location> {
        match self {
            Error::Hook(error) => Some(error.location.clone()),
            Error::Operation(error) => Some(error.location.clone()),
            Error::Cancelled(error) => Some(error.location.clone()),
            _ => None,
        }
    }

    /// Where a run has created the error; `None` for an error without a location.
    pub(crate) fn origin(&self) -> Option<Origin> {
        match self {
            Error::Hook(error) => Some(error.origin),
            Error::Operation(error) => Some(error.origin),
            Error::Cancelled(error) => Some(error.origin),
            _ => None,
        }
    }

    /// Returns the underlying error if it is an `E`: the error that a hook, the task, a loader, the
    /// operating system or libtorch returned.
    ///
    /// ```
    /// use std::io;
    ///
    /// let error = trainer::Error::from(io::Error::other("disk on fire"));
    /// assert!(error.downcast_ref::<io::Error>().is_some());
    /// ```
    #[must_use]
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        let source = match self {
            Error::Hook(error) => &error.source,
            Error::Other(error) | Error::Torch(error) => &**error,
            Error::Fatal(error) => &**error,
            Error::File(error) => &error.source,
            Error::Operation(error) => return error.source.downcast_ref(),
            _ => return None,
        };
        source.downcast_ref().or_else(|| source.downcast_ref::<Error>()?.downcast_ref())
    }

    /// Whether the run, or the run of a nested trainer that a hook started, was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Cancelled(_) => true,
            Error::Hook(error) => error.source.downcast_ref::<Error>().is_some_and(Error::is_cancelled),
            Error::Operation(error) => error.source.is_cancelled(),
            _ => false,
        }
    }

    /// Whether the run has ended because all batches of a replay have been trained.
    pub(crate) fn is_end_of_replay(&self) -> bool {
        matches!(self, Error::Cancelled(error) if error.by == CancelledBy::EndOfReplay)
    }

    /// Adds the path of a file to an error.
    ///
    /// ```
    /// use trainer::Error;
    ///
    /// let error = Error::in_file("rates.txt".as_ref(), "the line 3 is empty: expected a number");
    /// assert_eq!(error.to_string(), "rates.txt: the line 3 is empty: expected a number");
    /// ```
    #[must_use]
    pub fn in_file(path: &Path, error: impl Into<BoxError>) -> Self {
        trainer_files::in_file(path, error).into()
    }

    /// Whether the operating system failed to do what it was asked with a file, such as to write to
    /// a full disk, rather than reporting a path that leads to something else.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        let is_other = |kind| matches!(kind, io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory);
        self.downcast_ref::<io::Error>().is_some_and(|error| !is_other(error.kind()))
    }

    /// The errors raised during cleanup: in `after_error`, `after_cancel` and `teardown`, and while
    /// the last records and checkpoints were completed. Empty for an error without a
    /// [location](Error::location).
    #[must_use]
    pub fn cleanup(&self) -> &[Error] {
        match self {
            Error::Hook(error) => &error.cleanup,
            Error::Operation(error) => &error.cleanup,
            Error::Cancelled(error) => &error.cleanup,
            _ => &[],
        }
    }

    /// Mutable access to the cleanup errors; `None` for an error without a location.
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
        // The message may have the text of a file or a server.
        f.write_str(&trainer_formats::visible(&self.to_string()))
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Error::File(Box::new(error))
    }
}

impl From<TryReserveError> for Error {
    fn from(error: TryReserveError) -> Self {
        Error::new(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::new(error)
    }
}

impl From<BoxError> for Error {
    fn from(error: BoxError) -> Self {
        // An error of the trainer that a hook returns is not wrapped a second time.
        match error.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => Error::Other(Box::new(other)),
        }
    }
}

/// The message of a libtorch error without its C++ backtrace.
fn without_backtrace(error: &BoxError) -> String {
    let text = error.to_string();
    let end = text.find("\nException raised from").unwrap_or(text.len());
    let said = text[..end].trim_end();
    format!("{said}{}", advice(said))
}

/// What to do about an error of libtorch that the trainer's own hooks can cause.
fn advice(said: &str) -> &'static str {
    if said.contains("0D or 1D target tensor expected") {
        "; this loss takes class indices `[n]`, but `MixUp`, `CutMix` and `LabelSmoothing` turn targets into probabilities \
         `[n, classes]`: use a loss that accepts both, such as `cross_entropy_loss`"
    } else {
        ""
    }
}

/// The batch of an entry point in which a run has created an error. While the error is on its way
/// out of the run, no other batch begins, so an error with another origin is not the one that a
/// hook has just received: it is the error of another trainer, or one that the hook has kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    entry: u64,
    /// The number of batches that have begun in the entry point.
    batch: u64,
}

impl Origin {
    /// The origin of errors before the first batch of an entry point.
    pub(crate) fn begin() -> Self {
        static ENTRIES: AtomicU64 = AtomicU64::new(0);
        Origin { entry: ENTRIES.fetch_add(1, Ordering::Relaxed), batch: 0 }
    }

    #[inline]
    pub(crate) fn next_batch(&mut self) {
        self.batch += 1;
    }
}

/// A location in a run: the point or operation, the phase and the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Location {
    /// The name of the point or operation.
    pub moment: &'static str,
    /// The name of the [module](crate::modules), if the point or operation belongs to one.
    pub module: Option<Arc<str>>,
    /// The name of the innermost custom operation or point that contains the moment, if any.
    pub within: Option<&'static str>,
    /// The phase.
    pub phase: Phase,
    /// The name of the [loader](crate::data::NamedLoaders) of the current pass, if the loader has a
    /// name.
    pub loader: Option<Arc<str>>,
    /// The counters at that moment.
    pub counters: Counters,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counters { epoch, batch_idx, .. } = self.counters;
        f.write_str(self.moment)?;
        if let Some(module) = &self.module {
            write!(f, " of `{module}`")?;
        }
        if let Some(operation) = self.within {
            write!(f, " in {operation}")?;
        }
        if self.moment == crate::lifecycle::at::setup::INFO.name {
            return Ok(()); // nothing has been counted yet
        }
        let loader = self.loader.as_ref().map_or_else(String::new, |loader| format!(" `{loader}`"));
        match self.phase {
            Phase::Train => write!(f, ", epoch {epoch}, batch {batch_idx}"),
            phase if phase.name() == self.moment => write!(f, "{loader}, epoch {epoch}, batch {batch_idx}"),
            phase => write!(f, " ({phase}{loader}), epoch {epoch}, batch {batch_idx}"),
        }
    }
}

/// An error from a hook, and where in the run the hook failed.
///
/// ```
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
/// let mut trainer = Trainer::builder(task)
///     .optimizer(Sgd::new(0.1))
///     .on::<AfterLoss>("refuse", |_| Err(Error::msg("no")))
///     .build()?;
/// let Err(Error::Hook(error)) = trainer.fit(&mut train, None) else { panic!("the hook fails") };
/// assert_eq!(error.location.moment, "after_loss");
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct HookError {
    /// The path of the hook, such as `my_crate::clip` or
    /// `my_crate::GradientMonitor::after_backward`.
    pub hook: String,
    /// The source file that defines the hook, as rustc reports it.
    pub file: &'static str,
    /// The line in that file.
    pub line: u32,
    /// The location in the run at which the hook failed.
    pub location: Location,
    pub(crate) origin: Origin,
    /// Whether the hook is one of the trainer itself.
    pub(crate) is_own: bool,
    /// The error that the hook returned, the error for an invalid value that it logged, or the
    /// message of its panic.
    pub source: BoxError,
    /// The errors raised during cleanup.
    pub cleanup: Vec<Error>,
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HookError { hook, file, line, location, origin: _, is_own, source, cleanup } = self;
        // For a built-in hook, only the name of its type is shown.
        match hook.rsplit("::").nth(1).filter(|_| *is_own) {
            Some(built_in) => write!(f, "`{built_in}`")?,
            None => write!(f, "hook `{hook}` ({file}:{line})")?,
        }
        write!(f, " failed at {location}: {source}{}", CleanupErrors(cleanup))
    }
}

impl std::error::Error for HookError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}

/// An error from an operation, and where in the run the operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct OperationError {
    /// The location in the run at which the operation failed.
    pub location: Location,
    pub(crate) origin: Origin,
    /// The part of the message that describes the batch, ` on a batch of …`; empty if there was no
    /// batch.
    pub batch: String,
    /// The error that the operation returned.
    pub source: Error,
    /// The errors raised during cleanup.
    pub cleanup: Vec<Error>,
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperationError { location, origin: _, batch, source, cleanup } = self;
        write!(f, "failed at {location}{batch}: {source}{}", CleanupErrors(cleanup))
    }
}

impl std::error::Error for OperationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}

/// The cause of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelledBy {
    /// A [`CancelToken`](crate::CancelToken).
    Token,
    /// SIGINT, usually from Ctrl-C.
    Sigint,
    /// SIGTERM, sent by `kill` and by the schedulers of clusters and containers.
    Sigterm,
    /// SIGHUP, sent when the terminal is closed or its connection is lost.
    Sighup,
    /// The end of a [replay](crate::Trainer::replay), after its last batch. Only `around` hooks see
    /// this cause, in the error that the wrapped operation returns.
    EndOfReplay,
}

impl CancelledBy {
    /// Returns the exit status that a shell reports for a program ended by this signal, or 1 if the
    /// cause was not a signal.
    #[must_use]
    pub fn exit_status(self) -> i32 {
        match self {
            CancelledBy::Token | CancelledBy::EndOfReplay => 1,
            CancelledBy::Sigint => 130,
            CancelledBy::Sigterm => 143,
            CancelledBy::Sighup => 129,
        }
    }
}

impl fmt::Display for CancelledBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CancelledBy::Token => "a cancel token",
            CancelledBy::Sigint => "SIGINT (Ctrl-C)",
            CancelledBy::Sigterm => "SIGTERM",
            CancelledBy::Sighup => "SIGHUP (a closed terminal)",
            CancelledBy::EndOfReplay => "the end of the replay",
        })
    }
}

/// The cancellation of a run, and where it took effect.
#[derive(Debug, thiserror::Error)]
#[error("cancelled by {by} at {location}{}", CleanupErrors(cleanup))]
#[non_exhaustive]
pub struct CancelledError {
    /// The cause of the cancellation.
    pub by: CancelledBy,
    /// The location at which the run ended.
    pub location: Location,
    pub(crate) origin: Origin,
    /// The errors raised during cleanup.
    pub cleanup: Vec<Error>,
}

/// Displays the errors raised during cleanup, one per line.
struct CleanupErrors<'a>(&'a [Error]);

impl fmt::Display for CleanupErrors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|error| write!(f, "\n- during cleanup: {error}"))
    }
}

/// The mistakes that prevented a trainer from being built.
///
/// ```
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let built = Trainer::builder(task).optimizer(Sgd::new(-0.1)).epochs(0).build();
/// let Err(Error::Build(error)) = built else { panic!("two settings are invalid") };
/// assert_eq!(error.mistakes.len(), 2);
/// # Ok::<(), trainer::Error>(())
/// ```
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

/// Returns the candidate most similar to `name`, or `None` if no candidate is similar enough.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, candidate)| candidate)
}

/// Returns "; did you mean `x`?" for the candidate that is most similar to `name`, or an empty
/// string if none is similar enough. For the error or the warning of a hook about a name that it
/// does not know, such as that of a metric.
///
/// ```
/// let similar = trainer::did_you_mean("acuracy", ["accuracy", "loss"]);
/// assert_eq!(similar, "; did you mean `accuracy`?");
/// ```
#[must_use]
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, candidates).map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}

/// Returns "; did you mean `x`?" for the most similar candidate. If no candidate is similar enough,
/// returns "; there are" and the first three candidates, or an empty string if there are no
/// candidates.
pub(crate) fn suggestion_among<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let mut candidates: Vec<&str> = candidates.into_iter().collect();
    candidates.dedup();
    if let Some(nearest) = nearest(name, candidates.iter().copied()) {
        return format!("; did you mean `{nearest}`?");
    }
    let listed = candidates.iter().take(3).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match candidates.len() {
        0 => String::new(),
        1 => format!("; there is only {listed}"),
        2..=3 => format!("; there are {listed}"),
        count => format!("; there are {listed} and {} more", count - 3),
    }
}

/// Returns a hint for a pattern that matches no candidate: that case matters, if the pattern would
/// otherwise match, or else what [`did_you_mean`] returns.
pub(crate) fn suggestion_for_pattern<'a>(
    pattern: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> String {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    in_other_case(pattern, candidates.iter().copied()).unwrap_or_else(|| did_you_mean(pattern, candidates))
}

/// Returns a hint that case matters if the pattern would otherwise match candidates.
pub(crate) fn in_other_case<'a>(
    pattern: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let pattern = WildMatch::new(&pattern.to_lowercase());
    let mut matched = candidates.into_iter().filter(|name| pattern.matches(&name.to_lowercase()));
    let first = matched.next()?;
    let others = match matched.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(format!("; case matters: in another case, the pattern would match `{}`{others}", shortened(first)))
}

/// Returns the message of a panic as `panicked: …`. If tch panicked because of a libtorch error,
/// keeps only libtorch's own message.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text =
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    // tch unwraps errors of libtorch, so the panic message contains their `Debug` text.
    let said = text.split_once("on an `Err` value: Torch(\"").map_or(&*text, |(_, said)| said);
    let said = said.split("\\nException raised from").next().unwrap_or(said);
    format!("panicked: {said}{}", advice(said))
}

/// Drops the payload of a caught panic, and catches a panic in the destructor of the payload. Used
/// wherever a second panic would abort the process or skip cleanup.
pub(crate) fn discard_panic(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second); // dropping this payload could panic again
    }
}
