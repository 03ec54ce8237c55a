//! Schedules of the learning rate and of other hyperparameters.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::stages;
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::error::did_you_mean;
use crate::optim::ParamGroup;
use crate::prelude::own::*;
use crate::values::float::readable;

/// Sets a hyperparameter of the optimizers from a [schedule](crate::schedule), before each
/// optimizer step: the learning rate, the momentum, one of the betas, the weight decay, or any
/// other, selected [by name](crate::optim::ParamGroup::set).
///
/// Use this when a hyperparameter depends on the step or the epoch. If the learning rate depends on
/// a metric, use [`ReduceOnPlateau`](super::ReduceOnPlateau).
///
/// ```
/// use trainer::hooks::HyperparameterSchedule;
/// use trainer::prelude::*;
/// use trainer::schedule::{Cosine, Linear};
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     // The learning rate is the highest one.
///     .optimizer(AdamW::new(1e-3).group("*.bias", trainer::optim::Group::new().weight_decay(0.0)))
///     .epochs(10)
///     // The rate rises for 500 steps, then falls to 0 over the rest of the 10 epochs.
///     .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(500)))
///     // From 0.9 to 0.99 over the run.
///     .hook(HyperparameterSchedule::values("beta2", Linear::to(0.99).starting_at(0.9)))
///     // From 1 to 10 times the weight decay of the optimizer, except for the biases.
///     .hook(HyperparameterSchedule::factors("weight_decay", Cosine::to(10.0)).ungrouped())
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// - **Steps**: the schedule is evaluated at [`optimizer_steps`](Counters::optimizer_steps), the
///   number of steps taken before over all fits, excluding those that a hook skipped. With
///   [`by_epoch`](Self::by_epoch), it is evaluated at the epoch.
/// - **Length of the run**: [`Plan::steps`](crate::Plan::steps), or
///   [`Plan::epochs`](crate::Plan::epochs) with `by_epoch`. It must be known for a schedule over
///   the whole run: a task that takes several steps for a batch says how many with
///   [`steps_per_batch`](Task::steps_per_batch). A second `fit`, or a resume with more epochs,
///   makes the run longer. A schedule over the whole run then continues at the current position
///   within the longer run, and a warning says how this changes the value.
/// - **Several optimizers** are all scheduled by the steps of the run, even if one of them steps
///   less often; [`part`](Self::part) restricts the schedule to one of them.
/// - **Several groups**: [`lr`](Self::lr) and [`factors`](Self::factors) scale each group relative
///   to its own value; [`group`](Self::group) restricts the schedule to some of them.
/// - **Changes by other hooks**: [`values`](Self::values) and [`momentum`](Self::momentum) replace
///   them. [`lr`](Self::lr) and [`factors`](Self::factors) keep them: if another hook, such as
///   [`ReduceOnPlateau`](super::ReduceOnPlateau) or a second schedule, halves the value within a
///   `fit`, all later values are halved. If the value was 0, or was changed between two fits, the
///   new value becomes the initial value of the group.
/// - **Invalid schedules**, such as one whose warm-up is longer than the run, and a hyperparameter
///   or a group that does not exist are an error when `fit` begins; a factor that is negative or
///   not finite, or a value that the optimizer does not allow, is an error at the step for which
///   the schedule returns it.
#[doc(alias("LearningRateScheduler", "lr_scheduler", "LRScheduler", "ParamScheduler", "momentum_scheduler"))]
pub struct HyperparameterSchedule {
    schedule: Box<dyn Schedule>,
    name: Name,
    mode: Mode,
    part: Option<String>,
    by_epoch: bool,
    /// The patterns of the groups to set, or empty to set all groups. `None` stands for the
    /// parameters that no pattern matches.
    groups: Vec<Option<String>>,
    tracks: Vec<Track>,
    /// The length of the run, in steps or epochs, for which the schedule was evaluated last.
    length: Option<u64>,
    /// Whether the schedule was checked in this fit.
    is_checked: bool,
}

