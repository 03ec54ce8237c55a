//! Values that ranks exchange as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

fn not_json(what: &str, error: &serde_json::Error) -> Error {
    Error::usage(format!("`{what}`: the value cannot be converted to or from JSON: {error}"))
}

pub(super) fn json<V: Serialize>(value: &V, what: &str) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| not_json(what, &error))
}

pub(super) fn from_json<V: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<V> {
    serde_json::from_slice(bytes).map_err(|error| not_json(what, &error))
}

pub(super) fn all_from_json<V: DeserializeOwned>(all: &[Vec<u8>], what: &str) -> Result<Vec<V>> {
    all.iter().map(|bytes| from_json(bytes, what)).collect()
}
