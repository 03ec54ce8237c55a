//! What the examples of `trainer/guide/recipes.md` cannot show in a process of their own. All
//! others assert their effect in hidden lines.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use trainer::loggers::JsonLines;
use trainer::testing::Harness;

use crate::support::{child_process, scratch};

#[test]
#[ignore = "run by the next test"]
fn trains_without_progress() {
    let outcome = Harness::small().epochs(3).run().unwrap();
    assert_eq!(outcome.summary().counters.optimizer_steps, 12);
}

#[test]
fn a_trainer_without_progress_prints_nothing() {
    let output = child_process("recipes::trains_without_progress").output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    // Only the lines of the test runner.
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines.len() == 3 && lines[0].starts_with("running 1 test"), "{text}");
}

#[test]
#[ignore = "run by the next test, from Python"]
fn program_for_python() {
    let harness = Harness::small().epochs(2).hook(JsonLines::new());
    let outcome = harness.configure(|builder| builder.run_folder("runs/first")).run().unwrap();
    fs::write("loss", outcome.summary().metrics["train/loss"].to_string()).unwrap();
}

#[test]
fn python_reads_the_losses_of_a_program_that_it_started() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/guide/recipes.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, script) = page.split_once("```python\n").unwrap();
    let (script, _) = script.split_once("```").unwrap();

    let folder = scratch("recipe-for-python");
    let program = folder.join("target/release/my-program");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    let test = std::env::current_exe().unwrap();
    let command =
        format!("#!/bin/sh\nexec '{}' --exact recipes::program_for_python --ignored >&2\n", test.display());
    fs::write(&program, command).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new("python3").args(["-c", script]).current_dir(&folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: f64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let trained: f64 = fs::read_to_string(folder.join("loss")).unwrap().parse().unwrap();
    assert_eq!(printed, trained);
    fs::remove_dir_all(folder).unwrap();
}
