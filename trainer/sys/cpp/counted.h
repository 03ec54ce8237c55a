// The version counters of tensors.

#pragma once

#include <ATen/ATen.h>

namespace {

// Counts a change of these tensors. Autograd compares the counters, to report a backward pass that
// needs a tensor as it was before a change. Call it after everything that writes into tensors
// without counting: the fused kernels, `_amp_foreach_non_finite_check_and_unscale_`, the
// collectives, and writes through a pointer.
void count_change(at::TensorList tensors) {
  for (const auto& tensor : tensors)
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace
