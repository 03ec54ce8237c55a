//! Metrics in a trainer: names, phases, bad input, exact resume.

use std::sync::{Arc, Mutex};

use trainer::CancelToken;
use trainer::hooks::{Checkpoint, EarlyStopping};
use trainer::metrics::{
    Accuracy, Auroc, Average, BestSoFar, CohenKappa, ConfusionMatrix, ExplainedVariance, FBeta, Matthews,
    MeanSquaredError, Metric, MetricHook, Pearson, PerGroup, Perplexity, Psnr, R2Score, Running, Spearman,
    Ssim, States,
};
use trainer::prelude::*;

use crate::model::{self, rows};
use crate::support::{device, scratch};

/// Returns a batch of four rows with the scores of three classes, and its targets.
fn scores() -> (Tensor, Tensor) {
    let scores = Tensor::from_slice2(&[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]]);
    (scores, Tensor::from_slice(&[0i64, 2, 1, 1]))
}

/// Computes a metric of one batch.
fn value(mut metric: impl Metric, pred: &Tensor, target: &Tensor) -> Result<f64> {
    metric.update(pred, target)?;
    Ok(metric.compute()?.double_value(&[]))
}

fn error_of(metric: impl Metric, pred: &Tensor, target: &Tensor) -> String {
    value(metric, pred, target).unwrap_err().to_string()
}

#[test]
fn the_accuracy_of_a_pass_is_logged_under_the_phase() {
    let mut trainer = model::builder()
        .hook(Accuracy::multiclass(3).per_class(true))
        .hook(Accuracy::multiclass(3).top_k(3).named("top3").only([Phase::Train]))
        .hook(ConfusionMatrix::multiclass(3))
        .hook(BestSoFar::new(Accuracy::multiclass(3), Goal::Maximize))
        .hook(EarlyStopping::new("valid/accuracy", Goal::Maximize).patience(100))
        .epochs(2)
        .build()
        .unwrap();
    let mut valid = rows(10); // batches of 4, 4 and 2
    let summary = trainer.fit(&mut rows(12), Some(&mut valid)).unwrap();
    assert_eq!(summary.metrics["train/top3"], 1.0);
    assert!(summary.metrics.get("train/accuracy").is_none() && summary.metrics.get("valid/top3").is_none());

    // The accuracy of all rows at once.
    let preds = trainer.predict(&mut rows(10).batch_size(10)).unwrap().remove(0).argmax(1, false);
    let labels = Tensor::arange(10, (Kind::Int64, device())).remainder(3);
    let right = preds.eq_tensor(&labels).to_kind(Kind::Double);
    assert_eq!(summary.metrics["valid/accuracy"], right.mean(Kind::Double).double_value(&[]));
    for class in 0..3 {
        let of_class = right.masked_select(&labels.eq(class)).mean(Kind::Double).double_value(&[]);
        assert_eq!(summary.metrics[&format!("valid/accuracy/{class}")[..]], of_class);
    }
    assert!(summary.metrics["valid/best_accuracy"] >= summary.metrics["valid/accuracy"]);
    let matrix = trainer.hook::<MetricHook<ConfusionMatrix>>().unwrap().value(Phase::Valid).unwrap();
    assert_eq!(matrix.size(), [3, 3]);
    assert_eq!(matrix.sum(Kind::Double).double_value(&[]), 10.0);
    let test = trainer.test(&mut rows(6)).unwrap();
    assert!(test.metrics.get("test/accuracy/2").is_some());
}

#[test]
fn a_misspelled_metric_is_reported_with_the_names_that_exist() {
    let stopping = EarlyStopping::new("valid/acuracy", Goal::Maximize);
    let mut trainer = model::builder().hook(Accuracy::multiclass(3)).hook(stopping).build().unwrap();
    let error = trainer.fit(&mut rows(8), Some(&mut rows(4))).unwrap_err();
    let expected = "no metric named `valid/acuracy` will be logged; the metrics are `valid/accuracy`, `valid/loss`; did you mean `valid/accuracy`?";
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(trainer.counters().batches_seen, 0);
}

