//! Compares the processor time of a metric's update with torchmetrics on the same tensors, in
//! interleaved rounds.
//!
//! It requires Linux and, in `TRAINER_INTEROP`, the path of a Python with torchmetrics and
//! safetensors; without this path, nothing is measured. `make interop` creates one:
//! `target/interop/bin/python`.

#![allow(missing_docs, clippy::disallowed_macros, clippy::disallowed_methods)]

#[path = "ratio/record.rs"]
mod record;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use record::record;
use trainer::metrics::{Accuracy, Auroc, Average, ConfusionMatrix, FBeta, MeanSquaredError, Metric, Pearson};
use trainer::prelude::*;

const ROUNDS: usize = 5;
/// The number of updates per measurement: enough for the clock's resolution of a few milliseconds.
const RUNS: usize = 2000;

/// The processor time of this thread, in nanoseconds.
fn processor_time() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux reports it");
    text.split(' ').next().and_then(|it| it.parse().ok()).expect("the first number")
}

fn updates<'a>(
    mut metric: impl Metric + 'a,
    pred: &'a Tensor,
    target: &'a Tensor,
) -> Box<dyn FnMut() -> f64 + 'a> {
    Box::new(move || {
        metric.reset();
        let start = processor_time();
        for _ in 0..RUNS {
            metric.update(pred, target).expect("the batch fits");
        }
        (processor_time() - start) / RUNS as f64
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let Some(python) = std::env::var_os("TRAINER_INTEROP") else {
        println!("\ntorchmetrics: not measured, because TRAINER_INTEROP is not set");
        return;
    };
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let scores = |rows: i64, classes: i64| {
        let pred = Tensor::randn([rows, classes], (Kind::Float, Device::Cpu));
        (pred, Tensor::randint(classes, [rows], (Kind::Int64, Device::Cpu)))
    };
    let (small, large) = (scores(256, 10), scores(256, 1000));
    let pred = Tensor::randn([1024], (Kind::Float, Device::Cpu));
    let outputs = (pred.shallow_clone(), pred + 0.1);
    let folder = std::env::temp_dir().join(format!("trainer-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let tensors: Vec<(String, &Tensor)> = [("small", &small), ("large", &large), ("outputs", &outputs)]
        .into_iter()
        .flat_map(|(name, (pred, target))| {
            [(format!("{name}.pred"), pred), (format!("{name}.target"), target)]
        })
        .collect();
    Tensor::write_safetensors(&tensors, folder.join("tensors.safetensors")).expect("written");

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/interop/metric_updates.py");
    // Python must not load the libtorch of this program.
    let mut command = Command::new(python);
    command.arg(script).arg(&folder).env_remove("LD_LIBRARY_PATH");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
    let mut requests = child.stdin.take().expect("piped");
    let mut replies = BufReader::new(child.stdout.take().expect("piped")).lines();

    let mut cases = [
        ("Accuracy, [256, 10]", updates(Accuracy::multiclass(10), &small.0, &small.1)),
        ("Accuracy, [256, 1000]", updates(Accuracy::multiclass(1000), &large.0, &large.1)),
        (
            "FBeta, macro, [256, 10]",
            updates(FBeta::multiclass(10).average(Average::Macro), &small.0, &small.1),
        ),
        ("ConfusionMatrix, [256, 10]", updates(ConfusionMatrix::multiclass(10), &small.0, &small.1)),
        (
            "Auroc, 50 thresholds, [256, 10]",
            updates(Auroc::multiclass(10).thresholds(50), &small.0, &small.1),
        ),
        ("MeanSquaredError, [1024]", updates(MeanSquaredError::new(), &outputs.0, &outputs.1)),
        ("Pearson, [1024]", updates(Pearson::new(), &outputs.0, &outputs.1)),
    ];
    let mut times = vec![(Vec::new(), Vec::new()); cases.len()];
    for round in 0..=ROUNDS {
        writeln!(requests, "{RUNS}").expect("Python reads");
        let reply = replies.next().expect("Python replies").expect("text");
        let theirs: Vec<f64> = reply.split(' ').map(|it| it.parse().expect("a number")).collect();
        for (((_, case), theirs), times) in cases.iter_mut().zip(theirs).zip(&mut times) {
            let own = case();
            if round > 0 {
                times.0.push(own); // round 0 warms up
                times.1.push(theirs);
            }
        }
    }
    drop(requests);
    child.wait().expect("Python ends");
    std::fs::remove_dir_all(&folder).expect("removed");
    let title = "processor time of an update, one thread";
    println!("\n{title}: ours, torchmetrics', and the ratio");
    for ((name, _), (own, theirs)) in cases.iter().zip(times) {
        let ratios = own.iter().zip(&theirs).map(|(own, theirs)| own / theirs).collect();
        let (own, theirs, ratio) = (median(own), median(theirs), median(ratios));
        println!("  {name:<34} {own:>10.0} ns {theirs:>10.0} ns {ratio:>7.3} ×");
        record(title, name, own, ratio);
    }
}
