//! Parsing the values of settings from text, in the same way for a file and for the command line.

use std::ops::{Bound, RangeBounds};
use std::time::Duration;

use clap::builder::TypedValueParser;
use tch::Device;

use crate::checkpoint::Resume;
use crate::error::nearest;
use crate::run::run_folder::RunFolder;
use crate::training::device::first_device;
use crate::values::amount::{Amount, AmountKind, fraction_mistake};
use crate::values::every::Every;
use crate::values::float::exact;

/// Returns a parser of numbers in this range, for `#[arg(value_parser = float(0.0..=1.0))]`.
///
/// Unlike the parser of a plain `f64`, it rejects NaN and infinity.
///
/// ```
/// use trainer::cli::{clap, float};
///
/// #[derive(clap::Args)]
/// struct Settings {
///     /// Share of the units that dropout removes
///     #[arg(long, default_value_t = 0.1, value_parser = float(0.0..1.0))]
///     dropout: f64,
/// }
/// ```
pub fn float<R>(range: R) -> impl TypedValueParser<Value = f64>
where
    R: RangeBounds<f64> + Clone + Send + Sync + 'static,
{
    let expected = match (range.start_bound(), range.end_bound()) {
        (Bound::Unbounded, Bound::Unbounded) => "expected a finite number".to_owned(),
        (start, end) => {
            let start = match start {
                Bound::Included(start) => Some(format!("of at least {}", exact(*start))),
                Bound::Excluded(start) => Some(format!("above {}", exact(*start))),
                Bound::Unbounded => None,
            };
            let end = match end {
                Bound::Included(end) => Some(format!("of at most {}", exact(*end))),
                Bound::Excluded(end) => Some(format!("below {}", exact(*end))),
                Bound::Unbounded => None,
            };
            let bounds: Vec<_> = start.into_iter().chain(end).collect();
            format!("expected a number {}", bounds.join(" and "))
        }
    };
    move |text: &str| {
        let number = text.parse::<f64>().map_err(|_| "expected a number".to_owned())?;
        if number.is_finite() && range.contains(&number) { Ok(number) } else { Err(expected.clone()) }
    }
}

/// Returns a parser of finite numbers above 0.
pub(super) fn above_zero() -> impl TypedValueParser<Value = f64> {
    float((Bound::Excluded(0.0), Bound::Unbounded))
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const EXAMPLES: &str = "expected a time with its unit, such as `90s`, `15min` or `1h 30m`";
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("expected a time above 0".to_owned()),
        Ok(time) => Ok(time),
        Err(_) => Err(EXAMPLES.to_owned()),
    }
}

pub(super) fn amount(text: &str) -> Result<Amount, String> {
    let amount: Amount = match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(number), _) => number.into(),
        (_, Ok(fraction)) => fraction.into(),
        _ => {
            return Err("expected a number of batches, such as `10`, or a fraction, such as `0.1`".to_owned());
        }
    };
    match amount.0 {
        AmountKind::Number(..=0) => Err("expected at least 1 batch".to_owned()),
        AmountKind::Number(_) => Ok(amount),
        AmountKind::Fraction(fraction) => fraction_mistake(fraction).map_or(Ok(amount), Err),
    }
}

pub(super) fn every(text: &str) -> Result<Every, String> {
    const EXPECTED: &str = "expected `epochs:2`, `steps:500` or `fraction:0.25`";
    let (unit, number) = text.split_once(':').ok_or(EXPECTED)?;
    let count = || number.parse::<u64>().map_err(|_| EXPECTED.to_owned());
    let every = match unit {
        "epochs" => Every::Epochs(count()?),
        "steps" => Every::Steps(count()?),
        "fraction" => Every::Fraction(number.parse().map_err(|_| EXPECTED.to_owned())?),
        _ => {
            let near = nearest(unit, ["epochs", "steps", "fraction"]);
            let help = near.map_or_else(String::new, |near| format!("; did you mean `{near}:{number}`?"));
            return Err(format!("{EXPECTED}{help}"));
        }
    };
    match every {
        Every::Epochs(0) | Every::Steps(0) => Err(format!("expected an interval of at least 1, in {unit}")),
        _ => every.mistake().map_or(Ok(every), Err),
    }
}

pub(super) fn record_every(text: &str) -> Result<Every, String> {
    match every(text) {
        Ok(interval @ (Every::Steps(_) | Every::Epochs(1))) => Ok(interval),
        _ => Err("expected `steps:50`, or `epochs:1` for records only at the end of each pass".to_owned()),
    }
}

pub(super) fn device(text: &str) -> Result<Device, String> {
    match text {
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda(0)),
        "mps" => Ok(Device::Mps),
        "auto" => Ok(first_device()),
        _ => {
            let nth = text.strip_prefix("cuda:").and_then(|nth| nth.parse().ok());
            nth.map(Device::Cuda)
                .ok_or_else(|| "expected `cpu`, `cuda`, `cuda:1`, `mps` or `auto`".to_owned())
        }
    }
}

pub(super) fn run_folder(text: &str) -> Result<RunFolder, String> {
    match text.strip_prefix("numbered:") {
        _ if text.is_empty() => Err("expected the path of a folder, or `numbered:runs`".to_owned()),
        Some("") => Err("expected a folder after `numbered:`, such as `numbered:runs`".to_owned()),
        Some(parent) => Ok(RunFolder::numbered(parent)),
        None => Ok(RunFolder::new(text)),
    }
}

pub(super) fn resume(text: &str) -> Result<Resume, String> {
    match text {
        "" => Err("expected `auto`, or the path of a checkpoint".to_owned()),
        "auto" => Ok(Resume::Auto),
        path => Ok(Resume::from(path)),
    }
}
