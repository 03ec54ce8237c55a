//! State of the running entry point that code without a context can access: the processes that
//! train together, and the information about the current batch that the layers of a network need.

use std::cell::RefCell;

use tch::Tensor;

use super::World;
use super::links::Links;
use crate::error::{Error, Result};

/// The state that the code of a task can access without a context.
#[derive(Default)]
pub(crate) struct Current {
    world: Option<Running>,
    /// Whether this rank has no row in the current batch. It then processes a row borrowed from
    /// another rank, or a copy of its first batch, neither of which counts.
    is_borrowed: bool,
    /// The outputs, since the forward pass began, of layers whose backward pass is a collective.
    outputs: Vec<Tensor>,
    /// The first error of a layer since the forward pass began.
    error: Option<Error>,
}

/// The world of a running entry point. Until this value is dropped, collectives on other threads
/// fail.
struct Running(Links);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.shared.end_entry();
    }
}

thread_local! {
    static CURRENT: RefCell<Current> = const {
        RefCell::new(Current { world: None, is_borrowed: false, outputs: Vec::new(), error: None })
    };
}

impl World {
    /// Returns the world of the entry point that is running on this thread, for code without a
    /// context, such as the layers of a network. With a context, use
    /// [`Cx::world`](crate::Cx::world). Outside of an entry point, this is a world of one rank. Not
    /// a collective.
    #[must_use]
    pub fn current() -> World {
        World {
            links: CURRENT.with_borrow(|current| current.world.as_ref().map(|running| running.0.clone())),
        }
    }
}

/// Replaces the state of this thread, and returns the previous state.
pub(crate) fn replace(current: Current) -> Current {
    CURRENT.replace(current)
}

/// Sets the world of the entry point that begins on this thread.
///
/// # Errors
///
/// Returns an error if an entry point on another thread uses the same world.
pub(crate) fn begin_entry(world: &World) -> Result<()> {
    end_entry();
    let Some(links) = &world.links else { return Ok(()) };
    links.shared.begin_entry()?;
    CURRENT.with_borrow_mut(|current| current.world = Some(Running(links.clone())));
    Ok(())
}

/// Records that the entry point on this thread no longer uses its world.
pub(crate) fn end_entry() {
    let running = CURRENT.with_borrow_mut(|current| current.world.take());
    drop(running);
}

/// Begins the forward pass of a batch.
pub(crate) fn begin_forward(is_borrowed: bool) {
    CURRENT.with_borrow_mut(|current| {
        current.is_borrowed = is_borrowed;
        current.outputs.clear();
        current.error = None;
    });
}

/// Clears the state of the batch.
pub(crate) fn end_step() {
    begin_forward(false);
}

/// Returns the first error of a layer since the forward pass began, if there is one, and clears it.
pub(crate) fn check_layers() -> Result<()> {
    CURRENT.with_borrow_mut(|current| current.error.take()).map_or(Ok(()), Err)
}

/// Returns the outputs, since the forward pass began, of layers whose backward pass is a
/// collective.
pub(crate) fn outputs() -> Vec<Tensor> {
    CURRENT.with_borrow(|current| current.outputs.iter().map(Tensor::shallow_clone).collect())
}

/// Whether the backward pass of a layer since the forward pass began is a collective.
pub(super) fn has_outputs() -> bool {
    CURRENT.with_borrow(|current| !current.outputs.is_empty())
}

/// Whether this rank has no row in the current batch, and therefore processes rows that do not
/// count.
pub(super) fn is_borrowed() -> bool {
    CURRENT.with_borrow(|current| current.is_borrowed)
}

/// Whether a layer has failed.
pub(super) fn has_failed() -> bool {
    CURRENT.with_borrow(|current| current.error.is_some())
}

/// Stores the error of a layer, unless an earlier error is stored. The operation that calls the
/// layer returns the stored error.
pub(super) fn fail(error: Error) {
    CURRENT.with_borrow_mut(|current| {
        current.error.get_or_insert(error);
    });
}

/// Stores the output of a layer whose backward pass is a collective.
pub(super) fn keep_output(output: &Tensor) {
    CURRENT.with_borrow_mut(|current| current.outputs.push(output.shallow_clone()));
}
