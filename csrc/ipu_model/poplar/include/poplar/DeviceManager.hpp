// poplar::DeviceManager: the devices of this machine. The model has no hardware; every device is modelled.
#pragma once

#include <cstddef>
#include <vector>

#include <poplar/Device.hpp>

namespace poplar {

class DeviceManager {
public:
  static DeviceManager createDeviceManager() { return {}; }

  std::size_t getNumDevices() const { return getDevices().size(); }
  // Return the devices of a modelled machine with one Mk2 IPU.
  std::vector<Device> getDevices(const OptionFlags &options = {}) const;
  // Return a device of numIPUs Mk2 IPUs, none for CPU. TargetType::IPU returns a model too, so that programs for
  // hardware run.
  std::vector<Device> getDevices(TargetType type, unsigned numIPUs, const OptionFlags &options = {}) const;
  Device getDevice(unsigned deviceId, const OptionFlags &options = {}) const;
  // Throw invalid_machine_model if there is none.
  Device acquireAvailableDevice(unsigned numIPUs = 1, const OptionFlags &options = {}) const;
};

} // namespace poplar
