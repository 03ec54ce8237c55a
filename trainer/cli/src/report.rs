//! `trainer report`: writes one HTML file about one or more runs.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;
use trainer_formats::report::{Report, is_report};
use trainer_formats::run::{RUN_FILE, runs_in};

use crate::output::{Failure, Output, find};

/// Writes the report of the runs in these folders.
pub(crate) fn run(folders: &[PathBuf], path: &Path, out: &mut Output) -> Result<ExitCode, Failure> {
    let report = read(folders)?;
    write(path, &report.html(SystemTime::now())).map_err(Failure::Message)?;
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
fn write(path: &Path, html: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if folder.join(RUN_FILE).exists() {
        return Err(format!(
            "{}: this folder holds a run, which the command does not change: choose another path with `-o`",
            folder.display()
        ));
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(metadata) => {
            let mut start = Vec::new();
            if metadata.is_file() {
                File::open(path).and_then(|file| file.take(256).read_to_end(&mut start)).map_err(failed)?;
            }
            if !is_report(&start) {
                return Err(format!(
                    "{}: this is not a report, so it is not replaced: choose another path with `-o`",
                    path.display()
                ));
            }
        }
    }
    let name = path.file_name().ok_or_else(|| format!("{}: expected the path of a file", path.display()))?;
    let aside = folder.join(format!(".writing-{}-{}", name.to_string_lossy(), std::process::id()));
    let written = File::create_new(&aside)
        .and_then(|mut file| file.write_all(html.as_bytes()))
        .and_then(|()| fs::rename(&aside, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&aside);
        failed(error)
    })
}
