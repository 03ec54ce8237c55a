//! Compiles the cases of `fail/` and compares the compiler's messages with the snapshots.
//!
//! Each case is one call of rustc with the library that cargo has checked, in the folder that it
//! shares with the rest of the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The environment variable that writes the snapshots, if it is `overwrite`.
const UPDATE: &str = "UI_TESTS";

/// Returns the folder of the workspace, which ends with `/`.
fn workspace() -> &'static str {
    FOLDER.strip_suffix("ui-tests").expect("the name of this folder")
}

/// Compares all cases, and panics with those that differ.
pub(crate) fn compare(cases: &[PathBuf]) {
    let library = check_library();
    let update = std::env::var_os(UPDATE).is_some_and(|value| value == "overwrite");
    let next = AtomicUsize::new(0);
    let mistakes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(mistake) = compare_case(case, &library, update) {
                        mistakes.lock().unwrap().push(format!("{}: {mistake}", case.display()));
                    }
                }
            });
        }
    });
    let mut mistakes = mistakes.into_inner().unwrap();
    mistakes.sort();
    assert!(
        mistakes.is_empty(),
        "{} of {} cases differ; to write the snapshots, run `{UPDATE}=overwrite cargo test -p ui-tests`\n\n{}",
        mistakes.len(),
        cases.len(),
        mistakes.join("\n\n")
    );
}

fn compare_case(case: &Path, library: &Path, update: bool) -> Result<(), String> {
    let messages = messages(case, library)?;
    let snapshot = Path::new(FOLDER).join(case).with_extension("stderr");
    if update {
        return fs::write(snapshot, messages).map_err(|error| error.to_string());
    }
    let expected = fs::read_to_string(snapshot).unwrap_or_default();
    if expected.replace("\r\n", "\n") == messages {
        return Ok(());
    }
    Err(format!("expected\n{expected}\nand rustc printed\n{messages}"))
}

/// Lets cargo check the trainer with the features of this package and returns its library.
fn check_library() -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // An example, because only examples and tests depend on the trainer.
    cargo.args(["check", "-p", "ui-tests", "--example", "batch", "--message-format", "json"]);
    if cfg!(feature = "download-libtorch") {
        cargo.args(["--features", "download-libtorch"]);
    }
    let output = cargo.current_dir(FOLDER).output().expect("cargo ran this test");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let artifacts = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut files = artifacts
        .filter(|artifact| artifact["target"]["name"] == "trainer" && artifact["target"]["kind"][0] == "lib")
        .flat_map(|artifact| artifact["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|file| file.as_str().map(PathBuf::from));
    let is_metadata = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "rmeta");
    files.find(is_metadata).expect("cargo reports the library")
}

/// Returns the messages about a case, without what depends on the machine.
///
/// # Errors
///
/// Returns an error if the case compiles.
fn messages(case: &Path, library: &Path) -> Result<String, String> {
    let mut rustc = Command::new("rustc");
    rustc
        .arg(Path::new(FOLDER).join(case))
        .args(["--edition", "2024", "--crate-name", "case", "--crate-type", "bin", "--emit", "metadata"])
        .args(["--error-format", "json", "--diagnostic-width", "140", "--verbose", "--allow", "dead_code"])
        .arg("--out-dir")
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .arg("-L")
        .arg(format!("dependency={}", library.parent().expect("a folder").display()))
        .arg("--extern")
        .arg(format!("trainer={}", library.display()))
        // As cargo sets them.
        .env("CARGO_CRATE_NAME", "case")
        .env("CARGO_BIN_NAME", "case")
        // The paths of the trainer's files are relative to it.
        .current_dir(workspace());
    let output = rustc.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Err("expected an error, but the case compiles".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let mut printed: Vec<&str> = text.lines().collect();
    // rustc can print the same message twice.
    let mut seen = std::collections::HashSet::new();
    printed.retain(|line| seen.insert(*line));
    let mut all: Vec<String> = Vec::new();
    for line in printed {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            return Err(format!("rustc printed\n{text}"));
        };
        if message["level"] != "failure-note" {
            all.push(normalized(message["rendered"].as_str().unwrap_or_default(), case));
        }
    }
    all.retain(|message| !message.is_empty());
    Ok(all.join("\n"))
}

