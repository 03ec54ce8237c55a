// The functions of libtorch that tch does not provide: optimizer steps on fused and foreach
// kernels; backward passes for selected parameters; dropping, scaling and clipping gradients;
// callbacks for gradients; random states; and process-wide modes.
//
// Tensors are passed as tch's pointers. A function that can fail returns null on success, or a
// message that the caller frees with `trainer_free`. No function throws.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Logging.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "counted.h"
#include "guarded.h"
#include "norms.h"
#include "readable.h"

namespace {

// Turns off the C++ backtraces of errors, about sixty lines each, unless they are requested with
// PyTorch's environment variable. Runs while the program is loaded, before there is a second
// thread.
[[maybe_unused]] const bool quiet = [] {
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (!wanted || std::strcmp(wanted, "1") != 0) c10::SetStackTraceFetcher([]() -> std::string { return ""; });
  return true;
}();

// The tensors that one optimizer step works on, in Rust's layout. Every list except the parameters
// may be null. `steps` are float scalars: for each parameter, the number of steps in which it had a
// gradient. `current` is the index of the parameter that an error is about, or `count`.
struct Lists {
  at::Tensor** params;
  at::Tensor** state[3];
  at::Tensor** steps;
  size_t count;
  size_t current;
};

// Throws the text of a panic, if there is one, and frees it.
void check_message(char* message, const char* whose) {
  if (!message) return;
  std::string text(message);
  free(message);
  TORCH_CHECK(false, whose, text);
}

// A closure that is called when the gradient of a leaf has been accumulated.
struct Accumulated {
  std::shared_ptr<void> with;
  void (*call)(const void*, bool, char**);
};

// Calls the closures of a leaf whose handles exist. Like all hooks here, it is never removed.
struct AccumulatedHook : torch::autograd::FunctionPostHook {
  std::mutex mutex;
  std::vector<std::weak_ptr<const Accumulated>> closures;

  void add(const std::shared_ptr<const Accumulated>& closure) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto is_freed = [](const auto& known) { return known.expired(); };
    closures.erase(std::remove_if(closures.begin(), closures.end(), is_freed), closures.end());
    closures.push_back(closure);
  }

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& gradients) override {
    std::vector<std::shared_ptr<const Accumulated>> alive;
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (const auto& closure : closures)
        if (auto known = closure.lock()) alive.push_back(std::move(known));
    }
    for (const auto& closure : alive) {
      char* message = nullptr;
      closure->call(closure->with.get(), !gradients.empty() && gradients[0].defined(), &message);
      check_message(message, "");
    }
    return outputs;
  }
};

// Keeps a closure, and the node of the graph that calls it.
struct AccumulatedHandle {
  c10::intrusive_ptr<torch::autograd::Node> node;
  std::shared_ptr<const Accumulated> closure;
};

// The parameters that a function other than a step works on.
struct Params {
  at::Tensor** params;
  size_t count;
  size_t current;
};

// Returns the dtype that a step computes in and keeps its state in: float for half-precision
// parameters.
at::ScalarType computed_in(at::ScalarType kind) {
  return kind == at::kBFloat16 || kind == at::kHalf ? at::kFloat : kind;
}

bool is_updatable(at::ScalarType kind) {
  return kind == at::kFloat || kind == at::kDouble || kind == at::kHalf || kind == at::kBFloat16;
}

// Returns whether the kernels can update a parameter. They treat it as one contiguous block of
// memory, so its elements must fill a block without gaps and overlaps.
bool fits(const at::Tensor& param) {
  return has_values(param) && is_updatable(param.scalar_type()) && param.is_non_overlapping_and_dense();
}

