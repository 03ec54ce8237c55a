//! `trainer sweep` with shell scripts as programs.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "tests write the folders that the command reads")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::{Scratch, measure, objects, run_file, text};
use trainer_formats::run::{Goal, Status};
use trainer_formats::sweep::{SweepFile, TrialState};

/// Creates the program `./program`, which appends its arguments to `calls` and runs `script`.
fn program(name: &str, script: &str) -> Scratch {
    let scratch = Scratch::new(name);
    let mut file = run_file(60, 0.1, 8, Status::Finished);
    measure(&mut file, "valid/loss", Some(Goal::Minimize), &[0.5, 0.25]);
    scratch.write("finished.json", &file.to_text().unwrap());
    let script = format!(
        "#!/bin/sh\nmkdir -p \"$TRAINER_RUN_FOLDER\"\necho \"$(basename \"$TRAINER_RUN_FOLDER\") $*\" >> calls\n{script}\n"
    );
    scratch.write("program", &script);
    fs::set_permissions(scratch.0.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    scratch
}

const FINISHES: &str = "cp finished.json \"$TRAINER_RUN_FOLDER/run.json\"";
const GRID: &str = "[parameters]\nlr = [0.1, 1e-3]\nkind = ['a', 'b c']\n";
const SWEEP: [&str; 4] = ["sweep", "my.toml", "--", "./program"];

impl Scratch {
    /// Returns the calls of the program, in the order of the trials.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.0.join("calls")).unwrap_or_default();
        let mut calls: Vec<String> = calls.lines().map(str::to_owned).collect();
        calls.sort();
        calls
    }

    fn states(&self) -> Vec<TrialState> {
        let file = SweepFile::load(&self.0.join("runs/my")).unwrap().unwrap();
        file.trials.iter().map(|trial| trial.state).collect()
    }

    /// Waits until a file exists.
    fn wait_for(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        path
    }
}

#[test]
fn a_grid_runs_each_combination_and_does_not_repeat_finished_trials() {
    let scratch = program("grid", FINISHES);
    scratch.write("my.toml", &format!("jobs = 2\n{GRID}"));
    let arguments = [&SWEEP[..], &["--fixed"]].concat();
    let output = scratch.command(80, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = [
        "0001 --fixed --lr=0.1 --kind=a",
        "0002 --fixed --lr=0.1 --kind=b c",
        "0003 --fixed --lr=0.001 --kind=a",
        "0004 --fixed --lr=0.001 --kind=b c",
    ];
    assert_eq!(scratch.calls(), expected);
    let printed = text(&output.stdout);
    assert!(printed.starts_with("4 trials in runs/my\ntrial 1/4 started   lr 0.1, kind a\n"), "{printed}");
    assert!(printed.contains("finished  after ") && printed.contains("s  valid/loss 0.2500\n"), "{printed}");
    assert!(printed.ends_with("4 finished\ntrainer runs runs/my --sort valid/loss\n"), "{printed}");

    let again = scratch.command(80, &arguments).output().unwrap();
    assert!(text(&again.stdout).starts_with("4 trials in runs/my, 4 of them finished earlier\n4 finished\n"));
    assert_eq!(scratch.calls().len(), 4);
    // The trials are ordinary runs.
    assert_eq!(objects(&scratch.print(80, &["runs", "runs/my", "--json"])).len(), 4);
}

#[test]
fn any_value_reaches_the_program_and_printed_commands_can_be_pasted_into_a_shell() {
    // Prints each argument in brackets, and refuses one that is not an option with its value.
    let script = format!(
        "for word in \"$@\"; do case \"$word\" in --*=*) printf '[%s]' \"$word\" >> words;; *) exit 9;; esac; done\n\
         echo >> words\n{FINISHES}"
    );
    let scratch = program("values", &script);
    let texts = [
        r#""-x""#,
        r#""--help""#,
        r#""it's""#,
        r#""a b""#,
        r#""""#,
        r#""$HOME `id` \\ * # ; !""#,
        r#""=""#,
        r#""ü\ttab""#,
    ];
    scratch.write(
        "my.toml",
        &format!("[parameters]\nshift = [-1, -0.5, -1e-9]\ntext = [{}]\n", texts.join(", ")),
    );
    let output = scratch.command(80, &SWEEP).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stdout));
    let passed = fs::read_to_string(scratch.0.join("words")).unwrap();
    assert!(
        passed.contains("[--shift=-1e-9][--text=it's]\n")
            && passed.contains("[--text=$HOME `id` \\ * # ; !]"),
        "{passed}"
    );
    assert_eq!(passed.lines().count(), 3 * texts.len());

    fs::remove_file(scratch.0.join("words")).unwrap();
    let dry = scratch.print(80, &["sweep", "my.toml", "--dry-run", "--", "./program"]);
    for line in dry.lines() {
        let mut shell = std::process::Command::new("sh");
        let status = shell
            .args(["-c", line])
            .current_dir(&scratch.0)
            .env("TRAINER_RUN_FOLDER", scratch.0.join("pasted"))
            .status();
        assert!(status.unwrap().success(), "{line}");
    }
    assert_eq!(fs::read_to_string(scratch.0.join("words")).unwrap(), passed);
}

