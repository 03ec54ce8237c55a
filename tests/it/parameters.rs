//! Parameters, gradients and optimizer state of every layout: each is handled correctly, or refused
//! with an error that names the parameter.

use std::sync::{Arc, Mutex};

use trainer::data::from_fn;
use trainer::optim::{Adagrad, Adam, Lion, Muon, RmsProp, Tch};
use trainer::prelude::*;

use crate::support::device;

/// A model with two parameters: `odd`, which the test chooses, and `plain`.
struct Model {
    vs: nn::VarStore,
}

impl Model {
    fn new(odd: Tensor) -> Self {
        tch::set_num_threads(1);
        let vs = nn::VarStore::new(device());
        let root = vs.root();
        let _ = root.add("plain", wave(&[4, 3]), true);
        let _ = root.add("odd", wave(&[1]), true);
        // `Path::add` panics on a tensor that cannot have a gradient.
        let odd = odd.f_set_requires_grad(true).unwrap_or(odd);
        let mut variables = vs.variables_.lock().unwrap();
        variables.trainable_variables[1].tensor = odd.shallow_clone();
        variables.named_variables.insert("odd".to_owned(), odd);
        drop(variables);
        Model { vs }
    }

    fn get(&self, name: &str) -> Tensor {
        self.vs.variables_.lock().unwrap().named_variables[name].shallow_clone()
    }
}

impl Task for Model {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    /// Returns a loss whose gradient is different for each element, and in each step.
    fn pred(&mut self, step: &Tensor, _: Mode) -> Result<Tensor> {
        let loss = |name: &str| {
            let parameter = self.get(name);
            let factor = wave(&parameter.size()) + step * 0.5 + 1.0;
            (parameter.to_kind(Kind::Double) * factor.to_kind(Kind::Double)).square().sum(Kind::Double)
        };
        Ok(loss("odd") + loss("plain"))
    }

    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.shallow_clone())
    }
}

/// Returns a tensor of distinct numbers.
fn wave(size: &[i64]) -> Tensor {
    let count = size.iter().product::<i64>();
    (Tensor::arange(count, (Kind::Float, device())) * 0.7 + 0.3).sin().view(size)
}

fn batches() -> impl trainer::data::Loader<Tensor> {
    from_fn(|_| (0..3).map(|step| Tensor::from(f64::from(step))))
}

/// Every optimizer, in each variant that keeps different state.
const OPTIMIZERS: [&str; 19] = [
    "sgd",
    "sgd_momentum",
    "sgd_dampening",
    "adam",
    "adam_amsgrad",
    "adamw",
    "adamw_amsgrad",
    "adagrad",
    "rmsprop",
    "rmsprop_centered",
    "rmsprop_momentum",
    "lion",
    "muon",
    "tch_sgd",
    "tch_sgd_momentum",
    "tch_adam",
    "tch_adamw",
    "tch_rmsprop",
    "tch_rmsprop_centered",
];

fn optimizer(name: &str, vs: &nn::VarStore) -> Box<dyn Optimizer> {
    fn tch(config: impl nn::OptimizerConfig, vs: &nn::VarStore) -> Box<dyn Optimizer> {
        Box::new(Tch::new(config, vs, 1e-2).unwrap())
    }
    match name {
        "sgd" => Box::new(Sgd::new(1e-2).weight_decay(0.1)),
        "sgd_momentum" => Box::new(Sgd::new(1e-2).momentum(0.9)),
        "sgd_dampening" => Box::new(Sgd::new(1e-2).momentum(0.9).dampening(0.5)),
        "adam" => Box::new(Adam::new(1e-2)),
        "adam_amsgrad" => Box::new(Adam::new(1e-2).amsgrad(true)),
        "adamw" => Box::new(AdamW::new(1e-2)),
        "adamw_amsgrad" => Box::new(AdamW::new(1e-2).amsgrad(true)),
        "adagrad" => Box::new(Adagrad::new(1e-2)),
        "rmsprop" => Box::new(RmsProp::new(1e-2)),
        "rmsprop_centered" => Box::new(RmsProp::new(1e-2).centered(true)),
        "rmsprop_momentum" => Box::new(RmsProp::new(1e-2).momentum(0.9)),
        "lion" => Box::new(Lion::new(1e-2)),
        "muon" => Box::new(Muon::new(1e-2).full_precision(true)),
        "tch_sgd" => tch(nn::Sgd::default(), vs),
        "tch_sgd_momentum" => tch(nn::sgd(0.9, 0.0, 0.1, false), vs),
        "tch_adam" => tch(nn::Adam::default(), vs),
        "tch_adamw" => tch(nn::AdamW::default(), vs),
        "tch_rmsprop" => tch(nn::RmsProp::default(), vs),
        "tch_rmsprop_centered" => tch(nn::rms_prop(0.9, 1e-8, 0.0, 0.9, true), vs),
        other => panic!("{other}"),
    }
}