// Returns why the kernels cannot update a parameter, as a phrase that follows its name.
std::string unfit(const at::Tensor& param) {
  if (!param.defined()) return "is an undefined tensor, but optimizers need one with values";
  if (param.layout() != at::kStrided)
    return c10::str("has the layout ", param.layout(), ", but optimizers only update dense parameters: register it as dense");
  if (!is_updatable(param.scalar_type()))
    return c10::str("has dtype ", toString(param.scalar_type()),
                    ", but optimizers only update Float, Double, Half and BFloat16: register it as one of these");
  if (param.is_neg() || param._is_zerotensor()) return "is a lazily computed view: register a copy of it, `.copy()`";
  if (!param.is_non_overlapping_and_dense())
    return c10::str("has gaps or overlaps in memory (shape ", param.sizes(), ", strides ", param.strides(),
                    "), but optimizers update contiguous blocks of memory: register a copy of it, `.contiguous()`");
  return "has no memory for its elements: its storage was freed";
}

// Checks again that the kernels can update a parameter, which may have changed since the trainer
// was built.
void check_param(const at::Tensor& param) {
  if (C10_UNLIKELY(!fits(param))) TORCH_CHECK(false, unfit(param), "; it was changed after the trainer was built");
}

// Checks an assumption of the kernels: the state has the sizes, strides and device of the
// parameter, and the right dtype.
void check_like(const at::Tensor& param, const at::Tensor& state) {
  TORCH_CHECK(has_values(state), "has optimizer state that is undefined, freed or not dense: it was changed after the trainer "
                                     "was built; build a new trainer");
  TORCH_CHECK(state.sizes() == param.sizes() && state.strides() == param.strides() &&
                  state.scalar_type() == computed_in(param.scalar_type()) && state.device() == param.device(),
              "is ", param.toString(), param.sizes(), " with strides ", param.strides(), " on ", param.device(),
              " now, but the optimizer's state for it is ", state.toString(), state.sizes(), " with strides ",
              state.strides(), " on ", state.device(),
              ": one of them was changed after the trainer was built; change it earlier, or build a new trainer");
}

// Checks an assumption of the kernels: the step count is a single float on this device.
void check_steps(const at::Tensor& steps, at::Device device) {
  TORCH_CHECK(has_values(steps) && steps.scalar_type() == at::kFloat && steps.numel() == 1 && steps.device() == device,
              "has a step count that is not a single Float on ", device,
              ": it was changed after the trainer was built; build a new trainer");
}

// Returns the gradient of a parameter in the layout that the kernels need, copied if necessary.
at::Tensor grad_for(const at::Tensor& param, const at::Tensor& grad) {
  TORCH_CHECK(grad.layout() == at::kStrided, "has a sparse gradient, of shape ", param.sizes(),
              ", but this optimizer needs dense ones: build its embedding with `sparse: false`");
  TORCH_CHECK(grad.sizes() == param.sizes() && grad.scalar_type() == param.scalar_type() &&
                  grad.device() == param.device(),
              "is ", param.toString(), param.sizes(), " on ", param.device(), ", but its gradient is ", grad.toString(),
              grad.sizes(), " on ", grad.device(),
              ": expected the same dtype, shape and device");
  if (grad.strides() == param.strides() && has_values(grad)) return grad;
  TORCH_CHECK(grad.strides() != param.strides() || grad.is_neg() || grad._is_zerotensor(),
              "has a gradient without memory for its elements: its storage was freed");
  auto copy = at::empty_like(param).copy_(grad);
  TORCH_CHECK(copy.strides() == param.strides(), "has the strides ", param.strides(), ", but a copy of its gradient has ",
              copy.strides());
  return copy;
}

// The tensors of one call to a kernel: all on the same device, all of the same dtype.
struct Bucket {
  at::Device device;
  at::ScalarType kind;
  bool first;  // whether this is the first step of these parameters
  std::vector<at::Tensor> params, grads, state[3], steps;
};

