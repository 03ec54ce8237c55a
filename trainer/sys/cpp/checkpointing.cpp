// Activation checkpointing: a part of a forward pass whose intermediate results are not kept for
// the backward pass, which computes them again. A function that can fail returns null on success,
// or a message that the caller frees with `trainer_free`. No function throws.
//
// The forward pass builds the graph of the gradients as always, except that the graph saves no
// tensor that the region has computed. A trace has the operators that the region has called, with
// what their results depend on besides their arguments: the modes of the thread and the state of
// the random numbers. When the backward pass needs the first of the missing tensors, the trace runs
// again, builds a second graph that is thrown away, and keeps the tensors that this graph saves:
// those that the first graph lacks, in the same order. As the first graph is the one that computes
// the gradients, everything that depends on it is as without checkpointing: the order of sums,
// hooks at tensors, the reduction over several processes. PyTorch's
// `checkpoint(use_reentrant=False)` has the same idea, and runs the Python function again instead
// of a trace.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "guarded.h"

namespace {

// What the results of an operator depend on besides its arguments and the random numbers.
struct ThreadModes {
  bool grad;
  bool autocast[2];
  at::ScalarType kinds[2];
  bool caches;

  static constexpr at::DeviceType devices[2] = {at::kCPU, at::kCUDA};

  static ThreadModes current() {
    ThreadModes modes{};
    modes.grad = at::GradMode::is_enabled();
    for (int nth = 0; nth < 2; nth++) {
      modes.autocast[nth] = at::autocast::is_autocast_enabled(devices[nth]);
      modes.kinds[nth] = at::autocast::get_autocast_dtype(devices[nth]);
    }
    modes.caches = at::autocast::is_autocast_cache_enabled();
    return modes;
  }

  void set() const {
    at::GradMode::set_enabled(grad);
    for (int nth = 0; nth < 2; nth++) {
      at::autocast::set_autocast_enabled(devices[nth], autocast[nth]);
      at::autocast::set_autocast_dtype(devices[nth], kinds[nth]);
    }
    at::autocast::set_autocast_cache_enabled(caches);
  }
};

// Restores the modes of the thread.
struct ModesGuard {
  ThreadModes before = ThreadModes::current();

  ModesGuard() { at::autocast::increment_nesting(); }
  ~ModesGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before.set();
  }
};

// The index of a tensor in a trace; -1 for an undefined tensor.
using Slot = int32_t;

// An argument or a result of an operator, with slots in place of tensors.
struct TracedValue {
  enum Kind { Plain, Tensor, Tensors, OptionalTensors } kind = Plain;
  c10::IValue plain;
  std::vector<Slot> slots;
};

// A call of an operator.
struct TracedCall {
  c10::OperatorHandle op;
  std::vector<TracedValue> arguments;
  std::vector<TracedValue> results;
  ThreadModes modes;
  // The device whose random numbers the operator may draw, and their state before that.
  at::Device device = at::kCPU;
  at::Tensor random;
  // The arguments that are running statistics, which the operator must not update again.
  std::vector<size_t> statistics;
  // The slots that no later call needs.
  std::vector<Slot> last_uses;
};

// A tensor that a trace begins with: one from outside of the region, or one that the region has
// created without reading another.
struct Source {
  // A tensor with the same memory, which does not own the graph of the original; the original
  // itself if it is a parameter.
  at::Tensor tensor;
  uint32_t version = 0;
  bool requires_grad = false;
  bool is_outside = false;
  // Whether it is a running statistic of a normalization, which no result depends on in training.
  bool is_statistic = false;
  // What a tensor that the region has created was before the region wrote to it.
  at::Tensor before;
};

uint32_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Which elements of which memory a dense tensor has. `set_data` changes it, but not the version.
struct Placement {
  // Keeps the address from being used again, without keeping the memory.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
  int64_t offset = 0;
  at::DimVector sizes, strides;
  at::ScalarType kind = at::ScalarType::Undefined;

  static Placement of(const at::Tensor& tensor) {
    Placement placement;
    if (tensor.layout() != at::kStrided || tensor.is_nested() || !tensor.has_storage()) return placement;
    placement.storage.emplace(tensor.storage().getWeakStorageImpl());
    placement.offset = tensor.storage_offset();
    placement.sizes = tensor.sizes();
    placement.strides = tensor.strides();
    placement.kind = tensor.scalar_type();
    return placement;
  }

