//! Loggers: their files, which a resumed run continues exactly.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use trainer::checkpoint::Resume;
use trainer::hooks::Checkpoint;
use trainer::loggers::{Axis, Csv, GrowingFile, JsonLines, TensorBoard, ToFile};
use trainer::prelude::*;
use trainer::{CancelToken, TrainerBuilder};

use crate::model::{self, builder, message};
use crate::support::{self, Random, scratch};

/// Returns a builder with every file logger, in this run folder.
fn program(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    let tsv = ToFile::in_run_folder("values.tsv", |record, out| {
        for (name, value) in record.scalars() {
            writeln!(
                out,
                "{}\t{}\t{name}\t{value}",
                record.counters().optimizer_steps,
                record.span().name()
            )?;
        }
        Ok(())
    });
    builder()
        .epochs(3)
        .seed(1)
        .run_folder(folder)
        .record_every(Every::Steps(3))
        .validate_every(Every::Steps(4))
        .hook(Checkpoint::in_run_folder().every(Every::Steps(2)))
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(TensorBoard::new())
        .hook(tsv)
        .resume(Resume::Auto)
        .on::<BeforeFit>("first", |cx| cx.log_text("note", "begun"))
        .on::<AfterStep>("values", |cx| {
            let seen = cx.counters().samples_seen;
            cx.log_as(Reduce::Last, "seen, \"so far\"", seen);
            cx.log_image("gray", Tensor::ones([1, 2, 2], (Kind::Float, Device::Cpu)));
        })
        .on::<AfterOptStep>("weights", |cx| {
            let vars = cx.vars();
            for var in vars.parameters() {
                cx.log_histogram(&var.name, &var.tensor);
            }
        })
}

fn fit(trainer: &mut Trainer<impl Task<Batch = (Tensor, Tensor)>>) -> Result<trainer::Summary> {
    trainer.fit(&mut model::rows(28).shuffle(1), Some(&mut model::rows(8)))
}

/// The rows of all loggers in a run folder, without times.
#[derive(Debug, PartialEq)]
struct Rows {
    csv: Vec<String>,
    json: Vec<String>,
    tsv: String,
    events: Vec<Vec<u8>>,
}

fn rows(folder: &Path) -> Rows {
    let csv = fs::read_to_string(folder.join("values.csv")).unwrap();
    let without_time = |line: &str| {
        let fields: Vec<_> = line.splitn(6, ',').collect();
        [&fields[..4], &fields[5..]].concat().join(",")
    };
    let json = fs::read_to_string(folder.join("records.jsonl")).unwrap();
    let json_without_time = |line: &str| {
        let mut object: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(object.as_object_mut().unwrap().remove("time").unwrap().as_f64().unwrap() > 1e9);
        object.to_string()
    };
    Rows {
        csv: csv.lines().map(without_time).collect(),
        json: json.lines().map(json_without_time).collect(),
        tsv: fs::read_to_string(folder.join("values.tsv")).unwrap(),
        events: events(folder),
    }
}

