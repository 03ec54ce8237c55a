//! Compares what rustc says to each file in `fail/` with the snapshot beside it. Those in `pass/` are
//! examples of this package.

use std::io::Write;
use std::process::Command;

/// The toolchain whose messages the snapshots hold: `rust-version` in Cargo.toml.
const SNAPSHOTS: &str = concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"));

#[test]
fn ui() {
    let rustc = Command::new("rustc").arg("--version").output().expect("cargo ran, so rustc is there").stdout;
    if String::from_utf8_lossy(&rustc).starts_with(SNAPSHOTS) {
        trybuild::TestCases::new().compile_fail("fail/*/*.rs"); // TRYBUILD=overwrite writes the snapshots anew
    } else {
        // Not `eprintln!`, which the test harness keeps to itself.
        let _ = writeln!(
            std::io::stderr(),
            "ui: {SNAPSHOTS} wrote the snapshots; this toolchain's messages are not compared"
        );
    }
}
