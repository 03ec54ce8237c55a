//! Methods of [`Cx`] for named loaders and the names of metrics.

use super::Cx;
use crate::error::{Error, Result, did_you_mean};
use crate::log::history::{Metrics, wrong_goal};
use crate::log::{Goal, LOSS};
use crate::phase::Phase;

/// # Names and values of metrics
impl<P> Cx<P> {
    /// The name of the loader of the current validation or test pass, or `None` if the loader is
    /// not one of several [named loaders](crate::data::NamedLoaders). The name is known from
    /// `before_valid` or `before_test` to the point after the pass, and at `after_error` and
    /// `after_cancel` if the run ended in the pass. Values logged in the pass are named
    /// `phase/loader/name`.
    #[must_use]
    pub fn loader(&self) -> Option<&str> {
        self.as_run().at.loader().map(|name| &**name)
    }

    /// Returns the most recently logged value of each metric in the current pass, keyed
    /// `phase/name`: at `after_step`, the values of this batch. Reading tensors on a GPU
    /// synchronizes with it.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch cannot read a tensor.
    pub fn logged(&self) -> Result<Metrics> {
        self.run.log.borrow().latest(self.run.at.place.phase)
    }

    /// Checks that the current `fit` can measure a metric that a hook watches, such as `valid/loss`
    /// or `valid/clean/accuracy`. Call it at `before_fit` or later.
    ///
    /// In a trial run of [`find_lr`](crate::Trainer::find_lr), which measures no such metric, the
    /// name of any training or validation metric is accepted.
    ///
    /// Names of metrics are only known for certain once they are logged. A name is therefore
    /// considered misspelled only if it is similar to the name of the loss or of a metric that is
    /// [expected](Cx::expect_metric), and neither a closure nor a hook of another crate runs in
    /// validation.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - `name` is not a metric of training or validation;
    /// - the validation loaders have names and `name` contains none of them;
    /// - the validation that measures the metric is not due in this fit;
    /// - the name is misspelled;
    /// - a hook has [recorded](Cx::record_goal) the wrong goal of a metric that knows its own.
    pub fn check_metric(&self, name: &str) -> Result<()> {
        let log = self.as_run().log.borrow();
        if let (Some(watched), Some(own)) = (log.goals.get(name), log.own_goal(name))
            && *watched != own
        {
            return Err(Error::msg(wrong_goal(name, own)));
        }
        drop(log);
        let (phase, rest) = name.split_once('/').unwrap_or((name, ""));
        match phase {
            "train" => return Ok(()),
            "valid" => {}
            _ => {
                return Err(Error::msg(format!(
                    "`{name}` is not the name of a metric in training or validation: expected `train/…` or `valid/…`"
                )));
            }
        }
        if !self.as_run().fit.is_running {
            return Ok(()); // a trial run of a finder
        }
        if !self.plan().validates {
            return Err(Error::msg(format!(
                "`{name}` will never be measured, because this fit does not validate: pass validation data, \
                 `fit(&mut train, Some(&mut valid))`, and set `.validate_every(…)` so that a validation is due within the fit"
            )));
        }
        let own = if self.valid_loaders().next().is_some() { self.within_loader(name, rest)? } else { rest };
        self.check_spelling(&name[..name.len() - own.len()], own)
    }

    /// Records that a hook will log a metric with this name in validation, so that
    /// [`check_metric`](Cx::check_metric) can suggest it for a misspelled name. Call it at `setup`.
    pub fn expect_metric(&self, name: impl Into<String>) {
        let name = name.into();
        self.as_run().log.borrow_mut().expected.push(name);
    }

    /// Records whether smaller or larger values of a metric, such as `valid/accuracy`, are better.
    /// A name without a phase stands for the metric in every phase and for every loader. This
    /// determines the best value of the metric in the file `run.json` of the [run
    /// folder](crate::TrainerBuilder::run_folder). Call it at `setup`. The goal of the loss is
    /// already known. A hook that lists its settings declares the goal there
    /// ([`Settings::goals`](crate::checkpoint::Settings::goals)), so that `build` can check it.
    pub fn record_goal(&self, metric: impl Into<String>, goal: Goal) {
        self.as_run().log.borrow_mut().goals.insert(metric.into(), goal);
    }
}

impl<P> Cx<P> {
    /// The names of the validation loaders of the current `fit`, if they are
    /// [named](crate::data::NamedLoaders), each with a flag: whether a validation over that loader
    /// is due before the planned end. Known from `before_fit` on.
    fn valid_loaders(&self) -> impl Iterator<Item = (&str, bool)> {
        self.as_run().fit.plan.loaders.iter().map(|(name, comes_due)| (&**name, *comes_due))
    }

    /// Returns the part of a metric's name that follows the name of its validation loader. Returns
    /// an error if `name` contains no existing loader, or if no validation over that loader is due
    /// in this fit.
    fn within_loader<'n>(&self, name: &str, rest: &'n str) -> Result<&'n str> {
        let names = || self.valid_loaders().map(|(own, _)| own);
        let listed = || names().map(|own| format!("`{own}`")).collect::<Vec<_>>().join(", ");
        let Some((loader, own)) = rest.split_once('/') else {
            let first = names().next().unwrap_or_default();
            let listed = listed();
            return Err(Error::msg(format!(
                "`{name}` does not name a validation loader: write `valid/{first}/{rest}`, for example; the loaders are {listed}"
            )));
        };
        match self.valid_loaders().find(|(known, _)| *known == loader) {
            Some((_, true)) => Ok(own),
            Some((_, false)) => Err(Error::msg(format!(
                "`{name}` will never be measured, because the validation of `{loader}` is never due within this fit: \
                 choose a shorter interval for it"
            ))),
            None => {
                let listed = listed();
                let similar = did_you_mean(loader, names());
                Err(Error::msg(format!(
                    "`{name}` will never be measured, because no validation loader is named `{loader}`; the loaders are {listed}{similar}"
                )))
            }
        }
    }

    /// Returns an error if the name of a validation metric is probably misspelled: the name is
    /// similar to one that will be logged, and no other hook could log a metric with this name.
    fn check_spelling(&self, prefix: &str, own: &str) -> Result<()> {
        let run = self.as_run();
        let is_other = |hook: &crate::run::Hook| {
            let definition = &hook.definition;
            definition.phases().contains(Phase::Valid) && !definition.origin.is_own()
        };
        let log = run.log.borrow();
        let known = || log.expected.iter().map(String::as_str).chain([LOSS]);
        let is_known = |known: &str| {
            own.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if known().any(is_known) || run.hooks.table.hooks().iter().any(is_other) {
            return Ok(());
        }
        let full: Vec<String> = known().map(|known| format!("{prefix}{known}")).collect();
        let own_name = did_you_mean(own, known());
        if own_name.is_empty() {
            return Ok(());
        }
        let name = format!("{prefix}{own}");
        let listed = full.iter().map(|name| format!("`{name}`"));
        let listed: Vec<String> = listed.collect();
        let similar = did_you_mean(&name, full.iter().map(String::as_str));
        let listed = listed.join(", ");
        Err(Error::msg(format!("no metric named `{name}` will be logged; the metrics are {listed}{similar}")))
    }
}
