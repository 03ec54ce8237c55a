//! `live.json`, which says what a run is doing, and the hook that shows it.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use trainer::hooks::{Checkpoint, Dashboard, HyperparameterMonitor, Progress};
use trainer::loggers::Csv;
use trainer::prelude::*;
use trainer::{OnSignal, TrainerBuilder};
use trainer_formats::run::Live;

use crate::model::{self, message, rows};
use crate::support::{child_process, scratch};

fn builder() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    Trainer::builder(model::named_task()).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

fn live(folder: &Path) -> Live {
    Live::in_folder(folder).unwrap().expect("the run wrote it")
}

/// Logs a value in each batch.
struct Logging;

#[hook]
impl Logging {
    fn after_loss(&mut self, cx: &Cx<AfterLoss>) {
        cx.log("own", 0.5);
    }

    fn after_train_epoch(&mut self, cx: &Cx<AfterTrainEpoch>) {
        cx.log("set", 7.0);
        cx.warn("a warning");
    }
}

#[test]
fn live_json_says_what_the_run_is_doing_before_its_first_batch_and_at_its_end() {
    let folder = scratch("live");
    let run = folder.join("run");
    let during = run.clone();
    let mut trainer = builder()
        .run_folder(&run)
        .epochs(2)
        .hook(Logging)
        .hook(Checkpoint::in_run_folder())
        .profile(true)
        .on::<AfterStep>("read", move |cx| {
            if cx.counters().batches_seen == 1 {
                let live = live(&during);
                assert_eq!((&*live.entry, &*live.phase, live.optimizer_steps), ("fit", "train", 0));
                assert_eq!((live.epochs, live.planned_steps), (Some(2), Some(4)));
                assert!(live.takes_checkpoint_requests);
            }
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    let live = live(&run);
    assert_eq!((live.optimizer_steps, live.first_step, live.planned_steps), (4, 0, Some(4)));
    assert_eq!((live.epoch, live.batch, live.batches), (1, 2, Some(2)));
    assert_eq!(live.warnings, ["a warning"]);
    assert!(!live.takes_checkpoint_requests, "the fit has ended");
    assert!(live.checkpoint.is_some_and(|path| path.ends_with("step-00000004")));
    assert!(cfg!(not(target_os = "linux")) || live.memory > Some(1 << 20));

    let hook = |nth: usize| (live.hooks[nth].name.as_str(), live.hooks[nth].moment.as_str());
    let source = |name: &str| live.logged.iter().find(|value| value.name == name).unwrap();
    assert_eq!(source("train/loss").hook, None);
    let own = source("train/own");
    assert_eq!(own.value.map(|value| value.0), Some(0.5));
    let (name, moment) = hook(own.hook.unwrap());
    assert!(name.ends_with("Logging") && moment == "after_loss", "{name} {moment}");
    let (_, moment) = hook(source("train/set").hook.unwrap());
    assert_eq!(moment, "after_train_epoch");
    assert_eq!(live.hooks[own.hook.unwrap()].time.unwrap().calls, 4);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_of_another_program_is_left_alone() {
    let folder = scratch("foreign-live");
    fs::write(folder.join("live.json"), "[]").unwrap();
    let summary = builder().run_folder(&folder).epochs(1).build().unwrap().fit(&mut rows(8), None).unwrap();
    let [warning] = &summary.warnings[..] else { panic!("{:?}", summary.warnings) };
    assert!(warning.contains("live.json: expected a `live.json` that this trainer wrote"), "{warning}");
    assert_eq!(fs::read_to_string(folder.join("live.json")).unwrap(), "[]");
    // What a power loss left of one is replaced.
    for left in ["", "{\"form"] {
        let folder = scratch("torn-live");
        fs::write(folder.join("live.json"), left).unwrap();
        let summary =
            builder().run_folder(&folder).epochs(1).build().unwrap().fit(&mut rows(8), None).unwrap();
        assert_eq!(summary.warnings, [""; 0]);
        assert_eq!(live(&folder).optimizer_steps, 2);
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// The environment variables with the folder and the scene of a child process.
const FOLDER: &str = "TRAINER_TESTS_FOLDER";
const SCENE: &str = "TRAINER_TESTS_SCENE";

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// The program of the next test.
#[test]
#[ignore = "run by another test in a child process"]
fn child_with_requests() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let scene = std::env::var(SCENE).unwrap();
    let mut settings = builder().epochs(1_000_000).on_signal(OnSignal::Return);
    if scene == "checkpoint" {
        settings = settings.hook(Checkpoint::new(&folder).every(Every::Epochs(1_000_000)).keep_last(10));
    }
    let mut trainer = settings
        .on::<AfterStep>("say", move |cx| {
            if cx.counters().batches_seen == 3 {
                say("training");
            }
        })
        .on::<AfterSaveCheckpoint>("saved", move |_| say("saved"))
        .build()
        .unwrap();
    let error = trainer.fit(&mut rows(8), None).unwrap_err();
    say(&message(&error));
    // Between entry points, the signal does not end the program.
    say("idle");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    say("done");
}

fn kill(child: &Child, signal: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
}

#[test]
fn sigusr1_requests_a_checkpoint_and_the_run_continues() {
    for scene in ["checkpoint", "without"] {
        let folder = scratch(&format!("usr1-{scene}"));
        let mut child = child_process("live::child_with_requests")
            .env(FOLDER, &folder)
            .env(SCENE, scene)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "training"));
        for _ in 0..2 {
            kill(&child, "-USR1");
            if scene == "checkpoint" {
                assert_eq!(lines.next().as_deref(), Some("saved"));
            }
        }
        if scene == "without" {
            let expected = "warning: SIGUSR1 requests a checkpoint, but none is written: add the hook `Checkpoint`, which writes it";
            assert!(errors.any(|line| line == expected));
        }
        let newest = trainer::checkpoint::newest(&folder);
        assert_eq!(newest.is_some(), scene == "checkpoint");
        if let Some(newest) = newest {
            trainer::checkpoint::verify(newest).unwrap();
        }
        kill(&child, "-TERM");
        assert!(lines.any(|line| line.starts_with("cancelled by SIGTERM")));
        assert!(lines.any(|line| line == "idle"));
        kill(&child, "-USR1");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(lines.any(|line| line == "done"), "the signal between entry points has no effect");
        assert!(child.wait().unwrap().success());
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// Trains a run with this hook, which shows it.
fn train(folder: &Path, is_dashboard: bool, resume: bool, cancel_at: Option<u64>) -> Result<Summary> {
    let mut settings = builder()
        .seed(1) // in a process of its own
        .epochs(3)
        .run_folder(folder)
        .record_every(Every::Steps(1))
        .hook(Csv::new())
        .hook(HyperparameterMonitor::new())
        .hook(Checkpoint::in_run_folder())
        .on::<AfterEpoch>("print", |_| trainer::print_line("printed by a hook"));
    if resume {
        settings = settings.resume(Resume::Auto);
    }
    settings = if is_dashboard { settings.hook(Dashboard::new()) } else { settings.hook(Progress::new()) };
    let mut trainer = crate::support::cancelled_at(cancel_at, settings).build().unwrap();
    trainer.fit(&mut rows(16), None)
}

/// The program of the next test, whose input and output are a terminal.
#[test]
#[ignore = "run by another test in a child process"]
fn child_with_a_dashboard() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    match &*std::env::var(SCENE).unwrap() {
        "whole" => drop(train(&folder, true, false, None).unwrap()),
        "resumed" => {
            train(&folder, true, false, Some(6)).unwrap_err();
            train(&folder, true, true, None).unwrap();
        }
        "panic" => {
            let mut trainer = builder()
                .epochs(1)
                .hook(Dashboard::new())
                .on::<AfterStep>("fail", |_| panic!("a hook fails"))
                .build()
                .unwrap();
            let _ = trainer.fit(&mut rows(16), None);
        }
        // The test presses Ctrl-C.
        _ => {
            let mut trainer = builder()
                .epochs(1_000_000)
                .hook(Dashboard::new())
                .on::<AfterEpoch>("print", |_| trainer::print_line("printed by a hook"))
                .build()
                .unwrap();
            let _ = trainer.fit(&mut rows(16), None);
        }
    }
}

/// Runs the child process in a terminal of 80 × 24. Sends Ctrl-C once the view is there, if
/// `interrupts`. Returns everything that it wrote on the terminal, and its exit status.
#[cfg(target_os = "linux")]
fn in_terminal(folder: &Path, scene: &str, interrupts: bool) -> (String, std::process::ExitStatus) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};

    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let path = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let open = || fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut program = child_process("live::child_with_a_dashboard");
    program.env(FOLDER, folder).env(SCENE, scene).env("TERM", "xterm-256color").env_remove("NO_COLOR");
    let mut child = program.stdin(open()).stdout(open()).stderr(open()).spawn().unwrap();
    // The command keeps the streams open, and the terminal ends when the last one is closed.
    drop(program);
    let mut terminal = fs::File::from(terminal);
    let mut written = Vec::new();
    let mut bytes = [0; 4096];
    let mut has_interrupted = false;
    loop {
        match terminal.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => written.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break, // the other end is closed
        }
        // Cells that stay blank are not written, so only a word can be found.
        if interrupts && !has_interrupted && String::from_utf8_lossy(&written).contains("printed") {
            has_interrupted = true;
            terminal.write_all(b"\x03").unwrap();
        }
    }
    (String::from_utf8_lossy(&written).into_owned(), child.wait().unwrap())
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// Returns the rows of a run without their times, and the bytes of the weights of its last
/// checkpoint.
fn results(folder: &Path) -> (Vec<String>, Vec<u8>) {
    let text = fs::read_to_string(folder.join("values.csv")).unwrap();
    let rows = text.lines().map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        [&fields[..4], &fields[5..]].concat().join(",")
    });
    let newest = trainer::checkpoint::newest(folder.join("checkpoints")).unwrap();
    (rows.collect(), fs::read(newest.join("model.safetensors")).unwrap())
}

