//! Control flow: what hooks and tasks can request from the loop.

use trainer::prelude::*;

use crate::model;
use crate::support::device;

fn builder() -> trainer::TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).epochs(3).discover(Discover::None)
}

#[test]
fn a_skipped_batch_advances_only_batch_idx() {
    let mut trainer = builder()
        .on::<BeforeStep>("skip", |cx| {
            if cx.counters().batch_idx == 1 {
                cx.skip_batch();
            }
        })
        .on::<AfterStep>("never", |cx| assert_ne!(cx.counters().batch_idx, 2))
        .build()
        .unwrap();
    let step = trainer.fit(&mut model::rows(12), None).unwrap().counters;
    assert_eq!(
        step,
        Counters { epoch: 2, batch_idx: 3, batches_seen: 6, optimizer_steps: 6, samples_seen: 24 }
    );
}

#[test]
fn validation_follows_an_epoch_that_ends_early() {
    let mut trainer = builder()
        .on::<AfterBackward>("end", |cx| cx.end_epoch())
        .on::<AfterValid>("valid", |cx| cx.log("ran", 1))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(12), Some(&mut model::rows(8))).unwrap();
    assert_eq!((summary.counters.batches_seen, summary.counters.batch_idx), (3, 1));
    assert_eq!(summary.metrics.get("valid/ran"), Some(1.0));
    assert_eq!(summary.history.len(), 3);
}

