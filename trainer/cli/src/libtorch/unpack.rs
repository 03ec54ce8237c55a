//! The files of a wheel that a build of libtorch consists of.

use std::io::Read;
use std::path::Path;

use trainer_files::{Links, create, create_folders, folder_of, in_file, open};
use zip::ZipArchive;

use super::Build;
use crate::output::Failure;

/// The folder of CUDA's C++ library, whose headers CUDA's other headers include without it.
const CCCL: &str = "nvidia/cu13/include/cccl/";

/// Returns where a file of a wheel goes, relative to the folder of libtorch; `None` if it is not
/// needed.
fn destination(name: &str, build: &Build) -> Option<String> {
    let base = name.rsplit('/').next().filter(|base| !base.is_empty())?;
    if name.split('/').any(|part| part == "..") {
        return None;
    }
    if name.starts_with("torch/include/") {
        return Some(name["torch/".len()..].to_owned());
    }
    if name.contains("/lib/") && build.libraries.iter().any(|library| library == base) {
        return Some(format!("lib/{base}"));
    }
    // Beside libtorch's own headers, so that no other folder has to be given to the compiler.
    let of_cuda = build.is_cuda && name.starts_with("nvidia/");
    let header = name.strip_prefix(CCCL).or_else(|| name.split_once("/include/").map(|(_, header)| header));
    header.filter(|_| of_cuda).map(|header| format!("include/{header}"))
}

/// Unpacks the files of a wheel that are needed.
pub(super) fn unpack(wheel: &Path, folder: &Path, build: &Build) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::from(in_file(wheel, error.to_string()));
    let (file, _) = open(wheel, Links::Refuse)?;
    let mut archive = ZipArchive::new(file).map_err(|error| failed(&error))?;
    let mut buffer = vec![0; 1 << 20];
    for nth in 0..archive.len() {
        let mut source = archive.by_index(nth).map_err(|error| failed(&error))?;
        let Some(relative) = destination(source.name(), build) else { continue };
        let path = folder.join(relative);
        create_folders(folder_of(&path))?;
        let mut file = create(&path)?;
        loop {
            let read = source.read(&mut buffer).map_err(|error| failed(&error))?;
            if read == 0 {
                break;
            }
            file.write(&buffer[..read])?;
        }
    }
    Ok(())
}
