//! `trainer new`: writes a program, a crate of hooks and their tests.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::json;
use trainer_files::{create_folders, create_new_folder, folder_of, in_file, write};

use crate::libtorch;
use crate::output::{Failure, Output};

/// The files with the names that they have in a project. `template` stands for the name of the
/// project.
const FILES: [(&str, &str); 10] = [
    ("src/lib.rs", include_str!("template/src/lib.rs")),
    ("src/main.rs", include_str!("template/src/main.rs")),
    ("tests/program.rs", include_str!("template/tests/program.rs")),
    ("hooks/src/lib.rs", include_str!("template/hooks/src/lib.rs")),
    ("hooks.lock", include_str!("template/hooks.lock")),
    ("settings.toml", include_str!("template/settings.toml")),
    ("README.md", include_str!("template/README.md")),
    ("AGENTS.md", include_str!("template/AGENTS.md")),
    (".github/workflows/test.yml", include_str!("template/.github/workflows/test.yml")),
    (".gitignore", "/target\n/runs\n/weights.safetensors\n"),
];

/// Writes a project into a new folder.
pub(crate) fn run(folder: &Path, clone: Option<&Path>, out: &mut Output) -> Result<ExitCode, Failure> {
    let name = name_of(folder)?;
    let clone = match clone {
        Some(clone) => clone.to_owned(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
    };
    let clone = clone.canonicalize().ok().filter(|clone| clone.join("trainer/Cargo.toml").is_file());
    let Some(clone) = clone else {
        return Err(Failure::new(
            "no clone of `trainer` was found where this command was built: name the folder of one with `--clone FOLDER`",
        ));
    };
    let of_clone = Some(clone.join("libtorch")).filter(|folder| libtorch::is_complete(folder));
    let libtorch = match std::env::var_os("LIBTORCH").map(PathBuf::from).or(of_clone) {
        Some(libtorch) => libtorch,
        None => libtorch::shared()?,
    };
    if !create_new_folder(folder)? {
        return Err(in_file(folder, "this folder exists already: choose another name").into());
    }
    let snake = name.replace('-', "_");
    let url = url_of(&clone);
    for (path, text) in FILES {
        let text = text.replace("template", &snake).replace("NAME", name);
        let text = text.replace("LIBRARY_URL", &url).replace("LIBTORCH_VERSION", &libtorch::version());
        put(&folder.join(path), &text)?;
    }
    put(&folder.join("Cargo.toml"), &manifest(name, &clone))?;
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

/// Returns the address that a clone was made from, or a placeholder that says what to write there.
fn url_of(clone: &Path) -> String {
    let remote = Command::new("git").arg("-C").arg(clone).args(["remote", "get-url", "origin"]).output();
    let url = remote.ok().filter(|remote| remote.status.success());
    let url = url.map(|remote| String::from_utf8_lossy(&remote.stdout).trim().to_owned()).unwrap_or_default();
    // An address with a colon and a space, a quote or a token of its user does not belong in the
    // file.
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:~".contains(letter);
    if url.is_empty() || !url.chars().all(is_plain) { "https://URL-OF-THE-LIBRARY".to_owned() } else { url }
}

/// Returns the name of the package, which is that of the folder.
fn name_of(folder: &Path) -> Result<&str, Failure> {
    const TAKEN: [&str; 6] = ["trainer", "tch", "std", "core", "test", "hooks"];
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_valid = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter));
    if !is_valid || TAKEN.contains(&name) {
        return Err(Failure::new(format!(
            "`{}` cannot be the name of a project: use lower-case letters, digits, `-` and `_`, beginning with a letter, \
             and no name that cargo or this library uses",
            folder.display()
        )));
    }
    Ok(name)
}

fn manifest(name: &str, clone: &Path) -> String {
    let trainer = clone.join("trainer").display().to_string();
    format!(
        r#"[workspace]
members = ["hooks"]

[workspace.dependencies]
trainer = {{ path = {trainer:?} }}

[package]
name = "{name}"
version = "0.1.0"
edition = "2024"
publish = false

[dependencies]
{name}-hooks = {{ path = "hooks" }}
trainer = {{ workspace = true, features = ["cli"] }}

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
