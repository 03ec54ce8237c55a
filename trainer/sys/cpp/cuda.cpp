// NVIDIA GPUs: loading libtorch's library for them, why there is none, the memory of libtorch's
// allocator, copies on a stream of their own, and the number of times that a thread waited. Compiled
// against the headers of a build for the CPU: none of CUDA's are needed.

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <memory>
#include <string>

#ifdef __linux__
#include <dlfcn.h>
#include <unistd.h>
#endif

#include "guarded.h"

namespace {

#ifdef __linux__
// Returns the path of a library in the folder of libtorch.
std::string beside_libtorch(const char* library) {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&at::globalContext), &info) || !info.dli_fname) return library;
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + library;
}

// The driver, if there is one, and why libtorch's library for GPUs is not loaded, if it should be.
struct Loaded {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  std::string error;

  // Linkers drop libraries from which no symbol is used, so libtorch_cuda is loaded here. A build
  // for the CPU does not have it. Without a driver it is of no use, and loading it takes as long as
  // starting the rest of the program.
  Loaded() {
    const auto library = beside_libtorch("libtorch_cuda.so");
    if (!driver || access(library.c_str(), F_OK) != 0) return;
    // libnvrtc compiles some kernels while the program runs. It finds its builtins on the library
    // path, or if they are loaded already.
    dlopen(beside_libtorch("libnvrtc-builtins.so.13.0").c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!dlopen(library.c_str(), RTLD_LAZY | RTLD_GLOBAL)) error = dlerror();
  }
};

const Loaded loaded;

// Returns a function of the CUDA runtime, which libtorch_cpu is linked against.
template <typename Function>
Function* runtime(const char* name) {
  auto* function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  TORCH_CHECK(function, "the CUDA runtime has no function `", name, "`");
  return function;
}

// Of CUDA's headers.
constexpr int kInsufficientDriver = 35, kNoDevice = 100;
#endif

c10::Device cuda_device(int64_t cuda) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(cuda)}; }

c10::DeviceAllocator& allocator() { return *c10::getDeviceAllocator(c10::kCUDA); }

// The number of times that any thread waited for a GPU since `trainer_waits_start`.
std::atomic<uint64_t> waits{0};

// Receives what libtorch traces for a Python interpreter. Only waits are counted; no tensor belongs
// to this interpreter, so nothing else is called.
struct WaitCounter final : c10::impl::PyInterpreterVTable {
  [[noreturn]] static void unused() { TORCH_INTERNAL_ASSERT(false, "no tensor belongs to this interpreter"); }

  std::string name() const override { return "trainer"; }
  void incref(PyObject*) const override {}
  void decref(PyObject*) const override {}
  bool try_incref(const c10::impl::PyObjectSlot&) const override { return false; }
  size_t refcnt(PyObject*) const override { return 0; }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl*) const override { unused(); }
  void dispatch(const c10::OperatorHandle&, torch::jit::Stack*) const override { unused(); }
  void reportErrorCallback(PyObject*, c10::DispatchKey) const override {}
  void python_op_registration_trampoline(const c10::OperatorHandle&, c10::DispatchKey, c10::DispatchKeySet,
                                         torch::jit::Stack*, bool, bool) const override {
    unused();
  }
  void throw_abstract_impl_not_imported_error(std::string, const char*, const char*) const override { unused(); }
  void python_dispatcher(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) const override { unused(); }
  bool is_contiguous(const c10::TensorImpl*, at::MemoryFormat) const override { unused(); }
  c10::SymBool sym_is_contiguous(const c10::TensorImpl*, at::MemoryFormat) const override { unused(); }
  bool is_strides_like(const c10::TensorImpl*, at::MemoryFormat) const override { unused(); }
  bool is_non_overlapping_and_dense(const c10::TensorImpl*) const override { unused(); }
  c10::Device device(const c10::TensorImpl*) const override { unused(); }
  int64_t dim(const c10::TensorImpl*) const override { unused(); }
  c10::IntArrayRef strides(const c10::TensorImpl*) const override { unused(); }
  c10::IntArrayRef sizes(const c10::TensorImpl*) const override { unused(); }
  c10::SymIntArrayRef sym_sizes(const c10::TensorImpl*) const override { unused(); }
  c10::Layout layout(const c10::TensorImpl*) const override { unused(); }
  int64_t numel(const c10::TensorImpl*) const override { unused(); }
  c10::SymInt sym_numel(const c10::TensorImpl*) const override { unused(); }
  c10::SymIntArrayRef sym_strides(const c10::TensorImpl*) const override { unused(); }
  c10::SymInt sym_storage_offset(const c10::TensorImpl*) const override { unused(); }
  void trace_gpu_event_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_deletion(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_record(c10::DeviceType, uintptr_t, uintptr_t) const override {}
  void trace_gpu_event_wait(c10::DeviceType, uintptr_t, uintptr_t) const override {}
  void trace_gpu_memory_allocation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_memory_deallocation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_stream_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_device_synchronization(c10::DeviceType) const override { count(); }
  void trace_gpu_stream_synchronization(c10::DeviceType, uintptr_t) const override { count(); }
  void trace_gpu_event_synchronization(c10::DeviceType, uintptr_t) const override { count(); }
  void reset_backward_hooks(const c10::TensorImpl*) const override {}

  static void count() { waits.fetch_add(1, std::memory_order_relaxed); }
};

const WaitCounter counter;
const c10::impl::PyInterpreter interpreter(&counter);

}  // namespace

