//! `trainer compare`: the settings, hooks, environments and metrics of runs side by side.

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::ExitCode;

use serde_json::{Map, Value as Json, json};
use trainer_formats::run::{Goal, Metrics, Run, Settings, data_of, ranked, settings_of, text_of_setting};
use trainer_formats::{Float, without_path};

use crate::CompareArguments;
use crate::facts::{differing, goals, value};
use crate::output::{FAINT, Failure, GOOD, HEADING, Output, PLAIN, Style, counted, open, style_of};
use crate::show::{by_moment, lines, list};
use crate::table::{Cell, Column, GAP, Table};

/// A fact about runs, with a value for each run.
struct Fact {
    section: &'static str,
    name: String,
    /// The name in the table.
    label: String,
    /// The text shown for each run.
    texts: Vec<String>,
    /// The value for each run.
    values: Vec<Json>,
    /// The style of each text.
    styles: Vec<Style>,
}

impl Fact {
    fn new(section: &'static str, name: impl Into<String>, values: Vec<Json>) -> Self {
        let texts = values.iter().map(text_of_setting).collect();
        let styles = vec![PLAIN; values.len()];
        let name = name.into();
        Fact { section, label: name.clone(), name, texts, values, styles }
    }

    fn indented(&self) -> String {
        let indent = if self.section == "run" { "" } else { "  " };
        format!("{indent}{}", self.label)
    }

    fn differs(&self) -> bool {
        self.values.iter().any(|value| *value != self.values[0])
    }
}

/// The sections, in the order in which they are shown.
const SECTIONS: [&str; 6] = ["run", "metrics", "data", "settings", "hooks", "environment"];

