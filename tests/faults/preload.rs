//! The library that injects faults into child processes: `preload.cpp`.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::child_process;

/// Compiles the library when it is first needed, and returns its path.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("faults/preload.cpp");
        let name = format!("trainer-faults-{}.so", std::process::id());
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let compiler = env::var_os("CXX").unwrap_or_else(|| OsString::from("c++"));
        let mut command = Command::new(compiler);
        command.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
        assert!(command.status().unwrap().success(), "{command:?}");
        library
    })
}

/// Returns a command that runs one ignored test of this program in a separate process, with the
/// library.
pub(crate) fn faulty_process(test: &str) -> Command {
    let mut command = child_process(test);
    command.env("LD_PRELOAD", library());
    command
}

/// Returns a command like [`faulty_process`] that counts the changes to the files in a folder.
pub(crate) fn watched_process(test: &str, folder: &Path) -> Command {
    let mut command = faulty_process(test);
    command.env("FAULTS_FOLDER", folder.canonicalize().unwrap());
    command
}

fn control(command: &str) -> ErrorKind {
    File::open(format!("/trainer-faults/{command}")).unwrap_err().kind()
}

/// Lets the `nth` allocation of more than 1 MB from now on fail, counted from 1. None fails for 0.
pub(crate) fn fail_allocation(nth: u64) {
    control(&format!("fail/{nth}"));
}

/// Lets one kind of operation on the files whose path contains `path` fail with an error of the
/// operating system: from the operation number `from` on, counted from 1, `count` of them, or all
/// if `count` is 0. The kinds are `create`, `open`, `read`, `write`, `sync`, `rename`, `remove`,
/// `truncate` and `lock`.
pub(crate) fn refuse(kind: &str, errno: i32, [from, count]: [u64; 2], path: &str) {
    control(&format!("refuse/{kind}/{errno}/{from}/{count}/{path}"));
}

/// Lets nothing fail from now on. Returns whether something has failed.
pub(crate) fn end_failures() -> bool {
    control("end") == ErrorKind::AlreadyExists
}

/// Adds a mark to the log of this process, if there is one.
pub(crate) fn mark(text: &str) {
    control(&format!("mark/{text}"));
}
