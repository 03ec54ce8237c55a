// The declarations of gloo that torch/csrc/distributed/c10d/ProcessGroupGloo.hpp needs to be parsed.
// No wheel ships gloo's headers. Only pointers to these types are part of the layout of
// ProcessGroupGloo and its options, and no object of them is created here, so their sizes do not
// matter.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
};
namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
}  // namespace transport
namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};
}  // namespace rendezvous
}  // namespace gloo
