//! Every change of a tensor in place moves its version counter, with which autograd notices that a
//! tensor has changed before a backward pass that needs it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::checkpoint::LoadWeights;
use trainer::finders::LearningRateFinder;
use trainer::hooks::{Amp, Checkpoint, Ema, GradientNoise, Lookahead, Sam, Swa};
use trainer::optim::Tch;
use trainer::prelude::*;

use crate::amp::elementwise;
use crate::model::{self, rows};
use crate::optimizers::{Net, builder, reference_runs, train_steps};
use crate::support::scratch;

/// Tensors by name, as they were when they were last seen.
#[derive(Default)]
struct Seen {
    tensors: HashMap<String, (Tensor, i64, Tensor)>,
    /// The names of the tensors that changed in place.
    changed: Vec<String>,
}

impl Seen {
    /// Compares the tensors with what was last seen under their names.
    ///
    /// # Panics
    ///
    /// Panics if the elements of a tensor have changed, but its version has not.
    fn look(&mut self, when: &str, tensors: impl IntoIterator<Item = (String, Tensor)>) {
        for (name, tensor) in tensors.into_iter().filter(|(_, tensor)| tensor.defined()) {
            let version = tensor.internal_version();
            let values = tensor.detach().copy();
            let now = (tensor.shallow_clone(), version, values.shallow_clone());
            let Some((other, before, old)) = self.tensors.insert(name.clone(), now) else { continue };
            // A gradient may be a different tensor.
            if other.data_ptr() == tensor.data_ptr() && old.size() == values.size() && old != values {
                assert!(version > before, "{when}: `{name}` changed, but its version is still {version}");
                self.changed.push(name);
            }
        }
    }
}

fn variables<P>(cx: &Cx<P>) -> Vec<(String, Tensor)> {
    cx.vars().iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect()
}

fn variables_of(trainer: &Trainer<impl Task>) -> Vec<(String, Tensor)> {
    trainer.vars().iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect()
}

fn all<P: HasGrads>(cx: &Cx<P>) -> Vec<(String, Tensor)> {
    let vars = cx.vars();
    let gradients = vars.parameters().map(|var| (format!("grad {}", var.name), var.tensor.grad()));
    gradients.chain(variables(cx)).collect()
}

/// Adds hooks that look at the variables and the gradients wherever they may have changed.
fn watched<T: Task>(builder: TrainerBuilder<T>) -> (TrainerBuilder<T>, Arc<Mutex<Seen>>) {
    let seen = Arc::<Mutex<Seen>>::default();
    macro_rules! look {
        ($builder:ident, $tensors:ident, $($point:ident),*) => {
            $builder$(.on::<$point>(stringify!($point), {
                let seen = seen.clone();
                move |cx| seen.lock().unwrap().look(stringify!($point), $tensors(cx))
            }))*
        };
    }
    let builder =
        look!(builder, variables, BeforeFit, AfterLoadCheckpoint, BeforePred, AfterValid, AfterStep);
    let builder = look!(builder, all, AfterBackward, BeforeOptStep, AfterOptStep);
    (builder, seen)
}

/// Trains and validates, and returns the names of the tensors that changed.
fn changed<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>) -> Vec<String> {
    let (builder, seen) = watched(builder.epochs(3));
    builder.build().unwrap().fit(&mut rows(16), Some(&mut rows(8))).unwrap();
    let seen = seen.lock().unwrap();
    seen.changed.clone()
}

#[test]
fn optimizer_steps_are_noticed_by_autograd() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let trainers = reference_runs().into_iter().map(|(run, optimizer)| (run, builder(kind, optimizer)));
        let net = Net::new(kind);
        let tch = Tch::new(nn::Adam::default(), &net.vs, 1e-2).unwrap();
        let tch = Trainer::builder(net).optimizer(tch).discover(Discover::None);
        for (run, builder) in trainers.chain([("tch", tch)]) {
            let run = format!("{run} in {kind:?}");
            let mut trainer = builder.build().unwrap();
            train_steps(&mut trainer, 1); // creates the state
            let mut seen = Seen::default();
            let everything = |trainer: &Trainer<Net>| {
                let state = trainer.optimizer().unwrap().state();
                variables_of(trainer).into_iter().chain(state).collect::<Vec<_>>()
            };
            seen.look(&run, everything(&trainer));
            // Their backward passes need the parameters as they are now.
            let graphs: Vec<_> = (variables_of(&trainer).into_iter())
                .map(|(name, tensor)| (name, tensor.square().sum(Kind::Float)))
                .collect();
            train_steps(&mut trainer, 3);
            seen.look(&run, everything(&trainer));
            assert!(seen.changed.len() >= 5, "{run}: {:?}", seen.changed);
            for (name, graph) in graphs {
                let result = graph.f_backward().map_err(|error| error.to_string());
                if name == "never" {
                    assert_eq!(result, Ok(()), "{run}");
                } else {
                    let error = result.unwrap_err();
                    assert!(error.contains("modified by an inplace operation"), "{run}, `{name}`: {error}");
                }
            }
        }
    }
}