type Changes = Box<dyn FnMut(&mut Cx<BeforeOptStep>) + Send>;

/// Builds a trainer, changes it, trains three steps, and returns `odd`.
fn trained(
    odd: Tensor,
    name: &str,
    change: impl FnOnce(&mut Trainer<Model>),
    mut before: Changes,
) -> Result<Tensor> {
    let model = Model::new(odd);
    let optimizer = optimizer(name, &model.vs);
    let mut trainer = Trainer::builder(model)
        .optimizer(optimizer)
        .discover(Discover::None)
        .on::<BeforeOptStep>("before", move |cx| before(cx))
        .build()?;
    change(&mut trainer);
    trainer.fit(&mut batches(), None)?;
    Ok(trainer.vars().get("odd").unwrap().detach().copy())
}

fn unchanged() -> Changes {
    Box::new(|_| {})
}

/// Asserts that a result equals the expected tensor, or is an error that names the parameter and
/// contains the expected text.
fn check(case: &str, found: Result<Tensor>, expected: Result<Tensor, &str>) {
    match (found, expected) {
        (Ok(found), Ok(expected)) => {
            let tolerance = match expected.kind() {
                Kind::BFloat16 => 1e-2, // a unit in the last place, relative
                Kind::Half => 2e-3,
                _ => 1e-5,
            };
            let [found, expected] = [found, expected].map(|tensor| tensor.to_kind(Kind::Double));
            assert!(found.allclose(&expected, tolerance, tolerance, true), "{case}: {found} but {expected}");
        }
        (Err(error), Err(text)) => {
            let error = error.to_string();
            assert!(error.contains("`odd`") && error.contains(text), "{case}: {error}");
        }
        (found, expected) => panic!("{case}: {found:?} but {expected:?}"),
    }
}

const GAPS: &str = "has gaps or overlaps in memory";

