//! Loop settings and their validation, which runs when the trainer is built.

use std::ops::Range;
use std::time::Duration;

use tch::Device;

use crate::error::{Error, Result};
use crate::libtorch::{Heap, MatmulPrecision, ModeRequest};
use crate::phase::Phase;
use crate::run::cancel::{CancelToken, OnSignal};
use crate::values::amount::{Amount, fraction_mistake};
use crate::values::every::Every;
use crate::values::facts::NOT_SET;

/// The settings of the loop, as the builder collected them.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) epochs: Option<u64>,
    pub(crate) min_epochs: u64,
    pub(crate) max_steps: Option<u64>,
    pub(crate) min_steps: u64,
    pub(crate) max_time: Option<Duration>,
    pub(crate) limit_train: Option<Amount>,
    pub(crate) limit_valid: Option<Amount>,
    pub(crate) limit_test: Option<Amount>,
    pub(crate) limit_predict: Option<Amount>,
    pub(crate) overfit: Option<Amount>,
    pub(crate) fast_dev_run: Option<u64>,
    pub(crate) validate_every: Option<Every>,
    pub(crate) sanity_batches: u64,
    pub(crate) record_every: Option<Every>,
    /// Pairs of a first epoch and the number of batches per optimizer step from that epoch on.
    pub(crate) accumulate: Vec<(u64, u64)>,
    pub(crate) deterministic: bool,
    pub(crate) detect_anomaly: bool,
    pub(crate) matmul_precision: Option<MatmulPrecision>,
    pub(crate) cudnn_benchmark: bool,
    pub(crate) channels_last: bool,
    pub(crate) heap: Heap,
    pub(crate) seed: Option<u64>,
    pub(crate) device: Option<Device>,
    pub(crate) on_signal: OnSignal,
    pub(crate) cancel_token: CancelToken,
    /// Whether a run may resume even if its results can differ.
    pub(crate) inexact: bool,
}

/// What a setting can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingKind {
    /// The result, so that it must be unchanged for an exact resume.
    Result,
    /// The length of a run, or nothing after a checkpoint, so that a resumed run may change it.
    Length,
    /// Nothing in a fit.
    Other,
}

impl Settings {
    /// The limit on the batches of a pass, with the name of the setting that it comes from.
    pub(crate) fn limit(&self, phase: Phase) -> Option<(Amount, &'static str)> {
        let own = match phase {
            Phase::Train => self.limit_train.map(|limit| (limit, "limit_train_batches")),
            Phase::Sanity | Phase::Valid => self.limit_valid.map(|limit| (limit, "limit_valid_batches")),
            Phase::Test => self.limit_test.map(|limit| (limit, "limit_test_batches")),
            Phase::Predict => self.limit_predict.map(|limit| (limit, "limit_predict_batches")),
        };
        let overfit = self.overfit.filter(|_| matches!(phase, Phase::Train | Phase::Sanity | Phase::Valid));
        let fast_dev_run = self.fast_dev_run.map(|batches| (Amount::from(batches), "fast_dev_run"));
        fast_dev_run.or(overfit.map(|limit| (limit, "overfit_batches"))).or(own)
    }

    /// Returns the maximum number of batches of a pass in this phase, if there is one, and the
    /// number of its batches, if it is known. `known` is the number of batches that the loader
    /// reports.
    pub(crate) fn batches_of(&self, phase: Phase, known: Option<u64>) -> Result<(Option<u64>, Option<u64>)> {
        let limit =
            self.limit(phase).map(|(limit, setting)| limit.batches(known, setting).map_err(Error::usage));
        let sanity = (phase == Phase::Sanity).then_some(self.sanity_batches);
        let limit = limit.transpose()?.into_iter().chain(sanity).min();
        Ok((limit, known.into_iter().chain(limit).min()))
    }

