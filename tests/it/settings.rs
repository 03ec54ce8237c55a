//! Settings of the loop: length, limits of passes, validation, device.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use trainer::data::from_fn;
use trainer::hooks::{Checkpoint, HyperparameterSchedule};
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::{Amount, TrainerBuilder};

use crate::model::{self, builder, message};

type Notes = Arc<Mutex<Vec<String>>>;

/// Returns a trainer that records each training batch and each validation, and its notes.
fn recording<T: Task>(builder: TrainerBuilder<T>) -> (Trainer<T>, Notes) {
    let notes = Notes::default();
    let steps = Arc::clone(&notes);
    let valid = Arc::clone(&notes);
    let trainer = builder
        .on::<AfterStep>("note_step", move |cx| {
            if cx.phase() == Phase::Train {
                steps.lock().unwrap().push(format!("{}.{}", cx.counters().epoch, cx.counters().batch_idx));
            }
        })
        .on::<AfterValid>("note_valid", move |cx| {
            valid.lock().unwrap().push(format!("valid of {}", cx.plan().batches.unwrap_or_default()));
        })
        .build()
        .unwrap();
    (trainer, notes)
}

fn take_notes(notes: &Notes) -> String {
    std::mem::take(&mut *notes.lock().unwrap()).join(", ")
}

#[test]
fn max_steps_counts_optimizer_steps_and_still_validates_the_last_epoch() {
    let (mut trainer, notes) = recording(builder().max_steps(5).accumulate(2));
    let summary = trainer.fit(&mut model::rows(24), Some(&mut model::rows(4))).unwrap();
    // Six batches an epoch, three optimizer steps; the fifth is in the middle of the second epoch.
    assert_eq!(
        take_notes(&notes),
        "0.1, 0.2, 0.3, 0.4, 0.5, 0.6, valid of 1, 1.1, 1.2, 1.3, 1.4, valid of 1"
    );
    assert_eq!(
        (summary.counters.optimizer_steps, summary.counters.batches_seen, summary.counters.samples_seen),
        (5, 10, 40)
    );
    assert_eq!(summary.stopped, None);
    // `max_steps` applies to each call of `fit`; the counters continue.
    let summary = trainer.fit(&mut model::rows(24), None).unwrap();
    assert_eq!((summary.counters.optimizer_steps, summary.counters.epoch), (10, 3));
}

#[test]
fn min_epochs_and_min_steps_delay_a_stop() {
    let stop = |builder: TrainerBuilder<_>| {
        let (mut trainer, notes) = recording(builder.on::<AfterStep>("stop", |cx| {
            if cx.phase() == Phase::Train {
                cx.stop("enough");
            }
        }));
        let summary = trainer.fit(&mut model::rows(8), Some(&mut model::rows(4))).unwrap();
        (take_notes(&notes), summary.stopped.is_some())
    };
    let stopped = |at: &str| (at.to_owned(), true);
    assert_eq!(stop(model::builder().epochs(5)), stopped("0.1"));
    assert_eq!(
        stop(model::builder().epochs(5).min_epochs(2)),
        stopped("0.1, 0.2, valid of 1, 1.1, 1.2, valid of 1")
    );
    assert_eq!(stop(model::builder().epochs(5).min_steps(3)), stopped("0.1, 0.2, valid of 1, 1.1"));
    // `epochs` ends the run before `min_steps` is reached, so the stop has no effect.
    assert_eq!(stop(model::builder().epochs(1).min_steps(9)), ("0.1, 0.2, valid of 1".to_owned(), false));
}

#[test]
fn max_time_ends_a_run_on_endless_data() {
    let sleepy = builder().max_time(Duration::from_millis(30)).on::<AfterStep>("sleep", |_| {
        std::thread::sleep(Duration::from_millis(5));
    });
    let (mut trainer, _) = recording(sleepy);
    let (inputs, labels) =
        (Tensor::ones([4, 4], (Kind::Float, Device::Cpu)), Tensor::from_slice(&[0_i64, 1, 2, 0]));
    let mut endless = from_fn(move |_| {
        std::iter::repeat_with({
            let inputs = inputs.shallow_clone();
            let labels = labels.shallow_clone();
            move || (inputs.shallow_clone(), labels.shallow_clone())
        })
    });
    let summary = trainer.fit(&mut endless, None).unwrap();
    assert_eq!(summary.stopped.as_deref(), Some("`max_time` of 30ms was reached"));
    assert!(summary.counters.batches_seen >= 1);
}