#[test]
fn after_epoch_still_fires_if_a_stopped_run_skips_validation() {
    let mut trainer = builder()
        .on::<AfterStep>("stop", |cx| {
            if cx.counters().batches_seen == 2 {
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
    assert_eq!(summary.counters.batches_seen, 2);
    assert_eq!(summary.metrics.get("train/closed"), Some(1.0));
}

#[test]
fn a_second_fit_continues_the_counters() {
    let mut trainer = builder().build().unwrap();
    let first = trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!((first.counters.epoch, first.counters.batches_seen), (2, 6));
    let second = trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!((second.counters.epoch, second.counters.batches_seen), (5, 12));
    assert!(second.metrics.get("train/loss") < first.metrics.get("train/loss"));
}

#[test]
fn means_are_weighted_by_batch_size() {
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
fn end_epoch_and_stop_before_the_first_batch_take_effect_at_once() {
    let mut trainer = builder()
        .on::<BeforeTrainEpoch>("end", |cx| {
            if cx.counters().epoch < 2 {
                cx.end_epoch();
            }
        })
        .build()
        .unwrap();
    assert_eq!(
        trainer.fit(&mut model::rows(12), None).unwrap().counters.batches_seen,
        3,
        "only the last epoch trains"
    );

    let mut trainer = builder().on::<BeforeFit>("stop", |cx| cx.stop("not today")).build().unwrap();
    let summary = trainer.fit(&mut model::rows(12), None).unwrap();
    assert_eq!((summary.counters, summary.stopped.as_deref()), (Counters::default(), Some("not today")));
}

#[test]
fn metrics_belong_to_their_own_epoch_and_entry_point() {
    let mut trainer = builder()
        .on::<AfterStep>("first_only", |cx| {
            if cx.counters().epoch == 0 {
                cx.log("first", 1);
            }
        })
        .build()
        .unwrap();
    let history = trainer.fit(&mut model::rows(8), None).unwrap().history;
    assert_eq!(history["train/first"][0], 1.0);
    assert!(history["train/first"][1..].iter().all(|first| first.is_nan()));
    assert_eq!(history.points("train/first").map(|(step, _)| step.epoch).collect::<Vec<_>>(), [0]);
    // A later entry point does not report them.
    assert_eq!(trainer.test(&mut model::rows(8)).unwrap().metrics.get("train/loss"), None);
}

#[test]
fn scaling_the_loss_scales_gradients_and_nothing_else() {
    let norm = |factor: f64| {
        let mut trainer = builder()
            .on::<BeforeBackward>("scale", move |cx| cx.scale_loss(factor))
            .on::<AfterBackward>("norm", |cx| {
                let norm = cx.grad("fc2.bias").unwrap().norm();
                cx.log("norm", norm);
            })
            .on::<AfterStep>("loss", |cx| {
                let loss = cx.step_loss().unwrap().shallow_clone();
                cx.log("read", loss);
            })
            .build()
            .unwrap();
        let history = trainer.fit(&mut model::rows(4), None).unwrap().history;
        assert_eq!(history["train/read"], history["train/loss"]);
        history["train/norm"][0]
    };
    assert!((norm(8.0) / norm(1.0) - 8.0).abs() < 1e-5);
}

#[test]
fn changing_a_batch_in_a_hook_does_not_change_the_dataset() {
    let mut data = model::rows(8);
    let mean = |data: &mut InMemory<(Tensor, Tensor)>| {
        let mut trainer = builder()
            .on::<BeforeStep>("add", |cx| {
                let mean = cx.batch::<(Tensor, Tensor)>().unwrap().0.mean(Kind::Float);
                cx.log("mean", mean);
                let _ = cx.batch_mut::<(Tensor, Tensor)>().unwrap().0.g_add_scalar_(1.0);
            })
            .build()
            .unwrap();
        trainer.fit(data, None).unwrap().metrics["train/mean"]
    };
    assert_eq!(mean(&mut data), mean(&mut data));
}

/// A task with a custom `train_step`, which takes an optimizer step for every second batch.
struct EachSecond {
    vars: nn::VarStore,
    layer: nn::Linear,
}

impl Task for EachSecond {
    type Batch = std::collections::HashMap<String, Tensor>;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn pred(&mut self, batch: &Self::Batch, _: Mode) -> Result<Tensor> {
        Ok(batch["inputs"].apply(&self.layer))
    }

    fn loss(&mut self, pred: &Tensor, batch: &Self::Batch) -> Result<Tensor> {
        Ok(pred.mse_loss(&batch["targets"], tch::Reduction::Mean))
    }

    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let rows = step.batch()["inputs"].size()[0];
        step.log("rows_of_batch", rows)?;
        let predicted = step.pred()?;
        let scored = step.loss(predicted)?;
        let differentiated = step.backward(scored)?;
        if step.counters().batches_seen.is_multiple_of(2) {
            Ok(differentiated.into())
        } else {
            step.opt_step(differentiated)
        }
    }
}

#[test]
fn a_task_can_skip_the_optimizer_step_in_its_train_step() {
    let vars = nn::VarStore::new(device());
    let layer = nn::linear(vars.root(), 2, 1, Default::default());
    let mut trainer = Trainer::builder(EachSecond { vars, layer })
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .on::<AfterStep>("rows", |cx| cx.log("rows", 1))
        .build()
        .unwrap();
    let float = (Kind::Float, device());
    let rows = |name: &str, width: i64| (name.to_owned(), Tensor::ones([12, width], float));
    let data = std::collections::HashMap::from([rows("inputs", 2), rows("targets", 1)]);
    let summary = trainer.fit(&mut InMemory::new(data).unwrap().batch_size(4), None).unwrap();
    let Counters { batches_seen, optimizer_steps, samples_seen, .. } = summary.counters;
    assert_eq!((batches_seen, optimizer_steps, samples_seen), (3, 1, 12));
    assert_eq!(summary.metrics["train/rows"], 1.0);
    assert_eq!(summary.metrics["train/rows_of_batch"], 4.0, "the step can read its batch");
}

/// A task that only collects in the first two batches, takes two steps in each later one, stops
/// after one step in the last, and has no loss outside of training.
struct Collects {
    vars: nn::VarStore,
    layer: nn::Linear,
    collected: Vec<Tensor>,
}

impl Task for Collects {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(batch.apply(&self.layer))
    }

    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.square().mean(Kind::Float))
    }

    fn eval_loss(&mut self, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(None)
    }

    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let batch = step.batch().shallow_clone();
        step.task().collected.push(batch);
        let seen = step.counters().batches_seen;
        if seen < 2 {
            return Ok(step.done());
        }
        for _ in 0..2 {
            let forward = step.pred()?;
            let loss = step.loss(forward)?;
            let gradients = step.backward(loss)?;
            let _ = step.opt_step(gradients)?;
            if seen == 4 {
                break;
            }
        }
        Ok(step.done())
    }

    fn steps_per_batch(&self) -> u64 {
        2
    }
}

#[test]
fn a_step_may_end_without_a_loss_and_after_any_number_of_optimizer_steps() {
    let vars = nn::VarStore::new(device());
    let layer = nn::linear(vars.root(), 2, 1, Default::default());
    let mut trainer = Trainer::builder(Collects { vars, layer, collected: Vec::new() })
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .on::<AfterStep>("batches", |cx| cx.log("batches", 1))
        .on::<AfterLoss>("losses", |cx| cx.log_as("losses", 1, Reduce::Sum))
        .build()
        .unwrap();
    let rows = || InMemory::new(Tensor::ones([20, 2], (Kind::Float, device()))).unwrap().batch_size(4);
    let summary = trainer.fit(&mut rows(), Some(&mut rows())).unwrap();
    let Counters { batches_seen, optimizer_steps, samples_seen, .. } = summary.counters;
    assert_eq!((batches_seen, optimizer_steps, samples_seen), (5, 5, 20));
    assert_eq!(trainer.task().collected.len(), 5);
    let metrics = summary.metrics;
    assert_eq!((metrics["train/batches"], metrics["train/losses"]), (1.0, 5.0));
    assert!(metrics["train/loss"].is_finite() && metrics.get("valid/loss").is_none(), "{metrics}");
}

