//! The terminal view of a `trainer` run. The command `trainer watch` shows the run in a folder, and
//! the hook `hooks::Dashboard` shows its own run.
//!
//! [`State`] is the content of the view, independent of a terminal; the program that has access to
//! the run keeps it up to date. [`View`] holds what the user has chosen with keys, [`draw()`] draws
//! the state and the view, and [`Screen`] borrows the terminal for them.

mod curve;
mod draw;
mod screen;
mod state;
mod text;
mod theme;
mod view;

pub use curve::Curve;
pub use draw::draw;
pub use screen::{NoScreen, Screen, Stream, check_screen, next_key};
pub use state::{Remaining, State};
pub use theme::Theme;
pub use view::{Action, Panel, Requests, View};