#[test]
fn hooks_that_change_gradients_are_noticed_by_autograd() {
    let is_gradient = |name: &String| name.starts_with("grad ");
    let runs = [
        ("clip_grad_norm", changed(model::builder().clip_grad_norm(0.01))),
        ("clip_grad_value", changed(model::builder().clip_grad_value(0.001))),
        ("GradientNoise", changed(model::builder().hook(GradientNoise::new(0.1)))),
        ("Amp", changed(elementwise().hook(Amp::fp16()))),
        ("accumulate", changed(model::builder().accumulate(2))),
    ];
    for (run, changed) in runs {
        assert!(changed.iter().any(is_gradient), "{run} changed no gradient: {changed:?}");
    }
}

#[test]
fn hooks_that_change_weights_are_noticed_by_autograd() {
    let plain = changed(model::builder()).len();
    let runs = [
        ("Ema", changed(model::builder().hook(Ema::new(0.5)))),
        ("Ema every 2", changed(model::builder().hook(Ema::new(0.9).every(2).warm_up(true)))),
        ("Swa", changed(model::builder().hook(Swa::from_epoch(1)))),
    ];
    for (run, changed) in runs {
        assert!(changed.len() > plain, "{run} changed no weight more than training does: {changed:?}");
    }
    changed(model::builder().hook(Lookahead::new(2, 0.5)));
    changed(model::builder().hook(Sam::new(0.05)));
}

#[test]
fn updates_of_averages_are_noticed_by_autograd() {
    let seen = Arc::<Mutex<Seen>>::default();
    let look = seen.clone();
    let builder = model::builder().epochs(3).hook(Ema::new(0.5)).on::<AfterStep>("averages", move |cx| {
        let ema = cx.hook::<Ema>()?;
        let averages = ema.average().map(|(name, average)| (name.to_owned(), average.shallow_clone()));
        look.lock().unwrap().look("Ema", averages);
        Ok(())
    });
    builder.build().unwrap().fit(&mut rows(16), None).unwrap();
    assert!(!seen.lock().unwrap().changed.is_empty());
}

#[test]
fn loaded_weights_and_states_are_noticed_by_autograd() {
    let folder = scratch("version-counters");
    let checkpoints = || Checkpoint::new(&folder).every(Every::Epochs(1));
    let first = || Trainer::builder(model::task()).optimizer(AdamW::new(0.1)).discover(Discover::None);
    first().epochs(2).hook(checkpoints()).build().unwrap().fit(&mut rows(16), None).unwrap();

    let (builder, seen) = watched(first());
    let mut trainer = builder.epochs(3).resume(&*folder).allow_inexact_resume(true).build().unwrap();
    trainer.fit(&mut rows(16), None).unwrap();
    assert!(!seen.lock().unwrap().changed.is_empty());

    let mut other = first().build().unwrap();
    let mut seen = Seen::default();
    seen.look("load_weights", variables_of(&other));
    let newest = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.is_dir()).max().unwrap();
    other.load_weights(&newest, &LoadWeights::new()).unwrap();
    seen.look("load_weights", variables_of(&other));
    assert_eq!(seen.changed.len(), 4);
}

#[test]
fn weights_that_a_finder_restores_are_noticed_by_autograd() {
    let mut trainer = model::builder().build().unwrap();
    // Their backward passes need the parameters as they are now; the finder trains and restores.
    let graphs: Vec<_> =
        variables_of(&trainer).into_iter().map(|(_, tensor)| tensor.square().sum(Kind::Float)).collect();
    trainer.find_lr(&mut rows(16), &LearningRateFinder::new().from(1e-3).to(1.0)).unwrap();
    assert!(graphs.iter().all(|graph| graph.f_backward().is_err()));
}