/// Returns parameters of every layout and dtype, with the error text of those that are refused.
fn odd_parameters() -> Vec<(&'static str, Tensor, Option<&'static str>)> {
    let matrix = || wave(&[4, 3]);
    let computed = wave(&[4, 3]).set_requires_grad(true) * 2.0;
    vec![
        ("contiguous", matrix(), None),
        ("slice of rows", wave(&[9, 3]).narrow(0, 2, 4), None),
        ("slice of columns", wave(&[4, 9]).narrow(1, 2, 3), Some(GAPS)),
        ("every second row", wave(&[8, 3]).slice(0, 0, 8, 2), Some(GAPS)),
        ("expanded row", wave(&[1, 3]).expand([4, 3], false), Some(GAPS)),
        ("expanded column", wave(&[4, 1]).expand([4, 3], false), Some(GAPS)),
        ("expanded number", wave(&[1]).expand([4096, 3], false), Some(GAPS)),
        ("overlapping rows", wave(&[6]).as_strided([4, 3], [1, 1], None), Some(GAPS)),
        ("transposed", wave(&[3, 4]).tr(), None),
        ("permuted", wave(&[2, 3, 4, 5]).permute([0, 3, 1, 2]), None),
        ("vector", wave(&[7]), None),
        ("no elements", wave(&[0, 3]), None),
        ("no dimension", wave(&[]), None),
        ("one column of one", wave(&[4, 1]).narrow(1, 0, 1), None),
        ("sparse", matrix().to_sparse_sparse_dim(2), Some("has the layout Sparse")),
        ("compressed rows", matrix().to_sparse_csr(None), Some("has the layout SparseCsr")),
        ("mkldnn", matrix().to_mkldnn(), Some("has the layout Mkldnn")),
        ("complex", matrix().to_kind(Kind::ComplexFloat), Some("has dtype ComplexFloat")),
        ("integer", Tensor::arange(12, (Kind::Int64, device())).view([4, 3]), Some("has dtype Long")),
        ("bf16", matrix().to_kind(Kind::BFloat16), None),
        ("bf16, transposed", wave(&[3, 4]).tr().to_kind(Kind::BFloat16), None),
        ("half", matrix().to_kind(Kind::Half), None),
        ("half, slice of columns", wave(&[4, 9]).to_kind(Kind::Half).narrow(1, 2, 3), Some(GAPS)),
        ("double", matrix().to_kind(Kind::Double), None),
        ("negated lazily", matrix().internal_neg_view(), Some("is a lazily computed view")),
        (
            "zero lazily",
            Tensor::internal_efficientzerotensor([4, 3], (Kind::Float, device())),
            Some("is a lazily computed view"),
        ),
        ("computed", computed, Some("is computed from another tensor")),
        ("undefined", Tensor::new(), Some("is an undefined tensor")),
    ]
}

#[test]
fn parameters_of_every_layout_are_updated_like_contiguous_ones_or_refused() {
    for name in OPTIMIZERS {
        for (layout, _, refused) in odd_parameters() {
            let case = format!("{name}, {layout}");
            let odd = || odd_parameters().into_iter().find(|(other, ..)| *other == layout).unwrap().1;
            // tch cannot add an undefined tensor to an optimizer.
            if layout == "undefined" && name.starts_with("tch") {
                continue;
            }
            let refused = match refused {
                None if name == "muon" && odd().dim() != 2 => Some("Muon only updates 2-D parameters"),
                refused => refused,
            };
            let found = trained(odd(), name, |_| {}, unchanged());
            match refused {
                Some(text) => {
                    let error = found.as_ref().unwrap_err().to_string();
                    assert!(!error.contains("changed after the trainer was built"), "{case}: {error}");
                    check(&case, found, Err(text));
                }
                None => {
                    let alike = odd().contiguous().copy();
                    check(&case, found, Ok(trained(alike, name, |_| {}, unchanged()).unwrap()));
                }
            }
        }
    }
}

#[test]
fn memory_around_a_sliced_parameter_is_untouched() {
    for name in OPTIMIZERS {
        let buffer = wave(&[64, 3]);
        let before = buffer.copy();
        let _ = trained(buffer.narrow(0, 3, 5), name, |_| {}, unchanged()).unwrap();
        let changed = buffer.ne_tensor(&before).any_dim(1, false);
        let changed: Vec<i64> = Vec::try_from(changed.nonzero().view([-1])).unwrap();
        assert_eq!(changed, [3, 4, 5, 6, 7], "{name}");
    }
}

