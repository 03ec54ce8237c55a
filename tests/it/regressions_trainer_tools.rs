//! Regression tests for the defects of trainer-tools 0.5.0 that were observed in recorded runs, by
//! their numbers in that record. Those that do not compile here (1 and 4) are in
//! `ui-tests/fail/defects`.

use std::sync::{Arc, Mutex};

use trainer::__private::{leave_unread, reads};
use trainer::CancelToken;
use trainer::data::from_fn;
use trainer::hooks::{Checkpoint, Progress};
use trainer::prelude::*;

use crate::model::{self, builder, message};
use crate::support::{device, scratch};

type Seen<T> = Arc<Mutex<Vec<T>>>;

/// A hook with one method, which counts training batches.
#[derive(Default)]
struct StepCounter {
    steps: u64,
}

#[hook(ord = 7)]
impl StepCounter {
    #[hook(only = train)]
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.steps += 1;
    }
}

#[test]
fn defect_02_the_table_lists_closures_and_only_the_points_that_a_hook_has() {
    let trainer = builder().on::<AfterStep>("lambda", |_| {}).hook(StepCounter::default()).build().unwrap();
    let table = trainer.describe_hooks();
    let rows: Vec<_> = table.rows().map(|row| (row.moment.as_str(), row.hook.as_str(), row.ord)).collect();
    assert_eq!(
        rows,
        [("after_step", "lambda", 0), ("after_step", "it::regressions_trainer_tools::StepCounter", 7)]
    );
}

#[test]
fn defect_03_after_pred_and_after_loss_fire() {
    let fired = Seen::default();
    let pred = Arc::clone(&fired);
    let loss = Arc::clone(&fired);
    let mut trainer = builder()
        .on::<AfterPred>("pred", move |_| pred.lock().unwrap().push("after_pred"))
        .on::<AfterLoss>("loss", move |_| loss.lock().unwrap().push("after_loss"))
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(4), Some(&mut model::rows(4))).unwrap();
    assert_eq!(*fired.lock().unwrap(), ["after_pred", "after_loss", "after_pred", "after_loss"]);
}

/// Scales the loss by 0.5, and records a gradient norm after each backward pass.
struct Around(Seen<f64>);

#[hook]
impl Around {
    fn halve(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        cx.scale_loss(0.5);
        next.run(cx)
    }
    fn after_backward(&mut self, cx: &mut Cx<AfterBackward>) -> Result<()> {
        let norm = cx.grad("fc2.bias")?.norm().double_value(&[]);
        self.0.lock().unwrap().push(norm);
        Ok(())
    }
}

#[test]
fn defect_06_repeated_fits_wrap_operations_once() {
    let norms = Seen::default();
    // With a learning rate of 0, each step has the same gradient.
    let task = Trainer::builder(model::task()).optimizer(Sgd::new(0.0)).discover(Discover::None);
    let mut trainer = task.accumulate(2).hook(Around(Arc::clone(&norms))).build().unwrap();
    for _ in 0..3 {
        trainer.fit(&mut model::rows(4), None).unwrap();
    }
    let norms = norms.lock().unwrap();
    assert!(norms.len() == 3 && norms.iter().all(|norm| *norm == norms[0]), "{norms:?}");
}

#[test]
fn defect_07_gradients_are_clipped_once_per_accumulation_window() {
    let clipped = Seen::default();
    let micro = Seen::default();
    let at_step = Arc::clone(&clipped);
    let at_batch = Arc::clone(&micro);
    let norm = |grads: trainer::Grads| {
        grads.map(|(_, grad)| grad.square().sum(Kind::Double).double_value(&[])).sum::<f64>().sqrt()
    };
    let mut trainer = builder()
        .accumulate(2)
        .clip_grad_norm(0.01)
        .on::<AfterOptStep>("clipped", move |cx| at_step.lock().unwrap().push(norm(cx.grads())))
        .on::<AfterBackward>("micro", move |cx| at_batch.lock().unwrap().push(norm(cx.grads())))
        .build()
        .unwrap();
    let step = trainer.fit(&mut model::rows(32), None).unwrap().counters;
    let clipped = clipped.lock().unwrap();
    let micro = micro.lock().unwrap();
    assert_eq!((step.batches_seen, step.optimizer_steps, clipped.len(), micro.len()), (8, 4, 4, 8));
    assert!(clipped.iter().all(|norm| (norm - 0.01).abs() < 1e-6), "{clipped:?}");
    assert!(micro.iter().all(|norm| *norm > 0.011), "{micro:?}");
}

