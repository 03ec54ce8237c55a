//! Loading the states of PyTorch's optimizers: which are read, and which are refused.

use trainer::checkpoint::{LoadWeights, load_optimizer};
use trainer::optim::{Adam, Group, Tch};
use trainer::prelude::*;

use crate::model;
use crate::pt_archive::archive;
use crate::support::scratch;

/// Written by PyTorch: `tests/reference/weights.py`.
const THEIRS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/optimizers.pt");
/// The parameters in the order of PyTorch.
const NAMES: [&str; 4] = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];

fn trainer(optimizer: impl Optimizer + 'static) -> Trainer<impl Task> {
    model::builder().optimizer(optimizer).build().unwrap()
}

fn adamw() -> AdamW {
    AdamW::new(0.01).weight_decay(0.1)
}

fn of<'a>(sections: &[&str]) -> LoadWeights<'a> {
    sections.iter().fold(LoadWeights::new(), |how, section| how.section(*section))
}

fn state(trainer: &Trainer<impl Task>) -> Vec<(String, Vec<f64>)> {
    let state = trainer.optimizer().unwrap().state().into_iter();
    let values = |tensor: &Tensor| Vec::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).unwrap();
    state.map(|(name, tensor)| (name, values(&tensor))).collect()
}

/// Asserts that each tensor has the values 0, 1, 2, … of the file, and each step count `steps`.
fn assert_loaded(trainer: &Trainer<impl Task>, steps: f64) {
    for (name, values) in state(trainer) {
        let expected: Vec<_> = (0..values.len()).map(|nth| nth as f64).collect();
        assert_eq!(values, if name.starts_with("step/") { vec![steps] } else { expected }, "{name}");
    }
}

#[test]
fn the_state_of_an_optimizer_of_pytorch_is_loaded() {
    let cases: [(&[&str], &[&str]); 3] =
        [(&["lightning", "0"], &NAMES), (&["named"], &[]), (&["distributed"], &[])];
    for (sections, names) in cases {
        let mut trainer = trainer(adamw());
        let loaded = load_optimizer(trainer.optimizer_mut().unwrap(), THEIRS, names, &of(sections)).unwrap();
        assert_eq!(loaded.loaded, NAMES, "{sections:?}");
        assert_loaded(&trainer, 3.0);
    }
    // PyTorch does not count the steps of SGD, of which only the first one differs.
    let mut momentum = trainer(Sgd::new(0.1).momentum(0.9));
    load_optimizer(momentum.optimizer_mut().unwrap(), THEIRS, &NAMES, &of(&["sgd"])).unwrap();
    assert_loaded(&momentum, 1.0);
    let mut without = trainer(Sgd::new(0.1));
    load_optimizer(without.optimizer_mut().unwrap(), THEIRS, &NAMES, &of(&["plain"])).unwrap();
}

#[test]
fn parameters_are_renamed_and_may_be_missing() {
    let names = NAMES.map(|name| format!("net.{name}"));
    let how = || of(&["half"]).rename_pattern("net.*", "*");
    let mut trainer = trainer(adamw());
    let error = load_optimizer(trainer.optimizer_mut().unwrap(), THEIRS, &names[..2], &how()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("the file has no state of `fc2.bias`, `fc2.weight`"), "{error}");
    let loaded = load_optimizer(trainer.optimizer_mut().unwrap(), THEIRS, &names[..2], &how().partial(true));
    let loaded = loaded.unwrap();
    assert_eq!((loaded.loaded.len(), loaded.missing.len()), (2, 2));
    for (name, values) in state(&trainer) {
        let is_loaded = name.contains("fc1") && values.len() > 1;
        assert_eq!(values[values.len() - 1] > 0.0, is_loaded || name.starts_with("step/fc1"), "{name}");
    }
    let frozen = adamw().group("fc2.*", Group::new().frozen(true));
    let mut frozen = model::builder().optimizer(frozen).build().unwrap();
    load_optimizer(frozen.optimizer_mut().unwrap(), THEIRS, &names[..2], &how()).unwrap();
}