    /// The settings of a kind, as text. A new setting does not compile until it is in the list.
    pub(crate) fn of(&self, kind: SettingKind) -> impl Iterator<Item = (String, String)> {
        use SettingKind::{Length, Other, Result};
        let Settings {
            epochs,
            min_epochs,
            max_steps,
            min_steps,
            max_time,
            limit_train,
            limit_valid,
            limit_test,
            limit_predict,
            overfit,
            fast_dev_run,
            validate_every,
            sanity_batches,
            record_every,
            accumulate,
            deterministic,
            detect_anomaly,
            matmul_precision,
            cudnn_benchmark,
            channels_last,
            seed,
            // These say where and how a program runs.
            heap: _,
            device: _,
            on_signal: _,
            cancel_token: _,
            inexact: _,
        } = self;
        let limit = |limit: &Option<Amount>| limit.map(|limit| limit.to_string());
        let count = |count: &u64| (*count > 0).then(|| count.to_string());
        let switch = |switch: &bool| switch.then(|| "true".to_owned());
        let every = |every: &Option<Every>| every.map(|every| format!("{every:?}"));
        let settings = [
            (Result, "accumulate", (!accumulate.is_empty()).then(|| format!("{accumulate:?}"))),
            (Result, "channels_last", switch(channels_last)),
            (Result, "cudnn_benchmark", switch(cudnn_benchmark)),
            (Result, "deterministic", switch(deterministic)),
            (Result, "limit_train_batches", limit(limit_train)),
            (Result, "limit_valid_batches", limit(limit_valid)),
            (Result, "matmul_precision", matmul_precision.map(|precision| format!("{precision:?}"))),
            (Result, "overfit_batches", limit(overfit)),
            (Result, "validate_every", every(validate_every)),
            (Length, "epochs", epochs.map(|epochs| epochs.to_string())),
            (Length, "min_epochs", count(min_epochs)),
            (Length, "max_steps", max_steps.map(|steps| steps.to_string())),
            (Length, "min_steps", count(min_steps)),
            (Length, "max_time", max_time.map(|time| format!("{time:?}"))),
            (Length, "sanity_batches", count(sanity_batches)),
            (Length, "seed", seed.map(|seed| seed.to_string())),
            (Length, "record_every", every(record_every)),
            (Length, "detect_anomaly", switch(detect_anomaly)),
            (Other, "limit_test_batches", limit(limit_test)),
            (Other, "limit_predict_batches", limit(limit_predict)),
            (Other, "fast_dev_run", fast_dev_run.map(|batches| batches.to_string())),
        ];
        let of_kind = settings.into_iter().filter(move |(of, ..)| *of == kind);
        of_kind.map(|(_, name, value)| (name.to_owned(), value.unwrap_or_else(|| NOT_SET.to_owned())))
    }

    /// Returns an error if a setting requires validation data.
    pub(crate) fn check_without_validation(&self) -> Result<()> {
        let setting = match self.validate_every {
            _ if self.sanity_batches > 0 => "sanity_batches",
            Some(_) => "validate_every",
            None => return Ok(()),
        };
        Err(Error::usage(format!(
            "`.{setting}(…)` requires validation, but `fit` was called without validation data: call \
             `fit(&mut train, Some(&mut valid))`"
        )))
    }

    /// The modes of libtorch that an entry point needs.
    pub(crate) fn modes(&self) -> ModeRequest {
        ModeRequest {
            deterministic: self.deterministic,
            detect_anomaly: self.detect_anomaly,
            cudnn_benchmark: self.cudnn_benchmark,
            matmul_precision: self.matmul_precision,
        }
    }

    /// Whether this is a smoke test of the program.
    pub(crate) fn is_fast_dev_run(&self) -> bool {
        self.fast_dev_run.is_some()
    }

    /// Whether every epoch trains on the batches of epoch 0.
    pub(crate) fn repeats_batches(&self) -> bool {
        self.overfit.is_some()
    }

