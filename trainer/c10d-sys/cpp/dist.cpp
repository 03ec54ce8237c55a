// Collectives between processes: libtorch's c10d, with gloo on the CPU, and its DDP `Reducer`.
//
// As in trainer/sys: tensors are passed as tch's pointers, and a function that can fail returns
// null on success, or a message that the caller frees with `trainer_free`. No function throws.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include "counted.h"
#include "exchange.h"
#include "guarded.h"

namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

struct DdpReducer {
  std::shared_ptr<c10d::Reducer> reducer;
  // Whether the graph is static and its first backward pass, which only records it, is to come.
  bool records_graph = false;
  std::shared_ptr<c10d::Logger> logger;

  // A reducer holds the process group, and with it the connections.
  void close() {
    if (reducer) reducer->remove_autograd_hooks();
    logger.reset();
    reducer.reset();
  }
};

// Gradients and the program's own collectives use the group `data`. Layers of the network use
// `layers`, because the reducer sends gradients during the same backward pass.
enum { kData, kLayers, kGroups };

// While this exists, new threads do not preempt others when they wake up. gloo's thread that
// receives would otherwise preempt the thread that is sending and that holds the lock of the
// connection, and then poll for this lock until the end of its time slice.
struct BackgroundThreads {
#ifdef __linux__
  int policy = sched_getscheduler(0);
  sched_param none{};

  BackgroundThreads() {
    if (policy == SCHED_OTHER) sched_setscheduler(0, SCHED_BATCH, &none);
  }
  ~BackgroundThreads() {
    if (policy == SCHED_OTHER) sched_setscheduler(0, policy, &none);
  }
#endif
};

struct World {
  Store base;   // of all programs at this address
  Store store;  // of this attempt of this job
  std::optional<std::string> interface, own_host;
  std::chrono::milliseconds timeout;
  int rank, size;
  bool is_connected = false;
  c10::intrusive_ptr<c10d::ProcessGroup> groups[kGroups];
  c10::intrusive_ptr<c10d::Backend> nccl;  // null without NCCL or without a GPU
  std::vector<std::weak_ptr<DdpReducer>> reducers;

  // Returns a process group, which is opened when it is first used.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group(int nth) {
    if (!is_connected) throw std::runtime_error("this process has left the other ranks, after an error");
    if (!groups[nth]) open(nth);
    return groups[nth];
  }

  // Returns the group for tensors on a GPU, if there is one. NCCL connects in its first collective, on
  // the GPU of that tensor. Gradients and layers share it: collectives of two communicators on one
  // GPU may wait for each other.
  const c10::intrusive_ptr<c10d::Backend>& on_gpus() {
#ifdef USE_C10D_NCCL
    if (!nccl && at::hasCUDA()) {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      options->timeout = timeout;
      nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, size,
                                                         options);
      nccl->setSequenceNumberForGroup();
    }
#endif
    return nccl;
  }

  // Opens a process group: stores the address at which the other ranks connect to it.
  void open(int nth) {
    BackgroundThreads here;  // gloo's threads inherit this
    const char* name = nth == kData ? "data" : "layers";
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    const bool lazy = true;
    options->devices.push_back(interface  ? c10d::ProcessGroupGloo::createDeviceForInterface(*interface, lazy)
                               : own_host ? c10d::ProcessGroupGloo::createDeviceForHostname(*own_host, lazy)
                                          : c10d::ProcessGroupGloo::createDefaultDevice(lazy));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank,
                                                            size, options);
    gloo->setSequenceNumberForGroup();
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                      std::optional<c10::intrusive_ptr<c10d::Backend>>(gloo));
    if (auto& nccl = on_gpus())
      group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL,
                        std::optional<c10::intrusive_ptr<c10d::Backend>>(nccl));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    group->setGroupName(name);
    groups[nth] = group;
  }
};

// Closes the connections, except to the store.
void disconnect(World& world) {
  for (auto& weak : world.reducers)
    if (auto reducer = weak.lock()) reducer->close();
  world.reducers.clear();
  for (auto& group : world.groups) group.reset();
  world.nccl.reset();
  world.is_connected = false;
}

