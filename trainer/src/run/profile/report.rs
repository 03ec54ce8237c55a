//! The report that `TRAINER_PROFILE` requests, printed or written when an entry point ends.

use super::Profile;
use crate::io::files::create_numbered;
use crate::io::terminal;
use crate::run::recorder::{Report, SpanRecorder};
use crate::run::reports::Reports;
use crate::run::{Modules, Table};

/// Prints or writes the profile of the entry point that has ended, if requested. Does nothing on
/// ranks other than 0. If the file cannot be written, adds a warning instead of failing the run.
pub(super) fn report(table: &Table, modules: &Modules, reports: &Reports, recorder: &SpanRecorder) {
    let Some(report) = recorder.settings.report.as_ref().filter(|_| reports.rank() == 0) else { return };
    let profile = Profile::build(table, modules, recorder);
    let (path, text) = match report {
        Report::Table => {
            terminal::eprint_line(profile.to_string().trim_end());
            return;
        }
        Report::Json(path) => (path, profile.json()),
        Report::Trace(path) => (path, profile.chrome_trace()),
    };
    let written = create_numbered(path).and_then(|mut file| {
        file.write(text.as_bytes())?;
        Ok(file)
    });
    match written {
        Ok(file) => {
            reports.notice(&format!("profile of `{}`: {}", profile.entry(), file.path().display()));
        }
        Err(error) => reports.warn(format!("the profile was not written: {error}")),
    }
}
