//! [`Profile`]: the breakdown of an entry point's time, as recorded in `run.json`.

use serde::{Deserialize, Serialize};

/// The time of an entry point, divided among operations, modules, hooks and waiting for data.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// The operation of the entry point: `fit`, `valid`, `test` or `predict`.
    pub entry: String,
    /// The time of the entry point in nanoseconds, which is the sum of all `self_ns`.
    pub total_ns: u64,
    /// The rows, sorted by self time, longest first.
    pub rows: Vec<ProfileRow>,
}

/// Statistics of all spans with the same kind, name, moment and phase. Times are in nanoseconds.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ProfileRow {
    /// The kind of the spans: `entry`, `data`, `operation`, `module` or `hook`.
    pub kind: String,
    /// The name of the operation, the module or the hook.
    pub name: String,
    /// The moment of the hook; `None` for other kinds of spans.
    #[serde(default)]
    pub moment: Option<String>,
    /// The phase.
    pub phase: String,
    /// The number of spans.
    pub calls: u64,
    /// The time of all spans, including the spans inside them.
    pub total_ns: u64,
    /// The time of all spans, excluding the spans inside them.
    pub self_ns: u64,
    /// The mean time of a span.
    pub mean_ns: u64,
    /// The time of the longest span.
    pub max_ns: u64,
    /// The number of times that the host waited for a GPU during the spans, excluding the spans
    /// inside them. `None` if that was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<u64>,
}
