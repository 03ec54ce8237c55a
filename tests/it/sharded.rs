//! `Sharded`: the same results as without sharding, with a share of the state on each rank.

use std::fs;

use trainer::TrainerBuilder;
use trainer::hooks::{ActivationCheckpointing, Ema, HyperparameterSchedule};
use trainer::optim::{Adagrad, Adam, Custom, Group, Lion, Muon, RmsProp, Sharded, Tch};
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::testing::once;

use crate::distributed::folder_var;
use crate::optimizers::BY_HAND;
use crate::ranks_support::{Net, Scene, all_completed, close, completed, errors, results, tokens};
use crate::support::{exact_state, scratch};

/// Returns the optimizer that a scene names.
pub(crate) fn optimizer(scene: &Scene) -> Box<dyn Optimizer> {
    let frozen = || AdamW::new(1e-2).group("left.*", Group::new().frozen(true));
    let optimizer: Box<dyn Optimizer> = match () {
        () if scene.is("adagrad") => Box::new(Adagrad::new(1e-2)),
        () if scene.is("custom") => Box::new(Custom::new(&BY_HAND, 1e-2).set("amsgrad", 1.0)),
        () if scene.is("adam") => Box::new(Adam::new(1e-2).amsgrad(true)),
        () if scene.is("frozen") => Box::new(frozen()),
        () if scene.is("lion") => Box::new(Lion::new(1e-3)),
        () if scene.is("muon") => Box::new(Muon::new(0.02).group("*.bias", AdamW::new(1e-2))),
        () if scene.is("rms_prop") => Box::new(RmsProp::new(1e-2).momentum(0.9)),
        () if scene.is("sgd") => Box::new(Sgd::new(1e-2).momentum(0.9)),
        () if scene.is_here("other_rate") => Box::new(AdamW::new(2e-2)),
        () => Box::new(AdamW::new(1e-2)),
    };
    if scene.is("divided") {
        let bytes = scene.value("divided").unwrap_or(4 << 20);
        let divided = Sharded::new(optimizer).gradients(true).bucket_bytes(bytes);
        return Box::new(divided.once_per_window(scene.is("once")));
    }
    if scene.is("sharded") { Box::new(Sharded::new(optimizer)) } else { optimizer }
}

/// Adds the hooks that a scene names.
pub(crate) fn with_optimizer_hooks(scene: &Scene, mut builder: TrainerBuilder<Net>) -> TrainerBuilder<Net> {
    if scene.is("frozen") {
        builder = builder.on::<BeforeEpoch>("thaw", |cx| {
            if cx.counters().epoch == 1 {
                for group in cx.optimizer_mut()?.groups_mut() {
                    group.set_frozen(false)?;
                }
            }
            Ok(())
        });
    }
    if scene.is("dropped") {
        builder = builder.on::<BeforeOptStep>("drop", |cx| {
            if cx.counters().batches_seen % 3 == 1 { cx.drop_grads() } else { Ok(()) }
        });
    }
    if scene.is("recompute") {
        builder = builder.hook(ActivationCheckpointing::new("left"));
    }
    if scene.is("hooks") {
        builder = builder.hook(Ema::new(0.9)).hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(5)));
    }
    builder
}

/// The number of elements of all parameters, and the number of parameters.
const ELEMENTS: (usize, usize) = (32 + 8 + 8 + 1, 4);

/// Checks that scenes have the same results with sharded state as without.
fn same_as_plain(count: u32, scenes: &[&str]) {
    let pairs = scenes.iter().flat_map(|scene| [(*scene).to_owned(), format!("{scene} sharded")]);
    for (pair, scene) in all_completed(count, &pairs.collect::<Vec<_>>()).chunks(2).zip(scenes) {
        let [plain, sharded] = pair else { unreachable!() };
        assert!(sharded.weights == plain.weights, "{scene}");
        assert_eq!(sharded.losses, plain.losses, "{scene}");
        assert_eq!(sharded.metrics, plain.metrics, "{scene}");
        assert_eq!(sharded.counters, plain.counters, "{scene}");
        assert!(sharded.state < plain.state, "{scene}: {} {}", sharded.state, plain.state);
    }
}

#[test]
fn sharding_is_bit_identical_with_any_optimizer() {
    same_as_plain(2, &["sgd", "adam", "adagrad", "rms_prop", "lion", "muon", "custom"]);
}

