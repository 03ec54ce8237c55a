//! Automatic mixed precision.

use super::{is_positive, refused, stages};
use crate::Autocast;
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::prelude::own::*;

/// Computes predictions and losses in mixed precision: matrix products and convolutions in bf16 or
/// fp16, and operations that need the range or precision of `f32`, such as sums, norms and losses,
/// in `f32`. libtorch's autocast selects the operations, on the CPU and on CUDA devices.
///
/// Use [`bf16`](Amp::bf16) when the device supports it, because it needs no gradient scaler. Use
/// [`fp16`](Amp::fp16) when the device does not support bf16, or when the model needs the higher
/// precision of fp16.
///
/// Parameters, gradients and the optimizer's state keep their dtype, usually `f32`. Predictions may
/// be bf16 or fp16.
///
/// ```no_run
/// # use trainer::hooks::Amp;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let trainer = Trainer::builder(task).optimizer(AdamW::new(1e-3)).hook(Amp::bf16()).build()?;
/// # Ok(())
/// # }
/// ```
///
/// # fp16
///
/// The range of fp16 is small: gradients below 6e-8 become 0. [`fp16`](Amp::fp16) therefore
/// multiplies the loss by a scale, and divides the gradients by it before the optimizer step,
/// following the rules of `torch.amp.GradScaler` (Micikevicius et al., *Mixed Precision Training*,
/// 2018). If a gradient is not finite, the optimizer step is skipped, the gradients of its
/// accumulation window are dropped, and the scale is halved. After 2000 successive steps with
/// finite gradients, the scale is doubled. A skipped step is not counted and does not advance
/// learning-rate schedules.
///
/// The gradients are divided before [`NanGuard`](super::NanGuard),
/// [`ClipGradNorm`](super::ClipGradNorm) and any other hook around `opt_step` that comes after
/// `Amp`, so these see the unscaled gradients. Hooks at `before_opt_step` see the scaled gradients;
/// [`scale`](Amp::scale) returns the factor. To find out whether the gradients are finite, the hook
/// waits for the device once per optimizer step.
///
/// The scale is part of checkpoints.
///
/// # Losses on a GPU
///
/// On a CUDA device, autocast rejects `binary_cross_entropy`, although it accepts it on the CPU:
/// use `binary_cross_entropy_with_logits`, or compute the loss while [`Autocast::disable`] holds.
#[doc(alias("precision", "MixedPrecision", "autocast", "GradScaler", "fp16", "bf16"))]
#[derive(Debug)]
pub struct Amp {
    /// `BFloat16` or `Half`.
    kind: Kind,
    /// The loss scaler; `None` for bf16.
    scaler: Option<Scaler>,
    /// Whether an optimizer step of the current batch had gradients that were not finite; `None`
    /// before the first step of the batch.
    overflowed: Option<bool>,
}

/// The factor by which losses are multiplied, and the state that adapts it.
#[derive(Debug)]
struct Scaler {
    scale: f64,
    growth_interval: u64,
    /// The number of successive batches with an optimizer step and finite gradients since the scale
    /// last changed.
    growth_tracker: u64,
}

/// The initial scale. This and the next three constants are the defaults of
/// `torch.amp.GradScaler`.
const INIT_SCALE: f64 = 65536.0;
const GROWTH_FACTOR: f64 = 2.0;
const BACKOFF_FACTOR: f64 = 0.5;
const GROWTH_INTERVAL: u64 = 2000;

/// The smallest scale. If gradients overflow even with this scale, the run ends with an error,
/// because the loss or the model itself produces values that are not finite.
const MIN_SCALE: f64 = 1.0 / 65536.0;

impl Amp {
    /// Computes in bf16, which has the range of `f32` and a precision of 8 bits. Needs no scaler.
    #[must_use]
    pub fn bf16() -> Self {
        Amp { kind: Kind::BFloat16, scaler: None, overflowed: None }
    }

    /// Computes in fp16, which has a precision of 11 bits and a small range. Uses a gradient
    /// scaler.
    #[must_use]
    pub fn fp16() -> Self {
        let scaler = Scaler { scale: INIT_SCALE, growth_interval: GROWTH_INTERVAL, growth_tracker: 0 };
        Amp { kind: Kind::Half, scaler: Some(scaler), overflowed: None }
    }

    /// The initial scale of the loss, above 0. Defaults to 65536. Has no effect on bf16.
    #[must_use]
    pub fn init_scale(mut self, scale: f64) -> Self {
        if let Some(scaler) = &mut self.scaler {
            scaler.scale = scale;
        }
        self
    }

    /// Doubles the scale after this many successive batches with an optimizer step and finite
    /// gradients. Must be at least 1. Defaults to 2000. Has no effect on bf16.
    #[must_use]
    pub fn growth_interval(mut self, batches: u64) -> Self {
        if let Some(scaler) = &mut self.scaler {
            scaler.growth_interval = batches;
        }
        self
    }

    /// Returns the current scale of the loss, which is always 1 for bf16.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scaler.as_ref().map_or(1.0, |scaler| scaler.scale)
    }

    fn enabled<P>(&self, cx: &Cx<P>) -> Result<Autocast> {
        Autocast::enable(cx.device(), self.kind)
    }
}

/// Rescales gradients that a hook kept for a later step, so that they match the new scale.
fn rescale_kept<P>(cx: &mut Cx<P>, factor: f64) {
    let _no_grad = tch::no_grad_guard();
    for var in cx.vars().parameters() {
        let mut grad = var.tensor.grad();
        if grad.defined() {
            grad *= factor;
        }
    }
}

