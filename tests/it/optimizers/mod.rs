//! Optimizers: parameter groups, hyperparameters, freezing, and mistakes.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use trainer::data::from_fn;
use trainer::optim::{Adagrad, Adam, Group, Lion, Muon, ParamGroup, RmsProp};
use trainer::prelude::*;

use crate::support::device;

mod custom;
mod muon;
mod pytorch;
mod state;

pub(crate) use custom::BY_HAND;

/// The tensors that `reference/optimizers.py` writes.
static REFERENCE: LazyLock<Mutex<HashMap<String, Tensor>>> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/optimizers.safetensors");
    Mutex::new(Tensor::read_safetensors(path).unwrap().into_iter().collect())
});

fn reference(name: &str) -> Tensor {
    REFERENCE.lock().unwrap()[name].shallow_clone()
}

/// The model of the reference: `sometimes` is used in every third step, `never` in none.
pub(crate) struct Net {
    pub(crate) vs: nn::VarStore,
    fc1: nn::Linear,
    fc2: nn::Linear,
    sometimes: Tensor,
    step: i64,
    losses: Vec<f64>,
}

impl Net {
    pub(crate) fn new(kind: Kind) -> Self {
        tch::set_num_threads(1);
        let mut vs = nn::VarStore::new(device());
        let root = vs.root();
        let fc1 = nn::linear(&root / "fc1", 8, 6, Default::default());
        let fc2 = nn::linear(&root / "fc2", 6, 4, Default::default());
        let sometimes = root.zeros("sometimes", &[4, 8]);
        let _ = root.ones("never", &[2, 2]);
        vs.set_kind(kind);
        tch::no_grad(|| {
            vs.variables()
                .into_iter()
                .for_each(|(name, mut var)| var.copy_(&reference(&format!("init.{name}"))));
        });
        Net { vs, fc1, fc2, sometimes, step: 0, losses: Vec::new() }
    }
}

impl Task for Net {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        let logits = inputs.apply(&self.fc1).relu().apply(&self.fc2);
        self.step += 1;
        Ok(if self.step % 3 == 1 { logits + inputs.matmul(&self.sometimes.tr()) } else { logits })
    }

    fn loss(&mut self, logits: &Tensor, (_, labels): &Self::Batch) -> Result<Tensor> {
        // tch's `cross_entropy_for_logits` computes in float.
        let loss = logits.cross_entropy_loss::<Tensor>(labels, None, Reduction::Mean, -100, 0.0);
        self.losses.push(loss.double_value(&[]));
        Ok(loss)
    }
}

pub(crate) type Builder = trainer::TrainerBuilder<Net>;

pub(crate) fn builder(kind: Kind, optimizer: impl Optimizer + 'static) -> Builder {
    Trainer::builder(Net::new(kind)).optimizer(optimizer).discover(Discover::None)
}

fn trainer_with(optimizer: impl Optimizer + 'static) -> Trainer<Net> {
    builder(Kind::Float, optimizer).build().unwrap()
}

/// Trains for `count` more steps.
pub(crate) fn train_steps(trainer: &mut Trainer<Net>, count: i64) {
    let begun = trainer.task().step;
    let kind = trainer.task().sometimes.kind();
    let inputs = reference("data.inputs").to_kind(kind);
    let labels = reference("data.labels");
    let mut batches =
        from_fn(|_| (begun..begun + count).map(|step| (inputs.get(step % 5), labels.get(step % 5))));
    trainer.fit(&mut batches, None).unwrap();
}

fn optimizer(trainer: &mut Trainer<Net>) -> &mut dyn Optimizer {
    trainer.optimizer_mut().unwrap()
}

/// Returns mutable access to the parameter groups.
fn groups_mut(trainer: &mut Trainer<Net>) -> &mut [ParamGroup] {
    trainer.optimizer_mut().unwrap().groups_mut()
}

/// Returns mutable access to the group of a parameter.
fn group_of<'a>(trainer: &'a mut Trainer<Net>, name: &str) -> &'a mut ParamGroup {
    let mut groups = optimizer(trainer).groups_mut().iter_mut();
    groups.find(|group| group.names().any(|known| known == name)).unwrap()
}

/// Returns a copy of every variable.
fn weights(trainer: &Trainer<Net>) -> Vec<(String, Tensor)> {
    trainer.vars().iter().map(|var| (var.name.clone(), var.tensor.detach().copy())).collect()
}

/// Returns the names of the tensors that differ in any bit.
fn differing(one: &[(String, Tensor)], other: &[(String, Tensor)]) -> Vec<String> {
    assert_eq!(one.len(), other.len());
    let pairs = one.iter().zip(other).filter(|((_, one), (_, other))| !one.equal(other));
    pairs.map(|((name, _), _)| name.clone()).collect()
}