/// Records the points of prediction, and asserts that predictions do not require gradients.
#[derive(Default)]
struct PredictionRecorder {
    points: Vec<String>,
}

#[hook]
impl PredictionRecorder {
    fn before_predict_step(&mut self, cx: &mut Cx<BeforePredictStep>) -> Result<()> {
        assert_eq!(cx.batch::<(Tensor, Tensor)>()?.0.size()[0], 4);
        self.points.push(format!("before {} {}", cx.phase(), cx.counters().batch_idx));
        Ok(())
    }
    fn after_predict_step(&mut self, cx: &mut Cx<AfterPredictStep>) -> Result<()> {
        assert!(!cx.pred::<Tensor>()?.requires_grad());
        self.points.push(format!("after {}", cx.counters().batch_idx));
        Ok(())
    }
    #[hook(only = predict)]
    fn after_pred(&mut self, cx: &mut Cx<AfterPred>) {
        cx.log("seen", 1.0);
    }
    fn after_predict(&mut self, _: &mut Cx<AfterPredict>) {
        self.points.push("over".into());
    }
}

/// Skips the prediction of the second batch.
struct SkipsSecond;

#[hook]
impl SkipsSecond {
    fn skip(&mut self, cx: &mut Cx<PredictStep>, next: Next<PredictStep>) -> Result<Done> {
        if cx.counters().batch_idx == 1 { Ok(next.skip()) } else { next.run(cx) }
    }
}

#[test]
fn predictions_are_returned_in_batch_order() {
    let build = || Trainer::builder(model::task()).discover(Discover::None);
    let mut trainer = build().hook(PredictionRecorder::default()).build().unwrap();
    let preds = trainer.predict(&mut model::rows(12)).unwrap();
    let points = trainer.hook::<PredictionRecorder>().unwrap().points.join(", ");
    assert_eq!(
        points,
        "before predict 0, after 1, before predict 1, after 2, before predict 2, after 3, over"
    );
    let whole = trainer.predict(&mut model::rows(12).batch_size(4)).unwrap();
    assert_eq!(Tensor::cat(&preds, 0), Tensor::cat(&whole, 0));
    assert_eq!(preds.iter().map(|pred| pred.size()[0]).collect::<Vec<_>>(), [4, 4, 4]);

    let mut trainer = build().hook(SkipsSecond).build().unwrap();
    let mut rows = Vec::new();
    let summary = trainer.predict_each(&mut model::rows(12), |pred| {
        rows.push(pred.size()[0]);
        Ok(())
    });
    assert_eq!((rows.len(), summary.unwrap().counters.batches_seen), (2, 0));
    let error =
        trainer.predict_each(&mut model::rows(4), |_| Err(Error::msg("the disk is full"))).unwrap_err();
    assert!(error.to_string().starts_with("failed at predict, epoch 0, batch "), "{error}");
    assert!(trainer.predict(&mut model::rows(4)).is_ok(), "usable after an error");
}

/// Records the points of the sanity check and the start of each epoch.
#[derive(Default)]
struct SanityRecorder(Vec<String>);

#[hook]
impl SanityRecorder {
    fn before_sanity_check(&mut self, cx: &mut Cx<BeforeSanityCheck>) {
        self.0.push(format!("before {}", cx.phase()));
    }
    #[hook(only = sanity)]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        assert!(!cx.step_loss().unwrap().requires_grad());
        self.0.push(format!("{} of {}", cx.counters().batch_idx, cx.plan().batches.unwrap()));
    }
    #[hook(only = sanity)]
    fn after_valid(&mut self, cx: &mut Cx<AfterValid>) {
        assert!(cx.metrics().get("sanity/loss").is_some());
    }
    fn after_sanity_check(&mut self, _: &mut Cx<AfterSanityCheck>) {
        self.0.push("after".into());
    }
    fn before_epoch(&mut self, cx: &mut Cx<BeforeEpoch>) {
        self.0.push(format!("epoch {} {}", cx.counters().epoch, cx.counters().batch_idx));
    }
}

#[test]
fn the_sanity_check_runs_first_and_does_not_affect_training() {
    let build = || model::builder().hook(SanityRecorder::default()).sanity_batches(2).build().unwrap();
    let mut checked = build();
    let summary = checked.fit(&mut model::rows(8), Some(&mut model::rows(16))).unwrap();
    let seen = checked.hook::<SanityRecorder>().unwrap().0.join(", ");
    assert_eq!(seen, "before sanity, 1 of 2, 2 of 2, after, epoch 0 0");
    assert!(summary.metrics.get("sanity/loss").is_none());
    let mut plain = model::builder().build().unwrap();
    assert_eq!(summary.metrics, plain.fit(&mut model::rows(8), Some(&mut model::rows(16))).unwrap().metrics);

    let error = build().fit(&mut model::rows(8), None).unwrap_err().to_string();
    assert!(
        error.contains(
            "`.sanity_batches(…)` requires validation, but `fit` was called without validation data"
        ),
        "{error}"
    );
}