#[test]
fn parameters_that_share_memory_are_refused_and_adjacent_ones_are_accepted() {
    let mistakes = |one: Tensor, other: Tensor| {
        let vs = nn::VarStore::new(device());
        let _ = vs.root().add("one", one, true);
        let _ = vs.root().add("other", other, true);
        let task = Supervised::new(vs, nn::func(|xs| xs.shallow_clone()), |xs: &Tensor, _: &Tensor| {
            xs.shallow_clone()
        });
        match Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).build() {
            Ok(_) => Vec::new(),
            Err(Error::Build(error)) => error.mistakes,
            Err(other) => panic!("{other}"),
        }
    };
    let buffer = wave(&[8, 3]);
    // Each detached: a view of a tensor that has a gradient is not a parameter.
    let rows = |from, count| buffer.detach().narrow(0, from, count);
    assert_eq!(mistakes(rows(0, 4), rows(4, 4)), [""; 0]);
    assert_eq!(mistakes(rows(0, 0), rows(0, 8)), [""; 0]);
    let advice = "so each would also be updated by the other's gradient: register the tensor once, or register a `.copy()`";
    let share = |what: &str| [format!("the parameters `one` and `other` {what}, {advice}")];
    assert_eq!(mistakes(rows(0, 5), rows(4, 4)), share("share memory"));
    assert_eq!(mistakes(buffer.detach(), rows(2, 1)), share("share memory"));
    assert_eq!(mistakes(buffer.detach(), buffer.detach().view([3, 8])), share("share memory"));
    assert_eq!(mistakes(buffer.shallow_clone(), buffer.shallow_clone()), share("are the same tensor"));
    let swapped = mistakes(rows(4, 4), rows(0, 5));
    assert_eq!(swapped, [format!("the parameters `other` and `one` share memory, {advice}")]);
}

#[test]
fn a_buffer_may_be_a_view_of_a_parameter() {
    let vs = nn::VarStore::new(device());
    let weight = vs.root().add("weight", wave(&[4, 3]), true);
    let _ = vs.root().add("first_row", weight.detach().narrow(0, 0, 1), false);
    let _ = vs.root().add("empty", wave(&[0]), false);
    let _ = vs.root().add("also_empty", wave(&[0]), true);
    let _ = vs.root().add("sparse", wave(&[4, 3]).to_sparse_sparse_dim(2), false);
    let task =
        Supervised::new(vs, nn::func(|xs| xs.shallow_clone()), |xs: &Tensor, _: &Tensor| xs.shallow_clone());
    let trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).build().unwrap();
    let parameters: Vec<_> = trainer.vars().parameters().map(|var| var.name.as_str()).collect();
    assert_eq!(parameters, ["also_empty", "weight"]);
}

/// Returns whether the optimizer keeps no state per element.
fn is_stateless(name: &str) -> bool {
    matches!(name, "sgd" | "tch_sgd")
}

#[test]
fn parameters_replaced_after_the_trainer_was_built_are_updated_or_refused() {
    type Replacement = (&'static str, fn() -> Tensor, Option<&'static str>);
    let changed = "was changed after the trainer was built";
    let replacements: [Replacement; 9] = [
        ("alike", || wave(&[4, 3]) * 2.0, None),
        ("slice of rows", || wave(&[9, 3]).narrow(0, 2, 4), None),
        ("expanded", || wave(&[1, 3]).expand([4, 3], false), Some(GAPS)),
        ("slice of columns", || wave(&[4, 9]).narrow(1, 2, 3), Some(GAPS)),
        ("overlapping rows", || wave(&[6]).as_strided([4, 3], [1, 1], None), Some(GAPS)),
        ("transposed", || wave(&[3, 4]).tr(), Some(changed)),
        ("another shape", || wave(&[2, 3]), Some(changed)),
        ("no elements", || wave(&[0]), Some(changed)),
        ("double", || wave(&[4, 3]).to_kind(Kind::Double), Some(changed)),
    ];
    for name in OPTIMIZERS {
        for (what, data, refused) in replacements {
            let case = format!("{name}, {what}");
            let found = trained(
                wave(&[4, 3]),
                name,
                |trainer| trainer.vars().get("odd").unwrap().shallow_clone().set_data(&data()),
                unchanged(),
            );
            let alike = || trained(data().contiguous().copy(), name, |_| {}, unchanged());
            match (refused, found) {
                // Without state, the replacement may differ from the original; tch's state is
                // created in the first step.
                (None, found) => check(&case, found, Ok(alike().unwrap())),
                (Some(text), found) if text == changed && (is_stateless(name) || name.starts_with("tch")) => {
                    check(&case, found, Ok(alike().unwrap()));
                }
                (Some(text), found) => {
                    let error = found.as_ref().unwrap_err().to_string();
                    assert!(error.contains(changed), "{case}: {error}");
                    check(&case, found, Err(text));
                }
            }
        }
    }
}

