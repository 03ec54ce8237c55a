//! Loggers: their files, which a resumed run continues exactly.

use std::fs;
use std::io::Write;
use std::path::Path;

use trainer::checkpoint::Resume;
use trainer::hooks::Checkpoint;
use trainer::loggers::{Axis, Csv, GrowingFile, JsonLines, Report, TensorBoard, ToFile, Wandb};
use trainer::prelude::*;
use trainer::{CancelToken, TrainerBuilder};

use crate::log_rows::{events, rows};
use crate::model::{self, builder, message};
use crate::support::{device, own_warnings, scratch};

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
        .hook(Report::new())
        .hook(TensorBoard::new())
        .hook(Wandb::new("digits"))
        .hook(tsv)
        .resume(Resume::Auto)
        .on::<BeforeFit>("first", |cx| cx.log_text("note", "begun"))
        .on::<AfterStep>("values", |cx| {
            let seen = cx.counters().samples_seen;
            cx.log_as("seen, \"so far\"", seen, Reduce::Last);
            cx.log_image("gray", Tensor::ones([1, 2, 2], (Kind::Float, device())));
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
            let again = program(&folder).hook_or(on_cancel).on::<AfterStep>("cancel", |_| ());
            fit(&mut again.build().unwrap()).unwrap();
            assert_eq!(rows(&folder), expected, "cancelled after {cancel}, checkpoint {on_cancel}");
            let names =
                fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
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

#[test]
fn a_longer_fit_continues_the_files_of_a_shorter_one() {
    let whole = scratch("loggers-three");
    let parts = scratch("loggers-one-three");
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
fn a_small_image_is_enlarged_by_repeating_its_pixels() {
    let image = trainer::Image { width: 2, height: 1, channels: 3, pixels: vec![1, 2, 3, 4, 5, 6] };
    let enlarged = image.enlarged(3);
    let row = [1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6];
    assert_eq!((enlarged.width, enlarged.height, &*enlarged.pixels), (4, 2, &[row, row].concat()[..]));
    for (width, height, side, expected) in [
        (28, 28, 128, (140, 140)),
        (128, 2, 128, (128, 2)),
        (64, 256, 128, (64, 256)),
        (1, 1, 128, (128, 128)),
    ] {
        let image = trainer::Image { width, height, channels: 1, pixels: vec![7; (width * height) as usize] };
        let enlarged = image.enlarged(side);
        assert_eq!((enlarged.width, enlarged.height), expected);
        assert!(enlarged.png().is_ok());
    }
    let empty = trainer::Image { width: 0, height: 0, channels: 1, pixels: Vec::new() };
    assert_eq!(*empty.enlarged(128), empty);
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
        error.contains("the state of `trainer::loggers::Csv` cannot be restored")
            && error.contains("the file has 5 bytes, but had "),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "short");

    // A file that does not begin with the rows of the run is not changed.
    let other = vec![b'x'; written.len() + 100];
    fs::write(&path, &other).unwrap();
    let error = message(&run(true, false).unwrap_err());
    assert!(error.contains("bytes of the file have changed since the checkpoint was written"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), other);

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
            self.0.continue_after_resume(cx)
        }
        fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
            let line = format!("{}\n", cx.counters().batches_seen);
            self.0.append(cx, line.as_bytes())
        }
    }
    let folder = scratch("loggers-gap");
    let gap = Gap(GrowingFile::at(folder.join("lines")));
    let mut trainer = builder().hook(gap).build().unwrap();
    assert_eq!(own_warnings(&trainer.fit(&mut model::rows(12), None).unwrap()), [""; 0]);
    assert_eq!(fs::read_to_string(folder.join("lines")).unwrap(), "1\n2\n3\n");
    fs::remove_dir_all(&folder).unwrap();
}
