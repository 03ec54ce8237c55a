// What tch leaves out of libtorch: fused optimizer kernels; gradients for some parameters alone, dropped, scaled and
// clipped; and modes.
//
// Tensors come as tch's own pointers. A function that can fail returns null, or a message to be
// freed with `trainer_free`; none lets an exception out.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Logging.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#ifdef __linux__
#include <dlfcn.h>
#endif

namespace {

#ifdef __linux__
// Linkers drop libraries that no symbol is taken from, and with libtorch_cuda the GPU. A build for
// the CPU has none, and nothing happens.
[[maybe_unused]] void* const cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL);
#endif

template <typename Body>
char* guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("libtorch raised an error that is no std::exception");
  }
}

// Errors carry a C++ backtrace, sixty lines between a user and the message, unless it is asked for
// as in PyTorch. Set while the program is loaded, before there is a second thread.
[[maybe_unused]] const bool quiet = [] {
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (!wanted || std::strcmp(wanted, "1") != 0) c10::SetStackTraceFetcher([]() -> std::string { return ""; });
  return true;
}();

// The kernels trust what they are given: the sizes, strides, kind and device of the parameter.
void check_like(const at::Tensor& param, const at::Tensor& state) {
  TORCH_CHECK(state.sizes() == param.sizes() && state.strides() == param.strides() &&
                  state.scalar_type() == param.scalar_type() && state.device() == param.device(),
              "a parameter is ", param.toString(), param.sizes(), " on ", param.device(),
              " now, and the optimizer's state for it ", state.toString(), state.sizes(), " on ", state.device(),
              ": it was changed after the trainer was built; change it before, or build the trainer anew");
}

// The gradient of a parameter in the layout that the kernels need.
at::Tensor grad_for(const at::Tensor& param, const at::Tensor& grad) {
  TORCH_CHECK(grad.layout() == at::kStrided, "the gradient of a parameter of shape ", param.sizes(),
              " is sparse, and this optimizer takes dense ones: build its embedding with `sparse: false`");
  TORCH_CHECK(grad.sizes() == param.sizes() && grad.scalar_type() == param.scalar_type() &&
                  grad.device() == param.device(),
              "the gradient of a parameter ", param.toString(), param.sizes(), " is ", grad.toString(), grad.sizes(),
              ": something replaced one of them");
  return grad.strides() == param.strides() ? grad : at::empty_like(param).copy_(grad);
}

// The tensors of one call to a kernel: all on one device, all of one kind.
struct Bucket {
  at::Device device;
  at::ScalarType kind;
  std::vector<at::Tensor> params, grads, first, second, steps;
};

Bucket& bucket_of(std::vector<Bucket>& buckets, const at::Tensor& param, size_t room) {
  for (auto& bucket : buckets)
    if (bucket.kind == param.scalar_type() && bucket.device == param.device()) return bucket;
  auto& bucket = buckets.emplace_back(Bucket{param.device(), param.scalar_type()});
  for (auto* list : {&bucket.params, &bucket.grads, &bucket.first, &bucket.second, &bucket.steps})
    list->reserve(room);
  return bucket;
}

// The parameters that have a gradient, and their state, for the kernels. Lists may be null.
std::vector<Bucket> buckets_of(at::Tensor** params, at::Tensor** first, at::Tensor** second, at::Tensor** steps,
                               size_t count) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < count; i++) {
    const at::Tensor& param = *params[i];
    const at::Tensor& grad = param.grad();
    if (!grad.defined()) continue;
    auto& bucket = bucket_of(buckets, param, count);
    bucket.params.push_back(param);
    bucket.grads.push_back(grad_for(param, grad));
    if (first) check_like(param, bucket.first.emplace_back(*first[i]));
    if (second) check_like(param, bucket.second.emplace_back(*second[i]));
    if (steps) bucket.steps.push_back(*steps[i]);
  }
  return buckets;
}

// With the error of an anomaly libtorch prints where in C++ the forward pass was: the error itself names the function.
struct WithoutTrace final : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    if (warning.msg().rfind("Error detected in", 0) != 0) c10::WarningHandler::process(warning);
  }
} without_trace;

// The gradients of the parameters that have one.
std::vector<at::Tensor> grads_of(at::Tensor** params, size_t count) {
  std::vector<at::Tensor> grads;
  grads.reserve(count);
  for (size_t i = 0; i < count; i++)
    if (params[i]->grad().defined()) grads.push_back(params[i]->grad());
  return grads;
}

// The generator of the CPU, or of a CUDA device.
at::Generator generator_of(int64_t cuda) {
  auto device = cuda < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda));
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

