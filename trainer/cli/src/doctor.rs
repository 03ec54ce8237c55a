//! `trainer doctor`: what a build and a run need, what of it is there, and what to do about the
//! rest.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use trainer_files::{folder_of, in_file, is_folder, metadata, read_text};

use crate::output::{BAD, Failure, GOOD, Output};

/// The oldest version of Rust, as in `Cargo.toml`.
const RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// Variables with which a launcher tells a process its rank. A program that is started with some of
/// them waits for the other ranks.
const OF_LAUNCHERS: [&str; 7] = [
    "RANK",
    "WORLD_SIZE",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "TORCHELASTIC_RUN_ID",
];

/// A thing that was looked at.
struct Finding {
    what: &'static str,
    found: String,
    /// What to do, if it is wrong.
    remedy: Option<String>,
}

impl Finding {
    fn new(what: &'static str, found: impl Into<String>, remedy: Option<String>) -> Self {
        Finding { what, found: found.into(), remedy }
    }
}

/// Looks at this machine from a folder. The exit status is 1 if something is wrong.
pub(crate) fn run(folder: &Path, out: &mut Output) -> Result<ExitCode, Failure> {
    if !folder.canonicalize().is_ok_and(|folder| is_folder(&folder)) {
        return Err(in_file(folder, "this is not a folder: name that of the project").into());
    }
    let findings = [rust(), compiler(), libtorch(folder)?, gpu(), disk(folder), files(), launchers()];
    for Finding { what, found, remedy } in &findings {
        if out.is_json() {
            out.object(&json!({ "what": what, "found": found, "remedy": remedy }))?;
            continue;
        }
        match remedy {
            None => out.line(format!("{GOOD}ok{GOOD:#}     {what}: {found}"))?,
            Some(remedy) => out.line(format!("{BAD}wrong{BAD:#}  {what}: {found}\n       {remedy}"))?,
        }
    }
    Ok(ExitCode::from(u8::from(findings.iter().any(|finding| finding.remedy.is_some()))))
}

/// Returns the first line that a program prints, or `None` if it cannot be started or fails.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned)
}

/// Returns the numbers of a version.
fn numbers(version: &str) -> Vec<u64> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

fn rust() -> Finding {
    let line = first_line("rustc", &["--version"]);
    let remedy = match line.as_deref().map(|line| line.split(' ').nth(1).unwrap_or_default()) {
        None => Some("install Rust from https://rustup.rs".to_owned()),
        Some(version) if numbers(version) < numbers(RUST) => {
            Some(format!("at least {RUST} is needed: run `rustup update stable`"))
        }
        Some(_) => None,
    };
    Finding::new("Rust", line.unwrap_or_else(|| "no `rustc` in PATH".to_owned()), remedy)
}

fn compiler() -> Finding {
    let command = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    // As in `CXX="ccache g++"`.
    let mut words = command.split_whitespace().chain(["--version"]);
    let program = words.next().unwrap_or_default();
    let line = first_line(program, &words.collect::<Vec<_>>());
    let remedy = line.is_none().then(|| {
        "install one, on Debian and Ubuntu with `sudo apt install g++`, or name it in the variable `CXX`"
            .to_owned()
    });
    Finding::new("C++ compiler", line.unwrap_or_else(|| format!("`{command} --version` fails")), remedy)
}

