//! Each metric with predictions and targets of each dtype: the value is that of the same numbers in
//! double precision, or the error names the metric and the dtypes.

use std::collections::BTreeSet;
use std::path::Path;

use trainer::metrics::{
    Accuracy, Auroc, AveragePrecision, BestSoFar, Bleu, CalibrationError, CharErrorRate, CohenKappa,
    ConfusionMatrix, Dice, ExplainedVariance, FBeta, Jaccard, Matthews, MeanAbsoluteError, MeanSquaredError,
    Metric, Pearson, PerGroup, Perplexity, Precision, Psnr, R2Score, Recall, Running, Spearman, Specificity,
    Ssim, WordErrorRate,
};
use trainer::prelude::*;

use crate::support::device;

const INTEGERS: &[Kind] = &[Kind::Uint8, Kind::Int8, Kind::Int16, Kind::Int, Kind::Int64];
const FLOATS: &[Kind] = &[Kind::Half, Kind::BFloat16, Kind::Float, Kind::Double];
const UNSUPPORTED: &[Kind] = &[Kind::ComplexFloat, Kind::Float8e4m3fn];

/// The dtypes that a metric takes.
#[derive(Clone, Copy)]
enum Takes {
    Integers,
    IntegersAndBool,
    Floats,
    Numbers,
}

impl Takes {
    fn includes(self, kind: Kind) -> bool {
        let is_int = INTEGERS.contains(&kind);
        let is_float = FLOATS.contains(&kind);
        match self {
            Takes::Integers => is_int,
            Takes::IntegersAndBool => is_int || kind == Kind::Bool,
            Takes::Floats => is_float,
            Takes::Numbers => is_int || is_float || kind == Kind::Bool,
        }
    }

    /// A dtype that represents all of the numbers.
    fn widest(self) -> Kind {
        if matches!(self, Takes::Floats | Takes::Numbers) { Kind::Double } else { Kind::Int64 }
    }
}

/// Returns the numbers as a tensor of this dtype, or `None` if it does not represent them exactly.
fn represented(numbers: &Tensor, kind: Kind) -> Option<Tensor> {
    if kind == Kind::Bool && numbers.gt(1.0).logical_or(&numbers.lt(0.0)).any().int64_value(&[]) == 1 {
        return None;
    }
    let converted = numbers.to_kind(kind);
    (converted.to_kind(Kind::Double) == *numbers).then_some(converted)
}

fn value<M: Metric>(mut metric: M, pred: &Tensor, target: &Tensor) -> Result<Vec<f64>> {
    if metric.needs_groups() {
        let groups = Tensor::arange(pred.size()[0], (Kind::Int64, device())).remainder(2);
        metric.update_groups(pred, target, &groups)?;
    } else {
        metric.update(pred, target)?;
    }
    Ok(Vec::try_from(metric.compute()?.to_kind(Kind::Double).flatten(0, -1))?)
}

/// Checks a metric on the numbers of `pred` and `target`, as each dtype that represents them.
/// Returns the dtypes of the predictions for which it has a value.
fn check<M: Metric>(
    make: impl Fn() -> M,
    (pred, takes_preds): (&Tensor, Takes),
    (target, takes_targets): (&Tensor, Takes),
) -> Vec<Kind> {
    let name = make().name();
    let pred = pred.to_kind(Kind::Double);
    let target = target.to_kind(Kind::Double);
    let expected =
        value(make(), &pred.to_kind(takes_preds.widest()), &target.to_kind(takes_targets.widest())).unwrap();
    let all = || [INTEGERS, FLOATS, &[Kind::Bool], UNSUPPORTED].concat();
    let mut found = Vec::new();
    for (of_pred, of_target) in all().into_iter().flat_map(|one| all().into_iter().map(move |two| (one, two)))
    {
        let what = format!("`{name}` of {of_pred:?} and {of_target:?}");
        let (Some(pred), Some(target)) = (represented(&pred, of_pred), represented(&target, of_target))
        else {
            continue;
        };
        match value(make(), &pred, &target) {
            Ok(value) => {
                let is_taken = takes_preds.includes(of_pred) && takes_targets.includes(of_target);
                assert!(is_taken, "{what}: it has the value {value:?}");
                assert_eq!(value.len(), expected.len(), "{what}");
                for (value, expected) in value.iter().zip(&expected) {
                    let bound = 1e-6 * expected.abs().max(1.0);
                    let is_close = value == expected || (value - expected).abs() < bound;
                    assert!(is_close, "{what}: {value} instead of {expected}");
                }
                found.push(of_pred);
            }
            Err(error) => {
                let error = error.to_string();
                let is_taken = takes_preds.includes(of_pred) && takes_targets.includes(of_target);
                assert!(!is_taken, "{what}: {error}");
                // A wrapper returns the error of the metric that it contains.
                let named = error.strip_prefix("metric `").and_then(|error| error.split_once("`: "));
                assert!(named.is_some_and(|(named, _)| name.ends_with(named)), "{what}: {error}");
                let is_found = [of_pred, of_target].iter().any(|kind| error.contains(&format!("{kind:?}")));
                assert!(is_found, "{what}: {error}");
            }
        }
    }
    found.dedup();
    found
}

