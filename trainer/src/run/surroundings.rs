//! The state of a run that begins anew: at an entry point for good, and in a trial for its
//! duration.

use std::cell::RefCell;

use super::layers::Layers;
use super::{Dispatch, Modules, Place, Requests, Run};
use crate::log::Log;
use crate::log::history::History;
use crate::moment::MomentInfo;
use crate::phase::Phase;
use crate::run::Table;

/// The state that a trial replaces and that no checkpoint contains, together with the log and the
/// history, which a trial begins empty.
pub(crate) struct Surroundings {
    table: Table,
    place: Place,
    log: RefCell<Log>,
    history: History,
    dispatch: Dispatch,
    layers: Layers,
    modules: Modules,
    handles_signals: bool,
}

impl Run {
    /// Begins an entry point, or a trial if there is a table for it, and returns what the trial has
    /// replaced. This is the only list of what lasts: a new field does not compile until it is in
    /// it. A trial restores the parts of a checkpoint by itself.
    pub(crate) fn begin_anew(
        &mut self,
        operation: &'static MomentInfo,
        phase: Phase,
        of_trial: Option<Table>,
    ) -> Option<Surroundings> {
        let Run {
            // Of the program, for all entry points.
            settings: _,
            ranks: _,
            folder: _,
            hyperparameters: _,
            // In a checkpoint, and in the parts that a trial restores.
            model: _,
            progress: _,
            fit,
            checkpoints,
            // Empty between entry points, and in a trial.
            step: _,
            occasion: _,
            // New for each entry point.
            requests,
            kept,
            reports,
            // New for each entry point, and replaced in a trial.
            hooks,
            at,
            dispatch,
            log,
            history,
            // Of the trainer, and replaced in a trial.
            layers,
            modules,
            cancellation,
        } = self;
        let outer_place = std::mem::replace(&mut at.place, Place::begin(operation, phase));
        *requests = Requests::default();
        let Some(table) = of_trial else {
            *kept = None;
            *dispatch = Dispatch::begin(hooks.table.hooks().len());
            *history = History::default();
            log.get_mut().clear();
            reports.begin();
            cancellation.begin();
            checkpoints.requests.get_mut().clear();
            checkpoints.is_requested.set(false);
            fit.is_running = false;
            fit.failed_mid_step = false;
            return None;
        };
        let of_table = Dispatch::begin(table.hooks().len());
        let new_modules = Modules::new(modules.is_unchecked);
        Some(Surroundings {
            table: std::mem::replace(&mut hooks.table, table),
            place: outer_place,
            log: std::mem::take(log),
            history: std::mem::take(history),
            dispatch: std::mem::replace(dispatch, of_table),
            layers: std::mem::take(layers),
            modules: std::mem::replace(modules, new_modules),
            handles_signals: cancellation.handles_signals(),
        })
    }
}

impl Surroundings {
    /// Ends a trial.
    pub(crate) fn restore(self, run: &mut Run) {
        let Surroundings { table, place, log, history, dispatch, layers, modules, handles_signals } = self;
        run.hooks.table = table;
        run.at.place = place;
        run.log = log;
        run.history = history;
        run.dispatch = dispatch;
        run.layers = layers;
        run.modules = modules;
        run.cancellation.handle_signals(handles_signals);
        run.reports.mute(false);
    }
}