#[test]
fn failed_trials_are_reported_and_started_again_without_stopping_the_others() {
    let script = format!(
        "case \"$*\" in *'lr=0.1'*'kind=a'*) echo 'Error: bad rate' >&2; exit 3;; *'lr=0.1'*) exit 0;; esac\n{FINISHES}"
    );
    let scratch = program("failed", &script);
    scratch.write("my.toml", GRID);
    let output = scratch.command(80, &SWEEP).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stdout);
    assert!(
        printed.contains("trial 1/4 failed    after ")
            && printed.contains("s: exit status: 3: Error: bad rate\n"),
        "{printed}"
    );
    assert!(printed.contains("wrote no run into runs/my/0002: give its trainer a run folder"), "{printed}");
    assert!(printed.contains("2 finished, 2 failed"), "{printed}");
    use TrialState::{Failed, Finished};
    assert_eq!(scratch.states(), [Failed, Failed, Finished, Finished]);
    assert_eq!(fs::read_to_string(scratch.0.join("runs/my/0001.log")).unwrap(), "Error: bad rate\n");

    let events =
        objects(&text(&scratch.command(80, &[&["--json"], &SWEEP[..]].concat()).output().unwrap().stdout));
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["started", "failed", "started", "failed", "ended"]);
    assert_eq!(events[1]["values"], json!({ "lr": 0.1, "kind": "a" }));
    assert_eq!(events[4]["trials"], json!({ "finished": 2, "failed": 2, "stopped": 0, "waiting": 0 }));
    assert_eq!(scratch.calls().len(), 6);
}

#[test]
fn a_changed_sweep_is_refused_with_a_list_of_the_changes() {
    let scratch = program("changed", FINISHES);
    scratch.write("my.toml", GRID);
    // No trial has begun, because the program does not exist, so the sweep can still change.
    let error = scratch.fail(&["sweep", "my.toml", "--", "./progam"]);
    assert!(error.starts_with("error: cannot start `./progam`: "), "{error}");
    assert!(scratch.command(80, &SWEEP).output().unwrap().status.success());
    scratch.write("my.toml", &GRID.replace("0.1", "0.2").replace("kind", "form"));
    let error = scratch.fail(&[&SWEEP[..], &["--more"]].concat());
    for line in [
        "error: my.toml: the sweep in runs/my was started with a different file or program; undo the changes, or set another `folder`:",
        "- parameters.kind was [\"a\",\"b c\"] and has been removed",
        "- parameters.form is new: [\"a\",\"b c\"]",
        "- parameters.lr was [0.1,0.001] and is now [0.2,0.001]",
        "- program was [\"./program\"] and is now [\"./program\",\"--more\"]",
    ] {
        assert!(error.contains(line), "{error}");
    }
    // Settings that only affect how the trials are executed may change.
    scratch.write("my.toml", &format!("jobs = 3\nbudget = '1h'\n{GRID}"));
    assert!(scratch.command(80, &SWEEP).output().unwrap().status.success());
    scratch.write("my.toml", "jbos = 3\n[parameters]\nlr = [1]\n");
    assert_eq!(scratch.fail(&SWEEP), "error: my.toml:1:1: unknown key `jbos`; did you mean `jobs`?\n");
    fs::remove_file(scratch.0.join("my.toml")).unwrap();
    assert!(scratch.fail(&SWEEP).starts_with("error: my.toml: "));
}

