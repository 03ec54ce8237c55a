//! Empty batches and NaN, for each metric.

use trainer::metrics::{
    Accuracy, Auroc, AveragePrecision, BestSoFar, Bleu, CalibrationError, CharErrorRate, CohenKappa,
    ConfusionMatrix, Dice, ExplainedVariance, FBeta, Jaccard, Matthews, MeanAbsoluteError, MeanSquaredError,
    Metric, Pearson, Perplexity, Precision, Psnr, R2Score, Recall, Running, Spearman, Specificity, Ssim,
    WordErrorRate,
};
use trainer::prelude::*;

use crate::support::device;

/// Returns the bits of a value.
fn bits(value: &Tensor) -> Vec<u64> {
    let values: Vec<f64> = Vec::try_from(value.to_kind(Kind::Double).flatten(0, -1)).unwrap();
    values.into_iter().map(f64::to_bits).collect()
}

/// Checks that a metric has no value if all batches are empty, and, except for a running metric,
/// that neither empty batches nor a merge with a state without data changes its value. Then
/// replaces one score with NaN, and returns the value or the error.
fn check<M: Metric>(make: impl Fn() -> M, pred: &Tensor, target: &Tensor) -> Result<Tensor> {
    let mut whole = make();
    whole.update(pred, target).unwrap();
    let whole = bits(&whole.compute().unwrap());

    let no_pred = pred.narrow(0, 0, 0);
    let no_target = target.narrow(0, 0, 0);
    let mut empty = make();
    empty.update(&no_pred, &no_target).unwrap();
    empty.update(&no_pred, &no_target).unwrap();
    let error = empty.compute().unwrap_err().to_string();
    assert!(error.starts_with("metric `") && error.contains("nothing to compute"), "{error}");

    let mut surrounded = make();
    surrounded.update(&no_pred, &no_target).unwrap();
    surrounded.update(pred, target).unwrap();
    surrounded.update(&no_pred, &no_target).unwrap();
    // A running metric counts batches, and an empty one is a batch.
    let name = surrounded.name();
    if !name.starts_with("running_") {
        assert_eq!(bits(&surrounded.compute().unwrap()), whole, "{name}");
        surrounded.merge(&make()).unwrap();
        assert_eq!(bits(&surrounded.compute().unwrap()), whole, "{name}, merged");
        empty.merge(&surrounded).unwrap();
        assert_eq!(bits(&empty.compute().unwrap()), whole, "{name}, merged with data");
    }

    let with_nan = pred.copy();
    let mut metric = make();
    let _ = with_nan.view([-1]).get(1).fill_(f64::NAN);
    metric.update(&with_nan, target)?;
    metric.compute()
}

fn assert_refused(result: Result<Tensor>) {
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("metric `") && error.contains(": a score is NaN: "), "{error}");
}

fn assert_nan(result: Result<Tensor>) {
    assert!(result.unwrap().to_kind(Kind::Double).isnan().any().int64_value(&[]) == 1);
}

macro_rules! classification {
    ($($type:ident)*) => {$({
        let scores = Tensor::from_slice2(&[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]]);
        let labels = Tensor::from_slice(&[0i64, 2, 1, 1]);
        assert_refused(check(|| $type::multiclass(3), &scores, &labels));
        let scores = Tensor::from_slice(&[0.9, 0.2, 0.6, 0.4]);
        let labels = Tensor::from_slice(&[1i64, 0, 0, 1]);
        assert_refused(check($type::binary, &scores, &labels));
    })*};
}

macro_rules! multilabel {
    ($($type:ident)*) => {$({
        let scores = Tensor::from_slice2(&[[0.9, 0.1], [0.2, 0.7], [0.6, 0.3]]);
        let labels = Tensor::from_slice2(&[[1i64, 0], [0, 1], [1, 1]]);
        assert_refused(check(|| $type::multilabel(2), &scores, &labels));
    })*};
}

#[test]
fn classification_metrics_ignore_empty_batches_and_refuse_nan() {
    classification! {
        Accuracy Precision Recall Specificity FBeta Jaccard ConfusionMatrix Matthews CohenKappa CalibrationError
        Auroc AveragePrecision
    }
    multilabel! {
        Accuracy Precision Recall Specificity FBeta Jaccard ConfusionMatrix Matthews Auroc AveragePrecision
    }
    let scores = Tensor::from_slice(&[0.9, 0.2, 0.6, 0.4]);
    let labels = Tensor::from_slice(&[1i64, 0, 0, 1]);
    assert_refused(check(|| Auroc::binary().thresholds(5), &scores, &labels));
    assert_refused(check(|| AveragePrecision::binary().thresholds(5), &scores, &labels));
    assert_refused(check(|| BestSoFar::new(Accuracy::binary(), Goal::Maximize), &scores, &labels));
    assert_refused(check(|| Running::new(Accuracy::binary(), 2), &scores, &labels));
}

