//! The common format of locks and goldens: a title, and sections of lines.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};
use crate::io::files::{self, Links, in_file, is_file};

/// The environment variable that requests that locks and goldens be written.
const VARIABLE: &str = "TRAINER_LOCK";

/// Whether the environment variable requests that locks and goldens be written.
///
/// # Errors
///
/// Returns an error if the environment variable has a value other than `update`.
pub(super) fn is_update_requested() -> Result<bool> {
    match std::env::var(VARIABLE) {
        Ok(value) if value == "update" => Ok(true),
        Ok(value) if !value.is_empty() => {
            Err(Error::usage(format!("`{VARIABLE}={value}`: expected `update`")))
        }
        _ => Ok(false),
    }
}

/// The format of a kind of file.
pub(super) struct Format {
    /// What messages call a file of this kind.
    pub(super) name: &'static str,
    /// The beginning of the first line.
    pub(super) title: &'static str,
}

/// A section of a file: a title in brackets, and the lines below it with their line numbers.
pub(super) struct Section<'t> {
    pub(super) title: &'t str,
    pub(super) lines: Vec<(usize, &'t str)>,
}

impl Format {
    /// The first line of a file: the title, the version of the format, and how to change the file.
    fn first_line(&self) -> String {
        format!("{}, version 1. To change it: {VARIABLE}=update", self.title)
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read. If it does not exist, the error says how to
    /// write it.
    pub(super) fn read(&self, path: &Path) -> Result<String> {
        if is_file(path) {
            return Ok(files::read_text(path)?);
        }
        let text = format!(
            "there is no {}: write it with `{VARIABLE}=update`, and add it to the repository",
            self.name
        );
        Err(in_file(path, text))
    }

    /// Writes a file. An existing file is replaced only if it has this format.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written, if the existing file has another format, or
    /// if [`read`](Self::read) could not read the new one, because it is too long.
    pub(super) fn write(&self, path: &Path, text: &str) -> Result<()> {
        if text.len() as u64 > files::MAX_TEXT_BYTES {
            let name = self.name;
            return Err(in_file(
                path,
                format!(
                    "the {name} would be longer than 16 MiB, which cannot be read: if it has steps, record fewer"
                ),
            ));
        }
        let is_of_format = |path: &Path| {
            let title = format!("{}, version ", self.title);
            let (file, length) = files::open(path, Links::Refuse)?;
            if files::read_start(path, &file, length.min(title.len() as u64))? == title.as_bytes() {
                return Ok(());
            }
            let text =
                format!("this file is not a {}, so it is not replaced: choose another path", self.name);
            Err(in_file(path, text))
        };
        files::replace_file(path, is_of_format, |file| Ok(file.write(text.as_bytes())?))
    }

    /// Returns the text of a file with these sections.
    pub(super) fn text(&self, sections: &[(&str, Vec<String>)]) -> String {
        let mut text = self.first_line() + "\n";
        for (title, lines) in sections {
            text.push_str(&format!("\n[{title}]\n"));
            lines.iter().for_each(|line| text.extend([line.trim(), "\n"]));
        }
        text
    }

    /// Returns the sections of a file.
    pub(super) fn sections<'t>(&self, text: &'t str) -> Result<Vec<Section<'t>>, String> {
        let mut lines = text.lines().map(str::trim).zip(1..);
        let first_line = self.first_line();
        if lines.next().is_none_or(|(first, _)| first != first_line) {
            return Err(format!(
                "this is not a {} of this version, which begins with `{first_line}`: write it with `{VARIABLE}=update`",
                self.name
            ));
        }
        let mut sections: Vec<Section<'t>> = Vec::new();
        for (line, number) in lines.filter(|(line, _)| !line.is_empty()) {
            let title = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            if title.is_some_and(|title| sections.iter().any(|section| section.title == title)) {
                return Err(self.is_misplaced(number, line));
            }
            match (title, sections.last_mut()) {
                (Some(title), _) => sections.push(Section { title, lines: Vec::new() }),
                (None, Some(section)) => section.lines.push((number, line)),
                (None, None) => return Err(self.is_not(number, line)),
            }
        }
        Ok(sections)
    }

    /// The message about a line that does not belong in a file of this format.
    pub(super) fn is_not(&self, number: usize, line: &str) -> String {
        format!("line {number} does not belong in a {}: `{line}`", self.name)
    }

    /// The message about a line that is not in its place.
    fn is_misplaced(&self, number: usize, line: &str) -> String {
        format!(
            "line {number} is not in its place in this {}: `{line}`; restore the file, or write it with `{VARIABLE}=update`",
            self.name
        )
    }

    /// Returns an error unless the text of a file is the one that its content is written as, apart
    /// from space and empty lines. A line that was moved, removed or repeated is then not read as
    /// something else.
    pub(super) fn check_places(&self, text: &str, written: &str) -> Result<(), String> {
        let lines = |text| str::lines(text).map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty());
        let mut expected = lines(written).map(|(line, _)| line);
        for (line, number) in lines(text) {
            if expected.next() != Some(line) {
                return Err(self.is_misplaced(number, line));
            }
        }
        match expected.next() {
            None => Ok(()),
            Some(line) => Err(format!(
                "the line `{line}` is missing: restore the file, or write it with `{VARIABLE}=update`"
            )),
        }
    }

    /// Returns the values of a section by name.
    pub(super) fn values(&self, section: &Section<'_>) -> Result<BTreeMap<String, String>, String> {
        let lines = section.lines.iter();
        let values = lines.map(|(number, line)| {
            let (name, value) = line.split_once(" =").ok_or_else(|| self.is_not(*number, line))?;
            Ok((name.to_owned(), value.trim().to_owned()))
        });
        values.collect()
    }
}

/// Formats named values as lines.
pub(super) fn lines_of(values: &BTreeMap<String, String>) -> Vec<String> {
    values.iter().map(|(name, value)| format!("{name} = {value}")).collect()
}
