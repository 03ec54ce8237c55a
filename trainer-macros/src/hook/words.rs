//! The words of `#[hook(…)]`: its keys, other words for them, and the syntax of each key.

use syn::Path;

use crate::keys::nearest;
use crate::lifecycle::pascal;
use crate::moments::{is_marker, is_point};
use crate::phases;

/// The keys, for suggestions.
pub(super) const KEYS: [&str; 19] = [
    "ord",
    "only",
    "every",
    "when",
    "of",
    "in",
    "before",
    "after",
    "auto",
    "single",
    "state",
    "settings",
    "variables",
    "trial",
    "observes",
    "writes",
    "may_fail",
    "more",
    "crate",
];

/// The keys that are valid without a value.
pub(super) const FLAGS: [&str; 10] =
    ["auto", "single", "state", "settings", "variables", "trial", "observes", "writes", "may_fail", "more"];

/// The keys that are valid on a block only, because they apply to the hook's value.
pub(super) const OF_VALUE: [&str; 6] = ["auto", "single", "state", "settings", "variables", "more"];

/// Words that other libraries use for a key.
pub(super) const SYNONYMS: [(&str, &[&str]); 14] = [
    ("when", &["if", "cond", "condition", "predicate", "run_if", "only_if", "guard", "filter"]),
    ("ord", &["order", "priority", "prio", "level"]),
    ("only", &["phase", "phases", "mode"]),
    ("in", &["set", "sets", "stage", "group", "in_set", "member_of"]),
    (
        "every",
        &["freq", "frequency", "interval", "period", "each", "steps", "epochs", "batches", "n_steps", "n"],
    ),
    ("of", &["layer", "layers", "module", "modules", "target"]),
    ("auto", &["default", "automatic", "auto_register", "register"]),
    ("single", &["singleton", "unique"]),
    ("state", &["stateful", "save", "saves", "saved", "state_dict", "checkpoint", "resume"]),
    ("settings", &["config", "options"]),
    ("variables", &["vars", "parameters", "params", "weights", "buffers"]),
    ("writes", &["write", "output", "outputs", "io", "side_effects"]),
    ("may_fail", &["fallible", "tolerant", "best_effort", "can_fail", "non_fatal", "logger"]),
    ("more", &["also", "second", "another", "further", "extend", "extends"]),
];

/// Words for a hook around an operation. The type of its second argument expresses this instead.
pub(super) const AROUND: [&str; 6] = ["around", "wrap", "wraps", "wrapping", "surround", "replace"];
/// Words for the moment of a hook. The type of its context expresses this instead.
pub(super) const MOMENT: [&str; 5] = ["at", "on", "point", "moment", "event"];
/// Words for a hook on rank 0 only. The type of its context expresses this instead.
pub(super) const MAIN: [&str; 7] =
    ["main", "rank", "rank0", "rank_0", "rank_zero_only", "main_process_only", "master_only"];

/// Returns whether a word means a hook on rank 0 only.
pub(super) fn is_main_only(word: &str) -> bool {
    MAIN.contains(&word) || nearest(word, ["main_only"]).is_some() && phases::meant(word).is_none()
}

/// Returns whether a word is a key, or so similar to one that it may be a misspelled key.
pub(super) fn is_nearly_a_key(word: &str) -> bool {
    nearest(word, KEYS).is_some() || SYNONYMS.iter().any(|(_, words)| words.contains(&word))
}

/// Returns the key among `keys` that a word probably means.
pub(super) fn meant(word: &str, keys: &[&'static str]) -> Option<&'static str> {
    let synonym = SYNONYMS.iter().find(|(_, words)| words.contains(&word)).map(|(key, _)| *key);
    synonym.filter(|key| keys.contains(key)).or_else(|| nearest(word, keys.iter().copied()))
}

/// The module of `trainer` whose names editors suggest for a key.
pub(super) const LATER: &[&str] = &["language"];
/// The module of `trainer` whose names editors suggest for a phase.
pub(super) const PHASES: &[&str] = &["phase"];

/// Returns whether a word looks like the name of a point.
pub(super) fn is_like_a_point(word: &str) -> bool {
    word.starts_with("before_") || word.starts_with("after_") || ["setup", "teardown"].contains(&word)
}

/// Returns the name of the marker type for the moment that a path names: `AfterStep` for
/// `after_step`, `AfterStep` and `trainer::at::after_step`.
pub(super) fn marker_meant(path: &Path) -> Option<String> {
    let last = path.segments.last()?.ident.to_string();
    if path.segments.len() > 1 && !path.segments.iter().any(|segment| segment.ident == "trainer") {
        return None;
    }
    known_marker(&last)
}

/// Returns the name of a marker type, given either that name or the name of its moment.
pub(super) fn known_marker(name: &str) -> Option<String> {
    let marker = if name.starts_with(char::is_uppercase) { name.to_owned() } else { pascal(name) };
    is_marker(&marker).then_some(marker)
}

/// Returns whether a marker type is that of a point.
pub(super) fn is_point_marker(marker: &str) -> bool {
    is_point(&crate::lifecycle::snake(marker))
}

/// Returns whether a key takes no value.
pub(super) fn is_flag(word: &str) -> bool {
    FLAGS.contains(&word)
}

/// Returns the syntax of a key.
pub(super) fn form_of(key: &str) -> &'static str {
    match key {
        "ord" => "`ord = <integer>`",
        "every" => "`every = <integer>` of at least 1, or `every = self.<field>`",
        "when" => "`when = <path>` of a function that takes the context, `&Cx<…>`, and returns a `bool`",
        "only" => "`only = <phase>`, `only(<phase>, …)` or `only = self.<field>`",
        "of" => {
            "`of = \"<module>\"`, `of(\"<module>\", …)`, `of = optional(\"<module>\")` or `of = self.<field>`"
        }
        "in" => "`in = <set>` or `in(<set>, …)`",
        "before" => "`before = <hook>`, `before(<hook>, …)` or `before = optional(<hook>)`",
        "after" => "`after = <hook>`, `after(<hook>, …)` or `after = optional(<hook>)`",
        "crate" => "`crate = <path of the trainer crate>`",
        "auto" => "`auto`, `auto = ranks` or `auto = <path>` of a function that returns a `bool`",
        "state" => "`state` or `state = self.<field>`",
        "settings" => "`settings` without a value",
        "variables" => "`variables` without a value",
        "observes" => "`observes` without a value",
        "writes" => "`writes` without a value",
        "may_fail" => "`may_fail` without a value",
        "more" => "`more` without a value",
        "trial" => "`trial` or `trial = false`",
        _ => "`single` or `single = <type>`",
    }
}

pub(super) fn listed() -> String {
    KEYS.map(|key| format!("`{key}`")).join(", ")
}