// Reads a key, if it is set.
void read_key(c10d::Store& store, const char* key, char** value) {
  if (!store.check({key})) return;
  auto bytes = store.get(key);
  *value = strndup(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Normalizes with the mean and the variance of the rows of all ranks. The backward pass needs two
// sums over all ranks for each feature. `count` is the number of values that the mean and the
// variance were computed from, and `counts` is whether these include the input of this rank: false
// for a batch borrowed from another rank.
struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  using Context = torch::autograd::AutogradContext;
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // An undefined tensor cannot be an input of a function, so a missing one is an empty optional.
  static at::Tensor forward(Context* context, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean, const at::Tensor& variance,
                            double eps, double count, bool counts, const Group& group) {
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, variance});
    context->saved_data["eps"] = eps;
    context->saved_data["count"] = count;
    context->saved_data["counts"] = counts;
    context->saved_data["group"] = group;
    return std::get<0>(at::native_batch_norm(input, weight, bias, mean, variance, /*training=*/false, 0, eps));
  }

  static torch::autograd::variable_list backward(Context* context, torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a synchronized batch normalization can be differentiated only once");
    auto saved = context->get_saved_variables();
    auto &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    auto eps = context->saved_data["eps"].toDouble();
    auto count = context->saved_data["count"].toDouble();
    auto [of_input, of_weight, of_bias] =
        at::native_batch_norm_backward(gradients[0], input, weight, mean, variance, {}, {}, /*train=*/false, eps,
                                       {true, true, true});
    std::vector<at::Tensor> sums{at::stack({of_bias, of_weight})};
    auto group = context->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
    group->allreduce(sums)->wait();
    if (context->saved_data["counts"].toBool()) {
      // The part of the gradient through the mean and the variance is linear in the input.
      auto inverse = (variance + eps).rsqrt();
      auto scale = (weight.defined() ? inverse * weight : inverse) / count;
      auto slope = -scale * inverse * sums[0][1];
      auto offset = -scale * sums[0][0] - slope * mean;
      std::vector<int64_t> like_input(input.dim(), 1);
      like_input[1] = -1;
      of_input.add_((input * slope.view(like_input)).add_(offset.view(like_input)));
    }
    at::Tensor none;
    return {of_input, weight.defined() ? of_weight : none, weight.defined() ? of_bias : none, none, none, none, none,
            none, none};
  }
};

// Sends gradients in a 16-bit dtype.
struct Compression : c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
  Compression(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::ScalarType kind)
      : CppCommHookInterface(group), kind(kind) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto buffer = bucket.getBuffer();
    std::vector<at::Tensor> sent{(buffer / state_->getSize()).to(kind)};
    auto sum = state_->allreduce(sent)->getFuture();
    auto expand = [buffer](c10::ivalue::Future& sum) {
      return c10::IValue(buffer.copy_(sum.value().toTensorVector()[0]));
    };
    return sum->then(expand, sum->elementType());
  }

  at::ScalarType kind;
};

}  // namespace

