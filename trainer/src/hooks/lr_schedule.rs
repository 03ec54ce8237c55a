//! The learning rate by a schedule.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ord;
use crate::checkpoint::{Saved, State};
use crate::optim::ParamGroup;
use crate::prelude::*;

/// Sets the learning rate before each optimizer step: for every group of parameters the one that it began with, times the factor
/// of a [schedule](crate::schedule).
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
///     .hook(LrSchedule::new(Cosine::to(0.0).warm_up(500))) // up in 500 steps, down to 0 in the rest of the 10 epochs
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// - **By step** the factor is that of the steps that the optimizer has taken, over all fits; a step that a hook skips is not one.
///   [`by_epoch`](LrSchedule::by_epoch) it is that of the epoch.
/// - **The whole run** is what the loop plans: [`Cx::planned_steps`], or [`Cx::epochs`]. A second `fit` makes the run longer, and a
///   schedule over the whole of it goes on at its place in the longer one.
/// - **Where there is more than one optimizer**, the rates of all are set, each by its own steps; or with [`of`](LrSchedule::of)
///   those of one. The whole run is then an equal share of the planned steps: one that does not step with each batch wants its
///   lengths as numbers.
/// - **What others do to the rate** is kept. A rate that is found changed within a `fit` is what the schedule goes on from, in
///   proportion: a hook that halves it, [`ReduceOnPlateau`](super::ReduceOnPlateau) or a second `LrSchedule`, halves all that comes.
///   From a rate of 0, and between two fits, there is no proportion: the rate that is found is the one that the group begins with.
/// - **A schedule that cannot work**, with a negative factor or a warm-up that is longer than the run, is an error when `fit` begins.
pub struct LrSchedule {
    schedule: Box<dyn Schedule>,
    of: Option<String>,
    by_epoch: bool,
    tracks: Vec<Track>,
}

/// What it knows of one optimizer. The rest follows from the counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Track {
    part: String,
    /// For each group.
    rates: Vec<Rate>,
    /// Its own steps, and those of all optimizers, when the fit began.
    began: (u64, u64),
}

impl Track {
    /// How many steps, or epochs, this part of the model will have trained, if that is known.
    fn run<P>(&self, by_epoch: bool, cx: &Cx<P>) -> Option<u64> {
        let (done, of_all) = self.began;
        let parts = cx.parts().count() as u64;
        match by_epoch {
            true => cx.epochs(),
            false => cx.planned_steps().map(|planned| done + planned.saturating_sub(of_all).div_ceil(parts)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rate {
    /// The pattern and the number of its group: a `setup` may add groups between two fits.
    group: (Option<String>, usize),
    /// What the factor multiplies.
    base: f64,
    /// What the group was left with: another rate there is somebody else's.
    left: f64,
}

impl Rate {
    fn begin(group: &ParamGroup) -> Self {
        let (pattern, lr) = (group.pattern().map(str::to_owned), group.lr);
        Rate { group: (pattern, group.group), base: lr, left: lr }
    }

    fn is_of(&self, group: &ParamGroup) -> bool {
        self.group.0.as_deref() == group.pattern() && self.group.1 == group.group
    }

    /// Takes over what somebody else has made of the rate, in proportion.
    fn follow(&mut self, lr: f64) {
        if lr != self.left {
            self.base = if self.left == 0.0 { lr } else { lr * (self.base / self.left) };
            self.left = lr;
        }
    }
}

impl LrSchedule {
    /// By optimizer steps, for every optimizer.
    #[must_use]
    pub fn new(schedule: impl Schedule) -> Self {
        LrSchedule { schedule: Box::new(schedule), of: None, by_epoch: false, tracks: Vec::new() }
    }

    /// By epochs: the steps of the schedule are epochs, and the rate is the same throughout one.
    #[must_use]
    pub fn by_epoch(mut self) -> Self {
        self.by_epoch = true;
        self
    }

    /// For the optimizer of this part of the model alone: [`optimizer_of`](crate::TrainerBuilder::optimizer_of).
    #[must_use]
    pub fn of(mut self, part: impl Into<String>) -> Self {
        self.of = Some(part.into());
        self
    }
}

impl LrSchedule {
    /// Notes where the learning rates of a part begin, and tells a schedule that cannot work.
    fn begin<P>(&mut self, part: String, cx: &mut Cx<P>) -> Result<()> {
        let began = (cx.steps_of(&part)?, cx.counters().optimizer_steps);
        let known = self.tracks.iter().position(|track| track.part == part);
        let before = known.map(|index| std::mem::take(&mut self.tracks[index].rates)).unwrap_or_default();
        let rates = cx.optimizer_of(&part)?.groups().iter().map(|group| {
            let rate = before.iter().find(|rate| rate.is_of(group) && rate.left == group.lr);
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
        // A run of a few batches has no room for a warm-up of a real one.
        if cx.is_fast_dev_run() { Ok(()) } else { self.schedule.check(track.run(self.by_epoch, cx)) }
    }
}

#[hook(ord = ord::LR_SCHEDULE, state)]
impl LrSchedule {
    /// Notes where the learning rates begin, and tells a schedule that cannot work.
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
            // It was not there when the fit began that is resumed now.
            None => {
                self.begin(cx.part().to_owned(), cx)?;
                self.tracks.len() - 1
            }
        };
        let track = &mut self.tracks[index];
        let step = if self.by_epoch { cx.counters().epoch } else { cx.steps_of(&track.part)? };
        let factor = self.schedule.factor(step, track.run(self.by_epoch, cx))?;
        if !(factor >= 0.0 && factor.is_finite()) {
            let unit = if self.by_epoch { "epoch" } else { "step" };
            return Err(Error::msg(format!(
                "the schedule gives {factor:?} at its {unit} {step}: expected a finite number of at least 0.0"
            )));
        }
        for (group, rate) in cx.optimizer()?.groups_mut().iter_mut().zip(&mut track.rates) {
            rate.follow(group.lr);
            rate.left = rate.base * factor;
            group.lr = rate.left;
        }
        Ok(())
    }

    /// Takes over what other hooks have made of the rates since the last step.
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

/// The rates; the schedule is the program's.
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
    fn what_it_knows_can_be_written_down() {
        let of = |group| (Some("encoder.*".to_owned()), group);
        let rates = vec![
            Rate { group: of(0), base: 0.1 + 0.2, left: 1.0 / 3.0 },
            Rate { group: of(1), base: 1e-300, left: 1e-300 },
        ];
        let track = Track { part: "generator".into(), rates, began: (7, 9) };
        let read: Track = serde_json::from_str(&serde_json::to_string(&track).unwrap()).unwrap();
        assert_eq!(read, track);
    }
}
