//! What the loop is told: how long, over how much of the data, how often.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use trainer::data::from_fn;
use trainer::hooks::{Checkpoint, LrSchedule};
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::{Limit, TrainerBuilder};

use crate::model::{self, builder, told};

type Notes = Arc<Mutex<Vec<String>>>;

/// A trainer that notes each step and each validation, and what it noted.
fn noted<T: Task>(builder: TrainerBuilder<T>) -> (Trainer<T>, Notes) {
    let notes = Notes::default();
    let (steps, valid) = (Arc::clone(&notes), Arc::clone(&notes));
    let trainer = builder
        .on::<AfterStep>("note_step", move |cx| {
            if cx.phase() == Phase::Train {
                steps.lock().unwrap().push(format!("{}.{}", cx.counters().epoch, cx.counters().batch_idx));
            }
        })
        .on::<AfterValid>("note_valid", move |cx| {
            valid.lock().unwrap().push(format!("valid of {}", cx.batches().unwrap_or_default()));
        })
        .build()
        .unwrap();
    (trainer, notes)
}

fn taken(notes: &Notes) -> String {
    std::mem::take(&mut *notes.lock().unwrap()).join(", ")
}

#[test]
fn max_steps_counts_optimizer_steps_and_closes_the_epoch_in_order() {
    let (mut trainer, notes) = noted(builder().max_steps(5).accumulate(2));
    let summary = trainer.fit(&mut model::rows(24), Some(&mut model::rows(4))).unwrap();
    // Six batches an epoch, three optimizer steps; the fifth is in the middle of the second epoch.
    assert_eq!(taken(&notes), "0.1, 0.2, 0.3, 0.4, 0.5, 0.6, valid of 1, 1.1, 1.2, 1.3, 1.4, valid of 1");
    assert_eq!(
        (summary.counters.optimizer_steps, summary.counters.batches_seen, summary.counters.samples_seen),
        (5, 10, 40)
    );
    assert_eq!(summary.stopped, None);
    // Each call of `fit` takes so many; the counters go on.
    let summary = trainer.fit(&mut model::rows(24), None).unwrap();
    assert_eq!((summary.counters.optimizer_steps, summary.counters.epoch), (10, 3));
}

#[test]
fn a_stop_waits_for_what_must_be_trained() {
    let stop = |builder: TrainerBuilder<_>| {
        let (mut trainer, notes) = noted(builder.on::<AfterStep>("stop", |cx| {
            if cx.phase() == Phase::Train {
                cx.stop("enough");
            }
        }));
        let summary = trainer.fit(&mut model::rows(8), Some(&mut model::rows(4))).unwrap();
        (taken(&notes), summary.stopped.is_some())
    };
    let stopped = |at: &str| (at.to_owned(), true);
    assert_eq!(stop(model::builder().epochs(5)), stopped("0.1"));
    assert_eq!(
        stop(model::builder().epochs(5).min_epochs(2)),
        stopped("0.1, 0.2, valid of 1, 1.1, 1.2, valid of 1")
    );
    assert_eq!(stop(model::builder().epochs(5).min_steps(3)), stopped("0.1, 0.2, valid of 1, 1.1"));
    // What there is to train is no more than `epochs`: nothing was cut short.
    assert_eq!(stop(model::builder().epochs(1).min_steps(9)), ("0.1, 0.2, valid of 1".to_owned(), false));
}

#[test]
fn a_run_ends_when_its_time_is_up_whatever_the_data() {
    let sleepy = builder().max_time(Duration::from_millis(30)).on::<AfterStep>("sleep", |_| {
        std::thread::sleep(Duration::from_millis(5));
    });
    let (mut trainer, _) = noted(sleepy);
    let (inputs, labels) =
        (Tensor::ones([4, 4], (Kind::Float, Device::Cpu)), Tensor::from_slice(&[0_i64, 1, 2, 0]));
    let mut endless = from_fn(move |_| {
        std::iter::repeat_with({
            let (inputs, labels) = (inputs.shallow_clone(), labels.shallow_clone());
            move || (inputs.shallow_clone(), labels.shallow_clone())
        })
    });
    let summary = trainer.fit(&mut endless, None).unwrap();
    assert_eq!(summary.stopped.as_deref(), Some("`max_time` of 30ms was reached"));
    assert!(summary.counters.batches_seen >= 1);
}

#[test]
fn passes_are_limited_by_number_and_by_share() {
    let limits = builder()
        .limit_train_batches(2)
        .limit_valid_batches(0.5)
        .limit_test_batches(1)
        .limit_predict_batches(0.75)
        .sanity_steps(3);
    let (mut trainer, notes) = noted(limits);
    trainer.fit(&mut model::rows(40), Some(&mut model::rows(16))).unwrap();
    assert_eq!(taken(&notes), "valid of 2, 0.1, 0.2, valid of 2");
    assert_eq!(trainer.validate(&mut model::rows(24)).unwrap().history.len(), 1);
    assert_eq!(taken(&notes), "valid of 3");
    trainer.test(&mut model::rows(40)).unwrap();
    assert_eq!(trainer.counters().batch_idx, 1);
    assert_eq!(trainer.predict(&mut model::rows(16)).unwrap().len(), 3);
}

