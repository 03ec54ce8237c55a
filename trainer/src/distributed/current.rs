//! The processes that train together in the entry point that is running.

use std::cell::RefCell;

use super::World;

thread_local! {
    static CURRENT: RefCell<Option<World>> = const { RefCell::new(None) };
}

impl World {
    /// Returns the processes that train together in the entry point that is running on this thread:
    /// what [`Cx::world`](crate::Cx::world) returns, for code without a context, such as the layers
    /// of a network. Returns `None` outside of an entry point, or if there is one process. Not a
    /// collective.
    #[must_use]
    pub fn current() -> Option<World> {
        CURRENT.with_borrow(Clone::clone)
    }
}

/// Sets the processes that train together, and returns the previous ones.
pub(crate) fn set_current(world: Option<World>) -> Option<World> {
    CURRENT.replace(world)
}
