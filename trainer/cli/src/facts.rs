//! What is known about runs, by name, so that they can be compared: settings and metrics.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json, json};
use trainer_formats::run::{Goal, Metric, Metrics, RunFile};
use trainer_formats::{Float, exact, readable};

/// The settings of a run, by name.
pub(crate) type Settings<'r> = BTreeMap<&'r str, Cow<'r, Json>>;

/// Returns the settings of a run: its hyperparameters, and its seed.
pub(crate) fn settings(file: &RunFile) -> Settings<'_> {
    let own = file.hyperparameters.iter().map(|(name, value)| (name.as_str(), Cow::Borrowed(value)));
    let mut settings: Settings<'_> = own.collect();
    settings.entry("seed").or_insert_with(|| Cow::Owned(seed(file)));
    settings
}

/// Returns one of the settings of a run.
pub(crate) fn setting<'r>(file: &'r RunFile, name: &str) -> Option<Cow<'r, Json>> {
    let own = file.hyperparameters.get(name).map(Cow::Borrowed);
    own.or_else(|| (name == "seed").then(|| Cow::Owned(seed(file))))
}

fn seed(file: &RunFile) -> Json {
    file.seed.map_or(Json::Null, Json::from)
}

/// Returns the text of a setting: a number with all of its digits.
pub(crate) fn text_of(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        Json::Number(number) => number.as_f64().map_or_else(|| number.to_string(), exact),
        other => other.to_string(),
    }
}

/// Returns the names of the settings that are not equal in all runs. Those that more of the runs have
/// come first.
pub(crate) fn differing<'r>(runs: &[Settings<'r>]) -> Vec<&'r str> {
    let names: BTreeSet<&str> = runs.iter().flat_map(|settings| settings.keys().copied()).collect();
    let mut differing: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            let values: Vec<_> = runs.iter().map(|settings| settings.get(name).map(AsRef::as_ref)).collect();
            let missing = values.iter().filter(|value| value.is_none_or(Json::is_null)).count();
            let same =
                |value: &Option<&Json>| value.unwrap_or(&Json::Null) == values[0].unwrap_or(&Json::Null);
            (!values.iter().all(same)).then_some((missing, name))
        })
        .collect();
    differing.sort();
    differing.into_iter().map(|(_, name)| name).collect()
}

/// Returns the goal of each metric, by its name: what any of the runs knows.
pub(crate) fn goals<'m>(runs: impl Iterator<Item = &'m Metrics>) -> BTreeMap<String, Goal> {
    let metrics = runs.flatten();
    metrics.filter_map(|(name, metric)| Some((name.clone(), metric.goal?))).collect()
}

/// Returns the names of the metrics, those that say most about a run first: the loss and the metrics of
/// validation, then of tests, then of training; those of a class or of another part last.
pub(crate) fn ranked<'m>(runs: impl Iterator<Item = &'m Metrics>) -> Vec<&'m str> {
    let names: BTreeSet<&str> = runs.flat_map(|metrics| metrics.keys().map(String::as_str)).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_key(|name| {
        let (phase, own) = name.split_once('/').unwrap_or(("", name));
        let phase = ["valid", "test", "train"].iter().position(|known| *known == phase);
        (own.matches(['/', '.']).count(), phase.unwrap_or(3), own != "loss", *name)
    });
    names
}

/// Returns a metric as JSON.
pub(crate) fn metric_to_json(metric: &Metric, goal: Option<Goal>) -> Json {
    let mut object = Map::new();
    object.insert("last".to_owned(), json!(metric.last));
    let best = goal.and_then(|goal| metric.best_by(goal));
    for (name, extreme) in [("best", best), ("min", metric.min), ("max", metric.max)] {
        object.insert(name.to_owned(), json!(extreme));
    }
    object.insert("goal".to_owned(), json!(goal));
    object.into()
}

/// Returns the metrics of a run as JSON, by name.
pub(crate) fn metrics_to_json(metrics: &Metrics, goals: &BTreeMap<String, Goal>) -> Json {
    let all = metrics.iter();
    all.map(|(name, metric)| (name.clone(), metric_to_json(metric, goals.get(name).copied())))
        .collect::<Map<_, _>>()
        .into()
}

/// Formats a value of a metric.
pub(crate) fn value(value: Float) -> String {
    readable(value.0)
}