#[test]
fn defect_08_a_pass_started_in_the_middle_sees_the_same_samples() {
    let mut loader =
        InMemory::new(Tensor::arange(16, (Kind::Int64, device()))).unwrap().batch_size(2).shuffle(3);
    let batches = |loader: &mut InMemory<Tensor>, start: u64| -> Vec<Vec<i64>> {
        let batches = loader.batches(5, start).unwrap();
        batches.map(|batch| Vec::try_from(batch.unwrap()).unwrap()).collect()
    };
    let all = batches(&mut loader, 0);
    assert_eq!(batches(&mut loader, 3), all[3..], "the same order from batch 3 on");
    let mut samples = all.concat();
    samples.sort_unstable();
    assert_eq!(samples, (0..16).collect::<Vec<_>>());
}

/// An average of one weight, which is updated after a checkpoint is requested and replaces the
/// weight in validation.
struct Average(Tensor);

#[hook(ord = 20)]
impl Average {
    #[hook(only = train)]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        let _guard = tch::no_grad_guard();
        self.0 = &self.0 * 0.5 + cx.vars().get("fc1.weight")? * 0.5;
        Ok(())
    }
    fn before_save_checkpoint(&mut self, cx: &mut Cx<BeforeSaveCheckpoint>) -> Result<()> {
        cx.save_tensor("average", &self.0)
    }
    fn averaged(&mut self, cx: &mut Cx<Valid>, next: Next<Valid>) -> Result<Done> {
        let _guard = tch::no_grad_guard();
        let mut weight = cx.vars().get("fc1.weight")?.shallow_clone();
        let live = weight.copy();
        weight.copy_(&self.0);
        next.run_then(cx, move |_| weight.copy_(&live))
    }
}

/// Returns a tensor of a checkpoint.
fn tensor_from_checkpoint(folder: &std::path::Path, file: &str, name: &str) -> Tensor {
    let tensors = Tensor::read_safetensors(folder.join(file)).unwrap();
    tensors.into_iter().find(|(own, _)| own == name).unwrap().1
}

#[test]
fn defect_09_a_checkpoint_holds_the_latest_weight_average() {
    let folder = scratch("defect_09");
    let average = Average(Tensor::zeros([8, 4], (Kind::Float, device())));
    // `Checkpoint` has a lower `ord` than `Average`.
    let checkpoint = Checkpoint::new(&folder).every(Every::Steps(3));
    let mut trainer = builder().hook(checkpoint).hook(average).build().unwrap();
    trainer.fit(&mut model::rows(12), None).unwrap();
    let newest = trainer.hook::<Checkpoint>().unwrap().newest().unwrap();
    assert_eq!(
        tensor_from_checkpoint(&newest, "state.safetensors", "saved/average"),
        trainer.hook::<Average>().unwrap().0
    );
}

