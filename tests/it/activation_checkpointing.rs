//! `ActivationCheckpointing`: the same bits, and less memory.

use std::fs;
use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::checkpoint::Resume;
use trainer::finders::LearningRateFinder;
use trainer::hooks::{
    ActivationCheckpointing, ActivationStats, Amp, Checkpoint, DataParallel, StochasticDepth,
};
use trainer::modules::{self, Name};
use trainer::prelude::*;
use trainer::testing::Ranks;

use crate::model;
use crate::support::{alone, child_process, device, exact_state, scratch};

/// A residual block with batch norm, dropout, an in-place operator and named layers.
#[derive(Debug)]
struct Block {
    name: Name,
    fc1: modules::Named<nn::Linear>,
    norm: nn::BatchNorm,
    fc2: modules::Named<nn::Linear>,
}

impl Block {
    fn new(path: &nn::Path<'_>, width: i64) -> Self {
        Block {
            name: path.into(),
            fc1: modules::named(path / "fc1", |path| nn::linear(path, width, 2 * width, Default::default())),
            norm: nn::batch_norm1d(path / "norm", 2 * width, Default::default()),
            fc2: modules::named(path / "fc2", |path| nn::linear(path, 2 * width, width, Default::default())),
        }
    }
}

impl nn::ModuleT for Block {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.name.run(xs, |xs| {
            let mut hidden = xs.apply(&self.fc1).apply_t(&self.norm, train).gelu("none").dropout(0.2, train);
            let _ = hidden.relu_();
            let noise = Tensor::rand_like(&hidden) * Tensor::from(0.01f32);
            xs + (hidden + noise).apply(&self.fc2)
        })
    }
}

fn task(blocks: i64) -> impl Task<Batch = (Tensor, Tensor), Pred = Tensor> {
    tch::set_num_threads(1);
    tch::manual_seed(5);
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let mut net = nn::seq_t();
    for nth in 0..blocks {
        net = net.add(Block::new(&(&root / "blocks" / nth), 4));
    }
    let net = net.add(nn::linear(&root / "head", 4, 3, Default::default()));
    Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| {
        logits.to_kind(Kind::Float).cross_entropy_for_logits(labels)
    })
}

fn builder() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    Trainer::builder(task(3)).optimizer(AdamW::new(0.01)).discover(Discover::None).epochs(2)
}

/// Returns what a fit computes: all state, the metrics, and the random number that follows.
fn computed(builder: TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>>) -> Result<String> {
    let mut trainer = builder.build()?;
    let summary = trainer.fit(&mut model::rows(22), Some(&mut model::rows(10)))?;
    let random = Tensor::rand([1], (Kind::Double, device())).double_value(&[0]);
    let metrics: Vec<_> = summary.metrics.iter().map(|(name, value)| format!("{name} {value:e}")).collect();
    Ok(format!("{:?} {metrics:?} {random:e}", exact_state(&trainer)))
}

/// Scales the input of a module inside.
struct Scaled;

#[hook]
impl Scaled {
    #[hook(of = "blocks.1.fc1")]
    fn around(&mut self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
        let input = cx.input() * 1.25;
        cx.set_input(input);
        next.run(cx)
    }
}

#[test]
fn results_are_bit_identical_with_and_without_the_hook() {
    alone(changes_no_bit);
}

