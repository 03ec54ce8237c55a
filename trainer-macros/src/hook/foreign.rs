//! Suggestions for names of other frameworks. They are advice only: rustc resolves names.

use crate::lifecycle::snake;
use crate::migration;
use crate::moments::{is_operation, is_point};

/// The counterpart of another framework's name.
pub(super) struct Ours {
    /// The marker type of the moment.
    pub(super) marker: String,
    /// The end of the message for the user, after the name.
    text: String,
}

impl Ours {
    /// Returns the message about `name`, which the user wrote.
    pub(super) fn message(&self, name: &str) -> String {
        format!("`{name}` {}", self.text)
    }
}

/// Returns the counterpart of `name`. Returns `None` if `name` is unknown, has no counterpart, or
/// is also one of our names, whatever it means elsewhere.
pub(super) fn translate(name: &str) -> Option<Ours> {
    if is_point(name) || is_operation(name) {
        return None;
    }
    // Each counterpart, with the frameworks in which the name has that meaning.
    let mut meanings: Vec<(migration::Here<'_>, Vec<&str>)> = Vec::new();
    for row in migration::points().iter().filter(|row| row.theirs == name) {
        let Some(here) = row.here else { continue };
        match meanings.iter_mut().find(|(known, _)| *known == here) {
            Some((_, frameworks)) => frameworks.push(row.framework),
            None => meanings.push((here, vec![row.framework])),
        }
    }
    let Some((first, frameworks)) = meanings.first() else { return synonym(name) };
    let text = match &meanings[1..] {
        [] => format!("is a name from {}; here it is {}", listed(frameworks), written(*first)),
        _ => {
            let each = meanings
                .iter()
                .map(|(here, frameworks)| format!("from {}, here {}", listed(frameworks), written(*here)));
            format!("is a name {}", each.collect::<Vec<_>>().join(", and "))
        }
    };
    Some(Ours { marker: first.marker.to_owned(), text })
}

/// Returns the same as [`translate`] for the name of a moment in a type, where a user may leave out
/// the `on_` with which Lightning and Keras begin each name: `Cx<TrainEnd>`.
pub(super) fn translate_marker(marker: &str) -> Option<Ours> {
    let name = snake(marker);
    let long = || (!name.starts_with("on_")).then(|| translate(&format!("on_{name}"))).flatten();
    translate(&name).or_else(|| if is_point(&name) || is_operation(&name) { None } else { long() })
}

/// Returns the moment for a common term that is not the name of a moment here: `BeforePred` for
/// `before_forward`.
fn synonym(name: &str) -> Option<Ours> {
    const MOMENTS: [(&str, &str); 30] = [
        ("module", "ModuleForward"),
        ("before_module", "BeforeModuleForward"),
        ("after_module", "AfterModuleForward"),
        ("register_forward_pre_hook", "BeforeModuleForward"),
        ("forward_pre_hook", "BeforeModuleForward"),
        ("register_forward_hook", "AfterModuleForward"),
        ("forward_hook", "AfterModuleForward"),
        ("register_full_backward_pre_hook", "BeforeModuleBackward"),
        ("full_backward_pre_hook", "BeforeModuleBackward"),
        ("register_post_accumulate_grad_hook", "AfterModuleGrads"),
        ("post_accumulate_grad_hook", "AfterModuleGrads"),
        ("register_full_backward_hook", "AfterModuleBackward"),
        ("full_backward_hook", "AfterModuleBackward"),
        ("register_backward_hook", "AfterModuleBackward"),
        ("forward", "Pred"),
        ("before_forward", "BeforePred"),
        ("after_forward", "AfterPred"),
        ("optimizer_step", "OptStep"),
        ("before_optimizer_step", "BeforeOptStep"),
        ("after_optimizer_step", "AfterOptStep"),
        ("before_valid_epoch", "BeforeValid"),
        ("after_valid_epoch", "AfterValid"),
        ("before_test_epoch", "BeforeTest"),
        ("after_test_epoch", "AfterTest"),
        ("before_batch", "BeforeStep"),
        ("after_batch", "AfterStep"),
        ("before_setup", "Setup"),
        ("after_setup", "Setup"),
        ("before_teardown", "Teardown"),
        ("after_teardown", "Teardown"),
    ];
    let text = match name {
        "train" | "sanity" => Some(format!(
            "is a phase, not a moment: write the moment, as in `Cx<AfterStep>`, and `only = {name}` in the attribute"
        )),
        "configure_optimizers" => {
            Some("is not a moment here: the optimizer is set on the builder, with `.optimizer(…)`".into())
        }
        _ => None,
    };
    if let Some(text) = text {
        return Some(Ours { marker: "AfterStep".into(), text });
    }
    let (_, marker) = MOMENTS.into_iter().find(|(term, _)| *term == name)?;
    Some(Ours { marker: marker.into(), text: format!("is not a moment here: it is called `{marker}`") })
}

/// Formats a counterpart as the user writes it.
fn written(here: migration::Here<'_>) -> String {
    let migration::Here { marker, around, filter } = here;
    let next = if around { format!(", with `next: Next<{marker}>`") } else { String::new() };
    let filter = if filter.is_empty() { String::new() } else { format!(", with `#[hook({filter})]`") };
    format!("`Cx<{marker}>`{next}{filter}")
}

fn listed(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_meaning_of_a_name_is_listed() {
        let cases = [
            ("on_fit_start", "`on_fit_start` is a name from PyTorch Lightning; here it is `Cx<BeforeFit>`"),
            (
                "do_backward",
                "`do_backward` is a name from trainer-tools; here it is `Cx<Backward>`, with `next: Next<Backward>`",
            ),
            (
                "on_train_end",
                "`on_train_end` is a name from PyTorch Lightning, Keras and Hugging Face; here it is `Cx<AfterFit>`",
            ),
            (
                "before_train",
                "`before_train` is a name from MMEngine, here `Cx<BeforeFit>`, and from fastai, here `Cx<BeforeTrainEpoch>`",
            ),
            (
                "before_val_iter",
                "`before_val_iter` is a name from MMEngine; here it is `Cx<BeforeStep>`, with `#[hook(only = valid)]`",
            ),
            ("before_forward", "`before_forward` is not a moment here: it is called `BeforePred`"),
            ("forward", "`forward` is not a moment here: it is called `Pred`"),
        ];
        for (name, message) in cases {
            assert_eq!(translate(name).unwrap().message(name), message);
        }
    }

    #[test]
    fn names_of_this_crate_are_not_translated() {
        // `before_step` has another meaning in fastai; `after_cancel_batch` has no counterpart.
        for name in
            ["before_step", "after_cancel_batch", "backward", "predict_step", "setup", "nothing_of_the_kind"]
        {
            assert!(translate(name).is_none(), "{name}");
        }
    }
}
