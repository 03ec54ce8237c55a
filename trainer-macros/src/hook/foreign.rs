//! Suggestions for names of other frameworks. They are advice only: rustc resolves names.

use crate::migration;

/// The counterpart of another framework's name.
pub(super) struct Ours {
    /// The point or operation.
    pub(super) moment: &'static str,
    /// The message for the user.
    pub(super) message: String,
}

/// Returns the counterpart of `name`, or `None` if it is unknown, has no counterpart, or is also a
/// name of ours, whatever it means elsewhere.
pub(super) fn translate(name: &str) -> Option<Ours> {
    let rows = migration::points();
    // Each counterpart, with the frameworks in which the name has that meaning.
    let mut meanings: Vec<(migration::Here<'_>, Vec<&str>)> = Vec::new();
    for row in rows.iter().filter(|row| row.theirs == name) {
        let Some(here) = row.here else { continue };
        match meanings.iter_mut().find(|(known, _)| *known == here) {
            Some((_, frameworks)) => frameworks.push(row.framework),
            None => meanings.push((here, vec![row.framework])),
        }
    }
    let Some((first, frameworks)) = meanings.first() else { return synonym(name) };
    // An operation also occurs in the names of the points before and after it.
    let is_ours = rows.iter().filter_map(|row| row.here).any(|here| {
        let moment = here.moment;
        let operation = moment.strip_prefix("before_").or_else(|| moment.strip_prefix("after_"));
        moment == name || operation == Some(name)
    });
    if is_ours {
        return None;
    }
    let message = match &meanings[1..] {
        [] => format!("`{name}` is a name of {}; here it is {}", listed(frameworks), written(*first)),
        _ => {
            let each = meanings
                .iter()
                .map(|(here, frameworks)| format!("of {}, here {}", listed(frameworks), written(*here)));
            format!("`{name}` is a name {}", each.collect::<Vec<_>>().join(", and "))
        }
    };
    Some(Ours { moment: first.moment, message })
}

/// Returns the moment for a common term that is not the name of an operation here: `before_pred`
/// for `before_forward`.
fn synonym(name: &str) -> Option<Ours> {
    const MOMENTS: [(&str, &str); 13] = [
        ("register_forward_pre_hook", "before_module"),
        ("forward_pre_hook", "before_module"),
        ("register_forward_hook", "after_module"),
        ("forward_hook", "after_module"),
        ("register_full_backward_hook", "after_module_backward"),
        ("full_backward_hook", "after_module_backward"),
        ("register_backward_hook", "after_module_backward"),
        ("forward", "pred"),
        ("before_forward", "before_pred"),
        ("after_forward", "after_pred"),
        ("optimizer_step", "opt_step"),
        ("before_optimizer_step", "before_opt_step"),
        ("after_optimizer_step", "after_opt_step"),
    ];
    let (_, moment) = MOMENTS.into_iter().find(|(term, _)| *term == name)?;
    let kind = if moment == "pred" || moment == "opt_step" { "operation" } else { "point" };
    Some(Ours { moment, message: format!("there is no {kind} `{name}`; it is called `{moment}` here") })
}

/// Formats a counterpart as the user writes it.
fn written(here: migration::Here<'_>) -> String {
    let migration::Here { written, around, filter, .. } = here;
    if around || !filter.is_empty() { format!("`#[hook({written})]`") } else { format!("`{written}`") }
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
            ("on_fit_start", "`on_fit_start` is a name of PyTorch Lightning; here it is `before_fit`"),
            (
                "do_backward",
                "`do_backward` is a name of trainer-tools; here it is `#[hook(around = backward)]`",
            ),
            (
                "on_train_end",
                "`on_train_end` is a name of PyTorch Lightning, Keras and Hugging Face; here it is `after_fit`",
            ),
            (
                "before_train",
                "`before_train` is a name of MMEngine, here `before_fit`, and of fastai, here `before_train_epoch`",
            ),
        ];
        for (name, message) in cases {
            assert_eq!(translate(name).unwrap().message, message);
        }
    }

    #[test]
    fn common_terms_are_translated() {
        let cases = [
            ("before_forward", "there is no point `before_forward`; it is called `before_pred` here"),
            ("forward", "there is no operation `forward`; it is called `pred` here"),
        ];
        for (name, message) in cases {
            assert_eq!(translate(name).unwrap().message, message);
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