fn changes_no_bit() {
    type Set = fn(TrainerBuilder<Net>) -> TrainerBuilder<Net>;
    type Net = Supervised<nn::SequentialT, fn(&Tensor, &Tensor) -> Tensor>;
    fn net() -> TrainerBuilder<Net> {
        tch::set_num_threads(1);
        tch::manual_seed(5);
        let vs = nn::VarStore::new(device());
        let root = vs.root();
        let first = Block::new(&(&root / "blocks" / 0), 4);
        let shared = Arc::new(Mutex::new(Block::new(&(&root / "blocks" / 1), 4)));
        let other = Arc::clone(&shared);
        let net = nn::seq_t()
            .add(first)
            .add_fn_t(move |xs, train| xs.apply_t(&*shared.lock().unwrap(), train))
            .add_fn_t(move |xs, train| xs.apply_t(&*other.lock().unwrap(), train))
            .add(nn::linear(&root / "head", 4, 3, Default::default()));
        let loss: fn(&Tensor, &Tensor) -> Tensor =
            |logits, labels| logits.to_kind(Kind::Float).cross_entropy_for_logits(labels);
        Trainer::builder(Supervised::new(vs, net, loss))
            .optimizer(AdamW::new(0.01))
            .discover(Discover::None)
            .epochs(2)
    }
    let cases: [(&str, Set); 8] = [
        ("alone", |builder| builder),
        ("accumulation and clipping", |builder| builder.accumulate(3).clip_grad_norm(0.1)),
        ("bf16", |builder| builder.hook(Amp::bf16())),
        ("hooks at modules inside", |builder| {
            builder.hook(ActivationStats::new("blocks.*")).on::<AfterModuleForward>(
                HookOptions::named("scales").of("blocks.0.fc1").only([Phase::Train]),
                |cx| {
                    let scaled = cx.output() * 0.9;
                    cx.force_output(scaled);
                },
            )
        }),
        ("dropped branches inside", |builder| builder.hook(StochasticDepth::new("blocks.*.fc2", 0.3))),
        ("a hook around a module inside", |builder| builder.hook(Scaled)),
        ("gradients of modules inside", |builder| {
            builder.on::<AfterModuleBackward>(HookOptions::named("logs").of("blocks.*"), |cx| {
                cx.log(format!("grad/{}", cx.module()), cx.output_grad().norm());
            })
        }),
        ("anomaly detection", |builder| builder.detect_anomaly(true)),
    ];
    for (what, set) in cases {
        let expected = computed(set(net())).unwrap();
        for patterns in [vec!["blocks.?"], vec!["blocks.*"], vec!["*.fc1", "blocks.1"]] {
            let hook = ActivationCheckpointing::new(patterns.clone());
            let found = computed(set(net()).hook(hook)).unwrap();
            assert!(found == expected, "{what}, {patterns:?}: {found}, expected {expected}");
        }
    }
}

/// Counts the calls of hooks at modules.
#[derive(Default)]
struct Calls(Vec<String>);

#[hook(only = train)]
impl Calls {
    fn before_module_forward(&mut self, cx: &Cx<BeforeModuleForward>) {
        self.0.push(format!("before {}", cx.module()));
    }
    fn after_module_forward(&mut self, cx: &Cx<AfterModuleForward>) {
        self.0.push(format!("after {}", cx.module()));
    }
    fn before_module_backward(&mut self, cx: &Cx<BeforeModuleBackward>) {
        self.0.push(format!("begins {}", cx.module()));
    }
    fn after_module_grads(&mut self, cx: &Cx<AfterModuleGrads>) {
        self.0.push(format!("has gradients {}", cx.module()));
    }
    fn after_module_backward(&mut self, cx: &Cx<AfterModuleBackward>) {
        self.0.push(format!("gradient {} {}", cx.module(), cx.input_grad().is_some()));
    }
}

#[test]
fn hooks_at_inner_modules_are_called_once() {
    alone(calls_hooks_once);
}

fn calls_hooks_once() {
    let calls = |hook: Option<ActivationCheckpointing>| {
        // Hooks inside of the backward pass run on the CPU only.
        let mut builder = builder().device(Device::Cpu).hook(Calls::default());
        if let Some(hook) = hook {
            builder = builder.hook(hook);
        }
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut model::rows(8), None).unwrap();
        trainer.hook::<Calls>().unwrap().0.clone()
    };
    let expected = calls(None);
    assert!(expected.len() > 50, "{expected:?}");
    assert_eq!(calls(Some(ActivationCheckpointing::new("blocks.*"))), expected);
}

