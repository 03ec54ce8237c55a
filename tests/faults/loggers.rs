//! Every operation on the files of every logger, monitor and tape fails, in runs that roll back and
//! resume: each run ends well, with the weights of a run without faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use trainer::hooks::{
    Checkpoint, Checkup, HyperparameterMonitor, KernelProfiler, ModelSummary, ParameterMonitor, Progress,
    RankMonitor, SystemMonitor, ThroughputMonitor,
};
use trainer::loggers::{Console, Csv, JsonLines, MlFlow, Report, TensorBoard, ToFile, Wandb};
use trainer::prelude::*;
use trainer::{Tape, TrainerBuilder};

use crate::preload::{end_failures, faulty_process, refuse};
use crate::support::{exact_state, scratch};

const FOLDER: &str = "TRAINER_TESTS_FOLDER";

/// The observers whose files fail: a part of the path of each file. Every built-in hook with the
/// key `may_fail` is here or in `WITHOUT_FILES`.
const FILES: [(&str, &str); 17] = [
    ("Csv", "values.csv"),
    ("JsonLines", "records.jsonl"),
    ("ToFile", "values.tsv"),
    ("TensorBoard", "events.out.tfevents"),
    ("TensorBoard", "events.out.tf-events"), // what was moved aside
    ("Report", "report.jsonl"),
    ("Report", "report.html"),
    ("MlFlow", "mlflow.jsonl"),
    ("MlFlow", "mlflow.json"),
    ("TapeFile", "run.tape"),
    ("Wandb", "run.wandb"),
    ("Wandb", "media/images"),
    ("KernelProfiler", "kernels.json"),
    ("SystemMonitor", "/proc/"),
    ("", "before-resume"),
    // The files that describe the run are not written by hooks.
    ("", "run.json"),
    ("", "live.json"),
];

/// The observers without files, which the runs have too.
const WITHOUT_FILES: [&str; 8] = [
    "Checkup",
    "Console",
    "HyperparameterMonitor",
    "ModelSummary",
    "ParameterMonitor",
    "Progress",
    "RankMonitor",
    "ThroughputMonitor",
];

/// The observers that these runs cannot have, with the reason.
const ELSEWHERE: [(&str, &str); 6] = [
    ("ActivationStats", "has no files; `tests/it/may_fail.rs` lets such hooks fail"),
    ("CudaMemoryMonitor", "needs a GPU"),
    ("Dashboard", "needs a terminal, and cannot be combined with `Progress`"),
    ("DeadUnits", "has no files"),
    ("GpuMonitor", "needs a GPU"),
    ("SaturatedUnits", "has no files"),
];

const KINDS: [&str; 9] = ["create", "open", "read", "write", "sync", "rename", "remove", "truncate", "lock"];

/// The operations of a kind that fail: the number of the first one, and how many.
const RANGES: [[u64; 2]; 4] = [[1, 0], [2, 1], [1, 1], [4, 3]];

/// Returns the ranges: all of them in the long test, otherwise the first.
fn ranges() -> &'static [[u64; 2]] {
    if std::env::var_os("TRAINER_SOAK").is_some() { &RANGES } else { &RANGES[..1] }
}

const NO_SPACE: i32 = 28;
const IO_ERROR: i32 = 5;

/// Returns the data for an epoch of four batches.
fn rows() -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(32, (Kind::Float, Device::Cpu)).view([8, 4]).sin();
    let labels = Tensor::arange(8, (Kind::Int64, Device::Cpu)).remainder(2);
    InMemory::new((inputs, labels)).unwrap().batch_size(2).shuffle(3)
}

/// Returns the builder of a trainer with all observers. The profiler of kernels takes longer than
/// everything else, so only its own runs have it.
fn builder(
    folder: &Path,
    server: &str,
    epochs: u64,
    profiles: bool,
) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)> + use<>> {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
    let net = nn::seq().add(net.named("fc"));
    let text = ToFile::in_run_folder("values.tsv", |record, out| {
        for (name, value) in record.scalars() {
            writeln!(out, "{name}\t{value}")?;
        }
        Ok(())
    });
    let kernels = folder.parent().unwrap().join("kernels.json");
    let builder = Trainer::builder(Supervised::new(vs, net, Tensor::cross_entropy_for_logits))
        .optimizer(AdamW::new(0.05))
        .discover(Discover::None)
        .epochs(epochs)
        .seed(5)
        .run_folder(folder)
        .record_every(Every::Steps(1))
        .validate_every(Every::Epochs(1))
        .resume(Resume::Auto)
        .tape(Tape::full())
        .hook(Checkpoint::in_run_folder().every(Every::Steps(3)))
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(text)
        .hook(TensorBoard::new())
        .hook(Report::new())
        .hook(Wandb::new("digits"))
        .hook(MlFlow::new(server).wait_at_end(Duration::from_millis(5)))
        .hook(Checkup::default())
        .hook(Console::new())
        .hook(Progress::new())
        .hook(ModelSummary::new().quiet(true))
        .hook(ParameterMonitor::new("*"))
        .hook(HyperparameterMonitor::new())
        .hook(RankMonitor::new())
        .hook(ThroughputMonitor::new())
        .hook(SystemMonitor::new())
        .on::<BeforeStep>("keep", |cx| {
            if cx.roll_backs() == 0 && cx.counters().batches_seen == 1 {
                cx.keep_state();
            }
        })
        .on::<AfterStep>("roll back", |cx| {
            cx.log_image("gray", Tensor::ones([1, 2, 2], (Kind::Float, Device::Cpu)));
            if cx.roll_backs() == 0 && cx.counters().batches_seen == 3 {
                cx.roll_back("once");
            }
        });
    if profiles { builder.hook(KernelProfiler::new(kernels, 1..2)) } else { builder }
}

