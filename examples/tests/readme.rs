//! The README shows a part of the demo's output.

use std::process::Command;

#[test]
fn the_readme_shows_an_excerpt_of_the_demo_output() {
    let demo =
        Command::new(env!("CARGO_BIN_EXE_digits")).env("TRAINER_DESCRIBE", "terminal").output().unwrap();
    assert!(demo.status.success(), "{demo:?}");
    let table = String::from_utf8(demo.stdout).unwrap();
    let readme = include_str!("../../README.md");
    let blocks = readme.split("```text\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    let shown = blocks.into_iter().find(|block| block.contains("GradientMonitor")).unwrap();
    assert!(table.contains(shown), "README.md needs a part of:\n{table}");
    assert!(shown.lines().count() >= 8, "README.md shows only:\n{shown}");
}
