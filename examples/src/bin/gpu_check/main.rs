//! Checks the behavior that differs on an NVIDIA GPU, in a few minutes:
//! `cargo run --release -p examples --bin gpu_check`. It compares the GPU with the CPU, and prints
//! one line per check, with the reason for each failure. Without a GPU, it says why none is
//! available.
//!
//! With the argument `cpu`, it compares the CPU with itself, which tests only this program.

mod fixtures;
mod memory;
mod numbers;
mod precision;
mod state;
mod waits;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use trainer::cuda::{self, CudaSupport};
use trainer::prelude::*;

/// The result of a check that did not fail.
enum Found {
    /// The check passed, with these details.
    Pass(String),
    /// The check could not run here, for this reason.
    Skip(&'static str),
}

impl From<String> for Found {
    fn from(details: String) -> Self {
        Found::Pass(details)
    }
}

type Check = fn(Device) -> Result<Found>;

/// Returns an error unless a condition holds.
fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::msg(why())) }
}

fn main() -> ExitCode {
    let device = match std::env::args().nth(1).as_deref() {
        Some("cpu") => Device::Cpu,
        None => match cuda::support() {
            CudaSupport::Ready => Device::Cuda(0),
            missing => {
                println!("skipped: {missing}");
                return ExitCode::SUCCESS;
            }
        },
        Some(other) => {
            eprintln!("`{other}`: expected no argument, or `cpu` to check this program");
            return ExitCode::FAILURE;
        }
    };
    let groups = [numbers::CHECKS, precision::CHECKS, state::CHECKS, waits::CHECKS, memory::CHECKS];
    let began = Instant::now();
    let mut counts = [0; 3];
    for (name, check) in groups.into_iter().flatten() {
        let start = Instant::now();
        // Most methods of tch panic when libtorch fails.
        let result = catch_unwind(AssertUnwindSafe(|| check(device)))
            .unwrap_or_else(|_| Err(Error::msg("panicked: see the message above")));
        let (nth, word, text) = match result {
            Ok(Found::Pass(details)) => (0, "pass", details),
            Ok(Found::Skip(why)) => (1, "skip", why.to_owned()),
            Err(error) => (2, "FAIL", error.to_string().replace('\n', "; ")),
        };
        counts[nth] += 1;
        println!("{word}  {name:<34} {:6.2} s  {text}", start.elapsed().as_secs_f64());
    }
    let [passed, skipped, failed] = counts;
    println!(
        "{passed} passed, {skipped} skipped, {failed} failed on {device:?} in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
