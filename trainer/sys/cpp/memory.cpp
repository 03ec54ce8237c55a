// The memory of tensors on the CPU, counted by an allocator in front of libtorch's. A function that
// can fail returns null on success, or a message that the caller frees with `trainer_free`. No
// function throws.

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "guarded.h"

namespace {

// The bytes that were allocated since a count began, and not freed yet.
struct MemoryCount {
  uint64_t first;  // the number of the first allocation that counts
  int64_t bytes = 0;
  int64_t peak = 0;
};

struct CountedBlock {
  uint64_t number;
  int64_t bytes;
};

// What is counted. Tensors can outlive the statics of a program, so this is never destroyed.
struct CountedMemory {
  std::mutex mutex;
  std::unordered_map<void*, CountedBlock> blocks;
  std::vector<MemoryCount*> counts;
  uint64_t allocations = 0;
  c10::Allocator* inner = nullptr;
};

CountedMemory& counted_memory() {
  static auto* const memory = new CountedMemory;
  return *memory;
}

// Frees a block, whether or not it is counted.
void free_counted(void* data) {
  auto& memory = counted_memory();
  c10::DeleterFnPtr free = nullptr;
  {
    std::lock_guard<std::mutex> lock(memory.mutex);
    free = memory.inner->raw_deleter();
    const auto found = memory.blocks.find(data);
    if (found != memory.blocks.end()) {
      for (auto* count : memory.counts)
        if (found->second.number >= count->first) count->bytes -= found->second.bytes;
      memory.blocks.erase(found);
    }
  }
  free(data);
}

// Allocates with libtorch's allocator. Blocks that were allocated while nothing is counted are
// freed by that allocator alone.
struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto& memory = counted_memory();
    auto block = memory.inner->allocate(bytes);
    void* const data = block.get();
    if (!data) return block;
    std::lock_guard<std::mutex> lock(memory.mutex);
    if (memory.counts.empty() || !block.compare_exchange_deleter(memory.inner->raw_deleter(), &free_counted))
      return block;
    const auto size = static_cast<int64_t>(bytes);
    memory.blocks[data] = {memory.allocations++, size};
    for (auto* count : memory.counts) {
      count->bytes += size;
      count->peak = std::max(count->peak, count->bytes);
    }
    return block;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    counted_memory().inner->copy_data(to, from, bytes);
  }
};

CountingAllocator& counting_allocator() {
  static auto* const allocator = new CountingAllocator;
  return *allocator;
}

}  // namespace

extern "C" {

// Begins to count the memory of tensors that any thread allocates on the CPU, and writes the handle
// that ends it. Counts can overlap.
char* trainer_memory_count_start(void** handle) {
  return guarded([&] {
    auto& memory = counted_memory();
    std::lock_guard<std::mutex> lock(memory.mutex);
    auto* const own = &counting_allocator();
    auto* const current = c10::GetAllocator(c10::kCPU);
    if (current != own) {
      TORCH_CHECK(current->raw_deleter() && (memory.blocks.empty() || memory.inner == current),
                  "the memory of tensors cannot be counted, because the program has another allocator of tensors than libtorch's");
      memory.inner = current;
      c10::SetAllocator(c10::kCPU, own);
      TORCH_CHECK(c10::GetAllocator(c10::kCPU) == own,
                  "the memory of tensors cannot be counted, because the program has set an allocator of tensors with a priority");
    }
    auto count = std::make_unique<MemoryCount>(MemoryCount{memory.allocations});
    memory.counts.push_back(count.get());
    *handle = count.release();
  });
}

// Writes the bytes that are allocated now, of those allocated since the count began, and their
// peak.
void trainer_memory_count(void* handle, int64_t* bytes, int64_t* peak) {
  std::lock_guard<std::mutex> lock(counted_memory().mutex);
  const auto* const count = static_cast<MemoryCount*>(handle);
  *bytes = count->bytes;
  *peak = count->peak;
}

// Whether this memory was allocated since the count began.
bool trainer_memory_is_counted(void* handle, const void* address) {
  auto& memory = counted_memory();
  std::lock_guard<std::mutex> lock(memory.mutex);
  const auto found = memory.blocks.find(const_cast<void*>(address));
  return found != memory.blocks.end() && found->second.number >= static_cast<MemoryCount*>(handle)->first;
}

// Ends a count. After the last one, tensors are allocated as before.
void trainer_memory_count_stop(void* handle) {
  auto& memory = counted_memory();
  std::lock_guard<std::mutex> lock(memory.mutex);
  auto* const count = static_cast<MemoryCount*>(handle);
  memory.counts.erase(std::remove(memory.counts.begin(), memory.counts.end(), count), memory.counts.end());
  delete count;
  if (memory.counts.empty() && c10::GetAllocator(c10::kCPU) == &counting_allocator())
    c10::SetAllocator(c10::kCPU, memory.inner);
}

// The memory of a tensor's values: its address, which is the same for tensors that share it, and
// its size in bytes. Both are 0 if it has none.
void trainer_storage(const at::Tensor* tensor, const void** address, size_t* bytes) {
  *address = nullptr;
  *bytes = 0;
  if (!tensor->defined() || !tensor->has_storage()) return;
  try {
    *address = tensor->storage().data();
    *bytes = tensor->storage().nbytes();
  } catch (...) {
    // A storage whose size is symbolic has no memory.
  }
}
}
