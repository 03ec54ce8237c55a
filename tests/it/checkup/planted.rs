//! Programs with one mistake each.

use trainer::TrainerBuilder;
use trainer::hooks::{Checkup, HyperparameterSchedule, ReduceOnPlateau};
use trainer::optim::Group;
use trainer::prelude::*;
use trainer::schedule::{Cosine, Linear, OneCycle};

use super::{builder, cross_entropy, data, fit, linear, plain, task, task_with};
use crate::support::{device, own_warnings};

/// What is wrong, the name of the rule, what the warning names, and the warnings of the program.
type Planted = (&'static str, &'static str, &'static [&'static str], fn() -> Vec<String>);

/// Returns the warnings of a plain network with these settings.
fn with(set: fn(TrainerBuilder<super::Free>) -> TrainerBuilder<super::Free>) -> Vec<String> {
    fit(set(builder(plain())))
}

/// A task of two parts, which trains only the first.
struct OnePart {
    vars: nn::VarStore,
    one: nn::Linear,
    two: nn::Linear,
}

impl OnePart {
    fn new() -> Self {
        let vars = nn::VarStore::new(device());
        let (one, two) = (linear(&vars.root(), "one", 4, 4), linear(&vars.root(), "two", 4, 2));
        OnePart { vars, one, two }
    }
}

impl Task for OnePart {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        Ok(inputs.apply(&self.one).tanh().apply(&self.two))
    }
    fn loss(&mut self, pred: &Tensor, (_, labels): &Self::Batch) -> Result<Tensor> {
        Ok(cross_entropy(pred, labels))
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let pred = step.pred()?;
        let loss = step.loss(pred)?;
        let gradients = step.backward_of("one", loss)?;
        step.opt_step(gradients)
    }
}

/// A task that takes no optimizer step.
struct NoStep(OnePart);

impl Task for NoStep {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        self.0.vars()
    }
    fn pred(&mut self, batch: &Self::Batch, mode: Mode) -> Result<Tensor> {
        self.0.pred(batch, mode)
    }
    fn loss(&mut self, pred: &Tensor, batch: &Self::Batch) -> Result<Tensor> {
        self.0.loss(pred, batch)
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let pred = step.pred()?;
        let loss = step.loss(pred)?;
        Ok(step.backward(loss)?.into())
    }
}

/// Skips every optimizer step.
struct Skips;

#[hook]
impl Skips {
    fn opt_step(&mut self, _: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        Ok(next.skip())
    }
}

/// Returns a network of two layers, the second of which is built on this store.
fn second_layer_on(other: &nn::VarStore) -> super::Free {
    let fc2 = linear(&other.root(), "fc2", 8, 2);
    task(move |root| {
        let fc1 = linear(root, "fc1", 4, 8);
        move |xs: &Tensor, _| xs.apply(&fc1).tanh().apply(&fc2)
    })
}

/// Returns a network whose hidden layer is computed by `hidden`.
fn hidden(hidden: fn(Tensor, bool) -> Tensor) -> super::Free {
    task(move |root| {
        let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2));
        move |xs: &Tensor, trains| hidden(xs.apply(&fc1), trains).apply(&fc2)
    })
}

