//! Every built-in hook, in one process and on two ranks without sharding, with sharded state, and
//! with divided gradients: the same results, or an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trainer::TrainerBuilder;
use trainer::hooks::*;
use trainer::loggers::{Csv, JsonLines, Report, TensorBoard, ToFile, Wandb};
use trainer::metrics::{Accuracy, Metric};
use trainer::modules::Patterns;
use trainer::optim::Sharded;
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::testing::{Ranks, once};

use crate::distributed::folder_var;
use crate::support::scratch;

/// A network with named modules for images `[n, 1, 2, 2]`.
struct Net {
    vars: nn::VarStore,
    net: nn::SequentialT,
}

type Images = (Tensor, Tensor);

impl Net {
    fn new() -> Self {
        tch::set_num_threads(1);
        let vars = nn::VarStore::new(Device::Cpu);
        let root = vars.root();
        let fc = |name: &str, from, to| nn::linear(&root / name, from, to, Default::default());
        let net = nn::seq_t()
            .add_fn(|images| images.flatten(1, -1))
            .add(fc("fc1", 4, 8).named(&root / "fc1"))
            .add(nn::batch_norm1d(&root / "norm", 8, Default::default()).named_t(&root / "norm"))
            .add(nn::func(Tensor::relu).named(&root / "relu"))
            .add(fc("fc2", 8, 3).named(&root / "fc2"));
        let _no_grad = tch::no_grad_guard();
        for (name, mut tensor) in vars.variables().into_iter().filter(|(name, _)| name.starts_with("fc")) {
            let values = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu));
            tensor.copy_(&((values + name.len() as f64).sin() * 0.3).view_as(&tensor));
        }
        Net { vars, net }
    }
}

impl Task for Net {
    type Batch = Images;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (images, _): &Images, _: Mode) -> Result<Tensor> {
        Ok(images.apply_t(&self.net, false))
    }
    fn loss(&mut self, logits: &Tensor, (_, labels): &Images) -> Result<Tensor> {
        Ok(logits.cross_entropy_loss::<Tensor>(labels, None, Reduction::Mean, -100, 0.0))
    }
}

fn rows() -> InMemory<Images> {
    let inputs = Tensor::arange(16 * 4, (Kind::Float, Device::Cpu)).view([16, 1, 2, 2]).sin();
    let labels = Tensor::arange(16, (Kind::Int64, Device::Cpu)).remainder(3);
    InMemory::new((inputs, labels)).unwrap().batch_size(4)
}

/// What a hook does on two ranks, compared with training without `Sharded`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// The same as in one process, in all stages.
    AsOne,
    /// The same in all stages. It differs from one process: each rank draws random numbers, rounds
    /// or trains by itself.
    Same,
    /// Other random numbers with divided gradients.
    Random,
    /// An error from this stage on.
    RefusedFrom(usize, &'static str),
}
use Expect::{AsOne, Random, RefusedFrom, Same};

impl Expect {
    /// The first stage in which the hook is refused on two ranks.
    fn refused_from(self) -> usize {
        if let RefusedFrom(stage, _) = self { stage } else { usize::MAX }
    }
}

type Add = fn(TrainerBuilder<Net>) -> TrainerBuilder<Net>;