#[test]
fn passes_can_be_limited_to_a_number_or_a_fraction_of_batches() {
    let limits = builder()
        .limit_train_batches(2)
        .limit_valid_batches(0.5)
        .limit_test_batches(1)
        .limit_predict_batches(0.75)
        .sanity_batches(3);
    let (mut trainer, notes) = recording(limits);
    trainer.fit(&mut model::rows(40), Some(&mut model::rows(16))).unwrap();
    assert_eq!(take_notes(&notes), "valid of 2, 0.1, 0.2, valid of 2");
    assert_eq!(trainer.validate(&mut model::rows(24)).unwrap().history.len(), 1);
    assert_eq!(take_notes(&notes), "valid of 3");
    trainer.test(&mut model::rows(40)).unwrap();
    assert_eq!(trainer.counters().batch_idx, 1);
    assert_eq!(trainer.predict(&mut model::rows(16)).unwrap().len(), 3);
}

#[test]
fn a_fraction_requires_a_known_length() {
    let stream = || from_fn(|_| (0..3).map(|_| model::rows(4)).map(first_of));
    let mut share = builder().limit_train_batches(0.5).build().unwrap();
    assert_eq!(
        message(&share.fit(&mut stream(), None).unwrap_err()),
        "`.limit_train_batches(0.5)` is a fraction, but the loader does not report its number of batches: use a number of batches"
    );
    let mut none = builder().limit_train_batches(0.1).build().unwrap();
    assert_eq!(
        message(&none.fit(&mut model::rows(12), None).unwrap_err()),
        "`.limit_train_batches(0.1)` is less than one batch, because the number of batches in a pass is 3: use a larger fraction, or a number of batches"
    );
    let mut within = builder().validate_every(Every::Fraction(0.5)).build().unwrap();
    let error = within.fit(&mut stream(), Some(&mut model::rows(4))).unwrap_err();
    assert_eq!(
        message(&error),
        "failed at train_epoch, epoch 0, batch 1: validating at `Every::Fraction(0.5)` requires the \
         number of batches in an epoch, which the training loader does not report: use `Every::Steps(…)`"
    );
    // A number is enough for a stream that never ends.
    let mut number = builder().limit_train_batches(5).build().unwrap();
    let mut endless = from_fn(|_| std::iter::repeat_with(|| first_of(model::rows(4))));
    assert_eq!(number.fit(&mut endless, None).unwrap().counters.batches_seen, 5);
}

fn first_of(mut rows: InMemory<(Tensor, Tensor)>) -> (Tensor, Tensor) {
    rows.batches(0, 0).unwrap().next().unwrap().unwrap()
}

#[test]
fn overfit_batches_repeats_the_same_batches_even_if_shuffled() {
    let seen: Arc<Mutex<Vec<f64>>> = Arc::default();
    let sums = Arc::clone(&seen);
    let mut trainer = builder()
        .epochs(3)
        .overfit_batches(2)
        .on::<AfterTransfer>("sum", move |cx| {
            if cx.phase() == Phase::Train {
                let sum = cx.batch::<(Tensor, Tensor)>()?.0.sum(Kind::Double).double_value(&[]);
                sums.lock().unwrap().push(sum);
            }
            Ok(())
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(40).shuffle(7), Some(&mut model::rows(40))).unwrap();
    assert_eq!(trainer.counters().batch_idx, 2);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 6);
    assert_eq!(seen[..2], seen[2..4]);
    assert_eq!(seen[..2], seen[4..]);
}

#[test]
fn a_fast_dev_run_limits_every_pass_and_writes_no_checkpoint() {
    let settings =
        builder().epochs(100).max_steps(1000).sanity_batches(4).limit_valid_batches(9).fast_dev_run(2);
    let folder = crate::support::scratch("dev-run");
    let settings = settings
        .hook(Checkpoint::new(&folder))
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(500)));
    let (mut trainer, notes) = recording(settings);
    trainer.fit(&mut model::rows(40), Some(&mut model::rows(40))).unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "no checkpoint");
    assert_eq!(take_notes(&notes), "0.1, 0.2, valid of 2");
    assert_eq!(trainer.predict(&mut model::rows(40)).unwrap().len(), 2);
}