// Returns the bucket that a parameter belongs to, and creates it if necessary.
Bucket& bucket_of(std::vector<Bucket>& buckets, const at::Tensor& param, bool first, const Lists& lists) {
  for (auto& bucket : buckets)
    if (bucket.kind == param.scalar_type() && bucket.device == param.device() && bucket.first == first) return bucket;
  auto& bucket = buckets.emplace_back(Bucket{param.device(), param.scalar_type(), first});
  bucket.params.reserve(lists.count);
  bucket.grads.reserve(lists.count);
  for (int i = 0; i < 3; i++)
    if (lists.state[i]) bucket.state[i].reserve(lists.count);
  if (lists.steps) bucket.steps.reserve(lists.count);
  return bucket;
}

// Runs the kernel on the parameters that have a gradient, with their state. Half-precision
// parameters are converted to float before the kernel and rounded once after it. `steps_on_cpu`:
// whether the step counts are on the CPU, wherever the parameters are. `parts_first`: whether
// parameters at their first step need a separate call; requires `steps_on_cpu`.
template <typename Kernel>
char* step(Lists& lists, bool steps_on_cpu, bool parts_first, Kernel kernel) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::vector<Bucket> buckets;
    // Everything is checked before anything is changed.
    for (size_t i = 0; i < lists.count; i++) {
      lists.current = i;
      const at::Tensor& param = *lists.params[i];
      const at::Tensor& grad = param.grad();
      if (!grad.defined()) continue;
      check_param(param);
      if (lists.steps) check_steps(*lists.steps[i], steps_on_cpu ? at::Device(at::kCPU) : param.device());
      bool first = parts_first && *lists.steps[i]->const_data_ptr<float>() == 0;
      auto& bucket = bucket_of(buckets, param, first, lists);
      bucket.params.push_back(param);
      bucket.grads.push_back(grad_for(param, grad));
      for (int j = 0; j < 3; j++)
        if (lists.state[j]) check_like(param, bucket.state[j].emplace_back(*lists.state[j][i]));
      if (lists.steps) bucket.steps.push_back(*lists.steps[i]);
    }
    lists.current = lists.count;
    for (auto& bucket : buckets) {
      if (!bucket.steps.empty() && bucket.steps[0].device().is_cpu()) {
        for (auto& count : bucket.steps) *count.mutable_data_ptr<float>() += 1;
        count_change(bucket.steps);
      } else if (!bucket.steps.empty()) {
        at::_foreach_add_(bucket.steps, 1);
      }
      const auto kind = computed_in(bucket.kind);
      const auto counted = [&] {
        kernel(bucket);
        count_change(bucket.params);
        for (auto& list : bucket.state) count_change(list);
      };
      if (kind == bucket.kind) {
        counted();
        continue;
      }
      auto rounded = bucket.params;
      for (auto* list : {&bucket.params, &bucket.grads})
        for (auto& tensor : *list) tensor = tensor.to(kind);
      counted();
      at::_foreach_copy_(rounded, bucket.params);
    }
  });
}

// Returns the gradients of the objective to minimize, including the L2 penalty, as the foreach
// kernels take them.
std::vector<at::Tensor> descent(const Bucket& bucket, bool maximize, double weight_decay = 0) {
  auto grads = maximize ? at::_foreach_neg(bucket.grads) : bucket.grads;
  return weight_decay == 0 ? grads : at::_foreach_add(grads, bucket.params, weight_decay);
}

// Moves every singular value of each matrix of a batch close to 1, with Newton–Schulz iterations of
// Jordan's polynomial. The matrices must be wide or square.
at::Tensor orthogonalized(at::Tensor matrices, double eps, int64_t steps) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  matrices.div_(at::linalg_vector_norm(matrices, 2, at::IntArrayRef({1, 2}), /*keepdim=*/true).clamp_min(eps));
  for (int64_t i = 0; i < steps; i++) {
    auto gram = matrices.bmm(matrices.mT());
    auto polynomial = at::baddbmm(gram, gram, gram, b, c);
    matrices = at::baddbmm(matrices, polynomial, matrices, a);
  }
  return matrices;
}

// Suppresses the C++ trace of the forward pass that libtorch prints for an anomaly: the error
// itself names the function.
struct WithoutTrace final : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    if (warning.msg().rfind("Error detected in", 0) != 0) c10::WarningHandler::process(warning);
  }
} without_trace;