/// The hyperparameter that a schedule sets.
#[derive(Debug)]
enum Name {
    Lr,
    /// `momentum`, or `beta1` for an optimizer without `momentum`.
    Momentum,
    Other(String),
}

/// How the output of a schedule is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The hyperparameter is set to the output.
    Value,
    /// The hyperparameter of each group is set to its initial value times the output.
    Factor,
}

impl Name {
    fn of(name: String) -> Self {
        if name == "lr" { Name::Lr } else { Name::Other(name) }
    }

    /// Returns the name of the hyperparameter in a group.
    fn in_group(&self, group: &ParamGroup) -> &str {
        match self {
            Name::Lr => "lr",
            Name::Other(name) => name,
            Name::Momentum if group.settings().any(|(name, _)| name == "momentum") => "momentum",
            Name::Momentum => "beta1",
        }
    }

    fn get(&self, group: &ParamGroup) -> Result<f64> {
        if let Name::Lr = self { Ok(group.lr) } else { group.get(self.in_group(group)) }
    }

    fn set(&self, group: &mut ParamGroup, value: f64) -> Result<()> {
        match self {
            Name::Lr => group.lr = value,
            Name::Other(name) => group.set(name, value)?,
            Name::Momentum if group.settings().any(|(name, _)| name == "momentum") => {
                group.set("momentum", value)?;
            }
            Name::Momentum => group.set("beta1", value)?,
        }
        Ok(())
    }
}

/// Formats the name for error messages.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Name::Lr => "lr",
            Name::Momentum => "momentum",
            Name::Other(name) => name,
        })
    }
}

/// The saved state for one optimizer. Everything else is computed from the counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Track {
    part: String,
    /// The scaled hyperparameter of each scheduled group; empty for [`Mode::Value`].
    rates: Vec<Scaled>,
}

/// The hyperparameter of one group, scaled by a factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Scaled {
    /// The pattern and the `VarStore` number of the group, which identify it even if a hook at
    /// `setup` adds groups between two fits.
    group: (Option<String>, usize),
    /// The value that the factor multiplies.
    base: f64,
    /// The value that the schedule set last. If the group has a different value, something other
    /// than the schedule has changed it.
    last_set: f64,
}

impl Scaled {
    fn begin(group: &ParamGroup, value: f64) -> Self {
        Scaled { group: (group.pattern().map(str::to_owned), group.group), base: value, last_set: value }
    }

    fn is_of(&self, group: &ParamGroup) -> bool {
        self.group.0.as_deref() == group.pattern() && self.group.1 == group.group
    }

    /// Adopts a value that was changed elsewhere: scales the base in proportion, or replaces it if
    /// the schedule had set 0.
    fn follow(&mut self, value: f64) {
        if value != self.last_set {
            self.base = if self.last_set == 0.0 { value } else { value * (self.base / self.last_set) };
            self.last_set = value;
        }
    }
}

impl HyperparameterSchedule {
    /// Sets the learning rate of each group to its initial rate times the factor that the schedule
    /// returns.
    #[must_use]
    pub fn lr(schedule: impl Schedule) -> Self {
        HyperparameterSchedule::new(Name::Lr, Mode::Factor, schedule)
    }

    /// Sets `momentum`, or `beta1` for an optimizer without momentum, to the values that the
    /// schedule returns, for example [`OneCycle::momentum`](crate::schedule::OneCycle::momentum).
    #[must_use]
    pub fn momentum(schedule: impl Schedule) -> Self {
        HyperparameterSchedule::new(Name::Momentum, Mode::Value, schedule)
    }

    /// Sets the hyperparameter to the values that the schedule returns.
    #[must_use]
    pub fn values(name: impl Into<String>, schedule: impl Schedule) -> Self {
        HyperparameterSchedule::new(Name::of(name.into()), Mode::Value, schedule)
    }

    /// Sets the hyperparameter of each group to its initial value times the factor that the
    /// schedule returns.
    #[must_use]
    pub fn factors(name: impl Into<String>, schedule: impl Schedule) -> Self {
        HyperparameterSchedule::new(Name::of(name.into()), Mode::Factor, schedule)
    }

