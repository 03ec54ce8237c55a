//! Monitors: the values that they record, which are the same after a resume.

use std::sync::{Arc, Mutex};

use trainer::hooks::{
    Checkpoint, CudaMemoryMonitor, GpuMonitor, HyperparameterMonitor, HyperparameterSchedule, NanGuard,
    ParameterMonitor, SystemMonitor, ThroughputMonitor,
};
use trainer::modules::Patterns;
use trainer::optim::Group;
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::testing::Harness;
use trainer::{CancelToken, Metrics, TrainerBuilder, norms};

use crate::model::{self, message};
use crate::support::{gradient_norm, scratch};

type Lines = Arc<Mutex<Vec<String>>>;

/// Adds a hook that writes every number, histogram and text of every record as a line, with
/// `measured` for numbers that differ between runs.
fn noting<T: Task>(builder: TrainerBuilder<T>, lines: &Lines) -> TrainerBuilder<T> {
    let lines = Arc::clone(lines);
    builder.on::<AfterRecord>("noted", move |cx| {
        let record = cx.record();
        let head =
            format!("{} {} {}", record.phase(), record.span().name(), record.counters().optimizer_steps);
        let mut lines = lines.lock().unwrap();
        for (name, value) in record.scalars() {
            let is_measured = ["throughput/", "time/", "system/"].iter().any(|prefix| name.contains(prefix));
            let bits = if is_measured { "measured".to_owned() } else { format!("{:x}", value.to_bits()) };
            lines.push(format!("{head} {name}={bits}"));
        }
        lines.extend(record.histograms().map(|(name, histogram)| format!("{head} {name}={histogram:?}")));
        lines.extend(record.texts().map(|(name, text)| format!("{head} {name}={text}")));
    })
}

/// Returns the names that start with `start`, with this prefix removed.
fn named<'a>(metrics: &'a Metrics, start: &str) -> Vec<&'a str> {
    let mut names: Vec<_> = metrics.iter().filter_map(|(name, _)| name.strip_prefix(start)).collect();
    names.sort_unstable();
    names
}

#[test]
fn every_hyperparameter_of_every_group_is_recorded_with_the_value_that_the_step_uses() {
    let used = Arc::new(Mutex::new(0.0));
    let noted = Arc::clone(&used);
    let optimizer = AdamW::new(1e-2).group("*.bias", Group::new().weight_decay(0.0));
    let mut trainer = Trainer::builder(model::task())
        .optimizer(optimizer)
        .discover(Discover::None)
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0)))
        .hook(HyperparameterMonitor::new().every(2))
        .on::<AfterOptStep>("used", move |cx| {
            if cx.counters().optimizer_steps == 6 {
                *noted.lock().unwrap() = cx.lrs()[0];
            }
        })
        .build()
        .unwrap();
    let metrics = trainer.fit(&mut model::rows(28), None).unwrap().metrics; // 7 steps
    assert_eq!(metrics["train/hyperparameter/default/lr"], *used.lock().unwrap());
    assert_eq!(metrics["train/hyperparameter/*.bias/weight_decay"], 0.0);
    let names = named(&metrics, "train/hyperparameter/default/");
    assert_eq!(
        names,
        ["amsgrad", "beta1", "beta2", "eps", "frozen", "lr", "maximize", "weight_decay"],
        "{metrics}"
    );
    assert_eq!(named(&metrics, "train/hyperparameter/*.bias/"), names);
}

/// A task with two layers, each with its own optimizer.
struct Halves(nn::VarStore, nn::Linear, nn::Linear);

impl Task for Halves {
    type Batch = Tensor;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(batch.apply(&self.1).apply(&self.2))
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.square().mean(Kind::Float))
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        for part in ["one", "two"] {
            let forward = step.pred()?;
            let loss = step.loss(forward)?;
            let gradients = step.backward_of(part, loss)?;
            let done = step.opt_step(gradients)?;
            if part == "two" {
                return Ok(done);
            }
        }
        unreachable!()
    }
}

