//! A table of metrics per class.

use std::fmt::Write;

use trainer::Metrics;

/// Returns a table with a row for each class and a column for each metric, in percent. The metric
/// `accuracy`, for example, is read from `valid/accuracy/0` and so on. The last row is the metric
/// over all classes. Values missing from `metrics` are shown as NaN.
#[must_use]
pub fn table(metrics: &Metrics, phase: &str, names: &[&str], classes: usize) -> String {
    let mut text = String::from("class");
    for name in names {
        let _ = write!(text, "  {name:>9}");
    }
    let rows = (0..classes).map(|class| (class.to_string(), format!("/{class}")));
    for (title, suffix) in rows.chain([("all".to_owned(), String::new())]) {
        let _ = write!(text, "\n{title:>5}");
        for name in names {
            let value = metrics.get(&format!("{phase}/{name}{suffix}")).unwrap_or(f64::NAN);
            let _ = write!(text, "  {:>7.2} %", 100.0 * value);
        }
    }
    text
}
