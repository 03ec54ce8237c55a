//! `NanGuard`, and the warning about an epoch whose mean loss is NaN.

use std::fs;
use std::sync::{Arc, Mutex};

use trainer::hooks::{Checkpoint, NanGuard};
use trainer::prelude::*;
use trainer::testing::{Harness, SmallTask};
use trainer::{CancelToken, TrainerBuilder};

use crate::model::{self, message, rows};
use crate::support::{self, parameters, scratch};

/// Adds a hook that sets the inputs, and thereby the loss, to NaN in these training batches.
fn nan_in<T: Task>(builder: TrainerBuilder<T>, batches: &'static [u64]) -> TrainerBuilder<T> {
    builder.on::<AfterTransfer>("nan", move |cx| {
        if cx.phase() == Phase::Train && batches.contains(&cx.counters().batches_seen) {
            let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>()?;
            *inputs = &*inputs * f64::NAN;
        }
        Ok(())
    })
}

/// Returns a harness with this guard, four batches per epoch, and NaN in these batches.
fn harness(guard: NanGuard, batches: &'static [u64]) -> Harness<'static, SmallTask> {
    Harness::small().hook(guard).configure(|builder| nan_in(builder, batches))
}

/// Returns the parameters after training without these batches.
fn weights_without(skipped: &'static [u64]) -> Vec<Tensor> {
    let harness = Harness::small().on::<BeforeStep>(|cx| {
        if cx.phase() == Phase::Train && skipped.contains(&cx.counters().batch_idx) {
            cx.skip_batch();
        }
    });
    parameters(&harness.run().unwrap().trainer)
}

fn found<T: Task>(trainer: &Trainer<T>) -> u64 {
    trainer.hook::<NanGuard>().unwrap().found()
}

#[test]
fn a_nan_loss_ends_the_run_before_it_reaches_the_weights() {
    let outcome = harness(NanGuard::fail(), &[2]).run().unwrap();
    let expected = "`NanGuard` failed at backward, epoch 0, batch 2: the loss is NaN in batch 2 of epoch 0";
    assert_eq!(message(outcome.error()), expected);
    assert_eq!(parameters(&outcome.trainer), weights_without(&[2, 3]));
    assert_eq!(found(&outcome.trainer), 1);
}

#[test]
fn a_skipped_step_changes_neither_the_weights_nor_the_number_of_optimizer_steps() {
    let outcome = harness(NanGuard::skip_batch(), &[1, 2]).run().unwrap();
    let counters = outcome.summary().counters;
    assert_eq!((counters.optimizer_steps, counters.batches_seen, found(&outcome.trainer)), (2, 4, 2));
    assert_eq!(parameters(&outcome.trainer), weights_without(&[1, 2]));
    assert_eq!(outcome.summary().stopped, None);
}

#[test]
fn the_accumulation_window_of_a_nan_loss_is_dropped() {
    let without = Harness::small().configure(|builder| builder.accumulate(2));
    let without = without.on::<BeforeStep>(|cx| {
        if cx.phase() == Phase::Train && cx.counters().batch_idx < 2 {
            cx.skip_batch();
        }
    });
    let expected = parameters(&without.run().unwrap().trainer);
    for batches in [&[0_u64][..], &[1], &[0, 1]] {
        let guarded = harness(NanGuard::skip_batch(), batches).configure(|builder| builder.accumulate(2));
        let outcome = guarded.run().unwrap();
        let counts = (outcome.summary().counters.optimizer_steps, found(&outcome.trainer));
        assert_eq!(counts, (1, batches.len() as u64), "{batches:?}");
        assert_eq!(parameters(&outcome.trainer), expected, "{batches:?}");
    }
}

#[test]
fn nan_gradients_are_detected_even_if_the_loss_is_finite() {
    let corrupted = |guard: NanGuard| {
        let corrupt = |cx: &mut Cx<AfterBackward>| {
            if cx.counters().batches_seen == 2 {
                let _ = cx.grad("fc2.bias")?.g_mul_scalar_(f64::INFINITY);
            }
            Ok(())
        };
        Harness::small().hook(guard).on::<AfterBackward>(corrupt).run().unwrap()
    };
    let outcome = corrupted(NanGuard::skip_batch().loss(false).gradients(true));
    assert_eq!((outcome.summary().counters.optimizer_steps, found(&outcome.trainer)), (3, 1));
    assert_eq!(parameters(&outcome.trainer), weights_without(&[2]));
    let outcome = corrupted(NanGuard::fail().gradients(true));
    let error = message(outcome.error());
    assert!(
        error.ends_with("the gradients of `fc2.bias` are NaN or infinite in batch 2 of epoch 0"),
        "{error}"
    );
    assert_eq!(parameters(&outcome.trainer), weights_without(&[2, 3]));
    // Without the check of gradients, the loss is NaN only in the next batch, when the weights are
    // NaN already.
    let error = message(corrupted(NanGuard::fail()).error());
    assert!(error.ends_with("the loss is NaN in batch 3 of epoch 0"), "{error}");
}

#[test]
fn stop_skips_the_step_of_the_nan_batch_and_ends_training() {
    let outcome = harness(NanGuard::stop(), &[2]).epochs(3).run().unwrap();
    assert_eq!(outcome.summary().stopped.as_deref(), Some("the loss is NaN in batch 2 of epoch 0"));
    assert_eq!(outcome.summary().counters.optimizer_steps, 2);
    assert_eq!(parameters(&outcome.trainer), weights_without(&[2, 3]));
}

#[test]
fn only_every_nth_batch_is_checked() {
    let error = message(harness(NanGuard::fail().every(2), &[1]).run().unwrap().error());
    assert!(error.ends_with("the loss is NaN in batch 2 of epoch 0"), "{error}");
}

#[test]
fn a_resumed_run_keeps_the_count_and_drops_the_window_with_the_nan() {
    let folder = scratch("nan-guard");
    let run = |cancels: bool| {
        let token = CancelToken::new();
        let builder = model::builder().accumulate(2).cancel_token(token.clone()).hook(NanGuard::skip_batch());
        let builder = nan_in(builder, &[0]).hook(Checkpoint::new(&folder)).resume(Resume::Auto);
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

#[test]
fn the_last_record_of_a_cancelled_run_contains_the_findings_of_the_guard() {
    let texts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&texts);
    let builder = model::builder().hook(NanGuard::skip_batch()).on::<AfterRecord>("texts", move |cx| {
        seen.lock().unwrap().extend(cx.record().texts().map(|(name, text)| format!("{name}: {text}")));
    });
    // The cancelled fit ends with the batch of the NaN, and the next one does not repeat its
    // findings.
    let mut trainer = support::cancelled_at(Some(2), nan_in(builder, &[1])).build().unwrap();
    assert!(trainer.fit(&mut rows(12), None).unwrap_err().is_cancelled());
    let expected = ["train/nan_guard/findings: step 2, epoch 0, batch 1: the loss is NaN"];
    assert_eq!(*texts.lock().unwrap(), expected);
    assert!(trainer.fit(&mut rows(12), None).unwrap_err().is_cancelled());
    assert_eq!(*texts.lock().unwrap(), expected);
}

/// The program under test: trains three epochs with a NaN loss.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_with_nan_losses() {
    let mut trainer = nan_in(model::builder().epochs(3), &[0, 2]).build().unwrap();
    let summary = trainer.fit(&mut rows(8), None).unwrap();
    assert!(summary.warnings[0].starts_with("the mean training loss of epoch 0 is NaN"));
    assert_eq!(summary.warnings.len(), 1);
}

#[test]
fn a_diverged_loss_is_reported_once_in_readable_form() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.0))
        .discover(Discover::None)
        .epochs(4)
        .on::<AfterTransfer>("diverges", |cx| {
            if cx.counters().epoch > 0 {
                let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>()?;
                *inputs = &*inputs * 1e29;
            }
            Ok(())
        })
        .build()
        .unwrap();
    let summary = trainer.fit(&mut rows(8), None).unwrap();
    let warnings = support::own_warnings(&summary);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let warning = &warnings[0];
    assert!(
        warning.starts_with("the mean training loss of epoch 1 is ") && warning.contains("e27, after "),
        "{warning}"
    );
    assert!(summary.metrics.to_string().contains("e27"), "{}", summary.metrics);
}

#[test]
fn an_epoch_whose_mean_loss_is_nan_is_reported_once() {
    let output = support::child_process("nan_guard::trains_with_nan_losses").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let warnings: Vec<_> = stderr.lines().filter(|line| line.contains("warning")).collect();
    assert_eq!(
        warnings,
        [
            "warning: the mean training loss of epoch 0 is NaN, and there are NaN or infinite values in `fc1.bias`, `fc1.weight`, \
             `fc2.bias`, `fc2.weight`, from which training cannot recover: return to an earlier checkpoint; \
             `.hook(trainer::hooks::NanGuard::fail().gradients(true))` ends the run at the first batch with such a loss or gradient, \
             before the weights are updated"
        ]
    );
}
