//! Compiles each file in `pass/`, and compares what rustc says to those in `fail/` with the snapshot beside it.

use std::io::Write;
use std::process::Command;

/// The toolchain whose messages the snapshots hold: `rust-version` in Cargo.toml.
const SNAPSHOTS: &str = concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"));

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("pass/*.rs");
    let rustc = Command::new("rustc").arg("--version").output().expect("cargo ran, so rustc is there").stdout;
    if String::from_utf8_lossy(&rustc).starts_with(SNAPSHOTS) {
        cases.compile_fail("fail/*/*.rs"); // TRYBUILD=overwrite writes the snapshots anew
    } else {
        // Not `eprintln!`, which the test harness keeps to itself.
        let _ = writeln!(
            std::io::stderr(),
            "ui: {SNAPSHOTS} wrote the snapshots; this toolchain's messages are not compared"
        );
    }
}
