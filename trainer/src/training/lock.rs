//! The lock of a program: a text file that says what runs, which a review reads and a test compares.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::facts::{self, Audience};
use super::task::Task;
use super::trainer::Trainer;
use crate::error::{Error, Result};
use crate::io::files::{self, Links, in_file, is_file};
use crate::run::Run;
use crate::values::facts::NOT_SET;

/// The first line of a lock. The number is the version of the format.
const TITLE: &str = "# What this program runs, version 1. To change it: TRAINER_LOCK=update";
const SETTINGS: &str = "settings";
const CRATES: &str = "crates";

impl<T: Task> Trainer<T> {
    /// Compares the hooks and the settings of this trainer with a lock, a text file in the repository
    /// of the program, so that a review sees what an update of a crate of hooks changes.
    ///
    /// The file has the hooks of each moment in the order in which they run, with their phases; the
    /// settings of the trainer, the optimizers and the hooks, which decide the result of a run; and the
    /// versions of the crates with hooks. With the environment variable `TRAINER_LOCK=update`, the file
    /// is written. A version that differs is printed, and is no error.
    ///
    /// Call it in a test, so that it fails where the update is made. If several processes train
    /// together, only the [main](Trainer::is_main) one compares.
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
    ///     build()?.check_lock("hooks.lock")
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error that lists what differs, or that the file cannot be read, written or parsed.
    pub fn check_lock(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if !self.is_main() {
            return Ok(());
        }
        let lock = Lock::of(&self.run, &self.describe_hooks());
        match std::env::var("TRAINER_LOCK") {
            Ok(value) if value == "update" => return lock.write(path),
            Ok(value) if !value.is_empty() => {
                return Err(Error::usage(format!("`TRAINER_LOCK={value}`: expected `update`")));
            }
            _ => {}
        }
        if !is_file(path) {
            let text = "there is no lock: write it with `TRAINER_LOCK=update`, and add it to the repository";
            return Err(in_file(path, text));
        }
        let locked = Lock::parse(&files::read_text(path)?).map_err(|why| in_file(path, why))?;
        for (name, [was, is]) in differing(&locked.crates, &lock.crates) {
            if was != NOT_SET && is != NOT_SET {
                self.run.notice(&format!("{}: the crate `{name}` was {was}, and is {is}", path.display()));
            }
        }
        let changes = locked.changes(&lock);
        if changes.is_empty() {
            return Ok(());
        }
        let text = format!(
            "what runs is not what is locked:\n- {}\nif that is meant, update the lock with `TRAINER_LOCK=update`",
            changes.join("\n- ")
        );
        Err(in_file(path, text))
    }
}

/// The content of a lock.
#[derive(Debug, Default, PartialEq)]
struct Lock {
    settings: BTreeMap<String, String>,
    crates: BTreeMap<String, String>,
    /// The hooks of each moment in the order in which they run, each with when it does.
    moments: Vec<(String, Vec<(String, String)>)>,
}

impl Lock {
    fn of(run: &Run, table: &crate::HookTable) -> Self {
        let facts = facts::of(run, Audience::Resume);
        let mut settings = facts.settings;
        for (hook, of) in facts.hooks {
            let own = of.settings.into_iter().map(|(name, value)| (format!("{hook}.{name}"), value));
            settings.extend(own);
        }
        settings.extend(run.settings.length().map(|(name, value)| (format!(".{name}(…)"), value)));
        settings.retain(|_, value| value != NOT_SET);
        let mut lock = Lock { settings, ..Lock::default() };
        for row in table.rows() {
            if let Some(version) = row.version {
                lock.crates.insert(row.krate.to_owned(), version.to_owned());
            }
            let moment = if row.around { format!("around {}", row.moment) } else { row.moment.clone() };
            let hook = (row.hook.clone(), row.when());
            match lock.moments.iter_mut().find(|(known, _)| *known == moment) {
                Some((_, hooks)) => hooks.push(hook),
                None => lock.moments.push((moment, vec![hook])),
            }
        }
        lock
    }

    fn text(&self) -> String {
        let mut text = format!("{TITLE}\n");
        for (title, all) in [(SETTINGS, &self.settings), (CRATES, &self.crates)] {
            text.push_str(&format!("\n[{title}]\n"));
            for (name, value) in all {
                text.push_str(&format!("{name} = {}\n", value.replace('\n', " ")));
            }
        }
        for (moment, hooks) in &self.moments {
            text.push_str(&format!("\n[{moment}]\n"));
            for (hook, when) in hooks {
                text.push_str(&format!("{hook} | {when}\n"));
            }
        }
        text
    }

