//! Changing any single setting of a built-in optimizer, schedule or hook shows up as a difference.

#![allow(clippy::disallowed_methods)]

mod invalid;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Audience;
use crate::TrainerBuilder;
use crate::hook::Discover;
use crate::hooks::*;
use crate::loggers::{Console, Csv, JsonLines, MlFlow, TensorBoard, Wandb};
use crate::metrics::{Accuracy, MetricHook};
use crate::modules::{Named, Naming, Patterns};
use crate::optim::*;
use crate::prelude::own::*;
use crate::run::dispatch::registration::HookImpl;
use crate::run::dispatch::registration::Hooks;
use crate::schedule::*;

/// Two layers without biases.
#[derive(Debug)]
struct Two([Named<nn::Linear>; 2]);

impl nn::Module for Two {
    fn forward(&self, inputs: &Tensor) -> Tensor {
        inputs.apply(&self.0[0]).apply(&self.0[1])
    }
}

type Net = Supervised<Two, fn(&Tensor, &Tensor) -> Tensor>;
type Set = Box<dyn FnOnce(TrainerBuilder<Net>) -> TrainerBuilder<Net>>;

fn trainer(method: &str, set: Set) -> Trainer<Net> {
    let vs = nn::VarStore::new(Device::Cpu);
    let config = nn::LinearConfig { bias: false, ..Default::default() };
    let layers = ["a", "b"].map(|name| nn::linear(vs.root() / name, 2, 2, config).named(name));
    let loss: fn(&Tensor, &Tensor) -> Tensor = |pred, target| pred.mse_loss(target, tch::Reduction::Mean);
    let builder = Trainer::builder(Supervised::new(vs, Two(layers), loss)).discover(Discover::None);
    set(builder).build().expect(method)
}

/// Two programs that differ in one setting.
struct Case {
    /// The method that changes the setting, preceded by its type or macro.
    method: &'static str,
    programs: [Set; 2],
    /// The end of the setting's name; empty if more than one setting differs.
    setting: &'static str,
}

fn hooks<H: Hooks>(method: &'static str, setting: &'static str, [one, other]: [H; 2]) -> Case {
    let set = |hook: H| -> Set { Box::new(|builder| builder.optimizer(Sgd::new(0.1)).hook(hook)) };
    Case { method, programs: [set(one), set(other)], setting }
}

fn optimizers<O: Optimizer + 'static>(
    method: &'static str,
    setting: &'static str,
    [one, other]: [O; 2],
) -> Case {
    let set = |optimizer: O| -> Set { Box::new(|builder| builder.optimizer(optimizer)) };
    Case { method, programs: [set(one), set(other)], setting }
}

fn schedules<S: Schedule>(method: &'static str, setting: &'static str, both: [S; 2]) -> Case {
    hooks(method, setting, both.map(HyperparameterSchedule::lr))
}

fn boxed(schedule: impl Schedule) -> Box<dyn Schedule> {
    Box::new(schedule)
}

fn early() -> EarlyStopping {
    EarlyStopping::new("valid/loss", Goal::Minimize)
}

fn plateau() -> ReduceOnPlateau {
    ReduceOnPlateau::new("valid/loss", Goal::Minimize)
}

fn lora(rank: i64) -> Lora {
    Lora::new("a", rank)
}

/// Returns a hook that distills a network whose weights all have this value.
fn distillation(value: f64) -> Distillation {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 2, 2, Default::default());
    vs.trainable_variables().iter_mut().for_each(|weight| drop(tch::no_grad(|| weight.fill_(value))));
    Distillation::new(Supervised::new(vs, net, |pred: &Tensor, _: &Tensor| pred.mean(Kind::Float)))
}

fn distillation_from_fn(value: f64) -> Distillation {
    let vs = nn::VarStore::new(Device::Cpu);
    let weight = vs.root().var("weight", &[2, 2], nn::Init::Const(value));
    Distillation::from_fn(vs, move |(inputs, _): &(Tensor, Tensor)| Ok(inputs.matmul(&weight)))
}

fn accuracy() -> MetricHook<Accuracy> {
    MetricHook::new(Accuracy::multiclass(2))
}

fn grouped(group: impl Into<Group>) -> AdamW {
    AdamW::new(0.1).group("a.*", group)
}

fn clips(
    method: &'static str,
    setting: &'static str,
    set: fn(TrainerBuilder<Net>, f64) -> TrainerBuilder<Net>,
) -> Case {
    let program = |max: f64| -> Set { Box::new(move |builder| set(builder.optimizer(Sgd::new(0.1)), max)) };
    Case { method, programs: [program(1.0), program(2.0)], setting }
}

/// Returns a program that updates the batch-norm statistics with a loader of `rows` rows.
fn updates(rows: i64) -> Set {
    let row = || Tensor::zeros([rows, 2], (Kind::Float, Device::Cpu));
    let loader = InMemory::new((row(), row())).expect("as many targets as inputs").batch_size(2);
    Box::new(|builder| builder.optimizer(Sgd::new(0.1)).hook(Swa::from_epoch(1)).update_batch_norm(loader))
}

