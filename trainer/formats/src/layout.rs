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
