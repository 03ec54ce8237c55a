//! [`draw`]: the view of a run, for a terminal of any size.

use std::cmp::Reverse;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Clear, Dataset, GraphType, Paragraph};
use trainer_formats::run::{Live, LiveHook, Status};
use trainer_formats::{duration, fit, one_line, padded, readable, without_path};
use unicode_width::UnicodeWidthStr;

use crate::text::{bytes, rough, wrap};
use crate::{Curve, Panel, State, Theme, View};

/// The minimum size of the terminal. A smaller one shows only a hint.
const MIN_SIZE: (u16, u16) = (40, 10);
/// The minimum size of each chart if several charts are shown.
const MIN_CHART: (u16, u16) = (40, 7);
/// A run may be stuck if there was no update for this many seconds.
const STALE: f64 = 5.0;

/// Draws a run. `now` is the time in seconds since the Unix epoch.
pub fn draw(frame: &mut Frame<'_>, state: &State, view: &View, theme: Theme, now: f64) {
    let area = frame.area();
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let hint = format!("needs at least {} × {}", MIN_SIZE.0, MIN_SIZE.1);
        frame.render_widget(Paragraph::new(fit(&hint, area.width.into())), area);
        return;
    }
    let panel_height = if area.height < 16 { 0 } else { (area.height / 3).max(8) };
    let rows = [
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(panel_height),
        Constraint::Length(1),
    ];
    let [title, position, bar, main, panel, keys] = Layout::vertical(rows).areas(area);
    let [list, charts] =
        Layout::horizontal([Constraint::Length((area.width / 3).clamp(24, 40)), Constraint::Fill(1)])
            .areas(main);
    draw_title(frame, title, state, theme, now);
    draw_position(frame, position, state);
    draw_bar(frame, bar, state, theme);
    draw_metrics(frame, list, state, view, theme);
    draw_charts(frame, charts, state, view, theme);
    if panel_height > 0 {
        draw_panel(frame, panel, state, view, theme);
    }
    draw_keys(frame, keys, view, theme);
    if view.shows_help() {
        draw_help(frame, area, theme);
    }
}

/// Draws two texts at the ends of a line. The left one is shortened if necessary.
fn draw_ends(frame: &mut Frame<'_>, area: Rect, left: Vec<Span<'_>>, right: &str) {
    let width = usize::from(area.width);
    let right = fit(right, width);
    let mut space = width.saturating_sub(right.width() + usize::from(!right.is_empty()) * 2);
    let mut shown = Vec::new();
    for span in left {
        let text = fit(&span.content, space);
        space -= text.width();
        shown.push(Span::styled(text, span.style));
    }
    frame.render_widget(Paragraph::new(Line::from(shown)), area);
    frame.render_widget(Paragraph::new(right).alignment(Alignment::Right), area);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme, now: f64) {
    let mut left = vec![
        Span::styled(state.title().to_owned(), theme.strong()),
        Span::raw("  "),
        Span::styled(state.status().name(), theme.status(state.status())),
    ];
    if state.is_resumed() {
        left.push(Span::raw("  resumed"));
    }
    if let Some(why) = state.ending().filter(|_| state.status() != Status::Running) {
        // The error of a cancelled run begins with its status.
        let text = match why.strip_prefix(state.status().name()) {
            Some(rest) => rest.to_owned(),
            None => format!(": {why}"),
        };
        left.push(Span::raw(text));
    }
    if let Some(problem) = state.problem() {
        left.push(Span::styled(format!("  {problem}"), theme.error()));
    }
    let age = state.live().map_or(0.0, |live| now - live.written);
    let right = match state.live() {
        Some(_) if state.status() == Status::Running && age >= STALE => {
            format!("no news for {}", rough(age))
        }
        Some(live) => format!("{} {}", live.entry, rough(live.elapsed)),
        None => String::new(),
    };
    draw_ends(frame, area, left, &right);
}

fn draw_position(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(live) = state.live() else {
        let text = "this run has no `live.json`, which only newer trainers write";
        frame.render_widget(Paragraph::new(fit(text, area.width.into())), area);
        return;
    };
    let of = |count: Option<u64>| count.map_or_else(String::new, |count| format!("/{count}"));
    let mut left = live.phase.clone();
    if let Some(loader) = &live.loader {
        left += &format!(" {loader}");
    }
    if live.entry == "fit" {
        left += &format!("  epoch {}{}", live.epoch.saturating_add(1), of(live.epochs));
    }
    left += &format!("  batch {}{}", live.batch, of(live.batches));
    if let Some(pace) = state.batches_per_second().filter(|_| state.status() == Status::Running) {
        left +=
            &format!("  {} batches/s", if pace < 10.0 { format!("{pace:.1}") } else { format!("{pace:.0}") });
    }
    let memory = live.memory.map(|count| format!("memory {}", bytes(count)));
    let device = live.device_memory.map(|count| format!("GPU {}", bytes(count)));
    let right: Vec<String> = memory.into_iter().chain(device).collect();
    draw_ends(frame, area, vec![Span::raw(left)], &right.join("  "));
}