#[test]
fn a_name_that_a_hook_may_log_is_not_refused_at_the_start() {
    let fit = |watched: &str| {
        let mut trainer = model::builder()
            .hook(Accuracy::multiclass(3).per_class(true))
            .hook(EarlyStopping::new(watched, Goal::Maximize))
            .on::<AfterValid>("log", |cx| cx.log("acuracy", 0.5))
            .build()
            .unwrap();
        trainer.fit(&mut rows(8), Some(&mut rows(4)))
    };
    fit("valid/acuracy").unwrap();
    fit("valid/accuracy/2").unwrap();
    let error = fit("valid/acurracy").unwrap_err().to_string();
    assert!(error.contains("no metric is named `valid/acurracy`"), "{error}");
}

/// A task without `metric_inputs`.
struct Silent(Tensor, nn::VarStore);

impl Task for Silent {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.1
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(batch * &self.0)
    }
    fn loss(&mut self, pred: &Tensor, batch: &Tensor) -> Result<Tensor> {
        Ok((pred - batch).square().mean(Kind::Float))
    }
}

fn silent() -> trainer::TrainerBuilder<Silent> {
    let vars = nn::VarStore::new(device());
    let scale = vars.root().ones("scale", &[1]);
    Trainer::builder(Silent(scale, vars)).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

fn column() -> InMemory<Tensor> {
    InMemory::new(Tensor::ones([8], (Kind::Float, device()))).unwrap().batch_size(3)
}

#[test]
fn a_task_without_metric_inputs_is_refused_at_the_start() {
    let mut trainer = silent().hook(MeanSquaredError::new()).build().unwrap();
    let error = trainer.fit(&mut column(), Some(&mut column())).unwrap_err().to_string();
    assert!(error.contains("metric `mse`") && error.contains("implement `Task::metric_inputs`"), "{error}");
    assert_eq!(trainer.counters().batches_seen, 0);

    let inputs = |batch: &Tensor, pred: &Tensor| Some((pred.shallow_clone(), batch + 1.0));
    let mut trainer = silent().hook(MeanSquaredError::new().inputs(inputs)).epochs(1).build().unwrap();
    let summary = trainer.fit(&mut column(), Some(&mut column())).unwrap();
    assert!((summary.metrics["valid/mse"] - 1.0).abs() < 1e-6);

    // No batch has a target: nothing is logged.
    let none = |_: &Tensor, _: &Tensor| None;
    let mut trainer = silent().hook(MeanSquaredError::new().inputs(none)).epochs(1).build().unwrap();
    let summary = trainer.fit(&mut column(), Some(&mut column())).unwrap();
    assert!(summary.metrics.get("valid/mse").is_none());
}

#[test]
fn invalid_settings_are_refused_by_build() {
    let refused = |hook: MetricHook<Accuracy>| model::builder().hook(hook).build().unwrap_err().to_string();
    let error = refused(Accuracy::multiclass(3).top_k(4).named("top4"));
    assert!(error.contains("`.top_k(4)`: expected 1 to 3"), "{error}");
    let error = refused(Accuracy::multiclass(1).named("one"));
    assert!(error.contains("`multiclass(1)`: expected at least 2 classes"), "{error}");
    let error = refused(Accuracy::multiclass(3).only([Phase::Predict]));
    assert!(error.contains("expected one or more of `Train`, `Valid` and `Test`"), "{error}");
    let error =
        model::builder().hook(PerGroup::new(Accuracy::multiclass(3), 2)).build().unwrap_err().to_string();
    assert!(error.contains("call `.groups(|batch: &MyBatch| …)`"), "{error}");
}

#[test]
fn an_invalid_beta_and_0_groups_are_refused_by_build() {
    for beta in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let error = model::builder().hook(FBeta::multiclass(3).beta(beta)).build().unwrap_err().to_string();
        let expected = format!("metric `f1`: `.beta({beta})`: expected a finite number above 0");
        assert!(error.contains(&expected), "{error}");
    }
    let (pred, target) = scores();
    assert!(error_of(FBeta::multiclass(3).beta(0.0), &pred, &target).contains("`.beta(0)`"));

    let groups = |(_, labels): &(Tensor, Tensor)| labels.shallow_clone();
    let hook = PerGroup::new(Accuracy::multiclass(3), 0).groups(groups);
    let error = model::builder().hook(hook).build().unwrap_err().to_string();
    assert!(error.contains("metric `accuracy`: `PerGroup::new(…, 0)`: expected at least 1 group"), "{error}");
}

