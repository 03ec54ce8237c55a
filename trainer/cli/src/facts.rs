//! The settings and metrics of runs by name, so that runs can be compared.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json, json};
use trainer_formats::run::{Goal, Metric, Metrics, RunFile, Settings, data_of, settings_of};
use trainer_formats::{Float, readable};

/// Returns the settings of a run and what is known about its data.
pub(crate) fn settings_and_data(file: &RunFile) -> Settings<'_> {
    let mut all = data_of(file);
    all.append(&mut settings_of(file));
    all
}

/// Returns one of the settings of a run, or one of the facts about its data.
pub(crate) fn setting<'r>(file: &'r RunFile, name: &str) -> Option<Cow<'r, Json>> {
    settings_and_data(file).remove(name)
}

/// Returns the names of the settings that are not equal in all runs. Settings that occur in more
/// runs come first.
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

/// Returns the goals of the metrics, by name. Omits metrics for which no run knows the goal.
pub(crate) fn goals<'m>(runs: impl Iterator<Item = &'m Metrics>) -> BTreeMap<String, Goal> {
    let metrics = runs.flatten();
    metrics.filter_map(|(name, metric)| Some((name.clone(), metric.goal?))).collect()
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
