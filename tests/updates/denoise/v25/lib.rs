//! Hooks that make training less noisy.

use trainer::checkpoint::{SettingList, Settings};
use trainer::prelude::*;

/// Softens the gradients of biases.
#[hook(ord = 10)]
fn soften(cx: &mut Cx<BeforeOptStep>) {
    let _guard = tch::no_grad_guard();
    for (name, mut grad) in cx.grads() {
        if name.ends_with("bias") {
            let _ = grad.g_mul_scalar_(0.5);
        }
    }
}

/// Clamps all gradients.
#[hook(ord = 20)]
fn clamp(cx: &mut Cx<BeforeOptStep>) {
    let _guard = tch::no_grad_guard();
    for (_, mut grad) in cx.grads() {
        let _ = grad.clamp_(-0.02, 0.02);
    }
}

/// Logs the norm of the gradients.
#[hook(every = 5)]
fn watch(cx: &Cx<AfterBackward>) {
    let norms: Vec<Tensor> = cx.grads().map(|(_, grad)| grad.norm()).collect();
    cx.log("noise", Tensor::stack(&norms, 0).norm());
}

/// Counts the samples whose loss is high.
#[hook]
fn count(cx: &Cx<AfterLoss>) {
    cx.log("high", cx.loss().gt(2.0).to_kind(Kind::Float));
}

/// Lowers the learning rate after each step.
pub struct Decay {
    rate: f64,
}

impl Default for Decay {
    fn default() -> Self {
        Decay { rate: 0.99 }
    }
}

impl Settings for Decay {
    fn settings(&self) -> SettingList {
        let Decay { rate } = self;
        SettingList::new().with("rate", rate)
    }
}

#[hook(auto, settings)]
impl Decay {
    fn after_opt_step(&mut self, cx: &mut Cx<AfterOptStep>) -> Result<()> {
        let groups = cx.optimizer_mut()?.groups_mut().iter_mut();
        groups.for_each(|group| group.lr *= self.rate);
        Ok(())
    }
}