#[test]
fn states_that_do_not_fit_are_refused_with_advice() {
    let lightning: &[&str] = &["lightning", "0"];
    let swapped = ["fc2.weight", "fc1.bias", "fc1.weight", "fc2.bias"];
    let other = ["fc1.weight", "fc1.bias", "fc2.weight", "head.bias"];
    let refused = |optimizer: Box<dyn Optimizer>, sections: &[&str], names: &[&str], says: &[&str]| {
        let mut trainer = trainer(optimizer);
        let before = state(&trainer);
        let loaded = load_optimizer(trainer.optimizer_mut().unwrap(), THEIRS, names, &of(sections));
        let error = loaded.unwrap_err().to_string();
        for part in says.iter().chain(&["optimizers.pt"]) {
            assert!(error.contains(part), "expected {part:?}: {error}");
        }
        assert_eq!(state(&trainer), before, "nothing has changed");
    };
    let adamw = || Box::new(adamw()) as Box<dyn Optimizer>;
    refused(adamw(), &[], &NAMES, &["found a `dict`", ".section(\"lightning\").section(\"0\")`"]);
    refused(adamw(), &["lightning"], &NAMES, &["found a `list`", ".section(\"lightning\").section(\"0\")`"]);
    refused(adamw(), &["lightning", "1"], &NAMES, &["there is no item 1 in a `list` of 1"]);
    refused(adamw(), lightning, &[], &["4 parameters without names", "model.named_parameters()"]);
    refused(adamw(), lightning, &NAMES[1..], &["4 parameters, but there are 3 names"]);
    refused(
        adamw(),
        lightning,
        &swapped,
        &["`fc2.weight` has the shape [8, 4] in the file", "in the order of"],
    );
    refused(adamw(), lightning, &other, &["does not have `head.bias`", "no state of `fc2.bias`"]);
    let adam = Box::new(Adam::new(0.01).weight_decay(0.1));
    refused(adam, lightning, &NAMES, &["the weight decay is decoupled there, unlike in Adam"]);
    let betas = Box::new(AdamW::new(0.01).betas(0.9, 0.95));
    let says = ["`beta2` is 0.999 there, but 0.95 here", "`weight_decay` is 0.1 there, but 0.01 here"];
    refused(betas, lightning, &NAMES, &says);
    let amsgrad = Box::new(AdamW::new(0.01).weight_decay(0.1).amsgrad(true));
    refused(
        amsgrad,
        lightning,
        &NAMES,
        &["`amsgrad` is 0 there, but 1 here", "the state `max_exp_avg_sq` here, but not there"],
    );
    let sgd = || Box::new(Sgd::new(0.1).momentum(0.9));
    refused(sgd(), lightning, &NAMES, &["`momentum` of Sgd is not in the file", "the state `exp_avg`"]);
    refused(sgd(), &["plain"], &NAMES, &["`momentum` is 0 there, but 0.9 here"]);
    let plain = Box::new(Sgd::new(0.1));
    refused(plain, &["sgd"], &NAMES, &["`momentum` is 0.9 there, but 0 here", "the state `momentum_buffer`"]);
    refused(
        adamw(),
        &["nadam"],
        &NAMES,
        &["the state `mu_product`", "`amsgrad` of AdamW is not in the file"],
    );
}

#[test]
fn an_optimizer_or_a_file_without_such_a_state_is_refused() {
    let task = model::task();
    let tch = Tch::new(nn::Adam::default(), task.vars(), 1e-3).unwrap();
    let mut trainer = Trainer::builder(task).optimizer(tch).discover(Discover::None).build().unwrap();
    let how = of(&["lightning", "0"]);
    let error = load_optimizer(trainer.optimizer_mut().unwrap(), THEIRS, &NAMES, &how).unwrap_err();
    assert!(error.to_string().contains("tch's own optimizers"), "{error}");
    let weights = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/state_dict.safetensors");
    let mut trainer = model::builder().optimizer(adamw()).build().unwrap();
    let error = load_optimizer(trainer.optimizer_mut().unwrap(), weights, &NAMES, &of(&[])).unwrap_err();
    assert!(error.to_string().contains("expected the state of an optimizer"), "{error}");
}

#[test]
fn a_file_that_refers_to_one_group_many_times_is_refused() {
    let text = |text: &str| {
        [b"X".as_slice(), &u32::try_from(text.len()).unwrap().to_le_bytes(), text.as_bytes()].concat()
    };
    // A group with 1000 times the same parameter, 1000 times.
    let group =
        [b"}q\x01".to_vec(), text("params"), b"](K\0q\x02".to_vec(), b"h\x02".repeat(999), b"es".to_vec()]
            .concat();
    let groups = [b"](".to_vec(), group, b"h\x01".repeat(999), b"e".to_vec()].concat();
    let pickle =
        [b"\x80\x02}(".to_vec(), text("state"), b"}".to_vec(), text("param_groups"), groups, b"u.".to_vec()];
    let path = scratch("pt-optimizer").join("forged.pt");
    std::fs::write(&path, archive(&[("a/data.pkl", &pickle.concat())])).unwrap();
    let mut trainer = trainer(adamw());
    let error = load_optimizer(trainer.optimizer_mut().unwrap(), path, &NAMES, &of(&[])).unwrap_err();
    assert!(error.to_string().contains("refers to one object too often"), "{error}");
}
