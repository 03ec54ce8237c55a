// Notes whether a thread calls an operator that draws from libtorch's random numbers. A function that
// can fail returns null on success, or a message that the caller frees with `trainer_free`. No
// function throws.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>

#include <array>
#include <string_view>

#include "guarded.h"

namespace {

// Whether this thread has called such an operator since it started to watch.
thread_local bool has_drawn = false;

// Whether an operator with the tag draws only in some cases, then through another operator.
bool is_conditional(std::string_view name) {
  constexpr std::array<std::string_view, 6> parts{"dropout", "scaled_dot_product", "rrelu", "lstm", "gru", "rnn"};
  if (name == "aten::native_dropout" || name == "aten::_fused_dropout") return false;
  for (auto part : parts)
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

std::unique_ptr<at::ObserverContext> note_draw(const at::RecordFunction& call) {
  if (has_drawn) return nullptr;
  const auto name = call.operator_name();
  if (!name || is_conditional(name->name)) return nullptr;
  const auto op = c10::Dispatcher::singleton().findOp(*name);
  if (op && op->hasTag(at::Tag::nondeterministic_seeded)) has_drawn = true;
  return nullptr;
}

}  // namespace

extern "C" {

// Starts to watch this thread, and writes the handle that ends it.
char* trainer_draws_start(uint64_t* handle) {
  return guarded([&] {
    has_drawn = false;
    *handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&note_draw).scopes({at::RecordScope::FUNCTION}));
  });
}

// Ends the watch, and writes whether the thread has drawn. Must be called on the thread that started
// it.
char* trainer_draws_stop(uint64_t handle, bool* drawn) {
  return guarded([&] {
    *drawn = has_drawn;
    at::removeCallback(handle);
  });
}
}
