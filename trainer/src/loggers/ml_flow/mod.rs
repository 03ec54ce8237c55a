//! [`MlFlow`]: logging to an MLflow server.

mod client;
mod sender;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use client::{Client, Failure, MAX_VALUE, name};
use sender::{End, Job, Sending, Sent};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::{Axis, GrowingFile, seconds, stages};
use crate::checkpoint::{Saved, State};
use crate::io::files::{Links, metadata, move_aside, open, read_start, replace_file};
use crate::prelude::own::*;
use crate::{Record, Span};

/// Sends the numbers of records to an [MLflow](https://mlflow.org) server, with the hyperparameters
/// of the run as parameters. Requires the cargo feature `mlflow` and a
/// [run folder](crate::TrainerBuilder::run_folder).
///
/// Use this when your team has an MLflow server.
///
/// ```no_run
/// use trainer::loggers::MlFlow;
///
/// let logger = MlFlow::new("http://localhost:5000").experiment("digits");
/// ```
///
/// Training does not wait for the server. Records are appended to the file `mlflow.jsonl` in the
/// run folder, and a thread sends them from there, up to 1000 values per request. While the server
/// is unreachable, the thread retries; when an entry point ends, it retries for at most [one
/// minute](MlFlow::wait_at_end). A resumed run sends the remaining values. It continues the run on
/// the server, and sends only steps that the server does not have yet. If values are missing on the
/// server when an entry point ends, the address of the server is in
/// [`Summary::incomplete_logs`](crate::Summary::incomplete_logs).
///
/// On the server, the run ends with the status `FINISHED`, `FAILED` or, if it was cancelled,
/// `KILLED`. If the process is killed, the run stays `RUNNING` until it is resumed. In metric
/// names, a character that MLflow does not accept becomes `_`, and a name of more than 250
/// characters is shortened and ends with a hash. The metrics of a training epoch are named
/// `epoch/train/…`.
///
/// If the server is unreachable when the run is to be created on it, the entry point warns, and
/// tries again when it ends. If the server rejects the run, the entry point returns an error. Later
/// failures of requests are [warnings](crate::Cx::warn).
#[doc(alias("MLFlowLogger", "MLflowCallback"))]
pub struct MlFlow {
    server: String,
    token: Option<String>,
    experiment: String,
    run_name: Option<String>,
    axis: Axis,
    wait_at_end: Duration,
    spool: GrowingFile,
    run: Option<RunOnServer>,
    sending: Option<Sending>,
    /// The number of bytes of the spool file that earlier entry points sent.
    sent: u64,
    /// Whether the run is resumed, in which case the server may already have some of its rows.
    is_resumed: bool,
    /// Whether an entry point has begun.
    has_begun: bool,
    status: &'static str,
}

/// The IDs of the run on the server, stored in the file `mlflow.json` in the run folder.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct RunOnServer {
    server: String,
    experiment_id: String,
    run_id: String,
}

impl RunOnServer {
    /// Reads the file of a resumed run. Returns `None` if the file does not exist or is incomplete.
    /// An incomplete file is renamed, with a warning.
    fn load<P>(path: &Path, cx: &Cx<P>) -> Result<Option<Self>> {
        if metadata(path)?.is_none() {
            return Ok(None);
        }
        let (file, length) = open(path, Links::Refuse)?;
        let bytes = read_start(path, &file, length.min(MAX_RUN))?;
        let error = match serde_json::from_slice(&bytes) {
            Ok(known) => return Ok(Some(known)),
            Err(error) => error,
        };
        let is_start = bytes.iter().zip(RUN_START).all(|(byte, start)| byte == start);
        if error.is_eof() && is_start {
            let aside = move_aside(path, |name, number| format!("{name}.incomplete-{number}"))?;
            cx.warn(format!(
                "MLflow: {} was incomplete and was renamed to {}: the run continues as a new run on the server",
                path.display(),
                aside.display()
            ));
            return Ok(None);
        }
        let text = format!(
            "expected the `mlflow.json` that `MlFlow` wrote: {error}; move this file elsewhere, and restore the original file of the run"
        );
        Err(Error::fatal(Error::in_file(path, text)))
    }
}

/// Returns an error if something already exists at the path of a new file.
fn refuse_existing(path: &Path) -> Result<()> {
    match metadata(path)? {
        None => Ok(()),
        Some(_) => Err(Error::fatal(Error::in_file(
            path,
            "`MlFlow` writes this file for a new run, but the file already exists: move it elsewhere",
        ))),
    }
}

/// The name of the spool file in the run folder, which contains the rows to send.
const SPOOL: &str = "mlflow.jsonl";

/// The name of the file in the run folder that contains a [`RunOnServer`].
const RUN: &str = "mlflow.json";