// Orders devices and dtypes.
struct Less {
  bool operator()(const std::pair<c10::Device, at::ScalarType>& one, const std::pair<c10::Device, at::ScalarType>& other) const {
    auto key = [](auto& it) { return std::tuple(it.first.type(), it.first.index(), it.second); };
    return key(one) < key(other);
  }
};

// Returns the gradients of the parameters that have one. They are changed in place, so no two
// elements may share memory.
std::vector<at::Tensor> grads_of(Params& list) {
  std::vector<at::Tensor> grads;
  grads.reserve(list.count);
  for (size_t i = 0; i < list.count; i++) {
    list.current = i;
    const at::Tensor& grad = list.params[i]->grad();
    if (!grad.defined()) continue;
    TORCH_CHECK(grad.layout() != at::kStrided || grad.is_non_overlapping_and_dense(),
                "has a gradient with gaps or overlaps in memory (shape ", grad.sizes(), ", strides ", grad.strides(),
                "): replace it with a contiguous copy, `.contiguous()`");
    TORCH_CHECK(grad.layout() != at::kStrided || has_values(grad),
                "has a gradient without memory for its elements, or a lazily computed one: replace it with a copy, "
                "`.copy()`");
    grads.push_back(grad);
  }
  list.current = list.count;
  return grads;
}

// Returns the random number generator of the CPU if `cuda` is negative, otherwise that of the CUDA
// device.
at::Generator generator_of(int64_t cuda) {
  TORCH_CHECK(cuda <= std::numeric_limits<c10::DeviceIndex>::max(), "there is no CUDA device ", cuda);
  auto device = cuda < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda));
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

extern "C" {

void trainer_free(char* message) { free(message); }

const char* trainer_version() { return TORCH_VERSION; }

// Returns why the kernels cannot update a parameter, as a message that follows its name, or null if
// they can.
char* trainer_unfit(const at::Tensor* param) {
  return guarded([&] {
    TORCH_CHECK(fits(*param), unfit(*param));
    TORCH_CHECK(param->is_leaf(), "is computed from another tensor, so it gets no gradient: register `.detach()` of it");
  });
}

// Checks the parameters like each optimizer step does.
char* trainer_check_params(Params* list) {
  return guarded([&] {
    for (list->current = 0; list->current < list->count; list->current++) check_param(*list->params[list->current]);
  });
}

// Returns an address that is the same for all handles of a tensor.
const void* trainer_identity(const at::Tensor* tensor) { return tensor->unsafeGetTensorImpl(); }

// Writes the address and the size of the memory that a parameter occupies. Returns false if the
// kernels cannot update it.
bool trainer_memory(const at::Tensor* param, size_t* begin, size_t* bytes) {
  if (!fits(*param)) return false;
  const size_t size = param->element_size();
  *begin = reinterpret_cast<size_t>(param->storage().data()) + static_cast<size_t>(param->storage_offset()) * size;
  *bytes = static_cast<size_t>(param->numel()) * size;
  return true;
}

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

// Sets the gradients to none, which is cheaper than zeroing them.
char* trainer_drop_grads(at::Tensor** params, size_t count) {
  return guarded([&] {
    for (size_t i = 0; i < count; i++)
      if (params[i]->defined()) params[i]->mutable_grad().reset();
  });
}

// Runs the backward pass for these parameters only: no other tensor gets a gradient.
char* trainer_backward(const at::Tensor* loss, at::Tensor** params, size_t count) {
  return guarded([&] {
    TORCH_CHECK(loss->defined(), "the loss is an undefined tensor");
    std::vector<at::Tensor> inputs;
    inputs.reserve(count);
    for (size_t i = 0; i < count; i++)
      if (params[i]->requires_grad()) inputs.push_back(*params[i]);  // a frozen one gets no gradient
    TORCH_CHECK(!inputs.empty(), "every parameter of this part of the model is frozen: unfreeze one of them, "
                                 "or skip `backward` for this part in a hook");
    loss->backward(/*gradient=*/{}, /*retain_graph=*/std::nullopt, /*create_graph=*/false, at::TensorList(inputs));
  });
}

// Multiplies the gradients by a factor.
char* trainer_scale_grads(Params* list, double factor) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto grads = grads_of(*list);
    if (!grads.empty()) at::_foreach_mul_(grads, factor);
  });
}

