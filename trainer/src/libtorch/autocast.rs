//! [`Autocast`]: running operations in a lower precision where that is safe.

use std::marker::PhantomData;

use tch::{Device, Kind};
use trainer_sys::{AutocastMode, trainer_autocast_enter, trainer_autocast_exit};

use crate::error::{Error, Result};

/// Sets the autocast mode of this thread until it is dropped: which operations compute in `bf16` or
/// `fp16`.
///
/// [`Amp`](crate::hooks::Amp) enables autocast for the task. Use this type for everything else: for
/// a hook that computes with a model of its own, such as a teacher, or for a part of a model that
/// needs `f32`. The inputs of that part may be `bf16` or `fp16`, so convert them:
///
/// ```
/// use trainer::Autocast;
/// use trainer::prelude::*;
///
/// fn head(features: &Tensor, head: &nn::Linear) -> Tensor {
///     let _f32 = Autocast::disable();
///     features.to_kind(Kind::Float).apply(head)
/// }
///
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let linear = nn::linear(vs.root(), 4, 2, Default::default());
/// let _bf16 = Autocast::enable(Device::Cpu, Kind::BFloat16)?;
/// let features = Tensor::randn([3, 4], (Kind::Float, Device::Cpu)).apply(&linear).matmul(&linear.ws);
/// assert_eq!(features.kind(), Kind::BFloat16);
/// assert_eq!(head(&features, &linear).kind(), Kind::Float);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// Values must be dropped in the reverse order of their creation. A panic restores the mode, too.
#[derive(Debug)]
#[must_use = "the mode ends when this is dropped"]
pub struct Autocast {
    /// The modes of the CPU and of CUDA devices before, if they were changed.
    before: [Option<AutocastMode>; 2],
    /// Makes the value neither `Send` nor `Sync`, because the mode belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl Autocast {
    /// Enables autocast on the CPU or on CUDA devices, whichever `device` is, in `Kind::BFloat16`
    /// or `Kind::Half`.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch has no autocast for the device or the dtype.
    pub fn enable(device: Device, kind: Kind) -> Result<Self> {
        let is_half = match kind {
            Kind::Half => true,
            Kind::BFloat16 => false,
            _ => {
                return Err(Error::usage(format!(
                    "`Autocast::enable` in {kind:?}: expected `Kind::BFloat16` or `Kind::Half`"
                )));
            }
        };
        let before = match device {
            Device::Cpu => [Some(enter(false, true, is_half)), None],
            Device::Cuda(_) => [None, Some(enter(true, true, is_half))],
            _ => {
                return Err(Error::usage(format!(
                    "`Autocast::enable` on {device:?}: expected the CPU or a CUDA device"
                )));
            }
        };
        Ok(Autocast { before, not_send: PhantomData })
    }

    /// Disables autocast on all devices.
    pub fn disable() -> Self {
        let before = [Some(enter(false, false, false)), Some(enter(true, false, false))];
        Autocast { before, not_send: PhantomData }
    }
}

fn enter(cuda: bool, enabled: bool, half: bool) -> AutocastMode {
    // SAFETY: the call only sets flags of this thread.
    unsafe { trainer_autocast_enter(cuda, enabled, half) }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        for before in self.before.into_iter().rev().flatten() {
            // SAFETY: `trainer_autocast_enter` returned this mode on this thread, which the value
            // cannot leave.
            unsafe { trainer_autocast_exit(before) };
        }
    }
}