#[test]
fn per_class_is_refused_at_the_start_for_a_metric_without_values_per_class() {
    fn refused<M: Metric>(metric: M) {
        let mut trainer = model::builder().hook(metric.per_class(true)).build().unwrap();
        let error = trainer.fit(&mut rows(8), Some(&mut rows(4))).unwrap_err().to_string();
        assert!(error.contains("it has no values per class: remove `.per_class(true)`"), "{error}");
        assert_eq!(trainer.counters().batches_seen, 0);
    }
    refused(CohenKappa::multiclass(3));
    refused(Matthews::multiclass(3));
    refused(Accuracy::binary());
    refused(Running::new(MeanSquaredError::new(), 2));
    let mut trainer = model::builder()
        .hook(ConfusionMatrix::multiclass(3).per_class(true))
        .hook(Running::new(Accuracy::multiclass(3), 2).per_class(true))
        .build()
        .unwrap();
    let metrics = trainer.validate(&mut rows(10)).unwrap().metrics;
    assert!(metrics.get("valid/confusion_matrix/2/2").is_some());
    assert!(metrics.get("valid/running_accuracy/2").is_some());
}

#[test]
fn errors_of_a_renamed_metric_contain_its_new_name() {
    fn refused<M: Metric>(hook: MetricHook<M>) -> String {
        let built = model::builder().hook(hook).build();
        built.and_then(|mut trainer| trainer.validate(&mut rows(8))).unwrap_err().to_string()
    }
    let error = refused(Accuracy::multiclass(3).top_k(4).named("top4"));
    assert!(error.contains("metric `top4`: `.top_k(4)`: expected 1 to 3"), "{error}");
    let error = refused(Accuracy::multiclass(3).only([]).named("never"));
    assert!(error.contains("metric `never`: `.only([])`"), "{error}");
    let shifted = |(_, labels): &(Tensor, Tensor), pred: &Tensor| Some((pred.shallow_clone(), labels + 7));
    let error = refused(Accuracy::multiclass(3).inputs(shifted).named("shifted"));
    assert!(error.contains("metric `shifted`: a target is 7"), "{error}");
    let error = refused(Auroc::multiclass(3).inputs(shifted).named("shifted")); // from `compute`
    assert!(error.contains("metric `shifted`: a target is 9"), "{error}");
    let error = refused(Running::new(Accuracy::multiclass(3), 2).inputs(shifted).named("shifted"));
    assert!(error.contains("metric `shifted`: a target is 7"), "{error}");
}

#[test]
fn groups_are_read_from_the_batch() {
    let groups = |(_, labels): &(Tensor, Tensor)| labels.gt(0).to_kind(Kind::Int64);
    let hook = PerGroup::new(Accuracy::multiclass(3), 3).groups(groups).named("by_group");
    let mut trainer =
        model::builder().hook(hook).hook(Accuracy::multiclass(3).per_class(true)).build().unwrap();
    let summary = trainer.validate(&mut rows(10)).unwrap();
    assert_eq!(summary.metrics["valid/by_group/0"], summary.metrics["valid/accuracy/0"]);
    assert_eq!(summary.metrics.get("valid/by_group/2"), None);
}

/// The smallest accuracy of the samples of one label: a metric that needs groups.
#[derive(Clone)]
struct WorstGroup(PerGroup<Accuracy>);

impl Metric for WorstGroup {
    fn name(&self) -> String {
        "worst_accuracy".to_owned()
    }
    fn needs_groups(&self) -> bool {
        true
    }
    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        self.0.update(pred, target)
    }
    fn update_groups(&mut self, pred: &Tensor, target: &Tensor, groups: &Tensor) -> Result<()> {
        self.0.update_groups(pred, target, groups)
    }
    fn compute(&mut self) -> Result<Tensor> {
        Ok(self.0.compute()?.min())
    }
    fn states(&self) -> &States {
        self.0.states()
    }
    fn states_mut(&mut self) -> &mut States {
        self.0.states_mut()
    }
}

