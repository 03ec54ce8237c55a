//! Metrics compared with those of torchmetrics, from the file that `reference/metrics.py` writes,
//! and metrics in a trainer.

mod dtypes;
mod families;
mod hooks;
mod settings;
mod values;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use trainer::metrics::{
    Accuracy, Auroc, Average, AveragePrecision, Bleu, CalibrationError, CalibrationNorm, CharErrorRate,
    CohenKappa, ConfusionMatrix, Dice, ExplainedVariance, FBeta, Jaccard, KappaWeights, Matthews,
    MeanAbsoluteError, MeanSquaredError, Metric, Normalize, Pearson, Perplexity, Precision, Psnr, R2Score,
    Recall, Spearman, Specificity, Ssim, WordErrorRate,
};
use trainer::prelude::*;

use crate::support::Random;

/// The largest permitted difference, relative for numbers above 1.
const TOLERANCE: f64 = 1e-6;

fn tensor(it: &Value) -> Tensor {
    let shape: Vec<i64> = it["shape"].as_array().unwrap().iter().map(|len| len.as_i64().unwrap()).collect();
    let data = it["data"].as_array().unwrap();
    match it["kind"].as_str().unwrap() {
        "int" => Tensor::from_slice(&data.iter().map(|number| number.as_i64().unwrap()).collect::<Vec<_>>()),
        kind => {
            let data: Vec<f64> = data.iter().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect();
            let kind = if kind == "double" { Kind::Double } else { Kind::Float };
            Tensor::from_slice(&data).to_kind(kind)
        }
    }
    .reshape(shape)
}

/// Returns the numbers of a value, flattened.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        Value::Null => vec![f64::NAN],
        Value::String(text) => vec![text.parse().unwrap()],
        number => vec![number.as_f64().unwrap()],
    }
}

fn is_close(one: f64, other: f64) -> bool {
    one == other || one.is_nan() && other.is_nan() || (one - other).abs() <= TOLERANCE * other.abs().max(1.0)
}

/// Returns the difference between the value of a metric and the expected one, if there is any.
fn difference(case: &Value, value: Result<Tensor>) -> Option<String> {
    let expected = numbers(&case["value"]);
    let found = match value {
        Ok(value) => Vec::<f64>::try_from(value.to_kind(Kind::Double).flatten(0, -1)).unwrap(),
        // Where torchmetrics returns a constant.
        Err(error) if error.to_string().contains("both positive and negative targets") => {
            let ignored = case["args"]["ignored"].as_f64();
            let mut targets = numbers(&case["target"]["data"]);
            targets.retain(|target| Some(*target) != ignored);
            let is_one_class = targets.iter().all(|target| *target == targets[0]);
            let is_constant = expected.iter().all(|value| value.is_nan() || [0.0, 1.0].contains(value));
            return (!is_one_class && !is_constant)
                .then(|| format!("{}: {error}, but {expected:?}", case["metric"]));
        }
        Err(error) => return Some(format!("{}: {error}", case["metric"])),
    };
    let is_equal =
        found.len() == expected.len() && found.iter().zip(&expected).all(|(a, b)| is_close(*a, *b));
    (!is_equal).then(|| {
        format!("{} {}: torchmetrics has {expected:?}, we have {found:?}", case["metric"], case["args"])
    })
}

