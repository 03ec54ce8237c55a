//! Compares the loss of a linear layer without its logits with the loss of whole logits, at the
//! size of GPT-2: processor time, and the peak of memory above the operands.

#![allow(missing_docs, clippy::disallowed_macros, clippy::disallowed_methods)]

#[path = "ratio/process.rs"]
mod process;

use std::fs;

use trainer::losses::{LinearCrossEntropy, linear_cross_entropy};
use trainer::prelude::*;

use process::processor_time;

const ROUNDS: usize = 3;

/// A size in `/proc/self/status`, in megabytes.
fn megabytes(key: &str) -> f64 {
    let text = fs::read_to_string("/proc/self/status").expect("Linux reports it");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("it has this line");
    let number = line.trim_matches(|letter: char| !letter.is_ascii_digit());
    number.parse::<f64>().expect("a number of kilobytes") / 1024.0
}

/// Returns the processor time and the peak of memory of a forward and a backward pass.
fn cost(hidden: &Tensor, weight: &Tensor, loss: &dyn Fn() -> Tensor) -> (f64, f64) {
    fs::write("/proc/self/clear_refs", "5").expect("Linux resets the peak");
    let (memory, began) = (megabytes("VmRSS"), processor_time());
    loss().backward();
    let cost = (processor_time() - began, megabytes("VmHWM") - memory);
    for leaf in [hidden, weight] {
        let _ = leaf.grad().detach_();
        leaf.shallow_clone().zero_grad();
    }
    cost
}

fn main() {
    let numbers: Vec<i64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let [threads, rows, classes, width] = numbers[..] else {
        return compare(1, 4096, 50_257, 768);
    };
    compare(threads, rows, classes, width);
}

fn compare(threads: i64, rows: i64, classes: i64, width: i64) {
    tch::set_num_threads(threads as i32);
    for kind in [Kind::Float, Kind::BFloat16] {
        let normal = |size: &[i64]| (Tensor::randn(size, (Kind::Float, Device::Cpu)) * 0.05).to_kind(kind);
        let hidden = normal(&[rows, width]).set_requires_grad(true);
        let weight = normal(&[classes, width]).set_requires_grad(true);
        let targets = Tensor::randint(classes, [rows], (Kind::Int64, Device::Cpu));
        let whole = || {
            let logits = hidden.linear::<&Tensor>(&weight, None).to_kind(Kind::Float);
            logits.cross_entropy_for_logits(&targets)
        };
        let how = LinearCrossEntropy::new();
        let head = || linear_cross_entropy(&hidden, &weight, &targets, &how).expect("the shapes fit");
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            costs[0].push(cost(&hidden, &weight, &whole));
            costs[1].push(cost(&hidden, &weight, &head));
        }
        let [(whole_time, whole_memory), (time, memory)] = costs.map(|rounds| {
            let least = |of: fn(&(f64, f64)) -> f64| rounds.iter().map(of).fold(f64::INFINITY, f64::min);
            (least(|cost| cost.0), rounds.iter().map(|cost| cost.1).fold(0.0, f64::max))
        });
        println!(
            "{kind:?}, {threads} threads, {rows} × {classes} × {width}: {time:.2} s and {memory:.0} MB, {:.2} and {:.3} × those \
             of whole logits ({whole_time:.2} s and {whole_memory:.0} MB)",
            time / whole_time,
            memory / whole_memory
        );
    }
}
