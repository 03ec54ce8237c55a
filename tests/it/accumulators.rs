//! What sums, averages or measures tensors, and the dtype in which it does: the table of the guide,
//! the calls in the source, and the values.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use trainer::hooks::{ActivationStats, ClipGradNorm, Ema, LocalSgd, Lookahead, ParameterMonitor, Swa};
use trainer::metrics::{
    ExplainedVariance, MeanSquaredError, Metric, Pearson, R2Score, Ssim, StateReduction, States,
};
use trainer::modules::Patterns;
use trainer::optim::RmsProp;
use trainer::prelude::*;
use trainer::{TrainerBuilder, norms};

use crate::layers::code;
use crate::optimizers::{builder as reference_builder, reference_runs};

const HALF: [Kind; 2] = [Kind::BFloat16, Kind::Half];
const KINDS: [Kind; 4] = [Kind::BFloat16, Kind::Half, Kind::Float, Kind::Double];

/// A row of the table in the guide: how it begins, the dtypes for f16 and bf16, f32, and f64, and
/// the number of accumulating calls in each file.
type Row = (&'static str, [&'static str; 3], &'static [(&'static str, usize)]);

const WIDE: [&str; 3] = ["f32", "f32", "f64"];
const DOUBLE: [&str; 3] = ["f64", "f64", "f64"];
const OWN: [&str; 3] = ["f16, bf16", "f32", "f64"];

const TABLE: &[Row] = &[
    (
        "averages of weights",
        WIDE,
        &[
            ("trainer/src/hooks/local_sgd.rs", 2),
            ("trainer/src/hooks/methods/lookahead.rs", 1),
            ("trainer/src/training/parts/model.rs", 1),
        ],
    ),
    // Its kernels, and `trainer_lerp` of the averages. Muon normalizes in bf16, as PyTorch's does.
    ("states of the", WIDE, &[("trainer/sys/cpp/optimizers.cpp", 13), ("trainer/sys/cpp/tensors.cpp", 1)]),
    ("norms", WIDE, &[("trainer/sys/cpp/norms.h", 6)]),
    ("logged values", DOUBLE, &[("trainer/src/log/meter.rs", 2)]),
    (
        "metrics",
        DOUBLE,
        &[
            ("trainer/src/metrics/calibration.rs", 1),
            ("trainer/src/metrics/counts.rs", 2),
            ("trainer/src/metrics/images.rs", 12),
            ("trainer/src/metrics/labels.rs", 1),
            ("trainer/src/metrics/moments.rs", 3),
            ("trainer/src/metrics/regression.rs", 1),
            ("trainer/src/metrics/text.rs", 2),
        ],
    ),
    ("histograms", DOUBLE, &[("trainer/src/log/histogram.rs", 4)]),
    (
        "statistics of `ActivationStats`",
        WIDE,
        &[("trainer/src/hooks/activation_stats.rs", 3), ("trainer/src/hooks/unit_activity.rs", 1)],
    ),
    ("statistics of `update_batch_norm`", DOUBLE, &[("trainer/src/hooks/batch_norm_update.rs", 2)]),
    ("statistics of `SyncBatchNorm`", WIDE, &[("trainer/src/distributed/sync_batch_norm.rs", 4)]),
    (
        "losses of",
        WIDE,
        &[
            ("trainer/src/hooks/methods/distillation.rs", 5),
            ("trainer/src/data/sequence.rs", 2),
            ("trainer/sys/cpp/linear_cross_entropy.cpp", 13),
        ],
    ),
    ("gradients of an accumulation window", OWN, &[]),
    (
        "gradients of the ranks",
        OWN,
        &[("trainer/src/distributed/links.rs", 2), ("trainer/c10d-sys/cpp/exchange.h", 2)],
    ),
];

