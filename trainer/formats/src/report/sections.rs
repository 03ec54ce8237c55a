//! The sections of the page. A section without content writes nothing: [`absent`] names it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::time::{Duration, SystemTime};

use super::curves::{Curves, Plot};
use super::escape::Text;
use super::matrix::{Matrix, is_element};
use super::media::{Item, Png};
use super::plot::{Axis, COLORS, brief, color_of_phase, draw, short};
use super::{Content, Report};
use crate::float::readable;
use crate::run::{Goal, MAX_WARNINGS, Metric, Profile, ProfileRow, ranked, settings_of, text_of_setting};

/// The number of images of one name that are shown.
const MAX_IMAGES: usize = 8;
/// The number of bytes of images in a report, in base64.
const MAX_IMAGE_BYTES: usize = 24 << 20;
/// The number of texts of one name that are shown, the number of characters of each, and the number
/// of bytes of all in a report.
const MAX_TEXTS: usize = 8;
const MAX_CHARACTERS: usize = 20_000;
const MAX_TEXT_BYTES: usize = 8 << 20;
/// Groups of curves are open, unless there are more plots.
const MAX_OPEN_PLOTS: usize = 16;
/// The largest confusion matrix whose elements are shown as numbers.
const MAX_NUMBERED: usize = 16;
/// The largest confusion matrix that is shown.
const MAX_SIDE: usize = 64;
/// The table of hooks is open, unless there are more.
const MAX_OPEN_HOOKS: usize = 100;
/// The number of rows of a profile that are shown at once.
const MAX_ROWS: usize = 12;

/// The number of characters of a warning, and of a setting, that are shown.
const MAX_LINE: usize = 2000;
const MAX_VALUE: usize = 400;

/// A text, of which only the first characters are shown if it is long.
struct Clipped<'t>(&'t str, usize);

impl fmt::Display for Clipped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Clipped(text, length) = *self;
        match text.char_indices().nth(length) {
            None => Text(text).fmt(f),
            Some((end, _)) => {
                write!(f, "{}… ({} characters)", Text(&text[..end]), text.chars().count())
            }
        }
    }
}

/// Returns the color of a run, as a square; nothing if there is only one.
fn swatch(report: &Report, run: usize) -> String {
    if report.runs.len() == 1 {
        return String::new();
    }
    let hollow = if run >= COLORS { " hollow" } else { "" };
    format!("<i class=\"swatch c{}{hollow}\"></i>", run % COLORS)
}

/// Returns the class of a table with a column for each run, by which it fits a printed page.
fn column_class(report: &Report) -> &'static str {
    if report.runs.len() > COLORS { " class=\"many\"" } else { "" }
}

/// Writes a heading for what belongs to one of several runs.
fn run_heading(out: &mut String, report: &Report, run: usize) {
    if report.runs.len() > 1 {
        let _ = writeln!(out, "<h3>{}{}</h3>", swatch(report, run), Text(&report.runs[run].name));
    }
}

/// Formats a duration with its two largest units: `1 h 5 min`.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats a duration in nanoseconds with its unit.
fn span(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (value / 1e3, "µs"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

/// Formats an RFC 3339 time for people: `2026-11-21 23:59:58 UTC`.
fn time(text: &str) -> String {
    text.replacen('T', " ", 1).replacen('Z', " UTC", 1)
}

/// Formats a number with its noun: `1 step`, `2 steps`.
fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub(super) fn notes(out: &mut String, notes: &[String]) {
    for note in notes {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", Text(note));
    }
}

pub(super) fn overview(out: &mut String, report: &Report, now: SystemTime) {
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
    let epochs = run.points.iter().map(|point| point.epoch).max().unwrap_or(0) + 1;
    Some((last.optimizer_steps, epochs))
}

/// Returns what is to be said of a run in sentences: its origin, its resumes, why it stopped.
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
    let mut facts = vec![status(run), format!("<code>{}</code>", Text(&run.file.entry))];
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
            Text(&run.file.entry),
            run.duration(now).map(duration).unwrap_or_default(),
            Text(&time(&run.file.started))
        );
    }
    out.push_str("</tbody>\n</table></div>\n</section>\n");
}

