//! Cancellation by tokens and by signals.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use trainer::data::RowRng;
use trainer::hooks::{Checkpoint, Progress};
use trainer::prelude::*;
use trainer::{CancelToken, CancelledBy, OnSignal, TrainerBuilder};

use crate::model::{self, builder, message};
use crate::support;
use crate::support::device;

#[test]
fn a_token_cancels_the_run_after_the_current_step() {
    let token = CancelToken::new();
    let cancel = token.clone();
    let mut trainer = builder()
        .epochs(5)
        .cancel_token(token.clone())
        .on::<AfterLoss>("cancel", move |cx| {
            if cx.counters().batches_seen == 2 {
                cancel.cancel();
            }
        })
        .build()
        .unwrap();
    let error = trainer.fit(&mut model::rows(40), None).unwrap_err();
    assert_eq!(error.to_string(), "cancelled by a cancel token at train_epoch, epoch 0, batch 3");
    let Error::Cancelled(cancelled) = error else { panic!("{error}") };
    assert_eq!(cancelled.by, CancelledBy::Token);
    assert_eq!(
        (trainer.counters().batches_seen, trainer.counters().optimizer_steps),
        (3, 3),
        "the current step was completed"
    );

    // A token stays cancelled until it is reset: no batch runs.
    assert!(trainer.fit(&mut model::rows(8), None).is_err());
    assert_eq!(trainer.counters().batches_seen, 3);
    token.reset();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(trainer.counters().batches_seen, 13);
}

#[test]
fn a_token_cancels_an_endless_run_from_another_thread() {
    let token = CancelToken::new();
    let from_outside = token.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        from_outside.cancel();
    });
    let mut trainer = builder().cancel_token(token).on_signal(OnSignal::Ignore).build().unwrap();
    let mut endless = trainer::data::from_fn(|_| {
        std::iter::repeat_with(|| model::rows(4).batches(0, 0).unwrap().next().unwrap().unwrap())
    });
    let error = message(&trainer.fit(&mut endless, None).unwrap_err());
    assert!(error.starts_with("cancelled by a cancel token at train_epoch, epoch 0, batch "), "{error}");
    thread.join().unwrap();
}

/// The environment variable that selects the scene of the child process.
const SCENE: &str = "TRAINER_TESTS_SCENE";

