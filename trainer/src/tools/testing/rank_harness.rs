//! [`Ranks`]: a test on several ranks, each of which is a process that runs the same test again.

use std::cell::RefCell;
use std::env;
use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::processes::Processes;
use crate::checkpoint::text::{from_text, to_text};
use crate::distributed::World;
use crate::error::{Error, Result, panic_text};
use crate::io::files::{read_text, replace_file, write};
use crate::libtorch::dist::Group;

/// The environment variable with the folder that the ranks of a test share. If it is set, this
/// process is a rank of a test.
pub(super) const FOLDER: &str = "TRAINER_TEST_RANKS";

/// The environment variable with the rank. `RANK` is not used, because a test may set it to another
/// value.
pub(super) const OWN_RANK: &str = "TRAINER_TEST_RANK";

/// The file with the values that the test recorded before it started the ranks.
const RECORD: &str = "record";

/// Runs the body of a test on several ranks, for hooks that must be correct in [several
/// processes](crate::guide::distributed).
///
/// Each rank is a separate process, in which this test is started again by its name. In a rank,
/// [`run`](Ranks::run) calls the closure instead of starting processes, and then the process ends;
/// the values of all ranks are returned to the test. A trainer in the closure joins the other ranks
/// as it does under `torchrun`, but finds them through a file, and communicates over the loopback
/// interface. Each rank computes with one thread.
///
/// ```
/// # /*
/// #[test]
/// # */
/// fn every_rank_sees_a_quarter_of_each_batch() -> trainer::Result<()> {
///     use trainer::prelude::*;
///     use trainer::testing::{Harness, Ranks};
///
///     let rows = Ranks::new(4).run(|| {
///         Harness::small().at(|cx: &mut Cx<AfterPred>| Ok(cx.pred::<Tensor>()?.size()[0]))
///     })?;
///     assert_eq!(rows, [1; 4]);
///     Ok(())
/// }
/// ```
///
/// A test may start ranks several times. In the ranks of a later call, the earlier calls return
/// their recorded results. Everything else in the test before the call runs in each rank too; put
/// code that must run once, such as creating a folder, into [`once`].
///
/// Requires the cargo feature `distributed`. Because the test is started again by its name, `Ranks`
/// works only in functions with `#[test]`, on the thread of the test, and not in documentation
/// examples or programs. The ranks end when the test ends, even if it is killed, and after the
/// timeout at the latest.
#[must_use = "call `run` or `results`"]
#[derive(Clone, Debug)]
pub struct Ranks {
    pub(super) count: u32,
    pub(super) timeout: Duration,
    pub(super) vars: Vec<(OsString, OsString)>,
}

impl Ranks {
    /// Creates a test on `count` ranks. A single rank trains like one process without a launcher.
    pub fn new(count: u32) -> Self {
        Ranks { count, timeout: Duration::from_secs(60), vars: Vec::new() }
    }

    /// Sets how long the ranks may run in total. Ranks that are still running after this time are
    /// killed. Defaults to 60 seconds.
    ///
    /// [Collectives](crate::distributed::World) time out after half of this time, so that the ranks
    /// can report which collective they waited in; `.env("TRAINER_RANK_TIMEOUT", "5")` sets their
    /// timeout in seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets an environment variable of all ranks.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.vars.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Calls `body` on all ranks, and returns their values in the order of the ranks.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - on any rank, `body` returned an error, panicked, was killed or did not end in time;
    /// - the value of `body` cannot be serialized or deserialized;
    /// - the ranks cannot be started: with 0 ranks, without the feature `distributed`, outside of a
    ///   test, or within the body of another call.
    ///
    /// The error names each rank that failed and says why. The end of each such rank's output is
    /// printed.
    pub fn run<R: Serialize + DeserializeOwned>(self, body: impl FnOnce() -> Result<R>) -> Result<Vec<R>> {
        let results = self.results(body)?;
        let failed: Vec<String> =
            results.iter().filter_map(|result| Some(format!("\n- {}", result.as_ref().err()?))).collect();
        if !failed.is_empty() {
            let count = results.len();
            return Err(Error::msg(format!("{} of {count} ranks failed:{}", failed.len(), failed.concat())));
        }
        results.into_iter().collect()
    }

    /// Calls `body` on all ranks, and returns the result of each, for testing failures.
    ///
    /// # Errors
    ///
    /// Returns an error if the ranks cannot be started, for the same reasons as
    /// [`run`](Ranks::run).
    pub fn results<R: Serialize + DeserializeOwned>(
        self,
        body: impl FnOnce() -> Result<R>,
    ) -> Result<Vec<Result<R>>> {
        let test = self.checked()?;
        let text = match recorded() {
            Recorded::Value(text) => text,
            Recorded::Nothing(Some(rank)) => rank.run(body)?,
            Recorded::Nothing(None) => {
                let text = to_text(&self.start(&test)?)?;
                record(text.clone());
                text
            }
        };
        let outcomes: Vec<Result<String, String>> = from_text(&text)?;
        let values = outcomes.into_iter().enumerate().map(|(rank, outcome)| {
            let value = outcome.map_err(|why| Error::msg(format!("rank {rank}: {why}")))?;
            from_text(&value).map_err(|error| {
                Error::usage(format!("the value of rank {rank} cannot be deserialized: {error}"))
            })
        });
        Ok(values.collect())
    }

    /// Returns the name of the running test, or an error if the ranks cannot be started.
    fn checked(&self) -> Result<String> {
        if !Group::IS_AVAILABLE {
            return Err(Error::usage(
                "`Ranks` cannot start several processes: enable the feature `distributed` of the crate `trainer`",
            ));
        }
        if self.count == 0 {
            return Err(Error::usage("`Ranks::new(0)`: expected at least 1 rank"));
        }
        thread::current().name().filter(|name| *name != "main").map(str::to_owned).ok_or_else(|| {
            Error::usage(
                "`Ranks` cannot find the name of the running test, because this thread is not named after one: call it in a \
                 function with `#[test]`, on its own thread, not in a program or a documentation example",
            )
        })
    }