/// Returns the optimizers of the reference runs, by name.
pub(crate) fn reference_runs() -> Vec<(&'static str, Box<dyn Optimizer>)> {
    // Muon only updates matrices: AdamW updates the biases, as in the reference.
    fn muon(muon: Muon) -> Box<dyn Optimizer> {
        Box::new(muon.group("*.bias", AdamW::new(1e-3)))
    }
    vec![
        ("sgd", Box::new(Sgd::new(0.1))),
        ("sgd_momentum", Box::new(Sgd::new(0.05).momentum(0.9))),
        ("sgd_nesterov", Box::new(Sgd::new(0.05).momentum(0.9).nesterov(true))),
        ("sgd_dampening", Box::new(Sgd::new(0.1).momentum(0.9).dampening(0.5).weight_decay(1e-3))),
        ("sgd_maximize", Box::new(Sgd::new(1e-3).momentum(0.9).weight_decay(0.1).maximize(true))),
        ("adam", Box::new(Adam::new(1e-2))),
        ("adam_weight_decay", Box::new(Adam::new(1e-2).betas(0.8, 0.95).eps(1e-6).weight_decay(1e-2))),
        ("adam_amsgrad", Box::new(Adam::new(1e-2).betas(0.9, 0.9).amsgrad(true))),
        ("adam_maximize", Box::new(Adam::new(1e-3).weight_decay(0.1).maximize(true))),
        ("adamw", Box::new(AdamW::new(1e-2).weight_decay(0.1))),
        ("adamw_amsgrad", Box::new(AdamW::new(1e-2).betas(0.9, 0.9).amsgrad(true))),
        ("adamw_maximize", Box::new(AdamW::new(1e-3).maximize(true))),
        ("rmsprop", Box::new(RmsProp::new(1e-3))),
        ("rmsprop_centered", Box::new(RmsProp::new(1e-3).alpha(0.9).eps(1e-4).centered(true))),
        ("rmsprop_momentum", Box::new(RmsProp::new(1e-3).momentum(0.5).weight_decay(1e-2))),
        ("rmsprop_maximize", Box::new(RmsProp::new(1e-4).weight_decay(1e-2).maximize(true))),
        ("adagrad", Box::new(Adagrad::new(0.05))),
        (
            "adagrad_lr_decay",
            Box::new(Adagrad::new(0.1).lr_decay(0.01).weight_decay(1e-2).initial_accumulator_value(0.1)),
        ),
        ("adagrad_maximize", Box::new(Adagrad::new(1e-3).maximize(true))),
        ("lion", Box::new(Lion::new(1e-3))),
        ("lion_weight_decay", Box::new(Lion::new(1e-3).betas(0.95, 0.98).weight_decay(0.1))),
        ("lion_maximize", Box::new(Lion::new(1e-4).maximize(true))),
        ("muon", muon(Muon::new(1e-2))),
        ("muon_full_precision", muon(Muon::new(1e-2).full_precision(true))),
        (
            "muon_match_rms_adamw",
            muon(
                Muon::new(1e-2)
                    .momentum(0.9)
                    .nesterov(false)
                    .ns_steps(3)
                    .match_rms_adamw(true)
                    .full_precision(true),
            ),
        ),
    ]
}

#[test]
fn parameters_are_grouped_by_first_matching_pattern_and_var_store_group() {
    let net = Net::new(Kind::Float);
    {
        let mut variables = net.vs.variables_.lock().unwrap();
        let fc2 = variables.named_variables["fc2.weight"].data_ptr();
        variables.trainable_variables.iter_mut().find(|var| var.tensor.data_ptr() == fc2).unwrap().group = 3;
    }
    let adamw = AdamW::new(1e-2)
        .group("*.bias", Group::new().weight_decay(0.0))
        .group("fc?.*", Group::new().lr(1e-4).set("beta2", 0.9))
        .group("never", Sgd::new(0.5).momentum(0.9));
    let trainer = Trainer::builder(net).optimizer(adamw).discover(Discover::None).build().unwrap();
    let groups: Vec<_> = (trainer.optimizer().unwrap().groups().iter())
        .map(|group| {
            let names = group.names().collect::<Vec<_>>().join(" ");
            let settings =
                group.settings().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>();
            format!("{:?} {} {names}: {}", group.pattern(), group.group, settings.join(", "))
        })
        .collect();
    let adamw = "eps 0.00000001, amsgrad 0, maximize 0";
    assert_eq!(
        groups,
        [
            format!(
                "None 0 sometimes: lr 0.01, weight_decay 0.01, frozen 0, beta1 0.9, beta2 0.999, {adamw}"
            ),
            format!(
                "Some(\"*.bias\") 0 fc1.bias fc2.bias: \
                 lr 0.01, weight_decay 0, frozen 0, beta1 0.9, beta2 0.999, {adamw}"
            ),
            format!(
                "Some(\"fc?.*\") 0 fc1.weight: lr 0.0001, weight_decay 0.01, frozen 0, beta1 0.9, beta2 0.9, {adamw}"
            ),
            format!(
                "Some(\"fc?.*\") 3 fc2.weight: lr 0.0001, weight_decay 0.01, frozen 0, beta1 0.9, beta2 0.9, {adamw}"
            ),
            "Some(\"never\") 0 never: \
             lr 0.5, weight_decay 0, frozen 0, momentum 0.9, dampening 0, nesterov 0, maximize 0"
                .to_owned(),
        ]
    );
}

