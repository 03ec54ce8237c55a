//! The operation `module`: how a run observes the modules of its task.
//!
//! While the task computes, `&mut Run` is in a scoped thread-local variable, if a hook of the run is
//! at a module in the current phase. A named module takes it out to call hooks, and puts it back
//! for its own forward pass.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scoped_tls_hkt::scoped_thread_local;
use tch::Tensor;

use super::layer::Layer;
use super::name::{Name, UNHOOKED};
use super::summary;
use crate::error::{Error, Result};
use crate::grad_hook::OnGrad;
use crate::hook::table::{Range, Row};
use crate::libtorch::identity;
use crate::lifecycle::{AfterModule, AfterModuleBackward, BeforeModule, Module, at};
use crate::moment::{Moment, MomentInfo};
use crate::next::Done;
use crate::phase::Phase;
use crate::run::{OperationOutput, Run};

scoped_thread_local!(static mut RUN: for<'a> &'a mut Run);

thread_local! {
    /// What observes the modules of this thread: the hooks of a run in one of its phases, or
    /// [`NOTHING`], or [`SUMMARY`]. `RUN` is set in the first case only.
    static WATCHER: Cell<u64> = const { Cell::new(NOTHING) };
}

const NOTHING: u64 = 0;
/// [`modules::summary`](super::summary()) is running.
const SUMMARY: u64 = u64::MAX;

const OUTPUT: OperationOutput = OperationOutput { name: "output", setter: "set_output" };

/// Returns the watcher of a run in its current phase.
fn watcher_of(run: &Run) -> u64 {
    run.hooks.table.id() * Phase::ALL.len() as u64 + run.progress.phase as u64
}

/// Changes the watcher of this thread until it is dropped.
pub(crate) struct WatchGuard(u64);

impl WatchGuard {
    #[inline]
    fn set(watcher: u64) -> Self {
        WatchGuard(WATCHER.replace(watcher))
    }

    /// Lets nothing observe modules, for an entry that may run within the forward pass of another.
    pub(crate) fn nothing() -> Self {
        WatchGuard::set(NOTHING)
    }

    pub(super) fn summary() -> Self {
        WatchGuard::set(SUMMARY)
    }
}

impl Drop for WatchGuard {
    #[inline]
    fn drop(&mut self) {
        WATCHER.set(self.0);
    }
}

/// Runs `compute` while the run's hooks observe the named modules on this thread.
///
/// A failed hook cannot end the forward pass, which returns a tensor. Its error is returned after
/// it, instead of the result.
pub(crate) fn observed<R>(run: &mut Run, compute: impl FnOnce() -> Result<R>) -> Result<R> {
    let _guard = WatchGuard::set(watcher_of(run));
    run.modules.calls.clear();
    run.modules.failed = None;
    let result = RUN.set(run, compute);
    run.modules.last_output = None;
    match run.modules.failed.take() {
        Some(error) => Err(error),
        None => result,
    }
}

/// Takes the run out of the thread-local variable. No module is observed meanwhile.
fn with_run<R>(then: impl FnOnce(&mut Run) -> R) -> R {
    let _guard = WatchGuard::set(NOTHING);
    RUN.with(then)
}

/// What a run knows of modules.
#[derive(Default)]
pub(crate) struct Modules {
    /// The modules that were called, once for each name.
    known: Vec<Known>,
    by_name: HashMap<Arc<str>, u32>,
    /// The modules that are computing, innermost last.
    calls: Vec<Call>,
    /// The error of a hook in the current forward pass.
    failed: Option<Error>,
    /// The gradients that the current backward pass has computed.
    gradients: Arc<Mutex<Vec<Gradient>>>,
    /// The output whose gradient was requested last in this forward pass.
    last_output: Option<Tensor>,
    /// The number of outputs whose gradients were requested.
    outputs: u64,
    /// Whether patterns are checked after `setup`, where hooks may add layers.
    pub(super) is_unchecked: bool,
    /// The warnings that were printed.
    pub(super) warned: Vec<String>,
}

/// A module that was called, and the hooks that are for it.
struct Known {
    name: Arc<str>,
    layer: Option<Layer>,
    before: Row,
    around: Row,
    after: Row,
    backward: Row,
}

