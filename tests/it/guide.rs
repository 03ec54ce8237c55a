//! The pages of the guide are read in the repository as they are, and in rustdoc as
//! `trainer/build/guide.rs` rewrites them.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the Markdown files of a folder.
fn markdown(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    files.sort();
    files
}

/// Returns all pages below a folder, but for those of rustdoc alone, whose links are checked there.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let is_skipped = name.starts_with('.') || ["target", "libtorch"].contains(&name.as_str());
        if entry.file_type().unwrap().is_dir() && !is_skipped && !path.ends_with("trainer/src") {
            pages.extend(self::pages(&path));
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

/// Returns the lines of a page, numbered, without those of its examples.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_example = false;
    page.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_example ^= is_fence;
        !in_example && !is_fence
    })
}

/// Returns a line without the code in it.
fn without_code(line: &str) -> String {
    let quotes = if line.contains("``") { "``" } else { "`" };
    line.split(quotes).step_by(2).collect()
}

/// Returns the anchor of a heading: the same on the repository's page and in rustdoc.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn has_anchor(page: &str, wanted: &str) -> bool {
    prose(page)
        .filter_map(|(_, line)| {
            line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        })
        .any(|heading| anchor(heading) == wanted)
}

/// Returns what is wrong with a link, if anything is.
fn broken(from: &Path, page: &str, target: &str) -> Option<String> {
    if target.starts_with("https://") || target.starts_with("http://") {
        return None;
    }
    let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
    if file.is_empty() {
        return (!has_anchor(page, fragment)).then(|| format!("no section #{fragment}"));
    }
    let path = from.parent().unwrap().join(file);
    let Ok(path) = path.canonicalize() else { return Some(format!("no file {file}")) };
    if !path.starts_with(root().canonicalize().unwrap()) {
        return Some(format!("{file} is not in the repository"));
    }
    if fragment.is_empty() {
        let in_rustdoc =
            from.starts_with(root().join("trainer/guide")) && path.starts_with(root().join("trainer/src"));
        return in_rustdoc.then(|| format!("{file} has no path of an item after a #"));
    }
    let text = fs::read_to_string(&path).unwrap();
    if file.ends_with(".rs") {
        let item = fragment.split('/').next().unwrap().rsplit([':', '@']).next().unwrap();
        let is_the_file = path.file_stem().is_some_and(|stem| stem == item);
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        return (!is_the_file && !words.any(|word| word == item))
            .then(|| format!("{file} does not contain `{item}`"));
    }
    (!has_anchor(&text, fragment)).then(|| format!("no section #{fragment} in {file}"))
}

#[test]
fn every_link_of_a_page_resolves() {
    let mut wrong = Vec::new();
    let mut links = 0;
    for path in pages(root()) {
        let page = fs::read_to_string(&path).unwrap();
        for (number, line) in prose(&page) {
            let line = without_code(line);
            for (at, _) in line.match_indices("](") {
                let target = line[at + 2..].split(')').next().unwrap();
                links += 1;
                if let Some(reason) = broken(&path, &page, target) {
                    wrong
                        .push(format!("{}:{number}: {reason}", path.strip_prefix(root()).unwrap().display()));
                }
            }
        }
    }
    assert!(links > 300, "only {links} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn broken_links_are_detected() {
    let path = root().join("trainer/guide/hooks.md");
    let page = fs::read_to_string(&path).unwrap();
    for (target, reason) in [
        ("#no-section", "no section #no-section"),
        ("lost.md", "no file lost.md"),
        ("data.md#lost", "no section #lost in data.md"),
        ("../src/lib.rs", "../src/lib.rs has no path of an item after a #"),
        ("../src/error.rs#Error::Lost", "../src/error.rs does not contain `Lost`"),
    ] {
        assert_eq!(broken(&path, &page, target).as_deref(), Some(reason));
    }
    for target in
        ["#order", "data.md", "../src/error.rs#Error::Cancelled", "../../examples/src/bin/digits.rs"]
    {
        assert_eq!(broken(&path, &page, target), None, "{target}");
    }
}

#[test]
fn pages_show_no_hidden_lines_and_name_the_language_of_each_example() {
    const LANGUAGES: [&str; 8] = ["rust", "text", "toml", "sh", "html", "json", "python", "dockerfile"];
    for path in markdown("trainer/guide") {
        let page = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        let mut lines = page.lines().enumerate().skip(1);
        assert!(page.starts_with("# "), "{name} has no title");
        assert!(
            page.lines().nth(2).is_some_and(|line| !line.starts_with('#')),
            "{name} has no first paragraph"
        );
        while let Some((at, line)) = lines.next() {
            assert!(!line.starts_with("# "), "{name}:{}: a second title", at + 1);
            let Some(info) = line.strip_prefix("```") else { continue };
            let language = info.split(',').next().unwrap();
            assert!(LANGUAGES.contains(&language), "{name}:{}: the language `{language}`", at + 1);
            for (at, line) in lines.by_ref().take_while(|(_, line)| *line != "```") {
                let is_hidden = language == "rust" && (line == "#" || line.starts_with("# "));
                assert!(!is_hidden, "{name}:{}: write hidden lines into a comment: {line}", at + 1);
            }
        }
    }
}

#[test]
fn pictures_are_small() {
    for entry in fs::read_dir(root().join("trainer/guide/pictures")).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.metadata().unwrap().len() <= 100_000, "{:?} has more than 100 kB", entry.path());
    }
}

