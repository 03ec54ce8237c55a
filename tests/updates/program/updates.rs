//! 25 updates of a crate of hooks: the lock and the golden find those that change what a program
//! runs or computes, and only those.
//!
//! The folder `../denoise` has 26 versions of a package of that name. Each is complete, so that
//! `diff ../denoise/v00/lib.rs ../denoise/v07/lib.rs` shows an update, and cargo builds them as it
//! builds several versions of a dependency: the names and versions in messages are those of the
//! packages.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use trainer::lock::{Change, Compared, GoldenCheck};
use trainer::prelude::*;

use {v00 as _, v01 as _, v02 as _, v03 as _, v04 as _, v05 as _, v06 as _, v07 as _, v08 as _};
use {v09 as _, v10 as _, v11 as _, v12 as _, v13 as _, v14 as _, v15 as _, v16 as _, v17 as _};
use {v18 as _, v19 as _, v20 as _, v21 as _, v22 as _, v23 as _, v24 as _, v25 as _};

/// What an update changes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Changes {
    /// The hooks or the settings, with what the lock says. The first steps may be equal.
    Lock(&'static str, Golden),
    /// Only what a hook computes in the first 20 steps, and the first step that shows it.
    Steps(u32),
    /// Nothing of these.
    Nothing,
}

/// What the golden finds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Golden {
    Differs,
    Equal,
}

/// The updates from version 0.1.0 to 0.1.1, 0.1.2, … A hook that is added is a change, even if it
/// only observes: a review wants to see it. So is a hook that could now change training, although
/// it does not.
const UPDATES: [(&str, Changes); 25] = [
    (
        "another `ord`, and so another order",
        Changes::Lock(
            "the order at before_opt_step was `denoise::soften`, `denoise::clamp` and is now `denoise::clamp`, `denoise::soften`",
            Golden::Differs,
        ),
    ),
    (
        "other phases",
        Changes::Lock(
            "`denoise::count` ran at after_loss in train sanity valid test, and now runs in train",
            Golden::Equal,
        ),
    ),
    (
        "another interval",
        Changes::Lock(
            "`denoise::watch` ran at after_backward in train, every 5 batches, and now runs in train, every 10 batches",
            Golden::Equal,
        ),
    ),
    (
        "a new hook",
        Changes::Lock("`denoise::again` now runs at after_loss, in train sanity valid test", Golden::Equal),
    ),
    (
        "a hook that was removed",
        Changes::Lock("`denoise::count` no longer runs at after_loss", Golden::Equal),
    ),
    ("another moment", Changes::Lock("`denoise::clamp` no longer runs at before_opt_step", Golden::Differs)),
    (
        "`&mut Cx` in place of `&Cx`",
        Changes::Lock(
            "`denoise::watch` could only observe (`&Cx`) at after_backward, and can now change training (`&mut Cx`)",
            Golden::Equal,
        ),
    ),
    (
        "another default of a setting",
        Changes::Lock("`denoise::Decay.rate` was 0.99 and is now 0.98", Golden::Differs),
    ),
    ("a new setting", Changes::Lock("`denoise::Decay.from` was not set and is now 0", Golden::Equal)),
    ("another constant in a function", Changes::Steps(1)),
    ("a random draw in the fifth batch", Changes::Steps(6)),
    ("a learning rate that falls later", Changes::Steps(2)),
    ("only the version", Changes::Nothing),
    ("a doc comment", Changes::Nothing),
    ("names of local variables", Changes::Nothing),
    ("the order of functions in the file", Changes::Nothing),
    ("a function in place of a part of another", Changes::Nothing),
    ("another computation of the same bits", Changes::Nothing),
    ("a public function", Changes::Nothing),
    ("a type with hooks that the program does not add", Changes::Nothing),
    ("another `ord` in the same order", Changes::Nothing),
    ("`after` in place of an `ord`, in the same order", Changes::Nothing),
    ("the name of a logged value", Changes::Nothing),
    ("what a hook computes after 1,000 steps", Changes::Nothing),
    ("iterators in place of a loop", Changes::Nothing),
];

/// The inputs and the labels of a batch.
type Rows = (Tensor, Tensor);

