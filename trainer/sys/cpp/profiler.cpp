// libtorch's profiler of operators and kernels. A function that can fail returns null on success,
// or a message that the caller frees with `trainer_free`. No function throws.

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <set>

#include "guarded.h"

namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

}  // namespace

extern "C" {

// Whether a profiler is recording on this thread.
bool trainer_profiler_enabled() { return torch::profiler::impl::profilerEnabled(); }

// Starts recording the operators that this thread calls, and on a GPU their kernels.
char* trainer_profiler_start(bool cuda, bool shapes) {
  return guarded([&] {
    std::set<ActivityType> activities = {ActivityType::CPU};
    if (cuda) activities.insert(ActivityType::CUDA);
    ProfilerConfig config(ProfilerState::KINETO, shapes);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                                                                   at::RecordScope::USER_SCOPE});
  });
}

// Ends the recording, and writes it to the file unless `path` is null.
char* trainer_profiler_stop(const char* path) {
  return guarded([&] {
    auto result = torch::autograd::profiler::disableProfiler();
    if (path) result->save(path);
  });
}
}