extern "C" {

struct WorldOptions {
  const char* host;
  const char* file;  // of a FileStore; null for a TCPStore at `host` and `port`
  const char* prefix;
  const char* interface;  // the network interface of gloo, or null
  const char* own_host;   // the address that gloo binds to, or null
  int64_t timeout_ms;
  int32_t port, rank, size;
  bool is_server;
};

// Opens the store, through which the ranks meet.
char* trainer_world_open(const WorldOptions* with, World** opened) {
  return guarded([&] {
    const std::chrono::milliseconds timeout(with->timeout_ms);
    Store base;
    if (with->file) {
      base = c10::make_intrusive<c10d::FileStore>(with->file, with->size);
    } else {
      c10d::TCPStoreOptions store;
      store.port = static_cast<uint16_t>(with->port);
      store.isServer = with->is_server;
      store.waitWorkers = false;  // a process of another job would count
      store.timeout = timeout;
      base = c10::make_intrusive<c10d::TCPStore>(with->host, store);
    }
    base->setTimeout(timeout);
    auto world = std::make_unique<World>();
    world->base = base;
    if (with->interface) world->interface = with->interface;
    if (with->own_host) world->own_host = with->own_host;
    world->timeout = timeout;
    world->rank = with->rank;
    world->size = with->size;
    world->store = c10::make_intrusive<c10d::PrefixStore>(with->prefix, base);
    *opened = world.release();
  });
}

// Opens the process groups, which connect to another rank when they first need it.
char* trainer_world_connect(World* world) {
  return guarded([&] {
    world->is_connected = true;
    world->group(kData);
  });
}

// Closes the connections after an error. The store stays open, so that the other ranks can read the
// reason.
char* trainer_world_leave(World* world) {
  return guarded([&] {
    // A collective that another rank does not reach has no end, and NCCL would wait for it.
    if (world->nccl) world->nccl->abort();
    disconnect(*world);
  });
}

void trainer_world_close(World* world) {
  free(guarded([&] { disconnect(*world); }));
  delete world;
}

char* trainer_world_all_reduce(World* world, int32_t group, at::Tensor* tensor, int32_t op) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{tensor->detach()};
    c10d::AllreduceOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    world->group(group)->allreduce(tensors, options)->wait();
    count_change(tensors);
  });
}

// Broadcasts several tensors: large ones in place, without a copy, and small ones coalesced into a
// few messages.
char* trainer_world_broadcast(World* world, at::Tensor** tensors, size_t count, int32_t root) {
  return guarded([&] {
    at::NoGradGuard guard;
    const size_t large = 1 << 20;  // bytes
    const auto& group = world->group(kData);
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> small;
    std::vector<c10::intrusive_ptr<c10d::Work>> sent;
    for (size_t i = 0; i < count; i++) {
      std::vector<at::Tensor> one{tensors[i]->detach()};
      if (one[0].nbytes() < large) {
        small.push_back(one[0]);
      } else {
        sent.push_back(group->broadcast(one, options));
        count_change(one);
      }
    }
    if (!small.empty()) c10d::broadcast_coalesced(group, small, large, root);
    for (auto& work : sent) work->wait();
  });
}

char* trainer_world_all_gather(World* world, at::Tensor* input, at::Tensor* output) {
  return guarded([&] {
    auto out = output->detach(), in = input->detach();
    world->group(kData)->all_gather_single(out, in)->wait();
    count_change(out);
  });
}

char* trainer_world_reduce_scatter(World* world, at::Tensor* input, at::Tensor* output) {
  return guarded([&] {
    auto out = output->detach(), in = input->detach();
    world->group(kData)->reduce_scatter_single(out, in)->wait();
    count_change(out);
  });
}

struct BatchNorm {
  const at::Tensor *input, *weight, *bias;  // the last two may be null
  const at::Tensor *mean, *variance;
  double eps, count;
  bool counts;
};

char* trainer_world_batch_norm(World* world, const BatchNorm* with, at::Tensor** normalized) {
  return guarded([&] {
    auto optional = [](const at::Tensor* tensor) { return tensor ? std::optional(*tensor) : std::nullopt; };
    *normalized = new at::Tensor(SyncBatchNorm::apply(*with->input, optional(with->weight), optional(with->bias),
                                                      *with->mean, *with->variance, with->eps, with->count, with->counts,
                                                      world->group(kLayers)));
  });
}

// Sets a key if it is not set.
char* trainer_world_set(World* world, const char* key, const uint8_t* bytes, size_t count) {
  return guarded([&] { world->store->compareSet(key, std::vector<uint8_t>(), std::vector<uint8_t>(bytes, bytes + count)); });
}

// Sets a key that all programs at this address share, if it is not set.
char* trainer_world_set_shared(World* world, const char* key, const uint8_t* bytes, size_t count) {
  return guarded([&] { world->base->compareSet(key, std::vector<uint8_t>(), std::vector<uint8_t>(bytes, bytes + count)); });
}

// Reads a key that all programs at this address share, if it is set, as a string that the caller frees.
char* trainer_world_shared(World* world, const char* key, char** value) {
  return guarded([&] { read_key(*world->base, key, value); });
}