#[test]
fn splitting_parameters_into_equal_groups_changes_nothing() {
    for (run, [one, two]) in [
        (
            "adamw",
            [AdamW::new(1e-2), AdamW::new(1e-2)].map(|optimizer| Box::new(optimizer) as Box<dyn Optimizer>),
        ),
        ("sgd", [Box::new(Sgd::new(0.1)), Box::new(Sgd::new(0.1).group("fc1.*", Group::new()))]),
        (
            "within",
            [
                Box::new(Adam::new(1e-2).amsgrad(true)),
                Box::new(Lion::new(1.0).group("*", Adam::new(1e-2).amsgrad(true))),
            ],
        ),
    ] {
        let trained = [one, two].map(|optimizer| {
            let mut trainer = trainer_with(optimizer);
            train_steps(&mut trainer, 20);
            weights(&trainer)
        });
        assert_eq!(differing(&trained[0], &trained[1]), Vec::<String>::new(), "{run}");
    }
}

#[test]
fn all_optimizer_mistakes_are_reported_at_build() {
    fn mistakes(optimizer: impl Optimizer + 'static) -> Vec<String> {
        match builder(Kind::Float, optimizer).build().unwrap_err() {
            Error::Build(error) => error.mistakes,
            other => panic!("{other}"),
        }
    }
    assert_eq!(
        mistakes(AdamW::new(-1.0).betas(1.0, f64::NAN).eps(f64::INFINITY)),
        [
            "the optimizer's `lr` is -1: expected at least 0",
            "the optimizer's `beta1` is 1: expected at least 0 and below 1",
            "the optimizer's `beta2` is NaN: expected at least 0 and below 1",
            "the optimizer's `eps` is inf: expected a finite number",
        ]
    );
    assert_eq!(
        mistakes(
            Sgd::new(0.1)
                .group("fc1.wieght", Group::new())
                .group("fc*", Group::new().lr(-1.0))
                .group("fc2.*", Group::new())
                .group("never", Group::new().set("momentun", 0.9))
                .group("sometimes", AdamW::new(-1.0).group("*", Group::new()))
        ),
        [
            "`.group(\"fc1.wieght\", …)`: no parameter matches; did you mean `fc1.weight`?",
            "`.group(\"fc2.*\", …)`: every parameter that it matches is already in an earlier group, because the first \
             matching pattern wins: add this group before that one",
            "`.group(\"fc*\", …)`: the optimizer's `lr` is -1: expected at least 0",
            "`.group(\"never\", …)`: Sgd has no hyperparameter `momentun`: it has `lr`, `weight_decay`, `frozen`, \
             `momentum`, `dampening`, `nesterov`, `maximize`; did you mean `momentum`?",
            "`.group(\"sometimes\", …)`: the optimizer's `lr` is -1: expected at least 0",
            "`.group(\"sometimes\", …)`: an optimizer inside a group cannot have groups: add them to the outer \
             optimizer",
        ]
    );
    assert_eq!(
        mistakes(Sgd::new(0.1).nesterov(true)),
        ["Nesterov momentum in `Sgd` requires momentum without dampening: `.momentum(0.9).nesterov(true)`"]
    );
    assert_eq!(
        mistakes(Muon::new(0.02).ns_steps(0)),
        [
            "the optimizer's `ns_steps` is 0: expected a whole number, at least 1 and below 100",
            "Muon only updates 2-D parameters, but these are not: `fc1.bias` [6], `fc2.bias` [4]; assign them to another \
             optimizer, `.group(\"*.bias\", AdamW::new(1e-3))`",
        ]
    );
}

