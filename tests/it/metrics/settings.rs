//! Each setting of a metric that takes a number, with the numbers that it refuses.

use std::collections::BTreeSet;
use std::path::Path;

use trainer::metrics::{
    Accuracy, Auroc, AveragePrecision, Bleu, CalibrationError, CohenKappa, ConfusionMatrix, Dice, FBeta,
    Jaccard, Matthews, MeanSquaredError, Metric, PerGroup, Perplexity, Precision, Psnr, Recall, Running,
    Spearman, Specificity, Ssim, WordErrorRate,
};
use trainer::prelude::*;

/// Asserts that the settings are valid.
fn accepts(metric: &impl Metric) {
    metric.check().unwrap();
}

/// Asserts that the settings are refused when a run starts and when data is added, with an error
/// that names the metric and the call.
fn refuses(mut metric: impl Metric, call: &str) {
    let error = metric.check().unwrap_err().to_string();
    let expected = format!("metric `{}`: `{call}`: ", metric.name());
    assert!(error.starts_with(&expected), "{expected} {error}");
    let data = Tensor::from_slice(&[0.25, 0.5]);
    let groups = Tensor::from_slice(&[0i64, 1]);
    let updated = match metric.needs_groups() {
        true => metric.update_groups(&data, &data, &groups),
        false => metric.update(&data, &data),
    };
    assert_eq!(updated.unwrap_err().to_string(), error);
}

/// Checks a setting: the numbers that are accepted, then those that are refused.
macro_rules! setting {
    ($name:expr, |$it:ident| $metric:expr, accepts [$($good:expr),*], refuses [$($bad:expr => $call:literal),*]) => {{
        $({ let $it = $good; accepts(&$metric); })*
        $({ let $it = $bad; refuses($metric, $call); })*
        $name
    }};
}