#[test]
#[cfg(target_os = "linux")]
fn a_dashboard_changes_no_results_and_restores_the_terminal() {
    let folder = scratch("dashboard");
    let plain = child_process("live::child_without_a_terminal")
        .env(FOLDER, folder.join("plain"))
        .env(SCENE, "progress")
        .output()
        .unwrap();
    assert!(plain.status.success());
    let expected = results(&folder.join("plain"));
    for (scene, views) in [("whole", 1), ("resumed", 2)] {
        let (written, status) = in_terminal(&folder.join(scene), scene, false);
        assert!(status.success(), "{scene}: {written}");
        assert_eq!(written.matches(ENTER).count(), views, "{scene}");
        assert_eq!(written.matches(LEAVE).count(), views, "{scene}");
        let after = written.rsplit(LEAVE).next().unwrap();
        for line in ["epoch 3/3  train/loss ", "printed by a hook", "lowest"] {
            assert!(after.contains(line), "{scene}: `{line}` is printed again: {after}");
        }
        assert!(results(&folder.join(scene)) == expected, "{scene}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_dashboard_restores_the_terminal_after_a_panic_and_after_ctrl_c() {
    let folder = scratch("dashboard-ends");
    let (written, _) = in_terminal(&folder, "panic", false);
    let (_, after) = written.rsplit_once(LEAVE).expect("the terminal is given back");
    assert!(after.contains("a hook fails"), "{after}");
    let (written, status) = in_terminal(&folder, "endless", true);
    let (_, after) = written.rsplit_once(LEAVE).expect("the terminal is given back");
    assert!(after.contains("cancelled by SIGINT"), "{after}");
    assert_eq!(status.code(), Some(130));
    fs::remove_dir_all(&folder).unwrap();
}

/// The program of the next test.
#[test]
#[ignore = "run by another test in a child process"]
fn child_without_a_terminal() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    train(&folder, std::env::var(SCENE).unwrap() == "dashboard", false, None).unwrap();
}

#[test]
fn a_dashboard_without_a_terminal_prints_what_progress_prints() {
    let root = scratch("dashboard-lines");
    let printed = ["dashboard", "progress"].map(|scene| {
        let output = child_process("live::child_without_a_terminal")
            .env(FOLDER, root.join("run"))
            .env(SCENE, scene)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success());
        fs::remove_dir_all(root.join("run")).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("test "));
        // Without the times.
        let lines = lines.map(|line| {
            line.rsplit_once("  ").filter(|_| line.ends_with(" s")).map_or(line, |(line, _)| line)
        });
        lines.map(str::to_owned).collect::<Vec<_>>()
    });
    assert!(printed[0].iter().any(|line| line.starts_with("epoch 3/3  train/loss ")), "{:?}", printed[0]);
    assert_eq!(printed[0], printed[1]);
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_dashboard_combined_with_progress_is_refused() {
    let mut trainer = builder().epochs(1).hook(Progress::new()).hook(Dashboard::new()).build().unwrap();
    let error = message(&trainer.fit(&mut rows(8), None).unwrap_err());
    assert!(error.contains("`Dashboard` and `Progress` cannot share the terminal"), "{error}");
}
