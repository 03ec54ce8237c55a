//! [`Plan`]: the file that defines a sweep. Mistakes in it are reported with their line.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value as Json, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::output::{Failure, suggestion};

/// The definition of a sweep: which values to try, and how to run the trials.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    /// The folder of the sweep.
    pub(crate) folder: PathBuf,
    /// The number of trials of a random search; `None` for a grid.
    pub(crate) trials: Option<usize>,
    /// The seed of a random search.
    pub(crate) seed: u64,
    /// The number of trials that run at once.
    pub(crate) jobs: usize,
    /// The time after which the sweep ends.
    pub(crate) budget: Option<Duration>,
    /// The arguments that pass one value, with the placeholders `{name}` and `{value}`.
    pub(crate) arguments: Vec<String>,
    /// The parameters, in the order of the file.
    pub(crate) parameters: Vec<(String, Domain)>,
}

/// The values that a parameter can have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Domain {
    /// One of these values.
    Choices(Vec<Json>),
    /// A number in this range.
    Uniform(f64, f64),
    /// A number in this range, drawn so that its logarithm is uniform.
    LogUniform(f64, f64),
    /// An integer between these two, inclusive.
    Integers(i64, i64),
}

impl Domain {
    /// Returns all values, for a grid; `None` if there are infinitely many.
    pub(crate) fn values(&self) -> Option<Vec<Json>> {
        match self {
            Domain::Choices(values) => Some(values.clone()),
            Domain::Integers(first, last) => Some((*first..=*last).map(Json::from).collect()),
            Domain::Uniform(..) | Domain::LogUniform(..) => None,
        }
    }

    fn to_json(&self) -> Json {
        match self {
            Domain::Choices(values) => json!(values),
            Domain::Uniform(low, high) => json!({ "uniform": [low, high] }),
            Domain::LogUniform(low, high) => json!({ "log_uniform": [low, high] }),
            Domain::Integers(first, last) => json!({ "integers": [first, last] }),
        }
    }
}

const KEYS: [&str; 7] = ["folder", "trials", "seed", "jobs", "budget", "arguments", "parameters"];
const DOMAINS: [&str; 4] = ["choices", "uniform", "log_uniform", "integers"];
const EXAMPLE: &str = "write `lr = [0.001, 0.01]`, `{ uniform = [0.0, 0.5] }`, `{ log_uniform = [1e-4, 1e-1] }`, \
                       `{ integers = [1, 4] }` or `{ choices = [\"relu\", \"gelu\"] }`";

