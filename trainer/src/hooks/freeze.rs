//! Freezing and thawing parameters on a schedule.

use super::stages;
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::modules::Patterns;
use crate::prelude::own::*;

/// Freezes parameters by name and thaws them later, for example to train a new head before the
/// pretrained backbone, or to thaw one layer after another, from the last to the first (Howard and
/// Ruder, *Universal Language Model Fine-tuning for Text Classification*, 2018).
///
/// Use this when parameters are thawed, or frozen, in the course of the run. If they stay frozen
/// for the whole run, [`Group::frozen`](crate::optim::Group::frozen) is enough.
///
/// ```
/// use trainer::hooks::Freeze;
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let root = vs.root();
/// # let linear = |name, inputs, outputs| nn::linear(&root / name, inputs, outputs, Default::default());
/// # let net = nn::seq().add(linear("layer1", 4, 4)).add(linear("layer2", 4, 4)).add(linear("head", 4, 2));
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3))
///     .epochs(10)
///     // Only the head learns in the first two epochs, and all layers from epoch 4 on.
///     .hook(Freeze::new("layer*").thaw_at(2, "layer2.*").thaw_at(4, "layer1.*"))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// In a pattern, `*` matches any characters and `?` exactly one. Times are epochs, counted from 0
/// over all fits, or, with [`by_step`](Freeze::by_step), numbers of optimizer steps.
///
/// A frozen parameter gets no gradient and is not updated, not even by weight decay. Its optimizer
/// state is kept unchanged, and is used again after the parameter is thawed. To allocate no state
/// until then, freeze the parameter's [group](crate::optim::Group::frozen) in the optimizer
/// instead, and thaw it with [`Freeze::nothing`] and [`thaw_at`](Freeze::thaw_at). Buffers, such as
/// the running statistics of batch norm, are not parameters: they are updated as long as the model
/// is in training mode.
///
/// `fit` returns an error if a pattern that is not [optional](Patterns::optional) matches no
/// parameter of an optimizer, if none of the parameters to thaw is frozen at that time, or if all
/// parameters would be frozen.
#[doc(alias("BackboneFinetuning", "BaseFinetuning", "freeze_to", "requires_grad_"))]
#[derive(Debug)]
pub struct Freeze {
    /// The events, sorted by time.
    events: Vec<Event>,
    by_step: bool,
    /// The number of events applied so far.
    applied: usize,
}

/// An event that freezes or thaws parameters, at the start of an epoch or after a number of steps.
#[derive(Clone, Debug)]
struct Event {
    at: u64,
    patterns: Patterns,
    freezes: bool,
    /// Whether [`Freeze::new`] added this event.
    is_first: bool,
}

impl Event {
    /// Formats the event as the call that added it, for error messages.
    fn call(&self) -> String {
        let patterns: Vec<_> = self.patterns.iter().map(|pattern| format!("\"{}\"", pattern.text)).collect();
        let patterns = match &patterns[..] {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        match (self.is_first, self.freezes) {
            (true, _) => format!("`Freeze::new({patterns})`"),
            (false, true) => format!("`.freeze_at({}, {patterns})`", self.at),
            (false, false) => format!("`.thaw_at({}, {patterns})`", self.at),
        }
    }
}

impl Freeze {
    /// Freezes the parameters that match any of the patterns, from the start of the run.
    #[must_use]
    pub fn new(patterns: impl Into<Patterns>) -> Self {
        let first = Event { at: 0, patterns: patterns.into(), freezes: true, is_first: true };
        Freeze { events: vec![first], ..Freeze::nothing() }
    }

    /// Freezes no parameters at the start of the run.
    #[must_use]
    pub fn nothing() -> Self {
        Freeze { events: Vec::new(), by_step: false, applied: 0 }
    }

    /// Thaws the matching parameters at the start of epoch `at` or, with
    /// [`by_step`](Freeze::by_step), after `at` optimizer steps.
    #[must_use]
    pub fn thaw_at(self, at: u64, patterns: impl Into<Patterns>) -> Self {
        self.with(Event { at, patterns: patterns.into(), freezes: false, is_first: false })
    }

    /// Freezes the matching parameters at the start of epoch `at` or, with
    /// [`by_step`](Freeze::by_step), after `at` optimizer steps.
    #[must_use]
    pub fn freeze_at(self, at: u64, patterns: impl Into<Patterns>) -> Self {
        self.with(Event { at, patterns: patterns.into(), freezes: true, is_first: false })
    }

    /// Whether the times `at` count optimizer steps instead of epochs. Defaults to `false`.
    #[must_use]
    pub fn by_step(mut self, by_step: bool) -> Self {
        self.by_step = by_step;
        self
    }