#[test]
fn wrappers_pass_groups_to_the_metric_that_needs_them() {
    let per_group = || PerGroup::new(MeanSquaredError::new(), 2);
    let zeros = Tensor::from_slice(&[0.0, 0.0]);
    let mut running = Running::new(per_group(), 2);
    assert!(running.needs_groups() && !Running::new(MeanSquaredError::new(), 2).needs_groups());
    for batch in [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]] {
        running.update_groups(&Tensor::from_slice(&batch), &zeros, &Tensor::from_slice(&[0i64, 1])).unwrap();
    }
    assert_eq!(Vec::<f64>::try_from(running.compute().unwrap()).unwrap(), [17.0, 26.0]);

    let labels = |(_, labels): &(Tensor, Tensor)| labels.shallow_clone();
    let accuracy = || PerGroup::new(Accuracy::multiclass(3), 3);
    let mut trainer = model::builder()
        .hook(accuracy().groups(labels))
        .hook(Running::new(accuracy(), 9).groups(labels))
        .hook(BestSoFar::new(WorstGroup(accuracy()), Goal::Maximize).groups(labels))
        .build()
        .unwrap();
    let metrics = trainer.validate(&mut rows(10)).unwrap().metrics;
    let each = [0, 1, 2].map(|group| metrics[&format!("valid/accuracy/{group}")[..]]);
    assert_eq!([0, 1, 2].map(|group| metrics[&format!("valid/running_accuracy/{group}")[..]]), each);
    assert_eq!(metrics["valid/best_worst_accuracy"], each.into_iter().fold(1.0, f64::min));

    let refused = |hook: MetricHook<BestSoFar<PerGroup<Accuracy>>>| {
        let built = model::builder().hook(hook).build();
        built.and_then(|mut trainer| trainer.validate(&mut rows(10))).unwrap_err().to_string()
    };
    let best = || BestSoFar::new(accuracy(), Goal::Maximize);
    let error = refused(best().named("best"));
    assert!(
        error.contains("it needs the group of each sample: call `.groups(|batch: &MyBatch| …)`"),
        "{error}"
    );
    let error = refused(best().groups(labels));
    assert!(error.contains("the value of `accuracy` has shape [3]: expected a scalar"), "{error}");
    let mut trainer = model::builder().hook(Accuracy::multiclass(3).groups(labels)).build().unwrap();
    let error = trainer.validate(&mut rows(10)).unwrap_err().to_string();
    assert!(error.contains("metric `accuracy`: it takes no groups: wrap it in `PerGroup`"), "{error}");
}

#[test]
fn a_changed_number_of_outputs_is_refused() {
    fn refused<M: Metric>(make: impl Fn() -> M) {
        let rows = |outputs: i64| Tensor::rand([4, outputs], (Kind::Double, device()));
        let mut metric = make();
        let mut other = make();
        metric.update(&rows(2), &rows(2)).unwrap();
        let error = metric.update(&rows(3), &rows(3)).unwrap_err().to_string();
        assert!(
            error.contains("the number of outputs changed from 2 to 3: expected the same number"),
            "{error}"
        );
        let _ = metric.compute().unwrap();
        other.update(&rows(3), &rows(3)).unwrap();
        let error = metric.merge(&other).unwrap_err().to_string();
        assert!(error.contains("the same number of outputs"), "{error}");
        let _ = metric.compute().unwrap();
    }
    refused(Pearson::new);
    refused(Spearman::new);
    refused(R2Score::new);
    refused(ExplainedVariance::new);
}