/// A hook whose fields serde saves.
#[derive(serde::Deserialize, serde::Serialize)]
struct Saved {
    max: f64,
}

#[hook(state)]
impl Saved {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.max += 1.0;
    }
}

/// A schedule that lists no settings.
struct Custom(f64);

impl Schedule for Custom {
    fn factor(&self, step: u64, _: Option<u64>) -> Result<f64> {
        Ok(self.0.powf(step as f64))
    }
}

/// An algorithm that a program defines.
static ALGORITHM: Algorithm = Algorithm::new("Own", |_| Ok(())).settings(&[Setting::fraction("beta", 0.5)]);

fn cases() -> Vec<Case> {
    let linear = || StochasticDepth::linear_decay(["a", "b"], 0.2);
    let lr = || HyperparameterSchedule::lr(Constant::new(1.0));
    let beta = || HyperparameterSchedule::values("momentum", Constant::new(1.0));
    let mut cases = vec![
        hooks("Amp::bf16", "", [Amp::bf16(), Amp::fp16()]),
        hooks("Amp::fp16", "", [Amp::bf16(), Amp::fp16()]),
        hooks("Amp::init_scale", "init_scale", [2.0, 4.0].map(|scale| Amp::fp16().init_scale(scale))),
        hooks("Amp::growth_interval", "growth_interval", [2, 3].map(|n| Amp::fp16().growth_interval(n))),
        hooks("Ema::new", "decay", [0.9, 0.8].map(Ema::new)),
        hooks("Ema::warm_up", "warm_up", [true, false].map(|on| Ema::new(0.9).warm_up(on))),
        hooks("Ema::every", "every", [1, 2].map(|n| Ema::new(0.9).every(n))),
        hooks("Ema::buffers", "buffers", [true, false].map(|on| Ema::new(0.9).buffers(on))),
        hooks("Swa::from_epoch", "from_epoch", [1, 2].map(Swa::from_epoch)),
        hooks("Swa::buffers", "buffers", [true, false].map(|on| Swa::from_epoch(1).buffers(on))),
        Case {
            method: "TrainerBuilder::update_batch_norm",
            programs: [updates(2), updates(4)],
            setting: "loader",
        },
        clips("TrainerBuilder::clip_grad_norm", "max_norm", TrainerBuilder::clip_grad_norm),
        clips("TrainerBuilder::clip_grad_value", "max_value", TrainerBuilder::clip_grad_value),
        hooks("ClipGradNorm::new", "max_norm", [1.0, 2.0].map(ClipGradNorm::new)),
        hooks("ClipGradValue::new", "max_value", [1.0, 2.0].map(ClipGradValue::new)),
        hooks(
            "DataParallel::bucket_bytes",
            "bucket_bytes",
            [1, 2].map(|n| DataParallel::new().bucket_bytes(n)),
        ),
        hooks(
            "DataParallel::find_unused",
            "find_unused",
            [true, false].map(|on| DataParallel::new().find_unused(on)),
        ),
        hooks(
            "DataParallel::static_graph",
            "static_graph",
            [true, false].map(|on| DataParallel::new().static_graph(on)),
        ),
        hooks("LocalSgd::every", "every", [1, 2].map(LocalSgd::every)),
        hooks(
            "LocalSgd::outer",
            "",
            [(0.7, 0.9), (0.5, 0.0)].map(|(lr, momentum)| LocalSgd::every(2).outer(lr, momentum)),
        ),
        hooks(
            "DataParallel::compress",
            "compress",
            [Kind::Half, Kind::BFloat16].map(|kind| DataParallel::new().compress(kind)),
        ),
        hooks(
            "EarlyStopping::new",
            "metric",
            ["a", "b"].map(|name| EarlyStopping::new(name, Goal::Minimize)),
        ),
        hooks(
            "EarlyStopping::new",
            "goal",
            [Goal::Minimize, Goal::Maximize].map(|goal| EarlyStopping::new("a", goal)),
        ),
        hooks("EarlyStopping::patience", "patience", [1, 2].map(|n| early().patience(n))),
        hooks("EarlyStopping::min_delta", "min_delta", [0.1, 0.2].map(|delta| early().min_delta(delta))),
        hooks(
            "EarlyStopping::check_finite",
            "check_finite",
            [true, false].map(|on| early().check_finite(on)),
        ),
        hooks("EarlyStopping::stop_at", "stop_at", [early().stop_at(0.1), early()]),
        hooks("EarlyStopping::diverge_at", "diverge_at", [0.1, 0.2].map(|value| early().diverge_at(value))),
        hooks("FeatureRecorder::new", "", ["a", "b"].map(FeatureRecorder::new)),
        hooks(
            "FeatureRecorder::all",
            "all",
            [FeatureRecorder::new("a").all(true), FeatureRecorder::new("a")],
        ),
        hooks(
            "FeatureRecorder::only",
            "only",
            [Phase::Train, Phase::Test].map(|phase| FeatureRecorder::new("a").only(phase)),
        ),
        hooks(
            "FeatureRecorder::device",
            "device",
            [FeatureRecorder::new("a").device(Device::Cpu), FeatureRecorder::new("a")],
        ),
        hooks(
            "FieldSchedule::new",
            "end",
            [0.1, 0.2].map(|end| FieldSchedule::new(Cosine::to(end), |_: &mut Ema, _| {})),
        ),
        hooks(
            "FieldSchedule::by_epoch",
            "by_epoch",
            [true, false].map(|on| FieldSchedule::new(Cosine::to(0.1), |_: &mut Ema, _| {}).by_epoch(on)),
        ),
        hooks("Freeze::new", "calls", ["a.*", "b.*"].map(Freeze::new)),
        hooks("Freeze::nothing", "calls", [Freeze::nothing(), Freeze::new("a.*")]),
        hooks("Freeze::thaw_at", "calls", [1, 2].map(|at| Freeze::new("a.*").thaw_at(at, "a.*"))),
        hooks(
            "Freeze::freeze_at",
            "calls",
            ["a.*", "b.*"].map(|names| Freeze::nothing().freeze_at(1, names)),
        ),
        hooks("Freeze::by_step", "by_step", [true, false].map(|on| Freeze::new("a.*").by_step(on))),
        hooks(
            "HyperparameterSchedule::values",
            "hyperparameter",
            ["momentum", "lr"].map(|name| HyperparameterSchedule::values(name, Constant::new(1.0))),
        ),
        hooks(
            "HyperparameterSchedule::factors",
            "sets",
            [HyperparameterSchedule::factors("momentum", Constant::new(1.0)), beta()],
        ),
        hooks(
            "HyperparameterSchedule::momentum",
            "factor",
            [0.1, 0.2].map(|it| HyperparameterSchedule::momentum(Constant::new(it))),
        ),
        hooks("Lora::new", "", ["a", "b"].map(|modules| Lora::new(modules, 1))),
        hooks("Lora::new", "rank", [1, 2].map(|rank| lora(rank).alpha(1.0))),
        hooks("Lora::alpha", "alpha", [1.0, 2.0].map(|alpha| lora(1).alpha(alpha))),
        hooks("Lora::dropout", "dropout", [0.1, 0.2].map(|p| lora(1).dropout(p))),
        hooks("Lora::rs_lora", "rs_lora", [true, false].map(|on| lora(1).rs_lora(on))),
        hooks("Lora::transposed", "transposed", [lora(1).transposed("a"), lora(1)]),
        hooks("Lora::trainable", "trainable", ["b.*", "b.weight"].map(|names| lora(1).trainable(names))),
        hooks("HyperparameterSchedule::lr", "", [lr(), HyperparameterSchedule::lr(Cosine::to(0.0))]),
        hooks("HyperparameterSchedule::by_epoch", "by_epoch", [true, false].map(|on| lr().by_epoch(on))),
        hooks("HyperparameterSchedule::part", "part", [lr().part("a"), lr()]),
        hooks("HyperparameterSchedule::group", "groups", ["a", "b"].map(|name| lr().group(name))),
        hooks("HyperparameterSchedule::ungrouped", "groups", [lr().ungrouped(), lr()]),
        hooks("HyperparameterSchedule::by_epoch", "by_epoch", [true, false].map(|on| beta().by_epoch(on))),
        hooks("HyperparameterSchedule::part", "part", [beta().part("a"), beta()]),
        hooks("HyperparameterSchedule::group", "groups", ["a", "b"].map(|name| beta().group(name))),
        hooks("HyperparameterSchedule::ungrouped", "groups", [beta().ungrouped(), beta()]),
        hooks("CutMix::new", "alpha", [0.1, 0.2].map(CutMix::new)),
        hooks("MixUp::new", "alpha", [0.1, 0.2].map(MixUp::new)),
        hooks("Distillation::new", "teacher", [1.0, 2.0].map(distillation)),
        hooks("Distillation::from_fn", "teacher", [1.0, 2.0].map(distillation_from_fn)),
        hooks(
            "Distillation::temperature",
            "temperature",
            [1.0, 2.0].map(|it| distillation(1.0).temperature(it)),
        ),
        hooks("Distillation::weight", "weight", [0.1, 0.2].map(|it| distillation(1.0).weight(it))),
        hooks(
            "Distillation::mask",
            "has_mask",
            [distillation(1.0).mask(|(inputs, _): &(Tensor, Tensor)| inputs.copy()), distillation(1.0)],
        ),
        hooks(
            "Distillation::hint",
            "hints",
            [0.1, 0.2].map(|weight| distillation(1.0).hint("a", "b", weight)),
        ),
        hooks("LabelSmoothing::new", "epsilon", [0.1, 0.2].map(LabelSmoothing::new)),
        hooks("samples_settings::classes", "classes", [2, 3].map(|n| CutMix::new(0.1).classes(n))),
        hooks("samples_settings::classes", "classes", [2, 3].map(|n| MixUp::new(0.1).classes(n))),
        hooks("samples_settings::classes", "classes", [2, 3].map(|n| LabelSmoothing::new(0.1).classes(n))),
        hooks("GradientNoise::new", "eta", [0.1, 0.2].map(GradientNoise::new)),
        hooks("GradientNoise::gamma", "gamma", [0.1, 0.2].map(|gamma| GradientNoise::new(0.1).gamma(gamma))),
        hooks("Lookahead::new", "k", [5, 6].map(|k| Lookahead::new(k, 0.5))),
        hooks("Lookahead::new", "alpha", [0.5, 0.6].map(|alpha| Lookahead::new(5, alpha))),
        hooks("Sam::new", "rho", [0.1, 0.2].map(Sam::new)),
        hooks("Sam::adaptive", "adaptive", [true, false].map(|on| Sam::new(0.1).adaptive(on))),
        hooks("NanGuard::fail", "action", [NanGuard::fail(), NanGuard::stop()]),
        hooks("NanGuard::stop", "action", [NanGuard::stop(), NanGuard::skip_batch()]),
        hooks("NanGuard::skip_batch", "action", [NanGuard::skip_batch(), NanGuard::fail()]),
        hooks("NanGuard::buffers", "buffers", [NanGuard::fail(), NanGuard::fail().buffers(true)]),
        hooks("NanGuard::validation", "validation", [NanGuard::fail(), NanGuard::fail().validation(true)]),
        hooks("NanGuard::loss", "loss", [true, false].map(|on| NanGuard::fail().gradients(true).loss(on))),
        hooks("NanGuard::gradients", "gradients", [true, false].map(|on| NanGuard::fail().gradients(on))),
        hooks("NanGuard::every", "every", [1, 2].map(|n| NanGuard::fail().every(n))),
        hooks(
            "ReduceOnPlateau::new",
            "metric",
            ["a", "b"].map(|name| ReduceOnPlateau::new(name, Goal::Minimize)),
        ),
        hooks(
            "ReduceOnPlateau::new",
            "goal",
            [Goal::Minimize, Goal::Maximize].map(|goal| ReduceOnPlateau::new("a", goal)),
        ),
        hooks("ReduceOnPlateau::factor", "factor", [0.1, 0.2].map(|it| plateau().factor(it))),
        hooks("ReduceOnPlateau::patience", "patience", [1, 2].map(|it| plateau().patience(it))),
        hooks("ReduceOnPlateau::threshold", "threshold", [0.1, 0.2].map(|it| plateau().threshold(it))),
        hooks(
            "ReduceOnPlateau::threshold_abs",
            "threshold_abs",
            [0.1, 0.2].map(|it| plateau().threshold_abs(it)),
        ),
        hooks("ReduceOnPlateau::cooldown", "cooldown", [1, 2].map(|it| plateau().cooldown(it))),
        hooks("ReduceOnPlateau::min_lr", "min_lr", [0.1, 0.2].map(|it| plateau().min_lr(it))),
        hooks("ReduceOnPlateau::eps", "eps", [0.1, 0.2].map(|it| plateau().eps(it))),
        hooks("ReduceOnPlateau::part", "part", ["a", "b"].map(|it| plateau().part(it))),
        hooks("SpikeGuard::window", "window", [2, 3].map(|it| SpikeGuard::new().window(it))),
        hooks("SpikeGuard::threshold", "threshold", [2.0, 3.0].map(|it| SpikeGuard::new().threshold(it))),
        hooks("SpikeGuard::keep_every", "keep_every", [2, 3].map(|it| SpikeGuard::new().keep_every(it))),
        hooks("SpikeGuard::limit", "limit", [2, 3].map(|it| SpikeGuard::new().limit(it))),
        hooks("StochasticDepth::new", "p", [0.1, 0.2].map(|p| StochasticDepth::new("a", p))),
        hooks(
            "StochasticDepth::linear_decay",
            "p",
            [linear(), StochasticDepth::linear_decay(["a", "b"], 0.3)],
        ),
        hooks("StochasticDepth::per_batch", "per_batch", [true, false].map(|on| linear().per_batch(on))),
        hooks("DeadUnits::new", "", ["a", "b"].map(DeadUnits::new)),
        hooks("DeadUnits::threshold", "threshold", [0.1, 0.2].map(|it| DeadUnits::new("a").threshold(it))),
        hooks("SaturatedUnits::new", "lower", [0.1, 0.2].map(|it| SaturatedUnits::new("a", it, 1.0))),
        hooks("SaturatedUnits::new", "upper", [0.8, 0.9].map(|it| SaturatedUnits::new("a", 0.0, it))),
        hooks(
            "SaturatedUnits::margin",
            "margin",
            [0.1, 0.2].map(|it| SaturatedUnits::new("a", 0.0, 1.0).margin(it)),
        ),
        hooks("$hook::unit_dim", "unit_dim", [1, 2].map(|it| DeadUnits::new("a").unit_dim(it))),
        hooks(
            "$hook::unit_dim",
            "unit_dim",
            [1, 2].map(|it| SaturatedUnits::new("a", 0.0, 1.0).unit_dim(it)),
        ),
        hooks("MetricHook::new", "", [accuracy(), MetricHook::new(Accuracy::multiclass(2)).named("other")]),
        hooks("MetricHook::named", "", [accuracy(), accuracy().named("other")]),
        hooks("MetricHook::class_names", "class_names", [accuracy().class_names(["a", "b"]), accuracy()]),
        hooks("MetricHook::per_class", "per_class", [accuracy().per_class(true), accuracy()]),
        hooks(
            "MetricHook::only",
            "phases",
            [Phase::Train, Phase::Test].map(|phase| accuracy().only([phase])),
        ),
        hooks("serde", "max", [1.0, 2.0].map(|max| Saved { max })),
        schedules("closure", "factor(1)", [0.1, 0.2].map(|it| move |step: u64| f64::powf(it, step as f64))),
        schedules("custom", "factor(1)", [0.1, 0.2].map(Custom)),
        schedules("Constant::new", "factor", [0.1, 0.2].map(Constant::new)),
        schedules("Constant::over", "over", [10, 20].map(|n| Constant::new(0.1).over(n))),
        schedules("Cosine::to", "end", [0.1, 0.2].map(Cosine::to)),
        schedules("Cosine::over", "over", [10, 20].map(|n| Cosine::to(0.0).over(n))),
        schedules("CosineRestarts::every", "first", [10, 20].map(CosineRestarts::every)),
        schedules("CosineRestarts::growing", "growth", [1, 2].map(|n| CosineRestarts::every(10).growing(n))),
        schedules("CosineRestarts::to", "end", [0.1, 0.2].map(|end| CosineRestarts::every(10).to(end))),
        schedules("Exponential::new", "gamma", [0.1, 0.2].map(Exponential::new)),
        schedules("Linear::to", "end", [0.1, 0.2].map(Linear::to)),
        schedules("Linear::starting_at", "start", [0.1, 0.2].map(|start| Linear::to(0.0).starting_at(start))),
        schedules("Linear::over", "over", [0.1, 0.2].map(|over| Linear::to(0.0).over(over))),
        schedules("MultiStep::new", "milestones", [[1, 2], [1, 3]].map(|steps| MultiStep::new(steps, 0.1))),
        schedules("MultiStep::new", "gamma", [0.1, 0.2].map(|gamma| MultiStep::new([1, 2], gamma))),
        schedules("OneCycle::new", "", [boxed(OneCycle::new()), boxed(Cosine::to(0.0))]),
        schedules("OneCycle::over", "over", [10, 20].map(|n| OneCycle::new().over(n))),
        schedules("OneCycle::pct_start", "pct_start", [0.1, 0.2].map(|it| OneCycle::new().pct_start(it))),
        schedules(
            "OneCycle::div_factor",
            "div_factor",
            [10.0, 20.0].map(|it| OneCycle::new().div_factor(it)),
        ),
        schedules(
            "OneCycle::final_div_factor",
            "final_div_factor",
            [10.0, 20.0].map(|it| OneCycle::new().final_div_factor(it)),
        ),
        schedules("OneCycle::linear", "linear", [true, false].map(|on| OneCycle::new().linear(on))),
        schedules(
            "OneCycle::three_phase",
            "three_phase",
            [true, false].map(|on| OneCycle::new().three_phase(on)),
        ),
        schedules("OneCycle::momentum", "base", [0.8, 0.85].map(|base| OneCycle::new().momentum(base, 0.9))),
        schedules("OneCycle::momentum", "max", [0.9, 0.95].map(|max| OneCycle::new().momentum(0.8, max))),
        schedules(
            "OneCycle::momentum",
            "cycle.over",
            [10, 20].map(|n| OneCycle::new().over(n).momentum(0.8, 0.9)),
        ),
        schedules("Polynomial::new", "power", [1.0, 2.0].map(Polynomial::new)),
        schedules("Polynomial::over", "over", [10, 20].map(|n| Polynomial::new(1.0).over(n))),
        schedules("StepDecay::new", "every", [10, 20].map(|n| StepDecay::new(n, 0.1))),
        schedules("StepDecay::new", "gamma", [0.1, 0.2].map(|gamma| StepDecay::new(10, gamma))),
        schedules("Schedule::warm_up", "over", [10, 20].map(|n| Constant::new(1.0).warm_up(n))),
        schedules("Schedule::warm_up", "then.factor", [0.1, 0.2].map(|it| Constant::new(it).warm_up(10))),
        schedules(
            "WarmUp::starting_at",
            "start",
            [0.1, 0.2].map(|it| Constant::new(1.0).warm_up(10).starting_at(it)),
        ),
        schedules("Schedule::then", "1.at", [10, 20].map(|n| Constant::new(1.0).then(n, Constant::new(0.1)))),
        schedules(
            "Schedule::then",
            "0.factor",
            [0.1, 0.2].map(|it| Constant::new(it).then(10, Constant::new(0.1))),
        ),
        schedules(
            "Schedule::then",
            "1.factor",
            [0.1, 0.2].map(|it| Constant::new(1.0).then(10, Constant::new(it))),
        ),
        schedules(
            "Schedule::times",
            "0.factor",
            [0.1, 0.2].map(|it| Constant::new(it).times(Constant::new(1.0))),
        ),
        schedules(
            "Schedule::times",
            "1.factor",
            [0.1, 0.2].map(|it| Constant::new(1.0).times(Constant::new(it))),
        ),
        optimizers("Sgd::momentum", "momentum", [0.8, 0.9].map(|it| Sgd::new(0.1).momentum(it))),
        optimizers("Sgd::dampening", "dampening", [0.8, 0.9].map(|it| Sgd::new(0.1).dampening(it))),
        optimizers(
            "Sgd::nesterov",
            "nesterov",
            [true, false].map(|on| Sgd::new(0.1).momentum(0.9).nesterov(on)),
        ),
        optimizers("Sgd::maximize", "maximize", [true, false].map(|on| Sgd::new(0.1).maximize(on))),
        optimizers("Adagrad::lr_decay", "lr_decay", [0.1, 0.2].map(|it| Adagrad::new(0.1).lr_decay(it))),
        optimizers("Adagrad::eps", "eps", [0.1, 0.2].map(|it| Adagrad::new(0.1).eps(it))),
        optimizers(
            "Adagrad::initial_accumulator_value",
            "initial_accumulator_value",
            [0.1, 0.2].map(|it| Adagrad::new(0.1).initial_accumulator_value(it)),
        ),
        optimizers("Adagrad::maximize", "maximize", [true, false].map(|on| Adagrad::new(0.1).maximize(on))),
        optimizers("Lion::betas", "beta1", [0.8, 0.9].map(|it| Lion::new(0.1).betas(it, 0.5))),
        optimizers("Lion::betas", "beta2", [0.8, 0.9].map(|it| Lion::new(0.1).betas(0.5, it))),
        optimizers("Lion::maximize", "maximize", [true, false].map(|on| Lion::new(0.1).maximize(on))),
        optimizers("Muon::momentum", "momentum", [0.8, 0.9].map(|it| Muon::new(0.1).momentum(it))),
        optimizers("Muon::nesterov", "nesterov", [true, false].map(|on| Muon::new(0.1).nesterov(on))),
        optimizers("Muon::ns_steps", "ns_steps", [4, 5].map(|n| Muon::new(0.1).ns_steps(n))),
        optimizers("Muon::eps", "eps", [0.1, 0.2].map(|it| Muon::new(0.1).eps(it))),
        optimizers(
            "Muon::match_rms_adamw",
            "match_rms_adamw",
            [true, false].map(|on| Muon::new(0.1).match_rms_adamw(on)),
        ),
        optimizers(
            "Muon::full_precision",
            "full_precision",
            [true, false].map(|on| Muon::new(0.1).full_precision(on)),
        ),
        optimizers("Muon::maximize", "maximize", [true, false].map(|on| Muon::new(0.1).maximize(on))),
        optimizers("RmsProp::alpha", "alpha", [0.8, 0.9].map(|it| RmsProp::new(0.1).alpha(it))),
        optimizers("RmsProp::eps", "eps", [0.1, 0.2].map(|it| RmsProp::new(0.1).eps(it))),
        optimizers("RmsProp::momentum", "momentum", [0.8, 0.9].map(|it| RmsProp::new(0.1).momentum(it))),
        optimizers("RmsProp::centered", "centered", [true, false].map(|on| RmsProp::new(0.1).centered(on))),
        optimizers("RmsProp::maximize", "maximize", [true, false].map(|on| RmsProp::new(0.1).maximize(on))),
        optimizers("Group::new", "", [grouped(Group::new()), AdamW::new(0.1)]),
        optimizers("Group::lr", "lr", [0.1, 0.2].map(|lr| grouped(Group::new().lr(lr)))),
        optimizers(
            "Group::weight_decay",
            "weight_decay",
            [0.1, 0.2].map(|it| grouped(Group::new().weight_decay(it))),
        ),
        optimizers("Group::frozen", "frozen", [grouped(Group::new().frozen(true)), grouped(Group::new())]),
        optimizers("Group::set", "beta2", [0.8, 0.9].map(|it| grouped(Group::new().set("beta2", it)))),
        optimizers(
            "Group::set",
            "algorithm",
            [grouped(Group::new()), grouped(Adam::new(0.1).weight_decay(0.01))],
        ),
    ];
    macro_rules! each_optimizer {
        ($($name:ident),*) => {$(
            cases.extend([
                optimizers(concat!(stringify!($name), "::new"), "lr", [0.1, 0.2].map($name::new)),
                optimizers("$name::weight_decay", "weight_decay", [0.1, 0.2].map(|it| $name::new(0.1).weight_decay(it))),
                optimizers("$name::group", "pattern", ["a.*", "b.*"].map(|names| $name::new(0.1).group(names, Group::new()))),
                optimizers("$name::layer_decay", "lr", [0.5, 0.6].map(|it| $name::new(0.1).layer_decay(it, ["a.*", "b.*"]))),
                optimizers("Sharded::new", "lr", [0.1, 0.2].map(|lr| Sharded::new($name::new(lr)))),
            ]);
        )*};
    }
    let divided = |on| Sharded::new(Sgd::new(0.1)).gradients(on);
    cases.push(optimizers("Sharded::gradients", "", [true, false].map(divided)));
    let once = [true, false].map(|once| divided(true).once_per_window(once));
    cases.push(optimizers("Sharded::once_per_window", "divided_gradients", once));
    let custom = |lr: f64| crate::optim::Custom::new(&ALGORITHM, lr);
    cases.extend([
        optimizers("Custom::new", "lr", [0.1, 0.2].map(custom)),
        optimizers("Custom::set", "beta", [0.1, 0.2].map(|value| custom(0.1).set("beta", value))),
    ]);
    each_optimizer!(Sgd, Adam, AdamW, Adagrad, RmsProp, Lion, Muon);
    macro_rules! each_adam {
        ($($name:ident),*) => {$(
            cases.extend([
                optimizers("$name::new", "lr", [0.1, 0.2].map($name::new)),
                optimizers("$name::betas", "beta1", [0.8, 0.9].map(|it| $name::new(0.1).betas(it, 0.5))),
                optimizers("$name::betas", "beta2", [0.8, 0.9].map(|it| $name::new(0.1).betas(0.5, it))),
                optimizers("$name::eps", "eps", [0.1, 0.2].map(|it| $name::new(0.1).eps(it))),
                optimizers("$name::amsgrad", "amsgrad", [true, false].map(|on| $name::new(0.1).amsgrad(on))),
                optimizers("$name::maximize", "maximize", [true, false].map(|on| $name::new(0.1).maximize(on))),
            ]);
        )*};
    }
    each_adam!(Adam, AdamW);
    cases
}