#[test]
fn monitored_metrics_contain_the_name_of_each_optimizer() {
    let vs = nn::VarStore::new(Device::Cpu);
    let one = nn::linear(vs.root() / "one", 3, 3, Default::default());
    let two = nn::linear(vs.root() / "two", 3, 2, Default::default());
    let mut trainer = Trainer::builder(Halves(vs, one, two))
        .optimizer_of("one", Sgd::new(0.1))
        .optimizer_of("two", Sgd::new(0.2))
        .discover(Discover::None)
        .hook(HyperparameterMonitor::new().names(["lr"]).every(1))
        .hook(ParameterMonitor::new(Patterns::all()).updates(true).every(1))
        .build()
        .unwrap();
    let mut rows = InMemory::new(Tensor::ones([8, 3], (Kind::Float, Device::Cpu))).unwrap().batch_size(4);
    let metrics = trainer.fit(&mut rows, None).unwrap().metrics;
    assert_eq!(metrics["train/hyperparameter/one/lr"], 0.1);
    assert_eq!(metrics["train/hyperparameter/two/lr"], 0.2);
    let names = ["one", "one.bias", "one.weight", "two", "two.bias", "two.weight"];
    for group in ["grad_norm", "update_norm", "update_ratio"] {
        assert_eq!(named(&metrics, &format!("train/{group}/")), names, "{metrics}");
    }
    for (part, lr) in [("one", 0.1), ("two", 0.2)] {
        let (update, grad) =
            (metrics[&*format!("train/update_norm/{part}")], metrics[&*format!("train/grad_norm/{part}")]);
        assert!((update / (lr * grad) - 1.0).abs() < 1e-4, "{part}: {update} {grad}");
    }
}

#[test]
fn norms_measure_the_unclipped_accumulated_gradient_and_the_update() {
    let expected = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let noted = Arc::clone(&expected);
    let changed = Arc::clone(&expected);
    let flat = |vars: &trainer::Vars| {
        let all: Vec<_> = vars.parameters().map(|var| var.tensor.detach().reshape([-1])).collect();
        Tensor::cat(&all, 0)
    };
    let weights_before = Arc::new(Mutex::new(Vec::new()));
    let noted_weights = Arc::clone(&weights_before);
    let shared = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&shared);
    let mut trainer = model::builder()
        .accumulate(2)
        .clip_grad_norm(0.05)
        .hook(ParameterMonitor::new("*").weights(true).updates(true).every(1))
        .on::<BeforeOptStep>("before", move |cx| {
            noted.lock().unwrap().0.push(gradient_norm(cx));
            let weights = flat(&cx.vars()).copy();
            noted_weights.lock().unwrap().push(weights.norm().double_value(&[]));
            *kept.lock().unwrap() = Some(weights);
        })
        .on::<AfterOptStep>("after", move |cx| {
            let before = shared.lock().unwrap().take().unwrap();
            changed.lock().unwrap().1.push((flat(&cx.vars()) - before).norm().double_value(&[]));
        })
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(24), None).unwrap(); // 3 steps
    let (grads, updates) = &*expected.lock().unwrap();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let is_close = |name: &str, expected: f64| {
        let value = summary.metrics[name];
        assert!((value - expected).abs() < 1e-5 * expected, "{name}: {value} {expected}");
    };
    assert_eq!(grads.len(), 3);
    assert!(grads.iter().all(|norm| *norm > 0.05), "the clipping has an effect");
    is_close("train/grad_norm", mean(grads));
    is_close("train/update_norm", mean(updates));
    let weights = &*weights_before.lock().unwrap();
    is_close("train/weight_norm", mean(weights));
    let ratios: Vec<_> = updates.iter().zip(weights).map(|(update, weight)| update / weight).collect();
    is_close("train/update_ratio", mean(&ratios));
    let of_parameters: f64 = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
        .map(|name| summary.metrics[&*format!("train/weight_norm/{name}")].powi(2))
        .iter()
        .sum();
    assert!((of_parameters.sqrt() / mean(weights) - 1.0).abs() < 1e-3);
}

#[test]
fn only_weight_norms_are_logged_for_frozen_parameters() {
    let optimizer = Sgd::new(0.1).group("fc1.*", Group::new().frozen(true));
    let mut trainer = Trainer::builder(model::task())
        .optimizer(optimizer)
        .discover(Discover::None)
        .hook(ParameterMonitor::new(["*.weight", "fc2.bias"]).weights(true).updates(true).every(1))
        .build()
        .unwrap();
    let metrics = trainer.fit(&mut model::rows(8), None).unwrap().metrics;
    assert_eq!(named(&metrics, "train/grad_norm/"), ["fc2.bias", "fc2.weight"]);
    assert_eq!(named(&metrics, "train/update_norm/"), ["fc2.bias", "fc2.weight"]);
    assert_eq!(named(&metrics, "train/weight_norm/"), ["fc1.weight", "fc2.bias", "fc2.weight"]);
}