  bool operator==(const Placement& other) const {
    const auto address = [](const Placement& it) { return it.storage ? it.storage->_unsafe_get_target() : nullptr; };
    return address(*this) == address(other) && offset == other.offset && sizes == other.sizes && strides == other.strides &&
           kind == other.kind;
  }
};

// Calls `visit` with each tensor of a value.
template <typename Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor()) visit(element.toTensor());
  }
}

bool has_tensor(const c10::IValue& value) {
  bool found = false;
  each_tensor(value, [&](const at::Tensor& tensor) { found |= tensor.defined(); });
  return found;
}

// A tensor that the graph of the gradients needs, and that is computed again.
struct Needed {
  at::ScalarType kind;
  int64_t elements;
  // Whether it is computed again. The graph keeps a tensor from outside.
  bool is_dropped;
  at::Tensor tensor;
};

// A part of a forward pass, as the graph of its gradients refers to it.
struct Region {
  std::vector<TracedCall> calls;
  std::vector<Source> sources;
  // The slot of each source.
  std::vector<Slot> source_slots;
  Slot slots = 0;
  std::vector<Needed> needed;
  bool is_open = true;
  // Several threads may run a backward pass.
  std::mutex mutex;

  void recompute();
  at::Tensor take(size_t nth);
};

// What is known of a region while its forward pass runs.
struct Recording {
  std::shared_ptr<Region> region = std::make_shared<Region>();
  std::unordered_map<const c10::TensorImpl*, Slot> slots;
  // As long as there is a weak reference, no other tensor gets the address of a tensor.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> seen;
  // The index of the source that owns some memory, which lives as long as the source.
  std::unordered_map<const void*, size_t> owners;
  // For each slot, where its tensor was after the last operator of the trace that returned or read it.
  std::vector<Placement> placements;
  // The version of the memory of results after the last operator of the trace.
  std::unordered_map<const void*, uint32_t> versions;
  // The memory of known tensors that another tensor has too, which the trace did not make, such as that
  // of `.data()`.
  std::unordered_set<const void*> aliased;
  // The memory of known tensors that operators outside of the trace have changed.
  std::unordered_set<const void*> changed;
  // Why the region cannot be computed again.
  std::string refusal;
  at::CallbackHandle handle = 0;
  // The number of operators that are running, one within another.
  size_t depth = 0, untraced_depth = 0;
  bool is_traced = false;

  void refuse(const std::string& why) {
    if (refusal.empty()) refusal = why;
  }

  Slot add(const at::Tensor& tensor) {
    auto slot = region->slots++;
    auto impl = tensor.getIntrusivePtr();
    slots[impl.get()] = slot;
    seen.emplace_back(impl);
    placements.push_back(Placement::of(tensor));
    return slot;
  }

  Slot add_source(const at::Tensor& tensor, bool is_outside) {
    Source source;
    source.requires_grad = tensor.requires_grad();
    // A tensor with a graph, or one that may get one, could own this region.
    source.tensor = tensor.is_leaf() && source.requires_grad ? tensor : tensor.detach();
    source.version = version_of(tensor);
    source.is_outside = is_outside;
    auto slot = add(tensor);
    if (auto memory = memory_of(tensor)) {
      if (!owners.emplace(memory, region->sources.size()).second) aliased.insert(memory);
      versions.erase(memory);
    }
    region->sources.push_back(std::move(source));
    region->source_slots.push_back(slot);
    return slot;
  }

  // Returns the slot of a tensor that an operator reads.
  Slot read(const at::Tensor& tensor, const c10::OperatorHandle& op) {
    if (!tensor.defined()) return -1;
    auto known = slots.find(tensor.unsafeGetTensorImpl());
    if (known == slots.end()) return add_source(tensor, true);
    const auto memory = memory_of(tensor);
    const auto version = versions.find(memory);
    if (!(placements[known->second] == Placement::of(tensor)))
      refuse("the data of a tensor that `" + c10::toString(op.operator_name()) +
             "` reads was replaced, for example with `set_data`: compute a new tensor instead");
    if ((version != versions.end() && version->second != version_of(tensor)) || changed.count(memory))
      refuse("a tensor that `" + c10::toString(op.operator_name()) +
             "` reads was changed in place by a hook, or by code that is not an operator of libtorch");
    return known->second;
  }

