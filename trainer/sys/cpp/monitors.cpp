// Norms of tensors, for the monitors.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "guarded.h"
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

// Returns whether the norm of a tensor of this dtype is computed in float.
bool is_low_precision(at::ScalarType kind) { return kind == at::kHalf || kind == at::kBFloat16; }

}  // namespace

extern "C" {

// Writes the L2 norm of each tensor, as one vector on the device of the first tensor.
char* trainer_norms(at::Tensor** tensors, size_t count, at::Tensor** norms) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    // The kernels take tensors of one device and dtype at a time.
    std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, std::vector<size_t>> groups;
    std::vector<at::Tensor> values(count), found(count);
    for (size_t i = 0; i < count; i++) {
      values[i] = values_of(*tensors[i]);
      const auto kind = values[i].scalar_type();
      if (!at::isFloatingType(kind) && !at::isComplexType(kind)) values[i] = values[i].to(at::kFloat);
      groups[{values[i].device().type(), values[i].device().index(), values[i].scalar_type()}].push_back(i);
    }
    for (auto& [key, indices] : groups) {
      std::vector<at::Tensor> list;
      list.reserve(indices.size());
      for (auto i : indices) list.push_back(values[i]);
      std::optional<at::ScalarType> kind;
      if (is_low_precision(std::get<2>(key))) kind = at::kFloat;
      auto norms_of_list = at::_foreach_norm(list, 2, kind);
      for (size_t j = 0; j < indices.size(); j++) found[indices[j]] = norms_of_list[j];
    }
    if (count == 0) {
      *norms = new at::Tensor(at::zeros({0}));
      return;
    }
    auto kind = at::kFloat;
    for (auto& norm : found) kind = at::promote_types(kind, at::toRealValueType(norm.scalar_type()));
    for (auto& norm : found) norm = norm.to(at::TensorOptions().device(found[0].device()).dtype(kind)).reshape({});
    *norms = new at::Tensor(at::stack(found));
  });
}
}
