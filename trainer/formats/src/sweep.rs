//! The state of a sweep: its trials, each with its own run folder, and which of them have ended.
//!
//! The command `trainer sweep` writes [`SWEEP_FILE`] to the folder of the sweep, and replaces it
//! atomically whenever a trial begins or ends. The run of trial 3 is in the folder `0003` next to
//! that file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use trainer_files::{Error, in_file, read_small};

/// The name of the file in a sweep's folder that describes the sweep.
pub const SWEEP_FILE: &str = "sweep.json";

/// The maximum size of a `sweep.json` that is read, in bytes.
pub const MAX_SWEEP_BYTES: u64 = 1 << 28;

const FORMAT: &str = "trainer sweep";
const VERSION: u64 = 1;

/// The content of [`SWEEP_FILE`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SweepFile {
    format: String,
    version: u64,
    /// The definition of the trials: the parameters of the sweep, the seed, and how values are
    /// passed to the program. A sweep can only be continued if its definition is unchanged.
    pub definition: BTreeMap<String, Json>,
    /// The trials in order, starting with trial 1.
    pub trials: Vec<Trial>,
}

/// A trial of a sweep: one run of the program.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Trial {
    /// The values of the parameters, in the order of the sweep file.
    pub values: Vec<(String, Json)>,
    /// The progress of the trial.
    pub state: TrialState,
}

/// The progress of a trial.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrialState {
    /// The trial has not begun.
    Waiting,
    /// The program of the trial has been started.
    Started,
    /// The program has ended without an error, and its run has finished.
    Finished,
    /// The program has ended with an error.
    Failed,
    /// The trial was ended early, by Ctrl-C or because the time budget of the sweep was used up.
    Stopped,
}

impl TrialState {
    /// Returns the name that the state has in JSON, such as `finished`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TrialState::Waiting => "waiting",
            TrialState::Started => "started",
            TrialState::Finished => "finished",
            TrialState::Failed => "failed",
            TrialState::Stopped => "stopped",
        }
    }
}

impl Trial {
    /// Returns a trial that has not begun.
    #[must_use]
    pub fn new(values: Vec<(String, Json)>) -> Self {
        Trial { values, state: TrialState::Waiting }
    }
}

impl SweepFile {
    /// Returns the content of the file for a new sweep with these trials.
    #[must_use]
    pub fn new(definition: BTreeMap<String, Json>, trials: Vec<Trial>) -> Self {
        SweepFile { format: FORMAT.to_owned(), version: VERSION, definition, trials }
    }

    /// Returns whether a file that starts with these bytes describes a sweep.
    #[must_use]
    pub fn is_of_sweep(start: &[u8]) -> bool {
        let known = format!("{{ \"format\": \"{FORMAT}\"");
        let is_space = |byte: &&u8| !byte.is_ascii_whitespace();
        let mut start = start.iter().filter(is_space);
        known.as_bytes().iter().filter(is_space).all(|byte| start.next() == Some(byte))
    }

    /// Reads [`SWEEP_FILE`] in the folder of a sweep. Returns `None` if there is no such file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or does not describe a sweep.
    pub fn load(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(SWEEP_FILE);
        let bytes = match read_small(&path, MAX_SWEEP_BYTES) {
            Err(error) if error.is_missing() => return Ok(None),
            read => read?,
        };
        let read: SweepFile =
            serde_json::from_slice(&bytes).map_err(|error| in_file(&path, format!("damaged: {error}")))?;
        if (read.format.as_str(), read.version) != (FORMAT, VERSION) {
            let why = format!(
                "expected a file of format `{FORMAT}`, version {VERSION}, found `{}`, version {}",
                read.format, read.version
            );
            return Err(in_file(&path, why));
        }
        Ok(Some(read))
    }

    /// Returns the name of the folder of a trial: `0001` for trial 1, the first one.
    #[must_use]
    pub fn folder_name(number: usize) -> String {
        format!("{number:04}")
    }
}
