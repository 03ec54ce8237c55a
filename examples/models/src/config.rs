//! Reading a `config.json`.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use trainer::prelude::*;

/// Reads the configuration of a model from the `config.json` next to its weights.
///
/// `fixed` lists settings for which the model supports only one value, which is also their default.
///
/// # Errors
///
/// Returns an error that names the file if it cannot be read, belongs to a different kind of model,
/// or needs a feature that the model does not have.
pub(crate) fn read<C: DeserializeOwned>(
    path: &Path,
    kind: &str,
    fixed: &[(&str, Value)],
    check: impl Fn(&C) -> Result<()>,
) -> Result<C> {
    let within = |error: String| Error::msg(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| within(error.to_string()))?;
    let mut json: Value =
        serde_json::from_str(&text).map_err(|error| within(format!("invalid JSON: {error}")))?;
    match json.get("model_type").and_then(Value::as_str) {
        Some(found) if found == kind => {}
        Some(found) => return Err(within(format!("describes the model `{found}`: expected `{kind}`"))),
        None => return Err(within(format!("has no `model_type`: expected \"{kind}\""))),
    }
    for (name, supported) in fixed {
        if let Some(value) = json.get(*name).filter(|value| *value != supported) {
            return Err(within(format!("`{name}` is {value}, but only {supported} is supported")));
        }
    }
    // `transformers` writes the names of the classes, not their number.
    if let Some(classes) = json.get("id2label").and_then(Value::as_object).map(serde_json::Map::len) {
        json["num_labels"] = classes.into();
    }
    let config = serde_json::from_value(json).map_err(|error| within(error.to_string()))?;
    check(&config).map_err(|error| within(error.to_string()))?;
    Ok(config)
}

/// Checks that these sizes are positive, and that the number of heads divides the width.
pub(crate) fn check_sizes(sizes: &[(&str, i64)], width: i64, heads: i64) -> Result<()> {
    for (name, size) in sizes {
        if *size < 1 {
            return Err(Error::msg(format!("`{name}` is {size}: expected at least 1")));
        }
    }
    if width % heads != 0 {
        return Err(Error::msg(format!(
            "the width {width} is not a multiple of the number of heads, {heads}"
        )));
    }
    Ok(())
}

/// Checks that dropout probabilities are at least 0 and less than 1.
pub(crate) fn check_dropout(probabilities: &[(&str, f64)]) -> Result<()> {
    for (name, probability) in probabilities {
        if !(0.0..1.0).contains(probability) {
            return Err(Error::msg(format!(
                "`{name}` is {probability}: expected at least 0 and less than 1"
            )));
        }
    }
    Ok(())
}
