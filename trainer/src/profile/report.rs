//! The report that `TRAINER_PROFILE` requests, printed or written when an entry point ends.

use std::io::Write;

use super::Profile;
use crate::checkpoint::create_numbered;
use crate::recorder::Report;
use crate::run::Run;

/// Prints or writes the profile of the entry point that has ended, if requested, in the process of
/// rank 0 only. If the file cannot be written, prints a warning: the run does not fail.
pub(super) fn report(run: &Run) {
    let Some(report) = run.recorder.as_ref().and_then(|recorder| recorder.settings.report.as_ref()) else {
        return;
    };
    if run.rank > 0 {
        return;
    }
    let Some(profile) = Profile::of(run) else { return };
    let (path, text) = match report {
        Report::Table => {
            let _ = write!(std::io::stderr(), "{profile}");
            return;
        }
        Report::Json(path) => (path, profile.json()),
        Report::Trace(path) => (path, profile.chrome_trace()),
    };
    let written = create_numbered(path).and_then(|(mut file, path)| {
        file.write_all(text.as_bytes())?;
        Ok(path)
    });
    let _ = match written {
        Ok(path) => writeln!(std::io::stderr(), "profile of `{}`: {}", profile.entry(), path.display()),
        Err(error) => writeln!(std::io::stderr(), "warning: the profile was not written: {error}"),
    };
}
