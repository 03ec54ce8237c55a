// The parameters that a function works on.

#pragma once

#include <ATen/ATen.h>

#include <cstddef>

namespace {

// In Rust's layout. `current` is the index of the parameter that an error is about, or `count`.
struct Params {
  at::Tensor** params;
  size_t count;
  size_t current;
};

}  // namespace