extern "C" {

void trainer_free(char* message) { free(message); }

// The size of the first dimension, or -1 if there is none. tch gives sizes as a vector on the heap.
int64_t trainer_rows(const at::Tensor* tensor) {
  return tensor->defined() && tensor->dim() > 0 ? tensor->size(0) : -1;
}

// Sets the gradients to none, which is cheaper than zeroing them.
char* trainer_drop_grads(at::Tensor** params, size_t count) {
  return guarded([&] {
    for (size_t i = 0; i < count; i++) params[i]->mutable_grad().reset();
  });
}

// The backward pass, for these parameters alone: no other tensor gets a gradient.
char* trainer_backward(const at::Tensor* loss, at::Tensor** params, size_t count) {
  return guarded([&] {
    std::vector<at::Tensor> inputs;
    inputs.reserve(count);
    for (size_t i = 0; i < count; i++)
      if (params[i]->requires_grad()) inputs.push_back(*params[i]);  // a frozen one has no gradient
    TORCH_CHECK(!inputs.empty(), "every parameter of this part of the model is frozen");
    loss->backward(/*gradient=*/{}, /*retain_graph=*/std::nullopt, /*create_graph=*/false, at::TensorList(inputs));
  });
}

// Multiplies the gradients.
char* trainer_scale_grads(at::Tensor** params, size_t count, double factor) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto grads = grads_of(params, count);
    if (!grads.empty()) at::_foreach_mul_(grads, factor);
  });
}

// Clips the gradients by the norm of all of them, as torch.nn.utils.clip_grad_norm_ does, without waiting for it.
char* trainer_clip_grad_norm(at::Tensor** params, size_t count, double max_norm, at::Tensor** norm) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto grads = grads_of(params, count);
    if (grads.empty()) {
      *norm = new at::Tensor(at::zeros({}));
      return;
    }
    auto norms = at::_foreach_norm(grads, 2);
    for (auto& each : norms) each = each.to(norms[0].device(), at::promote_types(norms[0].scalar_type(), at::kFloat));
    auto total = at::linalg_vector_norm(at::stack(norms), 2);
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

// Clips each element of the gradients.
char* trainer_clip_grad_value(at::Tensor** params, size_t count, double max_value) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto grads = grads_of(params, count);
    if (grads.empty()) return;
    at::_foreach_clamp_min_(grads, -max_value);
    at::_foreach_clamp_max_(grads, max_value);
  });
}

// Gives a parameter a gradient: a copy of this.
char* trainer_set_grad(at::Tensor* param, const at::Tensor* grad) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    TORCH_CHECK(grad->sizes() == param->sizes(), "a gradient of shape ", grad->sizes(), " for a parameter of shape ",
                param->sizes());
    param->mutable_grad() = grad->to(param->options().requires_grad(false), /*non_blocking=*/false, /*copy=*/true);
  });
}

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

// Whether gradients are recorded on this thread; gives what was before.
bool trainer_record_gradients(bool record) {
  bool before = c10::GradMode::is_enabled();
  c10::GradMode::set_enabled(record);
  return before;
}

// What libtorch does on the side, as flags.
struct Modes {
  bool deterministic, deterministic_warns_only, detects_anomalies, checks_nan;
};

Modes trainer_modes() {
  auto& context = at::globalContext();
  using torch::autograd::AnomalyMode;
  return {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
          AnomalyMode::is_enabled(), AnomalyMode::should_check_nan()};
}

void trainer_set_modes(Modes modes) {
  using torch::autograd::AnomalyMode;
  namespace warnings = c10::WarningUtils;
  if (modes.detects_anomalies)
    warnings::set_warning_handler(&without_trace);
  else if (warnings::get_warning_handler() == &without_trace)
    warnings::set_warning_handler(nullptr);  // libtorch's own
  at::globalContext().setDeterministicAlgorithms(modes.deterministic, modes.deterministic_warns_only);
  AnomalyMode::set_enabled(modes.detects_anomalies, modes.checks_nan);
}

// One step of SGD on the parameters that have a gradient. `momentum_buffers` is null without
// momentum; a buffer begins as zeros, with which the first step is what PyTorch's is.
char* trainer_sgd(at::Tensor** params, at::Tensor** momentum_buffers, size_t count, double lr, double momentum,
                  double weight_decay, bool nesterov) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    for (auto& bucket : buckets_of(params, momentum_buffers, nullptr, nullptr, count))
      at::_fused_sgd_(bucket.params, bucket.grads, bucket.first, weight_decay, momentum, lr, /*dampening=*/0, nesterov,
                      /*maximize=*/false, /*is_first_step=*/false);
  });
}

// One step of AdamW on the parameters that have a gradient. `steps` are float scalars, which it advances.
char* trainer_adamw(at::Tensor** params, at::Tensor** exp_avgs, at::Tensor** exp_avg_sqs, at::Tensor** steps,
                    size_t count, double lr, double beta1, double beta2, double weight_decay, double eps) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    for (auto& bucket : buckets_of(params, exp_avgs, exp_avg_sqs, steps, count)) {
      if (bucket.device.is_cpu()) {
        for (auto& step : bucket.steps) *step.mutable_data_ptr<float>() += 1;
      } else {
        at::_foreach_add_(bucket.steps, 1);
      }
      at::_fused_adamw_(bucket.params, bucket.grads, bucket.first, bucket.second, /*max_exp_avg_sqs=*/{},
                        bucket.steps, lr, beta1, beta2, weight_decay, eps, /*amsgrad=*/false,
                        /*maximize=*/false);
    }
  });
}
}