#[test]
fn validate_every_counts_epochs_steps_or_fractions() {
    let run = |every: Every, epochs: u64| {
        let (mut trainer, notes) = recording(builder().epochs(epochs).validate_every(every));
        let summary = trainer.fit(&mut model::rows(20), Some(&mut model::rows(8))).unwrap();
        (take_notes(&notes), summary)
    };
    let (notes, summary) = run(Every::Epochs(2), 3);
    assert_eq!(notes.matches("valid").count(), 1);
    assert!(notes.contains("1.5, valid of 2, 2.1"), "{notes}");
    // The metrics of the last validation are kept, although the last epoch did not validate.
    assert!(summary.metrics.get("valid/loss").is_some());
    assert!(summary.history["valid/loss"][2].is_nan());

    let (notes, summary) = run(Every::Steps(3), 2);
    assert_eq!(notes, "0.1, 0.2, 0.3, valid of 2, 0.4, 0.5, 1.1, valid of 2, 1.2, 1.3, 1.4, valid of 2, 1.5");
    let measured: Vec<_> = summary.history.points("valid/loss").map(|(step, _)| step.samples_seen).collect();
    assert_eq!(measured, [12, 24, 36]);
    let trained: Vec<_> = summary.history.points("train/loss").map(|(step, _)| step.samples_seen).collect();
    assert_eq!(trained, [20, 40]);

    // Five batches: the halves end with the third and with the fifth.
    let (notes, summary) = run(Every::Fraction(0.5), 1);
    assert_eq!(notes, "0.1, 0.2, 0.3, valid of 2, 0.4, 0.5, valid of 2");
    assert_eq!(summary.history.len(), 2, "the last validation and the epoch end at the same counters");
}

#[test]
fn validation_within_an_epoch_does_not_change_training() {
    let weights = |builder: TrainerBuilder<_>| {
        let mut trainer = builder.epochs(2).accumulate(2).build().unwrap();
        trainer.fit(&mut model::rows(20), Some(&mut model::rows(8))).unwrap();
        trainer.vars().get("fc1.weight").unwrap().copy()
    };
    let without = weights(model::builder());
    assert_eq!(without, weights(model::builder().validate_every(Every::Steps(1))));
    assert_eq!(without, weights(model::builder().validate_every(Every::Fraction(0.2))));
}

