//! Mistakes of hooks and settings that several ranks report.

use trainer::hooks::DataParallel;
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
    #[hook(around = opt_step)]
    fn skip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
        if cx.rank() == 1 && cx.counters().batch_idx == 1 { Ok(()) } else { next.run(cx) }
    }
}

/// Replaces the backward pass, and computes the gradients of one layer only on rank 1.
struct Partial;

#[hook]
impl Partial {
    #[hook(around = backward)]
    fn replace(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
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

#[test]
fn a_step_that_one_rank_skips_is_reported_before_the_next_batch() {
    for text in errors(|| Harness::small().hook(Lazy).run()) {
        let expected = "the ranks are out of step: rank 0 has trained 2 batches and taken 2 optimizer steps, but rank 1 has trained 2 and \
                        taken 1; a hook skipped work on one rank only";
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn gradients_that_one_rank_lacks_are_named() {
    for text in errors(|| Harness::small().hook(Partial).run()) {
        assert!(
            text.contains(
                "a hook computed gradients of `fc2.bias`, `fc2.weight` on rank 1, but of `fc1.bias`"
            ),
            "{text}"
        );
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