// Multiplies the gradients by a factor, and sets `finite` to whether all of them were finite.
// Synchronizes with the device.
char* trainer_unscale_grads(Params* list, double factor, bool* finite) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::map<std::pair<c10::Device, at::ScalarType>, std::vector<at::Tensor>, Less> together;
    for (auto& grad : grads_of(*list)) together[{grad.device(), grad.scalar_type()}].push_back(grad);
    std::vector<at::Tensor> found;
    for (auto& [at, grads] : together) {
      auto options = at::TensorOptions().device(at.first).dtype(at::kFloat);
      auto infinite = at::zeros({}, options);
      at::_amp_foreach_non_finite_check_and_unscale_(grads, infinite, at::full({}, factor, options));
      count_change(grads);
      found.push_back(infinite);
    }
    *finite = true;
    for (auto& each : found) *finite &= each.item<float>() == 0;
  });
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

// Clips the gradients by their total norm, like torch.nn.utils.clip_grad_norm_, without
// synchronizing with the device. `of_all` is the norm if other gradients count too, or null.
char* trainer_clip_grad_norm(Params* list, double max_norm, const at::Tensor* of_all, at::Tensor** norm) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto grads = grads_of(*list);
    if (grads.empty()) {
      *norm = new at::Tensor(of_all ? *of_all : at::zeros({}));
      return;
    }
    auto total = of_all ? *of_all : norm_of_norms(norms_of(grads));
    auto factor = at::clamp_max(max_norm / (total + 1e-6), 1.0);
    bool together = true;
    for (auto& grad : grads) together &= grad.device() == factor.device() && grad.scalar_type() == factor.scalar_type();
    if (together) {
      at::_foreach_mul_(grads, factor);
    } else {
      for (auto& grad : grads) grad.mul_(factor.to(grad.device()));
    }
    *norm = new at::Tensor(total);
  });
}

// Clamps each element of the gradients to [-max_value, max_value].
char* trainer_clip_grad_value(Params* list, double max_value) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto grads = grads_of(*list);
    if (grads.empty()) return;
    at::_foreach_clamp_min_(grads, -max_value);
    at::_foreach_clamp_max_(grads, max_value);
  });
}

// Sets the gradient of a parameter to a copy of `grad`, which must have its shape and dtype.
char* trainer_set_grad(at::Tensor* param, const at::Tensor* grad) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    TORCH_CHECK(param->defined() && grad->defined(), "is an undefined tensor, or its gradient is one");
    TORCH_CHECK(grad->layout() == at::kStrided, "has a gradient with the layout ", grad->layout(), ": expected a dense one");
    TORCH_CHECK(grad->sizes() == param->sizes(), "has the shape ", param->sizes(), ", but its gradient has ", grad->sizes());
    if (const char* why = unreadable(*grad)) TORCH_CHECK(false, "has a gradient that ", why);
    TORCH_CHECK(grad->scalar_type() == param->scalar_type(), "has dtype ", toString(param->scalar_type()),
                ", but its gradient has ", toString(grad->scalar_type()));
    param->mutable_grad() = grad->to(param->options().requires_grad(false), /*non_blocking=*/false, /*copy=*/true);
  });
}

