//! `trainer libtorch`: the libtorch that all projects of a user share.
//!
//! `builds.json` has the version, the wheels with their hashes, and the libraries of a build, for
//! this command and for `make libtorch`.

#[cfg(feature = "download")]
mod fetch;
#[cfg(feature = "download")]
mod unpack;

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::output::Failure;

const BUILDS: &str = include_str!("builds.json");

/// What a build of libtorch consists of.
struct Build {
    version: String,
    is_cuda: bool,
    wheels: Vec<Wheel>,
    /// The names of the libraries that are kept.
    libraries: Vec<String>,
    /// The number of bytes of the wheels.
    downloaded: u64,
    /// The number of bytes of disk space that unpacking takes.
    needed: u64,
}

/// A package of which one file is unpacked.
#[cfg_attr(not(feature = "download"), expect(dead_code, reason = "nothing is downloaded"))]
struct Wheel {
    name: String,
    sha256: String,
}

impl Build {
    fn new(is_cuda: bool) -> Self {
        let file: Json = serde_json::from_str(BUILDS).expect("tested below");
        let mut build = Build {
            version: file["version"].as_str().unwrap_or_default().to_owned(),
            is_cuda,
            wheels: Vec::new(),
            libraries: Vec::new(),
            downloaded: 0,
            needed: 0,
        };
        let parts: &[&str] = if is_cuda { &["cpu", "cuda"] } else { &["cpu"] };
        for part in parts.iter().map(|name| &file[name]) {
            let texts = |key: &str| {
                let texts = part[key].as_array().into_iter().flatten().filter_map(Json::as_str);
                texts.map(str::to_owned).collect::<Vec<_>>()
            };
            build.wheels.extend(texts("wheels").iter().filter_map(|wheel| Wheel::parse(wheel)));
            for key in ["libraries", "linked_libraries", "loaded_libraries"] {
                build.libraries.extend(texts(key));
            }
            // Those of the larger build include the smaller one.
            build.downloaded = part["downloaded"].as_u64().unwrap_or_default();
            build.needed = part["needed"].as_u64().unwrap_or_default();
        }
        build
    }

    /// Returns the folder of this build in the cache.
    fn folder(&self) -> Result<PathBuf, Failure> {
        let name = if self.is_cuda { "cuda" } else { "cpu" };
        Ok(cache()?.join(format!("libtorch-{}-{name}", self.version)))
    }
}

impl Wheel {
    /// Parses a requirement of pip: `name==version --hash=sha256:…`.
    fn parse(requirement: &str) -> Option<Self> {
        let (package, sha256) = requirement.split_once(" --hash=sha256:")?;
        let (name, _) = package.split_once("==")?;
        Some(Wheel { name: name.to_owned(), sha256: sha256.to_owned() })
    }
}

/// The version of libtorch that tch is made for.
pub(crate) fn version() -> String {
    Build::new(false).version
}