#[test]
fn a_share_wants_to_know_of_what() {
    let stream = || from_fn(|_| (0..3).map(|_| model::rows(4)).map(first_of));
    let mut share = builder().limit_train_batches(0.5).build().unwrap();
    assert_eq!(
        told(&share.fit(&mut stream(), None).unwrap_err()),
        "`.limit_train_batches(0.5)` is a fraction, but the loader does not report its number of batches: use a number of batches"
    );
    let mut none = builder().limit_train_batches(0.1).build().unwrap();
    assert_eq!(
        told(&none.fit(&mut model::rows(12), None).unwrap_err()),
        "`.limit_train_batches(0.1)` of 3 batches is less than one: use a larger fraction, or a number of batches"
    );
    let mut within = builder().validate_every(Every::Fraction(0.5)).build().unwrap();
    let error = within.fit(&mut stream(), Some(&mut model::rows(4))).unwrap_err();
    assert_eq!(
        told(&error),
        "failed at train_epoch, epoch 0, batch 1: `.validate_every(Every::Fraction(0.5))` is a fraction, but the \
         loader does not report its number of batches: use `Every::Steps(…)`"
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
fn overfitting_sees_the_same_batches_each_epoch_shuffled_or_not() {
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
fn a_fast_dev_run_runs_everything_once() {
    let settings =
        builder().epochs(100).max_steps(1000).sanity_steps(4).limit_valid_batches(9).fast_dev_run(2);
    let folder = crate::resume::scratch("dev-run");
    let settings =
        settings.hook(Checkpoint::new(&folder)).hook(LrSchedule::new(Cosine::to(0.0).warm_up(500)));
    let (mut trainer, notes) = noted(settings);
    trainer.fit(&mut model::rows(40), Some(&mut model::rows(40))).unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "no checkpoint");
    assert_eq!(taken(&notes), "0.1, 0.2, valid of 2");
    assert_eq!(trainer.predict(&mut model::rows(40)).unwrap().len(), 2);
}

#[test]
fn validation_comes_as_often_as_it_is_asked_for() {
    let run = |every: Every, epochs: u64| {
        let (mut trainer, notes) = noted(builder().epochs(epochs).validate_every(every));
        let summary = trainer.fit(&mut model::rows(20), Some(&mut model::rows(8))).unwrap();
        (taken(&notes), summary)
    };
    let (notes, summary) = run(Every::Epochs(2), 3);
    assert_eq!(notes.matches("valid").count(), 1);
    assert!(notes.contains("1.5, valid of 2, 2.1"), "{notes}");
    // What was measured last, though the last epoch did not.
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
fn the_model_trains_on_after_a_validation_in_between() {
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
fn what_contradicts_itself_is_told_when_the_trainer_is_built() {
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
    insta::assert_snapshot!(told(&nonsense.build().unwrap_err()), @r#"
    the trainer cannot be built, for 16 reasons:
    - `.max_time(…)` of zero trains nothing: expected a longer time
    - `.min_epochs(3)` exceeds `.epochs(2)`: a fit trains no more epochs than that
    - `.min_steps(6)` exceeds `.max_steps(5)`: a fit takes no more steps than that
    - `.limit_train_batches(0)`: expected at least 1
    - `.limit_valid_batches(0)`: this validates nothing: pass no validation data to `fit` instead
    - `.limit_test_batches(NaN)`: expected a fraction above 0.0 and at most 1.0
    - `.limit_predict_batches(10.0)`: expected a fraction above 0.0 and at most 1.0; for a number of batches, write `10` without the decimal point
    - `.overfit_batches(-1)`: expected at least 1
    - `.overfit_batches(…)` and `.limit_train_batches(…)` both limit the batches: set only one of them
    - `.overfit_batches(…)` and `.limit_valid_batches(…)` both limit the batches: set only one of them
    - `.validate_every(Every::Steps(6))` exceeds `.max_steps(5)`: a fit takes no more steps than that
    - `.accumulate(0)` never updates the model: expected at least 1
    - `.clip_grad_norm(NaN)`: expected a finite number above 0
    - `.clip_grad_value(0.0)`: expected a finite number above 0
    - `.clip_grad_norm(…)` and `.clip_grad_value(…)` are both set: set only one of them
    - `.device(Vulkan)`: this libtorch was built without support for it
    "#);
    let more = builder()
        .epochs(0)
        .max_steps(0)
        .fast_dev_run(0)
        .overfit_batches(1.5)
        .validate_every(Every::Fraction(-0.5));
    insta::assert_snapshot!(told(&more.build().unwrap_err()), @r#"
    the trainer cannot be built, for 6 reasons:
    - `.epochs(0)` trains nothing: expected at least 1; to evaluate only, call `validate` or `test`
    - `.max_steps(0)` trains nothing: expected at least 1
    - `.overfit_batches(1.5)`: expected a fraction above 0.0 and at most 1.0
    - `.validate_every(Every::Fraction(-0.5))`: expected a fraction above 0.0 and at most 1.0
    - `.fast_dev_run(0)` runs nothing: expected at least 1
    - `.fast_dev_run(…)` and `.overfit_batches(…)` both limit the batches: set only one of them
    "#);
    let never = builder().epochs(3).validate_every(Every::Epochs(4));
    insta::assert_snapshot!(told(&never.build().unwrap_err()), @"the trainer cannot be built: `.validate_every(Every::Epochs(4))` exceeds `.epochs(3)`: a fit trains no more epochs than that");
    let of_one = builder().min_epochs(5).min_steps(9).validate_every(Every::Epochs(2));
    insta::assert_snapshot!(told(&of_one.build().unwrap_err()), @r#"
    the trainer cannot be built, for 3 reasons:
    - `.min_epochs(5)` exceeds the one epoch that a fit trains by default: set `.epochs(…)` too
    - `.min_steps(9)` needs an upper limit: set `.epochs(…)`, `.max_steps(…)` or `.max_time(…)` too
    - `.validate_every(Every::Epochs(2))` exceeds the one epoch that a fit trains by default: set `.epochs(…)` too
    "#);
    assert_eq!(Limit::from(3).to_string(), "3");
}

#[test]
fn validation_that_is_asked_for_wants_data() {
    let mut trainer = builder().validate_every(Every::Epochs(1)).build().unwrap();
    assert_eq!(
        told(&trainer.fit(&mut model::rows(8), None).unwrap_err()),
        "`.validate_every(…)` requires validation, but `fit` was called without validation data: call \
         `fit(&mut train, Some(&mut valid))`"
    );
    assert_eq!(trainer.counters().batches_seen, 0);
}

#[test]
fn steps_that_never_come_are_told() {
    struct Never;

    #[hook]
    impl Never {
        #[hook(around = opt_step)]
        fn never(&mut self, _: &mut Cx<OptStep>, _: Next<OptStep>) {}
    }

    let mut trainer = builder().max_steps(3).hook(Never).build().unwrap();
    let error = told(&trainer.fit(&mut model::rows(8), None).unwrap_err());
    assert!(error.contains("an epoch ended without an optimizer step"), "{error}");
}

#[test]
fn a_schedule_knows_how_many_steps_there_are() {
    let planned = |builder: TrainerBuilder<_>, fits: u64| {
        let mut trainer = builder
            .on::<AfterFit>("planned", |cx| {
                let planned = cx.planned_steps().unwrap();
                cx.log("planned", planned);
            })
            .build()
            .unwrap();
        let mut last = 0.0;
        for _ in 0..fits {
            let summary = trainer.fit(&mut model::rows(20), None).unwrap();
            last = summary.metrics["train/planned"];
            assert_eq!(last, summary.counters.optimizer_steps as f64, "and so many there were");
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

/// A task whose `VarStore` cannot be moved.
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
fn a_task_moves_to_the_device_that_the_builder_names() {
    let anchored = || Trainer::builder(Anchored(nn::VarStore::new(Device::Cpu))).discover(Discover::None);
    assert!(anchored().device(Device::Cpu).build().is_ok(), "it is there already");
    if !tch::Cuda::is_available() {
        return;
    }
    let mut trainer = builder().auto_device().build().unwrap();
    assert!(trainer.vars().iter().all(|var| var.tensor.device() == Device::Cuda(0)));
    assert_eq!(trainer.task().vars().device(), Device::Cuda(0));
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();
    let error = told(&anchored().device(Device::Cuda(0)).build().unwrap_err());
    assert!(error.contains("or implement `Task::vars_mut`"), "{error}");
}

#[test]
fn a_share_of_an_epoch_ends_with_the_epoch() {
    for (share, batches) in [(0.2, 6), (0.2, 7), (0.1, 12), (0.05, 41), (0.25, 5), (1.0, 3)] {
        let (mut trainer, notes) = noted(builder().validate_every(Every::Fraction(share)));
        trainer.fit(&mut model::rows(4 * batches), Some(&mut model::rows(4))).unwrap();
        let notes = taken(&notes);
        let wanted = ((1.0 / share).round() as usize).min(usize::try_from(batches).unwrap());
        assert_eq!(notes.matches("valid").count(), wanted, "{share} of {batches}");
        assert!(notes.ends_with("valid of 1"), "{share} of {batches}: {notes}");
    }
    let mut limited = builder().limit_train_batches(0.29).build().unwrap();
    assert_eq!(limited.fit(&mut model::rows(400), None).unwrap().counters.batches_seen, 29);
}

/// Leaves out every pass.
struct Nothing;

#[hook]
impl Nothing {
    #[hook(around = train_epoch)]
    fn nothing(&mut self, _: &mut Cx<TrainEpoch>, _: Next<TrainEpoch>) {}
}

#[test]
fn a_run_of_nothing_ends_too() {
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