pub(super) const ALL: &[Planted] = &[
    ("two schedules of the rate", "two schedules", &["`lr`"], || {
        with(|builder| {
            let cosine = HyperparameterSchedule::lr(Cosine::to(0.1));
            builder.hook(cosine).hook(HyperparameterSchedule::lr(Linear::to(0.5)))
        })
    }),
    ("two schedules of the momentum, by value", "two schedules", &["`momentum`"], || {
        with(|builder| {
            let one = HyperparameterSchedule::momentum(Linear::to(0.9).starting_at(0.5));
            let other = HyperparameterSchedule::values("momentum", Linear::to(0.8).starting_at(0.6));
            builder.optimizer(Sgd::new(0.1).momentum(0.5)).hook(one).hook(other)
        })
    }),
    ("a schedule of all groups and one of a group", "two schedules", &["`weight_decay`"], || {
        with(|builder| {
            let adamw = AdamW::new(0.01).group("*.bias", Group::new().weight_decay(0.1));
            let all = HyperparameterSchedule::factors("weight_decay", Linear::to(0.5));
            builder
                .optimizer(adamw)
                .hook(all)
                .hook(HyperparameterSchedule::factors("weight_decay", Cosine::to(0.5)).group("*.bias"))
        })
    }),
    ("a schedule over the run and a plateau", "schedule and plateau", &["the model"], || {
        with(|builder| {
            let schedule = HyperparameterSchedule::lr(Cosine::to(0.0));
            builder.hook(schedule).hook(ReduceOnPlateau::new("valid/loss", Goal::Minimize))
        })
    }),
    ("a schedule of half the steps", "a schedule that ends too early", &["step 4", "step 8"], || {
        with(|builder| builder.hook(HyperparameterSchedule::lr(Cosine::to(0.0).over(4))))
    }),
    ("a schedule of one of four epochs", "a schedule that ends too early", &["epoch 1", "epoch 4"], || {
        with(|builder| {
            let schedule = HyperparameterSchedule::lr(Linear::to(0.0).over(1)).by_epoch(true);
            builder.epochs(4).hook(schedule)
        })
    }),
    ("one cycle that is too short", "a schedule that ends too early", &["step 7", "step 16"], || {
        with(|builder| builder.epochs(4).hook(HyperparameterSchedule::lr(OneCycle::new().over(8))))
    }),
    (
        "a second fit after the end of the schedule",
        "a schedule that ends too early",
        &["step 8", "step 16"],
        || {
            let schedule = HyperparameterSchedule::lr(Cosine::to(0.0).over(8));
            let mut trainer = builder(plain()).hook(schedule).build().unwrap();
            assert!(own_warnings(&trainer.fit(&mut data(), None).unwrap()).is_empty());
            own_warnings(&trainer.fit(&mut data(), None).unwrap())
        },
    ),
    ("accumulation of 100 batches", "accumulation longer than an epoch", &["100", "4 batches"], || {
        with(|builder| builder.accumulate(100))
    }),
    (
        "accumulation of 5 batches from the second epoch",
        "accumulation longer than an epoch",
        &["accumulate(5)"],
        || with(|builder| builder.accumulate_from(1, 5)),
    ),
    ("dropout in validation", "training mode in an evaluation", &["`dropout`", "validation"], || {
        fit(builder(hidden(|hidden, _| hidden.tanh().dropout(0.5, true))))
    }),
    (
        "batch norm and dropout in a test",
        "training mode in an evaluation",
        &["`batch_norm`", "`dropout`", "test"],
        || {
            let task = task(|root| {
                let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2));
                let norm = nn::batch_norm1d(root / "norm", 8, Default::default());
                move |xs: &Tensor, _| {
                    xs.apply(&fc1).apply_t(&norm, true).relu().dropout(0.1, true).apply(&fc2)
                }
            });
            let mut trainer = builder(task).build().unwrap();
            own_warnings(&trainer.test(&mut data()).unwrap())
        },
    ),
    (
        "attention with dropout in validation",
        "training mode in an evaluation",
        &["`scaled_dot_product_attention`"],
        || {
            fit(builder(hidden(|hidden, _| {
                let heads = hidden.view([-1, 2, 2, 2]);
                let none = None::<Tensor>;
                Tensor::scaled_dot_product_attention(&heads, &heads, &heads, none, 0.2, false, None, false)
                    .view([-1, 8])
            })))
        },
    ),
    ("an LSTM that trains in validation", "training mode in an evaluation", &["`lstm`"], || {
        fit(builder(task(|root| {
            let config = nn::RNNConfig { num_layers: 2, dropout: 0.3, ..Default::default() };
            let (lstm, fc) = (nn::lstm(root / "lstm", 2, 4, config), linear(root, "fc", 4, 2));
            move |xs: &Tensor, _| nn::RNN::seq(&lstm, &xs.view([-1, 2, 2])).0.select(1, 1).apply(&fc)
        })))
    }),
    ("an optimizer of the first layer only", "no optimizer", &["`fc2.weight`", "`fc2.bias`"], || {
        fit(Trainer::builder(plain())
            .optimizer_of("fc1", Sgd::new(0.1))
            .epochs(2)
            .discover(Discover::None)
            .hook(Checkup::default()))
    }),
    ("a misspelled part of three", "no optimizer", &["`body.fc1.weight`"], || {
        let task = task(|root| {
            let (fc1, fc2) = (linear(&(root / "body"), "fc1", 4, 8), linear(root, "head", 8, 2));
            move |xs: &Tensor, _| xs.apply(&fc1).tanh().apply(&fc2)
        });
        fit(Trainer::builder(task)
            .optimizer_of("head", AdamW::new(0.1))
            .epochs(2)
            .discover(Discover::None)
            .hook(Checkup::default()))
    }),
    ("half of the network on another store", "a tensor of no store", &["[2, 8] and [2]"], || {
        fit(builder(second_layer_on(&nn::VarStore::new(device()))))
    }),
    ("a scale that requires gradients", "a tensor of no store", &["a tensor of shape [2]"], || {
        let scale = Tensor::ones([2], (Kind::Float, device())).set_requires_grad(true);
        fit(builder(task(move |root| {
            let fc = linear(root, "fc", 4, 2);
            move |xs: &Tensor, _| xs.apply(&fc) * &scale
        })))
    }),
    (
        "a network that ignores its input",
        "a loss that does not depend on the input",
        &["the prediction"],
        || {
            fit(builder(task(|root| {
                let fc = linear(root, "fc", 4, 2);
                let own = Tensor::ones([8, 4], (Kind::Float, device()));
                move |_: &Tensor, _| own.apply(&fc)
            })))
        },
    ),
    ("a loss of the weights alone", "a loss that does not depend on the input", &["the loss"], || {
        let vars = nn::VarStore::new(device());
        let weight = vars.root().ones("weight", &[4, 2]);
        let same = weight.shallow_clone();
        let loss = move |_: &Tensor, _: &Tensor| same.square().sum(Kind::Float);
        fit(builder(Supervised::new(vars, nn::func(move |xs| xs.matmul(&weight)), loss)))
    }),
    ("a layer that is not used", "a layer that is not used", &["`fc3.weight`", "`fc3.bias`"], || {
        fit(builder(task(|root| {
            let (fc1, fc2, _) =
                (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2), linear(root, "fc3", 8, 2));
            move |xs: &Tensor, _| xs.apply(&fc1).tanh().apply(&fc2)
        })))
    }),
    ("several layers that are not used", "a layer that is not used", &["6 parameters of `spare`"], || {
        fit(builder(task(|root| {
            for nth in 0..3 {
                linear(&(root / "spare"), &format!("layer{nth}"), 4, 4);
            }
            let fc = linear(root, "fc", 4, 2);
            move |xs: &Tensor, _| xs.apply(&fc)
        })))
    }),
    ("a layer that is thawed and not used", "a layer that is not used", &["`spare.weight`"], || {
        let task = task(|root| {
            let (fc, _) = (linear(root, "fc", 4, 2), linear(root, "spare", 4, 2));
            move |xs: &Tensor, _| xs.apply(&fc)
        });
        fit(builder(task).hook(trainer::hooks::Freeze::new("spare.*").thaw_at(1, "spare.*")))
    }),
    ("a detached layer", "a layer without a gradient", &["`fc1.weight`", "`fc1.bias`"], || {
        fit(builder(hidden(|hidden, _| hidden.tanh().detach())))
    }),
    ("a layer before an argmax", "a layer without a gradient", &["`fc1.weight`"], || {
        fit(builder(hidden(|hidden, _| hidden.argmax(-1, false).one_hot(8).to_kind(Kind::Float))))
    }),
    ("a layer that is rounded to integers", "a layer without a gradient", &["`fc1.weight`"], || {
        fit(builder(hidden(|hidden, _| hidden.to_kind(Kind::Int64).to_kind(Kind::Float))))
    }),
    ("activations that are all 0", "a gradient of 0", &["`fc1.weight`"], || {
        fit(builder(hidden(|hidden, _| (hidden - 100.0).relu())))
    }),
    ("a factor of 0", "a gradient of 0", &["`fc1.weight`"], || {
        fit(builder(hidden(|hidden, _| hidden * 0.0)))
    }),
    ("a loss with a factor of 0", "a gradient of 0", &["`fc1.weight`", "`fc2.bias`"], || {
        fit(builder(task_with(
            |logits, labels| cross_entropy(logits, labels) * 0.0,
            |root| {
                let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2));
                move |xs: &Tensor, _| xs.apply(&fc1).tanh().apply(&fc2)
            },
        )))
    }),
    ("an optimizer that never steps", "a parameter that no step changed", &["`two.weight`"], || {
        let builder = Trainer::builder(OnePart::new()).optimizer_of("one", Sgd::new(0.1));
        fit(builder
            .optimizer_of("two", Sgd::new(0.1))
            .epochs(2)
            .discover(Discover::None)
            .hook(Checkup::default()))
    }),
    (
        "a task that takes no step",
        "a parameter that no step changed",
        &["`one.weight`", "`two.bias`"],
        || fit(builder(NoStep(OnePart::new()))),
    ),
    ("a hook that skips every step", "a parameter that no step changed", &["`fc1.weight`"], || {
        with(|builder| builder.hook(Skips))
    }),
    ("a learning rate of 0", "a learning rate of 0", &["the optimizer"], || {
        with(|builder| builder.optimizer(AdamW::new(0.0)))
    }),
    ("a learning rate of 0 and a schedule", "a learning rate of 0", &["the optimizer"], || {
        with(|builder| builder.optimizer(Sgd::new(0.0)).hook(HyperparameterSchedule::lr(Cosine::to(0.1))))
    }),
    ("a learning rate of 0 for a part", "a learning rate of 0", &["of `one`"], || {
        let builder = Trainer::builder(OnePart::new()).optimizer_of("one", Sgd::new(0.0));
        let mut warnings = fit(builder
            .optimizer_of("two", Sgd::new(0.1))
            .epochs(2)
            .discover(Discover::None)
            .hook(Checkup::default()));
        warnings.retain(|text| !text.contains("two.weight"));
        warnings
    }),
    ("an in-place dropout in a test", "training mode in an evaluation", &["`dropout_`", "test"], || {
        let task = hidden(|hidden, _| hidden.tanh().dropout_(0.5, true));
        own_warnings(&builder(task).build().unwrap().test(&mut data()).unwrap())
    }),
    ("a native dropout in validation", "training mode in an evaluation", &["`native_dropout`"], || {
        fit(builder(hidden(|hidden, _| hidden.tanh().native_dropout(0.5, true).0)))
    }),
    ("batch norm inside of a sequence", "training mode in an evaluation", &["`batch_norm`"], || {
        fit(builder(task(|root| {
            let norm = nn::batch_norm1d(root / "norm", 8, Default::default());
            let inner = nn::seq_t()
                .add(linear(root, "fc1", 4, 8))
                .add_fn_t(move |xs, _| xs.apply_t(&norm, true))
                .add_fn(Tensor::relu);
            let net = nn::seq_t().add(inner).add(linear(root, "fc2", 8, 2));
            move |xs: &Tensor, trains| xs.apply_t(&net, trains)
        })))
    }),
    (
        "a schedule of the first steps of many",
        "a schedule that ends too early",
        &["step 5", "step 20"],
        || {
            with(|builder| {
                let schedule = HyperparameterSchedule::lr(Linear::to(0.0).over(5));
                builder.epochs(10).max_steps(20).hook(schedule)
            })
        },
    ),
    ("values of the rate and a plateau", "schedule and plateau", &["the model"], || {
        with(|builder| {
            let values = HyperparameterSchedule::values("lr", Linear::to(0.01).starting_at(0.1));
            builder.hook(values).hook(ReduceOnPlateau::new("train/loss", Goal::Minimize))
        })
    }),
    ("two schedules of a group that two patterns name", "two schedules", &["`lr`"], || {
        with(|builder| {
            let adamw = AdamW::new(0.01).group("fc1.*", Group::new().weight_decay(0.0));
            let one = HyperparameterSchedule::lr(Cosine::to(0.1)).group("fc1.*");
            let all = HyperparameterSchedule::values("lr", Linear::to(0.01).starting_at(0.1));
            builder.optimizer(adamw).hook(one).hook(all)
        })
    }),
    (
        "accumulation over batches that `drop_last` drops",
        "accumulation longer than an epoch",
        &["3 batches"],
        || {
            let inputs = Tensor::arange(124, (Kind::Float, device())).view([31, 4]).sin();
            let labels = Tensor::arange(31, (Kind::Int64, device())).remainder(2);
            let mut train = InMemory::new((inputs, labels)).unwrap().batch_size(8).drop_last(true);
            own_warnings(&builder(plain()).accumulate(4).build().unwrap().fit(&mut train, None).unwrap())
        },
    ),
    ("a network whose weights are all 0", "a gradient of 0", &["`fc1.weight`", "`fc1.bias`"], || {
        fit(builder(task(|root| {
            let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2));
            tch::no_grad(|| {
                for layer in [&fc1, &fc2] {
                    drop(layer.ws.shallow_clone().zero_());
                    drop(layer.bs.as_ref().unwrap().shallow_clone().zero_());
                }
            });
            move |xs: &Tensor, _| xs.apply(&fc1).relu().apply(&fc2)
        })))
    }),
    ("a hook that drops the gradients", "a parameter that no step changed", &["`fc1.weight`"], || {
        with(|builder| builder.on::<AfterBackward>("drops", |cx| cx.drop_grads()))
    }),
    ("a learning rate of 0 in each group", "a learning rate of 0", &["the optimizer"], || {
        with(|builder| builder.optimizer(AdamW::new(0.0).group("*.bias", Group::new().lr(0.0))))
    }),
];
