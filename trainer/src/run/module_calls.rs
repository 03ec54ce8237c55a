//! [`Modules`]: the modules that a run has called.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use scoped_tls_hkt::scoped_thread_local;
use tch::Tensor;

use crate::error::Error;
use crate::hook::call::Panic;
use crate::hook::table::Row;
use crate::hook::table::module_moments;
use crate::lifecycle::MOMENTS;
use crate::modules::Layer;
use crate::moment::MomentInfo;
use crate::phase::Phase;

// The input with which the innermost observed module was called.
scoped_thread_local!(static INPUT: for<'a> &'a Tensor);

/// The part of a run's state that concerns modules.
#[derive(Default)]
pub(crate) struct Modules {
    /// The modules that were called, once for each name.
    pub(crate) known: Vec<Known>,
    pub(crate) by_name: HashMap<Arc<str>, u32>,
    /// The modules that are computing, innermost last.
    pub(crate) calls: Vec<Call>,
    /// The error of a hook in the current forward pass.
    pub(crate) failed: Option<Error>,
    /// The gradients of outputs that the current backward pass has computed.
    pub(crate) gradients: Arc<Mutex<Vec<Gradient>>>,
    /// The gradients of inputs that the current backward pass has computed, by the number of the
    /// call.
    pub(crate) input_gradients: Arc<Mutex<HashMap<u64, Tensor>>>,
    /// The number of calls whose gradients were requested.
    pub(crate) noted_calls: u64,
    /// What the hooks of the current backward pass wait for, while it runs.
    pub(crate) pass: Option<Pass>,
    /// Whether patterns are checked only after `setup`, because hooks may add layers there.
    pub(crate) is_unchecked: bool,
}

/// A module that was called, and its hooks.
pub(crate) struct Known {
    pub(crate) name: Arc<str>,
    pub(crate) layer: Option<Layer>,
    pub(crate) before: Row,
    pub(crate) around: Row,
    pub(crate) after: Row,
    pub(crate) before_backward: Row,
    pub(crate) after_grads: Row,
    pub(crate) after_backward: Row,
}

impl Known {
    pub(crate) fn is_hooked(&self, phase: Phase) -> bool {
        let Known { name: _, layer: _, before, around, after, before_backward, after_grads, after_backward } =
            self;
        let rows = [before, around, after, before_backward, after_grads, after_backward];
        rows.iter().any(|row| !row[phase as usize].is_empty())
    }
}

/// The gradient of the output of a module.
pub(crate) struct Gradient {
    pub(crate) known: u32,
    /// The number of the call.
    pub(crate) call: u64,
    pub(crate) value: Tensor,
}

/// A backward pass that calls hooks while it runs.
#[derive(Default)]
pub(crate) struct Pass {
    /// The modules whose gradients are not complete: the index of the module, and how many of its
    /// parameters are missing.
    pub(crate) awaited: Vec<(u32, usize)>,
    /// How the first hook failed. No hook is called after it.
    pub(crate) failed: Option<Failure>,
}

/// How a hook failed.
pub(crate) enum Failure {
    Error(Error),
    Panic(Panic),
}

/// A call of a module.
pub(crate) struct Call {
    pub(crate) known: u32,
    /// The input, if a hook has read or replaced it. Cloning every input would cost more than
    /// calling a hook.
    pub(crate) input: OnceCell<Tensor>,
    /// The output that the module computed or a hook set.
    pub(crate) output: Option<Tensor>,
    /// In the backward pass, the gradient of the output.
    pub(crate) output_grad: Option<Tensor>,
    /// At `after_module_backward`, the gradient of the input.
    pub(crate) input_grad: Option<Tensor>,
    /// Whether the backward pass computes the module again.
    pub(crate) is_checkpointed: Cell<bool>,
}

impl Call {
    /// Creates the state of a call that is just beginning.
    pub(crate) fn new(known: u32) -> Self {
        Call {
            known,
            input: OnceCell::new(),
            output: None,
            output_grad: None,
            input_grad: None,
            is_checkpointed: Cell::new(false),
        }
    }

    /// Runs `body` with `input` as the input of the innermost call.
    #[inline]
    pub(crate) fn with_input<R>(input: &Tensor, body: impl FnOnce() -> R) -> R {
        INPUT.set(input, body)
    }

    /// The input of the module. Must be called within [`with_input`](Call::with_input).
    pub(crate) fn input(&self) -> &Tensor {
        self.input.get_or_init(|| INPUT.with(Tensor::shallow_clone))
    }
}

impl Modules {
    /// Creates the state. `is_unchecked` says whether patterns are checked only after `setup`.
    pub(crate) fn new(is_unchecked: bool) -> Self {
        Modules { is_unchecked, ..Modules::default() }
    }

    /// Drops the calls that a panic interrupted.
    pub(crate) fn abandon_calls(&mut self) {
        self.calls.clear();
        self.pass = None;
    }

    pub(crate) fn call(&self) -> &Call {
        self.calls.last().expect("a hook at a module runs in a call of it")
    }

    pub(crate) fn call_mut(&mut self) -> &mut Call {
        self.calls.last_mut().expect("a hook at a module runs in a call of it")
    }

    /// The name of the module of the current call.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.known[self.call().known as usize].name
    }

    pub(crate) fn layer(&self) -> Option<Layer> {
        self.known[self.call().known as usize].layer
    }

    /// The name of the current module, if `moment` is a moment of a module.
    pub(crate) fn name_at(&self, moment: &'static MomentInfo) -> Option<Arc<str>> {
        let known = self.calls.last()?.known;
        let is_of_module = module_moments().iter().any(|own| std::ptr::eq(&raw const MOMENTS[*own], moment));
        is_of_module.then(|| Arc::clone(&self.known[known as usize].name))
    }

    /// The names of the modules that were called.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|known| &*known.name)
    }
}