/// The built-in hooks. A name with a space has other settings of the hook before the space.
fn hooks() -> Vec<(&'static str, Expect, Add)> {
    let separately = "the ranks cannot train separately with a `Sharded` optimizer";
    vec![
        ("ActivationCheckpointing", AsOne, |it| it.hook(ActivationCheckpointing::new("fc1"))),
        ("ActivationStats", AsOne, |it| it.hook(ActivationStats::new(Patterns::all()).every(1))),
        ("Amp", Same, |it| it.hook(Amp::bf16())),
        ("Amp fp16", Same, |it| it.hook(Amp::fp16().init_scale(3e38).growth_interval(2))),
        ("BatchNormUpdate", AsOne, |it| it.hook(Swa::from_epoch(1)).update_batch_norm(rows())),
        ("Checkpoint", AsOne, |it| it.hook(Checkpoint::in_run_folder())),
        ("Checkup", AsOne, |it| it.hook(Checkup::default())),
        ("ClipGradNorm", AsOne, |it| it.clip_grad_norm(0.1)),
        ("ClipGradValue", AsOne, |it| it.clip_grad_value(0.01)),
        ("CutMix", Same, |it| it.hook(CutMix::new(1.0).classes(3))),
        ("DataParallel", AsOne, |it| it.hook(DataParallel::new().find_unused(true))),
        (
            "DataParallel compressed",
            RefusedFrom(3, "cannot compress gradients that the optimizer divides"),
            |it| it.hook(DataParallel::new().compress(Kind::BFloat16)),
        ),
        ("DeadUnits", AsOne, |it| it.hook(DeadUnits::new("relu"))),
        ("Distillation", AsOne, |it| {
            let vs = nn::VarStore::new(Device::Cpu);
            it.hook(Distillation::from_fn(vs, |(images, _): &Images| {
                Ok(images.flatten(1, -1).narrow(1, 0, 3))
            }))
        }),
        ("EarlyStopping", AsOne, |it| {
            it.hook(EarlyStopping::new("train/loss", Goal::Minimize).patience(0).min_delta(10.0))
        }),
        ("Ema", AsOne, |it| it.hook(Ema::new(0.9))),
        ("FeatureRecorder", AsOne, |it| it.hook(FeatureRecorder::new("fc1"))),
        ("FieldSchedule", AsOne, |it| {
            it.hook(Ema::new(0.9)).hook(FieldSchedule::new(Cosine::to(0.1), |_: &mut Ema, _| ()))
        }),
        ("Freeze", AsOne, |it| it.hook(Freeze::new("fc1.*").thaw_at(1, "fc1.*"))),
        ("GradientNoise", Random, |it| it.hook(GradientNoise::new(1e-4))),
        ("HyperparameterMonitor", AsOne, |it| it.hook(HyperparameterMonitor::new())),
        ("HyperparameterSchedule", AsOne, |it| it.hook(HyperparameterSchedule::lr(Cosine::to(0.0)))),
        ("LabelSmoothing", AsOne, |it| it.hook(LabelSmoothing::new(0.1).classes(3))),
        ("LocalSgd", RefusedFrom(2, separately), |it| it.hook(LocalSgd::every(2))),
        ("Lookahead", AsOne, |it| it.hook(Lookahead::new(2, 0.5))),
        ("Lora", Same, |it| it.hook(Lora::new("fc1", 2))),
        ("MixUp", Same, |it| it.hook(MixUp::new(1.0).classes(3))),
        ("ModelSummary", AsOne, |it| it.hook(ModelSummary::new())),
        ("NanGuard", AsOne, |it| it.hook(NanGuard::skip_batch().gradients(true))),
        ("NanGuard that finds one", AsOne, |it| {
            it.hook(Spoils(1)).hook(NanGuard::skip_batch().gradients(true))
        }),
        ("ParameterMonitor", AsOne, |it| {
            let monitor = ParameterMonitor::new(Patterns::all()).weights(true).updates(true);
            it.hook(monitor.every(1))
        }),
        (
            "ParameterMonitor with histograms",
            RefusedFrom(3, "cannot record histograms of gradients that the optimizer divides"),
            |it| it.hook(ParameterMonitor::new(Patterns::all()).histograms(true)),
        ),
        ("Progress", AsOne, |it| it.hook(Progress::new())),
        ("RankMonitor", AsOne, |it| it.hook(RankMonitor::new())),
        ("ReduceOnPlateau", AsOne, |it| {
            it.hook(ReduceOnPlateau::new("train/loss", Goal::Minimize).patience(0).threshold_abs(10.0))
        }),
        ("Sam", RefusedFrom(1, "does not support several processes"), |it| it.hook(Sam::new(0.05))),
        ("SaturatedUnits", AsOne, |it| it.hook(SaturatedUnits::new("relu", 0.0, 1.0))),
        ("SpikeGuard", AsOne, |it| it.hook(SpikeGuard::new().keep_every(2))),
        ("SpikeGuard that rolls back", AsOne, |it| {
            it.hook(Spike(false)).hook(SpikeGuard::new().keep_every(1))
        }),
        ("StochasticDepth", Same, |it| {
            let builder = it.hook(DataParallel::new().find_unused(true));
            builder.hook(StochasticDepth::new("relu", 0.5).per_batch(true))
        }),
        ("Swa", AsOne, |it| it.hook(Swa::from_epoch(1))),
        ("SystemMonitor", AsOne, |it| it.hook(SystemMonitor::new())),
        ("ThroughputMonitor", AsOne, |it| it.hook(ThroughputMonitor::new())),
        ("MetricHook", AsOne, |it| {
            it.hook(
                Accuracy::multiclass(3)
                    .inputs(|(_, labels): &Images, pred: &Tensor| Some((pred.copy(), labels.copy()))),
            )
        }),
        ("Csv", AsOne, |it| it.hook(Csv::new())),
        ("JsonLines", AsOne, |it| it.hook(JsonLines::new())),
        ("Report", AsOne, |it| it.hook(Report::new())),
        ("TensorBoard", AsOne, |it| it.hook(TensorBoard::new())),
        ("ToFile", AsOne, |it| it.hook(ToFile::in_run_folder("rows.txt", |_, _| Ok(())))),
        ("Wandb", AsOne, |it| it.hook(Wandb::new("digits"))),
        ("TapeFile", AsOne, |it| it.tape(trainer::Tape::steps(4))),
        ("no hook", AsOne, |it| it),
    ]
}

