//! Rolling back when the loss spikes.

use std::collections::VecDeque;

use super::watched_metric::log_once;
use super::{is_positive, refused, stages};
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::distributed::Op;
use crate::prelude::own::*;
use crate::values::float::exact;

/// Returns to an earlier state when the training loss spikes, and skips the batches since then, as
/// in the training of PaLM (Chowdhery et al., *PaLM: Scaling Language Modeling with Pathways*,
/// 2022, section 5.1).
///
/// Use this when the loss of a long run spikes. If you only need to keep NaN out of the weights,
/// use [`NanGuard`](super::NanGuard), which keeps no second copy of the state.
///
/// ```
/// use trainer::hooks::SpikeGuard;
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3))
///     .hook(SpikeGuard::new().window(200).keep_every(50))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// - **What a spike is**: a loss that is not finite, or that is above `mean + threshold · std`. The
///   mean and the standard deviation (with the divisor `n`) are computed from the losses of the
///   last `n` = [`window`](SpikeGuard::window) batches. Until there are that many losses, only a
///   loss that is not finite is a spike. The default [`threshold`](SpikeGuard::threshold) of 7
///   standard deviations is that of the spike score in OLMo 2 (OLMo Team, *2 OLMo 2 Furious*,
///   2025), which uses a window of 1,000. With several processes, the loss of a batch is the mean
///   over all processes.
/// - **What happens**: before the next batch, the run returns to the last kept state with
///   [`Cx::roll_back`]. The batches since then, including the one with the spike, are skipped:
///   [`batch_idx`](Counters::batch_idx) counts them, but other counters and learning-rate schedules
///   do not. A warning reports the roll-back, and `run.json` records it in `roll_backs`: "rolled
///   back from batch 812 to batch 800 of epoch 0, skipped 12 batches". The metric
///   `train/spike_guard/roll_backs` counts the roll-backs of an epoch.
/// - **Which state is kept**: the state at the start of each training epoch, and after every
///   [`keep_every`](SpikeGuard::keep_every) optimizer steps. It is kept in CPU memory and in
///   checkpoints, which are therefore about twice as large. A roll-back never goes back beyond the
///   start of the epoch.
/// - **How often**: at most [`limit`](SpikeGuard::limit) times in a fit. The next spike ends the
///   run with an error that lists all spikes.
/// - **What it costs**: reading the loss of each batch waits for the device.
///
/// A resumed run rolls back as the interrupted run would have done. The losses of skipped batches
/// are not part of the window.
#[derive(Debug)]
pub struct SpikeGuard {
    window: u64,
    threshold: f64,
    keep_every: u64,
    limit: u64,
    /// The losses of the last batches, oldest first.
    losses: VecDeque<f64>,
    /// The contents of `losses` when the state was kept.
    kept_losses: VecDeque<f64>,
    /// The number of optimizer steps when the state was kept.
    kept_at: u64,
    /// A description of each spike of this fit.
    spikes: Vec<String>,
    /// Whether the last spike is not logged yet.
    is_unlogged: bool,
}

impl SpikeGuard {
    /// Compares each loss with those of the last 100 batches, and keeps a state every 100 optimizer
    /// steps.
    #[must_use]
    pub fn new() -> Self {
        SpikeGuard {
            window: 100,
            threshold: 7.0,
            keep_every: 100,
            limit: 3,
            losses: VecDeque::new(),
            kept_losses: VecDeque::new(),
            kept_at: 0,
            spikes: Vec::new(),
            is_unlogged: false,
        }
    }

    /// Compares each loss with those of the last `batches` batches. `batches` must be at least 2.
    /// Defaults to 100.
    #[must_use]
    pub fn window(mut self, batches: u64) -> Self {
        self.window = batches;
        self
    }

    /// A loss is a spike if it exceeds the mean by more than this number of standard deviations.
    /// The number must be above 0. Defaults to 7.
    #[must_use]
    pub fn threshold(mut self, deviations: f64) -> Self {
        self.threshold = deviations;
        self
    }

    /// Keeps a state after every `n` optimizer steps. `n` must be at least 1. Defaults to 100.
    #[must_use]
    pub fn keep_every(mut self, n: u64) -> Self {
        self.keep_every = n;
        self
    }

    /// The maximum number of roll-backs in a fit, which must be at least 1. Defaults to 3.
    #[must_use]
    pub fn limit(mut self, roll_backs: u64) -> Self {
        self.limit = roll_backs;
        self
    }

    /// Returns a description of each spike of this fit.
    #[must_use]
    pub fn spikes(&self) -> &[String] {
        &self.spikes
    }

    /// Returns the reason why a loss is a spike, or `None` if it is not a spike.
    fn why_spike(&self, loss: f64) -> Option<String> {
        if !loss.is_finite() {
            return Some(format!("the loss is {loss}"));
        }
        if (self.losses.len() as u64) < self.window {
            return None;
        }
        let count = self.losses.len() as f64;
        let mean = self.losses.iter().sum::<f64>() / count;
        let variance = self.losses.iter().map(|own| (own - mean).powi(2)).sum::<f64>() / count;
        let limit = mean + self.threshold * variance.sqrt();
        (loss > limit).then(|| {
            format!(
                "the loss is {}, above {}, the mean of the last {} batches plus {} standard deviations",
                exact(loss),
                exact(limit),
                self.losses.len(),
                exact(self.threshold)
            )
        })
    }

