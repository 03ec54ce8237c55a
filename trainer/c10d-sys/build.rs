//! Compiles the C++ functions.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "cargo reads what a build script prints"
)]

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=cpp");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    // If a variable is missing, torch-sys was built with `doc-only`: there is nothing to compile
    // against.
    let Some(include) = env::var_os("DEP_TRAINER_SHIM_LIBTORCH_INCLUDE").map(PathBuf::from) else { return };
    let Some(headers) = env::var_os("DEP_TRAINER_SHIM_HEADERS").map(PathBuf::from) else { return };

    if is_clippy() {
        return;
    }
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".into());
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
        .include("cpp/gloo")
        .include(headers)
        .include(include.join("torch/csrc/api/include"))
        .include(include)
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .define("USE_C10D_GLOO", None)
        .define("USE_DISTRIBUTED", None)
        .file("cpp/dist.cpp")
        .compile("trainer_c10d");
}

/// Whether clippy runs this script. Cargo keeps what clippy builds apart, and clippy links nothing.
fn is_clippy() -> bool {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").map(PathBuf::from);
    wrapper.is_some_and(|wrapper| wrapper.file_stem().is_some_and(|name| name == "clippy-driver"))
}
