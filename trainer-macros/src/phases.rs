//! The phases, as attributes and declarations name them.

use proc_macro2::Ident;

use crate::errors::Errors;
use crate::keys::nearest;

/// Every phase, in the order of `trainer::Phase::ALL`.
pub(crate) const PHASES: [&str; 5] = ["train", "sanity", "valid", "test", "predict"];

/// Returns the name if it is that of a phase, and reports it otherwise.
pub(crate) fn check(name: Ident, errors: &mut Errors) -> Option<Ident> {
    let word = name.to_string();
    if PHASES.contains(&&*word) {
        return Some(name);
    }
    // Too far from `valid` to be found by likeness.
    let meant = if word.starts_with("eval") { Some("valid") } else { nearest(&word, PHASES) };
    let help = meant.map(|phase| format!("; did you mean `{phase}`?")).unwrap_or_default();
    let listed = PHASES.map(|phase| format!("`{phase}`")).join(", ");
    errors.push(name.span(), format!("no phase is called `{word}`: the phases are {listed}{help}"));
    None
}
