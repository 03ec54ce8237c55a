//! Text files that record what a program runs and what it computes, for reviewers to read and for
//! tests to compare with the program.
//!
//! - The **lock**, [`hooks.lock`](crate::Trainer::check_lock), records the hooks and the settings.
//!   It is the same on every machine.
//! - The **golden**, [`hooks.golden`](crate::Trainer::check_golden), records the losses and the
//!   weights of the first steps, and the circumstances in which they were computed.
//!
//! [`assert_locked!`](crate::assert_locked) compares both in one line of a test. The
//! [guide](crate::guide::tape#before-it-happens-the-lock) shows both files.

mod file;
mod golden;
mod hooks;
mod rehearsal;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

pub use golden::{Compared, Golden, GoldenCheck};

use super::task::Task;
use super::trainer::Trainer;
use crate::HookTable;
use crate::data::Loader;
use crate::values::facts::NOT_SET;

/// A value that differs from the value in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The name of the crate, the setting or the circumstance.
    pub name: String,
    /// The value in the file.
    pub was: String,
    /// The value now.
    pub is: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` was {} and is now {}", self.name, self.was, self.is)
    }
}

/// Returns the values that differ between two maps.
fn changes(was: &BTreeMap<String, String>, is: &BTreeMap<String, String>) -> Vec<Change> {
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let value = |of: &BTreeMap<String, String>, name| of.get(name).map_or(NOT_SET, String::as_str).to_owned();
    let both = names.into_iter().map(|name| (name, value(was, name), value(is, name)));
    both.filter(|(_, was, is)| was != is)
        .map(|(name, was, is)| Change { name: name.clone(), was, is })
        .collect()
}

/// Returns the crates that are in both maps, but with different versions.
fn version_changes(was: &BTreeMap<String, String>, is: &BTreeMap<String, String>) -> Vec<Change> {
    let mut changes = changes(was, is);
    changes.retain(|change| change.was != NOT_SET && change.is != NOT_SET);
    changes
}

/// Returns the version of this crate and of each crate with hooks. If a crate is linked in several
/// versions, they are listed together: `0.1.0, 0.2.0`.
fn crates(table: &HookTable) -> BTreeMap<String, String> {
    let this = (env!("CARGO_CRATE_NAME"), BTreeSet::from([env!("CARGO_PKG_VERSION")]));
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::from([this]);
    for row in table.rows() {
        if let Some(version) = row.version {
            versions.entry(row.krate).or_default().insert(version);
        }
    }
    let joined = |versions: BTreeSet<&str>| versions.into_iter().collect::<Vec<_>>().join(", ");
    versions.into_iter().map(|(krate, versions)| (krate.to_owned(), joined(versions))).collect()
}

/// Lists the crates whose versions differ, one per line.
fn list_versions(versions: &[Change]) -> String {
    versions.iter().map(|change| format!("\nthe crate {change}")).collect()
}

/// Compares a trainer with the files `hooks.lock` and `hooks.golden` in the test's package, and
/// panics if they differ.
///
/// `assert_locked!(trainer)` [compares the hooks and the settings](crate::Trainer::check_lock).
/// `assert_locked!(trainer, train)`, or `assert_locked!(trainer, train, valid)` for a program with
/// validation data, also [trains the first 20 steps](crate::Trainer::check_golden), which consumes
/// the trainer. The files are next to the `Cargo.toml` of the package. `TRAINER_LOCK=update cargo
/// test` writes them.
///
/// ```no_run
/// # use trainer::prelude::*;
/// # type Data = InMemory<(Tensor, Tensor)>;
/// # fn build() -> Result<(Trainer<impl Task<Batch = (Tensor, Tensor)>>, Data)> {
/// #     let vs = nn::VarStore::new(Device::Cpu);
/// #     let net = nn::linear(&vs.root() / "fc", 4, 2, Default::default());
/// #     let task = Supervised::new(vs, net, |pred: &Tensor, labels: &Tensor| pred.cross_entropy_for_logits(labels));
/// #     let inputs = Tensor::zeros([4, 4], (Kind::Float, Device::Cpu));
/// #     let train = InMemory::new((inputs, Tensor::zeros([4], (Kind::Int64, Device::Cpu))))?;
/// #     Ok((Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?, train))
/// # }
/// # /*
/// #[test]
/// # */
/// fn the_program_is_locked() -> Result<()> {
///     let (trainer, mut train) = build()?;
///     trainer::assert_locked!(trainer, train);
///     Ok(())
/// }
/// ```
///
/// # Panics
///
/// Panics if the trainer differs from one of the files, with a message that lists the differences,
/// or if a file is missing or cannot be read or written.
#[macro_export]
macro_rules! assert_locked {
    ($trainer:expr $(,)?) => {
        $crate::__private::assert_lock(&$trainer, ::core::env!("CARGO_MANIFEST_DIR"))
    };
    ($trainer:expr, $train:expr $(,)?) => {
        $crate::__private::assert_golden(
            $trainer,
            ::core::env!("CARGO_MANIFEST_DIR"),
            &mut $train,
            ::core::option::Option::None,
        )
    };
    ($trainer:expr, $train:expr, $valid:expr $(,)?) => {
        $crate::__private::assert_golden(
            $trainer,
            ::core::env!("CARGO_MANIFEST_DIR"),
            &mut $train,
            ::core::option::Option::Some(&mut $valid),
        )
    };
}

/// The file names of the lock and the golden for [`assert_locked!`](crate::assert_locked).
const LOCK: &str = "hooks.lock";
const GOLDEN: &str = "hooks.golden";

/// Compares a trainer with the lock of a package, for `assert_locked!`.
#[doc(hidden)]
#[track_caller]
pub fn assert_lock<T: Task>(trainer: &Trainer<T>, package: &str) {
    if let Err(error) = trainer.check_lock(Path::new(package).join(LOCK)) {
        panic!("{error}");
    }
}

/// Compares a trainer with the lock and the golden of a package, for `assert_locked!`.
#[doc(hidden)]
#[track_caller]
pub fn assert_golden<T: Task>(
    trainer: Trainer<T>,
    package: &str,
    train: &mut dyn Loader<T::Batch>,
    valid: Option<&mut dyn Loader<T::Batch>>,
) {
    let package = Path::new(package);
    let lock = trainer.check_lock(package.join(LOCK)).err();
    let golden = trainer.check_golden(package.join(GOLDEN), train, valid).err();
    let mut errors: Vec<String> = lock.into_iter().chain(golden).map(|error| error.to_string()).collect();
    errors.dedup(); // a wrong value of the environment variable
    assert!(errors.is_empty(), "{}", errors.join("\n\n"));
}
