//! Lookahead.

use super::super::{refused, stages};
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::prelude::own::*;
use crate::wide;

/// Keeps slow weights in addition to those that the optimizer updates (Zhang et al., *Lookahead
/// Optimizer: k steps forward, 1 step back*, 2019). After every `k` optimizer steps, the slow
/// weights move toward the optimizer's weights, to `slow + alpha * (weight - slow)`, and then
/// replace the optimizer's weights.
///
/// Use this when training itself should continue from averaged weights. To evaluate averaged
/// weights without affecting training, use [`Ema`](crate::hooks::Ema).
///
/// The slow weights start as a copy of the weights at the beginning of each fit, and are part of
/// checkpoints. Between two updates, validation uses the optimizer's weights.
///
/// ```
/// use trainer::hooks::Lookahead;
///
/// let lookahead = Lookahead::new(5, 0.5);
/// ```
#[derive(Debug)]
pub struct Lookahead {
    k: u64,
    alpha: f64,
    /// The slow weights, by the names of the parameters.
    slow: Vec<(String, Tensor)>,
    /// The number of optimizer steps at the last update, or when the fit began.
    steps: u64,
}

impl Lookahead {
    /// Updates the slow weights with the step size `alpha` after every `k` optimizer steps. `k` is
    /// at least 1, and `alpha` above 0 and at most 1.
    #[must_use]
    pub fn new(k: u64, alpha: f64) -> Self {
        Lookahead { k, alpha, slow: Vec::new(), steps: 0 }
    }
}

#[hook(in = stages::Averaging, ord = -1, only = train, single, state, settings)]
impl Lookahead {
    /// Copies the weights, unless the slow weights come from a checkpoint.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) {
        if !cx.is_resuming() || self.slow.is_empty() {
            let weights = cx.vars();
            let copy = weights.parameters().map(|var| (var.name.clone(), wide(&var.tensor.detach()).copy()));
            self.slow = copy.collect();
            self.steps = cx.counters().optimizer_steps;
        }
    }

    /// Updates the slow weights after every `k` optimizer steps.
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        let steps = cx.counters().optimizer_steps;
        if steps - self.steps < self.k {
            return Ok(());
        }
        self.steps = steps;
        let _no_grad = tch::no_grad_guard();
        let vars = cx.vars();
        for (name, slow) in &mut self.slow {
            let mut weight = vars.get(name)?.shallow_clone();
            let _ = slow.f_lerp_(&wide(&weight), self.alpha)?;
            weight.f_copy_(slow)?;
        }
        Ok(())
    }

    /// Moves the loaded slow weights to the task's device.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) {
        for (_, slow) in &mut self.slow {
            *slow = slow.to_device(cx.device());
        }
    }
}

/// Saves the slow weights, and the number of optimizer steps at their last update. The settings
/// come from the program.
#[diagnostic::do_not_recommend]
impl State for Lookahead {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("steps", &self.steps)?;
        self.slow.iter().try_for_each(|(name, slow)| saved.set_tensor(name, slow))?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.steps = saved.get("steps")?;
        self.slow = saved.tensors().map(|(name, slow)| (name.to_owned(), wide(slow).copy())).collect();
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Lookahead {
    fn settings(&self) -> SettingList {
        let Lookahead { k, alpha, slow: _, steps: _ } = self;
        SettingList::new().with("k", k).with("alpha", alpha)
    }

    fn mistakes(&self) -> Vec<String> {
        let Lookahead { k, alpha, .. } = *self;
        let message = format!(
            "`Lookahead::new({k}, {alpha:?})`: expected at least 1 step, and an alpha above 0.0 and at most 1.0"
        );
        refused([(k == 0 || !(alpha > 0.0 && alpha <= 1.0), message)])
    }
}
