//! Compiles the C++ functions.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "cargo reads what a build script prints"
)]

use std::env;
use std::path::{Path, PathBuf};

/// Set by `make sanitize` to the folder of the sanitizers' libraries.
const SANITIZE: &str = "TRAINER_SANITIZE";

fn main() {
    println!("cargo::rerun-if-changed=cpp");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    println!("cargo::rerun-if-env-changed={SANITIZE}");
    // If a variable is missing, torch-sys was built with `doc-only`: there is nothing to compile
    // against.
    let Some(include) = env::var_os("DEP_TRAINER_SHIM_LIBTORCH_INCLUDE").map(PathBuf::from) else { return };
    let Some(headers) = env::var_os("DEP_TRAINER_SHIM_HEADERS").map(PathBuf::from) else { return };

    if is_clippy() {
        return;
    }
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".into());
    let mut build = cc::Build::new();
    sanitize(&mut build);
    if env::var_os("CARGO_FEATURE_NCCL").is_some() {
        let lib = PathBuf::from(env::var_os("DEP_TRAINER_SHIM_LIBTORCH_LIB").unwrap_or_default());
        let folders = match cuda_headers(&include, &lib) {
            Ok(folders) => folders,
            Err(mistake) => return println!("cargo::error={mistake}"),
        };
        println!("cargo::rustc-link-lib=torch_cuda");
        build.includes(folders).define("USE_C10D_NCCL", None);
    }
    build
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .opt_level(1)
        // Twice as fast to compile; backtraces name the C++ functions, without their lines.
        .debug(false)
        // The parts of gloo that c10d's headers need, which libtorch does not ship.
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

/// Returns the folders of the CUDA and NCCL headers that PyTorch's own headers include.
///
/// # Errors
///
/// Returns a message if this libtorch has no CUDA, or if a header is not found.
fn cuda_headers(include: &Path, lib: &Path) -> Result<Vec<PathBuf>, String> {
    if !lib.join("libtorch_cuda.so").exists() {
        return Err(format!(
            "the feature `nccl` needs a libtorch for NVIDIA GPUs, but {} has no libtorch_cuda.so: run `make libtorch CUDA=1`, \
             or set LIBTORCH to a build for CUDA",
            lib.display()
        ));
    }
    for variable in ["CPATH", "CUDA_HOME"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let mut folders = vec![include.to_owned()];
    let own = env::var_os("CPATH").unwrap_or_default();
    folders.extend(env::split_paths(&own).filter(|folder| !folder.as_os_str().is_empty()));
    // In a Python environment, the packages are next to the folder `torch`, which contains `lib`.
    let packages = lib.ancestors().nth(2).unwrap_or(Path::new("/")).join("nvidia");
    folders.extend(["cu13", "nccl"].map(|package| packages.join(package).join("include")));
    folders.push(packages.join("cu13/include/cccl"));
    let toolkit = env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("/usr/local/cuda"), PathBuf::from);
    folders.extend([toolkit.join("include"), toolkit.join("include/cccl"), PathBuf::from("/usr/include")]);
    let needed = ["cuda_runtime_api.h", "crt/host_defines.h", "nv/target", "cublas_v2.h", "nccl.h"];
    let folder_of = |header: &str| {
        folders.iter().find(|folder| folder.join(header).exists()).cloned().ok_or_else(|| {
            // Python's torch comes with all headers but these.
            let python = match header {
                "crt/host_defines.h" => "; for Python's torch, run `pip install \"nvidia-cuda-crt==13.0.*\"`",
                "nv/target" => "; for Python's torch, run `pip install \"nvidia-cuda-cccl==13.0.*\"`",
                _ => "",
            };
            format!(
                "the feature `nccl` needs the header {header} of CUDA or NCCL, which is in none of {}: `make libtorch CUDA=1` \
                 fetches it{python}; for a custom libtorch, add the folder of the header to the variable CPATH",
                folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
            )
        })
    };
    needed.into_iter().map(folder_of).collect()
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
