//! What a metric makes of data that decides nothing by itself: scores that could be logits, targets
//! that are all ignored, hooks that compare the wrong way round.

use trainer::hooks::{Checkpoint, EarlyStopping, ReduceOnPlateau};
use trainer::metrics::{
    Accuracy, Auroc, AveragePrecision, BestSoFar, Bleu, CalibrationError, CharErrorRate, CohenKappa,
    ConfusionMatrix, Dice, ExplainedVariance, FBeta, Jaccard, Matthews, MeanAbsoluteError, MeanSquaredError,
    Metric, Pearson, Perplexity, Precision, Psnr, R2Score, Recall, Running, Spearman, Specificity, Ssim,
    WordErrorRate,
};
use trainer::prelude::*;

use crate::model;
use crate::support::{own_warnings, scratch};

/// Each metric whose value depends on whether scores are logits, for scores and targets of `shape`.
macro_rules! decided_by_scores {
    ($call:ident!($($argument:expr),*)) => {
        $call!(binary: Accuracy::binary(), $($argument),*);
        $call!(binary: Precision::binary(), $($argument),*);
        $call!(binary: Recall::binary(), $($argument),*);
        $call!(binary: Specificity::binary(), $($argument),*);
        $call!(binary: FBeta::binary(), $($argument),*);
        $call!(binary: ConfusionMatrix::binary(), $($argument),*);
        $call!(binary: CohenKappa::binary(), $($argument),*);
        $call!(binary: Matthews::binary(), $($argument),*);
        $call!(binary: Jaccard::binary(), $($argument),*);
        $call!(binary: Auroc::binary(), $($argument),*);
        $call!(binary: Auroc::binary().thresholds(20), $($argument),*);
        $call!(binary: AveragePrecision::binary(), $($argument),*);
        $call!(binary: AveragePrecision::binary().thresholds(20), $($argument),*);
        $call!(binary: CalibrationError::binary(), $($argument),*);
        $call!(multilabel: Accuracy::multilabel(2), $($argument),*);
        $call!(multilabel: FBeta::multilabel(2), $($argument),*);
        $call!(multilabel: ConfusionMatrix::multilabel(2), $($argument),*);
        $call!(multilabel: Jaccard::multilabel(2), $($argument),*);
        $call!(multilabel: Auroc::multilabel(2), $($argument),*);
        $call!(multilabel: Auroc::multilabel(2).thresholds(20), $($argument),*);
        $call!(multiclass: Auroc::multiclass(2), $($argument),*);
        $call!(multiclass: AveragePrecision::multiclass(2).thresholds(20), $($argument),*);
        $call!(multiclass: CalibrationError::multiclass(2), $($argument),*);
    };
}

fn targets(kind: &str) -> Tensor {
    match kind {
        "binary" => Tensor::from_slice(&[0i64, 1, 0, 1]),
        "multilabel" => Tensor::from_slice(&[0i64, 1, 1, 0, 0, 0, 1, 1]).view([4, 2]),
        _ => Tensor::from_slice(&[0i64, 1, 0, 1]),
    }
}

fn scores(kind: &str, largest: f64) -> Tensor {
    if kind == "binary" {
        // Only one is outside the range of probabilities, if `largest` is.
        Tensor::from_slice(&[0.1, 0.7, 0.3, largest])
    } else {
        Tensor::from_slice(&[0.1, 0.8, 0.7, 0.2, 0.4, 0.3, 0.9, largest]).view([4, 2])
    }
}

#[test]
fn whether_scores_are_logits_does_not_depend_on_batches_or_ranks() {
    macro_rules! compare {
        ($kind:ident: $metric:expr, $largest:expr) => {{
            let kind = stringify!($kind);
            let (scores, targets) = (scores(kind, $largest), targets(kind));
            let value = |sizes: &[i64], merges: bool| {
                let mut metric = $metric;
                let mut start = 0;
                for size in sizes {
                    let mut part = $metric;
                    let into = if merges { &mut part } else { &mut metric };
                    into.update(&scores.narrow(0, start, *size), &targets.narrow(0, start, *size)).unwrap();
                    start += size;
                    if merges {
                        metric.merge(&part).unwrap();
                    }
                }
                metric.compute().unwrap()
            };
            let whole = value(&[4], false);
            let mut told = $metric.logits($largest > 1.0);
            told.update(&scores, &targets).unwrap();
            let expected = told.compute().unwrap();
            let close = |one: &Tensor| one.allclose(&expected, 1e-12, 1e-12, true);
            assert!(close(&whole), "{} {kind}: {whole:?}, {expected:?}", $metric.name());
            for sizes in [&[1, 1, 1, 1][..], &[2, 2], &[3, 1], &[1, 3]] {
                for merges in [false, true] {
                    let parts = value(sizes, merges);
                    assert!(close(&parts), "{} {kind} {sizes:?}: {parts:?}, {whole:?}", $metric.name());
                }
            }
        }};
    }
    decided_by_scores!(compare!(0.95));
    decided_by_scores!(compare!(3.0));
}