    /// Whether the schedule counts epochs instead of optimizer steps; the value is then constant
    /// within an epoch. Defaults to `false`.
    #[must_use]
    pub fn by_epoch(mut self, by_epoch: bool) -> Self {
        self.by_epoch = by_epoch;
        self
    }

    /// Restricts the schedule to the optimizer of this part of the model: see
    /// [`optimizer_of`](crate::TrainerBuilder::optimizer_of).
    #[must_use]
    pub fn part(mut self, part: impl Into<String>) -> Self {
        self.part = Some(part.into());
        self
    }

    /// Restricts the schedule to the parameter group with this pattern, which must be written
    /// exactly as in the optimizer's [`group`](crate::optim::AdamW::group). Several calls select
    /// several groups. If no optimizer has a group with this pattern, `fit` returns an error when
    /// it begins.
    #[must_use]
    pub fn group(mut self, pattern: impl Into<String>) -> Self {
        self.groups.push(Some(pattern.into()));
        self
    }

    /// Restricts the schedule to the parameters that no group's pattern matches. May be
    /// combined with [`group`](Self::group).
    #[must_use]
    pub fn ungrouped(mut self) -> Self {
        self.groups.push(None);
        self
    }
    /// Whether the hyperparameter is the learning rate.
    pub(crate) fn sets_lr(&self) -> bool {
        matches!(self.name, Name::Lr)
    }

    /// If this schedule and another set the same hyperparameter of a group, returns its name.
    pub(super) fn sets_what_sets<P>(&self, other: &Self, cx: &Cx<P>) -> Result<Option<String>> {
        for part in cx.parts().filter(|part| self.has_part_of(Some(part)) && other.has_part_of(Some(part))) {
            for group in cx.optimizer_of(part)?.groups() {
                let is_of_both = selects(&self.groups, group) && selects(&other.groups, group);
                if is_of_both && self.name.in_group(group) == other.name.in_group(group) {
                    return Ok(Some(self.name.in_group(group).to_owned()));
                }
            }
        }
        Ok(None)
    }

    /// Whether the schedule sets a hyperparameter of this part, or of a part if none is named.
    pub(super) fn has_part_of(&self, part: Option<&str>) -> bool {
        part.is_none() || self.part.is_none() || self.part.as_deref() == part
    }

    /// Whether the schedule still changes in the second half of the run.
    pub(super) fn changes_late<P>(&self, cx: &Cx<P>) -> bool {
        let Some(planned) = self.planned(cx) else { return false };
        let at = |step| self.schedule.factor(step, Some(planned)).ok();
        let middle = at(planned / 2);
        (1..=8).any(|nth| at((planned / 2 + nth * planned / 16).min(planned.saturating_sub(1))) != middle)
    }

    /// If the rate of all groups stays below a ten-thousandth of its highest value for more than
    /// the last step, returns when this begins and when the run ends.
    pub(super) fn ends_early<P>(&self, cx: &Cx<P>) -> Option<[String; 2]> {
        const POINTS: u64 = 1000;
        if !self.sets_lr() || !self.groups.is_empty() {
            return None;
        }
        let planned = self.planned(cx)?;
        let at = |step| self.schedule.factor(step, Some(planned)).ok();
        let last = at(planned.checked_sub(1)?)?;
        let steps =
            (0..POINTS).map(|nth| (u128::from(planned) * u128::from(nth) / u128::from(POINTS)) as u64);
        let highest = steps.filter_map(at).fold(0.0, f64::max);
        if last.abs() >= highest / 1e4 {
            return None;
        }
        let now = if self.by_epoch { cx.counters().epoch } else { cx.counters().optimizer_steps };
        let same = (now..planned).rev().take_while(|step| at(*step) == Some(last)).count() as u64;
        let unit = if self.by_epoch { "epoch" } else { "step" };
        (same > 1).then(|| [planned - same, planned].map(|at| format!("{unit} {at}")))
    }

