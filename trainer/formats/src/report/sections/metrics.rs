//! The sections with numbers: metrics, their curves and confusion matrices.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::super::Report;
use super::super::curves::{Curves, Plot};
use super::super::escape::Text;
use super::super::matrix::{Matrix, is_element};
use super::super::plot::{Axis, color_of_phase, draw, short};
use super::{MAX_SIDE, column_class, count, run_heading, swatch};
use crate::float::{brief, readable};
use crate::run::{Goal, Metric, ranked};

/// Groups of curves are initially open if there are at most this many plots.
const MAX_OPEN_PLOTS: usize = 16;
/// Confusion matrices with more rows than this show no numbers in their cells.
const MAX_NUMBERED: usize = 16;

pub(in crate::report) fn metrics(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
    let mut names = ranked(report.runs.iter().map(|run| &run.metrics));
    names.retain(|name| !matrices.iter().any(|own| is_element(name, own)));
    if names.is_empty() {
        return;
    }
    // Metrics of the whole model come first, before those of individual classes or parts.
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
        "Each value is the last one of the run, with the best one below it if they differ. <b>Bold</b> is the best of all runs."
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

/// Writes a cell for each run, with the last and the best value of a metric.
fn comparison(out: &mut String, metrics: &[Option<&Metric>]) {
    let goal = metrics.iter().flatten().find_map(|metric| metric.goal);
    let best_of = |metric: &Metric| goal.and_then(|goal: Goal| metric.best_by(goal)).map(|best| best.value.0);
    let bests: Vec<f64> = metrics.iter().flatten().filter_map(|metric| best_of(metric)).collect();
    let better = |one, other| if goal.is_some_and(|goal| goal.is_better(other, one)) { other } else { one };
    // If all values are equal, none is marked as the best.
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

pub(in crate::report) fn curves(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
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
         <span class=\"axes\">axes",
    );
    for (id, name, checked) in
        [("auto", "automatic", " checked"), ("linear", "linear", ""), ("log", "logarithmic", "")]
    {
        let _ = write!(out, "<label><input type=\"radio\" name=\"axes\" id=\"{id}\"{checked}>{name}</label>");
    }
    out.push_str("</span></div>\n");
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
        if !group.constant.is_empty() {
            out.push_str("<p class=\"quiet\">Constant:</p>\n<dl>\n");
            for plot in &group.constant {
                let mut values: Vec<_> = plot.lines.iter().map(|line| brief(line.points[0].1)).collect();
                values.dedup();
                let _ = writeln!(
                    out,
                    "<div><dt>{}</dt><dd><code>{}</code></dd></div>",
                    Text(&plot.name),
                    values.join(", ")
                );
            }
            out.push_str("</dl>\n");
        }
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

pub(in crate::report) fn matrices(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
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
        matrix.epoch.saturating_add(1)
    );
    if side > MAX_SIDE {
        let _ = writeln!(out, "<p class=\"quiet\">{side} classes are too many to be shown.</p></figure>");
        return;
    }
    let _ = write!(
        out,
        "<div class=\"wide\"><table class=\"{}\"><thead><tr><th></th><th colspan=\"{side}\">prediction</th></tr>\n<tr><th>target</th>",
        if side > MAX_NUMBERED { "dense" } else { "" }
    );
    for column in &matrix.classes {
        let _ = write!(out, "<th>{}</th>", Text(column));
    }
    out.push_str("</tr></thead><tbody>\n");
    for (row, values) in matrix.classes.iter().zip(&matrix.rows) {
        let sum: f64 = values.iter().sum();
        let _ = write!(out, "<tr><th>{}</th>", Text(row));
        for (column, value) in matrix.classes.iter().zip(values) {
            // The share is rounded to twentieths, because shades that are closer look the same.
            let share = (20.0 * value / sum).round().clamp(0.0, 20.0);
            let shade = if share.is_nan() { 0.0 } else { share };
            let text = if side > MAX_NUMBERED { String::new() } else { short((1e3 * value).round() / 1e3) };
            let _ = write!(
                out,
                "<td class=\"h{shade}\" title=\"target {}, prediction {}: {}\">{text}</td>",
                Text(row),
                Text(column),
                short(*value)
            );
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></figure>\n");
}
