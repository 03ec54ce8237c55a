//! Reading settings from a file.

use std::path::Path;

use clap::Arg;
use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use trainer_formats::run::{RUN_FILE, text_of_setting};

use super::names;
use crate::error::{Error, Result};
use crate::io::files::read_text;
use crate::io::terminal::one_line;

/// A setting in a file.
pub(super) struct FileSetting {
    /// The full name: the names of the enclosing tables and of the setting, joined by dots.
    pub(super) name: String,
    /// The path of the file and the line number, for messages.
    pub(super) place: String,
    /// The value as written in the file.
    pub(super) shown: String,
    pub(super) value: Value,
}

/// The value of a setting in a file.
pub(super) enum Value {
    One(Scalar),
    List(Vec<Scalar>),
    /// A table, or a list that contains tables or lists.
    Other(&'static str),
}

/// A single value, in the form that it has on the command line.
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) is_string: bool,
}

/// Reads the settings in a file, in the order in which they are written. `is_setting` returns
/// whether a name belongs to a setting rather than to a table of settings.
///
/// # Errors
///
/// Returns an error with the line if the file is not TOML, or cannot be read.
pub(super) fn read(path: &Path, is_setting: impl Fn(&str) -> bool) -> Result<Vec<FileSetting>> {
    let text = read_text(path).map_err(|error| {
        let is_missing = error.is_missing();
        let path = path.display();
        Error::usage(if is_missing {
            format!("the command line: `--config {path}`: the file does not exist: check the path")
        } else {
            format!("the command line: `--config`: {error}")
        })
    })?;
    let file = File { path, text: &text };
    let table = DeTable::parse(&text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text[..start].matches('\n').count();
        let shown = text.lines().nth(line).unwrap_or_default();
        Error::usage(format!(
            "{}: this is not valid TOML: {}\n    {}",
            file.place(start),
            one_line(error.message()),
            one_line(shown.trim())
        ))
    })?;
    let mut entries = Vec::new();
    file.add("", table.get_ref(), &is_setting, &mut entries);
    entries.sort_by_key(|(start, _)| *start);
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

/// Returns a setting that a run has recorded. A list is recorded as `[a, b]`.
pub(super) fn entry_of_run(folder: &Path, arg: &Arg, value: &Json) -> FileSetting {
    let shown = text_of_setting(value);
    let is_string = names::kind(arg) == names::Kind::Text;
    let scalar = |text: &str| Scalar { text: text.to_owned(), is_string };
    let list = shown.trim_matches(['[', ']']).split(", ").filter(|text| !text.is_empty());
    FileSetting {
        name: names::name(arg).to_owned(),
        place: folder.join(RUN_FILE).display().to_string(),
        value: if names::is_list(arg) {
            Value::List(list.map(scalar).collect())
        } else {
            Value::One(scalar(&shown))
        },
        shown,
    }
}

struct File<'f> {
    path: &'f Path,
    text: &'f str,
}

impl File<'_> {
    fn place(&self, start: usize) -> String {
        format!("{}:{}", self.path.display(), 1 + self.text[..start].matches('\n').count())
    }

    /// Adds the settings in a table and in its inner tables to `entries`, each with the position of
    /// its name in the file.
    fn add(
        &self,
        prefix: &str,
        table: &DeTable<'_>,
        is_setting: &impl Fn(&str) -> bool,
        entries: &mut Vec<(usize, FileSetting)>,
    ) {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(inner) if !is_setting(&name) && !inner.is_empty() => {
                    self.add(&format!("{name}."), inner, is_setting, entries);
                }
                _ => {
                    let start = key.span().start;
                    let shown = one_line(self.text.get(value.span()).unwrap_or_default());
                    let place = self.place(start);
                    entries.push((start, FileSetting { name, place, shown, value: Value::of(value) }));
                }
            }
        }
    }
}

impl Value {
    fn of(value: &Spanned<DeValue<'_>>) -> Self {
        match value.get_ref() {
            DeValue::Table(_) => Value::Other("a table"),
            DeValue::Array(list) => {
                let scalars = list.iter().map(|value| Scalar::of(value.get_ref())).collect();
                Option::map_or(scalars, Value::Other("a list of lists or tables"), Value::List)
            }
            scalar => Option::map_or(Scalar::of(scalar), Value::Other("a table"), Value::One),
        }
    }
}

impl Scalar {
    /// Converts a value. Returns `None` for a list or a table.
    fn of(value: &DeValue<'_>) -> Option<Self> {
        let text = match value {
            DeValue::String(text) => text.to_string(),
            // Rust's number parsers do not accept a prefix for the radix.
            DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| number.to_string(), |number| number.to_string()),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(is_true) => is_true.to_string(),
            DeValue::Datetime(time) => time.to_string(),
            DeValue::Array(_) | DeValue::Table(_) => return None,
        };
        Some(Scalar { text, is_string: matches!(value, DeValue::String(_)) })
    }
}