/// Returns the folder of libtorch, and where it is named: the environment, or a file of cargo for
/// this folder.
fn named_libtorch(folder: &Path) -> Result<Option<(PathBuf, String)>, Failure> {
    if let Some(libtorch) = std::env::var_os("LIBTORCH") {
        return Ok(Some((libtorch.into(), "the variable LIBTORCH".to_owned())));
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    for folder in folder.ancestors().map(|above| above.join(".cargo")).chain(home) {
        // cargo still reads the first name, which it had before the second.
        for name in ["config", "config.toml"] {
            if let Some(named) = named_in(&folder.join(name), INCLUDED)? {
                return Ok(Some(named));
            }
        }
    }
    Ok(None)
}

/// How many files of cargo may include each other.
const INCLUDED: usize = 8;

/// Returns the same as [`named_libtorch`] for one file of cargo, and the files that it includes.
fn named_in(file: &Path, depth: usize) -> Result<Option<(PathBuf, String)>, Failure> {
    if depth == 0 || metadata(file)?.is_none() {
        return Ok(None);
    }
    let text = read_text(file)?;
    let parsed = DeTable::parse(&text)
        .map_err(|error| Failure::new(format!("{}: {}", file.display(), error.message())))?;
    let table = parsed.get_ref();
    let env = table.get("env").and_then(|env| env.get_ref().as_table());
    if let Some(value) = env.and_then(|env| env.get("LIBTORCH")).map(Spanned::get_ref) {
        let path = field(value, "value").unwrap_or(value);
        let path = path.as_str().unwrap_or_default();
        let is_relative = field(value, "relative").and_then(DeValue::as_bool) == Some(true);
        // Relative to the folder around `.cargo`.
        let path = if is_relative { folder_of(folder_of(file)).join(path) } else { path.into() };
        return Ok(Some((path, file.display().to_string())));
    }
    let included = table.get("include").and_then(|include| include.get_ref().as_array());
    for included in included.into_iter().flatten().map(Spanned::get_ref) {
        let path = field(included, "path").unwrap_or(included);
        let named = named_in(&folder_of(file).join(path.as_str().unwrap_or_default()), depth - 1)?;
        if named.is_some() {
            return Ok(named);
        }
    }
    Ok(None)
}

fn field<'v, 't>(value: &'v DeValue<'t>, name: &str) -> Option<&'v DeValue<'t>> {
    value.as_table().and_then(|value| value.get(name)).map(Spanned::get_ref)
}

fn libtorch(folder: &Path) -> Result<Finding, Failure> {
    const GET: &str = "run `trainer libtorch`, and name the folder that it prints in the variable LIBTORCH or in \
                       `.cargo/config.toml`";
    let needed = crate::libtorch::version();
    let wrong = |found, remedy| Ok(Finding::new("libtorch", found, Some(remedy)));
    let checked = |version: &str, found: String, remedy: &str| {
        let is_right = version.split('+').next() == Some(&needed);
        let remedy = (!is_right).then(|| format!("version {needed} is needed: {remedy}"));
        Ok(Finding::new("libtorch", format!("{version} {found}"), remedy))
    };
    if std::env::var_os("LIBTORCH_USE_PYTORCH").is_some() {
        // The build script of tch looks for it in the same way.
        let python = if std::env::var_os("VIRTUAL_ENV").is_some() { "python" } else { "python3" };
        let found = format!("of PyTorch for `{python}`, named by the variable LIBTORCH_USE_PYTORCH");
        let install = format!("run `{python} -m pip install torch=={needed}`");
        return match first_line(python, &["-c", "import torch; print(torch.__version__)"]) {
            Some(version) => checked(&version, found, &install),
            None => wrong(format!("no libtorch {found}"), install),
        };
    }
    let Some((path, named)) = named_libtorch(folder)? else {
        return wrong("named nowhere".to_owned(), GET.to_owned());
    };
    let found = format!("in {}, named by {named}", path.display());
    if !path.is_absolute() {
        let found = format!("`{}` is no absolute path, named by {named}", path.display());
        return wrong(found, GET.to_owned());
    }
    for file in ["build-version", "include/ATen/ATen.h", library()] {
        if metadata(&path.join(file))?.is_none() {
            return wrong(format!("no `{file}` {found}"), GET.to_owned());
        }
    }
    checked(read_text(&path.join("build-version"))?.trim(), found, GET)
}

/// The library that every build has.
fn library() -> &'static str {
    match std::env::consts::OS {
        "windows" => "lib/torch_cpu.dll",
        "macos" => "lib/libtorch_cpu.dylib",
        _ => "lib/libtorch_cpu.so",
    }
}

/// A machine without a GPU is not wrong.
fn gpu() -> Finding {
    let line = first_line("nvidia-smi", &["--query-gpu=name,driver_version", "--format=csv,noheader"]);
    let found = line.map_or_else(
        || "none that `nvidia-smi` sees: programs train on the CPU".to_owned(),
        |line| format!("{line} (driver); libtorch for it: `trainer libtorch --cuda`"),
    );
    Finding::new("GPU", found, None)
}

#[cfg(unix)]
fn disk(folder: &Path) -> Finding {
    const NEEDED: u64 = 5 << 30;
    let Ok(space) = rustix::fs::statvfs(folder) else { return Finding::new("disk space", "unknown", None) };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let remedy = (free < NEEDED)
        .then(|| "a first build takes up to 5 GB: free some, or set CARGO_TARGET_DIR".to_owned());
    Finding::new("disk space", format!("{} GB free", free >> 30), remedy)
}

#[cfg(not(unix))]
fn disk(_: &Path) -> Finding {
    Finding::new("disk space", "unknown", None)
}

#[cfg(unix)]
fn files() -> Finding {
    const NEEDED: u64 = 1024;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let remedy = limit
        .is_some_and(|limit| limit < NEEDED)
        .then(|| format!("workers and ranks need more: run `ulimit -n {NEEDED}` before a program"));
    Finding::new(
        "open files",
        limit.map_or("no limit".to_owned(), |limit| format!("at most {limit}")),
        remedy,
    )
}

#[cfg(not(unix))]
fn files() -> Finding {
    Finding::new("open files", "unknown", None)
}

fn launchers() -> Finding {
    let set: Vec<&str> = OF_LAUNCHERS.into_iter().filter(|name| std::env::var_os(name).is_some()).collect();
    if set.is_empty() {
        return Finding::new("launcher", "no variables of one: a program trains in one process", None);
    }
    let remedy = format!(
        "if this is no job of several processes, run `unset {}`: a program waits for the other ranks",
        set.join(" ")
    );
    Finding::new("launcher", format!("{} set", set.join(", ")), Some(remedy))
}
