//! Goldens: the losses and the weights of the first steps, in a text file.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use trainer::hooks::{Checkpoint, Ema, HyperparameterSchedule, Progress, ReduceOnPlateau};
use trainer::lock::{Compared, Golden};
use trainer::loggers::Csv;
use trainer::prelude::*;
use trainer::schedule::Linear;
use trainer::{RunFolder, TrainerBuilder};

use crate::model;
use crate::parts::rivals;
use crate::support::{child_process, scratch, tree};

/// The environment variable with the folder of the child processes.
const FOLDER: &str = "TRAINER_TESTS_GOLDEN";

/// Runs a test in a child process, whatever is in the environment of this one, and returns what it
/// prints.
fn run_child(test: &str, folder: &Path, update: bool) -> String {
    let mut child = child_process(test);
    child.env_remove("TRAINER_LOCK").env(FOLDER, folder);
    if update {
        child.env("TRAINER_LOCK", "update");
    }
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text.into_owned()
}

fn folder() -> PathBuf {
    PathBuf::from(std::env::var(FOLDER).unwrap())
}

type Losses = Arc<Mutex<Vec<f64>>>;

/// A fit of 30 steps, in 6 epochs, with hooks that depend on its length and on validation.
fn program() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    model::builder()
        .seed(7)
        .epochs(6)
        .hook(HyperparameterSchedule::lr(Linear::to(0.0)))
        .hook(ReduceOnPlateau::new("valid/loss", Goal::Minimize).patience(0))
        .hook(Ema::new(0.9))
}

/// Adds a hook that keeps the losses of training.
fn kept(
    builder: TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>>,
    losses: &Losses,
) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    let losses = Arc::clone(losses);
    builder.observe::<AfterLoss>("keep", move |cx| {
        if cx.phase() == Phase::Train {
            losses.lock().unwrap().push(cx.loss().double_value(&[]));
        }
    })
}

fn check<T: Task<Batch = (Tensor, Tensor)>>(
    builder: TrainerBuilder<T>,
    golden: impl Into<Golden>,
) -> Result<trainer::lock::GoldenCheck> {
    builder.build()?.check_golden(golden, &mut model::rows(20), Some(&mut model::rows(8)))
}

/// The steps of a golden, as lines.
fn steps(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.split("[steps]\n").nth(1).unwrap().lines().map(str::to_owned).collect()
}

/// The loss in a line, in both notations.
fn loss(line: &str) -> (f64, u64) {
    let loss = line.split(" | ").nth(1).unwrap().strip_prefix("loss ").unwrap();
    let (decimal, bits) = loss.split_once(' ').unwrap();
    (decimal.parse().unwrap(), u64::from_str_radix(bits, 16).unwrap())
}