#[test]
fn nan_and_infinite_values_are_recorded_as_such() {
    let corrupted = |value: f64| {
        let mut trainer = model::builder()
            .hook(ParameterMonitor::new(Patterns::all()).every(1))
            .on::<AfterBackward>("corrupted", move |cx| {
                if cx.counters().batches_seen == 0 {
                    let _ = cx.grad("fc2.bias")?.fill_(value);
                }
                Ok(())
            })
            .build()
            .unwrap();
        trainer.fit(&mut model::rows(4), None).unwrap().metrics
    };
    assert!(corrupted(f64::NAN)["train/grad_norm/fc2.bias"].is_nan());
    let metrics = corrupted(f64::INFINITY);
    assert_eq!(metrics["train/grad_norm/fc2.bias"], f64::INFINITY);
    assert_eq!(metrics["train/grad_norm"], f64::INFINITY);
    assert!(metrics["train/grad_norm/fc1.bias"].is_finite());
}

#[test]
fn norms_are_correct_for_sparse_half_precision_empty_and_integer_tensors() {
    let dense = Tensor::from_slice(&[3.0_f32, 0.0, 4.0]);
    let indices = Tensor::from_slice(&[0_i64, 0, 2]).view([1, 3]);
    let repeated = Tensor::sparse_coo_tensor_indices_size(
        &indices,
        &Tensor::from_slice(&[1.0_f32, 2.0, 4.0]),
        [3],
        (Kind::Float, Device::Cpu),
        false,
    );
    let large = Tensor::full([100], 300.0, (Kind::Half, Device::Cpu));
    let tensors = [
        dense.to_sparse_sparse_dim(1),
        repeated,
        large, // its square overflows half precision
        Tensor::zeros([0], (Kind::Float, Device::Cpu)),
        Tensor::from_slice(&[6_i64, 8]),
        Tensor::from_slice(&[f32::NAN, 1.0]),
    ];
    let found: Vec<f64> = Vec::try_from(&norms(&tensors).unwrap().to_kind(Kind::Double)).unwrap();
    assert_eq!(found[..5], [5.0, 5.0, 3000.0, 0.0, 10.0]);
    assert!(found[5].is_nan());
    assert_eq!(norms(&[]).unwrap().size(), [0]);
    let mixed = [Tensor::from_slice(&[1e-30_f64]), Tensor::from_slice(&[1.0_f32])];
    assert_eq!(norms(&mixed).unwrap().double_value(&[0]), 1e-30);
    assert!(norms(&[Tensor::new()]).is_err());
}

/// Sums rows of an embedding, whose gradient is sparse.
struct Rows(nn::VarStore, Tensor);

impl Task for Rows {
    type Batch = Tensor;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, indices: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(Tensor::embedding(&self.1, indices, -1, false, true))
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.sum(Kind::Float))
    }
}

/// Skips every optimizer step, because the optimizers require dense gradients.
struct Skip;

#[hook]
impl Skip {
    #[hook(in = trainer::stages::Clipping)]
    fn skip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        assert!(cx.grad("rows")?.is_sparse());
        Ok(next.skip())
    }
}

#[test]
fn sparse_gradients_have_the_norm_of_their_dense_form() {
    let vs = nn::VarStore::new(Device::Cpu);
    let rows = vs.root().ones("rows", &[4, 2]);
    let mut trainer = Trainer::builder(Rows(vs, rows))
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(ParameterMonitor::new("rows").every(1))
        .hook(Skip)
        .build()
        .unwrap();
    let indices = Tensor::from_slice(&[0_i64, 2, 0]); // the gradient of row 0 is [2, 2], of row 2 [1, 1]
    let metrics = trainer.fit(&mut InMemory::new(indices).unwrap().batch_size(3), None).unwrap().metrics;
    assert!((metrics["train/grad_norm/rows"] - 10.0_f64.sqrt()).abs() < 1e-6, "{metrics}");
}

fn refused<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>) -> String {
    let error = builder.build().and_then(|mut trainer| trainer.fit(&mut model::rows(8), None)).unwrap_err();
    message(&error)
}

