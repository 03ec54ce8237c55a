//! Built-in hooks at named modules: statistics, dead and saturated units, features, the summary,
//! stochastic depth.

use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::hooks::{
    ActivationStats, Checkpoint, DeadUnits, FeatureRecorder, ModelSummary, SaturatedUnits, StochasticDepth,
};
use trainer::modules::{self, Name};
use trainer::prelude::*;

use crate::model::rows;
use crate::support::{cancelled_at, child_process, device, exact_state, scratch};

type Net = Supervised<modules::SequentialT, fn(&Tensor, &Tensor) -> Tensor>;

/// Returns a network of `net.0`, `net.relu`, `net.drop`, a residual block with the branch
/// `net.branch`, and `net.4`, in which unit 1 of `net.relu` is always 0.
fn task() -> Net {
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(device());
    let path = vs.root() / "net";
    let net = modules::seq_t(&path)
        .add(nn::linear(&path / 0, 4, 8, Default::default()))
        .add_as("relu", nn::func(Tensor::relu))
        .add_as("drop", nn::func_t(|xs: &Tensor, train| xs.dropout(0.2, train)))
        .add_named(Residual {
            branch: (&path / "branch").into(),
            fc: nn::linear(&path / "fc", 8, 8, Default::default()),
        })
        .add(nn::linear(&path / 4, 8, 3, Default::default()));
    let _guard = tch::no_grad_guard();
    for (name, mut tensor) in vs.variables() {
        let values = Tensor::arange(tensor.numel() as i64, (Kind::Float, device()));
        tensor.copy_(&((values + name.len() as f64).sin() * 0.3).view_as(&tensor));
        if name == "net.0.bias" {
            drop(tensor.get(1).fill_(-9.0));
        }
    }
    Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels))
}

#[derive(Debug)]
struct Residual {
    branch: Name,
    fc: nn::Linear,
}

impl nn::Module for Residual {
    fn forward(&self, xs: &Tensor) -> Tensor {
        xs + self.branch.run(xs, |xs| xs.apply(&self.fc).tanh())
    }
}

fn builder() -> TrainerBuilder<Net> {
    Trainer::builder(task()).optimizer(AdamW::new(0.01)).discover(Discover::None).seed(3)
}

/// Adds a hook that keeps copies of the outputs of one module in training.
fn outputs(builder: TrainerBuilder<Net>, module: &str) -> (TrainerBuilder<Net>, Arc<Mutex<Vec<Tensor>>>) {
    let kept: Arc<Mutex<Vec<Tensor>>> = Arc::default();
    let note = Arc::clone(&kept);
    let options = HookOptions::named("keep").of(module).only(Phase::Train).ord(100);
    let builder = builder
        .on::<AfterModuleForward>(options, move |cx| note.lock().unwrap().push(cx.output().detach().copy()));
    (builder, kept)
}

#[test]
fn activation_statistics_are_the_means_over_the_epoch() {
    let (builder, kept) = outputs(builder().hook(ActivationStats::new("net.relu")), "net.relu");
    let mut trainer = builder.build().unwrap();
    let metrics = trainer.fit(&mut rows(16), None).unwrap().metrics;
    let kept = kept.lock().unwrap();
    let mean = |of: fn(&Tensor) -> Tensor| {
        kept.iter().map(|output| of(output).double_value(&[])).sum::<f64>() / kept.len() as f64
    };
    let expected = [
        ("mean", mean(|output| output.mean(Kind::Double))),
        ("std", mean(|output| output.std(false))),
        ("zeros", mean(|output| output.eq(0.0).to_kind(Kind::Double).mean(Kind::Double))),
    ];
    for (name, expected) in expected {
        let found = metrics[&format!("train/activation/net.relu/{name}")];
        assert!((found - expected).abs() < 1e-6, "{name}: {found} and {expected}");
    }
    assert!(expected[2].1 >= 1.0 / 8.0, "a unit is always zero");
}

/// Returns the error of a fit with this hook.
fn builder_error(hook: impl trainer::Hooks) -> String {
    let built = builder().hook(hook).build();
    built.and_then(|mut trainer| trainer.fit(&mut rows(8), None)).unwrap_err().to_string()
}

