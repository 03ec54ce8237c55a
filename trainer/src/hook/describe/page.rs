//! Formats lines for a terminal, with columns, wrapping and colors.

use console::Style;
use trainer_formats::{fit, padded};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::lines::{Folded, HookLine, Line};

/// The width of the column with `&` or `&mut`.
const ACCESS: usize = 5;

/// The kind of a text, which determines its style.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// The name of an operation that contains others.
    Heading,
    Plain,
    Faint,
    /// `&mut`.
    Changes,
    /// The name of a hook of the program.
    Hook,
}

/// Text for a terminal, built line by line.
pub(super) struct Page {
    pub(super) text: String,
    columns: usize,
    colors: bool,
    /// The column at which the hooks begin.
    left: usize,
    /// The column at which the hooks' sentences begin, if these are beside the hooks.
    beside: Option<usize>,
}

impl Page {
    pub(super) fn new(columns: usize, colors: bool) -> Self {
        Page { text: String::new(), columns, colors, left: 0, beside: None }
    }

    /// Sets the columns. Hooks begin at `left`. Sentences are beside the hooks if at least
    /// `min_sentence` columns are left for them, and below the hooks otherwise. If a hook takes up
    /// more than a third of a line, its sentence is always below it.
    pub(super) fn lay_out(&mut self, left: usize, hooks: impl Iterator<Item = usize>, min_sentence: usize) {
        let widest = hooks.filter(|width| *width <= self.columns / 3).max();
        let beside = widest.map(|widest| left + ACCESS + widest + 2);
        self.left = left;
        self.beside = beside.filter(|beside| beside + min_sentence <= self.columns);
    }

    /// Adds a line that consists of these texts, each in the style of its kind.
    fn line(&mut self, parts: &[(Part, &str)]) {
        let length =
            parts.iter().rposition(|(_, text)| !text.trim_end().is_empty()).map_or(0, |last| last + 1);
        for (nth, (part, text)) in parts[..length].iter().enumerate() {
            let text = if nth + 1 == length { text.trim_end() } else { text };
            let style = match part {
                Part::Heading => Style::new().bold(),
                Part::Plain => Style::new(),
                Part::Faint => Style::new().dim(),
                Part::Changes => Style::new().yellow(),
                Part::Hook => Style::new().cyan(),
            };
            self.text.push_str(&style.force_styling(self.colors).apply_to(text).to_string());
        }
        self.text.push('\n');
    }

    /// Adds a text that is wrapped to the full width, or an empty line if the text is empty.
    pub(super) fn paragraph(&mut self, text: &str) {
        wrap(text, self.columns).iter().for_each(|line| self.line(&[(Part::Faint, line)]));
    }

    /// Adds a table after an empty line. Its first line is its heading.
    pub(super) fn table(&mut self, lines: &[String]) {
        for (nth, line) in lines.iter().enumerate() {
            if nth == 0 {
                self.paragraph("");
            }
            self.line(&[(if nth == 0 { Part::Heading } else { Part::Plain }, line)]);
        }
    }

    /// Adds the name of a moment, and the lines of its hooks beside it.
    pub(super) fn group(&mut self, label: &str, part: Part, lines: &[Line]) {
        let is_beside = label.width() + 2 <= self.left && !lines.is_empty();
        if !is_beside {
            for line in wrap_indented(label, self.columns) {
                self.line(&[(part, &line)]);
            }
        }
        let mut label = padded(if is_beside { label } else { "" }, self.left);
        for line in lines {
            match line {
                Line::Hook(hook) => self.hook((part, &label), hook),
                Line::Folded(names) => {
                    let names = folded(names, self.columns - self.left);
                    self.line(&[(part, &label), (Part::Faint, &names)]);
                }
            }
            label = " ".repeat(self.left);
        }
    }

    fn hook(&mut self, label: (Part, &str), hook: &HookLine) {
        let indent = " ".repeat(self.left + ACCESS);
        let room = self.columns - indent.len();
        let access = padded(hook.access, ACCESS);
        let access = (if hook.access == "&" { Part::Plain } else { Part::Changes }, &*access);
        let fits = hook.width() <= room;
        let sentence = wrap(&hook.sentence, self.columns - self.beside.unwrap_or(indent.len()));
        let mut sentence = sentence.iter();
        let names = wrap(&hook.name, room);
        for (nth, name) in names.iter().enumerate() {
            let (label, access) =
                if nth == 0 { (label, access) } else { ((Part::Plain, &*indent), (Part::Plain, "")) };
            let when = if fits { format!("  {}", hook.when) } else { String::new() };
            let head = self.left + ACCESS + name.width() + when.width();
            let beside = self.beside.filter(|beside| fits && head + 2 <= *beside);
            let gap = " ".repeat(beside.map_or(0, |beside| beside - head));
            let first = beside.and_then(|_| sentence.next()).map_or("", String::as_str);
            self.line(&[
                label,
                access,
                (Part::Hook, name),
                (Part::Faint, &when),
                (Part::Plain, &gap),
                (Part::Plain, first),
            ]);
        }
        if !fits {
            for line in wrap(&hook.when, room) {
                self.line(&[(Part::Plain, &indent), (Part::Faint, &line)]);
            }
        }
        let indent = " ".repeat(self.beside.unwrap_or(indent.len()));
        sentence.for_each(|line| self.line(&[(Part::Plain, &indent), (Part::Plain, line)]));
    }
}

/// Joins the names of folded hooks; `+3` stands for three more that do not fit.
fn folded(names: &[Folded], columns: usize) -> String {
    let mut text = String::new();
    let mut hidden: usize = names.iter().map(|names| names.count).sum();
    for Folded { long, short, count } in names {
        let separator = if text.is_empty() { "" } else { ", " };
        let rest = hidden - count;
        let more = if rest == 0 { 0 } else { format!(" +{rest}").width() };
        let room = columns.saturating_sub(text.width() + separator.width() + more);
        let name = if long.width() <= room { long } else { short };
        if name.width() > room && !text.is_empty() {
            break;
        }
        text.push_str(separator);
        text.push_str(&fit(name, room));
        hidden = rest;
    }
    if hidden == 0 { text } else { format!("{text} +{hidden}") }
}

/// Splits a text into lines between its words. A word that is longer than a line is also split; a
/// path is split at its separators.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.width() + 1 + word.width() > columns {
            lines.push(std::mem::take(&mut line));
        } else if !line.is_empty() {
            line.push(' ');
        }
        if line.width() + word.width() <= columns {
            line.push_str(word);
            continue;
        }
        for letter in word.chars() {
            if line.width() + letter.width().unwrap_or(0) > columns {
                let end = line.rfind(['/', ':']).map_or(line.len(), |separator| separator + 1);
                let rest = line.split_off(end);
                lines.push(std::mem::replace(&mut line, rest));
            }
            line.push(letter);
        }
    }
    lines.push(line);
    lines
}

/// Splits an indented text into lines with the same indentation.
fn wrap_indented(text: &str, columns: usize) -> Vec<String> {
    let words = text.trim_start();
    let indent = &text[..(text.len() - words.len()).min(columns / 2)];
    wrap(words, columns - indent.len()).iter().map(|line| format!("{indent}{line}")).collect()
}
