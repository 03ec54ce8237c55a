//! The moments of a module in the backward pass: `before_module_backward` and `after_module_grads`,
//! which fire while the pass runs, and `after_module_backward`, which fires after it.
//!
//! libtorch calls closures with the gradients of outputs, and after it has accumulated that of a
//! parameter. On the CPU, the thread that starts a pass also runs it, so `&mut Run` is in a scoped
//! thread-local variable meanwhile, from which a closure takes it.
//!
//! On a GPU, libtorch runs a pass on a thread of its own, and the values of hooks must not leave
//! the thread of the run. There, the pass would have to start on a helper thread, while the thread
//! of the run waits for messages: a closure would send the gradient, wait for the hooks to be
//! called, and take the answer. Until that has been tried on a GPU, [`needs_the_cpu`] says that
//! such hooks are refused.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scoped_tls_hkt::scoped_thread_local;
use tch::{Device, Tensor};

use crate::checkpoint::progress::FitState;
use crate::distributed::World;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::frame::Range;
use crate::libtorch::{self, AccumulatedHook, Parameters, identity, leaves, on_accumulated};
use crate::lifecycle::{AfterBackward, AfterModuleBackward, AfterModuleGrads, BeforeModuleBackward, at};
use crate::moment::{Moment, MomentInfo};
use crate::optim::PassPlan;
use crate::phase::Phase;
use crate::run::module_calls::{Call, Failure, Gradient, Modules, Pass};
use crate::run::{Model, Run, RunHooks, StepData};

// Set while a backward pass runs whose hooks are called. Not set within such a hook, so that a
// backward pass of its own calls none.
scoped_thread_local!(static mut PASS: for<'a> &'a mut Run);

fn instead_of(moment: &MomentInfo) -> String {
    let has_gradients = moment.name == AfterModuleGrads::INFO.name;
    let instead = if has_gradients { AfterBackward::INFO } else { AfterModuleBackward::INFO };
    instead.path()
}

/// What a message says about a moment that fires while a backward pass runs, if the pass is not on
/// the CPU.
pub(crate) fn needs_the_cpu(moment: &MomentInfo, device: Device) -> String {
    format!(
        "`{}` fires while the backward pass runs, which libtorch runs on a thread of its own on {device:?}, where hooks cannot be \
         called yet: use `{}`, or train on the CPU",
        moment.path(),
        instead_of(moment)
    )
}

