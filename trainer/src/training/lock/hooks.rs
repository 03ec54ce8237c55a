//! The lock of a program: a file that lists its hooks and settings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::file::{Format, is_update_requested, lines_of};
use super::{Change, changes, crates, list_versions, version_changes};
use crate::HookTable;
use crate::error::{Error, Result};
use crate::io::files::in_file;
use crate::io::terminal::one_line;
use crate::run::settings::{SettingKind, Settings};
use crate::training::facts::{self, Audience};
use crate::training::task::Task;
use crate::training::trainer::Trainer;
use crate::values::facts::{Facts, NOT_SET};
use crate::values::paths::public_path;

const FORMAT: Format = Format { name: "lock", title: "# What this program runs" };
const SETTINGS: &str = "settings";
const CRATES: &str = "crates";

/// The hook that writes a tape. Locks leave it out, because it changes nothing and an environment
/// variable can add it.
const TAPE: &str = "trainer::loggers::TapeFile";

/// The maximum number of differences that an error lists.
const MAX_LISTED: usize = 50;

/// # Locking what runs
impl<T: Task> Trainer<T> {
    /// Compares the hooks and the settings of this trainer with a lock, which is a text file in the
    /// repository of the program. After an update of a crate with hooks, a review of that file
    /// shows what has changed.
    ///
    /// The file lists the hooks of each moment in the order in which they run, with their phases
    /// and whether they may change training (`&mut`) or only observe (`&`); the settings of the
    /// trainer, the optimizers, their groups and the hooks; and the versions of the crates with
    /// hooks. With the environment variable `TRAINER_LOCK=update`, the file is written. The hook
    /// that writes a [tape](crate::Tape) is left out.
    ///
    /// Returns the crates for which only the version differs, and prints them on standard error. A
    /// different version alone is not an error.
    ///
    /// Call this method, or [`assert_locked!`](crate::assert_locked), in a test: the test then
    /// fails if an update changes what runs. If several processes train together, only the
    /// [main](Trainer::is_main) process compares.
    ///
    /// ```no_run
    /// # use trainer::prelude::*;
    /// # fn build() -> Result<Trainer<impl Task>> {
    /// #     let vs = nn::VarStore::new(Device::Cpu);
    /// #     let net = nn::linear(&vs.root() / "fc", 4, 2, Default::default());
    /// #     let task = Supervised::new(vs, net, |pred: &Tensor, labels: &Tensor| pred.cross_entropy_for_logits(labels));
    /// #     Trainer::builder(task).optimizer(Sgd::new(0.1)).build()
    /// # }
    /// # /*
    /// #[test]
    /// # */
    /// fn what_runs_is_locked() -> Result<()> {
    ///     build()?.check_lock("hooks.lock")?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error that lists the differences, if there are any. Returns an error if the file
    /// is missing or cannot be read, written or parsed, or if an entry point such as `fit` has
    /// already run, because that changes settings.
    pub fn check_lock(&self, path: impl AsRef<Path>) -> Result<Vec<Change>> {
        let path = path.as_ref();
        if !self.is_main() {
            return Ok(Vec::new());
        }
        if self.run.checkpoints().facts.is_some() {
            return Err(Error::usage(
                "`check_lock` compares the settings that the program has set, and a run changes them: call it before `fit`",
            ));
        }
        let facts = facts::of(&self.run, Audience::Lock);
        let text = Lock::of(facts, self.run.settings(), &self.describe_hooks()).text();
        if is_update_requested()? {
            FORMAT.write(path, &text)?;
            return Ok(Vec::new());
        }
        let locked = Lock::parse(&FORMAT.read(path)?).map_err(|why| in_file(path, why))?;
        // Parsed as well, so that both are read in the same way, whatever characters a name
        // contains.
        let lock =
            Lock::parse(&text).map_err(|why| Error::usage(format!("this trainer has no lock: {why}")))?;
        let versions = version_changes(&locked.crates, &lock.crates);
        let mut changes = locked.changes(&lock);
        if changes.is_empty() {
            for version in &versions {
                self.run.reports().notice(&format!("{}: the crate {version}", path.display()));
            }
            return Ok(versions);
        }
        let left_out = changes.len().saturating_sub(MAX_LISTED);
        if left_out > 0 {
            changes.truncate(MAX_LISTED);
            changes.push(format!("{left_out} more"));
        }
        Err(Error::usage(format!(
            "{}: the program differs from its lock:\n- {}{}\nif this is intended, update the lock with `TRAINER_LOCK=update`",
            path.display(),
            changes.join("\n- "),
            list_versions(&versions)
        )))
    }
}

/// The content of a lock.
#[derive(Debug, Default, PartialEq)]
struct Lock {
    settings: BTreeMap<String, String>,
    crates: BTreeMap<String, String>,
    /// The hooks of each moment in the order in which they run.
    moments: Vec<(String, Vec<Locked>)>,
}

/// A hook at one moment.
#[derive(Clone, Debug, PartialEq)]
struct Locked {
    name: String,
    /// `&mut` if it may change training, `&` if it only observes.
    access: String,
    /// The phases, the interval and the other conditions that decide when it runs.
    when: String,
}

