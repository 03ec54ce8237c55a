//! The description of a trainer's hooks on the terminal of the program.

use std::collections::BTreeMap;

use super::added::origins;
use crate::error::Result;
use crate::hook::HookTable;
use crate::hook::describe::in_format;
use crate::io::terminal::{COLUMNS, of_stdout, print_styled_line};
use crate::optim::ParameterRow;
use crate::run::{Model, Table};

/// Describes what runs: the hooks, and the parameters by group of the optimizer. `seen` has the
/// kinds of values that each hook was seen to change, by the hook's index.
pub(crate) fn describe(table: &Table, model: &Model, seen: &BTreeMap<usize, Vec<&'static str>>) -> HookTable {
    let parameters = ParameterRow::all(&model.optimizers, &model.vars);
    HookTable::of(table, seen, origins()).with_parameters(parameters)
}

/// Returns the description in the format that the environment variable `TRAINER_DESCRIBE` names, or
/// `None` if the variable is not set.
///
/// # Errors
///
/// Returns an error if the value of the variable is not a known format.
pub(crate) fn requested(describe: impl FnOnce() -> HookTable) -> Result<Option<String>> {
    let Some(format) = std::env::var_os("TRAINER_DESCRIBE") else { return Ok(None) };
    in_format(describe(), &format.to_string_lossy(), HookTable::for_stdout).map(Some)
}

impl HookTable {
    /// Prints the table to standard output, followed by an empty line. On a terminal, it has the
    /// form of [`terminal`](HookTable::terminal), with the terminal's width and colors; in a file
    /// or a pipe, it is in Markdown. Below it is a line with the types that
    /// [`not_added`](HookTable::not_added) returns, if there are any.
    ///
    /// ```no_run
    /// # use trainer::prelude::*;
    /// # fn show(trainer: &Trainer<impl Task>) {
    /// trainer.describe_hooks().print();
    /// # }
    /// ```
    pub fn print(&self) {
        let text = match of_stdout() {
            Some(terminal) => self.styled(terminal.columns, terminal.colors),
            None => self.to_string() + "\n",
        };
        print_styled_line(text + &self.absent_line());
    }

    /// Returns the [`terminal`](HookTable::terminal) form of the table, as wide as the terminal, or
    /// with 80 columns if standard output is not a terminal.
    fn for_stdout(&self) -> String {
        of_stdout()
            .map_or_else(|| self.terminal(COLUMNS), |terminal| self.styled(terminal.columns, terminal.colors))
    }
}
