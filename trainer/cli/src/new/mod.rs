//! `trainer new`: writes a program, a crate of hooks and their tests.

mod library;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::json;
use trainer_files::{create_folders, create_new_folder, folder_of, in_file, write};

use self::library::Library;
use crate::libtorch;
use crate::output::{Failure, Output};

/// The files that all projects have, with their names in one. `template` stands for the name of the
/// project.
const FILES: [(&str, &str); 8] = [
    ("src/lib.rs", include_str!("template/src/lib.rs")),
    ("src/main.rs", include_str!("template/src/main.rs")),
    ("tests/program.rs", include_str!("template/tests/program.rs")),
    ("hooks/src/lib.rs", include_str!("template/hooks/src/lib.rs")),
    ("settings.toml", include_str!("template/settings.toml")),
    ("README.md", include_str!("template/README.md")),
    ("AGENTS.md", include_str!("template/AGENTS.md")),
    (".gitignore", "/target\n/runs\n/weights.safetensors\n"),
];
const WORKFLOW: &str = include_str!("template/.github/workflows/test.yml");
/// The hooks of a lock, without the settings and the crates before them.
const HOOKS: &str = include_str!("template/hooks.lock");

/// What a project trains.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Template {
    /// A small GPT that writes, from a text
    Gpt,
    /// A convolutional network that names what images show
    Vision,
    /// A network that estimates a number from a table with columns of numbers and names
    Table,
}

/// What only one template has.
struct Parts {
    about: &'static str,
    /// `src/task.rs`
    task: &'static str,
    /// The settings in its lock.
    settings: &'static str,
    /// The name of its metric.
    metric: &'static str,
    /// The files of its data.
    data: &'static [(&'static str, &'static str)],
    /// A feature of the library besides `cli`.
    feature: &'static str,
    /// Lines in the manifest.
    dependencies: &'static str,
}

/// Returns the parts of a template, by default of one that needs no data.
fn parts(template: Option<Template>) -> Parts {
    let spirals = Parts {
        about: "Classifies points by the arm of the spiral that they are on.",
        task: include_str!("template/spirals/task.rs"),
        settings: include_str!("template/spirals/settings.lock"),
        metric: "accuracy",
        data: &[],
        feature: "",
        dependencies: "",
    };
    match template {
        None => spirals,
        Some(Template::Gpt) => Parts {
            about: "Trains a small GPT on the text in `data/text.txt`, here Shakespeare's sonnets, and lets it write.",
            task: include_str!("template/gpt/task.rs"),
            settings: include_str!("template/gpt/settings.lock"),
            metric: "perplexity",
            data: &[("data/text.txt", include_str!("template/gpt/text.txt"))],
            ..spirals
        },
        Some(Template::Vision) => Parts {
            about: "Names the shapes in noisy images with a convolutional network.",
            task: include_str!("template/vision/task.rs"),
            settings: include_str!("template/vision/settings.lock"),
            ..spirals
        },
        Some(Template::Table) => Parts {
            about: "Estimates the prices in `data/table.csv`, a table of houses that do not exist.",
            task: include_str!("template/table/task.rs"),
            settings: include_str!("template/table/settings.lock"),
            metric: "rmse",
            data: &[("data/table.csv", include_str!("template/table/table.csv"))],
            feature: ", \"csv\"",
            dependencies: "serde = { version = \"1\", features = [\"derive\"] }\n",
        },
    }
}

