//! Passes on the folder of libtorch and the version of the compiler, and writes the guide for rustdoc.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "cargo reads what a build script prints"
)]

mod guide;

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=guide");
    println!("cargo::rustc-env=TRAINER_RUSTC={}", rustc_version().unwrap_or_else(|| "unknown".into()));
    // For the build scripts of programs that are started by their path: see the page `deployment`
    // of the guide.
    if let Ok(lib) = env::var("DEP_TRAINER_SHIM_LIBTORCH_LIB") {
        println!("cargo::metadata=libtorch_lib={lib}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("guide");
    if let Err(error) = guide::write(Path::new("guide"), &out) {
        panic!("{error}");
    }
}

/// Returns the version of the compiler, as it prints it: `rustc 1.95.0 (59807616e 2026-04-14)`.
fn rustc_version() -> Option<String> {
    let output = std::process::Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