impl Locked {
    fn line(&self) -> String {
        format!("{} | {} | {}", self.name, self.access, self.when)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.rsplitn(3, " | ").map(str::to_owned);
        let (when, access, name) = (words.next()?, words.next()?, words.next()?);
        Some(Locked { name, access, when })
    }
}

impl Lock {
    fn of(facts: Facts, settings_of_run: &Settings, table: &HookTable) -> Self {
        let Facts { mut settings, hooks, .. } = facts;
        for (hook, of) in hooks {
            // Also replaces the paths of private modules in type arguments.
            let hook = public_path(&hook);
            let own = of.settings.into_iter().map(|(name, value)| (format!("{hook}.{name}"), value));
            settings.extend(own);
        }
        let further =
            [SettingKind::Length, SettingKind::Other].into_iter().flat_map(|kind| settings_of_run.of(kind));
        settings.extend(further.map(|(name, value)| (format!(".{name}(…)"), value)));
        settings.retain(|name, value| value != NOT_SET && !name.starts_with(TAPE));
        settings.values_mut().for_each(|value| *value = one_line(value));
        let mut lock = Lock { settings, crates: crates(table), ..Lock::default() };
        for row in table.rows().filter(|row| !row.hook.starts_with(TAPE)) {
            let moment = if row.around { format!("around {}", row.moment) } else { row.moment.clone() };
            let nth = match lock.moments.iter().position(|(known, _)| *known == moment) {
                Some(nth) => nth,
                None => {
                    lock.moments.push((moment, Vec::new()));
                    lock.moments.len() - 1
                }
            };
            let hooks = &mut lock.moments[nth].1;
            let name = row.hook.clone();
            hooks.push(Locked { name, access: row.access().to_owned(), when: row.when() });
        }
        lock
    }

    fn text(&self) -> String {
        let mut sections = vec![(SETTINGS, lines_of(&self.settings)), (CRATES, lines_of(&self.crates))];
        for (moment, hooks) in &self.moments {
            sections.push((moment, hooks.iter().map(Locked::line).collect()));
        }
        FORMAT.text(&sections)
    }

    /// Parses the text of a lock.
    fn parse(text: &str) -> Result<Self, String> {
        let mut lock = Lock::default();
        for section in FORMAT.sections(text)? {
            match section.title {
                SETTINGS => lock.settings = FORMAT.values(&section)?,
                CRATES => lock.crates = FORMAT.values(&section)?,
                moment => {
                    let hooks = section.lines.iter().map(|(number, line)| {
                        Locked::parse(line).ok_or_else(|| FORMAT.is_not(*number, line))
                    });
                    lock.moments.push((moment.to_owned(), hooks.collect::<Result<_, _>>()?));
                }
            }
        }
        FORMAT.check_places(text, &lock.text())?;
        Ok(lock)
    }

    /// Describes the differences from a newer lock.
    fn changes(&self, newer: &Lock) -> Vec<String> {
        let mut found: Vec<String> =
            changes(&self.settings, &newer.settings).iter().map(ToString::to_string).collect();
        let of = |lock: &Lock, moment: &str| {
            let hooks = lock.moments.iter().find(|(known, _)| known == moment);
            hooks.map(|(_, hooks)| hooks.clone()).unwrap_or_default()
        };
        let moments = self.moments.iter().chain(&newer.moments).map(|(moment, _)| moment);
        let mut known = BTreeSet::new();
        for moment in moments.filter(|moment| known.insert(Clone::clone(*moment))) {
            found.extend(changes_at(moment, &of(self, moment), &of(newer, moment)));
        }
        found
    }
}

/// Describes the differences at one moment.
fn changes_at(moment: &str, was: &[Locked], is: &[Locked]) -> Vec<String> {
    let at = if moment.starts_with("around ") { moment.to_owned() } else { format!("at {moment}") };
    let mut changes = Vec::new();
    for hook in was {
        let name = &hook.name;
        let Some(now) = find(is, name) else {
            changes.push(format!("`{name}` no longer runs {at}"));
            continue;
        };
        if now.when != hook.when {
            changes.push(format!("`{name}` ran {at} in {}, and now runs in {}", hook.when, now.when));
        }
        if now.access != hook.access {
            let [before, after] = [hook, now].map(|hook| match &*hook.access {
                "&" => "only observe (`&Cx`)",
                _ => "change training (`&mut Cx`)",
            });
            changes.push(format!("`{name}` could {before} {at}, and can now {after}"));
        }
    }
    let added = is.iter().filter(|hook| find(was, &hook.name).is_none());
    changes.extend(added.map(|hook| format!("`{}` now runs {at}, in {}", hook.name, hook.when)));
    let common = |hooks: &[Locked], others: &[Locked]| -> Vec<String> {
        let common = hooks.iter().filter(|hook| find(others, &hook.name).is_some());
        common.map(|hook| format!("`{}`", hook.name)).collect()
    };
    let [before, after] = [common(was, is), common(is, was)];
    if before != after {
        changes.push(format!("the order {at} was {} and is now {}", before.join(", "), after.join(", ")));
    }
    changes
}

fn find<'l>(hooks: &'l [Locked], name: &str) -> Option<&'l Locked> {
    hooks.iter().find(|hook| hook.name == name)
}