/// Writes a project into a new folder.
pub(crate) fn run(
    folder: &Path,
    template: Option<Template>,
    clone: Option<&Path>,
    out: &mut Output,
) -> Result<ExitCode, Failure> {
    let name = name_of(folder)?;
    let library = Library::find(Path::new(env!("CARGO_MANIFEST_DIR")), clone)?;
    let of_clone = match &library {
        Library::Clone(clone) => Some(clone.join("libtorch")).filter(|folder| libtorch::is_complete(folder)),
        Library::Repository { .. } | Library::Registry => None,
    };
    let named = std::env::var_os("LIBTORCH").map(PathBuf::from).filter(|libtorch| libtorch.is_absolute());
    let libtorch = match named.or(of_clone) {
        Some(libtorch) => libtorch,
        None => libtorch::shared()?,
    };
    if !create_new_folder(folder)? {
        return Err(in_file(folder, "this folder exists already: choose another name").into());
    }
    let snake = name.replace('-', "_");
    let parts = parts(template);
    let fill = |text: &str| {
        let text = text.replace("template", &snake).replace("NAME", name).replace("ABOUT", parts.about);
        text.replace("INSTALL", &library.install()).replace("LIBTORCH_VERSION", &libtorch::version())
    };
    let own = [("src/task.rs", parts.task), (".github/workflows/test.yml", WORKFLOW)];
    for (path, text) in FILES.into_iter().chain(own) {
        put(&folder.join(path), &fill(text))?;
    }
    for (path, text) in parts.data {
        put(&folder.join(path), text)?;
    }
    let mut crates =
        [format!("{snake}_hooks = 0.1.0"), concat!("trainer = ", env!("CARGO_PKG_VERSION")).to_owned()];
    crates.sort(); // as in each lock
    let hooks = fill(HOOKS).replace("METRIC", parts.metric);
    let lock = format!("{}\n[crates]\n{}\n\n{hooks}", parts.settings, crates.join("\n"));
    put(&folder.join("hooks.lock"), &lock)?;
    put(&folder.join("Cargo.toml"), &manifest(name, &library, &parts))?;
    put(&folder.join("hooks/Cargo.toml"), &manifest_of_hooks(name))?;
    let config = format!("[env]\nLIBTORCH = {:?}\n", libtorch.display().to_string());
    put(&folder.join(".cargo/config.toml"), &config)?;
    let has_libtorch = libtorch::is_complete(&libtorch);
    if !has_libtorch {
        out.warning(&format!("{}: there is no libtorch: run `trainer libtorch`", libtorch.display()));
    }
    if out.is_json() {
        out.object(&json!({ "folder": folder, "libtorch": libtorch, "has_libtorch": has_libtorch }))?;
    } else {
        out.line(format!("{}: now `cd {0} && cargo run && cargo test --workspace`", folder.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Names of crates that a project uses or that Rust has, names that cargo has for itself, and
/// keywords.
const TAKEN: &str = "
    alloc clap core hooks proc_macro serde std tch test trainer
    build deps examples incremental
    abstract as async await become box break const continue crate do dyn else enum extern false final fn for gen if
    impl in let loop macro match mod move mut override priv pub ref return self static struct super trait true try
    type typeof unsafe unsized use virtual where while yield";

/// Returns the name of the package, which is that of the folder.
fn name_of(folder: &Path) -> Result<&str, Failure> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_valid = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter));
    if !is_valid || TAKEN.split_whitespace().any(|taken| taken == name) {
        return Err(Failure::new(format!(
            "`{}` cannot be the name of a project: use lower-case letters, digits, `-` and `_`, beginning with a letter, \
             and no keyword of Rust or name that cargo or this library uses",
            folder.display()
        )));
    }
    Ok(name)
}

fn manifest(name: &str, library: &Library, parts: &Parts) -> String {
    let Parts { feature, dependencies, .. } = parts;
    let library = library.dependency();
    format!(
        r#"[workspace]
members = ["hooks"]

[workspace.dependencies]
trainer = {{ {library} }}

[package]
name = "{name}"
version = "0.1.0"
edition = "2024"
publish = false

[dependencies]
{name}-hooks = {{ path = "hooks" }}
{dependencies}trainer = {{ workspace = true, features = ["cli"{feature}] }}

# With the same debug information everywhere, `cargo check` compiles no C++ again.
[profile.dev]
debug = "line-tables-only"

[profile.dev.build-override]
debug = "line-tables-only"
"#
    )
}

fn manifest_of_hooks(name: &str) -> String {
    format!(
        r#"[package]
name = "{name}-hooks"
version = "0.1.0"
edition = "2024"
publish = false

[dependencies]
trainer.workspace = true
"#
    )
}

/// Writes a new file, and the folders around it.
fn put(path: &Path, text: &str) -> Result<(), Failure> {
    create_folders(folder_of(path))?;
    write(path, text.as_bytes())?;
    Ok(())
}