/// A program with one version of the crate, in which hooks that draw random numbers have an effect.
fn program(patch: usize) -> (Trainer<impl Task<Batch = Rows>>, InMemory<Rows>) {
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let net = nn::seq_t()
        .add(nn::linear(&root / "fc1", 4, 8, Default::default()))
        .add_fn_t(|hidden, is_train| hidden.relu().dropout(0.2, is_train))
        .add(nn::linear(&root / "fc2", 8, 3, Default::default()));
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let builder = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::crates([format!("denoise@0.1.{patch}")]))
        .seed(3)
        .epochs(10);
    let inputs = Tensor::arange(64, (Kind::Float, Device::Cpu)).sin().view([16, 4]);
    let labels = Tensor::arange(16, (Kind::Int64, Device::Cpu)).remainder(3);
    (builder.build().unwrap(), InMemory::new((inputs, labels)).unwrap().batch_size(4).shuffle(1))
}

fn check_lock(patch: usize, folder: &Path) -> Result<Vec<Change>> {
    program(patch).0.check_lock(folder.join("hooks.lock"))
}

fn check_golden(patch: usize, folder: &Path) -> Result<GoldenCheck> {
    let (trainer, mut train) = program(patch);
    trainer.check_golden(folder.join("hooks.golden"), &mut train, None)
}

/// The environment variable with the folder of the files.
const FOLDER: &str = "TRAINER_TESTS_UPDATES";

/// Runs an ignored test of this program in a separate process, because all threads share libtorch's
/// random numbers and the environment.
fn run_child(test: &str, folder: &Path, update: bool) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(FOLDER, folder);
    for name in ["TRAINER_LOCK", "TRAINER_TAPE", "TRAINER_PROFILE", "TRAINER_CHECK"] {
        command.env_remove(name);
    }
    if update {
        command.env("TRAINER_LOCK", "update");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

fn folder() -> PathBuf {
    PathBuf::from(env::var(FOLDER).unwrap())
}

#[test]
fn updates_that_change_results_are_detected_among_25_updates() {
    let folder = env::temp_dir().join(format!("trainer-tests-{}-updates", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    run_child("child_process_that_writes", &folder, true);
    run_child("child_process_that_compares", &folder, false);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "run by another test in a child process"]
fn child_process_that_writes() {
    check_lock(0, &folder()).unwrap();
    assert_eq!(check_golden(0, &folder()).unwrap().compared, Compared::Written);
}

#[test]
#[ignore = "run by another test in a child process"]
fn child_process_that_compares() {
    let folder = folder();
    assert!(check_lock(0, &folder).unwrap().is_empty());
    let same = check_golden(0, &folder).unwrap();
    assert_eq!(same.to_string(), "the first 20 steps are equal, bit by bit");

    let mut found = 0;
    for ((what, expected), patch) in UPDATES.iter().zip(1..) {
        let version = format!("`denoise` was 0.1.0 and is now 0.1.{patch}");
        let [lock, golden] = [
            check_lock(patch, &folder).map(|versions| list(&versions)),
            check_golden(patch, &folder).map(|checked| {
                assert_eq!(checked.compared, Compared::Bits, "{what}");
                list(&checked.versions)
            }),
        ]
        .map(|result| result.map_err(|error| error.to_string()));
        let ends = |text: &str, file: &str| {
            assert!(text.contains(&format!("\nthe crate {version}\n")), "{what}: {text}");
            assert!(
                text.ends_with(&format!("update the {file} with `TRAINER_LOCK=update`")),
                "{what}: {text}"
            );
        };
        found += usize::from(lock.is_err() || golden.is_err());
        match *expected {
            Changes::Lock(says, in_steps) => {
                let lock = lock.expect_err(what);
                assert!(lock.contains(&format!("\n- {says}\n")), "{what}: {lock}");
                ends(&lock, "lock");
                assert_eq!(golden.is_err(), in_steps == Golden::Differs, "{what}: {golden:?}");
                golden.map_or_else(|text| ends(&text, "golden"), |versions| assert_eq!(versions, version));
            }
            Changes::Steps(step) => {
                assert_eq!(lock.expect(what), version);
                let golden = golden.expect_err(what);
                assert!(
                    golden.contains(&format!(": step {step} differs from the golden")),
                    "{what}: {golden}"
                );
                assert!(golden.contains(&format!("`TRAINER_TAPE=full:0..{step}`")), "{what}: {golden}");
                ends(&golden, "golden");
            }
            // A version that differs alone is listed.
            Changes::Nothing => {
                assert_eq!(lock.expect(what), version);
                assert_eq!(golden.expect(what), version);
            }
        }
    }
    assert_eq!(found, 12);
}

fn list(changes: &[Change]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
