// Batch normalization in training needs more than one value per channel: the variance of one value
// is 0 / 0, with which libtorch would overwrite the running variance. PyTorch checks this in Python,
// tch nowhere. All batch normalizations, those of `instance_norm` among them, call the operator
// `batch_norm`, which is therefore checked here, for every caller in the process.

#include <ATen/ATen.h>
#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

namespace {

// What a batch normalization in training does. Matches `Statistics` in libtorch/batch_norm.rs.
enum Statistics : int32_t {
  // Updates the running statistics, and throws an exception if there is one value per channel.
  Checked = 0,
  // Updates the running statistics. If there is one value per channel, notes that instead.
  Noted = 1,
  // Leaves the running statistics as they are, because the rows of the batch do not count.
  Kept = 2,
};

// Matches `SingleValue` in lib.rs.
struct SingleValue {
  // The identity of the running mean; null without running statistics.
  const void* running_mean;
  // The number of dimensions of the input, and the sizes of the first ones.
  size_t dims;
  int64_t sizes[6];
};

thread_local int32_t statistics = Checked;
thread_local bool is_noted = false;
thread_local SingleValue noted{};

using Optional = std::optional<at::Tensor>;

// Returns whether the running statistics must not be updated.
bool must_keep(const at::Tensor& input, const Optional& running_mean) {
  if (statistics == Kept) return true;
  if (input.dim() < 2 || input.numel() == 0 || input.numel() != input.size(1)) return false;
  TORCH_CHECK(statistics == Noted, "batch normalization in training mode needs more than one value per channel, but its input has the shape ",
              input.sizes(), ": use larger batches, or leave out a last batch of one row");
  if (is_noted) return true;
  is_noted = true;
  noted.running_mean = running_mean && running_mean->defined() ? running_mean->unsafeGetTensorImpl() : nullptr;
  noted.dims = std::min<size_t>(static_cast<size_t>(input.dim()), 6);
  std::copy_n(input.sizes().begin(), noted.dims, noted.sizes);
  return true;
}

at::Tensor batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias,
                      const Optional& running_mean, const Optional& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  if (training && must_keep(input, running_mean))
    return at::native::batch_norm(input, weight, bias, {}, {}, training, momentum, eps, cudnn_enabled);
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}

}  // namespace

// The operator has no kernels of its own for these keys: this one takes the place of the general one.
TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) { library.impl("batch_norm", TORCH_FN(batch_norm)); }
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) { library.impl("batch_norm", TORCH_FN(batch_norm)); }
TORCH_LIBRARY_IMPL(aten, AutogradMPS, library) { library.impl("batch_norm", TORCH_FN(batch_norm)); }

extern "C" {

// Sets what batch normalizations of this thread do, and returns the previous setting.
int32_t trainer_batch_norm_enter(int32_t what) { return std::exchange(statistics, what); }

// Restores the setting that `trainer_batch_norm_enter` returned. Writes what was noted since then, and
// returns whether anything was.
bool trainer_batch_norm_exit(int32_t before, SingleValue* single) {
  statistics = before;
  if (!is_noted) return false;
  is_noted = false;
  *single = noted;
  return true;
}
}
