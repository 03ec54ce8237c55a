//! [`Place`]: the current position of a run, which provides the location for errors.

use std::borrow::Cow;
use std::sync::Arc;

use super::Run;
use crate::hook::frame::HookId;
use crate::moment::MomentInfo;
use crate::phase::Phase;

/// The position of a run, except for its counters.
///
/// It is `Copy`, so code that moves the run to a different place can save the current one and
/// [return](Run::returning) to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) operation: &'static MomentInfo,
    /// The running hook; `None` while the task, a loader or the trainer itself runs.
    pub(crate) hook: Option<HookId>,
    pub(crate) phase: Phase,
    /// The loader of the current pass, if the loader has a name.
    pub(crate) loader: Option<LoaderId>,
    /// The number of custom moments that are being fired or run.
    scopes: u16,
}

impl Place {
    /// Returns the place at the start of an entry point.
    pub(crate) fn begin(operation: &'static MomentInfo, phase: Phase) -> Self {
        Place { operation, hook: None, phase, loader: None, scopes: 0 }
    }
}

/// The index of a loader's name in [`Whereabouts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoaderId(u16);

/// Where a run is: its place, and the names that the place refers to.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    pub(crate) place: Place,
    /// The names of loaders.
    loaders: Vec<Arc<str>>,
    /// The indices of the custom moments that are being fired or run, outermost first. Only the
    /// first [`Place::scopes`] are still active.
    scopes: Vec<usize>,
}

impl Whereabouts {
    pub(crate) fn begin(place: Place) -> Self {
        Whereabouts { place, loaders: Vec::new(), scopes: Vec::new() }
    }

    /// Sets the loader of the current pass, if the loader has a name.
    pub(crate) fn set_loader(&mut self, name: Option<&Arc<str>>) {
        self.place.loader = name.map(|name| {
            let known = self.loaders.iter().position(|known| known == name);
            let index = known.unwrap_or_else(|| {
                self.loaders.push(Arc::clone(name));
                self.loaders.len() - 1
            });
            LoaderId(u16::try_from(index).expect("fewer than 2¹⁶ names of loaders"))
        });
    }

    /// The name of the loader of the current pass, if the loader has a name.
    pub(crate) fn loader(&self) -> Option<&Arc<str>> {
        self.place.loader.map(|LoaderId(index)| &self.loaders[usize::from(index)])
    }

    /// Returns the name of a metric within its phase: `<loader>/<name>` in a pass over a named
    /// loader, and `<name>` otherwise.
    #[inline]
    pub(crate) fn metric_name<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.loader() {
            None => Cow::Borrowed(name),
            Some(loader) => Cow::Owned(format!("{loader}/{name}")),
        }
    }

    /// The indices of the custom moments that are being fired or run, outermost first.
    pub(crate) fn scopes(&self) -> &[usize] {
        &self.scopes[..usize::from(self.place.scopes)]
    }

    /// Enters a custom moment, which ends when the run returns to an earlier place.
    pub(crate) fn enter_scope(&mut self, moment: usize) {
        self.scopes.truncate(usize::from(self.place.scopes));
        self.scopes.push(moment);
        self.place.scopes += 1;
    }
}

impl Run {
    /// Runs `body`, which may move the run to a different place, and then restores the current
    /// place.
    #[inline]
    pub(crate) fn returning<R>(&mut self, body: impl FnOnce(&mut Run) -> R) -> R {
        let place = self.at.place;
        let result = body(self);
        self.at.place = place;
        result
    }
}
