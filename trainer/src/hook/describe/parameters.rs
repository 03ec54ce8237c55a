//! The second table: the parameters by group of the optimizer.

use serde_json::{Value, json};
use trainer_formats::{brief, columns, fit, padded};
use unicode_width::UnicodeWidthStr;

use crate::optim::ParameterRow;

/// The minimum number of columns for the names of the groups. If there are fewer, the numbers of a
/// group are below its name.
const MIN_NAME: usize = 20;

const HEADINGS: [&str; 6] = ["Parameters", "Count", "Elements", "Rate", "Decay", "Frozen"];

/// Returns the cells of the table, with its headings.
pub(super) fn cells(rows: &[ParameterRow]) -> Vec<[String; 6]> {
    let headings = (!rows.is_empty()).then(|| HEADINGS.map(String::from));
    let cells = rows.iter().map(|row| {
        let number = |value: Option<f64>| value.map(brief).unwrap_or_default();
        [
            name(row, rows),
            row.parameters.len().to_string(),
            row.elements.to_string(),
            number(row.lr),
            number(row.weight_decay),
            row.frozen.to_string(),
        ]
    });
    headings.into_iter().chain(cells).collect()
}

/// Returns the name of a row: `generator: AdamW *.bias`, or `AdamW` if its optimizer has one group.
fn name(row: &ParameterRow, rows: &[ParameterRow]) -> String {
    let Some(algorithm) = row.algorithm else {
        return format!("no optimizer: {}", row.parameters.join(", "));
    };
    let is_of_part = |other: &&ParameterRow| other.algorithm.is_some() && other.part == row.part;
    let part = if row.part.is_empty() { String::new() } else { format!("{}: ", row.part) };
    let group = if rows.iter().filter(is_of_part).count() > 1 { &row.group } else { "" };
    format!("{part}{algorithm} {group}").trim_end().to_owned()
}

/// Returns the lines of the table for a terminal of this width.
pub(super) fn lines(rows: &[ParameterRow], width: usize) -> Vec<String> {
    let cells = cells(rows);
    let numbers = columns(&cells.iter().map(|row| &row[1..]).collect::<Vec<_>>(), 0);
    let room = width.saturating_sub(2 + numbers.iter().map(|line| line.width()).max().unwrap_or(0));
    if room < MIN_NAME {
        let lines =
            cells.iter().zip(numbers).flat_map(|(row, numbers)| [row[0].clone(), "  ".to_owned() + &numbers]);
        return lines.map(|line| fit(&line, width)).collect();
    }
    let names: Vec<String> = cells.iter().map(|row| fit(&row[0], room)).collect();
    let widest = names.iter().map(|name| name.width()).max().unwrap_or(0);
    names.iter().zip(numbers).map(|(name, numbers)| format!("{}  {numbers}", padded(name, widest))).collect()
}

pub(super) fn json(row: &ParameterRow) -> Value {
    json!({
        "part": row.part,
        "group": row.group,
        "algorithm": row.algorithm,
        "lr": row.lr,
        "weight_decay": row.weight_decay,
        "parameters": row.parameters,
        "elements": row.elements,
        "frozen": row.frozen,
    })
}