#[test]
fn check_golden_runs_the_first_steps_of_a_fit_and_writes_only_the_golden() {
    let folder = scratch("golden");
    run_child("golden::child_process_that_writes_a_golden", &folder, true);
    let text = run_child("golden::child_process_that_compares_with_a_golden", &folder, false);
    // Said on standard error, too.
    assert!(text.contains("only the losses of the first 20 steps were compared"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "run by another test in a child process, which needs an environment variable"]
fn child_process_that_writes_a_golden() {
    let folder = folder();
    let path = folder.join("hooks.golden");
    let losses = Losses::default();
    let fired = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let fired = Arc::clone(&fired);
        move || fired.lock().unwrap().push(name)
    };
    let [setup, fit, ended, cancelled, failed, torn_down] =
        ["setup", "before_fit", "after_fit", "after_cancel", "after_error", "teardown"].map(note);
    let checkpoints = folder.join("checkpoints");
    let requested = folder.join("requested");
    let builder = kept(program(), &losses)
        .run_folder(RunFolder::new(folder.join("run")))
        .hook(Checkpoint::new(&checkpoints))
        .hook(Csv::new())
        .hook(Progress::new())
        .resume(Resume::Auto)
        .observe::<AfterStep>("request", move |cx| cx.save_checkpoint(&requested))
        .observe::<Setup>("setup", move |_| setup())
        .observe::<BeforeFit>("fit", move |_| fit())
        .observe::<AfterFit>("ended", move |_| ended())
        .observe::<AfterCancel>("cancelled", move |_| cancelled())
        .observe::<AfterError>("failed", move |_| failed())
        .observe::<Teardown>("torn down", move |_| torn_down());
    let written = check(builder, &path).unwrap();
    assert_eq!((written.compared, written.steps), (Compared::Written, 20));
    assert_eq!(written.to_string(), "the golden of the first 20 steps was written");
    assert_eq!(*fired.lock().unwrap(), ["setup", "before_fit", "teardown"]);
    let files: Vec<PathBuf> = tree(&folder).into_keys().collect();
    assert_eq!(files, std::slice::from_ref(&path), "nothing else is written");

    // The schedule sees 30 steps, and validations take place.
    let in_golden = steps(&path);
    assert_eq!(in_golden.len(), 21);
    let golden: Vec<f64> = in_golden[1..].iter().map(|line| loss(line).0).collect();
    assert!(in_golden[1..].iter().all(|line| loss(line).0.to_bits() == loss(line).1));
    assert_eq!(*losses.lock().unwrap(), golden);
    let of_fit = Losses::default();
    let mut trainer = kept(program(), &of_fit).build().unwrap();
    trainer.fit(&mut model::rows(20), Some(&mut model::rows(8))).unwrap();
    let of_fit = of_fit.lock().unwrap();
    assert_eq!((of_fit.len(), &of_fit[..20]), (30, &golden[..]));

    // Accumulated: the loss of a step is the mean over its batches.
    let losses = Losses::default();
    check(kept(program(), &losses).accumulate(2), Golden::new(folder.join("accumulated")).steps(4)).unwrap();
    let losses = losses.lock().unwrap();
    assert_eq!(losses.len(), 7, "the last batch of the first epoch has a step of its own");
    let means = [
        (losses[0] + losses[1]) / 2.0,
        (losses[2] + losses[3]) / 2.0,
        losses[4],
        (losses[5] + losses[6]) / 2.0,
    ];
    for (line, mean) in steps(&folder.join("accumulated"))[1..].iter().zip(means) {
        assert!((loss(line).0 - mean).abs() < 1e-12, "{line}: {mean}");
    }

    // Only a golden is replaced.
    fs::write(folder.join("other"), "mine").unwrap();
    let error = check(program(), folder.join("other")).unwrap_err().to_string();
    assert!(
        error.ends_with("this file is not a golden, so it is not replaced: choose another path"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(folder.join("other")).unwrap(), "mine");
}

#[test]
#[ignore = "run by another test in a child process, which needs an environment without a variable"]
fn child_process_that_compares_with_a_golden() {
    let folder = folder();
    let path = folder.join("hooks.golden");
    let text = fs::read_to_string(&path).unwrap();
    let equal = check(program(), &path).unwrap();
    assert_eq!((equal.compared, equal.circumstances.len(), equal.versions.len()), (Compared::Bits, 0, 0));
    // Hooks that only observe, and loggers, change nothing.
    let observed =
        program().observe::<AfterLoss>("watch", |cx| cx.log("twice", cx.loss() * 2.0)).hook(Progress::new());
    assert_eq!(check(observed, &path).unwrap().compared, Compared::Bits);

    let error = |builder: TrainerBuilder<_>, golden: Golden| check(builder, golden).unwrap_err().to_string();
    let one = |at: u64| {
        program().on::<BeforeOptStep>("one", move |cx| {
            if cx.counters().optimizer_steps == at {
                let _guard = tch::no_grad_guard();
                let _ = cx.grad("fc2.bias").unwrap().g_mul_scalar_(1.001);
            }
        })
    };
    // In step 7, and with a tolerance, which does not matter in equal circumstances.
    for golden in [Golden::new(&path), Golden::new(&path).tolerance(0.5)] {
        let error = check(one(6), golden).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "{}: step 7 differs from the golden, although steps 1 to 6 are equal:\n\
                 - the loss is equal, but the weights after the step differ\n\
                 no crate with hooks has a different version: the change is in the program, its data, or a crate without hooks\n\
                 to find the hook, run the program before and after the change with `TRAINER_TAPE=full:0..7`, and compare the two \
                 runs with `trainer diff`\n\
                 if the change is intended, update the golden with `TRAINER_LOCK=update`",
                path.display()
            )
        );
    }
    let cases = [
        (
            error(program(), Golden::new(folder.join("none"))),
            "there is no golden: write it with `TRAINER_LOCK=update`, and add it to the repository",
        ),
        (error(program(), Golden::new(&path).steps(0)), "`.steps(0)` compares nothing: expected at least 1"),
        (
            error(program(), Golden::new(&path).tolerance(1.5)),
            "`.tolerance(1.5)`: expected a fraction of the loss",
        ),
        (
            error(program(), Golden::new(&path).steps(9)),
            "- the golden has 20 steps, but the fit took 9: the fit has a different length",
        ),
        (error(program().epochs(3), Golden::new(&path)), "step 2 differs from the golden"),
        (error(program().rank(1), Golden::new(&path)), "cannot run while several processes train together"),
    ];
    for (error, expected) in &cases {
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    let failing = program().on::<AfterBackward>("failing", |_| Err(Error::msg("a hook failed")));
    let error = check(failing, &path).unwrap_err().to_string();
    assert!(error.contains("hook `failing`") && error.ends_with("a hook failed"), "{error}");
    let skipped = program().on::<BeforeOptStep>("skip", |cx| cx.drop_grads());
    let error = check(skipped.epochs(1), &path).unwrap_err().to_string();
    assert!(error.contains("this fit has taken none: look for a hook that skips them"), "{error}");
    let mut trained = program().build().unwrap();
    trained.fit(&mut model::rows(20), Some(&mut model::rows(8))).unwrap();
    let error = trained.check_golden(&path, &mut model::rows(20), None).unwrap_err().to_string();
    assert!(error.ends_with("this trainer has trained before: build a new one"), "{error}");

    // In other circumstances.
    fs::write(&path, text.replace("threads = 1\n", "threads = 64\n")).unwrap();
    let equal = check(program(), &path).unwrap();
    assert_eq!(equal.to_string(), "the first 20 steps are equal, bit by bit; `threads` was 64 and is now 1");
    let refused = check(one(6), &path).unwrap_err().to_string();
    assert!(
        refused.contains(
            "these 20 steps cannot be compared with the golden, because it was recorded in different circumstances:\n\
             - `threads` was 64 and is now 1\nstep 7 differs"
        ),
        "{refused}"
    );
    let near = check(one(6), Golden::new(&path).tolerance(0.01)).unwrap();
    assert_eq!(near.compared, Compared::Losses);
    let far = check(program().epochs(3), Golden::new(&path).tolerance(1e-9)).unwrap_err().to_string();
    assert!(far.contains("only the losses were compared, within a tolerance of 1e-9"), "{far}");
}

#[test]
fn short_fits_and_steps_with_several_losses_have_goldens() {
    let folder = scratch("golden-other");
    run_child("golden::child_process_with_other_fits", &folder, true);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "run by another test in a child process, which needs an environment variable"]
fn child_process_with_other_fits() {
    let path = folder().join("hooks.golden");
    assert_eq!(check(program().epochs(2), &path).unwrap().steps, 10);
    assert_eq!(steps(&path).len(), 11);

    let path = folder().join("rivals.golden");
    let builder = Trainer::builder(rivals()).discover(Discover::None);
    let builder = builder.optimizer_of("left", Sgd::new(1e-4)).optimizer_of("right", Sgd::new(1e-4));
    let mut data = InMemory::new(Tensor::ones([6, 3], (Kind::Float, Device::Cpu))).unwrap().batch_size(2);
    assert_eq!(builder.build().unwrap().check_golden(&path, &mut data, None).unwrap().steps, 3);
    for (line, nth) in steps(&path)[1..].iter().zip(1..) {
        let cells: Vec<&str> = line.split(" | ").collect();
        assert_eq!((cells.len(), cells[0]), (4, &*nth.to_string()), "{line}");
        for (cell, name) in cells[1..].iter().zip(["left_turn/loss ", "right_turn/loss ", "weights "]) {
            assert!(cell.starts_with(name), "{line}");
        }
    }
}

#[test]
fn assert_locked_compares_the_lock_and_the_golden() {
    let folder = scratch("golden-macro");
    run_child("golden::child_process_with_assertions", &folder, false);
    fs::remove_dir_all(folder).unwrap();
}

/// The package has a lock, which is the one of [`program`], but no golden, whose bits would be
/// those of one machine.
#[test]
#[ignore = "run by another test in a child process, which needs an environment without a variable"]
fn child_process_with_assertions() {
    let built = || program().build().unwrap();
    trainer::assert_locked!(built());
    let trainer = built();
    trainer::assert_locked!(trainer);
    trainer::assert_locked!(&trainer);

    let other = || program().epochs(7).build().unwrap();
    let said = |assert: &mut dyn FnMut()| {
        let panic = catch_unwind(AssertUnwindSafe(assert)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().replace(env!("CARGO_MANIFEST_DIR"), "…")
    };
    let lock = "…/hooks.lock: the program differs from its lock:\n- `.epochs(…)` was 6 and is now 7\n\
                if this is intended, update the lock with `TRAINER_LOCK=update`";
    let golden = "…/hooks.golden: there is no golden: write it with `TRAINER_LOCK=update`, and add it to the repository";
    let (mut train, mut valid) = (model::rows(20), model::rows(8));
    assert_eq!(said(&mut || trainer::assert_locked!(other())), lock);
    assert_eq!(said(&mut || trainer::assert_locked!(built(), train)), golden);
    assert_eq!(said(&mut || trainer::assert_locked!(other(), train, valid)), format!("{lock}\n\n{golden}"));
}

/// `TRAINER_LOCK=update cargo test` writes it.
#[test]
fn the_lock_of_this_package_is_up_to_date() {
    trainer::assert_locked!(program().build().unwrap());
}
