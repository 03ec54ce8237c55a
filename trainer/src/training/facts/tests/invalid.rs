//! `build` refuses each invalid setting of a built-in hook or schedule.

use std::time::Duration;

use super::*;
use crate::Amount;
use crate::metrics::{FBeta, Metric};

/// An invalid setting, and a part of the message about it.
struct Invalid {
    method: &'static str,
    set: Set,
    message: &'static str,
}

fn hook<H: Hooks>(method: &'static str, hook: H, message: &'static str) -> Invalid {
    let set: Set = Box::new(|builder| builder.optimizer(Sgd::new(0.1)).hook(hook));
    Invalid { method, set, message }
}

fn schedule(method: &'static str, schedule: impl Schedule, message: &'static str) -> Invalid {
    hook(method, HyperparameterSchedule::lr(schedule), message)
}

const AT_LEAST_1: &str = "`.every(0)`: expected at least 1";

#[expect(clippy::too_many_lines, reason = "a table")]
fn invalid() -> Vec<Invalid> {
    let guard = SpikeGuard::new;
    let checkpoint = || Checkpoint::new("a");
    let units = || SaturatedUnits::new("a", 0.0, 1.0);
    let nan = f64::NAN;
    vec![
        hook("ActivationStats::every", ActivationStats::new("a").every(0), AT_LEAST_1),
        hook("Amp::init_scale", Amp::fp16().init_scale(nan), "`.init_scale(NaN)`: expected"),
        hook("Amp::growth_interval", Amp::fp16().growth_interval(0), "`.growth_interval(0)`: expected"),
        hook("Ema::new", Ema::new(1.0), "`Ema::new(1.0)`: expected"),
        hook("Ema::every", Ema::new(0.9).every(0), AT_LEAST_1),
        hook("Checkpoint::every", checkpoint().every(Every::Steps(0)), "`.every(…)` of 0 never"),
        hook("Checkpoint::every", checkpoint().every(Every::Epochs(0)), "`.every(…)` of 0 never"),
        hook(
            "Checkpoint::every",
            checkpoint().every(Every::Fraction(1.5)),
            "(Every::Fraction(1.5))`: expected",
        ),
        hook(
            "Checkpoint::every",
            checkpoint().every(Every::Fraction(nan)),
            "(Every::Fraction(NaN))`: expected",
        ),
        hook("Checkpoint::every_time", checkpoint().every_time(Duration::ZERO), "`.every_time(…)` of zero"),
        hook("Checkpoint::keep_last", checkpoint().keep_last(0), "`.keep_last(0)` keeps no"),
        hook(
            "Checkpoint::keep_best",
            checkpoint().keep_best(0, "a", Goal::Minimize),
            "`.keep_best(0, …)` keeps no",
        ),
        hook(
            "DataParallel::bucket_bytes",
            DataParallel::new().bucket_bytes(0),
            "`DataParallel::new().bucket_bytes(0)`",
        ),
        hook(
            "DataParallel::compress",
            DataParallel::new().compress(Kind::Float),
            "cannot be compressed to Float",
        ),
        hook(
            "DataParallel::static_graph",
            DataParallel::new().static_graph(true).find_unused(true),
            "already determines",
        ),
        hook("EarlyStopping::min_delta", early().min_delta(-1.0), "`.min_delta(-1.0)`: expected"),
        hook("EarlyStopping::min_delta", early().min_delta(nan), "`.min_delta(NaN)`: expected"),
        hook("EarlyStopping::stop_at", early().stop_at(nan), "`.stop_at(NaN)`: expected"),
        hook("EarlyStopping::diverge_at", early().diverge_at(nan), "`.diverge_at(NaN)`: expected"),
        hook("ClipGradNorm::new", ClipGradNorm::new(0.0), "`max_norm` is 0.0: expected"),
        hook("ClipGradValue::new", ClipGradValue::new(nan), "`max_value` is NaN: expected"),
        Invalid {
            method: "TrainerBuilder::clip_grad_norm",
            set: Box::new(|builder| builder.optimizer(Sgd::new(0.1)).clip_grad_norm(-1.0)),
            message: "`max_norm` is -1.0: expected",
        },
        Invalid {
            method: "TrainerBuilder::clip_grad_value",
            set: Box::new(|builder| builder.optimizer(Sgd::new(0.1)).clip_grad_value(0.0)),
            message: "`max_value` is 0.0: expected",
        },
        hook("KernelProfiler::new", KernelProfiler::new("a", 3..3), "records nothing"),
        hook("LocalSgd::every", LocalSgd::every(0), "`LocalSgd::every(0)`: expected"),
        hook("LocalSgd::outer", LocalSgd::every(1).outer(0.0, 0.9), "`.outer(0.0, 0.9)`: expected"),
        hook("LocalSgd::outer", LocalSgd::every(1).outer(0.7, 1.0), "`.outer(0.7, 1.0)`: expected"),
        hook("Lora::new", lora(0), "`Lora::new(…, 0)`: expected"),
        hook("Lora::alpha", lora(1).alpha(0.0), "`.alpha(0.0)`: expected"),
        hook("Lora::dropout", lora(1).dropout(1.0), "`.dropout(1.0)`: expected"),
        hook("CutMix::new", CutMix::new(0.0), "`CutMix::new(0.0)`: expected"),
        hook("MixUp::new", MixUp::new(nan), "`MixUp::new(NaN)`: expected"),
        hook("samples_settings::classes", MixUp::new(1.0).classes(1), "`.classes(1)`: expected"),
        hook("samples_settings::classes", CutMix::new(1.0).classes(1), "`.classes(1)`: expected"),
        hook("samples_settings::classes", LabelSmoothing::new(0.1).classes(0), "`.classes(0)`: expected"),
        hook("LabelSmoothing::new", LabelSmoothing::new(1.0), "`LabelSmoothing::new(1.0)`: expected"),
        hook("GradientNoise::new", GradientNoise::new(-1.0), "`GradientNoise::new(-1.0)`: expected"),
        hook("GradientNoise::gamma", GradientNoise::new(0.1).gamma(nan), "`.gamma(NaN)`: expected"),
        hook("Lookahead::new", Lookahead::new(0, 0.5), "`Lookahead::new(0, 0.5)`: expected"),
        hook("Lookahead::new", Lookahead::new(5, 1.5), "`Lookahead::new(5, 1.5)`: expected"),
        hook("Sam::new", Sam::new(0.0), "`Sam::new(0.0)`: expected"),
        hook(
            "Distillation::temperature",
            distillation(1.0).temperature(0.0),
            "`.temperature(0.0)`: expected",
        ),
        hook("Distillation::weight", distillation(1.0).weight(1.5), "`.weight(1.5)`: expected"),
        hook(
            "Distillation::hint",
            distillation(1.0).hint("a", "b", 0.0),
            "`.hint(\"a\", \"b\", 0.0)`: expected",
        ),
        hook("FeatureRecorder::only", FeatureRecorder::new("a").only([]), "`.only([])`: expected"),
        hook("NanGuard::every", NanGuard::fail().every(0), AT_LEAST_1),
        hook("NanGuard::every", NanGuard::skip_batch().every(2), "`NanGuard::skip_batch().every(2)`"),
        hook("NanGuard::loss", NanGuard::fail().loss(false), "checks nothing"),
        hook("ReduceOnPlateau::factor", plateau().factor(1.0), "`.factor(1.0)`: expected"),
        hook("ReduceOnPlateau::threshold", plateau().threshold(-1.0), "`.threshold(-1.0)`: expected"),
        hook(
            "ReduceOnPlateau::threshold_abs",
            plateau().threshold_abs(nan),
            "`.threshold_abs(NaN)`: expected",
        ),
        hook("ReduceOnPlateau::min_lr", plateau().min_lr(-1.0), "`.min_lr(-1.0)`: expected"),
        hook("ReduceOnPlateau::eps", plateau().eps(nan), "`.eps(NaN)`: expected"),
        hook("SpikeGuard::window", guard().window(1), "`.window(1)`: expected"),
        hook("SpikeGuard::threshold", guard().threshold(0.0), "`.threshold(0.0)`: expected"),
        hook("SpikeGuard::keep_every", guard().keep_every(0), "`.keep_every(0)`: expected"),
        hook("SpikeGuard::limit", guard().limit(0), "`.limit(0)`: expected"),
        hook("StochasticDepth::new", StochasticDepth::new("a", 1.0), "with probability 1.0"),
        hook(
            "StochasticDepth::linear_decay",
            StochasticDepth::linear_decay(["a", "b"], 2.0),
            "with probability 1.0",
        ),
        hook("DeadUnits::threshold", DeadUnits::new("a").threshold(-1.0), "`.threshold(-1.0)`: expected"),
        hook("SaturatedUnits::new", SaturatedUnits::new("a", 1.0, -1.0), "expected finite bounds"),
        hook("SaturatedUnits::margin", units().margin(0.5), "`.margin(0.5)`: expected"),
        hook("CudaMemoryMonitor::every", CudaMemoryMonitor::new().every(0), AT_LEAST_1),
        #[cfg(feature = "nvml")]
        hook("GpuMonitor::every", GpuMonitor::new().every(0), AT_LEAST_1),
        hook("HyperparameterMonitor::every", HyperparameterMonitor::new().every(0), AT_LEAST_1),
        hook("ParameterMonitor::every", ParameterMonitor::new("*").every(0), AT_LEAST_1),
        hook("ParameterMonitor::gradients", ParameterMonitor::new("*").gradients(false), "logs nothing"),
        hook("RankMonitor::every", RankMonitor::new().every(0), AT_LEAST_1),
        hook("SystemMonitor::every", SystemMonitor::new().every(0), AT_LEAST_1),
        hook("ThroughputMonitor::every", ThroughputMonitor::new().every(0), AT_LEAST_1),
        hook("MetricHook::only", accuracy().only([]), "expected one or more of"),
        hook("MetricHook::new", MetricHook::new(Accuracy::multiclass(1)), "`multiclass(1)`: expected"),
        hook(
            "MetricHook::new",
            FBeta::multiclass(2).beta(0.0).named("f"),
            "metric `f`: `.beta(0)`: expected",
        ),
        schedule("Constant::new", Constant::new(-1.0), "the factor of `Constant` is -1.0"),
        schedule("Constant::over", Constant::new(0.5).over(0), "`Constant::new(…).over(0)`: expected"),
        schedule("Linear::to", Linear::to(nan), "the end of `Linear` is NaN"),
        schedule("Linear::starting_at", Linear::to(0.0).starting_at(-1.0), "the start of `Linear` is -1.0"),
        schedule("Linear::over", Linear::to(0.0).over(0), "`Linear::to(…).over(0)`: expected"),
        schedule("Cosine::to", Cosine::to(-1.0), "the end of `Cosine` is -1.0"),
        schedule("Cosine::over", Cosine::to(0.0).over(1.5), "`Cosine::to(…).over(1.5)`: expected"),
        schedule("CosineRestarts::every", CosineRestarts::every(0), "`CosineRestarts::every(0)`: expected"),
        schedule("CosineRestarts::growing", CosineRestarts::every(1).growing(0), "growing(0)`: expected"),
        schedule(
            "CosineRestarts::to",
            CosineRestarts::every(1).to(nan),
            "the end of `CosineRestarts` is NaN",
        ),
        schedule("Exponential::new", Exponential::new(-0.5), "the gamma of `Exponential` is -0.5"),
        schedule("StepDecay::new", StepDecay::new(0, 0.1), "`StepDecay::new(0, …)`: expected"),
        schedule("StepDecay::new", StepDecay::new(1, -0.1), "the gamma of `StepDecay` is -0.1"),
        schedule("MultiStep::new", MultiStep::new([5, 3], 0.1), "3 follows 5"),
        schedule("MultiStep::new", MultiStep::new([0, 3], 0.1), "`MultiStep::new([0], …)`: expected"),
        schedule("Polynomial::new", Polynomial::new(0.0), "`Polynomial::new(0.0)`: expected"),
        schedule(
            "Polynomial::over",
            Polynomial::new(1.0).over(0.0),
            "`Polynomial::new(…).over(0.0)`: expected",
        ),
        schedule("OneCycle::over", OneCycle::new().over(-1), "`OneCycle::new().over(-1)`: expected"),
        schedule("OneCycle::pct_start", OneCycle::new().pct_start(1.0), "`OneCycle::new().pct_start(1.0)`"),
        schedule(
            "OneCycle::div_factor",
            OneCycle::new().div_factor(0.0),
            "`OneCycle::new().div_factor(0.0)`",
        ),
        schedule(
            "OneCycle::final_div_factor",
            OneCycle::new().final_div_factor(nan),
            "final_div_factor(NaN)`",
        ),
        schedule("OneCycle::momentum", OneCycle::new().momentum(0.9, 0.8), "momentum(0.9, 0.8)`: expected"),
        schedule("Schedule::warm_up", Linear::to(0.0).warm_up(0), "`.warm_up(0)`: expected"),
        schedule("Schedule::warm_up", Linear::to(-1.0).warm_up(1), "the end of `Linear` is -1.0"),
        schedule(
            "WarmUp::starting_at",
            Linear::to(0.0).warm_up(1).starting_at(nan),
            "the start of `warm_up` is NaN",
        ),
        schedule("Schedule::then", Linear::to(0.5).then(0, Linear::to(0.0)), "`.then(0, …)`: expected"),
        schedule("Schedule::then", Linear::to(0.5).then(3, Linear::to(-1.0)), "the end of `Linear` is -1.0"),
        schedule(
            "Sequential::then",
            Linear::to(0.5).then(3, Linear::to(0.0)).then(-2, Linear::to(0.0)),
            "`.then(-2, …)`",
        ),
        schedule(
            "Schedule::times",
            Linear::to(0.5).times(Exponential::new(-1.0)),
            "the gamma of `Exponential`",
        ),
        schedule("Box", boxed(Linear::to(-1.0)), "the end of `Linear` is -1.0"),
        hook(
            "HyperparameterSchedule::values",
            HyperparameterSchedule::values("momentum", Linear::to(nan)),
            "the end of `Linear` is NaN",
        ),
        hook(
            "FieldSchedule::new",
            FieldSchedule::new(Linear::to(nan), |_: &mut Saved, _| {}),
            "the end of `Linear` is NaN",
        ),
    ]
}