#[test]
fn defect_10_a_cancellation_in_validation_saves_the_trained_weights() {
    let folder = scratch("defect_10");
    let token = CancelToken::new();
    let cancel = token.clone();
    let mut trainer = builder()
        .hook(Checkpoint::new(&folder))
        .hook(Average(Tensor::zeros([8, 4], (Kind::Float, device()))))
        .cancel_token(token)
        .on::<AfterPred>("interrupt", move |cx| {
            if cx.phase() == Phase::Valid {
                cancel.cancel();
            }
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap_err();
    let newest = trainer.hook::<Checkpoint>().unwrap().newest().unwrap();
    let (weight, average) = (
        tensor_from_checkpoint(&newest, "model.safetensors", "fc1.weight"),
        &trainer.hook::<Average>().unwrap().0,
    );
    assert_eq!(weight, trainer.vars().get("fc1.weight").unwrap());
    assert_ne!(weight, *average);
}

#[test]
fn defect_11_an_error_in_a_hook_names_it_and_runs_cleanup() {
    let cleaned = Seen::default();
    let error = Arc::clone(&cleaned);
    let teardown = Arc::clone(&cleaned);
    let mut trainer = builder()
        .on::<AfterBackward>("fragile", |cx| match cx.counters().batches_seen {
            2 => Err(Error::msg("boom")),
            _ => Ok(()),
        })
        .on::<AfterError>("error", move |cx| error.lock().unwrap().push(message(cx.error())))
        .on::<Teardown>("teardown", move |_| teardown.lock().unwrap().push("teardown".into()))
        .build()
        .unwrap();
    let error_text = message(&trainer.fit(&mut model::rows(20), None).unwrap_err());
    assert_eq!(
        error_text,
        "hook `fragile` (tests/it/regressions_trainer_tools.rs:_) failed at after_backward, epoch 0, batch 2: boom"
    );
    assert_eq!(*cleaned.lock().unwrap(), [error_text, "teardown".into()]);
}

#[test]
fn defect_12_each_epoch_is_judged_by_its_own_mean() {
    let judged = Seen::default();
    let means = Seen::default();
    let best = Arc::clone(&judged);
    let all = Arc::clone(&means);
    let mut trainer = builder()
        .epochs(4)
        .on::<AfterLoss>("losses", move |cx| {
            let loss = cx.loss().double_value(&[]);
            all.lock().unwrap().push(loss);
        })
        .on::<AfterEpoch>("judge", move |cx| best.lock().unwrap().push(cx.metrics()["train/loss"]))
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let means: Vec<_> =
        means.lock().unwrap().chunks(2).map(|losses| losses.iter().sum::<f64>() / 2.0).collect();
    assert_eq!(*judged.lock().unwrap(), means, "each epoch has its own mean");
}

#[test]
fn defect_13_metric_history_survives_a_restart() {
    let folder = scratch("defect_13");
    let fit = |epochs: u64| {
        let settings = builder().epochs(epochs).hook(Checkpoint::new(&folder)).resume(Resume::Auto);
        settings.build().unwrap().fit(&mut model::rows(8), None).unwrap().history
    };
    let first = fit(2);
    let second = fit(5);
    assert_eq!((first.len(), second.len()), (2, 5));
    assert_eq!(
        second["train/loss"][..2],
        first["train/loss"],
        "the history of the second run begins with that of the first"
    );
}

#[test]
fn defect_14_the_logged_learning_rate_belongs_to_the_current_step() {
    let used = Seen::default();
    let log = Arc::clone(&used);
    let mut trainer = builder()
        .on::<BeforeOptStep>("schedule", |cx| {
            let lr = 1.0 / (cx.counters().optimizer_steps + 1) as f64;
            cx.optimizer_mut().unwrap().groups_mut()[0].lr = lr;
        })
        .on::<AfterOptStep>("next", |cx| cx.optimizer_mut().unwrap().groups_mut()[0].lr = 99.0)
        .on::<AfterStep>("log", move |cx| log.lock().unwrap().push(cx.lrs()[0]))
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(*used.lock().unwrap(), [1.0, 1.0 / 2.0, 1.0 / 3.0, 1.0 / 4.0]);
}

#[test]
fn defect_15_a_short_last_window_is_averaged_over_its_own_size() {
    // A window of four with a single batch equals a window of one.
    let update = |accumulate: u64| {
        let mut trainer = builder().accumulate(accumulate).build().unwrap();
        trainer.fit(&mut model::rows(4), None).unwrap();
        trainer.vars().get("fc1.weight").unwrap().copy()
    };
    assert_eq!(update(4), update(1));
}

#[test]
fn defect_16_batch_idx_advances_in_validation() {
    let seen = Seen::default();
    let indices = Arc::clone(&seen);
    let mut trainer = builder()
        .on::<BeforeStep>("index", move |cx| {
            indices.lock().unwrap().push((cx.phase(), cx.counters().batch_idx));
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(4), Some(&mut model::rows(12))).unwrap();
    let valid = [0, 1, 2].map(|index| (Phase::Valid, index));
    assert_eq!(seen.lock().unwrap()[1..], valid);
}

#[test]
fn defect_17_progress_works_without_validation_and_accumulation_without_a_length() {
    let mut stream = from_fn(|_| model::rows(20).batches(0, 0).unwrap().collect::<Vec<_>>());
    assert_eq!(Loader::<(Tensor, Tensor)>::len(&stream), None);
    let mut trainer = builder().accumulate(3).hook(Progress::new()).build().unwrap();
    let step = trainer.fit(&mut stream, None).unwrap().counters;
    assert_eq!((step.batches_seen, step.optimizer_steps), (5, 2));
}

#[test]
fn defect_18_two_values_of_a_hook_type_have_separate_state() {
    let mut trainer =
        builder().hook(StepCounter::default()).hook(StepCounter { steps: 100 }).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(trainer.hooks::<StepCounter>().map(|counter| counter.steps).collect::<Vec<_>>(), [2, 102]);
}

#[test]
fn defect_19_the_table_is_fixed_at_build_and_steps_do_not_synchronize() {
    // `allocation.rs` checks that a step allocates nothing. Here: the table stays the same and
    // tensors are read once.
    let mut trainer = builder().build().unwrap();
    let before = trainer.describe_hooks();
    leave_unread(&mut trainer);
    trainer.fit(&mut model::rows(400), None).unwrap();
    assert_eq!(reads(&trainer), 1, "only the mean of the epoch is read, at its end");
    assert_eq!(trainer.describe_hooks(), before);
}

/// Skips the optimizer step of the second batch and drops its gradients, like loss scaling after an
/// overflow.
struct Overflow;

#[hook]
impl Overflow {
    fn skip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if cx.counters().batches_seen != 1 {
            return next.run(cx);
        }
        cx.optimizer_mut()?.zero_grad()?;
        Ok(next.skip())
    }
}

#[test]
fn defect_21_a_skipped_optimizer_step_is_not_counted() {
    let folder = scratch("defect_21");
    let mut trainer = builder()
        .hook(Overflow)
        .hook(Checkpoint::new(&folder).keep_last(9).every(Every::Steps(1)))
        .on::<AfterOptStep>("steps", |cx| cx.log_as("steps", 1, Reduce::Sum))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(12), None).unwrap();
    assert_eq!(
        (summary.counters.batches_seen, summary.counters.optimizer_steps, summary.metrics["train/steps"]),
        (3, 2, 2.0)
    );
}

#[test]
fn defect_23_stop_test_predict_max_steps_and_weighted_means_exist() {
    let mut trainer = builder()
        .epochs(9)
        .max_steps(4)
        .on::<AfterStep>("rows", |cx| {
            let rows = cx.batch::<(Tensor, Tensor)>().unwrap().0.size()[0];
            cx.log("rows", rows);
        })
        .build()
        .unwrap();
    // Batches of 4, 4 and 1 rows.
    let summary = trainer.fit(&mut model::rows(9), None).unwrap();
    assert_eq!(summary.counters.optimizer_steps, 4);
    assert_eq!(summary.history["train/rows"][0], (4.0 * 4.0 + 4.0 * 4.0 + 1.0) / 9.0);
    assert!(trainer.test(&mut model::rows(4)).unwrap().metrics.get("test/loss").is_some());
    assert_eq!(trainer.predict(&mut model::rows(8)).unwrap().len(), 2);

    let mut stopped =
        builder().epochs(9).on::<AfterEpoch>("stop", |cx| cx.stop("good enough")).build().unwrap();
    let summary = stopped.fit(&mut model::rows(8), None).unwrap();
    assert_eq!((summary.stopped.as_deref(), summary.history.len()), (Some("good enough"), 1));
}
