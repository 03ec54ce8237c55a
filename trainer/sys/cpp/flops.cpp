// Counts the floating-point operations of the operators that a thread calls. A function that can
// fail returns null on success, or a message that the caller frees with `trainer_free`. No function
// throws.

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <memory>
#include <string_view>

#include "guarded.h"

namespace {

// The multiply-adds of this thread since it started, while a counter exists.
thread_local uint64_t multiply_adds = 0;
// Whether an operator that is counted as a whole is running: those that it calls are not counted.
thread_local bool is_counted = false;

// What the end of an operator adds.
struct Open : at::ObserverContext {
  // The number of multiply-adds for each element of the output.
  uint64_t per_output = 0;
};

at::Tensor tensor_at(const at::RecordFunction& call, size_t index) {
  const auto inputs = call.inputs();
  if (index >= inputs.size() || !inputs[index].isTensor()) return at::Tensor();
  return inputs[index].toTensor();
}

uint64_t elements(const at::Tensor& tensor) { return static_cast<uint64_t>(tensor.numel()); }

// Returns the size of a dimension, counted from the end, or 1 if there are fewer.
uint64_t size_from_end(const at::Tensor& tensor, int64_t dimension) {
  return tensor.dim() < dimension ? 1 : static_cast<uint64_t>(tensor.size(-dimension));
}

// A product of matrices `[…, rows, inner]` and `[…, inner, columns]`.
uint64_t product(const at::Tensor& one, const at::Tensor& other) { return elements(one) * size_from_end(other, 1); }

// Whether the operator is counted. Adds what is known before it runs.
bool begin(const at::RecordFunction& call, Open& open) {
  std::string_view name = call.name();
  constexpr std::string_view prefix = "aten::";
  if (name.substr(0, prefix.size()) != prefix) return false;
  name.remove_prefix(prefix.size());
  const auto first = tensor_at(call, 0), second = tensor_at(call, 1), third = tensor_at(call, 2);
  if (!first.defined() || !second.defined()) return false;
  if (name == "mm" || name == "bmm" || name == "_int_mm" || name == "_scaled_mm") {
    multiply_adds += product(first, second);
  } else if (name == "mv" || name == "dot") {
    multiply_adds += elements(first);
  } else if (name == "linear") {
    // The weight has a row for each output, or one dimension for a single output.
    multiply_adds += second.dim() < 2 ? elements(first) : elements(first) * static_cast<uint64_t>(second.size(0));
  } else if (name == "addmm" || name == "baddbmm" || name == "addbmm" || name == "_addmm_activation") {
    if (!third.defined()) return false;
    multiply_adds += product(second, third);
  } else if (name == "addmv") {
    multiply_adds += elements(second);
  } else if (name == "convolution" || name == "_convolution") {
    // The weight has a row for each output channel or, if transposed, for each input channel.
    const auto inputs = call.inputs();
    const bool is_transposed = inputs.size() > 6 && inputs[6].isBool() && inputs[6].toBool();
    const uint64_t row = second.size(0) == 0 ? 0 : elements(second) / static_cast<uint64_t>(second.size(0));
    if (is_transposed) multiply_adds += elements(first) * row;
    else open.per_output = row;
  } else if (name == "scaled_dot_product_attention" ||
             (name.substr(0, 20) == "_scaled_dot_product_" && name.find("backward") == name.npos)) {
    // Queries with keys, and the attention with the values.
    if (!third.defined()) return false;
    const uint64_t keys = size_from_end(second, 2);
    multiply_adds += elements(first) * keys;
    const uint64_t rows = size_from_end(first, 1) == 0 ? 0 : elements(first) / size_from_end(first, 1);
    multiply_adds += rows * keys * size_from_end(third, 1);
  } else {
    return false;
  }
  return true;
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
  if (is_counted) return nullptr;
  auto open = std::make_unique<Open>();
  if (!begin(call, *open)) return nullptr;
  is_counted = true;
  return open;
}

void on_end(const at::RecordFunction& call, at::ObserverContext* context) {
  // Null for operators that are not counted, or within one that is.
  if (!context) return;
  is_counted = false;
  const uint64_t per_output = static_cast<Open*>(context)->per_output;
  const auto outputs = call.outputs();
  if (per_output > 0 && !outputs.empty() && outputs[0].isTensor()) multiply_adds += elements(outputs[0].toTensor()) * per_output;
}

}  // namespace

extern "C" {

// Starts counting on this thread, and writes the handle that ends it.
char* trainer_flops_start(uint64_t* handle) {
  return guarded([&] {
    is_counted = false;
    *handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  });
}

// Ends the counting. Must be called on the thread that started it.
char* trainer_flops_stop(uint64_t handle) {
  return guarded([&] { at::removeCallback(handle); });
}

// The floating-point operations of this thread while it was counting, two for each multiply-add.
uint64_t trainer_flops() { return 2 * multiply_adds; }
}
