//! Hooks around operations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::prelude::*;

use crate::model::{self, told};

type Calls = Arc<Mutex<Vec<String>>>;

/// Notes when it is entered and left.
struct Noted(&'static str, Calls);

impl Noted {
    fn note(&self, what: &str) {
        self.1.lock().unwrap().push(format!("{} {what}", self.0));
    }
}

/// Outside.
struct Outer(Noted);

#[hook]
impl Outer {
    #[hook(around = backward, ord = -1)]
    fn outer(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
        self.0.note("enters");
        next.run(cx)?;
        self.0.note("leaves");
        Ok(())
    }
}

/// Inside, and at the points beside the operation.
struct Inner(Noted);

#[hook]
impl Inner {
    #[hook(around = backward, every = 2)]
    fn inner(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
        self.0.note("enters");
        cx.scale_loss(2.0);
        next.run(cx)
    }
    fn before_backward(&mut self, _: &mut Cx<BeforeBackward>) {
        self.0.note("before");
    }
    fn after_backward(&mut self, _: &mut Cx<AfterBackward>) {
        self.0.note("after");
    }
}

#[test]
fn lower_ord_is_further_outside_and_a_filter_lets_the_operation_through() {
    let calls = Calls::default();
    let mut trainer = model::builder()
        .hook(Inner(Noted("inner", Arc::clone(&calls))))
        .hook(Outer(Noted("outer", Arc::clone(&calls))))
        .build()
        .unwrap();
    assert_eq!(
        trainer.describe_hooks().at("backward"),
        ["it::around::Outer::outer", "it::around::Inner::inner"]
    );
    trainer.fit(&mut model::rows(8), None).unwrap();
    let expected = "inner before, outer enters, outer leaves, inner after, \
                    inner before, outer enters, inner enters, outer leaves, inner after";
    assert_eq!(calls.lock().unwrap().join(", "), expected);
}

/// Gradient accumulation as a user writes it: nothing in the trainer knows of it.
struct Accumulate(u64);

#[hook]
impl Accumulate {
    #[hook(only = train)]
    fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) {
        cx.scale_loss(1.0 / self.0 as f64);
    }
    #[hook(around = opt_step)]
    fn at_the_boundary(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
        if (cx.step().batch_idx + 1).is_multiple_of(self.0) { next.run(cx) } else { Ok(()) }
    }
}

fn weights(trainer: &Trainer<impl Task>) -> Vec<Tensor> {
    trainer.vars().parameters().map(|var| var.tensor.copy()).collect()
}

#[test]
fn accumulation_of_small_batches_is_one_step_of_a_large_one() {
    let mut small = model::builder().hook(Accumulate(3)).build().unwrap();
    let counts = Arc::new(Mutex::new([0; 2]));
    let [stepped, dropped] = [Arc::clone(&counts), Arc::clone(&counts)];
    let mut large = model::builder()
        .on::<AfterOptStep>("stepped", move |_| stepped.lock().unwrap()[0] += 1)
        .on::<AfterZeroGrad>("dropped", move |_| dropped.lock().unwrap()[1] += 1)
        .build()
        .unwrap();
    let summary = small.fit(&mut model::rows(24), None).unwrap();
    assert_eq!(
        (summary.step.global_step, summary.step.optimizer_step, summary.step.samples_seen),
        (6, 2, 24)
    );
    large.fit(&mut model::rows(24).batch_size(12), None).unwrap();
    assert_eq!(*counts.lock().unwrap(), [2, 2]);
    for (one, other) in weights(&small).iter().zip(weights(&large)) {
        assert!(one.allclose(&other, 1e-6, 1e-7, false));
    }
}

