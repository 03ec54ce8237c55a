//! Hooks that only observe, and the check of what the compiler cannot see.

use std::collections::BTreeSet;
use std::fs;

use trainer::TrainerBuilder;
use trainer::hooks::{
    ActivationCheckpointing, ActivationStats, Checkpoint, Ema, FeatureRecorder, HyperparameterMonitor,
    ModelSummary, ParameterMonitor, Progress, RankMonitor, SystemMonitor, ThroughputMonitor,
};
use trainer::loggers::{Csv, JsonLines, Report, TensorBoard, ToFile, Wandb};
use trainer::metrics::Accuracy;
use trainer::modules::Patterns;
use trainer::prelude::*;

use crate::model;
use crate::support::{device, exact_state, scratch};

/// Runs two batches with the check, and returns the error.
fn checked<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>) -> Option<String> {
    let trainer = builder.check_observers(true).max_steps(2).build();
    trainer.unwrap().fit(&mut model::rows(8), None).err().map(|error| model::message(&error))
}

/// Runs a closure that observes at `P`, and returns what it is said to have changed.
fn changes<P: trainer::moment::AtPoint>(cheat: impl FnMut(&Cx<P>) + Send + 'static) -> String {
    let error = checked(model::builder().optimizer(Sgd::new(0.1).momentum(0.9)).observe::<P>("cheat", cheat));
    let Some(error) = error else { return String::new() };
    let (_, text) =
        error.split_once("the hook takes `&Cx`, so it must only observe, but it changed ").expect(&error);
    let (what, help) = text.split_once(": ").expect(text);
    assert!(
        help.starts_with("take `&mut Cx`") && error.starts_with("hook `cheat` (tests/it/observers.rs:_)"),
        "{error}"
    );
    what.to_owned()
}

fn weight<P>(cx: &Cx<P>) -> Tensor {
    cx.vars().get("fc1.weight").unwrap().shallow_clone()
}

#[test]
fn an_observer_that_only_reads_and_logs_is_accepted() {
    let found = changes::<BeforeOptStep>(|cx| {
        for (name, grad) in cx.grads() {
            cx.log(name, grad.norm());
        }
        cx.log("lr", cx.optimizer().unwrap().groups()[0].lr);
        cx.warn("seen");
        let _ = weight(cx).sum(Kind::Float);
    });
    assert_eq!(found, "");
}

#[test]
fn changes_made_by_an_observer_through_shared_memory_are_reported() {
    let in_place = changes::<AfterStep>(|cx| {
        let _guard = tch::no_grad_guard();
        let _ = weight(cx).g_mul_scalar_(0.5);
    });
    assert_eq!(in_place, "`fc1.weight`");
    let detached = changes::<AfterStep>(|cx| drop(weight(cx).detach().fill_(0.5)));
    assert_eq!(detached, "`fc1.weight`");
    let data = changes::<AfterStep>(|cx| drop(weight(cx).data().fill_(0.5)));
    assert_eq!(data, "`fc1.weight`");
    let one_element = changes::<AfterStep>(|cx| {
        let _ = weight(cx).data().get(0).get(1).fill_(0.5);
    });
    assert_eq!(one_element, "`fc1.weight`");
    let gradients = changes::<AfterBackward>(|cx| cx.grads().for_each(|(_, mut grad)| drop(grad.zero_())));
    assert_eq!(
        gradients,
        "the gradient of `fc1.bias`, the gradient of `fc1.weight`, the gradient of `fc2.bias` and 1 more"
    );
    let frozen = changes::<AfterStep>(|cx| drop(weight(cx).set_requires_grad(false)));
    assert_eq!(frozen, "whether `fc1.weight` is trained");
    let backward = changes::<AfterZeroGrad>(|cx| weight(cx).sum(Kind::Float).backward());
    assert_eq!(backward, "the gradient of `fc1.weight`");
    let momentum = changes::<AfterOptStep>(|cx| {
        let state = cx.optimizer().unwrap().state();
        let (_, buffer) = state.into_iter().find(|(name, _)| name.contains("fc2.bias")).unwrap();
        let _ = buffer.shallow_clone().fill_(1.0);
    });
    assert!(momentum.ends_with("fc2.bias` in the state of the optimizer"), "{momentum}");
    let batch = changes::<AfterTransfer>(|cx| {
        let (_, labels) = cx.batch::<(Tensor, Tensor)>().unwrap();
        let _ = labels.shallow_clone().fill_(0);
    });
    assert_eq!(batch, "the batch (tensor 2)");
    let prediction = changes::<AfterStep>(|cx| drop(cx.pred::<Tensor>().unwrap().detach().fill_(1.0)));
    assert_eq!(prediction, "the prediction");
    let loss = changes::<AfterLoss>(|cx| drop(cx.loss().detach().fill_(1.0)));
    assert_eq!(loss, "the loss");
}