/// Calls that accumulate nothing, and why.
const OTHERS: &[(&str, usize, &str)] = &[
    ("trainer/c10d-sys/cpp/dist.cpp", 2, "one affine map for each element"),
    ("trainer/src/data/augment.rs", 3, "the luminance of one image, from 0 to 1, which libtorch sums in f32"),
    ("trainer/src/distributed/world.rs", 1, "in the dtype that the program passes"),
    ("trainer/src/hooks/methods/gradient_noise.rs", 1, "one term for each gradient"),
    ("trainer/src/hooks/methods/sam.rs", 1, "one term for each weight"),
    ("trainer/src/hooks/monitors/parameters.rs", 1, "two numbers for each parameter, in f64"),
    ("trainer/src/hooks/nan_guard.rs", 1, "the largest magnitude"),
    ("trainer/src/hooks/spike_guard.rs", 1, "two numbers, in f64"),
    ("trainer/src/libtorch/entry_points.rs", 12, "programs for the sanitizers"),
    ("trainer/src/optimizers/optim/divided.rs", 1, "one number, in f64"),
    ("trainer/src/optimizers/optim/parts.rs", 1, "a call of the norm in `divided.rs`"),
    ("trainer/src/tools/testing/mod.rs", 1, "the loss of a test's model"),
    ("trainer/src/training/batch_weight.rs", 2, "sums of no elements"),
    ("trainer/sys/cpp/scan.cpp", 1, "a hash, in integers"),
];

/// Files that use `f32` outside of libtorch, and what for: no number is added up in it.
const SINGLE: &[(&str, &str)] = &[
    ("trainer/src/data/batch.rs", "an element"),
    ("trainer/src/data/collate.rs", "an element"),
    ("trainer/src/data/sources/foreign.rs", "an element of a test"),
    ("trainer/src/data/sources/parquet_row.rs", "an element"),
    ("trainer/src/hooks/amp.rs", "the range of the scale"),
    ("trainer/src/hooks/methods/samples.rs", "a parameter of a distribution"),
    ("trainer/src/log/meter.rs", "a number to log"),
    ("trainer/src/loggers/tensor_board/event.rs", "the format of the file"),
    ("trainer/src/loggers/proto.rs", "the format of the file"),
    ("trainer/src/metrics/confusion.rs", "torchmetrics' epsilon"),
    ("trainer/src/metrics/labels.rs", "an element"),
    ("trainer/src/tools/cli/names.rs", "the name of a type"),
    ("trainer/src/values/hyperparameter.rs", "a number to show"),
];

/// The functions of libtorch that reduce or accumulate, without `f_`, `_foreach_` and the `_` of
/// those that work in place.
const CALLS: &[&str] = &[
    "addcmul",
    "all_reduce",
    "allreduce",
    "batch_norm_gather_stats",
    "batch_norm_update_stats",
    "bincount",
    "cross_entropy_for_logits",
    "cross_entropy_loss",
    "cumsum",
    "index_add",
    "kl_div",
    "l1_loss",
    "lerp",
    "linalg_norm",
    "linalg_vector_norm",
    "logsumexp",
    "mean_dim",
    "mse_loss",
    "nanmean",
    "nansum",
    "scatter_add",
    "std_dim",
    "std_mean",
    "sum_dim_intlist",
    "var_dim",
    "var_mean",
];

/// Those whose name an iterator or a string has too: they count only with an argument.
const WITH_ARGUMENT: &[&str] = &["mean", "norm", "prod", "std", "sum", "var"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        let is_source = path
            .extension()
            .is_some_and(|extension| ["rs", "cpp", "h"].iter().any(|known| extension == *known));
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if is_source && !is_test {
            found.push(path);
        }
    }
}

/// Returns the code of each source file, by its path.
fn all_code() -> BTreeMap<String, String> {
    let mut found = Vec::new();
    for folder in ["trainer/src", "trainer/sys/cpp", "trainer/c10d-sys/cpp"] {
        sources(&root().join(folder), &mut found);
    }
    let named = found.into_iter().map(|path| {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
        (name, code(&fs::read_to_string(path).unwrap()))
    });
    named.collect()
}

/// Returns the calls that accumulate, each with the code around it.
fn accumulating(code: &str) -> Vec<&str> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices('(') {
        let before = code[..at].trim_end_matches("::<Tensor>");
        let name = before.rsplit(|letter| !is_word(letter)).next().unwrap_or_default();
        let receiver = before[..before.len() - name.len()].trim_end();
        if !receiver.ends_with('.') && !receiver.ends_with("at::") {
            continue;
        }
        let plain =
            ["f_", "g_", "_foreach_"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        let is_in_place = plain.ends_with('_');
        let plain = plain.trim_end_matches('_');
        let has_argument = !code[at + 1..].starts_with(')');
        if CALLS.contains(&plain)
            || WITH_ARGUMENT.contains(&plain) && has_argument
            || plain == "add" && is_in_place
        {
            let end = code[at..].find('\n').map_or(code.len(), |length| at + length);
            found.push(&code[before.len() - name.len()..end]);
        }
    }
    found
}

