//! The terminal view of a `trainer` run. The command `trainer watch` shows it for a run folder, and
//! the hook `hooks::Dashboard` for the run that it belongs to.
//!
//! [`State`] is the content of the view, independent of a terminal. The program that has access to
//! the run updates it. [`View`] holds what the user has chosen with keys, [`draw()`] draws both, and
//! [`Screen`] borrows the terminal for them.

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
