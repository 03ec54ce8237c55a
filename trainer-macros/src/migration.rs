//! The migration pages, which are the single source of other frameworks' names. The docs show the
//! pages, the compiler's suggestions come from them, and tests use them to translate recorded runs.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use proc_macro2::TokenStream;
use quote::quote;

use crate::lifecycle::snake;
use crate::moments::{is_marker, is_operation, is_point};

/// Every page, with the name of its module in `trainer::migration`.
const PAGES: [(&str, &str); 8] = [
    ("pytorch", include_str!("../migration/pytorch.md")),
    ("lightning", include_str!("../migration/lightning.md")),
    ("mmengine", include_str!("../migration/mmengine.md")),
    ("keras", include_str!("../migration/keras.md")),
    ("hugging_face", include_str!("../migration/hugging_face.md")),
    ("ignite", include_str!("../migration/ignite.md")),
    ("fastai", include_str!("../migration/fastai.md")),
    ("trainer_tools", include_str!("../migration/trainer_tools.md")),
];

/// A row of a page's table of points: one name in the other framework.
#[derive(Debug)]
pub(crate) struct Row {
    page: &'static str,
    /// The title of the page: the name of the other framework.
    pub(crate) framework: &'static str,
    /// The name in the other framework.
    pub(crate) theirs: &'static str,
    /// The counterpart in this crate, if it is a moment.
    pub(crate) here: Option<Here<'static>>,
    differs: &'static str,
}

/// A counterpart in this crate, as a page writes it: `AfterStep, only = valid`, `Next<Backward>`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Here<'a> {
    /// The marker type of the point or operation.
    pub(crate) marker: &'a str,
    pub(crate) around: bool,
    /// The keys of the hook attribute: `only = valid`.
    pub(crate) filter: &'a str,
}

impl<'a> Here<'a> {
    /// Parses a counterpart. Returns `None` if it is not a moment: `.optimizer(…)`, `Task::pred`.
    fn parse(written: &'a str) -> Option<Self> {
        let (moment, filter) = written.split_once(", ").unwrap_or((written, ""));
        let operation = moment.strip_prefix("Next<").and_then(|rest| rest.strip_suffix('>'));
        let marker = operation.unwrap_or(moment);
        is_marker(marker).then_some(Here { marker, around: operation.is_some(), filter })
    }
}

/// Returns the rows of all tables of points, page by page. They are parsed once per compilation, at
/// the first lookup.
pub(crate) fn points() -> &'static [Row] {
    static POINTS: LazyLock<Vec<Row>> =
        LazyLock::new(|| PAGES.iter().flat_map(|(page, text)| rows(page, text)).collect());
    &POINTS
}

/// Returns the names of other frameworks for a moment, so that a search of the docs finds it by
/// them.
pub(crate) fn names_of(marker: &str) -> BTreeSet<&'static str> {
    let is_of = |row: &&Row| row.here.is_some_and(|here| here.marker == marker);
    // rustc suggests an alias for a name that it does not find, so a name of ours must not be one.
    let is_theirs = |name: &&str| is_identifier(name) && !is_point(name) && !is_operation(name);
    points().iter().filter(is_of).map(|row| row.theirs).filter(is_theirs).collect()
}

