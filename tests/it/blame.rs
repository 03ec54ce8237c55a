//! Hooks around operations, and what went wrong inside of them: whose it is, and what is left behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::prelude::*;

use crate::model;

type Calls = Arc<Mutex<Vec<String>>>;

fn weights(trainer: &Trainer<impl Task>) -> Vec<Tensor> {
    trainer.vars().parameters().map(|var| var.tensor.copy()).collect()
}

/// Fails instead of computing.
struct Fails;

#[hook]
impl Fails {
    #[hook(around = pred, ord = 1)]
    fn fail(&mut self, _: &mut Cx<Pred>, _: Next<Pred>) -> Result<()> {
        Err(Error::msg("inner"))
    }
}

/// Leaves out the batches that cannot be used.
struct Tolerant(Vec<String>);

#[hook]
impl Tolerant {
    #[hook(around = step)]
    fn tolerate(&mut self, cx: &mut Cx<Step>, next: Next<Step>) {
        if let Err(error) = next.run(cx) {
            self.0.push(error.to_string());
        }
    }
}

#[test]
fn an_error_that_a_hook_deals_with_is_over() {
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

/// Hands on what it is given.
struct HandsOn;

#[hook]
impl HandsOn {
    #[hook(around = step)]
    fn step(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<()> {
        next.run(cx)?;
        Ok(())
    }
}

/// And further outside.
struct HandsOnAll;

#[hook]
impl HandsOnAll {
    #[hook(around = fit)]
    fn fit(&mut self, cx: &mut Cx<Fit>, next: Next<Fit>) -> Result<()> {
        next.run(cx)
    }
}

#[test]
fn an_error_that_is_handed_on_is_that_of_its_own_place() {
    let mut trainer = model::builder()
        .hook(HandsOn)
        .hook(HandsOnAll)
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
        Tensor::zeros([4, 3], (Kind::Float, Device::Cpu)),
        Tensor::zeros([4], (Kind::Int64, Device::Cpu)),
    ))
    .unwrap();
    let mut trainer = Trainer::builder(Refuses(model::task()))
        .discover(Discover::None)
        .optimizer(Sgd::new(0.1))
        .hook(HandsOn)
        .build()
        .unwrap();
    let error = trainer.fit(&mut labels, None).unwrap_err().to_string();
    assert!(error.starts_with("failed at pred, epoch 0, batch 0 on a batch of "), "{error}");
}

/// A task that cannot.
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

/// Around what panics, and around what that lies in.
struct Bystander(Calls);

#[hook]
impl Bystander {
    #[hook(around = loss)]
    fn around(&mut self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<()> {
        next.run(cx)
    }
    fn after_error(&mut self, cx: &mut Cx<AfterError>) {
        self.0.lock().unwrap().push(cx.error().to_string());
    }
}

#[test]
fn a_panic_of_the_task_is_not_blamed_on_the_hook_around_it() {
    let calls = Calls::default();
    let mut trainer = model::builder().hook(Bystander(Arc::clone(&calls))).build().unwrap();
    // Labels that are no classes: libtorch refuses, and tch panics.
    let inputs = Tensor::zeros([4, 4], (Kind::Float, Device::Cpu));
    let labels = Tensor::full([4], 77, (Kind::Int64, Device::Cpu));
    let mut rows = InMemory::new((inputs, labels)).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut rows, None))).is_err());
    let told = calls.lock().unwrap().join("");
    assert!(told.starts_with("failed at loss, epoch 0, batch 0 on a batch of "), "{told}");
}

/// Swallows what `next` says.
struct Swallows;

#[hook]
impl Swallows {
    #[hook(around = pred)]
    fn swallow(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) {
        let _ = next.run(cx);
    }
}

/// Logs what cannot be logged, and goes on.
struct LogsSimply;

#[hook]
impl LogsSimply {
    #[hook(around = step)]
    fn log(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<()> {
        cx.log("vector", Tensor::zeros([3], (Kind::Float, Device::Cpu)));
        next.run(cx)
    }
}

#[test]
fn the_hook_to_blame_is_the_one_that_did_it() {
    let mut swallows = model::builder().hook(Swallows).hook(Fails).build().unwrap();
    let error = swallows.fit(&mut model::rows(8), None).unwrap_err().to_string();
    assert!(error.starts_with("hook `it::blame::Swallows::swallow` ("), "{error}");
    let mut logs = model::builder().hook(LogsSimply).on::<BeforePred>("bystander", |_| {}).build().unwrap();
    let error = logs.fit(&mut model::rows(8), None).unwrap_err().to_string();
    assert!(
        error.starts_with("hook `it::blame::LogsSimply::log` (") && error.contains("cannot log `vector`"),
        "{error}"
    );
}

/// A hook that deals with an error of the optimizer's step leaves no gradient behind.
struct Deals(u64);

#[hook]
impl Deals {
    #[hook(around = step)]
    fn deal(&mut self, cx: &mut Cx<Step>, next: Next<Step>) {
        self.0 += u64::from(next.run(cx).is_err());
    }
}

#[test]
fn half_a_steps_gradients_do_not_count_in_the_next() {
    let fails_first = |cx: &mut Cx<BeforeOptStep>| {
        if cx.counters().batch_idx == 0 { Err(Error::msg("not this one")) } else { Ok(()) }
    };
    let mut dealt =
        model::builder().hook(Deals(0)).on::<BeforeOptStep>("first", fails_first).build().unwrap();
    dealt.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(dealt.hook::<Deals>().unwrap().0, 1);
    let leave_out = |cx: &mut Cx<BeforeStep>| {
        if cx.counters().batch_idx == 0 {
            cx.skip_step();
        }
    };
    let mut left_out = model::builder().on::<BeforeStep>("first", leave_out).build().unwrap();
    left_out.fit(&mut model::rows(8), None).unwrap();
    for (one, other) in weights(&dealt).iter().zip(weights(&left_out)) {
        assert_eq!(*one, other);
    }
}
