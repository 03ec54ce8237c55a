//! Facts by name, for comparing runs: their settings, and their metrics in order of importance.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use super::file::RunFile;
use super::metric::Metrics;
use crate::float::exact;

/// The settings of a run, by name.
pub type Settings<'r> = BTreeMap<&'r str, Cow<'r, Json>>;

/// Returns the settings of a run: its hyperparameters and its seed, which is `null` for a run
/// without a seed.
#[must_use]
pub fn settings_of(file: &RunFile) -> Settings<'_> {
    let own = file.hyperparameters.iter().map(|(name, value)| (name.as_str(), Cow::Borrowed(value)));
    let mut settings: Settings<'_> = own.collect();
    settings.entry("seed").or_insert_with(|| Cow::Owned(file.seed.map_or(Json::Null, Json::from)));
    settings
}

/// Returns what is known about the data of a run: `train.rows`, `train.batch_size` and so on.
#[must_use]
pub fn data_of(file: &RunFile) -> Settings<'_> {
    file.data.iter().map(|(name, value)| (name.as_str(), Cow::Borrowed(value))).collect()
}

/// Returns the text of a setting: a number with all of its digits, or an empty string for `null`.
#[must_use]
pub fn text_of_setting(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        Json::Number(number) => number.as_f64().map_or_else(|| number.to_string(), exact),
        other => other.to_string(),
    }
}

/// Returns the names of the runs' metrics, most important first. Metrics of a single class or part
/// of the model come after all others. Otherwise, validation metrics come first, then test metrics,
/// then training metrics. Within a phase, the loss comes first.
#[must_use]
pub fn ranked<'m>(runs: impl Iterator<Item = &'m Metrics>) -> Vec<&'m str> {
    let names: BTreeSet<&str> = runs.flat_map(|metrics| metrics.keys().map(String::as_str)).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_key(|name| {
        let (phase, own) = name.split_once('/').unwrap_or(("", name));
        let phase = ["valid", "test", "train"].iter().position(|known| *known == phase);
        (own.matches(['/', '.']).count(), phase.unwrap_or(3), own != "loss", *name)
    });
    names
}