#[test]
fn what_did_not_take_place_fires_nothing_after_it() {
    let calls = Calls::default();
    let [one, two, three] = [Arc::clone(&calls), Arc::clone(&calls), Arc::clone(&calls)];
    let mut trainer = model::builder()
        .hook(Accumulate(2))
        .on::<BeforeOptStep>("before", move |_| one.lock().unwrap().push("before".into()))
        .on::<AfterOptStep>("after", move |_| two.lock().unwrap().push("after".into()))
        .on::<AfterZeroGrad>("dropped", move |_| three.lock().unwrap().push("dropped".into()))
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(12), None).unwrap();
    assert_eq!(calls.lock().unwrap().join(" "), "before before after dropped before");
}

/// Loss scaling as a user writes it: scale, unscale, and leave a step out whose gradients overflowed.
struct LossScaling {
    scale: f64,
    left_out: u64,
}

#[hook]
impl LossScaling {
    #[hook(around = backward, ord = -10)]
    fn scaled(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
        cx.scale_loss(self.scale);
        next.run(cx)
    }
    #[hook(around = opt_step, ord = -10)]
    fn unscaled(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
        let mut finite = true;
        for (_, mut grad) in cx.grads() {
            let _ = grad.g_mul_scalar_(1.0 / self.scale);
            finite &= grad.isfinite().all().int64_value(&[]) == 1;
        }
        if finite {
            return next.run(cx);
        }
        cx.grads().for_each(|(_, mut grad)| drop(grad.zero_()));
        self.scale /= 2.0_f64.powi(64);
        self.left_out += 1;
        Ok(())
    }
}

#[test]
fn loss_scaling_changes_nothing_but_leaves_out_what_overflowed() {
    let mut plain = model::builder().build().unwrap();
    let mut scaled = model::builder().hook(LossScaling { scale: 1024.0, left_out: 0 }).build().unwrap();
    plain.fit(&mut model::rows(16), None).unwrap();
    scaled.fit(&mut model::rows(16), None).unwrap();
    for (one, other) in weights(&plain).iter().zip(weights(&scaled)) {
        assert_eq!(*one, other, "a power of two scales without rounding");
    }
    let mut overflowing =
        model::builder().hook(LossScaling { scale: 2.0_f64.powi(140), left_out: 0 }).build().unwrap();
    let summary = overflowing.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(overflowing.hook::<LossScaling>().unwrap().left_out, 1);
    assert_eq!((summary.step.global_step, summary.step.optimizer_step), (4, 3));
    assert!(weights(&overflowing).iter().all(|tensor| tensor.isfinite().all().int64_value(&[]) == 1));
}

/// Does without an operation, perhaps with something in its place.
struct Instead(fn(&mut Cx<Pred>) -> Result<()>);

#[hook]
impl Instead {
    #[hook(around = pred)]
    fn instead(&mut self, cx: &mut Cx<Pred>, _: Next<Pred>) -> Result<()> {
        (self.0)(cx)
    }
}

#[test]
fn who_skips_what_makes_something_sets_it() {
    let mut trainer = model::builder()
        .hook(Instead(|cx| {
            let rows = cx.batch::<(Tensor, Tensor)>()?.0.size()[0];
            cx.set_pred(Tensor::zeros([rows, 3], (Kind::Float, Device::Cpu)))
        }))
        .build()
        .unwrap();
    let summary = trainer.validate(&mut model::rows(8)).unwrap();
    assert!((summary.metrics["valid/loss"] - 3_f64.ln()).abs() < 1e-6, "the loss of an even guess");

    let mut trainer = model::builder().hook(Instead(|_| Ok(()))).build().unwrap();
    let error = trainer.validate(&mut model::rows(8)).unwrap_err().to_string();
    insta::assert_snapshot!(told(&error), @"hook `it::around::Instead::instead` (tests/it/around.rs:_) failed at pred (valid), epoch 0, batch 0: it goes around `pred`, which did not take place, and set no prediction instead: call `next.run(cx)` and hand on its error, or `cx.set_pred(…)`");

    let mut trainer = model::builder().hook(Instead(|cx| cx.set_pred(3_u8))).build().unwrap();
    let error = trainer.validate(&mut model::rows(8)).unwrap_err().to_string();
    insta::assert_snapshot!(told(&error), @"hook `it::around::Instead::instead` (tests/it/around.rs:_) failed at pred (valid), epoch 0, batch 0: the task's prediction is a `tch::wrappers::tensor::Tensor`, not a `u8`");
}

