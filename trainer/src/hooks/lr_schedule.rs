//! Learning-rate schedules.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ord;
use crate::checkpoint::{Saved, State};
use crate::optim::ParamGroup;
use crate::prelude::*;

/// Sets the learning rate before each optimizer step: for every parameter group its initial rate
/// times the factor of a [schedule](crate::schedule).
///
/// ```
/// use trainer::hooks::LrSchedule;
/// use trainer::prelude::*;
/// use trainer::schedule::Cosine;
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3)) // the highest rate
///     .epochs(10)
///     // Rises for 500 steps, then falls to 0 over the rest of the 10 epochs.
///     .hook(LrSchedule::new(Cosine::to(0.0).warm_up(500)))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// - **Steps**: the schedule is evaluated at the number of steps that the optimizer has taken over
///   all fits, without those that a hook skipped; with [`by_epoch`](LrSchedule::by_epoch), at the
///   epoch.
/// - **Length of the run**: [`Cx::planned_steps`], or [`Cx::epochs`]. A second `fit` makes the run
///   longer; a schedule over the whole run then continues at its position in the longer one.
/// - **Several optimizers**: sets the rates of all of them, each by its own number of steps, or
///   with [`of`](LrSchedule::of) those of one. The length of the run assumes that each optimizer
///   steps once in every accumulation window: for one that does not, give the schedule its lengths
///   as numbers.
/// - **Changes by others** are kept. If another hook, such as
///   [`ReduceOnPlateau`](super::ReduceOnPlateau) or a second `LrSchedule`, halves the rate within a
///   `fit`, all later rates are halved. If the rate was 0, or was changed between two fits, the new
///   rate becomes the initial rate of the group.
/// - **Invalid schedules**, such as one with a warm-up that is longer than the run, are an error
///   when `fit` begins; an invalid factor is an error at its step.
pub struct LrSchedule {
    schedule: Box<dyn Schedule>,
    of: Option<String>,
    by_epoch: bool,
    tracks: Vec<Track>,
}

/// The saved state for one optimizer. All other values are computed from the counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Track {
    part: String,
    /// One rate per parameter group.
    rates: Vec<Rate>,
    /// The steps of this optimizer, and of the run, when the fit began.
    began: (u64, u64),
}

impl Track {
    /// The number of steps, or epochs, at the end of the fit, if it is known.
    fn planned<P>(&self, by_epoch: bool, cx: &Cx<P>) -> Option<u64> {
        let (own, of_run) = self.began;
        match by_epoch {
            true => cx.epochs(),
            false => cx.planned_steps().map(|planned| own.saturating_add(planned.saturating_sub(of_run))),
        }
    }
}

/// The learning rate of one parameter group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rate {
    /// The pattern and the index of its group, because a hook at `setup` may add groups between two
    /// fits.
    group: (Option<String>, usize),
    /// The rate that the factor multiplies.
    base: f64,
    /// The rate that the schedule set last: if the group has another one, it was changed elsewhere.
    last_set: f64,
}

impl Rate {
    fn begin(group: &ParamGroup) -> Self {
        let (pattern, lr) = (group.pattern().map(str::to_owned), group.lr);
        Rate { group: (pattern, group.group), base: lr, last_set: lr }
    }

    fn is_of(&self, group: &ParamGroup) -> bool {
        self.group.0.as_deref() == group.pattern() && self.group.1 == group.group
    }

    /// Adopts a rate that was changed elsewhere, by scaling the base in proportion.
    fn follow(&mut self, lr: f64) {
        if lr != self.last_set {
            self.base = if self.last_set == 0.0 { lr } else { lr * (self.base / self.last_set) };
            self.last_set = lr;
        }
    }
}

impl LrSchedule {
    /// Schedules the learning rate by optimizer steps, for every optimizer.
    #[must_use]
    pub fn new(schedule: impl Schedule) -> Self {
        LrSchedule { schedule: Box::new(schedule), of: None, by_epoch: false, tracks: Vec::new() }
    }

    /// Whether the steps of the schedule are epochs, within which the rate is constant. Defaults to
    /// `false`.
    #[must_use]
    pub fn by_epoch(mut self, by_epoch: bool) -> Self {
        self.by_epoch = by_epoch;
        self
    }

    /// Restricts the schedule to the optimizer of this part of the model:
    /// [`optimizer_of`](crate::TrainerBuilder::optimizer_of).
    #[must_use]
    pub fn of(mut self, part: impl Into<String>) -> Self {
        self.of = Some(part.into());
        self
    }
}

