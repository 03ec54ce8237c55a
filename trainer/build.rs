//! Compiles the C++ shim, and lets programs built on this crate find libtorch at run time.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "cargo reads what a build script prints and writes"
)]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() {
    println!("cargo::rerun-if-changed=src/libtorch/shim.cpp");
    println!("cargo::rerun-if-changed=src/libtorch/autocast.cpp");
    println!("cargo::rerun-if-changed=src/libtorch/profiler.cpp");
    println!("cargo::rerun-if-changed=src/libtorch/monitors.cpp");
    println!("cargo::rerun-if-changed=src/libtorch/flops.cpp");
    println!("cargo::rerun-if-changed=src/libtorch/guarded.h");
    println!("cargo::rerun-if-changed=src/libtorch/counted.h");
    println!("cargo::rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    println!("cargo::rustc-env=TRAINER_RUSTC={}", rustc_version().unwrap_or_else(|| "unknown".into()));
    // If the variable is missing, torch-sys was built with `doc-only`: there is nothing to compile
    // against.
    let Some(lib) = env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else { return };
    let lib = lib.canonicalize().unwrap_or(lib);

    let root = env::var_os("LIBTORCH_INCLUDE").map(PathBuf::from);
    let include = root.as_deref().or(lib.parent()).unwrap_or(Path::new("/usr")).join("include");
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".into());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .opt_level(2)
        .include(include.join("torch/csrc/api/include"))
        .include(&include)
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .file("src/libtorch/shim.cpp")
        .file("src/libtorch/autocast.cpp")
        .file("src/libtorch/profiler.cpp")
        .file("src/libtorch/monitors.cpp")
        .file("src/libtorch/flops.cpp")
        .compile("trainer_shim");
    if env::var_os("CARGO_FEATURE_DISTRIBUTED").is_some() {
        compile_distributed(&include, &abi);
    }

    if let Err(error) = link_into_out_dir(&lib) {
        println!("cargo::warning=could not link {} into the build folder: {error}", lib.display());
    }
    // For the build scripts of programs that are started by their path: see "libtorch" in the
    // README.
    println!("cargo::metadata=libtorch_lib={}", lib.display());
}

/// Compiles the part of the shim that calls libtorch's c10d.
fn compile_distributed(include: &Path, abi: &str) {
    println!("cargo::rerun-if-changed=src/libtorch/dist.cpp");
    println!("cargo::rerun-if-changed=src/libtorch/gloo");
    let mut build = cc::Build::new();
    if env::var_os("CARGO_FEATURE_NCCL").is_some() {
        println!("cargo::rerun-if-env-changed=CPATH");
        println!("cargo::rustc-link-lib=torch_cuda");
        build.define("USE_C10D_NCCL", None);
    }
    build
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .opt_level(1)
        // What c10d's headers need of gloo's, which libtorch does not ship.
        .include("src/libtorch/gloo")
        .include(include.join("torch/csrc/api/include"))
        .include(include)
        .define("_GLIBCXX_USE_CXX11_ABI", abi)
        .define("USE_C10D_GLOO", None)
        .define("USE_DISTRIBUTED", None)
        .file("src/libtorch/dist.cpp")
        .compile("trainer_dist");
}

/// Returns the version of the compiler, as it prints it: `rustc 1.95.0 (59807616e 2026-04-14)`.
fn rustc_version() -> Option<String> {
    let output = std::process::Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Links libtorch's folder into the build output folder. Cargo adds native search paths inside its
/// target folder to the library path of the programs that it runs.
fn link_into_out_dir(lib: &Path) -> io::Result<()> {
    let link = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("libtorch");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(lib, &link)?;
    #[cfg(windows)]
    std::os::windows::fs::symlink_dir(lib, &link)?;
    println!("cargo::rustc-link-search=native={}", link.display());
    Ok(())
}
