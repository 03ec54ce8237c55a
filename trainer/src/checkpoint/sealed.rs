//! JSON files with a format, a version, and the hash of their fields: the manifest of a checkpoint,
//! and the files that describe the state of a rank.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::files::MAX_MANIFEST_BYTES;
use crate::error::Result;
use crate::io::files::{Links, in_file, open, read_start, write};

/// The version of the format.
pub(crate) const VERSION: u64 = 8;

/// The oldest version that can be read.
const OLDEST: u64 = 7;

/// The field that holds the hash of all other fields.
const HASH: &str = "blake3";

/// What earlier versions called a hook, and its name now.
const RENAMED: [(&str, &str); 2] = [
    (
        "trainer::hooks::lr_schedule::LrSchedule",
        "trainer::hooks::hyperparameter_schedule::HyperparameterSchedule",
    ),
    ("trainer::hooks::LrSchedule", "trainer::hooks::HyperparameterSchedule"),
];

/// Writes a value that has the fields `format` and `version` to a new file, and waits until the
/// file is on disk.
pub(super) fn write_sealed<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let mut json = serde_json::to_value(value).map_err(|error| in_file(path, error))?;
    let hash = hash(&json);
    if let Some(fields) = json.as_object_mut() {
        fields.insert(HASH.to_owned(), hash.into());
    }
    let mut text = Growing(Vec::new());
    serde_json::to_writer_pretty(&mut text, &json).map_err(|error| in_file(path, error))?;
    let Growing(text) = text;
    if text.len() as u64 > MAX_MANIFEST_BYTES {
        let text = format!(
            "the states of hooks make this file {} bytes long, over the limit of {MAX_MANIFEST_BYTES}: save large state as tensors",
            text.len()
        );
        return Err(in_file(path, text));
    }
    Ok(write(path, &text)?)
}

/// Reads a file that [`write_sealed`] has written.
///
/// # Errors
///
/// Returns an error if the file has a different format or an unsupported version, or if it was
/// changed or damaged.
pub(super) fn read_sealed<T: DeserializeOwned>(path: &Path, format: &str) -> Result<T> {
    let mut json: Json = serde_json::from_slice(&read(path)?).map_err(|error| {
        in_file(
            path,
            format!("the file contains invalid JSON: {error}; restore it, or use another checkpoint"),
        )
    })?;
    if json.get("format").and_then(Json::as_str) != Some(format) {
        let text = format!(
            "its field `format` is not `{format}`: this is not a checkpoint of this trainer; use another checkpoint"
        );
        return Err(in_file(path, text));
    }
    match json.get("version").and_then(Json::as_u64) {
        Some(OLDEST..=VERSION) => {}
        Some(other) => {
            let text = format!(
                "its `version` is {other}, but this trainer reads versions {OLDEST} to {VERSION}: resume with the version of \
                 `trainer` that wrote it"
            );
            return Err(in_file(path, text));
        }
        None => {
            return Err(in_file(
                path,
                "its field `version` is missing or not a number: the file was changed or damaged; \
                 restore it, or use another checkpoint",
            ));
        }
    }
    let digest = json.as_object_mut().and_then(|fields| fields.remove(HASH));
    if digest != Some(hash(&json).into()) {
        return Err(in_file(
            path,
            "its hash differs from the recorded one: the file was changed or damaged; restore it, or use another checkpoint",
        ));
    }
    rename(&mut json);
    serde_path_to_error::deserialize(&json).map_err(|error| {
        in_file(
            path,
            format!(
                "its field `{}` cannot be read: {}; restore the file, or use another checkpoint",
                error.path(),
                error.inner()
            ),
        )
    })
}

/// Replaces the names in [`RENAMED`], in place, because a manifest can be large. A file that has
/// both names of a hook stays as it is, because the two would be equal.
fn rename(json: &mut Json) {
    for (old, new) in RENAMED {
        if contains(json, old) && !contains(json, new) {
            replace(json, old, new);
        }
    }
}

/// Returns whether a key or a string contains a text.
fn contains(json: &Json, text: &str) -> bool {
    match json {
        Json::String(string) => string.contains(text),
        Json::Array(values) => values.iter().any(|value| contains(value, text)),
        Json::Object(fields) => fields.iter().any(|(key, value)| key.contains(text) || contains(value, text)),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

/// Replaces a text in each key and string that contains it.
fn replace(json: &mut Json, old: &str, new: &str) {
    match json {
        Json::String(string) if string.contains(old) => *string = string.replace(old, new),
        Json::Array(values) => values.iter_mut().for_each(|value| replace(value, old, new)),
        Json::Object(fields) => {
            let keys: Vec<String> = fields.keys().filter(|key| key.contains(old)).cloned().collect();
            for key in keys {
                let value = fields.remove(&key).unwrap_or_default();
                fields.insert(key.replace(old, new), value);
            }
            fields.values_mut().for_each(|value| replace(value, old, new));
        }
        Json::String(_) | Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Reads the bytes of a file of at most [`MAX_MANIFEST_BYTES`].
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let (file, length) = open(path, Links::Refuse)?;
    if length > MAX_MANIFEST_BYTES {
        return Err(in_file(
            path,
            format!(
                "expected a manifest of at most {MAX_MANIFEST_BYTES} bytes, found a file of {length} bytes: \
                 restore it, or use another checkpoint"
            ),
        ));
    }
    Ok(read_start(path, &file, length)?)
}

/// Returns the hash of the compact JSON text, without storing the text.
fn hash(json: &Json) -> String {
    let mut hasher = blake3::Hasher::new();
    serde_json::to_writer(&mut hasher, json).expect("a hasher accepts every byte");
    hasher.finalize().to_hex().to_string()
}

/// A buffer that returns an error if there is not enough memory for it to grow.
struct Growing(Vec<u8>);

impl io::Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_reserve(bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Json, rename};

    fn renamed(mut json: Json) -> Json {
        rename(&mut json);
        json
    }

    #[test]
    fn earlier_names_of_hooks_are_replaced_unless_both_are_there() {
        let old = json!({"parts": {"hook/trainer::hooks::lr_schedule::LrSchedule/0": {"length": 8}},
            "order": {"setup": ["trainer::hooks::LrSchedule::setup"]}});
        let part = "hook/trainer::hooks::hyperparameter_schedule::HyperparameterSchedule/0";
        let new = json!({"parts": {part: {"length": 8}},
            "order": {"setup": ["trainer::hooks::HyperparameterSchedule::setup"]}});
        assert_eq!(renamed(old), new);
        let both = json!(["trainer::hooks::LrSchedule", "trainer::hooks::HyperparameterSchedule"]);
        assert_eq!(renamed(both.clone()), both);
    }
}
