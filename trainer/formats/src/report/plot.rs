//! A plot of curves, as SVG.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::curves::{Line, Marks, Plot};
use super::escape::Text;
use crate::float::exact;

/// The size of a plot. One unit is about a pixel.
pub(super) const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 200.0;
/// The area in which curves are drawn.
pub(super) const LEFT: f64 = 44.0;
pub(super) const RIGHT: f64 = 352.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 176.0;

/// The number of columns into which a long curve is divided.
const COLUMNS: usize = 308;
/// If a page has more curves than this, it uses fewer columns, so that a browser can show it.
const MANY_LINES: usize = 300;
/// Curves with at most this many values are drawn with dots, except training curves.
const MAX_DOTS: usize = 40;
/// Values are clamped to ± this limit when drawn, so that their differences are finite.
const LIMIT: f64 = 1e300;
/// The maximum width of a label beside the vertical axis. Wider labels are drawn inside the plot.
const MAX_LABEL: f64 = LEFT - 5.0;

/// A curve that has few enough points to be drawn.
struct Thinned {
    /// The values in order: all of them, or the first, smallest, largest and last value of each
    /// column. NaN is a gap.
    points: Vec<(f64, f64)>,
    /// The mean of each column; empty if the curve was short enough to be drawn unchanged.
    means: Vec<(f64, f64)>,
    /// The first NaN, the first infinity and the first negative infinity of each column.
    odd: Vec<(f64, f64)>,
}

/// Reduces a curve to the points that can be seen, without losing extremes.
fn thin(points: &[(f64, f64)], axis: &Axis) -> Thinned {
    let (low, high) = axis.steps;
    let columns = if axis.lines > MANY_LINES { COLUMNS / 4 } else { COLUMNS };
    let column = |step: f64| ((step - low) / (high - low) * columns as f64) as usize;
    let mut thinned = Thinned { points: Vec::new(), means: Vec::new(), odd: Vec::new() };
    // Shorter curves are drawn unchanged.
    let is_long = points.len() > 2 * columns;
    for chunk in points.chunk_by(|one, other| is_long && column(one.0) == column(other.0)) {
        let finite = || chunk.iter().enumerate().filter(|(_, (_, value))| value.is_finite());
        let order = |one: &(usize, &(f64, f64)), other: &(usize, &(f64, f64))| one.1.1.total_cmp(&other.1.1);
        let kept: BTreeSet<usize> =
            [finite().next(), finite().min_by(order), finite().max_by(order), finite().next_back()]
                .into_iter()
                .flatten()
                .map(|(nth, _)| nth)
                .collect();
        match kept.first() {
            Some(&first) => {
                thinned.points.extend(kept.iter().map(|nth| chunk[*nth]));
                let (sum, count) =
                    finite().fold((0.0, 0), |(sum, count), (_, point)| (sum + point.1, count + 1));
                thinned.means.push((chunk[first].0, sum / f64::from(count)));
            }
            None => {
                thinned.points.push((chunk[0].0, f64::NAN));
                thinned.means.push((chunk[0].0, f64::NAN));
            }
        }
        let odd = |is: fn(f64) -> bool| chunk.iter().find(|point| is(point.1)).copied();
        let kinds: [fn(f64) -> bool; 3] =
            [f64::is_nan, |value| value == f64::INFINITY, |value| value == f64::NEG_INFINITY];
        thinned.odd.extend(kinds.into_iter().filter_map(odd));
    }
    if !is_long {
        thinned.means.clear();
    }
    thinned
}

