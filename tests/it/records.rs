//! Records: the values that they contain, and when they fire.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::hooks::Checkpoint;
use trainer::prelude::*;
use trainer::{__private, CancelToken, Histogram, TrainerBuilder};

use crate::model::{self, builder, message};
use crate::support::{device, own_warnings, scratch};

type Lines = Arc<Mutex<Vec<String>>>;

fn take(lines: &Lines) -> Vec<String> {
    std::mem::take(&mut *lines.lock().unwrap())
}

/// Returns the part of each line before its first colon.
fn heads(lines: &Lines) -> Vec<String> {
    take(lines).iter().map(|line| line.split(':').next().unwrap().to_owned()).collect()
}

/// Adds a hook that writes every record as a line.
fn noting<T: Task>(builder: TrainerBuilder<T>, lines: &Lines) -> TrainerBuilder<T> {
    let lines = Arc::clone(lines);
    builder.on::<AfterRecord>("noted", move |cx| {
        let record = cx.record();
        assert_eq!((cx.counters(), cx.phase()), (record.counters(), record.phase()));
        let mut values: Vec<_> = record.scalars().map(|(name, value)| format!("{name}={value}")).collect();
        values.extend(
            record
                .histograms()
                .map(|(name, histogram)| format!("{name}={} of {}", histogram.sum, histogram.count)),
        );
        values.extend(
            record
                .images()
                .map(|(name, image)| format!("{name}={}x{} {:?}", image.width, image.height, image.pixels)),
        );
        values.extend(record.texts().map(|(name, text)| format!("{name}={text}")));
        let counters = record.counters();
        let phase = record.phase();
        let span = record.span().name();
        let head = format!("{phase} {span} {} {}", counters.optimizer_steps, counters.batch_idx);
        lines.lock().unwrap().push(format!("{head}: {}", values.join(" ")));
    })
}

/// Returns a builder with hooks that log at many moments.
fn program(record_every: u64) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    builder()
        .epochs(3)
        .seed(1)
        .record_every(Every::Steps(record_every))
        .validate_every(Every::Steps(4))
        .on::<BeforeFit>("first", |cx| {
            cx.log("first", 1);
            cx.log_text("note", "begun");
            cx.log_image("start", Tensor::ones([1, 1, 2], (Kind::Float, device())));
            cx.log_histogram("start", Tensor::ones([3], (Kind::Float, device())));
        })
        .on::<AfterOptStep>("max", |cx| {
            let norm = cx.vars().parameters().map(|var| var.tensor.norm()).next().unwrap();
            cx.log_as("max", norm.detach(), Reduce::Max);
            cx.log_histogram("norm", norm);
        })
        .on::<AfterStep>("last", |cx| {
            let seen = cx.counters().samples_seen;
            cx.log_as("last", seen, Reduce::Last);
            cx.log_text("text", format!("{seen}"));
        })
        .on::<AfterTrainEpoch>("of_pass", |cx| cx.log("of_pass", cx.counters().optimizer_steps))
        .on::<AfterValid>("of_valid", |cx| cx.log("of_valid", cx.counters().optimizer_steps))
        .on::<AfterEpoch>("of_epoch", |cx| cx.log("of_epoch", cx.counters().optimizer_steps))
}

