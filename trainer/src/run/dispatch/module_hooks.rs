//! The operation `module_forward`: how a run observes the modules of its task.
//! `module_gradients.rs` has the moments of the backward pass.
//!
//! If the run has module hooks in the current phase, `&mut Run` is in a scoped thread-local
//! variable while the task computes. A named module takes it out to call hooks, and puts it back
//! for its own forward pass.

use std::sync::Arc;

use scoped_tls_hkt::scoped_thread_local;
use tch::Tensor;

use super::OperationOutput;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::frame::Ending;
use crate::libtorch::{CheckpointedRegion, RegionPause};
use crate::lifecycle::{AfterModuleForward, BeforeModuleForward, ModuleForward, at};
use crate::modules::name::{Name, UNHOOKED};
use crate::modules::watcher::{NOTHING, OUTPUTS, RECORDING, SUMMARY, WATCHER, WatchGuard};
use crate::modules::{outputs, summary};
use crate::moment::Moment;
use crate::phase::Phase;
use crate::run::module_calls::{Call, Known, Modules};
use crate::run::{Run, Table};

// Set while `WATCHER` identifies a run.
scoped_thread_local!(static mut RUN: for<'a> &'a mut Run);

const OUTPUT: OperationOutput = OperationOutput { name: "output", setter: "set_output" };

/// Returns the `WATCHER` value that identifies this run in its current phase.
fn watcher_of(table: &Table, phase: Phase) -> u64 {
    let id = table.id() * Phase::ALL.len() as u64 + phase as u64;
    if outputs::is_recording() { id | RECORDING } else { id }
}

/// Runs `compute`, and lets the run's hooks observe the named modules that it calls on this thread.
///
/// The error of a hook cannot end the forward pass, because the forward pass returns a tensor. The
/// error is returned afterwards, instead of the result.
pub(crate) fn observed<R>(run: &mut Run, compute: impl FnOnce() -> Result<R>) -> Result<R> {
    let _guard = WatchGuard::set(watcher_of(&run.hooks.table, run.at.place.phase));
    run.modules.calls.clear();
    run.modules.failed = None;
    let result = RUN.set(run, compute);
    match run.modules.failed.take() {
        Some(error) => Err(error),
        None => result,
    }
}

/// Takes the run out of the thread-local variable, and passes it to `then`. Modules are not
/// observed while `then` runs.
fn with_run<R>(then: impl FnOnce(&mut Run) -> R) -> R {
    let _guard = WatchGuard::set(NOTHING);
    let _pause = RegionPause::begin();
    RUN.with(then)
}

impl Run {
    /// Runs a module with its hooks. Always returns an output: an error is stored until the end of
    /// the forward pass, which continues without hooks.
    fn call_module(&mut self, known: u32, xs: &Tensor, forward: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
        if self.modules.failed.is_some() {
            return forward(xs);
        }
        let depth = self.modules.calls.len();
        let noted = self.modules.note_call(known, self.at.place.phase);
        self.modules.calls.push(Call::new(known));
        // The module's own output, used if a hook fails after it.
        let mut computed = None;
        let result =
            Call::with_input(xs, || self.operate_module((known, noted), depth, xs, forward, &mut computed));
        self.modules.calls.truncate(depth + 1);
        let Call { input, output, .. } = self.modules.calls.pop().expect("the call was pushed above");
        if let Err(error) = result {
            self.modules.failed.get_or_insert(error);
        }
        let output = output.or(computed);
        let output = output.unwrap_or_else(|| forward(input.get().unwrap_or(xs)));
        self.modules.note_output((known, noted), (self.hooks.table.id(), self.at.place.phase), output)
    }

    /// Runs the operation `module_forward` with its hooks. `noted` is the number of the call, if
    /// hooks at `after_module_backward` observe it.
    fn operate_module(
        &mut self,
        (known, noted): (u32, Option<u64>),
        depth: usize,
        xs: &Tensor,
        forward: &mut dyn FnMut(&Tensor) -> Tensor,
        computed: &mut Option<Tensor>,
    ) -> Result<()> {
        let phase = self.at.place.phase as usize;
        let Known { before, around, after, .. } = &self.modules.known[known as usize];
        let before = before[phase];
        let around = around[phase];
        let after = after[phase];
        self.call(before, BeforeModuleForward::INFO)?;
        let done = self.inside_range::<ModuleForward>(around, |run| {
            run.compute_module(depth, noted, xs, forward, computed)
        })?;
        if self.modules.call().output.is_none() || done == Ending::Skipped {
            let mistake = OUTPUT.missing(done, ModuleForward::INFO.name);
            return Err(self.blame_responsible(ModuleForward::INFO, mistake));
        }
        self.call(after, AfterModuleForward::INFO)
    }