  // Returns the slot of a tensor that an operator returns.
  Slot write(const at::Tensor& tensor) {
    if (!tensor.defined()) return -1;
    auto known = slots.find(tensor.unsafeGetTensorImpl());
    auto slot = known == slots.end() ? add(tensor) : known->second;
    placements[slot] = Placement::of(tensor);
    note_version(tensor);
    return slot;
  }

  void note_version(const at::Tensor& tensor) {
    auto memory = memory_of(tensor);
    if (memory && (!owners.count(memory) || !region->sources[owners[memory]].is_outside))
      versions[memory] = version_of(tensor);
  }

  void note_statistic(const at::Tensor& tensor) {
    auto owner = owners.find(memory_of(tensor));
    if (owner != owners.end()) region->sources[owner->second].is_statistic = true;
  }

  // Called before an operator changes a tensor.
  void begin_change(const at::Tensor& tensor, const c10::OperatorHandle& op) {
    auto owner = owners.find(memory_of(tensor));
    if (owner == owners.end()) return;
    auto& source = region->sources[owner->second];
    if (aliased.count(owner->first)) {
      refuse("`" + c10::toString(op.operator_name()) +
             "` changes in place the memory of another tensor, for example through `.data()`: compute a new tensor instead");
    } else if (source.is_outside) {
      refuse("`" + c10::toString(op.operator_name()) +
             "` changes in place a tensor that the module did not create, so it would be changed twice");
    } else if (!source.before.defined()) {
      at::NoGradGuard no_grad;
      source.before = source.tensor.clone();
    }
  }

  // Called before an operator that is not part of the trace changes a tensor. Returns the index of the
  // source that owns its memory if that is outside of the region: the recomputation finds the change if
  // the version of the source changes, too.
  std::optional<size_t> begin_untraced_change(const at::Tensor& tensor) {
    const auto memory = memory_of(tensor);
    const auto owner = owners.find(memory);
    const bool is_outside = owner != owners.end() && region->sources[owner->second].is_outside;
    if (is_outside && !region->sources[owner->second].is_statistic) return owner->second;
    if (!is_outside && (owner != owners.end() || versions.count(memory))) changed.insert(memory);
    return std::nullopt;
  }

  template <typename ToSlot>
  TracedValue traced(const c10::IValue& value, ToSlot to_slot) {
    TracedValue traced;
    if (value.isTensor()) {
      traced.kind = TracedValue::Tensor;
    } else if (value.isTensorList()) {
      traced.kind = TracedValue::Tensors;
    } else if (value.isList() && has_tensor(value)) {
      traced.kind = TracedValue::OptionalTensors;
      for (const c10::IValue& element : value.toListRef())
        traced.slots.push_back(element.isTensor() ? to_slot(element.toTensor()) : -1);
      return traced;
    } else {
      traced.plain = value;
      return traced;
    }
    each_tensor(value, [&](const at::Tensor& tensor) { traced.slots.push_back(to_slot(tensor)); });
    return traced;
  }
};

// The recording of this thread, if a region is running.
thread_local std::unique_ptr<Recording> recording;
// Whether operators are not part of the region now.
thread_local bool is_paused = false;
// The region that is computed again on this thread, and the number of tensors that its graph has
// saved.
thread_local Region* recomputed = nullptr;
thread_local size_t recomputed_count = 0;

struct PauseGuard {
  bool before = is_paused;

  PauseGuard() { is_paused = true; }
  ~PauseGuard() { is_paused = before; }
};

// A tensor that the graph of a region saves.
struct SavedByRegion : torch::autograd::SavedVariableHooks {
  std::shared_ptr<Region> region;
  size_t nth = 0;
  at::Tensor kept;
  uint32_t version = 0;

  void call_pack_hook(const at::Tensor& tensor) override {
    auto& recorded = *recording;
    region = recorded.region;
    nth = region->needed.size();
    auto owner = recorded.owners.find(memory_of(tensor));
    bool is_kept = owner != recorded.owners.end() && region->sources[owner->second].is_outside;
    region->needed.push_back(Needed{tensor.scalar_type(), tensor.numel(), !is_kept, at::Tensor()});
    if (is_kept) {
      kept = tensor;
      version = version_of(tensor);
    }
  }