    /// The number of batches per optimizer step in this epoch.
    pub(crate) fn accumulate_in(&self, epoch: u64) -> u64 {
        let from = self.accumulate.iter().rev().find(|(from, _)| *from <= epoch);
        from.map_or(1, |(_, batches)| *batches)
    }

    /// The largest number of batches per optimizer step in any epoch.
    pub(crate) fn accumulate_at_most(&self) -> u64 {
        self.accumulate.iter().map(|(_, batches)| *batches).max().unwrap_or(1)
    }

    /// The number of accumulation windows in these epochs, with `batches` batches in each.
    pub(crate) fn windows_of(&self, epochs: Range<u64>, batches: u64) -> u64 {
        let changes = self.accumulate.iter().map(|(from, _)| *from).filter(|from| epochs.contains(from));
        let starts: Vec<_> =
            [epochs.start].into_iter().chain(changes.filter(|from| *from > epochs.start)).collect();
        let ends = starts[1..].iter().copied().chain([epochs.end]);
        let steps = |(from, to): (&u64, u64)| {
            to.saturating_sub(*from).saturating_mul(batches.div_ceil(self.accumulate_in(*from)))
        };
        starts.iter().zip(ends).map(steps).fold(0, u64::saturating_add)
    }

    /// Adds a message for each setting that is invalid or contradicts another, and lets
    /// `fast_dev_run` override the length and validation settings.
    pub(crate) fn check(&mut self, mistakes: &mut Vec<String>) {
        self.check_length(mistakes);
        self.check_data(mistakes);
        self.check_validation(mistakes);
        self.check_records(mistakes);
        self.check_steps(mistakes);
        if self.cudnn_benchmark && self.deterministic {
            mistakes.push(
                "`.cudnn_benchmark(true)` and `.deterministic(true)` contradict each other, because a benchmark may choose \
                 a different algorithm in each process: set only one of them"
                    .into(),
            );
        }
        if let Some(batches) = self.fast_dev_run {
            if batches == 0 {
                mistakes.push("`.fast_dev_run(0)` runs nothing: expected at least 1".into());
            }
            if self.overfit.is_some() {
                mistakes.push(
                    "`.fast_dev_run(…)` and `.overfit_batches(…)` both limit the batches: set only one of them"
                        .into(),
                );
            }
            self.epochs = Some(1);
            self.min_epochs = 0;
            self.max_steps = None;
            self.min_steps = 0;
            self.max_time = None;
            self.sanity_batches = 0;
            self.validate_every = None;
        }
    }

    fn check_length(&self, mistakes: &mut Vec<String>) {
        if self.epochs == Some(0) {
            mistakes.push(
                "`.epochs(0)` trains nothing: expected at least 1; to evaluate only, call `validate` or `test`"
                    .into(),
            );
        }
        if self.max_steps == Some(0) {
            mistakes.push("`.max_steps(0)` trains nothing: expected at least 1".into());
        }
        if self.max_time == Some(Duration::ZERO) {
            mistakes.push("`.max_time(…)` of zero trains nothing: expected a longer time".into());
        }
        let epochs = self.planned_epochs();
        if let Some(epochs) = epochs.filter(|epochs| *epochs > 0 && self.min_epochs > *epochs) {
            let min = self.min_epochs;
            let limit = self.epoch_limit(epochs);
            mistakes.push(format!("`.min_epochs({min})` exceeds {limit}"));
        }
        if self.epochs.is_none() && epochs.is_some() && self.min_steps > 0 {
            let min = self.min_steps;
            mistakes.push(format!(
                "`.min_steps({min})` needs an upper limit: set `.epochs(…)`, `.max_steps(…)` or `.max_time(…)` too"
            ));
        }
        if let Some(steps) = self.max_steps.filter(|steps| *steps > 0 && self.min_steps > *steps) {
            let min = self.min_steps;
            mistakes.push(format!(
                "`.min_steps({min})` exceeds `.max_steps({steps})`: a fit takes no more steps than that"
            ));
        }
    }