#[test]
fn a_change_of_one_element_of_a_large_tensor_is_detected() {
    let vs = nn::VarStore::new(device());
    let net = nn::linear(vs.root() / "fc1", 4, 100_000, Default::default());
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let error = checked(builder.observe::<AfterStep>("cheat", |cx| {
        let _ = weight(cx).data().get(777).get(1).fill_(0.5);
    }));
    assert!(error.as_ref().is_some_and(|error| error.contains("it changed `fc1.weight`: ")), "{error:?}");
}

#[test]
fn the_averages_of_another_hook_are_checked() {
    let builder = model::builder().hook(Ema::new(0.9));
    let error = checked(builder.observe::<AfterStep>("cheat", |cx| {
        let (_, average) = cx.hook::<Ema>().unwrap().average().next().unwrap();
        let _ = average.shallow_clone().fill_(0.5);
    }));
    let expected = "it changed `fc1.bias` in the state of `trainer::hooks::Ema`: ";
    assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{error:?}");
    assert_eq!(checked(model::builder().hook(Ema::new(0.9)).observe::<AfterStep>("idle", |_| ())), None);
}

#[test]
fn random_numbers_drawn_by_an_observer_are_detected() {
    let draws: [fn(&Cx<AfterStep>); 5] = [
        |_| drop(Tensor::rand([2], (Kind::Float, device()))),
        |_| drop(Tensor::randperm(4, (Kind::Int64, device()))),
        |cx| drop(weight(cx).dropout(0.5, true)),
        |cx| drop(weight(cx).softmax(-1, Kind::Float).multinomial(1, true)),
        |cx| drop(weight(cx).detach().sigmoid().bernoulli()),
    ];
    for (nth, draw) in draws.into_iter().enumerate() {
        assert_eq!(changes::<AfterStep>(draw), "the random state", "{nth}");
    }
    // Dropout in evaluation draws nothing.
    assert_eq!(changes::<AfterStep>(|cx| drop(weight(cx).dropout(0.5, false))), "");
}

type Measure = fn(&mut Cx<OptStep>, Next<OptStep>) -> Result<Done>;

/// A hook around the optimizer step that says that it only observes.
struct Measures(Measure);

#[hook]
impl Measures {
    #[hook(observes)]
    fn measure(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        (self.0)(cx, next)
    }
}

#[test]
fn a_hook_that_only_measures_an_operation_is_checked_too() {
    let run = |hook: Measure| {
        let error = checked(model::builder().hook(Measures(hook)).on::<BeforeOptStep>("change", |cx| {
            cx.grads().for_each(|(_, mut grad)| drop(grad.fill_(0.5)));
        }));
        error.map(|error| error.split_once("the hook has the key `observes`, ").expect(&error).1.to_owned())
    };
    assert_eq!(run(|cx, next| next.run(cx)), None);
    assert_eq!(run(|cx, next| next.run_then(cx, |_| ())), None);
    let cases: [(Measure, &str); 5] = [
        (|_, next| Ok(next.skip()), "but did not run the operation"),
        (|cx, next| next.replace(cx, |_| ()), "but did not run the operation"),
        (
            |cx, next| {
                drop(weight(cx).data().fill_(0.0));
                next.run(cx)
            },
            "so it must only observe, but it changed `fc1.weight`",
        ),
        (
            |cx, next| next.run_then(cx, |cx| drop(weight(cx).data().fill_(0.0))),
            "so it must only observe, but it changed `fc1.weight`",
        ),
        (
            |cx, next| {
                let _ = Tensor::rand([1], (Kind::Float, device()));
                next.run(cx)
            },
            "so it must only observe, but it changed the random state",
        ),
    ];
    for (hook, expected) in cases {
        let error = run(hook).expect(expected);
        assert!(error.starts_with(expected) && error.contains("remove the key"), "{error}");
    }
}