    /// Parses the text of a lock.
    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().enumerate().map(|(nth, line)| (nth + 1, line.trim()));
        if lines.next().is_none_or(|(_, title)| title != TITLE) {
            return Err(format!(
                "this is not a lock of this version, which begins with `{TITLE}`: write it with `TRAINER_LOCK=update`"
            ));
        }
        let mut lock = Lock::default();
        let mut section = None;
        for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
            if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = Some(title);
                if ![SETTINGS, CRATES].contains(&title) {
                    lock.moments.push((title.to_owned(), Vec::new()));
                }
                continue;
            }
            let parsed = match section {
                Some(SETTINGS | CRATES) => line.split_once(" = "),
                Some(_) => line.rsplit_once(" | "),
                None => None,
            };
            let Some((name, value)) = parsed else {
                return Err(format!("line {number} is not one of a lock: `{line}`"));
            };
            let (name, value) = (name.to_owned(), value.to_owned());
            match (section, lock.moments.last_mut()) {
                (Some(SETTINGS), _) => drop(lock.settings.insert(name, value)),
                (Some(CRATES), _) => drop(lock.crates.insert(name, value)),
                (_, Some((_, hooks))) => hooks.push((name, value)),
                (_, None) => {}
            }
        }
        Ok(lock)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let is_lock = |path: &Path| {
            files::open(path, Links::Refuse)?;
            let text = files::read_text(path)?;
            match text.starts_with("# What this program runs, version ") {
                true => Ok(()),
                false => Err(in_file(path, "this file is not a lock, so it is kept: choose another path")),
            }
        };
        files::replace_file(path, is_lock, |file| file.write(self.text().as_bytes()))
    }

    /// Says what differs in another lock, which is newer.
    fn changes(&self, newer: &Lock) -> Vec<String> {
        let mut changes = Vec::new();
        for (name, [was, is]) in differing(&self.settings, &newer.settings) {
            changes.push(format!("`{name}` was {was}, and is {is}"));
        }
        let of = |lock: &Lock, moment: &str| {
            let hooks = lock.moments.iter().find(|(known, _)| known == moment);
            hooks.map(|(_, hooks)| hooks.clone()).unwrap_or_default()
        };
        let moments = self.moments.iter().chain(&newer.moments).map(|(moment, _)| moment);
        let mut known = BTreeSet::new();
        for moment in moments.filter(|moment| known.insert(Clone::clone(*moment))) {
            changes.extend(changes_at(moment, &of(self, moment), &of(newer, moment)));
        }
        changes
    }
}

/// Says what differs at one moment.
fn changes_at(moment: &str, was: &[(String, String)], is: &[(String, String)]) -> Vec<String> {
    let at = if moment.starts_with("around ") { moment.to_owned() } else { format!("at {moment}") };
    let find = |hooks: &[(String, String)], name: &str| {
        hooks.iter().find(|(hook, _)| hook == name).map(|(_, when)| when.clone())
    };
    let mut changes = Vec::new();
    for (hook, when) in was {
        match find(is, hook) {
            None => changes.push(format!("`{hook}` no longer runs {at}")),
            Some(now) if now != *when => {
                changes.push(format!("`{hook}` ran {at} in {when}, and now runs in {now}"));
            }
            Some(_) => {}
        }
    }
    changes.extend(
        is.iter()
            .filter(|(hook, _)| find(was, hook).is_none())
            .map(|(hook, when)| format!("`{hook}` now runs {at}, in {when}")),
    );
    let common = |hooks: &[(String, String)], other: &[(String, String)]| {
        let names =
            hooks.iter().filter(|(hook, _)| find(other, hook).is_some()).map(|(hook, _)| format!("`{hook}`"));
        names.collect::<Vec<_>>()
    };
    let [before, after] = [common(was, is), common(is, was)];
    if before != after {
        changes.push(format!("the order {at} was {}, and is {}", before.join(", "), after.join(", ")));
    }
    changes
}

/// Returns the values that differ, by name.
fn differing<'l>(
    was: &'l BTreeMap<String, String>,
    is: &'l BTreeMap<String, String>,
) -> impl Iterator<Item = (&'l String, [&'l str; 2])> {
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let both = names
        .into_iter()
        .map(move |name| (name, [was, is].map(|of| of.get(name).map_or(NOT_SET, String::as_str))));
    both.filter(|(_, [was, is])| was != is)
}