#[test]
fn several_ranks_are_bit_identical_with_and_without_the_hook() {
    let run = |hook: Option<ActivationCheckpointing>| -> Result<Vec<(String, Vec<u64>)>> {
        let mut builder = builder().hook(DataParallel::new()).accumulate(2);
        if let Some(hook) = hook {
            builder = builder.hook(hook);
        }
        let mut trainer = builder.build()?;
        trainer.fit(&mut model::rows(24), None)?;
        Ok(exact_state(&trainer))
    };
    let states =
        Ranks::new(2).run(|| Ok([run(None)?, run(Some(ActivationCheckpointing::new("blocks.?")))?])).unwrap();
    for [plain, checkpointed] in states {
        assert_eq!(plain, checkpointed);
    }
}

#[test]
fn second_order_gradients_are_bit_identical_with_and_without_the_hook() {
    alone(computes_second_gradients);
}

fn computes_second_gradients() {
    let run = |hook: Option<ActivationCheckpointing>| {
        tch::set_num_threads(1);
        tch::manual_seed(5);
        let vs = nn::VarStore::new(device());
        let block = modules::named(vs.root() / "block", |path| nn::linear(path, 4, 3, Default::default()));
        let net = nn::func(move |xs| {
            let xs = xs.detach().set_requires_grad(true);
            let logits = xs.apply(&block).tanh();
            let grad = Tensor::run_backward(&[logits.square().sum(Kind::Float)], &[&xs], true, true);
            logits + grad[0].square().sum(Kind::Float)
        });
        let task = Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| {
            logits.cross_entropy_for_logits(labels)
        });
        let mut builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
        if let Some(hook) = hook {
            builder = builder.hook(hook);
        }
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut model::rows(8), None).unwrap();
        exact_state(&trainer)
    };
    assert_eq!(run(Some(ActivationCheckpointing::new("block"))), run(None));
}

/// Returns the error of a fit of one module whose output `compute` returns.
fn refused(compute: impl Fn(&Tensor) -> Tensor + Send + 'static) -> String {
    let vs = nn::VarStore::new(device());
    let fc = nn::linear(vs.root() / "fc", 4, 3, Default::default());
    let inner = nn::func(move |xs| compute(&xs.apply(&fc))).named("block");
    let task = Supervised::new(vs, inner, |logits: &Tensor, labels: &Tensor| {
        logits.cross_entropy_for_logits(labels)
    });
    let builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let mut trainer = builder.hook(ActivationCheckpointing::new("block")).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap_err().to_string()
}

#[test]
fn a_module_that_cannot_be_computed_again_is_an_error() {
    let count = Mutex::new(Tensor::zeros([1], (Kind::Float, device())));
    let error = refused(move |xs| {
        let _ = count.lock().unwrap().f_add_scalar_(1.0).unwrap();
        xs.exp()
    });
    let expected = "the activations of `block` cannot be computed again: `aten::add_.Scalar` changes in place a tensor that \
                    the module did not create, so it would be changed twice; exclude this module from activation checkpointing";
    assert!(error.contains(expected), "{error}");

    let doubles = builder().hook(ActivationCheckpointing::new("blocks.*")).on::<AfterModuleForward>(
        HookOptions::named("doubles").of("blocks.0.fc1").only([Phase::Train]),
        |cx| {
            let _no_grad = tch::no_grad_guard();
            let mut output = cx.output().shallow_clone();
            output *= 2.0;
        },
    );
    let error = computed(doubles).unwrap_err().to_string();
    assert!(error.contains("was changed in place by a hook"), "{error}");

    let error = computed(builder_of_changed_weights()).unwrap_err().to_string();
    assert!(error.contains("was changed in place after the module had used it"), "{error}");

    let error = builder().hook(ActivationCheckpointing::new("block.*")).build().unwrap_err().to_string();
    assert!(error.contains("has `of = \"block.*\"`, but no module has such a name"), "{error}");
}

/// A change that the version counter of the changed tensor does not show.
type Unseen = (&'static str, fn(&Tensor) -> Tensor, &'static str);

