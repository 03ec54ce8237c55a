//! The sections with images and texts.

use std::fmt::Write;

use super::super::escape::Text;
use super::super::matrix::Matrix;
use super::super::media::{Item, Png};
use super::super::{Content, Report};
use super::{Clipped, MAX_CHARACTERS, MAX_SIDE, MAX_TEXT_BYTES, MAX_TEXTS, run_heading};

/// The maximum number of images shown per name.
const MAX_IMAGES: usize = 8;
/// The maximum size of all images in a report together, in bytes of base64.
const MAX_IMAGE_BYTES: usize = 24 << 20;

/// Returns at most `count` items, evenly spaced, including the first and the last.
fn some_of<T>(all: &[T], count: usize) -> Vec<&T> {
    if all.len() <= count {
        return all.iter().collect();
    }
    (0..count).map(|nth| &all[nth * (all.len() - 1) / (count - 1)]).collect()
}

fn where_of<T>(item: &Item<T>) -> String {
    format!("step {}, epoch {}", item.optimizer_steps, item.epoch.saturating_add(1))
}

/// Returns the images of a run, except images of matrices that are shown as tables.
fn images_of<'c>(run: &'c Content, matrices: &[Matrix]) -> Vec<(&'c String, &'c Vec<Item<Png>>)> {
    let is_shown =
        |name: &str| matrices.iter().any(|matrix| matrix.name == name && matrix.rows.len() <= MAX_SIDE);
    run.media.images.iter().filter(|(name, _)| !is_shown(name)).collect()
}

pub(in crate::report) fn images(out: &mut String, report: &Report, matrices: &[Vec<Matrix>]) {
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
            "<p class=\"quiet\">A report holds at most {} MB of images: the others are left out.</p>",
            MAX_IMAGE_BYTES >> 20
        );
    }
    out.push_str("</section>\n");
}

/// Returns a note about how many items are shown, or an empty string if all of them are.
fn part_of(shown: usize, all: usize) -> String {
    if shown == all { String::new() } else { format!(" <span class=\"quiet\">{shown} of {all}</span>") }
}

pub(in crate::report) fn texts(out: &mut String, report: &Report) {
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
            "<p class=\"quiet\">A report holds at most {} MB of text: the rest is left out.</p>",
            MAX_TEXT_BYTES >> 20
        );
    }
    out.push_str("</section>\n");
}