/// The folder of this command in the user's cache.
fn cache() -> Result<PathBuf, Failure> {
    let home = || std::env::home_dir().map(|home| home.join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    match cache.or_else(home) {
        Some(cache) => Ok(cache.join("trainer")),
        None => Err(Failure::new("this user has no home folder: set XDG_CACHE_HOME to an absolute path")),
    }
}

/// Returns the folder of a libtorch that this command has downloaded, the one for GPUs if it is
/// there. If there is none, returns the folder that it would download one into.
pub(crate) fn shared() -> Result<PathBuf, Failure> {
    let of_gpus = Build::new(true).folder()?;
    if is_complete(&of_gpus) { Ok(of_gpus) } else { Build::new(false).folder() }
}

/// Whether a folder has a libtorch.
pub(crate) fn is_complete(folder: &Path) -> bool {
    folder.join("build-version").is_file()
}

#[cfg(feature = "download")]
pub(crate) use download::run;

#[cfg(feature = "download")]
mod download {
    use std::path::Path;
    use std::process::ExitCode;

    use serde_json::json;
    use trainer_files::{
        Lock, create_folders, create_unfinished_folder, entries, folders_left_unfinished, is_folder,
        remove_empty_folder, remove_file, rename, sync, write,
    };

    use super::{Build, cache, fetch, is_complete, unpack};
    use crate::output::{Failure, Output};

    /// Downloads libtorch into the cache, unless it is there.
    pub(crate) fn run(is_cuda: bool, index: &str, out: &mut Output) -> Result<ExitCode, Failure> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(Failure::new(
                "builds exist only for Linux on x86-64: use PyTorch for Python, with LIBTORCH_USE_PYTORCH=1, or the feature \
                 `download-libtorch` of the library",
            ));
        }
        let build = Build::new(is_cuda);
        let (cache, folder) = (cache()?, build.folder()?);
        if !is_complete(&folder) {
            get(&build, &cache, &folder, index, out)?;
        }
        if out.is_json() {
            out.object(&json!({ "libtorch": folder, "version": build.version }))?;
        } else {
            let text = format!(
                "{}: ready. `trainer new` uses it; elsewhere, `export LIBTORCH={0}`",
                folder.display()
            );
            out.line(text)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Downloads a build into a folder, which is not there or complete.
    pub(super) fn get(
        build: &Build,
        cache: &Path,
        folder: &Path,
        index: &str,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let wheels = cache.join("wheels");
        create_folders(&wheels)?;
        let _lock = Lock::acquire_or(cache, "another `trainer libtorch` is running: wait until it ends")?;
        if is_complete(folder) {
            return Ok(()); // it has ended meanwhile
        }
        for (left, _claim) in folders_left_unfinished(folder)? {
            remove_tree(&left)?; // of a process that was killed
        }
        let free = rustix::fs::statvfs(cache)
            .map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize));
        let needed = build.needed + build.downloaded;
        if free < needed {
            return Err(Failure::new(format!(
                "{}: the download and unpacking take up to {:.1} GB, but {:.1} GB are free: free some space, or set \
                 XDG_CACHE_HOME to another disk",
                cache.display(),
                needed as f64 / 1e9,
                free as f64 / 1e9
            )));
        }
        // All wheels first, so that an interrupted download continues where it was.
        let mut paths = Vec::new();
        if !out.is_json() {
            let what = if build.is_cuda { "the CPU and NVIDIA GPUs" } else { "the CPU" };
            let size = build.downloaded as f64 / 1e9;
            out.line(format!("downloading libtorch {} for {what} ({size:.1} GB, once)", build.version))?;
        }
        for wheel in &build.wheels {
            if !out.is_json() {
                out.line(format!("  {}", wheel.name))?;
            }
            paths.push(fetch::fetch(wheel, &wheels, index)?);
        }
        let (unfinished, _claim) = create_unfinished_folder(folder)?;
        let filled = fill(build, &paths, &unfinished).and_then(|()| Ok(rename(&unfinished, folder)?));
        if let Err(failure) = filled {
            let _ = remove_tree(&unfinished);
            return Err(failure);
        }
        sync(cache)?;
        for path in paths {
            remove_file(&path)?;
        }
        Ok(())
    }

    /// Writes the files of a build into a folder.
    fn fill(build: &Build, wheels: &[std::path::PathBuf], folder: &Path) -> Result<(), Failure> {
        create_folders(&folder.join("lib"))?;
        for wheel in wheels {
            unpack::unpack(wheel, folder, build)?;
        }
        let missing = |name: &&String| !folder.join("lib").join(name).is_file();
        let missing: Vec<_> = build.libraries.iter().filter(missing).map(String::as_str).collect();
        if !missing.is_empty() || !folder.join("include/ATen/ATen.h").is_file() {
            let what = if missing.is_empty() { "the headers".to_owned() } else { missing.join(", ") };
            return Err(Failure::new(format!("the wheels do not contain {what}; please report this")));
        }
        // torch-sys always passes -ltorch; nothing needs a library of that name at run time.
        write(&folder.join("lib/libtorch.so"), b"INPUT(libtorch_cpu.so)\n")?;
        Ok(write(&folder.join("build-version"), format!("{}\n", build.version).as_bytes())?)
    }

    /// Removes a folder that this command has made. Links are not followed.
    pub(super) fn remove_tree(folder: &Path) -> Result<(), Failure> {
        for path in entries(folder)? {
            if is_folder(&path) {
                remove_tree(&path)?;
            } else {
                remove_file(&path)?;
            }
        }
        Ok(remove_empty_folder(folder)?)
    }
}

#[cfg(all(test, feature = "download"))]
mod tests;
