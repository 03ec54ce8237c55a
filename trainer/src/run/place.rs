//! [`Place`]: where a run is, which is where an error that occurs now has its location.

use std::borrow::Cow;
use std::sync::Arc;

use super::Run;
use crate::hook::table::HookId;
use crate::moment::MomentInfo;
use crate::phase::Phase;

/// The position of a run, except for its counters.
///
/// It is `Copy`: what goes somewhere else keeps the place, and [returns](Run::returning) to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) operation: &'static MomentInfo,
    /// The running hook; `None` while the task, a loader or the trainer itself runs.
    pub(crate) hook: Option<HookId>,
    pub(crate) phase: Phase,
    /// The loader of the current pass, if it has a name.
    pub(crate) loader: Option<LoaderId>,
    /// The number of custom moments that are being fired or run.
    scopes: u16,
}

impl Place {
    /// The start of an entry point.
    pub(crate) fn begin(operation: &'static MomentInfo, phase: Phase) -> Self {
        Place { operation, hook: None, phase, loader: None, scopes: 0 }
    }
}

/// The index of the name of a loader in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoaderId(u16);

/// The targets of the indices in a [`Place`].
#[derive(Debug, Default)]
pub(crate) struct Names {
    loaders: Vec<Arc<str>>,
    /// The indices of the custom moments that are being fired or run, outermost first. Those above
    /// [`Place::scopes`] have ended.
    scopes: Vec<usize>,
}

impl Names {
    /// Returns the index of a loader's name.
    pub(crate) fn loader(&mut self, name: &Arc<str>) -> LoaderId {
        let known = self.loaders.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.loaders.push(Arc::clone(name));
            self.loaders.len() - 1
        });
        LoaderId(u16::try_from(index).expect("fewer than 2¹⁶ names of loaders"))
    }
}

impl Run {
    /// Runs `body`, which may go to another place, and returns to this one.
    #[inline]
    pub(crate) fn returning<R>(&mut self, body: impl FnOnce(&mut Run) -> R) -> R {
        let place = self.place;
        let result = body(self);
        self.place = place;
        result
    }

    /// The name of the loader of the current pass, if it has one.
    pub(crate) fn loader(&self) -> Option<&Arc<str>> {
        self.place.loader.map(|LoaderId(index)| &self.names.loaders[usize::from(index)])
    }

    /// Returns the name of a metric within its phase: in a pass over a named loader
    /// `<loader>/<name>`.
    #[inline]
    pub(crate) fn metric_name<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.loader() {
            None => Cow::Borrowed(name),
            Some(loader) => Cow::Owned(format!("{loader}/{name}")),
        }
    }

    /// The indices of the custom moments that are being fired or run, outermost first.
    pub(crate) fn scopes(&self) -> &[usize] {
        &self.names.scopes[..usize::from(self.place.scopes)]
    }

    /// Enters a custom moment, which ends when the run returns to an earlier place.
    pub(crate) fn enter_scope(&mut self, moment: usize) {
        self.names.scopes.truncate(usize::from(self.place.scopes));
        self.names.scopes.push(moment);
        self.place.scopes += 1;
    }
}
