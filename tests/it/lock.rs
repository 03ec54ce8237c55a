//! Locks: a text file with what a program runs.

use std::fs;
use std::marker::PhantomData;

use trainer::checkpoint::{SettingList, Settings};
use trainer::hooks::{ClipGradNorm, Ema, Progress};
use trainer::metrics::Accuracy;
use trainer::prelude::*;
use trainer::{Tape, TrainerBuilder};

use crate::model;
use crate::support::{child_process, scratch};

fn halve(_: &mut Cx<BeforeOptStep>) {}

fn clamp(_: &mut Cx<BeforeOptStep>) {}

fn program() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    let optimizer = AdamW::new(1e-3).group("*.bias", trainer::optim::Group::new().weight_decay(0.0));
    Trainer::builder(model::task())
        .optimizer(optimizer)
        .discover(Discover::None)
        .epochs(3)
        .hook(Ema::new(0.9))
        .hook(Accuracy::multiclass(3))
}

fn ordered() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    program().on::<BeforeOptStep>("halve", halve).on::<BeforeOptStep>("clamp", clamp)
}

fn error(builder: TrainerBuilder<impl Task>, path: &std::path::Path) -> String {
    builder.build().unwrap().check_lock(path).unwrap_err().to_string()
}

/// A type whose values of different types have one path.
struct Twice<T>(PhantomData<T>);

#[hook]
impl<T: Send + 'static> Twice<T> {
    fn after_step(&mut self, _: &Cx<AfterStep>) {}
}

/// A hook whose settings are hard to write in one line.
struct Odd;

impl Settings for Odd {
    fn settings(&self) -> SettingList {
        let [lines, nothing] = [format_args!("a\n  b"), format_args!("")];
        SettingList::new().with("lines", lines).with("nothing", nothing).with("a = b", "[c] = d | e")
    }
}

#[hook(settings)]
impl Odd {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn odd() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    program().hook(Odd).hook(Twice::<u8>(PhantomData))
}

/// The environment variable with the folder of the child processes.
const FOLDER: &str = "TRAINER_TESTS_LOCK";