impl Plan {
    /// Reads the file of a sweep.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = trainer_files::read_text(path)?;
        let stem = path.file_stem().map(PathBuf::from).unwrap_or_default();
        Plan::parse(&text, &Path::new("runs").join(stem)).map_err(|Mistake { span, message }| {
            let before = &text[..span.start.min(text.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            Failure::new(format!("{}:{line}:{column}: {message}", path.display()))
        })
    }

    /// Parses the text of a sweep file. The folder of the sweep defaults to `folder`.
    fn parse(text: &str, folder: &Path) -> Result<Self, Mistake> {
        let parsed = DeTable::parse(text).map_err(|error| Mistake {
            span: error.span().unwrap_or_default(),
            message: error.message().to_owned(),
        })?;
        let mut plan = Plan {
            folder: folder.to_owned(),
            trials: None,
            seed: 0,
            jobs: 1,
            budget: None,
            // One word, so that a program does not take a value such as `-1` for an option.
            arguments: vec!["--{name}={value}".to_owned()],
            parameters: Vec::new(),
        };
        let mut has_parameters = false;
        for (key, value) in parsed.get_ref() {
            match key.get_ref().as_ref() {
                "folder" => plan.folder = PathBuf::from(string(value, "a path")?),
                "trials" => plan.trials = Some(positive(value)?),
                "seed" => {
                    let seed = integer(value)?.try_into();
                    plan.seed = seed.map_err(|_| at(value, "expected a seed of at least 0"))?;
                }
                "jobs" => plan.jobs = positive(value)?,
                "budget" => plan.budget = Some(time(value)?),
                "arguments" => plan.arguments = template(value)?,
                "parameters" => {
                    has_parameters = true;
                    plan.parameters = parameters(value)?;
                }
                unknown => {
                    let mut message = format!("unknown key `{unknown}`{}", suggestion(unknown, KEYS));
                    if domain(value).is_ok() {
                        message += " (parameters belong below `[parameters]`)";
                    }
                    return Err(Mistake { span: key.span(), message });
                }
            }
        }
        if !has_parameters || plan.parameters.is_empty() {
            let message = format!("the file has no parameters: add `[parameters]`, and below it {EXAMPLE}");
            return Err(Mistake { span: text.len()..text.len(), message });
        }
        if plan.trials.is_none() {
            plan.check_grid(&parsed)?;
        }
        Ok(plan)
    }

    /// Returns an error if a parameter is a range, or if the grid has too many trials.
    fn check_grid(&self, parsed: &Spanned<DeTable<'_>>) -> Result<(), Mistake> {
        let mut count = 1_usize;
        for (name, domain) in &self.parameters {
            let Some(values) = domain.values() else {
                let table = parsed.get_ref().get("parameters").and_then(|all| all.get_ref().as_table());
                let span =
                    table.and_then(|table| table.get(name.as_str())).map(Spanned::span).unwrap_or_default();
                let message = format!(
                    "`{name}` is a range, but a grid needs a list of values: list some, `{name} = [0.1, 0.2]`, or add \
                     `trials = 20` at the top of the file for a random search"
                );
                return Err(Mistake { span, message });
            };
            count = count.saturating_mul(values.len());
        }
        if count > MOST_TRIALS {
            let message = format!(
                "the grid has more than {MOST_TRIALS} trials: list fewer values, or add `trials = 20` for a random search"
            );
            return Err(Mistake { span: 0..0, message });
        }
        Ok(())
    }

    /// Returns everything that determines the values of each trial and how they are passed to the
    /// program. It does not include the number of trials of a random search, because a shorter
    /// search has the same first trials as a longer one.
    pub(crate) fn definition(&self, program: &[String]) -> BTreeMap<String, Json> {
        let mut definition: BTreeMap<String, Json> = self
            .parameters
            .iter()
            .map(|(name, domain)| (format!("parameters.{name}"), domain.to_json()))
            .collect();
        let order: Vec<&str> = self.parameters.iter().map(|(name, _)| name.as_str()).collect();
        definition.insert("the order of the parameters".to_owned(), json!(order));
        definition.insert("arguments".to_owned(), json!(self.arguments));
        definition.insert("program".to_owned(), json!(program));
        let search = if self.trials.is_some() { "random" } else { "grid" };
        definition.insert("search".to_owned(), json!(search));
        if self.trials.is_some() {
            definition.insert("seed".to_owned(), json!(self.seed));
        }
        definition
    }
}

/// The maximum number of trials in a grid: more are assumed to be a mistake.
const MOST_TRIALS: usize = 10_000;

/// A mistake in the file, and where it is.
#[derive(Debug)]
struct Mistake {
    span: Range<usize>,
    message: String,
}

type Value<'t> = Spanned<DeValue<'t>>;

fn at(value: &Value<'_>, message: impl Into<String>) -> Mistake {
    Mistake { span: value.span(), message: message.into() }
}

fn string<'v>(value: &'v Value<'_>, what: &str) -> Result<&'v str, Mistake> {
    value.get_ref().as_str().ok_or_else(|| at(value, format!("expected {what} as a string")))
}

fn integer(value: &Value<'_>) -> Result<i64, Mistake> {
    let number = value
        .get_ref()
        .as_integer()
        .and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok());
    number.ok_or_else(|| at(value, "expected an integer"))
}

