//! What a run prints, and runs whose output is closed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;

use trainer::hooks::{Checkpoint, KernelProfiler, ModelSummary, Progress};
use trainer::loggers::Console;
use trainer::prelude::*;

use crate::model::{self, rows};
use crate::support::{cancelled_at, child_process, scratch};

/// The environment variable with the folder of a child process.
const FOLDER: &str = "TRAINER_TESTS_FOLDER";

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).unwrap().into()
}

fn builder() -> trainer::TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    Trainer::builder(model::named_task()).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

/// The program of the next test: prints in every way that a run can, after its output was closed.
#[test]
#[ignore = "run by another test in a child process"]
fn child_with_closed_output() {
    writeln!(std::io::stdout(), "ready").unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    assert!(writeln!(std::io::stdout(), "closed").is_err() && writeln!(std::io::stderr(), "closed").is_err());
    let folder = folder();
    let noisy = || {
        builder()
            .run_folder(folder.join("run"))
            .hook(Checkpoint::new(folder.join("checkpoints")))
            .hook(Progress::new().show("absent").line_every(std::time::Duration::ZERO))
            .hook(Console::new().every_steps(1))
            .hook(ModelSummary::new())
            .hook(KernelProfiler::new(folder.join("trace.json"), 1_000..1_001))
            .on::<AfterTransfer>("nan", |cx| {
                let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>()?;
                *inputs = &*inputs * f64::NAN;
                Ok(())
            })
            .on::<AfterTrainEpoch>("warn", |cx| cx.warn("a warning"))
            .resume(Resume::Auto)
    };
    let _ = cancelled_at(Some(3), noisy().epochs(3)).build().unwrap().fit(&mut rows(8), None);
    let mut trainer = cancelled_at(None, noisy().epochs(4)).build().unwrap();
    assert!(trainer.describe_requested().unwrap());
    let summary = trainer.fit(&mut rows(8), None).unwrap();
    let has = |start: &str| summary.warnings.iter().filter(|warning| warning.starts_with(start)).count() == 1;
    assert!(has("the mean training loss of epoch ") && has("a warning"), "{:?}", summary.warnings);
    assert!(
        has("`Progress::show(\"absent\")`") && has("`KernelProfiler` recorded none"),
        "{:?}",
        summary.warnings
    );
    trainer
        .load_weights(trainer.hook::<Checkpoint>().unwrap().newest().unwrap(), &Default::default())
        .unwrap();
    let mut finished = cancelled_at(None, noisy().epochs(4)).build().unwrap();
    finished.fit(&mut rows(8), None).unwrap();
    // libtest itself would fail to print its result.
    std::process::exit(17);
}

#[test]
fn a_run_whose_output_is_closed_trains_and_resumes() {
    let folder = scratch("closed-output");
    let mut child = child_process("terminal::child_with_closed_output")
        .env(FOLDER, &folder)
        .env("TRAINER_PROFILE", "table")
        .env("TRAINER_DESCRIBE", "markdown")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "ready"));
    drop((lines, child.stderr.take()));
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(17));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The program of the next test: a whole run, then one that is cancelled and resumed.
#[test]
#[ignore = "run by another test in a child process"]
fn child_with_tables() {
    let folder = folder();
    let new = || builder().epochs(4).hook(Progress::new());
    new().build().unwrap().fit(&mut rows(8), None).unwrap();
    let cancelled = cancelled_at(Some(5), new().hook(Checkpoint::new(&folder)));
    assert!(cancelled.build().unwrap().fit(&mut rows(8), None).unwrap_err().is_cancelled());
    let resumed = new().hook(Checkpoint::new(&folder)).resume(Resume::Auto);
    cancelled_at(None, resumed).build().unwrap().fit(&mut rows(8), None).unwrap();
}

#[test]
fn the_final_table_covers_the_epochs_before_a_resume() {
    let folder = scratch("tables");
    let output = child_process("terminal::child_with_tables").env(FOLDER, &folder).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let is_row = |line: &&str| line.starts_with("train/loss ");
    let tables: Vec<&str> = text.lines().filter(is_row).collect();
    assert_eq!(tables.len(), 2, "{text}");
    assert_eq!(tables[0], tables[1]);
    assert!(tables[0].contains("(1)") && tables[0].contains("(4)"), "{}", tables[0]);
    std::fs::remove_dir_all(&folder).unwrap();
}
