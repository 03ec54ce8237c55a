//! `trainer show`: prints everything that is known about a run.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use trainer_files::{entries, metadata};
use trainer_formats::run::{Metrics, Run, Settings, Status, data_of, ranked, settings_of, text_of_setting};
use trainer_formats::{brief, one_line, visible};

use crate::facts::{goals, metrics_to_json, value};
use crate::output::{BAD, FAINT, Failure, HEADING, Output, age, duration, open, style_of};
use crate::table::{Cell, Column, Table};

/// Prints everything about a run.
pub(crate) fn run(path: &Path, out: &mut Output) -> Result<ExitCode, Failure> {
    let run = open(path)?;
    let now = SystemTime::now();
    let (metrics, unreadable) = match run.metrics() {
        Ok(metrics) => (metrics, None),
        Err(error) => (run.file().metrics.clone(), Some(error.to_string())),
    };
    if out.is_json() {
        out.object(&to_json(&run, &metrics, unreadable.as_deref(), now)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = style_of(run.status());
    out.line(format!(
        "{HEADING}{}{HEADING:#}  {style}{}{style:#}",
        run.path().display(),
        run.status().name()
    ))?;
    list(out, &times(&run, now))?;

    section(out, "metrics")?;
    match metrics.is_empty() {
        true => out.line("  none")?,
        false => metrics_table(&metrics, out)?,
    }
    if let Some(error) = unreadable {
        out.line(format!("  {BAD}damaged:{BAD:#} {error}"))?;
    }
    let texts = |settings: Settings<'_>| {
        let texts = settings.into_iter().map(|(name, value)| (name.to_owned(), text_of_setting(&value)));
        texts.collect::<Vec<_>>()
    };
    if !run.file().data.is_empty() {
        section(out, "data")?;
        list(out, &texts(data_of(run.file())))?;
    }
    section(out, "settings")?;
    list(out, &texts(settings_of(run.file())))?;
    section(out, "environment")?;
    let environment: Vec<_> =
        run.file().environment().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    list(out, &environment)?;
    section(out, "hooks")?;
    list(out, &by_moment(run.file().hooks.iter().map(String::as_str)))?;
    section(out, "files")?;
    list(out, &files(&run)?)?;
    Ok(ExitCode::SUCCESS)
}

fn section(out: &mut Output, title: &str) -> Result<(), Failure> {
    out.line(format!("\n{HEADING}{title}{HEADING:#}"))
}

/// Prints names and values in two columns, omitting names without a value. Long values are wrapped.
pub(crate) fn list(out: &mut Output, facts: &[(String, String)]) -> Result<(), Failure> {
    let widest =
        facts.iter().filter(|(_, value)| !value.is_empty()).map(|(name, _)| name.chars().count()).max();
    let names = widest.unwrap_or(0).min(32);
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let room = out.width().map_or(usize::MAX, |width| width.saturating_sub(names + 4).max(16));
        let name = one_line(name);
        for (nth, line) in lines(&visible(value), room).into_iter().enumerate() {
            let name = if nth == 0 { &*name } else { "" };
            out.line(format!("  {FAINT}{name:names$}{FAINT:#}  {line}"))?;
        }
    }
    Ok(())
}

/// Breaks a text into lines at spaces, or within words that are longer than a line.
pub(crate) fn lines(text: &str, room: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut rest = line;
        while let Some((end, _)) = rest.char_indices().nth(room) {
            let at = rest[..end].rfind(' ').filter(|at| *at > 0).unwrap_or(end);
            lines.push(rest[..at].to_owned());
            rest = rest[at..].trim_start();
        }
        lines.push(rest.to_owned());
    }
    lines
}

/// Splits hooks such as `Csv at after_record` into their moment and name. The moment is empty if it
/// is the same as that of the previous hook.
pub(crate) fn by_moment<'h>(hooks: impl Iterator<Item = &'h str>) -> Vec<(String, String)> {
    let mut last = "";
    hooks
        .map(|hook| {
            let (name, moment) = match hook.rsplit_once(" around ") {
                Some((name, _)) => (name, &hook[name.len() + 1..]),
                None => hook.rsplit_once(" at ").unwrap_or((hook, "")),
            };
            let shown = if moment == last { "" } else { moment };
            last = moment;
            (shown.to_owned(), name.to_owned())
        })
        .collect()
}