// Adds 1 to the number in a key, and writes the sum.
char* trainer_world_count(World* world, const char* key, int64_t* sum) {
  return guarded([&] { *sum = world->store->add(key, 1); });
}

// Raises the limit on open files to `needed` if it is lower and may be raised. Returns the limit.
uint64_t trainer_open_files(uint64_t needed) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return UINT64_MAX;
  if (limit.rlim_cur < needed && limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{std::min<rlim_t>(needed, limit.rlim_max), limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur;
}

// Reads a key, if it is set, as a string that the caller frees.
char* trainer_world_get(World* world, const char* key, char** value) {
  return guarded([&] { read_key(*world->store, key, value); });
}

// Returns the store for another thread, which may use it while a collective runs. The caller frees it.
Store* trainer_store_new(World* world) { return new Store(world->store); }

void trainer_store_free(Store* store) { delete store; }

// Sets a key, whether it is set or not.
char* trainer_store_set(Store* store, const char* key, const uint8_t* bytes, size_t count) {
  return guarded([&] { (*store)->set(key, std::vector<uint8_t>(bytes, bytes + count)); });
}

char* trainer_store_get(Store* store, const char* key, char** value) {
  return guarded([&] { read_key(**store, key, value); });
}

// Returns the address of a network interface as a string that the caller frees, or null.
char* trainer_interface_address(const char* name) {
  ifaddrs* all;
  if (getifaddrs(&all) != 0) return nullptr;
  char* found = nullptr;
  for (int family : {AF_INET, AF_INET6}) {
    for (auto* it = all; it && !found; it = it->ifa_next) {
      if (!it->ifa_addr || it->ifa_addr->sa_family != family || strcmp(it->ifa_name, name) != 0) continue;
      const void* bytes = family == AF_INET ? static_cast<void*>(&reinterpret_cast<sockaddr_in*>(it->ifa_addr)->sin_addr)
                                            : static_cast<void*>(&reinterpret_cast<sockaddr_in6*>(it->ifa_addr)->sin6_addr);
      char text[INET6_ADDRSTRLEN];
      if (inet_ntop(family, bytes, text, sizeof text)) found = strdup(text);
    }
  }
  freeifaddrs(all);
  return found;
}

char* trainer_reducer_new(World* world, at::Tensor** params, const char* const* names, size_t count,
                          int64_t bucket_bytes, bool find_unused, std::shared_ptr<DdpReducer>** made) {
  return guarded([&] {
    const auto& group = world->group(kData);
    std::vector<at::Tensor> list;
    std::unordered_map<size_t, std::string> by_index;
    for (size_t i = 0; i < count; i++) {
      list.push_back(*params[i]);
      by_index.emplace(i, names[i]);
    }
    const int64_t first = std::min<int64_t>(bucket_bytes, 1 << 20);
    c10d::verify_params_across_processes(group, list, std::nullopt);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        list, {static_cast<size_t>(first), static_cast<size_t>(bucket_bytes)});
    std::reverse(buckets.begin(), buckets.end());
    auto it = std::make_shared<DdpReducer>();
    // A reducer moves gradients that exist already into its buckets, and then divides them instead of
    // multiplying by the inverse: a run that is resumed within an accumulation window would differ
    // in the last bits.
    std::vector<at::Tensor> grads;
    for (auto& param : list) grads.push_back(std::exchange(param.mutable_grad(), at::Tensor()));
    it->reducer = std::make_shared<c10d::Reducer>(
        list, buckets, group, std::vector<bool>(count, false), bucket_bytes, find_unused,
        /*gradient_as_bucket_view=*/true, by_index, first, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<int64_t>{});
    for (size_t i = 0; i < count; i++) list[i].mutable_grad() = grads[i];
    it->logger = std::make_shared<c10d::Logger>(it->reducer);
    it->reducer->set_logger(it->logger);
    world->reducers.push_back(it);
    *made = new std::shared_ptr<DdpReducer>(it);
  });
}