#[test]
fn trials_can_be_added_to_a_random_search() {
    let scratch = program("random", FINISHES);
    let file = |trials: usize| {
        let parameters = "[parameters]\nlr = { log_uniform = [1e-4, 1e-1] }\n";
        scratch.write(
            "my.toml",
            &format!("trials = {trials}\nseed = 2\narguments = ['lr={{value}}']\n{parameters}"),
        );
        assert!(scratch.command(80, &SWEEP).output().unwrap().status.success());
        scratch.calls()
    };
    let few = file(2);
    let many = file(5);
    assert_eq!((few.len(), many.len(), &many[..2]), (2, 5, &few[..]));
    assert!(many[4].starts_with("0005 lr=0.0"), "{many:?}");
    assert_eq!(file(1), many);
    assert_eq!(scratch.states(), [TrialState::Finished; 5]);
    let dry = scratch.print(80, &["sweep", "my.toml", "--dry-run", "--", "./program"]);
    assert_eq!(format!("0001 {dry}"), format!("{}\n", many[0].replace("0001 ", "0001 ./program ")));
}

/// Waits for a signal, records it, and exits with an error, like a cancelled run.
const WAITS: &str = "trap 'echo caught >> signals; exit 130' INT TERM\n: > \"$TRAINER_RUN_FOLDER/ready\"\n\
                     while :; do sleep 0.02; done";

#[test]
fn a_signal_reaches_the_trials_and_the_same_command_continues_the_sweep() {
    for signal in [Signal::INT, Signal::TERM] {
        let scratch = program(&format!("signal-{}", signal.as_raw()), WAITS);
        scratch.write("my.toml", &format!("jobs = 2\n{GRID}"));
        let mut sweep = scratch.command(80, &SWEEP);
        let sweep = sweep.stdout(Stdio::piped()).spawn().unwrap();
        scratch.wait_for("runs/my/0001/ready");
        scratch.wait_for("runs/my/0002/ready");
        // Another sweep in the same folder would start the same trials.
        assert!(scratch.fail(&SWEEP).contains("runs/my: another sweep is running in this folder"));
        kill_process(Pid::from_child(&sweep), signal).unwrap();
        let output = sweep.wait_with_output().unwrap();
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(128 + signal.as_raw()), "{printed}");
        assert!(printed.contains("cancelled: ending 2 running trials"), "{printed}");
        assert!(printed.contains("2 stopped, 2 waiting\nrun the same command to continue\n"), "{printed}");
        assert_eq!(fs::read_to_string(scratch.0.join("signals")).unwrap(), "caught\ncaught\n");

        let script = fs::read_to_string(scratch.0.join("program")).unwrap();
        scratch.write("program", &script.replace(WAITS, FINISHES));
        assert!(scratch.command(80, &SWEEP).output().unwrap().status.success());
        assert_eq!(scratch.states(), [TrialState::Finished; 4]);
        assert_eq!(scratch.calls().iter().filter(|call| call.starts_with("0001")).count(), 2);
    }
}

#[test]
fn no_trial_runs_after_the_budget_is_used_up() {
    let scratch = program("budget", WAITS);
    scratch.write("my.toml", &format!("budget = '500ms'\n{GRID}"));
    let output = scratch.command(80, &SWEEP).output().unwrap();
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("the budget is used up: ending 1 running trial, "), "{printed}");
    assert!(printed.contains("1 stopped, 3 waiting\nrun the same command to continue\n"), "{printed}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_trial_that_outlives_its_sweep_is_not_started_twice() {
    use trainer_formats::run::Process;

    let scratch = program("orphan", FINISHES);
    scratch.write("my.toml", GRID);
    let mut running = run_file(60, 0.1, 8, Status::Running);
    running.process = Some(Process::current());
    scratch.run("runs/my/0002", &running);
    let error = scratch.fail(&SWEEP);
    assert!(error.contains("runs/my/0002: trial 2 is still running, as process "), "{error}");
    assert_eq!(scratch.calls(), Vec::<String>::new());
}
