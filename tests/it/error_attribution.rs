//! Attribution of errors that pass through hooks around operations, and the state that they leave
//! behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::prelude::*;

use crate::model;
use crate::support::{device, parameters};

type Calls = Arc<Mutex<Vec<String>>>;

/// Fails in place of the forward pass.
struct Fails;

#[hook]
impl Fails {
    #[hook(ord = 1)]
    fn fail(&mut self, _: &mut Cx<Pred>, _: Next<Pred>) -> Result<Done> {
        Err(Error::msg("inner"))
    }
}

/// Handles the errors of steps and collects their texts.
struct Tolerant(Vec<String>);

#[hook]
impl Tolerant {
    fn tolerate(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        next.run_or(cx, |_, error| self.0.push(error.to_string()))
    }
}

#[test]
fn an_error_handled_by_a_hook_does_not_end_the_run() {
    let calls = Calls::default();
    let steps = Arc::clone(&calls);
    let mut trainer = model::builder()
        .hook(Tolerant(Vec::new()))
        .on::<AfterPred>("fussy", |cx| {
            if cx.phase() == Phase::Train && cx.counters().batch_idx == 1 {
                Err(Error::msg("no"))
            } else {
                Ok(())
            }
        })
        .on::<AfterStep>("seen", move |cx| steps.lock().unwrap().push(format!("{}", cx.counters().batch_idx)))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(12), None).unwrap();
    assert_eq!(calls.lock().unwrap().join(" "), "1 3", "no after_step for the batch that failed");
    assert_eq!((summary.counters.batches_seen, summary.counters.batch_idx), (2, 3));
    let errors = &trainer.hook::<Tolerant>().unwrap().0;
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("hook `fussy` (")
            && errors[0].ends_with("failed at after_pred, epoch 0, batch 1: no")
    );
}

/// Wraps `step` and passes errors on.
struct PassesOn;

#[hook]
impl PassesOn {
    fn step(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        next.run(cx)
    }
}

/// Wraps `fit` and passes errors on.
struct PassesOnInFit;

#[hook]
impl PassesOnInFit {
    fn fit(&mut self, cx: &mut Cx<Fit>, next: Next<Fit>) -> Result<Done> {
        next.run(cx)
    }
}

#[test]
fn an_error_passed_on_by_a_hook_keeps_its_original_location() {
    let mut trainer = model::builder()
        .hook(PassesOn)
        .hook(PassesOnInFit)
        .on::<AfterPred>("fails", |_| Err(Error::msg("on purpose")))
        .build()
        .unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(
        error.starts_with("hook `fails` (")
            && error.ends_with("failed at after_pred, epoch 0, batch 0: on purpose"),
        "{error}"
    );

    let mut labels = InMemory::new((
        Tensor::zeros([4, 3], (Kind::Float, device())),
        Tensor::zeros([4], (Kind::Int64, device())),
    ))
    .unwrap();
    let mut trainer = Trainer::builder(Refuses(model::task()))
        .discover(Discover::None)
        .optimizer(Sgd::new(0.1))
        .hook(PassesOn)
        .build()
        .unwrap();
    let error = trainer.fit(&mut labels, None).unwrap_err().to_string();
    assert!(error.starts_with("failed at pred, epoch 0, batch 0 on a batch of "), "{error}");
}

/// A task whose forward pass always fails.
struct Refuses<T>(T);

impl<T: Task> Task for Refuses<T> {
    type Batch = T::Batch;
    type Pred = T::Pred;
    fn vars(&self) -> &nn::VarStore {
        self.0.vars()
    }
    fn pred(&mut self, _: &T::Batch, _: Mode) -> Result<T::Pred> {
        Err(Error::msg("refused"))
    }
    fn loss(&mut self, pred: &T::Pred, batch: &T::Batch) -> Result<Tensor> {
        self.0.loss(pred, batch)
    }
}

/// Wraps `loss`, which panics, and records the error of the run.
struct Bystander(Calls);

#[hook]
impl Bystander {
    fn around(&mut self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        next.run(cx)
    }
    fn after_error(&mut self, cx: &mut Cx<AfterError>) {
        self.0.lock().unwrap().push(cx.error().to_string());
    }
}

#[test]
fn a_panic_in_the_task_is_not_attributed_to_the_hook_around_it() {
    let calls = Calls::default();
    let mut trainer = model::builder().hook(Bystander(Arc::clone(&calls))).build().unwrap();
    // Labels out of range: libtorch reports an error, and tch panics.
    let inputs = Tensor::zeros([4, 4], (Kind::Float, device()));
    let labels = Tensor::full([4], 77, (Kind::Int64, device()));
    let mut rows = InMemory::new((inputs, labels)).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut rows, None))).is_err());
    let error = calls.lock().unwrap().join("");
    assert!(error.starts_with("failed at loss, epoch 0, batch 0 on a batch of "), "{error}");
}

/// Ignores the error of `next`.
struct Swallows;

#[hook]
impl Swallows {
    fn swallow(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        next.run_or(cx, |_, _| ())
    }
}

