// Gradients that are added over the ranks while a backward pass computes them, each on the rank
// that its parameter belongs to.

#pragma once

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace {

// The gradients are sent in buckets, one at a time, in an order that is the same on all ranks. The
// owner adds what it receives in the order of the ranks, so no sum depends on the buckets.
struct Exchange {
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  struct Parameter {
    at::Tensor tensor;
    int owner;
    bool is_ready = false;
    at::Tensor before;  // the sum of the earlier passes, on its owner
    at::Tensor sum;     // the sum of this pass as far as it has arrived, on its owner
  };

  // A run of the elements of a gradient. After the last one there is another: whether the rank has
  // a gradient.
  struct Slice {
    size_t parameter;
    int64_t from, count;
    int64_t at;  // among the elements that its owner receives from each rank
  };

  struct Bucket {
    at::TensorOptions options;
    std::vector<Slice> slices;
    std::vector<int64_t> splits;  // the number of elements for each rank
    size_t pending = 0;           // the parameters whose gradients are to come
    int64_t total = 0;
  };

  int rank, size;
  int64_t bucket_bytes;
  std::vector<Parameter> parameters;
  std::vector<Bucket> buckets;
  std::vector<std::vector<size_t>> buckets_of;  // of each parameter
  bool is_ordered = false;                      // whether the buckets are in the order of a pass
  bool has_rows = true, may_wait = true;
  size_t computed = 0;  // the gradients that this pass has computed
  size_t next = 0;      // the next bucket to send
  size_t landing = 0;   // the bucket in flight
  at::Tensor flat, got;
  c10::intrusive_ptr<c10d::Work> work;

  // Divides the gradients into buckets. No rank receives many more bytes in one of them than it
  // sends.
  void divide(const std::vector<int64_t>& by) {
    buckets.clear();
    buckets_of.assign(parameters.size(), {});
    std::map<at::ScalarType, Bucket> open;
    const auto close = [&](Bucket& bucket) {
      for (auto& slice : bucket.slices) buckets_of[slice.parameter].push_back(buckets.size());
      buckets.push_back(std::exchange(bucket, Bucket()));
    };
    for (auto nth : by) {
      const auto& [tensor, owner, is_ready, before, sum] = parameters[nth];
      const int64_t bytes = tensor.element_size(), length = tensor.numel() + 1;
      const int64_t most = std::max<int64_t>(bucket_bytes / bytes, 1);
      const int64_t of_owner = std::min(most, std::max<int64_t>({2 * bucket_bytes / size, 64 << 10}) / bytes);
      auto& bucket = open[tensor.scalar_type()];
      for (int64_t from = 0; from < length;) {
        if (bucket.splits.empty()) {
          bucket.splits.assign(size, 0);
          bucket.options = tensor.options().requires_grad(false);
        }
        const auto room = std::min(most - bucket.total, of_owner - bucket.splits[owner]);
        if (room < 1 || (room < length && length <= of_owner && bucket.total > 0)) {
          close(bucket);
          continue;
        }
        const auto count = std::min(room, length - from);
        bucket.slices.push_back({nth, from, count, bucket.splits[owner]});
        bucket.splits[owner] += count;
        bucket.total += count;
        from += count;
      }
    }
    for (auto& [kind, bucket] : open)
      if (bucket.total > 0) close(bucket);
  }

  // Returns the elements of a tensor in the order in which those of the parameter are in memory.
  static at::Tensor elements(const at::Tensor& tensor, const at::Tensor& parameter) {
    if (!parameter.is_non_overlapping_and_dense()) return tensor.reshape({-1});
    if (tensor.strides() == parameter.strides()) return tensor.as_strided({tensor.numel()}, {1});
    auto same = at::empty_strided(parameter.sizes(), parameter.strides(), tensor.options());
    return same.copy_(tensor).as_strided({tensor.numel()}, {1});
  }

  // Returns the order in which the backward pass of the loss of rank 0 completes the gradients, so
  // that those of a bucket become ready together: libtorch runs the operators from the last one to
  // the first, and the first one that uses a parameter completes its gradient. The parameters that
  // the loss does not depend on are the last.
  std::vector<int64_t> order_of(const Group& group, const at::Tensor& loss) const {
    using torch::autograd::Node;
    std::unordered_map<const at::TensorImpl*, size_t> numbers;
    for (size_t nth = 0; nth < parameters.size(); nth++) numbers[parameters[nth].tensor.unsafeGetTensorImpl()] = nth;
    std::vector<int64_t> first(parameters.size(), -1);
    std::vector<Node*> open;
    if (loss.grad_fn()) open.push_back(loss.grad_fn().get());
    std::unordered_set<Node*> known(open.begin(), open.end());
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      for (const auto& edge : node->next_edges()) {
        const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get());
        const auto found = leaf ? numbers.find(leaf->variable.unsafeGetTensorImpl()) : numbers.end();
        if (found != numbers.end()) {
          auto& use = first[found->second];
          const auto at = static_cast<int64_t>(node->sequence_nr());
          use = use < 0 ? at : std::min(use, at);
        } else if (edge.function && known.insert(edge.function.get()).second) {
          open.push_back(edge.function.get());
        }
      }
    }
    std::vector<int64_t> order(parameters.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto one, auto other) { return first[one] > first[other]; });
    std::vector<at::Tensor> list{at::tensor(order, at::kLong)};
    group->broadcast(list)->wait();
    const auto* of_main = list[0].const_data_ptr<int64_t>();
    return {of_main, of_main + order.size()};
  }

  // Begins the pass of a loss, or without one that of the gradients that exist. With `has_sums`,
  // these are sums of earlier passes.
  void begin(const Group& group, const at::Tensor* loss, bool has_sums, bool with_rows, bool waits) {
    at::NoGradGuard guard;
    abandon();
    if (loss && !is_ordered) {
      divide(order_of(group, *loss));
      is_ordered = true;
    }
    has_rows = with_rows;
    may_wait = waits;
    for (auto& bucket : buckets) bucket.pending = bucket.slices.size();
    if (!has_sums) return;
    // Autograd would add to them, and they would be sent again.
    for (auto& it : parameters) it.before = std::exchange(it.tensor.mutable_grad(), at::Tensor());
  }

  void ready(const Group& group, size_t nth) {
    at::NoGradGuard guard;
    TORCH_CHECK(!parameters[nth].is_ready, "the gradient of a parameter was computed twice in one backward pass, after it was sent");
    parameters[nth].is_ready = true;
    computed++;
    for (auto bucket : buckets_of[nth]) buckets[bucket].pending--;
    send(group, false);
  }

  // Sends the buckets that are complete, or all.
  void send(const Group& group, bool all) {
    for (; next < buckets.size() && (all || buckets[next].pending == 0); next++) {
      if (work && !all && !may_wait && !work->isCompleted()) return;
      land();
      auto& bucket = buckets[next];
      fill(bucket);
      const auto own = bucket.splits[rank];
      got = at::empty({size * own}, bucket.options);
      std::vector<int64_t> received(size, own);
      work = group->alltoall_base(got, flat, received, bucket.splits);
      landing = next;
    }
  }

  // Moves the gradients of a bucket into its buffer.
  void fill(const Bucket& bucket) {
    std::vector<int64_t> begins;
    int64_t end = 0;
    for (auto split : bucket.splits) begins.push_back(std::exchange(end, end + split));
    flat = at::empty({bucket.total}, bucket.options);
    const auto factor = at::native::wrapped_scalar_tensor(1.0 / size);
    for (auto& [nth, from, count, at] : bucket.slices) {
      auto& [tensor, owner, is_ready, before, sum] = parameters[nth];
      auto& grad = tensor.mutable_grad();
      auto slot = flat.narrow(0, begins[owner] + at, count);
      const auto values = std::min(count, tensor.numel() - from);
      if (grad.defined()) {
        TORCH_CHECK(grad.layout() == at::kStrided, "a gradient with the layout ", grad.layout(), " cannot be divided among ",
                    "the ranks: make the embedding dense, or remove `.gradients(true)` from `Sharded`");
        auto out = slot.narrow(0, 0, values);
        at::mul_out(out, elements(grad, tensor).narrow(0, from, values), factor);
      } else {
        slot.narrow(0, 0, values).zero_();
      }
      if (values == count) continue;
      slot.narrow(0, values, 1).fill_(grad.defined() && has_rows ? 1 : 0);
      grad.reset();
    }
  }

  // Waits for the bucket in flight, and adds what has arrived.
  void land() {
    if (!work) return;
    work->wait();
    work.reset();
    flat.reset();
    const auto& bucket = buckets[landing];
    if (const auto own = bucket.splits[rank]) {
      auto parts = got.view({size, own});
      auto total = parts[0];
      if (total.scalar_type() == at::kHalf || total.scalar_type() == at::kBFloat16) total = total.to(at::kFloat);
      for (int other = 1; other < size; other++) total.add_(parts[other]);
      for (auto& [nth, from, count, at] : bucket.slices) {
        auto& it = parameters[nth];
        if (it.owner != rank) continue;
        if (from == 0) {
          const bool is_dense = it.tensor.is_non_overlapping_and_dense();
          it.sum = is_dense ? at::empty_strided(it.tensor.sizes(), it.tensor.strides(), bucket.options)
                            : at::empty(it.tensor.sizes(), bucket.options);
        }
        const auto values = std::min(count, it.tensor.numel() - from);
        elements(it.sum, it.sum).narrow(0, from, values).copy_(total.narrow(0, at, values));
        if (values == count) continue;
        const bool exists = total[at + values].item<double>() > 0;
        auto found = std::exchange(it.sum, at::Tensor());
        if (!exists) continue;
        if (it.before.defined()) {
          it.before.add_(found);
        } else {
          it.before = std::move(found);
        }
      }
    }
    got.reset();
  }

  // Sends what is left, and gives the owners their sums. Returns the number of gradients that this
  // rank has computed.
  size_t finish(const Group& group) {
    at::NoGradGuard guard;
    send(group, true);
    land();
    for (auto& it : parameters) it.tensor.mutable_grad() = std::exchange(it.before, at::Tensor());
    return computed;
  }

  // Forgets the pass. What is in flight keeps its own memory.
  void abandon() {
    work.reset();
    flat.reset();
    got.reset();
    computed = next = 0;
    for (auto& it : parameters) {
      it.is_ready = false;
      it.before.reset();
      it.sum.reset();
    }
  }
};

}  // namespace
