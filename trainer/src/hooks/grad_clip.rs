//! Gradients clipped, once for each optimizer step.

use super::ord;
use crate::prelude::*;

/// Clips the gradients before each optimizer step, after accumulation: what the builder's
/// [`clip_grad_norm`](crate::TrainerBuilder::clip_grad_norm) and [`clip_grad_value`](crate::TrainerBuilder::clip_grad_value) add.
///
/// A hook at `before_opt_step` with a lower `ord` sees the gradients as they were.
#[derive(Debug)]
pub struct GradClip(By);

#[derive(Debug)]
enum By {
    Norm(f64),
    Value(f64),
}

impl GradClip {
    pub(crate) fn norm(max_norm: f64) -> Self {
        GradClip(By::Norm(max_norm))
    }

    pub(crate) fn value(max_value: f64) -> Self {
        GradClip(By::Value(max_value))
    }
}

#[hook(ord = ord::GRAD_CLIP, single)]
impl GradClip {
    /// Clips the gradients.
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        match self.0 {
            By::Norm(max_norm) => cx.clip_grad_norm(max_norm).map(drop),
            By::Value(max_value) => cx.clip_grad_value(max_value),
        }
    }
}