fn is_identifier(name: &str) -> bool {
    name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn rows(page: &'static str, text: &'static str) -> Vec<Row> {
    let framework = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(page);
    let section = text.split("\n## ").find(|section| section.starts_with("Points\n")).unwrap_or_default();
    section
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .filter_map(|line| {
            let mut cells = line.split('|').skip(1).map(str::trim);
            Some((cells.next()?, cells.next()?, cells.next()?))
        })
        .flat_map(|(theirs, here, differs)| {
            let here = codes(here).next().and_then(Here::parse);
            codes(theirs).map(move |theirs| Row { page, framework, theirs, here, differs })
        })
        .collect()
}

/// Returns the texts between backticks.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Expands to a slice with every row of every table of points. Each row is a value of the struct
/// `of`, which `trainer` declares.
pub(crate) fn table(of: &TokenStream) -> TokenStream {
    let rows = points().iter().map(|Row { page, theirs, here, differs, .. }| {
        let (moment, filter) = here.map(|here| (snake(here.marker), here.filter)).unwrap_or_default();
        quote!(#of { page: #page, theirs: #theirs, moment: #moment, filter: #filter, differs: #differs })
    });
    quote!(&[#(#rows),*])
}

/// Expands to the text of a page as the docs show it.
pub(crate) fn page(name: &TokenStream) -> TokenStream {
    let name = name.to_string();
    match PAGES.iter().find(|(page, _)| *page == name) {
        Some((_, text)) => {
            let text = item_links(&linked(text));
            quote!(#text)
        }
        None => quote!(::core::compile_error!("no migration page has this name: add the page to `PAGES`")),
    }
}

/// Expands to one doc example with the code of all table cells. It is compiled but not run. Each
/// cell is in its own function, whose parameters supply the cell's placeholders (`n`, `x`,
/// `reason`). Paths and code with a `…` are left out; instead, rustdoc resolves the names in them.
pub(crate) fn cells() -> TokenStream {
    let text = cells_as_example();
    quote!(#text)
}

fn cells_as_example() -> String {
    let mut out = "```no_run,standalone_crate\n#![allow(unused, non_snake_case)]\nuse trainer::prelude::*;\n\
                   use trainer::checkpoint::{Saved, State};\nuse trainer::hooks::*;\n\
                   use trainer::optim::*;\nuse trainer::schedule::*;\n"
        .to_owned();
    let mut nth = 0;
    for (page, text) in PAGES {
        for line in text.lines().filter(|line| line.starts_with('|')) {
            let here = line.split('|').nth(2).into_iter().flat_map(codes).map(|code| (code, true));
            let differs = line.split('|').nth(3).into_iter().flat_map(codes).map(|code| (code, false));
            for (code, is_here) in here.chain(differs) {
                if let Some(example) = example_of(code, is_here) {
                    nth += 1;
                    out += &format!("mod cell_{nth}_of_{page} {{\n    use super::*;\n    {example}\n}}\n");
                }
            }
        }
    }
    out + "fn main() {}\n```\n"
}

/// Wraps the code of a cell in an item that compiles. Returns `None` for code with a `…`, for a
/// path, and for code of the other framework.
fn example_of(code: &str, is_here: bool) -> Option<String> {
    if code.contains('…') {
        return None;
    }
    let hooked = |attribute: &str, arguments: &str| {
        let is_around = arguments.contains("next:");
        let (returned, body) = if is_around { ("Done", "next.run(cx)") } else { ("()", "Ok(())") };
        format!(
            "struct Hook; #[hook] impl Hook {{ #[hook({attribute})] fn hook(&mut self, {arguments}) -> Result<{returned}> {{ {body} }} }}"
        )
    };
    if let Some(call) = code.strip_prefix('.') {
        return Some(format!(
            "fn cell<T: Task>(builder: trainer::TrainerBuilder<T>, n: u64, x: f64, pct: f64) {{ let _ = builder.{call}; }}"
        ));
    }
    if let Some(call) = code.strip_prefix("cx.") {
        let at = match call.split(['(', ':']).next().unwrap_or_default() {
            "metrics" => "AfterEpoch",
            "skip_batch" => "BeforeStep",
            "error" => "AfterError",
            "loss" | "scaled_loss" => "BeforeBackward",
            "set_pred" => "Pred",
            "drop_grads" => "OptStep",
            "record" => "AfterRecord",
            _ => "AfterStep",
        };
        return Some(format!(
            "fn cell<H: Send + 'static>(cx: &mut Cx<{at}>, name: &str, value: f64, x: f64, reason: &str) -> Result<()> {{ let _ = \
             cx.{call}; Ok(()) }}"
        ));
    }
    if let Some(field) = code.strip_prefix("summary.") {
        return Some(format!("fn cell(summary: Summary) {{ let _ = &summary.{field}; }}"));
    }
    if let Some(attribute) = code.strip_prefix("#[hook(") {
        return Some(format!(
            "struct X; #[hook] impl X {{ fn after_step(&mut self, _: &mut Cx<AfterStep>) {{}} }}\n    struct Hook; #[hook({attribute} impl Hook {{ fn after_step(&mut \
             self, _: &mut Cx<AfterStep>) {{}} }}\n    impl State for Hook {{ fn save(&self) -> Result<Saved> {{ Ok(Saved::new()) }} \
             fn load(&mut self, _: &Saved) -> Result<()> {{ Ok(()) }} }}"
        ));
    }
    if code.starts_with("only") {
        return Some(hooked(code, "_: &mut Cx<AfterStep>"));
    }
    if code.starts_with("Cx<") {
        return Some(hooked("", &format!("_: &mut {code}")));
    }
    let is_expression = code.contains('(') && code.contains("::");
    if is_expression {
        return Some(format!("fn cell(n: u64, x: f64) {{ let _ = {code}; }}"));
    }
    let Here { marker, around, filter } = Here::parse(code).filter(|_| is_here)?;
    let next = if around { format!(", next: Next<{marker}>") } else { String::new() };
    Some(hooked(filter, &format!("cx: &mut Cx<{marker}>{next}")))
}

/// Turns our names into links, except in code blocks. Our names are all code in the column `here`,
/// and code in brackets anywhere. rustdoc resolves each link and rejects the page if a name does
/// not exist.
fn linked(text: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    for line in text.lines() {
        let fence = line.starts_with("```");
        is_code ^= fence;
        if is_code || fence {
            out += line;
        } else if line.starts_with('|') {
            let cells = line.split('|').enumerate();
            let cells: Vec<_> = cells.map(|(nth, cell)| linked_codes(cell, nth == 2)).collect();
            out += &cells.join("|");
        } else {
            out += &linked_codes(line, false);
        }
        out.push('\n');
    }
    out
}

/// Rewrites links to items into paths, which rustdoc resolves. As in the guide, the pages link to
/// the file of an item, so that the links work in the repository too:
/// `../../trainer/src/run/dispatch/next.rs#Next::skip`.
fn item_links(text: &str) -> String {
    let mut pieces = text.split("](../../trainer/src/");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (target, rest) = piece.split_once(')').unwrap_or((piece, ""));
        let (_, item) = target.split_once('#').unwrap_or(("", target));
        // The path of the item. Its kind may precede it, and a section of its docs may follow.
        let (kind, path) = match item.split_once('@') {
            Some((kind, path)) => (format!("{kind}@"), path),
            None => (String::new(), item),
        };
        out += &format!("]({kind}crate::{}){rest}", path.replacen('/', "#", 1));
    }
    out
}

fn linked_codes(text: &str, all: bool) -> String {
    let mut pieces = text.split('`');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    while let (Some(code), Some(rest)) = (pieces.next(), pieces.next()) {
        let in_brackets = out.ends_with('[') && rest.starts_with(']');
        let target = target(code).map(|path| format!("({path})")).unwrap_or_default();
        out += &match (in_brackets, all) {
            (true, _) => format!("`{code}`]{target}{}", &rest[1..]),
            (false, true) => format!("[`{code}`]{target}{rest}"),
            (false, false) => format!("`{code}`{rest}"),
        };
    }
    out
}

/// Returns the link target for a piece of code, or `None` for a path, which rustdoc resolves
/// itself.
fn target(code: &str) -> Option<String> {
    for (prefix, path) in [
        (".", "crate::TrainerBuilder::"),
        ("cx.", "crate::Cx::"),
        ("summary.", "crate::Summary::"),
        ("#[hook(", "crate::language::"),
    ] {
        if let Some(rest) = code.strip_prefix(prefix) {
            let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            return Some(format!("{path}{}", &rest[..end.unwrap_or(rest.len())]));
        }
    }
    if is_point(code) || is_operation(code) {
        return Some(format!("type@crate::at::{code}"));
    }
    if code.starts_with("Cx<Main") {
        return Some("crate::Main".into());
    }
    Here::parse(code).map(|here| format!("enum@crate::{}", here.marker))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pages_are_parsed_row_by_row() {
        let text = "# Them\n\n| no | points | here |\n|---|---|---|\n| `x` | `y` | |\n\n## Points\n\n\
                    | theirs | here | what differs |\n|---|---|---|\n\
                    | `one`, `two` | `AfterStep, only = valid` | Much, as [`teardown`]. |\n\
                    | `three` | `Next<Backward>` | |\n| `four` | `.optimizer(…)` | No moment. |\n\
                    \n## Flags\n\n| theirs | here | what differs |\n|---|---|---|\n| `x` | `.epochs` | |\n";
        let rows = rows("them", text);
        let read: Vec<_> =
            rows.iter().map(|row| (row.framework, row.theirs, row.here, row.differs)).collect();
        let valid = Here { marker: "AfterStep", around: false, filter: "only = valid" };
        let backward = Here { marker: "Backward", around: true, filter: "" };
        assert_eq!(
            read,
            [
                ("Them", "one", Some(valid), "Much, as [`teardown`]."),
                ("Them", "two", Some(valid), "Much, as [`teardown`]."),
                ("Them", "three", Some(backward), ""),
                ("Them", "four", None, "No moment."),
            ]
        );
    }

    #[test]
    fn code_in_cells_becomes_an_example() {
        for (code, expected) in [
            (".epochs(n)", Some("let _ = builder.epochs(n);")),
            (".hook(…)", None),
            ("cx.skip_batch()", Some("fn cell<H: Send + 'static>(cx: &mut Cx<BeforeStep>, ")),
            ("summary.history[\"train/loss\"]", Some("let _ = &summary.history[\"train/loss\"];")),
            (
                "AfterStep, only = valid",
                Some("#[hook(only = valid)] fn hook(&mut self, cx: &mut Cx<AfterStep>)"),
            ),
            ("Next<Pred>", Some("next: Next<Pred>")),
            ("Cx<Main<AfterStep>>", Some("fn hook(&mut self, _: &mut Cx<Main<AfterStep>>)")),
            ("#[hook(every = 5)]", Some("#[hook(every = 5)] impl Hook")),
            ("AdamW::new(x)", Some("let _ = AdamW::new(x);")),
            ("Task::pred", None),
        ] {
            let example = example_of(code, true);
            assert_eq!(example.is_some(), expected.is_some(), "{code}");
            assert!(example.unwrap_or_default().contains(expected.unwrap_or_default()), "{code}");
        }
        assert_eq!(example_of("after_batch", false), None, "a name of the other framework");
        assert!(cells_as_example().matches("mod cell_").count() > 150);
    }

    #[test]
    fn names_of_this_crate_become_links() {
        let cases = [
            (
                "| `x` | `AfterStep, only = valid` | `y` |",
                "[`AfterStep, only = valid`](enum@crate::AfterStep)",
            ),
            (
                "| `x` | `Next<Loss>`, or `.on::<AfterLoss>` | |",
                "[`.on::<AfterLoss>`](crate::TrainerBuilder::on)",
            ),
            ("| `x` | `#[hook(every = 5)]` | |", "[`#[hook(every = 5)]`](crate::language::every)"),
            ("| `x` | `Task::pred` | |", "| [`Task::pred`] |"),
            ("and [`cx.stop(reason)`], or", "and [`cx.stop(reason)`](crate::Cx::stop), or"),
            (
                "| `x` | | `y`, and [`summary.stopped`] |",
                "| `x` | | `y`, and [`summary.stopped`](crate::Summary::stopped) |",
            ),
            ("```\n[`.code`]\n```\n`teardown`", "```\n[`.code`]\n```\n`teardown`\n"),
        ];
        for (text, expected) in cases {
            let linked = linked(text);
            assert!(linked.contains(expected), "{linked}");
        }
    }

    #[test]
    fn links_to_files_become_links_to_items() {
        for (link, expected) in [
            ("[x](../../trainer/src/run/next.rs#Next::skip), y", "[x](crate::Next::skip), y"),
            ("[x](../../trainer/src/a/mod.rs#mod@a/b-c)", "[x](mod@crate::a#b-c)"),
            ("[`Task`] and [x](https://docs.rs)", "[`Task`] and [x](https://docs.rs)"),
        ] {
            assert_eq!(item_links(link), expected);
        }
    }

    #[test]
    fn every_page_lists_each_name_once_and_explains_missing_counterparts() {
        for (page, text) in PAGES {
            let rows = rows(page, text);
            // A handwritten loop has no points.
            assert!(text.starts_with("# ") && (rows.len() > 10 || page == "pytorch"), "{page}");
            let mut names = HashSet::new();
            for row in rows {
                assert!(names.insert(row.theirs), "{page}: `{}` twice", row.theirs);
                assert!(
                    row.here.is_some() || !row.differs.is_empty(),
                    "{page}: `{}` has neither a counterpart nor an explanation",
                    row.theirs
                );
            }
            // A row with a different number of cells would be truncated, and so would a code span
            // that continues on the next line.
            // The tables of settings have a fourth column: what was measured.
            let mut is_points = false;
            for line in text.lines().filter(|line| !line.starts_with("```")) {
                is_points = line.strip_prefix("## ").map_or(is_points, |title| title == "Points");
                let cells = if is_points { 3 } else { 4 };
                assert!(!line.starts_with('|') || line.matches('|').count() == cells + 1, "{page}: {line}");
                assert!(line.matches('`').count().is_multiple_of(2), "{page}: {line}");
            }
        }
    }
}