/// The largest differences of each integer dtype, and numbers that half-precision sums would round.
fn pairs() -> Vec<[Tensor; 2]> {
    let tensor = |numbers: &[f64]| Tensor::from_slice(numbers);
    vec![
        [tensor(&[0.0, 255.0, 3.0, 7.0]), tensor(&[255.0, 0.0, 5.0, 7.0])],
        [tensor(&[-128.0, 127.0, 100.0, -3.0]), tensor(&[127.0, -128.0, -100.0, 4.0])],
        [tensor(&[-32768.0, 32767.0, 0.0, 1.0]), tensor(&[32767.0, -32768.0, 2.0, 3.0])],
        [tensor(&[-2_147_483_648.0, 2_147_483_647.0, 4.0]), tensor(&[2_147_483_647.0, 0.0, 4.0])],
        [tensor(&[1.0, 0.0, 1.0, 1.0, 0.0]), tensor(&[1.0, 1.0, 0.0, 1.0, 0.0])],
        // 256.0 - 0.5 is 256 in `BFloat16`, and 60000² infinite in `Half`.
        [tensor(&[256.0, 128.0, -64.0, 0.25]), tensor(&[0.5, 0.75, 0.25, 1.0])],
        [tensor(&[57344.0, 0.0, 8.0, 0.0]), tensor(&[-57344.0, 16384.0, 2.0, 1.0])],
    ]
}

/// Scores in quarters of a power of two, as logits and as probabilities.
fn scores(shape: &[i64], is_logits: bool) -> Tensor {
    let len: i64 = shape.iter().product();
    let steps = (Tensor::arange(len, (Kind::Double, device())) * 7.0).remainder(17.0);
    (if is_logits { steps / 4.0 - 2.0 } else { steps / 32.0 }).reshape(shape)
}

fn labels(shape: &[i64], classes: f64) -> Tensor {
    let len: i64 = shape.iter().product();
    (Tensor::arange(len, (Kind::Double, device())) * 5.0).remainder(classes).reshape(shape)
}

/// The metrics that were checked, by the name of their type.
#[derive(Default)]
struct Checked(BTreeSet<String>);

impl Checked {
    fn add<M: Metric>(
        &mut self,
        make: impl Fn() -> M,
        pred: (&Tensor, Takes),
        target: (&Tensor, Takes),
    ) -> Vec<Kind> {
        let path = std::any::type_name::<M>();
        let name = path.split('<').next().and_then(|path| path.rsplit("::").next()).unwrap();
        self.0.insert(name.to_owned());
        check(make, pred, target)
    }
}

fn check_numbers(checked: &mut Checked) {
    use Takes::{Floats, Numbers};
    let mut found = BTreeSet::new();
    for [pred, target] in &pairs() {
        macro_rules! numbers {
            ($($metric:expr,)*) => {$(
                let kinds = checked.add(|| $metric, (pred, Numbers), (target, Numbers));
                found.extend(kinds.into_iter().map(|kind| format!("{kind:?}")));
            )*};
        }
        numbers! {
            MeanSquaredError::new(),
            MeanSquaredError::new().root(true),
            MeanAbsoluteError::new(),
            R2Score::new(),
            ExplainedVariance::new(),
            Pearson::new(),
            Psnr::new(255.0),
            Running::new(MeanSquaredError::new(), 2),
            BestSoFar::new(MeanAbsoluteError::new(), Goal::Minimize),
            PerGroup::new(MeanSquaredError::new(), 2),
        }
        checked.add(Spearman::new, (pred, Floats), (target, Floats));
        checked.add(|| Spearman::new().thresholds(9, -4.0..256.0), (pred, Floats), (target, Floats));
    }
    assert_eq!(found.len(), INTEGERS.len() + FLOATS.len() + 1, "{found:?}");
}

