//! `NanGuard`, and the warning about a mean loss that is NaN.

use std::fs;
use std::process::Command;

use trainer::hooks::{Checkpoint, NanGuard};
use trainer::prelude::*;
use trainer::{CancelToken, TrainerBuilder};

use crate::model::{self, rows, told};

/// With inputs that are NaN in these batches of training, and so a loss that is.
fn nan_in<T: Task>(builder: TrainerBuilder<T>, batches: &'static [u64]) -> TrainerBuilder<T> {
    builder.on::<AfterTransfer>("nan", move |cx| {
        if cx.phase() == Phase::Train && batches.contains(&cx.counters().batches_seen) {
            let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>()?;
            *inputs = &*inputs * f64::NAN;
        }
        Ok(())
    })
}

/// The weights after training on 16 rows, four batches.
fn weights_without(left_out: &'static [u64]) -> Vec<Tensor> {
    let mut trainer = model::builder()
        .on::<BeforeStep>("leave_out", move |cx| {
            if left_out.contains(&cx.counters().batch_idx) {
                cx.skip_step();
            }
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(16), None).unwrap();
    weights(&trainer)
}

fn weights<T: Task>(trainer: &Trainer<T>) -> Vec<Tensor> {
    trainer.vars().parameters().map(|var| var.tensor.copy()).collect()
}

fn found<T: Task>(trainer: &Trainer<T>) -> u64 {
    trainer.hook::<NanGuard>().unwrap().found()
}

#[test]
fn a_nan_loss_fails_before_it_reaches_the_weights() {
    let mut trainer = nan_in(model::builder(), &[2]).hook(NanGuard::fail()).build().unwrap();
    let error = trainer.fit(&mut rows(16), None).unwrap_err();
    let expected = "`NanGuard` failed at backward, epoch 0, batch 2: the loss is NaN in batch 2 of epoch 0";
    assert_eq!(told(&error), expected);
    assert_eq!(weights(&trainer), weights_without(&[2, 3]));
    assert_eq!(found(&trainer), 1);
}

#[test]
fn a_skipped_step_leaves_weights_and_counters_as_they_were() {
    let mut trainer = nan_in(model::builder(), &[1, 2]).hook(NanGuard::skip_step()).build().unwrap();
    let summary = trainer.fit(&mut rows(16), None).unwrap();
    assert_eq!((summary.counters.optimizer_steps, summary.counters.batches_seen, found(&trainer)), (2, 4, 2));
    assert_eq!(weights(&trainer), weights_without(&[1, 2]));
    assert_eq!(summary.stopped, None);
}

#[test]
fn the_accumulation_window_of_a_nan_loss_is_dropped() {
    for batches in [&[0_u64][..], &[1], &[0, 1]] {
        let guarded = model::builder().accumulate(2).hook(NanGuard::skip_step());
        let mut trainer = nan_in(guarded, batches).build().unwrap();
        let summary = trainer.fit(&mut rows(16), None).unwrap();
        assert_eq!(
            (summary.counters.optimizer_steps, found(&trainer)),
            (1, batches.len() as u64),
            "{batches:?}"
        );
        let mut without = model::builder()
            .accumulate(2)
            .on::<BeforeStep>("leave_out", |cx| {
                if cx.counters().batch_idx < 2 {
                    cx.skip_step();
                }
            })
            .build()
            .unwrap();
        without.fit(&mut rows(16), None).unwrap();
        assert_eq!(weights(&trainer), weights(&without), "{batches:?}");
    }
}

#[test]
fn nan_gradients_are_found_where_the_loss_is_finite() {
    let spoiled = |guard: NanGuard| {
        let builder = model::builder().hook(guard).on::<AfterBackward>("spoil", |cx| {
            if cx.counters().batches_seen == 2 {
                let _ = cx.grad("fc2.bias")?.g_mul_scalar_(f64::INFINITY);
            }
            Ok(())
        });
        let mut trainer = builder.build().unwrap();
        let outcome = trainer.fit(&mut rows(16), None);
        (trainer, outcome)
    };
    let (trainer, outcome) = spoiled(NanGuard::skip_step().loss(false).gradients(true));
    assert_eq!((outcome.unwrap().counters.optimizer_steps, found(&trainer)), (3, 1));
    assert_eq!(weights(&trainer), weights_without(&[2]));
    let (trainer, outcome) = spoiled(NanGuard::fail().gradients(true));
    let error = told(&outcome.unwrap_err());
    assert!(error.ends_with("NaN or infinite gradients of `fc2.bias` in batch 2 of epoch 0"), "{error}");
    assert_eq!(weights(&trainer), weights_without(&[2, 3]));
    // The loss shows it only once the weights are lost.
    let error = told(&spoiled(NanGuard::fail()).1.unwrap_err());
    assert!(error.ends_with("the loss is NaN in batch 3 of epoch 0"), "{error}");
}

#[test]
fn a_stop_ends_training_without_the_step() {
    let mut trainer = nan_in(model::builder().epochs(3), &[2]).hook(NanGuard::stop()).build().unwrap();
    let summary = trainer.fit(&mut rows(16), None).unwrap();
    assert_eq!(summary.stopped.as_deref(), Some("the loss is NaN in batch 2 of epoch 0"));
    assert_eq!(summary.counters.optimizer_steps, 2);
    assert_eq!(weights(&trainer), weights_without(&[2, 3]));
}

#[test]
fn only_every_nth_batch_is_checked() {
    let mut trainer = nan_in(model::builder(), &[1]).hook(NanGuard::fail().every(2)).build().unwrap();
    let error = told(&trainer.fit(&mut rows(16), None).unwrap_err());
    assert!(error.ends_with("the loss is NaN in batch 2 of epoch 0"), "{error}");
}

#[test]
fn settings_that_cannot_guard_are_refused() {
    let refused = |guard: NanGuard| {
        let mut trainer = model::builder().hook(guard).build().unwrap();
        let error = told(&trainer.fit(&mut rows(4), None).unwrap_err());
        error.split_once(" batch 0: ").unwrap().1.to_owned()
    };
    assert_eq!(
        refused(NanGuard::fail().loss(false)),
        "`NanGuard` checks nothing: enable `.loss(true)` or `.gradients(true)`"
    );
    assert_eq!(refused(NanGuard::fail().every(0)), "`.every(0)`: expected at least 1");
    assert!(
        refused(NanGuard::skip_step().every(2))
            .starts_with("`NanGuard::skip_step().every(2)`: a NaN between")
    );
}

#[test]
fn the_count_and_an_open_window_are_resumed() {
    let folder = std::env::temp_dir().join(format!("trainer-nan-guard-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let run = |cancels: bool| {
        let token = CancelToken::new();
        let builder = model::builder().accumulate(2).cancel_token(token.clone()).hook(NanGuard::skip_step());
        let builder = nan_in(builder, &[0]).hook(Checkpoint::new(&folder)).resume("auto");
        let builder = builder.on::<AfterStep>("cancel", move |_| {
            if cancels {
                token.cancel(); // after the first batch: its window is open
            }
        });
        let mut trainer = builder.build().unwrap();
        let outcome = trainer.fit(&mut rows(16), None);
        (outcome.map(|summary| summary.counters.optimizer_steps).ok(), found(&trainer))
    };
    assert_eq!(run(true), (None, 1));
    assert_eq!(run(false), (Some(1), 1), "the window with the NaN is dropped");
    fs::remove_dir_all(&folder).unwrap();
}

/// Trains three epochs with a NaN in each, and once more.
#[test]
#[ignore = "a part of another test, run by it in a process of its own"]
fn child() {
    let mut trainer = nan_in(model::builder().epochs(3), &[0, 2]).build().unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
}

#[test]
fn an_epoch_whose_mean_loss_is_nan_is_reported_once() {
    let mut program = Command::new(std::env::current_exe().unwrap());
    let output = program.args(["--exact", "nan_guard::child", "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("warning")).collect();
    assert_eq!(
        warnings,
        [
            "warning: the mean training loss of epoch 0 is NaN: if the weights are NaN too, nothing more is learned; \
          `.hook(trainer::hooks::NanGuard::fail())` ends the run at the first such batch, before it reaches the weights"
        ]
    );
}
