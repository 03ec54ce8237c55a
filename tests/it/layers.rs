//! The layers of the library, as ARCHITECTURE.md lists them, against its imports.
//!
//! A *door* is a file or a folder in `trainer/src`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the rows of the first table of a section of ARCHITECTURE.md: the names in backticks in
/// each cell.
fn table(heading: &str) -> Vec<Vec<Vec<String>>> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut lines = page.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "ARCHITECTURE.md has no heading `{heading}`");
    let rows = lines.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<_>> = rows.skip(2).map(|row| row.split('|').skip(1).map(names).collect()).collect();
    assert!(!rows.is_empty(), "the section `{heading}` has no table");
    rows
}

fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the door of a path below `trainer/src`, as a module.
fn door(path: &str) -> String {
    path.split('/').next().unwrap().trim_end_matches(".rs").to_owned()
}

/// Returns the Rust files below a folder that are not tests.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            found.push(path);
        }
    }
}

/// Returns the code without comments, the contents of strings, and what is only compiled for tests
/// and documentation.
pub(crate) fn code(source: &str) -> String {
    let mut rest = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let mut code = String::with_capacity(rest.len());
    while let Some(at) = rest.find(['"', '\'', '/']) {
        code.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with('"') {
            length_of_string(&code, rest)
        } else if rest.starts_with("'\"'") {
            3
        } else {
            code.push_str(&rest[..1]);
            1
        };
        rest = &rest[length..];
    }
    code.push_str(rest);
    // The item after such an attribute is a line; other items do not occur.
    let mut lines = code.lines().map(str::trim);
    let mut kept = Vec::new();
    while let Some(line) = lines.next() {
        match line {
            "#[cfg(doc)]" | "#[cfg(test)]" => drop(lines.next()),
            _ => kept.push(line),
        }
    }
    kept.join("\n")
}

/// Returns the length of the string literal at the begin of `rest`, which is raw if `before` ends
/// in its prefix.
fn length_of_string(before: &str, rest: &str) -> usize {
    let prefix = before.trim_end_matches('#');
    if prefix.ends_with('r') {
        let end = format!("\"{}", &before[prefix.len()..]);
        return 1 + rest[1..].find(&end).unwrap() + end.len();
    }
    let mut is_escaped = false;
    let end = rest[1..].find(|character| {
        let is_end = character == '"' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        is_end
    });
    2 + end.unwrap()
}

/// Splits `text` at the commas that are not within braces.
fn branches(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut begin = 0;
    let mut found = Vec::new();
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[begin..]);
    found
}

/// Returns the first segment of a path, and what follows it.
fn first_segment(path: &str) -> (&str, &str) {
    let path = path.trim_start();
    let end = path.find(|character: char| !character.is_alphanumeric() && character != '_');
    let (segment, rest) = path.split_at(end.unwrap_or(path.len()));
    (segment, rest.strip_prefix("::").unwrap_or(""))
}

/// Adds the names at the root of the crate that the code of a file names: `depth` is the number of
/// modules around it.
fn root_names(code: &str, depth: usize, found: &mut BTreeSet<String>) {
    for (at, _) in code.match_indices("::") {
        let before = &code[..at];
        let begin = before.rfind(|character: char| !character.is_alphanumeric() && character != '_');
        let begin = begin.map_or(0, |begin| begin + 1);
        if before[..begin].ends_with("::") {
            continue;
        }
        let mut rest = &code[at + 2..];
        let mut above = match &before[begin..] {
            "crate" | "trainer" => depth,
            "super" => 1,
            _ => continue,
        };
        while let ("super", behind) = first_segment(rest) {
            above += 1;
            rest = behind;
        }
        if above >= depth {
            add_names(rest, found);
        }
    }
}

/// Adds the first segments of a path, or of each path in braces.
fn add_names(path: &str, found: &mut BTreeSet<String>) {
    let Some(group) = path.strip_prefix('{') else {
        found.insert(first_segment(path).0.to_owned());
        return;
    };
    let mut depth = 1;
    let end = group.find(|character| {
        depth += i32::from(character == '{') - i32::from(character == '}');
        depth == 0
    });
    for branch in branches(&group[..end.unwrap()]) {
        found.insert(first_segment(branch).0.to_owned());
    }
}

/// Returns the doors that define the names at the root of the crate, from `lib.rs`. The key `*` is
/// that of the door whose names are exported by a glob.
fn root_exports() -> BTreeMap<String, String> {
    let code = code(&fs::read_to_string(root().join("trainer/src/lib.rs")).unwrap());
    let mut exports = BTreeMap::new();
    for export in code.split("pub use ").skip(1) {
        let export = export.split(';').next().unwrap();
        let (door, _) = first_segment(export);
        if export.ends_with("::*") {
            exports.insert("*".to_owned(), door.to_owned());
        }
        for name in export.split(|character: char| !character.is_alphanumeric() && character != '_') {
            exports.entry(name.to_owned()).or_insert_with(|| door.to_owned());
        }
    }
    exports
}

