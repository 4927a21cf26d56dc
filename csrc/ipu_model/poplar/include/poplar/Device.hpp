// poplar::Device: a device that an engine is loaded onto.
#pragma once

#include <poplar/Target.hpp>

namespace poplar {

class Device {
public:
  Device() = default;
  explicit Device(const Target &target, unsigned id = 0) : target_(target), id_(id) {}

  // Id in this machine's device manager.
  unsigned getId() const { return id_; }

  const Target &getTarget() const { return target_; }
  bool attach() const { return true; }
  void detach() const {}

private:
  Target target_;
  unsigned id_ = 0;
};

} // namespace poplar