#[test]
fn every_call_that_accumulates_is_listed_with_its_dtype() {
    let mut known: BTreeMap<&str, usize> = OTHERS.iter().map(|(file, calls, _)| (*file, *calls)).collect();
    known.extend(TABLE.iter().flat_map(|(.., files)| files.iter().copied()));
    for (file, code) in all_code() {
        let found = accumulating(&code);
        assert_eq!(
            found.len(),
            known.remove(file.as_str()).unwrap_or(0),
            "{file}: list each call that accumulates in this test, under the dtype in which it sums: {found:#?}"
        );
        // Iterators add up `f64` and integers, unless a file uses `f32`.
        let has_single =
            code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == "f32");
        let is_rust = file.ends_with(".rs");
        let is_known = SINGLE.iter().any(|(known, _)| *known == file);
        assert_eq!(
            has_single && is_rust,
            is_known,
            "{file}: list in this test what it uses `f32` for, and add up `f64`"
        );
    }
    assert!(known.is_empty(), "files without such calls: {known:?}");
}

#[test]
fn the_table_of_the_guide_has_the_dtype_of_every_sum() {
    let guide = fs::read_to_string(root().join("trainer/guide/methods.md")).unwrap();
    let (_, section) = guide.split_once("\n### What is summed in which dtype\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), TABLE.len());
    for (row, (begin, dtypes, _)) in rows.iter().zip(TABLE) {
        assert!(row[0].starts_with(begin), "{row:?} instead of `{begin}`");
        assert_eq!(row[1..], dtypes[..], "{begin}");
    }
}

/// Returns the dtype of the guide, for a row and the dtype of the input.
fn dtype(begin: &str, kind: Kind) -> Kind {
    let (_, dtypes, _) = TABLE.iter().find(|(known, ..)| *known == begin).unwrap();
    let column = match kind {
        Kind::Double => 2,
        Kind::Float => 1,
        _ => 0,
    };
    match dtypes[column] {
        "f32" => Kind::Float,
        "f64" => Kind::Double,
        _ => kind,
    }
}

/// A task with one weight of this dtype, whose gradient is `gradient` in every batch.
struct Line {
    vs: nn::VarStore,
    weight: Tensor,
    gradient: f64,
}

impl Line {
    fn new(kind: Kind, weight: f64, gradient: f64) -> Self {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let _ = vs.root().var("weight", &[1], nn::Init::Const(weight));
        vs.set_kind(kind);
        let weight = vs.root().get("weight").unwrap();
        Line { vs, weight, gradient }
    }
}

impl Task for Line {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn pred(&mut self, _: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(&self.weight * self.gradient)
    }

    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.sum(pred.kind()))
    }

    fn weight(&self, _: &Tensor) -> f64 {
        1.0
    }
}

fn batches(count: i64) -> InMemory<Tensor> {
    InMemory::new(Tensor::zeros([count, 1], (Kind::Float, Device::Cpu))).unwrap().batch_size(1)
}

fn line(kind: Kind, weight: f64, gradient: f64) -> TrainerBuilder<Line> {
    Trainer::builder(Line::new(kind, weight, gradient)).optimizer(Sgd::new(1.0)).discover(Discover::None)
}

/// The distance of a number to the next one of this dtype, relative to it.
fn spacing(kind: Kind) -> f64 {
    match kind {
        Kind::BFloat16 => 2f64.powi(-7),
        Kind::Half => 2f64.powi(-10),
        Kind::Float => 2f64.powi(-23),
        _ => 2f64.powi(-52),
    }
}