fn draw_bar(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let Some(live) = state.live() else { return };
    let Some(remaining) = state.remaining() else {
        frame.render_widget(Paragraph::new(format!("step {}", live.optimizer_steps)), area);
        return;
    };
    let eta = match remaining.seconds {
        Some(seconds) => format!("  {} left", rough(seconds)),
        None => String::new(),
    };
    let planned = live.planned_steps.unwrap_or_default();
    let text = format!(
        " {:3.0} %  step {}/{planned}{eta}",
        (remaining.fraction * 100.0).floor(),
        live.optimizer_steps
    );
    let width = usize::from(area.width).saturating_sub(text.width());
    let done = (remaining.fraction * width as f64).floor() as usize;
    let line = vec![
        Span::styled("█".repeat(done), theme.bar()),
        Span::styled("░".repeat(width - done), theme.faint()),
        Span::raw(fit(&text, area.width.into())),
    ];
    frame.render_widget(Paragraph::new(Line::from(line)), area);
}

fn draw_metrics(frame: &mut Frame<'_>, area: Rect, state: &State, view: &View, theme: Theme) {
    let block = Block::bordered().title(" metrics ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let cursor = view.cursor(state);
    let names: Vec<&str> = state.names().collect();
    if names.is_empty() {
        let text = if state.live().is_some_and(|live| !live.logged.is_empty())
            || state.status() != Status::Running
        {
            "no values: they are read from the logger `Csv` or `JsonLines`, `.hook(Csv::new())`"
        } else {
            "no values yet"
        };
        let lines: Vec<Line<'_>> = wrap(text, inner.width.into()).into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines), inner);
        return;
    }
    let height = usize::from(inner.height);
    let at = names.iter().position(|name| Some(*name) == cursor).unwrap_or(0);
    let first = at.saturating_sub(height / 2).min(names.len().saturating_sub(height));
    let lines = names.iter().skip(first).take(height).map(|name| {
        let value = state.last(name).map_or_else(|| "-".to_owned(), readable);
        let width = usize::from(inner.width).saturating_sub(value.width() + 3);
        let name_text = fit(name, width);
        let space = " ".repeat(width - name_text.width() + 1);
        let mark = if view.is_chosen(name) { "•" } else { " " };
        let style = if Some(*name) == cursor { theme.selected() } else { Style::new() };
        Line::styled(format!("{mark} {name_text}{space}{value}"), style)
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), inner);
}

fn draw_charts(frame: &mut Frame<'_>, area: Rect, state: &State, view: &View, theme: Theme) {
    let shown = view.shown(state);
    let columns = if shown.len() > 1 { (area.width / MIN_CHART.0).clamp(1, 3) } else { 1 };
    let rows = (area.height / MIN_CHART.1).max(1);
    let fitting = usize::from(columns * rows).min(shown.len());
    let rows = fitting.div_ceil(columns.into());
    let areas = Layout::vertical(vec![Constraint::Fill(1); rows.max(1)]).split(area);
    for (nth, name) in shown.iter().take(fitting).enumerate() {
        let row = nth / usize::from(columns);
        let in_row = (fitting - row * usize::from(columns)).min(columns.into());
        let columns_of_row = Layout::horizontal(vec![Constraint::Fill(1); in_row]).split(areas[row]);
        if let Some(curve) = state.curve(name) {
            draw_chart(frame, columns_of_row[nth % usize::from(columns)], name, curve, theme);
        }
    }
    if shown.is_empty() {
        frame.render_widget(Block::bordered(), area);
    }
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, name: &str, curve: &Curve, theme: Theme) {
    let last = curve.last().map_or_else(String::new, readable);
    let is_finite = curve.last().is_none_or(f64::is_finite);
    let width = usize::from(area.width).saturating_sub(last.width() + 6);
    let title = Line::from(vec![
        Span::raw(format!(" {} ", fit(name, width))),
        Span::styled(format!("{last} "), if is_finite { theme.strong() } else { theme.error() }),
    ]);
    let block = Block::bordered().title(title);
    let points = || curve.steps().iter().chain(curve.passes());
    if points().next().is_none() {
        frame.render_widget(Paragraph::new("no finite value").block(block), area);
        return;
    }
    let [xs, ys] = [bounds(points().map(|point| point.0)), bounds(points().map(|point| point.1))];
    // Drawing never ends if the difference between the bounds is not finite.
    let scaled = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points.iter().map(|(x, y)| (fraction(*x, xs), fraction(*y, ys))).collect()
    };
    let (of_steps, of_passes) = (scaled(curve.steps()), scaled(curve.passes()));
    let marker = |is_single: bool| if is_single { Marker::Dot } else { Marker::Braille };
    let steps = Dataset::default()
        .marker(marker(curve.steps().len() == 1))
        .graph_type(GraphType::Line)
        .style(theme.curve())
        .data(&of_steps);
    let is_alone = curve.steps().is_empty();
    let passes = Dataset::default()
        .marker(marker(!is_alone || curve.passes().len() == 1))
        .graph_type(if is_alone { GraphType::Line } else { GraphType::Scatter })
        .style(theme.passes())
        .data(&of_passes);
    let label = |value: f64| Span::styled(readable(value), theme.faint());
    let step = |value: f64| Span::styled(format!("{value:.0}"), theme.faint());
    let chart = Chart::new(vec![steps, passes])
        .block(block)
        .legend_position(None)
        .x_axis(Axis::default().bounds([0.0, 1.0]).labels([step(xs[0]), step(xs[1])]).style(theme.faint()))
        .y_axis(Axis::default().bounds([0.0, 1.0]).labels([label(ys[0]), label(ys[1])]).style(theme.faint()));
    frame.render_widget(chart, area);
}

