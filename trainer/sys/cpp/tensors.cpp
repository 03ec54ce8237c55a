// What tch cannot tell of a tensor, copies of it, and averages of tensors.
//
// In all files, tensors are passed as tch's pointers. A function that can fail returns null on
// success, or a message that the caller frees with `trainer_free`. No function throws.

#include <ATen/ATen.h>

#include <vector>

#include "counted.h"
#include "guarded.h"
#include "readable.h"

extern "C" {

// Returns an address that is the same for all handles of a tensor.
const void* trainer_identity(const at::Tensor* tensor) { return tensor->unsafeGetTensorImpl(); }

// Returns why the values of a tensor cannot be read, as a message that follows its name, or null if
// they can.
char* trainer_unreadable(const at::Tensor* tensor) {
  return guarded([&] {
    if (const char* why = unreadable(*tensor)) TORCH_CHECK(false, why);
  });
}

// Writes a dense tensor with the values of a tensor; with `on_host`, contiguous and on the CPU. It
// shares the memory of the tensor if that is possible. A message follows the name of the tensor.
char* trainer_dense(const at::Tensor* tensor, bool on_host, at::Tensor** values) {
  return guarded([&] {
    if (const char* why = unreadable(*tensor)) TORCH_CHECK(false, why);
    try {
      *values = new at::Tensor(dense(*tensor, on_host));
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "cannot be read: ", error.what_without_backtrace());
    }
  });
}

// Writes a copy of a readable tensor, with its layout and without its graph, on its device or, with
// `on_host`, on the CPU. A message follows the name of the tensor.
char* trainer_copy(const at::Tensor* tensor, bool on_host, at::Tensor** copy) {
  return guarded([&] {
    if (const char* why = unreadable(*tensor)) TORCH_CHECK(false, why);
    try {
      c10::NoGradGuard no_grad;
      const auto values = tensor->detach();
      *copy = new at::Tensor(on_host && !values.device().is_cpu() ? values.to(at::kCPU) : values.clone());
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "cannot be copied: ", error.what_without_backtrace());
    }
  });
}

// Writes the address and the size of the elements of a tensor that `trainer_dense` has written for
// the host.
void trainer_bytes(const at::Tensor* tensor, const void** begin, size_t* bytes) {
  *bytes = static_cast<size_t>(tensor->numel()) * tensor->element_size();
  *begin = *bytes == 0 ? nullptr : tensor->const_data_ptr();
}

// Returns what kind of tensor it is. Matches `Form` in readable.rs.
int32_t trainer_form(const at::Tensor* tensor) {
  enum : int32_t { kDense, kUndefined, kNested, kSparse, kOther, kMeta };
  if (!tensor->defined()) return kUndefined;
  if (tensor->is_nested()) return kNested;
  if (tensor->layout() != at::kStrided) return tensor->layout() == at::kMkldnn ? kOther : kSparse;
  return tensor->is_meta() ? kMeta : kDense;
}

// Returns the size of the first dimension, or -1 if there is none. tch only returns all sizes, as a
// vector on the heap.
int64_t trainer_rows(const at::Tensor* tensor) {
  try {
    return tensor->defined() && tensor->dim() > 0 ? tensor->size(0) : -1;
  } catch (...) {
    return -1;  // a nested tensor
  }
}

// Returns whether a tensor is so small that calling a kernel costs more than the arithmetic. A
// plain loop is then faster.
static bool is_small_lerp(const at::Tensor& from, const at::Tensor& to) {
  auto is_plain = [](const at::Tensor& tensor) {
    return has_values(tensor) && tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat &&
           tensor.is_contiguous() && !tensor.is_inference();
  };
  return is_plain(from) && is_plain(to) && from.numel() <= 16384 && from.sizes() == to.sizes();
}

// Computes the same result as the kernel of `lerp_`, with the same two formulas (Lerp.h in ATen).
static void lerp_small(at::Tensor& from, const at::Tensor& to, float weight) {
  float* start = from.mutable_data_ptr<float>();
  const float* end = to.const_data_ptr<float>();
  int64_t count = from.numel();
  if (std::abs(weight) < 0.5f)
    for (int64_t i = 0; i < count; i++) start[i] = start[i] + weight * (end[i] - start[i]);
  else
    for (int64_t i = 0; i < count; i++) start[i] = end[i] - (end[i] - start[i]) * (1 - weight);
  count_change(from);
}

// Interpolates linearly, in place, from each tensor to its counterpart:
// `from += weight * (to - from)`.
char* trainer_lerp(at::Tensor** from, at::Tensor** to, size_t count, double weight) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::vector<at::Tensor> starts, ends;
    for (size_t i = 0; i < count; i++) {
      if (is_small_lerp(*from[i], *to[i])) {
        lerp_small(*from[i], *to[i], static_cast<float>(weight));
      } else {
        for (const auto* each : {from[i], to[i]})
          if (const char* why = unreadable(*each)) TORCH_CHECK(false, "a tensor to average ", why);
        starts.push_back(*from[i]);
        ends.push_back(*to[i]);
      }
    }
    if (!starts.empty()) at::_foreach_lerp_(starts, ends, weight);
  });
}
}
