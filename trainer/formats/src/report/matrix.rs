//! [`Matrix`]: confusion matrices, which are recorded as one number per element.

use std::collections::{BTreeMap, BTreeSet};

use crate::run::{Point, Span};

/// A confusion matrix, built from the last values of the metrics `<name>/<target>/<prediction>`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    /// The name with its phase: `valid/confusion_matrix`.
    pub(super) name: String,
    /// The class of each row and column.
    pub(super) classes: Vec<String>,
    pub(super) rows: Vec<Vec<f64>>,
    /// The epoch in which the values were recorded.
    pub(super) epoch: u64,
}

/// Splits a metric's name into matrix name, row and column. Returns `None` for a name of another
/// form.
fn element(metric: &str) -> Option<(&str, &str, &str)> {
    let (rest, column) = metric.rsplit_once('/')?;
    let (name, row) = rest.rsplit_once('/')?;
    Some((name, row, column))
}

/// Returns whether a metric is an element of one of these matrices.
pub(super) fn is_element(metric: &str, matrices: &[Matrix]) -> bool {
    element(metric).is_some_and(|(name, ..)| matrices.iter().any(|matrix| matrix.name == name))
}

/// Builds a matrix for each name whose elements form a square with the same classes in its rows and
/// columns. Only metrics of whole passes count as elements.
pub(super) fn matrices_of(points: &[Point]) -> Vec<Matrix> {
    let mut found: BTreeMap<&str, Elements<'_>> = BTreeMap::new();
    for point in points.iter().filter(|point| point.span == Span::Pass) {
        if let Some((name, row, column)) = element(&point.name) {
            let elements = found.entry(name).or_default();
            if elements.known.insert(row) {
                elements.classes.push(row);
            }
            elements.values.insert((row, column), point.value);
            elements.epoch = point.epoch;
        }
    }
    found.into_iter().filter_map(|(name, elements)| elements.matrix(name)).collect()
}

/// The elements of what may be a matrix.
#[derive(Default)]
struct Elements<'p> {
    known: BTreeSet<&'p str>,
    /// The rows, in the order in which they were recorded.
    classes: Vec<&'p str>,
    values: BTreeMap<(&'p str, &'p str), f64>,
    epoch: u64,
}

impl Elements<'_> {
    fn matrix(mut self, name: &str) -> Option<Matrix> {
        let numbers: Option<Vec<usize>> = self.classes.iter().map(|class| class.parse().ok()).collect();
        if numbers.is_some_and(|numbers| numbers.iter().all(|number| *number < numbers.len())) {
            self.classes.sort_by_key(|class| class.parse::<usize>().unwrap_or(0));
        }
        let side = self.classes.len();
        let row = |row| self.classes.iter().map(|column| self.values.get(&(row, *column)).copied()).collect();
        let rows: Option<Vec<Vec<f64>>> = self.classes.iter().map(|class| row(*class)).collect();
        let is_square = side >= 2 && side * side == self.values.len();
        let classes = self.classes.iter().map(|class| (*class).to_owned()).collect();
        rows.filter(|_| is_square).map(|rows| Matrix {
            name: name.to_owned(),
            classes,
            rows,
            epoch: self.epoch,
        })
    }
}