/// What a message says about a moment that fires while a backward pass runs, if the optimizer
/// divides the gradients meanwhile.
pub(crate) fn needs_whole_gradients(moment: &MomentInfo) -> String {
    format!(
        "`{}` fires while the backward pass runs, in which the optimizer sends each gradient to its owner: use `{}`, or remove \
         `.gradients(true)` from the optimizer",
        moment.path(),
        instead_of(moment)
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes the run whose backward pass this thread runs to `then`, if it has the table `table`, and
/// unless a hook of the pass has failed. A failure of `then` is kept until the pass has ended: it
/// can neither be returned nor unwind through libtorch.
fn in_pass<R>(table: u64, then: impl FnOnce(&mut Run) -> Result<Option<R>>) -> Option<R> {
    if !PASS.is_set() {
        return None;
    }
    PASS.with(|run| {
        let is_going = run.modules.pass.as_ref().is_some_and(|pass| pass.failed.is_none());
        if run.hooks.table.id() != table || !is_going {
            return None;
        }
        let failure = match catch_unwind(AssertUnwindSafe(|| then(&mut *run))) {
            Ok(Ok(done)) => return done,
            Ok(Err(error)) => Failure::Error(error),
            Err(payload) => Failure::Panic(payload),
        };
        if let Some(pass) = &mut run.modules.pass {
            pass.failed = Some(failure);
        }
        None
    })
}

/// What an optimizer that divides gradients knows about a backward pass.
pub(crate) fn plan_of_pass(fit: &FitState, step: &StepData) -> PassPlan {
    PassPlan { is_last: fit.window.ends_here(), has_rows: step.weight > 0.0 }
}

/// Makes the backward pass of `loss` fire `after_module_grads`, until the result is dropped.
fn await_gradients(
    (modules, hooks, model): (&mut Modules, &RunHooks, &Model),
    phase: Phase,
    loss: &Tensor,
) -> Result<Vec<AccumulatedHook>> {
    if hooks.table.range(at::after_module_grads::index(), phase).is_empty() {
        return Ok(Vec::new());
    }
    let part = model.optimizers.current_name();
    let (reached, _) = leaves(loss)?;
    let reached: HashMap<usize, Tensor> = reached.into_iter().map(|leaf| (identity(&leaf), leaf)).collect();
    let mut observed: Vec<u32> = (0..)
        .zip(&modules.known)
        .filter(|(_, known)| !known.after_grads[phase as usize].is_empty())
        .map(|(index, _)| index)
        .collect();
    // If the last gradient completes several modules, the inner ones come first.
    observed.sort_by_key(|known| std::cmp::Reverse(modules.known[*known as usize].name.len()));
    let mut awaited = Vec::new();
    let mut completes: HashMap<usize, Vec<usize>> = HashMap::new();
    for known in observed {
        let of_module = model.vars.in_part(&modules.known[known as usize].name);
        let trained = of_module.filter(|var| {
            var.is_parameter
                && var.tensor.requires_grad()
                && var.is_in(part)
                && reached.contains_key(&identity(&var.tensor))
        });
        let mut missing = 0;
        for var in trained {
            completes.entry(identity(&var.tensor)).or_default().push(awaited.len());
            missing += 1;
        }
        awaited.push((known, missing));
    }
    let table = hooks.table.id();
    let hooks = completes.into_iter().map(|(leaf, completes)| {
        let leaf = &reached[&leaf];
        if leaf.device() != Device::Cpu {
            return Err(Error::usage(needs_the_cpu(AfterModuleGrads::INFO, leaf.device())));
        }
        // A closure of the program may run another backward pass through the leaf.
        let is_complete = AtomicBool::new(false);
        let note = move |_| {
            in_pass(table, |run| match is_complete.swap(true, Ordering::Relaxed) {
                true => Ok(None),
                false => run.note_accumulated(&completes).map(Some),
            });
            Ok(())
        };
        on_accumulated(leaf, Box::new(note))
    });
    let hooks = hooks.collect();
    if let Some(pass) = &mut modules.pass {
        pass.awaited = awaited;
    }
    hooks
}

impl Run {
    /// Runs a backward pass of the current optimizer, with the hooks that observe it.
    ///
    /// # Errors
    ///
    /// Returns the error of the first hook that fails while the pass runs, or that of the pass.
    pub(crate) fn backward(&mut self, loss: &Tensor) -> Result<()> {
        let Run { modules, hooks, model, at, fit, step, .. } = &mut *self;
        let is_watched = hooks.table.is_watching_backward(at.place.phase);
        if is_watched {
            modules.forget_gradients();
        }
        // With divided gradients, no hook runs within the pass: `build` refuses it.
        if !is_watched || model.optimizers.divided().is_some() {
            return model.optimizers.backward(loss, plan_of_pass(fit, step));
        }
        let of = model.optimizers.current_parameters().map(Parameters::shallow_clone);
        modules.pass = Some(Pass::default());
        let outcome = await_gradients((modules, hooks, model), at.place.phase, loss)
            .and_then(|_awaited| PASS.set(self, || libtorch::backward(loss, of.as_ref())));
        match self.modules.pass.take().and_then(|pass| pass.failed) {
            Some(Failure::Panic(payload)) => resume_unwind(payload),
            Some(Failure::Error(error)) => Err(error),
            None => outcome,
        }
    }

    /// Notes that the gradient of a parameter of these modules is complete, by their index in the
    /// pass. Fires `after_module_grads` for those that have no other.
    fn note_accumulated(&mut self, of: &[usize]) -> Result<()> {
        for index in of {
            let Some(pass) = &mut self.modules.pass else { break };
            let (known, missing) = &mut pass.awaited[*index];
            *missing -= 1;
            if *missing == 0 {
                let known = *known;
                let hooks = self.modules.known[known as usize].after_grads[self.at.place.phase as usize];
                self.call_at_module(Call::new(known), hooks, AfterModuleGrads::INFO)?;
            }
        }
        Ok(())
    }

    /// Calls hooks at a module that does not compute now. Returns the call as they have left it.
    fn call_at_module(
        &mut self,
        call: Call,
        hooks: Range,
        moment: &'static MomentInfo,
    ) -> Result<Option<Call>> {
        let depth = self.modules.calls.len();
        self.modules.calls.push(call);
        let result = self.call(hooks, moment);
        self.modules.calls.truncate(depth + 1);
        let call = self.modules.calls.pop();
        result.map(|()| call)
    }

    /// Fires `after_module_backward` for each gradient that the backward pass has computed.
    pub(crate) fn fire_module_gradients(&mut self) -> Result<()> {
        if !self.hooks.table.is_watching_backward(self.at.place.phase) {
            return Ok(());
        }
        let gradients = std::mem::take(&mut *lock(&self.modules.gradients));
        let mut of_inputs = std::mem::take(&mut *lock(&self.modules.input_gradients));
        for Gradient { known, call, value } in gradients {
            let hooks = self.modules.known[known as usize].after_backward[self.at.place.phase as usize];
            let input_grad = of_inputs.remove(&call);
            let call = Call { output_grad: Some(value), input_grad, ..Call::new(known) };
            self.call_at_module(call, hooks, AfterModuleBackward::INFO)?;
        }
        Ok(())
    }
}

/// Fires `before_module_backward` with the gradient of an output, and returns the tensor that
/// replaces it, if any.
fn fire_before(table: u64, known: u32, gradient: &Tensor) -> Option<Tensor> {
    in_pass(table, |run| {
        let hooks = run.modules.known[known as usize].before_backward[run.at.place.phase as usize];
        let call = Call { output_grad: Some(gradient.shallow_clone()), ..Call::new(known) };
        let call = run.call_at_module(call, hooks, BeforeModuleBackward::INFO)?;
        let after = call.and_then(|call| call.output_grad);
        Ok(after.filter(|after| identity(after) != identity(gradient)))
    })
}

impl Modules {
    /// Returns the number of a call of a module, if hooks at `after_module_backward` observe it.
    pub(super) fn note_call(&mut self, known: u32, phase: Phase) -> Option<u64> {
        let is_noted = !self.known[known as usize].after_backward[phase as usize].is_empty();
        is_noted.then(|| {
            self.noted_calls += 1;
            self.noted_calls
        })
    }

    /// Makes the backward pass fire `before_module_backward` with the gradient of this output of a
    /// module, and store the gradient for `after_module_backward` if the call has a number. Returns
    /// the tensor to use as the output.
    pub(super) fn note_output(
        &mut self,
        (known, noted): (u32, Option<u64>),
        (table, phase): (u64, Phase),
        output: Tensor,
    ) -> Tensor {
        let is_fired = !self.known[known as usize].before_backward[phase as usize].is_empty();
        if !(is_fired || noted.is_some()) || !output.requires_grad() {
            return output;
        }
        if is_fired && output.device() != Device::Cpu {
            let why = needs_the_cpu(BeforeModuleBackward::INFO, output.device());
            self.failed.get_or_insert(Error::usage(why));
            return output;
        }
        // A closure at a leaf, such as a parameter that the module returns, would outlive the
        // graph.
        let output = if output.is_leaf() { output.alias() } else { output };
        if !output.requires_grad() {
            return output; // gradients are disabled
        }
        let gradients = Arc::clone(&self.gradients);
        // If nested modules share an output, the inner one adds its closure first, but in the
        // backward pass the outer one comes first.
        let added = libtorch::on_grad(
            &output,
            true,
            Box::new(move |gradient| {
                let replaced = if is_fired { fire_before(table, known, gradient) } else { None };
                if let Some(call) = noted {
                    let value = replaced.as_ref().unwrap_or(gradient).shallow_clone();
                    lock(&gradients).push(Gradient { known, call, value });
                }
                replaced
            }),
        );
        if let Err(error) = added {
            self.failed.get_or_insert(error);
        }
        output
    }

    /// Whether the gradients are being averaged over the ranks, so that reading one would race with
    /// the threads that do this.
    pub(crate) fn is_averaging(&self, world: &World) -> bool {
        self.pass.is_some() && world.is_averaging()
    }

    /// Drops the gradients that an earlier backward pass has left behind.
    pub(crate) fn forget_gradients(&self) {
        lock(&self.gradients).clear();
        lock(&self.input_gradients).clear();
    }

    /// Registers a tensor hook that stores the gradient of an input during the backward pass.
    /// Returns the tensor to use as the input: its gradient is that of this call alone, even if the
    /// input is used elsewhere too, for example by a residual connection.
    pub(super) fn note_input_gradient(&mut self, call: u64, input: &Tensor) -> Option<Tensor> {
        if !input.requires_grad() {
            return None;
        }
        let aliased = input.alias();
        if !aliased.requires_grad() {
            return None; // gradients are disabled
        }
        let gradients = Arc::clone(&self.input_gradients);
        let noted = libtorch::on_grad(
            &aliased,
            false,
            Box::new(move |gradient| {
                lock(&gradients).insert(call, gradient.shallow_clone());
                None
            }),
        );
        if let Err(error) = noted {
            self.failed.get_or_insert(error);
        }
        Some(aliased)
    }
}
