//! [`Curves`]: the curves of a report, arranged in plots.

use std::collections::BTreeMap;

use super::Content;
use super::matrix::{Matrix, is_element};
use crate::run::{Point, Span, parse_time};

/// The plots of all runs, in groups.
pub(super) struct Curves {
    /// The smallest and the largest number of optimizer steps.
    pub(super) steps: (f64, f64),
    pub(super) groups: Vec<Group>,
    /// For each run, the marks on the horizontal axis.
    pub(super) marks: Vec<Marks>,
}

/// The plots of metrics whose names begin with the same word.
pub(super) struct Group {
    /// The first word; empty for metrics whose names are a single word.
    pub(super) name: String,
    pub(super) plots: Vec<Plot>,
    /// The metrics whose values never change, such as most hyperparameters; empty if the names are
    /// a single word.
    pub(super) constant: Vec<Plot>,
}

/// The curves of one metric, in all phases and runs.
pub(super) struct Plot {
    /// The name without the phase.
    pub(super) name: String,
    pub(super) lines: Vec<Line>,
}

/// The values of one metric in one phase of one run.
pub(super) struct Line {
    /// The index of the run.
    pub(super) run: usize,
    pub(super) phase: String,
    /// The points, as pairs of optimizer step and value.
    pub(super) points: Vec<(f64, f64)>,
}

impl Line {
    fn is_constant(&self) -> bool {
        self.points.iter().all(|(_, value)| *value == self.points[0].1)
    }
}

/// The positions of the marks on the horizontal axis, in optimizer steps.
#[derive(Default)]
pub(super) struct Marks {
    /// The resumes, with their times.
    pub(super) resumes: Vec<(f64, String)>,
    /// The validation passes.
    pub(super) validations: Vec<f64>,
}

impl Curves {
    /// Arranges the values of all runs. `matrices` contains the confusion matrices of each run;
    /// their elements get no curves.
    pub(super) fn of(runs: &[Content], matrices: &[Vec<Matrix>]) -> Self {
        // Keyed by the name without the phase, then by run and phase.
        let mut plots: BTreeMap<(Vec<Word>, String), Vec<Line>> = BTreeMap::new();
        for (run, content) in runs.iter().enumerate() {
            for (name, line) in lines_of(run, &content.points, &matrices[run]) {
                plots.entry((words(&name), name)).or_default().push(line);
            }
        }
        let plots = plots.into_iter().map(|((_, name), lines)| Plot { name, lines });
        // One value is not a curve: it is in the table.
        let plots = plots.filter(|plot| plot.lines.iter().any(|line| line.points.len() > 1));
        let mut groups: BTreeMap<String, Vec<Plot>> = BTreeMap::new();
        for plot in plots {
            let group = plot.name.split_once('/').map_or("", |(group, _)| group).to_owned();
            groups.entry(group).or_default().push(plot);
        }
        // A metric whose name is a single word, and metrics whose names begin with that word, such
        // as those of each class, are in different groups.
        if let Some(first) = groups.get_mut("") {
            first.sort_by_key(|plot| plot.name != "loss");
        }
        let groups = groups.into_iter().map(|(name, plots)| {
            let is_constant = |plot: &Plot| !name.is_empty() && plot.lines.iter().all(Line::is_constant);
            let (constant, plots) = plots.into_iter().partition(is_constant);
            Group { name, plots, constant }
        });
        let groups: Vec<_> = groups.collect();
        let all = || groups.iter().flat_map(|group| &group.plots).flat_map(|plot| &plot.lines);
        let steps = || all().flat_map(|line| &line.points).map(|(step, _)| *step);
        let (low, high) = (steps().fold(f64::INFINITY, f64::min), steps().fold(0.0, f64::max));
        let steps = if low < high { (low, high) } else { (high, high + 1.0) };
        Curves { steps, groups, marks: runs.iter().map(marks_of).collect() }
    }
}

/// Returns the curves of a run, each with the name of its metric without the phase. A training
/// curve shows the records within epochs if there are more of them than epochs.
fn lines_of(run: usize, points: &[Point], matrices: &[Matrix]) -> Vec<(String, Line)> {
    type Values = Vec<(f64, f64)>;
    let mut all: BTreeMap<(&str, &str), (Values, Values)> = BTreeMap::new();
    for point in points {
        let (passes, steps) = all.entry((&point.name, &point.phase)).or_default();
        let own = if point.span == Span::Pass { passes } else { steps };
        own.push((point.optimizer_steps as f64, point.value));
    }
    let lines = all.into_iter().filter(|((name, _), _)| !is_element(name, matrices));
    let lines = lines.map(|((name, phase), (passes, steps))| {
        let points =
            if phase == "train" && steps.len() > passes.len() || passes.is_empty() { steps } else { passes };
        let own = name.strip_prefix(phase).and_then(|name| name.strip_prefix('/')).unwrap_or(name);
        (own.to_owned(), Line { run, phase: phase.to_owned(), points })
    });
    lines.collect()
}

/// Returns the marks of a run on the horizontal axis.
fn marks_of(content: &Content) -> Marks {
    let mut marks = Marks::default();
    for resumed in &content.file.resumed {
        let Some(time) = parse_time(resumed) else { continue };
        let seconds = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        // The run continued from its last record before this time.
        let before = content.points.iter().take_while(|point| point.time < seconds).last();
        marks.resumes.push((before.map_or(0.0, |point| point.optimizer_steps as f64), resumed.clone()));
    }
    for point in content.points.iter().filter(|point| point.span == Span::Pass && &*point.phase == "valid") {
        let steps = point.optimizer_steps as f64;
        if marks.validations.last() != Some(&steps) {
            marks.validations.push(steps);
        }
    }
    marks
}

/// A part of a name, ordered so that `class/2` precedes `class/10`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Number(u64),
    Text(String),
}

/// Splits a name into numbers and the text between them.
fn words(name: &str) -> Vec<Word> {
    let mut words = Vec::new();
    for part in name.split_inclusive(|character: char| !character.is_ascii_digit()) {
        let digits = part.trim_end_matches(|character: char| !character.is_ascii_digit());
        if let Ok(number) = digits.parse() {
            words.push(Word::Number(number));
        }
        let text = &part[digits.len()..];
        match words.last_mut() {
            Some(Word::Text(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => words.push(Word::Text(text.to_owned())),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn numbers_within_names_are_sorted_numerically() {
        let mut names = ["class/10", "class/2", "class", "fc1.weight", "fc10.weight", "fc2.weight", "7"];
        names.sort_by_key(|name| words(name));
        assert_eq!(names, ["7", "class", "class/2", "class/10", "fc1.weight", "fc2.weight", "fc10.weight"]);
    }
}
