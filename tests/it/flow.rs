//! What hooks can ask of the loop.

use trainer::prelude::*;

use crate::model;

fn builder() -> trainer::TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).epochs(3).discover(Discover::None)
}

#[test]
fn a_skipped_batch_counts_only_in_the_epoch() {
    let mut trainer = builder()
        .on::<BeforeStep>("skip", |cx| {
            if cx.step().batch_idx == 1 {
                cx.skip_step();
            }
        })
        .on::<AfterStep>("never", |cx| assert_ne!(cx.step().batch_idx, 2))
        .build()
        .unwrap();
    let step = trainer.fit(&mut model::rows(12), None).unwrap().step;
    assert_eq!(
        step,
        StepState { epoch: 2, batch_idx: 3, global_step: 6, optimizer_step: 6, samples_seen: 24 }
    );
}

#[test]
fn an_epoch_can_end_early_and_validation_follows() {
    let mut trainer = builder()
        .on::<AfterBackward>("end", |cx| cx.end_epoch())
        .on::<AfterValid>("valid", |cx| cx.log("ran", 1))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(12), Some(&mut model::rows(8))).unwrap();
    assert_eq!((summary.step.global_step, summary.step.batch_idx), (3, 1));
    assert_eq!(summary.metrics.get("valid/ran"), Some(1.0));
    assert_eq!(summary.history.len(), 3);
}

#[test]
fn a_run_that_is_stopped_closes_what_is_open() {
    let mut trainer = builder()
        .on::<AfterStep>("stop", |cx| {
            if cx.step().global_step == 2 {
                cx.stop("enough");
                cx.stop("the first reason counts");
            }
        })
        .on::<BeforeValid>("never", |_| panic!("no further pass begins"))
        .on::<AfterEpoch>("closed", |cx| cx.log("closed", 1))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(12), Some(&mut model::rows(8))).unwrap();
    assert_eq!(summary.stopped.as_deref(), Some("enough"));
    assert_eq!(summary.step.global_step, 2);
    assert_eq!(summary.metrics.get("train/closed"), Some(1.0));
}

#[test]
fn a_second_fit_goes_on() {
    let mut trainer = builder().build().unwrap();
    let first = trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!((first.step.epoch, first.step.global_step), (2, 6));
    let second = trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!((second.step.epoch, second.step.global_step), (5, 12));
    assert!(second.metrics.get("train/loss") < first.metrics.get("train/loss"));
}

#[test]
fn means_are_weighted_by_the_size_of_the_batches() {
    let mut trainer = builder()
        .on::<AfterStep>("log", |cx| {
            let rows = cx.batch::<(Tensor, Tensor)>().unwrap().1.size()[0];
            cx.log("rows", rows);
        })
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(6), None).unwrap(); // batches of 4 and 2
    assert_eq!(summary.metrics.get("train/rows"), Some((4.0 * 4.0 + 2.0 * 2.0) / 6.0));
}

#[test]
fn what_is_asked_before_the_first_batch_holds_from_it_on() {
    let mut trainer = builder()
        .on::<BeforeTrainEpoch>("end", |cx| {
            if cx.step().epoch < 2 {
                cx.end_epoch();
            }
        })
        .build()
        .unwrap();
    assert_eq!(
        trainer.fit(&mut model::rows(12), None).unwrap().step.global_step,
        3,
        "in the last epoch alone"
    );

    let mut trainer = builder().on::<BeforeFit>("stop", |cx| cx.stop("not today")).build().unwrap();
    let summary = trainer.fit(&mut model::rows(12), None).unwrap();
    assert_eq!((summary.step, summary.stopped.as_deref()), (StepState::default(), Some("not today")));
}
