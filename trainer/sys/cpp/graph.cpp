// What a tensor depends on: the leaves of its graph, and the operators that a thread calls. A function
// that can fail returns null on success, or a message that the caller frees with `trainer_free`. No
// function throws.

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guarded.h"

namespace {

// A call of an operator by the code that is recorded, not by another operator.
struct OperatorCall {
  bool records_gradients;
  // Whether it copies values to the host.
  bool reads;
  std::vector<uint32_t> inputs;
  std::vector<uint32_t> outputs;
};

// The operators that a thread calls. Tensors that share memory are one value.
struct Flow {
  std::unordered_map<const void*, uint32_t> values;
  // Keeps the addresses of the values, but not their memory, so that no other value gets one of them.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> without_storage;
  std::vector<OperatorCall> calls;
  // Layers that only training uses, if they were called for training.
  std::set<std::string> trains;
  // Whether an operator chose something by the values of a tensor.
  bool selects = false;
  bool has_failed = false;
  size_t depth = 0;
};

thread_local Flow* flow = nullptr;

const void* address(const at::Tensor& tensor) {
  if (tensor.has_storage()) return tensor.storage().unsafeGetStorageImpl();
  return tensor.unsafeGetTensorImpl();
}

uint32_t value_of(Flow& flow, const at::Tensor& tensor) {
  const auto [found, is_new] = flow.values.emplace(address(tensor), flow.values.size());
  if (is_new && tensor.has_storage()) {
    flow.storages.emplace_back(tensor.storage().getWeakStorageImpl());
  } else if (is_new) {
    flow.without_storage.emplace_back(tensor.getIntrusivePtr());
  }
  return found->second;
}

template <typename Values>
std::vector<uint32_t> values_of(Flow& flow, const Values& values) {
  std::vector<uint32_t> found;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) found.push_back(value_of(flow, value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        if (tensor.defined()) found.push_back(value_of(flow, tensor));
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef())
        if (element.isTensor() && element.toTensor().defined()) found.push_back(value_of(flow, element.toTensor()));
    }
  }
  return found;
}

bool is_true(c10::ArrayRef<const c10::IValue> inputs, size_t index) {
  return index < inputs.size() && inputs[index].isBool() && inputs[index].toBool();
}

bool is_above_0(c10::ArrayRef<const c10::IValue> inputs, size_t index) {
  return index < inputs.size() && inputs[index].isDouble() && inputs[index].toDouble() > 0;
}

bool is_tensor(c10::ArrayRef<const c10::IValue> inputs, size_t index) {
  return index < inputs.size() && inputs[index].isTensor() && inputs[index].toTensor().defined();
}