    /// Runs the forward pass of the module itself.
    fn compute_module(
        &mut self,
        depth: usize,
        noted: Option<u64>,
        xs: &Tensor,
        forward: &mut dyn FnMut(&Tensor) -> Tensor,
        computed: &mut Option<Tensor>,
    ) -> Result<()> {
        let input = std::mem::take(&mut self.modules.call_mut().input);
        let given = input.get().unwrap_or(xs);
        let aliased = noted.and_then(|call| self.modules.note_input_gradient(call, given));
        let region = match self.modules.call().is_checkpointed.get() {
            true => CheckpointedRegion::begin()?,
            false => None,
        };
        let output = {
            let _guard = WatchGuard::set(watcher_of(&self.hooks.table, self.at.place.phase));
            let _resumed = RegionPause::interrupt();
            RUN.set(self, || forward(aliased.as_ref().unwrap_or(given)))
        };
        // The task may have caught a panic of a module within this one.
        self.modules.calls.truncate(depth + 1);
        self.modules.call_mut().input = input;
        if let Some(region) = region
            && let Err(why) = region.end()
        {
            let module = self.modules.name();
            self.modules.failed.get_or_insert(Error::usage(format!(
                "the activations of `{module}` cannot be computed again: {why}; exclude this module from activation checkpointing"
            )));
        }
        match self.modules.failed.take() {
            // A hook at an inner module failed: hooks around this module can handle the error.
            Some(error) => {
                *computed = Some(output);
                Err(error)
            }
            None => {
                self.modules.call_mut().output = Some(output);
                Ok(())
            }
        }
    }
}

impl Modules {
    /// Returns the index of the module with this name. On the module's first call, selects its
    /// hooks.
    #[cold]
    fn known_module(&mut self, table: &mut Table, name: &Name) -> u32 {
        if let Some(&known) = self.by_name.get(&name.text) {
            return known;
        }
        let mut select = |moment| table.of_module(moment, &name.text);
        let known = Known {
            name: Arc::clone(&name.text),
            layer: name.layer,
            before: select(at::before_module_forward::index()),
            around: select(at::module_forward::index()),
            after: select(at::after_module_forward::index()),
            before_backward: select(at::before_module_backward::index()),
            after_grads: select(at::after_module_grads::index()),
            after_backward: select(at::after_module_backward::index()),
        };
        let index = u32::try_from(self.known.len()).expect("fewer than 2³² names");
        self.known.push(known);
        self.by_name.insert(Arc::clone(&name.text), index);
        index
    }
}

impl Name {
    /// Runs `forward` as a module with this name, with the hooks before, around and after it.
    ///
    /// Hooks can replace the input, so `forward` must use its argument rather than `xs`. `forward`
    /// is called once, or not at all if a hook replaces the module.
    #[inline]
    pub fn run(&self, xs: &Tensor, forward: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        let watcher = WATCHER.get();
        if watcher == NOTHING || self.seen.get() == (watcher, UNHOOKED) {
            return forward(xs);
        }
        let mut forward = Some(forward);
        self.run_observed(watcher, xs, &mut |xs| {
            forward.take().expect("no hook catches a panic of the module without setting an output")(xs)
        })
    }

    #[inline(never)]
    fn run_observed(&self, watcher: u64, xs: &Tensor, forward: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
        match watcher {
            SUMMARY => summary::record(self, xs, forward),
            OUTPUTS => outputs::record(self, xs, forward),
            _ if watcher & RECORDING != 0 => {
                outputs::record(self, xs, &mut |xs| self.run_watched(watcher, xs, forward))
            }
            _ => self.run_watched(watcher, xs, forward),
        }
    }

    /// Runs the module with the hooks of the run, if it has any.
    fn run_watched(&self, watcher: u64, xs: &Tensor, forward: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
        let mut known = self.seen.get().1;
        if self.seen.get().0 != watcher {
            known = with_run(|run| {
                let known = run.modules.known_module(&mut run.hooks.table, self);
                let is_hooked = run.modules.known[known as usize].is_hooked(run.at.place.phase);
                if is_hooked { known } else { UNHOOKED }
            });
            // A module that is noted as unhooked would not be recorded.
            if watcher & RECORDING == 0 || known != UNHOOKED {
                self.seen.set((watcher, known));
            }
        }
        match known {
            UNHOOKED => forward(xs),
            known => with_run(|run| run.call_module(known, xs, forward)),
        }
    }
}