/// The methods with numbers of which every value has a meaning, or whose values depend on the run.
const ALWAYS_VALID: [&str; 14] = [
    "EarlyStopping::patience", // 0 stops at the first check without an improvement, as 1 does
    "FieldSchedule::new",      // its number is an argument of a closure
    "Freeze::freeze_at",       // a time
    "Freeze::thaw_at",         // a time
    "GpuMonitor::device",      // checked when the driver is loaded
    "Lora::from_peft",         // its file is checked when it is read
    "PlateauState::default",   // no setting
    "Progress::line_every",    // zero prints a line for each batch
    "ReduceOnPlateau::cooldown", // 0 is the default
    "ReduceOnPlateau::patience", // 0 reduces at the first value without an improvement
    "Swa::from_epoch",         // an epoch
    "$hook::unit_dim",         // counted from the end if negative; checked with the output
    "GpuMonitor::every",       // behind a feature
    "Averages::load",          // no setting
];

#[test]
fn build_refuses_each_invalid_setting() {
    for Invalid { method, set, message } in invalid() {
        let vs = nn::VarStore::new(Device::Cpu);
        let config = nn::LinearConfig { bias: false, ..Default::default() };
        let layers = ["a", "b"].map(|name| nn::linear(vs.root() / name, 2, 2, config).named(name));
        let loss: fn(&Tensor, &Tensor) -> Tensor = |pred, target| pred.mse_loss(target, tch::Reduction::Mean);
        let builder = Trainer::builder(Supervised::new(vs, Two(layers), loss)).discover(Discover::None);
        let error = set(builder).build().err().unwrap_or_else(|| panic!("{method} is accepted")).to_string();
        assert!(error.contains(message), "{method}: {error}");
    }
}

