//! Compares the compiler's messages for each file in `fail/` with the snapshot next to it. The
//! files in `pass/` are examples of this package and must compile. All code that messages of the
//! trainer suggest is in `pass/advice.rs`.

mod messages;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The toolchain whose messages the snapshots contain: `rust-version` in Cargo.toml.
const SNAPSHOTS: &str = concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"));

#[test]
fn compiler_messages_match_the_snapshots() {
    if is_toolchain_of_snapshots() {
        let cases = files(Path::new("fail"), "rs");
        assert!(cases.len() > 300, "only {} cases were found", cases.len());
        messages::compare(&cases);
    } else {
        // Not `eprintln!`, which the test harness captures.
        let _ = writeln!(
            std::io::stderr(),
            "ui: the snapshots are from {SNAPSHOTS}; the messages of this toolchain are not compared"
        );
    }
}

/// What looks like Rust in a message and is not, or needs a feature that this package lacks.
const NOT_COMPILED: [&str; 57] = [
    // Calls as messages print them.
    ".diverge_at(NaN)",
    ".every_time(…)",
    ".stop_at(NaN)",
    // Calls with the values of the program.
    "all_gather({name:?})",
    "all_reduce({name:?})",
    "reduce_scatter({name:?})",
    ".min_delta({:?})",
    ".with_len({done})",
    "Sharded::new(…).bucket_bytes(0)",
    // `ImageFolder`, with the feature `image`.
    ".max_pixels(…)",
    // The names of methods.
    "Progress::show(\"{name}\")",
    "World::broadcast",
    "Optimizer::divided_gradients",
    "Tensor::backward",
    "World::average",
    "Task::steps_per_batch",
    "Loader::len",
    // Python.
    "flax.traverse_util.flatten_dict(…, sep=\".\")",
    "gguf.dequantize(tensor.data, tensor.tensor_type)",
    "joblib.dump(…, compress=True)",
    "pandas.read_feather(…).to_parquet(…)",
    "pandas.read_json(…).to_parquet(…)",
    "pandas.read_orc(…).to_parquet(…)",
    "pyarrow.parquet.write_table(pyarrow.parquet.read_table(…), …)",
    "merge_and_unload()",
    "safetensors.numpy.save_file(dict(numpy.load(…)), …)",
    "torch.load(…, weights_only=False)",
    "torch.save(model.state_dict(), …)",
    "torch.save(optimizer.state_dict(), …)",
    "names = {p: name for name, p in model.named_parameters()}; print([names[p] for group in optimizer.param_groups for p in group[\"params\"]])",
    ".astype(\"uint16\")",
    ".reshape(-1)",
    // The path of a hook, with the version of its crate.
    "{krate}@{version}::{rest}",
    // The name of a macro.
    "trainer::lifecycle!",
    // `GpuMonitor`, with the feature `nvml`.
    ".device(0)",
    // Of the features `cli` and `dashboard`.
    ".default_value(\"{name}\", …)",
    ".may_change(\"{name}\")",
    "AdamW::new(settings.lr)",
    "Dashboard::with(progress)",
    "SettingsParser::parse_from",
    "trainer::cli::TrainerArgs",
    // Of the features `image`, `parquet` and `tar`.
    ".buffer(0)",
    ".size({height}, {width})",
    "Shards::parquet",
    "Shards::tar",
    // Names of methods and functions, and calls with values that are refused.
    ".outer({lr:?}, {momentum:?})",
    ".steps(0)",
    ".tape(…)",
    ".tolerance({fraction:?})",
    "Batch::try_clone",
    "DataLoader::skip_damaged(true)",
    "Golden::new(…).tolerance(1e-4)",
    "HookOptions::named(\"{}\").ord({ord})",
    "Trainer::check_golden",
    "tch::manual_seed",
    // Compiled in `guide/profiling.md`.
    "call.run()",
    // Compiled in `guide/tape.md`.
    "trainer.replay_requested(&mut train, Some(&mut valid))?",
];

#[test]
fn code_in_messages_compiles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let compiled = fs::read_to_string(root.join("ui-tests/pass/advice.rs")).unwrap();
    let compiled = without_whitespace(&compiled);
    let mut found = BTreeSet::new();
    for folder in ["trainer/src", "trainer-macros/src"] {
        collect(&root.join(folder), &mut found);
    }
    assert!(found.len() > 200, "only {} pieces of code were found", found.len());
    let missing: Vec<_> = found
        .iter()
        .filter(|code| !NOT_COMPILED.contains(&code.as_str()))
        .filter(|code| !compiled.split(';').any(|statement| occurs(code, statement)))
        .collect();
    assert!(
        missing.is_empty(),
        "code in messages that does not occur in `pass/advice.rs`, where it would be compiled:\n{missing:#?}"
    );
}

/// Adds the calls and paths in backticks in the string literals of the Rust files in a folder.
fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if ["hook/advice.rs", "hook/tests.rs", "tests/invalid.rs"]
            .iter()
            .any(|end| path.ends_with(end))
        {
            // Tests with code that is wrong.
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for literal in literals(source) {
                if is_template(&literal) {
                    found.insert(literal);
                    continue;
                }
                let code = literal.split('`').skip(1).step_by(2);
                let is_key = |code: &str| {
                    let keys =
                        ["only", "every", "of", "in", "before", "after", "when", "ord", "state", "trial"];
                    code.split_once(" = ").is_some_and(|(key, value)| keys.contains(&key) && value != "…")
                };
                let is_call = |code: &&str| {
                    !code.starts_with("#[")
                        && !code.contains("use ")
                        && (code.contains('(') || code.contains("::") || is_key(code))
                };
                found.extend(code.filter(is_call).map(str::to_owned));
            }
        }
    }
}

