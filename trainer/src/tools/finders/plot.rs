//! The plot of a learning-rate range test.

use std::fmt::Write;

use super::LrPoint;

/// The width and the height of the drawing. The next four constants are its margins.
const SIZE: (f64, f64) = (640.0, 400.0);
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;

/// Returns the text of an SVG file that plots the losses against the logarithm of the learning
/// rate, and marks the suggestion.
pub(super) fn svg(points: &[LrPoint], suggestion: Option<f64>) -> String {
    let (width, height) = SIZE;
    let first = points.first().map_or(1e-7, |point| point.lr);
    let last = points.last().map_or(1.0, |point| point.lr);
    let from = first.log10();
    let to = last.log10().max(first.log10() + 1e-9);
    let lowest = points.iter().map(|point| point.smoothed.min(point.loss)).fold(f64::INFINITY, f64::min);
    // Individual losses at the end may be huge, so the smoothed ones determine the range.
    let highest = points.iter().map(|point| point.smoothed).fold(f64::NEG_INFINITY, f64::max);
    let range = (highest - lowest).max(1e-12);
    let low = lowest - 0.05 * range;
    let high = highest + 0.05 * range;
    let x = |lr: f64| LEFT + (lr.log10() - from) / (to - from) * (width - LEFT - RIGHT);
    let y = |loss: f64| {
        let fraction = ((loss - low) / (high - low)).clamp(0.0, 1.0);
        height - BOTTOM - fraction * (height - TOP - BOTTOM)
    };
    let line = |loss: fn(&LrPoint) -> f64| {
        points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.lr), y(loss(point))))
            .collect::<Vec<_>>()
            .join(" ")
    };

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let bottom = height - BOTTOM;
    for exponent in (from.ceil() as i32)..=(to.floor() as i32) {
        let at = x(10_f64.powi(exponent));
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">1e{exponent}</text>",
            bottom + 16.0
        );
    }
    for nth in 0..=4 {
        let loss = low + (high - low) * f64::from(nth) / 4.0;
        let at = y(loss);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.3}</text>",
            width - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#bbb\"/>\n\
         <polyline points=\"{}\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\"/>",
        line(|point| point.loss),
        line(|point| point.smoothed)
    );
    if let Some(lr) = suggestion {
        let at = x(lr);
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#d62728\" stroke-dasharray=\"4\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#d62728\">{lr:.2e}</text>",
            at + 4.0,
            TOP + 12.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">learning rate</text>\n\
         <text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">loss</text>\n</svg>",
        f64::midpoint(LEFT, width - RIGHT),
        height - 8.0,
        f64::midpoint(TOP, bottom)
    );
    out
}