#[test]
fn a_group_can_be_frozen_and_thawed_while_training() {
    for (run, _) in reference_runs() {
        let frozen = Group::new().frozen(true);
        let optimizer: Box<dyn Optimizer> = match run {
            "adamw" => Box::new(AdamW::new(1e-2).group("fc1.*", frozen)),
            "sgd_momentum" => Box::new(Sgd::new(0.05).momentum(0.9).group("fc1.*", frozen)),
            "rmsprop" => Box::new(RmsProp::new(1e-3).group("fc1.*", frozen)),
            "lion" => Box::new(Lion::new(1e-3).group("fc1.*", frozen)),
            _ => continue,
        };
        let mut trainer = trainer_with(optimizer);
        let of_fc1 = |(name, _): &(String, Tensor)| name.contains("fc1");
        let moves = |trainer: &mut Trainer<Net>| {
            let before = weights(trainer);
            train_steps(trainer, 10);
            differing(&before, &weights(trainer))
        };
        assert_eq!(moves(&mut trainer), ["fc2.bias", "fc2.weight", "sometimes"], "{run}");
        assert!(!trainer.vars().get("fc1.weight").unwrap().requires_grad(), "{run}");
        assert!(
            !trainer.optimizer().unwrap().state().iter().any(of_fc1),
            "{run}: a frozen group has no state"
        );

        group_of(&mut trainer, "fc1.weight").set_frozen(false).unwrap();
        let all = ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight", "sometimes"];
        assert_eq!(moves(&mut trainer), all, "{run}");

        let group = group_of(&mut trainer, "fc1.weight");
        group.set("frozen", 1.0).unwrap();
        assert!(group.is_frozen());
        assert_eq!(moves(&mut trainer), all[2..], "{run}");
        assert!(
            trainer.optimizer().unwrap().state().iter().any(of_fc1),
            "{run}: the state is kept for when the group is thawed"
        );
    }
}

#[test]
fn every_hyperparameter_can_be_read_and_set_by_name_while_training() {
    for (run, optimizer) in reference_runs() {
        let mut trainer = trainer_with(optimizer);
        train_steps(&mut trainer, 3);
        for group in groups_mut(&mut trainer) {
            let names: Vec<_> = group.settings().map(|(name, _)| name.to_owned()).collect();
            for name in names.iter().filter(|name| *name != "frozen") {
                let changed = 1.0 - group.get(name).unwrap().round();
                let changed = if group.set(name, changed).is_ok() { changed } else { 0.5 };
                let changed = if name == "ns_steps" { 2.0 } else { changed };
                group.set(name, changed).unwrap();
                assert_eq!(group.get(name).unwrap(), changed, "{run}: {name}");
                let error = group.set(name, f64::NAN).unwrap_err().to_string();
                assert!(error.contains(&format!("the optimizer's `{name}` is NaN: expected ")), "{error}");
                assert_eq!(group.get(name).unwrap(), changed, "{run}: {name} stays as it was");
            }
            assert_eq!(group.lr, group.get("lr").unwrap());
            let error = group.set("weight_decai", 0.0).unwrap_err().to_string();
            assert!(error.contains("did you mean `weight_decay`?"), "{error}");
            assert_eq!(group.get("weight_decai").unwrap_err().to_string(), error);
        }
        train_steps(&mut trainer, 3);
    }
}

#[test]
fn settings_changed_before_the_first_step_match_those_set_at_construction() {
    type Case = (Box<dyn Optimizer>, Box<dyn Optimizer>, &'static [(&'static str, f64)]);
    let cases: [Case; 4] = [
        (
            Box::new(Sgd::new(0.05).momentum(0.9).nesterov(true).weight_decay(0.1)),
            Box::new(Sgd::new(1.0)),
            &[("lr", 0.05), ("momentum", 0.9), ("nesterov", 1.0), ("weight_decay", 0.1)],
        ),
        (
            Box::new(Adam::new(1e-2).betas(0.8, 0.9).eps(1e-4).amsgrad(true).maximize(true)),
            Box::new(Adam::new(1e-2)),
            &[("beta1", 0.8), ("beta2", 0.9), ("eps", 1e-4), ("amsgrad", 1.0), ("maximize", 1.0)],
        ),
        (
            Box::new(RmsProp::new(1e-3).alpha(0.9).centered(true).momentum(0.5)),
            Box::new(RmsProp::new(1e-3)),
            &[("alpha", 0.9), ("centered", 1.0), ("momentum", 0.5)],
        ),
        (
            Box::new(Adagrad::new(0.1).lr_decay(0.1).eps(1e-3)),
            Box::new(Adagrad::new(0.1)),
            &[("lr_decay", 0.1), ("eps", 1e-3)],
        ),
    ];
    for (expected, optimizer, settings) in cases {
        let mut expected = trainer_with(expected);
        let mut trainer = trainer_with(optimizer);
        for (name, value) in settings {
            groups_mut(&mut trainer)[0].set(name, *value).unwrap();
        }
        train_steps(&mut expected, 10);
        train_steps(&mut trainer, 10);
        assert_eq!(differing(&weights(&expected), &weights(&trainer)), Vec::<String>::new(), "{settings:?}");
    }
}
