//! The state of a run: everything that hooks and the loop share.

use std::any::{Any, TypeId};

use tch::{Device, Tensor};

use crate::counters::StepState;
use crate::error::{BoxError, Error, HookError, Place, Result};
use crate::hook::table::{Entry, Range, Table};
use crate::metrics::Log;
use crate::moment::{AtOperation, AtPoint, Moment, MomentInfo};
use crate::optim::Optimizer;
use crate::phase::Phase;
use crate::vars::Vars;

/// What hooks have asked of the loop.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) skip_step: bool,
    pub(crate) end_epoch: bool,
    pub(crate) stop: Option<String>,
}

/// The batch and what was made of it, typed as an `Option` of the task's own type.
pub(crate) type Slot = Box<dyn Any + Send>;

/// A task or hook of the user's, and its type, which is known while it is lent out to be called.
pub(crate) struct Instance {
    pub(crate) type_id: TypeId,
    pub(crate) value: Option<Slot>,
}

impl Instance {
    pub(crate) fn new<T: Send + 'static>(value: T) -> Self {
        Instance { type_id: TypeId::of::<T>(), value: Some(Box::new(value)) }
    }
}

/// Where the task lies in [`Run::hooks`].
pub(crate) const TASK: usize = 0;

/// The state of a run. Hooks see it as a [`Cx`](crate::Cx).
pub struct Run {
    pub(crate) table: Table,
    pub(crate) phase: Phase,
    /// The operation that is running, for messages.
    pub(crate) operation: &'static MomentInfo,
    pub(crate) step: StepState,
    /// Which batch of the pass is being worked on, from 1; of all training batches while training.
    pub(crate) ordinal: u64,
    /// How many batches the pass has, where that is known.
    pub(crate) batches: Option<u64>,
    /// Epochs that have begun, in this and earlier fits.
    pub(crate) epochs_begun: u64,
    /// How many there are to be when the current fit ends.
    pub(crate) epochs: u64,
    /// The task, then the explicit hooks.
    pub(crate) hooks: Vec<Instance>,
    pub(crate) batch: Slot,
    pub(crate) batch_type: &'static str,
    /// Says what it looks like, for messages.
    pub(crate) batch_text: fn(&Slot) -> String,
    /// How many samples it holds; `None` outside of a step.
    pub(crate) batch_len: Option<u64>,
    pub(crate) pred: Slot,
    pub(crate) pred_type: &'static str,
    pub(crate) loss: Option<Tensor>,
    pub(crate) vars: Vars,
    pub(crate) device: Device,
    pub(crate) optimizer: Option<Box<dyn Optimizer>>,
    pub(crate) log: Log,
    pub(crate) requests: Requests,
    pub(crate) error: Option<Error>,
}

impl Run {
    /// Runs the hooks of a point, in their order, up to the first that fails.
    #[inline]
    pub(crate) fn fire<P: AtPoint>(&mut self) -> Result<()> {
        let range = self.table.range(P::index(), self.phase);
        if range.is_empty() { Ok(()) } else { self.call(range, P::INFO) }
    }

    #[inline]
    fn call(&mut self, range: Range, at: &'static MomentInfo) -> Result<()> {
        for index in range.indices() {
            let entry = self.table.entry(index);
            if let Err(source) = (entry.call)(self, entry.slot) {
                return Err(self.hook_failed(entry, at, source));
            }
        }
        Ok(())
    }

    #[cold]
    fn hook_failed(&self, entry: Entry, at: &'static MomentInfo, source: BoxError) -> Error {
        let origin = &self.table.hook(entry).definition.origin;
        let (hook, file, line) = (origin.name(), origin.file, origin.line);
        Error::Hook(Box::new(HookError { hook, file, line, place: self.place(at), source }))
    }

    /// Runs an operation with the hooks around it.
    #[inline]
    pub(crate) fn operate<O: AtOperation>(
        &mut self,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<()> {
        self.fire::<O::Before>()?;
        self.inside::<O>(body)?;
        self.fire::<O::After>()
    }

    /// Runs the body of an operation, without the points before and after it.
    #[inline]
    pub(crate) fn inside<O: Moment>(&mut self, body: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
        let outer = std::mem::replace(&mut self.operation, O::INFO);
        body(self)?;
        // After an error it stays, to say where it came from.
        self.operation = outer;
        Ok(())
    }

    pub(crate) fn place(&self, at: &'static MomentInfo) -> Place {
        Place { moment: at.name, phase: self.phase, step: self.step }
    }
}