#[test]
fn a_hook_that_only_observes_must_run_its_operation_even_without_the_check() {
    let cases: [(Measure, Option<&str>); 4] = [
        (|cx, next| next.run(cx), None),
        (|_, next| Ok(next.skip()), Some("but did not run the operation")),
        (|cx, next| next.replace(cx, |_| ()), Some("but did not run the operation")),
        (|cx, next| next.run_or(cx, |_, _| ()), Some("but handled an error of the operation")),
    ];
    for (hook, expected) in cases {
        let fails = expected.is_some_and(|expected| expected.contains("handled"));
        let mut trainer =
            model::builder().check_observers(false).hook(Measures(hook)).hook(Fails(fails)).build().unwrap();
        let error = trainer.fit(&mut model::rows(4), None).err().map(|error| error.to_string());
        match expected {
            None => assert_eq!(error, None),
            Some(expected) => {
                assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{error:?}");
            }
        }
    }
}

/// Fails within the optimizer step, if it is told to.
struct Fails(bool);

#[hook(ord = 1)]
impl Fails {
    fn fail(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if self.0 { next.replace(cx, |_| Err(Error::msg("on purpose"))) } else { next.run(cx) }
    }
}

/// The built-in hooks that may change training. All others only observe.
const CHANGING: [&str; 27] = [
    "Amp",
    "BatchNormUpdate",
    "ClipGradNorm",
    "ClipGradValue",
    "CutMix",
    "DataParallel",
    "DeadUnits",
    "Distillation",
    "EarlyStopping",
    "Ema",
    "FieldSchedule",
    "Freeze",
    "GradientNoise",
    "HyperparameterSchedule",
    "LabelSmoothing",
    "LocalSgd",
    "Lookahead",
    "Lora",
    "HyperparameterSchedule",
    "MixUp",
    "NanGuard",
    "ReduceOnPlateau",
    "Sam",
    "SaturatedUnits",
    "SpikeGuard",
    "StochasticDepth",
    "Swa",
];

#[test]
fn built_in_observers_change_nothing_in_1000_steps() {
    let folder = scratch("observers");
    let build = |check: bool| {
        let run = folder.join(if check { "checked" } else { "plain" });
        let builder =
            Trainer::builder(model::named_task()).optimizer(AdamW::new(1e-2)).discover(Discover::None);
        let builder = builder.run_folder(&run).record_every(Every::Steps(50)).max_steps(1_000).epochs(500);
        let builder = builder.validate_every(Every::Epochs(100)).check_observers(check);
        if !check {
            return builder.build().unwrap();
        }
        builder
            .hook(ActivationCheckpointing::new("fc1"))
            .hook(ActivationStats::new(Patterns::all()))
            .hook(Checkpoint::new(folder.join("checkpoints")).every(Every::Steps(200)))
            .hook(trainer::hooks::Checkup::default())
            .hook(FeatureRecorder::new(Patterns::all()))
            .hook(HyperparameterMonitor::new())
            .hook(ModelSummary::new())
            .hook(ParameterMonitor::new(Patterns::all()).weights(true).updates(true).histograms(true))
            .hook(Progress::new())
            .hook(RankMonitor::new())
            .hook(SystemMonitor::new())
            .hook(ThroughputMonitor::new())
            .hook(Accuracy::multiclass(3))
            .hook(Csv::new())
            .hook(Report::new())
            .hook(JsonLines::new())
            .hook(TensorBoard::new())
            .hook(Wandb::new("digits"))
            .hook(ToFile::in_run_folder("rows.txt", |_, _| Ok(())))
            .tape(trainer::Tape::steps(10))
            .build()
            .unwrap()
    };
    let mut checked = build(true);
    let mut plain = build(false);
    for trainer in [&mut checked, &mut plain] {
        trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();
        assert_eq!(trainer.counters().optimizer_steps, 1_000);
    }
    assert_eq!(exact_state(&checked), exact_state(&plain));

    let table = checked.describe_hooks();
    let name = |path: &str| path.split('(').next().unwrap().split("::").nth(2).unwrap().to_owned();
    let run: BTreeSet<String> = table.rows().map(|row| name(&row.hook)).collect();
    assert!(table.rows().all(|row| row.observes));
    let all = trainer::__private::paths_of_hooks();
    let all: BTreeSet<String> = all.iter().map(|path| name(path)).collect();
    let expected: BTreeSet<String> = run.into_iter().chain(CHANGING.map(String::from)).collect();
    // These need a server, a profiler of their own, a GPU, a terminal and a replay.
    let left: Vec<_> = all.symmetric_difference(&expected).collect();
    assert_eq!(
        left,
        ["Console", "CudaMemoryMonitor", "Dashboard", "GpuMonitor", "KernelProfiler", "MlFlow", "replay"]
    );
    fs::remove_dir_all(&folder).unwrap();
}
