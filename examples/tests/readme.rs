//! The README shows what the demo prints.

use std::process::Command;

#[test]
fn the_readme_has_the_table_of_the_demo() {
    let demo =
        Command::new(env!("CARGO_BIN_EXE_digits")).env("TRAINER_DESCRIBE", "terminal").output().unwrap();
    assert!(demo.status.success(), "{demo:?}");
    let table = String::from_utf8(demo.stdout).unwrap();
    let readme = include_str!("../../README.md");
    assert!(table.contains("GradientMonitor") && readme.contains(&table), "README.md needs:\n{table}");
}