#[test]
fn averages_of_weights_move_by_less_than_the_spacing_of_the_weights() {
    for kind in KINDS {
        // Each step moves the weight to the next number, and each average by a quarter of that.
        let step = spacing(kind);
        let moved = |builder: TrainerBuilder<Line>| {
            let mut trainer = builder.build().unwrap();
            trainer.fit(&mut batches(40), None).unwrap();
            (trainer.vars().get("weight").unwrap().double_value(&[0]) - 1.0) / step
        };
        assert_eq!(moved(line(kind, 1.0, -step)), 40.0, "{kind:?}");
        if HALF.contains(&kind) {
            let lookahead = moved(line(kind, 1.0, -step).hook(Lookahead::new(1, 0.25)));
            assert!(lookahead > 5.0, "{kind:?}: Lookahead moved by {lookahead} numbers");
            let outer = moved(line(kind, 1.0, -step).hook(LocalSgd::every(1).outer(0.25, 0.0)));
            assert!(outer > 5.0, "{kind:?}: LocalSgd moved by {outer} numbers");
        }
        let mut trainer = line(kind, 1.0, -step).hook(Ema::new(0.9)).build().unwrap();
        trainer.fit(&mut batches(5), None).unwrap();
        let (_, average) = trainer.hook::<Ema>().unwrap().average().next().unwrap();
        assert_eq!(average.kind(), dtype("averages of weights", kind));
        let mut trainer = line(kind, 1.0, -step).epochs(2).hook(Swa::from_epoch(0)).build().unwrap();
        trainer.fit(&mut batches(1), None).unwrap();
        let (_, average) = trainer.hook::<Swa>().unwrap().average().next().unwrap();
        assert_eq!(average.kind(), dtype("averages of weights", kind));
        if kind != Kind::Double {
            assert!(
                (average.double_value(&[0]) - 1.0 - 1.5 * step).abs() <= spacing(Kind::Float),
                "{kind:?}"
            );
        }
    }
}

#[test]
fn the_state_of_every_optimizer_has_the_dtype_of_the_guide() {
    for kind in KINDS {
        for (run, optimizer) in reference_runs() {
            let trainer = reference_builder(kind, optimizer).build().unwrap();
            for (name, state) in trainer.optimizer().unwrap().state() {
                let is_count = name.starts_with("step/");
                let expected = if is_count { Kind::Float } else { dtype("states of the", kind) };
                assert_eq!(state.kind(), expected, "{run} of {kind:?}: {name}");
            }
        }
    }
}

#[test]
fn a_variance_of_constant_gradients_is_not_negative() {
    for gradient in [1000.0, 12345.678, 0.1] {
        let mut trainer = Trainer::builder(Line::new(Kind::Float, 0.0, gradient))
            .optimizer(RmsProp::new(1e-3).alpha(0.9).centered(true))
            .discover(Discover::None)
            .build()
            .unwrap();
        trainer.fit(&mut batches(2000), None).unwrap();
        let weight = trainer.vars().get("weight").unwrap().double_value(&[0]);
        assert!(weight.is_finite(), "{gradient}: {weight}");
    }
}

/// Returns the relative error of a norm.
fn norm_error(tensor: &Tensor, expected: f64) -> f64 {
    let norm = norms([tensor]).unwrap();
    assert_eq!(norm.kind(), dtype("norms", tensor.kind()));
    (norm.double_value(&[0]) / expected - 1.0).abs()
}

#[test]
fn norms_neither_lose_elements_nor_overflow() {
    for kind in KINDS {
        let full = |count: i64, value: f64| Tensor::full([count], value, (kind, Device::Cpu));
        let bound = if kind == Kind::Double { 1e-12 } else { 2e-5 };
        // A norm in the dtype of the elements has up to 3 digits.
        let tensor = full(1000, 0.1);
        let expected = tensor.double_value(&[0]) * 1000f64.sqrt();
        assert!(norm_error(&tensor, expected) < bound, "{kind:?}");
        let (large, small) = match kind {
            Kind::BFloat16 => (1e38, 1e-38),
            Kind::Half => (60000.0, 1e-7),
            Kind::Float => (1e37, 1e-38),
            _ => (1e307, 1e-300),
        };
        for value in [large, small, -large] {
            let tensor = full(9, value);
            let expected = tensor.double_value(&[0]).abs() * 3.0;
            assert!(norm_error(&tensor, expected) < bound, "{kind:?}: {value}");
        }
        for value in [f64::NAN, f64::INFINITY] {
            let norm = norms([&full(3, value)]).unwrap().double_value(&[0]);
            assert_eq!(
                (norm.is_nan(), norm.is_infinite()),
                (value.is_nan(), value.is_infinite()),
                "{kind:?}"
            );
        }
        assert_eq!(norms([&full(3, 0.0), &full(0, 0.0)]).unwrap().double_value(&[0]), 0.0);
    }
    // libtorch's norm of this many equal elements is 1 % too small.
    let many = Tensor::full([1 << 12, 1 << 13], 0.1f32 as f64, (Kind::Float, Device::Cpu));
    let expected = many.double_value(&[0, 0]) * f64::from(1 << 25).sqrt();
    assert!(norm_error(&many, expected) < 2e-5);
    assert!(norm_error(&many.tr(), expected) < 2e-5);
    assert!(norm_error(&many.narrow(1, 1, (1 << 13) - 1), expected * (1.0 - 1.0 / 8192f64).sqrt()) < 2e-5);
}