fn float(value: &Value<'_>) -> Result<f64, Mistake> {
    if let Some(number) = value.get_ref().as_float() {
        let number = number.as_str().parse::<f64>().ok().filter(|number| number.is_finite());
        return number.ok_or_else(|| at(value, "expected a finite number"));
    }
    integer(value).map(|number| number as f64).map_err(|_| at(value, "expected a number"))
}

fn positive(value: &Value<'_>) -> Result<usize, Mistake> {
    let number = integer(value).ok().and_then(|number| usize::try_from(number).ok());
    number
        .filter(|number| (1..=MOST_TRIALS).contains(number))
        .ok_or_else(|| at(value, format!("expected an integer from 1 to {MOST_TRIALS}")))
}

fn time(value: &Value<'_>) -> Result<Duration, Mistake> {
    let expected = "expected a time, such as \"90s\", \"30m\" or \"2h 30m\"";
    let text = value.get_ref().as_str().ok_or_else(|| at(value, expected))?;
    let time = humantime::parse_duration(text).map_err(|error| at(value, format!("{expected}: {error}")))?;
    if time.is_zero() {
        Err(at(value, "expected a time above 0: a budget of 0 starts no trial"))
    } else {
        Ok(time)
    }
}

/// Parses the arguments that pass a value, and checks their placeholders.
fn template(value: &Value<'_>) -> Result<Vec<String>, Mistake> {
    let expected = "expected a list of strings with the argument for a value, such as [\"--{name}={value}\"] or \
                    [\"--{name}\", \"{value}\"]";
    let words = value.get_ref().as_array().ok_or_else(|| at(value, expected))?;
    let mut arguments = Vec::new();
    for word in words {
        let text = word.get_ref().as_str().ok_or_else(|| at(word, expected))?;
        for inner in text.split('{').skip(1) {
            let name = inner.split_once('}').map(|(name, _)| name);
            if !matches!(name, Some("name" | "value")) {
                let found = name.map_or_else(|| "an open `{`".to_owned(), |name| format!("`{{{name}}}`"));
                return Err(at(
                    word,
                    format!("found {found}: the placeholders are `{{name}}` and `{{value}}`"),
                ));
            }
        }
        arguments.push(text.to_owned());
    }
    if arguments.iter().any(|argument| argument.contains("{value}")) {
        Ok(arguments)
    } else {
        Err(at(value, format!("no argument contains `{{value}}`: {expected}")))
    }
}

fn parameters(value: &Value<'_>) -> Result<Vec<(String, Domain)>, Mistake> {
    let table =
        value.get_ref().as_table().ok_or_else(|| at(value, format!("expected a table: {EXAMPLE}")))?;
    let mut parameters = table
        .iter()
        .map(|(name, value)| Ok((name.span().start, name.get_ref().to_string(), domain(value)?)))
        .collect::<Result<Vec<_>, Mistake>>()?;
    // The table is sorted by name, not in the order of the file.
    parameters.sort_by_key(|(position, ..)| *position);
    Ok(parameters.into_iter().map(|(_, name, domain)| (name, domain)).collect())
}

fn domain(value: &Value<'_>) -> Result<Domain, Mistake> {
    if value.get_ref().as_array().is_some() {
        return choices(value);
    }
    let expected = format!("expected the values of a parameter: {EXAMPLE}");
    let table = value.get_ref().as_table().ok_or_else(|| at(value, &*expected))?;
    let mut keys = table.iter();
    let (Some((key, values)), None) = (keys.next(), keys.next()) else { return Err(at(value, &*expected)) };
    match key.get_ref().as_ref() {
        "choices" => choices(values),
        "uniform" => bounds(values).map(|(low, high)| Domain::Uniform(low, high)),
        "log_uniform" => {
            let (low, high) = bounds(values)?;
            if low <= 0.0 {
                return Err(at(
                    values,
                    "expected bounds above 0, because `log_uniform` takes their logarithms",
                ));
            }
            Ok(Domain::LogUniform(low, high))
        }
        "integers" => {
            let [low, high] = pair(values)?;
            let (first, last) = (integer(low)?, integer(high)?);
            if first > last || last.abs_diff(first) > MOST_TRIALS as u64 * 100 {
                return Err(at(values, "expected the first and the last integer, such as [1, 4]"));
            }
            Ok(Domain::Integers(first, last))
        }
        unknown => Err(Mistake {
            span: key.span(),
            message: format!("unknown kind of values `{unknown}`{}: {EXAMPLE}", suggestion(unknown, DOMAINS)),
        }),
    }
}