#[test]
fn dead_units_are_zero_for_every_sample_of_the_epoch() {
    let (builder, kept) = outputs(builder().hook(DeadUnits::new("*.relu")).epochs(2), "net.relu");
    let mut trainer = builder.build().unwrap();
    let summary = trainer.fit(&mut rows(16), None).unwrap();
    let last: Vec<Tensor> = kept.lock().unwrap().drain(..).skip(4).collect();
    let alive = Tensor::cat(&last, 0).gt(0.0).any_dim(0, false);
    let dead: Vec<i64> = Vec::try_from(alive.logical_not().nonzero().view([-1])).unwrap();
    assert!(dead.contains(&1));
    assert_eq!(trainer.hook::<DeadUnits>().unwrap().units("net.relu"), Some(&dead[..]));
    assert_eq!(summary.metrics["train/dead_units/net.relu"], dead.len() as f64 / 8.0);
    assert_eq!(trainer.hook::<DeadUnits>().unwrap().units("net.0"), None);
}

#[test]
fn saturated_units_are_close_to_a_bound_for_every_sample() {
    // The branch ends in tanh: its outputs are within 0.3 of 0 here, so a wide margin is needed.
    let (builder, kept) =
        outputs(builder().hook(SaturatedUnits::new("net.branch", -1.0, 1.0).margin(0.48)), "net.branch");
    let mut trainer = builder.build().unwrap();
    let summary = trainer.fit(&mut rows(16), None).unwrap();
    let all = Tensor::cat(&kept.lock().unwrap(), 0);
    let linear = all.gt(-0.04).logical_and(&all.lt(0.04)).any_dim(0, false);
    let saturated: Vec<i64> = Vec::try_from(linear.logical_not().nonzero().view([-1])).unwrap();
    assert!(!saturated.is_empty());
    assert_eq!(trainer.hook::<SaturatedUnits>().unwrap().units("net.branch"), Some(&saturated[..]));
    assert_eq!(summary.metrics["train/saturated_units/net.branch"], saturated.len() as f64 / 8.0);
}

#[test]
fn units_that_cannot_be_counted_are_an_error() {
    let error = builder_error(DeadUnits::new("net.relu").unit_dim(2));
    assert!(
        error.contains("`DeadUnits` failed at after_module_forward of `net.relu`, epoch 0, batch 0"),
        "{error}"
    );
    assert!(error.contains("has the shape [4, 8], which has no dimension 2"), "{error}");

    // Modules of different sizes under one name.
    let vs = nn::VarStore::new(device());
    let net = nn::seq()
        .add(nn::linear(vs.root() / "a", 4, 8, Default::default()).named("twice"))
        .add(nn::linear(vs.root() / "b", 8, 3, Default::default()).named("twice"));
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(DeadUnits::new("twice"))
        .build()
        .unwrap();
    let error = trainer.fit(&mut rows(4), None).unwrap_err().to_string();
    assert!(
        error.contains(
            "`twice` has 3 units, but had 8 before: modules of different sizes need different names"
        ),
        "{error}"
    );
}

#[test]
fn features_are_kept_by_name_for_a_batch_or_a_pass() {
    let (builder_all, kept) =
        outputs(builder().hook(FeatureRecorder::new(["net.relu", "net.0"]).all(true)), "net.relu");
    let mut trainer = builder_all.build().unwrap();
    trainer.fit(&mut rows(8), Some(&mut rows(4))).unwrap();
    let recorder = trainer.hook::<FeatureRecorder>().unwrap();
    assert_eq!(recorder.features("net.relu").unwrap().size(), [4, 8], "the validation was the last pass");
    trainer.predict(&mut rows(12)).unwrap();
    let recorder = trainer.hook::<FeatureRecorder>().unwrap();
    assert_eq!(recorder.names().collect::<Vec<_>>(), ["net.0", "net.relu"]);
    assert_eq!(
        (recorder.outputs("net.0").len(), recorder.features("net.0").unwrap().size()),
        (3, vec![12, 8])
    );
    assert_eq!(recorder.features("net.relu").unwrap(), recorder.features("net.0").unwrap().relu());
    assert!(!recorder.features("net.0").unwrap().requires_grad());
    let error = recorder.features("net.1").unwrap_err().to_string();
    assert_eq!(error, "no output of `net.1` was recorded; the recorded modules are `net.0`, `net.relu`");
    drop(kept);

    let (last, kept) =
        outputs(builder().hook(FeatureRecorder::new("net.relu").only(Phase::Train)), "net.relu");
    let mut trainer = last.build().unwrap();
    trainer.fit(&mut rows(8), Some(&mut rows(4))).unwrap();
    trainer.predict(&mut rows(4)).unwrap();
    let recorder = trainer.hook::<FeatureRecorder>().unwrap();
    assert_eq!(recorder.outputs("net.relu"), [kept.lock().unwrap().pop().unwrap()]);
}