// Whether a call of this operator is one for training: with a probability of dropout, or with the
// statistics of the batch although there are running ones.
bool is_for_training(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  if (name.size() > 1 && name.back() == '_') name.remove_suffix(1);  // in place
  for (auto dropout : {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"})
    if (name == dropout) return is_above_0(inputs, 1) && is_true(inputs, 2);
  if (name == "batch_norm") return is_tensor(inputs, 3) && is_tensor(inputs, 4) && is_true(inputs, 5);
  if (name == "scaled_dot_product_attention") return is_above_0(inputs, 4);
  for (auto recurrent : {"lstm", "gru", "rnn_tanh", "rnn_relu"})
    if (name == recurrent)
      return inputs.size() > 6 && inputs[4].isInt() && inputs[4].toInt() > 1 && is_above_0(inputs, 5) && is_true(inputs, 6);
  return false;
}

bool selects(std::string_view name) {
  constexpr std::array<std::string_view, 18> selecting{
      "topk", "argmax", "argmin", "argsort", "sort", "max",     "nonzero",       "masked_select", "multinomial",
      "eq",   "ne",     "gt",     "ge",      "lt",   "le",      "index_select",  "gather",        "index"};
  return std::find(selecting.begin(), selecting.end(), name) != selecting.end();
}

// The inputs of a call that is recorded.
struct OpenCall : at::ObserverContext {
  OperatorCall call;
};

std::unique_ptr<at::ObserverContext> note_call(const at::RecordFunction& call) {
  if (!flow || flow->depth++ > 0 || flow->has_failed) return nullptr;
  try {
    std::string_view name = call.name();
    const auto inputs = call.inputs();
    if (name.substr(0, 6) == "aten::") name.remove_prefix(6);
    if (is_for_training(name, inputs)) flow->trains.emplace(name);
    if (selects(name)) flow->selects = true;
    bool reads = false;
    for (auto reading : {"item", "_local_scalar_dense", "is_nonzero", "equal", "allclose"}) reads |= name == reading;
    auto open = std::make_unique<OpenCall>();
    open->call = {at::GradMode::is_enabled(), reads, values_of(*flow, inputs), {}};
    return open;
  } catch (...) {
    flow->has_failed = true;
    return nullptr;
  }
}

void note_outputs(const at::RecordFunction& call, at::ObserverContext* context) {
  if (!flow || flow->depth == 0) return;
  flow->depth--;
  if (!context || flow->has_failed) return;
  try {
    auto& open = static_cast<OpenCall*>(context)->call;
    open.outputs = values_of(*flow, call.outputs());
    if (open.outputs.empty()) open.outputs = open.inputs;  // it may have written to them
    flow->calls.push_back(std::move(open));
  } catch (...) {
    flow->has_failed = true;
  }
}

}  // namespace

extern "C" {

// Passes each leaf of the graph of `of` that requires gradients to `push`, which owns the handle.
// Writes whether the graph contains gradients, as that of a gradient penalty does.
char* trainer_leaves(at::Tensor* of, void (*push)(void*, at::Tensor*), void* with, bool* has_gradients) {
  return guarded([&] {
    using torch::autograd::AccumulateGrad;
    using torch::autograd::Node;
    *has_gradients = false;
    if (of->is_leaf()) {
      if (of->requires_grad()) push(with, new at::Tensor(*of));
      return;
    }
    std::vector<Node*> open{of->grad_fn().get()};
    std::unordered_set<Node*> known{open[0]};
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      if (auto leaf = dynamic_cast<AccumulateGrad*>(node)) {
        push(with, new at::Tensor(leaf->variable));
      } else if (node->name().find("BackwardBackward") != std::string::npos) {
        *has_gradients = true;
      }
      for (const auto& edge : node->next_edges())
        if (edge.function && known.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  });
}

// The number of changes of a tensor in place, as far as libtorch has counted them.
uint64_t trainer_changes(at::Tensor* of) {
  if (!of->defined() || of->is_inference()) return 0;
  return of->unsafeGetTensorImpl()->version_counter().current_version();
}

// Starts to record the operators that this thread calls, and writes the handle that ends it. A thread
// can have one recording at a time.
char* trainer_flow_start(uint64_t* handle) {
  return guarded([&] {
    TORCH_CHECK(!flow, "this thread records its operators already");
    auto recorded = std::make_unique<Flow>();
    *handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&note_call, &note_outputs)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
    flow = recorded.release();
  });
}

// Ends the recording. Must be called on the thread that started it.
char* trainer_flow_stop(uint64_t handle) {
  return guarded([&] {
    delete flow;
    flow = nullptr;
    at::removeCallback(handle);
  });
}

// For each of the `count` tensors `on`, writes whether the values of `of` were computed from its values
// or, with `is_trained`, by operators that record gradients. Writes whether everything that they were
// computed from is known: not if it includes a tensor that was created meanwhile, or if values were
// copied to the host before.
char* trainer_flow_sources(at::Tensor* of, bool is_trained, at::Tensor** on, size_t count, bool* found, bool* is_known) {
  return guarded([&] {
    std::fill(found, found + count, false);
    *is_known = flow && !flow->has_failed && flow->values.count(address(*of)) > 0;
    if (!*is_known) return;
    std::vector<bool> is_source(flow->values.size(), false);
    const auto whole = flow->values.at(address(*of));
    is_source[whole] = true;
    bool is_computed = false;
    for (auto call = flow->calls.rbegin(); call != flow->calls.rend(); ++call) {
      is_computed |= !call->reads && std::count(call->outputs.begin(), call->outputs.end(), whole) > 0;
      if (call->reads && is_computed) *is_known = false;
      if (call->reads || (is_trained && !call->records_gradients)) continue;
      const auto is_one = [&](uint32_t value) { return is_source[value]; };
      if (!std::any_of(call->outputs.begin(), call->outputs.end(), is_one)) continue;
      for (auto input : call->inputs) is_source[input] = true;
      if (call->inputs.empty()) *is_known = false;
    }
    for (size_t nth = 0; nth < count; nth++) {
      const auto value = flow->values.find(address(*on[nth]));
      found[nth] = value != flow->values.end() && is_source[value->second];
    }
  });
}

// For each of the `count` tensors, writes whether a recorded operator has used it. Writes what else is
// known of the operators: whether one chose something by the values of a tensor, and whether the
// recording has failed.
char* trainer_flow_uses(at::Tensor** of, size_t count, bool* used, bool* selects, bool* has_failed) {
  return guarded([&] {
    TORCH_CHECK(flow, "this thread does not record its operators");
    for (size_t nth = 0; nth < count; nth++) used[nth] = flow->values.count(address(*of[nth])) > 0;
    *selects = flow->selects;
    *has_failed = flow->has_failed;
  });
}

// Passes the address and the size in bytes of each memory on the CPU that a recorded operator has
// used and that still exists to `push`.
char* trainer_flow_memory(void (*push)(void*, const void*, size_t), void* with) {
  return guarded([&] {
    TORCH_CHECK(flow, "this thread does not record its operators");
    for (const auto& weak : flow->storages) {
      const auto storage = weak.lock();
      if (storage && storage->device().is_cpu() && storage->data()) push(with, storage->data(), storage->nbytes());
    }
  });
}

// The names of the layers that were called for training, separated by commas, which the caller frees
// with `trainer_free`, or null if there are none.
char* trainer_flow_trains() {
  try {
    if (!flow || flow->trains.empty()) return nullptr;
    std::string names;
    for (const auto& name : flow->trains) names += (names.empty() ? "" : ",") + name;
    return strdup(names.c_str());
  } catch (...) {
    return nullptr;
  }
}
}
