//! Hooks around operations.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::prelude::*;
use trainer::testing::Harness;

use crate::model::{self, message};
use crate::support::{device, parameters};

type Calls = Arc<Mutex<Vec<String>>>;

/// A name and the shared log that calls are recorded in.
struct Recorder(&'static str, Calls);

impl Recorder {
    fn record(&self, what: &str) {
        self.1.lock().unwrap().push(format!("{} {what}", self.0));
    }
}

/// The outer of two hooks around `backward`.
struct Outer(Recorder);

#[hook]
impl Outer {
    #[hook(ord = -1)]
    fn outer(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        self.0.record("enters");
        let done = next.run(cx)?;
        self.0.record("leaves");
        Ok(done)
    }
}

/// The inner hook around `backward`, which also has hooks at the points before and after it.
struct Inner(Recorder);

#[hook]
impl Inner {
    #[hook(every = 2)]
    fn inner(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        self.0.record("enters");
        cx.scale_loss(2.0);
        next.run(cx)
    }
    fn before_backward(&mut self, _: &mut Cx<BeforeBackward>) {
        self.0.record("before");
    }
    fn after_backward(&mut self, _: &mut Cx<AfterBackward>) {
        self.0.record("after");
    }
}

#[test]
fn lower_ord_wraps_higher_ord_and_filtered_out_hooks_are_bypassed() {
    let calls = Calls::default();
    let mut trainer = model::builder()
        .hook(Inner(Recorder("inner", Arc::clone(&calls))))
        .hook(Outer(Recorder("outer", Arc::clone(&calls))))
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

/// Gradient accumulation as a user writes it: takes an optimizer step in every `n`-th batch and
/// keeps the gradients of the others.
struct Accumulate(u64);

#[hook]
impl Accumulate {
    fn at_the_boundary(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if (cx.counters().batch_idx + 1).is_multiple_of(self.0) { next.run(cx) } else { Ok(next.skip()) }
    }
}

#[test]
fn accumulation_by_a_hook_matches_one_step_on_a_large_batch() {
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
        (summary.counters.batches_seen, summary.counters.optimizer_steps, summary.counters.samples_seen),
        (6, 2, 24)
    );
    large.fit(&mut model::rows(24).batch_size(12), None).unwrap();
    assert_eq!(*counts.lock().unwrap(), [2, 2]);
    for (one, other) in parameters(&small).iter().zip(parameters(&large)) {
        assert!(one.allclose(&other, 1e-6, 1e-7, false));
    }
}

#[test]
fn a_skipped_operation_does_not_fire_its_after_point() {
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

/// Loss scaling as a user writes it: scales the loss, unscales the gradients, and skips steps whose
/// gradients overflowed.
struct LossScaling {
    scale: f64,
    skipped: u64,
}

#[hook]
impl LossScaling {
    #[hook(ord = -10)]
    fn scaled(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        cx.scale_loss(self.scale);
        next.run(cx)
    }
    #[hook(ord = -10)]
    fn unscaled(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        let mut finite = true;
        for (_, mut grad) in cx.grads() {
            let _ = grad.g_mul_scalar_(1.0 / self.scale);
            finite &= grad.isfinite().all().int64_value(&[]) == 1;
        }
        if finite {
            return next.run(cx);
        }
        self.scale /= 2.0_f64.powi(64);
        self.skipped += 1;
        cx.drop_grads()?;
        Ok(next.skip())
    }
}

#[test]
fn loss_scaling_preserves_training_and_skips_overflowed_steps() {
    let mut plain = model::builder().build().unwrap();
    let mut scaled = model::builder().hook(LossScaling { scale: 1024.0, skipped: 0 }).build().unwrap();
    plain.fit(&mut model::rows(16), None).unwrap();
    scaled.fit(&mut model::rows(16), None).unwrap();
    for (one, other) in parameters(&plain).iter().zip(parameters(&scaled)) {
        assert_eq!(*one, other, "a power of two scales without rounding");
    }
    let mut overflowing =
        model::builder().hook(LossScaling { scale: 2.0_f64.powi(140), skipped: 0 }).build().unwrap();
    let summary = overflowing.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(overflowing.hook::<LossScaling>().unwrap().skipped, 1);
    assert_eq!((summary.counters.batches_seen, summary.counters.optimizer_steps), (4, 3));
    assert!(parameters(&overflowing).iter().all(|tensor| tensor.isfinite().all().int64_value(&[]) == 1));
}

/// Calls the given function around the forward pass.
struct AroundPred(fn(&mut Cx<Pred>, Next<Pred>) -> Result<Done>);

#[hook]
impl AroundPred {
    fn around(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        (self.0)(cx, next)
    }
}

/// Replaces the forward pass with an error.
struct FailingPred;

#[hook]
impl FailingPred {
    #[hook(ord = 10)]
    fn fail(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        next.replace(cx, |_| Err("on purpose"))
    }
}

/// Predicts the same probability for each class.
fn even_guess(cx: &mut Cx<Pred>) -> Result<()> {
    let rows = cx.batch::<(Tensor, Tensor)>()?.0.size()[0];
    cx.set_pred(Tensor::zeros([rows, 3], (Kind::Float, device())))
}

#[test]
fn skipping_a_producing_operation_requires_setting_its_output() {
    type Around = fn(&mut Cx<Pred>, Next<Pred>) -> Result<Done>;
    let run = |around: Around, fails: bool| {
        let builder = model::builder().hook(AroundPred(around));
        let builder = if fails { builder.hook(FailingPred) } else { builder };
        builder.build().unwrap().validate(&mut model::rows(8))
    };
    let is_even = |result: Result<trainer::Summary>| {
        assert!(
            (result.unwrap().metrics["valid/loss"] - 3_f64.ln()).abs() < 1e-6,
            "the loss of a uniform prediction"
        );
    };
    is_even(run(|cx, next| next.replace(cx, even_guess), false));
    is_even(run(|cx, next| next.run_or(cx, |cx, _| even_guess(cx)), true));

    let error = |around, fails| message(&run(around, fails).unwrap_err());
    insta::assert_snapshot!(error(|_, next| Ok(next.skip()), false), @"hook `it::around::AroundPred::around` (tests/it/around.rs:_) failed at pred (valid), epoch 0, batch 0: the hook skipped `pred`, which must produce a prediction: call `next.run(cx)`, or `next.replace(cx, |cx| …)` with `cx.set_pred(…)` in it");
    insta::assert_snapshot!(error(|cx, next| even_guess(cx).map(|()| next.skip()), false), @"hook `it::around::AroundPred::around` (tests/it/around.rs:_) failed at pred (valid), epoch 0, batch 0: the hook skipped `pred`, which must produce a prediction: call `next.run(cx)`, or `next.replace(cx, |cx| …)` with `cx.set_pred(…)` in it");
    insta::assert_snapshot!(error(|cx, next| next.replace(cx, |_| ()), false), @"hook `it::around::AroundPred::around` (tests/it/around.rs:_) failed at pred (valid), epoch 0, batch 0: the hook replaced `pred` without setting a prediction: call `cx.set_pred(…)` in the replacement");
    insta::assert_snapshot!(error(|cx, next| next.replace(cx, |cx| cx.set_pred(3_u8)), false), @"hook `it::around::AroundPred::around` (tests/it/around.rs:_) failed at pred (valid), epoch 0, batch 0: the task's prediction is a `tch::wrappers::tensor::Tensor`, not a `u8`: use `tch::wrappers::tensor::Tensor`");
    insta::assert_snapshot!(error(|cx, next| next.run_or(cx, |_, _| ()), true), @"hook `it::around::AroundPred::around` (tests/it/around.rs:_) failed at pred (valid), epoch 0, batch 0: the hook handled the error of `pred` without setting a prediction: return the error, or call `cx.set_pred(…)`");
    insta::assert_snapshot!(error(|cx, next| next.run(cx), true), @"hook `it::around::FailingPred::fail` (tests/it/around.rs:_) failed at pred (valid), epoch 0, batch 0: on purpose");
}

/// Calls the given function around the backward pass.
struct AroundBackward(fn(&mut Cx<Backward>, Next<Backward>) -> Result<Done>);

#[hook]
impl AroundBackward {
    fn around(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        (self.0)(cx, next)
    }
}

#[test]
fn a_replaced_backward_pass_must_compute_gradients_through_the_trainer() {
    type Around = fn(&mut Cx<Backward>, Next<Backward>) -> Result<Done>;
    let run = |around: Around| {
        let mut trainer = model::builder().hook(AroundBackward(around)).build().unwrap();
        let result = trainer.fit(&mut model::rows(8), None);
        assert!(trainer.vars().parameters().all(|var| !var.tensor.grad().defined()));
        message(&result.unwrap_err())
    };
    insta::assert_snapshot!(run(|cx, next| next.replace(cx, |_| ())), @"hook `it::around::AroundBackward::around` (tests/it/around.rs:_) failed at backward, epoch 0, batch 0: the hook replaced `backward` without computing a gradient: in the replacement, call `cx.backward(&cx.scaled_loss())`, or skip the operation");
    // Otherwise, gradients computed without the trainer would be added to the next batch's.
    insta::assert_snapshot!(run(|cx, next| { cx.loss().backward(); Ok(next.skip()) }), @"hook `it::around::AroundBackward::around` (tests/it/around.rs:_) failed at backward, epoch 0, batch 0: the hook computed gradients without running `backward`, so they would not count: call `next.replace(cx, |cx| …)` to replace the operation, or `cx.backward(&loss)`");
    // A second backward pass through the same graph, which libtorch frees in the first.
    insta::assert_snapshot!(
        run(|cx, next| next.replace(cx, |cx| {
            let loss = cx.scaled_loss();
            cx.backward(&loss)?;
            cx.backward(&loss)
        })),
        @"hook `it::around::AroundBackward::around` (tests/it/around.rs:_) failed at backward, epoch 0, batch 0: Internal torch error: Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors after calling backward."
    );
    // A loss without a graph, and one with two elements.
    insta::assert_snapshot!(run(|cx, next| next.replace(cx, |cx| cx.backward(&Tensor::ones([], (Kind::Float, device()))))), @"hook `it::around::AroundBackward::around` (tests/it/around.rs:_) failed at backward, epoch 0, batch 0: Internal torch error: element 0 of tensors does not require grad and does not have a grad_fn");
    insta::assert_snapshot!(run(|cx, next| next.replace(cx, |cx| {
        let loss = cx.scaled_loss();
        cx.backward(&Tensor::stack(&[&loss, &loss], 0))
    })), @"hook `it::around::AroundBackward::around` (tests/it/around.rs:_) failed at backward, epoch 0, batch 0: Internal torch error: grad can be implicitly created only for scalar outputs");
}

/// Replaces the optimizer step with the given function.
struct AroundOptStep(fn(&mut Cx<OptStep>) -> Result<()>);

#[hook]
impl AroundOptStep {
    fn around(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.replace(cx, self.0)
    }
}

#[test]
fn a_replaced_optimizer_step_is_counted_once() {
    let initial = parameters(&model::builder().build().unwrap());
    for (replacement, moves) in [
        ((|_| Ok(())) as fn(&mut Cx<OptStep>) -> Result<()>, false),
        (|cx| cx.optimizer_mut()?.step(), true),
        (|cx| cx.optimizer_mut()?.step().and_then(|()| cx.optimizer_mut()?.step()), true),
    ] {
        let calls = Calls::default();
        let note = Arc::clone(&calls);
        let mut trainer = model::builder()
            .hook(AroundOptStep(replacement))
            .on::<AfterOptStep>("counted", move |cx| {
                note.lock().unwrap().push(format!("{} at {:?}", cx.counters().optimizer_steps, cx.lrs()));
            })
            .build()
            .unwrap();
        let step = trainer.fit(&mut model::rows(8), None).unwrap().counters;
        assert_eq!(step.optimizer_steps, 2);
        assert_eq!(*calls.lock().unwrap(), ["1 at [0.1]", "2 at [0.1]"]);
        assert_eq!(parameters(&trainer) != initial, moves);
    }
}

#[test]
fn replacing_opt_step_outside_of_gradient_clipping_is_an_error() {
    let clipped = Harness::small().configure(|builder| builder.clip_grad_norm(1.0));
    let outcome = clipped.hook(AroundOptStep(|cx| cx.optimizer_mut()?.step())).run().unwrap();
    insta::assert_snapshot!(message(outcome.error()), @"`ClipGradNorm` failed at after_opt_step, epoch 0, batch 0: a hook replaced `opt_step` without clipping the gradients: give that hook `after = trainer::stages::Clipping`, so that it runs inside `ClipGradNorm`");
}

#[test]
fn a_replaced_step_has_neither_loss_nor_prediction() {
    struct NoStep;
    #[hook]
    impl NoStep {
        fn replace(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
            if cx.counters().batch_idx == 1 { next.replace(cx, |_| ()) } else { next.run(cx) }
        }
        fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
            let is_replaced = cx.counters().batch_idx == 2;
            assert_eq!((cx.step_loss().is_none(), cx.pred::<Tensor>().is_err()), (is_replaced, is_replaced));
            cx.log("ran", 1);
        }
    }
    // `NoStep` wraps `step`, but its hook at `after_step` runs after the operation and needs no
    // second borrow.
    let mut trainer = model::builder().hook(NoStep).build().unwrap();
    let step = trainer.fit(&mut model::rows(16), None).unwrap().counters;
    assert_eq!((step.batches_seen, step.samples_seen, step.optimizer_steps), (4, 16, 3));
}

/// Records the start and the end of each validation.
struct Swap(Calls);

#[hook]
impl Swap {
    fn swapped(&mut self, cx: &mut Cx<Valid>, next: Next<Valid>) -> Result<Done> {
        let calls = Arc::clone(&self.0);
        calls.lock().unwrap().push("in".into());
        next.run_then(cx, |_| calls.lock().unwrap().push("out".into()))
    }
}

#[test]
fn run_then_calls_its_closure_on_success_error_and_panic() {
    for (fails, panics) in [(false, false), (true, false), (false, true)] {
        let calls = Calls::default();
        let mut trainer = model::builder()
            .hook(Swap(Arc::clone(&calls)))
            .on::<AfterPred>("fails", move |_| {
                assert!(!panics, "on purpose");
                if fails { Err(Error::msg("fails")) } else { Ok(()) }
            })
            .on::<AfterError>("attributed", |cx| {
                assert!(cx.error().to_string().starts_with("hook `fails` ("));
            })
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

/// Wraps `valid` and has a hook at a point within it, which would borrow the value twice.
struct Both;

#[hook]
impl Both {
    fn around(&mut self, cx: &mut Cx<Valid>, next: Next<Valid>) -> Result<Done> {
        next.run(cx)
    }
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    #[hook(only = train)]
    fn elsewhere(&mut self, _: &mut Cx<AfterStep>) {}
    fn after_valid(&mut self, _: &mut Cx<AfterValid>) {}
}

#[test]
fn a_value_cannot_have_a_hook_inside_an_operation_that_it_wraps() {
    let error = model::builder().hook(Both).build().unwrap_err().to_string();
    insta::assert_snapshot!(message(&error), @"the trainer cannot be built: `it::around::Both::around` (tests/it/around.rs:_) wraps `valid` and borrows its value throughout, so `it::around::Both::after_step` (tests/it/around.rs:_) cannot run inside it: move one of them to a separate type, or limit its phases with `only`");
}

/// Skips every third training batch.
struct Sparse;

#[hook]
impl Sparse {
    #[hook(every = 3, only = train)]
    fn skip(&mut self, cx: &mut Cx<BeforeStep>) {
        cx.skip_batch();
    }
}

#[test]
fn the_key_every_counts_skipped_batches() {
    let mut trainer = model::builder().epochs(2).hook(Sparse).build().unwrap();
    let summary = trainer.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(summary.counters.batches_seen, 8 - 2, "the third and the sixth of eight");
}

thread_local! {
    static KEPT: RefCell<Option<Done>> = const { RefCell::new(None) };
}

/// Returns the proof of the backward pass for the optimizer step.
struct Cheats;

#[hook]
impl Cheats {
    fn keep(&mut self, _: &mut Cx<ZeroGrad>, next: Next<ZeroGrad>) -> Result<Done> {
        KEPT.set(Some(next.skip()));
        Err(Error::msg("the run goes on, because `Tolerates` handles this"))
    }

    fn cheat(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        match KEPT.take() {
            None => next.run(cx),
            Some(kept) => Ok(kept),
        }
    }
}

/// Handles every error of `zero_grad`.
struct Tolerates;

#[hook(ord = -1)]
impl Tolerates {
    fn tolerate(&mut self, cx: &mut Cx<ZeroGrad>, next: Next<ZeroGrad>) -> Result<Done> {
        next.run_or(cx, |_, _| ())
    }
}

#[test]
fn returning_the_done_token_of_another_operation_is_an_error() {
    let mut trainer = model::builder().hook(Cheats).hook(Tolerates).build().unwrap();
    let error = message(&trainer.fit(&mut model::rows(8), None).unwrap_err());
    assert_eq!(
        error,
        "hook `it::around::Cheats::cheat` (tests/it/around.rs:_) failed at opt_step, epoch 0, batch 1: the hook returned a \
         `Done` of another operation: return the one that its own `next` returned"
    );
}
