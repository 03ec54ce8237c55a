//! The settings that determine the result of a run, as text: those of the loop, the optimizers and
//! the hooks. A resume compares them with the settings in the checkpoint, and every entry point
//! compares them with the settings of the other ranks.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use trainer_formats::run::Goal;

use crate::error::{quoted, shortened};

/// The text of a setting that has no value.
pub(crate) const NOT_SET: &str = "not set";

/// The settings of a hook. A resume compares them with those of the interrupted run, and they must
/// be equal on all ranks. Enabled by `#[hook(settings)] impl MyHook { … }`.
///
/// List what the program sets, not what changes while the hook runs. If you destructure the hook
/// with a pattern that names every field, the compiler reports a new field until you decide whether
/// it is a setting:
///
/// ```
/// use trainer::checkpoint::{SettingList, Settings};
/// use trainer::prelude::*;
///
/// /// Adds noise to the weights.
/// struct Jitter {
///     std: f64,
///     every: u64,
///     added: u64, // a count, not a setting
/// }
///
/// impl Settings for Jitter {
///     fn settings(&self) -> SettingList {
///         let Jitter { std, every, added: _ } = self;
///         SettingList::new().with("std", std).with("every", every)
///     }
/// }
///
/// #[hook(settings)]
/// impl Jitter {
///     fn after_step(&mut self, _: &mut Cx<AfterStep>) {
///         // …
///         self.added += 1;
///     }
/// }
/// ```
///
/// For a hook without `settings`, the name, the moments and the order are compared. If serde saves
/// the whole [`State`](crate::checkpoint::State) of such a hook, the values that its fields have
/// when training begins are compared, too. A closure in a field cannot be compared. A resume does
/// not compare a hook without `settings` that only [observes](crate::Cx#observers).
#[diagnostic::on_unimplemented(
    message = "`#[hook(settings)]` compares the settings of `{Self}`, but `{Self}` does not implement `Settings`",
    label = "needs `trainer::checkpoint::Settings`",
    note = "implement `trainer::checkpoint::Settings` for `{Self}`, or remove `settings`"
)]
pub trait Settings {
    /// Returns the settings by name.
    fn settings(&self) -> SettingList;

    /// Returns a message for each setting that is invalid, which says which setting it is and what
    /// is expected. [`build`](crate::TrainerBuilder::build) returns an error that lists the
    /// messages of all hooks, each with the name of the hook. Defaults to none.
    fn mistakes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns whether smaller or larger values of the metrics are better that the hook watches,
    /// such as `valid/accuracy`, or measures, without the phase: `accuracy`.
    /// [`build`](crate::TrainerBuilder::build) refuses a hook that watches a metric the other way
    /// round, and `run.json` contains the best value of each of these metrics. Defaults to none.
    fn goals(&self) -> Vec<(String, Goal)> {
        Vec::new()
    }

    /// Returns the folder into which the hook writes checkpoints.
    /// [`Resume::Auto`](crate::checkpoint::Resume::Auto) searches this folder for a checkpoint.
    /// Returns `None` if the hook writes no checkpoints, or if it needs a run folder and there is
    /// none.
    fn checkpoints(&self, _run_folder: Option<&Path>) -> Option<PathBuf> {
        None
    }
}

/// Settings by name, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingList {
    /// The kind of value that has these settings; empty unless the list is part of another list.
    kind: String,
    values: BTreeMap<String, String>,
}

impl SettingList {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        SettingList::default()
    }

    /// Creates an empty list for a value that is itself a setting of a hook, such as a schedule.
    /// `kind` says what the value is, for example its type.
    #[must_use]
    pub fn of(kind: impl Into<String>) -> Self {
        SettingList { kind: kind.into(), ..SettingList::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds a setting. Two values count as equal if `{:?}` formats them equally.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl fmt::Debug) -> Self {
        self.values.insert(name.to_owned(), format!("{value:?}"));
        self
    }

    /// Adds a setting that may have no value.
    #[must_use]
    pub fn with_optional(mut self, name: &str, value: Option<impl fmt::Debug>) -> Self {
        let text = value.map_or_else(|| NOT_SET.to_owned(), |value| format!("{value:?}"));
        self.values.insert(name.to_owned(), text);
        self
    }

    /// Adds a setting that has settings itself. If `schedule` has the setting `end`, the name of
    /// that setting is `schedule.end`.
    #[must_use]
    pub fn with_all(mut self, name: &str, list: SettingList) -> Self {
        if !list.kind.is_empty() {
            self.values.insert(name.to_owned(), list.kind);
        }
        self.values.extend(list.values.into_iter().map(|(own, value)| (format!("{name}.{own}"), value)));
        self
    }

    pub(crate) fn into_values(self) -> BTreeMap<String, String> {
        self.values
    }
}

/// Type-erased access to the settings of a hook value.
#[derive(Clone, Copy, Debug)]
pub struct SettingsOf {
    pub(crate) settings: fn(&(dyn Any + Send)) -> SettingList,
    pub(crate) mistakes: fn(&(dyn Any + Send)) -> Vec<String>,
    pub(crate) goals: fn(&(dyn Any + Send)) -> Vec<(String, Goal)>,
    pub(crate) checkpoints: fn(&(dyn Any + Send), Option<&Path>) -> Option<PathBuf>,
}