#[test]
fn clipping_uses_the_norm_of_the_guide() {
    for kind in KINDS {
        for gradient in [0.1, if kind == Kind::Half { 6e4 } else { 1e30 }] {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let _ = vs.root().var("weight", &[1000], nn::Init::Const(0.0));
            vs.set_kind(kind);
            let factor = Tensor::full([1000], gradient, (kind, Device::Cpu));
            let expected = factor.double_value(&[0]) * 1000f64.sqrt();
            let weight = vs.root().get("weight").unwrap();
            let task = Supervised::new(
                vs,
                nn::func(move |_: &Tensor| &weight * &factor),
                |pred: &Tensor, _: &Tensor| pred.sum(pred.kind()),
            );
            let norm = Arc::new(Mutex::new(Vec::new()));
            let found = Arc::clone(&norm);
            let builder = Trainer::builder(task).optimizer(Sgd::new(1.0)).discover(Discover::None);
            let mut trainer = builder
                .hook(ClipGradNorm::new(1.0))
                .hook(ParameterMonitor::new(Patterns::all()).every(1))
                .on::<BeforeOptStep>("norm", move |cx| {
                    let norm = cx.clip_grad_norm(f64::from(f32::MAX))?;
                    found.lock().unwrap().push((norm.kind(), norm.double_value(&[])));
                    Ok(())
                })
                .build()
                .unwrap();
            let row = || Tensor::zeros([1, 1], (Kind::Float, Device::Cpu));
            trainer.fit(&mut InMemory::new((row(), row())).unwrap().batch_size(1), None).unwrap();
            let [(found, norm)] = norm.lock().unwrap()[..] else { panic!("one step") };
            assert_eq!(found, dtype("norms", kind));
            assert!((norm / expected - 1.0).abs() < 1e-5, "{kind:?}: {norm} instead of {expected}");
            // The step of SGD is the clipped gradient, rounded to the dtype of the weights.
            let weight = trainer.vars().get("weight").unwrap().to_kind(Kind::Double);
            assert!((weight.norm().double_value(&[]) - 1.0).abs() < spacing(kind) + 1e-4, "{kind:?}");
        }
    }
}

#[test]
fn logged_values_are_added_in_double_precision() {
    let mut kinds = KINDS.to_vec();
    kinds.extend([Kind::Uint8, Kind::Int64]);
    for kind in kinds {
        let builder = line(Kind::Float, 1.0, 1.0).record_every(Every::Epochs(1));
        let mut trainer = builder
            .on::<AfterStep>("logged", move |cx| {
                // One, as an element of the dtype; the first value is 2^24.
                let one = Tensor::from(1.0).to_kind(kind);
                let first = cx.counters().batches_seen == 1;
                cx.log_as("sum", &one, Reduce::Sum);
                cx.log_as("large", if first { 16_777_216.0 } else { 1.0 }, Reduce::Sum);
                cx.log("mean", &one);
            })
            .build()
            .unwrap();
        let metrics = trainer.fit(&mut batches(3000), None).unwrap().metrics;
        assert_eq!(metrics["train/sum"], 3000.0, "{kind:?}");
        assert_eq!(metrics["train/large"], 16_777_216.0 + 2999.0);
        assert_eq!(metrics["train/mean"], 1.0, "{kind:?}");
    }
}

#[test]
fn states_of_metrics_add_in_double_precision_or_64_bits() {
    let integers = [Kind::Bool, Kind::Uint8, Kind::Int8, Kind::Int16, Kind::Int, Kind::Int64];
    for kind in KINDS.into_iter().chain(integers) {
        let mut states = States::new([("sum", StateReduction::Sum)]);
        for _ in 0..3000 {
            states.update("sum", Tensor::ones([1], (kind, Device::Cpu)));
        }
        let expected = if integers.contains(&kind) { Kind::Int64 } else { dtype("metrics", kind) };
        assert_eq!(states.get("sum").unwrap().kind(), expected, "{kind:?}");
        assert_eq!(states.floats("sum").unwrap(), [3000.0], "{kind:?}");
    }
    let mut states = States::new([("sum", StateReduction::Sum)]);
    for term in [16_777_216.0, 1.0, 1.0] {
        states.update("sum", Tensor::from_slice(&[term]).to_kind(Kind::Float));
    }
    assert_eq!(states.floats("sum").unwrap(), [16_777_218.0]);
}