#[test]
fn a_parameter_resized_after_the_trainer_was_built_is_updated_or_refused() {
    for name in OPTIMIZERS {
        for size in [[2, 3], [400, 3]] {
            let resize = |trainer: &mut Trainer<Model>| {
                let odd = trainer.vars().get("odd").unwrap().shallow_clone();
                let mut odd = odd.set_requires_grad(false);
                let _ = odd.resize_(size);
                odd.copy_(&wave(&size));
                let _ = odd.set_requires_grad(true);
            };
            let found = trained(wave(&[4, 3]), name, resize, unchanged());
            let expected = if is_stateless(name) || name.starts_with("tch") {
                Ok(trained(wave(&size), name, |_| {}, unchanged()).unwrap())
            } else {
                Err("was changed after the trainer was built")
            };
            check(&format!("{name}, {size:?}"), found, expected);
        }
    }
}

#[test]
fn gradients_of_every_layout_are_used_like_contiguous_ones_or_refused() {
    type Replacement = (&'static str, fn() -> Tensor, Option<&'static str>);
    let replaced = "expected the same dtype, shape and device";
    let replacements: [Replacement; 9] = [
        ("alike", || wave(&[4, 3]), None),
        ("transposed", || wave(&[3, 4]).tr(), None),
        ("expanded", || wave(&[1, 3]).expand([4, 3], false), None),
        ("slice of columns", || wave(&[4, 9]).narrow(1, 2, 3), None),
        ("overlapping rows", || wave(&[6]).as_strided([4, 3], [1, 1], None), None),
        ("negated lazily", || wave(&[4, 3]).internal_neg_view(), None),
        ("another shape", || wave(&[2, 3]), Some(replaced)),
        ("double", || wave(&[4, 3]).to_kind(Kind::Double), Some(replaced)),
        ("no elements", || wave(&[0]), Some(replaced)),
    ];
    for name in OPTIMIZERS.into_iter().filter(|name| !name.starts_with("tch")) {
        for (what, data, refused) in replacements {
            let found = trained(
                wave(&[4, 3]),
                name,
                |_| {},
                Box::new(move |cx| cx.vars().get("odd").unwrap().grad().set_data(&data())),
            );
            let expected = match refused {
                Some(text) => Err(text),
                None => Ok(trained(
                    wave(&[4, 3]),
                    name,
                    |_| {},
                    Box::new(move |cx| {
                        cx.vars().get("odd").unwrap().grad().copy_(&data().resolve_neg().contiguous());
                    }),
                )
                .unwrap()),
            };
            check(&format!("{name}, {what}"), found, expected);
        }
    }
}

