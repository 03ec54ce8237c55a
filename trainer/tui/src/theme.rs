//! [`Theme`]: the styles of the view, with and without color.

use ratatui::style::{Color, Modifier, Style};
use trainer_formats::run::Status;

/// The styles of the view.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    has_color: bool,
}

impl Theme {
    /// Returns the theme with color.
    #[must_use]
    pub fn colored() -> Self {
        Theme { has_color: true }
    }

    /// Returns the theme without color: only bold, dim and reversed text.
    #[must_use]
    pub fn plain() -> Self {
        Theme { has_color: false }
    }

    /// Returns the theme that the environment requests: without color if `NO_COLOR` is set and not
    /// empty, as <https://no-color.org> describes.
    #[must_use]
    pub fn of_environment() -> Self {
        Theme { has_color: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    fn color(self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }

    pub(crate) fn curve(self) -> Style {
        self.color(Color::Cyan)
    }

    pub(crate) fn passes(self) -> Style {
        self.color(Color::Yellow)
    }

    pub(crate) fn bar(self) -> Style {
        self.color(Color::Cyan)
    }

    pub(crate) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn warning(self) -> Style {
        self.color(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn error(self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn status(self, status: Status) -> Style {
        let style = match status {
            Status::Running | Status::Finished => self.color(Color::Green),
            Status::Cancelled | Status::Forked => self.color(Color::Yellow),
            Status::Failed | Status::Killed => self.color(Color::Red),
        };
        style.add_modifier(Modifier::BOLD)
    }
}
