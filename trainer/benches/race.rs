//! Times the steps of the trainer and of a hand-written loop for `scripts/race.py`, which compares
//! them with other frameworks.
//!
//! The arguments are `trainer` or `tch`, a number of steps, and a number of hooks.

#![allow(missing_docs, clippy::disallowed_macros)]

mod mlp;

use std::cell::Cell;
use std::time::{Instant, SystemTime};

use tch::nn::{Module, OptimizerConfig};
use trainer::data::from_fn;
use trainer::prelude::*;

/// Steps before the measured ones. `scripts/race.py` has the same number.
const WARM_UP: i64 = 500;

/// A hook that counts steps.
struct Count(u64);

#[hook]
impl Count {
    fn after_step(&mut self, _: &Cx<AfterStep>) {
        self.0 += 1;
    }
}

/// The times that the loader measures, in seconds.
#[derive(Default)]
struct Times {
    first: Cell<f64>,
    step: Cell<f64>,
}

impl Times {
    /// Returns an iterator over the same batch, which notes the times.
    fn batches(&self, steps: i64, batch: &(Tensor, Tensor)) -> impl Iterator<Item = (Tensor, Tensor)> {
        let mut began = Instant::now();
        (0..=WARM_UP + steps).map(move |step| {
            if step == 1 {
                self.first.set(since_start());
            }
            if step == WARM_UP {
                began = Instant::now();
            }
            if step == WARM_UP + steps {
                self.step.set(began.elapsed().as_secs_f64() / steps as f64);
            }
            (batch.0.shallow_clone(), batch.1.shallow_clone())
        })
    }
}

/// Returns the seconds since `scripts/race.py` started this process.
fn since_start() -> f64 {
    let started: f64 =
        std::env::var("TRAINER_RACE_STARTED").map_or(f64::NAN, |at| at.parse().unwrap_or(f64::NAN));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is set");
    now.as_secs_f64() - started
}

fn tch_by_hand(batches: impl Iterator<Item = (Tensor, Tensor)>) {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = mlp::net(&vs.root());
    let mut optimizer = nn::Sgd::default().build(&vs, 1e-3).expect("tch builds its own optimizer");
    let mut total = 0.0;
    for (inputs, labels) in batches {
        let loss = mlp::cross_entropy(&net.forward(&inputs), &labels);
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
        total += loss.double_value(&[]);
    }
    std::hint::black_box(total);
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, steps, hooks] = &arguments[..] else {
        println!("`make race` runs this benchmark");
        return Ok(());
    };
    tch::set_num_threads(1);
    let (steps, hooks): (i64, u64) = (steps.parse().expect("steps"), hooks.parse().expect("hooks"));
    let batch = mlp::batch();
    let times = Times::default();
    let version = match name.as_str() {
        "tch" => {
            tch_by_hand(times.batches(steps, &batch));
            "0.26"
        }
        _ => {
            let builder = Trainer::builder(mlp::task()).optimizer(Sgd::new(1e-3));
            let mut trainer = (0..hooks).fold(builder, |builder, _| builder.hook(Count(0))).build()?;
            trainer.fit(&mut from_fn(|_| times.batches(steps, &batch)), None)?;
            env!("CARGO_PKG_VERSION")
        }
    };
    let (step, first) = (times.step.get(), times.first.get());
    println!("{}", serde_json::json!({ "version": version, "step": step, "first": first }));
    Ok(())
}