#[test]
fn optimizer_state_that_was_replaced_is_refused() {
    type Replacement = (&'static str, fn(&mut Tensor));
    let replacements: [Replacement; 6] = [
        ("no elements", |state| state.set_data(&Tensor::zeros([0], (Kind::Float, device())))),
        ("resized", |state| drop(state.resize_([0]))),
        ("integer", |state| state.set_data(&state.to_kind(Kind::Int64))),
        ("double", |state| state.set_data(&state.to_kind(Kind::Double))),
        ("larger", |state| state.set_data(&Tensor::zeros([9, 9], (Kind::Float, device())))),
        ("expanded", |state| {
            let number = Tensor::zeros([1], (Kind::Float, device()));
            let size = if state.dim() == 0 { vec![2] } else { state.size() };
            state.set_data(&number.expand(size, false));
        }),
    ];
    for name in OPTIMIZERS {
        let slots: Vec<String> = {
            let model = Model::new(wave(&[4, 3]));
            let optimizer = optimizer(name, &model.vs);
            let trainer =
                Trainer::builder(model).optimizer(optimizer).discover(Discover::None).build().unwrap();
            let state = trainer.optimizer().unwrap().state().into_iter();
            state.map(|(slot, _)| slot).filter(|slot| slot.ends_with("/odd")).collect()
        };
        for slot in slots {
            for (what, replace) in replacements {
                let found = trained(
                    wave(&[4, 3]),
                    name,
                    |trainer| {
                        let state = trainer.optimizer().unwrap().state();
                        let mut state = state.into_iter().find(|(other, _)| *other == slot).unwrap().1;
                        replace(&mut state);
                    },
                    unchanged(),
                );
                check(&format!("{name}, {slot}, {what}"), found, Err(""));
            }
        }
    }
}

#[test]
fn clipping_gradients_that_cannot_be_scaled_in_place_is_an_error() {
    type Settings = fn(trainer::TrainerBuilder<Model>) -> trainer::TrainerBuilder<Model>;
    let settings: [(&str, Settings); 2] =
        [("norm", |builder| builder.clip_grad_norm(0.1)), ("value", |builder| builder.clip_grad_value(0.1))];
    type Grad = (&'static str, fn() -> Tensor);
    let grads: [Grad; 3] = [
        ("expanded", || wave(&[1, 3]).expand([4, 3], false)),
        ("overlapping rows", || wave(&[6]).as_strided([4, 3], [1, 1], None)),
        ("negated lazily", || wave(&[4, 3]).internal_neg_view()),
    ];
    for (what, settings) in settings {
        for (layout, grad) in grads {
            let builder = Trainer::builder(Model::new(wave(&[4, 3]))).optimizer(Sgd::new(0.1));
            let mut trainer = settings(builder.discover(Discover::None))
                .on::<AfterBackward>("replace", move |cx| {
                    cx.vars().get("odd").unwrap().grad().set_data(&grad());
                })
                .build()
                .unwrap();
            let error = trainer.fit(&mut batches(), None).unwrap_err().to_string();
            assert!(error.contains("the parameter `odd` has a gradient"), "{what}, {layout}: {error}");
        }
    }
}

/// An embedding with sparse gradients.
struct Sparse(nn::VarStore, nn::Embedding);

impl Task for Sparse {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.0
    }

    fn pred(&mut self, rows: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(rows.apply(&self.1).square().sum(Kind::Float))
    }

    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.shallow_clone())
    }
}

#[test]
fn sparse_gradients_are_used_or_refused() {
    for name in OPTIMIZERS {
        let vs = nn::VarStore::new(device());
        let config = nn::EmbeddingConfig { sparse: true, ..Default::default() };
        let embedding = nn::embedding(vs.root() / "odd", 5, 3, config);
        let optimizer = optimizer(name, &vs);
        let task = Sparse(vs, embedding);
        let mut trainer =
            Trainer::builder(task).optimizer(optimizer).discover(Discover::None).build().unwrap();
        let rows = || Tensor::from_slice(&[1_i64, 1, 3]);
        let fitted = trainer.fit(&mut from_fn(move |_| [rows()]), None);
        match name {
            // tch's SGD accepts sparse gradients if there is no weight decay.
            "tch_sgd" => assert!(fitted.is_ok(), "{fitted:?}"),
            _ => {
                let error = fitted.unwrap_err().to_string();
                assert!(error.contains("`odd.weight`") && error.contains("sparse"), "{name}: {error}");
            }
        }
    }
}