#[test]
fn a_metric_whose_targets_are_all_ignored_has_no_value() {
    macro_rules! refuse {
        ($($metric:expr, $pred:expr, $target:expr;)*) => {$({
            let mut metric = $metric;
            metric.update(&$pred, &$target).unwrap();
            let error = metric.compute().map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|text| text.contains("all of it was ignored")), "{}: {error:?}", metric.name());
        })*};
    }
    let ignored = Tensor::from_slice(&[-100i64, -100]);
    let binary = Tensor::from_slice(&[0.2, 0.9]);
    let classes = Tensor::from_slice2(&[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]);
    let labels = Tensor::from_slice2(&[[-100i64, -100], [-100, -100]]);
    let of_labels = Tensor::from_slice2(&[[0.1, 0.9], [0.5, 0.5]]);
    macro_rules! kinds {
        ($($type:ident),*) => {$(
            refuse!($type::binary().ignore_index(-100), binary, ignored;
                    $type::multiclass(3).ignore_index(-100), classes, ignored;
                    $type::multilabel(2).ignore_index(-100), of_labels, labels;);
        )*};
    }
    kinds!(
        Accuracy,
        Precision,
        Recall,
        Specificity,
        FBeta,
        ConfusionMatrix,
        Matthews,
        Jaccard,
        Auroc,
        AveragePrecision
    );
    refuse!(CohenKappa::binary().ignore_index(-100), binary, ignored;
            CohenKappa::multiclass(3).ignore_index(-100), classes, ignored;
            CalibrationError::binary().ignore_index(-100), binary, ignored;
            CalibrationError::multiclass(3).ignore_index(-100), classes, ignored;
            Auroc::binary().thresholds(5).ignore_index(-100), binary, ignored;
            Perplexity::new().ignore_index(-100), classes.unsqueeze(0), ignored.unsqueeze(0););
}

#[test]
fn a_label_without_targets_is_left_out_of_means() {
    let scores = Tensor::from_slice2(&[[0.1, 0.9], [0.8, 0.2], [0.9, 0.3], [0.2, 0.4]]);
    let targets = Tensor::from_slice2(&[[0i64, -100], [1, -100], [1, -100], [0, -100]]);
    macro_rules! right {
        ($($metric:expr),*) => {$({
            let mut metric = $metric.ignore_index(-100);
            metric.update(&scores, &targets).unwrap();
            assert_eq!(metric.compute().unwrap().double_value(&[]), 1.0, "{}", metric.name());
            let each = metric.compute_per_class().unwrap().unwrap();
            assert!(each.double_value(&[0]) == 1.0 && each.double_value(&[1]).is_nan(), "{}: {each:?}", metric.name());
        })*};
    }
    right!(
        Auroc::multilabel(2),
        Auroc::multilabel(2).thresholds(30),
        AveragePrecision::multilabel(2),
        Jaccard::multilabel(2)
    );
    right!(
        Accuracy::multilabel(2).average(trainer::metrics::Average::Macro),
        Precision::multilabel(2),
        Recall::multilabel(2),
        FBeta::multilabel(2)
    );
}

#[test]
fn a_pass_in_which_all_targets_are_ignored_logs_nothing_and_a_warning_says_so() {
    let mut trainer = model::builder()
        .hook(Accuracy::multiclass(3).ignore_index(0))
        .hook(Auroc::multiclass(3).ignore_index(0))
        .epochs(2)
        .build()
        .unwrap();
    let inputs = Tensor::ones([8, 4], (Kind::Float, Device::Cpu));
    let labels = Tensor::zeros([8], (Kind::Int64, Device::Cpu));
    let mut valid = InMemory::new((inputs, labels)).unwrap().batch_size(4);
    let summary = trainer.fit(&mut model::rows(8), Some(&mut valid)).unwrap();
    assert_eq!((summary.metrics.get("valid/accuracy"), summary.metrics.get("valid/auroc")), (None, None));
    let warnings = own_warnings(&summary);
    let named = |name: &str| warnings.iter().filter(|text| text.contains(name)).count();
    assert_eq!(
        (named("`valid/accuracy` has no value"), named("`valid/auroc` has no value")),
        (1, 1),
        "{warnings:?}"
    );
}

