//! The sections about the program: profile, settings, hooks and environment.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::escape::Text;
use super::super::{Content, Report};
use super::{Clipped, MAX_VALUE, column_class, count, run_heading, swatch};
use crate::duration;
use crate::run::{Profile, ProfileRow, Settings, data_of, settings_of, text_of_setting};

/// The table of hooks is initially open if there are at most this many hooks.
const MAX_OPEN_HOOKS: usize = 100;
/// The number of rows of a profile that are initially shown.
const MAX_ROWS: usize = 12;

pub(in crate::report) fn profiles(out: &mut String, report: &Report) {
    if report.runs.iter().all(|run| run.file.profiles.is_empty()) {
        return;
    }
    out.push_str("<section>\n<h2>Profile</h2>\n");
    for (nth, run) in report.runs.iter().enumerate().filter(|(_, run)| !run.file.profiles.is_empty()) {
        run_heading(out, report, nth);
        for profile in &run.file.profiles {
            let resumed = if run.file.resumed.is_empty() { "" } else { ", since the last resume" };
            let _ = writeln!(
                out,
                "<h4><code>{}</code> {}<span class=\"quiet\">{resumed}</span></h4>",
                Text(&profile.entry),
                duration(profile.total_ns)
            );
            let (first, others) = profile.rows.split_at(profile.rows.len().min(MAX_ROWS));
            profile_table(out, profile, first);
            if !others.is_empty() {
                let _ =
                    writeln!(out, "<details><summary>{}</summary>", count(others.len() as u64, "more row"));
                profile_table(out, profile, others);
                out.push_str("</details>\n");
            }
        }
    }
    out.push_str("<p class=\"quiet\">The self time of a span excludes the spans inside it, so that all self times add up.</p>\n</section>\n");
}

fn profile_table(out: &mut String, profile: &Profile, rows: &[ProfileRow]) {
    out.push_str("<div class=\"wide\"><table class=\"profile\">\n<thead><tr><th>Span</th><th class=\"number\">Self</th><th>Share</th><th class=\"number\">Calls</th><th class=\"number\">Total</th><th class=\"number\">Mean</th><th class=\"number\">Longest</th><th>Phase</th></tr></thead>\n<tbody>\n");
    for row in rows {
        let share = 100.0 * row.self_ns as f64 / profile.total_ns.max(1) as f64;
        let moment =
            row.moment.as_ref().map(|moment| format!(" <span class=\"quiet\">at {}</span>", Text(moment)));
        let kind = match row.kind.as_str() {
            "entry" => " <span class=\"quiet\">entry point</span>",
            "data" => " <span class=\"quiet\">waiting for a batch</span>",
            _ => "",
        };
        let _ = writeln!(
            out,
            "<tr><td><code>{}</code>{}{kind}</td><td class=\"number\">{}</td>\
             <td class=\"bar\"><meter min=\"0\" max=\"100\" value=\"{share:.1}\">{share:.1} %</meter> {share:.1} %</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
            Text(&row.name),
            moment.unwrap_or_default(),
            duration(row.self_ns),
            row.calls,
            duration(row.total_ns),
            duration(row.mean_ns),
            duration(row.max_ns),
            Text(&row.phase)
        );
    }
    out.push_str("</tbody>\n</table></div>\n");
}

pub(in crate::report) fn data_and_settings(out: &mut String, report: &Report) {
    let texts = |settings: Settings<'_>| {
        let texts = settings.into_iter().map(|(name, value)| (name.to_owned(), text_of_setting(&value)));
        texts.filter(|(_, text)| !text.is_empty()).collect()
    };
    named_values(out, report, "Data", |run| texts(data_of(&run.file)));
    named_values(out, report, "Settings", |run| texts(settings_of(&run.file)));
}

pub(in crate::report) fn environment(out: &mut String, report: &Report) {
    let of_run = |run: &Content| {
        let facts = run.file.environment().into_iter().filter(|(_, value)| !value.is_empty());
        facts.map(|(name, value)| (name.to_owned(), value)).collect()
    };
    named_values(out, report, "Environment", of_run);
}

