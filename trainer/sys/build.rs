//! Compiles the C++ functions, and lets programs find libtorch when cargo runs them.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "cargo reads what a build script prints and writes"
)]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Set by `make sanitize` to the folder of the sanitizers' libraries.
const SANITIZE: &str = "TRAINER_SANITIZE";

fn main() {
    println!("cargo::rerun-if-changed=cpp");
    println!("cargo::rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    println!("cargo::rerun-if-env-changed={SANITIZE}");
    // If the variable is missing, torch-sys was built with `doc-only`: there is nothing to compile
    // against.
    let Some(lib) = env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else { return };
    let lib = lib.canonicalize().unwrap_or(lib);

    let root = env::var_os("LIBTORCH_INCLUDE").map(PathBuf::from);
    let include = root.as_deref().or(lib.parent()).unwrap_or(Path::new("/usr")).join("include");
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".into());
    if !is_clippy() {
        let mut build = cc::Build::new();
        sanitize(&mut build);
        build
            .cpp(true)
            .std("c++17")
            .warnings(false)
            .opt_level(2)
            // Twice as fast to compile; backtraces name the C++ functions, without their lines.
            .debug(false)
            .include(include.join("torch/csrc/api/include"))
            .include(&include)
            .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
            .file("cpp/lib.cpp")
            .compile("trainer_shim");
    }

    if let Err(error) = link_into_out_dir(&lib) {
        println!("cargo::warning=could not link {} into the build folder: {error}", lib.display());
    }
    // The build scripts of `trainer` and `trainer-c10d-sys` read this.
    let headers = env::current_dir().expect("cargo sets the current folder").join("cpp");
    println!("cargo::metadata=headers={}", headers.display());
    println!("cargo::metadata=libtorch_include={}", include.display());
    println!("cargo::metadata=libtorch_lib={}", lib.display());
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

/// Whether clippy runs this script. It links nothing, and cargo keeps its build output separate.
fn is_clippy() -> bool {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").map(PathBuf::from);
    wrapper.is_some_and(|wrapper| wrapper.file_stem().is_some_and(|name| name == "clippy-driver"))
}

/// With the variable [`SANITIZE`], lets the C++ code report errors of memory and undefined
/// behavior.
fn sanitize(build: &mut cc::Build) {
    let Some(libraries) = env::var_os(SANITIZE).map(PathBuf::from) else { return };
    for flag in [
        "-fsanitize=address,undefined",
        "-fno-sanitize=vptr",
        "-fsanitize-recover=undefined",
        "-fno-omit-frame-pointer",
        "-g1",
    ] {
        build.flag(flag);
    }
    println!("cargo::rustc-link-search=native={}", libraries.display());
    println!("cargo::rustc-link-lib=dylib=asan");
    println!("cargo::rustc-link-lib=dylib=ubsan");
}