/// Returns the value of a metric of several batches.
fn value<M: Metric>(mut metric: M, batches: &[[Tensor; 2]]) -> f64 {
    batches.iter().for_each(|[pred, target]| metric.update(pred, target).unwrap());
    metric.compute().unwrap().double_value(&[])
}

#[test]
fn metrics_do_not_depend_on_an_offset_of_the_values() {
    let target = (Tensor::arange(96, (Kind::Double, Device::Cpu)) * 7.0).remainder(11.0) / 8.0;
    let pred = &target + (Tensor::arange(96, (Kind::Double, Device::Cpu)) * 5.0).remainder(3.0) / 4.0;
    let shifted = |offset: f64| -> Vec<[Tensor; 2]> {
        (0..4).map(|nth| [&pred, &target].map(|all| all.narrow(0, nth * 24, 24) + offset)).collect()
    };
    for offset in [1e9, -1e10, 1e12] {
        let (own, others) = (shifted(0.0), shifted(offset));
        let bound = offset.abs() * 1e-15;
        macro_rules! same {
            ($($metric:expr),*) => {$(
                let (expected, found) = (value($metric, &own), value($metric, &others));
                assert!((found - expected).abs() < bound, "{}: {found} instead of {expected}", $metric.name());
            )*};
        }
        same!(R2Score::new(), ExplainedVariance::new(), Pearson::new(), MeanSquaredError::new());
    }
    // Merged parts have the value of all data.
    let all = shifted(1e9);
    let mut merged = R2Score::new();
    for [pred, target] in &all {
        let mut part = R2Score::new();
        part.update(pred, target).unwrap();
        merged.merge(&part).unwrap();
    }
    let whole = value(R2Score::new(), &all);
    assert!((merged.compute().unwrap().double_value(&[]) - whole).abs() < 1e-9);
    // A state does not grow with the number of batches.
    let mut metric = Pearson::new();
    for [pred, target] in shifted(0.0).iter().cycle().take(100) {
        metric.update(pred, target).unwrap();
    }
    assert_eq!(metric.states().get("moments").unwrap().numel(), 10);

    let image = (Tensor::arange(400, (Kind::Double, Device::Cpu)) * 0.37).sin().reshape([1, 1, 20, 20]) / 4.0;
    let other =
        &image + (Tensor::arange(400, (Kind::Double, Device::Cpu)) * 1.1).cos().reshape([1, 1, 20, 20]) / 9.0;
    let similarity = |kind: Kind| {
        let images = [&image, &other].map(|image| (image + 1000.0).to_kind(kind));
        value(Ssim::new(1.0), &[images])
    };
    let (single, double) = (similarity(Kind::Float), similarity(Kind::Double));
    assert!((single - double).abs() < 1e-2, "{single} instead of {double}");
}

#[test]
fn statistics_of_activations_are_computed_in_single_precision() {
    for kind in KINDS {
        let vs = nn::VarStore::new(Device::Cpu);
        let root = vs.root();
        let weight = root.var("weight", &[1], nn::Init::Const(1.0));
        let step = if HALF.contains(&kind) { spacing(kind) } else { spacing(Kind::Float) };
        // The mean is between two numbers of the dtype.
        let values = Tensor::from_slice(&[1.0, 1.0, 1.0, 1.0 + step]).to_kind(kind);
        let net = nn::func(move |_: &Tensor| values.shallow_clone()).named(&root / "net");
        let task = Supervised::new(vs, net, move |pred: &Tensor, _: &Tensor| {
            (pred.to_kind(Kind::Float) * &weight).sum(Kind::Float)
        });
        let builder = Trainer::builder(task).optimizer(Sgd::new(0.0)).discover(Discover::None);
        let mut trainer = builder.hook(ActivationStats::new("net")).build().unwrap();
        let row = || Tensor::zeros([1, 1], (Kind::Float, Device::Cpu));
        let metrics =
            trainer.fit(&mut InMemory::new((row(), row())).unwrap().batch_size(1), None).unwrap().metrics;
        let expected = 1.0 + step / 4.0;
        let bound = spacing(dtype("statistics of `ActivationStats`", kind));
        let mean = metrics["train/activation/net/mean"];
        assert!((mean - expected).abs() <= bound, "{kind:?}: {mean} instead of {expected}");
        let std = metrics["train/activation/net/std"];
        // The mean of the numbers in single precision is rounded to one of them.
        assert!(
            kind == Kind::Float || (std / (step * 3f64.sqrt() / 4.0) - 1.0).abs() < 1e-2,
            "{kind:?}: {std}"
        );
    }
}