/// Prints the runs side by side.
pub(crate) fn run(arguments: &CompareArguments, out: &mut Output) -> Result<ExitCode, Failure> {
    let runs: Vec<Run> = arguments.runs.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
    let metrics: Vec<Metrics> = runs.iter().map(Run::metrics).collect::<Result<_, _>>()?;
    let names = short_names(&runs);
    let facts = facts(&runs, &metrics);
    if out.is_json() {
        return print_json(&runs, &facts, out);
    }
    let (differing, same): (Vec<_>, Vec<_>) =
        facts.iter().partition(|fact| fact.differs() || fact.section == "run");
    print(&differing, &names, out)?;
    if arguments.all {
        print_equal(&same, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let count = |section: &str| same.iter().filter(|fact| fact.section == section).count();
    let counts = [
        ("metrics", "metric"),
        ("data", "fact of the data"),
        ("settings", "setting"),
        ("hooks", "hook"),
        ("environment", "fact of the environment"),
    ];
    let counts: Vec<String> = counts
        .into_iter()
        .filter(|(section, _)| count(section) > 0)
        .map(|(section, noun)| match (count(section), noun.strip_prefix("fact ")) {
            (1, _) | (_, None) => counted(count(section), noun),
            (many, Some(rest)) => format!("{many} facts {rest}"),
        })
        .collect();
    if !counts.is_empty() {
        let text = format!("equal: {}; --all lists them", counts.join(", "));
        out.line("")?;
        for line in lines(&text, out.width().unwrap_or(usize::MAX)) {
            out.line(format!("{FAINT}{line}{FAINT:#}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the runs by the ends of their paths, each as short as possible but unique.
fn short_names(runs: &[Run]) -> Vec<String> {
    let parts: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            run.path().components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
        })
        .collect();
    let longest = parts.iter().map(Vec::len).max().unwrap_or(1);
    let mut names = Vec::new();
    for length in 1..=longest {
        names = parts.iter().map(|parts| parts[parts.len().saturating_sub(length)..].join("/")).collect();
        if names.iter().collect::<BTreeSet<_>>().len() == names.len() {
            break;
        }
    }
    names
}

fn facts(runs: &[Run], metrics: &[Metrics]) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut status = Fact::new("run", "status", runs.iter().map(|run| json!(run.status())).collect());
    status.styles = runs.iter().map(|run| style_of(run.status())).collect();
    facts.push(status);

    let goals = goals(metrics.iter());
    for name in ranked(metrics.iter()) {
        let goal = goals.get(name).copied();
        let last: Vec<_> = metrics.iter().map(|own| Some(own.get(name)?.last)).collect();
        facts.push(metric(name.to_owned(), &last, goal));
        if let Some(goal) = goal {
            let best: Vec<_> = metrics.iter().map(|own| Some(own.get(name)?.best_by(goal)?.value)).collect();
            let mut fact = metric(format!("best {name}"), &best, Some(goal));
            fact.label = "  best".to_owned();
            facts.push(fact);
        }
    }

    facts.extend(named("data", &runs.iter().map(|run| data_of(run.file())).collect::<Vec<_>>()));
    facts.extend(named("settings", &runs.iter().map(|run| settings_of(run.file())).collect::<Vec<_>>()));

    let hooks_of: Vec<BTreeSet<&String>> = runs.iter().map(|run| run.file().hooks.iter().collect()).collect();
    let mut known = BTreeSet::new();
    for hook in runs.iter().flat_map(|run| &run.file().hooks).filter(|hook| known.insert(*hook)) {
        let has = hooks_of.iter().map(|own| own.contains(hook));
        let mut fact = Fact::new("hooks", hook, has.clone().map(Json::from).collect());
        fact.texts = has.map(|has| if has { "yes" } else { "-" }.to_owned()).collect();
        fact.label = without_path(hook).to_owned();
        facts.push(fact);
    }
    facts.extend(order_of_hooks(runs));

    for (nth, (name, _)) in runs[0].file().environment().into_iter().enumerate() {
        let values = runs.iter().map(|run| Json::from(run.file().environment().swap_remove(nth).1));
        let mut fact = Fact::new("environment", name, values.collect());
        if name == "command line" {
            leave_out_common_words(&mut fact.texts);
        }
        facts.push(fact);
    }
    facts.sort_by_key(|fact| SECTIONS.iter().position(|section| *section == fact.section));
    facts
}

/// Returns the values by name, those that differ first.
fn named(section: &'static str, all: &[Settings<'_>]) -> Vec<Fact> {
    let different = differing(all);
    let names: BTreeSet<&str> = all.iter().flat_map(|settings| settings.keys().copied()).collect();
    let equal = names.into_iter().filter(|name| !different.contains(name));
    let facts = different.iter().copied().chain(equal).map(|name| {
        let values = all
            .iter()
            .map(|settings| settings.get(name).map_or(Json::Null, |value| value.clone().into_owned()));
        Fact::new(section, name, values.collect())
    });
    facts.collect()
}

/// Removes the words that are the same in all texts, position by position. Does nothing if the
/// texts have different numbers of words, or are all equal.
fn leave_out_common_words(texts: &mut [String]) {
    let words: Vec<Vec<String>> =
        texts.iter().map(|text| text.split(' ').map(str::to_owned).collect()).collect();
    let is_equal = |nth: usize| words.iter().all(|own| own[nth] == words[0][nth]);
    if words.iter().any(|own| own.len() != words[0].len()) || (0..words[0].len()).all(is_equal) {
        return;
    }
    for (text, own) in texts.iter_mut().zip(&words) {
        let differing = own.iter().enumerate().filter(|(nth, _)| !is_equal(*nth));
        *text = differing.map(|(_, word)| word.as_str()).collect::<Vec<_>>().join(" ");
    }
}

/// Returns the order of the hooks that all runs have, as a fact. Returns `None` if this order is
/// the same in all runs. The orders are numbered, and the value for each run is the number of its
/// order.
fn order_of_hooks(runs: &[Run]) -> Option<Fact> {
    let common: BTreeSet<&String> = runs
        .iter()
        .map(|run| run.file().hooks.iter().collect::<BTreeSet<_>>())
        .reduce(|one, other| &one & &other)?;
    let orders: Vec<Vec<&String>> = runs
        .iter()
        .map(|run| run.file().hooks.iter().filter(|hook| common.contains(hook)).collect())
        .collect();
    let mut known: Vec<&Vec<&String>> = Vec::new();
    let mut numbers = Vec::new();
    for order in &orders {
        let number = known.iter().position(|known| *known == order).unwrap_or_else(|| {
            known.push(order);
            known.len() - 1
        });
        numbers.push(Json::from(number + 1));
    }
    (known.len() > 1).then(|| Fact::new("hooks", "order of the common hooks", numbers))
}

/// Returns a metric as a fact, with the best value marked.
fn metric(name: String, values: &[Option<Float>], goal: Option<Goal>) -> Fact {
    let mut fact = Fact::new("metrics", name, values.iter().map(|value| json!(value)).collect());
    fact.texts = values.iter().map(|own| own.map(value).unwrap_or_default()).collect();
    let known = values.iter().flatten().map(|value| value.0).filter(|value| !value.is_nan());
    let best =
        goal.and_then(|goal| known.reduce(|one, other| if goal.is_better(other, one) { other } else { one }));
    let style = |own: &Option<Float>| {
        let is_best = own.is_some_and(|own| Some(own.0) == best);
        if is_best { GOOD } else { PLAIN }
    };
    fact.styles = values.iter().map(style).collect();
    fact
}

/// Prints the differences section by section. Divides the runs into as many blocks as the width of
/// the terminal requires.
fn print(facts: &[&Fact], names: &[String], out: &mut Output) -> Result<(), Failure> {
    for block in blocks(facts, names, out.width()) {
        if block.start > 0 {
            out.line("")?;
        }
        let labels = facts.iter().map(|fact| Cell::new(fact.indented()));
        let columns = block.map(|run| {
            let cells = facts.iter().map(|fact| Cell::styled(&*fact.texts[run], fact.styles[run]));
            Column::value(&*names[run], 1, cells.collect())
        });
        let table = Table { columns: [label_column(labels)].into_iter().chain(columns).collect() };
        let (text, _) = table.render(out.width());
        let mut lines = text.lines();
        out.line(lines.next().unwrap_or_default())?;
        let mut section = "run";
        for (fact, line) in facts.iter().zip(lines) {
            if fact.section != section {
                section = fact.section;
                out.line(format!("\n{HEADING}{section}{HEADING:#}"))?;
            }
            out.line(line)?;
        }
    }
    Ok(())
}

/// Prints the facts that are the same in all runs.
fn print_equal(facts: &[&Fact], out: &mut Output) -> Result<(), Failure> {
    for section in SECTIONS {
        let own = facts.iter().filter(|fact| fact.section == section && !fact.texts[0].is_empty());
        let own = match section {
            "hooks" => by_moment(own.map(|fact| fact.name.as_str())),
            _ => own.map(|fact| (fact.label.clone(), fact.texts[0].clone())).collect(),
        };
        if !own.is_empty() {
            out.line(format!("\n{HEADING}equal {section}{HEADING:#}"))?;
            list(out, &own)?;
        }
    }
    Ok(())
}

fn label_column(labels: impl Iterator<Item = Cell>) -> Column {
    Column::text("", 0, labels.collect()).least(40)
}

/// Divides the runs into blocks that fit the terminal.
fn blocks(facts: &[&Fact], names: &[String], width: Option<usize>) -> Vec<Range<usize>> {
    let labels = label_column(facts.iter().map(|fact| Cell::new(fact.indented()))).least_width();
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(labels));
    let needed = |run: usize| {
        let cells = facts.iter().map(|fact| Cell::new(&*fact.texts[run])).collect();
        Column::value(&*names[run], 1, cells).least_width() + GAP
    };
    let mut blocks = Vec::new();
    let (mut begin, mut used) = (0, 0);
    for run in 0..names.len() {
        if used + needed(run) > room && run > begin {
            blocks.push(begin..run);
            (begin, used) = (run, 0);
        }
        used += needed(run);
    }
    blocks.push(begin..names.len());
    blocks
}

fn print_json(runs: &[Run], facts: &[Fact], out: &mut Output) -> Result<ExitCode, Failure> {
    let (differing, same): (Vec<_>, Vec<_>) = facts.iter().partition(|fact| fact.differs());
    for fact in differing.into_iter().chain(same) {
        let paths = runs.iter().map(|run| run.path().display().to_string());
        let values: Map<_, _> = paths.zip(fact.values.iter().cloned()).collect();
        out.object(&json!({
            "section": fact.section,
            "name": fact.name,
            "differs": fact.differs(),
            "values": values,
        }))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_named_by_their_type_or_function() {
        for (hook, name) in [
            ("my_hooks::norms::gradient_norm at after_step", "gradient_norm at after_step"),
            ("trainer::metrics::MetricHook(a::b) at after_step", "MetricHook(a::b) at after_step"),
            ("trainer::hooks::ClipGradNorm::clip around opt_step", "ClipGradNorm::clip around opt_step"),
            ("Local::clip at setup", "Local::clip at setup"),
            ("closure at setup", "closure at setup"),
        ] {
            assert_eq!(without_path(hook), name);
        }
    }

    #[test]
    fn words_common_to_both_texts_are_omitted() {
        let left = |texts: [&str; 2]| {
            let mut texts = texts.map(str::to_owned);
            leave_out_common_words(&mut texts);
            texts
        };
        assert_eq!(left(["p --lr 1 --w 2", "p --lr 3 --w 2"]), ["1", "3"]);
        assert_eq!(left(["p --lr 1", "p"]), ["p --lr 1", "p"]);
        assert_eq!(left(["p", "p"]), ["p", "p"]);
    }
}