    fn note_kept(&mut self, counters: Counters) {
        self.kept_at = counters.optimizer_steps;
        self.kept_losses.clone_from(&self.losses);
    }
}

impl Default for SpikeGuard {
    fn default() -> Self {
        SpikeGuard::new()
    }
}

/// Returns the mean loss of the current batch over all ranks; `None` if no rank has a loss.
fn loss_of(cx: &Cx<AfterStep>) -> Result<Option<f64>> {
    let own = cx.step_loss().map(|loss| loss.double_value(&[]));
    let world = cx.world();
    if world.size() == 1 {
        return Ok(own);
    }
    let weight = own.map_or(0.0, |_| cx.weight());
    let sums = Tensor::from_slice(&[own.unwrap_or(0.0) * weight, weight]);
    world.all_reduce("the loss that `SpikeGuard` checks", &sums, Op::Sum)?;
    let [loss, weight] = [0, 1].map(|nth| sums.double_value(&[nth]));
    Ok((weight > 0.0).then(|| loss / weight))
}

#[hook(in = stages::StepControl, single, state, settings, trial = false)]
impl SpikeGuard {
    /// Clears the losses and the spikes of an earlier fit.
    #[hook(only = train)]
    fn setup(&mut self, _: &Cx<Setup>) {
        self.losses.clear();
        self.spikes.clear();
        self.is_unlogged = false;
    }

    /// Keeps the state at the start of the epoch.
    fn before_train_epoch(&mut self, cx: &mut Cx<BeforeTrainEpoch>) {
        cx.keep_state();
        self.note_kept(cx.counters());
    }

    /// Checks the loss, and keeps the state after every [`keep_every`](SpikeGuard::keep_every)
    /// optimizer steps.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        if std::mem::take(&mut self.is_unlogged) {
            log_once(cx, "spike_guard/roll_backs");
        }
        let Some(loss) = loss_of(cx)? else { return Ok(()) };
        let counters = cx.counters();
        if let Some(why) = self.why_spike(loss) {
            // The batch is done, so its index is one less than the number of batches.
            self.spikes.push(format!(
                "batch {} of epoch {}: {why}",
                counters.batch_idx.saturating_sub(1),
                counters.epoch
            ));
            if self.spikes.len() as u64 > self.limit {
                let listed: String = self.spikes.iter().map(|spike| format!("\n- {spike}")).collect();
                return Err(Error::msg(format!(
                    "the loss spiked again after {} roll-backs, which is the limit: lower the learning rate, clip the gradients, or raise \
                     `.limit(…)`; the spikes:{listed}",
                    self.limit
                )));
            }
            self.losses.clone_from(&self.kept_losses);
            self.is_unlogged = true;
            cx.roll_back(why);
            return Ok(());
        }
        self.losses.push_back(loss);
        if self.losses.len() as u64 > self.window {
            self.losses.pop_front();
        }
        if counters.optimizer_steps >= self.kept_at.saturating_add(self.keep_every) {
            cx.keep_state();
            self.note_kept(counters);
        }
        Ok(())
    }
}

/// Saves the losses and the spikes. A roll-back does not restore this state. The settings come from
/// the program.
#[diagnostic::do_not_recommend]
impl State for SpikeGuard {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("losses", &self.losses)?;
        saved.set("kept_losses", &self.kept_losses)?;
        saved.set("kept_at", &self.kept_at)?;
        saved.set("spikes", &self.spikes)?;
        saved.set("is_unlogged", &self.is_unlogged)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.losses = saved.get("losses")?;
        self.kept_losses = saved.get("kept_losses")?;
        self.kept_at = saved.get("kept_at")?;
        self.spikes = saved.get("spikes")?;
        self.is_unlogged = saved.get("is_unlogged")?;
        Ok(())
    }

    fn rolls_back(&self) -> bool {
        false
    }
}

#[diagnostic::do_not_recommend]
impl Settings for SpikeGuard {
    fn settings(&self) -> SettingList {
        let SpikeGuard {
            window,
            threshold,
            keep_every,
            limit,
            losses: _,
            kept_losses: _,
            kept_at: _,
            spikes: _,
            is_unlogged: _,
        } = self;
        SettingList::new()
            .with("window", window)
            .with("threshold", threshold)
            .with("keep_every", keep_every)
            .with("limit", limit)
    }

    fn mistakes(&self) -> Vec<String> {
        let SpikeGuard { window, threshold, keep_every, limit, .. } = *self;
        let message =
            |setting: String, expected: &str| format!("`SpikeGuard` has `.{setting}`: expected {expected}");
        refused([
            (window < 2, message(format!("window({window})"), "at least 2 batches")),
            (
                !is_positive(threshold),
                message(format!("threshold({threshold:?})"), "a finite number above 0"),
            ),
            (keep_every == 0, message("keep_every(0)".to_owned(), "at least 1 optimizer step")),
            (limit == 0, message("limit(0)".to_owned(), "at least 1 roll-back")),
        ])
    }
}