/// The vertical axis.
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Scale {
    /// Returns the scale for these values. Returns `None` if no value is finite or, on a
    /// logarithmic axis, if no value is positive.
    fn of(values: impl Iterator<Item = f64>, is_log: bool) -> Option<Self> {
        let values = values.filter(|value| value.is_finite() && (!is_log || *value > 0.0));
        let (low, high) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (value.min(low), value.max(high)));
        if low > high {
            return None;
        }
        let mut scale = Scale { low, high, is_log };
        let (low, high) = (scale.position(low), scale.position(high));
        let size = if is_log { 1.0 } else { low.abs().max(high.abs()) };
        // A curve that is constant up to rounding is drawn as a line in the middle.
        let margin = match high - low {
            range if range > (1e-9 * size).max(1.0 / LIMIT) => 0.04 * range,
            _ if size < 1e9 / LIMIT => 1.0,
            _ => 0.1 * size,
        };
        (scale.low, scale.high) = (low - margin, high + margin);
        Some(scale)
    }

    /// Returns the position of a value on the axis, before it is scaled to the plot.
    fn position(&self, value: f64) -> f64 {
        if self.is_log { value.log10() } else { value.clamp(-LIMIT, LIMIT) }
    }

    fn pixel(&self, value: f64) -> Option<f64> {
        let share = (self.position(value) - self.low) / (self.high - self.low);
        (value.is_finite() && share.is_finite()).then_some(BOTTOM - share * (BOTTOM - TOP))
    }

    /// Returns the values to label, with their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        if !self.is_log {
            return even_ticks(self.low, self.high, 0.0);
        }
        let decades = (self.low.ceil(), self.high.floor());
        match self.high - self.low {
            0.0..=1.0 => even_ticks(10_f64.powf(self.low), 10_f64.powf(self.high).min(f64::MAX), 0.0),
            1.0..=2.0 => {
                let powers = [decades.0 - 1.0, decades.0, decades.0 + 1.0, decades.0 + 2.0];
                let values =
                    powers.into_iter().flat_map(|power| [1.0, 2.0, 5.0].map(|own| own * 10_f64.powf(power)));
                values.map(|value| (value, power_label(value))).collect()
            }
            _ => {
                let every = ((decades.1 - decades.0) / 4.0).ceil().max(1.0);
                let count = ((decades.1 - decades.0) / every) as usize;
                let values = (0..=count).map(|nth| 10_f64.powf(decades.0 + nth as f64 * every));
                values.map(|value| (value, power_label(value))).collect()
            }
        }
    }
}

/// Formats a label of a logarithmic axis.
fn power_label(value: f64) -> String {
    if (0.001..=20_000.0).contains(&value) { short(value) } else { format!("{value:.0e}") }
}

