// L2 norms, which neither the dtype of the elements nor their number or magnitude makes imprecise.

#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "readable.h"

namespace {

// The number of elements whose squares libtorch's kernel for the CPU adds up. It does so in 16 partial
// sums, so that the norm of 16 million equal elements is 1 % too small.
constexpr int64_t kSummed = 1 << 18;

// Returns the dtype that the norm of a tensor of this dtype is computed in: float for half precision.
at::ScalarType norm_kind(at::ScalarType kind) {
  return kind == at::kHalf || kind == at::kBFloat16 ? at::kFloat : kind;
}

at::Tensor norm_in_parts(const at::Tensor& tensor) {
  const auto kind = norm_kind(tensor.scalar_type());
  if (tensor.numel() <= kSummed) return at::linalg_vector_norm(tensor.to(kind), 2);
  // Not a copy, in whichever order the elements are in memory.
  const bool is_block = has_values(tensor) && tensor.is_non_overlapping_and_dense();
  const auto flat = is_block ? tensor.as_strided({tensor.numel()}, {1}) : tensor.reshape({-1});
  std::vector<at::Tensor> norms;
  for (const auto& part : flat.split(kSummed)) norms.push_back(at::linalg_vector_norm(part.to(kind), 2));
  return at::linalg_vector_norm(at::stack(norms), 2);
}

// Returns the norm of a tensor on the CPU, as a scalar. It is right even if the squares are too large or
// too small for the dtype.
at::Tensor norm_on_cpu(const at::Tensor& tensor) {
  const auto norm = norm_in_parts(tensor);
  const bool is_double = norm.scalar_type() == at::kDouble;
  const double found = is_double ? *norm.const_data_ptr<double>() : *norm.const_data_ptr<float>();
  if ((std::isfinite(found) && found > (is_double ? 1e-145 : 1e-15)) || tensor.numel() == 0) return norm;
  const auto widened = tensor.to(norm_kind(tensor.scalar_type()));
  const auto largest = at::linalg_vector_norm(widened, std::numeric_limits<double>::infinity());
  const double scale = largest.item<double>();
  if (!std::isfinite(scale) || scale == 0) return norm;
  return norm_in_parts(widened / largest) * largest;
}

// Returns the norm of each tensor as one vector of floats, or of doubles if a norm is one, on the device
// of the first tensor. The tensors must be dense and of a floating-point or complex dtype.
at::Tensor norms_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return at::zeros({0});
  std::vector<at::Tensor> found(tensors.size());
  // The kernels of other devices take tensors of one device and dtype at a time.
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, std::vector<size_t>> groups;
  for (size_t i = 0; i < tensors.size(); i++) {
    const auto device = tensors[i].device();
    if (device.is_cpu())
      found[i] = norm_on_cpu(tensors[i]);
    else
      groups[{device.type(), device.index(), tensors[i].scalar_type()}].push_back(i);
  }
  for (auto& [key, indices] : groups) {
    std::vector<at::Tensor> list;
    list.reserve(indices.size());
    for (auto i : indices) list.push_back(tensors[i]);
    const auto kind = std::get<2>(key);
    const auto wide = norm_kind(kind);
    const auto norms = at::_foreach_norm(list, 2, wide == kind ? std::nullopt : std::optional(wide));
    for (size_t j = 0; j < indices.size(); j++) found[indices[j]] = norms[j];
  }
  auto kind = at::kFloat;
  for (auto& norm : found) kind = at::promote_types(kind, at::toRealValueType(norm.scalar_type()));
  for (auto& norm : found) norm = norm.to(at::TensorOptions().device(found[0].device()).dtype(kind)).reshape({});
  return at::stack(found);
}

// Returns the norm of all tensors as one vector, from the norm of each.
at::Tensor norm_of_norms(const at::Tensor& norms) {
  return norms.device().is_cpu() ? norm_on_cpu(norms) : at::linalg_vector_norm(norms, 2);
}

}  // namespace