  at::Tensor call_unpack_hook() override {
    if (!kept.defined()) return region->take(nth);
    TORCH_CHECK(version_of(kept) == version,
                "a tensor that is needed to compute gradients was changed in place after a module with activation "
                "checkpointing had used it: it is at version ",
                version_of(kept), ", expected version ", version);
    return kept;
  }
};

// A tensor that the graph saves when a region is computed again.
struct SavedAgain : torch::autograd::SavedVariableHooks {
  void call_pack_hook(const at::Tensor& tensor) override {
    auto nth = recomputed_count++;
    TORCH_CHECK(nth < recomputed->needed.size(), "it needs more tensors than the forward pass");
    auto& needed = recomputed->needed[nth];
    TORCH_CHECK(needed.kind == tensor.scalar_type() && needed.elements == tensor.numel(),
                "a tensor has a different shape or type than in the forward pass");
    if (needed.is_dropped) needed.tensor = tensor;
  }

  at::Tensor call_unpack_hook() override { TORCH_CHECK(false, "the graph of a recomputation has no gradients"); }
};

// libtorch's engine, except that it decides how the graph saves a tensor.
struct CheckpointingEngine : torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (recomputed) return std::make_unique<SavedAgain>();
    if (recording && !is_paused && recording->is_traced) return std::make_unique<SavedByRegion>();
    return nullptr;
  }
};

torch::autograd::Engine& checkpointing_engine() {
  // Never destroyed, because its threads may still wait when the program ends.
  static auto& engine = *new CheckpointingEngine();
  return engine;
}

// What the end of an operator needs.
struct OpenOperator : at::ObserverContext {
  // Whether the operator is not part of the trace.
  bool is_untraced = false;
  // The sources that an operator outside of the trace changes, with their versions before it.
  std::vector<std::pair<size_t, uint32_t>> changed;
};

// Saves the state of the random numbers before an operator draws some, for the call of the trace
// that it belongs to.
void note_random(Recording& recorded, const c10::OperatorHandle& op) {
  auto& call = recorded.region->calls.back();
  if (call.random.defined() || !op.hasTag(at::Tag::nondeterministic_seeded)) return;
  auto generator = at::globalContext().defaultGenerator(call.device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  call.random = generator.get_state();
}

void begin_call(Recording& recorded, const at::RecordFunction& function, const c10::OperatorHandle& op) {
  const auto inputs = function.inputs();
  const auto& schema = op.schema();
  bool reads = false;
  for (const auto& input : inputs) reads |= has_tensor(input);
  recorded.is_traced = reads;
  if (!reads) return;
  TracedCall call{op, {}, {}, ThreadModes::current()};
  bool has_device = false, is_training = false;
  for (size_t nth = 0; nth < inputs.size(); nth++) {
    const auto& name = schema.arguments()[nth].name();
    if ((name == "training" || name == "train" || name == "use_input_stats") && inputs[nth].isBool())
      is_training = inputs[nth].toBool();
  }
  for (size_t nth = 0; nth < inputs.size(); nth++) {
    const auto& argument = schema.arguments()[nth];
    const bool is_statistic = (argument.name() == "running_mean" || argument.name() == "running_var") && is_training;
    call.arguments.push_back(
        recorded.traced(inputs[nth], [&](const at::Tensor& tensor) { return recorded.read(tensor, op); }));
    if (is_statistic && inputs[nth].isTensor() && inputs[nth].toTensor().defined()) {
      call.statistics.push_back(nth);
      recorded.note_statistic(inputs[nth].toTensor());
    }
    const auto alias = argument.alias_info();
    each_tensor(inputs[nth], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (!has_device) call.device = tensor.device();
      has_device = true;
      if (alias && alias->isWrite() && !is_statistic) recorded.begin_change(tensor, op);
    });
  }
  recorded.region->calls.push_back(std::move(call));
}

// Looks for known tensors that an operator outside of the trace changes in place.
std::unique_ptr<at::ObserverContext> begin_untraced(Recording& recorded, const at::RecordFunction& function) {
  auto context = std::make_unique<OpenOperator>();
  context->is_untraced = true;
  if (recorded.untraced_depth++ > 0) return context;
  const auto name = function.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
  if (!op || !op->schema().is_mutable()) return context;
  const auto inputs = function.inputs();
  for (size_t nth = 0; nth < inputs.size(); nth++) {
    const auto alias = op->schema().arguments()[nth].alias_info();
    if (!alias || !alias->isWrite()) continue;
    each_tensor(inputs[nth], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (const auto source = recorded.begin_untraced_change(tensor))
        context->changed.emplace_back(*source, version_of(recorded.region->sources[*source].tensor));
    });
  }
  return context;
}

