//! `trainer diff` on tapes that are written by hand.

#![allow(clippy::disallowed_methods, reason = "tests write the files that the command reads")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value as Json;
use trainer_formats::run::RunFile;
use trainer_formats::tape::{Entry, EntryKind, Level, MAGIC, Position, Process, Record};

/// Writes the tape of a run that has the state after every 10 batches, and a `run.json` whose
/// command line leaves a mark.
#[cfg(unix)]
fn coarse(folder: &str, hash: u64, mark: &std::path::Path) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("trainer-cli-diff-{folder}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let interval = Entry {
        kind: EntryKind::Interval,
        name: String::new(),
        owner: String::new(),
        moment: String::new(),
        place: String::new(),
        package: String::new(),
    };
    let process =
        Process { rank: (0, 1), level: Level::Steps(10), batches: 0..u64::MAX, ..Process::default() };
    let records = [
        Record::Process(process),
        Record::Name("`fc1.bias`".to_owned()),
        Record::Entry(interval),
        Record::At(Position { batches_seen: 9, phase: "train".to_owned(), ..Position::default() }),
        Record::Changed(0, vec![(0, hash)]),
    ];
    let mut bytes = MAGIC.to_vec();
    records.iter().for_each(|record| bytes.extend(rmp_serde::to_vec_named(record).unwrap()));
    fs::write(folder.join("run.tape"), bytes).unwrap();
    let mut file = RunFile::new("fit", "2026-11-21T10:00:00Z".to_owned());
    file.command_line = Some(["touch", &mark.display().to_string()].map(str::to_owned).to_vec());
    file.working_folder = Some("/".to_owned());
    fs::write(folder.join("run.json"), file.to_text().unwrap()).unwrap();
    folder
}

#[test]
#[cfg(unix)]
fn a_replay_starts_only_the_program_that_the_user_names() {
    let mark = std::env::temp_dir().join(format!("trainer-cli-diff-mark-{}", std::process::id()));
    let [one, other] = [coarse("coarse", 1, &mark), coarse("coarser", 2, &mark)];
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        let output = command.arg("diff").args([&one, &other]).args(more).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    for more in [&["--replay"][..], &["--replay", "--second-program", "true"]] {
        let (code, printed, error) = run(more);
        assert_eq!((code, &*printed), (Some(2), ""), "{error}");
        assert!(error.contains("no program was given: add `-- PROGRAM ARGUMENTS`"), "{error}");
        assert!(error.contains(&format!("was started as: touch {}", mark.display())), "{error}");
    }
    let (code, printed, error) = run(&["--replay", "--", "sh", "-c", "echo my program >&2; exit 3"]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(error.contains("my program"), "{error}");
    // The program repeats both runs, and `--second-program` only the second one.
    let write = format!("cp {}/run.tape \"$TRAINER_REPLAY_TAPE\"", one.display());
    let (code, printed, error) = run(&["--replay", "--second-program", "true", "--", "sh", "-c", &write]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("of ") && error.contains("`true` cannot repeat"), "{printed}{error}");
    assert!(!mark.exists(), "the command line of run.json was started");
    let (code, ..) = run(&["--", "true"]);
    assert_eq!(code, Some(2), "a program without `--replay`");
    [one, other].iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
}

/// Writes the tape of a run in which a hook produces a value with this hash.
fn tape(folder: &str, hash: u64) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("trainer-cli-diff-{folder}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let hook = Entry {
        kind: EntryKind::Hook,
        name: "my_hooks::clamp".to_owned(),
        owner: "my_hooks::clamp".to_owned(),
        moment: "after_backward".to_owned(),
        place: "src/lib.rs:3".to_owned(),
        package: "my_hooks 0.1.0".to_owned(),
    };
    let records = [
        Record::Process(Process { rank: (0, 1), ..Process::default() }),
        Record::Name("the gradient of `fc1.bias`".to_owned()),
        Record::Entry(hook),
        Record::At(Position { batches_seen: 7, phase: "train".to_owned(), ..Position::default() }),
        Record::Changed(0, vec![(0, hash)]),
    ];
    let mut bytes = MAGIC.to_vec();
    records.iter().for_each(|record| bytes.extend(rmp_serde::to_vec_named(record).unwrap()));
    fs::write(folder.join("run.tape"), bytes).unwrap();
    folder
}

fn diff(arguments: &[&PathBuf], is_json: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.arg("diff").args(arguments);
    if is_json {
        command.arg("--json");
    }
    command.output().unwrap()
}

#[test]
fn a_difference_is_printed_as_text_or_as_json() {
    let [one, other] = [tape("one", 1), tape("other", 2)];
    let output = diff(&[&one, &other], false);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("train batch 7 (epoch 0): hook `my_hooks::clamp` at after_backward"), "{text}");

    let output = diff(&[&one, &other], true);
    let object: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &object["equal"]), (Some(1), &Json::Bool(false)));
    assert_eq!(object["text"], text.trim_end());
    let first = &object["difference"]["first"];
    assert_eq!((&first["kind"], &first["entry"]["name"]), (&"values".into(), &"my_hooks::clamp".into()));
    assert_eq!(
        (&first["position"]["batches_seen"], &first["values"][0]),
        (&7.into(), &"the gradient of `fc1.bias`".into())
    );

    let output = diff(&[&one, &one], true);
    let object: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &object["equal"]), (Some(0), &Json::Bool(true)));
    assert_eq!(diff(&[&one, &one.join("absent")], false).status.code(), Some(2));
    [one, other].iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
}
