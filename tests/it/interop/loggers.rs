//! The files of the loggers, read by TensorBoard, PyTorch, pandas and the client of Weights &
//! Biases, and a real MLflow server.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trainer::hooks::Checkpoint;
use trainer::loggers::{Csv, JsonLines, MlFlow, TensorBoard, Wandb};
use trainer::prelude::*;
use trainer::{Span, TrainerBuilder};

use super::run_script;
use crate::model::{self, builder};
use crate::support::{cancelled_at, scratch};

/// The number of scalars that [`program`] logs in each step.
const NAMES: usize = 19;

/// Returns a builder with hooks that log numbers of every magnitude, and a record for each of 250
/// steps.
fn program(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    builder()
        .epochs(10)
        .seed(1)
        .run_folder(folder)
        .record_every(Every::Steps(1))
        .hyperparameter("width", 8)
        .hyperparameter("activation", "relu")
        .hook(Checkpoint::in_run_folder().every(Every::Steps(20)))
        .resume(Resume::Auto)
        .on::<AfterStep>("values", |cx| {
            let step = cx.counters().batches_seen;
            for nth in 0..NAMES {
                let value = (step as f64 * 0.37 + nth as f64).sin() * 10_f64.powi(3 * nth as i32 - 27);
                cx.log_as(format!("value{nth}"), value, Reduce::Last);
            }
        })
}

/// Returns 500 numbers of many magnitudes.
fn tensor(seed: f64) -> Tensor {
    let numbers = Tensor::arange(500, (Kind::Float, Device::Cpu));
    (&numbers * seed).sin() * (numbers / 50.0 - 5.0).exp()
}

/// Logs a histogram, an image and a text every 50 steps.
fn log_media(cx: &mut Cx<AfterOptStep>) {
    let step = cx.counters().optimizer_steps;
    if step.is_multiple_of(50) {
        cx.log_histogram("histogram", tensor(0.01 * step as f64));
        cx.log_image("image", Tensor::ones([3, 4, 5], (Kind::Float, Device::Cpu)) * 0.5);
        cx.log_text("text", format!("step {step}, é"));
    }
}

fn fit(trainer: &mut Trainer<impl Task<Batch = (Tensor, Tensor)>>) -> Result<trainer::Summary> {
    trainer.fit(&mut model::rows(100).shuffle(1), Some(&mut model::rows(8)))
}

#[test]
#[ignore = "run by `make interop`"]
fn other_programs_can_read_the_logged_values() {
    let folder = scratch("interop-loggers");
    let run = folder.join("run");
    // Values lost at the cancellation are logged again, and the last line of each point counts.
    let expected = Arc::new(Mutex::new(Vec::new()));
    for cancel in [Some(110), None] {
        let noted = Arc::clone(&expected);
        let mut trainer = cancelled_at(cancel, program(&run))
            .hook(TensorBoard::new())
            .hook(Csv::new())
            .hook(JsonLines::new())
            .on::<AfterOptStep>("media", log_media)
            .on::<AfterRecord>("expected", move |cx| {
                let record = cx.record();
                let is_of_epoch = record.phase() == Phase::Train && record.span() == Span::Pass;
                let prefix = if is_of_epoch { "epoch/" } else { "" };
                for (name, value) in record.scalars() {
                    let step = record.counters().optimizer_steps;
                    noted.lock().unwrap().push((format!("{prefix}{name}"), step, value));
                }
            })
            .build()
            .unwrap();
        assert_eq!(fit(&mut trainer).is_err(), cancel.is_some());
    }
    let mut lines = String::new();
    for (name, step, value) in expected.lock().unwrap().iter() {
        writeln!(lines, "{name}\t{step}\t{:016x}", value.to_bits()).unwrap();
    }
    fs::write(folder.join("expected.tsv"), lines).unwrap();
    for step in [50, 100, 150, 200, 250] {
        let values: Vec<f32> = Vec::try_from(&tensor(0.01 * f64::from(step))).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        fs::write(folder.join(format!("histogram-{step}.f32")), bytes).unwrap();
    }
    describe_program(&folder);
    run_script("loggers.py", &folder);
    run_script("importers.py", &folder);
    fs::remove_dir_all(&folder).unwrap();
}