const REPLACED: &str = "reads was replaced, for example with `set_data`: compute a new tensor instead";
const THROUGH: &str = "changes in place";

const UNSEEN: [Unseen; 9] = [
    (
        "set_data of an intermediate result",
        |xs| {
            let mut hidden = xs.exp();
            hidden.set_data(&xs.detach().tanh());
            hidden.sin()
        },
        REPLACED,
    ),
    (
        "set_data to a part of its own memory",
        |xs| {
            let mut hidden = xs.exp();
            let part = hidden.detach().narrow(1, 0, 1).expand_as(&hidden);
            hidden.set_data(&part);
            hidden.sin()
        },
        REPLACED,
    ),
    (
        "set_data of a tensor that the module created",
        |xs| {
            let mut noise = xs.detach().ones_like();
            let first = xs * &noise;
            noise.set_data(&xs.detach().tanh());
            first * noise
        },
        REPLACED,
    ),
    (
        "set_data after two uses",
        |xs| {
            let mut hidden = xs.exp();
            let sum = &hidden + &hidden.sin();
            hidden.set_data(&xs.detach());
            sum.view_as(&hidden) * 2.0
        },
        REPLACED,
    ),
    (
        "set_data of a tensor from outside between two uses",
        |xs| {
            let mut outside = OUTSIDE.with(Tensor::shallow_clone);
            let first = xs * &outside;
            outside.set_data(&outside.detach().exp());
            first * outside
        },
        REPLACED,
    ),
    (
        "data() of an intermediate result",
        |xs| {
            let hidden = xs.exp();
            let _ = hidden.data().g_mul_scalar_(2.0);
            hidden.sin()
        },
        THROUGH,
    ),
    (
        "data() of a tensor that the module created",
        |xs| {
            let created = Tensor::ones([3], (Kind::Float, device()));
            let _ = created.data().g_mul_scalar_(2.0);
            (xs * created).sin()
        },
        THROUGH,
    ),
    (
        "data() of a view",
        |xs| {
            let hidden = xs.exp();
            let _ = hidden.narrow(1, 0, 1).data().g_mul_scalar_(2.0);
            hidden.sin()
        },
        THROUGH,
    ),
    (
        "data() of a tensor from outside",
        |xs| {
            let outside = OUTSIDE.with(Tensor::shallow_clone);
            let first = (xs * &outside).sin();
            let _ = outside.data().g_mul_scalar_(2.0);
            first
        },
        THROUGH,
    ),
];

thread_local! {
    /// A tensor that no module creates.
    static OUTSIDE: Tensor = Tensor::ones([3], (Kind::Float, device()));
}

