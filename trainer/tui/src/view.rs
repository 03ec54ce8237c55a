//! [`View`]: what the user has chosen with keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::State;

/// The panel below the curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    /// The hooks, with their time and what they last logged.
    Hooks,
    /// The warnings.
    Warnings,
    /// The lines that the run has printed.
    Log,
}

/// A request to the program that shows the view, made with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Close the view.
    Close,
    /// Handle Ctrl-C, which sends no signal while the view is open.
    Interrupt,
    /// Stop the run. The user has already confirmed this.
    Stop,
    /// Make the run write a checkpoint. The user has already confirmed this.
    Checkpoint,
    /// Draw everything again, because something else has written to the terminal.
    Redraw,
}

/// The requests that the user can make. For each, this is the question that asks the user for
/// confirmation, or the reason why the run does not accept the request.
#[derive(Clone, Debug)]
pub struct Requests {
    /// Stopping the run.
    pub stop: Result<String, String>,
    /// Writing a checkpoint.
    pub checkpoint: Result<String, String>,
}

/// The choices of the user.
#[derive(Clone, Debug)]
pub struct View {
    panels: Vec<Panel>,
    panel: usize,
    /// The number of rows by which the panel is scrolled: from the top or, in the log, from the
    /// end.
    scroll: usize,
    /// The metric to which the user has moved the cursor. If this is `None`, the cursor is on the
    /// loss, or on the first metric if there is no loss.
    cursor: Option<String>,
    /// The metrics whose curves are shown in addition to the one under the cursor.
    chosen: Vec<String>,
    /// The action that awaits confirmation, with its question.
    question: Option<(Action, String)>,
    message: Option<String>,
    shows_help: bool,
}

impl View {
    /// Returns a new view. `has_log` adds the log panel, for a run in this process.
    #[must_use]
    pub fn new(has_log: bool) -> Self {
        let panels = if has_log {
            vec![Panel::Log, Panel::Hooks, Panel::Warnings]
        } else {
            vec![Panel::Hooks, Panel::Warnings]
        };
        View {
            panels,
            panel: 0,
            scroll: 0,
            cursor: None,
            chosen: Vec::new(),
            question: None,
            message: None,
            shows_help: false,
        }
    }

    /// Shows a message until the next key.
    pub fn show_message(&mut self, message: impl Into<String>) {
        self.message = Some(message.into());
    }

    /// Handles a key. Returns the action that the key requests, if any.
    pub fn press(&mut self, key: KeyEvent, state: &State, requests: &Requests) -> Option<Action> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        self.message = None;
        match key.code {
            KeyCode::Char('c') if is_control => return Some(Action::Interrupt),
            KeyCode::Char('l') if is_control => return Some(Action::Redraw),
            _ if is_control || key.modifiers.contains(KeyModifiers::ALT) => return None,
            _ => {}
        }
        if let Some((action, _)) = self.question.take() {
            if key.code == KeyCode::Char('y') {
                return Some(action);
            }
            self.show_message("nothing was sent");
            return None;
        }
        if std::mem::take(&mut self.shows_help) {
            return None;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Action::Close),
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char('s') => self.ask(Action::Stop, &requests.stop),
            KeyCode::Char('c') => self.ask(Action::Checkpoint, &requests.checkpoint),
            KeyCode::Down | KeyCode::Char('j') => self.move_cursor(state, 1),
            KeyCode::Up | KeyCode::Char('k') => self.move_cursor(state, -1),
            KeyCode::Char(' ') => self.choose(state),
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(self.panels.len() - 1),
            KeyCode::PageDown => self.scroll_by(if self.panel() == Panel::Log { -5 } else { 5 }, state),
            KeyCode::PageUp => self.scroll_by(if self.panel() == Panel::Log { 5 } else { -5 }, state),
            _ => {}
        }
        None
    }

    fn ask(&mut self, action: Action, request: &Result<String, String>) {
        match request {
            Ok(question) => self.question = Some((action, question.clone())),
            Err(why) => self.show_message(why.clone()),
        }
    }

    fn turn(&mut self, by: usize) {
        self.panel = (self.panel + by) % self.panels.len();
        self.scroll = 0;
    }

    fn scroll_by(&mut self, by: isize, state: &State) {
        let rows = match self.panel() {
            Panel::Hooks => state.live().map_or(state.hooks().len(), |live| live.hooks.len() + 1),
            Panel::Warnings => state.live().map_or(0, |live| live.warnings.len()),
            Panel::Log => state.lines().len(),
        };
        self.scroll = self.scroll.saturating_add_signed(by).min(rows.saturating_sub(1));
    }

    fn move_cursor(&mut self, state: &State, by: isize) {
        let names: Vec<&str> = state.names().collect();
        let at = self.cursor(state).and_then(|own| names.iter().position(|name| *name == own));
        let at = at.map_or(0, |at| at.saturating_add_signed(by).min(names.len() - 1));
        self.cursor = names.get(at).map(|name| (*name).to_owned());
    }

    /// Toggles whether the curve under the cursor is kept when the cursor moves on.
    fn choose(&mut self, state: &State) {
        let Some(name) = self.cursor(state).map(str::to_owned) else { return };
        match self.chosen.iter().position(|known| *known == name) {
            Some(known) => drop(self.chosen.remove(known)),
            None => self.chosen.push(name),
        }
    }

    /// Returns the metric under the cursor.
    #[must_use]
    pub fn cursor<'a>(&'a self, state: &'a State) -> Option<&'a str> {
        let own = self.cursor.as_deref().filter(|name| state.curve(name).is_some());
        own.or_else(|| state.names().find(|name| *name == "train/loss")).or_else(|| state.names().next())
    }

    /// Returns the metrics whose curves are shown, the one under the cursor first.
    #[must_use]
    pub fn shown<'a>(&'a self, state: &'a State) -> Vec<&'a str> {
        let cursor = self.cursor(state);
        let others = self.chosen.iter().map(String::as_str);
        let others = others.filter(|name| Some(*name) != cursor && state.curve(name).is_some());
        cursor.into_iter().chain(others).collect()
    }

    /// Returns whether the curve of a metric is kept when the cursor moves on.
    #[must_use]
    pub fn is_chosen(&self, name: &str) -> bool {
        self.chosen.iter().any(|known| known == name)
    }

    /// Returns the panel below the curves.
    #[must_use]
    pub fn panel(&self) -> Panel {
        self.panels[self.panel]
    }

    pub(crate) fn panels(&self) -> &[Panel] {
        &self.panels
    }

    pub(crate) fn scroll(&self) -> usize {
        self.scroll
    }

    pub(crate) fn question(&self) -> Option<&str> {
        self.question.as_ref().map(|(_, question)| question.as_str())
    }

    pub(crate) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    pub(crate) fn shows_help(&self) -> bool {
        self.shows_help
    }
}