#[test]
fn what_depends_on_the_length_of_the_run_is_accepted() {
    let half = |amount: Amount| -> Amount { amount };
    let schedules: [Box<dyn Schedule>; 4] = [
        boxed(MultiStep::new([half(0.5.into()), half(20.into())], 0.1)),
        boxed(Linear::to(0.5).then(0.5, Linear::to(0.5)).then(20, Linear::to(0.0))),
        boxed(Cosine::to(0.0).warm_up(1_000_000)),
        boxed(|_: u64| 0.5),
    ];
    for schedule in schedules {
        let mistakes = schedule.mistakes();
        assert!(mistakes.is_empty(), "{mistakes:?}");
    }
}

#[test]
fn build_lists_the_invalid_settings_of_all_hooks_at_once() {
    let builder =
        Trainer::builder(Supervised::new(nn::VarStore::new(Device::Cpu), nn::func(Tensor::tanh), {
            |pred: &Tensor, _: &Tensor| pred.mean(Kind::Float)
        }));
    let builder = builder.discover(Discover::None).optimizer(Sgd::new(0.1)).epochs(0);
    let builder = builder.hook(Amp::fp16().init_scale(0.0).growth_interval(0)).hook(Ema::new(2.0).every(0));
    let builder =
        builder.hook(HyperparameterSchedule::lr(Linear::to(-1.0).warm_up(0).then(0, Cosine::to(-2.0))));
    let error = builder.build().unwrap_err().to_string();
    let expected = [
        "`.epochs(0)`",
        "Amp`: `.init_scale(0)`",
        "Amp`: `.growth_interval(0)`",
        "Ema`: `Ema::new(2.0)`",
        "Ema`: `.every(0)`",
        "HyperparameterSchedule`: `.then(0, …)`",
        "HyperparameterSchedule`: `.warm_up(0)`",
        "HyperparameterSchedule`: the end of `Linear` is -1.0",
        "HyperparameterSchedule`: the end of `Cosine` is -2.0",
    ];
    for part in expected {
        assert!(error.contains(part), "{part} is missing: {error}");
    }
}