/// Returns each pair of a file and a door, of which the file imports something.
fn imports() -> BTreeSet<(String, String)> {
    let source = root().join("trainer/src");
    let mut paths = Vec::new();
    files(&source, &mut paths);
    let doors: BTreeSet<_> = doors().iter().map(|name| door(name)).collect();
    let exports = root_exports();
    // The names that `root_lifecycle!` generates are exported by a glob.
    let generated = exports["*"].clone();
    let mut imports = BTreeSet::new();
    for path in paths {
        let name = path.strip_prefix(&source).unwrap().to_str().unwrap().replace('\\', "/");
        let depth = name.split('/').filter(|part| *part != "mod.rs").count();
        let mut found = BTreeSet::new();
        root_names(&code(&fs::read_to_string(&path).unwrap()), depth, &mut found);
        for target in found {
            let target = if doors.contains(&target) { Some(&target) } else { exports.get(&target) };
            let target = target.unwrap_or(&generated);
            // Another crate, of which `lib.rs` exports something, is not a door.
            if name != "lib.rs" && door(&name) != *target && doors.contains(target) {
                imports.insert((name.clone(), target.clone()));
            }
        }
    }
    imports
}

fn doors() -> BTreeSet<String> {
    let entries = fs::read_dir(root().join("trainer/src")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_top_level_module_is_in_one_row_of_the_table_of_layers() {
    let mut listed: Vec<_> = table("### `trainer/src`").into_iter().flat_map(|row| row[0].clone()).collect();
    listed.iter_mut().for_each(|name| *name = name.trim_end_matches('/').to_owned());
    listed.sort();
    assert_eq!(listed, Vec::from_iter(doors()), "ARCHITECTURE.md, and the entries of trainer/src");
    assert!(listed.len() <= 20, "{} doors: put a new one into a group", listed.len());
}

#[test]
fn no_import_refers_to_a_higher_layer() {
    let rows = table("### `trainer/src`");
    let mut row_of = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        row_of.extend(row[0].iter().map(|name| (door(name), number)));
    }
    let imports = imports();
    assert!(imports.len() > 300, "only {} imports were found", imports.len());
    let up: BTreeSet<_> = imports.into_iter().filter(|(file, to)| row_of[to] < row_of[&door(file)]).collect();
    assert_eq!(up, BTreeSet::new(), "imports that go up: move what is in the wrong place");
}

#[test]
fn the_hook_engine_knows_neither_a_trainer_nor_tensors() {
    let forbidden = ["run", "training", "libtorch"];
    let found: Vec<_> = imports()
        .into_iter()
        .filter(|(file, to)| door(file) == "hook" && forbidden.contains(&to.as_str()))
        .collect();
    assert_eq!(found, []);
    let mut paths = Vec::new();
    files(&root().join("trainer/src/hook"), &mut paths);
    assert!(paths.len() > 20, "{paths:?}");
    for path in paths {
        let code = code(&fs::read_to_string(&path).unwrap());
        assert!(!code.contains("tch::") && !code.contains("use tch"), "{}", path.display());
    }
}

/// A `\` that is lost when lines are joined leaves the indentation in the text.
#[test]
fn no_text_contains_the_indentation_of_its_source() {
    let mut sources = Vec::new();
    for folder in ["trainer", "trainer-macros"] {
        files(&root().join(folder), &mut sources);
    }
    let of_text = |letter: char| letter.is_ascii_lowercase() || ",;:.`".contains(letter);
    let indentation = " ".repeat(8);
    for path in sources.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        for line in fs::read_to_string(path).unwrap().lines().map(str::trim) {
            let contains_it = line
                .match_indices(&indentation)
                .any(|(at, _)| line[..at].ends_with(of_text) && line[at..].trim_start().starts_with(of_text));
            assert!(line.starts_with("//") || line.len() < 100 || !contains_it, "{}: {line}", path.display());
        }
    }
}

#[test]
fn paths_are_found_in_code() {
    let source = r#"
use crate::{a::b, c, d::{e, f}};
// crate::g
use super::super::h;
#[cfg(doc)]
use crate::Cx;
let i = "crate::j \" \
    crate::k";
l(crate::m::n(), '"', crate::o);
use super::p;
"#;
    let mut found = BTreeSet::new();
    root_names(&code(source), 2, &mut found);
    assert_eq!(Vec::from_iter(found), ["a", "c", "d", "h", "m", "o"]);
}

/// ARCHITECTURE.md is a map: it is short, and what it names exists.
#[test]
fn the_page_about_the_architecture_is_short_and_names_what_exists() {
    fn names_below(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with('.') || [root().join("target"), root().join("libtorch")].contains(&path) {
                continue;
            }
            if path.is_dir() {
                names_below(&path, found);
            }
            found.insert(name);
        }
    }
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(page.lines().count() <= 200, "{} lines", page.lines().count());
    let cells = page.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|'));
    let long: Vec<&str> = cells.filter(|cell| cell.trim().chars().count() > 300).collect();
    assert!(long.is_empty(), "cells of more than 300 characters: {long:#?}");
    let mut exist = BTreeSet::new();
    names_below(&root(), &mut exist);
    let is_path = |name: &&str| {
        let ends = [".rs", ".py", ".md", ".cpp", ".h", "/"].iter().any(|end| name.ends_with(end));
        ends && !name.contains(' ') && !name.contains("NAME")
    };
    let named: BTreeSet<&str> = page.split('`').skip(1).step_by(2).filter(is_path).collect();
    assert!(named.len() > 100, "only {} paths were found", named.len());
    let missing: Vec<&str> = named
        .into_iter()
        .filter(|path| !path.split('/').filter(|name| !name.is_empty()).all(|name| exist.contains(name)))
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that do not exist: {missing:?}");
}