// Calls `call` with each gradient of the tensor that a backward pass computes, on the thread that
// computes it, before or after the hooks that the tensor already has. The tensor that `call`
// returns, if any, replaces the gradient; the message that it writes, if any, is the text of a
// panic. `forget` is called once, when no backward pass can call `call` any more, or after an
// error. The hook is never removed: libtorch would destroy a function that may be running.
char* trainer_on_grad(const at::Tensor* tensor, bool is_first, at::Tensor* (*call)(const void*, at::Tensor*, char**),
                      void (*forget)(void*), void* with) {
  return guarded([&] {
    std::shared_ptr<void> owned(with, forget);
    TORCH_CHECK(tensor->defined(), "the tensor is undefined");
    TORCH_CHECK(tensor->requires_grad(),
                "the tensor requires no gradient, so none will be computed: call `.set_requires_grad(true)`");
    const auto hook = [owned, call](const at::TensorBase& gradient) -> at::TensorBase {
      if (!gradient.defined()) return at::TensorBase();
      // Lives until `call` returns, even if `call` drops the last handle of the tensor.
      const auto alive = owned;
      char* message = nullptr;
      std::unique_ptr<at::Tensor> replacement(call(alive.get(), new at::Tensor(gradient), &message));
      check_message(message, "a closure of `on_grad` ");
      return replacement ? at::TensorBase(*replacement) : at::TensorBase();
    };
    const auto& hooks = torch::autograd::impl::get_autograd_meta(*tensor)->cpp_hooks_list_;
    if (is_first && hooks) {
      hooks->insert(hooks->begin(), hook);
    } else {
      tensor->register_hook([hook](const at::Tensor& gradient) { return at::Tensor(hook(gradient)); });
    }
  });
}

// Calls `call` each time that a backward pass has accumulated the gradient of a leaf, with `true`,
// or has found that it is undefined, on the thread that does so, until the handle is freed. No lock
// of libtorch is held then, unlike in its own post-accumulate hooks: `call` may run another
// backward pass. The message that it writes, if any, ends the pass with an error. `forget` is
// called once: when the handle is freed and no `call` is running, or after an error.
char* trainer_on_accumulated(const at::Tensor* leaf, void (*call)(const void*, bool, char**), void (*forget)(void*),
                             void* with, AccumulatedHandle** handle) {
  return guarded([&] {
    std::shared_ptr<void> owned(with, forget);
    TORCH_CHECK(leaf->defined(), "the tensor is undefined");
    TORCH_CHECK(leaf->is_leaf() && leaf->requires_grad(), "the tensor is not a leaf that requires a gradient");
    auto node = torch::autograd::impl::grad_accumulator(*leaf);
    auto closure = std::make_shared<const Accumulated>(Accumulated{std::move(owned), call});
    AccumulatedHook* hook = nullptr;
    for (const auto& known : node->post_hooks())
      if (auto own = dynamic_cast<AccumulatedHook*>(known.get())) hook = own;
    if (!hook) {
      auto made = std::make_unique<AccumulatedHook>();
      hook = made.get();
      node->add_post_hook(std::move(made));
    }
    hook->add(closure);
    *handle = new AccumulatedHandle{std::move(node), std::move(closure)};
  });
}

void trainer_accumulated_free(AccumulatedHandle* handle) { delete handle; }

char* trainer_random_state(int64_t cuda, at::Tensor** state) {
  return guarded([&] {
    auto generator = generator_of(cuda);
    std::lock_guard<std::mutex> lock(generator.mutex());
    *state = new at::Tensor(generator.get_state());
  });
}

char* trainer_set_random_state(int64_t cuda, const at::Tensor* state) {
  return guarded([&] {
    auto generator = generator_of(cuda);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(*state);
  });
}

// Sets whether gradients are recorded on this thread. Returns the previous mode.
bool trainer_record_gradients(bool record) {
  bool before = c10::GradMode::is_enabled();
  c10::GradMode::set_enabled(record);
  return before;
}

// The process-wide modes of libtorch, in Rust's layout. `matmul_precision` is an
// `at::Float32MatmulPrecision`.
struct Modes {
  bool deterministic, deterministic_warns_only, detects_anomalies, checks_nan, benchmarks_cudnn;
  uint8_t matmul_precision;
};

