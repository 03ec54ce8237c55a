//! What the README shows is what its programs do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const README: &str = include_str!("../../README.md");

/// Returns the blocks of code of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    README.split(&begin).skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect()
}

#[test]
fn the_readme_shows_an_excerpt_of_the_demo_output() {
    let demo =
        Command::new(env!("CARGO_BIN_EXE_digits")).env("TRAINER_DESCRIBE", "terminal").output().unwrap();
    assert!(demo.status.success(), "{demo:?}");
    let table = String::from_utf8(demo.stdout).unwrap();
    let shown = blocks("text").into_iter().find(|block| block.contains("GradientMonitor")).unwrap();
    assert!(table.contains(shown), "README.md needs a part of:\n{table}");
    assert!(shown.lines().count() >= 8, "README.md shows only:\n{shown}");
}

#[test]
fn the_readme_shows_the_first_example() {
    let program = include_str!("../src/bin/first.rs");
    let shown = blocks("rust,no_run")[0];
    assert!(program.ends_with(&format!("\n\n{shown}\n")), "first.rs needs:\n{shown}");
}

#[test]
fn the_first_page_shows_the_example_of_the_spirals() {
    let [program, page] =
        [include_str!("../src/bin/spirals.rs"), include_str!("../../trainer/guide/getting_started.md")];
    let lines = |text: &'static str| text.lines().map(str::trim).filter(|line| !line.is_empty());
    let missing: Vec<_> = lines(program)
        .filter(|line| {
            !line.starts_with("//!")
                && !line.starts_with("use ")
                && !lines(page).any(|shown| shown.starts_with(line))
        })
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// Runs the first example in an empty folder, and kills it when it has printed the line of an
/// epoch. Returns whether it was killed before it ended.
fn killed(folder: &Path, epoch: u64) -> bool {
    let mut child = Command::new(env!("CARGO_BIN_EXE_first"))
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = format!("epoch {epoch}/5");
    assert!(lines.into_iter().any(|text| text.contains(&line)), "no line begins with {line}");
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

fn first(folder: &Path) -> (String, Vec<u8>) {
    let output = Command::new(env!("CARGO_BIN_EXE_first")).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (text, fs::read(folder.join("weights.safetensors")).unwrap())
}

#[test]
fn the_first_example_resumes_exactly_and_its_hook_runs() {
    let empty = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (text, expected) = first(empty().path());
    assert!(text.contains("train/gradient_norm"), "{text}");
    for epoch in 2..=4 {
        // The checkpoint of the epoch before is complete. The signal may arrive after the end.
        let has_resumed = (0..20).any(|_| {
            let folder = empty();
            killed(folder.path(), epoch) && {
                let (text, weights) = first(folder.path());
                assert!(weights == expected, "{text}");
                text.contains("resumed from")
            }
        });
        assert!(has_resumed, "none of the programs was killed in time");
    }
}
