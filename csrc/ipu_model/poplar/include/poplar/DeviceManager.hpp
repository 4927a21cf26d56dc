// poplar::DeviceManager: the devices of this machine. Here there is no IPU; every device is a model.
#pragma once

#include <cstddef>
#include <vector>

#include <poplar/Device.hpp>

namespace poplar {

class DeviceManager {
public:
  static DeviceManager createDeviceManager() { return {}; }

  std::size_t getNumDevices() const { return getDevices().size(); }
  // As of a machine with one Mk2 IPU, which is modelled.
  std::vector<Device> getDevices(const OptionFlags &options = {}) const;
  // Of so many Mk2 IPUs. TargetType::IPU too: a program that asks for hardware runs on the model of it. None for CPU.
  std::vector<Device> getDevices(TargetType type, unsigned numIPUs, const OptionFlags &options = {}) const;
  Device getDevice(unsigned deviceId, const OptionFlags &options = {}) const;
  // Throws invalid_machine_model where there is none.
  Device acquireAvailableDevice(unsigned numIPUs = 1, const OptionFlags &options = {}) const;
};

} // namespace poplar