#[test]
fn state_of_a_different_dtype_or_with_impossible_counts_is_refused() {
    let build = |optimizer: Box<dyn Optimizer>| {
        let model = Model::new(wave(&[4, 3]));
        Trainer::builder(model).optimizer(optimizer).discover(Discover::None).build().unwrap()
    };
    let mut trainer = build(Box::new(AdamW::new(1e-2)));
    let own = |trainer: &Trainer<Model>| {
        let state = trainer.optimizer().unwrap().state();
        state.into_iter().map(|(name, tensor)| (name, tensor.copy())).collect::<Vec<_>>()
    };
    let before = own(&trainer);
    let message = |trainer: &mut Trainer<Model>, changes: &[(&str, Tensor)]| {
        let mut state = own(trainer);
        for (name, changed) in changes {
            state.iter_mut().find(|(other, _)| other == name).unwrap().1 = changed.shallow_clone();
        }
        trainer.optimizer_mut().unwrap().load_state(&state).map_err(|error| error.to_string())
    };
    let ones = |kind| Tensor::ones([4, 3], (kind, device()));
    assert_eq!(
        message(
            &mut trainer,
            &[("exp_avg/odd", ones(Kind::Uint8)), ("exp_avg_sq/plain", ones(Kind::Double))]
        ),
        Err("the state does not match this optimizer: `exp_avg/odd`: expected dtype Float, found Uint8 \
             in the saved state; `exp_avg_sq/plain`: expected dtype Float, found Double in the saved state; load a state \
             that this optimizer saved for the same parameters"
            .to_owned())
    );
    for (count, text) in [(-1.0, "-1"), (0.5, "0.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let count = Tensor::from(count).to_kind(Kind::Float);
        assert_eq!(
            message(&mut trainer, &[("exp_avg/odd", ones(Kind::Float)), ("step/odd", count)]),
            Err(format!(
                "the state does not match this optimizer: `step/odd` is {text}, not a step count; load a state that this \
                 optimizer saved for the same parameters"
            ))
        );
    }
    for ((name, before), (_, after)) in before.iter().zip(own(&trainer)) {
        assert!(before.equal(&after), "{name} was copied");
    }
    // The largest float: adding 1 does not change it, so nothing overflows.
    let largest = Tensor::from(f64::from(f32::MAX)).to_kind(Kind::Float);
    message(&mut trainer, &[("step/odd", largest)]).unwrap();
    trainer.fit(&mut batches(), None).unwrap();
    assert!(bool::try_from(trainer.vars().get("odd").unwrap().isfinite().all()).unwrap());
}

#[test]
fn extreme_hyperparameters_do_not_cause_a_panic() {
    for name in OPTIMIZERS.into_iter().filter(|name| !name.starts_with("tch")) {
        let settings: Vec<String> = {
            let model = Model::new(wave(&[4, 3]));
            let optimizer = optimizer(name, &model.vs);
            let trainer =
                Trainer::builder(model).optimizer(optimizer).discover(Discover::None).build().unwrap();
            let groups = trainer.optimizer().unwrap().groups();
            groups[0].settings().map(|(setting, _)| setting.to_owned()).collect()
        };
        let tried = Arc::new(Mutex::new(0));
        for setting in &settings {
            for value in [f64::MAX, f64::MIN_POSITIVE, 1.0 - f64::EPSILON, 0.0, 1.0, 99.0] {
                let tried = Arc::clone(&tried);
                let result = trained(
                    wave(&[4, 3]),
                    name,
                    move |trainer| {
                        let group = &mut trainer.optimizer_mut().unwrap().groups_mut()[0];
                        *tried.lock().unwrap() += u32::from(group.set(setting, value).is_ok());
                    },
                    unchanged(),
                );
                // A value that overflows a float and a frozen model are errors, not panics.
                let error = result.err().map(|error| error.to_string()).unwrap_or_default();
                let is_expected = |text: &&str| error.contains(text);
                assert!(
                    error.is_empty()
                        || ["without overflow", "does not require gradients"].iter().any(is_expected),
                    "{name}: {error}"
                );
            }
        }
        assert!(*tried.lock().unwrap() > settings.len() as u32, "{name}");
    }
}