#[test]
fn changes_that_version_counters_do_not_show_are_errors() {
    let mut wrong = Vec::new();
    for (case, compute, expected) in UNSEEN {
        let error = refused(compute);
        if !(error.contains("the activations of `block` cannot be computed again")
            && error.contains(expected))
        {
            wrong.push(format!("{case}: {error}"));
        }
    }
    // In hooks at modules inside.
    type Change = fn(&Tensor, &Tensor);
    let changes: [(&str, Change, &str); 3] = [
        (
            "data() of an output",
            |_, output| drop(output.data().g_mul_scalar_(2.0)),
            "was changed in place by a hook",
        ),
        (
            "set_data of an output",
            |_, output| output.shallow_clone().set_data(&output.detach().sin()),
            REPLACED,
        ),
        ("data() of the input", |input, _| drop(input.data().g_mul_scalar_(2.0)), "was changed in place"),
    ];
    for (case, change, expected) in changes {
        let input: Arc<Mutex<Option<Tensor>>> = Arc::default();
        let of_block = Arc::clone(&input);
        let train = |name| HookOptions::named(name).only([Phase::Train]);
        let builder = builder()
            .hook(ActivationCheckpointing::new("blocks.0"))
            .on::<BeforeModuleForward>(train("notes").of("blocks.0"), move |cx| {
                *of_block.lock().unwrap() = Some(cx.input().shallow_clone());
            })
            .on::<AfterModuleForward>(train("changes").of("blocks.0.fc1"), move |cx| {
                change(input.lock().unwrap().as_ref().unwrap(), cx.output());
            });
        match computed(builder) {
            Ok(_) => wrong.push(format!("{case}: no error")),
            Err(error) if error.to_string().contains(expected) => {}
            Err(error) => wrong.push(format!("{case}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Operations on intermediate results that a module may do.
#[test]
fn a_module_may_change_its_own_tensors_in_place() {
    let compute: [fn(&Tensor) -> Tensor; 4] = [
        |xs| {
            let mut hidden = xs + 1.0;
            let _ = hidden.transpose_(0, 1);
            let _ = hidden.transpose_(0, 1);
            let _ = hidden.unsqueeze_(0);
            hidden.squeeze_dim(0).sin()
        },
        |xs| {
            let mut hidden = Tensor::zeros([0], (Kind::Float, device()));
            let _ = hidden.resize_([4, 3]);
            let _ = hidden.zero_();
            let _ = hidden.f_add_(&xs.exp()).unwrap();
            hidden.sin()
        },
        |xs| {
            let data = xs.exp().data();
            xs * data.sin()
        },
        |xs| {
            let hidden = xs + 1.0;
            let part = hidden.narrow(1, 0, 2);
            let _ = hidden.narrow(1, 2, 1).g_mul_scalar_(2.0);
            hidden.sin() * part.sum(Kind::Float)
        },
    ];
    for (nth, compute) in compute.into_iter().enumerate() {
        let weights = |hook: Option<ActivationCheckpointing>| {
            let vs = nn::VarStore::new(device());
            let mut fc = nn::linear(vs.root() / "fc", 4, 3, Default::default());
            tch::no_grad(|| {
                fc.ws.copy_(&Tensor::arange(12, (Kind::Float, device())).sin().view([3, 4]));
                let _ = fc.bs.as_mut().unwrap().zero_();
            });
            let inner = nn::func(move |xs| compute(&xs.apply(&fc))).named("block");
            let task = Supervised::new(vs, inner, |logits: &Tensor, labels: &Tensor| {
                logits.cross_entropy_for_logits(labels)
            });
            let mut builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
            if let Some(hook) = hook {
                builder = builder.hook(hook);
            }
            let mut trainer = builder.build().unwrap();
            trainer.fit(&mut model::rows(8), None).unwrap_or_else(|error| panic!("{nth}: {error}"));
            exact_state(&trainer)
        };
        assert_eq!(weights(Some(ActivationCheckpointing::new("block"))), weights(None), "{nth}");
    }
}

#[test]
fn computing_gradients_inside_a_checkpointed_module_is_an_error() {
    let found = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&found);
    let vs = nn::VarStore::new(device());
    let fc = nn::linear(vs.root() / "fc", 4, 3, Default::default());
    let net = nn::func(move |xs| {
        let hidden = xs.apply(&fc).exp();
        let gradients = Tensor::f_run_backward(&[hidden.sum(Kind::Float)], &[&fc.ws], true, false);
        *kept.lock().unwrap() = gradients.err().map(|error| error.to_string());
        hidden
    });
    let task = Supervised::new(vs, net.named("block"), |logits: &Tensor, labels: &Tensor| {
        logits.cross_entropy_for_logits(labels)
    });
    let builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let mut trainer = builder.hook(ActivationCheckpointing::new("block")).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let error = found.lock().unwrap().take().unwrap();
    let expected =
        "a module with activation checkpointing computes gradients of its own operations: exclude the module";
    assert!(error.contains(expected), "{error}");
}

/// A builder with a hook that changes the weights between the forward and the backward pass.
fn builder_of_changed_weights() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    builder().hook(ActivationCheckpointing::new("blocks.*")).on::<AfterLoss>(
        HookOptions::named("changes").only([Phase::Train]),
        |cx| {
            let _no_grad = tch::no_grad_guard();
            let mut weight = cx.vars().get("blocks.0.fc1.weight").unwrap().shallow_clone();
            weight *= 2.0;
        },
    )
}

#[test]
fn a_run_resumes_exactly_with_and_without_the_hook() {
    alone(resumes);
}

fn resumes() {
    let folder = scratch("activation-checkpointing");
    let run = |epochs: u64, hooks: bool, resume: bool, name: &str| {
        let mut builder = builder().epochs(epochs).hook(Checkpoint::new(folder.join(name)));
        if hooks {
            builder = builder.hook(ActivationCheckpointing::new("blocks.*"));
        }
        if resume {
            builder = builder.resume(Resume::Auto);
        }
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut model::rows(12), None).unwrap();
        exact_state(&trainer)
    };
    let expected = run(3, false, false, "whole");
    run(2, true, false, "resumed");
    assert_eq!(run(3, false, true, "resumed"), expected);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_hook_runs_in_trials() {
    alone(runs_in_trials);
}

fn runs_in_trials() {
    let losses = |hook: bool| {
        let mut builder = builder();
        if hook {
            builder = builder.hook(ActivationCheckpointing::new("blocks.*"));
        }
        let mut trainer = builder.build().unwrap();
        let found = trainer.find_lr(&mut model::rows(16), &LearningRateFinder::new()).unwrap();
        format!("{found:?} {:?}", exact_state(&trainer))
    };
    assert!(losses(true) == losses(false));
}

/// The environment variable that says whether the child process uses the hook.
const HOOK: &str = "TRAINER_TESTS_CHECKPOINTING";

/// Trains 24 blocks on one large batch.
#[test]
#[ignore = "run by another test in a child process"]
fn one_step_of_24_blocks() {
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let vs = nn::VarStore::new(device());
    let mut net = nn::seq_t();
    for nth in 0..24i64 {
        let path = vs.root() / "blocks" / nth;
        let [up, down] =
            [(64, 128), (128, 64)].map(|(from, to)| nn::linear(&path / from, from, to, Default::default()));
        let block =
            nn::func_t(move |xs, train| xs + xs.apply(&up).gelu("none").dropout(0.1, train).apply(&down));
        net = net.add(block.named_t(&path));
    }
    let task =
        Supervised::new(vs, net, |pred: &Tensor, target: &Tensor| pred.mse_loss(target, Reduction::Mean));
    let mut builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).max_steps(1);
    if std::env::var_os(HOOK).is_some() {
        builder = builder.hook(ActivationCheckpointing::new("blocks.*"));
    }
    let mut trainer = builder.build().unwrap();
    let inputs = Tensor::ones([8192, 64], (Kind::Float, device()));
    let mut rows = InMemory::new((inputs.copy(), inputs)).unwrap().batch_size(8192);
    let before = peak();
    let summary = trainer.fit(&mut rows, None).unwrap();
    println!("loss {:e}, {} kB", summary.metrics["train/loss"], peak() - before);
}

/// The largest amount of memory that this process has used, in kilobytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_hook_reduces_the_memory_of_24_blocks_to_at_most_65_percent() {
    let run = |hook: bool| {
        let mut command = child_process("activation_checkpointing::one_step_of_24_blocks");
        // Otherwise, glibc keeps memory that was freed, more or less of it by chance.
        command.env("MALLOC_MMAP_THRESHOLD_", "65536");
        if hook {
            command.env(HOOK, "1");
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (loss, kilobytes) = text
            .split_once("loss ")
            .and_then(|(_, rest)| rest.split_once(" kB")?.0.split_once(", "))
            .unwrap();
        (loss.to_owned(), kilobytes.parse::<f64>().unwrap())
    };
    let [(loss, plain), (same, checkpointed)] = [false, true].map(run);
    println!("{plain} kB, {checkpointed} kB with the hook");
    assert_eq!(loss, same);
    assert!(checkpointed <= 0.65 * plain, "{checkpointed} kB instead of {plain} kB");
}