#[test]
fn bad_input_is_an_error_that_names_the_metric_and_the_value() {
    let (pred, target) = scores();
    let bad = Tensor::from_slice(&[0i64, 2, 7, 1]);
    // For a contiguous tensor on the CPU, `update` returns the error; otherwise, `compute` does.
    for pred in [pred.shallow_clone(), pred.tr().contiguous().tr()] {
        let error = error_of(Accuracy::multiclass(3), &pred, &bad);
        assert_eq!(
            error,
            "metric `accuracy`: a target is 7: expected a class from 0 to 2; `.ignore_index(…)` leaves out a value"
        );
        assert_eq!(value(Accuracy::multiclass(3).ignore_index(7), &pred, &bad).unwrap(), 1.0);
        let nan = pred.where_self(&pred.gt(0.1), &Tensor::from(f64::NAN));
        assert_eq!(
            error_of(Accuracy::multiclass(3), &nan, &target),
            "metric `accuracy`: a score is NaN: check the output of the model"
        );
    }
    let error = error_of(Auroc::multiclass(3), &pred, &bad);
    assert!(error.starts_with("metric `auroc`: a target is 7"), "{error}");
    let error = error_of(Accuracy::multiclass(4), &pred, &target);
    assert!(
        error
            .contains("shape [4, 3] (Double) and the target [4] (Int64): expected scores of shape [n, 4, …]"),
        "{error}"
    );
    let error = error_of(Accuracy::multiclass(3), &pred, &target.to_kind(Kind::Float));
    assert!(error.contains("the target has dtype Float"), "{error}");
    let error =
        error_of(Accuracy::binary(), &Tensor::from_slice(&[0.1, 0.9]), &Tensor::from_slice(&[0i64, -3]));
    assert!(error.contains("a target is -3: expected 0 or 1"), "{error}");
    let error = error_of(MeanSquaredError::new(), &pred, &target);
    assert!(error.contains("metric `mse`: the prediction has shape [4, 3] and the target [4]"), "{error}");
    let logits = Tensor::zeros([1, 2, 5], (Kind::Float, device()));
    let error = error_of(Perplexity::new(), &logits, &Tensor::from_slice2(&[[1i64, 9]]));
    assert!(error.contains("metric `perplexity`: a target is 9: expected a class from 0 to 4"), "{error}");
    let image = Tensor::zeros([1, 1, 4, 4], (Kind::Float, device()));
    let error = error_of(Ssim::new(1.0), &image, &image);
    assert!(
        error.contains("the images are 4 by 4 pixels: expected more than 5 in each dimension"),
        "{error}"
    );
    assert!(error_of(Psnr::new(-1.0), &image, &image).contains("`Psnr::new(-1.0)`"));
}

#[test]
fn empty_batches_are_ignored_and_a_metric_without_other_data_is_an_error() {
    let (pred, target) = scores();
    let mut accuracy = Accuracy::multiclass(3);
    accuracy.update(&pred.narrow(0, 0, 0), &target.narrow(0, 0, 0)).unwrap();
    let error = accuracy.compute().unwrap_err().to_string();
    assert!(error.starts_with("metric `accuracy`: there is nothing to compute"), "{error}");
    accuracy.update(&pred, &target).unwrap();
    assert_eq!(accuracy.compute().unwrap().double_value(&[]), 0.75);
    let empty = Tensor::zeros([0], (Kind::Float, device()));
    for error in [
        error_of(MeanSquaredError::new(), &empty, &empty),
        error_of(Pearson::new(), &empty, &empty),
        error_of(Spearman::new(), &empty, &empty),
    ] {
        assert!(error.contains("there is nothing to compute"), "{error}");
    }
}

#[test]
fn tensors_of_any_layout_and_dtype_have_the_same_accuracy() {
    let (pred, target) = scores();
    for kind in [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16] {
        for average in [Average::Micro, Average::Macro, Average::Weighted] {
            let plain = value(Accuracy::multiclass(3).average(average), &pred, &target).unwrap();
            let pred = pred.to_kind(kind);
            for pred in [pred.shallow_clone(), pred.tr().contiguous().tr(), pred.argmax(1, false)] {
                let metric = Accuracy::multiclass(3).average(average);
                assert_eq!(value(metric, &pred, &target.to_kind(Kind::Int)).unwrap(), plain);
            }
        }
    }
}

#[test]
fn a_running_metric_drops_old_batches_and_best_so_far_keeps_the_best_value() {
    let mse = |metric: &mut dyn FnMut(f64)| [3.0, 1.0, 2.0].into_iter().for_each(metric);
    let zero = Tensor::from_slice(&[0.0]);
    let mut running = Running::new(MeanSquaredError::new(), 2);
    mse(&mut |value| running.update(&Tensor::from_slice(&[value]), &zero).unwrap());
    assert_eq!(running.compute().unwrap().double_value(&[]), 2.5);
    let mut best = BestSoFar::new(MeanSquaredError::new(), Goal::Minimize);
    let mut seen = Vec::new();
    mse(&mut |value| {
        best.update(&Tensor::from_slice(&[value]), &zero).unwrap();
        seen.push(best.compute().unwrap().double_value(&[]));
        best.reset();
    });
    assert_eq!(seen, [9.0, 1.0, 1.0]);
}

