//! The command `trainer`: reads the folders of runs, without libtorch.

#![allow(clippy::disallowed_macros, reason = "a command prints")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trainer_formats::tape;

/// Compares the runs of the training library `trainer`.
#[derive(Parser)]
#[command(name = "trainer", version, about)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Says where two runs differ first, from their tapes. Ends with 1 if they do
    Diff {
        /// The run folder of the first run, or its tape
        first: PathBuf,
        /// The run folder of the second run, or its tape
        second: PathBuf,
    },
}

fn main() -> ExitCode {
    let Command { action: Action::Diff { first, second } } = Command::parse();
    match diff(&first, &second) {
        Ok(are_equal) => ExitCode::from(u8::from(!are_equal)),
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

/// Prints the difference of two runs, and returns whether they are equal.
fn diff(first: &Path, second: &Path) -> Result<bool, String> {
    let [one, other] = [tapes(first)?, tapes(second)?];
    if one.len() != other.len() {
        return Err(format!(
            "{} has the tapes of {} ranks, but {} has {}: compare runs with the same number of ranks",
            first.display(),
            one.len(),
            second.display(),
            other.len()
        ));
    }
    let ranks = one.len();
    for (rank, (one, other)) in one.iter().zip(&other).enumerate() {
        let difference = tape::difference(one, other).map_err(|error| error.to_string())?;
        // If all ranks are equal, the last one is shown.
        if !difference.is_empty() || rank + 1 == ranks {
            if ranks > 1 && !difference.is_empty() {
                println!("On rank {rank}:");
            }
            print!("{difference}");
            return Ok(difference.is_empty());
        }
    }
    Ok(true)
}

/// Returns the paths of the tapes of a run, one for each rank.
fn tapes(run: &Path) -> Result<Vec<PathBuf>, String> {
    if run.is_file() {
        return Ok(vec![run.to_owned()]);
    }
    if !run.is_dir() {
        return Err(format!("{} does not exist", run.display()));
    }
    let tapes: Vec<_> =
        (0..).map(|rank| run.join(tape::file_name(rank))).take_while(|path| path.is_file()).collect();
    if tapes.is_empty() {
        return Err(format!(
            "{} has no tape: record one with `.tape(Tape::steps(100))` on the builder, or with `TRAINER_TAPE=steps:100`",
            run.display()
        ));
    }
    Ok(tapes)
}