#[test]
fn a_ranking_of_one_class_has_no_value_and_a_warning_says_so_once() {
    let one_class = |label: i64| {
        let inputs = Tensor::ones([8, 4], (Kind::Float, Device::Cpu));
        let labels = Tensor::full([8], label, (Kind::Int64, Device::Cpu));
        InMemory::new((inputs, labels)).unwrap().batch_size(4)
    };
    let score = |(_, labels): &(Tensor, Tensor), pred: &Tensor| {
        Some((pred.select(1, 0).sigmoid(), labels.clamp_max(1)))
    };
    for label in [0, 1] {
        let mut trainer = model::builder()
            .hook(Auroc::binary().inputs(score).named("area"))
            .hook(Auroc::binary().thresholds(5).inputs(score).named("area_5"))
            .hook(AveragePrecision::binary().inputs(score).named("precision"))
            .hook(Auroc::multiclass(3).per_class(true))
            .hook(AveragePrecision::multiclass(3).thresholds(5))
            .epochs(3)
            .build()
            .unwrap();
        let summary = trainer.fit(&mut model::rows(8), Some(&mut one_class(label))).unwrap();
        let logged: Vec<_> =
            summary.metrics.iter().map(|(name, _)| name).filter(|name| name.starts_with("valid/")).collect();
        assert_eq!(logged, ["valid/loss"]);
        let warnings = own_warnings(&summary);
        for name in ["area", "area_5", "precision", "auroc", "average_precision"] {
            let text = format!(
                "`valid/{name}` has no value, because no class has both positive and negative targets"
            );
            assert_eq!(warnings.iter().filter(|warning| warning.contains(&text)).count(), 1, "{warnings:?}");
        }
        // A value that is missing in one pass is there in the next.
        let summary = trainer.validate(&mut model::rows(8)).unwrap();
        assert!(summary.metrics.get("valid/auroc").is_some_and(|area| (0.0..=1.0).contains(&area)));
    }
    let mut auroc = Auroc::binary();
    auroc.update(&Tensor::from_slice(&[0.1, 0.9]), &Tensor::from_slice(&[1i64, 1])).unwrap();
    let error = auroc.compute().unwrap_err().to_string();
    assert!(
        error.starts_with("metric `auroc`: there is nothing to compute, because no class has both"),
        "{error}"
    );
}

#[test]
fn every_metric_knows_its_goal_as_in_torchmetrics() {
    let (max, min) = (Some(Goal::Maximize), Some(Goal::Minimize));
    for (goal, expected) in [
        (Accuracy::binary().goal(), max),
        (Precision::binary().goal(), max),
        (Recall::binary().goal(), max),
        (Specificity::binary().goal(), max),
        (FBeta::binary().goal(), max),
        (Auroc::binary().goal(), max),
        (AveragePrecision::binary().goal(), max),
        (CohenKappa::binary().goal(), max),
        (Matthews::binary().goal(), max),
        (Jaccard::binary().goal(), max),
        (Dice::new(2).goal(), max),
        (Psnr::new(1.0).goal(), max),
        (Ssim::new(1.0).goal(), max),
        (R2Score::new().goal(), max),
        (ExplainedVariance::new().goal(), max),
        (Bleu::new().goal(), max),
        (CalibrationError::binary().goal(), min),
        (MeanSquaredError::new().goal(), min),
        (MeanAbsoluteError::new().goal(), min),
        (Perplexity::new().goal(), min),
        (WordErrorRate::new().goal(), min),
        (CharErrorRate::new().goal(), min),
        (ConfusionMatrix::binary().goal(), None),
        (Pearson::new().goal(), None),
        (Spearman::new().goal(), None),
        (Running::new(Accuracy::binary(), 2).goal(), max),
        (BestSoFar::new(Spearman::new(), Goal::Minimize).goal(), min),
    ] {
        assert_eq!(goal, expected);
    }
    let error = BestSoFar::new(Accuracy::binary(), Goal::Minimize).check().unwrap_err().to_string();
    assert!(error.contains("larger values of `accuracy` are better: expected `Goal::Maximize`"), "{error}");
}

#[test]
fn a_hook_that_compares_a_metric_the_wrong_way_round_is_refused() {
    let folder = scratch("goals");
    let build = |builder: trainer::TrainerBuilder<_>| {
        builder.hook(Accuracy::multiclass(3).per_class(true)).hook(R2Score::new().named("r2")).build()
    };
    let (min, max) = (Goal::Minimize, Goal::Maximize);
    for (name, wrong, better) in [
        ("valid/accuracy", min, "larger"),
        ("valid/accuracy/1", min, "larger"),
        ("valid/clean/r2", min, "larger"),
        ("train/loss", max, "smaller"),
        ("valid/clean/loss", max, "smaller"),
    ] {
        let right = if wrong == min { max } else { min };
        let expected = format!("`: {better} values of `{name}` are better: expected `Goal::{right:?}`");
        for builder in [
            model::builder().hook(EarlyStopping::new(name, wrong)),
            model::builder().hook(ReduceOnPlateau::new(name, wrong)),
            model::builder().hook(Checkpoint::new(folder.join("c")).keep_best(1, name, wrong)),
        ] {
            let error = build(builder).unwrap_err().to_string();
            assert!(error.contains("hook `trainer::hooks::") && error.contains(&expected), "{error}");
        }
    }
    // A second hook that watches the metric the right way round hides nothing.
    let both = EarlyStopping::new("valid/accuracy", min);
    let both = model::builder().hook(both).hook(ReduceOnPlateau::new("valid/accuracy", max));
    assert!(build(both).unwrap_err().to_string().contains("hook `trainer::hooks::EarlyStopping`: larger"));
    for (name, goal) in
        [("valid/accuracy", max), ("valid/loss", min), ("valid/loss_ratio", max), ("valid/r", min)]
    {
        build(model::builder().hook(EarlyStopping::new(name, goal))).unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}