/// Returns when the run began and ended, and why it ended.
fn times(run: &Run, now: SystemTime) -> Vec<(String, String)> {
    let file = run.file();
    let when = |text: &str| text.replace('T', " ").replace('Z', " UTC");
    let ago = run.started().and_then(|started| now.duration_since(started).ok());
    let ago = ago.map_or_else(String::new, |ago| format!(", {} ago", age(ago)));
    let process = file.process.as_ref().map(|process| match &process.host {
        Some(host) => format!("{} on {host}", process.id),
        None => process.id.to_string(),
    });
    let ended = match run.status() {
        Status::Killed => "its process no longer exists".to_owned(),
        _ => file.ended.as_deref().map(when).unwrap_or_default(),
    };
    let facts = [
        (
            "origin",
            file.origin
                .as_ref()
                .map(|origin| format!("{} before training batch {}", origin.run, origin.batches))
                .unwrap_or_default(),
        ),
        ("started", format!("{}{ago}", when(&file.started))),
        ("resumed", file.resumed.iter().map(|time| when(time)).collect::<Vec<_>>().join(", ")),
        ("ended", ended),
        ("duration", run.duration(now).map(duration).unwrap_or_default()),
        ("entry", file.entries()),
        ("stopped", file.stopped.clone().unwrap_or_default()),
        ("roll-backs", file.roll_backs.join("\n")),
        ("error", file.error.clone().unwrap_or_default()),
        ("process", process.unwrap_or_default()),
    ];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn metrics_table(metrics: &Metrics, out: &mut Output) -> Result<(), Failure> {
    // Hyperparameters that never change are below.
    let is_constant = |name: &&str| {
        let (min, max) = (metrics[*name].min, metrics[*name].max);
        name.split('/').nth(1) == Some("hyperparameter")
            && min.map(|min| min.value) == max.map(|max| max.value)
    };
    let (constant, names): (Vec<_>, Vec<_>) =
        ranked([metrics].into_iter()).into_iter().partition(is_constant);
    let column =
        |read: &dyn Fn(&str) -> String| names.iter().map(|name| Cell::new(read(name))).collect::<Vec<_>>();
    let at = |name: &str| {
        metrics[name].best().map(|best| best.epoch.saturating_add(1).to_string()).unwrap_or_default()
    };
    let columns = vec![
        Column::text("  ", 0, column(&|name| format!("  {name}"))).least(40),
        Column::number("last", 1, column(&|name| value(metrics[name].last))),
        Column::number(
            "best",
            2,
            column(&|name| metrics[name].best().map(|best| value(best.value)).unwrap_or_default()),
        ),
        Column::number("in epoch", 3, column(&at)),
        Column::number(
            "smallest",
            4,
            column(&|name| metrics[name].min.map(|min| value(min.value)).unwrap_or_default()),
        ),
        Column::number(
            "largest",
            5,
            column(&|name| metrics[name].max.map(|max| value(max.value)).unwrap_or_default()),
        ),
    ];
    if !names.is_empty() {
        let (text, _) = Table { columns }.render(out.width());
        out.line(text.trim_end_matches('\n'))?;
    }
    let text: Vec<_> =
        constant.iter().map(|name| format!("{name} {}", brief(metrics[*name].last.0))).collect();
    list(out, &[("constant".to_owned(), text.join(", "))])
}

/// Returns the files in the run folder, with their sizes.
fn files(run: &Run) -> Result<Vec<(String, String)>, Failure> {
    let mut files = Vec::new();
    for path in entries(run.path())? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match metadata(&path)? {
            Some(found) if found.is_dir() => {
                let inside = entries(&path).map_or(0, |inside| inside.len());
                files.push((format!("{name}/"), format!("{inside} inside")));
            }
            Some(found) if !name.starts_with('.') => files.push((name, size(found.len()))),
            _ => {}
        }
    }
    files.sort();
    Ok(files)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

fn to_json(run: &Run, metrics: &Metrics, unreadable: Option<&str>, now: SystemTime) -> Result<Json, Failure> {
    let goals = goals([metrics].into_iter());
    let mut object = serde_json::to_value(run.file()).map_err(Failure::new)?;
    object["path"] = json!(run.path());
    object["status"] = json!(run.status());
    object["duration_seconds"] = json!(run.duration(now).map(|duration| duration.as_secs()));
    object["metrics"] = metrics_to_json(metrics, &goals);
    object["damaged"] = json!(unreadable);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn long_values_are_broken_at_spaces() {
        assert_eq!(lines("one two three", 7), ["one", "two", "three"]);
        assert_eq!(lines("one two three", 8), ["one two", "three"]);
        assert_eq!(lines("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(lines("a\nb", 3), ["a", "b"]);
        assert_eq!(lines("whole", usize::MAX), ["whole"]);
    }
}
