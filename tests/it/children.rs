//! Tests that run other tests of this binary in child processes.

use std::fs;
use std::path::Path;
use std::process::Command;

use trainer::distributed::Launch;

use crate::support::{CHILD, LAUNCHERS, is_set_by_launcher};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// Returns the variables of launchers that the trainer reads: the texts in `launcher_variables.rs`
/// that look like one.
fn variables_in_launch() -> Vec<String> {
    let source = read("trainer/src/distributed/launcher_variables.rs");
    let (code, _) = source.split_once("#[cfg(test)]").unwrap();
    let is_variable = |text: &&str| {
        let is_upper = text.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
        is_upper && (text.contains('_') || *text == "RANK")
    };
    let texts = code.split('"').skip(1).step_by(2).filter(is_variable);
    texts.filter(|text| !text.starts_with("TRAINER_")).map(str::to_owned).collect()
}

#[test]
#[ignore = "run by the next test as if it were in a job"]
fn in_a_job() {
    let left: Vec<_> = std::env::vars_os().map(|(name, _)| name.into_string().unwrap()).collect();
    let left: Vec<_> = left.into_iter().filter(|name| is_set_by_launcher(name)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(Launch::from_env().unwrap(), None);
}

#[test]
fn tests_inside_a_job_do_not_become_its_ranks() {
    let variables = variables_in_launch();
    assert!(variables.len() > 20, "{variables:?}");
    let unknown: Vec<_> = variables.iter().filter(|name| !is_set_by_launcher(name)).collect();
    assert!(unknown.is_empty(), "add {unknown:?} to `LAUNCHERS` in support.rs and to the Makefile");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "children::in_a_job", "--ignored", "--nocapture"]).env_remove(CHILD);
    let output = program.envs(variables.iter().map(|name| (name, "2"))).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn the_makefile_unsets_launcher_variables_for_all_tests() {
    let makefile = read("Makefile");
    let start = makefile.split_once("unexport $(filter ").unwrap().1;
    let listed: Vec<_> =
        start.split_once(',').unwrap().0.split(' ').map(|name| name.replace('%', "")).collect();
    assert_eq!(listed, LAUNCHERS);
}

/// A program that is told to run a test that does not exist runs none, and succeeds.
#[test]
fn every_test_that_a_child_process_runs_exists() {
    let listed = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = Vec::new();
    for folder in ["it", "it/interop", "it/metrics", "interop"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(text) = fs::read_to_string(&path) else { continue };
            for before in ["child_process(\"", "\"--exact\", \""] {
                let names = text.split(before).skip(1).filter_map(|rest| rest.split('"').next());
                let names = names.filter(|name| name.contains("::"));
                named.extend(names.map(|name| (name.to_owned(), path.clone())));
            }
        }
    }
    assert!(named.len() > 15, "{named:?}");
    let is_listed = |name: &str| listed.lines().any(|line| line == format!("{name}: test"));
    let missing: Vec<_> = named.iter().filter(|(name, _)| !is_listed(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