/// A new method with a number that is neither in the table nor in `ALWAYS_VALID` fails here.
#[test]
fn every_method_with_a_number_has_an_invalid_case() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![source.join("metrics/hook.rs")];
    for folder in ["hooks", "optimizers/schedule"] {
        add_files(&source.join(folder), &mut files);
    }
    let table = invalid();
    let covered: BTreeSet<&str> = table.iter().map(|case| case.method).chain(ALWAYS_VALID).collect();
    const NUMBERS: [&str; 11] =
        ["f64", "u64", "i64", "u32", "usize", "Amount", "Every", "Duration", "Range<", "Kind", "PhaseSet"];
    let mut found = BTreeSet::new();
    for file in files {
        for (method, signature) in signatures(&fs::read_to_string(file).unwrap()) {
            let arguments = signature.split_once('(').map_or("", |(_, rest)| rest);
            let arguments = arguments.rsplit_once("->").map_or(arguments, |(own, _)| own);
            if NUMBERS.iter().any(|number| arguments.contains(number)) {
                found.insert(method);
            }
        }
    }
    found.retain(|method| !["Schedule::factor", "Schedule::check"].contains(&method.as_str()));
    assert!(found.len() > 50, "only {} methods were found", found.len());
    let missing: Vec<_> = found.iter().filter(|method| !covered.contains(method.as_str())).collect();
    assert!(missing.is_empty(), "these methods need an invalid case: {missing:?}");
}
