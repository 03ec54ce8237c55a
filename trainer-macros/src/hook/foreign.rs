//! What the points are called elsewhere. Advice, not authority: names are resolved by rustc.

use crate::migration;

/// What another trainer's name is called here.
pub(super) struct Ours {
    /// The point or operation.
    pub(super) moment: &'static str,
    /// What to tell the user.
    pub(super) message: String,
}

/// Nothing for a name that is one of ours too, whatever it means elsewhere.
pub(super) fn translate(name: &str) -> Option<Ours> {
    let rows = migration::points();
    // What it is called here, and by whom it is meant so.
    let mut meanings: Vec<(migration::Here<'_>, Vec<&str>)> = Vec::new();
    for row in rows.iter().filter(|row| row.theirs == name) {
        let Some(here) = row.here else { continue };
        match meanings.iter_mut().find(|(known, _)| *known == here) {
            Some((_, whose)) => whose.push(row.whose),
            None => meanings.push((here, vec![row.whose])),
        }
    }
    let (first, whose) = meanings.first()?;
    // An operation is known by the points before and after it too.
    let is_ours = |moment: &str| {
        let operation = moment.strip_prefix("before_").or_else(|| moment.strip_prefix("after_"));
        moment == name || operation == Some(name)
    };
    if rows.iter().any(|row| row.here.is_some_and(|here| is_ours(here.moment))) {
        return None;
    }
    let message = match &meanings[1..] {
        [] => format!("`{name}` is a name of {}; here it is {}", listed(whose), written(*first)),
        _ => {
            let each =
                meanings.iter().map(|(here, whose)| format!("of {}, here {}", listed(whose), written(*here)));
            format!("`{name}` is a name {}", each.collect::<Vec<_>>().join(", and "))
        }
    };
    Some(Ours { moment: first.moment, message })
}

/// As it stands in the user's code.
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
    fn a_name_is_told_with_all_that_it_means() {
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
    fn a_name_of_ours_is_not_translated() {
        // The first is one of fastai's that means something else, the second has no counterpart.
        for name in
            ["before_step", "after_cancel_batch", "backward", "predict_step", "setup", "nothing_of_the_kind"]
        {
            assert!(translate(name).is_none(), "{name}");
        }
    }
}