fn check_scores(checked: &mut Checked) {
    use Takes::{Floats, IntegersAndBool};
    for is_logits in [false, true] {
        let rows = scores(&[12, 3], is_logits);
        let row = scores(&[12], is_logits);
        let multiple = scores(&[12, 2], is_logits);
        let of_rows = labels(&[12], 3.0);
        let of_row = labels(&[12], 2.0);
        let of_multiple = Tensor::stack(&[&of_row, &of_row.eq(0.0).to_kind(Kind::Double)], 1);
        macro_rules! of_scores {
            ($($type:ident $(.$setting:ident($value:expr))?)*) => {$(
                let kinds = checked.add(
                    || $type::multiclass(3)$(.$setting($value))?, (&rows, Floats), (&of_rows, IntegersAndBool),
                );
                assert_eq!(kinds, FLOATS, "{}", stringify!($type));
                let kinds = checked.add(
                    || $type::binary()$(.$setting($value))?, (&row, Floats), (&of_row, IntegersAndBool),
                );
                assert_eq!(kinds, FLOATS, "{}", stringify!($type));
            )*};
        }
        macro_rules! of_labels {
            ($($type:ident)*) => {$(
                checked.add(|| $type::multilabel(2), (&multiple, Floats), (&of_multiple, IntegersAndBool));
            )*};
        }
        of_scores! {
            Auroc Auroc.thresholds(5) AveragePrecision AveragePrecision.thresholds(5) CalibrationError
            CalibrationError.bins(4)
        }
        of_labels! { Auroc AveragePrecision Accuracy Precision Recall FBeta Specificity Jaccard }
        of_labels! { ConfusionMatrix Matthews }
        macro_rules! scores_or_labels {
            ($($type:ident)*) => {$(
                checked.add(|| $type::multiclass(3), (&rows, Floats), (&of_rows, IntegersAndBool));
                checked.add(
                    || $type::multiclass(3), (&labels(&[12], 3.0), IntegersAndBool), (&of_rows, IntegersAndBool),
                );
                // Integers that are scores in a binary metric are labels.
                checked.add(|| $type::binary(), (&row, Floats), (&of_row, IntegersAndBool));
                checked.add(
                    || $type::binary(), (&of_row.flip([0]), Takes::Numbers), (&of_row, IntegersAndBool),
                );
            )*};
        }
        scores_or_labels! { Accuracy Precision Recall FBeta Specificity Jaccard ConfusionMatrix Matthews CohenKappa }
        let segments = scores(&[2, 3, 4, 2], is_logits);
        checked.add(|| Dice::new(3), (&segments, Floats), (&labels(&[2, 4, 2], 3.0), IntegersAndBool));
        let of_images = labels(&[2, 4, 2], 3.0);
        checked.add(|| Dice::new(3), (&of_images.flip([1]), IntegersAndBool), (&of_images, IntegersAndBool));
        let tokens = labels(&[2, 5], 3.0);
        checked.add(Perplexity::new, (&scores(&[2, 5, 3], is_logits), Floats), (&tokens, IntegersAndBool));
        let images = [scores(&[2, 1, 12, 13], is_logits), scores(&[2, 1, 12, 13], is_logits).flip([3])];
        let kinds = checked.add(|| Ssim::new(4.0), (&images[0], Floats), (&images[1], Floats));
        assert_eq!(kinds, FLOATS);
    }
}

fn check_tokens(checked: &mut Checked) {
    let preds = labels(&[3, 7], 6.0);
    let targets = labels(&[3, 7], 6.0).flip([0]);
    let preds = Tensor::cat(&[preds.narrow(1, 0, 5), targets.narrow(1, 5, 2)], 1);
    macro_rules! of_tokens {
        ($($metric:expr,)*) => {$(
            let kinds = checked.add(|| $metric, (&preds, Takes::Integers), (&targets, Takes::Integers));
            assert_eq!(kinds, INTEGERS);
        )*};
    }
    of_tokens! { WordErrorRate::new(), CharErrorRate::new(), Bleu::new().n_gram(2), }
}

/// What `trainer::metrics` exports and is not a metric.
const OTHERS: [&str; 8] = [
    "AsMetric",
    "Average",
    "CalibrationNorm",
    "KappaWeights",
    "MetricHook",
    "Normalize",
    "StateReduction",
    "States",
];

/// Returns the names of the metrics, read from the exports of `trainer::metrics`.
fn metrics() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/src/metrics/mod.rs");
    let source = std::fs::read_to_string(path).unwrap();
    let names = source.lines().filter_map(|line| line.strip_prefix("pub use ")?.split_once("::"));
    let names = names.flat_map(|(_, names)| names.split(|letter: char| !letter.is_alphanumeric()));
    names.filter(|name| !name.is_empty() && !OTHERS.contains(name)).map(str::to_owned).collect()
}

#[test]
fn every_metric_matches_double_precision_for_every_dtype_or_names_the_dtype() {
    let mut checked = Checked::default();
    check_numbers(&mut checked);
    check_scores(&mut checked);
    check_tokens(&mut checked);
    assert_eq!(checked.0, metrics(), "each metric must be in one of the functions above");
}

#[test]
fn differences_of_unsigned_integers_do_not_wrap_around() {
    let [pred, target] = [[0u8, 255], [255, 0]].map(|numbers| Tensor::from_slice(&numbers));
    assert_eq!(value(MeanSquaredError::new(), &pred, &target).unwrap(), [65025.0]);
    assert_eq!(value(MeanSquaredError::new().root(true), &pred, &target).unwrap(), [255.0]);
    assert_eq!(value(MeanAbsoluteError::new(), &pred, &target).unwrap(), [255.0]);
    assert_eq!(value(Psnr::new(255.0), &pred, &target).unwrap(), [0.0]);
}

#[test]
fn groups_must_be_integers() {
    let numbers = Tensor::from_slice(&[1.0, 2.0]);
    let mut metric = PerGroup::new(MeanAbsoluteError::new(), 2);
    let error = metric.update_groups(&numbers, &numbers, &Tensor::from_slice(&[0.5, 1.5])).unwrap_err();
    assert_eq!(error.to_string(), "metric `mae`: the groups have dtype Double: expected an integer dtype");
}