// Sends gradients in bf16 if `is_bfloat`, else in half precision.
char* trainer_reducer_compress(World* world, std::shared_ptr<DdpReducer>* it, bool is_bfloat) {
  return guarded([&] {
    const auto& group = world->group(kData);  // fails after the world was left, when there is no reducer
    (*it)->reducer->register_comm_hook(
        std::make_unique<Compression>(group, is_bfloat ? at::kBFloat16 : at::kHalf));
  });
}

// Declares that all backward passes use the same parameters, before the first one.
char* trainer_reducer_set_static(std::shared_ptr<DdpReducer>* it) {
  return guarded([&] {
    if (!(*it)->reducer) throw std::runtime_error("this process has left the other ranks, after an error");
    (*it)->reducer->set_static_graph();
    (*it)->records_graph = true;
  });
}

// Prepares the reducer for a backward pass. With a loss, finds the parameters that it does not
// depend on.
char* trainer_reducer_prepare(std::shared_ptr<DdpReducer>* it, const at::Tensor* loss) {
  return guarded([&] {
    if (!(*it)->reducer) throw std::runtime_error("this process has left the other ranks, after an error");
    (*it)->reducer->prepare_for_forward();
    (*it)->reducer->prepare_for_backward(loss ? std::vector<at::Tensor>{*loss} : std::vector<at::Tensor>{});
  });
}

// Reduces the gradients after a backward pass that has recorded a static graph: the pass could not
// know when the gradients of a bucket were complete.
char* trainer_reducer_finish(std::shared_ptr<DdpReducer>* it) {
  return guarded([&] {
    if (!(*it)->records_graph || !(*it)->reducer) return;
    (*it)->records_graph = false;
    (*it)->reducer->delay_all_reduce();
  });
}

// Checks after a backward pass that it computed a gradient for every parameter.
char* trainer_reducer_check(std::shared_ptr<DdpReducer>* it) {
  return guarded([&] {
    if ((*it)->reducer) (*it)->reducer->check_finalized();
  });
}

char* trainer_reducer_free(std::shared_ptr<DdpReducer>* it) {
  return guarded([&] {
    (*it)->close();
    delete it;
  });
}

// Creates an exchange of the gradients of these parameters, each of which belongs to the rank
// `owners`.
char* trainer_exchange_new(World* world, at::Tensor** params, const int32_t* owners, size_t count,
                           int64_t bucket_bytes, Exchange** made) {
  return guarded([&] {
    auto it = std::make_unique<Exchange>();
    it->rank = world->rank;
    it->size = world->size;
    it->bucket_bytes = bucket_bytes;
    std::vector<int64_t> by;
    for (size_t i = 0; i < count; i++) {
      it->parameters.emplace_back();
      it->parameters.back().tensor = *params[i];
      it->parameters.back().owner = owners[i];
      by.push_back(static_cast<int64_t>(i));
    }
    it->divide(by);
    *made = it.release();
  });
}

// Begins the backward pass of a loss, or without one that of the gradients that exist. With
// `has_sums`, these are the sums of earlier passes. Without `has_rows`, those of this rank are 0
// and do not count. Without `may_wait`, no gradient waits for another rank before the pass has
// ended.
char* trainer_exchange_begin(World* world, Exchange* it, const at::Tensor* loss, bool has_sums, bool has_rows,
                             bool may_wait) {
  return guarded([&] { it->begin(world->group(kData), loss, has_sums, has_rows, may_wait); });
}

// Notes that the gradient of a parameter has been accumulated in the pass that has begun.
char* trainer_exchange_ready(World* world, Exchange* it, size_t nth) {
  return guarded([&] { it->ready(world->group(kData), nth); });
}

// Ends a backward pass: each owner has the sums of its gradients, and no other rank has them.
// Writes the number of gradients that the pass has computed on this rank.
char* trainer_exchange_finish(World* world, Exchange* it, size_t* computed) {
  return guarded([&] { *computed = it->finish(world->group(kData)); });
}

// Forgets a pass that has failed.
char* trainer_exchange_abandon(Exchange* it) {
  return guarded([&] { it->abandon(); });
}

void trainer_exchange_free(Exchange* it) { delete it; }
}
