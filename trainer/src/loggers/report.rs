//! [`Report`]: one HTML file about the run.

use std::path::Path;

use trainer_formats::report::{REPORT_FILE, base64, is_report};
use trainer_formats::run::{REPORT_RECORDS_FILE, Run, Status};

use super::{GrowingFile, json_lines, stages};
use crate::Record;
use crate::io::files::{Links, metadata, open, read_start, replace_file};
use crate::prelude::own::*;

/// Writes `report.html` in the [run folder](crate::TrainerBuilder::run_folder) when an entry point
/// ends, even with an error or a cancellation.
///
/// The report shows curves, metrics, settings, hooks, the profile, confusion matrices, images,
/// texts, warnings, resumes and the environment of the run.
///
/// Use this when you want to read or send the result of one run as a file.
///
/// ```
/// use trainer::loggers::Report;
/// use trainer::prelude::*;
///
/// fn with_report(builder: trainer::TrainerBuilder<impl Task>) -> trainer::TrainerBuilder<impl Task> {
///     builder.run_folder("runs/first").profile(true).hook(Report::new())
/// }
/// ```
///
/// The report needs no network and no other file. During the run, the numbers, texts and images of
/// the records are written to `report.jsonl`. Its format is that of
/// [`JsonLines`](super::JsonLines), but without histograms and with images as
/// `{"png": …, "width": …, "height": …}` in base64. A resumed run continues this file, so its
/// report shows one curve. If the process is killed, the command `trainer report` writes the report
/// from this file.
///
/// An existing `report.html` is replaced only if it is a report; otherwise the run ends at `setup`
/// with an error. The hook runs after all others at `teardown`, on rank 0 only. If the report
/// cannot be written, the hook only [warns](crate::Cx::warn).
#[derive(Debug)]
pub struct Report {
    records: GrowingFile,
    /// How an error or a cancellation has ended the entry point: the status and the message.
    ended: Option<(Status, Option<String>)>,
}

impl Default for Report {
    fn default() -> Self {
        Report { records: GrowingFile::in_run_folder(REPORT_RECORDS_FILE), ended: None }
    }
}

impl Report {
    /// Creates a logger that writes `report.html` in the
    /// [run folder](crate::TrainerBuilder::run_folder).
    #[must_use]
    pub fn new() -> Self {
        Report::default()
    }

    /// Formats the line of a record.
    fn line(record: &Record) -> Result<String> {
        let mut line = json_lines::numbers_and_texts(record);
        for (name, image) in record.images() {
            let value = serde_json::json!({
                "png": base64(&image.png()?),
                "width": image.width,
                "height": image.height,
            });
            json_lines::add(&mut line, name, &value);
        }
        Ok(line + "}\n")
    }

    /// Writes the report that the run would have if it ended now.
    fn write<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        let Some(folder) = cx.run_folder() else { return Ok(()) };
        let Some(mut file) = cx.run_file() else { return Ok(()) };
        if let Some((status, error)) = self.ended.take() {
            (file.status, file.error) = (status, error);
        }
        let mut report = trainer_formats::report::Report::new();
        report.add(&Run::with_file(folder, file));
        let html = report.html(std::time::SystemTime::now());
        replace_file(&folder.join(REPORT_FILE), check_is_report, |file| Ok(file.write(html.as_bytes())?))
    }
}

/// Returns an error if a file is not a report, and therefore must not be replaced.
fn check_is_report(path: &Path) -> Result<()> {
    let (file, length) = open(path, Links::Refuse)?;
    if is_report(&read_start(path, &file, length.min(256))?) {
        return Ok(());
    }
    Err(Error::in_file(path, "this is not a report of the trainer, so it is not replaced: move it elsewhere"))
}

#[hook(in = stages::Last, state = self.records, writes, may_fail)]
impl Report {
    /// Creates the file of a new run. Returns an error if the file already contains data of an
    /// earlier run, or if something that is not a report already has the report's name.
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        self.ended = None;
        self.records.begin(cx)?;
        let Some(folder) = cx.run_folder().filter(|_| !cx.is_fast_dev_run()) else { return Ok(()) };
        let path = folder.join(REPORT_FILE);
        if metadata(&path)?.is_none() {
            return Ok(());
        }
        check_is_report(&path).map_err(|error| if error.is_fault() { error } else { Error::fatal(error) })
    }

    /// Moves the lines written since the checkpoint to a separate file.
    #[hook(in = stages::Loggers)]
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        self.records.continue_after_resume(cx)
    }

    /// Appends the line of a record.
    #[hook(in = stages::Loggers, only(train, valid, test, predict))]
    fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) -> Result<()> {
        let line = Report::line(cx.record())?;
        self.records.append(cx, line.as_bytes())
    }

    /// Notes the error.
    fn after_error(&mut self, cx: &Cx<Main<AfterError>>) {
        self.ended = cx.run_file().map(|file| (file.status, file.error));
    }

    /// Notes the cancellation.
    fn after_cancel(&mut self, cx: &Cx<Main<AfterCancel>>) {
        self.ended = cx.run_file().map(|file| (file.status, file.error));
    }

    /// Writes the report.
    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
        self.records.finish(cx)?;
        if !cx.is_fast_dev_run()
            && let Err(error) = self.write(cx)
        {
            cx.warn(format!("the report was not written: {error}"));
        }
        Ok(())
    }
}
