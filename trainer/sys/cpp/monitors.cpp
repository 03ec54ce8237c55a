// Norms of tensors, for the monitors.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "guarded.h"
#include "norms.h"
#include "readable.h"

namespace {

// Returns the elements that the norm of a tensor is computed from: all of a dense tensor, and the
// stored ones of a sparse tensor.
at::Tensor values_of(const at::Tensor& tensor) {
  if (const char* why = unreadable(tensor)) TORCH_CHECK(false, "a tensor whose norm is computed ", why);
  if (tensor.layout() == at::kSparse) return tensor.coalesce()._values();
  if (tensor.layout() != at::kStrided) return tensor.values();
  return tensor;
}

}  // namespace

extern "C" {

// Writes the L2 norm of each tensor, as one vector on the device of the first tensor.
char* trainer_norms(at::Tensor** tensors, size_t count, at::Tensor** norms) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::vector<at::Tensor> values(count);
    for (size_t i = 0; i < count; i++) {
      values[i] = values_of(*tensors[i]);
      const auto kind = values[i].scalar_type();
      if (!at::isFloatingType(kind) && !at::isComplexType(kind)) values[i] = values[i].to(at::kFloat);
    }
    *norms = new at::Tensor(norms_of(values));
  });
}
}
