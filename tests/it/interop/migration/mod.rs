//! The rows of the migration pages, run: the program that a row advises against the framework.
//!
//! The column `measured` of the tables of a page is one of
//!
//! - the result of a case: `equal to 1e-12`, or what differs, from here;
//! - `name`: the row only maps a name;
//! - `not run: …`, with the reason.
//!
//! A case is here, in the file of its page, and in `tests/interop/migration/with_<page>.py`. Both
//! have the name that is the first code of the row. A second case of the same row, with what its
//! column `what differs` advises, is compared with the case `<name>+` there, or with the same one.
//! `make interop` compares the column with the results; with `MIGRATION=write` it writes them.

mod fastai;
mod hugging_face;
mod ignite;
mod keras;
mod lightning;
mod mmengine;
mod program;
mod pytorch;
mod trainer_tools;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;

use super::run_script;
use crate::support::scratch;

/// What a program has recorded: losses, weights, rates and so on.
pub(crate) type Series = BTreeMap<&'static str, Vec<f64>>;

/// A row of a page, and the programs that it advises.
pub(crate) struct Case {
    row: &'static str,
    /// The name in the row, with the same values.
    plain: fn() -> Series,
    /// The same with what the column `what differs` advises.
    advised: Option<fn() -> Series>,
}

impl Case {
    const fn new(row: &'static str, plain: fn() -> Series) -> Self {
        Case { row, plain, advised: None }
    }

    const fn advised(self, advised: fn() -> Series) -> Self {
        Case { advised: Some(advised), ..self }
    }
}

/// Each page with its cases.
const PAGES: [(&str, &[Case]); 8] = [
    ("pytorch", pytorch::CASES),
    ("lightning", lightning::CASES),
    ("hugging_face", hugging_face::CASES),
    ("keras", keras::CASES),
    ("fastai", fastai::CASES),
    ("mmengine", mmengine::CASES),
    ("ignite", ignite::CASES),
    ("trainer_tools", trainer_tools::CASES),
];

/// The folder in which the scripts write.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Returns the path of a file that a script has written.
pub(crate) fn written(name: &str) -> PathBuf {
    FOLDER.get().unwrap().join(name)
}

fn path(page: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../trainer-macros/migration/{page}.md"))
}

/// Returns the tables' lines below the sections that are not `Points`, whose rows recorded runs
/// cover, with their numbers.
fn table_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_points = false;
    text.lines().enumerate().filter(move |(_, line)| {
        if let Some(title) = line.strip_prefix("## ") {
            is_points = title == "Points";
        }
        !is_points && line.starts_with('|')
    })
}

/// Returns the name of a row, the first code of its first cell or the cell itself, and its last
/// cell. `None` for the head of a table.
fn named(line: &str) -> Option<(&str, &str)> {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [first, .., last] = cells[..] else { return None };
    let is_head = last == "measured" || last.starts_with("---");
    (!is_head).then(|| (if first.starts_with('`') { first.split('`').nth(1).unwrap() } else { first }, last))
}