#[test]
fn thresholds_limit_the_state_size_of_spearman() {
    tch::manual_seed(3);
    let x = Tensor::rand([500], (Kind::Double, device()));
    let y = &x * 0.5 + Tensor::rand([500], (Kind::Double, device())) * 0.5;
    let exact = value(Spearman::new(), &x, &y).unwrap();
    let mut bounded = Spearman::new().thresholds(200, 0.0..1.0);
    for (x, y) in x.split(100, 0).iter().zip(y.split(100, 0)) {
        bounded.update(x, &y).unwrap();
    }
    assert_eq!(bounded.states().tensors()["bins"].numel(), 200 * 200);
    let bounded = bounded.compute().unwrap().double_value(&[]);
    assert!((bounded - exact).abs() < 1e-3, "{bounded} {exact}");
}

/// Trains with metrics of every kind of state, and returns the history and the final metrics. With
/// `cancel_at`, the first run is cancelled after `cancel_at` batches of validation, and a second
/// run resumes it.
fn trained(name: &str, cancel_at: Option<u64>) -> String {
    let folder = scratch(name);
    let run = |cancel_at: Option<u64>| {
        let token = CancelToken::new();
        let seen = std::sync::atomic::AtomicU64::new(0);
        let cancel = token.clone();
        let pixels = |(inputs, _): &(Tensor, Tensor), pred: &Tensor| {
            Some((pred.sum_dim_intlist(1i64, false, Kind::Float), inputs.select(1, 0)))
        };
        let mut trainer = model::builder()
            .epochs(3)
            .cancel_token(token)
            .hook(Checkpoint::new(&folder).every(Every::Epochs(1)))
            .resume(Resume::Auto)
            .hook(Accuracy::multiclass(3).per_class(true))
            .hook(Auroc::multiclass(3))
            .hook(Pearson::new().inputs(pixels))
            .hook(MeanSquaredError::new().inputs(pixels))
            .hook(BestSoFar::new(Accuracy::multiclass(3), Goal::Maximize))
            .hook(Running::new(MeanSquaredError::new(), 3).inputs(pixels))
            .hook(
                PerGroup::new(Accuracy::multiclass(3), 3)
                    .groups(|(_, labels): &(Tensor, Tensor)| labels.shallow_clone())
                    .named("group"),
            )
            .hook(Accuracy::multiclass(3).only([Phase::Train]).named("of_train"))
            .on::<AfterStep>(HookOptions::named("cancel").only(Phase::Valid), move |_| {
                if Some(seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1) == cancel_at {
                    cancel.cancel();
                }
            })
            .build()
            .unwrap();
        trainer.fit(&mut rows(12).shuffle(3), Some(&mut rows(22)))
    };
    if cancel_at.is_some() {
        assert!(run(cancel_at).unwrap_err().is_cancelled());
    }
    let summary = run(None).unwrap();
    let bits = |(name, value): (&str, f64)| format!("{name} {:016x}", value.to_bits());
    let history: Vec<String> = ["valid/accuracy", "valid/auroc", "valid/pearson", "train/of_train"]
        .iter()
        .flat_map(|name| summary.history[name].iter().map(|value| format!("{value:?}")).collect::<Vec<_>>())
        .collect();
    format!("{:?}\n{history:?}", summary.metrics.iter().map(bits).collect::<Vec<_>>())
}

#[test]
fn a_run_cancelled_in_validation_resumes_with_bit_identical_metrics() {
    let whole = trained("metrics-whole", None);
    for batches in [1, 3, 8, 17] {
        assert_eq!(trained(&format!("metrics-{batches}"), Some(batches)), whole, "after {batches} batches");
    }
}

#[test]
fn the_description_shows_which_metric_a_hook_measures() {
    let trainer = model::builder()
        .hook(Accuracy::multiclass(3))
        .hook(Accuracy::multiclass(3).top_k(2).named("top2"))
        .hook(Accuracy::multiclass(3))
        .hook(MeanSquaredError::new().root(true))
        .build()
        .unwrap();
    let table = trainer.describe_hooks();
    let names = ["(accuracy) #1", "(top2)", "(accuracy) #2", "(rmse)"];
    assert_eq!(table.at("after_valid"), names.map(|name| format!("trainer::metrics::MetricHook{name}")));
    assert!(table.json().contains("\"trainer::metrics::MetricHook(top2)\""));
    assert!(table.to_string().contains("MetricHook(rmse)"));
}

