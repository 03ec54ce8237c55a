//! [`Table`]: columns that fit the terminal.

use std::fmt::Write;

use trainer_formats::{fit, one_line};
use unicode_width::UnicodeWidthStr;

use crate::output::{FAINT, HEADING, PLAIN, Style};

/// The space between two adjacent columns of a table.
pub(crate) const GAP: usize = 2;
/// Titles are not shortened to less than this width.
const SHORT_TITLE: usize = 10;

/// A cell: text and its style.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Cell::styled(text, PLAIN)
    }

    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Cell { text: one_line(&text.into()).into_owned(), style }
    }
}

/// A column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    title: String,
    /// The name in the note about omitted columns.
    name: String,
    cells: Vec<Cell>,
    is_right: bool,
    /// The minimum width to which cells may be shortened.
    least: usize,
    /// The maximum width in a terminal.
    most: usize,
    /// The rank: columns with a higher rank are omitted first.
    rank: usize,
}

impl Column {
    pub(crate) fn text(title: impl Into<String>, rank: usize, cells: Vec<Cell>) -> Self {
        let title = one_line(&title.into()).into_owned();
        Column { name: title.clone(), title, cells, is_right: false, least: 12, most: 40, rank }
    }

    /// Creates a column of right-aligned cells.
    pub(crate) fn value(title: impl Into<String>, rank: usize, cells: Vec<Cell>) -> Self {
        Column { is_right: true, least: 8, most: 20, ..Column::text(title, rank, cells) }
    }

    /// Creates a column of numbers, which are right-aligned and not shortened.
    pub(crate) fn number(title: impl Into<String>, rank: usize, cells: Vec<Cell>) -> Self {
        Column { least: usize::MAX, ..Column::value(title, rank, cells) }
    }

    /// Sets the name in the note about omitted columns, if the title is not clear enough there.
    pub(crate) fn named(mut self, name: impl Into<String>) -> Self {
        self.name = one_line(&name.into()).into_owned();
        self
    }

    /// Sets the minimum width to which cells may be shortened.
    pub(crate) fn least(mut self, least: usize) -> Self {
        self.least = least;
        self
    }

    /// Returns the minimum width of the column, which its shortened cells and title need.
    pub(crate) fn least_width(&self) -> usize {
        self.width_of_cells().min(self.least).max(self.title.width().min(SHORT_TITLE)).min(self.most)
    }

    fn width_of_cells(&self) -> usize {
        self.cells.iter().map(|cell| cell.text.width()).max().unwrap_or(0)
    }
}

/// A table with a header line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
}

impl Table {
    /// Returns the text of the table, which fits into `width` columns, and the names of the columns
    /// that are omitted.
    pub(crate) fn render(&self, width: Option<usize>) -> (String, Vec<&str>) {
        let (widths, left_out) = self.fitted(width);
        let shown: Vec<_> = self
            .columns
            .iter()
            .zip(&widths)
            .filter_map(|(column, width)| Some((column, (*width)?)))
            .collect();
        let rows = shown.iter().map(|(column, _)| column.cells.len()).max().unwrap_or(0);
        let mut text = String::new();
        if shown.iter().any(|(column, _)| !column.title.is_empty()) {
            let titles = shown
                .iter()
                .map(|(column, width)| (Cell::styled(&*column.title, HEADING), column.is_right, *width));
            write_row(&mut text, titles);
        }
        for row in 0..rows {
            let cells = shown.iter().map(|(column, width)| {
                (column.cells.get(row).cloned().unwrap_or_default(), column.is_right, *width)
            });
            write_row(&mut text, cells);
        }
        (text, left_out)
    }