/// Returns about five round numbers between `low` and `high`, with their labels. Adjacent numbers
/// are at least `least` apart.
fn even_ticks(low: f64, high: f64, least: f64) -> Vec<(f64, String)> {
    let rough = ((high - low) / 5.0).max(least);
    let power = rough.log10().floor();
    let steps = [(1.0, power), (2.0, power), (5.0, power), (1.0, power + 1.0)];
    let steps = steps.map(|(factor, power)| (factor * 10_f64.powf(power), power));
    let Some((step, power)) = steps.into_iter().find(|(step, _)| *step >= rough) else { return Vec::new() };
    if !step.is_normal() || !(low / step).is_finite() {
        return Vec::new();
    }
    let numbers = (low / step).ceil() as i64..=(high / step).floor() as i64;
    let label = |value: f64| match () {
        () if value == 0.0 => "0".to_owned(),
        () if value.abs() < 1e6 && power > -6.0 => format!("{value:.*}", (-power).max(0.0) as usize),
        () => {
            // Enough digits to distinguish it from the next tick.
            let digits = (value.abs().log10().floor() - power).clamp(0.0, 16.0);
            let text = format!("{value:.*e}", digits as usize);
            let (number, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let number = if number.contains('.') { number.trim_end_matches('0') } else { number };
            format!("{}e{exponent}", number.trim_end_matches('.'))
        }
    };
    numbers.take(12).map(|number| number as f64 * step).map(|value| (value, label(value))).collect()
}

/// Returns the ticks of the horizontal axis: whole numbers of steps.
fn step_ticks((low, high): (f64, f64)) -> Vec<(f64, String)> {
    let units = [("G", 1e9, 2e9), ("M", 1e6, 2e6), ("k", 1e3, 1e4)];
    let unit = units.into_iter().find(|(_, _, from)| high >= *from);
    let ticks = even_ticks(low, high, 1.0).into_iter();
    let label = |step: f64, label: String| match unit {
        Some((unit, size, _)) if step != 0.0 => format!("{}{unit}", short(step / size)),
        _ => label,
    };
    ticks.map(|(step, own)| (step, label(step, own))).collect()
}

/// Formats a value with at most six significant digits.
pub(super) fn short(value: f64) -> String {
    exact(format!("{value:.5e}").parse().unwrap_or(value))
}

/// Returns the approximate width of a label.
fn width(label: &str) -> f64 {
    label.chars().map(|character| if matches!(character, '.' | '-') { 3.6 } else { 6.3 }).sum()
}

/// Formats a coordinate.
fn at(coordinate: f64) -> String {
    let text = format!("{coordinate:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// The horizontal axis, which all plots share, and the marks on it.
pub(super) struct Axis<'a> {
    pub(super) steps: (f64, f64),
    /// The number of curves in all plots.
    pub(super) lines: usize,
    pub(super) marks: &'a [Marks],
    /// Whether several runs are compared. If so, colors distinguish runs; otherwise, they
    /// distinguish phases.
    pub(super) compares: bool,
}

impl Axis<'_> {
    fn pixel(&self, step: f64) -> f64 {
        LEFT + (step - self.steps.0) / (self.steps.1 - self.steps.0) * (RIGHT - LEFT)
    }

    /// Returns the CSS classes of a curve, for its color, its run and its style. The page uses the
    /// class of a run to hide its curves.
    fn class(&self, line: &Line) -> String {
        let color = if self.compares { line.run % COLORS } else { color_of_phase(&line.phase) };
        let dashes = if line.run >= COLORS { " dashed" } else { "" };
        let faint = if self.compares && line.phase == "train" { " faint" } else { "" };
        format!("c{color} r{}{dashes}{faint}", line.run)
    }
}

/// The number of colors. With more runs, the colors are used again, for dashed curves.
pub(super) const COLORS: usize = 8;

/// Returns the color of a phase, for a report about a single run.
pub(super) fn color_of_phase(phase: &str) -> usize {
    ["train", "valid", "test", "predict"].iter().position(|own| *own == phase).unwrap_or(4)
}

/// Draws a plot with a linear and with a logarithmic vertical axis. The page shows one of the two
/// drawings.
pub(super) fn draw(out: &mut String, plot: &Plot, axis: &Axis) {
    let thinned: Vec<_> = plot.lines.iter().map(|line| thin(&line.points, axis)).collect();
    let is_chosen = is_flat(plot);
    for is_log in [false, true] {
        draw_one(out, plot, &thinned, axis, is_log, is_log == is_chosen);
    }
}

/// Returns whether a linear axis would hide the curves, as it hides a loss after its first values:
/// all values are positive, and those of the later half are in the lowest tenth of the axis.
fn is_flat(plot: &Plot) -> bool {
    let is_long = plot.lines.iter().any(|line| line.points.len() >= 8);
    let finite = |points: &[(f64, f64)]| {
        points.iter().map(|(_, value)| *value).filter(|value| value.is_finite()).collect::<Vec<_>>()
    };
    let all: Vec<f64> = plot.lines.iter().flat_map(|line| finite(&line.points)).collect();
    let late = plot.lines.iter().flat_map(|line| finite(&line.points[line.points.len() / 2..]));
    let low = all.iter().copied().fold(f64::INFINITY, f64::min);
    let high = all.iter().copied().fold(0.0, f64::max);
    let late_high = late.fold(0.0, f64::max);
    is_long && low > 0.0 && high > 5.0 * low && late_high < low + 0.1 * (high - low)
}

fn draw_one(out: &mut String, plot: &Plot, thinned: &[Thinned], axis: &Axis, is_log: bool, is_chosen: bool) {
    let values = thinned.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
    let scale = Scale::of(values, is_log);
    let kind = if is_log { "log" } else { "linear" };
    let _ = write!(
        out,
        "<svg class=\"{kind}{}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}, {kind} axis\">",
        if is_chosen { "" } else { " other" },
        Text(&plot.name)
    );
    let labels = draw_axes(out, scale.as_ref(), axis);
    match &scale {
        Some(scale) => {
            for (line, thinned) in plot.lines.iter().zip(thinned) {
                draw_line(out, line, thinned, scale, axis);
            }
        }
        None => {
            let why = if is_log { "no positive value" } else { "no finite value" };
            let _ = write!(out, "<text class=\"none\" x=\"198\" y=\"95\">{why}</text>");
        }
    }
    for (line, thinned) in plot.lines.iter().zip(thinned) {
        draw_odd(out, line, &thinned.odd, axis);
    }
    let _ = write!(out, "{labels}</svg>");
}

/// Draws the grid and the marks on the horizontal axis. Returns the labels, which must be drawn
/// last.
fn draw_axes(out: &mut String, scale: Option<&Scale>, axis: &Axis) -> String {
    out.push_str("<g class=\"grid\">");
    let mut labels = String::new();
    let ticks = scale.map(Scale::ticks).unwrap_or_default();
    let are_long = ticks.iter().any(|(_, label)| width(label) > MAX_LABEL);
    for (value, label) in ticks {
        let Some(y) = scale.and_then(|scale| scale.pixel(value)).filter(|y| (TOP..=BOTTOM).contains(y))
        else {
            continue;
        };
        let _ = write!(out, "<path d=\"M{LEFT} {}H{RIGHT}\"/>", at(y));
        let (class, x, y) =
            if are_long { ("within", LEFT + 3.0, y - 3.0) } else { ("y", LEFT - 5.0, y + 3.5) };
        let _ = write!(labels, "<text class=\"{class}\" x=\"{x}\" y=\"{}\">{label}</text>", at(y));
    }
    let _ = write!(out, "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>");
    let mut validations = BTreeSet::new();
    for marks in axis.marks {
        validations.extend(marks.validations.iter().map(|step| at(axis.pixel(*step))));
    }
    if validations.len() <= 100 && !validations.is_empty() {
        let ticks: String = validations.iter().map(|x| format!("M{x} {BOTTOM}v4")).collect();
        let _ = write!(out, "<path class=\"axis\" d=\"{ticks}\"/>");
    }
    for (step, label) in step_ticks(axis.steps) {
        let x = axis.pixel(step);
        let anchor = if x > RIGHT - 12.0 { " end" } else { "" };
        let _ = write!(
            labels,
            "<text class=\"x{anchor}\" x=\"{}\" y=\"{}\">{label}</text>",
            at(x),
            BOTTOM + 15.0
        );
    }
    for (run, marks) in axis.marks.iter().enumerate() {
        let class = if axis.compares { format!("c{} r{run} ", run % COLORS) } else { String::new() };
        for (step, time) in &marks.resumes {
            let _ = write!(
                out,
                "<path class=\"{class}resume\" d=\"M{} {TOP}V{BOTTOM}\"><title>resumed {}</title></path>",
                at(axis.pixel(*step)),
                Text(time)
            );
        }
    }
    out.push_str("</g>");
    labels
}

/// Returns the path commands for these points, with gaps at points that the axis cannot show.
fn path(points: &[(f64, f64)], scale: &Scale, axis: &Axis) -> String {
    let mut path = String::new();
    let mut is_drawing = false;
    for (nth, (step, value)) in points.iter().enumerate() {
        let y = scale.pixel(*value);
        if let Some(y) = y {
            let command = if is_drawing { 'L' } else { 'M' };
            let _ = write!(path, "{command}{} {}", at(axis.pixel(*step)), at(y));
            let ends = points.get(nth + 1).is_none_or(|(_, next)| scale.pixel(*next).is_none());
            if !is_drawing && ends {
                path.push_str("h0"); // a dot
            }
        }
        is_drawing = y.is_some();
    }
    path
}

fn draw_line(out: &mut String, line: &Line, thinned: &Thinned, scale: &Scale, axis: &Axis) {
    let class = axis.class(line);
    let d = path(&thinned.points, scale, axis);
    if d.is_empty() {
        return;
    }
    let _ = write!(out, "<path class=\"line {class}\" d=\"{d}\"");
    if !thinned.means.is_empty() {
        let _ = write!(out, " data-means=\"{}\"", path(&thinned.means, scale, axis));
    }
    if !scale.is_log {
        // These are the values shown at the pointer.
        let list = |number: fn(&(f64, f64)) -> f64| {
            let numbers: Vec<_> = thinned.points.iter().map(|point| short(number(point))).collect();
            numbers.join(" ")
        };
        let _ = write!(
            out,
            " data-run=\"{}\" data-name=\"{}\" data-x=\"{}\" data-y=\"{}\"",
            line.run,
            Text(&line.phase),
            list(|point| point.0),
            list(|point| point.1)
        );
    }
    out.push_str("/>");
    let finite = thinned.points.iter().filter(|(_, value)| scale.pixel(*value).is_some());
    if line.phase != "train" && thinned.points.len() <= MAX_DOTS {
        let dots: String = finite
            .filter_map(|(step, value)| {
                Some(format!("M{} {}h0", at(axis.pixel(*step)), at(scale.pixel(*value)?)))
            })
            .collect();
        let _ = write!(out, "<path class=\"dots {class}\" d=\"{dots}\"/>");
    }
}

/// Marks values that are NaN or infinite: NaN with a cross at the bottom, and an infinite value
/// with a triangle at the top or bottom.
fn draw_odd(out: &mut String, line: &Line, odd: &[(f64, f64)], axis: &Axis) {
    for (step, value) in odd {
        let (shape, y) = match value {
            _ if value.is_nan() => ("m-3-3l6 6m0-6l-6 6", BOTTOM - 5.0),
            _ if *value > 0.0 => ("m0-4l4 7h-8z", TOP + 4.0),
            _ => ("m0 4l4-7h-8z", BOTTOM - 4.0),
        };
        let _ = write!(
            out,
            "<path class=\"odd {}\" d=\"M{} {y}{shape}\"><title>{} {value} at step {step}</title></path>",
            axis.class(line),
            at(axis.pixel(*step)),
            Text(&line.phase)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_is_chosen_for_curves_that_a_linear_one_would_hide() {
        let plot = |value: fn(f64) -> f64| {
            let points = (0..40).map(|step| (f64::from(step), value(f64::from(step)))).collect();
            Plot { name: "loss".to_owned(), lines: vec![Line { run: 0, phase: "train".to_owned(), points }] }
        };
        assert!(is_flat(&plot(|step| 0.01 + 2.3 * (-step / 2.0).exp())));
        for linear in [
            |step: f64| 2.3 - step / 40.0,
            |step: f64| 1.0 - (-step / 2.0).exp(), // an accuracy
            |step: f64| 2.3 * (-step / 2.0).exp() - 0.1,
            |_: f64| 0.5,
            |_: f64| f64::NAN,
            |step: f64| if step < 1.0 { 1.0 } else { 0.9 },
        ] {
            assert!(!is_flat(&plot(linear)));
        }
    }

    #[test]
    fn a_long_curve_keeps_its_extremes_and_its_length_is_limited() {
        let mut points: Vec<_> =
            (0..100_000).map(|step| (f64::from(step), (f64::from(step) / 1e4).sin())).collect();
        points[31_415].1 = 77.0;
        points[2_718].1 = -77.0;
        points[50_000].1 = f64::NAN;
        points[50_001].1 = f64::INFINITY;
        let axis = |high, lines| Axis { steps: (0.0, high), lines, marks: &[], compares: false };
        let thinned = thin(&points, &axis(100_000.0, 1));
        assert!(thinned.points.len() <= 4 * (COLUMNS + 1) && thinned.means.len() <= COLUMNS + 1);
        for extreme in [(31_415.0, 77.0), (2_718.0, -77.0)] {
            assert!(thinned.points.contains(&extreme), "{extreme:?}");
        }
        assert!(thinned.points.is_sorted_by(|one, other| one.0 <= other.0));
        assert_eq!(thinned.odd.len(), 2);
        assert!(thinned.odd[0].1.is_nan() && thinned.odd[1] == (50_001.0, f64::INFINITY));

        let few = thin(&points[..2 * COLUMNS], &axis(1000.0, 1));
        assert_eq!((few.points.len(), few.means.len()), (2 * COLUMNS, 0));
        let many = thin(&points, &axis(100_000.0, MANY_LINES + 1));
        assert!(many.points.len() <= COLUMNS + 4 && many.points.contains(&(31_415.0, 77.0)));
    }

    fn labels(ticks: Vec<(f64, String)>) -> Vec<String> {
        ticks.into_iter().map(|(_, label)| label).collect()
    }

    fn scale(values: &[f64], is_log: bool) -> Scale {
        Scale::of(values.iter().copied(), is_log).unwrap()
    }

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        let even = |low, high| labels(even_ticks(low, high, 0.0));
        assert_eq!(even(0.0, 1080.0), ["0", "500", "1000"]);
        assert_eq!(even(-0.3, 0.31), ["-0.2", "0", "0.2"]);
        assert_eq!(even(1e-7, 4e-7), ["1e-7", "2e-7", "3e-7", "4e-7"]);
        assert_eq!(even(1.18e-30, 1.32e-30), ["1.2e-30", "1.25e-30", "1.3e-30"]);
        assert_eq!(
            even(1_000_000.0, 1_000_004.0),
            ["1e6", "1.000001e6", "1.000002e6", "1.000003e6", "1.000004e6"]
        );
        let log = |values: &[f64]| labels(scale(values, true).ticks());
        assert_eq!(log(&[0.002, 300.0, -1.0]), ["0.01", "0.1", "1", "10", "100"]);
        assert_eq!(log(&[1e-9, 1.0]), ["1e-9", "1e-6", "0.001", "1"]);
        let steps = |low, high| labels(step_ticks((low, high)));
        assert_eq!(steps(0.0, 2.0), ["0", "1", "2"]);
        assert_eq!(steps(5.0, 40.0), ["10", "20", "30", "40"]);
        assert_eq!(steps(0.0, 1e5), ["0", "20k", "40k", "60k", "80k", "100k"]);
        assert_eq!(steps(0.0, 2.5e6), ["0", "0.5M", "1M", "1.5M", "2M", "2.5M"]);
        assert_eq!(["0.123457", "-1e-9"], [0.123_456_789, -1e-9].map(short)[..]);
    }

    #[test]
    fn a_constant_curve_is_in_the_middle() {
        for (value, expected) in [
            (0.0, vec!["-1.0", "-0.5", "0", "0.5", "1.0"]),
            (-0.0, vec!["-1.0", "-0.5", "0", "0.5", "1.0"]),
            (0.3, vec!["0.28", "0.30", "0.32"]),
            (1e-30, vec!["9e-31", "9.5e-31", "1e-30", "1.05e-30", "1.1e-30"]),
            (-1e30, vec!["-1.1e30", "-1.05e30", "-1e30", "-9.5e29"]),
        ] {
            let scale = scale(&[value; 3], false);
            assert_eq!(labels(scale.ticks()), expected, "{value}");
            assert_eq!(scale.pixel(value), Some((TOP + BOTTOM) / 2.0), "{value}");
        }
    }

    /// Every pair of extreme values is drawn within the plot, and the labels of the axis are in
    /// order and differ from each other.
    #[test]
    fn extreme_values_are_drawn_within_the_plot() {
        assert!(Scale::of([f64::NAN, f64::INFINITY].into_iter(), false).is_none());
        assert!(Scale::of([0.0, -1.0].into_iter(), true).is_none());
        let sizes = [
            0.0,
            5e-324,
            f64::MIN_POSITIVE,
            1e-30,
            1e-7,
            0.1,
            1.0,
            1.0 + f64::EPSILON,
            123_456.0,
            1e30,
            1e301,
            f64::MAX,
        ];
        let values: Vec<f64> = sizes.into_iter().flat_map(|size| [size, -size]).collect();
        for (one, other) in values.iter().flat_map(|one| values.iter().map(|other| (*one, *other))) {
            for is_log in [false, true] {
                let Some(scale) = Scale::of([one, other].into_iter(), is_log) else { continue };
                for value in [one, other].into_iter().filter(|value| !is_log || *value > 0.0) {
                    let y = scale.pixel(value);
                    assert!(y.is_some_and(|y| (TOP..=BOTTOM).contains(&y)), "{one} {other} {is_log} {y:?}");
                }
                let ticks = scale.ticks();
                assert!(ticks.len() <= 13, "{one} {other} {is_log} {ticks:?}");
                assert!(ticks.is_sorted_by(|one, other| one.0 < other.0 && one.1 != other.1), "{ticks:?}");
            }
        }
    }
}
