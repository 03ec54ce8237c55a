//! Comparisons with other programs, run by `make interop`. Ignored in other runs.
//!
//! Each comparison is a test here and a script in `tests/interop/`, whose README explains how to
//! add one.

#[cfg(target_os = "linux")]
mod ddp;
mod files;
mod kernels;
mod loggers;
mod lora;
pub(crate) mod methods;
mod metrics;
mod migration;
mod models;
mod module_backward;
mod resnet18;
#[cfg(target_os = "linux")]
mod torchrun;

use std::path::Path;
use std::process::Command;

/// Runs a script of `tests/interop/` with a folder as its argument, and panics with its output if
/// it fails. `TRAINER_INTEROP` is the Python interpreter of the virtual environment.
pub(crate) fn run_script(name: &str, folder: &Path) {
    let python = std::env::var_os("TRAINER_INTEROP").expect("`make interop` sets TRAINER_INTEROP");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop").join(name);
    // Python must load its own libtorch, not that of this program.
    let output = Command::new(python).arg(script).arg(folder).env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert!(
        output.status.success(),
        "{name}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