    fn new(name: Name, mode: Mode, schedule: impl Schedule) -> Self {
        HyperparameterSchedule {
            schedule: Box::new(schedule),
            name,
            mode,
            part: None,
            by_epoch: false,
            groups: Vec::new(),
            tracks: Vec::new(),
            length: None,
            is_checked: false,
        }
    }

    /// Records the initial values of every scheduled optimizer. Returns an error if the schedule is
    /// invalid, or if the hyperparameter, a part or a group does not exist.
    fn begin_all<P: OnAllRanks>(&mut self, cx: &Cx<P>) -> Result<()> {
        let parts = self.parts(cx);
        self.check(&parts, cx)?;
        for part in parts {
            self.begin(part, cx)?;
        }
        self.check_schedule(cx)?;
        let has_trained = cx.counters().batches_seen > 0;
        let next = if self.by_epoch {
            cx.counters().epoch + u64::from(has_trained)
        } else {
            cx.counters().optimizer_steps
        };
        self.note_length(next, cx)
    }

    /// Returns the names of the scheduled parts.
    fn parts<P>(&self, cx: &Cx<P>) -> Vec<String> {
        self.part.clone().map_or_else(|| cx.parts().map(str::to_owned).collect(), |part| vec![part])
    }

    /// Repeats the checks of `begin_all` for a resumed fit, whose values come from the checkpoint.
    fn check_resumed(&mut self, cx: &Cx<BeforeOptStep>) -> Result<()> {
        self.check(&self.parts(cx), cx)?;
        self.check_schedule(cx)?;
        self.note_length(self.position(cx), cx)
    }

    /// Returns the length of the run in steps, or in epochs if `by_epoch` is set; `None` if it is
    /// not known.
    fn planned<P>(&self, cx: &Cx<P>) -> Option<u64> {
        if self.by_epoch { cx.plan().epochs } else { cx.plan().steps }
    }

    /// Returns the step, or the epoch, at which the schedule is evaluated.
    fn position(&self, cx: &Cx<BeforeOptStep>) -> u64 {
        if self.by_epoch { cx.counters().epoch } else { cx.step_number() - 1 }
    }

    /// Warns if the value at this step, or in this epoch, differs because the length of the run has
    /// changed since the schedule was evaluated last: in an earlier fit, or before a resume.
    fn note_length<P: OnAllRanks>(&mut self, at: u64, cx: &Cx<P>) -> Result<()> {
        self.is_checked = true;
        let now = self.planned(cx);
        let before = std::mem::replace(&mut self.length, now);
        let Some(change) = length_change(&*self.schedule, at, self.by_epoch, [before, now]) else {
            return Ok(());
        };
        let Some(track) = self.tracks.first() else { return Ok(()) };
        let groups = cx.optimizer_of(&track.part)?.groups();
        let Some(group) = groups.iter().find(|group| selects(&self.groups, group)) else { return Ok(()) };
        let base =
            if self.mode == Mode::Factor { track.rates.first().map_or(1.0, |rate| rate.base) } else { 1.0 };
        let name = self.name.in_group(group);
        let current = self.name.get(group)?;
        let [before, now] = change.outputs.map(|output| readable(base * output));
        cx.warn(format!(
            "the schedule of `{name}` {}, so `{name}` changes from {} to {now} instead of {before}; to prevent this, {}",
            change.why,
            readable(current),
            change.advice,
        ));
        Ok(())
    }

