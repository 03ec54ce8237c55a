// Conversion of C++ exceptions to messages, which Rust frees with `trainer_free`.

#pragma once

#include <c10/util/Exception.h>

#include <cstring>
#include <exception>

namespace {

// Runs `body`, and converts an exception to a message.
template <typename Body>
char* guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("libtorch threw an exception that is not a std::exception");
  }
}

}  // namespace