/// The hooks that only observe a run, as in `loggers/observers.rs`.
fn observers() -> Vec<Case> {
    vec![
        hooks("Checkpoint", "", ["a", "b"].map(Checkpoint::new)),
        hooks("Console", "", [Console::new(), Console::new().every_steps(3)]),
        hooks("Csv", "", ["a", "b"].map(Csv::at)),
        hooks("JsonLines", "", ["a", "b"].map(JsonLines::at)),
        hooks("MlFlow", "", ["http://a", "http://b"].map(MlFlow::new)),
        hooks("TensorBoard", "", ["a", "b"].map(TensorBoard::at)),
        hooks("Wandb", "", ["a", "b"].map(Wandb::new)),
        hooks("Progress", "", [true, false].map(|on| Progress::new().table(on))),
        hooks("Dashboard", "", [true, false].map(|on| Dashboard::with(Progress::new().table(on)))),
        hooks("ModelSummary", "", [true, false].map(|on| ModelSummary::new().quiet(on))),
        hooks("KernelProfiler", "", ["a", "b"].map(|path| KernelProfiler::new(path, 0..1))),
        hooks("SystemMonitor", "", [1, 2].map(|n| SystemMonitor::new().every(n))),
        hooks("ParameterMonitor", "", [1, 2].map(|n| ParameterMonitor::new(Patterns::all()).every(n))),
    ]
}