/// Logs a vector, which is an error, and runs the step.
struct LogsSimply;

#[hook]
impl LogsSimply {
    fn log(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        cx.log("vector", Tensor::zeros([3], (Kind::Float, device())));
        next.run(cx)
    }
}

#[test]
fn an_error_names_the_failing_hook() {
    let mut swallows = model::builder().hook(Swallows).hook(Fails).build().unwrap();
    let error = swallows.fit(&mut model::rows(8), None).unwrap_err().to_string();
    assert!(error.starts_with("hook `it::error_attribution::Swallows::swallow` ("), "{error}");
    let mut logs = model::builder().hook(LogsSimply).on::<BeforePred>("bystander", |_| {}).build().unwrap();
    let error = logs.fit(&mut model::rows(8), None).unwrap_err().to_string();
    assert!(
        error.starts_with("hook `it::error_attribution::LogsSimply::log` (")
            && error.contains("cannot log `vector`"),
        "{error}"
    );
}

/// Counts and handles the errors of steps.
struct HandlesErrors(u64);

#[hook]
impl HandlesErrors {
    fn handle(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        next.run_or(cx, |_, _| self.0 += 1)
    }
}

#[test]
fn gradients_of_a_failed_step_are_dropped_before_the_next() {
    let fails_first = |cx: &mut Cx<BeforeOptStep>| {
        if cx.counters().batch_idx == 0 { Err(Error::msg("not this one")) } else { Ok(()) }
    };
    let mut handled =
        model::builder().hook(HandlesErrors(0)).on::<BeforeOptStep>("first", fails_first).build().unwrap();
    handled.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(handled.hook::<HandlesErrors>().unwrap().0, 1);
    let skip_first = |cx: &mut Cx<BeforeStep>| {
        if cx.counters().batch_idx == 0 {
            cx.skip_batch();
        }
    };
    let mut skipped = model::builder().on::<BeforeStep>("first", skip_first).build().unwrap();
    skipped.fit(&mut model::rows(8), None).unwrap();
    for (one, other) in parameters(&handled).iter().zip(parameters(&skipped)) {
        assert_eq!(*one, other);
    }
}

/// Handles the errors of steps and keeps the last one.
struct Keeps(Arc<Mutex<Option<Error>>>);

#[hook]
impl Keeps {
    fn keep(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        next.run_or(cx, |_, error| *self.0.lock().unwrap() = Some(error))
    }
}

/// Where the hook `inner` gets the error that it returns at batch 3.
#[derive(Clone, Copy, Debug)]
enum From {
    /// A trainer that the hook runs.
    Inner,
    /// The error of batch 0, which another hook has handled.
    Batch0,
}

#[test]
fn an_error_from_elsewhere_names_the_hook_that_returns_it() {
    // An error that was handled before must not decide how a later one is reported.
    for (from, is_handled) in [(From::Inner, false), (From::Inner, true), (From::Batch0, true)] {
        let kept: Arc<Mutex<Option<Error>>> = Arc::default();
        let mut trainer = model::builder()
            .hook(Keeps(Arc::clone(&kept)))
            .on::<AfterPred>("fails", move |cx| {
                if is_handled && cx.counters().batch_idx == 0 {
                    Err(Error::msg("of batch 0"))
                } else {
                    Ok(())
                }
            })
            .on::<AfterEpoch>("inner", move |_| match from {
                From::Batch0 => Err(kept.lock().unwrap().take().unwrap()),
                From::Inner => {
                    let inner = model::builder()
                        .on::<AfterLoss>("nested", |_| Err(Error::msg("of the inner trainer")));
                    inner.build().unwrap().fit(&mut model::rows(4), None).map(drop)
                }
            })
            .build()
            .unwrap();
        let error = trainer.fit(&mut model::rows(16), None).unwrap_err();
        let Error::Hook(error) = error else { panic!("{from:?} {is_handled}: {error}") };
        assert_eq!(
            (error.hook.as_str(), error.location.counters.batch_idx),
            ("inner", 4),
            "{from:?} {is_handled}"
        );
        let source = error.source.to_string();
        assert!(
            source.ends_with(match from {
                From::Inner => "failed at after_loss, epoch 0, batch 0: of the inner trainer",
                From::Batch0 => "failed at after_pred, epoch 0, batch 0: of batch 0",
            }),
            "{source}"
        );
    }
}

#[test]
fn an_error_of_a_trainer_within_an_operation_keeps_both_locations() {
    let mut trainer = model::builder().build().unwrap();
    let error = trainer.predict_each(&mut model::rows(4), |_| {
        let inner = model::builder().on::<AfterLoss>("nested", |_| Err(Error::msg("of the inner trainer")));
        inner.build().unwrap().fit(&mut model::rows(4), None).map(drop)
    });
    let error = error.unwrap_err().to_string();
    let [outer, inner] =
        ["failed at predict, epoch 0, batch 1", "failed at after_loss, epoch 0, batch 0: of the"];
    assert!(error.starts_with(outer) && error.contains(inner), "{error}");
}
