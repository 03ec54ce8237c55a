//! The overview section: the status, times, errors and warnings of the runs.

use std::fmt::Write;
use std::time::SystemTime;

use super::super::escape::Text;
use super::super::{Content, Report};
use super::{Clipped, MAX_CHARACTERS, MAX_LINE, count, duration, run_heading, swatch, time};
use crate::run::MAX_WARNINGS;

pub(in crate::report) fn notes(out: &mut String, notes: &[String]) {
    for note in notes {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", Text(note));
    }
}

pub(in crate::report) fn overview(out: &mut String, report: &Report, now: SystemTime) {
    match &report.runs[..] {
        [] => {}
        [run] => overview_of(out, run, now),
        _ => overview_table(out, report, now),
    }
}

fn status(run: &Content) -> String {
    let name = run.status.name();
    format!("<b class=\"status {name}\">{name}</b>")
}

/// Returns the numbers of optimizer steps and epochs of a run, if it has recorded any.
fn length(run: &Content) -> Option<(u64, u64)> {
    let last = run.points.last()?;
    let epochs = run.points.iter().map(|point| point.epoch).max().unwrap_or(0);
    Some((last.optimizer_steps, epochs.saturating_add(1)))
}

/// Returns remarks about a run: its origin, its resumes, and why it stopped.
fn remarks(run: &Content) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(origin) = &run.file.origin {
        remarks.push(format!(
            "Begins with the state of <code>{}</code> before training batch {}",
            Text(&origin.run),
            origin.batches
        ));
    }
    match &run.file.resumed[..] {
        [] => {}
        [once] => remarks.push(format!("Resumed {}", Text(&time(once)))),
        [.., last] => {
            remarks.push(format!("Resumed {} times, last {}", run.file.resumed.len(), Text(&time(last))));
        }
    }
    if let Some(stopped) = &run.file.stopped {
        remarks.push(format!("Stopped early: {}", Text(stopped)));
    }
    remarks
}

fn overview_of(out: &mut String, run: &Content, now: SystemTime) {
    let mut facts = vec![status(run), format!("<code>{}</code>", Text(&run.file.entries()))];
    if let Some((steps, epochs)) = length(run) {
        facts.extend([count(steps, "step"), count(epochs, "epoch")]);
    }
    facts.extend(run.duration(now).map(duration));
    facts.push(format!("started {}", Text(&time(&run.file.started))));
    let _ = writeln!(out, "<section class=\"overview\">\n<p>{}</p>", facts.join(" · "));
    for remark in remarks(run) {
        let _ = writeln!(out, "<p>{remark}</p>");
    }
    out.push_str("</section>\n");
}

fn overview_table(out: &mut String, report: &Report, now: SystemTime) {
    out.push_str("<section>\n<div class=\"wide\"><table>\n<thead><tr><th>Run</th><th>Status</th><th class=\"number\">Steps</th><th class=\"number\">Epochs</th><th class=\"number\">Duration</th><th>Started</th></tr></thead>\n<tbody>\n");
    for (nth, run) in report.runs.iter().enumerate() {
        let (steps, epochs) = length(run)
            .map_or_else(Default::default, |(steps, epochs)| (steps.to_string(), epochs.to_string()));
        let remarks: String = remarks(run)
            .iter()
            .map(|remark| format!("<br><small class=\"quiet\">{remark}</small>"))
            .collect();
        let _ = writeln!(
            out,
            "<tr><td><span class=\"run\">{}{}</span>{remarks}</td><td>{} <code>{}</code></td><td class=\"number\">{steps}</td><td class=\"number\">{epochs}</td>\
             <td class=\"number\">{}</td><td class=\"time\">{}</td></tr>",
            swatch(report, nth),
            Text(&run.name),
            status(run),
            Text(&run.file.entries()),
            run.duration(now).map(duration).unwrap_or_default(),
            Text(&time(&run.file.started))
        );
    }
    out.push_str("</tbody>\n</table></div>\n</section>\n");
}

pub(in crate::report) fn errors_and_warnings(out: &mut String, report: &Report) {
    if report.runs.iter().any(|run| run.file.error.is_some()) {
        out.push_str("<section>\n<h2>Error</h2>\n");
        for (nth, run) in report.runs.iter().enumerate() {
            let Some(error) = &run.file.error else { continue };
            run_heading(out, report, nth);
            let _ = writeln!(out, "<pre class=\"error\">{}</pre>", Clipped(error, MAX_CHARACTERS));
        }
        out.push_str("</section>\n");
    }
    if report.runs.iter().all(|run| run.warnings.is_empty()) {
        return;
    }
    out.push_str("<section>\n<h2>Warnings</h2>\n");
    for (nth, run) in report.runs.iter().enumerate().filter(|(_, run)| !run.warnings.is_empty()) {
        run_heading(out, report, nth);
        out.push_str("<ul class=\"warnings\">\n");
        for warning in &run.warnings {
            let _ = writeln!(out, "<li>{}</li>", Clipped(warning, MAX_LINE));
        }
        out.push_str("</ul>\n");
        if run.file.warnings.len() == MAX_WARNINGS {
            let _ = writeln!(out, "<p class=\"quiet\">A run records its first {MAX_WARNINGS} warnings.</p>");
        }
    }
    out.push_str("</section>\n");
}