impl LrSchedule {
    /// Records the initial learning rates of a part, and returns an error if the schedule is
    /// invalid.
    fn begin<P>(&mut self, part: String, cx: &mut Cx<P>) -> Result<()> {
        let began = (cx.steps_of(&part)?, cx.counters().optimizer_steps);
        let known = self.tracks.iter().position(|track| track.part == part);
        let before = known.map(|index| std::mem::take(&mut self.tracks[index].rates)).unwrap_or_default();
        let rates = cx.optimizer_of(&part)?.groups().iter().map(|group| {
            let rate = before.iter().find(|rate| rate.is_of(group) && rate.last_set == group.lr);
            rate.cloned().unwrap_or_else(|| Rate::begin(group))
        });
        let track = Track { rates: rates.collect(), part, began };
        let index = known.unwrap_or(self.tracks.len());
        if known.is_some() {
            self.tracks[index] = track;
        } else {
            self.tracks.push(track);
        }
        let track = &self.tracks[index];
        // A smoke test of a few batches is shorter than any warm-up.
        if cx.is_fast_dev_run() { Ok(()) } else { self.schedule.check(track.planned(self.by_epoch, cx)) }
    }
}

#[hook(ord = ord::LR_SCHEDULE, state)]
impl LrSchedule {
    /// Records the initial learning rates, and returns an error if the schedule is invalid.
    fn before_fit(&mut self, cx: &mut Cx<BeforeFit>) -> Result<()> {
        let parts: Vec<String> = match &self.of {
            Some(part) => vec![part.clone()],
            None => cx.parts().map(str::to_owned).collect(),
        };
        for part in parts {
            self.begin(part, cx)?;
        }
        Ok(())
    }

    /// Sets the learning rates.
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        if self.of.as_deref().is_some_and(|part| part != cx.part()) {
            return Ok(());
        }
        let known = self.tracks.iter().position(|track| track.part == cx.part());
        let index = match known {
            Some(index) => index,
            // The resumed fit began without this schedule.
            None => {
                self.begin(cx.part().to_owned(), cx)?;
                self.tracks.len() - 1
            }
        };
        let track = &mut self.tracks[index];
        let step = if self.by_epoch { cx.counters().epoch } else { cx.steps_of(&track.part)? };
        let factor = self.schedule.factor(step, track.planned(self.by_epoch, cx))?;
        if !(factor >= 0.0 && factor.is_finite()) {
            let unit = if self.by_epoch { "epoch" } else { "step" };
            return Err(Error::msg(format!(
                "the schedule returned the factor {factor:?} at {unit} {step}: expected a finite number of at least 0.0"
            )));
        }
        for (group, rate) in cx.optimizer()?.groups_mut().iter_mut().zip(&mut track.rates) {
            rate.follow(group.lr);
            rate.last_set = rate.base * factor;
            group.lr = rate.last_set;
        }
        Ok(())
    }

    /// Adopts changes that other hooks made to the rates since the last step.
    #[hook(only = train)]
    fn teardown(&mut self, cx: &mut Cx<Teardown>) -> Result<()> {
        for track in &mut self.tracks {
            for (group, rate) in cx.optimizer_of(&track.part)?.groups().iter().zip(&mut track.rates) {
                rate.follow(group.lr);
            }
        }
        Ok(())
    }
}

/// Saves the rates. The schedule itself comes from the program.
#[diagnostic::do_not_recommend]
impl State for LrSchedule {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.value("tracks", &self.tracks)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.tracks = saved.get("tracks")?;
        Ok(())
    }
}

impl fmt::Debug for LrSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LrSchedule")
            .field("of", &self.of)
            .field("by_epoch", &self.by_epoch)
            .field("tracks", &self.tracks)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Rate, Track};

    #[test]
    fn saved_rates_round_trip() {
        let of = |group| (Some("encoder.*".to_owned()), group);
        let rates = vec![
            Rate { group: of(0), base: 0.1 + 0.2, last_set: 1.0 / 3.0 },
            Rate { group: of(1), base: 1e-300, last_set: 1e-300 },
        ];
        let track = Track { part: "generator".into(), rates, began: (7, 9) };
        let read: Track = serde_json::from_str(&serde_json::to_string(&track).unwrap()).unwrap();
        assert_eq!(read, track);
    }
}
