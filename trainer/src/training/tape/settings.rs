//! [`Tape`]: how much of a run is recorded.

use std::ops::Range;
use std::path::PathBuf;

use trainer_formats::tape::Level;

/// The settings of a [`tape`](crate::TrainerBuilder::tape): how much of the run it records.
///
/// ```
/// use trainer::Tape;
/// # use trainer::prelude::*;
/// # fn build<T: Task>(builder: trainer::TrainerBuilder<T>) -> trainer::TrainerBuilder<T> {
/// builder.run_folder("runs/first").tape(Tape::steps(100)) // then: trainer diff runs/first runs/second
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tape {
    pub(crate) level: Level,
    /// The training batches that are recorded, from 0.
    pub(crate) batches: Range<u64>,
    /// Whether to skip reading a tensor if its identity, version and data pointer have not changed.
    pub(crate) trusts: bool,
    pub(crate) path: Option<PathBuf>,
}

impl Tape {
    /// Records what each hook, each operation, each named module and the loader changes.
    ///
    /// A step takes up to 1.6 times as long, so this is for a few thousand batches.
    #[must_use]
    pub fn full() -> Self {
        Tape { level: Level::Full, batches: 0..u64::MAX, trusts: true, path: None }
    }

    /// Records everything that training has changed, once every `n` training batches. This is
    /// suitable for an entire run.
    #[must_use]
    pub fn steps(n: u64) -> Self {
        Tape { level: Level::Steps(n), ..Tape::full() }
    }

    /// Limits the tape to these training batches, counted from 0 over all epochs, and to the passes
    /// over other data between them. Defaults to all.
    #[must_use]
    pub fn batches(mut self, batches: Range<u64>) -> Self {
        self.batches = batches;
        self
    }

    /// Sets whether every tensor is read at every entry, instead of only the tensors that
    /// libtorch's version counters mark as changed. This also finds changes through
    /// `tensor.data()`, and is several times slower. Defaults to `false`.
    #[must_use]
    pub fn paranoid(mut self, paranoid: bool) -> Self {
        self.trusts = !paranoid;
        self
    }

    /// Sets the path of the tape. Defaults to `run.tape` in the
    /// [run folder](crate::TrainerBuilder::run_folder), and on other ranks to `run.rank-1.tape`, …
    #[must_use]
    pub fn at(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Whether each entry is recorded.
    pub(crate) fn is_full(&self) -> bool {
        self.level == Level::Full
    }

    /// Returns the tape that the environment variable `TRAINER_TAPE` requests, if any.
    ///
    /// # Errors
    ///
    /// Returns a message if the value of the variable is invalid.
    pub(crate) fn requested() -> Result<Option<Self>, String> {
        match std::env::var("TRAINER_TAPE") {
            Ok(text) if !text.is_empty() => Tape::parse(&text).map(Some),
            _ => Ok(None),
        }
    }

    /// Parses `full`, `full:100..200`, `paranoid:100..200` or `steps:100`.
    fn parse(text: &str) -> Result<Self, String> {
        let (word, rest) = text.split_once(':').map_or((text, None), |(word, rest)| (word, Some(rest)));
        let number = |digits: &str| digits.parse::<u64>().ok();
        let range = |rest: &str| {
            let (start, end) = rest.split_once("..")?;
            let end = if end.is_empty() { u64::MAX } else { number(end)? };
            Some(if start.is_empty() { 0 } else { number(start)? }..end)
        };
        let tape = match (word, rest) {
            ("full", None) => Some(Tape::full()),
            ("paranoid", None) => Some(Tape::full().paranoid(true)),
            ("full", Some(rest)) => range(rest).map(|batches| Tape::full().batches(batches)),
            ("paranoid", Some(rest)) => {
                range(rest).map(|batches| Tape::full().paranoid(true).batches(batches))
            }
            ("steps", Some(rest)) => number(rest).filter(|n| *n > 0).map(Tape::steps),
            _ => None,
        };
        tape.ok_or_else(|| {
            format!(
                "`TRAINER_TAPE={text}`: expected `steps:100`, `full`, `full:100..200`, `paranoid` or `paranoid:100..200`"
            )
        })
    }

    /// Returns a message if the settings are invalid.
    pub(crate) fn mistake(&self) -> Option<String> {
        if self.level == Level::Steps(0) {
            return Some("`Tape::steps(0)`: expected at least 1".into());
        }
        self.batches
            .is_empty()
            .then(|| format!("`.batches({:?})` of the tape: expected at least one batch", self.batches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_or_refused() {
        for (text, tape) in [
            ("full", Tape::full()),
            ("full:100..200", Tape::full().batches(100..200)),
            ("full:..7", Tape::full().batches(0..7)),
            ("paranoid:3..", Tape::full().paranoid(true).batches(3..u64::MAX)),
            ("steps:100", Tape::steps(100)),
        ] {
            assert_eq!(Tape::parse(text), Ok(tape), "{text}");
        }
        for text in ["steps", "steps:0", "steps:x", "full:7", "all", "full:a..b"] {
            assert!(Tape::parse(text).unwrap_err().contains("expected `steps:100`"), "{text}");
        }
    }
}