#[cfg(test)]
mod tests {
    use trainer_formats::run::Span;

    use super::*;

    fn state() -> State {
        let mut state = State::new("run");
        for name in ["grad_norm", "train/loss", "valid/loss"] {
            state.add(name, Span::Steps, 1, 1.0);
        }
        state
    }

    fn requests() -> Requests {
        Requests { stop: Ok("stop?".into()), checkpoint: Err("no hook".into()) }
    }

    fn press(view: &mut View, code: KeyCode) -> Option<Action> {
        view.press(KeyEvent::new(code, KeyModifiers::NONE), &state(), &requests())
    }

    #[test]
    fn nothing_is_sent_without_a_confirmation() {
        let mut view = View::new(false);
        assert_eq!(press(&mut view, KeyCode::Char('s')), None);
        assert_eq!(view.question(), Some("stop?"));
        for other in
            [KeyCode::Char('n'), KeyCode::Char('s'), KeyCode::Enter, KeyCode::Esc, KeyCode::Char('q')]
        {
            assert_eq!(press(&mut view, other), None, "{other:?}");
            assert_eq!((view.question(), view.message()), (None, Some("nothing was sent")));
            press(&mut view, KeyCode::Char('s'));
        }
        assert_eq!(press(&mut view, KeyCode::Char('y')), Some(Action::Stop));
        assert_eq!(press(&mut view, KeyCode::Char('y')), None);
        assert_eq!(press(&mut view, KeyCode::Char('c')), None);
        assert_eq!((view.question(), view.message()), (None, Some("no hook")));
    }

    #[test]
    fn control_c_interrupts_at_any_time_and_is_not_the_key_for_a_checkpoint() {
        let mut view = View::new(true);
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for before in [KeyCode::Null, KeyCode::Char('?'), KeyCode::Char('s')] {
            press(&mut view, before);
            assert_eq!(view.press(key, &state(), &requests()), Some(Action::Interrupt));
        }
    }

    #[test]
    fn the_cursor_begins_at_the_loss_and_kept_curves_remain_visible() {
        let (mut view, state) = (View::new(false), state());
        assert_eq!(view.shown(&state), ["train/loss"]);
        press(&mut view, KeyCode::Char(' '));
        press(&mut view, KeyCode::Down);
        press(&mut view, KeyCode::Down);
        assert_eq!(view.shown(&state), ["valid/loss", "train/loss"]);
        press(&mut view, KeyCode::Up);
        assert_eq!(view.shown(&state), ["train/loss"]);
        press(&mut view, KeyCode::Char(' '));
        press(&mut view, KeyCode::Char('k'));
        assert_eq!(view.shown(&state), ["grad_norm"]);
        assert_eq!(view.shown(&State::new("empty")), [""; 0]);
    }

    #[test]
    fn the_tab_key_cycles_through_the_panels() {
        let mut view = View::new(true);
        let mut seen = vec![view.panel()];
        for _ in 0..3 {
            press(&mut view, KeyCode::Tab);
            seen.push(view.panel());
        }
        press(&mut view, KeyCode::BackTab);
        seen.push(view.panel());
        assert_eq!(seen, [Panel::Log, Panel::Hooks, Panel::Warnings, Panel::Log, Panel::Warnings]);
    }
}