/// The first bytes of the file [`RUN`].
const RUN_START: &[u8] = b"{\n  \"server\": \"";

/// The maximum length of the file [`RUN`] in bytes.
const MAX_RUN: u64 = 1 << 20;

impl MlFlow {
    /// Creates a logger for the server at this address: `http://localhost:5000`.
    pub fn new(server: impl Into<String>) -> Self {
        MlFlow {
            server: server.into(),
            token: None,
            experiment: "Default".to_owned(),
            run_name: None,
            axis: Axis::default(),
            wait_at_end: Duration::from_secs(60),
            spool: GrowingFile::in_run_folder(SPOOL),
            run: None,
            sending: None,
            sent: 0,
            is_resumed: false,
            has_begun: false,
            status: "FINISHED",
        }
    }

    /// Sets the experiment, which is created if it does not exist. Defaults to `Default`.
    #[must_use]
    pub fn experiment(mut self, name: impl Into<String>) -> Self {
        self.experiment = name.into();
        self
    }

    /// Sets the name of the run. Defaults to the name of the run folder.
    #[must_use]
    pub fn run_name(mut self, name: impl Into<String>) -> Self {
        self.run_name = Some(name.into());
        self
    }

    /// Sets the bearer token that authorizes requests. It is never written to a file.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the horizontal axis, which MLflow calls "step". Defaults to
    /// [`Axis::OptimizerSteps`].
    #[must_use]
    pub fn axis(mut self, axis: Axis) -> Self {
        self.axis = axis;
        self
    }

    /// Sets how long an entry point waits, at most, for all values to be sent when it ends. The
    /// limit applies whatever causes the delay. Defaults to one minute.
    #[must_use]
    pub fn wait_at_end(mut self, time: Duration) -> Self {
        self.wait_at_end = time;
        self
    }

    /// The ID of the run on the server, or `None` before it is known.
    #[must_use]
    pub fn run_id(&self) -> Option<&str> {
        self.run.as_ref().map(|run| run.run_id.as_str())
    }

    fn client(&self) -> Client {
        Client::new(&self.server, self.token.clone())
    }

    /// Creates the run on the server, with its hyperparameters.
    fn create<P>(&self, cx: &Cx<P>) -> Result<RunOnServer, Failure> {
        let client = self.client();
        let folder = cx.run_folder().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let experiment_id = client.experiment(&self.experiment)?;
        let source = std::env::args().next().unwrap_or_default();
        let run_name = self.run_name.as_deref().unwrap_or(&folder);
        let run_id = client.create_run(&experiment_id, run_name, millis(SystemTime::now()), &source)?;
        let params = cx.hyperparameters().into_iter().map(|(name, value)| (name, value.to_string()));
        let params: Vec<_> = params.collect();
        for (name, value) in &params {
            let length = value.chars().count();
            if length > MAX_VALUE {
                cx.warn(format!(
                    "MLflow stores at most {MAX_VALUE} characters of a parameter: `{name}` has {length}, of which the \
                     last are left out there; `run.json` has all of them"
                ));
            }
        }
        client.log_params(&run_id, &params)?;
        Ok(RunOnServer { server: self.server.clone(), experiment_id, run_id })
    }

    /// Reads the IDs of the run on the server, or else creates the run and stores its IDs. If the
    /// server is unreachable, only warns.
    fn connect<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        let path = self.spool.path().with_file_name(RUN);
        if let Some(known) = RunOnServer::load(&path, cx)? {
            self.run = Some(known);
            self.is_resumed = true;
            return Ok(());
        }
        let run = match self.create(cx) {
            Ok(run) => run,
            Err(Failure::Temporary(text)) => {
                cx.warn(format!(
                    "MLflow: cannot create a run on the server: {text}; check its address and its log; the values are kept in \
                     `{SPOOL}` in the run folder"
                ));
                return Ok(());
            }
            Err(Failure::Refused(text)) => {
                return Err(Error::fatal(format!(
                    "cannot create a run on the MLflow server: {text}; check its address and its log"
                )));
            }
        };
        let bytes = serde_json::to_vec_pretty(&run).map_err(Error::new)?;
        self.run = Some(run);
        replace_file(&path, refuse_existing, |file| Ok(file.write(&bytes)?))
    }

    /// Formats the rows of a record for the spool file.
    fn rows(&self, record: &Record) -> String {
        let step = self.axis.position(record.counters(), record.time());
        let prefix =
            if record.phase() == Phase::Train && record.span() == Span::Pass { "epoch/" } else { "" };
        let rows = record.scalars().map(|(key, value)| {
            let value: Json = match value {
                value if value.is_nan() => "NaN".into(),
                f64::INFINITY => "Infinity".into(),
                f64::NEG_INFINITY => "-Infinity".into(),
                value => value.into(),
            };
            let key = name(&format!("{prefix}{key}"));
            let row = json!({ "key": key, "value": value, "timestamp": millis(record.time()), "step": step });
            format!("{row}\n")
        });
        rows.collect()
    }

    /// Starts the sender thread unless it is running.
    fn start(&mut self) -> Result<()> {
        if let (None, Some(run)) = (&self.sending, &self.run) {
            let job = Job {
                client: self.client(),
                run: run.run_id.clone(),
                spool: self.spool.path().to_owned(),
                sent: self.sent,
                is_resumed: std::mem::take(&mut self.is_resumed),
            };
            let sending = Sending::start(job);
            self.sending = Some(sending.map_err(|error| {
                Error::msg(format!(
                    "cannot start the thread that sends values to the MLflow server: {error}; reduce the number of threads of \
                     this program"
                ))
            })?);
        }
        Ok(())
    }
}

