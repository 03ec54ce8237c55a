// Warnings of libtorch, and losses whose inputs broadcast. A function that can fail returns null on
// success, or a message that the caller frees with `trainer_free`. No function throws.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "guarded.h"

namespace {

// Keeps the warnings of a thread, one for each place in the source of libtorch.
class Collector : public c10::WarningHandler {
 public:
  explicit Collector(Collector* outer)
      : outer(outer), before(c10::WarningUtils::get_warning_handler()) {}

  void process(const c10::Warning& warning) override {
    try {
      const auto& at = warning.source_location();
      if (places.size() < 100 && places.emplace(at.file, at.line).second) texts.push_back(warning.msg());
    } catch (...) {
      // A warning that cannot be kept must not end the program.
    }
  }

  Collector* const outer;
  c10::WarningHandler* const before;
  std::deque<std::string> texts;

 private:
  std::set<std::pair<std::string, uint32_t>> places;
};

thread_local Collector* collector = nullptr;

// The description of the first loss on this thread whose inputs broadcast.
thread_local std::string broadcast_loss;

void check_loss(const at::RecordFunction& call) {
  constexpr std::array<std::string_view, 6> losses{"aten::mse_loss",   "aten::l1_loss", "aten::smooth_l1_loss",
                                                   "aten::huber_loss", "aten::kl_div",  "aten::poisson_nll_loss"};
  if (!broadcast_loss.empty()) return;
  const std::string_view name = call.name();
  if (std::find(losses.begin(), losses.end(), name) == losses.end()) return;
  const auto inputs = call.inputs();
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return;
  const auto pred = inputs[0].toTensor(), target = inputs[1].toTensor();
  if (!pred.defined() || !target.defined() || pred.sizes() == target.sizes()) return;
  const auto size = at::infer_size(pred.sizes(), target.sizes());
  const auto elements = c10::multiply_integers(size);
  // A target that is repeated, such as a scalar, gives the same loss as one of the full shape.
  if (elements <= std::max(pred.numel(), target.numel())) return;
  std::ostringstream text;
  text << '`' << name.substr(6) << "` of a prediction of shape " << pred.sizes() << " and a target of shape "
       << target.sizes() << ": they broadcast to " << at::IntArrayRef(size);
  broadcast_loss = text.str();
}

std::unique_ptr<at::ObserverContext> note_loss(const at::RecordFunction& call) {
  try {
    check_loss(call);
  } catch (...) {
    // The loss itself reports shapes that do not match.
  }
  return nullptr;
}

}  // namespace

extern "C" {

// Starts to keep the warnings of this thread instead of printing them.
char* trainer_warnings_begin() {
  return guarded([&] {
    collector = new Collector(collector);
    c10::WarningUtils::set_warning_handler(collector);
  });
}

// Stops what the last `trainer_warnings_begin` of this thread started.
void trainer_warnings_end() {
  if (collector == nullptr) return;
  const auto ended = collector;
  c10::WarningUtils::set_warning_handler(ended->before);
  collector = ended->outer;
  delete ended;
}

// Removes and returns the oldest warning that is kept, which the caller frees with `trainer_free`, or
// returns null if there is none.
char* trainer_warnings_next() {
  if (collector == nullptr || collector->texts.empty()) return nullptr;
  const auto text = strdup(collector->texts.front().c_str());
  collector->texts.pop_front();
  return text;
}

// Starts to check the losses that this thread computes, and writes the handle that ends it.
char* trainer_losses_start(uint64_t* handle) {
  return guarded([&] {
    broadcast_loss.clear();
    *handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&note_loss).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  });
}

// Ends the check. Returns the description of the first loss whose inputs broadcast, which the caller
// frees with `trainer_free`, or null. Must be called on the thread that started it.
char* trainer_losses_stop(uint64_t handle) {
  try {
    at::removeCallback(handle);
    const auto found = std::move(broadcast_loss);
    broadcast_loss.clear();
    return found.empty() ? nullptr : strdup(found.c_str());
  } catch (...) {
    return nullptr;
  }
}
}