#[test]
fn settings_that_record_nothing_are_refused_when_the_fit_starts() {
    let of = |monitor: ParameterMonitor| refused(model::builder().hook(monitor));
    assert!(of(ParameterMonitor::new(["fc1.*", "fc2.weigth"])).ends_with(
        "`ParameterMonitor::new(\"fc2.weigth\")`: no parameter matches; did you mean `fc2.weight`?"
    ));
    let optional = Patterns::from("fc1.*").optional("head.*");
    let mut trainer = model::builder().hook(ParameterMonitor::new(optional)).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let error = refused(model::builder().hook(HyperparameterMonitor::new().names(["lr", "momentm"])));
    assert!(
        error.ends_with(
            "`.names([\"momentm\"])`: no optimizer has this hyperparameter; did you mean `momentum`?"
        ),
        "{error}"
    );
    let error = refused(model::builder().hook(CudaMemoryMonitor::new()));
    assert!(
        error.contains("the task is on Cpu, but libtorch only tracks the memory of CUDA devices"),
        "{error}"
    );
    // A driver that cannot be opened does not end the run: the first warning is given without one,
    // the second with one.
    let mut trainer = model::builder().hook(GpuMonitor::new()).build().unwrap();
    let warnings = trainer.fit(&mut model::rows(8), None).unwrap().warnings.join("\n");
    assert!(
        warnings.contains("cannot load the NVIDIA driver's library: ")
            || warnings.contains("the task is on Cpu, not on a GPU: select the GPU to monitor"),
        "{warnings}"
    );
}

#[test]
fn throughput_and_system_load_are_recorded_when_due() {
    let mut trainer = model::builder()
        .epochs(2)
        .accumulate(2)
        .hook(ThroughputMonitor::new().every(2))
        .hook(SystemMonitor::new().every(2))
        .build()
        .unwrap();
    // 3 steps in each epoch: due after the second, the fourth and the sixth.
    let summary = trainer.fit(&mut model::rows(24), Some(&mut model::rows(4))).unwrap();
    let names = [
        "train/system/memory_used",
        "train/system/process_cores",
        "train/system/process_memory",
        "train/throughput/batches_per_second",
        "train/throughput/samples_per_second",
        "train/time/data_wait",
        "train/time/remaining",
        "train/time/step",
    ];
    for name in names {
        assert!(summary.metrics[name].is_finite() && summary.metrics[name] >= 0.0, "{}", summary.metrics);
    }
    assert_eq!(summary.metrics["train/time/remaining"], 0.0, "the last step of the plan was recorded");
    let ratio = summary.metrics["train/throughput/samples_per_second"]
        / summary.metrics["train/throughput/batches_per_second"];
    assert!((ratio - 4.0).abs() < 1e-9, "batches of 4");
    assert!(summary.metrics["train/system/process_memory"] <= summary.metrics["train/system/memory_used"]);
}

