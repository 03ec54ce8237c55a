//! The values that hook methods are called on.

use std::any::{Any, TypeId, type_name};
use std::cell::Cell;

use super::call::Loop;

/// The task or a hook value. Its type is known even while the value is lent to one of its methods.
pub(crate) struct Instance<R: Loop> {
    pub(crate) type_id: TypeId,
    pub(crate) type_name: &'static str,
    /// The value; `None` while it is lent to one of its methods, and in a placeholder.
    pub(crate) value: Option<Box<dyn Any + Send>>,
    /// Whether another hook has had mutable access to the value since this was last asked.
    pub(crate) is_touched: Cell<bool>,
    /// What the loop keeps for the value besides its hooks.
    pub(crate) extras: R::Extras,
    /// Whether its hooks may change fields that no state saves.
    pub(crate) changes_unsaved: bool,
    /// Whether all of its hooks only observe.
    pub(crate) observes: bool,
    /// Whether one of its hooks writes something that outlives the process.
    pub(crate) writes: bool,
    /// Whether a failure of any of its hooks is only a warning.
    pub(crate) may_fail: bool,
}

impl<R: Loop> Instance<R> {
    pub(crate) fn new<T: Send + 'static>(value: T) -> Self {
        Instance {
            type_id: TypeId::of::<T>(),
            type_name: type_name::<T>(),
            value: Some(Box::new(value)),
            is_touched: Cell::new(false),
            extras: R::Extras::default(),
            changes_unsaved: false,
            observes: false,
            writes: false,
            may_fail: false,
        }
    }

    /// Returns a placeholder for a discovered value whose hooks are all excluded.
    pub(crate) fn absent() -> Self {
        let (type_id, type_name) = (TypeId::of::<Self>(), type_name::<Self>());
        Instance { type_id, type_name, value: None, ..Instance::new(()) }
    }
}

/// The index of the task among the values.
pub(crate) const TASK: usize = 0;