extern "C" {

// What there is of CUDA. Matches `CudaSupport` in lib.rs. The versions are CUDA's: 13000 for 13.0.
struct CudaSupport {
  enum : int32_t { kReady, kNotBuilt, kNoDriver, kOldDriver, kNoDevice, kUnknown } what;
  int32_t driver, needed;
};

// Writes what there is of CUDA, or returns a message for a failure that has no name here.
char* trainer_cuda_support(CudaSupport* support) {
  return guarded([&] {
    *support = {CudaSupport::kReady, 0, 0};
#ifdef __linux__
    if (access(beside_libtorch("libtorch_cuda.so").c_str(), F_OK) != 0 && !at::hasCUDA()) {
      support->what = CudaSupport::kNotBuilt;
      return;
    }
    if (!loaded.driver) {
      support->what = CudaSupport::kNoDriver;
      return;
    }
    int count = 0;
    const int code = runtime<int(int*)>("cudaGetDeviceCount")(&count);
    if (code == kInsufficientDriver) {
      support->what = CudaSupport::kOldDriver;
      runtime<int(int*)>("cudaDriverGetVersion")(&support->driver);
      runtime<int(int*)>("cudaRuntimeGetVersion")(&support->needed);
    } else if (code == kNoDevice || (code == 0 && count == 0)) {
      support->what = CudaSupport::kNoDevice;
    } else {
      TORCH_CHECK(code == 0, runtime<const char*(int)>("cudaGetErrorString")(code), " (CUDA error ", code, ")");
      TORCH_CHECK(loaded.error.empty(), "libtorch_cuda.so cannot be loaded: ", loaded.error);
      TORCH_CHECK(at::hasCUDA(), "libtorch finds no GPU, although the CUDA runtime reports ", count);
    }
#else
    if (!at::hasCUDA()) support->what = CudaSupport::kUnknown;
#endif
  });
}

// The memory of a CUDA device in bytes, as libtorch's allocator counts it. Matches `CudaMemory` in
// lib.rs.
struct CudaMemory {
  int64_t allocated, peak_allocated, reserved, peak_reserved;
};

char* trainer_cuda_memory(int64_t cuda, CudaMemory* memory) {
  return guarded([&] {
    auto stats = allocator().getDeviceStats(static_cast<c10::DeviceIndex>(cuda));
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    auto &allocated = stats.allocated_bytes[all], &reserved = stats.reserved_bytes[all];
    *memory = {allocated.current, allocated.peak, reserved.current, reserved.peak};
  });
}

// Sets the peaks of a CUDA device to what is allocated and reserved now.
char* trainer_cuda_reset_peaks(int64_t cuda) {
  return guarded([&] { allocator().resetPeakStats(static_cast<c10::DeviceIndex>(cuda)); });
}

// Returns the memory that libtorch's allocator holds but no tensor occupies to the driver, for all
// CUDA devices.
char* trainer_cuda_empty_cache() {
  return guarded([&] {
    if (allocator().initialized()) allocator().emptyCache();
  });
}

// Writes the PCI bus id of a CUDA device, null-terminated, as `0000:18:00.0`. Returns false if the
// CUDA runtime is not loaded or has no such device.
bool trainer_cuda_bus_id(int64_t cuda, char* text, int size) {
#ifdef __linux__
  using Function = int (*)(char*, int, int);
  auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  return function && function(text, size, static_cast<int>(cuda)) == 0;
#else
  return false;
#endif
}

// Records an event after all work that is queued on this thread's current stream of a CUDA device.
char* trainer_event_record(int64_t cuda, c10::Event** event) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    auto recorded = std::make_unique<c10::Event>(c10::kCUDA);
    recorded->record(guard.getStream(cuda_device(cuda)));
    *event = recorded.release();
  });
}

// Waits for an event.
char* trainer_event_wait(const c10::Event* event) {
  return guarded([&] { event->synchronize(); });
}

// Lets the work that is queued on this thread's current stream of a CUDA device from now on wait for
// an event. The thread itself does not wait.
char* trainer_event_block(const c10::Event* event, int64_t cuda) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    event->block(guard.getStream(cuda_device(cuda)));
  });
}

void trainer_event_free(c10::Event* event) { delete event; }

// Makes one of libtorch's streams, beside its default stream, the current one of this thread for a
// CUDA device.
char* trainer_stream_enter(int64_t cuda) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    guard.exchangeStream(guard.getStreamFromGlobalPool(cuda_device(cuda)));
  });
}

// Keeps the memory of a CUDA tensor, once it is freed, from being used again before the work that is
// queued on this thread's current stream of its device by then has ended.
char* trainer_record_stream(const at::Tensor* tensor) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    tensor->record_stream(guard.getStream(tensor->device()));
  });
}

// Copies a tensor from the host to a CUDA device through pinned memory, on this thread's current
// stream. Returns before the copy has ended.
char* trainer_upload(const at::Tensor* tensor, int64_t cuda, at::Tensor** copy) {
  return guarded([&] {
    const bool can_be_pinned = tensor->device().is_cpu() && tensor->layout() == at::kStrided;
    const auto pinned = can_be_pinned ? tensor->pin_memory() : *tensor;
    *copy = new at::Tensor(pinned.to(cuda_device(cuda), tensor->scalar_type(), /*non_blocking=*/true));
  });
}

// Begins to count waits. libtorch can report them to one receiver in a process; returns false if it
// is not this one.
bool trainer_waits_start() {
  static const bool counts = [] {
    c10::impl::GPUTrace::set_trace(&interpreter);
    return c10::impl::GPUTrace::get_trace() == &interpreter;
  }();
  return counts;
}

// Returns the number of times that a thread of this process waited for a GPU.
uint64_t trainer_waits() { return waits.load(std::memory_order_relaxed); }

// Reports a wait in the way in which libtorch does. For tests on machines without a GPU.
void trainer_waits_imitate() {
  if (const auto* trace = c10::impl::GPUTrace::get_trace()) (*trace)->trace_gpu_stream_synchronization(c10::kCUDA, 0);
}
}
