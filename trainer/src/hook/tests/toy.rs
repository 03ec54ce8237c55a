//! [`Toy`]: a loop without tensors, for the tests of the engine.

use crate::error::{BoxError, Error, Result};
use crate::hook::call::{Loop, Panic};
use crate::hook::definition::{Hook, HookResult};
use crate::hook::frame::{Ending, HookId, Rest};
use crate::hook::table::Table;
use crate::lifecycle as on;
use crate::moment::{Moment, MomentInfo, Unit};
use crate::phase::Phase;

/// The state of the loop.
pub(in crate::hook) struct Toy {
    table: Table<Toy>,
    place: Place,
    /// What has run: the names of hooks and of operations.
    pub(in crate::hook) trace: Vec<String>,
    complaint: Option<Error>,
    pub(in crate::hook) responsible: Option<HookId>,
    epoch: u64,
    batch: u64,
}

#[derive(Clone, Copy)]
pub(in crate::hook) struct Place {
    operation: &'static MomentInfo,
    hook: Option<HookId>,
    phase: Phase,
}

impl Loop for Toy {
    type Extras = ();
    type Place = Place;

    fn table(&self) -> &Table<Self> {
        &self.table
    }
    fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }
    fn phase(&self) -> Phase {
        self.place.phase
    }
    fn operation_mut(&mut self) -> &mut &'static MomentInfo {
        &mut self.place.operation
    }
    fn hook(&self) -> Option<HookId> {
        self.place.hook
    }
    fn set_hook(&mut self, hook: Option<HookId>) {
        self.place.hook = hook;
    }
    fn count(&self, unit: Unit) -> u64 {
        if unit == Unit::Epochs { self.epoch } else { self.batch }
    }
    fn mark_due(&self, _: HookId) {}
    fn complaint(&mut self) -> &mut Option<Error> {
        &mut self.complaint
    }
    fn locate(&self, error: Error) -> Error {
        error
    }
    fn hook_failed(&self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error {
        let text = source.to_string();
        let is_named = text.contains(" failed at ");
        Error::msg(if is_named { text } else { format!("{} failed at {}: {text}", self.name(hook), at.name) })
    }
    fn set_responsible(&mut self, hook: HookId) {
        self.responsible = Some(hook);
    }
}

impl Toy {
    /// Returns the loop with these hooks on rank 0, or the cycles among them.
    pub(in crate::hook) fn new(hooks: Vec<Hook<Toy>>) -> Result<Self, Vec<String>> {
        let table = Table::freeze(hooks, 0)?;
        let place = Place { operation: on::Fit::INFO, hook: None, phase: Phase::Train };
        let (trace, responsible, complaint) = (Vec::new(), None, None);
        Ok(Toy { table, place, trace, complaint, responsible, epoch: 0, batch: 0 })
    }

    pub(in crate::hook) fn name(&self, hook: HookId) -> &str {
        &self.table.hook(hook).definition.origin.path
    }

    /// Notes that the current hook runs, if it is due.
    fn note(&mut self) -> bool {
        let is_due = self.is_due();
        if let Some(hook) = self.place.hook.filter(|_| is_due) {
            self.trace.push(self.name(hook).to_owned());
        }
        is_due
    }

    /// Runs `epochs` epochs, each with two batches of training and one of validation, then
    /// `teardown`.
    pub(in crate::hook) fn fit(&mut self, epochs: u64) -> (Result<()>, Vec<Error>, Option<Panic>) {
        let result = self.operate::<on::Fit>(|run| {
            (1..=epochs).try_for_each(|epoch| {
                run.epoch = epoch;
                run.operate::<on::Epoch>(|run| {
                    run.operate::<on::TrainEpoch>(|run| run.steps(2))?;
                    run.place.phase = Phase::Valid;
                    run.batch = 0;
                    let result = run.operate::<on::Valid>(|run| run.steps(1));
                    run.place.phase = Phase::Train;
                    run.batch = 2 * epoch;
                    result.map(drop)
                })
                .map(drop)
            })
        });
        let (errors, panic) = self.fire_all::<on::Teardown>();
        (result.map(drop), errors, panic)
    }

    fn steps(&mut self, count: u64) -> Result<()> {
        (0..count).try_for_each(|_| {
            self.batch += 1;
            self.operate::<on::Step>(|run| {
                run.trace.push("step".to_owned());
                run.operate::<on::Pred>(|_| Ok(())).map(drop)
            })
            .map(drop)
        })
    }
}

pub(in crate::hook) fn point(run: &mut Toy, _: u32) -> HookResult {
    run.note();
    Ok(())
}

pub(in crate::hook) fn fails(run: &mut Toy, _: u32) -> HookResult {
    if run.note() { Err("on purpose".into()) } else { Ok(()) }
}

pub(in crate::hook) fn complains(run: &mut Toy, _: u32) -> HookResult {
    run.complaint = Some(Error::msg("left behind"));
    Ok(())
}

pub(in crate::hook) fn panics(run: &mut Toy, _: u32) -> HookResult {
    run.note();
    panic!("panicked on purpose")
}

/// Runs what an `around` hook with this word as `does` runs.
macro_rules! around {
    ($run:ident, $rest:ident: $($name:ident $body:expr),*) => {$(
        pub(in crate::hook) fn $name($run: &mut Toy, _: u32, $rest: Rest<'_, Toy>) -> HookResult {
            if $run.note() { $body } else { Ok($run.run_next($rest)?) }
        }
    )*};
}

around! { run, rest:
    runs { let result = run.run_next(rest); run.trace.push("out".to_owned()); Ok(result?) },
    skips { rest.ending = Ending::Skipped; Ok(()) },
    replaces { rest.ending = Ending::Replaced; Ok(()) },
    handles {
        if run.run_next(&mut *rest).is_err() && rest.ending == Ending::Open { rest.ending = Ending::Skipped; }
        Ok(())
    },
    refuses Err("on purpose".into()),
    lies Ok(())
}
