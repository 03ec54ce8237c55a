//! The names of the trainer's own moments. They are used only for advice, because rustc itself
//! resolves the names. A test checks that these lists match the declaration.

use crate::keys::nearest;
use crate::lifecycle::pascal;

/// The operations.
const OPERATIONS: [&str; 19] = [
    "fit",
    "sanity_check",
    "epoch",
    "train_epoch",
    "step",
    "transfer",
    "pred",
    "module_forward",
    "loss",
    "backward",
    "opt_step",
    "zero_grad",
    "valid",
    "test",
    "predict",
    "predict_step",
    "eval",
    "save_checkpoint",
    "load_checkpoint",
];

/// The points that are not before or after an operation.
const POINTS: [&str; 8] = [
    "setup",
    "before_module_backward",
    "after_module_grads",
    "after_module_backward",
    "after_record",
    "after_cancel",
    "after_error",
    "teardown",
];

/// Returns the names of the operations.
pub(crate) fn operations() -> &'static [&'static str] {
    &OPERATIONS
}

/// Returns the operation whose name is most similar to a word.
pub(crate) fn nearest_operation(word: &str) -> Option<&'static str> {
    nearest(word, OPERATIONS)
}

/// Returns whether a word is the name of an operation.
pub(crate) fn is_operation(word: &str) -> bool {
    OPERATIONS.contains(&word)
}

/// Returns whether a word is the name of a point.
pub(crate) fn is_point(word: &str) -> bool {
    let operation = word.strip_prefix("before_").or_else(|| word.strip_prefix("after_"));
    POINTS.contains(&word) || operation.is_some_and(is_operation)
}

/// Returns whether a word is the name of a point, or similar to one.
pub(crate) fn is_nearly_a_point(word: &str) -> bool {
    let points = points();
    is_point(word)
        || nearest(word, points.iter().map(String::as_str))
            .is_some_and(|point| strsim::damerau_levenshtein(point, word) == 1)
}

/// Returns whether a word is the name of a marker type: `AfterStep`, `Backward`.
pub(crate) fn is_marker(word: &str) -> bool {
    OPERATIONS.iter().any(|operation| pascal(operation) == word)
        || points().iter().any(|point| pascal(point) == word)
}

fn points() -> Vec<String> {
    let of_operations =
        OPERATIONS.iter().flat_map(|name| [format!("before_{name}"), format!("after_{name}")]);
    of_operations.chain(POINTS.map(String::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_match_the_declaration() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../trainer/src/moments/lifecycle.rs");
        let declaration = std::fs::read_to_string(path).unwrap();
        let declared = |keyword: &str| -> Vec<&str> {
            let lines = declaration.lines().filter_map(|line| line.trim().strip_prefix(keyword));
            lines.map(|rest| rest.split([' ', ';']).next().unwrap()).collect()
        };
        assert_eq!(declared("operation "), OPERATIONS);
        let mut points = declared("point ");
        points.sort_unstable();
        let mut listed = POINTS.to_vec();
        listed.sort_unstable();
        assert_eq!(points, listed);
        assert!(is_marker("AfterModuleBackward") && is_marker("OptStep") && !is_marker("AfterModule"));
        assert!(is_nearly_a_point("after_setp") && !is_nearly_a_point("after_effects"));
    }
}