/// Returns the position of a value between two bounds, from 0 to 1.
fn fraction(value: f64, [low, high]: [f64; 2]) -> f64 {
    (0.5 * value - 0.5 * low) / (0.5 * high - 0.5 * low)
}

/// Returns the smallest and the largest value, adjusted so that they differ.
fn bounds(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let [low, high] = values
        .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)]);
    // Clamped, so that their difference is finite.
    let [low, high] = [low, high].map(|bound| bound.clamp(-f64::MAX / 4.0, f64::MAX / 4.0));
    if low < high {
        return [low, high];
    }
    let around = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
    [low - around, high + around]
}

fn draw_panel(frame: &mut Frame<'_>, area: Rect, state: &State, view: &View, theme: Theme) {
    let warnings = state.live().map_or(0, |live| live.warnings.len());
    let mut title = vec![Span::raw(" ")];
    for panel in view.panels() {
        let name = match panel {
            Panel::Hooks => "hooks".to_owned(),
            Panel::Warnings => format!("warnings ({warnings})"),
            Panel::Log => "log".to_owned(),
        };
        let style = match panel {
            _ if *panel == view.panel() => theme.selected(),
            Panel::Warnings if warnings > 0 => theme.warning(),
            _ => Style::new(),
        };
        title.push(Span::styled(format!(" {name} "), style));
    }
    title.push(Span::raw(" "));
    let block = Block::bordered().title(Line::from(title));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let width = usize::from(inner.width);
    let height = usize::from(inner.height);
    let lines = match view.panel() {
        Panel::Hooks => hooks(state, width, height, view.scroll(), theme),
        Panel::Warnings => {
            let all = state.live().map_or(&[][..], |live| &live.warnings);
            let lines = all.iter().skip(view.scroll()).flat_map(|warning| hanging(warning, width));
            if all.is_empty() { vec![Line::from("none")] } else { lines.map(Line::from).collect() }
        }
        Panel::Log => {
            let shown = state.lines().len().saturating_sub(view.scroll());
            let lines = state.lines().take(shown).collect::<Vec<_>>();
            let lines: Vec<String> =
                lines.iter().rev().take(height).rev().flat_map(|line| hanging(line, width)).collect();
            lines.iter().skip(lines.len().saturating_sub(height)).cloned().map(Line::from).collect()
        }
    };
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Splits a text into lines, and wraps each line that does not fit, with its continuation indented.
/// A line that fits is unchanged, so that the columns of a table stay aligned.
fn hanging(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let line = one_line(line).into_owned();
        if line.width() <= width {
            lines.push(line);
            continue;
        }
        let mut words = wrap(&line, width.saturating_sub(2)).into_iter();
        lines.extend(words.next());
        lines.extend(words.map(|line| format!("  {line}")));
    }
    lines
}

/// The column widths of the hook table. The first and last columns share the remaining width.
const MOMENT: usize = 16;
const CALLS: usize = 8;
const TIME: usize = 8;

