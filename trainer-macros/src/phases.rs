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
    let meant = meant(&word).or_else(|| nearest(&word, PHASES));
    let help = meant.map(|phase| format!("; did you mean `{phase}`?")).unwrap_or_default();
    let listed = PHASES.map(|phase| format!("`{phase}`")).join(", ");
    errors.push(name.span(), format!("there is no phase `{word}`: expected one of {listed}{help}"));
    None
}

/// Returns the phase that a word means here or elsewhere: `train` for `train_only`, `valid` for
/// `eval`.
pub(crate) fn meant(word: &str) -> Option<&'static str> {
    const OTHERS: [(&str, &[&str]); 4] = [
        ("train", &["training", "trains"]),
        ("valid", &["val", "validate", "validation", "eval", "evaluate", "evaluation"]),
        ("test", &["tests", "testing"]),
        ("predict", &["predicts", "prediction", "predicting", "infer", "inference"]),
    ];
    let word = word.to_lowercase();
    let word = word.strip_prefix("only_").or_else(|| word.strip_suffix("_only")).unwrap_or(&word);
    let known = PHASES.into_iter().find(|phase| *phase == word);
    known.or_else(|| OTHERS.iter().find(|(_, words)| words.contains(&word)).map(|(phase, _)| *phase))
}