pub(super) fn errors_and_warnings(out: &mut String, report: &Report) {
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

pub(super) fn metrics(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
    let mut names = ranked(report.runs.iter().map(|run| &run.metrics));
    names.retain(|name| !matrices.iter().any(|own| is_element(name, own)));
    if names.is_empty() {
        return;
    }
    // First those that are not of one class or one part.
    let (first, others): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| name.matches('/').count() < 2);
    out.push_str("<section>\n<h2>Metrics</h2>\n");
    metric_table(out, report, &first);
    if !others.is_empty() {
        let _ =
            writeln!(out, "<details><summary>{} in groups</summary>", count(others.len() as u64, "metric"));
        metric_table(out, report, &others);
        out.push_str("</details>\n");
    }
    let text = if report.runs.len() > 1 {
        "Each value is the last one of the run, with the best one below it if it is another. <b>Bold</b> is the best of all runs."
    } else {
        "These are values of passes over data. If it is not known whether smaller or larger ones are better, their range is shown."
    };
    let _ = writeln!(out, "<p class=\"quiet\">{text}</p>");
    out.push_str("</section>\n");
}

fn metric_table(out: &mut String, report: &Report, names: &[&str]) {
    if names.is_empty() {
        return;
    }
    let compares = report.runs.len() > 1;
    let _ = write!(out, "<div class=\"wide\"><table{}>\n<thead><tr><th>Metric</th>", column_class(report));
    if compares {
        for (nth, run) in report.runs.iter().enumerate() {
            let _ = write!(out, "<th class=\"number\">{}{}</th>", swatch(report, nth), Text(&run.name));
        }
    } else {
        out.push_str(
            "<th class=\"number\">Last</th><th class=\"number\">Best</th><th class=\"number\">at step</th>",
        );
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for name in names {
        let _ = write!(out, "<tr><td><code>{}</code></td>", Text(name));
        let metrics: Vec<_> = report.runs.iter().map(|run| run.metrics.get(*name)).collect();
        if compares {
            comparison(out, &metrics);
        } else if let [Some(metric)] = metrics[..] {
            let _ = write!(out, "<td class=\"number\">{}</td>", readable(metric.last.0));
            match (metric.best(), metric.min, metric.max) {
                (Some(best), ..) => {
                    let _ = write!(
                        out,
                        "<td class=\"number\">{}</td><td class=\"number\">{}</td>",
                        readable(best.value.0),
                        best.optimizer_steps
                    );
                }
                (None, Some(min), Some(max)) if min.value != max.value => {
                    let _ = write!(
                        out,
                        "<td class=\"quiet number\" colspan=\"2\">{} – {}</td>",
                        readable(min.value.0),
                        readable(max.value.0)
                    );
                }
                _ => out.push_str("<td class=\"quiet number\" colspan=\"2\">constant</td>"),
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
}

/// Writes the cells of a metric of several runs.
fn comparison(out: &mut String, metrics: &[Option<&Metric>]) {
    let goal = metrics.iter().flatten().find_map(|metric| metric.goal);
    let best_of = |metric: &Metric| goal.and_then(|goal: Goal| metric.best_by(goal)).map(|best| best.value.0);
    let bests: Vec<f64> = metrics.iter().flatten().filter_map(|metric| best_of(metric)).collect();
    let better = |one, other| if goal.is_some_and(|goal| goal.is_better(other, one)) { other } else { one };
    // If all are equal, none is the best.
    let differ = bests.iter().any(|best| *best != bests[0]);
    let best = bests.iter().copied().reduce(better).filter(|_| differ);
    for metric in metrics {
        let Some(metric) = metric else {
            out.push_str("<td class=\"quiet number\">–</td>");
            continue;
        };
        let own = best_of(metric);
        let strong = if own.is_some() && own == best { " class=\"best\"" } else { "" };
        let _ = write!(out, "<td class=\"number\"><span{strong}>{}</span>", readable(metric.last.0));
        if let Some(own) = own.filter(|own| *own != metric.last.0) {
            let _ = write!(out, "<br><small{strong}>{}</small>", readable(own));
        }
        out.push_str("</td>");
    }
}

pub(super) fn curves(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
    let curves = Curves::of(&report.runs, matrices);
    if curves.groups.is_empty() {
        return;
    }
    let plots = || curves.groups.iter().flat_map(|group| &group.plots);
    let axis = Axis {
        steps: curves.steps,
        lines: plots().map(|plot| plot.lines.len()).sum(),
        marks: &curves.marks,
        compares: report.runs.len() > 1,
    };
    out.push_str("<section class=\"curves\">\n<h2>Curves</h2>\n<div class=\"controls\">");
    if axis.compares {
        out.push_str("<span class=\"runs\">");
        for (nth, run) in report.runs.iter().enumerate() {
            let _ = write!(
                out,
                "<label><input type=\"checkbox\" id=\"r{nth}\" checked>{}{}</label>",
                swatch(report, nth),
                Text(&run.name)
            );
        }
        out.push_str("</span>");
    } else {
        let phases: BTreeSet<(usize, &str)> = plots()
            .flat_map(|plot| &plot.lines)
            .map(|line| (color_of_phase(&line.phase), line.phase.as_str()))
            .collect();
        out.push_str("<span class=\"phases\">");
        for (color, phase) in phases {
            let _ = write!(out, "<span><i class=\"swatch c{color}\"></i>{}</span>", Text(phase));
        }
        out.push_str("</span>");
    }
    out.push_str(
        "<label class=\"scripted\">smoothing <input type=\"range\" id=\"smoothing\" min=\"0\" max=\"0.99\" step=\"0.01\" value=\"0\"></label>\
         <label><input type=\"checkbox\" id=\"log\">logarithmic</label></div>\n",
    );
    for group in &curves.groups {
        if group.name.is_empty() {
            write_plots(out, &group.plots, &axis);
            continue;
        }
        let open = if plots().count() <= MAX_OPEN_PLOTS { " open" } else { "" };
        let _ = writeln!(
            out,
            "<details{open}><summary><code>{}</code> <span class=\"quiet\">{}</span></summary>",
            Text(&group.name),
            count(group.plots.len() as u64, "plot")
        );
        write_plots(out, &group.plots, &axis);
        out.push_str("</details>\n");
    }
    let mut legend = vec!["The horizontal axis is the number of optimizer steps."];
    if curves.marks.iter().any(|marks| !marks.validations.is_empty()) {
        legend.push("The ticks below it are validations.");
    }
    if curves.marks.iter().any(|marks| !marks.resumes.is_empty()) {
        legend.push("A vertical dashed line is a resume.");
    }
    if axis.compares {
        legend.push("Curves of training are thin, those of validation have dots.");
    }
    let _ = write!(out, "<p class=\"quiet\">{}</p>\n</section>\n", legend.join(" "));
}

fn write_plots(out: &mut String, plots: &[Plot], axis: &Axis) {
    out.push_str("<div class=\"plots\">\n");
    for plot in plots {
        let _ = write!(
            out,
            "<figure class=\"plot\" data-low=\"{}\" data-high=\"{}\"><figcaption><code>{}</code>",
            axis.steps.0,
            axis.steps.1,
            Text(&plot.name)
        );
        if !axis.compares {
            for line in &plot.lines {
                if let Some((_, last)) = line.points.last() {
                    let _ = write!(
                        out,
                        " <span class=\"last c{}\">{}</span>",
                        color_of_phase(&line.phase),
                        brief(*last)
                    );
                }
            }
        }
        out.push_str("</figcaption>");
        draw(out, plot, axis);
        let odd: Vec<_> =
            plot.lines.iter().flat_map(|line| &line.points).filter(|point| !point.1.is_finite()).collect();
        if let Some((step, _)) = odd.first() {
            let verb = if odd.len() == 1 { "is" } else { "are" };
            let _ = write!(
                out,
                "<p class=\"odd\">{} {verb} NaN or infinite, the first at step {step}</p>",
                count(odd.len() as u64, "value")
            );
        }
        out.push_str("</figure>\n");
    }
    out.push_str("</div>\n");
}

pub(super) fn matrices(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
    if matrices.iter().all(Vec::is_empty) {
        return;
    }
    out.push_str("<section>\n<h2>Confusion matrices</h2>\n<p class=\"quiet\">A row for each target, a column for each prediction; the color is the share of the row.</p>\n");
    for (nth, all) in matrices.iter().enumerate().filter(|(_, all)| !all.is_empty()) {
        run_heading(out, report, nth);
        out.push_str("<div class=\"matrices\">\n");
        for matrix in all {
            write_matrix(out, matrix);
        }
        out.push_str("</div>\n");
    }
    out.push_str("</section>\n");
}

fn write_matrix(out: &mut String, matrix: &Matrix) {
    let side = matrix.rows.len();
    let _ = write!(
        out,
        "<figure class=\"matrix\"><figcaption><code>{}</code> <span class=\"quiet\">epoch {}</span></figcaption>",
        Text(&matrix.name),
        matrix.epoch + 1
    );
    if side > MAX_SIDE {
        let _ = writeln!(out, "<p class=\"quiet\">{side} classes are too many to be shown.</p></figure>");
        return;
    }
    let _ = write!(
        out,
        "<div class=\"wide\"><table class=\"{}\"><thead><tr><th></th>",
        if side > MAX_NUMBERED { "dense" } else { "" }
    );
    for column in 0..side {
        let _ = write!(out, "<th>{column}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for (row, values) in matrix.rows.iter().enumerate() {
        let sum: f64 = values.iter().sum();
        let _ = write!(out, "<tr><th>{row}</th>");
        for (column, value) in values.iter().enumerate() {
            // In twentieths, because shades that are closer look the same.
            let share = (20.0 * value / sum).round().clamp(0.0, 20.0);
            let shade = if share.is_nan() { 0.0 } else { share };
            let text = if side > MAX_NUMBERED { String::new() } else { short((1e3 * value).round() / 1e3) };
            let _ = write!(
                out,
                "<td class=\"h{shade}\" title=\"target {row}, prediction {column}: {}\">{text}</td>",
                short(*value)
            );
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></figure>\n");
}

/// Returns at most `count` of these, with the first and the last one.
fn some_of<T>(all: &[T], count: usize) -> Vec<&T> {
    if all.len() <= count {
        return all.iter().collect();
    }
    (0..count).map(|nth| &all[nth * (all.len() - 1) / (count - 1)]).collect()
}

fn where_of<T>(item: &Item<T>) -> String {
    format!("step {}, epoch {}", item.optimizer_steps, item.epoch + 1)
}

/// Returns the images of a run, without those of its matrices, which are shown as tables.
fn images_of<'c>(run: &'c Content, matrices: &[Matrix]) -> Vec<(&'c String, &'c Vec<Item<Png>>)> {
    let is_shown =
        |name: &str| matrices.iter().any(|matrix| matrix.name == name && matrix.rows.len() <= MAX_SIDE);
    run.media.images.iter().filter(|(name, _)| !is_shown(name)).collect()
}

pub(super) fn images(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
    let images: Vec<_> = report.runs.iter().zip(matrices).map(|(run, own)| images_of(run, own)).collect();
    if images.iter().all(Vec::is_empty) {
        return;
    }
    let mut bytes = 0;
    let mut are_left_out = false;
    out.push_str("<section>\n<h2>Images</h2>\n");
    for (nth, images) in images.into_iter().enumerate().filter(|(_, images)| !images.is_empty()) {
        run_heading(out, report, nth);
        for (name, all) in images {
            let shown = some_of(all, MAX_IMAGES);
            let _ = write!(
                out,
                "<h4><code>{}</code>{}</h4>\n<div class=\"images\">\n",
                Text(name),
                part_of(shown.len(), all.len())
            );
            for item in shown {
                bytes += item.content.base64.len();
                if bytes > MAX_IMAGE_BYTES {
                    are_left_out = true;
                    continue;
                }
                let tiny = if item.content.width < 160 { " class=\"tiny\"" } else { "" };
                let _ = writeln!(
                    out,
                    "<figure><img{tiny} alt=\"{}\" src=\"data:image/png;base64,{}\"><figcaption>{}</figcaption></figure>",
                    Text(name),
                    item.content.base64,
                    where_of(item)
                );
            }
            out.push_str("</div>\n");
        }
    }
    if are_left_out {
        let _ = writeln!(
            out,
            "<p class=\"quiet\">A report holds {} MB of images: the others are left out.</p>",
            MAX_IMAGE_BYTES >> 20
        );
    }
    out.push_str("</section>\n");
}

/// Says how many of several are shown.
fn part_of(shown: usize, all: usize) -> String {
    if shown == all { String::new() } else { format!(" <span class=\"quiet\">{shown} of {all}</span>") }
}

pub(super) fn texts(out: &mut String, report: &Report) {
    if report.runs.iter().all(|run| run.media.texts.is_empty()) {
        return;
    }
    let mut bytes = 0;
    let mut are_left_out = false;
    out.push_str("<section>\n<h2>Texts</h2>\n");
    for (nth, run) in report.runs.iter().enumerate().filter(|(_, run)| !run.media.texts.is_empty()) {
        run_heading(out, report, nth);
        for (name, all) in &run.media.texts {
            let shown = some_of(all, MAX_TEXTS);
            let _ = writeln!(out, "<h4><code>{}</code>{}</h4>", Text(name), part_of(shown.len(), all.len()));
            for (nth, item) in shown.iter().rev().enumerate() {
                bytes += item.content.len().min(MAX_CHARACTERS);
                if bytes > MAX_TEXT_BYTES {
                    are_left_out = true;
                    continue;
                }
                let open = if nth == 0 { " open" } else { "" };
                let _ = writeln!(
                    out,
                    "<details{open}><summary>{}</summary><pre>{}</pre></details>",
                    where_of(item),
                    Clipped(&item.content, MAX_CHARACTERS)
                );
            }
        }
    }
    if are_left_out {
        let _ = writeln!(
            out,
            "<p class=\"quiet\">A report holds {} MB of texts: the others are left out.</p>",
            MAX_TEXT_BYTES >> 20
        );
    }
    out.push_str("</section>\n");
}

pub(super) fn profiles(out: &mut String, report: &Report) {
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
                span(profile.total_ns)
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
            span(row.self_ns),
            row.calls,
            span(row.total_ns),
            span(row.mean_ns),
            span(row.max_ns),
            Text(&row.phase)
        );
    }
    out.push_str("</tbody>\n</table></div>\n");
}

pub(super) fn settings(out: &mut String, report: &Report) {
    let of_run = |run: &Content| {
        let settings = settings_of(&run.file).into_iter();
        let texts = settings.map(|(name, value)| (name.to_owned(), text_of_setting(&value)));
        texts.filter(|(_, text)| !text.is_empty()).collect()
    };
    named_values(out, report, "Settings", of_run);
}

pub(super) fn environment(out: &mut String, report: &Report) {
    let of_run = |run: &Content| {
        let facts = run.file.environment().into_iter().filter(|(_, value)| !value.is_empty());
        facts.map(|(name, value)| (name.to_owned(), value)).collect()
    };
    named_values(out, report, "Environment", of_run);
}

/// Writes a table of values by name; for several runs, first those that differ.
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

pub(super) fn hooks(out: &mut String, report: &Report) {
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

/// Writes the hooks of a run by moment, in their order.
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

/// Names what the runs have not recorded, and how to record it.
pub(super) fn absent(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
    if report.runs.is_empty() {
        return;
    }
    let none = |is_there: fn(&Content) -> bool| !report.runs.iter().any(is_there);
    let mut absent = Vec::new();
    if none(|run| !run.points.is_empty()) {
        absent.push(
            "curves (a logger: <code>Report</code>, <code>Csv</code> or <code>JsonLines</code>)".to_owned(),
        );
    }
    if none(|run| !run.file.profiles.is_empty()) {
        absent.push("a profile (<code>.profile(true)</code> on the builder)".to_owned());
    }
    // A confusion matrix that is not recorded by its elements is an image.
    if none(|run| !run.media.images.is_empty()) {
        let matrix = if matrices.iter().all(Vec::is_empty) { ", <code>ConfusionMatrix</code>" } else { "" };
        absent
            .push(format!("images (<code>cx.log_image</code>{matrix}, with the logger <code>Report</code>)"));
    }
    if none(|run| !run.media.texts.is_empty()) {
        absent.push(
            "texts (<code>cx.log_text</code>, with the logger <code>Report</code> or <code>JsonLines</code>)"
                .to_owned(),
        );
    }
    if !absent.is_empty() {
        let _ = writeln!(out, "<p class=\"quiet\">Not recorded: {}.</p>", absent.join("; "));
    }
}
