//! Every allocation of more than 1 MB fails once while a checkpoint is written or read, and while
//! weights are written or read: the result is an error, and the process does not abort.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trainer::checkpoint::{self, LoadWeights};
use trainer::hooks::{Checkpoint, Ema};
use trainer::prelude::*;

use crate::preload::{end_failures, fail_allocation, faulty_process};
use crate::pt_archive::{archive, pickle};
use crate::support::{exact_state, scratch};

/// The environment variable with the folder of the child process.
const FOLDER: &str = "TRAINER_TESTS_FOLDER";

/// The number of rows and columns of the model's matrix, which has 1.4 MB.
const SIZE: i64 = 600;

/// Whether this is the long test.
fn is_whole() -> bool {
    std::env::var_os("TRAINER_SOAK").is_some()
}

/// The number of epochs before the one whose allocations fail.
fn epochs() -> u64 {
    if is_whole() { 3 } else { 1 }
}

/// What an allocation fails in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum During {
    Nothing,
    Save,
    Resume,
}

/// Trains in a folder, after a resume if it contains checkpoints, while the `nth` large allocation
/// fails. Returns the result, the trainer, and whether an allocation has failed.
fn fit(
    folder: &Path,
    epochs: u64,
    in_background: bool,
    during: During,
    nth: u64,
) -> (Result<()>, Trainer<impl Task<Batch = (Tensor, Tensor)>>, bool) {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root() / "fc", SIZE, SIZE, Default::default());
    let loss = |pred: &Tensor, target: &Tensor| pred.mse_loss(target, Reduction::Mean);
    let has_failed = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&has_failed);
    let mut trainer = Trainer::builder(Supervised::new(vs, net, loss))
        .optimizer(AdamW::new(1e-3))
        .discover(Discover::None)
        .epochs(epochs)
        .hook(Ema::new(0.9))
        .hook(Checkpoint::new(folder).in_background(in_background))
        .resume(Resume::Auto)
        .on::<BeforeSaveCheckpoint>("fail", move |_| {
            if during == During::Save {
                fail_allocation(nth);
            }
        })
        .on::<AfterStep>("history", |cx| {
            // A history of more than 1 MB.
            for nth in 0..if is_whole() { 400 } else { 0 } {
                cx.log(format!("{nth:01000}"), nth as f64);
            }
        })
        .on::<AfterLoadCheckpoint>("end", move |_| noted.store(end_failures(), Ordering::Relaxed))
        .build()
        .unwrap();
    let inputs = Tensor::arange(4 * SIZE, (Kind::Float, Device::Cpu)).view([4, SIZE]).sin();
    let mut data = InMemory::new((inputs.copy(), inputs)).unwrap().batch_size(2);
    if during == During::Resume {
        fail_allocation(nth);
    }
    let result = trainer.fit(&mut data, None).map(drop);
    let has_failed = end_failures() || has_failed.load(Ordering::Relaxed);
    (result, trainer, has_failed)
}

/// Asserts that a folder contains nothing but complete checkpoints, at least one.
fn assert_complete(folder: &Path) {
    let mut checkpoints = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != ".trainer-lock" {
            assert!(name.starts_with("step-"), "{name} was left");
            checkpoint::verify(folder.join(&name)).unwrap();
            checkpoints += 1;
        }
    }
    assert!(checkpoints > 0);
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Runs an operation until no allocation fails any more: first the first large allocation fails,
/// then the second one, and so on. `run` returns whether one has failed, and the result.
fn each_allocation(what: &str, mut run: impl FnMut(u64) -> (bool, Result<()>)) {
    for nth in 1.. {
        let (has_failed, result) = run(nth);
        if !has_failed {
            result.unwrap();
            println!("{what}: {} allocations failed", nth - 1);
            assert!(nth > 1, "{what}: no large allocation");
            return;
        }
    }
}

/// The program whose allocations fail.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_while_allocations_fail() {
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let [begun, run] = ["begun", "run"].map(|name| folder.join(name));
    tch::set_num_threads(1);
    fit(&begun, epochs(), false, During::Nothing, 0).0.unwrap();
    copy(&begun, &run);
    let (result, trainer, _) = fit(&run, epochs() + 1, false, During::Nothing, 0);
    result.unwrap();
    let expected = exact_state(&trainer);

    for (during, in_background) in [(During::Save, false), (During::Save, true), (During::Resume, false)] {
        each_allocation(&format!("{during:?}, in background: {in_background}"), |nth| {
            copy(&begun, &run);
            let (result, trainer, has_failed) = fit(&run, epochs() + 1, in_background, during, nth);
            drop(trainer);
            assert_complete(&run);
            let (resumed, trainer, _) = fit(&run, epochs() + 1, false, During::Nothing, 0);
            resumed.unwrap();
            assert_eq!(exact_state(&trainer), expected, "after failure {nth} during {during:?}");
            (has_failed, result)
        });
    }

    let (_, mut trainer, _) = fit(&run, epochs() + 1, false, During::Nothing, 0);
    let weights = folder.join("weights.safetensors");
    each_allocation("writing weights", |nth| {
        fail_allocation(nth);
        let result = trainer.save_weights(&weights);
        let has_failed = end_failures();
        trainer.save_weights(&weights).unwrap();
        (has_failed, result)
    });
    let elements = (SIZE * SIZE).to_le_bytes();
    let size = b"M\x58\x02M\x58\x02\x86";
    let pickle =
        pickle("torch\nFloatStorage", &[b"J", &elements[..4]].concat(), b"K\0", size, b"M\x58\x02K\x01\x86");
    // Many objects, which the `dict` of the pickle takes as its state.
    let objects = [b"(".as_slice(), &b"K\x01".repeat(300_000), b"tb"].concat();
    let pickle = [&pickle[..3], &objects, &pickle[3..]].concat();
    let data = vec![0; usize::try_from(SIZE * SIZE * 4).unwrap()];
    let pt = folder.join("weights.pt");
    fs::write(&pt, archive(&[("a/data.pkl", &pickle), ("a/data/0", &data)])).unwrap();
    let checkpoint = checkpoint::newest(&run).unwrap();
    for file in [&weights, &pt, &checkpoint] {
        each_allocation(&format!("loading {}", file.display()), |nth| {
            let before = exact_state(&trainer);
            let how = LoadWeights::new().rename(|name| Some(name.replace('x', "fc.weight"))).partial(true);
            fail_allocation(nth);
            let result = trainer.load_weights(file, &how).map(drop);
            let has_failed = end_failures();
            assert!(result.is_ok() || exact_state(&trainer) == before, "nothing has changed");
            (has_failed, result)
        });
    }
    each_allocation("verifying", |nth| {
        fail_allocation(nth);
        let result = checkpoint::verify(&checkpoint);
        (end_failures(), result)
    });
}

#[test]
fn a_failed_allocation_is_an_error() {
    let folder = scratch("allocations");
    let output =
        faulty_process("allocations::trains_while_allocations_fail").env(FOLDER, &folder).output().unwrap();
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    println!("{text}");
    fs::remove_dir_all(&folder).unwrap();
}