#[test]
fn sharding_is_bit_identical_with_windows_parts_groups_and_hooks() {
    same_as_plain(2, &["turns", "frozen", "dropped tokens"]);
    same_as_plain(3, &["accumulate=3 hooks"]);
}

#[test]
fn each_rank_keeps_only_the_state_of_its_parameters() {
    // Two moments per element, and a step count per parameter.
    let (elements, parameters) = ELEMENTS;
    let all = 2 * elements + parameters;
    let states = |count, scene| -> Vec<usize> {
        results(count, scene, &[]).into_iter().map(|outcome| outcome.unwrap().state).collect()
    };
    assert_eq!(states(2, "plain epochs=1"), [all, all]);
    // The largest parameter has 32 of the 49 elements, and is not split.
    assert_eq!(states(2, "sharded epochs=1"), [65, 37]);
    assert_eq!(states(3, "sharded epochs=1"), [65, 20, 17]);
    assert_eq!(states(1, "sharded epochs=1"), [all]);
}

#[test]
fn a_sharded_run_resumes_bit_identically_with_or_without_sharding() {
    let uninterrupted = completed(2, "accumulate=3", &[]);
    for (first, second) in [
        ("kill=1 at=17 accumulate=3 sharded", "accumulate=3 sharded"),
        ("token=1 at=17 accumulate=3 sharded return background", "accumulate=3"),
        ("token=0 at=17 accumulate=3 return", "accumulate=3 sharded"),
    ] {
        let folder = once(|| scratch("sharded-resume"));
        let vars = folder_var(&folder);
        errors(2, first, &vars);
        let resumed = completed(2, second, &vars);
        assert!(resumed.weights == uninterrupted.weights, "{first}");
        assert_eq!(resumed.losses, uninterrupted.losses, "{first}");
        assert_eq!(resumed.metrics, uninterrupted.metrics, "{first}");
        once(|| fs::remove_dir_all(&folder).unwrap());
    }
}

#[test]
fn a_sharded_run_resumes_inexactly_on_another_number_of_ranks() {
    let alone = completed(1, "accumulate=3", &[]);
    let folder = once(|| scratch("sharded-elastic"));
    let vars = folder_var(&folder);
    // In the middle of an accumulation window.
    errors(2, "token=1 at=10 accumulate=3 sharded return", &vars);
    let refused = errors(3, "accumulate=3 sharded", &vars);
    assert!(refused[0].contains("the checkpoint was written by 2 processes"), "{refused:?}");
    errors(3, "token=2 at=17 accumulate=3 sharded return inexact", &vars);
    let resumed = completed(1, "accumulate=3 sharded inexact", &vars);
    assert!(close(&resumed.losses, &alone.losses, 1e-9), "{:?} {:?}", resumed.losses, alone.losses);
    assert_eq!(resumed.counters, alone.counters);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_optimizer_that_cannot_be_sharded_is_refused_at_build() {
    let scene = Scene::new("plain");
    let net = Net::new(&scene);
    let adam = Tch::new(nn::Adam::default(), net.vars(), 1e-3).unwrap();
    let refused = Trainer::builder(net).optimizer(Sharded::new(adam)).build();
    let text = refused.err().unwrap().to_string();
    assert!(text.contains("this optimizer cannot update only some of the parameters"), "{text}");
}

#[test]
fn a_step_outside_of_a_run_of_several_processes_is_refused() {
    for text in errors(2, "sharded step_outside", &[]) {
        assert!(text.contains("a `Sharded` optimizer has the state of rank"), "{text}");
    }
}

#[test]
fn in_one_process_a_sharded_optimizer_matches_the_inner_one() {
    let [plain, sharded] = ["adam hooks", "adam hooks sharded"].map(|words| {
        let scene = Scene::new(words);
        let builder = Trainer::builder(Net::new(&scene)).seed(1).epochs(2).optimizer(optimizer(&scene));
        let mut trainer = with_optimizer_hooks(&scene, builder).build().unwrap();
        let mut train = InMemory::new(tokens(32)).unwrap().batch_size(8);
        trainer.fit(&mut train, None).unwrap();
        exact_state(&trainer)
    });
    assert_eq!(plain, sharded);
}
