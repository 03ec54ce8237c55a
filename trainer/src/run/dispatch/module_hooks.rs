//! The operation `module_forward`: how a run observes the modules of its task.
//!
//! If the run has module hooks in the current phase, `&mut Run` is in a scoped thread-local
//! variable while the task computes. A named module takes it out to call hooks, and puts it back
//! for its own forward pass.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scoped_tls_hkt::scoped_thread_local;
use tch::Tensor;

use super::OperationOutput;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::frame::Ending;
use crate::libtorch::{CheckpointedRegion, RegionPause, identity};
use crate::lifecycle::{AfterModuleBackward, AfterModuleForward, BeforeModuleForward, ModuleForward, at};
use crate::model::grad_hook::OnGrad;
use crate::modules::name::{Name, UNHOOKED};
use crate::modules::watcher::{NOTHING, OUTPUTS, RECORDING, SUMMARY, WATCHER, WatchGuard};
use crate::modules::{outputs, summary};
use crate::moment::Moment;
use crate::phase::Phase;
use crate::run::module_calls::{Call, Gradient, Known, Modules};
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
    run.modules.last_output = None;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a hook reads the gradients of modules.
fn has_gradient_hooks(table: &Table, phase: Phase) -> bool {
    !table.range(at::after_module_backward::index(), phase).is_empty()
}

impl Run {
    /// Runs a module with its hooks. Always returns an output: an error is stored until the end of
    /// the forward pass, which continues without hooks.
    fn call_module(&mut self, known: u32, xs: &Tensor, forward: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
        if self.modules.failed.is_some() {
            return forward(xs);
        }
        let depth = self.modules.calls.len();
        let watches_gradients =
            !self.modules.known[known as usize].backward[self.at.place.phase as usize].is_empty();
        let noted = watches_gradients.then(|| {
            self.modules.noted_calls += 1;
            self.modules.noted_calls
        });
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
        if let Some(call) = noted {
            self.modules.note_gradient(known, call, &output);
        }
        output
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

    /// Fires `after_module_backward` for each gradient that the backward pass has computed.
    pub(crate) fn fire_module_gradients(&mut self) -> Result<()> {
        if !has_gradient_hooks(&self.hooks.table, self.at.place.phase) {
            return Ok(());
        }
        let mut gradients = std::mem::take(&mut *lock(&self.modules.gradients));
        let mut of_inputs = std::mem::take(&mut *lock(&self.modules.input_gradients));
        // If nested modules share an output, the inner one registered its hook first, but in the
        // backward pass the outer one comes first.
        for shared in gradients.chunk_by_mut(|one, other| one.output == other.output) {
            shared.reverse();
        }
        let depth = self.modules.calls.len();
        for Gradient { known, call, value, .. } in gradients {
            let hooks = self.modules.known[known as usize].backward[self.at.place.phase as usize];
            let input_grad = of_inputs.remove(&call);
            self.modules.calls.push(Call { output: Some(value), input_grad, ..Call::new(known) });
            let result = self.call(hooks, AfterModuleBackward::INFO);
            self.modules.calls.truncate(depth);
            result?;
        }
        Ok(())
    }
}

impl Modules {
    /// Drops the gradients that an earlier backward pass has left behind, if hooks read them.
    pub(crate) fn forget_gradients(&self, table: &Table, phase: Phase) {
        if has_gradient_hooks(table, phase) {
            lock(&self.gradients).clear();
            lock(&self.input_gradients).clear();
        }
    }

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
            backward: select(at::after_module_backward::index()),
        };
        let index = u32::try_from(self.known.len()).expect("fewer than 2³² names");
        self.known.push(known);
        self.by_name.insert(Arc::clone(&name.text), index);
        index
    }

    /// Registers a tensor hook that stores the gradient of an input during the backward pass.
    /// Returns the tensor to use as the input: its gradient is that of this call alone, even if the
    /// input is used elsewhere too, for example by a residual connection.
    fn note_input_gradient(&mut self, call: u64, input: &Tensor) -> Option<Tensor> {
        if !input.requires_grad() {
            return None;
        }
        let aliased = input.alias();
        if !aliased.requires_grad() {
            return None; // gradients are disabled
        }
        let gradients = Arc::clone(&self.input_gradients);
        let noted = aliased.on_grad(move |gradient| {
            lock(&gradients).insert(call, gradient.shallow_clone());
        });
        if let Err(error) = noted {
            self.failed.get_or_insert(error);
        }
        Some(aliased)
    }

    /// Registers a tensor hook that stores the gradient of an output during the backward pass.
    fn note_gradient(&mut self, known: u32, call: u64, output: &Tensor) {
        if !output.requires_grad() {
            return;
        }
        let Modules { gradients, last_output, outputs, .. } = self;
        if last_output.as_ref().map(identity) != Some(identity(output)) {
            *last_output = Some(output.shallow_clone());
            *outputs += 1;
        }
        let gradients = Arc::clone(gradients);
        let output_number = *outputs;
        let noted = output.on_grad(move |gradient| {
            let value = gradient.shallow_clone();
            lock(&gradients).push(Gradient { known, call, output: output_number, value });
        });
        if let Err(error) = noted {
            self.failed.get_or_insert(error);
        }
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
