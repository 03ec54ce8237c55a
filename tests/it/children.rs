//! Tests that run other tests of this binary in child processes.

use std::fs;
use std::path::Path;
use std::process::Command;

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