#[test]
fn modules_of_different_shapes_cannot_share_a_name_where_shapes_matter() {
    let build = || {
        let vs = nn::VarStore::new(device());
        let first = nn::linear(vs.root() / "a", 4, 8, Default::default()).named("same");
        let second = nn::linear(vs.root() / "b", 4, 3, Default::default()).named("same");
        let net = nn::func(move |xs| {
            let _ = xs.apply(&first);
            xs.apply(&second)
        });
        let task = Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| {
            logits.cross_entropy_for_logits(labels)
        });
        Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None)
    };
    let mut trainer = build().hook(FeatureRecorder::new("same")).build().unwrap();
    trainer.predict(&mut rows(4)).unwrap();
    let recorder = trainer.hook::<FeatureRecorder>().unwrap();
    assert_eq!(recorder.outputs("same").iter().map(Tensor::size).collect::<Vec<_>>(), [[4, 8], [4, 3]]);
    assert!(recorder.features("same").unwrap_err().to_string().contains("Sizes of tensors must match"));
    let mut trainer = build().hook(StochasticDepth::new("same", 0.0).per_batch(true)).build().unwrap();
    let error = trainer.fit(&mut rows(4), None).unwrap_err().to_string();
    assert!(
        error.contains(
            "`same` maps the shape [4] to [8] and to [3]: modules of different shapes need different names"
        ),
        "{error}"
    );
}

#[test]
fn recorded_features_are_unaffected_by_later_in_place_operations() {
    let vs = nn::VarStore::new(device());
    let net = nn::seq()
        .add(nn::linear(vs.root() / "a", 4, 3, Default::default()).named("first"))
        .add(nn::func(|xs| xs.shallow_clone().fill_(7.0)).named("second"));
    let task = Supervised::new(vs, net, |logits: &Tensor, _: &Tensor| logits.sum(Kind::Float));
    let mut trainer =
        Trainer::builder(task).discover(Discover::None).hook(FeatureRecorder::new("*")).build().unwrap();
    trainer.predict(&mut rows(4)).unwrap();
    let recorder = trainer.hook::<FeatureRecorder>().unwrap();
    assert_ne!(recorder.features("first").unwrap(), recorder.features("second").unwrap());
}

#[test]
fn model_summary_matches_the_function_summary() {
    let mut trainer = builder().hook(ModelSummary::new().quiet(true)).build().unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    let input = Tensor::zeros([4, 4], (Kind::Float, device()));
    let expected = modules::summary(trainer.task().vars(), trainer.task().net(), &input).unwrap();
    let table = trainer.hook::<ModelSummary>().unwrap().table().unwrap();
    assert_eq!(table, &expected);
    assert_eq!(
        table.flops(),
        2 * 4 * (4 * 8 + 8 * 8 + 8 * 3),
        "with the layer in the branch, which has no name"
    );
    assert_eq!(table.parameters(), 4 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3);
}

#[test]
fn the_summary_of_a_model_without_named_modules_is_a_warning() {
    let mut trainer = crate::model::builder().hook(ModelSummary::new()).build().unwrap();
    let warnings = trainer.validate(&mut rows(4)).unwrap().warnings.join("\n");
    assert!(
        warnings.contains("`ModelSummary` failed at after_pred")
            && warnings.contains("called no named module"),
        "{warnings}"
    );
}

#[test]
fn stochastic_depth_drops_the_given_fraction_only_in_training() {
    let run = |hook: StochasticDepth| {
        let (builder, kept) = outputs(builder().hook(hook).epochs(20), "net.branch");
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut rows(16), None).unwrap();
        Tensor::cat(&std::mem::take(&mut *kept.lock().unwrap()), 0)
    };
    let dropped = |branches: &Tensor| branches.eq(0.0).all_dim(1, false).to_kind(Kind::Double);
    let branches = run(StochasticDepth::new("net.branch", 0.4));
    let share = dropped(&branches).mean(Kind::Double).double_value(&[]);
    assert_eq!(branches.size(), [320, 8]);
    assert!((share - 0.4).abs() < 0.15, "{share}");

    let branches = run(StochasticDepth::linear_decay(["net.branch"], 0.4).per_batch(true));
    let by_batch = dropped(&branches).view([80, 4]).mean_dim(1, false, Kind::Double);
    let whole = by_batch.eq(0.0).logical_or(&by_batch.eq(1.0)).all().int64_value(&[]);
    assert_eq!(whole, 1, "a batch is dropped entirely or not at all");
    let share = by_batch.mean(Kind::Double).double_value(&[]);
    assert!((share - 0.4).abs() < 0.3, "{share}");

    // A probability of 0 drops nothing; evaluation is unchanged.
    let undropped = run(StochasticDepth::new("net.branch", 0.0));
    assert_eq!(dropped(&undropped).sum(Kind::Double).double_value(&[]), 0.0);
    let plain = builder().build().unwrap().predict(&mut rows(8)).unwrap();
    let mut with = builder().hook(StochasticDepth::new("net.branch", 0.9)).build().unwrap();
    assert_eq!(with.predict(&mut rows(8)).unwrap(), plain);
    for p in [1.0, -0.1, f64::NAN] {
        assert!(
            builder_error(StochasticDepth::new("net.branch", p))
                .contains("expected at least 0.0 and below 1.0")
        );
    }
    let error = builder().hook(StochasticDepth::linear_decay([""; 0], 0.1)).build().unwrap_err().to_string();
    assert!(
        error.contains("selects modules by an empty name or list: expected at least one name"),
        "{error}"
    );
}

