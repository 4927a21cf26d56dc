// poplar::IPUModel: the choice of the modelled machine.
#pragma once

#include <string>

#include <poplar/Device.hpp>

namespace poplar {

struct IPUModel {
  IPUModel() = default;
  explicit IPUModel(const char *version) : ipuVersion(version) {}

  std::string ipuVersion = "ipu2";
  unsigned numIPUs = 1;
  unsigned tilesPerIPU = 0;       // 0: all tiles of the chip
  unsigned minIPUSyncDelay = 100; // cycles of a sync
  // The delay of a sync between tiles, which this model does not have.
  enum class RelativeSyncDelayType { AUTO, NO_DELAY };
  RelativeSyncDelayType relativeSyncDelay = RelativeSyncDelayType::AUTO;

  // Throw invalid_machine_model for an unknown chip, or too many tiles.
  Device createDevice(OptionFlags options = {}) const;
};

} // namespace poplar