#[test]
#[ignore = "run by another test in a child process, which needs an environment variable"]
fn child_process_that_writes_a_lock() {
    let folder = std::path::PathBuf::from(std::env::var(FOLDER).unwrap());
    ordered().build().unwrap().check_lock(folder.join("hooks.lock")).unwrap();
    odd().hook(Twice::<u16>(PhantomData)).build().unwrap().check_lock(folder.join("odd.lock")).unwrap();
    fs::write(folder.join("other"), "mine").unwrap();
    let error = error(program(), &folder.join("other"));
    assert!(
        error.ends_with("this file is not a lock, so it is not replaced: choose another path"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(folder.join("other")).unwrap(), "mine");
}

/// Whatever `TRAINER_LOCK` is in the environment of the tests.
#[test]
fn differences_from_a_lock_are_described_in_words() {
    let folder = scratch("lock");
    let mut child = child_process("lock::child_process_that_compares_with_a_lock");
    let output = child.env_remove("TRAINER_LOCK").env(FOLDER, &folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "run by another test in a child process, which needs an environment without a variable"]
fn child_process_that_compares_with_a_lock() {
    let folder = std::path::PathBuf::from(std::env::var(FOLDER).unwrap());
    let path = folder.join("hooks.lock");
    let missing = error(ordered(), &path);
    assert!(
        missing
            .ends_with("there is no lock: write it with `TRAINER_LOCK=update`, and add it to the repository"),
        "{missing}"
    );
    let mut child = child_process("lock::child_process_that_writes_a_lock");
    let output = child.env("TRAINER_LOCK", "update").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));

    let text = fs::read_to_string(&path).unwrap();
    for line in [
        ".epochs(…) = 3",
        "optimizer.group 1.weight_decay = 0.0",
        concat!("trainer = ", env!("CARGO_PKG_VERSION")),
        "[before_opt_step]\nhalve | &mut | train\nclamp | &mut | train",
        "\ntrainer::metrics::MetricHook(accuracy) | & | train sanity valid test\n",
        "\ntrainer::metrics::MetricHook<trainer::metrics::Accuracy> (accuracy).name = \"accuracy\"\n",
        "optimizer.group 1.elements = 11",
        "optimizer.group 1.parameters = 2",
        "trainer::hooks::Ema.decay = 0.9",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains(".rs:"), "{text}");
    ordered().build().unwrap().check_lock(&path).unwrap();
    // A tape changes nothing.
    let taped = ordered().run_folder(folder.join("run")).tape(Tape::steps(100)).build().unwrap();
    taped.check_lock(&path).unwrap();
    let mut trained = ordered().build().unwrap();
    trained.fit(&mut model::rows(8), None).unwrap();
    let late = trained.check_lock(&path).unwrap_err().to_string();
    assert!(late.ends_with("and a run changes them: call it before `fit`"), "{late}");
    // On another rank, nothing is compared.
    program().rank(1).build().unwrap().check_lock(&path).unwrap();

    let swapped = program().on::<BeforeOptStep>("clamp", clamp).on::<BeforeOptStep>("halve", halve);
    let cases = [
        (
            error(swapped, &path),
            "\n- the order at before_opt_step was `halve`, `clamp` and is now `clamp`, `halve`\n",
        ),
        (
            error(program().on::<BeforeOptStep>("halve", halve), &path),
            "\n- `clamp` no longer runs at before_opt_step\n",
        ),
        (
            error(ordered().on::<AfterLoss>("watch", |_| {}), &path),
            "\n- `watch` now runs at after_loss, in train sanity valid test\n",
        ),
        (
            error(
                program().observe::<BeforeOptStep>("halve", |_| {}).on::<BeforeOptStep>("clamp", clamp),
                &path,
            ),
            "\n- `halve` could change training (`&mut Cx`) at before_opt_step, and can now only observe (`&Cx`)\n",
        ),
        (
            error(ordered().limit_test_batches(3), &path),
            "\n- `.limit_test_batches(…)` was not set and is now 3\n",
        ),
        (error(ordered().epochs(4), &path), "\n- `.epochs(…)` was 3 and is now 4\n"),
        (
            error(ordered().hook(ClipGradNorm::new(1.0)), &path),
            "\n- `trainer::hooks::ClipGradNorm.max_norm` was not set and is now 1.0\n",
        ),
        (
            error(ordered().hook(ClipGradNorm::new(1.0)), &path),
            "\n- `trainer::hooks::ClipGradNorm::clip` now runs around opt_step, in train\n",
        ),
        (
            error(ordered().hook(Progress::new()), &path),
            "\n- `trainer::hooks::Progress` now runs at before_step, in train sanity valid test, rank 0\n",
        ),
        (
            error(
                program()
                    .on::<BeforeOptStep>(HookOptions::named("halve").every(2), halve)
                    .on::<BeforeOptStep>("clamp", clamp),
                &path,
            ),
            "\n- `halve` ran at before_opt_step in train, and now runs in train, every 2 steps\n",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{expected}\n{error}");
        assert!(
            error.ends_with("if this is intended, update the lock with `TRAINER_LOCK=update`"),
            "{error}"
        );
    }

    // Equal names and texts of several lines.
    let path_of_odd = folder.join("odd.lock");
    assert!(
        odd().hook(Twice::<u16>(PhantomData)).build().unwrap().check_lock(&path_of_odd).unwrap().is_empty()
    );
    let error_of_odd = error(odd(), &path_of_odd);
    assert!(
        error_of_odd.contains(
            "the program differs from its lock:\n- `it::lock::Twice<u16>` no longer runs at after_step\nif this is"
        ),
        "{error_of_odd}"
    );

    // Another version alone is no error.
    fs::write(&path, text.replace(concat!("trainer = ", env!("CARGO_PKG_VERSION")), "trainer = 0.0.1"))
        .unwrap();
    let versions = ordered().build().unwrap().check_lock(&path).unwrap();
    let listed: Vec<String> = versions.iter().map(ToString::to_string).collect();
    assert_eq!(listed, [concat!("`trainer` was 0.0.1 and is now ", env!("CARGO_PKG_VERSION"))]);
    fs::write(&path, text.replace("halve | &mut | train", "halve | train")).unwrap();
    let damaged = error(ordered(), &path);
    assert!(damaged.ends_with("does not belong in a lock: `halve | train`"), "{damaged}");
    fs::write(&path, "something").unwrap();
    assert!(error(ordered(), &path).contains("this is not a lock of this version"));
}