/// Says when the values that were not sent are sent.
fn next_time() -> String {
    format!(
        "the rest is in `{SPOOL}` in the run folder and will be sent by the next entry point of this trainer, or by a resume if \
         the run was interrupted"
    )
}

/// Converts a time to milliseconds since the Unix epoch.
fn millis(time: SystemTime) -> u64 {
    (seconds(time) * 1000.0) as u64
}

/// Reports the problems of the sender thread as warnings.
fn warn<P>(cx: &Cx<P>, problems: Vec<String>) {
    problems.into_iter().for_each(|problem| cx.warn(format!("MLflow: {problem}")));
}

impl fmt::Debug for MlFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("MlFlow");
        debug.field("server", &self.server).field("experiment", &self.experiment).field("run", &self.run);
        debug.finish_non_exhaustive()
    }
}

/// Saves only the state of the spool file.
#[diagnostic::do_not_recommend]
impl State for MlFlow {
    fn save(&self) -> Result<Saved> {
        self.spool.save()
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.spool.load(saved)
    }

    /// Returns `false`, because values that the server has received stay there.
    fn rolls_back(&self) -> bool {
        false
    }
}

#[hook(in = stages::Loggers, state, writes, may_fail)]
impl MlFlow {
    /// Reads the IDs of a resumed run, or creates a new run on the server and stores its IDs.
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        self.spool.begin(cx)?;
        self.status = "FINISHED";
        if self.run.is_some() || cx.is_fast_dev_run() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_begun, true) && !cx.is_resuming() {
            refuse_existing(&self.spool.path().with_file_name(RUN))?;
        }
        self.connect(cx)
    }

    /// Moves the rows written since the checkpoint to a separate file, and marks the run on the
    /// server as running.
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        self.spool.continue_after_resume(cx)?;
        self.start()
    }

    /// Appends the rows of a record to the spool file, and reports problems of the sender thread.
    #[hook(only(train, valid, test, predict))]
    fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) -> Result<()> {
        let rows = self.rows(cx.record());
        self.spool.append(cx, rows.as_bytes())?;
        self.start()?;
        warn(cx, self.sending.as_ref().map(Sending::problems).unwrap_or_default());
        Ok(())
    }

    /// Records that the run was cancelled.
    fn after_cancel(&mut self, _: &Cx<Main<AfterCancel>>) {
        self.status = "KILLED";
    }

    /// Records that the run failed.
    fn after_error(&mut self, _: &Cx<Main<AfterError>>) {
        self.status = "FAILED";
    }

    /// Waits until everything is sent or time is up, and sets the status of the run.
    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
        self.spool.finish(cx)?;
        if self.run.is_none() && self.spool.length() > 0 {
            self.connect(cx)?;
        }
        self.start()?;
        let Some(sending) = self.sending.take() else {
            if self.spool.length() > 0 {
                cx.warn_incomplete(&self.server, format!("MLflow: no values were sent: {}", next_time()));
            }
            return Ok(());
        };
        let deadline = Instant::now() + self.wait_at_end;
        let end = End { status: self.status, time: millis(SystemTime::now()), deadline };
        let Sent { bytes, has_ended, problems } = sending.finish(end);
        self.sent = bytes;
        // A request may still be in flight, so the next thread asks which rows the server has.
        self.is_resumed = !has_ended;
        warn(cx, problems);
        if bytes < self.spool.length() {
            let text =
                format!("MLflow: not all values were sent within {:?}: {}", self.wait_at_end, next_time());
            cx.warn_incomplete(&self.server, text);
        } else if !has_ended {
            cx.warn(format!("MLflow: the end of the run was not recorded within {:?}", self.wait_at_end));
        }
        Ok(())
    }
}