#[hook(in = stages::StepControl, ord = -1, single, state, settings)]
impl Amp {
    /// Returns an error if the device does not support autocast, a parameter is bf16 or fp16, or a
    /// setting is invalid.
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        self.overflowed = None;
        if !matches!(cx.device(), Device::Cpu | Device::Cuda(_)) {
            return Err(Error::msg(format!(
                "`Amp` supports the CPU and CUDA devices, but the task is on {:?}: remove the hook",
                cx.device()
            )));
        }
        let vars = cx.vars();
        let low = vars.parameters().find(|var| matches!(var.tensor.kind(), Kind::Half | Kind::BFloat16));
        if let Some(var) = low {
            return Err(Error::msg(format!(
                "`Amp` needs `f32` or `f64` parameters, but `{}` has dtype {:?}: keep parameters in `Kind::Float`; `Amp` \
                 converts them where that is safe",
                var.name,
                var.tensor.kind()
            )));
        }
        Ok(())
    }

    /// Computes the prediction under autocast.
    fn pred(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        let _autocast = self.enabled(cx)?;
        next.run(cx)
    }

    /// Computes the loss under autocast.
    fn loss(&mut self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        let _autocast = self.enabled(cx)?;
        next.run(cx)
    }

    /// Lets a hook compute with the model under autocast.
    fn eval(&mut self, cx: &mut Cx<Eval>, next: Next<Eval>) -> Result<Done> {
        let _autocast = self.enabled(cx)?;
        next.run(cx)
    }

    /// Scales the loss for fp16.
    fn before_backward(&mut self, cx: &mut Cx<BeforeBackward>) {
        if let Some(scaler) = &self.scaler {
            cx.scale_loss(scaler.scale);
        }
    }

    /// For fp16, divides the gradients by the scale. If one of the gradients is not finite, drops
    /// all of them and skips the step instead.
    fn step(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        let Some(scaler) = &self.scaler else { return next.run(cx) };
        let scale = scaler.scale;
        if !cx.unscale_grads(scale.recip())? {
            self.overflowed = Some(true);
            cx.drop_grads()?;
            return Ok(next.skip());
        }
        self.overflowed.get_or_insert(false);
        let part = cx.part().to_owned();
        let steps = cx.steps_of(&part)?;
        let done = next.run(cx)?;
        if cx.steps_of(&part)? == steps {
            cx.unscale_grads(scale)?; // a hook kept the gradients for a later step
        }
        Ok(done)
    }

    /// Updates the scale after a batch in which `opt_step` ran. Reduces the scale if the gradients
    /// were not finite, and raises it after `growth_interval` successive batches in which
    /// `opt_step` ran with finite gradients. Returns an error if the gradients are not finite even
    /// with the smallest scale.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        let (Some(scaler), Some(overflowed)) = (&mut self.scaler, self.overflowed.take()) else {
            return Ok(());
        };
        if overflowed {
            scaler.scale *= BACKOFF_FACTOR;
            scaler.growth_tracker = 0;
            rescale_kept(cx, BACKOFF_FACTOR);
            if scaler.scale < MIN_SCALE {
                return Err(Error::msg(format!(
                    "the gradients of batch {} are not finite even with a loss scale of {:e}: the loss or the model \
                     produces NaN or infinite values; `detect_anomaly(true)` finds the operation",
                    cx.counters().batch_idx,
                    scaler.scale / BACKOFF_FACTOR
                )));
            }
            return Ok(());
        }
        scaler.growth_tracker += 1;
        if scaler.growth_tracker == scaler.growth_interval {
            scaler.growth_tracker = 0;
            // Like PyTorch's scaler, whose scale is an f32.
            if ((scaler.scale * GROWTH_FACTOR) as f32).is_finite() {
                scaler.scale *= GROWTH_FACTOR;
                rescale_kept(cx, GROWTH_FACTOR);
            }
        }
        Ok(())
    }
}

/// Saves the scale and the growth tracker, or nothing for bf16. The settings come from the program.
#[diagnostic::do_not_recommend]
impl State for Amp {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        if let Some(scaler) = &self.scaler {
            saved.set("scale", &scaler.scale)?;
            saved.set("growth_tracker", &scaler.growth_tracker)?;
        }
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        if let Some(scaler) = &mut self.scaler
            && saved.contains("scale")
        {
            scaler.scale = saved.get("scale")?;
            scaler.growth_tracker = saved.get("growth_tracker")?;
        }
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Amp {
    fn settings(&self) -> SettingList {
        let Amp { kind, scaler, overflowed: _ } = self;
        let precision = if *kind == Kind::Half { "Fp16" } else { "Bf16" };
        let list = SettingList::new().with("precision", format_args!("{precision}"));
        let Some(Scaler { scale, growth_interval, growth_tracker: _ }) = scaler else { return list };
        list.with("init_scale", scale).with("growth_interval", growth_interval)
    }

    fn mistakes(&self) -> Vec<String> {
        let Some(Scaler { scale, growth_interval, .. }) = self.scaler else { return Vec::new() };
        refused([
            (!is_positive(scale), format!("`.init_scale({scale})`: expected a finite number above 0")),
            (growth_interval == 0, "`.growth_interval(0)`: expected at least 1".to_owned()),
        ])
    }
}
