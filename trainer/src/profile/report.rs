//! `TRAINER_PROFILE`: printing or writing the profile when an entry point ends.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::Profile;
use crate::checkpoint::create_numbered;
use crate::error::Result;
use crate::run::Run;

/// What `TRAINER_PROFILE` requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The table on standard error.
    Table,
    /// A file of JSON.
    Json(PathBuf),
    /// A file with a Chrome trace.
    Trace(PathBuf),
}

impl Report {
    /// Reads the environment variable; an empty one counts as not set.
    ///
    /// # Errors
    ///
    /// Returns a message if its value is neither a format nor a path that can be written.
    pub(super) fn from_environment() -> Result<Option<Self>, String> {
        match std::env::var_os("TRAINER_PROFILE") {
            Some(value) if !value.is_empty() => Report::parse(Path::new(&value)).map(Some),
            _ => Ok(None),
        }
    }

    fn parse(value: &Path) -> Result<Self, String> {
        if value == Path::new("table") {
            return Ok(Report::Table);
        }
        let name = value.file_name().unwrap_or_default().to_string_lossy();
        let report = if name.ends_with(".trace.json") {
            Report::Trace(value.to_owned())
        } else if name.ends_with(".json") {
            Report::Json(value.to_owned())
        } else {
            return Err(format!(
                "`TRAINER_PROFILE={}`: expected `table`, a path that ends in `.json` for the numbers, or in \
                 `.trace.json` for a Chrome trace",
                value.display()
            ));
        };
        match value.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) if !folder.is_dir() => Err(format!(
                "`TRAINER_PROFILE={}`: there is no folder `{}`: create it",
                value.display(),
                folder.display()
            )),
            _ => Ok(report),
        }
    }
}

/// Prints or writes the profile of an entry point that ended, if that is requested. A file that
/// cannot be written does not fail the run.
pub(super) fn report(run: &Run) {
    let Some(report) = run.recorder.as_ref().and_then(|recorder| recorder.report.as_ref()) else { return };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_variable_selects_a_format_by_its_suffix() {
        let parse = |value: &str| Report::parse(Path::new(value));
        assert_eq!(parse("table"), Ok(Report::Table));
        assert_eq!(parse("run.json"), Ok(Report::Json("run.json".into())));
        assert_eq!(parse("./run.trace.json"), Ok(Report::Trace("./run.trace.json".into())));
        let unknown = "`TRAINER_PROFILE=tabel`: expected `table`, a path that ends in `.json` for the numbers, or in \
                       `.trace.json` for a Chrome trace";
        assert_eq!(parse("tabel"), Err(unknown.to_owned()));
        let absent = "`TRAINER_PROFILE=absent/run.json`: there is no folder `absent`: create it";
        assert_eq!(parse("absent/run.json"), Err(absent.to_owned()));
    }
}