/// Returns the events in the event files of a folder, without times, and without the events that
/// begin or end a session. Asserts that the checksums of every event are correct.
fn events(folder: &Path) -> Vec<Vec<u8>> {
    let is_events = |path: &PathBuf| path.to_string_lossy().contains("tfevents");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(is_events).collect();
    files.sort();
    let mut found = Vec::new();
    for bytes in files.iter().map(|path| fs::read(path).unwrap()) {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = usize::try_from(u64::from_le_bytes(rest[..8].try_into().unwrap())).unwrap();
            assert_eq!(rest[8..12], masked(&rest[..8]));
            let event = &rest[12..12 + length];
            assert_eq!(rest[12 + length..16 + length], masked(event));
            let has = |text: &[u8]| event.windows(text.len()).any(|window| window == text);
            // After the time comes the step, whose last byte is its first one below 0x80.
            let step = event[10..].iter().position(|byte| *byte < 0x80).unwrap();
            let is_restart = event[9] == 0x10 && event.get(11 + step) == Some(&0x3a);
            if !has(b"brain.Event:2") && !has(b"_hparams_") && !is_restart {
                found.push(event[9..].to_vec());
            }
            rest = &rest[16 + length..];
        }
    }
    found
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[test]
fn a_resumed_run_writes_the_rows_of_an_uninterrupted_one() {
    let uninterrupted = scratch("loggers-whole");
    fit(&mut program(&uninterrupted).build().unwrap()).unwrap();
    let expected = rows(&uninterrupted);
    assert!(expected.csv.len() > 30 && expected.events.len() > 10, "{expected:#?}");
    let mut moved = 0;
    for cancel in (1..22).step_by(3) {
        for on_cancel in [false, true] {
            let folder = scratch("loggers");
            let token = CancelToken::new();
            let cancelled = token.clone();
            let mut trainer = program(&folder)
                .cancel_token(token)
                .hook_or(on_cancel)
                .on::<AfterStep>("cancel", move |cx| {
                    if cx.counters().batches_seen == cancel {
                        cancelled.cancel();
                    }
                })
                .build()
                .unwrap();
            assert!(fit(&mut trainer).unwrap_err().is_cancelled());
            drop(trainer);
            fit(&mut program(&folder).build().unwrap()).unwrap();
            assert_eq!(rows(&folder), expected, "cancelled after {cancel}, checkpoint {on_cancel}");
            let names =
                fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
            moved += names.filter(|name| name.contains("before-resume")).count();
            fs::remove_dir_all(&folder).unwrap();
        }
    }
    assert!(moved > 20, "{moved} files were moved aside");
    fs::remove_dir_all(&uninterrupted).unwrap();
}

trait HookOr {
    /// Sets whether a cancelled run writes a checkpoint. Without one, the run resumes from the last
    /// regular checkpoint.
    fn hook_or(self, on_cancel: bool) -> Self;
}

impl<T: Task> HookOr for TrainerBuilder<T> {
    fn hook_or(self, on_cancel: bool) -> Self {
        self.on::<AfterCancel>("policy", move |cx| {
            if let Ok(checkpoint) = cx.hook_mut::<Checkpoint>() {
                let own = std::mem::replace(checkpoint, Checkpoint::in_run_folder());
                *checkpoint = own.on_cancel(on_cancel);
            }
        })
    }
}

/// The environment variable with the run folder of the child process.
const FOLDER: &str = "TRAINER_TESTS_LOGGERS";

/// The program that is killed.
#[test]
#[ignore = "run by the other tests in a child process"]
fn child_process() {
    let slow = |_: &mut Cx<AfterTransfer>| std::thread::sleep(Duration::from_millis(1));
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let mut trainer = program(&folder).epochs(12).on::<AfterTransfer>("slow", slow).build().unwrap();
    fit(&mut trainer).unwrap();
}