#[test]
fn regression_metrics_ignore_empty_batches_and_all_but_spearman_propagate_nan() {
    let (pred, target) =
        (Tensor::from_slice(&[1.0, 2.5, 3.0, 0.5]), Tensor::from_slice(&[1.0, 2.0, 4.0, 1.0]));
    assert_nan(check(MeanSquaredError::new, &pred, &target));
    assert_nan(check(|| MeanSquaredError::new().root(true), &pred, &target));
    assert_nan(check(MeanAbsoluteError::new, &pred, &target));
    assert_nan(check(R2Score::new, &pred, &target));
    assert_nan(check(ExplainedVariance::new, &pred, &target));
    assert_nan(check(Pearson::new, &pred, &target));
    // NaN ranks above all numbers, as in torchmetrics.
    let spearman = check(Spearman::new, &pred, &target).unwrap().double_value(&[]);
    assert!((spearman - 0.737_864_765).abs() < 1e-6, "{spearman}");
}

#[test]
fn image_metrics_ignore_empty_batches_and_psnr_and_ssim_propagate_nan() {
    let image = Tensor::arange(2 * 8 * 9, (Kind::Double, device())).sin().abs().view([2, 1, 8, 9]);
    let other = &image * 0.9;
    assert_nan(check(|| Psnr::new(1.0), &other, &image));
    assert_nan(check(|| Ssim::new(1.0).sigma(0.8), &other, &image));
    let scores = Tensor::arange(2 * 3 * 4, (Kind::Double, device())).cos().view([2, 3, 2, 2]);
    let _ =
        check(|| Dice::new(3), &scores, &Tensor::from_slice(&[0i64, 1, 2, 1, 0, 0, 2, 1]).view([2, 2, 2]));
}

#[test]
fn perplexity_of_only_ignored_tokens_is_an_error() {
    let logits = Tensor::arange(2 * 3 * 4, (Kind::Double, device())).sin().view([2, 3, 4]);
    let ignored = Tensor::full([2, 3], -100, (Kind::Int64, device()));
    let mut perplexity = Perplexity::new().ignore_index(-100);
    perplexity.update(&logits, &ignored).unwrap();
    let error = perplexity.compute().unwrap_err().to_string();
    assert!(error.contains("nothing to compute") && error.contains("all of it was ignored"), "{error}");
    let tokens = Tensor::from_slice2(&[[0i64, 1, -100], [3, 2, 1]]);
    perplexity.update(&logits, &tokens).unwrap();
    let mut alone = Perplexity::new().ignore_index(-100);
    alone.update(&logits, &tokens).unwrap();
    assert_eq!(bits(&perplexity.compute().unwrap()), bits(&alone.compute().unwrap()));
}

#[test]
fn text_metrics_ignore_empty_batches() {
    let logits = Tensor::arange(2 * 3 * 4, (Kind::Double, device())).sin().view([2, 3, 4]);
    let tokens = Tensor::from_slice2(&[[0i64, 1, 2], [3, 2, 1]]);
    assert_nan(check(Perplexity::new, &logits, &tokens));

    macro_rules! texts {
        ($metric:expr, $none:expr, $some:expr) => {{
            let mut whole = $metric;
            let mut surrounded = $metric;
            whole.update_texts(&["a b c d e"], &$some).unwrap();
            surrounded.update_texts(&[] as &[&str], &$none).unwrap();
            assert!(surrounded.compute().unwrap_err().to_string().contains("nothing to compute"));
            surrounded.update_texts(&["a b c d e"], &$some).unwrap();
            surrounded.update_texts(&[] as &[&str], &$none).unwrap();
            surrounded.merge(&$metric).unwrap();
            assert_eq!(bits(&surrounded.compute().unwrap()), bits(&whole.compute().unwrap()));
        }};
    }
    texts!(WordErrorRate::new(), [] as [&str; 0], ["a b x d e"]);
    texts!(CharErrorRate::new(), [] as [&str; 0], ["a b x d e"]);
    texts!(Bleu::new(), [] as [Vec<&str>; 0], [vec!["a b c d x"]]);
}
