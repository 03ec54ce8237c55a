//! Measures how fast 500 MB of weights are written to disk, compared to `dd` with fsync in the same
//! folder.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

#[path = "ratio/record.rs"]
mod record;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs, hint};

use record::record;
use trainer::prelude::*;

/// 125 million parameters of four bytes each, in 10 layers.
const LAYERS: i64 = 10;
const ROWS: i64 = 12_500;
const COLUMNS: i64 = 1_000;
const ROUNDS: usize = 5;

/// A task with many weights that its forward pass does not use.
struct Large(nn::VarStore);

impl Task for Large {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(batch.shallow_clone())
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.mean(Kind::Float))
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

fn dd(path: &Path) {
    let count = LAYERS * ROWS * COLUMNS * 4 / 1_000_000;
    let status = Command::new("dd")
        .args(["if=/dev/zero", "bs=1000000", "conv=fsync"])
        .arg(format!("of={}", path.display()))
        .arg(format!("count={count}"))
        .stderr(Stdio::null())
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "expected `dd` to be installed, and the folder to be writable"
    );
}

fn main() -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    for layer in 0..LAYERS {
        let _ = (vs.root() / layer).randn("weight", &[ROWS, COLUMNS], 0.0, 1.0);
    }
    let trainer = Trainer::builder(Large(vs)).discover(Discover::None).build()?;
    // The target folder is on a disk, whereas the system's temporary folder may be in memory.
    let folder = env::current_dir()?.join(format!("target/bench-checkpoint-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let (theirs, ours) = (folder.join("dd"), folder.join("weights.safetensors"));

    let (mut of_dd, mut of_trainer, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let _ = (fs::remove_file(&theirs), fs::remove_file(&ours));
        of_dd.push(seconds(|| dd(&theirs)));
        of_trainer.push(seconds(|| hint::black_box(&trainer).save_weights(&ours).expect("it is written")));
        ratios.push(of_dd[of_dd.len() - 1] / of_trainer[of_trainer.len() - 1]);
    }
    fs::remove_dir_all(&folder)?;
    for times in [&mut of_dd, &mut of_trainer, &mut ratios] {
        times.sort_by(f64::total_cmp);
    }
    let middle = ROUNDS / 2;
    let title = "500 MB of weights written to disk and hashed";
    println!("\n{title}; medians of {ROUNDS} interleaved rounds");
    println!("  dd, bs=1M conv=fsync          {:8.0} MB/s", 500.0 / of_dd[middle]);
    println!(
        "  trainer, save_weights         {:8.0} MB/s    {:.2} of dd",
        500.0 / of_trainer[middle],
        ratios[middle]
    );
    record(title, "dd, bs=1M conv=fsync", of_dd[middle] * 1e9, 1.0);
    record(title, "save_weights", of_trainer[middle] * 1e9, 1.0 / ratios[middle]);
    Ok(())
}