impl Known {
    fn is_hooked(&self, phase: Phase) -> bool {
        let rows = [&self.before, &self.around, &self.after, &self.backward];
        rows.iter().any(|row| !row[phase as usize].is_empty())
    }
}

/// The gradient of the output of a module.
struct Gradient {
    known: u32,
    /// The number of the output. A module and its last layer have the same output.
    output: u64,
    value: Tensor,
}

/// A call of a module.
pub(super) struct Call {
    known: u32,
    /// `None` while the module computes.
    pub(super) input: Option<Tensor>,
    /// The output of the module or of a hook; at `after_module_backward` its gradient.
    pub(super) output: Option<Tensor>,
}

impl Modules {
    /// `is_unchecked` is whether hooks at `setup` may add layers.
    pub(crate) fn new(is_unchecked: bool) -> Self {
        Modules { is_unchecked, ..Modules::default() }
    }

    /// Drops the calls that a panic interrupted.
    pub(crate) fn abandon_calls(&mut self) {
        self.calls.clear();
        self.last_output = None;
    }

    pub(super) fn call(&self) -> &Call {
        self.calls.last().expect("a hook at a module runs in a call of it")
    }

    pub(super) fn call_mut(&mut self) -> &mut Call {
        self.calls.last_mut().expect("a hook at a module runs in a call of it")
    }