/// Compares a metric on the whole data, on 1 to 7 uneven parts that are merged, and after a
/// restore. Returns the first difference, if there is any.
fn check<M: Metric>(random: &mut Random, case: &Value, make: impl Fn() -> M) -> Option<String> {
    let pred = tensor(&case["pred"]);
    let target = tensor(&case["target"]);
    let mut whole = make();
    if let Err(error) = whole.update(&pred, &target) {
        return Some(format!("{}: {error}", case["metric"]));
    }
    let rows = usize::try_from(target.size()[0]).unwrap();
    let found = difference(case, whole.compute()).or_else(|| {
        let mut all = make();
        let parts = uneven_parts(random, rows);
        for rows in &parts {
            let mut one = make();
            let begin = i64::try_from(rows.start).unwrap();
            let len = i64::try_from(rows.len()).unwrap();
            one.update(&pred.narrow(0, begin, len), &target.narrow(0, begin, len)).unwrap();
            all.merge(&one).unwrap();
        }
        difference(case, all.compute()).map(|text| format!("{text}, merged from {parts:?}"))
    });
    // A restored state has the same value.
    found.or_else(|| {
        let mut restored = make();
        restored.states_mut().load(&whole.states().tensors()).unwrap();
        difference(case, restored.compute()).map(|text| format!("{text}, restored"))
    })
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Compares a metric of texts on the whole data, and on 1 to 7 uneven parts that are merged.
/// Returns the first difference, if there is any.
fn check_texts<M: Metric>(
    random: &mut Random,
    case: &Value,
    make: impl Fn() -> M,
    update: impl Fn(&mut M, &[String], &[Value]) -> Result<()>,
) -> Option<String> {
    let preds = texts(&case["preds"]);
    let targets = case["targets"].as_array().unwrap();
    let mut whole = make();
    update(&mut whole, &preds, targets).unwrap();
    difference(case, whole.compute()).or_else(|| {
        let mut all = make();
        for lines in uneven_parts(random, preds.len()) {
            let mut one = make();
            update(&mut one, &preds[lines.clone()], &targets[lines]).unwrap();
            all.merge(&one).unwrap();
        }
        difference(case, all.compute()).map(|text| format!("{text}, merged"))
    })
}

/// Returns 1 to 7 parts of `rows` rows; some may be empty.
fn uneven_parts(random: &mut Random, rows: usize) -> Vec<std::ops::Range<usize>> {
    let parts = 1 + random.below(7);
    let mut cuts: Vec<usize> = (1..parts).map(|_| random.below(rows + 1)).collect();
    cuts.extend([0, rows]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn average(args: &Value) -> Average {
    match args["average"].as_str().unwrap() {
        "micro" => Average::Micro,
        "macro" => Average::Macro,
        "weighted" => Average::Weighted,
        _ => Average::PerClass,
    }
}

/// Builds a metric for the kind of labels in the arguments.
macro_rules! of_kind {
    ($type:ident, $args:ident) => {{
        let classes = usize::try_from($args["classes"].as_u64().unwrap()).unwrap();
        let metric = match $args["kind"].as_str().unwrap() {
            "binary" => $type::binary(),
            "multiclass" => $type::multiclass(classes),
            _ => of_kind!(@ $type, classes),
        };
        match $args["ignored"].as_i64() {
            Some(ignored) => metric.ignore_index(ignored),
            None => metric,
        }
    }};
    (@ CohenKappa, $classes:ident) => { unreachable!() };
    (@ CalibrationError, $classes:ident) => { unreachable!() };
    (@ $type:ident, $classes:ident) => { $type::multilabel($classes) };
}

fn size(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// Returns the difference between one case and torchmetrics, if there is any.
fn compare(random: &mut Random, case: &Value) -> Option<String> {
    let args = &case["args"];
    let threshold = args["threshold"].as_f64().unwrap_or(0.5);
    let top_k = args["top_k"].as_u64().map_or(1, |top_k| usize::try_from(top_k).unwrap());
    macro_rules! score {
        ($type:ident) => {
            check(random, case, || {
                of_kind!($type, args).average(average(args)).threshold(threshold).top_k(top_k)
            })
        };
    }
    macro_rules! curve {
        ($type:ident) => {
            check(random, case, || {
                let metric = of_kind!($type, args).average(average(args));
                if args["thresholds"].is_null() {
                    metric
                } else {
                    metric.thresholds(size(&args["thresholds"]))
                }
            })
        };
    }
    match case["metric"].as_str().unwrap() {
        "Accuracy" => score!(Accuracy),
        "Precision" => score!(Precision),
        "Recall" => score!(Recall),
        "Specificity" => score!(Specificity),
        "FBeta" => check(random, case, || {
            let metric = of_kind!(FBeta, args).average(average(args)).threshold(threshold).top_k(top_k);
            metric.beta(args["beta"].as_f64().unwrap())
        }),
        "ConfusionMatrix" => check(random, case, || {
            of_kind!(ConfusionMatrix, args).threshold(threshold).normalize(match args["normalize"].as_str() {
                None => Normalize::No,
                Some("true") => Normalize::Target,
                Some("pred") => Normalize::Pred,
                Some(_) => Normalize::All,
            })
        }),
        "Matthews" => check(random, case, || of_kind!(Matthews, args).threshold(threshold)),
        "Jaccard" => {
            check(random, case, || of_kind!(Jaccard, args).average(average(args)).threshold(threshold))
        }
        "CohenKappa" => check(random, case, || {
            of_kind!(CohenKappa, args).threshold(threshold).weights(match args["weights"].as_str() {
                None => KappaWeights::None,
                Some("linear") => KappaWeights::Linear,
                Some(_) => KappaWeights::Quadratic,
            })
        }),
        "CalibrationError" => check(random, case, || {
            of_kind!(CalibrationError, args).bins(size(&args["bins"])).norm(
                match args["norm"].as_str().unwrap() {
                    "l1" => CalibrationNorm::L1,
                    "l2" => CalibrationNorm::L2,
                    _ => CalibrationNorm::Max,
                },
            )
        }),
        "Auroc" => curve!(Auroc),
        "AveragePrecision" => curve!(AveragePrecision),
        "MeanSquaredError" if args["root"] == true => {
            check(random, case, || MeanSquaredError::new().root(true))
        }
        "MeanSquaredError" => check(random, case, MeanSquaredError::new),
        "MeanAbsoluteError" => check(random, case, MeanAbsoluteError::new),
        "R2Score" => check(random, case, R2Score::new),
        "ExplainedVariance" => check(random, case, ExplainedVariance::new),
        "Pearson" => check(random, case, Pearson::new),
        "Spearman" => check(random, case, Spearman::new),
        "Perplexity" => check(random, case, || match args["ignored"].as_i64() {
            Some(ignored) => Perplexity::new().ignore_index(ignored),
            None => Perplexity::new(),
        }),
        "WordErrorRate" => check_texts(random, case, WordErrorRate::new, |metric, preds, targets| {
            metric.update_texts(preds, &texts(&Value::from(targets)))
        }),
        "CharErrorRate" => check_texts(random, case, CharErrorRate::new, |metric, preds, targets| {
            metric.update_texts(preds, &texts(&Value::from(targets)))
        }),
        "Bleu" => {
            let make = || Bleu::new().n_gram(size(&args["n_gram"])).smooth(args["smooth"] == true);
            check_texts(random, case, make, |metric, preds, targets| {
                metric.update_texts(preds, &targets.iter().map(texts).collect::<Vec<_>>())
            })
        }
        "Dice" => check(random, case, || {
            let metric = Dice::new(size(&args["classes"])).average(average(args));
            let metric = metric.include_background(args["background"] == true);
            if args["global"] == true { metric.global(true) } else { metric }
        }),
        "Psnr" => check(random, case, || Psnr::new(args["range"].as_f64().unwrap())),
        "Ssim" => check(random, case, || {
            Ssim::new(args["range"].as_f64().unwrap()).sigma(args["sigma"].as_f64().unwrap())
        }),
        other => panic!("no test builds {other}"),
    }
}

/// Compares all cases of a file that `reference/metrics.py` or `interop/metrics.py` wrote. Returns
/// the number of cases of each metric.
pub(crate) fn assert_equal_to_torchmetrics(path: &Path) -> BTreeMap<String, usize> {
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(file["torchmetrics"].as_str().unwrap().starts_with("1.9."));
    let cases = file["cases"].as_array().unwrap();
    let mut random = Random(0x5eed);
    let wrong: Vec<String> = cases.iter().filter_map(|case| compare(&mut random, case)).collect();
    assert!(wrong.is_empty(), "{} of {} cases differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let mut each = BTreeMap::new();
    for case in cases {
        *each.entry(case["metric"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    each
}

#[test]
fn metrics_match_torchmetrics() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/metrics.json");
    assert!(assert_equal_to_torchmetrics(&path).values().sum::<usize>() > 300);
}