#[test]
fn a_branch_that_is_dropped_for_a_batch_is_not_computed() {
    let computed = Arc::new(Mutex::new(0));
    let count = Arc::clone(&computed);
    let vs = nn::VarStore::new(device());
    let fc = nn::linear(vs.root() / "fc", 4, 3, Default::default());
    let branch = nn::func(move |xs: &Tensor| {
        *count.lock().unwrap() += 1;
        xs.narrow(1, 0, 3) * 1.0
    })
    .named("branch");
    let net = nn::func(move |xs: &Tensor| xs.apply(&fc) + xs.apply(&branch));
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .seed(1)
        .epochs(25)
        .hook(StochasticDepth::new("branch", 0.5).per_batch(true))
        .build()
        .unwrap();
    trainer.fit(&mut rows(16), None).unwrap();
    let computed = *computed.lock().unwrap();
    assert!((25..75).contains(&computed), "{computed} of 100 batches");
}

#[test]
fn a_run_with_module_hooks_resumes_bit_for_bit() {
    // In a separate process, because libtorch has one random number generator per process.
    let output = child_process("module_hooks::resumes").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The program that the test above runs in a separate process.
#[test]
#[ignore = "run by another test in a child process"]
fn resumes() {
    let folder = scratch("module-hooks");
    let run = |at: Option<u64>, resumes: bool| {
        let builder = builder()
            .epochs(3)
            .hook(ActivationStats::new("net.*").every(2))
            .hook(DeadUnits::new("net.relu"))
            .hook(SaturatedUnits::new("net.branch", -1.0, 1.0).margin(0.48))
            .hook(FeatureRecorder::new("net.*").all(true).only(Phase::Train))
            .hook(StochasticDepth::new("net.branch", 0.5).per_batch(true))
            .hook(StochasticDepth::new("net.relu", 0.2))
            .hook(Checkpoint::new(folder.join(format!("{at:?}-{resumes}"))).every(Every::Steps(1)));
        let builder = if resumes { builder.resume(folder.join(format!("{at:?}-false"))) } else { builder };
        let mut trainer = cancelled_at(at.filter(|_| !resumes), builder).build().unwrap();
        let result = trainer.fit(&mut rows(20), Some(&mut rows(8)));
        let metrics = result.map(|summary| summary.metrics.to_string());
        (metrics, trainer)
    };
    let (metrics, whole) = run(None, false);
    let features = |trainer: &Trainer<Net>| {
        let recorder = trainer.hook::<FeatureRecorder>().unwrap();
        recorder.names().map(|name| (name.to_owned(), recorder.features(name).unwrap())).collect::<Vec<_>>()
    };
    for at in [1, 3, 7, 12] {
        let (cancelled, _) = run(Some(at), false);
        assert!(cancelled.unwrap_err().is_cancelled());
        let (resumed_metrics, resumed) = run(Some(at), true);
        assert_eq!(resumed_metrics.unwrap(), *metrics.as_ref().unwrap(), "cancelled after {at} batches");
        assert_eq!(exact_state(&resumed), exact_state(&whole), "cancelled after {at} batches");
        assert_eq!(features(&resumed), features(&whole), "cancelled after {at} batches");
        let dead = |trainer: &Trainer<Net>| {
            trainer.hook::<DeadUnits>().unwrap().units("net.relu").map(<[i64]>::to_vec)
        };
        assert_eq!(dead(&resumed), dead(&whole));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