/// Prints a line and waits for the signal that the parent sends when it reads the line.
fn wait_at(line: &str) {
    // In addition to the trainer's handlers, which are installed already.
    static RECEIVED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    let received = RECEIVED.get_or_init(|| {
        let received = Arc::<AtomicBool>::default();
        signal_hook::flag::register(SIGINT, Arc::clone(&received)).unwrap();
        signal_hook::flag::register(SIGTERM, Arc::clone(&received)).unwrap();
        signal_hook::flag::register(SIGHUP, Arc::clone(&received)).unwrap();
        received
    });
    println!("{line}");
    while !received.swap(false, Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Prints a line and waits until a signal ends the process.
fn wait_for_the_end_at(line: &str) {
    println!("{line}");
    std::thread::sleep(Duration::from_secs(60));
}

/// Waits before the forward pass for the parent's signals, depending on the scene, and prints the
/// hooks that run.
struct Slow(String);

#[hook]
impl Slow {
    fn before_pred(&mut self, cx: &mut Cx<BeforePred>) {
        if self.0 == "ignored" {
            wait_for_the_end_at("in train");
        } else if cx.phase().name() == self.0 {
            wait_at(&format!("in {}", self.0));
        } else if self.0 == "twice" {
            wait_at("in train");
            wait_for_the_end_at("signal received");
        }
    }
    #[hook(only(train, sanity, valid, test))]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        println!("step of {} done", cx.phase());
    }
    fn after_predict_step(&mut self, cx: &mut Cx<AfterPredictStep>) {
        println!("step of {} done", cx.phase());
    }
    fn after_cancel(&mut self, cx: &mut Cx<AfterCancel>) {
        println!("after_cancel in {}", cx.phase());
    }
    fn teardown(&mut self, _: &mut Cx<Teardown>) {
        println!("teardown");
    }
}

/// The program that the signals are sent to.
#[test]
#[ignore = "run by the other tests in a child process"]
fn trains_until_a_signal() {
    let scene = std::env::var(SCENE).unwrap();
    let (phase, on_signal) = match scene.split_once(' ') {
        Some((phase, "return")) => (phase, OnSignal::Return),
        Some((phase, "ignore")) => (phase, OnSignal::Ignore),
        _ => (&*scene, OnSignal::Exit),
    };
    let settings = builder().epochs(1000).on_signal(on_signal).hook(Slow(phase.into()));
    let settings = if phase == "sanity" { settings.sanity_batches(2) } else { settings };
    let mut trainer = settings.build().unwrap();
    let data = || model::rows(40);
    match phase {
        "test" => trainer.test(&mut data()).map(drop),
        "predict" => trainer.predict(&mut data()).map(drop),
        "own" => {
            // A custom handler, installed before the trainer's first entry point.
            let received = Arc::<AtomicBool>::default();
            signal_hook::flag::register(SIGINT, Arc::clone(&received)).unwrap();
            for line in ["first", "second"] {
                trainer.validate(&mut data()).unwrap();
                println!("{line}");
                while !received.swap(false, Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            trainer.validate(&mut data()).map(drop)
        }
        "busy" => builder_with_busy_threads()
            .hook(Slow("busy".into()))
            .on::<Teardown>("unfinished", |_| print!("unfinished line"))
            .build()
            .and_then(|mut trainer| {
                let mut data = DataLoader::new(Computed).batch_size(8).shuffle(1).workers(2).prefetch(8);
                trainer.fit(&mut data, None).map(drop)
            }),
        "idle" => {
            trainer.validate(&mut data()).unwrap();
            wait_for_the_end_at("in idle");
            Ok(())
        }
        _ => trainer.fit(&mut data(), Some(&mut data())).map(drop),
    }
    .unwrap_or_else(|error| println!("returned: {error}"));
    println!("the program continues");
    if on_signal == OnSignal::Return {
        wait_for_the_end_at("in idle");
    }
}

/// A dataset that computes with libtorch on the loader's threads.
struct Computed;

impl Dataset for Computed {
    type Row = (Tensor, i64);

    fn len(&self) -> usize {
        10_000
    }
    fn row(&self, _: usize, _: &mut RowRng) -> Result<(Tensor, i64)> {
        let inputs = Tensor::ones([4], (Kind::Float, device()));
        let weights = Tensor::ones([4, 4], (Kind::Float, device()));
        Ok((inputs.matmul(&weights).sin(), 0))
    }
}

/// Returns a builder, and starts three threads that use libtorch until the process ends.
fn builder_with_busy_threads() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    let settings = builder(); // sets the number of libtorch's threads before the first operation
    for _ in 0..3 {
        std::thread::spawn(|| {
            let weight = Tensor::ones([64, 64], (Kind::Float, device())).set_requires_grad(true);
            loop {
                weight.matmul(&weight).relu().sum(Kind::Float).backward();
                drop(Tensor::randn([200, 200], (Kind::Float, device())).sort(-1, false));
            }
        });
    }
    settings.epochs(1000).on::<AfterStep>("say", |cx| {
        if cx.counters().batches_seen == 3 {
            println!("in busy");
        }
    })
}

/// Runs the child process, and sends it a signal when it prints the line before that signal in
/// `signals`. Returns the lines that it printed after the first signal, without the lines in
/// `signals`, and its exit status.
fn run_and_signal(scene: &str, signals: &[(&str, &str)]) -> (Vec<String>, ExitStatus) {
    let mut child: Child = support::child_process("cancel::trains_until_a_signal")
        .env(SCENE, scene)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut printed = Vec::new();
    for (nth, (at, signal)) in signals.iter().enumerate() {
        let before: Vec<_> = lines.by_ref().take_while(|line| line != at).collect();
        printed.extend(before.into_iter().filter(|_| nth > 0));
        let kill = format!("kill -{signal} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
    printed.extend(lines);
    (printed, child.wait().unwrap())
}

#[test]
fn a_signal_in_any_phase_finishes_the_step_cleans_up_and_ends_the_program() {
    for phase in ["train", "sanity", "valid", "test", "predict"] {
        let (printed, status) = run_and_signal(phase, &[(&format!("in {phase}"), "INT")]);
        let step = format!("step of {phase} done");
        assert_eq!(printed, [&step, &format!("after_cancel in {phase}"), "teardown"], "in {phase}");
        assert_eq!(status.code(), Some(130), "in {phase}");
    }
    let hangup = (!support::ignores_hangups()).then_some(("HUP", 129));
    for (signal, code) in [("TERM", 143)].into_iter().chain(hangup) {
        let (printed, status) = run_and_signal("train", &[("in train", signal)]);
        assert_eq!((printed.len(), status.code()), (3, Some(code)), "{signal}");
    }
}

/// The environment variable with the folder of the next test.
const FOLDER: &str = "TRAINER_TESTS_FOLDER";

/// The program of the next test: trains until a signal ends it.
#[test]
#[ignore = "run by another test in a child process"]
fn child_in_a_terminal() {
    let folder = std::env::var(FOLDER).unwrap();
    let mut trainer = builder()
        .epochs(1_000_000)
        .hook(Checkpoint::new(folder).every(Every::Epochs(1_000_000)))
        .hook(Progress::new())
        .on::<AfterStep>("started", |cx| {
            if cx.counters().batches_seen == 3 {
                println!("started");
            }
        })
        .build()
        .unwrap();
    let _ = trainer.fit(&mut model::rows(8), None);
}

#[test]
fn a_closed_terminal_ends_the_run_with_its_last_checkpoint() {
    if support::ignores_hangups() {
        return;
    }
    let folder = support::scratch("hangup");
    let mut child = support::child_process("cancel::child_in_a_terminal")
        .env(FOLDER, &folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "started"));
    // The output goes away with the terminal.
    drop((lines, child.stderr.take()));
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(129));
    let newest = trainer::checkpoint::newest(&folder).expect("a checkpoint");
    trainer::checkpoint::verify(newest).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_hangup_that_was_ignored_at_the_start_stays_ignored() {
    let folder = support::scratch("nohup");
    let program = support::child_process("cancel::child_in_a_terminal");
    let mut ignoring = support::in_shell("trap '' HUP", &program);
    let mut child = ignoring.env(FOLDER, &folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "started"));
    for signal in ["-HUP", "-TERM"] {
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    }
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(143), "only SIGTERM counts");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_signal_ends_the_program_with_its_status_and_flushed_output_despite_busy_threads() {
    for run in 0..5 {
        let (printed, status) = run_and_signal("busy", &[("in busy", "TERM")]);
        assert!(
            printed.ends_with(&["after_cancel in train", "teardown", "unfinished line"].map(str::to_owned)),
            "{printed:?}"
        );
        assert_eq!(status.code(), Some(143), "run {run}: {status}");
    }
}

#[test]
fn a_second_signal_ends_the_program_at_once() {
    let (printed, status) = run_and_signal("twice", &[("in train", "INT"), ("signal received", "INT")]);
    assert_eq!(printed, [""; 0], "no further hook runs");
    assert_eq!(status.code(), Some(130));
}

#[test]
fn a_program_can_continue_after_a_signal() {
    let (printed, status) = run_and_signal("valid return", &[("in valid", "INT"), ("in idle", "INT")]);
    assert_eq!(printed[1..3], ["after_cancel in valid", "teardown"]);
    assert_eq!(printed[3], "returned: cancelled by SIGINT (Ctrl-C) at valid, epoch 0, batch 1");
    assert_eq!(printed[4..], ["the program continues"]);
    assert_eq!(status.signal(), Some(2), "the default action of the signal is restored");
}

#[test]
fn signals_keep_their_default_action_while_the_trainer_does_not_handle_them() {
    for (scene, line) in [("idle", "in idle"), ("ignored ignore", "in train")] {
        let (printed, status) = run_and_signal(scene, &[(line, "INT")]);
        assert_eq!((printed, status.signal()), (vec![], Some(2)), "{scene}");
    }
}

#[test]
fn a_custom_signal_handler_receives_signals_between_entry_points() {
    let (printed, status) = run_and_signal("own", &[("first", "INT"), ("second", "INT")]);
    assert!(printed.contains(&"the program continues".to_owned()), "{printed:?}");
    assert!(
        !printed.iter().any(|line| line.starts_with("after_cancel") || line.starts_with("returned")),
        "{printed:?}"
    );
    assert!(status.success());
}