#[test]
fn each_row_has_a_case_or_says_that_it_has_none() {
    let mut wrong = Vec::new();
    let (mut rows, mut cases) = (0, 0);
    for (page, of_page) in PAGES {
        let mut known: BTreeSet<_> = of_page.iter().map(|case| case.row).collect();
        assert_eq!(known.len(), of_page.len(), "two cases of {page}.md have one name");
        let text = fs::read_to_string(path(page)).unwrap();
        for (number, line) in table_lines(&text) {
            let Some((name, measured)) = named(line) else { continue };
            let has_case = known.remove(name);
            let is_marked = measured == "name" || measured.starts_with("not run: ");
            if has_case == is_marked || measured.is_empty() {
                let what =
                    if has_case { "has a case, but is marked" } else { "has no case, and is not marked" };
                wrong.push(format!("{page}.md:{}: `{name}` {what} `{measured}`", number + 1));
            }
            rows += 1;
            cases += usize::from(has_case);
        }
        wrong.extend(known.iter().map(|name| format!("{page}.md has no row `{name}`")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{rows} rows, {cases} with a case");
}

/// Describes how a program differs from the framework, or returns the largest difference if it is
/// at most 1e-6.
fn compare(theirs: &BTreeMap<String, Vec<f64>>, ours: &Series) -> Result<f64, String> {
    let mut largest = 0.0_f64;
    let mut counts = Vec::new();
    let mut apart = Vec::new();
    for (name, theirs) in theirs {
        let empty = Vec::new();
        let ours = ours.get(name.as_str()).unwrap_or(&empty);
        if theirs.len() != ours.len() {
            counts.push(format!("{} {} there, {} here", theirs.len(), counted(name), ours.len()));
            continue;
        }
        if name == "steps" && theirs != ours {
            counts.push(format!("{} steps there, {} here", theirs[0], ours[0]));
            continue;
        }
        let pairs = theirs.iter().zip(ours);
        let difference = pairs.map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() }).fold(0.0, f64::max);
        // `f64::max` ignores NaN.
        let has_nan = theirs.iter().zip(ours).any(|(a, b)| a.is_nan() != b.is_nan());
        if difference > 1e-6 || has_nan {
            apart.push(format!("`{name}` {difference:.1e} apart"));
        }
        largest = largest.max(difference);
    }
    // Everything else follows from another number of batches, steps and so on.
    counts.truncate(1);
    let differences = if counts.is_empty() { &apart[..apart.len().min(2)] } else { &counts };
    if differences.is_empty() { Ok(largest) } else { Err(differences.join(", ")) }
}

/// Returns what each value of a series belongs to.
fn counted(series: &str) -> &str {
    match series {
        "losses" => "batches",
        "rates" => "steps",
        "valid" => "validations",
        "epochs" => "checkpoints",
        "axis" | "logged" => "records",
        other => other,
    }
}

/// Returns the cell of a row.
fn cell(plain: &Result<f64, String>, advised: Option<&Result<f64, String>>) -> String {
    let exponent = |largest: f64| if largest <= 1e-12 { -12 } else { largest.log10().ceil() as i32 };
    let text = |result: &Result<f64, String>| match result {
        Ok(largest) => format!("equal to 1e{}", exponent(*largest)),
        Err(how) => how.clone(),
    };
    match advised {
        None => text(plain),
        Some(advised) => format!("{} as advised; otherwise {}", text(advised), text(plain)),
    }
}

#[test]
#[ignore = "run by `make interop`, which needs the frameworks"]
fn rows_match_the_frameworks() {
    let writes = std::env::var("MIGRATION").is_ok_and(|value| value == "write");
    let only = std::env::var("MIGRATION_PAGE").ok();
    let folder = FOLDER.get_or_init(|| scratch("migration"));
    let mut failures = Vec::new();
    for (page, cases) in
        PAGES.into_iter().filter(|(page, _)| only.as_deref().is_none_or(|only| only == *page))
    {
        run_script(&format!("migration/with_{page}.py"), folder);
        let results = fs::read_to_string(folder.join(format!("{page}.json"))).unwrap();
        let results: BTreeMap<String, Value> = serde_json::from_str(&results.replace("NaN", "null")).unwrap();
        let of = |name: &str| match results.get(name) {
            Some(Value::Object(series)) => {
                let numbers = |value: &Value| -> Vec<f64> {
                    let each = value.as_array().unwrap().iter();
                    each.map(|value| value.as_f64().unwrap_or(f64::NAN)).collect()
                };
                Ok(series.iter().map(|(key, values)| (key.clone(), numbers(values))).collect())
            }
            other => Err(format!("{page}, `{name}`: {}", other.and_then(Value::as_str).unwrap_or("no case"))),
        };
        let mut cells = BTreeMap::new();
        for case in cases {
            let theirs: BTreeMap<_, _> = match of(case.row) {
                Ok(theirs) => theirs,
                Err(why) => {
                    failures.push(why);
                    continue;
                }
            };
            let plain = compare(&theirs, &(case.plain)());
            let advised = case.advised.map(|advised| {
                compare(&of(&format!("{}+", case.row)).unwrap_or_else(|_| theirs.clone()), &advised())
            });
            cells.insert(case.row, cell(&plain, advised.as_ref()));
        }
        let text = fs::read_to_string(path(page)).unwrap();
        let lines: BTreeSet<usize> = table_lines(&text).map(|(number, _)| number).collect();
        let mut out = String::new();
        for (number, line) in text.lines().enumerate() {
            let found = named(line).filter(|_| lines.contains(&number));
            match found.and_then(|(name, measured)| Some((name, measured, cells.get(name)?))) {
                Some((name, measured, cell)) if measured != cell => {
                    println!("{page}, `{name}`: {cell}");
                    if !writes {
                        failures.push(format!(
                            "{page}.md, `{name}`: the page says `{measured}`, but it is `{cell}`"
                        ));
                    }
                    let before = line.trim_end_matches('|').rsplit_once('|').unwrap().0;
                    out += &format!("{before}| {cell} |\n");
                }
                _ => {
                    out += line;
                    out.push('\n');
                }
            }
        }
        if writes {
            fs::write(path(page), out).unwrap();
        }
    }
    let _ = fs::remove_dir_all(folder);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
