//! `trainer runs`: lists the runs in a folder as a table.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};
use trainer_formats::run::{
    Found, Goal, Metrics, Run, data_of, ranked, runs_in, settings_of, text_of_setting,
};

use crate::RunsArguments;
use crate::facts::{differing, goals, metrics_to_json, setting, settings_and_data, value};
use crate::output::{BAD, Failure, Output, age, duration, style_of, suggestion};
use crate::table::{Cell, Column, Table, note};

/// The number of metrics that are shown if the user names none.
const METRICS: usize = 3;

/// A run in the list.
struct Row {
    name: String,
    run: Run,
    metrics: Metrics,
    /// The reason why the metrics could not be read.
    unreadable: Option<String>,
}

/// A value by which runs are sorted and filtered.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(f64),
    Text(String),
}

impl Value {
    fn cmp(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Number(one), Value::Number(other)) => one.total_cmp(other),
            (Value::Number(_), Value::Text(_)) => Ordering::Less,
            (Value::Text(_), Value::Number(_)) => Ordering::Greater,
            (Value::Text(one), Value::Text(other)) => one.cmp(other),
        }
    }
}

/// The fields by which runs can be sorted and filtered, in addition to their settings and metrics.
const FIELDS: [&str; 6] = ["name", "status", "started", "duration", "device", "entry"];

impl Row {
    /// Returns the run's value for a name, which may be a field, a setting or a metric. Returns
    /// `None` if the run has no such value.
    fn get(
        &self,
        key: &str,
        by_best: bool,
        goals: &BTreeMap<String, Goal>,
        now: SystemTime,
    ) -> Option<Value> {
        let file = self.run.file();
        let seconds =
            |duration: Option<Duration>| duration.map(|duration| Value::Number(duration.as_secs_f64()));
        match key {
            "name" => return Some(Value::Text(self.name.clone())),
            "status" => return Some(Value::Text(self.run.status().name().to_owned())),
            "started" => return Some(Value::Text(file.started.clone())),
            "duration" => return seconds(self.run.duration(now)),
            "device" => return Some(Value::Text(file.device.clone())),
            "entry" => return Some(Value::Text(file.entries())),
            _ => {}
        }
        if let Some(setting) = setting(file, key) {
            return match &*setting {
                Json::Null => None,
                Json::Number(number) => Some(Value::Number(number.as_f64()?)),
                other => Some(Value::Text(text_of_setting(other))),
            };
        }
        let metric = self.metrics.get(key)?;
        let best = goals.get(key).filter(|_| by_best).and_then(|goal| metric.best_by(*goal));
        Some(Value::Number(best.map_or(metric.last, |best| best.value).0))
    }
}

