//! `Sharded::gradients`: each rank has the gradients of its share of the parameters.

use std::fs;

use trainer::optim::{ParamGroup, Sharded};
use trainer::prelude::*;
use trainer::testing::{Ranks, once};
use trainer::{TrainerBuilder, Vars};

use crate::distributed::folder_var;
use crate::model;
use crate::ranks_support::{all_completed, close, completed, errors, same_as_one};
use crate::support::scratch;

/// Checks that scenes have the same results on two ranks with divided gradients as without, to the
/// bit.
fn same_as_plain(scenes: &[&str]) {
    let pairs = scenes.iter().flat_map(|scene| [(*scene).to_owned(), format!("{scene} divided")]);
    for (pair, scene) in all_completed(2, &pairs.collect::<Vec<_>>()).chunks(2).zip(scenes) {
        let [plain, divided] = pair else { unreachable!() };
        assert!(divided.weights == plain.weights, "{scene}");
        assert_eq!(divided.losses, plain.losses, "{scene}");
        assert_eq!(divided.metrics, plain.metrics, "{scene}");
        assert_eq!(divided.counters, plain.counters, "{scene}");
        assert!(divided.state < plain.state, "{scene}: {} {}", divided.state, plain.state);
    }
}

#[test]
fn dividing_is_bit_identical_on_two_ranks() {
    same_as_plain(&["unclipped", "unclipped lion", "unclipped muon", "unclipped tokens", "turns", "gan"]);
    same_as_plain(&["unclipped accumulate=3 once", "unclipped accumulate=3 once hooks", "unclipped frozen"]);
}

#[test]
fn dividing_does_not_depend_on_the_size_of_the_buckets() {
    for count in [2, 3, 4] {
        let scenes = ["divided=1", "divided=24", "divided=200", "divided"];
        let scenes = scenes.map(|scene| format!("{scene} unclipped accumulate=2"));
        let all = all_completed(count, &scenes);
        assert!(all.iter().all(|outcome| outcome.weights == all[0].weights), "{count} ranks");
    }
}

#[test]
fn dividing_has_the_weights_of_one_process() {
    let scene = ["unclipped divided".to_owned(), "divided".to_owned()];
    let alone = all_completed(1, &scene);
    for count in [2, 3, 4] {
        for (together, alone) in all_completed(count, &scene).iter().zip(&alone) {
            let values = |bits: &[u64]| bits.iter().map(|bits| f64::from_bits(*bits)).collect::<Vec<_>>();
            assert!(close(&values(&together.weights), &values(&alone.weights), 1e-12), "{count} ranks");
        }
    }
}

#[test]
fn dividing_matches_one_process_with_windows_parts_and_hooks() {
    let scenes = [
        "divided accumulate=3",
        "divided accumulate=3 once",
        "divided turns",
        "divided gan accumulate=2",
        "divided frozen accumulate=2",
        "divided dropped tokens",
        "divided replaced",
        "divided penalty batch=14",
        "divided hooks accumulate=3",
        "divided bf16",
    ];
    same_as_one(&scenes, &[2, 3]);
}

#[test]
fn dividing_matches_one_process_with_uneven_and_borrowed_rows() {
    let scenes = [
        "divided stream",
        "divided stream accumulate=3",
        "divided uneven",
        "divided uneven accumulate=3",
        "divided uneven accumulate=3 once",
        "divided batch=2 tokens",
        "divided norms uneven",
        "divided norms stream accumulate=2",
    ];
    same_as_one(&scenes, &[3]);
}

/// Weight decay would move a parameter whose gradient is 0 instead of missing.
#[test]
fn a_parameter_without_a_gradient_on_any_rank_has_none() {
    same_as_one(&["divided unused", "divided never_used"], &[2, 3]);
    same_as_one(&["divided unused uneven accumulate=2"], &[3]);
}

#[test]
fn a_divided_run_resumes_bit_identically() {
    for scene in ["accumulate=3 divided", "accumulate=3 divided once"] {
        let uninterrupted = completed(2, scene, &[]);
        for first in ["kill=1 at=17", "token=1 at=17 return background", "token=0 at=16 return"] {
            let folder = once(|| scratch("divided-resume"));
            let vars = folder_var(&folder);
            errors(2, &format!("{first} {scene}"), &vars);
            // The buckets may change.
            let resumed = completed(2, &scene.replace("divided", "divided=100"), &vars);
            assert!(resumed.weights == uninterrupted.weights, "{first} {scene}");
            assert_eq!(resumed.losses, uninterrupted.losses, "{first} {scene}");
            assert_eq!(resumed.metrics, uninterrupted.metrics, "{first} {scene}");
            once(|| fs::remove_dir_all(&folder).unwrap());
        }
    }
}

