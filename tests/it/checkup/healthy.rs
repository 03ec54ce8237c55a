//! Programs without a mistake.

use std::sync::atomic::{AtomicU64, Ordering};

use trainer::TrainerBuilder;
use trainer::hooks::{
    Amp, Checkup, DataParallel, Ema, Freeze, HyperparameterSchedule, Lora, NanGuard, ReduceOnPlateau, Sam,
    StochasticDepth,
};
use trainer::optim::Group;
use trainer::prelude::*;
use trainer::schedule::{Constant, Cosine, Linear, OneCycle};

use super::{builder, cross_entropy, data, fit, linear, plain, task, task_with};
use crate::support::{device, own_warnings};

type Healthy = (&'static str, fn() -> Vec<String>);

fn with(set: fn(TrainerBuilder<super::Free>) -> TrainerBuilder<super::Free>) -> Vec<String> {
    fit(set(builder(plain())))
}

/// Two networks on one store, with a loss that a function computes.
struct Two {
    vars: nn::VarStore,
    one: nn::Linear,
    two: nn::Linear,
    batches: u64,
    loss: fn(&mut Two, &Tensor, &Tensor) -> Tensor,
}

impl Two {
    fn new(names: [&str; 2], loss: fn(&mut Two, &Tensor, &Tensor) -> Tensor) -> Self {
        let vars = nn::VarStore::new(device());
        let [one, two] = names.map(|name| linear(&vars.root(), name, 4, 2));
        Two { vars, one, two, batches: 0, loss }
    }
}

impl Task for Two {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Self::Batch, mode: Mode) -> Result<Tensor> {
        self.batches += u64::from(mode == Mode::Train);
        Ok(inputs.apply(&self.one))
    }
    fn loss(&mut self, pred: &Tensor, (inputs, labels): &Self::Batch) -> Result<Tensor> {
        let mimicked = (self.loss)(self, pred, inputs);
        Ok(mimicked + cross_entropy(pred, labels))
    }
}

/// A generator and a discriminator, which take turns.
struct Gan {
    vars: nn::VarStore,
    generator: nn::Linear,
    critic: nn::Linear,
}

impl Task for Gan {
    type Batch = (Tensor, Tensor);
    type Pred = (Tensor, Tensor);
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (real, _): &Self::Batch, _: Mode) -> Result<Self::Pred> {
        let fake = Tensor::randn([8, 3], (Kind::Float, device())).apply(&self.generator);
        Ok((fake.apply(&self.critic), real.apply(&self.critic)))
    }
    fn loss(&mut self, (fake, real): &Self::Pred, _: &Self::Batch) -> Result<Tensor> {
        Ok((fake.mean(Kind::Float) - real.mean(Kind::Float)).tanh())
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let pred = step.pred()?;
        let loss = step.loss(pred)?;
        let gradients = step.backward_of("critic", loss)?;
        let _ = step.opt_step(gradients)?;
        let pred = step.pred_with(|task, _| {
            let fake = Tensor::randn([8, 3], (Kind::Float, device())).apply(&task.generator);
            Ok((fake.apply(&task.critic), fake))
        })?;
        let loss = step.loss_with(pred, |_, (fake, _), _| Ok(-fake.mean(Kind::Float)))?;
        let gradients = step.backward_of("generator", loss)?;
        step.opt_step(gradients)
    }
}

fn gan() -> TrainerBuilder<Gan> {
    let vars = nn::VarStore::new(device());
    let generator = linear(&vars.root(), "generator", 3, 4);
    let critic = linear(&vars.root(), "critic", 4, 1);
    let builder = Trainer::builder(Gan { vars, generator, critic })
        .epochs(2)
        .discover(Discover::None)
        .hook(Checkup::default());
    builder.optimizer_of("generator", Sgd::new(0.1)).optimizer_of("critic", AdamW::new(0.1))
}

/// A policy that is updated several times for each batch of seeds, from which an environment that
/// is written in Rust computes states.
struct Policy {
    vars: nn::VarStore,
    policy: nn::Linear,
    value: nn::Linear,
}

impl Policy {
    fn states(seeds: &Tensor) -> Tensor {
        let seeds: Vec<f32> = seeds.flatten(0, -1).try_into().unwrap();
        Tensor::from_slice(&seeds.iter().map(|seed| seed.cos()).collect::<Vec<_>>())
            .view([-1, 4])
            .to(device())
    }
}

