// What tch leaves out of libtorch: fused optimizer kernels, and gradients that are dropped.
//
// Tensors come as tch's own pointers. A function that can fail returns null, or a message to be
// freed with `trainer_free`; none lets an exception out.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Logging.h>

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

// The tensors of one call to a kernel: all on one device, all of one kind.
struct Bucket {
  at::Device device;
  at::ScalarType kind;
  bool started;
  std::vector<at::Tensor> params, grads, first, second, steps;
};

Bucket& bucket_of(std::vector<Bucket>& buckets, const at::Tensor& param, bool started, size_t room) {
  for (auto& bucket : buckets)
    if (bucket.started == started && bucket.kind == param.scalar_type() && bucket.device == param.device())
      return bucket;
  auto& bucket = buckets.emplace_back(Bucket{param.device(), param.scalar_type(), started});
  for (auto* list : {&bucket.params, &bucket.grads, &bucket.first, &bucket.second, &bucket.steps})
    list->reserve(room);
  return bucket;
}

}  // namespace

extern "C" {

void trainer_free(char* message) { free(message); }

// Errors carry no C++ backtrace from now on: it is sixty lines between a user and the message.
void trainer_no_backtraces() {
  c10::SetStackTraceFetcher([]() -> std::string { return ""; });
}

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

// One step of SGD on the parameters that have a gradient. `momentum_buffers` is null without momentum;
// `started[i]` says whether the i-th buffer holds anything yet, and is set.
char* trainer_sgd(at::Tensor** params, at::Tensor** momentum_buffers, bool* started, size_t count, double lr,
                  double momentum, double weight_decay, bool nesterov) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::vector<Bucket> buckets;
    for (size_t i = 0; i < count; i++) {
      const auto& grad = params[i]->grad();
      if (!grad.defined()) continue;
      auto& bucket = bucket_of(buckets, *params[i], momentum_buffers && started[i], count);
      bucket.params.push_back(*params[i]);
      bucket.grads.push_back(grad);
      if (momentum_buffers) {
        bucket.first.push_back(*momentum_buffers[i]);
        started[i] = true;
      }
    }
    for (auto& bucket : buckets)
      at::_fused_sgd_(bucket.params, bucket.grads, bucket.first, weight_decay, momentum, lr, /*dampening=*/0,
                      nesterov, /*maximize=*/false, /*is_first_step=*/!bucket.started);
  });
}

// One step of AdamW on the parameters that have a gradient. `steps` are float scalars, which it advances.
char* trainer_adamw(at::Tensor** params, at::Tensor** exp_avgs, at::Tensor** exp_avg_sqs, at::Tensor** steps,
                    size_t count, double lr, double beta1, double beta2, double weight_decay, double eps) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    std::vector<Bucket> buckets;
    for (size_t i = 0; i < count; i++) {
      const auto& grad = params[i]->grad();
      if (!grad.defined()) continue;
      auto& bucket = bucket_of(buckets, *params[i], true, count);
      bucket.params.push_back(*params[i]);
      bucket.grads.push_back(grad);
      bucket.first.push_back(*exp_avgs[i]);
      bucket.second.push_back(*exp_avg_sqs[i]);
      bucket.steps.push_back(*steps[i]);
    }
    for (auto& bucket : buckets) {
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
