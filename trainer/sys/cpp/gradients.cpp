// Backward passes for selected parameters; dropping, scaling and clipping gradients; and callbacks
// for gradients.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdlib>
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
#include "params.h"
#include "readable.h"

namespace {

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

}  // namespace

extern "C" {

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
}