/// Whether a whole literal is code in which `{}` stands for a value, such as `.warm_up({})`.
fn is_template(literal: &str) -> bool {
    let called = literal.split('(').next().unwrap_or_default();
    let is_path = called.contains("::") && called.chars().all(|char| char.is_alphanumeric() || char == ':');
    literal.contains("{}") && literal.ends_with(')') && (is_path || called.starts_with('.'))
}

/// Returns the string literals of a source outside of comments, without escapes.
fn literals(source: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        rest = &rest[at..];
        let skipped = ["'\"'", "'/'", "'\\''"].into_iter().find(|literal| rest.starts_with(literal));
        if let Some(literal) = skipped {
            rest = &rest[literal.len()..];
        } else if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if !rest.starts_with('"') {
            rest = &rest[1..];
        } else {
            let mut literal = String::new();
            let mut chars = rest[1..].char_indices();
            let mut end = rest.len();
            while let Some((at, char)) = chars.next() {
                match char {
                    '"' => {
                        end = at + 2;
                        break;
                    }
                    '\\' => match chars.next() {
                        // The line continues after the indentation.
                        Some((_, '\n')) => literal.push(' '),
                        Some((_, escaped)) => literal.push(escaped),
                        None => {}
                    },
                    char => literal.push(char),
                }
            }
            rest = &rest[end..];
            // A continued line ends with a space before the backslash.
            all.push(literal.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    all
}

fn without_whitespace(text: &str) -> String {
    text.chars().filter(|char| !char.is_whitespace()).collect()
}

/// Whether code occurs in a statement. `…`, `{…}` and `<word>` in it stand for any code.
fn occurs(code: &str, statement: &str) -> bool {
    let code = without_whitespace(code).replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut pieces = vec![String::new()];
    let mut rest = code.as_str();
    while let Some(first) = rest.chars().next() {
        let word = rest.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let word = word.filter(|(word, _)| word.chars().all(|char| char.is_ascii_lowercase()));
        let after = match first {
            '…' => Some(&rest[first.len_utf8()..]),
            '{' => rest.split_once('}').map(|(_, rest)| rest),
            _ => word.map(|(_, rest)| rest),
        };
        match after {
            Some(after) => {
                pieces.push(String::new());
                rest = after;
            }
            None => {
                let piece = pieces.last_mut().expect("there is always a piece");
                piece.push(match first {
                    '\u{1}' => '{',
                    '\u{2}' => '}',
                    char => char,
                });
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    let mut statement = statement;
    pieces.iter().all(|piece| {
        let found = statement.find(piece.as_str());
        statement = found.map_or("", |at| &statement[at + piece.len()..]);
        found.is_some()
    })
}

/// Returns what rustc prints.
fn rustc(arguments: &[&str]) -> String {
    let output = Command::new("rustc").args(arguments).output().expect("cargo ran, so rustc is installed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn is_toolchain_of_snapshots() -> bool {
    rustc(&["--version"]).starts_with(SNAPSHOTS)
}

/// Returns the files with this extension in a folder of this package and in the folders below.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let found = paths.flat_map(|path| if path.is_dir() { files(&path, extension) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|own| own == extension)).collect()
}

/// With the component `rust-src`, rustc quotes lines of the standard library.
#[test]
fn messages_do_not_depend_on_whether_the_sources_of_the_standard_library_are_installed() {
    for path in files(Path::new("fail"), "stderr") {
        let text = fs::read_to_string(&path).expect("a snapshot");
        let path = path.display();
        assert!(
            !text.contains("$RUST/"),
            "{path} refers to the standard library: write the case without its types"
        );
    }
}

/// The lints of rustc that `pass/forbidden_lints.rs` does not forbid.
const NOT_FORBIDDEN: [&str; 13] = [
    // `inventory::submit!` allows the first, which is a part of the second.
    "non_upper_case_globals",
    "warnings",
    // Of the package, not of the expansion.
    "unused_crate_dependencies",
    // Unstable.
    "default_overrides_default_fields",
    "fuzzy_provenance_casts",
    "lossy_provenance_casts",
    "multiple_supertrait_upcastable",
    "must_not_suspend",
    "non_exhaustive_omitted_patterns",
    "resolving_to_items_shadowing_supertrait_items",
    "shadowing_supertrait_items",
    "test_unstable_lint",
    "unqualified_local_imports",
];

#[test]
fn every_stable_lint_of_rustc_is_forbidden_in_the_example() {
    if !is_toolchain_of_snapshots() {
        return;
    }
    let help = rustc(&["-W", "help"]);
    let lints = help.split("Lint checks provided by rustc").nth(1).expect("a list of lints");
    let lints = lints.split("Lint groups").next().unwrap_or_default();
    let level =
        |word: Option<&str>| word.is_some_and(|word| ["allow", "warn", "deny", "forbid"].contains(&word));
    let lints = lints.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let lints = lints.filter(|words| level(words.get(1).copied())).map(|words| words[0].replace('-', "_"));
    let example = fs::read_to_string("pass/forbidden_lints.rs").expect("the example");
    let forbidden: Vec<&str> = example.lines().map(|line| line.trim().trim_end_matches(',')).collect();
    let missing = lints.filter(|lint| !forbidden.contains(&&**lint) && !NOT_FORBIDDEN.contains(&&**lint));
    let missing: Vec<String> = missing.collect();
    assert!(missing.is_empty(), "add to `#![forbid(…)]` in pass/forbidden_lints.rs: {missing:?}");
}
