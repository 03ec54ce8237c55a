// Autocast: operations of a forward pass compute in a lower precision where that is safe.

#include <ATen/autocast_mode.h>

namespace {

at::DeviceType type_of(bool cuda) { return cuda ? at::kCUDA : at::kCPU; }

at::ScalarType kind_of(bool half) { return half ? at::kHalf : at::kBFloat16; }

}  // namespace

extern "C" {

// The mode of this thread. Matches `AutocastMode` in lib.rs.
struct AutocastMode {
  bool cuda;
  bool enabled;
  int32_t kind;
};

// Sets the mode of this thread for one type of device, and returns the previous one.
AutocastMode trainer_autocast_enter(bool cuda, bool enabled, bool half) {
  auto device = type_of(cuda);
  AutocastMode before{cuda, at::autocast::is_autocast_enabled(device),
                      static_cast<int32_t>(at::autocast::get_autocast_dtype(device))};
  at::autocast::set_autocast_enabled(device, enabled);
  if (enabled) at::autocast::set_autocast_dtype(device, kind_of(half));
  at::autocast::increment_nesting();
  return before;
}

// Restores the mode that `trainer_autocast_enter` returned. Drops the converted weights when the
// outermost mode ends.
void trainer_autocast_exit(AutocastMode before) {
  auto device = type_of(before.cuda);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device, before.enabled);
  at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(before.kind));
}
}
