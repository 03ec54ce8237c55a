// Steps of optimizers on fused and foreach kernels, and which parameters these can update.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "counted.h"
#include "guarded.h"
#include "params.h"
#include "readable.h"

namespace {

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

// Moves every singular value of each matrix of a batch close to 1, with Newton–Schulz iterations
// of Jordan's polynomial. The matrices must be wide or square.
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

}  // namespace

extern "C" {

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

// Writes the address and the size of the memory that a parameter occupies. Returns false if the
// kernels cannot update it.
bool trainer_memory(const at::Tensor* param, size_t* begin, size_t* bytes) {
  if (!fits(*param)) return false;
  const size_t size = param->element_size();
  *begin = reinterpret_cast<size_t>(param->storage().data()) + static_cast<size_t>(param->storage_offset()) * size;
  *bytes = static_cast<size_t>(param->numel()) * size;
  return true;
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
