//! Mistakes of hooks and settings that several ranks report.

use std::time::Duration;

use trainer::hooks::DataParallel;
use trainer::optim::Sharded;
use trainer::prelude::*;
use trainer::testing::{Harness, Outcome, Ranks, once};

use crate::support::scratch;

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
fn ranks_that_do_different_work_report_at_once_that_they_are_out_of_step() {
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

#[test]
fn when_one_rank_fails_every_rank_writes_its_last_collectives_to_the_run_folder() {
    let folder = once(|| scratch("last-collectives"));
    let run = || {
        let harness = Harness::small().configure(|builder| {
            builder.run_folder(&folder).on::<AfterLoss>("fails", |cx| {
                cx.world().any("checked", false)?;
                let is_here = cx.rank() == 1 && cx.counters().batch_idx == 1;
                if is_here { Err(Error::msg("no luck")) } else { Ok(()) }
            })
        });
        harness.run()?.result.map(drop)
    };
    for result in Ranks::new(2).env("TRAINER_RANK_TIMEOUT", "60").results(run).unwrap() {
        assert!(result.expect_err("rank 1 fails").to_string().contains("no luck"));
    }
    for rank in 0..2 {
        let log = std::fs::read_to_string(folder.join(format!("ranks/rank-{rank}.log"))).unwrap();
        assert!(log.contains("no luck"), "{log}");
        assert!(log.contains("the last collectives:"), "{log}");
        assert!(log.contains("`any(\"checked\")` in `fails` at `after_loss` took "), "{log}");
        assert!(log.contains("`the agreement on the next batch` took "), "{log}");
    }
    let waits = std::fs::read_to_string(folder.join("ranks/rank-0.log")).unwrap();
    assert!(waits.contains("has not ended"), "rank 0 waited for rank 1: {waits}");
}

/// Ways in which one rank leaves the path of the others: what it does, and what the errors name.
const WAYS: [(&str, &[&str]); 10] = [
    ("calls another collective", &["all_reduce(\"one\")", "barrier(\"other\")"]),
    ("calls one collective more", &["barrier(\"more\")", "the reduction of the gradients"]),
    ("calls collectives in another order", &["barrier(\"one\")", "barrier(\"other\")"]),
    ("reduces another shape", &["Float [2]", "Float [3]"]),
    ("broadcasts from another rank", &["from rank 0", "from rank 1"]),
    ("gathers while the others average", &["gather(\"values\")", "average(\"values\")"]),
    ("logs another name", &["rank 0 has logged `train/even`", "rank 1 has not"]),
    ("ends the epoch by itself", &["the agreement on the next batch"]),
    ("waits in another hook", &["`first` at", "`second` at"]),
    ("calls a collective after the loop", &["barrier(\"late\")"]),
];

#[test]
fn ten_deadlocks_between_ranks_are_errors_that_name_both_locations() {
    for (way, expected) in WAYS {
        let run = || {
            let harness = Harness::small().configure(|builder| {
                let builder = builder.on::<AfterLoss>("first", move |cx| odd(way, true, cx));
                let builder = builder.on::<AfterLoss>("second", move |cx| odd(way, false, cx));
                builder.on::<AfterTrainEpoch>("late", move |cx| {
                    let is_here = way == "calls a collective after the loop" && cx.rank() == 1;
                    if is_here { cx.world().barrier("late") } else { Ok(()) }
                })
            });
            harness.run()?.result.map(drop)
        };
        // Far longer than the ranks may wait.
        let ranks = Ranks::new(2).timeout(Duration::from_secs(120)).env("TRAINER_RANK_TIMEOUT", "600");
        let results = ranks.results(run).unwrap();
        if way == "ends the epoch by itself" {
            // A request takes effect on all ranks.
            assert!(results.iter().all(Result::is_ok), "{way}: {results:?}");
            continue;
        }
        for result in results {
            let text = result.expect_err(way).to_string();
            for part in expected {
                assert!(text.contains(part), "{way}: {text}");
            }
        }
    }
}

/// Does on rank 1 what `way` says, in the second batch, and on rank 0 what the others do.
fn odd(way: &str, is_first: bool, cx: &mut Cx<AfterLoss>) -> Result<()> {
    if cx.counters().batch_idx != 1 || cx.phase() != Phase::Train {
        return Ok(());
    }
    let world = cx.world();
    let is_odd = cx.rank() == 1;
    let numbers = |count: i64| Tensor::ones([count], (Kind::Float, Device::Cpu));
    match way {
        "waits in another hook" if is_first != is_odd => world.barrier("moved"),
        _ if !is_first => Ok(()),
        "calls another collective" if is_odd => world.barrier("other"),
        "calls another collective" => world.all_reduce("one", &numbers(1), trainer::distributed::Op::Sum),
        "calls one collective more" if is_odd => world.barrier("more"),
        "calls collectives in another order" => {
            let names = if is_odd { ["other", "one"] } else { ["one", "other"] };
            names.iter().try_for_each(|name| world.barrier(name))
        }
        "reduces another shape" => {
            let count = if is_odd { 3 } else { 2 };
            world.all_reduce("shape", &numbers(count), trainer::distributed::Op::Sum)
        }
        "broadcasts from another rank" => world.broadcast([("ones", numbers(1))], cx.rank()),
        "gathers while the others average" if is_odd => world.gather("values", &1).map(drop),
        "gathers while the others average" => world.average([("values", numbers(1))]),
        "logs another name" => {
            cx.log(if is_odd { "odd" } else { "even" }, 1.0);
            Ok(())
        }
        "ends the epoch by itself" => {
            if is_odd {
                cx.end_epoch();
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