#[test]
fn monitors_log_only_when_a_record_is_due() {
    let lines = Lines::default();
    let builder = model::builder()
        .record_every(Every::Steps(3))
        .hook(HyperparameterMonitor::new().names(["lr"]))
        .hook(ParameterMonitor::new("fc1.bias").histograms(true).per_parameter(false));
    let mut trainer = noting(builder, &lines).build().unwrap();
    trainer.fit(&mut model::rows(28), None).unwrap(); // 7 steps
    let lines = std::mem::take(&mut *lines.lock().unwrap());
    let steps = |name: &str| {
        let lines = lines.iter().filter(|line| line.contains(name) && line.starts_with("train steps"));
        lines.map(|line| line.split(' ').nth(2).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(steps("train/hyperparameter/lr="), ["3", "6"]);
    assert_eq!(steps("train/grad_norm="), ["3", "6"]);
    assert_eq!(steps("train/gradients/fc1.bias=Histogram"), ["3", "6"]);
    assert!(!lines.iter().any(|line| line.contains("grad_norm/")));
    // Without a logger there is no record.
    let mut trainer = model::builder().hook(ParameterMonitor::new("*")).build().unwrap();
    let metrics = trainer.fit(&mut model::rows(256), None).unwrap().metrics;
    assert!(metrics.get("train/grad_norm").is_none());
}

/// Adds a hook that sets the inputs to NaN in these training batches.
fn nan_in<T: Task>(builder: TrainerBuilder<T>, batches: &'static [u64]) -> TrainerBuilder<T> {
    builder.on::<AfterTransfer>("nan", move |cx| {
        if cx.phase() == Phase::Train && batches.contains(&cx.counters().batches_seen) {
            let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>()?;
            *inputs = &*inputs * f64::NAN;
        }
        Ok(())
    })
}

/// Returns the recorded lines about the findings of a guard, in a run with NaN in these batches.
fn findings(guard: NanGuard, batches: &'static [u64], record_every: u64) -> Vec<String> {
    let lines = Lines::default();
    let builder = model::builder().record_every(Every::Steps(record_every)).hook(guard);
    let mut trainer = nan_in(noting(builder, &lines), batches).build().unwrap();
    let _ = trainer.fit(&mut model::rows(24), None);
    let mut lines = std::mem::take(&mut *lines.lock().unwrap());
    lines.retain(|line| line.contains("nan_guard"));
    lines
}

#[test]
fn records_contain_the_findings_of_the_nan_guard() {
    let one = format!("{:x}", 1.0_f64.to_bits());
    let two = format!("{:x}", 2.0_f64.to_bits());
    assert_eq!(
        findings(NanGuard::skip_batch(), &[1, 5], 2),
        [
            format!("train steps 2 train/nan_guard/found={one}"),
            "train steps 2 train/nan_guard/findings=step 2, epoch 0, batch 1: the loss is NaN".to_owned(),
            format!("train pass 4 train/nan_guard/found={two}"),
            "train pass 4 train/nan_guard/findings=step 5, epoch 0, batch 5: the loss is NaN".to_owned(),
            format!("train rest 4 train/nan_guard/found={one}"),
        ]
    );
    let found = findings(NanGuard::fail(), &[2], 2);
    assert!(
        found.contains(
            &"train rest 2 train/nan_guard/findings=step 3, epoch 0, batch 2: the loss is NaN".to_owned()
        ),
        "{found:?}"
    );
    let lines = Lines::default();
    let builder = model::builder().hook(NanGuard::skip_batch().gradients(true));
    let builder = builder.on::<AfterBackward>("corrupted", |cx| {
        if cx.counters().batches_seen == 1 {
            let _ = cx.grad("fc1.bias")?.fill_(f64::NAN);
        }
        Ok(())
    });
    noting(builder, &lines).build().unwrap().fit(&mut model::rows(12), None).unwrap();
    let text = "findings=step 2, epoch 0, batch 1: the gradients of `fc1.bias` are NaN or infinite";
    assert!(lines.lock().unwrap().iter().any(|line| line.ends_with(text)));
}

#[test]
fn a_resumed_run_has_the_records_of_an_uninterrupted_one() {
    let run = |cancel: Option<u64>| {
        let folder = scratch("monitors");
        let mut lines = Vec::new();
        for is_resumed in [false, true] {
            if is_resumed && cancel.is_none() {
                break;
            }
            let token = CancelToken::new();
            let noted = Lines::default();
            let cancelled = token.clone();
            let builder = model::builder()
                .epochs(3)
                .record_every(Every::Steps(3))
                .accumulate(2)
                .cancel_token(token)
                .hook(HyperparameterSchedule::lr(Cosine::to(0.0)))
                .hook(HyperparameterMonitor::new())
                .hook(ParameterMonitor::new("*").weights(true).updates(true).histograms(true))
                .hook(ThroughputMonitor::new())
                .hook(SystemMonitor::new())
                .hook(NanGuard::skip_batch())
                .hook(Checkpoint::new(&folder).on_cancel(true))
                .resume(Resume::Auto)
                .on::<AfterStep>("cancel", move |cx| {
                    if !is_resumed && cx.phase() == Phase::Train && Some(cx.counters().batches_seen) == cancel
                    {
                        cancelled.cancel();
                    }
                });
            let mut trainer = nan_in(noting(builder, &noted), &[4, 11]).build().unwrap();
            let result = trainer.fit(&mut model::rows(40), Some(&mut model::rows(4)));
            assert!(result.is_ok() || result.is_err_and(|error| error.is_cancelled()));
            lines.extend(std::mem::take(&mut *noted.lock().unwrap()));
            // Values that were not recorded yet are part of the checkpoint.
            if !is_resumed && cancel.is_some() {
                lines.retain(|line| !line.contains(" rest "));
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
        lines
    };
    let expected = run(None);
    for group in ["hyperparameter/lr", "update_ratio/fc1.bias", "updates/fc1.bias", "time/step", "findings"] {
        assert!(expected.iter().any(|line| line.contains(group)), "{group}: {expected:#?}");
    }
    for batches in [1, 5, 6, 12, 13, 25] {
        assert_eq!(run(Some(batches)), expected, "cancelled after {batches} batches");
    }
}

#[test]
fn a_monitor_added_twice_is_an_error() {
    let twice = Harness::small().hook(ThroughputMonitor::new()).hook(ThroughputMonitor::new()).run();
    assert!(twice.is_err_and(|error| error.to_string().contains("added twice")));
}