// Returns the precision of products of float matrices. libtorch has a second setting for it, and
// throws if a program used both.
static at::Float32MatmulPrecision matmul_precision() {
  try {
    return at::globalContext().float32MatmulPrecision();
  } catch (const std::exception&) {
    return at::Float32MatmulPrecision::HIGHEST;
  }
}

Modes trainer_modes() {
  auto& context = at::globalContext();
  using torch::autograd::AnomalyMode;
  return {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
          AnomalyMode::is_enabled(),         AnomalyMode::should_check_nan(),
          context.benchmarkCuDNN(),          static_cast<uint8_t>(matmul_precision())};
}

void trainer_set_modes(Modes modes) {
  using torch::autograd::AnomalyMode;
  namespace warnings = c10::WarningUtils;
  if (modes.detects_anomalies)
    warnings::set_warning_handler(&without_trace);
  else if (warnings::get_warning_handler() == &without_trace)
    warnings::set_warning_handler(nullptr);  // the default handler of libtorch
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(modes.deterministic, modes.deterministic_warns_only);
  context.setBenchmarkCuDNN(modes.benchmarks_cudnn);
  const char* names[] = {"highest", "high", "medium"};
  if (modes.matmul_precision != static_cast<uint8_t>(matmul_precision()))
    context.setFloat32MatmulPrecision(names[modes.matmul_precision]);
  AnomalyMode::set_enabled(modes.detects_anomalies, modes.checks_nan);
}

// For each optimizer, the settings of one step, in Rust's layout, and the step, which updates the
// parameters that have a gradient.

struct Sgd {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize;
};

// State, with momentum only: the momentum buffers, and the step counts on the CPU.
char* trainer_sgd(Lists* lists, const Sgd* with) {
  // Buffers start at zero. The first step then equals PyTorch's, except that PyTorch does not
  // dampen it: with dampening, parameters at their first step need a separate call.
  return step(*lists, /*steps_on_cpu=*/true, with->dampening != 0 && lists->steps, [&](Bucket& it) {
    at::_fused_sgd_(it.params, it.grads, it.state[0], with->weight_decay, with->momentum, with->lr, with->dampening,
                    with->nesterov, with->maximize, /*is_first_step=*/it.first);
  });
}

struct Adam {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled, amsgrad, maximize;
};

// State: exp_avg; exp_avg_sq; with `amsgrad`, max_exp_avg_sq; step counts.
char* trainer_adam(Lists* lists, const Adam* with) {
  return step(*lists, /*steps_on_cpu=*/false, /*parts_first=*/false, [&](Bucket& it) {
    // The cast selects the overload of each function.
    using Kernel = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                            at::TensorList, double, double, double, double, double, bool, bool,
                            const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
    Kernel kernel = with->decoupled ? static_cast<Kernel>(at::_fused_adamw_) : static_cast<Kernel>(at::_fused_adam_);
    kernel(it.params, it.grads, it.state[0], it.state[1], it.state[2], it.steps, with->lr, with->beta1, with->beta2,
           with->weight_decay, with->eps, with->amsgrad, with->maximize, {}, {});
  });
}

struct Adagrad {
  double lr, lr_decay, eps, weight_decay;
  bool maximize;
};

// State: sum; step counts.
char* trainer_adagrad(Lists* lists, const Adagrad* with) {
  return step(*lists, /*steps_on_cpu=*/false, /*parts_first=*/false, [&](Bucket& it) {
    at::_fused_adagrad_(it.params, it.grads, it.state[0], it.steps, with->lr, with->lr_decay, with->weight_decay,
                        with->eps, with->maximize);
  });
}

struct RmsProp {
  double lr, alpha, eps, momentum, weight_decay;
  bool maximize;
};

