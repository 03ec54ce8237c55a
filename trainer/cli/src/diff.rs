//! `trainer diff`: finds where two runs first differ.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use trainer_files::{TemporaryFolder, create_new_folder, metadata};
use trainer_formats::run::Run;
use trainer_formats::tape::{self, Kind};

use crate::DiffArguments;
use crate::output::{Failure, Output, quoted};
use crate::program::{Program, errors};

/// Prints the first difference between two runs. The exit code says whether the runs differ.
pub(crate) fn run(arguments: &DiffArguments, out: &mut Output) -> Result<ExitCode, Failure> {
    let DiffArguments { first, second, .. } = arguments;
    let [one, other] = [tapes(first)?, tapes(second)?];
    if arguments.replay {
        return replay(arguments, &one, &other, out);
    }
    compare(first, &one, second, &other, out)
}

/// Compares the tapes of two runs, rank by rank.
fn compare(
    first: &Path,
    one: &[PathBuf],
    second: &Path,
    other: &[PathBuf],
    out: &mut Output,
) -> Result<ExitCode, Failure> {
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
    for (rank, (one, other)) in one.iter().zip(other).enumerate() {
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

/// Compares two runs. If their tapes show only the range of batches in which the runs first differ,
/// trains these batches of both runs again, and compares the full tapes of this training.
fn replay(
    arguments: &DiffArguments,
    one: &[PathBuf],
    other: &[PathBuf],
    out: &mut Output,
) -> Result<ExitCode, Failure> {
    let DiffArguments { first, second, program, second_program, .. } = arguments;
    let mut batches = None;
    for (one, other) in one.iter().zip(other) {
        let difference = tape::difference(one, other).map_err(Failure::new)?;
        if let Some(found) = &difference.first {
            batches = match found.kind {
                Kind::Since(start) => Some(start..found.position.batches_seen + 1),
                _ => None,
            };
            break;
        }
    }
    let Some(batches) = batches else {
        // The runs are equal, or their tapes already name the hook.
        return compare(first, one, second, other, out);
    };
    if program.is_empty() {
        return Err(Failure::new(format!(
            "`--replay` trains the batches {}..{} of both runs again, but no program was given: add `-- PROGRAM ARGUMENTS`{}",
            batches.start,
            batches.end,
            recorded([first, second])
        )));
    }
    let second_program = second_program
        .as_ref()
        .map(|command| ["sh", "-c", &format!("exec {command}")].map(str::to_owned).to_vec());
    let part = format!("{}..{}", batches.start, batches.end);
    let folder = TemporaryFolder::create("trainer-diff")
        .map_err(|error| Failure::new(format!("cannot create a temporary folder: {error}")))?;
    let mut full = Vec::new();
    let programs = [program.clone(), second_program.unwrap_or_else(|| program.clone())];
    let runs = [("first", first, one), ("second", second, other)];
    for ((name, run, coarse), words) in runs.into_iter().zip(programs) {
        let program = Program::of(run, words)?;
        if !out.is_json() {
            out.line(format!("Training the batches {part} of {} again: {}", run.display(), program.shown()))?;
        }
        let folder = folder.path().join(name);
        create_new_folder(&folder).map_err(Failure::new)?;
        let output = program.repeat(&part, &folder)?;
        let tapes: Vec<PathBuf> = (0..coarse.len()).map(|rank| folder.join(rank_file(rank))).collect();
        if !output.status.success() || !tapes.iter().all(|path| path.is_file()) {
            let text = errors(&output);
            let why = if text.is_empty() {
                "it wrote no tape: the program must call `trainer.replay_requested(…)` before it trains"
                    .to_owned()
            } else {
                text
            };
            return Err(Failure::new(format!("{} cannot repeat {}:\n{why}", program.shown(), run.display())));
        }
        for (coarse, full) in coarse.iter().zip(&tapes) {
            if let Some(found) = tape::disagreement(coarse, full).map_err(Failure::new)? {
                return Err(Failure::new(format!(
                    "{} no longer computes what {} recorded: after training batch {}, {} differ; pass the program of \
                     that time{}",
                    program.shown(),
                    run.display(),
                    found.batch,
                    found.values.iter().take(4).map(|name| &**name).collect::<Vec<_>>().join(", "),
                    if name == "second" { " with `--second-program`" } else { " after `--`" }
                )));
            }
        }
        full.push(tapes);
    }
    compare(first, &full[0], second, &full[1], out)
}

/// Returns the command lines that the runs have recorded, as a hint for the person who types one.
fn recorded(runs: [&Path; 2]) -> String {
    let lines = runs.iter().filter_map(|folder| {
        let words = Run::open(*folder).ok()?.file().command_line.clone()?;
        Some(format!("\n- {} says that it was started as: {}", folder.display(), quoted(&words)))
    });
    lines.collect()
}

/// Returns the file name of the tape of a rank.
fn rank_file(rank: usize) -> String {
    tape::file_name(u32::try_from(rank).unwrap_or(u32::MAX))
}

/// Returns the paths of the tapes of a run, one for each rank.
fn tapes(run: &Path) -> Result<Vec<PathBuf>, Failure> {
    if run.is_file() {
        return Ok(vec![run.to_owned()]);
    }
    if !run.is_dir() {
        return Err(Failure::new(format!("{} does not exist", run.display())));
    }
    let tapes: Vec<_> = (0..)
        .map(|rank| run.join(tape::file_name(rank)))
        .take_while(|path| metadata(path).is_ok_and(|found| found.is_some()))
        .collect();
    if tapes.is_empty() {
        return Err(Failure::new(format!(
            "{} has no tape: record one with `.tape(Tape::steps(100))` on the builder, or with `TRAINER_TAPE=steps:100`",
            run.display()
        )));
    }
    Ok(tapes)
}