impl Task for Policy {
    type Batch = (Tensor, Tensor);
    type Pred = (Tensor, Tensor);
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (seeds, _): &Self::Batch, _: Mode) -> Result<Self::Pred> {
        let states = Policy::states(seeds);
        Ok((states.apply(&self.policy).log_softmax(-1, Kind::Float), states.apply(&self.value).squeeze()))
    }
    fn loss(&mut self, (log_probs, values): &Self::Pred, _: &Self::Batch) -> Result<Tensor> {
        let advantage = (values - 1.0).detach();
        let chosen = log_probs.detach().argmax(-1, true);
        let policy = -(log_probs.gather(1, &chosen, false).squeeze() * advantage).mean(Kind::Float);
        Ok(policy + (values - 1.0).square().mean(Kind::Float))
    }
    fn steps_per_batch(&self) -> u64 {
        3
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        for nth in 0.. {
            let pred = step.pred()?;
            let loss = step.loss(pred)?;
            let gradients = step.backward(loss)?;
            let done = step.opt_step(gradients)?;
            if nth == 2 {
                return Ok(done);
            }
        }
        unreachable!("the loop returns")
    }
}

fn policy() -> TrainerBuilder<Policy> {
    let vars = nn::VarStore::new(device());
    let policy = linear(&vars.root(), "policy", 4, 3);
    let value = linear(&vars.root(), "value", 4, 1);
    builder(Policy { vars, policy, value })
}

/// The centers of clusters, which the task moves itself.
struct Clusters {
    vars: nn::VarStore,
    centers: Tensor,
}

impl Task for Clusters {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        Ok((inputs.unsqueeze(1) - &self.centers).square().sum_dim_intlist(
            [-1].as_slice(),
            false,
            Kind::Float,
        ))
    }
    fn loss(&mut self, pred: &Tensor, _: &Self::Batch) -> Result<Tensor> {
        Ok(pred.amin([-1].as_slice(), false).mean(Kind::Float))
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let pred = step.pred()?;
        let loss = step.loss(pred)?;
        let gradients = step.backward(loss)?;
        let _ = tch::no_grad(|| step.task().centers.f_mul_scalar_(0.9))?;
        Ok(gradients.into())
    }
}

/// A mixture of experts, of which the first value of a row selects one; some are never selected.
fn mixture(compute: fn(&Tensor, &Tensor, &[nn::Linear]) -> Tensor) -> super::Free {
    task(move |root| {
        let router = linear(root, "router", 4, 4);
        let experts: Vec<_> = (0..4).map(|nth| linear(&(root / "experts"), &nth.to_string(), 4, 2)).collect();
        tch::no_grad(|| {
            let mut bias = router.bs.as_ref().unwrap().shallow_clone();
            bias.copy_(&Tensor::from_slice(&[9f32, 9.0, -9.0, -9.0]));
        });
        move |xs: &Tensor, _| compute(xs, &xs.apply(&router).softmax(-1, Kind::Float), &experts)
    })
}

/// A named network of two blocks.
fn blocks() -> super::Free {
    task(|root| {
        let block = |name: &str| linear(root, name, 4, 4).named(root / name);
        let (one, two, head) = (block("one"), block("two"), linear(root, "head", 4, 2));
        move |xs: &Tensor, _| {
            let hidden = xs + xs.apply(&one).tanh();
            (&hidden + hidden.apply(&two).tanh()).apply(&head)
        }
    })
}

/// A network with dropout and batch norm, which trains only in training.
fn regularized() -> super::Free {
    task(|root| {
        let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2));
        let norm = nn::batch_norm1d(root / "norm", 8, Default::default());
        move |xs: &Tensor, trains| {
            xs.apply(&fc1).apply_t(&norm, trains).relu().dropout(0.5, trains).apply(&fc2)
        }
    })
}

