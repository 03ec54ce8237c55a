//! `Sharded::gradients`: each rank has the gradients of its share of the parameters.

use std::fs;

use trainer::optim::{ParamGroup, Sharded};
use trainer::prelude::*;
use trainer::testing::{Ranks, once, peak_memory};
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
    same_as_plain(&["unclipped f32", "unclipped bf16", "unclipped bf16_weights"]);
}

#[test]
fn dividing_does_not_depend_on_the_size_of_the_buckets() {
    let buckets = ["divided=1", "divided=24", "divided=200", "divided"];
    let dtypes = ["", " f32", " bf16_weights"];
    let scenes = dtypes.map(|dtype| buckets.map(|bytes| format!("{bytes} unclipped accumulate=2{dtype}")));
    for count in [2, 3, 4] {
        for (all, scenes) in all_completed(count, &scenes.concat()).chunks(buckets.len()).zip(&scenes) {
            assert!(all.iter().all(|it| it.weights == all[0].weights), "{count} ranks, {}", scenes[0]);
        }
    }
}

#[test]
fn dividing_has_the_weights_of_one_process() {
    let scenes = ["unclipped divided", "divided", "unclipped divided f32", "divided f32"];
    let scenes = scenes.map(|scene| format!("{scene} epochs=3")); // of 7 steps
    let values = |bits: &[u64]| bits.iter().map(|bits| f64::from_bits(*bits)).collect::<Vec<_>>();
    let alone = all_completed(1, &scenes);
    for count in [2, 3, 4] {
        for ((together, alone), scene) in all_completed(count, &scenes).iter().zip(&alone).zip(&scenes) {
            let tolerance = if scene.contains("f32") { 1e-6 } else { 1e-12 };
            let (one, other) = (values(&together.weights), values(&alone.weights));
            assert!(close(&one, &other, tolerance), "{count} ranks, {scene}: {one:?} {other:?}");
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
        "divided bf16_weights",
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
    let alone = completed(1, "accumulate=3 hooks recompute", &[]);
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
            let scene = format!("accumulate=3 hooks recompute {stage} inexact");
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

/// The parameters have the order of the forward pass, so in this order each bucket would wait for
/// the end of the backward pass.
#[test]
fn the_first_step_keeps_no_gradients_longer_than_needed() {
    let fit = || -> Result<f64> {
        let train = || -> Result<usize> {
            let vars = nn::VarStore::new(Device::Cpu);
            let layer = |nth: i64| nn::linear(vars.root() / nth, 512, 512, Default::default());
            let net = (0..8).fold(nn::seq(), |net, nth| net.add(layer(nth)));
            let bytes = vars.trainable_variables().iter().map(|var| var.numel() * 4).sum();
            let task = Supervised::new(vars, net, |pred: &Tensor, targets: &Tensor| {
                pred.mse_loss(targets, Reduction::Mean)
            });
            let rows = || Tensor::ones([8, 512], (Kind::Float, Device::Cpu));
            let mut rows = InMemory::new((rows(), rows()))?.batch_size(8);
            let trainer = Trainer::builder(task).optimizer(divided().bucket_bytes(1 << 16));
            trainer.discover(Discover::None).max_steps(1).build()?.fit(&mut rows, None)?;
            Ok(bytes)
        };
        let (bytes, peak) = peak_memory(train)?;
        Ok(peak as f64 / bytes? as f64)
    };
    // The parameters, half of two moments, half of the gradients, and two gradients that are sent:
    // with all gradients, it would be 3.
    let peaks = Ranks::new(2).run(fit).unwrap();
    assert!(peaks.iter().all(|peak| *peak < 2.9), "{peaks:?} times the parameters");
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