impl SettingsOf {
    /// Creates the access to the settings of values of type `H`.
    #[must_use]
    pub const fn of<H: Settings + 'static>() -> Self {
        SettingsOf {
            settings: |value| value.downcast_ref::<H>().map(H::settings).unwrap_or_default(),
            mistakes: |value| value.downcast_ref::<H>().map(H::mistakes).unwrap_or_default(),
            goals: |value| value.downcast_ref::<H>().map(H::goals).unwrap_or_default(),
            checkpoints: |value, run_folder| value.downcast_ref::<H>()?.checkpoints(run_folder),
        }
    }
}

/// The settings and hooks that determine the result of a run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Facts {
    /// The settings of the loop and of the optimizers.
    pub(crate) settings: BTreeMap<String, String>,
    /// The hooks by name. Hooks of the same type have different names.
    pub(crate) hooks: BTreeMap<String, HookFacts>,
    /// The hooks of each moment, in order.
    pub(crate) order: BTreeMap<String, Vec<String>>,
}

/// The properties that determine the effect of a hook, which is a function, a closure, or a value
/// with its methods.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct HookFacts {
    /// The name and the version of the crate of the hook; empty for a closure.
    #[serde(deserialize_with = "package")]
    pub(crate) package: [String; 2],
    /// The moments of the hook, each with its phases, its interval and its modules.
    pub(crate) runs: Vec<String>,
    pub(crate) settings: BTreeMap<String, String>,
}

/// Reads the name and the version of a crate, which messages show.
fn package<'de, D: Deserializer<'de>>(from: D) -> Result<[String; 2], D::Error> {
    let package = <[String; 2]>::deserialize(from)?;
    let is_valid = |letter: char| letter.is_alphanumeric() || "-_.+".contains(letter);
    match package.iter().find(|text| text.len() > 200 || !text.chars().all(is_valid)) {
        Some(text) => Err(D::Error::custom(format!(
            "expected the name and the version of a crate, found {:?}",
            shortened(text)
        ))),
        None => Ok(package),
    }
}

/// A difference between two [`Facts`]: what differs, and its text in each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) what: String,
    pub(crate) one: String,
    pub(crate) other: String,
}

impl Facts {
    /// Returns every difference: one for each setting, hook and moment.
    pub(crate) fn differences(&self, other: &Facts) -> Vec<Difference> {
        let mut found = Vec::new();
        differences_of("", &self.settings, &other.settings, &mut found);
        let names: BTreeSet<&String> = self.hooks.keys().chain(other.hooks.keys()).collect();
        for name in names {
            let what = format!("the hook `{}`", quoted(name));
            match (self.hooks.get(name), other.hooks.get(name)) {
                (Some(one), Some(other)) => {
                    if one.runs != other.runs {
                        let [one, other] =
                            [one, other].map(|hook| quoted(&format!("at {}", hook.runs.join(", "))));
                        found.push(Difference { what, one, other });
                    }
                    differences_of(&format!("{name}."), &one.settings, &other.settings, &mut found);
                }
                (one, _) => {
                    let [one, other] = [one.is_some(), one.is_none()]
                        .map(|is_there| if is_there { "present" } else { "missing" }.to_owned());
                    found.push(Difference { what, one, other });
                }
            }
        }
        let nothing = Vec::new();
        let moments: BTreeSet<&String> = self.order.keys().chain(other.order.keys()).collect();
        for moment in moments {
            let [one, other] = [self, other].map(|facts| facts.order.get(moment).unwrap_or(&nothing));
            // Hooks that only one side has were reported above.
            let [one, other] = [(one, other), (other, one)].map(|(own, others)| {
                let names: Vec<_> = own.iter().filter(|name| others.contains(name)).cloned().collect();
                quoted(&names.join(", "))
            });
            if one != other {
                found.push(Difference { what: format!("the order at `{}`", quoted(moment)), one, other });
            }
        }
        found
    }

    /// Returns the crates whose version differs, each with both versions.
    pub(crate) fn versions(&self, other: &Facts) -> BTreeSet<[String; 3]> {
        let mut found = BTreeSet::new();
        for (name, one) in &self.hooks {
            let [krate, version] = &one.package;
            if let Some(HookFacts { package: [_, other], .. }) = other.hooks.get(name)
                && other != version
            {
                found.insert([krate.clone(), version.clone(), other.clone()]);
            }
        }
        found
    }
}

/// Adds the differences between two maps of settings.
pub(crate) fn differences_of(
    prefix: &str,
    one: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
    found: &mut Vec<Difference>,
) {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for name in names {
        let [one, other] = [one, other].map(|own| own.get(name).map_or(NOT_SET, String::as_str));
        if one != other {
            let [one, other] = [one, other].map(shortened);
            found.push(Difference { what: format!("`{}`", quoted(&format!("{prefix}{name}"))), one, other });
        }
    }
}