/// The sentence of the guide about gradients of half-precision parameters.
#[test]
fn gradients_of_a_window_are_added_in_the_dtype_of_the_parameters() {
    for (kind, counted) in [(Kind::BFloat16, 256.0), (Kind::Float, 400.0), (Kind::Double, 400.0)] {
        assert_eq!(dtype("gradients of an accumulation window", kind), kind);
        let mut trainer = line(kind, 0.0, -1.0).accumulate(400).build().unwrap();
        trainer.fit(&mut batches(400), None).unwrap();
        let mean = trainer.vars().get("weight").unwrap().double_value(&[0]);
        assert!((mean - counted / 400.0).abs() < 2.0 * spacing(kind), "{kind:?}: {mean}");
    }
}

/// The page about Lightning: what an incomplete last window computes, and how to get Lightning's
/// step.
#[test]
fn the_gradients_of_a_short_last_window_can_be_scaled_as_in_lightning() {
    let step = |builder: TrainerBuilder<Line>| {
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut batches(6), None).unwrap();
        trainer.vars().get("weight").unwrap().double_value(&[0])
    };
    let builder = || line(Kind::Float, 0.0, -1.0).accumulate(4);
    assert_eq!(step(builder()), 1.0 + 1.0);
    let scaled = builder().on::<BeforeOptStep>("as in Lightning", |cx| {
        let batches = (cx.counters().batches_seen + 1) % 4;
        if batches > 0 {
            cx.grads().for_each(|(_, mut grad)| drop(grad.g_mul_scalar_(f64::from(batches as u32) / 4.0)));
        }
    });
    assert_eq!(step(scaled), 1.0 + 2.0 / 4.0);
}

#[test]
fn statistics_of_batch_norm_are_right_for_every_dtype() {
    for kind in KINDS {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let norm = nn::batch_norm1d(vs.root() / "bn", 4, Default::default());
        vs.set_kind(kind);
        let net = nn::func_t(move |inputs, train| inputs.apply_t(&norm, train));
        let task = Supervised::new(vs, net, |pred: &Tensor, _: &Tensor| {
            pred.to_kind(Kind::Float).square().mean(Kind::Float)
        });
        let inputs = (Tensor::arange(64 * 4, (Kind::Float, Device::Cpu)).reshape([64, 4]) * 0.7).sin() + 10.0;
        let data = || {
            InMemory::new((inputs.to_kind(kind), Tensor::zeros([64], (Kind::Float, Device::Cpu)))).unwrap()
        };
        let mut trainer = Trainer::builder(task)
            .optimizer(Sgd::new(1e-3))
            .discover(Discover::None)
            .hook(Swa::from_epoch(0))
            .update_batch_norm(data().batch_size(16))
            .build()
            .unwrap();
        trainer.fit(&mut data().batch_size(16), None).unwrap();
        let swa = trainer.hook::<Swa>().unwrap();
        let found = |name: &str| {
            let (_, average) = swa.average().find(|(own, _)| own.ends_with(name)).unwrap();
            average.to_kind(Kind::Double).mean(Kind::Double).double_value(&[])
        };
        let batches = inputs.to_kind(kind).to_kind(Kind::Double).reshape([4, 16, 4]);
        let mean = batches.mean(Kind::Double).double_value(&[]);
        let variance = batches.var_dim([1i64].as_slice(), true, false).mean(Kind::Double).double_value(&[]);
        for (name, expected) in [("running_mean", mean), ("running_var", variance)] {
            // libtorch rounds `1 - momentum` to the dtype, so that the momentum that it shows is
            // off by 1.5 %.
            let bound = if HALF.contains(&kind) { 2e-2 } else { 1e-5 };
            let error = (found(name) / expected - 1.0).abs();
            assert!(error < bound, "{name} of {kind:?}: {} instead of {expected}", found(name));
        }
    }
}