/// Prints the runs in a folder.
pub(crate) fn run(arguments: &RunsArguments, out: &mut Output) -> Result<ExitCode, Failure> {
    let now = SystemTime::now();
    let folder = &arguments.folder;
    let found = find(folder)?;
    let (mut rows, damaged) = read(found, folder);
    let sort = arguments.sort.as_deref().map(|key| match key.strip_prefix('-') {
        Some(key) => (key, true),
        None => (key, false),
    });
    let filters: Vec<Filter> =
        arguments.filter.iter().map(|text| Filter::parse(text)).collect::<Result<_, _>>()?;
    let keys = sort.iter().map(|(key, _)| *key).chain(filters.iter().map(|filter| filter.key));
    for key in keys.chain(arguments.metric.iter().map(String::as_str)) {
        check_key(key, &rows)?;
    }

    let mut goals = goals(rows.iter().map(|row| &row.metrics));
    if let Some((key, true)) = sort {
        // The order says which values are better.
        goals.entry(key.to_owned()).or_insert(Goal::Maximize);
    }
    rows.retain(|row| {
        filters.iter().all(|filter| filter.accepts(row.get(filter.key, arguments.best, &goals, now).as_ref()))
    });
    if let Some((key, is_descending)) = sort {
        let descending = is_descending || goals.get(key) == Some(&Goal::Maximize);
        rows.sort_by_cached_key(|row| SortKey {
            value: row.get(key, arguments.best, &goals, now),
            descending,
        });
    }
    let is_filtered = !filters.is_empty();
    if out.is_json() {
        for row in &rows {
            out.object(&to_json(row, &goals, now))?;
        }
        for (name, error) in damaged.iter().filter(|_| !is_filtered) {
            out.object(&json!({ "run": name, "status": "damaged", "error": error }))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let damaged = if is_filtered { Vec::new() } else { damaged };
    if rows.is_empty() && damaged.is_empty() {
        let which = if is_filtered { "no run matches the filters" } else { "there are no runs" };
        out.line(format!("{which} in {}", folder.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let sorted_by = sort.map(|(key, _)| key);
    let table = table(&rows, &damaged, arguments, sorted_by, &goals, now);
    let (text, left_out) = table.render(out.width());
    out.line(text.trim_end_matches('\n'))?;
    let unreadable = rows.iter().filter_map(|row| row.unreadable.clone());
    for error in damaged.iter().map(|(_, error)| error.clone()).chain(unreadable) {
        out.line(format!("{BAD}damaged:{BAD:#} {error}"))?;
    }
    if let Some(note) = note(&left_out, out.width()) {
        out.line(note)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn find(folder: &Path) -> Result<Vec<Found>, Failure> {
    if !folder.is_dir() {
        return Err(Failure::new(format!(
            "the folder {} does not exist: pass the folder that contains the runs, as in `trainer runs experiments`",
            folder.display()
        )));
    }
    Ok(runs_in(folder)?)
}

/// Reads the metrics of the runs, and names each run by its path within the folder. Returns these
/// runs, and the names of the runs that cannot be read, each with the reason.
fn read(found: Vec<Found>, folder: &Path) -> (Vec<Row>, Vec<(String, String)>) {
    let mut rows = Vec::new();
    let mut damaged = Vec::new();
    for found in found {
        let own = found.path.strip_prefix(folder).ok().filter(|own| !own.as_os_str().is_empty());
        let name = own.unwrap_or(&found.path).display().to_string();
        match found.run {
            Ok(run) => {
                let (metrics, unreadable) = match run.metrics() {
                    Ok(metrics) => (metrics, None),
                    Err(error) => (run.file().metrics.clone(), Some(error.to_string())),
                };
                rows.push(Row { name, run, metrics, unreadable });
            }
            Err(error) => damaged.push((name, error.to_string())),
        }
    }
    (rows, damaged)
}

/// Returns an error if no run has a field, setting or metric of this name.
fn check_key(key: &str, rows: &[Row]) -> Result<(), Failure> {
    let is_known = |row: &Row| setting(row.run.file(), key).is_some() || row.metrics.contains_key(key);
    if rows.is_empty() || FIELDS.contains(&key) || rows.iter().any(is_known) {
        return Ok(());
    }
    let mut known = FIELDS.to_vec();
    for row in rows {
        known.extend(settings_and_data(row.run.file()).into_keys());
        known.extend(row.metrics.keys().map(String::as_str));
    }
    let similar = suggestion(key, known);
    let metrics = ranked(rows.iter().map(|row| &row.metrics));
    let listed: Vec<String> =
        FIELDS[..4].iter().chain(metrics.iter().take(4)).map(|name| format!("`{name}`")).collect();
    Err(Failure::new(format!(
        "no run has a setting or metric named `{key}`{similar} (there are {}, and the settings that `trainer show RUN` lists)",
        listed.join(", ")
    )))
}

/// The key by which runs are sorted. Runs without a value come last.
#[derive(PartialEq)]
struct SortKey {
    value: Option<Value>,
    descending: bool,
}

impl Eq for SortKey {}

impl PartialOrd for SortKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SortKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let known = |key: &'_ Self| {
            key.value.clone().filter(|value| !matches!(value, Value::Number(number) if number.is_nan()))
        };
        match (known(self), known(other)) {
            (Some(one), Some(other)) if self.descending => other.cmp(&one),
            (Some(one), Some(other)) => one.cmp(&other),
            (one, other) => other.is_some().cmp(&one.is_some()),
        }
    }
}

/// A condition on a run, such as `lr=0.1`.
struct Filter<'t> {
    key: &'t str,
    operator: &'static str,
    value: &'t str,
}

impl<'t> Filter<'t> {
    fn parse(text: &'t str) -> Result<Self, Failure> {
        // The longer operators first.
        let operators = ["!=", "<=", ">=", "=", "<", ">"];
        let found = operators.into_iter().filter_map(|operator| Some((text.find(operator)?, operator)));
        let first = found.min_by_key(|(at, operator)| (*at, std::cmp::Reverse(operator.len())));
        let (at, operator) = first.filter(|(at, _)| *at > 0).ok_or_else(|| {
            Failure::new(format!(
                "the filter `{text}` is not a comparison: write `status=finished`, `lr=0.1` or `valid/loss<0.5` (`=`, `!=`, \
                 `<`, `<=`, `>`, `>=`)"
            ))
        })?;
        Ok(Filter { key: text[..at].trim(), operator, value: text[at + operator.len()..].trim() })
    }

    fn accepts(&self, found: Option<&Value>) -> bool {
        let Some(found) = found else { return self.operator == "!=" };
        let wanted = match (found, self.value.parse()) {
            (Value::Number(_), Ok(number)) => Value::Number(number),
            _ => Value::Text(self.value.to_owned()),
        };
        let (is_equal, order) = match (found, &wanted) {
            (Value::Number(one), Value::Number(other)) => (one == other, one.partial_cmp(other)),
            (one, other) => (one == other, Some(one.cmp(other))),
        };
        match self.operator {
            "=" => is_equal,
            "!=" => !is_equal,
            "<" => order.is_some_and(Ordering::is_lt),
            "<=" => order.is_some_and(Ordering::is_le),
            ">" => order.is_some_and(Ordering::is_gt),
            _ => order.is_some_and(Ordering::is_ge),
        }
    }
}

/// Builds the table. If the terminal is narrow, the columns with the lowest ranks are kept.
fn table(
    rows: &[Row],
    damaged: &[(String, String)],
    arguments: &RunsArguments,
    sorted_by: Option<&str>,
    goals: &BTreeMap<String, Goal>,
    now: SystemTime,
) -> Table {
    let each = |cell: &dyn Fn(&Row) -> Cell| rows.iter().map(cell).collect::<Vec<_>>();
    let mut names = each(&|row| Cell::new(&*row.name));
    names.extend(damaged.iter().map(|(name, _)| Cell::new(&**name)));
    let mut states = each(&|row| Cell::styled(row.run.status().name(), style_of(row.run.status())));
    states.extend(damaged.iter().map(|_| Cell::styled("damaged", BAD)));
    let ages = each(&|row| {
        let passed = row.run.started().and_then(|started| now.duration_since(started).ok());
        Cell::new(passed.map_or_else(String::new, age))
    });
    let durations = each(&|row| Cell::new(row.run.duration(now).map_or_else(String::new, duration)));
    let mut columns = vec![
        Column::text("run", 0, names),
        Column::text("status", 1, states),
        Column::number("age", 9, ages),
        Column::number("duration", 10, durations),
    ];

    let all: Vec<_> = rows.iter().map(|row| settings_and_data(row.run.file())).collect();
    for (nth, name) in differing(&all).into_iter().enumerate() {
        let cells = all.iter().map(|settings| {
            Cell::new(settings.get(name).map(|value| text_of_setting(value)).unwrap_or_default())
        });
        let rank = match nth {
            _ if sorted_by == Some(name) => 2,
            0..4 => 5 + nth,
            _ => 100 + nth,
        };
        columns.push(Column::value(name, rank, cells.collect()));
    }
    for (nth, name) in shown_metrics(rows, arguments, sorted_by).into_iter().enumerate() {
        let cell =
            |read: &dyn Fn(&Row) -> Option<String>| each(&|row| Cell::new(read(row).unwrap_or_default()));
        let last = cell(&|row| Some(value(row.metrics.get(name)?.last)));
        columns.push(Column::number(name, if nth == 0 { 3 } else { 200 + nth }, last));
        if let Some(goal) = goals.get(name) {
            let best = cell(&|row| Some(value(row.metrics.get(name)?.best_by(*goal)?.value)));
            let rank = if nth == 0 { 4 } else { 300 + nth };
            columns.push(Column::number("best", rank, best).named(format!("best {name}")));
        }
    }
    Table { columns }
}

/// Selects the metrics of the table: those that the user names, or by default the metric that runs
/// are sorted by, followed by the most important ones.
fn shown_metrics<'r>(
    rows: &'r [Row],
    arguments: &'r RunsArguments,
    sorted_by: Option<&'r str>,
) -> Vec<&'r str> {
    if !arguments.metric.is_empty() {
        return arguments.metric.iter().map(String::as_str).collect();
    }
    let ranked = ranked(rows.iter().map(|row| &row.metrics));
    let first = sorted_by.filter(|key| ranked.contains(key));
    let others = ranked.into_iter().filter(|name| Some(*name) != first);
    first.into_iter().chain(others).take(METRICS).collect()
}

fn to_json(row: &Row, goals: &BTreeMap<String, Goal>, now: SystemTime) -> Json {
    let file = row.run.file();
    let seconds = |duration: Duration| duration.as_secs();
    let age = row.run.started().and_then(|started| now.duration_since(started).ok());
    let mut object = json!({
        "run": row.name,
        "path": row.run.path(),
        "status": row.run.status(),
        "started": file.started,
        "age_seconds": age.map(seconds),
        "duration_seconds": row.run.duration(now).map(seconds),
        "settings": settings_of(file),
        "data": data_of(file),
        "metrics": metrics_to_json(&row.metrics, goals),
    });
    if let Some(error) = file.error.as_ref().or(row.unreadable.as_ref()) {
        object["error"] = error.as_str().into();
    }
    object
}