/// Returns the address of a server that answers every request as an MLflow server does.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut bytes = [0; 1 << 16];
                let _ = stream.read(&mut bytes);
                let body = r#"{"experiment_id":"1","experiment":{"experiment_id":"1"},"run":{"info":{"run_id":"r"}},"metrics":[]}"#;
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            });
        }
    });
    address
}

/// Trains, resumes with more epochs and validates. Returns the final state.
fn run(folder: &Path, server: &str, profiles: bool) -> Result<Vec<(String, Vec<u64>)>> {
    let mut trainer = builder(folder, server, 2, profiles).build()?;
    trainer.fit(&mut rows(), Some(&mut rows()))?;
    drop(trainer);
    let mut trainer = builder(folder, server, 3, profiles).build()?;
    trainer.fit(&mut rows(), Some(&mut rows()))?;
    trainer.validate(&mut rows())?;
    Ok(exact_state(&trainer))
}

/// The program whose operations fail. Prints the number of tries.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_while_the_files_of_observers_fail() {
    let root = PathBuf::from(std::env::var(FOLDER).unwrap());
    tch::set_num_threads(1);
    let server = server();
    let expected = run(&root.join("whole"), &server, false).unwrap();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut tries, mut ended, mut differ) = (0, Vec::new(), Vec::new());
    for (hook, path) in FILES {
        for kind in KINDS {
            for &range in ranges() {
                let folder = root.join("run");
                let _ = fs::remove_dir_all(&folder);
                let errno = if matches!(kind, "create" | "write") { NO_SPACE } else { IO_ERROR };
                refuse(kind, errno, range, path);
                let result = run(&folder, &server, hook == "KernelProfiler");
                if !end_failures() {
                    break; // there are no such operations
                }
                tries += 1;
                *counts.entry(hook).or_default() += 1;
                let what = format!("{kind} {range:?} of {path}");
                match result {
                    Err(error) => ended.push(format!("{what}: {error}")),
                    Ok(state) if state != expected => differ.push(what),
                    Ok(_) => {}
                }
            }
        }
    }
    println!(
        "tries: {tries} {counts:?}; runs that ended: {}; weights that differ: {}",
        ended.len(),
        differ.len()
    );
    assert!(ended.is_empty() && differ.is_empty(), "{}\n{}", ended.join("\n"), differ.join("\n"));
    for (hook, _) in FILES {
        assert!(counts.contains_key(hook), "no operation of {hook} has failed");
    }
}

#[test]
fn no_fault_of_an_observer_ends_a_run_or_changes_its_weights() {
    let folder = scratch("observers").canonicalize().unwrap();
    let mut command = faulty_process("loggers::trains_while_the_files_of_observers_fail");
    let output = command.env(FOLDER, &folder).output().unwrap();
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(
        output.status.success(),
        "{}\n{text}\n{}",
        output.status,
        &errors[errors.len().saturating_sub(20_000)..]
    );
    println!("{}", text.lines().find(|line| line.contains("tries: ")).unwrap_or_default());
    fs::remove_dir_all(&folder).unwrap();
}

/// A new logger or monitor that is in none of the lists fails here.
#[test]
fn every_observer_of_this_crate_is_in_these_tests() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/src");
    let mut found = BTreeSet::new();
    let mut folders = vec![source];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.extend(observers(&fs::read_to_string(path).unwrap()));
            }
        }
    }
    let own = FILES.map(|(hook, _)| hook).into_iter().filter(|hook| !hook.is_empty());
    let listed: BTreeSet<String> =
        own.chain(WITHOUT_FILES).chain(ELSEWHERE.map(|(hook, _)| hook)).map(str::to_owned).collect();
    assert_eq!(found, listed);
}

/// Returns the types whose block of hooks has the key `may_fail`.
fn observers(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut may_fail = false;
    for line in source.lines() {
        if let Some(name) = line.strip_prefix("file_logger!(") {
            // This macro writes such a block.
            found.extend(name.split([',', ')']).next().map(str::to_owned));
        } else if line.starts_with("#[hook(") {
            may_fail = line.contains("may_fail");
        } else if let Some(name) = line.strip_prefix("impl ").filter(|_| std::mem::take(&mut may_fail)) {
            found.push(name.trim_end_matches(" {").to_owned());
        }
    }
    found
}