/// Puts something back on every way out.
struct Swap(Calls);

#[hook]
impl Swap {
    #[hook(around = valid)]
    fn swapped(&mut self, cx: &mut Cx<Valid>, next: Next<Valid>) -> Result<()> {
        let calls = Arc::clone(&self.0);
        calls.lock().unwrap().push("in".into());
        next.run_then(cx, |_| calls.lock().unwrap().push("out".into()))
    }
}

#[test]
fn what_was_changed_is_put_back_on_every_way_out() {
    for (fails, panics) in [(false, false), (true, false), (false, true)] {
        let calls = Calls::default();
        let mut trainer = model::builder()
            .hook(Swap(Arc::clone(&calls)))
            .on::<AfterPred>("fails", move |_| {
                assert!(!panics, "on purpose");
                if fails { Err(Error::msg("fails")) } else { Ok(()) }
            })
            .on::<AfterError>("blamed", |cx| assert!(cx.error().to_string().starts_with("hook `fails` (")))
            .build()
            .unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| trainer.validate(&mut model::rows(8))));
        assert_eq!(calls.lock().unwrap().join(" "), "in out");
        match outcome {
            Ok(result) => assert_eq!(result.is_err(), fails),
            Err(panic) => assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose")),
        }
    }
}

/// Keeps a `next` for later. It cannot be sent to another thread, so that no hook can hold it: only a thread-local can.
struct Keeps;

#[hook]
impl Keeps {
    #[hook(around = zero_grad)]
    fn keep(&mut self, cx: &mut Cx<ZeroGrad>, next: Next<ZeroGrad>) -> Result<()> {
        use std::cell::RefCell;
        thread_local!(static KEPT: RefCell<Option<Next<ZeroGrad>>> = const { RefCell::new(None) });
        match KEPT.replace(Some(next)) {
            None => Ok(()),
            Some(earlier) => earlier.run(cx),
        }
    }
}

#[test]
fn a_next_that_was_kept_is_told() {
    let mut trainer = model::builder().hook(Keeps).build().unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err().to_string();
    assert!(error.contains("hook `it::around::Keeps::keep` ("), "{error}");
    assert!(error.ends_with("this `next` was kept from an earlier `zero_grad`, which is over"), "{error}");
}

/// Around an operation, and at a point in there: its value cannot be in two places.
struct Both;

#[hook]
impl Both {
    #[hook(around = valid)]
    fn around(&mut self, cx: &mut Cx<Valid>, next: Next<Valid>) -> Result<()> {
        next.run(cx)
    }
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    #[hook(after_step, only = train)]
    fn elsewhere(&mut self, _: &mut Cx<AfterStep>) {}
    fn after_valid(&mut self, _: &mut Cx<AfterValid>) {}
}

#[test]
fn a_value_that_would_be_needed_twice_at_once_is_told_when_the_trainer_is_built() {
    let error = model::builder().hook(Both).build().unwrap_err().to_string();
    insta::assert_snapshot!(told(&error), @"the trainer cannot be built: `it::around::Both::around` (tests/it/around.rs:_) goes around `valid` with its value, so that `it::around::Both::after_step` (tests/it/around.rs:_) cannot have it in there: move one of them to a type of its own, or filter with `only`");
}

/// Leaves every batch out from the third on, each third time that it is asked.
struct Sparse;

#[hook]
impl Sparse {
    #[hook(before_step, every = 3, only = train)]
    fn leave_out(&mut self, cx: &mut Cx<BeforeStep>) {
        cx.skip_step();
    }
}

#[test]
fn a_batch_that_was_left_out_is_counted_by_every() {
    let mut trainer = model::builder().epochs(2).hook(Sparse).build().unwrap();
    let summary = trainer.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(summary.step.global_step, 8 - 2, "the third and the sixth of eight");
}
