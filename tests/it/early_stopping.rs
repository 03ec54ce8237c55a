//! Early stopping, and what a hook can know of the validations of a fit.

use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::hooks::EarlyStopping;
use trainer::prelude::*;

use crate::model::{self, builder, message};

/// Returns the summary of a fit whose metric `valid/recorded` gets worse with each validation.
fn worsening(builder: TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>>, hook: EarlyStopping) -> Summary {
    let mut value = 0.0;
    let mut trainer = builder
        .on::<AfterValid>("record", move |cx| {
            value += 1.0;
            cx.log("recorded", value);
        })
        .hook(hook)
        .build()
        .unwrap();
    trainer.validate(&mut model::rows(4)).unwrap(); // not checked
    trainer.fit(&mut model::rows(24), Some(&mut model::rows(4))).unwrap()
}

#[test]
fn each_validation_within_an_epoch_is_checked() {
    let hook = || EarlyStopping::new("valid/recorded", Goal::Minimize).patience(2);
    // One epoch of six batches: the first value is the best, and two worse ones exhaust the
    // patience.
    let summary = worsening(builder().sanity_batches(1).validate_every(Every::Steps(1)), hook());
    assert_eq!(summary.counters.optimizer_steps, 3);
    let reason = "`valid/recorded` has not improved on 3 in 2 checks in a row";
    assert_eq!(summary.stopped.as_deref(), Some(reason));
    let summary = worsening(builder().validate_every(Every::Fraction(0.5)), hook().patience(1));
    assert_eq!(summary.counters.optimizer_steps, 6, "the second validation follows the last batch");
    let summary = worsening(builder().epochs(9), hook());
    assert_eq!((summary.counters.epoch, summary.counters.optimizer_steps), (2, 18));
}

#[test]
fn the_epoch_is_still_validated_if_a_training_metric_stops_the_run() {
    let hook = EarlyStopping::new("train/loss", Goal::Minimize).stop_at(1e9);
    let summary = worsening(builder().epochs(3), hook);
    assert_eq!(summary.counters.epoch, 0);
    assert!(summary.stopped.is_some() && summary.metrics.get("valid/loss").is_some());
}

#[test]
fn metrics_that_are_never_measured_are_refused() {
    let fit = |builder: TrainerBuilder<_>, metric: &str, validates: bool| {
        let mut trainer = builder.hook(EarlyStopping::new(metric, Goal::Minimize)).build().unwrap();
        let mut valid = model::rows(4);
        let outcome =
            trainer.fit(&mut model::rows(24), validates.then_some(&mut valid as &mut dyn Loader<_>));
        outcome.map_err(|error| message(&error).split_once(" failed at ").unwrap().1.to_owned())
    };
    let never = "before_fit, epoch 0, batch 0: `valid/loss` will never be measured, because this fit does not validate: pass \
                 validation data, `fit(&mut train, Some(&mut valid))`, and set `.validate_every(…)` so that a validation is due within the fit";
    assert_eq!(fit(builder(), "valid/loss", false).unwrap_err(), never);
    // Validation data is not enough: a validation must come due.
    let steps = |n| builder().validate_every(Every::Steps(n));
    assert_eq!(fit(steps(7), "valid/loss", true).unwrap_err(), never);
    assert!(fit(steps(6), "valid/loss", true).is_ok());
    assert!(
        fit(steps(7).fast_dev_run(1), "valid/loss", true).is_ok(),
        "`fast_dev_run` validates after its epoch"
    );
    assert!(fit(builder(), "train/loss", false).is_ok());
    assert_eq!(
        fit(builder(), "test/loss", true).unwrap_err(),
        "before_fit, epoch 0, batch 0: `test/loss` is not the name of a metric in training or validation: expected `train/…` or `valid/…`"
    );
    // An unknown name is only detected with the first values, because a hook may still log it until
    // then.
    assert_eq!(
        fit(builder(), "valid/accuracy", true).unwrap_err(),
        "after_valid (valid), epoch 0, batch 1: no metric is named `valid/accuracy`; the metrics are `train/loss`, `valid/loss`"
    );
}

#[test]
fn a_hook_can_query_whether_the_fit_validates() {
    let seen: Arc<Mutex<Vec<bool>>> = Default::default();
    let note = Arc::clone(&seen);
    let mut trainer = builder()
        .on::<BeforeFit>("note", move |cx| note.lock().unwrap().push(cx.plan().validates))
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(4))).unwrap();
    assert_eq!(*seen.lock().unwrap(), [false, true]);
}
