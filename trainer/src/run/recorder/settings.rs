//! The profiling settings: what is measured, and how it is reported.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tch::Device;

use super::SpanRecorder;
use crate::run::layers::Layer;
use crate::run::profile::Spans;

/// The settings of a profile.
#[derive(Debug, Default)]
pub(crate) struct ProfileSettings {
    pub(crate) is_on: bool,
    pub(crate) synchronizes: bool,
    #[cfg(feature = "tracing")]
    pub(crate) traces: bool,
    pub(crate) report: Option<Report>,
}

impl ProfileSettings {
    /// Applies the environment variable `TRAINER_PROFILE`. Adds a message to `mistakes` if its
    /// value is invalid, or if the settings do not work with a task on this device.
    pub(crate) fn complete(&mut self, device: Device, mistakes: &mut Vec<String>) {
        if self.synchronizes && !matches!(device, Device::Cpu | Device::Cuda(_)) {
            mistakes.push(format!(
                "`.profile_synchronized(true)` can synchronize CUDA devices only, but the task is on {device:?}: use \
                 `.profile(true)`, which measures host time"
            ));
        }
        match Report::from_environment() {
            Ok(report) => self.report = report,
            Err(mistake) => mistakes.push(mistake),
        }
    }

    /// Returns the layers that trace and measure a run with this number of hooks.
    pub(crate) fn layers(self, hooks: usize, device: Device) -> Vec<Arc<dyn Layer>> {
        let mut layers: Vec<Arc<dyn Layer>> = Vec::new();
        #[cfg(feature = "tracing")]
        if self.traces {
            layers.push(Arc::new(crate::run::profile::tracing::Tracing));
        }
        if !layers.is_empty() || self.is_on || self.synchronizes || self.report.is_some() {
            layers.push(Arc::new(Spans::new(SpanRecorder::new(hooks, self, device))));
        }
        layers
    }
}

/// The report that `TRAINER_PROFILE` requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// A table on standard error.
    Table,
    /// A JSON file.
    Json(PathBuf),
    /// A Chrome trace file.
    Trace(PathBuf),
}

impl Report {
    /// Reads the environment variable; an empty value counts as unset.
    ///
    /// # Errors
    ///
    /// Returns a message if the value is neither a format nor a path in an existing folder.
    fn from_environment() -> Result<Option<Self>, String> {
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
                "`TRAINER_PROFILE={}`: the folder `{}` does not exist; create it",
                value.display(),
                folder.display()
            )),
            _ => Ok(report),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_synchronized_accepts_only_the_cpu_and_cuda_devices() {
        for (device, count) in [(Device::Cpu, 0), (Device::Cuda(1), 0), (Device::Mps, 1)] {
            let mut settings = ProfileSettings { synchronizes: true, ..ProfileSettings::default() };
            let mut mistakes = Vec::new();
            settings.complete(device, &mut mistakes);
            assert_eq!(mistakes.len(), count, "{mistakes:?}");
        }
    }

    #[test]
    fn the_environment_variable_selects_a_format_by_its_suffix() {
        let parse = |value: &str| Report::parse(Path::new(value));
        assert_eq!(parse("table"), Ok(Report::Table));
        assert_eq!(parse("run.json"), Ok(Report::Json("run.json".into())));
        assert_eq!(parse("./run.trace.json"), Ok(Report::Trace("./run.trace.json".into())));
        let unknown = "`TRAINER_PROFILE=tabel`: expected `table`, a path that ends in `.json` for the numbers, or in \
                       `.trace.json` for a Chrome trace";
        assert_eq!(parse("tabel"), Err(unknown.to_owned()));
        let absent = "`TRAINER_PROFILE=absent/run.json`: the folder `absent` does not exist; create it";
        assert_eq!(parse("absent/run.json"), Err(absent.to_owned()));
    }
}
