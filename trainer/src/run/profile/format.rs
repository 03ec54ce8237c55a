//! The formats of a [`Profile`]: a table, JSON and a Chrome trace.

use std::fmt::{self, Write};
use std::process;
use std::time::Duration;

use serde_json::json;
use trainer_formats::{columns, duration};

use super::{Profile, ProfileRow, nanos};
use crate::io::terminal::one_line;

impl Profile {
    /// Returns the rows as JSON, for use by other programs. While `version` is 1, fields may be
    /// added, but are never changed or removed:
    ///
    /// - `version`: 1; `entry`: the name of the entry point's operation; `total_ns`: the time of
    ///   the entry point, which is the sum of all `self_ns`
    /// - `rows`: each with `kind` (`entry`, `data`, `operation`, `module` or `hook`), `name`,
    ///   `moment` (null unless the kind is `hook`), `phase`, `calls`, `total_ns`, `self_ns`,
    ///   `mean_ns`, `max_ns` and, on a GPU, `waits`; sorted by self time, longest first
    /// - `dropped_spans`: the number of spans that a trace omits
    #[must_use]
    pub fn json(&self) -> String {
        let recorded = self.recorded();
        let all = json!({
            "version": 1,
            "entry": recorded.entry,
            "total_ns": recorded.total_ns,
            "rows": recorded.rows,
            "dropped_spans": self.dropped,
        });
        format!("{all:#}")
    }

    /// Returns the rows as `run.json` records them.
    pub(crate) fn recorded(&self) -> trainer_formats::run::Profile {
        let row = |row: &ProfileRow| trainer_formats::run::ProfileRow {
            kind: row.kind.name().to_owned(),
            name: row.name.clone(),
            moment: row.moment.clone(),
            phase: row.phase.name().to_owned(),
            calls: row.calls,
            total_ns: nanos(row.total),
            self_ns: nanos(row.self_time),
            mean_ns: nanos(row.mean()),
            max_ns: nanos(row.max),
            waits: row.waits,
        };
        trainer_formats::run::Profile {
            entry: self.entry.to_owned(),
            total_ns: nanos(self.total()),
            rows: self.rows().into_iter().map(row).collect(),
        }
    }

    /// Returns the spans as a trace in the JSON format of Chrome's trace viewer, which Perfetto and
    /// speedscope open as well.
    ///
    /// The spans are complete events (`"ph": "X"`) of one thread, in microseconds since the entry
    /// point began, sorted by start time. Only the first 1,000,000 spans are kept;
    /// `otherData.dropped_spans` is the number of spans that were dropped.
    ///
    /// The format is described in "Trace Event Format", by the authors of Chrome's trace viewer.
    #[must_use]
    pub fn chrome_trace(&self) -> String {
        let pid = process::id();
        let name = json!(format!("trainer: {}", self.entry));
        let mut text = format!(
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"dropped_spans\":{}}},\"traceEvents\":[\n\
             {{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"tid\":1,\"args\":{{\"name\":{name}}}}}",
            self.dropped
        );
        // These fields are the same for every span of a row.
        let heads: Vec<_> = self.rows.iter().map(head).collect();
        for (row, event) in &self.spans {
            let (start, duration) =
                (Microseconds(nanos(event.start - self.began)), Microseconds(event.duration));
            let head = &heads[*row];
            // Writing to a string cannot fail.
            let _ = write!(text, ",\n{{{head},\"pid\":{pid},\"tid\":1,\"ts\":{start},\"dur\":{duration}}}");
        }
        text.push_str("\n]}\n");
        text
    }
}

/// Formats the fields of a trace that are the same for every span of a row.
fn head(row: &ProfileRow) -> String {
    let name = json!(row.label());
    let category = json!(row.kind.name());
    let args = json!({ "phase": row.phase.name() });
    format!("\"ph\":\"X\",\"name\":{name},\"cat\":{category},\"args\":{args}")
}

/// Nanoseconds, displayed as microseconds without rounding.
struct Microseconds(u64);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        let total = nanos(self.total()).max(1) as f64;
        writeln!(f, "profile of `{}`: {}", self.entry, time(self.total()))?;
        let counts_waits = rows.iter().any(|row| row.waits.is_some());
        let titles = ["span", "phase", "calls", "self", "self %", "total", "mean", "max"].map(String::from);
        let mut lines = vec![titles.into_iter().chain(counts_waits.then(|| "waits".to_owned())).collect()];
        for row in rows {
            let cells = [
                one_line(&row.label()),
                row.phase.name().to_owned(),
                row.calls.to_string(),
                time(row.self_time),
                format!("{:.1}", 100.0 * nanos(row.self_time) as f64 / total),
                time(row.total),
                time(row.mean()),
                time(row.max),
            ];
            let waits = row.waits.map(|waits| waits.to_string());
            lines.push(cells.into_iter().chain(waits).collect::<Vec<_>>());
        }
        for line in columns(&lines, 2) {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

fn time(time: Duration) -> String {
    duration(nanos(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let texts = [7, 1_234, 56_789, 999_400, 12_345_678, 3_210_000_000, 654_000_000_000];
        let texts = texts.map(|ns| time(Duration::from_nanos(ns)));
        assert_eq!(texts, ["7 ns", "1.23 µs", "56.8 µs", "999 µs", "12.3 ms", "3.21 s", "654 s"]);
        assert_eq!(Microseconds(1_002_003).to_string(), "1002.003");
    }
}