#[test]
fn classes_have_their_names() {
    let names = ["cat", "dog", "fish"];
    let fit = |accuracy: MetricHook<Accuracy>, matrix: MetricHook<ConfusionMatrix>| {
        let mut trainer = model::builder().epochs(1).hook(accuracy).hook(matrix).build()?;
        trainer.fit(&mut model::rows(8), Some(&mut model::rows(40)))
    };
    let matrix = || ConfusionMatrix::multiclass(3).per_class(true);
    let accuracy = || Accuracy::multiclass(3).per_class(true);
    let numbered = fit(accuracy(), matrix()).unwrap().metrics;
    let named = fit(accuracy().class_names(names), matrix().class_names(names)).unwrap().metrics;
    for (row, target) in names.iter().enumerate() {
        assert_eq!(named[&format!("valid/accuracy/{target}")], numbered[&format!("valid/accuracy/{row}")]);
        for (column, prediction) in names.iter().enumerate() {
            let [named, numbered] = [
                named[&format!("valid/confusion_matrix/{target}/{prediction}")],
                numbered[&format!("valid/confusion_matrix/{row}/{column}")],
            ];
            assert_eq!(named, numbered);
        }
    }
    // The inner matrices of a multilabel matrix are those of each label, which have no classes.
    let targets = |(inputs, _): &(Tensor, Tensor), pred: &Tensor| {
        let labels = inputs.narrow(1, 0, 3).gt(0.0).to_kind(Kind::Int64);
        Some((pred.sigmoid(), labels))
    };
    let labels = ConfusionMatrix::multilabel(3).inputs(targets).per_class(true).class_names(names);
    let metrics = fit(accuracy(), labels).unwrap().metrics;
    assert!(metrics.get("valid/confusion_matrix/dog/0/1").is_some(), "{metrics}");

    let error = fit(accuracy().class_names(["cat", "dog"]), matrix()).unwrap_err().to_string();
    assert!(
        error.contains("metric `accuracy`: `.class_names(…)` has 2 names, but the metric has 3 classes"),
        "{error}"
    );
    for (wrong, expected) in [
        (
            ["a/b", "c", "d"],
            "`.class_names(…)` contains \"a/b\", which cannot be part of the name of a metric",
        ),
        (["", "c", "d"], "`.class_names(…)` contains \"\", which cannot"),
        (["c", "d", "c"], "`.class_names(…)` contains \"c\" twice"),
    ] {
        let error = fit(accuracy().class_names(wrong), matrix()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Draws an image with a letter for each pixel of 2 × 2 pixels: `#` for a dark one.
fn drawn(image: &trainer::Image) -> String {
    let width = image.width as usize;
    let rows = image.pixels.chunks(3 * width).step_by(2);
    let rows = rows.map(|row| {
        let pixels = row.chunks(3).step_by(2);
        let letters = pixels.map(|pixel| match pixel[0] {
            0..=60 => '#',
            61..=227 => '+',
            228 => '.',
            _ => ' ',
        });
        letters.collect::<String>().trim_end().to_owned()
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// The images of records, by name.
type Images = Arc<Mutex<Vec<(String, trainer::Image)>>>;

#[test]
fn a_confusion_matrix_is_logged_as_an_image() {
    let images = Images::default();
    let noted = Arc::clone(&images);
    let train = |metric: ConfusionMatrix, noted: Option<Images>| {
        let mut builder = model::builder().epochs(1).hook(metric);
        if let Some(noted) = noted {
            builder = builder.on::<AfterRecord>("images", move |cx| {
                let images = cx.record().images().map(|(name, image)| (name.to_owned(), image.clone()));
                noted.lock().unwrap().extend(images);
            });
        }
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut model::rows(8), Some(&mut model::rows(40))).unwrap();
        let value = trainer.hook::<MetricHook<ConfusionMatrix>>().unwrap().value(Phase::Valid);
        Vec::<f64>::try_from(value.unwrap().reshape([-1])).unwrap()
    };
    let counts = train(ConfusionMatrix::multiclass(3), Some(noted));
    assert_eq!(counts.iter().sum::<f64>(), 40.0);
    let images = images.lock().unwrap();
    let [(name, image)] = &images[..] else { panic!("{images:?}") };
    assert_eq!((name.as_str(), image.channels), ("valid/confusion_matrix", 3));
    insta::assert_snapshot!("confusion_matrix_image", format!("{counts:?}\n{}", drawn(image)));
    // Nothing that needs a record is in the way of a run without loggers.
    assert_eq!(train(ConfusionMatrix::multiclass(3), None), counts);
}
