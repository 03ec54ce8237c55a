//! [`norms`]: the norms of many tensors at once.

use tch::Tensor;

use crate::error::Result;
use crate::libtorch;

/// Returns the L2 norm of each tensor, as a vector of shape `[tensors]` on the device of the first
/// tensor, without synchronizing with it.
///
/// On a GPU, the norms are computed by libtorch's foreach kernels, in a few calls for any number of
/// tensors, and are infinite if the squares of the elements exceed the range of the vector's dtype.
/// On the CPU, they are right for any number and size of elements.
/// The vector has dtype `f32`, or `f64` if any tensor has that dtype; the norms of half-precision
/// tensors are computed in `f32`. A NaN or infinite element makes the norm of its tensor NaN or
/// infinite. The norm of a sparse tensor is the norm of its stored values; on a GPU, adding up
/// duplicate indices synchronizes with the device.
///
/// ```
/// use trainer::prelude::*;
///
/// let tensors = [Tensor::from_slice(&[3.0_f32, 4.0]), Tensor::from_slice(&[-2.0_f32])];
/// assert_eq!(trainer::norms(&tensors)?, Tensor::from_slice(&[5.0_f32, 2.0]));
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error if a tensor is undefined or if libtorch fails.
pub fn norms<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<Tensor> {
    libtorch::norms(tensors)
}
