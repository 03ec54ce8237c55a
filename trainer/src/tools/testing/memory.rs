//! [`peak_memory`]: the memory that tensors take.

use crate::error::Result;
use crate::libtorch::MemoryCounter;

/// Calls a closure, and returns its result with the highest number of bytes of CPU tensors that
/// were allocated since the call began and not freed yet.
///
/// Use this to test how much memory a model or a hook takes. It counts the tensors of all threads,
/// so run such a test in a process of its own.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::testing::peak_memory;
///
/// let (sum, peak) = peak_memory(|| {
///     let ones = Tensor::ones([1000, 1000], (Kind::Float, Device::Cpu));
///     (ones * 2.0).sum(Kind::Float).double_value(&[])
/// })?;
/// assert_eq!(sum, 2e6);
/// assert!(peak >= 8_000_000); // two tensors of 4 MB
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error if the program has set another allocator of tensors than libtorch's.
pub fn peak_memory<R>(body: impl FnOnce() -> R) -> Result<(R, u64)> {
    let counter = MemoryCounter::start()?;
    let result = body();
    Ok((result, counter.peak()))
}