/// The methods that set a closure, which cannot be compared, or that set nothing.
const NOT_COMPARED: [&str; 11] = [
    "Averages::load",            // loads what a hook has saved
    "DataParallel::new",         // has no argument
    "Distillation::logits",      // a closure
    "Lora::from_peft",           // reads settings, which are compared, and initial values
    "MetricHook::groups",        // a closure
    "MetricHook::inputs",        // a closure
    "Sharded::bucket_bytes",     // no result depends on it
    "SpikeGuard::new",           // has no argument
    "TrainerBuilder::resume",    // says what to compare with
    "Tch::new",                  // tch does not return its configuration; the learning rate is in the group
    "samples_settings::samples", // a closure
];

fn differences(method: &str, [one, other]: [Set; 2], audience: Audience) -> Vec<String> {
    let [one, other] = [one, other].map(|set| super::of(&trainer(method, set).run, audience));
    one.differences(&other).into_iter().map(|it| it.what).collect()
}

#[test]
fn a_change_of_any_single_setting_is_reported_as_a_difference() {
    for audience in [Audience::Resume, Audience::Ranks] {
        for Case { method, programs, setting } in cases() {
            let found = differences(method, programs, audience);
            if setting.is_empty() {
                assert!(!found.is_empty(), "{method} changes nothing");
            } else {
                assert_eq!(found.len(), 1, "{method}: {found:?}");
                assert!(found[0].ends_with(&format!(".{setting}`")), "{method}: {found:?}");
            }
        }
    }
}