    /// Starts the ranks. Returns, for each rank, its value as text or the reason why it failed.
    fn start(&self, test: &str) -> Result<Vec<Result<String, String>>> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            Error::msg(format!("`Ranks` cannot {what} for the test `{test}`: {error}"))
        };
        let processes = Processes::new(self).map_err(|error| cannot("create a folder", &error))?;
        let record = VALUES.with_borrow(to_text)?;
        write(&processes.folder().join(RECORD), record.as_bytes())
            .map_err(|error| cannot("write to its folder", &error))?;
        processes.run(test, self).map_err(|error| cannot("start the ranks", &error))
    }
}

/// Calls a closure only once in a test that starts [`Ranks`], and returns its value both in the
/// test and in each rank. Use it for code that must not run in every process, such as creating a
/// folder:
///
/// ```no_run
/// # use trainer::prelude::*;
/// # use trainer::testing::{Harness, Ranks, once};
/// # fn f() -> Result<()> {
/// use std::path::PathBuf;
/// use trainer::hooks::Checkpoint;
///
/// let folder: PathBuf = once(|| std::env::temp_dir().join(format!("my-test-{}", std::process::id())));
/// Ranks::new(2).run(|| Harness::small().hook(Checkpoint::new(&folder)).run()?.result.map(drop))?;
/// once(|| std::fs::remove_dir_all(&folder).unwrap());
/// # Ok(())
/// # }
/// ```
///
/// Call it on the thread of the test, outside of the closure that the ranks run.
///
/// # Panics
///
/// Panics if the value cannot be serialized or deserialized, if `once` is called in the closure
/// that the ranks run, or if a rank reaches a call that the test has not made: a test must call
/// `once` and `Ranks` in the same order in each process.
#[track_caller]
pub fn once<R: Serialize + DeserializeOwned>(body: impl FnOnce() -> R) -> R {
    match recorded() {
        Recorded::Value(text) => from_text(&text)
            .unwrap_or_else(|error| panic!("`once` cannot read the value that the test recorded: {error}")),
        Recorded::Nothing(Some(_)) => panic!(
            "`once` was called in the body of a rank, or in a different order than in the test: in the body, use \
             `trainer::distributed::main_first`"
        ),
        Recorded::Nothing(None) => {
            let value = body();
            record(
                to_text(&value).unwrap_or_else(|error| panic!("`once` cannot serialize its value: {error}")),
            );
            value
        }
    }
}

thread_local! {
    /// In the test, the values of all calls of `once` and `Ranks` so far, in order. In a rank, the
    /// recorded values that are still to be returned, from the last to the first.
    static VALUES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The recorded value of a call of `once` or `Ranks`, if there is one.
enum Recorded {
    /// The test that started this rank recorded this value.
    Value(String),
    /// There is no value yet. Contains the rank if this process is a rank.
    Nothing(Option<&'static Rank>),
}

fn recorded() -> Recorded {
    static RANK: OnceLock<Option<Rank>> = OnceLock::new();
    let Some(rank) = RANK.get_or_init(Rank::from_env) else { return Recorded::Nothing(None) };
    VALUES.with_borrow_mut(Vec::pop).map_or(Recorded::Nothing(Some(rank)), Recorded::Value)
}

fn record(text: String) {
    VALUES.with_borrow_mut(|values| values.push(text));
}

/// A process that is a rank of a test.
struct Rank {
    folder: PathBuf,
    rank: u32,
    is_running: AtomicBool,
}

impl Rank {
    fn from_env() -> Option<Self> {
        let folder = PathBuf::from(env::var_os(FOLDER)?);
        let own = env::var(OWN_RANK).ok().and_then(|rank| rank.parse().ok());
        let record = read_text(&folder.join(RECORD)).ok().and_then(|text| from_text(&text).ok());
        // Without these values, this process would start ranks itself.
        let (Some(rank), Some(mut values)): (Option<u32>, Option<Vec<String>>) = (own, record) else {
            panic!(
                "the environment variable `{FOLDER}` is set, but not by a test that starts ranks: unset it"
            )
        };
        values.reverse();
        VALUES.set(values);
        // The test holds the other end of this pipe open as long as it runs.
        thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            process::exit(1);
        });
        Some(Rank { folder, rank, is_running: AtomicBool::new(false) })
    }

    /// Calls the body of the test, reports its result, and ends the process. Returns an error if
    /// the body is running already.
    fn run<R: Serialize, N>(&self, body: impl FnOnce() -> Result<R>) -> Result<N> {
        if self.is_running.swap(true, Ordering::Relaxed) {
            return Err(Error::usage(
                "`Ranks` was called within the body of another `Ranks`: start all ranks from the test",
            ));
        }
        tch::set_num_threads(1);
        let result = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(result) => result.and_then(|value| to_text(&value)).map_err(|error| error.to_string()),
            Err(payload) => Err(panic_text(&*payload)),
        };
        if let Err(why) = &result {
            World::leave_joined(why);
        }
        let path = result_file(&self.folder, self.rank);
        let is_written = to_text(&result)
            .is_ok_and(|text| replace_file(&path, |_| Ok(()), |file| file.write(text.as_bytes())).is_ok());
        process::exit(i32::from(result.is_err() || !is_written));
    }
}

/// Returns the path of the file with the result of a rank.
pub(super) fn result_file(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("{rank}.result"))
}