/// Writes a table of values by name. For several runs, the values that differ come first.
fn named_values(
    out: &mut String,
    report: &Report,
    heading: &str,
    of_run: impl Fn(&Content) -> Vec<(String, String)>,
) {
    let mut rows: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
    for (nth, run) in report.runs.iter().enumerate() {
        for (name, value) in of_run(run) {
            rows.entry(name).or_insert_with(|| vec![None; report.runs.len()])[nth] = Some(value);
        }
    }
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "<section>\n<h2>{heading}</h2>\n");
    let (differ, equal): (Vec<_>, Vec<_>) =
        rows.iter().partition(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]));
    if !differ.is_empty() {
        let _ = write!(out, "<div class=\"wide\"><table{}>\n<thead><tr><th>Name</th>", column_class(report));
        for (nth, run) in report.runs.iter().enumerate() {
            let _ = write!(out, "<th>{}{}</th>", swatch(report, nth), Text(&run.name));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for (name, values) in &differ {
            let _ = write!(out, "<tr><td>{}</td>", Text(name));
            for value in *values {
                let value = Clipped(value.as_deref().unwrap_or("–"), MAX_VALUE);
                let _ = write!(out, "<td><code>{value}</code></td>");
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody>\n</table></div>\n");
    }
    if !equal.is_empty() {
        if report.runs.len() > 1 {
            let _ = writeln!(
                out,
                "<details><summary>{} equal</summary>",
                if differ.is_empty() { "all are" } else { "the others are" }
            );
        }
        out.push_str("<dl>\n");
        for (name, values) in &equal {
            let value = values.first().and_then(Option::as_deref).unwrap_or("–");
            let value = Clipped(value, MAX_VALUE);
            let _ = writeln!(out, "<div><dt>{}</dt><dd><code>{value}</code></dd></div>", Text(name));
        }
        out.push_str("</dl>\n");
        if report.runs.len() > 1 {
            out.push_str("</details>\n");
        }
    }
    out.push_str("</section>\n");
}

pub(in crate::report) fn hooks(out: &mut String, report: &Report) {
    if report.runs.iter().all(|run| run.file.hooks.is_empty()) {
        return;
    }
    out.push_str("<section>\n<h2>Hooks</h2>\n");
    let mut shown: Vec<&[String]> = Vec::new();
    for (nth, run) in report.runs.iter().enumerate() {
        let hooks = &run.file.hooks[..];
        if shown.contains(&hooks) {
            continue;
        }
        let are_all_equal = report.runs.iter().all(|run| run.file.hooks == hooks);
        if report.runs.len() > 1 && are_all_equal {
            out.push_str("<p class=\"quiet\">All runs have the same hooks.</p>\n");
        } else {
            let same = report.runs.iter().enumerate().skip(nth).filter(|(_, run)| run.file.hooks == hooks);
            same.for_each(|(other, _)| run_heading(out, report, other));
        }
        shown.push(hooks);
        hook_table(out, hooks);
    }
    out.push_str("</section>\n");
}

/// Writes the hooks of a run, grouped by moment, in their recorded order.
fn hook_table(out: &mut String, hooks: &[String]) {
    let rows = hooks.iter().map(|row| row.rsplit_once(" at ").unwrap_or((row, "")));
    let rows: Vec<_> = rows.collect();
    let _ = writeln!(
        out,
        "<details{}><summary>{}</summary>",
        if rows.len() <= MAX_OPEN_HOOKS { " open" } else { "" },
        count(rows.len() as u64, "hook")
    );
    out.push_str("<div class=\"wide\"><table class=\"hooks\">\n<thead><tr><th>Moment</th><th>Hooks, in their order</th></tr></thead>\n<tbody>\n");
    for moment in rows.chunk_by(|one, other| one.1 == other.1) {
        let names: Vec<_> = moment.iter().map(|(hook, _)| format!("<code>{}</code>", Text(hook))).collect();
        let _ = writeln!(
            out,
            "<tr><td><code>{}</code></td><td>{}</td></tr>",
            Text(moment[0].1),
            names.join("<br>")
        );
    }
    out.push_str("</tbody>\n</table></div></details>\n");
}