#[test]
fn observers_may_differ() {
    for audience in [Audience::Resume, Audience::Ranks] {
        for Case { method, programs, .. } in observers() {
            assert_eq!(differences(method, programs, audience), Vec::<String>::new(), "{method}");
        }
    }
    // Ranks must agree on the modules of a hook that all of them run.
    let Case { method, programs, .. } =
        hooks("ActivationCheckpointing", "", ["a", "b"].map(ActivationCheckpointing::new));
    assert_eq!(differences(method, programs, Audience::Resume), Vec::<String>::new());
    let [with, without] = [true, false].map(|monitored| -> Set {
        Box::new(move |builder| {
            let builder = builder.optimizer(Sgd::new(0.1));
            if monitored { builder.hook(SystemMonitor::new()).hook(Progress::new()) } else { builder }
        })
    });
    assert_eq!(differences("observers", [with, without], Audience::Resume), Vec::<String>::new());
}

/// A new method that is neither in the tables nor in `NOT_COMPARED` fails here.
#[test]
fn every_method_of_an_optimizer_schedule_or_hook_has_a_case() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![source.join("metrics/hook.rs")];
    for folder in ["hooks", "optimizers/optim", "optimizers/schedule"] {
        add_files(&source.join(folder), &mut files);
    }
    // A hook that only observes and lists no settings is not compared.
    let observing = inventory::iter::<HookImpl>().filter(|block| {
        let hooks = block.hooks();
        block.extras.settings.is_none() && !hooks.is_empty() && hooks.iter().all(|hook| hook.observes)
    });
    let mut observing: BTreeSet<String> =
        observing.filter_map(|block| block.origin.path.rsplit("::").next().map(str::to_owned)).collect();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let lists = text.split("impl Settings for ").skip(1);
        let lists_none = lists.filter(|own| own.contains("SettingList {\n        SettingList::new()\n    }"));
        let of_monitors = text.split("\ninterval_settings!(").skip(1);
        let names = lists_none.chain(of_monitors).filter_map(|text| text.split([' ', '<', ')']).next());
        observing.extend(names.map(str::to_owned));
    }
    let covered: BTreeSet<&str> = cases().iter().map(|case| case.method).chain(NOT_COMPARED).collect();
    let mut found = BTreeSet::new();
    for file in files {
        found.extend(methods(&fs::read_to_string(file).unwrap()));
    }
    found.retain(|method| !observing.contains(method.split("::").next().unwrap()));
    assert!(found.len() > 140, "only {} methods were found", found.len());
    let missing: Vec<_> = found.iter().filter(|method| !covered.contains(method.as_str())).collect();
    assert!(missing.is_empty(), "these methods need a case: {missing:?}");
}

fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Returns the public methods that create or change a value, each with its type or macro.
fn methods(source: &str) -> impl Iterator<Item = String> {
    signatures(source).into_iter().map(|(method, _)| method)
}

/// Returns the [`methods`], each with its signature.
fn signatures(source: &str) -> Vec<(String, String)> {
    let mut owner = String::new();
    let mut found = Vec::new();
    for (start, line) in source.match_indices('\n').map(|(at, _)| (at + 1, source[at + 1..].lines().next())) {
        let line = line.unwrap_or_default().trim();
        let words = |text: &str| text.split([' ', '<', ':', '{']).next().unwrap_or_default().to_owned();
        if let Some(name) = line.strip_prefix("macro_rules! ") {
            owner = words(name);
        } else if let Some(name) = line.strip_prefix("pub trait ") {
            owner = words(name);
        } else if line.starts_with("impl") && line.ends_with('{') {
            let generic = line.strip_prefix("impl").and_then(|rest| rest.strip_prefix('<'));
            let rest = generic.and_then(|rest| rest.split_once("> ")).map_or(&line[5..], |(_, rest)| rest);
            owner = words(rest.split_once(" for ").map_or(rest, |(_, own)| own));
        }
        let is_of_trait = owner == "Schedule" && line.starts_with("fn ");
        let Some((_, name)) = line.split_once("fn ").filter(|_| is_of_trait || line.starts_with("pub fn "))
        else {
            continue;
        };
        let signature: String = source[start..].split(['{', ';']).next().unwrap_or_default().into();
        let (before, arguments) = signature.split_once('(').unwrap_or_default();
        let arguments = arguments.trim_start();
        let takes_self = ["self", "mut self"].iter().any(|own| arguments.starts_with(own));
        let creates =
            (before.contains("fn ") && signature.contains("-> Self") && !arguments.starts_with('&'))
                || signature.contains("-> Result<Self>");
        if takes_self || creates {
            let name = name.split(['(', '<']).next().unwrap_or_default();
            found.push((format!("{owner}::{name}"), signature));
        }
    }
    found
}
