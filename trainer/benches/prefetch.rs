//! Measures how much of a loader's time prefetching hides if a batch takes as long as a step, and
//! its overhead if a batch takes no time.

#![allow(missing_docs)]

mod ratio;

use std::hint::black_box;
use std::time::Instant;

use ratio::{Case, compare};
use trainer::data::{RowRng, from_fn};
use trainer::prelude::*;

/// The CPU time of a step, and of producing a batch, in seconds.
const EACH: f64 = 2e-3;

/// Keeps a core busy with `turns` iterations of Knuth's MMIX generator.
fn work(turns: u64) -> u64 {
    (0..turns).fold(turns, |state, _| {
        black_box(state).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
    })
}

/// Returns the number of iterations that take [`EACH`] seconds, by the fastest of several
/// measurements.
fn turns() -> u64 {
    const TRIED: u64 = 1_000_000;
    let seconds = |_| {
        let start = Instant::now();
        black_box(work(TRIED));
        start.elapsed().as_secs_f64()
    };
    let fastest = (0..20).map(seconds).fold(f64::INFINITY, f64::min);
    (TRIED as f64 * EACH / fastest) as u64
}

/// A model with one parameter and a slow forward pass.
struct Slow {
    vars: nn::VarStore,
    weight: Tensor,
    turns: u64,
}

impl Task for Slow {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        black_box(work(self.turns));
        Ok(&self.weight * batch)
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.square().mean(Kind::Float))
    }
}

/// Produces a batch slowly.
fn batch(turns: u64) -> Tensor {
    black_box(work(turns));
    Tensor::ones([32], (Kind::Float, Device::Cpu))
}

/// A dataset whose batches are slow to produce.
struct Data {
    turns: u64,
    count: usize,
}

impl Dataset for Data {
    type Row = Tensor;

    fn len(&self) -> usize {
        self.count
    }
    fn row(&self, _: usize, _: &mut RowRng) -> Result<Tensor> {
        Ok(batch(self.turns))
    }
}

/// Returns a function that trains for one pass over a loader.
fn pass(mut loader: impl Loader<Tensor> + 'static, turns: u64) -> Box<dyn FnMut()> {
    let vars = nn::VarStore::new(Device::Cpu);
    let weight = vars.root().ones("weight", &[32]);
    let task = Slow { vars, weight, turns };
    let mut trainer =
        Trainer::builder(task).optimizer(Sgd::new(1e-3)).build().expect("a trainer without hooks");
    Box::new(move || drop(trainer.fit(&mut loader, None).expect("nothing fails")))
}

/// Returns a function that takes as long as a pass does at best with two threads: one runs the
/// steps, the other produces batches, and neither waits for the other.
fn independent(steps: u32, turns: u64) -> Box<dyn FnMut()> {
    let mut steps_alone = pass(from_fn(move |_| (0..steps).map(|_| batch(0))), turns);
    Box::new(move || {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..steps).for_each(|_| drop(batch(turns))));
            steps_alone();
        });
    })
}

/// Compares `.prefetch(2)` with other ways of producing batches.
fn compared(title: &str, steps: u32, turns: u64) {
    let stream = || from_fn(move |_| (0..steps).map(move |_| batch(turns)));
    let workers = DataLoader::new(Data { turns, count: steps as usize }).workers(1);
    let cases: &mut [Case<'_>] = &mut [
        (".prefetch(2)", pass(stream().prefetch(2), turns)),
        ("a dataset with 1 worker", pass(workers, turns)),
        ("no prefetching: the ratio is its gain", pass(stream(), turns)),
        ("two independent threads", independent(steps, turns)),
    ];
    compare(title, 1, steps, cases);
}

fn main() {
    tch::set_num_threads(1);
    let milliseconds = EACH * 1e3;
    let title = format!("50 steps of {milliseconds} ms, with a loader that takes as long for each batch");
    compared(&title, 50, turns());
    compared("2,000 steps, with a loader that takes no time", 2000, 0);
}