/// Removes paths of this machine, numbers of lines outside of the case, and sums.
fn normalized(rendered: &str, case: &Path) -> String {
    let here = format!("{FOLDER}/");
    let own = here.clone() + &case.to_string_lossy() + ":";
    let mut text = String::new();
    // Whether the code that follows is from a different file than the case.
    let mut is_foreign = false;
    // How many types a list of implementations has named.
    let mut types: Option<usize> = None;
    let mut lines = rendered.lines().peekable();
    while let Some(line) = lines.next() {
        let mut line = line.trim_end().to_owned();
        let is_code =
            line.trim_start().starts_with(|char: char| char.is_ascii_digit() || "|.".contains(char));
        is_foreign &= is_code;
        if is_foreign {
            let numbers = line.find(|char: char| char != ' ' && !char.is_ascii_digit()).unwrap_or(line.len());
            line.replace_range(..numbers, &" ".repeat(numbers));
        }
        let indent = line.len() - line.trim_start().len();
        let unindented = &line[indent..];
        if let Some(place) = unindented.strip_prefix("--> ").or_else(|| unindented.strip_prefix("::: ")) {
            let arrow = &line[..indent + 4];
            if place.starts_with(&own) {
                line = format!("{arrow}{}", place.replacen(&here, "", 1));
            } else {
                is_foreign = true;
                let file = place.trim_end_matches(|char: char| char == ':' || char.is_ascii_digit());
                let library = file.split_once("/library/").filter(|(rust, _)| rust.contains("/rust"));
                let file = match library {
                    Some((_, rest)) => format!("$RUST/{rest}"),
                    None if Path::new(file).is_relative() => format!("$WORKSPACE/{file}"),
                    None => file.replacen(&here, "", 1),
                };
                line = format!("{arrow}{file}");
            }
        } else if unindented.starts_with("error: aborting due to ")
            || unindented.starts_with("= note: this compiler was built on ")
        {
            continue;
        } else if unindented.starts_with("= help: the following ")
            && unindented.contains("types implement trait")
        {
            types = Some(0);
        } else if let Some(count) = &mut types {
            *count = if indent < 12 { 0 } else { *count + 1 };
            match *count {
                0 => types = None,
                9 if lines.peek().is_some_and(|next| next.len() - next.trim_start().len() == indent) => {
                    line.replace_range(indent - 2.., "and $N others");
                }
                10.. => continue,
                _ => {}
            }
        }
        let line = line.replace(&here, "$DIR/").replace(workspace(), "$WORKSPACE/");
        if !(line.is_empty() && text.ends_with("\n\n")) {
            text += &line;
            text.push('\n');
        }
    }
    let text = unindented(&text);
    let text = text.trim_end();
    if text.is_empty() { String::new() } else { format!("{text}\n") }
}

/// What a line of a message is, for its indentation.
enum Line {
    Heading,
    /// Code with a margin of this width, less one.
    Code(usize),
    Note,
    /// Text that starts with this many spaces.
    Other(usize),
}

impl Line {
    fn new(line: &str, follows_note: bool) -> Self {
        let is_heading =
            |word| line.strip_prefix(word).is_some_and(|rest: &str| rest.starts_with([':', '[']));
        if is_heading("error") || is_heading("warning") {
            return Self::Heading;
        }
        let is_note = line.starts_with("note:") || line.starts_with("help:") || line == "...";
        if is_note || follows_note && line.starts_with("      ") {
            return Self::Note;
        }
        let spaces = |text: &str| text.bytes().take_while(|byte| *byte == b' ').count();
        if let Some(rest) = line.strip_prefix("... ") {
            return Self::Code(spaces(rest));
        }
        let before = spaces(line);
        let digits = line[before..].bytes().take_while(u8::is_ascii_digit).count();
        let margin = before + spaces(&line[before + digits..]);
        let rest = &line[margin + digits..];
        let starts =
            |marks: &[&str]| marks.iter().any(|mark| rest == mark.trim_end() || rest.starts_with(mark));
        let is_code = starts(&["| "])
            || digits > 0 && starts(&["~ ", "+ ", "- "])
            || digits == 0 && starts(&["--> ", "::: ", "= "]);
        match margin {
            1.. if is_code => Self::Code(margin - 1),
            _ => Self::Other(if digits == 0 { margin } else { 0 }),
        }
    }
}

/// Narrows the margin of a message to what the numbers of its lines need.
fn unindented(text: &str) -> String {
    let mut result = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        result += line;
        result.push('\n');
        let is_heading = line.starts_with("note: ") || matches!(Line::new(line, false), Line::Heading);
        let has_place = lines.peek().is_some_and(|next| next.trim_start().starts_with("--> "));
        if !is_heading || !has_place {
            continue;
        }
        let (mut least, mut length, mut follows_note) = (usize::MAX, 0, false);
        for line in lines.clone() {
            let kind = Line::new(line, follows_note);
            follows_note = matches!(kind, Line::Note);
            match kind {
                Line::Heading => break,
                Line::Other(0..=10) => break,
                Line::Code(margin) => least = least.min(margin),
                Line::Note | Line::Other(_) => {}
            }
            length += 1;
        }
        follows_note = false;
        for line in lines.by_ref().take(length) {
            let kind = Line::new(line, follows_note);
            follows_note = matches!(kind, Line::Note);
            let margin = line.find(' ').filter(|_| !follows_note);
            match margin {
                Some(at) => result = result + &line[..at] + &line[at + least..],
                None => result += line,
            }
            result.push('\n');
        }
    }
    result
}
