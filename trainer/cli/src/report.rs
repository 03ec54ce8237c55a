//! `trainer report`: writes one HTML file about one or more runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use trainer_files::{Links, folder_of, in_file, metadata, open, read_start, replace_file};
use trainer_formats::report::{Report, is_report};
use trainer_formats::run::{RUN_FILE, runs_in};

use crate::output::{Failure, Output, find};

/// Writes the report of the runs in these folders.
pub(crate) fn run(folders: &[PathBuf], path: &Path, out: &mut Output) -> Result<ExitCode, Failure> {
    let report = read(folders)?;
    write(path, &report.html(SystemTime::now()))?;
    let notes = report.notes();
    if out.is_json() {
        out.object(&json!({ "report": path, "runs": report.runs(), "warnings": notes }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for note in notes {
        out.warning(&note);
    }
    out.line(path.display())?;
    Ok(ExitCode::SUCCESS)
}

fn read(folders: &[PathBuf]) -> Result<Report, Failure> {
    let mut report = Report::new();
    let mut unreadable = Vec::new();
    for folder in folders {
        let folder = find(folder)?;
        let found = runs_in(&folder)?;
        if found.is_empty() {
            return Err(Failure::new(format!(
                "{}: this folder holds no run: neither it nor a folder in it has a `run.json`",
                folder.display()
            )));
        }
        for found in found {
            match found.run {
                Ok(run) => report.add(&run),
                Err(error) => unreadable.push(error.to_string()),
            }
        }
    }
    if report.runs() == 0 {
        return Err(Failure::Message(unreadable.join("\n")));
    }
    unreadable.into_iter().for_each(|error| report.note(error));
    Ok(report)
}

/// Atomically writes a new file, or replaces an earlier report.
fn write(path: &Path, html: &str) -> Result<(), Failure> {
    if metadata(&folder_of(path).join(RUN_FILE))?.is_some() {
        let why = "this folder holds a run, which the command does not change: choose another path with `-o`";
        return Err(in_file(folder_of(path), why).into());
    }
    let check = |path: &Path| {
        let is_ours = open(path, Links::Refuse)
            .and_then(|(file, length)| read_start(path, &file, length.min(256)))
            .is_ok_and(|start| is_report(&start));
        let why = "this is not a report, so it is not replaced: choose another path with `-o`";
        if is_ours { Ok(()) } else { Err(in_file(path, why)) }
    };
    Ok(replace_file(path, check, |file| file.write(html.as_bytes()))?)
}