    /// Returns an error if the hyperparameter, a part or a group does not exist.
    fn check<P: OnAllRanks>(&self, parts: &[String], cx: &Cx<P>) -> Result<()> {
        let mut known: Vec<Option<String>> = Vec::new();
        for part in parts {
            for group in cx.optimizer_of(part)?.groups() {
                known.push(group.pattern().map(str::to_owned));
                if selects(&self.groups, group) {
                    self.name.get(group).map_err(|error| match self.name {
                        Name::Momentum => Error::usage(format!(
                            "`HyperparameterSchedule::momentum(…)`: {} has neither `momentum` nor `beta1`: restrict the \
                             schedule with `.part(…)` or `.group(…)`, or remove it",
                            group.algorithm()
                        )),
                        _ => error,
                    })?;
                }
            }
        }
        for chosen in &self.groups {
            if known.contains(chosen) {
                continue;
            }
            let patterns = known.iter().flatten().map(String::as_str);
            let listed: Vec<_> = patterns.clone().map(|pattern| format!("`{pattern}`")).collect();
            let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
            return Err(Error::usage(match chosen {
                Some(pattern) => format!(
                    "the schedule of `{}` is for the group `{pattern}`, which no optimizer has; the groups are {listed}{}",
                    self.name,
                    did_you_mean(pattern, patterns)
                ),
                None => format!(
                    "the schedule of `{}` is for the parameters that are in no group, but every parameter is in a group: remove `.ungrouped()`",
                    self.name
                ),
            }));
        }
        Ok(())
    }

    /// Records the initial values of a part. If a group still has the value that the schedule set
    /// last, its base is kept.
    fn begin<P: OnAllRanks>(&mut self, part: String, cx: &Cx<P>) -> Result<()> {
        let known = self.tracks.iter().position(|track| track.part == part);
        let before = known.map(|index| std::mem::take(&mut self.tracks[index].rates)).unwrap_or_default();
        let mut rates = Vec::new();
        for group in cx.optimizer_of(&part)?.groups() {
            if self.mode == Mode::Factor && selects(&self.groups, group) {
                let value = self.name.get(group)?;
                let rate = before.iter().find(|rate| rate.is_of(group) && rate.last_set == value);
                rates.push(rate.cloned().unwrap_or_else(|| Scaled::begin(group, value)));
            }
        }
        let track = Track { part, rates };
        match known {
            Some(index) => self.tracks[index] = track,
            None => self.tracks.push(track),
        }
        Ok(())
    }

    /// Returns an error if the schedule is invalid for the planned length of the run.
    fn check_schedule<P>(&self, cx: &Cx<P>) -> Result<()> {
        // A smoke test of a few batches may be shorter than the warm-up.
        if cx.is_fast_dev_run() { Ok(()) } else { self.schedule.check(self.planned(cx)) }
    }

    /// Sets the values for the next step of the current optimizer.
    fn set(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        if self.part.as_deref().is_some_and(|part| part != cx.part()) {
            return Ok(());
        }
        if !self.is_checked {
            self.check_resumed(cx)?;
        }
        let known = self.tracks.iter().position(|track| track.part == cx.part());
        let index = match known {
            Some(index) => index,
            // The fit was resumed from a checkpoint that was written without this schedule.
            None => {
                self.begin(cx.part().to_owned(), cx)?;
                self.tracks.len() - 1
            }
        };
        let step = self.position(cx);
        let unit = if self.by_epoch { "epoch" } else { "step" };
        let number = self.schedule.factor(step, self.planned(cx))?;
        if self.mode == Mode::Factor && !(number >= 0.0 && number.is_finite()) {
            return Err(Error::msg(format!(
                "the schedule returned the factor {number:?} at {unit} {step}: expected a finite number of at least 0.0"
            )));
        }
        let name = &self.name;
        let mut rates = self.tracks[index].rates.iter_mut();
        for group in cx.optimizer_mut()?.groups_mut().iter_mut().filter(|group| selects(&self.groups, group))
        {
            let value = match (self.mode, rates.next()) {
                (Mode::Factor, Some(rate)) => {
                    rate.follow(name.get(group)?);
                    rate.last_set = rate.base * number;
                    rate.last_set
                }
                _ => number,
            };
            name.set(group, value)
                .map_err(|error| Error::msg(format!("the schedule of `{name}` at {unit} {step}: {error}")))?;
        }
        Ok(())
    }

    /// Adopts changes that other hooks made to the values since the last step.
    fn follow<P: OnAllRanks>(&mut self, cx: &Cx<P>) -> Result<()> {
        self.is_checked = false;
        for track in &mut self.tracks {
            let groups = cx.optimizer_of(&track.part)?.groups().iter();
            for (group, rate) in groups.filter(|group| selects(&self.groups, group)).zip(&mut track.rates) {
                rate.follow(self.name.get(group)?);
            }
        }
        Ok(())
    }
}