/// Returns the lines of the hook table. The hooks that took the most time come first or, if times
/// are not measured, the hooks that have logged a value.
fn hooks(state: &State, width: usize, height: usize, scroll: usize, theme: Theme) -> Vec<Line<'static>> {
    let Some(live) = state.live() else {
        let rows = state.hooks().iter().skip(scroll);
        return rows.map(|row| Line::from(fit(row, width))).collect();
    };
    let is_measured = live.hooks.iter().any(|hook| hook.time.is_some());
    let logged: Vec<String> = (0..live.hooks.len()).map(|nth| logged_by(Some(nth), live, state)).collect();
    let mut order: Vec<usize> = (0..live.hooks.len()).collect();
    if is_measured {
        order.sort_by_key(|nth| Reverse(live.hooks[*nth].time.map_or(0, |time| time.nanos)));
    } else {
        order.sort_by_key(|nth| logged[*nth].is_empty());
    }
    let fixed = if is_measured { MOMENT + CALLS + 2 * TIME + 5 } else { MOMENT + 2 };
    let space = width.saturating_sub(fixed);
    let name_width = space / 2;
    let row = |hook: &LiveHook, logged: &str| {
        let times = if !is_measured {
            String::new()
        } else if let Some(time) = hook.time.filter(|time| time.calls > 0) {
            let mean = duration(time.nanos / time.calls);
            format!(" {:>CALLS$} {mean:>TIME$} {:>TIME$}", time.calls, duration(time.nanos))
        } else {
            format!(" {:>CALLS$} {:>TIME$} {:>TIME$}", 0, "-", "-")
        };
        let name = padded(&fit(without_path(&hook.name), name_width), name_width);
        let moment = fit(&hook.moment, MOMENT);
        format!("{name} {moment:MOMENT$}{times} {}", fit(logged, space - name_width))
    };
    let times = if is_measured {
        format!(" {:>CALLS$} {:>TIME$} {:>TIME$}", "calls", "mean", "total")
    } else {
        String::new()
    };
    let head = format!("{:name_width$} {:MOMENT$}{times} {}", "hook", "moment", "logged last");
    let note = "not timed: `TRAINER_PROFILE=table` or `.profile(true)` measures the time of each hook";
    let mut lines = vec![Line::styled(fit(&head, width), theme.strong())];
    let own = logged_by(None, live, state);
    let mut rows: Vec<Line<'static>> = Vec::new();
    if !own.is_empty() {
        let name = fit("trainer", name_width);
        let blank = if is_measured { fixed - MOMENT - 2 } else { 0 };
        let indent = " ".repeat(name_width - name.width() + 1 + MOMENT + blank + 1);
        rows.push(Line::from(fit(&format!("{name}{indent}{own}"), width)));
    }
    rows.extend(order.iter().map(|nth| Line::from(row(&live.hooks[*nth], &logged[*nth]))));
    lines.extend(rows.into_iter().skip(scroll));
    if !is_measured && height > 2 {
        lines.truncate(height - 1);
        lines.push(Line::styled(fit(note, width), theme.faint()));
    }
    lines
}

/// Returns the values that a hook, or the trainer itself if `hook` is `None`, logged last.
fn logged_by(hook: Option<usize>, live: &Live, state: &State) -> String {
    let values = live.logged.iter().filter(|value| value.hook == hook);
    let texts = values.filter_map(|value| {
        let last = state.last(&value.name).or(value.value.map(|value| value.0))?;
        Some(format!("{} {}", value.name, readable(last)))
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, view: &View, theme: Theme) {
    let width = area.width.into();
    let line = if let Some(question) = view.question() {
        Line::styled(fit(&format!("{question}  y: yes, any other key: no"), width), theme.warning())
    } else if let Some(message) = view.message() {
        Line::styled(fit(message, width), theme.warning())
    } else {
        Line::styled(keys_within(width), theme.faint())
    };
    frame.render_widget(Paragraph::new(line), area);
}

/// The keys, the most important first.
const KEYS: [&str; 7] =
    ["? help", "q close", "s stop", "c checkpoint", "tab panel", "↑↓ metric", "space keep"];

/// Returns the keys that fit into a line, each in full.
fn keys_within(width: usize) -> String {
    let mut line = KEYS[0].to_owned();
    for key in &KEYS[1..] {
        if line.width() + 2 + key.width() > width {
            break;
        }
        line = line + "  " + key;
    }
    line
}

const HELP: &str = "\
↑ ↓ k j    choose the metric whose curve is shown
space      keep the curve, or stop keeping it
tab        next panel: hooks, warnings, log
page ↑ ↓   scroll the panel
c          request a checkpoint from the run
s          stop the run (SIGTERM)
ctrl-l     draw everything again
q esc      close the view; the run continues
any key    close this help";

fn draw_help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let width = HELP.lines().map(UnicodeWidthStr::width).max().unwrap_or(0) + 4;
    let height = HELP.lines().count() + 2;
    let [width, height] = [(width, area.width), (height, area.height)]
        .map(|(own, all)| u16::try_from(own).unwrap_or(u16::MAX).min(all));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let block = Block::bordered().title(Span::styled(" keys ", theme.strong()));
    let lines: Vec<Line<'_>> = HELP.lines().map(|line| Line::from(format!(" {line}"))).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