    fn with(mut self, event: Event) -> Self {
        self.events.push(event);
        self.events.sort_by_key(|event| event.at); // events with the same time keep their order
        self
    }

    /// Returns an error if a future event matches nothing, thaws nothing, or freezes everything.
    fn check<P: OnAllRanks>(&self, cx: &Cx<P>) -> Result<()> {
        let mut parameters: Vec<(String, bool)> = Vec::new();
        for part in cx.parts().map(str::to_owned).collect::<Vec<_>>() {
            for group in cx.optimizer_of(&part)?.groups() {
                let its = group.names().zip(group.parameters());
                parameters.extend(its.map(|(name, tensor)| (name.to_owned(), !tensor.requires_grad())));
            }
        }
        for (nth, event) in self.events.iter().enumerate().skip(self.applied) {
            let names = parameters.iter().map(|(name, _)| name.as_str());
            for pattern in event.patterns.iter().filter(|pattern| !pattern.optional) {
                if !names.clone().any(|name| pattern.matches(name)) {
                    return Err(Error::usage(format!(
                        "{}: no parameter of an optimizer matches `{}`{}",
                        event.call(),
                        pattern.text,
                        pattern.did_you_mean(names)
                    )));
                }
            }
            let mut has_matched = false;
            let mut has_frozen = false;
            for (_, is_frozen) in parameters.iter_mut().filter(|(name, _)| event.patterns.matches(name)) {
                has_matched = true;
                has_frozen |= std::mem::replace(is_frozen, event.freezes);
            }
            // Optional patterns may match nothing.
            if !event.freezes && has_matched && !has_frozen {
                return Err(Error::usage(format!(
                    "{}: none of these parameters is frozen at that time: freeze them first, with `Freeze::new(…)`, or remove \
                     this call",
                    event.call()
                )));
            }
            let is_last_of_time = self.events.get(nth + 1).is_none_or(|next| next.at != event.at);
            if is_last_of_time && parameters.iter().all(|(_, is_frozen)| *is_frozen) {
                return Err(Error::usage(format!(
                    "{} leaves no parameter to train: keep one unfrozen",
                    event.call()
                )));
            }
        }
        Ok(())
    }

    /// Applies the events that are due.
    #[inline]
    fn advance<P: OnAllRanks>(&mut self, now: u64, cx: &mut Cx<P>) -> Result<()> {
        while self.events.get(self.applied).is_some_and(|event| event.at <= now) {
            let Event { patterns, freezes, .. } = &self.events[self.applied];
            for part in cx.parts().map(str::to_owned).collect::<Vec<_>>() {
                for group in cx.optimizer_of_mut(&part)?.groups_mut() {
                    group.set_frozen_where(*freezes, |name| patterns.matches(name))?;
                }
            }
            self.applied += 1;
        }
        Ok(())
    }
}

#[hook(in = stages::Freezing, state, settings)]
impl Freeze {
    /// Returns an error if a future event is invalid.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.check(cx)
    }

    /// Freezes and thaws parameters at the start of an epoch, unless the times are steps.
    fn before_epoch(&mut self, cx: &mut Cx<BeforeEpoch>) -> Result<()> {
        if self.by_step { Ok(()) } else { self.advance(cx.counters().epoch, cx) }
    }

    /// Freezes and thaws parameters before the first batch of an optimizer step, if the times are
    /// steps.
    #[hook(only = train)]
    fn before_step(&mut self, cx: &mut Cx<BeforeStep>) -> Result<()> {
        if self.by_step { self.advance(cx.counters().optimizer_steps, cx) } else { Ok(()) }
    }

    /// Repeats the check of `before_fit` for a resumed fit.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) -> Result<()> {
        self.check(cx)
    }
}

/// Saves the number of applied events. Every checkpoint records which parameters are frozen, and
/// the schedule itself comes from the program.
#[diagnostic::do_not_recommend]
impl State for Freeze {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("applied", &self.applied)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        let applied: usize = saved.get("applied")?;
        if applied > self.events.len() {
            return Err(Error::usage(format!(
                "the checkpoint was written after change {applied} of `Freeze`, but the schedule of `Freeze` now has fewer changes ({}): use the same \
                 schedule as the interrupted run",
                self.events.len()
            )));
        }
        self.applied = applied;
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Freeze {
    fn settings(&self) -> SettingList {
        let Freeze { events, by_step, applied: _ } = self;
        let calls = events.iter().map(Event::call).collect::<Vec<_>>().join(", ");
        SettingList::new().with("by_step", by_step).with("calls", format_args!("{calls}"))
    }
}
