//! [`Matrix`]: confusion matrices, which are recorded as one number per element.

use std::collections::BTreeMap;

use crate::run::{Point, Span};

/// A confusion matrix, built from the last values of the metrics `<name>/<target>/<prediction>`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    /// The name with its phase: `valid/confusion_matrix`.
    pub(super) name: String,
    pub(super) rows: Vec<Vec<f64>>,
    /// The epoch in which the values were recorded.
    pub(super) epoch: u64,
}

/// Splits a metric's name into matrix name, row and column. Returns `None` for a name of another
/// form.
fn element(metric: &str) -> Option<(&str, usize, usize)> {
    let (rest, column) = metric.rsplit_once('/')?;
    let (name, row) = rest.rsplit_once('/')?;
    Some((name, row.parse().ok()?, column.parse().ok()?))
}

/// Returns whether a metric is an element of one of these matrices.
pub(super) fn is_element(metric: &str, matrices: &[Matrix]) -> bool {
    element(metric).is_some_and(|(name, ..)| matrices.iter().any(|matrix| matrix.name == name))
}

/// Builds a matrix for each name whose elements form a square. Only metrics of whole passes count
/// as elements.
pub(super) fn matrices_of(points: &[Point]) -> Vec<Matrix> {
    type Elements = BTreeMap<(usize, usize), f64>;
    let mut found: BTreeMap<&str, (Elements, u64)> = BTreeMap::new();
    for point in points.iter().filter(|point| point.span == Span::Pass) {
        if let Some((name, row, column)) = element(&point.name) {
            let (elements, epoch) = found.entry(name).or_default();
            elements.insert((row, column), point.value);
            *epoch = point.epoch;
        }
    }
    let matrices = found.into_iter().filter_map(|(name, (elements, epoch))| {
        let side = elements.len().isqrt();
        let row = |row| (0..side).map(|column| elements.get(&(row, column)).copied()).collect();
        let rows: Option<Vec<Vec<f64>>> = (0..side).map(row).collect();
        let is_square = side >= 2 && side * side == elements.len();
        rows.filter(|_| is_square).map(|rows| Matrix { name: name.to_owned(), rows, epoch })
    });
    matrices.collect()
}
