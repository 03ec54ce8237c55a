//! Gradient clipping.

use super::ord;
use crate::TrainerBuilder;
use crate::dispatch::HookSelection;
use crate::prelude::*;
use crate::settings::Settings;

/// Clips the gradients of each optimizer step, after accumulation. The builder's
/// [`clip_grad_norm`](crate::TrainerBuilder::clip_grad_norm) and
/// [`clip_grad_value`](crate::TrainerBuilder::clip_grad_value) add this hook.
///
/// It runs inside other hooks around `opt_step`, unless they have a higher `ord`. Hooks at
/// `before_opt_step`, and those around `opt_step` with a lower `ord`, see the unclipped gradients,
/// and gradients that such a hook keeps for a later step are not clipped. A hook that
/// [replaces](crate::Next::replace) `opt_step` needs a higher `ord` than
/// [`GRAD_CLIP`](crate::ord::GRAD_CLIP): otherwise its replacement would omit the clipping, which
/// is an error.
#[derive(Debug)]
pub struct GradClip {
    by: By,
    /// Whether the gradients of the current optimizer step were clipped.
    has_clipped: bool,
}

#[derive(Debug)]
enum By {
    Norm(f64),
    Value(f64),
}

impl<T: Task> TrainerBuilder<T> {
    /// Clips the global norm of the gradients to `max_norm` before each optimizer step, as
    /// [`Cx::clip_grad_norm`](crate::Cx::clip_grad_norm) does. Adds the hook [`GradClip`] around
    /// `opt_step`.
    #[doc(alias = "gradient_clip_val")]
    pub fn clip_grad_norm(mut self, max_norm: f64) -> Self {
        self.settings.clip_norm = Some(max_norm);
        self.grad_clip = Some(add);
        self
    }

    /// Clips each element of the gradients to the range from `-max_value` to `max_value` before
    /// each optimizer step, as [`Cx::clip_grad_value`](crate::Cx::clip_grad_value) does. Adds the
    /// hook [`GradClip`] around `opt_step`.
    pub fn clip_grad_value(mut self, max_value: f64) -> Self {
        self.settings.clip_value = Some(max_value);
        self.grad_clip = Some(add);
        self
    }
}

/// Adds the hook that the settings describe. Called by `build`, so that a later call of a setting
/// replaces an earlier one.
fn add(settings: &Settings, hooks: &mut HookSelection) {
    let by = settings.clip_norm.map(By::Norm).or(settings.clip_value.map(By::Value));
    if let Some(by) = by {
        hooks.add(GradClip { by, has_clipped: false });
    }
}

#[hook(ord = ord::GRAD_CLIP, single)]
impl GradClip {
    /// Clips the gradients.
    #[hook(around = opt_step)]
    fn clip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
        match self.by {
            By::Norm(max_norm) => cx.clip_grad_norm(max_norm).map(drop)?,
            By::Value(max_value) => cx.clip_grad_value(max_value)?,
        }
        self.has_clipped = true;
        next.run(cx)
    }

    /// Returns an error if a hook replaced the optimizer step, and the clipping with it.
    fn after_opt_step(&mut self, _: &mut Cx<AfterOptStep>) -> Result<()> {
        if std::mem::take(&mut self.has_clipped) {
            return Ok(());
        }
        Err(Error::msg(
            "a hook replaced `opt_step` without clipping the gradients: give that hook \
             `ord = trainer::ord::GRAD_CLIP + 1`, so that it runs inside `GradClip`",
        ))
    }
}