/// Runs [`program`] in a new folder, and returns its records. With `late`, tensors are left unread
/// until the next record is due, as on another device. `cancel` is the number of batches, of all
/// phases, after which the run is cancelled; it is then resumed, and the records after the
/// checkpoint are dropped.
fn records(record_every: u64, late: bool, cancel: Option<(u64, Checkpointing)>) -> Vec<String> {
    let folder = scratch("records");
    let mut lines = Vec::new();
    for is_resumed in [false, true] {
        if is_resumed && cancel.is_none() {
            break;
        }
        let token = CancelToken::new();
        let noted = Lines::default();
        let kept = Arc::new(Mutex::new(None));
        let Checkpointing { in_background, on_cancel } =
            cancel.map_or(Checkpointing::DEFAULT, |cancel| cancel.1);
        let checkpoint =
            Checkpoint::new(&folder).every(Every::Steps(2)).in_background(in_background).on_cancel(on_cancel);
        let mut left = cancel.filter(|_| !is_resumed).map(|cancel| cancel.0);
        let cancelled = token.clone();
        let count = Arc::clone(&noted);
        let saved = Arc::clone(&kept);
        let restored = Arc::new(Mutex::new(0_usize));
        let loaded = Arc::clone(&restored);
        let mut trainer = noting(program(record_every), &noted)
            .hook(checkpoint)
            .resume(Resume::Auto)
            .cancel_token(token)
            .on::<AfterStep>("cancel", move |_| {
                if let Some(left) = &mut left {
                    *left -= 1;
                    if *left == 0 {
                        cancelled.cancel();
                    }
                }
            })
            .on::<BeforeSaveCheckpoint>("lines", {
                let before = lines.len();
                move |cx| {
                    *saved.lock().unwrap() = Some(before + count.lock().unwrap().len());
                    cx.save("lines", *saved.lock().unwrap())
                }
            })
            .on::<AfterLoadCheckpoint>("lines", move |cx| {
                *loaded.lock().unwrap() = cx.saved().get::<Option<usize>>("lines")?.unwrap_or(0);
                Ok(())
            })
            .build()
            .unwrap();
        if late {
            __private::leave_unread(&mut trainer);
        }
        let result = trainer.fit(&mut model::rows(28).shuffle(1), Some(&mut model::rows(8)));
        assert!(result.is_ok() || result.is_err_and(|error| error.is_cancelled()));
        lines.truncate(*restored.lock().unwrap());
        lines.extend(take(&noted));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    lines
}

#[derive(Clone, Copy, Debug)]
struct Checkpointing {
    in_background: bool,
    on_cancel: bool,
}

impl Checkpointing {
    const DEFAULT: Self = Checkpointing { in_background: false, on_cancel: true };
}

#[test]
fn a_resumed_run_has_the_records_of_an_uninterrupted_one() {
    let cases = [(4, false, false, true), (4, true, true, true), (5, true, false, false)];
    for (record_every, late, in_background, on_cancel) in cases {
        let expected = records(record_every, false, None);
        assert!(expected.iter().any(|line| line.starts_with("train rest")), "{expected:#?}");
        assert_eq!(records(record_every, true, None), expected, "late");
        for cancel in (1..31).step_by(2) {
            let checkpointing = Checkpointing { in_background, on_cancel };
            let found = records(record_every, late, Some((cancel, checkpointing)));
            assert_eq!(found, expected, "late {late}, {checkpointing:?}, cancelled after {cancel}");
        }
    }
}

#[test]
fn each_record_reduces_values_over_its_own_window() {
    let lines = Lines::default();
    let mut trainer = noting(builder().record_every(Every::Steps(3)), &lines)
        .on::<AfterStep>("values", |cx| {
            let batch = cx.counters().batch_idx;
            cx.log("mean", batch);
            cx.log_as("sum", batch, Reduce::Sum);
            cx.log_as("last", batch, Reduce::Last);
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(20), None).unwrap();
    let without_loss = |line: String| {
        let values: Vec<_> = line.split(' ').filter(|word| !word.starts_with("train/loss")).collect();
        values.join(" ")
    };
    let found: Vec<_> = take(&lines).into_iter().map(without_loss).collect();
    assert_eq!(
        found,
        [
            "train steps 3 3: train/mean=2 train/sum=6 train/last=3",
            "train pass 5 5: train/mean=3 train/sum=15 train/last=5",
            "train rest 5 5: train/mean=4.5 train/sum=9 train/last=5",
        ]
    );
}

#[test]
fn late_records_fire_when_the_next_one_is_due() {
    let lines = Lines::default();
    let steps = Arc::clone(&lines);
    let mut trainer = noting(builder().record_every(Every::Steps(2)), &lines)
        .on::<AfterStep>("step", move |cx| {
            steps.lock().unwrap().push(format!("step {}", cx.counters().optimizer_steps));
        })
        .build()
        .unwrap();
    __private::leave_unread(&mut trainer);
    trainer.fit(&mut model::rows(28), None).unwrap();
    assert_eq!(
        heads(&lines),
        [
            "step 1",
            "step 2",
            "step 3",
            "step 4",
            "train steps 2 2",
            "step 5",
            "step 6",
            "train steps 4 4",
            "step 7",
            "train steps 6 6",
            "train pass 7 7",
            "train rest 7 7"
        ]
    );
}

#[test]
fn no_tensor_is_read_between_records() {
    let mut trainer = builder().record_every(Every::Steps(50)).build().unwrap();
    let reads = |trainer: &mut Trainer<_>, rows| {
        let before = __private::reads(trainer);
        trainer.fit(&mut model::rows(rows), None).unwrap();
        __private::reads(trainer) - before
    };
    __private::leave_unread(&mut trainer);
    assert_eq!(reads(&mut trainer, 4), reads(&mut trainer, 4 * 49));
}

#[test]
fn a_late_record_arrives_before_validation_and_before_a_checkpoint() {
    let order = |late: bool| {
        let lines = Lines::default();
        let folder = scratch("record-order");
        let note = |text: &'static str| {
            let lines = Arc::clone(&lines);
            move |phase: Phase| lines.lock().unwrap().push(format!("-- {text} {phase}"))
        };
        let (valid, after, saved, left) =
            (note("before_valid"), note("after_valid"), note("before_save"), note("teardown"));
        let mut trainer = noting(program(3), &lines)
            .hook(Checkpoint::new(&folder).every(Every::Steps(2)))
            .on::<BeforeValid>("v", move |cx| valid(cx.phase()))
            .on::<AfterValid>("w", move |cx| after(cx.phase()))
            .on::<BeforeSaveCheckpoint>("s", move |cx| saved(cx.phase()))
            .on::<Teardown>("t", move |cx| left(cx.phase()))
            .epochs(1)
            .build()
            .unwrap();
        if late {
            __private::leave_unread(&mut trainer);
        }
        trainer.fit(&mut model::rows(28), Some(&mut model::rows(8))).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        take(&lines)
    };
    assert_eq!(order(false), order(true));
}

struct Silent;

#[hook]
impl Silent {
    fn after_record(&mut self, _: &mut Cx<Main<AfterRecord>>) {}
}

#[test]
fn only_rank_0_writes_the_checkpoints_that_a_hook_requests() {
    for rank in [0, 1] {
        let folder = scratch("record-rank");
        let target = folder.join("one");
        let mut trainer = program(3)
            .rank(rank)
            .hook(Silent)
            .epochs(1)
            .on::<AfterEpoch>("save", move |cx| cx.save_checkpoint(&target))
            .build()
            .unwrap();
        trainer.fit(&mut model::rows(28), Some(&mut model::rows(8))).unwrap();
        assert_eq!(folder.join("one/manifest.json").is_file(), rank == 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn a_logger_changes_no_metric() {
    let run = |logger: bool, every: u64| {
        let builder = program(every);
        let mut trainer = if logger { builder.hook(Silent).build() } else { builder.build() }.unwrap();
        trainer.fit(&mut model::rows(28), Some(&mut model::rows(8))).unwrap()
    };
    assert_eq!(run(true, 3), run(false, 3));
    assert_eq!(run(true, 2), run(true, 5));
}

#[test]
fn the_key_every_counts_records_of_steps_and_of_passes_separately() {
    struct Second(Lines);
    #[hook]
    impl Second {
        #[hook(every = 2)]
        fn after_record(&mut self, cx: &mut Cx<AfterRecord>) {
            let record = cx.record();
            let text = format!("{} {:?} {}", record.phase(), record.span(), cx.counters().optimizer_steps);
            self.0.lock().unwrap().push(text);
        }
    }
    let lines = Lines::default();
    let builder = builder().epochs(2).record_every(Every::Steps(2)).hook(Second(Arc::clone(&lines)));
    let mut trainer = builder.build().unwrap();
    trainer.fit(&mut model::rows(28), Some(&mut model::rows(8))).unwrap();
    assert_eq!(
        take(&lines),
        ["train Steps 4", "train Steps 8", "train Steps 12", "train Pass 14", "valid Pass 14"]
    );
}

#[test]
fn every_value_is_still_emitted_if_training_fails() {
    for late in [false, true] {
        let lines = Lines::default();
        let left = Arc::clone(&lines);
        let mut trainer = noting(builder().record_every(Every::Steps(2)), &lines)
            .on::<AfterLoss>("fails", |cx| {
                if cx.counters().batches_seen == 5 { Err(Error::msg("no")) } else { Ok(()) }
            })
            .on::<AfterError>("after_error", move |_| left.lock().unwrap().push("after_error".into()))
            .build()
            .unwrap();
        if late {
            __private::leave_unread(&mut trainer);
        }
        trainer.fit(&mut model::rows(28), None).unwrap_err();
        assert_eq!(
            heads(&lines),
            ["train steps 2 2", "train steps 4 4", "after_error", "train rest 5 5"],
            "late {late}"
        );
    }
}

#[test]
fn a_panic_at_a_late_record_keeps_the_counters_of_the_loop() {
    let mut panics = true;
    let mut trainer = builder()
        .record_every(Every::Steps(2))
        .on::<AfterRecord>("panics", move |cx| {
            assert!(!(std::mem::take(&mut panics) && cx.counters().batches_seen == 2), "no");
        })
        .build()
        .unwrap();
    __private::leave_unread(&mut trainer);
    catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut model::rows(28), None))).unwrap_err();
    assert_eq!(trainer.counters().batches_seen, 4);
}

#[test]
fn an_error_in_after_record_reports_the_counters_of_the_record() {
    let mut trainer = builder()
        .record_every(Every::Steps(2))
        .on::<AfterRecord>("fails", |_| Err(Error::msg("no")))
        .build()
        .unwrap();
    __private::leave_unread(&mut trainer);
    let error = trainer.fit(&mut model::rows(28), None).unwrap_err();
    assert!(message(&error).contains("failed at after_record, epoch 0, batch 2: no"), "{error}");
}

#[test]
fn passes_outside_of_a_fit_have_records() {
    let lines = Lines::default();
    let builder =
        noting(builder(), &lines).on::<AfterPredictStep>("seen", |cx| cx.log_as("seen", 1, Reduce::Sum));
    let mut trainer = builder.build().unwrap();
    trainer.validate(&mut model::rows(8)).unwrap();
    trainer.test(&mut model::rows(8)).unwrap();
    trainer.predict(&mut model::rows(8)).unwrap();
    let found: Vec<_> = take(&lines).iter().map(|line| line.split('=').next().unwrap().to_owned()).collect();
    assert_eq!(
        found,
        ["valid pass 0 2: valid/loss", "test pass 0 2: test/loss", "predict pass 0 2: predict/seen"]
    );
}

/// A hook around `fit` borrows its value throughout the fit, in which `after_record` fires.
#[test]
fn a_hook_around_fit_cannot_also_run_at_after_record() {
    struct Both;
    #[hook]
    impl Both {
        fn timed(&mut self, cx: &mut Cx<Fit>, next: Next<Fit>) -> Result<Done> {
            next.run(cx)
        }
        fn after_record(&mut self, _: &mut Cx<AfterRecord>) {}
    }
    let error = builder().hook(Both).build().unwrap_err();
    assert!(error.to_string().contains("borrows its value throughout"), "{error}");
}

#[test]
fn media_are_computed_only_for_a_record_that_is_due() {
    let due = Arc::new(Mutex::new(Vec::new()));
    let lines = Lines::default();
    let seen = Arc::clone(&due);
    let watch = move |cx: &mut Cx<AfterStep>| {
        if cx.is_record_due() {
            seen.lock().unwrap().push(cx.counters().batches_seen);
        }
        cx.log_text("batch", cx.counters().batches_seen.to_string());
    };
    let mut trainer = noting(builder().record_every(Every::Steps(2)).accumulate(2), &lines)
        .on::<AfterStep>("watch", watch)
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(28), None).unwrap();
    assert_eq!(*due.lock().unwrap(), [4, 7]);
    let texts: Vec<_> =
        take(&lines).iter().filter_map(|line| Some(line.split_once("batch=")?.1.to_owned())).collect();
    assert_eq!(texts, ["4", "7"]);

    // Without a hook at `after_record`, nothing is ever due, and even an invalid tensor costs
    // nothing.
    let mut trainer = builder()
        .record_every(Every::Steps(1))
        .on::<AfterStep>("empty", |cx| {
            assert!(!cx.is_record_due());
            cx.log_histogram("empty", Tensor::zeros([0], (Kind::Float, device())));
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
}

#[test]
fn media_belong_to_the_batch_in_which_the_record_is_due() {
    let lines = Lines::default();
    let mut trainer = noting(builder().record_every(Every::Steps(2)), &lines)
        .on::<AfterLoss>("text", |cx| cx.log_text("batch", cx.counters().batches_seen.to_string()))
        .on::<BeforeStep>("skip", |cx| {
            if cx.counters().batch_idx == 1 {
                cx.skip_batch();
            }
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(16), None).unwrap();
    let texts: Vec<_> =
        take(&lines).iter().filter_map(|line| Some(line.split_once("batch=")?.1.to_owned())).collect();
    assert_eq!(texts, ["1"]);
}

#[test]
fn invalid_media_are_errors_that_name_the_value_and_the_hook() {
    let error = |log: fn(&mut Cx<BeforeFit>)| {
        let builder = builder().hook(Silent).on::<BeforeFit>("logs", log);
        let error = builder.build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
        let text = message(&error);
        assert!(text.starts_with("hook `logs` (tests/it/records.rs:_) failed at before_fit"), "{text}");
        text.split_once("cannot log ").unwrap().1.to_owned()
    };
    let shape = error(|cx| cx.log_image("i", Tensor::zeros([2, 3, 3], (Kind::Float, device()))));
    assert!(shape.starts_with("`i`: expected an image of shape [channels, height, width]"), "{shape}");
    assert!(shape.ends_with("found a tensor of shape [2, 3, 3]"), "{shape}");
    let kind = error(|cx| cx.log_image("i", Tensor::zeros([3, 3], (Kind::Int64, device()))));
    assert!(kind.ends_with("found dtype `Int64`"), "{kind}");
    let name = error(|cx| cx.log_image("é".repeat(10_000), Tensor::zeros([0, 3], (Kind::Float, device()))));
    assert!(name.starts_with(&format!("`{}…`", "é".repeat(80))), "{name}");
}

#[test]
fn images_are_converted_to_pixels_from_0_to_255() {
    let lines = Lines::default();
    let mut trainer = noting(builder(), &lines)
        .on::<AfterTrainEpoch>("images", |cx| {
            let gray = Tensor::from_slice2(&[[0.0, 0.5, 1.0], [-1.0, 2.0, f64::NAN]]);
            cx.log_image("gray", gray);
            let bytes = Tensor::arange(6, (Kind::Uint8, device())).view([3, 1, 2]);
            cx.log_image("bytes", &bytes);
            let _ = bytes.shallow_clone().fill_(9);
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let line = take(&lines).concat();
    assert!(line.contains("train/gray=3x2 [0, 127, 255, 0, 255, 0]"), "{line}");
    assert!(line.contains("train/bytes=2x1 [0, 2, 4, 1, 3, 5]"), "{line}");
}

#[test]
fn histograms_count_only_finite_elements() {
    let found = Arc::new(Mutex::new(Vec::<(String, Histogram)>::new()));
    let kept = Arc::clone(&found);
    let mut trainer = builder()
        .on::<AfterTrainEpoch>("logs", |cx| {
            cx.log_histogram("mixed", Tensor::from_slice(&[1.0, -2.0, f64::NAN, 1.0, f64::INFINITY, 0.0]));
            cx.log_histogram("nothing", Tensor::from_slice(&[f64::NAN, f64::NEG_INFINITY]));
            cx.log_histogram("integers", Tensor::from_slice(&[3_i64, 3, 3]));
        })
        .on::<AfterRecord>("keep", move |cx| {
            let histograms =
                cx.record().histograms().map(|(name, histogram)| (name.to_owned(), histogram.clone()));
            kept.lock().unwrap().extend(histograms);
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let found = found.lock().unwrap();
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["train/mixed", "train/integers"]);
    let mixed = &found[0].1;
    let integers = &found[1].1;
    assert_eq!((mixed.min, mixed.max, mixed.count, mixed.sum, mixed.sum_squares), (-2.0, 1.0, 4, 0.0, 6.0));
    assert_eq!(mixed.counts.iter().sum::<u64>(), 4);
    assert_eq!((mixed.counts[0], mixed.limits.len()), (0, mixed.counts.len()));
    assert!(mixed.limits[0] <= -2.0 && *mixed.limits.last().unwrap() > 1.0);
    assert_eq!(integers.counts, [0, 3]);
    assert!(integers.limits[0] <= 3.0 && 3.0 < integers.limits[1]);
}

#[test]
fn record_every_accepts_steps_or_one_epoch() {
    let mistake = |every| builder().record_every(every).build().unwrap_err().to_string();
    assert!(
        mistake(Every::Steps(0)).contains("`.record_every(Every::Steps(0))`: expected `Every::Steps(n)`")
    );
    assert!(mistake(Every::Epochs(2)).contains("`Every::Epochs(1)`"));
    assert!(mistake(Every::Fraction(0.5)).contains("`Every::Epochs(1)`"));
    let lines = Lines::default();
    let mut trainer = noting(builder().record_every(Every::Epochs(1)), &lines).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(heads(&lines), ["train pass 2 2"]);
}

#[test]
fn a_warning_is_in_the_summary_once() {
    let mut trainer = builder().on::<AfterStep>("warns", |cx| cx.warn("careful")).build().unwrap();
    for _ in 0..2 {
        assert_eq!(own_warnings(&trainer.fit(&mut model::rows(12), None).unwrap()), ["careful"]);
    }
    assert_eq!(own_warnings(&builder().build().unwrap().fit(&mut model::rows(4), None).unwrap()), [""; 0]);
}

#[test]
fn media_that_no_record_contains_are_reported() {
    let run = |record_every: Option<u64>, every: u64| {
        let builder = builder().epochs(2).on::<AfterRecord>("logger", |_| {});
        let builder = match record_every {
            Some(n) => builder.record_every(Every::Steps(n)),
            None => builder,
        };
        let mut trainer = builder
            .on::<AfterStep>("sample", move |cx| {
                if cx.phase() == Phase::Train && cx.counters().batch_idx % every == 1 % every {
                    cx.log_text("sample", "a text");
                }
            })
            .on::<AfterTrainEpoch>("kept", |cx| cx.log_text("kept", "a text"))
            .build()
            .unwrap();
        own_warnings(&trainer.fit(&mut model::rows(24), None).unwrap())
    };
    // Logged in the first of six batches, while records are due in the fourth, the eighth and so
    // on.
    let lost = run(Some(4), 6);
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0].starts_with("`train/sample` is in no record, because no record was due"), "{lost:?}");
    assert!(lost[0].contains("`cx.is_record_due()`") && lost[0].contains("`.record_every(Every::Steps(1))`"));
    assert_eq!(run(Some(100), 1).len(), 1, "no record was due in the entire fit");
    assert_eq!(run(Some(1), 6), [""; 0]);
    assert_eq!(run(Some(7), 1), [""; 0], "not in the first epoch, but in the second");
}

/// A hook that logs one name at two points.
struct Twice;

#[hook]
impl Twice {
    fn after_loss(&self, cx: &Cx<AfterLoss>) {
        cx.log("twice", 1.0);
    }
    fn after_step(&self, cx: &Cx<AfterStep>) {
        cx.log("twice", 2.0);
    }
}

#[test]
fn a_name_logged_by_two_hooks_is_warned_about() {
    let log = |hook: &'static str, name: &'static str| {
        move |builder: trainer::TrainerBuilder<_>| builder.on::<AfterStep>(hook, move |cx| cx.log(name, 1.0))
    };
    let warnings = |builder: trainer::TrainerBuilder<_>| {
        own_warnings(&builder.build().unwrap().fit(&mut model::rows(12), None).unwrap())
    };
    let one = log("first", "shared")(log("second", "shared")(log("third", "own")(builder().epochs(3))));
    let text = |one, other, name| {
        format!(
            "`train/{name}` is logged by both `{one}` and `{other}`, and their values are combined: use different names"
        )
    };
    assert_eq!(warnings(one.hook(Twice)), [text("second", "first", "shared")]);
    let set = |hook: &'static str| {
        move |builder: trainer::TrainerBuilder<_>| {
            builder.on::<AfterEpoch>(hook, move |cx| cx.log("set", cx.counters().epoch as f64))
        }
    };
    let replaced = "`train/set` is logged by both `two` and `one`, and the later one replaces the other: use different names";
    assert_eq!(warnings(set("one")(set("two")(builder().epochs(3)))), [replaced]);
    // A hook at a later moment may replace a value.
    let later = set("one")(builder().epochs(3)).on::<AfterFit>("last", |cx| cx.log("set", 0.0));
    assert_eq!(warnings(later), [""; 0]);
    // Two methods of one value may log one name, and another hook may not.
    let other = log("other", "twice")(builder().epochs(3));
    assert_eq!(warnings(other.hook(Twice)), [text("it::records::Twice::after_loss", "other", "twice")]);
}
