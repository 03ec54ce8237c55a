//! The check-up: planted mistakes, each of which is named, and healthy programs, which get no
//! warning.

mod healthy;
mod planted;

use std::collections::BTreeSet;
use std::fs;

use trainer::TrainerBuilder;
use trainer::hooks::Checkup;
use trainer::hooks::checkup::Rule;
use trainer::prelude::*;

use crate::support::{device, own_warnings};

/// The network of a task, as a function of the inputs and of whether it trains.
pub(super) type Net = nn::FuncT<'static>;
/// A supervised task with any network and loss.
pub(super) type Free = Supervised<Net, fn(&Tensor, &Tensor) -> Tensor>;

/// The inputs `[32, 4]` and the labels `[32]` of two classes, in batches of 8.
pub(super) fn data() -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(128, (Kind::Float, device())).view([32, 4]).sin();
    let labels = Tensor::arange(32, (Kind::Int64, device())).remainder(2);
    InMemory::new((inputs, labels)).unwrap().batch_size(8)
}

pub(super) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.cross_entropy_for_logits(labels)
}

/// Returns a linear layer with this name. Its weights do not depend on the seed.
pub(super) fn linear(root: &nn::Path<'_>, name: &str, from: i64, to: i64) -> nn::Linear {
    let layer = nn::linear(root / name, from, to, nn::LinearConfig::default());
    tch::no_grad(|| {
        let mut weight = layer.ws.shallow_clone();
        let values = Tensor::arange(from * to, (Kind::Float, device())) + name.len() as f64;
        weight.copy_(&(values.sin() * 0.4).view([to, from]));
        let _ = layer.bs.as_ref().map(|bias| bias.shallow_clone().fill_(0.1));
    });
    layer
}

/// Returns a task with a network that is built on a new store.
pub(super) fn task<F>(net: impl FnOnce(&nn::Path<'_>) -> F) -> Free
where
    F: Fn(&Tensor, bool) -> Tensor + Send + 'static,
{
    task_with(cross_entropy, net)
}

pub(super) fn task_with<F>(loss: fn(&Tensor, &Tensor) -> Tensor, net: impl FnOnce(&nn::Path<'_>) -> F) -> Free
where
    F: Fn(&Tensor, bool) -> Tensor + Send + 'static,
{
    tch::set_num_threads(1);
    let vars = nn::VarStore::new(device());
    let net = nn::func_t(net(&vars.root()));
    Supervised::new(vars, net, loss)
}

/// Returns a network of two layers without a mistake.
pub(super) fn plain() -> Free {
    task(|root| {
        let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2));
        move |xs: &Tensor, _| xs.apply(&fc1).tanh().apply(&fc2)
    })
}

/// Returns a builder for two epochs of 4 batches.
pub(super) fn builder<T: Task>(task: T) -> TrainerBuilder<T> {
    Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .epochs(2)
        .discover(Discover::None)
        .hook(Checkup::default())
}

/// Returns the warnings of a fit with validation data.
pub(super) fn fit<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>) -> Vec<String> {
    own_warnings(&builder.build().unwrap().fit(&mut data(), Some(&mut data())).unwrap())
}

/// The parts of a rule's words between the names.
fn parts(rule: &Rule) -> impl Iterator<Item = &'static str> {
    rule.words.split("{}")
}

fn is_of(rule: &Rule, warning: &str) -> bool {
    parts(rule).all(|part| warning.contains(part))
}

#[test]
fn each_planted_mistake_is_named() {
    let mut failed = Vec::new();
    for (what, rule, names, run) in planted::ALL {
        let warnings = run();
        let rules: Vec<_> = Checkup::rules().iter().filter(|known| known.name == *rule).collect();
        assert_eq!(rules.len(), 1, "{what}: no rule is called {rule}");
        let found: Vec<_> = warnings.iter().filter(|text| is_of(rules[0], text)).collect();
        let is_named = |text: &&String| names.iter().all(|name| text.contains(name));
        if found.len() != 1 || !found.iter().all(is_named) || warnings.len() != 1 {
            failed.push(format!("{what}: expected `{rule}` with {names:?}, got {warnings:#?}"));
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), planted::ALL.len(), failed.join("\n"));
}

#[test]
fn a_healthy_program_gets_no_warning() {
    let mut failed = Vec::new();
    for (what, run) in healthy::ALL {
        let warnings = run();
        if !warnings.is_empty() {
            failed.push(format!("{what}: {warnings:#?}"));
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), healthy::ALL.len(), failed.join("\n"));
}

#[test]
fn each_rule_has_a_planted_mistake_and_a_row_in_the_guide() {
    let planted: BTreeSet<_> = planted::ALL.iter().map(|(_, rule, ..)| *rule).collect();
    let rules: BTreeSet<_> = Checkup::rules().iter().map(|rule| rule.name).collect();
    assert_eq!(planted, rules);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../trainer/guide/errors.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split("## The check-up").nth(1).expect("a section").split("\n## ").next().unwrap();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| \"")).collect();
    assert_eq!(rows.len(), rules.len());
    for rule in Checkup::rules() {
        let (words, _) = rule.words.rsplit_once(": ").unwrap();
        let start = format!("| \"{}\" | {} |", words.replace("{}", "…"), rule.decided);
        assert!(rows.iter().any(|row| row.starts_with(&start)), "no row begins with {start}");
    }
}

/// Returns a network with a layer that is not used.
fn with_unused() -> Free {
    task(|root| {
        let (fc1, _) = (linear(root, "fc1", 4, 2), linear(root, "unused", 4, 2));
        move |xs: &Tensor, _| xs.apply(&fc1)
    })
}

#[test]
fn the_check_up_is_on_unless_it_is_turned_off() {
    for discover in [Discover::All, Discover::crates(["plugin"])] {
        let mut trainer =
            Trainer::builder(with_unused()).optimizer(Sgd::new(0.1)).discover(discover).build().unwrap();
        let warnings = own_warnings(&trainer.fit(&mut data(), None).unwrap());
        assert!(warnings.iter().any(|text| text.contains("`unused.weight`")), "{warnings:?}");
    }
    let task = with_unused();
    let mut trainer =
        Trainer::builder(task).optimizer(Sgd::new(0.1)).without("trainer::hooks::Checkup").build().unwrap();
    assert_eq!(own_warnings(&trainer.fit(&mut data(), None).unwrap()), Vec::<String>::new());
}