#[hook(in = stages::Schedules, state, settings, trial = false)]
impl HyperparameterSchedule {
    /// Records the initial values, and returns an error if the schedule is invalid.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.begin_all(cx)
    }

    /// Sets the hyperparameter.
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        self.set(cx)
    }

    /// Adopts changes that other hooks made to the hyperparameter since the last step.
    #[hook(only = train)]
    fn teardown(&mut self, cx: &Cx<Teardown>) -> Result<()> {
        self.follow(cx)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for HyperparameterSchedule {
    fn settings(&self) -> SettingList {
        let HyperparameterSchedule {
            schedule,
            name,
            mode,
            part,
            by_epoch,
            groups,
            tracks: _,
            length: _,
            is_checked: _,
        } = self;
        let groups: Vec<_> = groups.iter().map(|group| group.as_deref().unwrap_or("ungrouped")).collect();
        SettingList::new()
            .with("hyperparameter", format_args!("{name}"))
            .with("sets", mode)
            .with_optional("part", part.as_ref())
            .with("by_epoch", by_epoch)
            .with("groups", groups)
            .with_all("schedule", schedule.settings())
    }

    fn mistakes(&self) -> Vec<String> {
        self.schedule.mistakes()
    }
}

/// Saves the length of the run. If the schedule sets factors, also saves the initial values and the
/// values that were set last. The schedule itself comes from the program.
#[diagnostic::do_not_recommend]
impl State for HyperparameterSchedule {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("tracks", &self.tracks)?;
        saved.set("length", &self.length)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.tracks = saved.get("tracks")?;
        self.length = saved.get("length")?;
        Ok(())
    }
}

/// The change of a schedule's output at one step, because the length of the run has changed.
pub(super) struct LengthChange {
    /// The reason, as a clause that follows the name of the schedule.
    pub(super) why: String,
    /// The outputs for the length before, and for the length now.
    pub(super) outputs: [f64; 2],
    /// What to do to prevent the change.
    pub(super) advice: String,
}

/// Returns the change of a schedule's output at a step, or an epoch, if the run had the first
/// length before and has the second now. `None` if the output is the same.
pub(super) fn length_change(
    schedule: &dyn Schedule,
    at: u64,
    by_epoch: bool,
    [before, now]: [Option<u64>; 2],
) -> Option<LengthChange> {
    let (before, now) = (before?, now?);
    let outputs = [schedule.factor(at, Some(before)).ok()?, schedule.factor(at, Some(now)).ok()?];
    if outputs[0] == outputs[1] {
        return None;
    }
    let unit = if by_epoch { "epoch" } else { "step" };
    let why =
        format!("spans the run, which now has {now} {unit}s instead of {before}, and is at {unit} {at}");
    let advice = format!("give the schedule its length as a number of {unit}s, such as `.over({before})`");
    Some(LengthChange { why, outputs, advice })
}

/// Whether a schedule restricted to `groups` sets `group`.
fn selects(groups: &[Option<String>], group: &ParamGroup) -> bool {
    groups.is_empty() || groups.iter().any(|pattern| pattern.as_deref() == group.pattern())
}

impl fmt::Debug for HyperparameterSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperparameterSchedule")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .field("part", &self.part)
            .field("by_epoch", &self.by_epoch)
            .field("groups", &self.groups)
            .field("tracks", &self.tracks)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Scaled, Track};

    #[test]
    fn saved_values_round_trip() {
        let of = |group| (Some("encoder.*".to_owned()), group);
        let rates = vec![
            Scaled { group: of(0), base: 0.1 + 0.2, last_set: 1.0 / 3.0 },
            Scaled { group: of(1), base: 1e-300, last_set: 1e-300 },
        ];
        let track = Track { part: "generator".into(), rates };
        let read: Track = serde_json::from_str(&serde_json::to_string(&track).unwrap()).unwrap();
        assert_eq!(read, track);
    }
}
