// All files as one translation unit: most of the compile time goes into libtorch's headers, which
// are then read once.

// Without it, `at::RecordFunction` has one more member than in libtorch, which is built with it.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "autocast.cpp"
#include "batch_norm.cpp"
#include "checkpointing.cpp"
#include "cuda.cpp"
#include "draws.cpp"
#include "flops.cpp"
#include "gradients.cpp"
#include "graph.cpp"
#include "heap.cpp"
#include "linear_cross_entropy.cpp"
#include "memory.cpp"
#include "modes.cpp"
#include "monitors.cpp"
#include "optimizers.cpp"
#include "profiler.cpp"
#include "scan.cpp"
#include "tensors.cpp"
#include "warnings.cpp"