void end_untraced(Recording& recorded, const OpenOperator& ended) {
  recorded.untraced_depth--;
  for (const auto& [source, version] : ended.changed)
    if (version_of(recorded.region->sources[source].tensor) == version)
      recorded.refuse("a tensor that the module had used was changed in place through another tensor, for example one of `.data()`");
}

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  if (!recording) return nullptr;
  auto& recorded = *recording;
  if (is_paused) return begin_untraced(recorded, function);
  const bool is_outermost = recorded.depth++ == 0;
  auto context = std::make_unique<OpenOperator>();
  PauseGuard pause;
  try {
    const auto name = function.operator_name();
    const auto op = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
    if (!op) {
      if (is_outermost) recorded.is_traced = false;
    } else {
      if (is_outermost) begin_call(recorded, function, *op);
      if (recorded.is_traced) note_random(recorded, *op);
    }
  } catch (const std::exception& error) {
    recorded.refuse(error.what());
  }
  return context;
}

void end_call(Recording& recorded, const at::RecordFunction& function) {
  const auto outputs = function.outputs();
  if (!recorded.is_traced) {
    // Created without reading another tensor: what code other than libtorch's writes to it belongs
    // to it, and it is not created again.
    for (const auto& output : outputs)
      each_tensor(output, [&](const at::Tensor& tensor) {
        if (!tensor.defined() || recorded.slots.count(tensor.unsafeGetTensorImpl())) return;
        recorded.add_source(tensor, false);
        recorded.note_version(tensor);
      });
    return;
  }
  auto& call = recorded.region->calls.back();
  if (outputs.size() != call.op.schema().returns().size()) {
    recorded.region->calls.pop_back();  // it failed
    return;
  }
  for (const auto& output : outputs)
    call.results.push_back(recorded.traced(output, [&](const at::Tensor& tensor) { return recorded.write(tensor); }));
  const auto& schema = call.op.schema();
  bool changes = false;
  for (const auto& argument : schema.arguments())
    changes |= argument.alias_info() && argument.alias_info()->isWrite();
  bool returns = false;
  for (const auto& output : outputs) returns |= has_tensor(output);
  // An operator that only reads, such as the conversion to a number.
  if (!changes && !returns) recorded.region->calls.pop_back();
}

void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!context || !recording) return;
  auto& recorded = *recording;
  const auto& ended = *static_cast<OpenOperator*>(context);
  if (ended.is_untraced) return end_untraced(recorded, ended);
  if (--recorded.depth > 0) return;
  PauseGuard pause;
  try {
    end_call(recorded, function);
  } catch (const std::exception& error) {
    recorded.refuse(error.what());
  }
  recorded.is_traced = false;
}

// Notes after which call each tensor of a trace is not needed any more.
void note_last_uses(Region& region) {
  std::vector<bool> is_used(region.slots, false);
  for (auto call = region.calls.rbegin(); call != region.calls.rend(); ++call)
    for (auto* values : {&call->results, &call->arguments})
      for (const auto& value : *values)
        for (auto slot : value.slots) {
          if (slot < 0 || is_used[slot]) continue;
          is_used[slot] = true;
          call->last_uses.push_back(slot);
        }
}

// Restores the state of the random numbers of a device.
struct RandomGuard {
  at::Generator generator;
  at::Tensor before;

  explicit RandomGuard(at::Device device) : generator(at::globalContext().defaultGenerator(device)) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    before = generator.get_state();
  }
  void set(const at::Tensor& state) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
  ~RandomGuard() { set(before); }
};

c10::IValue with_tensors(const TracedValue& value, const std::vector<at::Tensor>& tensors) {
  const auto at = [&](Slot slot) { return slot < 0 ? at::Tensor() : tensors[slot]; };
  switch (value.kind) {
    case TracedValue::Plain:
      return value.plain;
    case TracedValue::Tensor:
      return at(value.slots[0]);
    case TracedValue::Tensors: {
      c10::List<at::Tensor> list;
      for (auto slot : value.slots) list.push_back(at(slot));
      return list;
    }
    case TracedValue::OptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      for (auto slot : value.slots) list.push_back(slot < 0 ? std::nullopt : std::optional(tensors[slot]));
      return list;
    }
  }
  return {};
}