#[test]
fn every_page_is_listed_in_rustdoc_and_in_the_table_of_the_guide() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (modules, table) = (read("trainer/src/pages/guide.rs"), read("trainer/guide/README.md"));
    let crate_page = read("trainer/src/lib.rs");
    for path in markdown("trainer/guide") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name != "README" {
            assert!(modules.contains(&format!("\n    {name},")), "guide.rs does not list {name}");
            assert!(table.contains(&format!("]({name}.md)")), "guide/README.md does not list {name}");
            let listed = name == "migration" || crate_page.contains(&format!("](guide::{name})"));
            assert!(listed, "the section about the guide in trainer/src/lib.rs does not list {name}");
        }
    }
}

/// Two clicks from the guide's first page: the row of the table, and the recipe.
#[test]
fn each_recipe_is_short_and_in_the_table_of_the_guide() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (recipes, table) = (read("trainer/guide/recipes.md"), read("trainer/guide/README.md"));
    let mut count = 0;
    for recipe in recipes.split("\n### ").skip(1) {
        count += 1;
        let title = recipe.lines().next().unwrap();
        let link = format!("](recipes.md#{})", anchor(title));
        assert!(table.contains(&link), "guide/README.md does not list the recipe `{title}`");
        let examples: Vec<_> = recipe.split("\n```").skip(1).step_by(2).collect();
        let lines: usize = examples.iter().map(|example| example.lines().count() - 1).sum();
        assert!((1..=15).contains(&lines), "`{title}` has {lines} lines of code");
        let is_tested = recipe.contains("\n```python\n") || recipe.contains("assert");
        assert!(is_tested, "`{title}` asserts no effect");
    }
    assert!(table.contains(&format!("| {count} tasks ")), "guide/README.md says another number than {count}");
}

/// Returns the names in a text that are between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_lifecycle_page_shows_the_tree_and_when_each_value_exists() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (declaration, page) = (read("trainer/src/moments/lifecycle.rs"), read("trainer/guide/lifecycle.md"));
    let between = |text: &str, start: &str| {
        let (_, after) = text.split_once(start).unwrap();
        after.split_once("```").unwrap().0.to_owned()
    };
    let tree = between(&declaration, "//! ```text\n");
    let tree: String =
        tree.lines().filter_map(|line| line.strip_prefix("//! ")).map(|line| format!("{line}\n")).collect();
    assert_eq!(between(&page, "```text\n").trim_end(), tree.trim_end());

    // `exists loss: HasLoss from after_loss to after_zero_grad;`, after a comment with `[`Cx::loss`]`.
    let mut values = 0;
    let mut comment = String::new();
    for line in declaration.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment += text;
        } else {
            let comment = std::mem::take(&mut comment);
            let Some((word, exists)) = line.split_once(' ') else { continue };
            if !matches!(word, "exists" | "exist") {
                continue;
            }
            values += 1;
            let method = quoted(&comment).into_iter().find(|word| word.starts_with("Cx::")).unwrap();
            let moments: Vec<_> = exists
                .split([' ', ',', ';'])
                .skip(2)
                .filter(|word| !matches!(*word, "" | "from" | "to" | "at" | "except"))
                .collect();
            let row = page
                .lines()
                .find(|line| line.contains(&format!("[`{method}`]")))
                .unwrap_or_else(|| panic!("lifecycle.md does not say when `{method}` exists"));
            let cell = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
            assert_eq!(quoted(cell), moments, "{method}");
        }
    }
    assert!(values > 10, "only {values} values were found");
}