    /// Chooses the width of each column, which is `None` if the column is omitted. Also returns the
    /// names of the omitted columns.
    fn fitted(&self, width: Option<usize>) -> (Vec<Option<usize>>, Vec<&str>) {
        let full = self.columns.iter().map(|column| column.width_of_cells().max(column.title.width()));
        let Some(room) = width else { return (full.map(Some).collect(), Vec::new()) };
        let full: Vec<usize> =
            full.zip(&self.columns).map(|(width, column)| width.min(column.most)).collect();
        let least: Vec<usize> = self.columns.iter().map(Column::least_width).collect();
        let mut kept = vec![true; self.columns.len()];
        let mut by_rank: Vec<usize> = (0..self.columns.len()).collect();
        by_rank.sort_by_key(|index| self.columns[*index].rank);
        let mut needed = least.iter().map(|least| least + GAP).sum::<usize>().saturating_sub(GAP);
        while needed > room && by_rank.len() > 1 {
            let last = by_rank.pop().unwrap_or_default();
            kept[last] = false;
            needed -= least[last] + GAP;
        }
        let mut spare = room.saturating_sub(needed);
        let mut widths: Vec<_> =
            least.iter().zip(&kept).map(|(least, kept)| kept.then_some(*least)).collect();
        // The columns grow by one in turn, until there is no space left or none of them needs more.
        while spare > 0 {
            let before = spare;
            for index in by_rank.iter().copied() {
                if let Some(width) = &mut widths[index]
                    && *width < full[index]
                    && spare > 0
                {
                    *width += 1;
                    spare -= 1;
                }
            }
            if spare == before {
                break;
            }
        }
        let left_out = self.columns.iter().zip(&kept).filter(|(_, kept)| !**kept);
        (widths, left_out.map(|(column, _)| column.name.as_str()).collect())
    }
}

fn write_row(text: &mut String, cells: impl Iterator<Item = (Cell, bool, usize)>) {
    let mut line = String::new();
    let mut padding = 0;
    for (nth, (cell, is_right, width)) in cells.enumerate() {
        let content = fit(&cell.text, width);
        let empty = width - content.width().min(width);
        padding += if nth == 0 { 0 } else { GAP };
        let (before, after) = if is_right { (empty, 0) } else { (0, empty) };
        padding += before;
        if !content.is_empty() {
            // Spaces at the end of a line are left out.
            let _ = write!(line, "{:padding$}{}{content}{:#}", "", cell.style, cell.style);
            padding = 0;
        }
        padding += after + if content.is_empty() { content.width() } else { 0 };
    }
    text.push_str(&line);
    text.push('\n');
}

/// Returns the note about the columns that do not fit into the terminal, if there are any.
pub(crate) fn note(left_out: &[&str], width: Option<usize>) -> Option<String> {
    if left_out.is_empty() {
        return None;
    }
    let text = format!("omitted columns (--json has all): {}", left_out.join(", "));
    let text = width.map_or(text.clone(), |width| fit(&text, width));
    Some(format!("{FAINT}{text}{FAINT:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let cells = |texts: &[&str]| texts.iter().map(|text| Cell::new(*text)).collect();
        Table {
            columns: vec![
                Column::text("run", 0, cells(&["0001", "a long name of a run"])),
                Column::number("loss", 1, cells(&["0.5", "12.25"])),
                Column::text("状態", 3, cells(&["完了", ""])),
                Column::number("a long title of a column", 2, cells(&["1", "2"])),
            ],
        }
    }

    #[test]
    fn columns_are_shortened_and_then_left_out() {
        let table = table();
        let plain = |text: String| text.replace(|letter| matches!(letter, '\u{fdd0}'..='\u{fdef}'), "");
        let (text, left_out) = table.render(None);
        assert_eq!(
            plain(text),
            "run                    loss  状態  a long title of a column\n\
             0001                    0.5  完了                         1\n\
             a long name of a run  12.25                               2\n"
        );
        assert!(left_out.is_empty());
        for (width, lost) in [(80, 0), (53, 0), (37, 0), (36, 1), (31, 1), (30, 2), (19, 2), (18, 3), (5, 3)]
        {
            let (text, left_out) = table.render(Some(width));
            let text = plain(text);
            assert_eq!(left_out.len(), lost, "{width}: {text}");
            let longest = text.lines().map(UnicodeWidthStr::width).max();
            assert!(longest <= Some(width.max(12)), "{width}: {text}");
        }
    }

    #[test]
    fn shortened_text_has_no_control_characters() {
        assert_eq!(fit("a\tb\u{1b}[1m", 20), "a b\\u{1b}[1m");
        assert_eq!(fit("状態状態", 5), "状態…");
    }
}