pub(super) const ALL: &[Healthy] = &[
    ("a network", || with(|builder| builder)),
    ("AdamW with groups", || {
        with(|builder| builder.optimizer(AdamW::new(0.01).group("*.bias", Group::new().weight_decay(0.0))))
    }),
    ("a frozen group", || {
        with(|builder| builder.optimizer(AdamW::new(0.01).group("fc1.*", Group::new().frozen(true))))
    }),
    ("a frozen backbone", || with(|builder| builder.hook(Freeze::new("fc1.*")))),
    ("gradual unfreezing", || {
        with(|builder| {
            builder.epochs(3).hook(Freeze::new("fc1.*").thaw_at(1, "fc1.bias").thaw_at(2, "fc1.weight"))
        })
    }),
    ("a backbone without gradients", || {
        fit(builder(task(|root| {
            let (backbone, head) = (linear(root, "backbone", 4, 8), linear(root, "head", 8, 2));
            move |xs: &Tensor, _| tch::no_grad(|| xs.apply(&backbone).tanh()).apply(&head)
        })))
    }),
    ("a backbone on another store, frozen", || {
        let mut other = nn::VarStore::new(device());
        let backbone = linear(&other.root(), "backbone", 4, 8);
        other.freeze();
        fit(builder(task(move |root| {
            let head = linear(root, "head", 8, 2);
            move |xs: &Tensor, _| xs.apply(&backbone).tanh().apply(&head)
        })))
    }),
    ("LoRA", || fit(builder(blocks()).hook(Lora::new("one", 2)))),
    ("LoRA in one step for each epoch", || {
        fit(builder(blocks()).epochs(3).accumulate(4).hook(Lora::new("t*", 2)))
    }),
    ("a factor that begins at 0, of a factor that begins at 0", || {
        fit(builder(task(|root| {
            let fc = linear(root, "fc", 4, 2);
            let [inner, gate, outer] = ["inner", "gate", "outer"]
                .map(|name| if name == "inner" { root.ones(name, &[2]) } else { root.zeros(name, &[2]) });
            move |xs: &Tensor, _| {
                let hidden = xs.apply(&fc);
                &hidden + &hidden * &inner * &gate * &outer + &gate * xs.mean(Kind::Float)
            }
        })))
    }),
    ("zero-initialized residual branches", || {
        fit(builder(task(|root| {
            let (fc1, fc2, head) =
                (linear(root, "fc1", 4, 4), linear(root, "fc2", 4, 4), linear(root, "head", 4, 2));
            let gammas = ["gamma1", "gamma2"].map(|name| root.zeros(name, &[4]));
            move |xs: &Tensor, _| {
                let hidden = xs + xs.apply(&fc1).tanh() * &gammas[0];
                (&hidden + hidden.apply(&fc2).tanh() * &gammas[1]).apply(&head)
            }
        })))
    }),
    ("a zero-initialized head and modulation", || {
        fit(builder(task(|root| {
            let (fc, modulation, head) =
                (linear(root, "fc", 4, 4), linear(root, "modulation", 4, 8), linear(root, "head", 4, 2));
            tch::no_grad(|| {
                for layer in [&modulation, &head] {
                    drop(layer.ws.shallow_clone().zero_());
                    drop(layer.bs.as_ref().unwrap().shallow_clone().zero_());
                }
            });
            move |xs: &Tensor, _| {
                let parts = xs.apply(&modulation).chunk(2, -1);
                (xs + &parts[0] * xs.apply(&fc).tanh() + &parts[1]).apply(&head)
            }
        })))
    }),
    ("a GAN", || fit(gan())),
    ("PPO", || fit(policy().hook(HyperparameterSchedule::lr(Linear::to(0.0))))),
    ("clusters that are moved by hand", || {
        let vars = nn::VarStore::new(device());
        let centers = vars.root().randn_standard("centers", &[3, 4]);
        fit(builder(Clusters { vars, centers }))
    }),
    ("dropout and batch norm", || fit(builder(regularized()))),
    ("instance norm in an evaluation", || {
        fit(builder(task(|root| {
            let fc = linear(root, "fc", 4, 2);
            move |xs: &Tensor, _| {
                let none = || None::<Tensor>;
                let normed =
                    xs.unsqueeze(1).instance_norm(none(), none(), none(), none(), true, 0.1, 1e-5, false);
                normed.squeeze_dim(1).apply(&fc)
            }
        })))
    }),
    ("a branch that is dropped in every second batch", || {
        static BATCH: AtomicU64 = AtomicU64::new(0);
        fit(builder(task(|root| {
            let (one, two) = (linear(root, "one", 4, 2), linear(root, "two", 4, 2));
            move |xs: &Tensor, trains| {
                let is_dropped = trains && BATCH.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
                if is_dropped { xs.apply(&one) } else { xs.apply(&one) + xs.apply(&two) }
            }
        })))
    }),
    ("stochastic depth", || fit(builder(blocks()).hook(StochasticDepth::new("two", 0.5)))),
    ("a head that is used from the second epoch on", || {
        fit(builder(Two::new(["one", "late"], |task, _, inputs| {
            if task.batches > 4 {
                inputs.apply(&task.two).square().mean(Kind::Float)
            } else {
                Tensor::from(0f32)
            }
        })))
    }),
    ("a term whose factor grows from 0", || {
        fit(builder(Two::new(["one", "late"], |task, _, inputs| {
            let factor = if task.batches > 4 { 0.5 } else { 0.0 };
            inputs.apply(&task.two).square().mean(Kind::Float) * factor
        })))
    }),
    ("a mixture of experts, by rows", || {
        fit(builder(mixture(|xs, weights, experts| {
            let chosen = weights.argmax(-1, false);
            let mut all = Tensor::zeros([xs.size()[0], 2], (Kind::Float, device()));
            for (nth, expert) in experts.iter().enumerate() {
                let rows = chosen.eq(nth as i64).nonzero().squeeze_dim(-1);
                if rows.size()[0] > 0 {
                    let gate = weights.select(1, nth as i64).index_select(0, &rows).unsqueeze(-1);
                    all = all.index_add(0, &rows, &(xs.index_select(0, &rows).apply(expert) * gate));
                }
            }
            all
        })))
    }),
    ("a mixture of experts, by masks", || {
        fit(builder(mixture(|xs, weights, experts| {
            let (top, _) = weights.topk(1, -1, true, true);
            let gates = weights * weights.ge_tensor(&top).to_kind(Kind::Float);
            let each = experts
                .iter()
                .enumerate()
                .map(|(nth, expert)| xs.apply(expert) * gates.select(1, nth as i64).unsqueeze(-1));
            each.reduce(|one, other| one + other).unwrap()
        })))
    }),
    ("a detached teacher on the same store", || {
        fit(builder(Two::new(["student", "teacher"], |task, pred, inputs| {
            pred.mse_loss(&inputs.apply(&task.two).detach(), Reduction::Mean)
        })))
    }),
    ("a teacher without an optimizer", || {
        let task = Two::new(["student", "teacher"], |task, pred, inputs| {
            pred.mse_loss(&tch::no_grad(|| inputs.apply(&task.two)), Reduction::Mean)
        });
        fit(Trainer::builder(task)
            .optimizer_of("student", Sgd::new(0.1))
            .epochs(2)
            .discover(Discover::None)
            .hook(Checkup::default()))
    }),
    ("a teacher that is an average", || {
        fit(builder(Two::new(["student", "teacher"], |task, pred, inputs| {
            tch::no_grad(|| {
                for (mut average, live) in [
                    (task.two.ws.shallow_clone(), &task.one.ws),
                    (task.two.bs.as_ref().unwrap().shallow_clone(), task.one.bs.as_ref().unwrap()),
                ] {
                    let next = &average * 0.9 + live * 0.1;
                    average.copy_(&next);
                }
            });
            pred.mse_loss(&inputs.apply(&task.two).detach(), Reduction::Mean)
        })))
    }),
    ("averaged weights", || with(|builder| builder.hook(Ema::new(0.9)))),
    ("tied weights", || {
        fit(builder(task(|root| {
            let (fc, head) = (linear(root, "fc", 4, 4), linear(root, "head", 4, 2));
            move |xs: &Tensor, _| xs.apply(&fc).tanh().matmul(&fc.ws).apply(&head)
        })))
    }),
    ("an embedding with unused rows", || {
        fit(builder(task(|root| {
            let embedding = nn::embedding(root / "embedding", 100, 4, Default::default());
            let fc = linear(root, "fc", 4, 2);
            move |xs: &Tensor, _| {
                (xs.select(1, 0).abs() * 3.0).to_kind(Kind::Int64).apply(&embedding).apply(&fc)
            }
        })))
    }),
    ("inputs that require gradients", || {
        fit(builder(task(|root| {
            let fc = linear(root, "fc", 4, 2);
            move |xs: &Tensor, _| (xs.detach().set_requires_grad(true) * 1.0).apply(&fc)
        })))
    }),
    ("a gradient penalty", || {
        fit(builder(task_with(cross_entropy, |root| {
            let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2));
            move |xs: &Tensor, trains| {
                let xs = xs.detach().set_requires_grad(true);
                let logits = xs.apply(&fc1).tanh().apply(&fc2);
                if trains {
                    let slopes = Tensor::run_backward(&[logits.sum(Kind::Float)], &[&xs], true, true);
                    logits + slopes[0].square().mean(Kind::Float)
                } else {
                    logits
                }
            }
        })))
    }),
    ("warm-up and cosine", || {
        with(|builder| builder.hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(3))))
    }),
    ("one cycle", || {
        with(|builder| {
            let adamw = AdamW::new(0.1);
            let momentum = HyperparameterSchedule::momentum(OneCycle::new().momentum(0.85, 0.95));
            builder.optimizer(adamw).hook(HyperparameterSchedule::lr(OneCycle::new())).hook(momentum)
        })
    }),
    ("a warm-up and a plateau", || {
        with(|builder| {
            let warm_up = HyperparameterSchedule::lr(Constant::new(1.0).warm_up(2));
            builder.hook(warm_up).hook(ReduceOnPlateau::new("valid/loss", Goal::Minimize))
        })
    }),
    ("schedules of two groups", || {
        with(|builder| {
            let adamw = AdamW::new(0.01).group("*.bias", Group::new().lr(0.1));
            let of_biases = HyperparameterSchedule::lr(Cosine::to(0.0).over(4)).group("*.bias");
            builder
                .optimizer(adamw)
                .hook(of_biases)
                .hook(HyperparameterSchedule::lr(Cosine::to(0.1)).ungrouped())
        })
    }),
    ("a schedule that reaches a lower rate and stays there", || {
        with(|builder| builder.hook(HyperparameterSchedule::lr(Linear::to(0.1).over(3))))
    }),
    ("a warm-up by epochs from 0", || {
        with(|builder| {
            let warm_up = Linear::to(1.0).starting_at(0.0).over(1);
            builder.hook(HyperparameterSchedule::lr(warm_up).by_epoch(true))
        })
    }),
    ("accumulation", || with(|builder| builder.accumulate(4))),
    ("accumulation over a short last window", || with(|builder| builder.accumulate(3))),
    ("one batch that is overfitted", || with(|builder| builder.overfit_batches(1).accumulate(2).epochs(5))),
    ("a smoke test", || with(|builder| builder.fast_dev_run(1))),
    ("a smoke test with a long schedule", || {
        with(|builder| {
            builder.fast_dev_run(2).accumulate(8).hook(HyperparameterSchedule::lr(Cosine::to(0.0).over(1)))
        })
    }),
    ("a limit of batches", || with(|builder| builder.limit_train_batches(2).accumulate(4))),
    ("a limit of steps", || with(|builder| builder.max_steps(3))),
    ("a stop in the first batch", || {
        with(|builder| {
            builder.on::<AfterStep>(HookOptions::named("stop"), |cx| {
                if cx.phase() == Phase::Train {
                    cx.stop("enough");
                }
            })
        })
    }),
    ("mixed precision", || with(|builder| builder.hook(Amp::bf16()))),
    ("SAM, clipping and a guard", || {
        with(|builder| builder.clip_grad_norm(1.0).hook(Sam::new(0.05)).hook(NanGuard::fail()))
    }),
    ("activation checkpointing", || {
        fit(builder(blocks()).hook(trainer::hooks::ActivationCheckpointing::new("one")))
    }),
    ("a loader of one class", || {
        let mut rows = InMemory::new((
            Tensor::arange(128, (Kind::Float, device())).view([32, 4]).sin(),
            Tensor::zeros([32], (Kind::Int64, device())),
        ))
        .unwrap()
        .batch_size(8);
        own_warnings(&builder(plain()).build().unwrap().fit(&mut rows, None).unwrap())
    }),
    ("two fits, a validation, a test and a prediction", || {
        let mut trainer = builder(regularized()).build().unwrap();
        let mut warnings = own_warnings(&trainer.fit(&mut data(), Some(&mut data())).unwrap());
        warnings.extend(own_warnings(&trainer.fit(&mut data(), None).unwrap()));
        warnings.extend(own_warnings(&trainer.validate(&mut data()).unwrap()));
        warnings.extend(own_warnings(&trainer.test(&mut data()).unwrap()));
        trainer.predict(&mut data()).unwrap();
        warnings
    }),
    ("a learning-rate finder and a fit", || {
        let mut trainer = builder(regularized()).build().unwrap();
        trainer.find_lr(&mut data(), &trainer::finders::LearningRateFinder::new()).unwrap();
        own_warnings(&trainer.fit(&mut data(), None).unwrap())
    }),
    ("data in one process of several", || with(|builder| builder.hook(DataParallel::new()))),
    ("a frozen group, by a rate of 0", || {
        with(|builder| builder.optimizer(AdamW::new(0.01).group("fc1.*", Group::new().lr(0.0))))
    }),
    ("a schedule that is longer than the run", || {
        with(|builder| builder.hook(HyperparameterSchedule::lr(Cosine::to(0.0).over(1000))))
    }),
    ("averages of the last epochs", || {
        with(|builder| builder.epochs(4).hook(trainer::hooks::Swa::from_epoch(2)))
    }),
    ("BYOL, with a teacher in another store", || {
        let mut other = nn::VarStore::new(device());
        let teacher = linear(&other.root(), "encoder", 4, 2);
        fit(builder(task_with(
            |pred, _| pred.square().mean(Kind::Float),
            move |root| {
                let (encoder, predictor) = (linear(root, "encoder", 4, 2), linear(root, "predictor", 2, 2));
                other.set_kind(Kind::Float);
                move |xs: &Tensor, trains| {
                    let target = tch::no_grad(|| (xs + 0.1).apply(&teacher));
                    if trains {
                        tch::no_grad(|| {
                            let mut average = teacher.ws.shallow_clone();
                            let next = &average * 0.9 + &encoder.ws * 0.1;
                            average.copy_(&next);
                        });
                    }
                    (xs - 0.1).apply(&encoder).tanh().apply(&predictor) - target
                }
            },
        )))
    }),
    ("contrastive learning with a stopped gradient", || {
        fit(builder(task_with(
            |pred, _| -pred.mean(Kind::Float),
            |root| {
                let (encoder, predictor) = (linear(root, "encoder", 4, 3), linear(root, "predictor", 3, 3));
                move |xs: &Tensor, _| {
                    let [one, other] = [xs + 0.1, xs * 0.9].map(|view| view.apply(&encoder).tanh());
                    let similarity = |one: &Tensor, other: &Tensor| {
                        Tensor::cosine_similarity(&one.apply(&predictor), &other.detach(), 1, 1e-8)
                    };
                    similarity(&one, &other) + similarity(&other, &one)
                }
            },
        )))
    }),
    ("a recurrent network that carries its state", || {
        let state = std::sync::Mutex::new(None::<Tensor>);
        fit(builder(task(move |root| {
            let (input, recurrent, fc) =
                (linear(root, "input", 4, 4), linear(root, "recurrent", 4, 4), linear(root, "fc", 4, 2));
            move |xs: &Tensor, _| {
                let mut state = state.lock().unwrap();
                let before = state.take().unwrap_or_else(|| xs.zeros_like());
                let hidden = (xs.apply(&input) + before.apply(&recurrent)).tanh();
                *state = Some(hidden.detach());
                hidden.apply(&fc)
            }
        })))
    }),
    ("a head that is trained in every third batch", || {
        fit(builder(Two::new(["one", "sometimes"], |task, _, inputs| {
            if task.batches.is_multiple_of(3) {
                inputs.apply(&task.two).square().mean(Kind::Float)
            } else {
                Tensor::from(0f32)
            }
        })))
    }),
    ("losses with learned weights", || {
        fit(builder(task(|root| {
            let (fc, scales) = (linear(root, "fc", 4, 2), root.zeros("scales", &[2]));
            move |xs: &Tensor, _| xs.apply(&fc) * (-&scales).exp() + &scales
        })))
    }),
    ("a straight-through estimator", || {
        fit(builder(task(|root| {
            let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 2));
            move |xs: &Tensor, _| {
                let hidden = xs.apply(&fc1);
                ((hidden.round() - &hidden).detach() + &hidden).apply(&fc2)
            }
        })))
    }),
    ("a codebook", || {
        fit(builder(task(|root| {
            let (encoder, decoder) = (linear(root, "encoder", 4, 3), linear(root, "decoder", 3, 2));
            let codes = root.randn_standard("codes", &[5, 3]);
            move |xs: &Tensor, _| {
                let hidden = xs.apply(&encoder);
                let nearest = (hidden.unsqueeze(1) - &codes).square().sum_dim_intlist(
                    [-1].as_slice(),
                    false,
                    Kind::Float,
                );
                let chosen = codes.index_select(0, &nearest.argmin(1, false));
                let commitment = (&hidden - chosen.detach()).square().mean(Kind::Float)
                    + (hidden.detach() - &chosen).square().mean(Kind::Float);
                ((&chosen - &hidden).detach() + &hidden).apply(&decoder) + commitment
            }
        })))
    }),
    ("a variational autoencoder", || {
        fit(builder(task_with(
            |pred, _| pred.square().mean(Kind::Float),
            |root| {
                let (mean, deviation, decoder) = (
                    linear(root, "mean", 4, 3),
                    linear(root, "deviation", 4, 3),
                    linear(root, "decoder", 3, 4),
                );
                move |xs: &Tensor, trains| {
                    let (mean, deviation) = (xs.apply(&mean), xs.apply(&deviation).exp());
                    let noise = if trains { mean.randn_like() } else { mean.zeros_like() };
                    (mean + deviation * noise).apply(&decoder) - xs
                }
            },
        )))
    }),
    ("a denoiser, whose input is noise and data", || {
        fit(builder(task_with(
            |pred, _| pred.square().mean(Kind::Float),
            |root| {
                let (fc1, fc2) = (linear(root, "fc1", 4, 8), linear(root, "fc2", 8, 4));
                move |xs: &Tensor, _| {
                    let noise = xs.randn_like();
                    (xs * 0.7 + &noise * 0.7).apply(&fc1).tanh().apply(&fc2) - noise
                }
            },
        )))
    }),
    ("residuals of an equation at random points", || {
        let mut batches =
            trainer::data::from_fn(|_| (0..4).map(|_| (Tensor::from(0f32), Tensor::from(0f32)))).with_len(4);
        let task = task_with(
            |pred, _| pred.square().mean(Kind::Float),
            |root| {
                let (fc1, fc2) = (linear(root, "fc1", 1, 8), linear(root, "fc2", 8, 1));
                move |_: &Tensor, _| {
                    let xs = Tensor::rand([8, 1], (Kind::Float, device()));
                    xs.apply(&fc1).tanh().apply(&fc2) - xs.sin()
                }
            },
        );
        own_warnings(&builder(task).build().unwrap().fit(&mut batches, None).unwrap())
    }),
    ("experts that the program chooses", || {
        static BATCH: AtomicU64 = AtomicU64::new(0);
        fit(builder(task(|root| {
            let experts: Vec<_> =
                (0..4).map(|nth| linear(&(root / "experts"), &nth.to_string(), 4, 2)).collect();
            move |xs: &Tensor, trains| {
                let nth = if trains { BATCH.fetch_add(1, Ordering::Relaxed) as usize } else { 0 };
                xs.apply(&experts[nth % 4])
            }
        })))
    }),
    ("freezing in turns", || {
        with(|builder| {
            builder.epochs(4).on::<BeforeEpoch>("turns", |cx| {
                let trains_first = cx.counters().epoch.is_multiple_of(2);
                for var in cx.vars().parameters() {
                    let is_first = var.name.starts_with("fc1");
                    let _ = var.tensor.set_requires_grad(is_first == trains_first);
                }
            })
        })
    }),
    ("a shared encoder of two inputs", || {
        fit(builder(task(|root| {
            let (encoder, head) = (linear(root, "encoder", 2, 4), linear(root, "head", 8, 2));
            move |xs: &Tensor, _| {
                let sides = [xs.narrow(1, 0, 2), xs.narrow(1, 2, 2)].map(|side| side.apply(&encoder).tanh());
                Tensor::cat(&sides, 1).apply(&head)
            }
        })))
    }),
];
