// Hashes of tensors, of which only those are read that may have changed since the last scan.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "guarded.h"
#include "readable.h"

namespace {

constexpr uint64_t MIX = 0xff51afd7ed558ccdULL;

uint64_t rotated(uint64_t x, int n) { return (x << n) | (x >> (64 - n)); }

// Mixes 64 bytes at a time in eight independent lanes, so that the multiplications overlap.
uint64_t hash_of(const uint8_t* bytes, size_t count, uint64_t seed) {
  uint64_t lanes[8];
  for (size_t lane = 0; lane < 8; lane++) lanes[lane] = seed + lane * 0x9e3779b97f4a7c15ULL;
  size_t at = 0;
  for (; at + 64 <= count; at += 64) {
    uint64_t words[8];
    std::memcpy(words, bytes + at, 64);
    for (size_t lane = 0; lane < 8; lane++) lanes[lane] = rotated((lanes[lane] ^ words[lane]) * MIX, 29);
  }
  for (size_t lane = 0; at < count; at += 8, lane++) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min<size_t>(8, count - at));
    lanes[lane] = rotated((lanes[lane] ^ word) * MIX, 29);
  }
  uint64_t hash = count * MIX;
  for (auto lane : lanes) hash = rotated((hash ^ lane) * 0x9fb21c651e98df25ULL, 32) * MIX;
  return hash;
}

// On a device, the sum of all words, each multiplied by an odd number that depends on its place: only
// the sum is copied to the host.
uint64_t hash_on_device(const at::Tensor& tensor, uint64_t seed) {
  auto flat = tensor.contiguous().view({-1});
  const bool has_words = flat.nbytes() % 8 == 0 && flat.storage_offset() * flat.itemsize() % 8 == 0;
  auto words = has_words ? flat.view(at::kLong) : flat.view(at::kByte).to(at::kLong);
  auto places = at::arange(1, words.numel() * 2, 2, words.options());
  auto factors = (places * static_cast<int64_t>(MIX)).bitwise_xor_(places.bitwise_right_shift(7));
  auto mixed = words.bitwise_xor(words.bitwise_right_shift(31)).add_(1).mul_(factors);
  auto sum = static_cast<uint64_t>(mixed.sum().item<int64_t>());
  return rotated((seed ^ sum) * MIX, 29) * 0x9fb21c651e98df25ULL;
}

uint64_t hash_of(const at::Tensor& tensor, bool is_trained) {
  uint64_t seed = static_cast<uint64_t>(tensor.scalar_type()) * 31 + (is_trained ? 7 : 3);
  uint64_t hash;
  if (tensor.is_nested()) {
    hash = rotated(seed * MIX, 31);
    for (const auto& part : tensor.detach().unbind()) hash = rotated((hash ^ hash_of(part, false)) * MIX, 29);
    return hash | 1;
  }
  for (auto size : tensor.sizes()) seed = (seed ^ static_cast<uint64_t>(size)) * MIX;
  if (unreadable(tensor)) {
    hash = rotated(seed * MIX, 17);  // no values: differs from all tensors with values, and equals itself
  } else {
    const auto values = dense(tensor, false);
    if (values.device().is_cpu()) {
      const auto packed = values.contiguous();
      const auto count = static_cast<size_t>(packed.numel()) * packed.element_size();
      hash = hash_of(count == 0 ? nullptr : static_cast<const uint8_t*>(packed.const_data_ptr()), count, seed);
    } else {
      hash = hash_on_device(values, seed);
    }
  }
  return hash | 1;  // 0 stands for no tensor
}

// What is known of the tensor at one place of a list.
struct Seen {
  // Keeps the address from being reused, without keeping the memory.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> impl;
  uint32_t version = 0;
  const void* data = nullptr;
  bool is_trained = false;
  uint64_t hash = 0;
};

}  // namespace

struct TrainerScan {
  std::vector<Seen> seen;
};

