//! Mistakes of hooks and settings that several ranks report.

use std::time::Duration;

use trainer::hooks::DataParallel;
use trainer::optim::Sharded;
use trainer::prelude::*;
use trainer::testing::{Harness, Outcome, Ranks};

/// Runs a harness on two ranks. Returns their errors.
fn errors<T>(run: impl Fn() -> Result<Outcome<T>>) -> Vec<String> {
    let fit = || run()?.result.map(drop);
    let results = Ranks::new(2).env("TRAINER_RANK_TIMEOUT", "60").results(fit).unwrap();
    results.into_iter().map(|result| result.expect_err("a mistake").to_string()).collect()
}

/// Skips the second optimizer step on rank 1.
struct Lazy;

#[hook]
impl Lazy {
    fn skip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if cx.rank() == 1 && cx.counters().batch_idx == 1 { Ok(next.skip()) } else { next.run(cx) }
    }
}

/// Replaces the backward pass, and computes the gradients of one layer only on rank 1.
struct Partial;

#[hook]
impl Partial {
    fn replace(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.replace(cx, |cx| {
            if cx.rank() == 0 {
                return cx.backward(&cx.scaled_loss());
            }
            let vars = cx.vars();
            let squares = vars.parameters().filter(|var| var.name.starts_with("fc2"));
            let squares: Vec<Tensor> = squares.map(|var| var.tensor.square().sum(Kind::Float)).collect();
            cx.backward(&Tensor::stack(&squares, 0).sum(Kind::Float))
        })
    }
}

/// Skips the operation `step` of the second batch on rank 1.
struct OddStep;

#[hook(only = train)]
impl OddStep {
    fn skip_batch(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        if Odd::SkipsStep.is_here(Odd::SkipsStep, cx) { Ok(next.skip()) } else { next.run(cx) }
    }
}

/// Does something on rank 1 only, in the second batch.
#[derive(Clone, Copy, PartialEq)]
enum Odd {
    SkipsBackward,
    ReplacesBackward,
    SkipsStep,
    SkipsOptStep,
    Calls,
    Freezes,
    FreezesEarly,
}

impl Odd {
    fn is_here<P: OnAllRanks>(self, own: Odd, cx: &Cx<P>) -> bool {
        self == own && cx.rank() == 1 && cx.counters().batch_idx == 1
    }

    fn freeze<P: OnAllRanks>(cx: &Cx<P>) {
        let vars = cx.vars();
        let first = vars.parameters().find(|var| var.name == "fc1.weight").expect("a layer");
        let _ = first.tensor.set_requires_grad(false);
    }
}

#[hook(only = train)]
impl Odd {
    fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) -> Result<()> {
        if self.is_here(Odd::Freezes, cx) {
            Odd::freeze(cx);
        }
        if self.is_here(Odd::Calls, cx) { cx.world().barrier("lonely") } else { Ok(()) }
    }

    fn skip_backward(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        if self.is_here(Odd::SkipsBackward, cx) {
            return Ok(next.skip());
        }
        if self.is_here(Odd::ReplacesBackward, cx) {
            return next.replace(cx, |cx| cx.backward(&cx.scaled_loss()));
        }
        next.run(cx)
    }

    fn skip_opt_step(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if self.is_here(Odd::SkipsOptStep, cx) { Ok(next.skip()) } else { next.run(cx) }
    }

    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        if self.is_here(Odd::FreezesEarly, cx) {
            Odd::freeze(cx);
        }
    }
}

#[test]
fn ranks_that_do_different_work_say_that_they_are_out_of_step_without_waiting() {
    let reduction = "but rank 0 is at `the reduction of the gradients`, which rank 1 has not called";
    for (odd, accumulates, expected) in [
        (Odd::SkipsBackward, false, reduction),
        (Odd::ReplacesBackward, false, reduction),
        (Odd::SkipsStep, false, reduction),
        (Odd::Calls, false, reduction),
        (Odd::Freezes, false, reduction),
        (Odd::SkipsOptStep, false, "which rank 1 has not called"),
        (Odd::FreezesEarly, false, "`fc1.weight` is frozen on rank 1, but trained on rank 0"),
        (Odd::SkipsBackward, true, "and gradients of weight 8 and 4 are accumulated"),
    ] {
        let fit = || {
            let harness = Harness::small().configure(|builder| {
                let builder = match odd {
                    Odd::SkipsOptStep => builder.optimizer(Sharded::new(Sgd::new(0.1))),
                    _ => builder,
                };
                if accumulates { builder.accumulate(3) } else { builder }
            });
            let harness = if odd == Odd::SkipsStep { harness.hook(OddStep) } else { harness.hook(odd) };
            harness.run()?.result.map(drop)
        };
        // Longer than the ranks may run.
        let ranks = Ranks::new(2).timeout(Duration::from_secs(120)).env("TRAINER_RANK_TIMEOUT", "600");
        for result in ranks.results(fit).unwrap() {
            let text = result.expect_err("a mistake").to_string();
            assert!(text.contains("the ranks are out of step"), "{text}");
            assert!(text.contains(expected), "{text}");
        }
    }
}

#[test]
fn a_step_that_one_rank_skips_is_reported_before_the_next_batch() {
    for text in errors(|| Harness::small().hook(Lazy).run()) {
        let expected = "the ranks are out of step: rank 0 has trained 2 batches and taken 2 optimizer steps, but rank 1 has trained 2 and \
                        taken 1, and gradients of weight 0 and 4 are accumulated; a hook skipped work on one rank only";
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn gradients_that_one_rank_lacks_are_named() {
    for text in errors(|| Harness::small().hook(Partial).run()) {
        let own = ["of 4 tensors: `fc1.bias` Float", "of 2 tensors: `fc2.bias` Float"];
        assert!(own.iter().all(|own| text.contains(own)), "{text}");
        assert!(text.contains("run the same backward passes on all ranks"), "{text}");
    }
}

#[test]
fn invalid_settings_for_several_ranks_are_refused() {
    for text in errors(|| Harness::small().hook(DataParallel::new().bucket_bytes(0)).run()) {
        assert!(text.contains("`DataParallel::new().bucket_bytes(0)`: expected at least 1"), "{text}");
    }
    let texts = errors(|| Harness::small().configure(|builder| builder.rank(3)).run());
    for (rank, text) in texts.iter().enumerate() {
        let expected =
            "`.rank(3)` contradicts the launcher or `.world(…)`, which set the rank of this process to ";
        assert!(text.contains(&format!("{expected}{rank}: remove `.rank(3)`")), "{text}");
    }
}
