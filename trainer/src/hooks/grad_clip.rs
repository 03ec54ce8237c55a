//! Gradient clipping.

use super::{is_positive, refused, stages};
use crate::TrainerBuilder;
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::own::*;

/// Clips the global norm of the gradients of each optimizer step, after accumulation. The builder's
/// [`clip_grad_norm`](crate::TrainerBuilder::clip_grad_norm) adds this hook.
///
/// Use this when the gradients of some steps are far larger than those of others, and clipping
/// should not change the direction of the gradient.
///
/// It runs in the stage [`Clipping`](crate::stages::Clipping), inside other hooks around
/// `opt_step`, including [`ClipGradValue`]. Hooks at `before_opt_step` and other hooks around
/// `opt_step` see the unclipped gradients. If such a hook keeps gradients for a later step, these
/// are not clipped. A hook that [replaces](crate::Next::replace) `opt_step` needs
/// `after = trainer::stages::Clipping`. Otherwise, it would bypass the clipping, which is an error.
///
/// ```no_run
/// use trainer::hooks::ClipGradNorm;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let builder = Trainer::builder(task).optimizer(AdamW::new(1e-3));
/// let trainer = builder.hook(ClipGradNorm::new(1.0)).build()?; // or `.clip_grad_norm(1.0)`
/// # Ok(())
/// # }
/// ```
#[doc(alias("GradientClipping", "GradientClip", "clip_grad_norm_", "max_grad_norm"))]
#[derive(Debug)]
pub struct ClipGradNorm {
    max_norm: f64,
    /// Whether the gradients of the current optimizer step were clipped.
    has_clipped: bool,
}

/// Clips each element of the gradients of each optimizer step, after accumulation. The builder's
/// [`clip_grad_value`](crate::TrainerBuilder::clip_grad_value) adds this hook.
///
/// Use this when individual elements of the gradients are far larger than the others. Unlike
/// [`ClipGradNorm`], it changes the direction of the gradient.
///
/// It clips before [`ClipGradNorm`] does, in the same stage.
///
/// ```no_run
/// use trainer::hooks::ClipGradValue;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let builder = Trainer::builder(task).optimizer(AdamW::new(1e-3));
/// let trainer = builder.hook(ClipGradValue::new(0.5)).build()?; // or `.clip_grad_value(0.5)`
/// # Ok(())
/// # }
/// ```
#[doc(alias("GradientClipping", "clip_grad_value_", "clipvalue"))]
#[derive(Debug)]
pub struct ClipGradValue {
    max_value: f64,
    /// Whether the gradients of the current optimizer step were clipped.
    has_clipped: bool,
}

/// # Gradient clipping
impl<T: Task> TrainerBuilder<T> {
    /// Clips the global norm of the gradients to `max_norm` before each optimizer step, as
    /// [`Cx::clip_grad_norm`](crate::Cx::clip_grad_norm) does. Adds the hook [`ClipGradNorm`]
    /// around `opt_step`: name it in the order constraints of your own hooks, or add it to a
    /// [`HookSet`](crate::HookSet). To clip in a hook, call the method of `Cx`.
    ///
    /// With [`clip_grad_value`](TrainerBuilder::clip_grad_value), the elements are clipped first,
    /// so that one large element does not scale down all others. Both limits then hold.
    #[doc(alias = "gradient_clip_val")]
    pub fn clip_grad_norm(self, max_norm: f64) -> Self {
        self.hook(ClipGradNorm::new(max_norm))
    }

    /// Clips each element of the gradients to the range from `-max_value` to `max_value` before
    /// each optimizer step, as [`Cx::clip_grad_value`](crate::Cx::clip_grad_value) does. Adds the
    /// hook [`ClipGradValue`] around `opt_step`, with the same choice.
    ///
    /// With [`clip_grad_norm`](TrainerBuilder::clip_grad_norm), the elements are clipped before the
    /// global norm is clipped.
    pub fn clip_grad_value(self, max_value: f64) -> Self {
        self.hook(ClipGradValue::new(max_value))
    }
}

/// Returns an error if a hook replaced the optimizer step and thereby bypassed the clipping.
fn check_clipped(has_clipped: &mut bool, hook: &str) -> Result<()> {
    if std::mem::take(has_clipped) {
        return Ok(());
    }
    Err(Error::msg(format!(
        "a hook replaced `opt_step` without clipping the gradients: give that hook \
         `after = trainer::stages::Clipping`, so that it runs inside `{hook}`"
    )))
}

impl ClipGradNorm {
    /// Clips the global norm to `max_norm`, which must be finite and above 0.
    #[must_use]
    pub fn new(max_norm: f64) -> Self {
        ClipGradNorm { max_norm, has_clipped: false }
    }
}

impl ClipGradValue {
    /// Clips each element to the range from `-max_value` to `max_value`, which must be finite and
    /// above 0.
    #[must_use]
    pub fn new(max_value: f64) -> Self {
        ClipGradValue { max_value, has_clipped: false }
    }
}

/// Returns an error unless a limit is finite and above 0.
fn limit_mistakes(setting: &str, limit: f64) -> Vec<String> {
    refused([(!is_positive(limit), format!("`{setting}` is {limit:?}: expected a finite number above 0"))])
}

#[hook(in = stages::Clipping, single, settings, trial)]
impl ClipGradNorm {
    /// Clips the norm of the gradients.
    fn clip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        cx.clip_grad_norm(self.max_norm).map(drop)?;
        self.has_clipped = true;
        next.run(cx)
    }

    /// Returns an error if a hook replaced the optimizer step and thereby bypassed the clipping.
    fn after_opt_step(&mut self, _: &Cx<AfterOptStep>) -> Result<()> {
        check_clipped(&mut self.has_clipped, "ClipGradNorm")
    }
}

#[hook(in = stages::Clipping, ord = -1, single, settings, trial)]
impl ClipGradValue {
    /// Clips the elements of the gradients.
    fn clip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        cx.clip_grad_value(self.max_value)?;
        self.has_clipped = true;
        next.run(cx)
    }

    /// Returns an error if a hook replaced the optimizer step and thereby bypassed the clipping.
    fn after_opt_step(&mut self, _: &Cx<AfterOptStep>) -> Result<()> {
        check_clipped(&mut self.has_clipped, "ClipGradValue")
    }
}

#[diagnostic::do_not_recommend]
impl Settings for ClipGradNorm {
    fn settings(&self) -> SettingList {
        let ClipGradNorm { max_norm, has_clipped: _ } = self;
        SettingList::new().with("max_norm", max_norm)
    }

    fn mistakes(&self) -> Vec<String> {
        limit_mistakes("max_norm", self.max_norm)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for ClipGradValue {
    fn settings(&self) -> SettingList {
        let ClipGradValue { max_value, has_clipped: _ } = self;
        SettingList::new().with("max_value", max_value)
    }

    fn mistakes(&self) -> Vec<String> {
        limit_mistakes("max_value", self.max_value)
    }
}
