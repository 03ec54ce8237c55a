//! The values of the variables as a whole: whether they were changed between entry points, their
//! averages, and whether they are finite.

use std::collections::{BTreeMap, BTreeSet};

use tch::Tensor;

use super::{Model, RunHooks};
use crate::error::Result;
use crate::libtorch::identity;
use crate::model::finite::{Content, contents};
use crate::model::vars::Vars;
use crate::run::reports::Reports;

/// What is known of the values of the variables.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// The identity and the version counter of each variable at the end of the last entry point or
    /// trial, or when the trainer was built.
    marks: BTreeMap<String, (usize, i64)>,
    /// The variables that were changed between the last two entry points.
    pub(crate) changed: Vec<String>,
    /// The buffers that contained infinite values when the trainer was built or weights were
    /// loaded, such as masks.
    masks: BTreeSet<String>,
}

/// The identity and the version counter of each variable.
fn marks(vars: &Vars) -> BTreeMap<String, (usize, i64)> {
    let mark = |tensor: &Tensor| (identity(tensor), tensor.f_internal_version().unwrap_or_default());
    vars.iter().map(|var| (var.name.clone(), mark(&var.tensor))).collect()
}

impl Model {
    /// Notes that hooks know the current values of the variables.
    pub(crate) fn note_values(&mut self) {
        self.values.marks = marks(&self.vars);
    }

    /// Notes that hooks know the current values of all variables except these.
    pub(crate) fn note_values_except(&mut self, changed: &[String]) {
        self.note_values();
        for name in changed {
            self.values.marks.insert(name.clone(), (0, 0)); // no tensor has this identity
        }
    }

    /// Returns the names of the variables whose values were changed since
    /// [`note_values`](Model::note_values).
    pub(crate) fn changed(&self) -> Vec<String> {
        let now = marks(&self.vars);
        let is_changed =
            |(name, mark): &(&String, &_)| self.values.marks.get(*name).is_some_and(|old| old != *mark);
        now.iter().filter(is_changed).map(|(name, _)| name.clone()).collect()
    }

    /// Notes which buffers contain infinite values that training has not produced.
    pub(crate) fn note_masks(&mut self) -> Result<()> {
        let buffers: Vec<_> = self.vars.iter().filter(|var| !var.is_parameter).collect();
        let found = contents(buffers.iter().map(|var| &var.tensor))?;
        let masks = buffers.iter().zip(found).filter(|(_, content)| *content == Content::Infinite);
        self.values.masks = masks.map(|(var, _)| var.name.clone()).collect();
        Ok(())
    }

    /// Returns the names of the variables whose values contain NaN or infinite values, except the
    /// infinite values of masks.
    pub(crate) fn not_finite<'v>(
        &self,
        values: impl IntoIterator<Item = (&'v str, &'v Tensor)>,
    ) -> Result<Vec<String>> {
        let (names, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
        let is_bad = |(name, content): &(&str, Content)| match content {
            Content::Finite => false,
            Content::Infinite => !self.values.masks.contains(*name),
            Content::Nan => true,
        };
        let found = names.into_iter().zip(contents(values)?).filter(is_bad);
        // A variable and its average have one name.
        let bad: BTreeSet<&str> = found.map(|(name, _)| name).collect();
        Ok(bad.into_iter().map(str::to_owned).collect())
    }

    /// Returns the names of the variables that contain NaN or infinite values, or whose average
    /// does.
    pub(crate) fn not_finite_with(&self, averages: &BTreeMap<String, Tensor>) -> Result<Vec<String>> {
        let live = self.vars.iter().map(|var| (var.name.as_str(), &var.tensor));
        let averages = averages.iter().map(|(name, average)| (name.as_str(), average));
        self.not_finite(live.chain(averages))
    }

    /// Warns if values that are about to be written are not finite. `what` says what is written.
    pub(crate) fn warn_of_not_finite<'v>(
        &self,
        reports: &Reports,
        what: &str,
        values: impl IntoIterator<Item = (&'v str, &'v Tensor)>,
    ) -> Result<()> {
        let names = self.not_finite(values)?;
        if !names.is_empty() {
            reports.warn(format!(
                "{what} has NaN or infinite values in {}: return to an earlier checkpoint; to find the first batch with such values, add \
                 `.hook(NanGuard::fail().gradients(true).buffers(true))`",
                listed(&names)
            ));
        }
        Ok(())
    }
}

impl RunHooks {
    /// Returns the averages of variables that a hook keeps, by the names of the variables and in
    /// their dtypes. Hooks that only observe keep none.
    pub(crate) fn averages(&self, vars: &Vars) -> Result<BTreeMap<String, Tensor>> {
        let mut averages = BTreeMap::new();
        for instance in self.instances.iter().filter(|instance| !instance.observes) {
            if let (Some(state), Some(value)) = (instance.extras.state, &instance.value) {
                averages.append(&mut (state.save)(value)?.averages);
            }
        }
        for var in vars.iter() {
            if let Some(average) = averages.get_mut(&var.name) {
                *average = average.f_to_kind(var.tensor.kind())?;
            }
        }
        Ok(averages)
    }
}

/// Lists only the first few names, because a model may have thousands.
pub(crate) fn listed(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}