#[test]
fn invalid_and_contradictory_settings_are_all_reported_at_build() {
    let nonsense = builder()
        .epochs(2)
        .min_epochs(3)
        .max_steps(5)
        .min_steps(6)
        .limit_train_batches(0)
        .limit_valid_batches(0)
        .limit_test_batches(f64::NAN)
        .limit_predict_batches(10.0)
        .overfit_batches(-1)
        .validate_every(Every::Steps(6))
        .accumulate(0)
        .clip_grad_norm(f64::NAN)
        .clip_grad_value(0.0)
        .max_time(Duration::ZERO)
        .device(Device::Vulkan);
    insta::assert_snapshot!(message(&nonsense.build().unwrap_err()), @r#"
    the trainer cannot be built, for 15 reasons:
    - `.max_time(…)` of zero trains nothing: expected a longer time
    - `.min_epochs(3)` exceeds `.epochs(2)`: a fit trains no more epochs than that
    - `.min_steps(6)` exceeds `.max_steps(5)`: a fit takes no more steps than that
    - `.limit_train_batches(0)`: expected at least 1
    - `.limit_valid_batches(0)`: this validates nothing: pass no validation data to `fit` instead
    - `.limit_test_batches(NaN)`: expected a fraction above 0.0 and at most 1.0
    - `.limit_predict_batches(10.0)`: expected a fraction above 0.0 and at most 1.0; for a number, write `10` without the decimal point
    - `.overfit_batches(-1)`: expected at least 1
    - `.overfit_batches(…)` and `.limit_train_batches(…)` both limit the batches: set only one of them
    - `.overfit_batches(…)` and `.limit_valid_batches(…)` both limit the batches: set only one of them
    - `.validate_every(Every::Steps(6))` exceeds `.max_steps(5)`: a fit takes no more steps than that
    - `.accumulate(0)` never updates the model: expected at least 1
    - `.device(Vulkan)`: this libtorch was built without support for it
    - hook `trainer::hooks::ClipGradNorm`: `max_norm` is NaN: expected a finite number above 0
    - hook `trainer::hooks::ClipGradValue`: `max_value` is 0.0: expected a finite number above 0
    "#);
    let more = builder()
        .epochs(0)
        .max_steps(0)
        .fast_dev_run(0)
        .overfit_batches(1.5)
        .validate_every(Every::Fraction(-0.5));
    insta::assert_snapshot!(message(&more.build().unwrap_err()), @r#"
    the trainer cannot be built, for 6 reasons:
    - `.epochs(0)` trains nothing: expected at least 1; to evaluate only, call `validate` or `test`
    - `.max_steps(0)` trains nothing: expected at least 1
    - `.overfit_batches(1.5)`: expected a fraction above 0.0 and at most 1.0
    - `.validate_every(Every::Fraction(-0.5))`: expected a fraction above 0.0 and at most 1.0
    - `.fast_dev_run(0)` runs nothing: expected at least 1
    - `.fast_dev_run(…)` and `.overfit_batches(…)` both limit the batches: set only one of them
    "#);
    let never = builder().epochs(3).validate_every(Every::Epochs(4));
    insta::assert_snapshot!(message(&never.build().unwrap_err()), @"the trainer cannot be built: `.validate_every(Every::Epochs(4))` exceeds `.epochs(3)`: a fit trains no more epochs than that");
    let of_one = builder().min_epochs(5).min_steps(9).validate_every(Every::Epochs(2));
    insta::assert_snapshot!(message(&of_one.build().unwrap_err()), @r#"
    the trainer cannot be built, for 3 reasons:
    - `.min_epochs(5)` exceeds the one epoch that a fit trains by default: set `.epochs(…)` too
    - `.min_steps(9)` needs an upper limit: set `.epochs(…)`, `.max_steps(…)` or `.max_time(…)` too
    - `.validate_every(Every::Epochs(2))` exceeds the one epoch that a fit trains by default: set `.epochs(…)` too
    "#);
    assert_eq!(Amount::from(3).to_string(), "3");
}

#[test]
fn requested_validation_without_data_is_an_error() {
    let mut trainer = builder().validate_every(Every::Epochs(1)).build().unwrap();
    assert_eq!(
        message(&trainer.fit(&mut model::rows(8), None).unwrap_err()),
        "`.validate_every(…)` requires validation, but `fit` was called without validation data: call \
         `fit(&mut train, Some(&mut valid))`"
    );
    assert_eq!(trainer.counters().batches_seen, 0);
}

#[test]
fn max_steps_without_any_optimizer_step_is_an_error() {
    struct Never;

    #[hook]
    impl Never {
        fn never(&mut self, _: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
            Ok(next.skip())
        }
    }

    let mut trainer = builder().max_steps(3).hook(Never).build().unwrap();
    let error = message(&trainer.fit(&mut model::rows(8), None).unwrap_err());
    assert!(error.contains("an epoch ended without an optimizer step"), "{error}");
}

#[test]
fn planned_steps_matches_the_optimizer_steps_taken() {
    let planned = |builder: TrainerBuilder<_>, fits: u64| {
        let mut trainer = builder
            .on::<AfterFit>("planned", |cx| {
                let planned = cx.plan().steps.unwrap();
                cx.log("planned", planned);
            })
            .build()
            .unwrap();
        let mut last = 0.0;
        for _ in 0..fits {
            let summary = trainer.fit(&mut model::rows(20), None).unwrap();
            last = summary.metrics["train/planned"];
            assert_eq!(last, summary.counters.optimizer_steps as f64, "as many as were taken");
        }
        last
    };
    assert_eq!(planned(model::builder().epochs(3), 1), 15.0);
    assert_eq!(planned(model::builder().epochs(3).accumulate(2), 2), 18.0);
    assert_eq!(
        planned(model::builder().epochs(4).accumulate(5).accumulate_from(1, 2).accumulate_from(3, 1), 1),
        12.0
    );
    assert_eq!(planned(model::builder().epochs(3).limit_train_batches(2), 1), 6.0);
    assert_eq!(planned(model::builder().max_steps(7), 2), 14.0);
    assert_eq!(planned(model::builder().epochs(1).max_steps(7), 1), 5.0);
}

/// A task without `vars_mut`, so that its variables cannot be moved.
struct Anchored(nn::VarStore);

impl Task for Anchored {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(batch.shallow_clone())
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.mean(Kind::Float))
    }
}

#[test]
fn the_builder_moves_the_task_to_the_selected_device() {
    let anchored = || Trainer::builder(Anchored(nn::VarStore::new(Device::Cpu))).discover(Discover::None);
    assert!(anchored().device(Device::Cpu).build().is_ok(), "the task is on that device already");
    if !tch::Cuda::is_available() {
        return;
    }
    let mut trainer = builder().auto_device().build().unwrap();
    assert!(trainer.vars().iter().all(|var| var.tensor.device() == Device::Cuda(0)));
    assert_eq!(trainer.task().vars().device(), Device::Cuda(0));
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();
    let error = message(&anchored().device(Device::Cuda(0)).build().unwrap_err());
    assert!(error.contains("or implement `Task::vars_mut`"), "{error}");
}

#[test]
fn fractions_of_an_epoch_are_rounded_to_end_with_the_epoch() {
    for (share, batches) in [(0.2, 6), (0.2, 7), (0.1, 12), (0.05, 41), (0.25, 5), (1.0, 3)] {
        let (mut trainer, notes) = recording(builder().validate_every(Every::Fraction(share)));
        trainer.fit(&mut model::rows(4 * batches), Some(&mut model::rows(4))).unwrap();
        let notes = take_notes(&notes);
        let wanted = ((1.0 / share).round() as usize).min(usize::try_from(batches).unwrap());
        assert_eq!(notes.matches("valid").count(), wanted, "{share} of {batches}");
        assert!(notes.ends_with("valid of 1"), "{share} of {batches}: {notes}");
    }
    let mut limited = builder().limit_train_batches(0.29).build().unwrap();
    assert_eq!(limited.fit(&mut model::rows(400), None).unwrap().counters.batches_seen, 29);
}

/// Skips the training pass of every epoch.
struct Nothing;

#[hook]
impl Nothing {
    fn nothing(&mut self, _: &mut Cx<TrainEpoch>, next: Next<TrainEpoch>) -> Result<Done> {
        Ok(next.skip())
    }
}

#[test]
fn max_time_and_stop_end_a_run_that_trains_nothing() {
    let mut trainer = builder().max_time(Duration::from_millis(20)).hook(Nothing).build().unwrap();
    assert!(trainer.fit(&mut model::rows(8), None).unwrap().stopped.is_some());
    let mut stopped = builder()
        .max_steps(30)
        .on::<BeforeEpoch>("stop", |cx| {
            if cx.counters().epoch == 1 {
                cx.stop("enough");
            }
        })
        .build()
        .unwrap();
    assert_eq!(stopped.fit(&mut model::rows(8), None).unwrap().stopped.as_deref(), Some("enough"));
}

/// Settings as a file has them, which a program can embed in a struct of its own.
#[test]
fn settings_are_read_from_files_and_written_to_them() {
    fn check<S: serde::Serialize + serde::de::DeserializeOwned>(setting: &S, text: &str) {
        assert_eq!(serde_json::to_string(setting).unwrap(), text);
        let read: S = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }
    check(&Every::Epochs(2), r#"{"epochs":2}"#);
    check(&Every::Fraction(0.25), r#"{"fraction":0.25}"#);
    check(&Amount::from(3), "3");
    check(&Amount::from(0.5), "0.5");
    check(&trainer::OnSignal::Return, r#""return""#);
    check(&Goal::Minimize, r#""minimize""#);
    check(&Reduce::Mean, r#""mean""#);
    check(&trainer::metrics::Average::PerClass, r#""per_class""#);
    check(&Resume::Auto, r#""auto""#);
    check(&Resume::from("runs/1"), r#"{"from":"runs/1"}"#);
    check(&trainer::RunFolder::numbered("runs"), r#"{"path":"runs","numbered":true}"#);
    check(&trainer::PhaseSet::from([Phase::Train, Phase::Valid]), r#"["train","valid"]"#);
}