#[test]
fn a_divided_run_resumes_with_another_stage_or_number_of_ranks() {
    let alone = completed(1, "accumulate=3", &[]);
    let ends = [
        // In the middle of an accumulation window.
        [(1, "divided"), (2, "divided"), (4, "divided"), (3, "divided")],
        [(2, "divided"), (2, "sharded"), (2, "divided once"), (3, "")],
        [(3, ""), (3, "divided"), (2, "divided once"), (1, "")],
        [(2, "divided once"), (2, "divided"), (3, "sharded"), (4, "divided")],
    ];
    for stages in ends {
        let folder = once(|| scratch("divided-elastic"));
        let vars = folder_var(&folder);
        for (nth, (count, stage)) in stages.into_iter().enumerate() {
            let at = [10, 17, 25][nth.min(2)];
            let scene = format!("accumulate=3 {stage} inexact");
            if nth < 3 {
                errors(count, &format!("token=0 at={at} {scene} return"), &vars);
                continue;
            }
            let resumed = completed(count, &scene, &vars);
            assert!(close(&resumed.losses, &alone.losses, 1e-9), "{stages:?} {:?}", resumed.losses);
            assert_eq!(resumed.counters, alone.counters, "{stages:?}");
        }
        once(|| fs::remove_dir_all(&folder).unwrap());
    }
}

#[test]
fn a_resume_with_gradients_divided_differently_is_refused_as_inexact() {
    let folder = once(|| scratch("divided-refused"));
    let vars = folder_var(&folder);
    errors(2, "token=1 at=10 accumulate=3 divided return", &vars);
    for scene in ["accumulate=3", "accumulate=3 divided once"] {
        let refused = errors(2, scene, &vars);
        assert!(refused[0].contains("divided_gradients"), "{refused:?}");
    }
    once(|| fs::remove_dir_all(&folder).unwrap());
}

/// Trains a small model on two ranks, and returns the error of each rank, or an empty text.
fn on_two_ranks<T: Task<Batch = (Tensor, Tensor)>>(build: impl Fn() -> TrainerBuilder<T>) -> Vec<String> {
    let fit = || -> Result<String> {
        let result = build().build().and_then(|mut trainer| trainer.fit(&mut model::rows(8), None).map(drop));
        Ok(result.err().map_or_else(String::new, |error| error.to_string()))
    };
    Ranks::new(2).run(fit).unwrap()
}

fn divided() -> Sharded<AdamW> {
    Sharded::new(AdamW::new(1e-2)).gradients(true)
}

#[test]
fn hooks_see_the_gradients_of_the_share_of_this_rank() {
    let seen = on_two_ranks(|| {
        model::builder().optimizer(divided()).on::<AfterBackward>("see", |cx| {
            assert!(cx.grads_are_divided() && cx.grads_are_averaged());
            let own: Vec<String> = cx.grads().map(|(name, _)| name.to_string()).collect();
            assert!(own.iter().all(|name| cx.has_grad_of(name) && cx.grad(name).is_ok()));
            let all: Vec<Vec<String>> = cx.world().gather("names", &own)?;
            let names: Vec<String> = cx.vars().parameters().map(|var| var.name.clone()).collect();
            let mut found = all.concat();
            found.sort();
            assert_eq!(found, names);
            let rank = cx.rank() as usize;
            for name in &all[1 - rank] {
                assert!(!cx.has_grad_of(name));
                let error = cx.grad(name).unwrap_err().to_string();
                let expected = format!("the gradient of `{name}` is on rank {} only", 1 - rank);
                assert!(error.contains(&expected), "{error}");
            }
            Ok(())
        })
    });
    assert_eq!(seen, ["", ""]);
}

#[test]
fn a_backward_pass_outside_of_the_trainer_is_refused_once_gradients_are_divided() {
    for text in on_two_ranks(|| {
        model::builder().optimizer(divided()).on::<AfterBackward>("more", |cx| {
            let vars = cx.vars();
            let squares: Vec<Tensor> =
                vars.parameters().map(|var| var.tensor.square().sum(Kind::Float)).collect();
            Ok(Tensor::stack(&squares, 0).sum(Kind::Float).f_backward()?)
        })
    }) {
        assert!(text.contains("call `cx.backward(&loss)` instead of `Tensor::backward`"), "{text}");
    }
}

/// An optimizer that wraps another one and forgets its gradients.
struct Wrapped(Sharded<AdamW>);

impl Optimizer for Wrapped {
    fn bind(&mut self, vars: &Vars) -> Result<()> {
        self.0.bind(vars)
    }
    fn step(&mut self) -> Result<()> {
        self.0.step()
    }
    fn zero_grad(&mut self) -> Result<()> {
        self.0.zero_grad()
    }
    fn groups(&self) -> &[ParamGroup] {
        self.0.groups()
    }
    fn groups_mut(&mut self) -> &mut [ParamGroup] {
        self.0.groups_mut()
    }
    fn state(&self) -> Vec<(String, Tensor)> {
        self.0.state()
    }
}

#[test]
fn an_optimizer_that_hides_divided_gradients_is_refused() {
    for text in on_two_ranks(|| model::builder().optimizer(Wrapped(divided()))) {
        assert!(text.contains("implement `Optimizer::divided_gradients`"), "{text}");
    }
}

#[test]
fn buckets_of_0_bytes_are_refused_at_build() {
    let refused = model::builder().optimizer(divided().bucket_bytes(0)).build();
    let text = refused.err().unwrap().to_string();
    assert!(text.contains("`Sharded::new(…).bucket_bytes(0)`: expected at least 1"), "{text}");
}