fn spawn_child(folder: &Path) -> Child {
    support::child_process("loggers::child_process")
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finished(child: Child, folder: &Path) -> Rows {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    rows(folder)
}

#[test]
fn a_run_killed_at_random_moments_writes_the_rows_of_an_uninterrupted_one() {
    let uninterrupted = scratch("loggers-unkilled");
    let expected = finished(spawn_child(&uninterrupted), &uninterrupted);
    let kills: u64 = std::env::var("TRAINER_SOAK").map_or(4, |kills| kills.parse().unwrap());
    let (mut killed, mut random, mut runs) = (0, Random(88_172_645_463_325_252), 0);
    while killed < kills {
        let folder = scratch("loggers-killed");
        runs += 1;
        loop {
            let mut child = spawn_child(&folder);
            std::thread::sleep(Duration::from_millis(80 + random.below(500) as u64));
            let is_over = child.try_wait().unwrap().is_some();
            if !is_over && killed < kills {
                child.kill().unwrap();
                child.wait().unwrap();
                killed += 1;
                continue;
            }
            assert_eq!(finished(child, &folder), expected, "after {killed} kills");
            break;
        }
        fs::remove_dir_all(&folder).unwrap();
    }
    println!("{killed} kills in {runs} runs");
    fs::remove_dir_all(&uninterrupted).unwrap();
}

#[test]
fn a_longer_fit_continues_the_files_of_a_shorter_one() {
    let (whole, parts) = (scratch("loggers-three"), scratch("loggers-one-three"));
    fit(&mut program(&whole).build().unwrap()).unwrap();
    for epochs in [1, 3] {
        fit(&mut program(&parts).epochs(epochs).build().unwrap()).unwrap();
    }
    assert_eq!(rows(&parts), rows(&whole));
    fs::remove_dir_all(&whole).unwrap();
    fs::remove_dir_all(&parts).unwrap();
}

#[test]
fn csv_has_full_precision_and_quotes_names() {
    let folder = scratch("loggers-csv");
    let path = folder.join("deep/er/values.csv");
    let builder = builder().hook(Csv::at(&path)).on::<AfterTrainEpoch>("values", |cx| {
        cx.log("a,\"b\"\nc", 0.1 + 0.2);
        cx.log("nan", f64::NAN);
        cx.log("inf", f64::NEG_INFINITY);
        cx.log("é/ü", 5e-324);
    });
    builder.build().unwrap().fit(&mut model::rows(8), None).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    for field in [
        "\"train/a,\"\"b\"\"\nc\",0.30000000000000004\n",
        "train,pass,train/nan,NaN\n",
        "train/inf,-inf\n",
        "train/é/ü,0.000",
        "0005\n",
    ] {
        assert!(text.contains(field), "{field:?} in {text}");
    }
    assert!(
        text.starts_with(
            "optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value\n2,0,2,8,"
        )
    );
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn json_lines_are_valid_json_for_every_value() {
    let folder = scratch("loggers-json");
    let path = folder.join("records.jsonl");
    let builder = builder().hook(JsonLines::at(&path)).on::<AfterTrainEpoch>("values", |cx| {
        cx.log("nan", f64::NAN);
        cx.log("quoted \" name", 0.1 + 0.2);
        cx.log_text("text", "two\nlines");
        cx.log_histogram("histogram", Tensor::from_slice(&[3_i64, 3]));
        cx.log("x".repeat(10_000), 1);
    });
    builder.build().unwrap().fit(&mut model::rows(8), None).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(line["train/nan"], "NaN");
    assert_eq!(line["train/quoted \" name"], 0.1 + 0.2);
    assert_eq!(line["train/text"], "two\nlines");
    assert_eq!(line["train/histogram"]["counts"], serde_json::json!([0, 2]));
    assert_eq!(line[format!("train/{}", "x".repeat(10_000))], 1.0);
    assert_eq!((&line["optimizer_steps"], &line["span"]), (&2.into(), &"pass".into()));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn each_event_file_begins_with_the_start_of_a_session() {
    let folder = scratch("loggers-sessions");
    let run = |epochs, what: Resume| {
        let builder = builder().epochs(epochs).record_every(Every::Steps(1)).hook(TensorBoard::at(&folder));
        let builder = builder.hook(Checkpoint::new(folder.join("checkpoints"))).resume(what);
        builder.build().unwrap().fit(&mut model::rows(8), None).unwrap();
    };
    run(1, Resume::Auto);
    run(2, Resume::Auto);
    for (file, step) in [("0000", 0), ("0001", 3)] {
        let bytes = fs::read(folder.join(format!("events.out.tfevents.{file}.trainer"))).unwrap();
        // The version event has 9 bytes of time and 15 of version, in a frame of 16.
        let start = &bytes[40 + 12 + 9..];
        assert_eq!(start[..6], [0x10, step, 0x3a, 2, 8, 1], "{file}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn tensor_board_uses_the_chosen_axis() {
    let steps = |axis| {
        let folder = scratch("loggers-axis");
        let builder = builder().record_every(Every::Epochs(1)).hook(TensorBoard::at(&folder).axis(axis));
        builder.build().unwrap().fit(&mut model::rows(8), None).unwrap();
        let events = events(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((events.len(), events[0][0]), (1, 0x10));
        events[0][1]
    };
    assert_eq!([Axis::OptimizerSteps, Axis::Samples, Axis::Epochs].map(steps), [2, 8, 0]);
}

#[test]
fn an_image_is_encoded_as_png() {
    let image = trainer::Image { width: 2, height: 1, channels: 3, pixels: vec![1, 2, 3, 4, 5, 6] };
    let png = image.png().unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; 6];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height, pixels), (2, 1, image.pixels.clone()));
    let wrong = trainer::Image { pixels: vec![1], ..image };
    assert!(wrong.png().is_err());
}

#[test]
fn a_truncated_file_and_a_file_of_another_run_are_refused() {
    let folder = scratch("loggers-short");
    let path = folder.join("values.csv");
    let run = |resume: bool, cancel: bool| {
        let token = CancelToken::new();
        let builder = builder()
            .record_every(Every::Steps(1))
            .hook(Checkpoint::new(folder.join("checkpoints")))
            .hook(Csv::at(folder.join("values.csv")))
            .cancel_token(token.clone())
            .on::<AfterStep>("cancel", move |cx| {
                if cancel && cx.counters().batches_seen == 3 {
                    token.cancel();
                }
            });
        let builder = if resume { builder.resume(Resume::Auto) } else { builder };
        builder.build().unwrap().fit(&mut model::rows(28), None)
    };
    run(false, true).unwrap_err();
    let written = fs::read(&path).unwrap();

    fs::write(&path, "short").unwrap();
    let error = message(&run(true, false).unwrap_err());
    assert!(
        error.contains("`Csv` failed at after_load_checkpoint") && error.contains("it has 5 bytes, but had "),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "short");

    // Lines that another program appended are moved to a separate file.
    fs::write(&path, [&written[..], b"a note\n"].concat()).unwrap();
    run(true, false).unwrap();
    let aside = fs::read_to_string(folder.join("values.csv.before-resume-1")).unwrap();
    assert!(aside.ends_with("a note\n"), "{aside}");
    assert!(fs::read(&path).unwrap().starts_with(&written[..aside.len().min(1)]));

    fs::remove_dir_all(folder.join("checkpoints")).unwrap();
    let error = message(&run(false, false).unwrap_err());
    assert!(
        error.contains("`Csv` failed at setup")
            && error.contains("values.csv: this file contains data of an earlier run"),
        "{error}"
    );
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_logger_without_a_folder_or_with_an_invalid_path_is_an_error_at_setup() {
    let error = builder().hook(Csv::new()).build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
    assert!(error.to_string().contains("`values.csv` belongs in the run folder"), "{error}");
    let path = std::env::temp_dir().join(format!("trainer-tests-{}-a-file", std::process::id()));
    fs::write(&path, "").unwrap();
    let mut trainer = builder().hook(JsonLines::at(path.join("x.jsonl"))).build().unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err();
    assert!(error.to_string().contains("`JsonLines` failed at setup"), "{error}");
    fs::remove_file(path).unwrap();
}

/// Writes to `/dev/full`, a device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_warning_unless_the_logger_is_strict() {
    let folder = scratch("loggers-full");
    let path = folder.join("values.csv");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let run = |strict| {
        let builder = builder().record_every(Every::Steps(1)).hook(Csv::at(&path).strict(strict));
        builder.build().unwrap().fit(&mut model::rows(28), None)
    };
    let warnings = run(false).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("values.csv: No space left on device")
            && warnings[0].contains("the run continues")
    );
    let error = message(&run(true).unwrap_err());
    assert!(error.starts_with("`Csv` failed at after_record, epoch 0, batch 1: "), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_fast_dev_run_writes_no_files() {
    let folder = scratch("loggers-smoke");
    let mut trainer = program(&folder.join("run")).fast_dev_run(2).build().unwrap();
    fit(&mut trainer).unwrap();
    assert_eq!(trainer.run_folder(), None);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_removed_at_setup_is_created_again_with_every_row() {
    struct Gap(GrowingFile);
    #[hook]
    impl Gap {
        fn setup(&mut self, cx: &mut Cx<Setup>) -> Result<()> {
            self.0.begin(cx)?;
            fs::remove_file(self.0.path())?;
            self.0.continue_after_resume()
        }
        fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
            let line = format!("{}\n", cx.counters().batches_seen);
            self.0.append(cx, line.as_bytes())
        }
    }
    let folder = scratch("loggers-gap");
    let gap = Gap(GrowingFile::at(folder.join("lines")));
    let mut trainer = builder().hook(gap).build().unwrap();
    assert_eq!(trainer.fit(&mut model::rows(12), None).unwrap().warnings, [""; 0]);
    assert_eq!(fs::read_to_string(folder.join("lines")).unwrap(), "1\n2\n3\n");
    fs::remove_dir_all(&folder).unwrap();
}
