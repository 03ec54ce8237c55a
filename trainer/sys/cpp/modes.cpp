// What concerns the whole process: libtorch's version, messages, random states and modes.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Logging.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/version.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <string>

#include "guarded.h"

namespace {

// Turns off the C++ backtraces of errors, about sixty lines each, unless they are requested with
// PyTorch's environment variable. Runs while the program is loaded, before there is a second
// thread.
[[maybe_unused]] const bool quiet = [] {
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (!wanted || std::strcmp(wanted, "1") != 0) c10::SetStackTraceFetcher([]() -> std::string { return ""; });
  return true;
}();

// Suppresses the C++ trace of the forward pass that libtorch prints for an anomaly: the error
// itself names the function.
struct WithoutTrace final : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    if (warning.msg().rfind("Error detected in", 0) != 0) c10::WarningHandler::process(warning);
  }
} without_trace;

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
}
