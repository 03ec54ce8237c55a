//! What batch normalizations in training mode do with their running statistics.

use std::marker::PhantomData;

use trainer_sys::{trainer_batch_norm_enter, trainer_batch_norm_exit};

/// What a batch normalization in training mode does. Outside of a [`StatisticsGuard`], one whose
/// input has a single value per channel fails with an error of libtorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statistics {
    /// Updates its running statistics, unless its input has one value per channel, which the guard
    /// then returns.
    Updated = 1,
    /// Leaves its running statistics as they are, because the rows of the batch do not count.
    Kept = 2,
}

/// The input of a batch normalization that has one value per channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SingleValue {
    /// The [`identity`](super::identity) of the running mean; 0 without running statistics.
    pub(crate) running_mean: usize,
    /// The shape of the input, of which at most the first 6 sizes are known.
    pub(crate) shape: Vec<i64>,
}

/// Sets what batch normalizations on this thread do, and restores the previous setting when
/// dropped. Guards must be dropped in the reverse order of their creation.
pub(crate) struct StatisticsGuard {
    before: i32,
    /// Makes the guard neither `Send` nor `Sync`, because the setting belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl StatisticsGuard {
    #[inline]
    pub(crate) fn begin(what: Statistics) -> Self {
        // SAFETY: the call only sets a variable of this thread.
        let before = unsafe { trainer_batch_norm_enter(what as i32) };
        StatisticsGuard { before, not_send: PhantomData }
    }

    /// Returns the first input with a single value per channel, if there was one.
    #[inline]
    pub(crate) fn end(self) -> Option<SingleValue> {
        let before = self.before;
        std::mem::forget(self);
        exit(before)
    }
}

impl Drop for StatisticsGuard {
    fn drop(&mut self) {
        exit(self.before);
    }
}

#[inline]
fn exit(before: i32) -> Option<SingleValue> {
    let mut single = trainer_sys::SingleValue { running_mean: std::ptr::null(), dims: 0, sizes: [0; 6] };
    // SAFETY: the shim sets variables of this thread, which a guard cannot leave, and writes one
    // value.
    unsafe { trainer_batch_norm_exit(before, &raw mut single) }.then(|| SingleValue {
        running_mean: single.running_mean.addr(),
        shape: single.sizes[..single.dims].to_vec(),
    })
}
