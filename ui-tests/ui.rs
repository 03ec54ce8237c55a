//! Compares the compiler's messages for each file in `fail/` with the snapshot next to it. The
//! files in `pass/` are examples of this package and must compile.

use std::io::Write;
use std::process::Command;

/// The toolchain whose messages the snapshots contain: `rust-version` in Cargo.toml.
const SNAPSHOTS: &str = concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"));

#[test]
fn compiler_messages_match_the_snapshots() {
    let rustc =
        Command::new("rustc").arg("--version").output().expect("cargo ran, so rustc is installed").stdout;
    if String::from_utf8_lossy(&rustc).starts_with(SNAPSHOTS) {
        // TRYBUILD=overwrite updates the snapshots.
        trybuild::TestCases::new().compile_fail("fail/*/*.rs");
    } else {
        // Not `eprintln!`, which the test harness captures.
        let _ = writeln!(
            std::io::stderr(),
            "ui: the snapshots are from {SNAPSHOTS}; the messages of this toolchain are not compared"
        );
    }
}