/// Checks all settings that take a number. Returns each as the file and the name of the method.
fn check_all() -> BTreeSet<&'static str> {
    let mut checked = BTreeSet::new();
    // The settings of `classes_settings!`, `logits_setting!` and `ignore_setting!`, and the
    // constructors.
    macro_rules! classes {
        ($($type:ident in $file:literal)*) => {$(
            checked.insert(setting!(concat!($file, "::multiclass"), |n| $type::multiclass(n),
                accepts [2, 3], refuses [0 => "multiclass(0)", 1 => "multiclass(1)"]));
        )*};
    }
    macro_rules! labels {
        ($($type:ident in $file:literal)*) => {$(
            checked.insert(setting!(concat!($file, "::multilabel"), |n| $type::multilabel(n),
                accepts [2, 3], refuses [0 => "multilabel(0)", 1 => "multilabel(1)"]));
        )*};
    }
    macro_rules! thresholds {
        ($($type:ident)*) => {$(
            checked.insert(setting!("mod::threshold", |x| $type::binary().threshold(x), accepts [0.0, 0.5, 1.0], refuses [
                -0.1 => ".threshold(-0.1)", 1.5 => ".threshold(1.5)", f64::NAN => ".threshold(NaN)",
                f64::INFINITY => ".threshold(inf)"
            ]));
            checked.insert(setting!("mod::ignore_index", |n| $type::binary().ignore_index(n),
                accepts [i64::MIN, -1, 0, 1], refuses []));
        )*};
    }
    macro_rules! top_k {
        ($($type:ident)*) => {$(
            checked.insert(setting!("scores::top_k", |k| $type::multiclass(3).top_k(k), accepts [1, 3],
                refuses [0 => ".top_k(0)", 4 => ".top_k(4)"]));
            checked.insert(setting!("scores::top_k", |k| $type::binary().top_k(k), accepts [1],
                refuses [0 => ".top_k(0)", 2 => ".top_k(2)"]));
        )*};
    }
    macro_rules! curves {
        ($($type:ident)*) => {$(
            checked.insert(setting!("curves::thresholds", |n| $type::binary().thresholds(n), accepts [2, 100],
                refuses [0 => ".thresholds(0)", 1 => ".thresholds(1)"]));
        )*};
    }
    classes! {
        Accuracy in "scores" Precision in "scores" Recall in "scores" FBeta in "scores" Specificity in "scores"
        Auroc in "curves" AveragePrecision in "curves" CalibrationError in "calibration"
        ConfusionMatrix in "confusion" CohenKappa in "confusion" Matthews in "confusion" Jaccard in "jaccard"
    }
    labels! {
        Accuracy in "scores" Precision in "scores" Recall in "scores" FBeta in "scores" Specificity in "scores"
        Auroc in "curves" AveragePrecision in "curves"
        ConfusionMatrix in "confusion" Matthews in "confusion" Jaccard in "jaccard"
    }
    thresholds! { Accuracy Precision Recall FBeta Specificity ConfusionMatrix CohenKappa Matthews Jaccard }
    top_k! { Accuracy Precision Recall FBeta Specificity }
    curves! { Auroc AveragePrecision }
    checked.insert(setting!("scores::beta", |x| FBeta::binary().beta(x), accepts [0.5, 2.0], refuses [
        0.0 => ".beta(0)", -1.0 => ".beta(-1)", f64::NAN => ".beta(NaN)", f64::INFINITY => ".beta(inf)"
    ]));
    checked.insert(setting!("calibration::bins", |n| CalibrationError::binary().bins(n), accepts [1, 15],
        refuses [0 => ".bins(0)"]));
    checked.insert(setting!("correlation::thresholds", |n| Spearman::new().thresholds(n, 0.0..1.0),
        accepts [2, 10], refuses [0 => ".thresholds(0, 0.0..1.0)", 1 => ".thresholds(1, 0.0..1.0)"]));
    checked.insert(setting!("correlation::thresholds", |x| Spearman::new().thresholds(5, -1.0..x),
    accepts [0.0], refuses [
        -1.0 => ".thresholds(5, -1.0..-1.0)", f64::NAN => ".thresholds(5, -1.0..NaN)",
        f64::INFINITY => ".thresholds(5, -1.0..inf)"
    ]));
    checked.insert(setting!("images::new", |n| Dice::new(n), accepts [2], refuses [
        0 => "Dice::new(0)", 1 => "Dice::new(1)"
    ]));
    checked.insert(setting!("images::new", |x| Psnr::new(x), accepts [1.0, 255.0], refuses [
        0.0 => "Psnr::new(0.0)", -1.0 => "Psnr::new(-1.0)", f64::NAN => "Psnr::new(NaN)",
        f64::INFINITY => "Psnr::new(inf)"
    ]));
    checked.insert(setting!("images::new", |x| Ssim::new(x), accepts [1.0, 255.0], refuses [
        0.0 => "Ssim::new(0.0)", -1.0 => "Ssim::new(-1.0)", f64::NAN => "Ssim::new(NaN)",
        f64::INFINITY => "Ssim::new(inf)"
    ]));
    checked.insert(
        setting!("images::sigma", |x| Ssim::new(1.0).sigma(x), accepts [0.1, 1.5, 999.0], refuses [
            0.0 => ".sigma(0.0)", -1.0 => ".sigma(-1.0)", f64::NAN => ".sigma(NaN)", 1e3 => ".sigma(1000.0)"
        ]),
    );
    checked.insert(setting!("images::constants", |x| Ssim::new(1.0).constants(x, 0.5), accepts [0.0, 0.01],
    refuses [
        -1.0 => ".constants(-1.0, 0.5)", f64::NAN => ".constants(NaN, 0.5)",
        f64::INFINITY => ".constants(inf, 0.5)"
    ]));
    checked.insert(setting!("images::constants", |x| Ssim::new(1.0).constants(0.5, x), accepts [0.0, 0.01],
        refuses [-1.0 => ".constants(0.5, -1.0)", f64::NAN => ".constants(0.5, NaN)"]));
    checked.insert(
        setting!("text::n_gram", |n| Bleu::new().n_gram(n), accepts [1, 4], refuses [0 => ".n_gram(0)"]),
    );
    checked.insert(setting!("text::padding", |n| Bleu::new().padding(n), accepts [-1, 0, 1], refuses []));
    checked.insert(
        setting!("text::padding", |n| WordErrorRate::new().padding(n), accepts [-1, 0, 1], refuses []),
    );
    checked.insert(setting!("text::ignore_index", |n| Perplexity::new().ignore_index(n), accepts [-100, 0],
        refuses []));
    checked.insert(setting!("wrappers::new", |n| Running::new(MeanSquaredError::new(), n), accepts [1, 5],
        refuses [0 => "Running::new(…, 0)"]));
    checked.insert(setting!("wrappers::new", |n| PerGroup::new(MeanSquaredError::new(), n), accepts [1, 5],
        refuses [0 => "PerGroup::new(…, 0)"]));
    checked
}

/// Returns the methods of metrics that take a number and return the metric, as the file and the
/// name of the method, read from the sources.
fn settings() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/src/metrics");
    let mut found = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let Ok(source) = std::fs::read_to_string(&path) else { continue };
        for (at, _) in source.match_indices("pub fn ") {
            let (signature, _) = source[at + "pub fn ".len()..].split_once('{').unwrap();
            let (name, rest) = signature.split_once('(').unwrap();
            let Some((arguments, result)) = rest.split_once("->") else { continue };
            let takes_number = ["usize", "u64", "i64", "f64"].iter().any(|number| arguments.contains(number));
            if takes_number && result.trim() == "Self" {
                let name = name.split('<').next().unwrap();
                found.insert(format!("{}::{name}", path.file_stem().unwrap().to_str().unwrap()));
            }
        }
    }
    found
}

#[test]
fn invalid_numeric_settings_of_metrics_are_refused_and_named() {
    let checked: BTreeSet<String> = check_all().into_iter().map(str::to_owned).collect();
    assert_eq!(checked, settings(), "each setting that takes a number must be in `check_all`");
}