// State: square_avg; in the centered variant, grad_avg; with momentum, the momentum buffers.
char* trainer_rmsprop(Lists* lists, const RmsProp* with) {
  return step(*lists, /*steps_on_cpu=*/false, /*parts_first=*/false, [&](Bucket& it) {
    auto& [square_avg, grad_avg, buffer] = it.state;
    auto grads = descent(it, with->maximize, with->weight_decay);
    at::_foreach_mul_(square_avg, with->alpha);
    at::_foreach_addcmul_(square_avg, grads, grads, 1 - with->alpha);
    std::vector<at::Tensor> avg;
    if (grad_avg.empty()) {
      avg = at::_foreach_sqrt(square_avg);
    } else {
      at::_foreach_lerp_(grad_avg, grads, 1 - with->alpha);
      avg = at::_foreach_addcmul(square_avg, grad_avg, grad_avg, -1);
      // Rounding makes the variance of gradients that hardly change negative, and its root NaN.
      at::_foreach_clamp_min_(avg, 0);
      at::_foreach_sqrt_(avg);
    }
    at::_foreach_add_(avg, with->eps);
    if (buffer.empty()) {
      at::_foreach_addcdiv_(it.params, grads, avg, -with->lr);
    } else {
      at::_foreach_mul_(buffer, with->momentum);
      at::_foreach_addcdiv_(buffer, grads, avg);
      at::_foreach_add_(it.params, buffer, -with->lr);
    }
  });
}

struct Lion {
  double lr, beta1, beta2, weight_decay;
  bool maximize;
};

// State: exp_avg.
char* trainer_lion(Lists* lists, const Lion* with) {
  return step(*lists, /*steps_on_cpu=*/false, /*parts_first=*/false, [&](Bucket& it) {
    auto& exp_avg = it.state[0];
    auto grads = descent(it, with->maximize);
    auto update = at::_foreach_mul(exp_avg, with->beta1);
    at::_foreach_add_(update, grads, 1 - with->beta1);
    at::_foreach_sign_(update);
    at::_foreach_mul_(it.params, 1 - with->lr * with->weight_decay);
    at::_foreach_add_(it.params, update, -with->lr);
    at::_foreach_mul_(exp_avg, with->beta2);
    at::_foreach_add_(exp_avg, grads, 1 - with->beta2);
  });
}

struct Muon {
  double lr, momentum, eps, weight_decay;
  int64_t ns_steps;
  bool nesterov, full_precision, match_rms_adamw, maximize;
};

// State: momentum_buffer. The parameters must be matrices.
char* trainer_muon(Lists* lists, const Muon* with) {
  return step(*lists, /*steps_on_cpu=*/false, /*parts_first=*/false, [&](Bucket& it) {
    auto& buffer = it.state[0];
    auto grads = descent(it, with->maximize);
    at::_foreach_lerp_(buffer, grads, 1 - with->momentum);
    auto updates = with->nesterov ? at::_foreach_lerp(grads, buffer, with->momentum) : buffer;
    at::_foreach_mul_(it.params, 1 - with->lr * with->weight_decay);
    // Matrices of the same shape, or of the transposed one, are one batch: small matrix products
    // cost much more than their arithmetic.
    std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> batches;
    for (size_t i = 0; i < updates.size(); i++)
      batches[std::minmax(updates[i].size(0), updates[i].size(1))].push_back(i);
    const auto kind = with->full_precision ? computed_in(it.kind) : at::kBFloat16;
    for (const auto& [shape, members] : batches) {
      const auto is_tall = [&](size_t i) { return updates[i].size(0) > updates[i].size(1); };
      std::vector<at::Tensor> wide;
      for (size_t i : members) wide.push_back(is_tall(i) ? updates[i].t() : updates[i]);
      const auto results = orthogonalized(at::stack(wide).to(kind), with->eps, with->ns_steps).unbind();
      for (size_t nth = 0; nth < members.size(); nth++) {
        const size_t i = members[nth];
        const double rows = updates[i].size(0), columns = updates[i].size(1);
        const double ratio = with->match_rms_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                                   : std::sqrt(std::max(1.0, rows / columns));
        it.params[i].add_(is_tall(i) ? results[nth].t() : results[nth], -with->lr * ratio);
      }
    }
  });
}
}
