// poplar::Device: what an engine is loaded onto.
#pragma once

#include <poplar/Target.hpp>

namespace poplar {

class Device {
public:
  Device() = default;
  explicit Device(const Target &target) : target_(target) {}

  const Target &getTarget() const { return target_; }
  bool attach() const { return true; }
  void detach() const {}

private:
  Target target_;
};

} // namespace poplar