/// These need a terminal, a GPU, a profiler or a server, and read no gradients.
const LEFT: [&str; 7] =
    ["Console", "CudaMemoryMonitor", "Dashboard", "GpuMonitor", "KernelProfiler", "MlFlow", "replay"];

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(&std::env::var("TRAINER_TESTS_FOLDER").unwrap()).join(name)
}

/// Makes the gradients of a step NaN, where they are.
struct Spoils(u64);

#[hook]
impl Spoils {
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        if cx.counters().batches_seen == self.0 {
            for (name, mut grad) in cx.grads().filter(|(name, _)| **name == *"fc2.bias") {
                assert!(cx.has_grad_of(&name));
                let _ = grad.f_fill_(f64::NAN)?;
            }
        }
        Ok(())
    }
}

/// Makes a loss NaN.
struct Spike(bool);

#[hook]
impl Spike {
    #[hook(only = train)]
    fn after_transfer(&mut self, cx: &mut Cx<AfterTransfer>) -> Result<()> {
        if cx.counters().batches_seen == 2 && !std::mem::replace(&mut self.0, true) {
            let batch = cx.batch_mut::<Images>()?;
            batch.0 = &batch.0 * f64::INFINITY;
        }
        Ok(())
    }
}

/// The weights and the metrics after a fit, or its error.
type Outcome = Result<Fitted, String>;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Fitted {
    weights: Vec<f64>,
    metrics: BTreeMap<String, f64>,
    steps: u64,
}

/// Trains with a hook in a stage: 1 without sharding, 2 with sharded state, 3 with divided
/// gradients.
fn train(add: Add, name: &str, stage: usize) -> Outcome {
    tch::manual_seed(5);
    let adam = || AdamW::new(1e-2);
    let optimizer: Box<dyn Optimizer> = match stage {
        1 => Box::new(adam()),
        2 => Box::new(Sharded::new(adam())),
        _ => Box::new(Sharded::new(adam()).gradients(true).bucket_bytes(64)),
    };
    let builder =
        Trainer::builder(Net::new()).optimizer(optimizer).discover(Discover::None).seed(3).epochs(3);
    let run = folder(&format!("{}-{stage}", name.replace(' ', "-")));
    let accumulates = !name.starts_with("Sam");
    let builder = if accumulates { builder.accumulate(2) } else { builder };
    let fit = || -> Result<Fitted> {
        let mut trainer = add(builder.run_folder(run)).build()?;
        let summary = trainer.fit(&mut rows(), Some(&mut rows()))?;
        let mut weights = Vec::new();
        for var in trainer.vars().iter() {
            weights.extend(Vec::<f64>::try_from(&var.tensor.view([-1]).to_kind(Kind::Double))?);
        }
        let is_compared =
            |name: &str| ["norm", "ratio", "loss", "nan_guard"].iter().any(|part| name.contains(part));
        let metrics = summary.metrics.iter().filter(|(name, _)| is_compared(name));
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Fitted { weights, metrics, steps: summary.counters.optimizer_steps })
    };
    fit().map_err(|error| error.to_string())
}

fn is_close(one: &Fitted, other: &Fitted, with_metrics: bool) -> bool {
    let close = |one: f64, other: f64| {
        (one - other).abs() <= 2e-5 * (1.0 + other.abs()) || one.to_bits() == other.to_bits()
    };
    let metrics = one.metrics.iter().zip(&other.metrics);
    one.steps == other.steps
        && one.weights.len() == other.weights.len()
        && one.weights.iter().zip(&other.weights).all(|(one, other)| close(*one, *other))
        && (!with_metrics
            || one.metrics.len() == other.metrics.len()
                && metrics.into_iter().all(|((name, one), (of, other))| name == of && close(*one, *other)))
}