extern "C" {

TrainerScan* trainer_scan_new() { return new TrainerScan; }

void trainer_scan_free(TrainerScan* scan) { delete scan; }

// Writes the places and hashes of the tensors, or of their gradients, whose hash differs from that of
// the last scan; 0 for a tensor that is undefined. With `trusts`, a tensor is read only if its identity,
// version counter, data or `requires_grad` have changed. With `marks`, the hash of a leaf says whether it
// requires a gradient. `changed` and `hashes` have room for the longest list so far. After an error,
// `found` is the place of the tensor that could not be read.
char* trainer_scan(TrainerScan* scan, at::Tensor* const* tensors, size_t count, bool gradients, bool marks,
                   bool trusts, uint32_t* changed, uint64_t* hashes, size_t* found) {
  return guarded([&] {
    size_t written = 0;
    const size_t before = scan->seen.size();
    if (before < count) scan->seen.resize(count);
    for (size_t place = 0; place < scan->seen.size(); place++) {
      *found = place;
      auto& seen = scan->seen[place];
      const at::Tensor none;
      const at::Tensor& tensor = place >= count ? none : gradients ? tensors[place]->grad() : *tensors[place];
      uint64_t hash = 0;
      if (tensor.defined()) {
        auto* impl = tensor.unsafeGetTensorImpl();
        const bool is_counted = !impl->is_inference();
        const uint32_t version = is_counted ? impl->version_counter().current_version() : 0;
        const void* data = tensor.has_storage() ? tensor.storage().data() : nullptr;
        if (data) data = static_cast<const char*>(data) + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
        const bool is_trained = marks && tensor.requires_grad() && tensor.is_leaf();
        if (trusts && is_counted && data && seen.impl && seen.impl->_unsafe_get_target() == impl &&
            seen.version == version && seen.data == data && seen.is_trained == is_trained) {
          continue;
        }
        seen.impl.reset();
        hash = hash_of(tensor, is_trained);
        seen.impl.emplace(tensor.getIntrusivePtr());
        seen.version = version;
        seen.data = data;
        seen.is_trained = is_trained;
      } else {
        seen.impl.reset();
      }
      if (hash == seen.hash) continue;
      seen.hash = hash;
      changed[written] = static_cast<uint32_t>(place);
      hashes[written++] = hash;
    }
    *found = written;
    scan->seen.resize(count);
  });
}

// The hash of a text or of any other bytes.
uint64_t trainer_scan_bytes(const uint8_t* bytes, size_t count) { return hash_of(bytes, count, 11) | 1; }

// A hash of the state of the random number generator of the CPU, or of a CUDA device if `cuda` is not
// negative. Of the CPU's, it has the seed, the position, the first word and the spare normal number.
char* trainer_scan_random(int64_t cuda, uint64_t* hash) {
  return guarded([&] {
    if (cuda >= 0) {
      const auto& generator = at::globalContext().defaultGenerator(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda)));
      const uint64_t state[2] = {generator.current_seed(), generator.get_offset()};
      *hash = trainer_scan_bytes(reinterpret_cast<const uint8_t*>(state), sizeof state);
      return;
    }
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    const auto engine = impl->engine().data();
    const auto normal = impl->next_double_normal_sample();
    const auto single = impl->next_float_normal_sample();
    uint64_t spare = 0;
    const double value = normal.value_or(0);
    std::memcpy(&spare, &value, sizeof spare);
    uint32_t spare_single = 0;
    const float single_value = single.value_or(0);
    std::memcpy(&spare_single, &single_value, sizeof spare_single);
    const uint64_t state[7] = {engine.seed_, static_cast<uint64_t>(engine.left_), engine.next_, engine.state_[0],
                               spare, spare_single, (normal ? 2ULL : 0) + (single ? 1ULL : 0)};
    *hash = trainer_scan_bytes(reinterpret_cast<const uint8_t*>(state), sizeof state);
  });
}

// Writes the name of the instruction set of libtorch's kernels into `text`, of `size` bytes.
void trainer_cpu_capability(char* text, size_t size) {
  const auto name = at::get_cpu_capability();
  const size_t length = std::min(name.size(), size - 1);
  std::memcpy(text, name.data(), length);
  text[length] = 0;
}
}