fn pair<'v, 't>(value: &'v Value<'t>) -> Result<[&'v Value<'t>; 2], Mistake> {
    let values = value.get_ref().as_array().map(|values| values.iter().collect::<Vec<_>>());
    values
        .and_then(|values| values.try_into().ok())
        .ok_or_else(|| at(value, "expected two bounds, such as [0.1, 0.5]"))
}

fn bounds(value: &Value<'_>) -> Result<(f64, f64), Mistake> {
    let [low, high] = pair(value)?;
    let (low, high) = (float(low)?, float(high)?);
    if low < high { Ok((low, high)) } else { Err(at(value, "expected the smaller bound first")) }
}

fn choices(value: &Value<'_>) -> Result<Domain, Mistake> {
    let values = value.get_ref().as_array().ok_or_else(|| at(value, "expected a list of values"))?;
    let mut choices = Vec::new();
    for value in values {
        let choice = match value.get_ref() {
            DeValue::String(text) => json!(text),
            DeValue::Boolean(switch) => json!(switch),
            DeValue::Integer(_) => json!(integer(value)?),
            DeValue::Float(_) => json!(float(value)?),
            _ => return Err(at(value, "expected a number, a string, `true` or `false`")),
        };
        if choices.contains(&choice) {
            return Err(at(value, "this value is listed twice: remove one"));
        }
        choices.push(choice);
    }
    if choices.is_empty() {
        Err(at(value, "expected at least one value"))
    } else {
        Ok(Domain::Choices(choices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Plan, String> {
        Plan::parse(text, Path::new("runs/test")).map_err(|Mistake { span, message }| {
            format!("{}: {message}", text[..span.start.min(text.len())].matches('\n').count() + 1)
        })
    }

    #[test]
    fn every_key_is_read() {
        let plan = parse(
            "folder = 'x'\ntrials = 7\nseed = 3\njobs = 2\nbudget = '1h 30m'\narguments = ['--set', '{name}={value}']\n\
             [parameters]\nlr = { log_uniform = [1e-4, 1e-1] }\nb = { uniform = [0, 1] }\na = [1, 0.5, 'relu', true]\n\
             layers = { integers = [1, 4] }\n\"with.dot\" = { choices = [2] }\n",
        );
        let domains = [
            ("lr", Domain::LogUniform(1e-4, 1e-1)),
            ("b", Domain::Uniform(0.0, 1.0)),
            ("a", Domain::Choices(vec![json!(1), json!(0.5), json!("relu"), json!(true)])),
            ("layers", Domain::Integers(1, 4)),
            ("with.dot", Domain::Choices(vec![json!(2)])),
        ];
        let expected = Plan {
            folder: "x".into(),
            trials: Some(7),
            seed: 3,
            jobs: 2,
            budget: Some(Duration::from_secs(5400)),
            arguments: vec!["--set".into(), "{name}={value}".into()],
            parameters: domains.map(|(name, domain)| (name.to_owned(), domain)).into(),
        };
        assert_eq!(plan.unwrap(), expected);
        let least = parse("parameters.lr = [1]").unwrap();
        assert_eq!((least.folder, least.trials, least.jobs), ("runs/test".into(), None, 1));
    }

    #[test]
    fn mistakes_are_reported_with_their_line_and_what_to_write() {
        for (text, expected) in [
            (
                "jobs = 2\ntrails = 3\n[parameters]\na = [1]",
                "2: unknown key `trails`; did you mean `trials`?",
            ),
            ("lr = [1]", "1: unknown key `lr` (parameters belong below `[parameters]`)"),
            ("[parameter]\na = [1]", "1: unknown key `parameter`; did you mean `parameters`?"),
            ("jobs = 2", "1: the file has no parameters: add `[parameters]`"),
            ("[parameters]", "1: the file has no parameters"),
            ("jobs = 0\n[parameters]\na = [1]", "1: expected an integer from 1"),
            ("jobs = '2'\n[parameters]\na = [1]", "1: expected an integer from 1"),
            ("seed = -1\n[parameters]\na = [1]", "1: expected a seed of at least 0"),
            ("budget = '2 moons'\n[parameters]\na = [1]", "1: expected a time, such as \"90s\""),
            ("budget = '0s'\n[parameters]\na = [1]", "1: expected a time above 0"),
            ("budget = 3\n[parameters]\na = [1]", "1: expected a time"),
            ("arguments = '{value}'\n[parameters]\na = [1]", "1: expected a list of strings"),
            ("arguments = ['{name}']\n[parameters]\na = [1]", "1: no argument contains `{value}`"),
            ("arguments = ['{valeu}']\n[parameters]\na = [1]", "1: found `{valeu}`: the placeholders are"),
            ("arguments = ['{value']\n[parameters]\na = [1]", "1: found an open `{`"),
            (
                "[parameters]\n\na = { uniform = [0, 1] }",
                "3: `a` is a range, but a grid needs a list of values",
            ),
            (
                "[parameters]\na = { unifrom = [0, 1] }",
                "2: unknown kind of values `unifrom`; did you mean `uniform`?",
            ),
            (
                "[parameters]\na = { uniform = [0, 1], integers = [1, 2] }",
                "2: expected the values of a parameter",
            ),
            ("[parameters]\na = 3", "2: expected the values of a parameter"),
            ("[parameters]\na = []", "2: expected at least one value"),
            ("[parameters]\na = [1, 2,\n1]", "3: this value is listed twice"),
            ("[parameters]\na = [[1]]", "2: expected a number, a string"),
            ("trials = 2\n[parameters]\na = { uniform = [1, 1] }", "3: expected the smaller bound first"),
            ("trials = 2\n[parameters]\na = { uniform = [1] }", "3: expected two bounds"),
            ("trials = 2\n[parameters]\na = { uniform = [nan, 1] }", "3: expected a finite number"),
            ("trials = 2\n[parameters]\na = { log_uniform = [0, 1] }", "3: expected bounds above 0"),
            (
                "trials = 2\n[parameters]\na = { integers = [4, 1] }",
                "3: expected the first and the last integer",
            ),
            (
                "[parameters]\na = { integers = [1, 900] }\nb = { integers = [1, 900] }",
                "1: the grid has more than 10000",
            ),
            ("[parameters]\na = [1", "2: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}\n{error}");
        }
    }

    #[test]
    fn the_number_of_trials_and_the_run_settings_are_not_part_of_the_definition() {
        let definition = |text: &str| parse(text).unwrap().definition(&["program".to_owned()]);
        let one = definition("trials = 2\n[parameters]\na = [1]");
        assert_eq!(one, definition("trials = 3\njobs = 4\nbudget = '1s'\n[parameters]\na = [1]"));
        for other in [
            "trials = 2\nseed = 1\n[parameters]\na = [1]",
            "trials = 2\n[parameters]\na = [2]",
            "trials = 2\n[parameters]\na = [1]\nb = [1]",
            "trials = 2\narguments = ['{value}']\n[parameters]\na = [1]",
            "[parameters]\na = [1]",
        ] {
            assert_ne!(one, definition(other), "{other}");
        }
    }
}
