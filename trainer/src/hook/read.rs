//! The types of the task, batch and prediction: those that hooks read, which the `#[hook]` macro
//! finds, and those that the trainer has.

use std::any::{TypeId, type_name};

/// A call such as `cx.batch::<MyBatch>()?` that a hook makes every time it runs.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The method of the context: `batch`.
    method: &'static str,
    id: TypeId,
    name: fn() -> &'static str,
}

impl Read {
    /// Describes a call of this method with the type `V`.
    #[must_use]
    pub const fn of<V: 'static>(method: &'static str) -> Self {
        Read { method, id: TypeId::of::<V>(), name: type_name::<V> }
    }
}

/// The types of a trainer's task, batch and prediction.
pub(crate) struct TaskTypes {
    task: Type,
    batch: Type,
    pred: Type,
}

/// A type with its name.
struct Type {
    id: TypeId,
    name: &'static str,
}

impl Type {
    fn of<V: 'static>() -> Self {
        Type { id: TypeId::of::<V>(), name: type_name::<V>() }
    }
}

impl TaskTypes {
    pub(crate) fn of<T: 'static, Batch: 'static, Pred: 'static>() -> Self {
        TaskTypes { task: Type::of::<T>(), batch: Type::of::<Batch>(), pred: Type::of::<Pred>() }
    }

    /// Returns the `TypeId` of the task.
    pub(crate) fn task(&self) -> TypeId {
        self.task.id
    }

    /// Returns a message if a call reads a type other than the task's.
    pub(crate) fn mismatch(&self, read: &Read) -> Option<String> {
        let Read { method, id, name } = read;
        let (what, ours) = match *method {
            "task" | "task_mut" => ("task", &self.task),
            "pred" => ("task's prediction", &self.pred),
            _ => ("task's batch", &self.batch),
        };
        (*id != ours.id)
            .then(|| format!("calls `cx.{method}::<{}>()`, but the {what} is a `{}`", name(), ours.name))
    }
}