    /// The name of the module of the current call.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.known[self.call().known as usize].name
    }

    pub(super) fn layer(&self) -> Option<Layer> {
        self.known[self.call().known as usize].layer
    }

    /// The name of the module at a moment, if it is one of a module.
    pub(crate) fn name_at(&self, moment: &'static MomentInfo) -> Option<Arc<str>> {
        let moments = [BeforeModule::INFO, Module::INFO, AfterModule::INFO, AfterModuleBackward::INFO];
        let known = self.calls.last()?.known;
        let is_of_module = moments.iter().any(|own| std::ptr::eq(*own, moment));
        is_of_module.then(|| Arc::clone(&self.known[known as usize].name))
    }

    /// The names of the modules that were called.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|known| &*known.name)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    /// Returns the index of a module, and selects its hooks when its name is called for the first
    /// time.
    #[cold]
    fn known_module(&mut self, name: &Name) -> u32 {
        if let Some(&known) = self.modules.by_name.get(&name.text) {
            return known;
        }
        let mut select = |moment| self.hooks.table.of_module(moment, &name.text);
        let known = Known {
            name: Arc::clone(&name.text),
            layer: name.layer,
            before: select(at::before_module::index()),
            around: select(at::module::index()),
            after: select(at::after_module::index()),
            backward: select(at::after_module_backward::index()),
        };
        let index = u32::try_from(self.modules.known.len()).expect("fewer than 2³² names");
        self.modules.known.push(known);
        self.modules.by_name.insert(Arc::clone(&name.text), index);
        index
    }

    /// Computes a module with its hooks. Returns an output in any case: an error is kept for the end
    /// of the forward pass, which continues without hooks.
    fn call_module(&mut self, known: u32, xs: &Tensor, forward: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
        if self.modules.failed.is_some() {
            return forward(xs);
        }
        let depth = self.modules.calls.len();
        self.modules.calls.push(Call { known, input: Some(xs.shallow_clone()), output: None });
        // What the module itself computed, for when a hook fails after it.
        let mut computed = None;
        let result = self.operate_module(known, depth, forward, &mut computed);
        self.modules.calls.truncate(depth + 1);
        let Call { input, output, .. } = self.modules.calls.pop().expect("it was pushed above");
        if let Err(error) = result {
            self.modules.failed.get_or_insert(error);
        }
        let output = output.or(computed);
        let output = output.unwrap_or_else(|| forward(input.as_ref().unwrap_or(xs)));
        if !self.modules.known[known as usize].backward[self.progress.phase as usize].is_empty() {
            self.note_gradient(known, &output);
        }
        output
    }

    /// The operation `module` with its hooks.
    fn operate_module(
        &mut self,
        known: u32,
        depth: usize,
        forward: &mut dyn FnMut(&Tensor) -> Tensor,
        computed: &mut Option<Tensor>,
    ) -> Result<()> {
        let phase = self.progress.phase as usize;
        let Known { before, around, after, .. } = &self.modules.known[known as usize];
        let (before, around, after) = (before[phase], around[phase], after[phase]);
        self.call(before, BeforeModule::INFO)?;
        let mut body = |run: &mut Run| run.compute_module(depth, forward, computed);
        let done = if around.is_empty() {
            let outer = std::mem::replace(&mut self.dispatch.operation, Module::INFO);
            let result = body(self);
            self.dispatch.operation = outer;
            result.map(|()| Done::Ran)?
        } else {
            self.inside_range_with::<Module>(around, body)?
        };
        if self.modules.call().output.is_none() || done == Done::Skipped {
            return Err(self.missing_output(done, OUTPUT, Module::INFO));
        }
        self.call(after, AfterModule::INFO)
    }

    /// Computes the module itself.
    fn compute_module(
        &mut self,
        depth: usize,
        forward: &mut dyn FnMut(&Tensor) -> Tensor,
        computed: &mut Option<Tensor>,
    ) -> Result<()> {
        let input = self.modules.call_mut().input.take().expect("it is taken here alone");
        let output = {
            let _guard = WatchGuard::set(watcher_of(self));
            RUN.set(self, || forward(&input))
        };
        // The task may have caught a panic of a module within this one.
        self.modules.calls.truncate(depth + 1);
        self.modules.call_mut().input = Some(input);
        match self.modules.failed.take() {
            // A hook at a module within this one failed: hooks around this one can handle that.
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

    /// Lets the backward pass keep the gradient of an output.
    fn note_gradient(&mut self, known: u32, output: &Tensor) {
        if !output.requires_grad() {
            return;
        }
        let Modules { gradients, last_output, outputs, .. } = &mut self.modules;
        if last_output.as_ref().map(identity) != Some(identity(output)) {
            *last_output = Some(output.shallow_clone());
            *outputs += 1;
        }
        let (gradients, output_number) = (Arc::clone(gradients), *outputs);
        let noted = output.on_grad(move |gradient| {
            let value = gradient.shallow_clone();
            lock(&gradients).push(Gradient { known, output: output_number, value });
        });
        if let Err(error) = noted {
            self.modules.failed.get_or_insert(error);
        }
    }

    /// The hooks at `after_module_backward`, of any module.
    fn gradient_hooks(&self) -> Range {
        self.hooks.table.range(at::after_module_backward::index(), self.progress.phase)
    }

    /// Drops the gradients of a backward pass that failed.
    pub(crate) fn forget_module_gradients(&self) {
        if !self.gradient_hooks().is_empty() {
            lock(&self.modules.gradients).clear();
        }
    }

    /// Fires `after_module_backward` for each gradient that the backward pass has computed.
    pub(crate) fn fire_module_gradients(&mut self) -> Result<()> {
        if self.gradient_hooks().is_empty() {
            return Ok(());
        }
        let mut gradients = std::mem::take(&mut *lock(&self.modules.gradients));
        // The inner module requested the gradient of a shared output first, and the outer one is first
        // in the backward pass.
        for shared in gradients.chunk_by_mut(|one, other| one.output == other.output) {
            shared.reverse();
        }
        let depth = self.modules.calls.len();
        for Gradient { known, value, .. } in gradients {
            let hooks = self.modules.known[known as usize].backward[self.progress.phase as usize];
            self.modules.calls.push(Call { known, input: None, output: Some(value) });
            let result = self.call(hooks, AfterModuleBackward::INFO);
            self.modules.calls.truncate(depth);
            result?;
        }
        Ok(())
    }
}

impl Name {
    /// Computes a module of this name: `forward` is its forward pass, with hooks before, around and
    /// after it.
    ///
    /// Hooks can replace the input, so `forward` must use its own argument. It is called once,
    /// unless a hook around the module leaves it out.
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
        if watcher == SUMMARY {
            return summary::record(self, xs, forward);
        }
        if self.seen.get().0 != watcher {
            let known = with_run(|run| {
                let known = run.known_module(self);
                let is_hooked = run.modules.known[known as usize].is_hooked(run.progress.phase);
                if is_hooked { known } else { UNHOOKED }
            });
            self.seen.set((watcher, known));
        }
        match self.seen.get().1 {
            UNHOOKED => forward(xs),
            known => with_run(|run| run.call_module(known, xs, forward)),
        }
    }
}
