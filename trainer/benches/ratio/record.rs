//! Prints results as JSON lines for `scripts/bench_history.py`.

#![allow(clippy::disallowed_macros)]

use serde::Serialize;

/// The environment variable that requests JSON lines if it is `json`.
const FORMAT: &str = "TRAINER_BENCH";

/// A measurement: the time of a case, and its ratio to the time of the baseline.
#[derive(Serialize)]
struct Record<'a> {
    bench: &'static str,
    title: &'a str,
    case: &'a str,
    nanoseconds: f64,
    ratio: f64,
}

/// Prints the result of a case as a JSON line if `TRAINER_BENCH=json` requests it. A lower ratio is
/// better.
pub(crate) fn record(title: &str, case: &str, nanoseconds: f64, ratio: f64) {
    if std::env::var_os(FORMAT).is_some_and(|format| format == "json") {
        let record = Record { bench: env!("CARGO_CRATE_NAME"), title, case, nanoseconds, ratio };
        println!("{}", serde_json::to_string(&record).expect("text and numbers"));
    }
}