/// A task that, outside of training, has a loss only for batches with labels.
struct PartlyLabeled {
    vars: nn::VarStore,
    layer: nn::Linear,
}

impl Task for PartlyLabeled {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        Ok(inputs.apply(&self.layer))
    }
    fn loss(&mut self, pred: &Tensor, (_, labels): &Self::Batch) -> Result<Tensor> {
        Ok(pred.cross_entropy_for_logits(&labels.clamp(0, 2)))
    }
    fn eval_loss(&mut self, pred: &Tensor, batch: &Self::Batch) -> Result<Option<Tensor>> {
        let is_labeled = batch.1.ge(0).all().int64_value(&[]) == 1;
        is_labeled.then(|| self.loss(pred, batch)).transpose()
    }
}

/// Sets a loss of 7 in every test batch.
struct Fallback;

#[hook]
impl Fallback {
    #[hook(only = test)]
    fn fall_back(&mut self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        let done = next.run(cx)?;
        cx.set_loss(Tensor::from(7.0));
        Ok(done)
    }
}

#[test]
fn a_task_can_omit_the_loss_outside_of_training() {
    use std::sync::{Arc, Mutex};

    use trainer::hooks::Progress;

    // Two batches of four rows, the first without labels, the second with labels.
    let data = || {
        let inputs = Tensor::ones([8, 4], (Kind::Float, device()));
        let labels = Tensor::from_slice(&[-1_i64, -1, -1, -1, 0, 1, 2, 0]);
        InMemory::new((inputs, labels)).unwrap().batch_size(4)
    };
    let fired: Arc<Mutex<Vec<String>>> = Arc::default();
    let build = |with_fallback: bool| {
        let vars = nn::VarStore::new(device());
        let layer = nn::linear(vars.root(), 4, 3, Default::default());
        let [before, after, step] = [Arc::clone(&fired), Arc::clone(&fired), Arc::clone(&fired)];
        let builder = Trainer::builder(PartlyLabeled { vars, layer })
            .optimizer(Sgd::new(0.1))
            .discover(Discover::None)
            .hook(Progress::new())
            .on::<BeforeLoss>("before", move |cx| {
                before.lock().unwrap().push(format!("before {}", cx.phase()));
            })
            .on::<AfterLoss>("after", move |cx| after.lock().unwrap().push(format!("after {}", cx.phase())))
            .on::<AfterStep>("step", move |cx| {
                step.lock().unwrap().push(format!("step {}", cx.step_loss().is_some()));
            });
        let builder = if with_fallback { builder.hook(Fallback) } else { builder };
        builder.build().unwrap()
    };
    let summary = build(false).fit(&mut data().batch_size(8), Some(&mut data())).unwrap();
    assert_eq!(
        std::mem::take(&mut *fired.lock().unwrap()).join(", "),
        "before train, after train, step true, before valid, step false, before valid, after valid, step true"
    );
    assert!(summary.metrics["valid/loss"].is_finite(), "the mean over the batches with a loss");

    let unlabeled = || {
        InMemory::new((
            Tensor::ones([4, 4], (Kind::Float, device())),
            -Tensor::ones([4], (Kind::Int64, device())),
        ))
    };
    let summary = build(false).test(&mut unlabeled().unwrap().batch_size(4)).unwrap();
    assert_eq!(summary.metrics.get("test/loss"), None);
    assert_eq!(std::mem::take(&mut *fired.lock().unwrap()).join(", "), "before test, step false");
    let summary = build(true).test(&mut unlabeled().unwrap().batch_size(4)).unwrap();
    assert_eq!(summary.metrics["test/loss"], 7.0, "the loss that the hook sets");
}

/// Replaces the prediction of the second batch with 7.
struct OwnPrediction;

#[hook]
impl OwnPrediction {
    fn predict(&mut self, cx: &mut Cx<PredictStep>, next: Next<PredictStep>) -> Result<Done> {
        if cx.counters().batch_idx != 1 {
            return next.run(cx);
        }
        next.replace(cx, |cx| cx.set_pred(Tensor::from(7.0)))
    }
}

#[test]
fn a_hook_can_replace_the_prediction_of_a_batch() {
    let mut trainer = model::builder().hook(OwnPrediction).build().unwrap();
    let preds = trainer.predict(&mut model::rows(12)).unwrap();
    let sizes: Vec<_> = preds.iter().map(Tensor::size).collect();
    assert_eq!(sizes, [vec![4, 3], vec![], vec![4, 3]]);
}