/// Trains with every hook in every stage, except where it is refused on two ranks.
fn all_trained(folder: &Path, count: u32) -> Vec<Vec<Vec<Option<Fitted>>>> {
    let run = || -> Result<Vec<Vec<Option<Outcome>>>> {
        let is_trained = |expect: Expect, stage| count == 1 || stage < expect.refused_from();
        let of_stages = |(name, expect, add)| {
            (1..=3).map(|stage| is_trained(expect, stage).then(|| train(add, name, stage))).collect()
        };
        Ok(hooks().into_iter().map(of_stages).collect())
    };
    let [(name, value)] = folder_var(folder);
    let all = Ranks::new(count).timeout(Duration::from_secs(240)).env(name, value).run(run).unwrap();
    let mut errors = Vec::new();
    let mut fitted = |nth: usize, outcome: Option<Outcome>| {
        outcome?.inspect_err(|error| errors.push(format!("`{}`: {error}", hooks()[nth].0))).ok()
    };
    let mut of_rank = |rank: Vec<Vec<Option<Outcome>>>| -> Vec<Vec<Option<Fitted>>> {
        let stages = |(nth, all): (usize, Vec<_>)| all.into_iter().map(|it| fitted(nth, it)).collect();
        rank.into_iter().enumerate().map(stages).collect()
    };
    let all = all.into_iter().map(&mut of_rank).collect();
    assert!(errors.is_empty(), "{count} ranks: {errors:#?}");
    all
}

#[test]
fn every_built_in_hook_works_in_every_stage_or_is_refused() {
    let directory = once(|| scratch("divided-hooks"));
    let [alone, ranks] = [1, 2].map(|count| {
        let own = directory.join(count.to_string());
        once(|| fs::create_dir_all(&own).unwrap());
        all_trained(&own, count)
    });
    for (nth, (name, expect, add)) in hooks().into_iter().enumerate() {
        let one = alone[0][nth][0].as_ref().unwrap();
        let plain = ranks[0][nth][0].as_ref();
        for stage in 1..=3 {
            let alone = alone[0][nth][stage - 1].as_ref().unwrap();
            assert!(is_close(alone, one, true), "`{name}` in one process, stage {stage}: {alone:?} {one:?}");
            let [Some(main), Some(other)] = [0, 1].map(|rank: usize| ranks[rank][nth][stage - 1].as_ref())
            else {
                // An error ends the connections, so each has processes of its own.
                let [(variable, value)] = folder_var(&directory);
                let of_ranks = Ranks::new(2).env(variable, value).run(|| Ok(train(add, name, stage).err()));
                let RefusedFrom(_, text) = expect else { unreachable!() };
                for error in of_ranks.unwrap() {
                    assert!(
                        error.as_ref().is_some_and(|error| error.contains(text)),
                        "`{name}` in stage {stage}: {error:?}"
                    );
                }
                continue;
            };
            assert_eq!(main.weights, other.weights, "`{name}` in stage {stage}: the ranks differ");
            let plain = plain.unwrap();
            assert!(
                expect == Random && stage == 3 || is_close(main, plain, true),
                "`{name}` in stage {stage}: {main:?}, without sharding {plain:?}"
            );
            assert!(
                expect != AsOne || is_close(main, one, false),
                "`{name}` in stage {stage}: {main:?}, in one process {one:?}"
            );
        }
    }
    once(|| fs::remove_dir_all(&directory).unwrap());
}

#[test]
fn the_table_has_every_built_in_hook() {
    let all = trainer::__private::paths_of_hooks();
    let all: BTreeSet<&str> =
        all.iter().map(|path| path.split('(').next().unwrap().split("::").nth(2).unwrap()).collect();
    let hooks = hooks();
    let listed: BTreeSet<&str> = hooks.iter().filter_map(|(name, ..)| name.split(' ').next()).collect();
    let missing: Vec<_> = all.iter().filter(|name| !listed.contains(**name)).collect();
    assert_eq!(missing, LEFT.iter().collect::<Vec<_>>(), "add a row for the hook to `hooks()`");
}