    /// The number of epochs in a fit; `None` if only `max_steps` or `max_time` limits it.
    pub(crate) fn planned_epochs(&self) -> Option<u64> {
        let is_bounded = self.max_steps.is_some() || self.max_time.is_some();
        self.epochs.or((!is_bounded).then_some(1))
    }

    /// Describes [`planned_epochs`](Settings::planned_epochs) for an error message.
    fn epoch_limit(&self, epochs: u64) -> String {
        match self.epochs {
            Some(_) => format!("`.epochs({epochs})`: a fit trains no more epochs than that"),
            None => "the one epoch that a fit trains by default: set `.epochs(…)` too".to_owned(),
        }
    }

    fn check_data(&self, mistakes: &mut Vec<String>) {
        let limits = [
            ("limit_train_batches", self.limit_train),
            ("limit_valid_batches", self.limit_valid),
            ("limit_test_batches", self.limit_test),
            ("limit_predict_batches", self.limit_predict),
            ("overfit_batches", self.overfit),
        ];
        for (setting, limit) in limits {
            if let Some(limit) = limit {
                limit.check(setting, mistakes);
            }
        }
        for (setting, limit) in &limits[..2] {
            if self.overfit.is_some() && limit.is_some() {
                mistakes.push(format!(
                    "`.overfit_batches(…)` and `.{setting}(…)` both limit the batches: set only one of them"
                ));
            }
        }
    }

    /// The number of optimizer steps between two records, if records are created within passes.
    #[inline]
    pub(crate) fn record_every(&self) -> Option<u64> {
        match self.record_every {
            None => Some(50),
            Some(Every::Steps(steps)) => Some(steps),
            Some(_) => None,
        }
    }

    fn check_records(&self, mistakes: &mut Vec<String>) {
        match self.record_every {
            None | Some(Every::Steps(1..) | Every::Epochs(1)) => {}
            Some(every) => mistakes.push(format!(
                "`.record_every(Every::{every:?})`: expected `Every::Steps(n)` with an `n` of at least 1, or `Every::Epochs(1)` \
                 to create records only at the end of each pass"
            )),
        }
    }

    fn check_validation(&self, mistakes: &mut Vec<String>) {
        if let Some(every) = self.validate_every {
            self.check_interval(every, |every| format!("`.validate_every({every})`"), mistakes);
        }
    }

    /// Adds a message if this is not a valid interval for validation. `call` formats the builder
    /// call that sets the interval.
    pub(crate) fn check_interval(
        &self,
        every: Every,
        call: impl Fn(&str) -> String,
        mistakes: &mut Vec<String>,
    ) {
        match every {
            Every::Epochs(0) | Every::Steps(0) => {
                mistakes.push(format!("{} of 0 never validates: expected at least 1", call("…")));
            }
            Every::Epochs(n) => {
                if let Some(epochs) = self.planned_epochs().filter(|epochs| n > *epochs && *epochs > 0) {
                    let call = call(&format!("Every::Epochs({n})"));
                    mistakes.push(format!("{call} exceeds {}", self.epoch_limit(epochs)));
                }
            }
            Every::Steps(n) if self.max_steps.is_some_and(|steps| n > steps) => mistakes.push(format!(
                "{} exceeds `.max_steps({})`: a fit takes no more steps than that",
                call(&format!("Every::Steps({n})")),
                self.max_steps.unwrap_or_default()
            )),
            Every::Fraction(fraction) => {
                if let Some(mistake) = fraction_mistake(fraction) {
                    mistakes.push(format!("{}: {mistake}", call(&format!("Every::Fraction({fraction:?})"))));
                }
            }
            _ => {}
        }
    }

    fn check_steps(&mut self, mistakes: &mut Vec<String>) {
        self.accumulate.sort_by_key(|(from, _)| *from);
        if self.accumulate.iter().any(|(_, batches)| *batches == 0) {
            mistakes.push("`.accumulate(0)` never updates the model: expected at least 1".into());
        }
    }
}
