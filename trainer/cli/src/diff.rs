//! `trainer diff`: where two runs differ first.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use trainer_formats::tape;

use crate::output::{Failure, Output};

/// Prints the difference of two runs. The exit code says whether there is one.
pub(crate) fn run(first: &Path, second: &Path, out: &mut Output) -> Result<ExitCode, Failure> {
    let [one, other] = [tapes(first)?, tapes(second)?];
    if one.len() != other.len() {
        return Err(Failure::new(format!(
            "{} has the tapes of {} ranks, but {} has {}: compare runs with the same number of ranks",
            first.display(),
            one.len(),
            second.display(),
            other.len()
        )));
    }
    let ranks = one.len();
    for (rank, (one, other)) in one.iter().zip(&other).enumerate() {
        let difference = tape::difference(one, other).map_err(Failure::new)?;
        // If all ranks are equal, the last one is shown.
        if !difference.is_empty() || rank + 1 == ranks {
            if out.is_json() {
                let mut object = json!({ "rank": rank, "equal": difference.is_empty() });
                object["difference"] = serde_json::to_value(&difference).map_err(Failure::new)?;
                object["text"] = difference.to_string().trim_end().into();
                out.object(&object)?;
            } else {
                if ranks > 1 && !difference.is_empty() {
                    out.line(format!("On rank {rank}:"))?;
                }
                out.line(difference.to_string().trim_end())?;
            }
            return Ok(ExitCode::from(u8::from(!difference.is_empty())));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the paths of the tapes of a run, one for each rank.
fn tapes(run: &Path) -> Result<Vec<PathBuf>, Failure> {
    if run.is_file() {
        return Ok(vec![run.to_owned()]);
    }
    if !run.is_dir() {
        return Err(Failure::new(format!("{} does not exist", run.display())));
    }
    let tapes: Vec<_> =
        (0..).map(|rank| run.join(tape::file_name(rank))).take_while(|path| path.is_file()).collect();
    if tapes.is_empty() {
        return Err(Failure::new(format!(
            "{} has no tape: record one with `.tape(Tape::steps(100))` on the builder, or with `TRAINER_TAPE=steps:100`",
            run.display()
        )));
    }
    Ok(tapes)
}
