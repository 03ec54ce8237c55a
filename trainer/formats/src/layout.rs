//! Text of limited width, columns, and durations.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::one_line;

/// Returns the text as one line of at most `width` columns of a terminal. If it is shortened, it
/// ends in `…`.
///
/// ```
/// assert_eq!(trainer_formats::fit("a long text", 6), "a lon…");
/// ```
pub fn fit(text: &str, width: usize) -> String {
    let line = one_line(text);
    if line.width() <= width {
        return line.into_owned();
    }
    let (mut kept, mut used) = (String::new(), 1);
    for letter in line.chars() {
        used += letter.width().unwrap_or(0);
        if used > width {
            break;
        }
        kept.push(letter);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// Pads a text with spaces to this width.
pub fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

/// Lays out rows in columns that are two spaces apart and as wide as their widest cells. Columns
/// from `numbers` on are aligned to the right. Returns a line for each row.
///
/// ```
/// let rows = [["name", "size"], ["fc", "8"]].map(|row| row.map(String::from));
/// assert_eq!(trainer_formats::columns(&rows, 1), ["name  size", "fc       8"]);
/// ```
pub fn columns(rows: &[impl AsRef<[String]>], numbers: usize) -> Vec<String> {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.as_ref().len()), 0);
        widths.iter_mut().zip(row.as_ref()).for_each(|(width, cell)| *width = cell.width().max(*width));
    }
    let lines = rows.iter().map(|row| {
        let cells =
            row.as_ref().iter().zip(&widths).enumerate().map(|(nth, (cell, width))| match nth < numbers {
                true => padded(cell, *width),
                false => " ".repeat(width - cell.width()) + cell,
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect()
}

/// Like [`columns`], but shortens the cells of the first column, to at least eight columns of the
/// terminal, so that the lines have at most this width.
///
/// ```
/// let rows = [["name", "size"], ["encoder.layers.0", "8"]].map(|row| row.map(String::from));
/// assert_eq!(trainer_formats::columns_within(&rows, 1, 16), ["name        size", "encoder.l…     8"]);
/// ```
pub fn columns_within(rows: &[impl AsRef<[String]>], numbers: usize, width: usize) -> Vec<String> {
    let lines = columns(rows, numbers);
    let excess = lines.iter().map(|line| line.width()).max().unwrap_or(0).saturating_sub(width);
    if excess == 0 {
        return lines;
    }
    let mut rows: Vec<Vec<String>> = rows.iter().map(|row| row.as_ref().to_vec()).collect();
    let first = rows.iter().map(|row| row[0].width()).max().unwrap_or(0);
    let room = first.saturating_sub(excess).max(8);
    rows.iter_mut().for_each(|row| row[0] = fit(&row[0], room));
    columns(&rows, numbers)
}

/// Returns a hook and its moment, without the path of the hook's module: `Csv at after_record`,
/// `ClipGradNorm::clip around opt_step`.
///
/// ```
/// assert_eq!(trainer_formats::without_path("trainer::loggers::Csv"), "Csv");
/// ```
#[must_use]
pub fn without_path(hook: &str) -> &str {
    let end = hook.find(['(', '<', ' ']).unwrap_or(hook.len());
    let Some(name) = hook[..end].rfind("::") else { return hook };
    let owner = hook[..name].rfind("::").map_or(0, |at| at + 2);
    let is_type = hook[owner..].starts_with(char::is_uppercase);
    &hook[if is_type { owner } else { name + 2 }..]
}

/// Formats a duration in nanoseconds with its unit and, from 1 µs on, at least three significant
/// digits.
///
/// ```
/// assert_eq!([7, 1_234, 12_345_678].map(trainer_formats::duration), ["7 ns", "1.23 µs", "12.3 ms"]);
/// ```
pub fn duration(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (value / 1e3, "µs"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}