/// Writes the path of this program, and the library path, which scripts do not inherit, so that a
/// script can run a test of this program in a separate process.
fn describe_program(folder: &Path) {
    let libraries = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let text = format!("{}\n{libraries}\n", std::env::current_exe().unwrap().display());
    fs::write(folder.join("program.txt"), text).unwrap();
}

/// The environment variable with the address of the MLflow server for [`mlflow_child`].
const SERVER: &str = "TRAINER_INTEROP_SERVER";
/// The environment variable with the run folder of a child process.
const FOLDER: &str = "TRAINER_INTEROP_FOLDER";
/// The environment variable with the scenario of [`mlflow_child`]: `finish`, `fail`, `cancel` or
/// `slow`.
const SCENARIO: &str = "TRAINER_INTEROP_SCENARIO";

/// A run that `loggers.py` kills and resumes while TensorBoard's server reads its files.
#[test]
#[ignore = "run by the script of `make interop` in a child process"]
fn tensorboard_child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let slow = |_: &mut Cx<AfterStep>| std::thread::sleep(Duration::from_millis(5));
    let builder = program(Path::new(&folder)).hook(TensorBoard::new()).on::<AfterStep>("slow", slow);
    fit(&mut builder.build().unwrap()).unwrap();
}

/// A run that `wandb_sync.py` kills and resumes.
#[test]
#[ignore = "run by the script of `make interop` in a child process"]
fn wandb_child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let slow = |_: &mut Cx<AfterStep>| std::thread::sleep(Duration::from_millis(5));
    let mut trainer = program(Path::new(&folder))
        .hook(Wandb::new("digits").entity("team"))
        .hook(Csv::new())
        .hook(JsonLines::new())
        .on::<AfterOptStep>("media", log_media)
        .on::<AfterStep>("slow", slow)
        .build()
        .unwrap();
    fit(&mut trainer).unwrap();
}

/// A run that `mlflow_server.py` starts: one that finishes, fails, is cancelled, or is slow enough
/// to be killed.
#[test]
#[ignore = "run by the script of `make interop` in a child process"]
fn mlflow_child() {
    let Ok(server) = std::env::var(SERVER) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let scenario = std::env::var(SCENARIO).unwrap();
    let at = |wanted: &str| (scenario == wanted).then_some(30);
    let fails = at("fail");
    let slow = Duration::from_millis(if scenario == "slow" { 160 } else { 0 });
    let mut trainer = cancelled_at(at("cancel"), program(&folder))
        .hook(MlFlow::new(server).experiment("interop"))
        .hook(Csv::new())
        .on::<AfterStep>("slow", move |_| std::thread::sleep(slow))
        .on::<AfterLoss>("fails", move |cx| {
            if Some(cx.counters().batches_seen) == fails { Err(Error::msg("no")) } else { Ok(()) }
        })
        .build()
        .unwrap();
    let result = fit(&mut trainer);
    assert_eq!(result.is_ok(), matches!(scenario.as_str(), "finish" | "slow"));
    if let Ok(summary) = result {
        println!("warnings: {:?}", summary.warnings);
    }
}

#[test]
#[ignore = "run by `make interop`"]
fn an_mlflow_server_receives_every_point_and_status() {
    let folder = scratch("interop-mlflow");
    describe_program(&folder);
    run_script("mlflow_server.py", &folder);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "run by `make interop`"]
fn the_client_of_weights_and_biases_uploads_every_value_once() {
    let folder = scratch("interop-wandb");
    describe_program(&folder);
    run_script("wandb_sync.py", &folder);
    fs::remove_dir_all(&folder).unwrap();
}
