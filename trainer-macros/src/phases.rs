//! The names of the phases in attributes and declarations.

use proc_macro2::Ident;

use crate::errors::Errors;
use crate::keys::nearest;

/// Every phase, in the order of `trainer::Phase::ALL`.
pub(crate) const PHASES: [&str; 5] = ["train", "sanity", "valid", "test", "predict"];

/// Returns `name` if it is the name of a phase. Otherwise, reports an error and returns `None`.
pub(crate) fn check(name: Ident, errors: &mut Errors) -> Option<Ident> {
    let word = name.to_string();
    if PHASES.contains(&&*word) {
        return Some(name);
    }
    // `eval` is too different from `valid` for the similarity search.
    let meant = if word.starts_with("eval") { Some("valid") } else { nearest(&word, PHASES) };
    let help = meant.map(|phase| format!("; did you mean `{phase}`?")).unwrap_or_default();
    let listed = PHASES.map(|phase| format!("`{phase}`")).join(", ");
    errors.push(name.span(), format!("there is no phase `{word}`: expected one of {listed}{help}"));
    None
}
