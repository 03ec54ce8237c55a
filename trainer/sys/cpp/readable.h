// Whether the values of a tensor can be read. Everything that hashes, saves, sends or logs a tensor
// goes through this file.

#pragma once

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <string>

namespace {

constexpr c10::DispatchKeySet kLazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

// Returns whether a dense tensor has memory for all its elements: its storage may have been freed or
// made smaller.
bool has_memory(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->numel() == 0) return true;
  if (!impl->has_storage()) return false;
  int64_t last = impl->storage_offset();
  for (int64_t dim = 0; dim < impl->dim(); dim++) last += (impl->sizes()[dim] - 1) * impl->strides()[dim];
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const auto end = static_cast<size_t>(last + 1) * impl->itemsize();
  return storage && storage->nbytes() >= end && storage->_mutable_data_ptr_no_checks().get() != nullptr;
}

// Returns whether the memory of a dense tensor holds the values of all its elements. A tensor can also
// be lazily negated, conjugated or zero.
bool has_values(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         !tensor.unsafeGetTensorImpl()->key_set().has_any(kLazy) && has_memory(tensor);
}

// Returns the dense tensors that a tensor of another layout consists of; none for a layout that only
// libtorch's kernels know.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor) {
  const auto layout = tensor.layout();
  if (layout == at::kSparse) return {tensor._indices(), tensor._values()};
  if (layout == at::kSparseCsr || layout == at::kSparseBsr) return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
  if (layout == at::kSparseCsc || layout == at::kSparseBsc) return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
  return {};
}

// Returns why the values of a tensor cannot be read, as a phrase that follows its name, or null.
const char* unreadable(const at::Tensor& tensor) {
  constexpr auto kFreed = "has no memory for its elements: its storage was freed; read it before that, or keep a copy";
  if (!tensor.defined()) return "is an undefined tensor, which has no values: pass one that was computed";
  if (tensor.is_meta()) return "is on the device `meta`, where tensors have no values: move it to another device";
  if (tensor.is_nested()) return "is a nested tensor, whose values have no single shape: convert it with `to_padded_tensor`";
  if (tensor.layout() == at::kStrided)
    return tensor._is_zerotensor() || has_memory(tensor) ? nullptr : kFreed;
  for (const auto& part : parts_of(tensor))
    if (!has_memory(part)) return kFreed;
  return nullptr;
}

// Returns a dense tensor with the values of a tensor, without a graph and without lazy operations, on
// its device; with `on_host`, contiguous and on the CPU. Shares the memory if that is possible. The
// tensor must be readable.
at::Tensor dense(const at::Tensor& tensor, bool on_host) {
  c10::NoGradGuard no_grad;
  auto values = tensor.detach();
  if (values.is_quantized()) values = values.dequantize();
  if (values.layout() == at::kSparse) values = values.coalesce();
  if (values.layout() != at::kStrided) values = values.to_dense();
  const bool is_lazy = values.unsafeGetTensorImpl()->key_set().has_any(kLazy);
  if (!is_lazy && (!on_host || (values.device().is_cpu() && values.is_contiguous()))) return values;
  auto options = values.options();
  if (on_host) options = options.device(at::kCPU);
  return at::empty(values.sizes(), options).copy_(values);
}

}  // namespace
