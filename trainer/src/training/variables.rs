//! Variables that were added, replaced or removed after the trainer was built.

use tch::nn;

use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::model::vars::{Changes, Vars};
use crate::run::{Run, listed};

/// Adopts the changes that `setup` made to the task's variables: the optimizers then train the
/// variables that were added or replaced.
pub(super) fn adopt(run: &mut Run) -> Result<()> {
    let Some(store) = run.step().store(run.hooks().task()) else { return Ok(()) };
    let changes = run.vars().changes(store);
    let vars = if changes.is_empty() {
        run.vars().clone()
    } else {
        Vars::from_store(store).shared_with(run.vars().share())
    };
    run.optimizers_mut().adopt(&vars, &changes).map_err(|error| run.locate(error))?;
    run.model_mut().vars = vars;
    Ok(())
}

/// Returns an error if variables were added, replaced or removed since `setup`, because the
/// optimizers no longer adopt changes.
pub(super) fn check(vars: &Vars, store: &nn::VarStore) -> Result<()> {
    let Changes { added, replaced, removed } = vars.changes(store);
    let mistakes: Vec<_> = [(added, "added to"), (replaced, "replaced in"), (removed, "removed from")]
        .into_iter()
        .filter(|(names, _)| !names.is_empty())
        .map(|(names, what)| {
            let (names, were) = (listed(&names), if names.len() == 1 { "was" } else { "were" });
            format!("{names} {were} {what} the task's `VarStore` after `setup`")
        })
        .collect();
    if mistakes.is_empty() {
        return Ok(());
    }
    let mistakes = mistakes.join("; ");
    Err(Error::usage(format!(
        "{mistakes}, when the optimizers no longer pick up changes: change layers in a hook at `setup`, or before the trainer \
         is built"
    )))
}