// Runs a call of a trace again.
void call_again(const TracedCall& call, std::vector<at::Tensor>& tensors) {
  c10::Stack stack;
  for (const auto& argument : call.arguments) stack.push_back(with_tensors(argument, tensors));
  for (auto nth : call.statistics) stack[nth] = stack[nth].toTensor().detach().clone();
  call.modes.set();
  std::optional<RandomGuard> random;
  if (call.random.defined()) random.emplace(call.device).set(call.random);
  call.op.callBoxed(stack);
  TORCH_CHECK(stack.size() == call.results.size(), "an operator returns a different number of results");
  for (size_t nth = 0; nth < stack.size(); nth++) {
    size_t of_value = 0;
    const auto& slots = call.results[nth].slots;
    each_tensor(stack[nth], [&](const at::Tensor& tensor) {
      if (of_value < slots.size() && slots[of_value] >= 0) tensors[slots[of_value]] = tensor;
      of_value++;
    });
  }
  for (auto slot : call.last_uses) tensors[slot] = at::Tensor();
}

// Computes the tensors that the graph needs.
void Region::recompute() {
  struct Again {
    Region* before = recomputed;
    size_t count = recomputed_count;
    explicit Again(Region* region) {
      recomputed = region;
      recomputed_count = 0;
    }
    ~Again() {
      recomputed = before;
      recomputed_count = count;
    }
  };
  PauseGuard pause;
  ModesGuard modes;
  std::vector<at::Tensor> tensors(slots);
  for (size_t nth = 0; nth < sources.size(); nth++) {
    const auto& source = sources[nth];
    const auto& tensor = source.tensor;
    at::NoGradGuard no_grad;
    TORCH_CHECK(source.is_statistic || source.before.defined() || version_of(tensor) == source.version,
                "a tensor that it reads, of shape ", tensor.sizes(), ", was changed in place after the module had used it");
    if (source.before.defined()) {
      tensors[source_slots[nth]] = source.before.clone();
    } else if (tensor.is_leaf() && tensor.requires_grad()) {
      tensors[source_slots[nth]] = tensor;
    } else {
      tensors[source_slots[nth]] = tensor.detach().requires_grad_(source.requires_grad);
    }
  }
  Again again(this);
  for (const auto& call : calls) call_again(call, tensors);
  TORCH_CHECK(recomputed_count == needed.size(), "it needs fewer tensors than the forward pass");
}

// Returns a tensor that the graph needs, and computes all of them if this one is not there.
at::Tensor Region::take(size_t nth) {
  TORCH_CHECK(!is_open,
              "a module with activation checkpointing computes gradients of its own operations: exclude the "
              "module from activation checkpointing");
  std::lock_guard<std::mutex> lock(mutex);
  if (!needed[nth].tensor.defined()) {
    try {
      recompute();
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "a module with activation checkpointing cannot be computed again: ", error.what_without_backtrace());
    }
  }
  return std::move(needed[nth].tensor);
}

}  // namespace

extern "C" {

// Begins a region on this thread, if it records gradients and runs none.
char* trainer_checkpointing_begin(bool* begun) {
  return guarded([&] {
    *begun = !recording && at::GradMode::is_enabled();
    if (!*begun) return;
    static const bool is_set = [] {
      torch::autograd::set_default_engine_stub(checkpointing_engine);
      return true;
    }();
    (void)is_set;
    auto started = std::make_unique<Recording>();
    started->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_operator, &end_operator)
                                                     .needsInputs(true)
                                                     .needsOutputs(true)
                                                     .scopes({at::RecordScope::FUNCTION}));
    recording = std::move(started);
    is_paused = false;
  });
}

// Ends the region of this thread. The message says why it cannot be computed again.
char* trainer_checkpointing_end() {
  return guarded([&] {
    if (!recording) return;
    auto ended = std::move(recording);
    is_paused = false;
    at::removeCallback(ended->handle);
    ended->region->is_open = false;
    for (auto& source : ended->region->sources)
      if (!source.is_outside) source.version = version_of(source.tensor);
    note_last_uses(*ended->region);
    TORCH_CHECK(ended->refusal.empty(), ended->refusal);
  });
}

// Sets whether what this thread computes is left out of its region, and returns the previous value.
bool trainer_checkpointing_pause(bool paused) { return std::exchange(is_paused, paused); }
}
