// poplar::IPUModel: the choice of the machine that is modelled.
#pragma once

#include <string>

#include <poplar/Device.hpp>

namespace poplar {

struct IPUModel {
  IPUModel() = default;
  explicit IPUModel(const char *version) : ipuVersion(version) {}

  std::string ipuVersion = "ipu2";
  unsigned numIPUs = 1;
  unsigned tilesPerIPU = 0;       // 0: all that the chip has
  unsigned minIPUSyncDelay = 100; // cycles of a sync
  // How much later than others a tile hears of it: this model has no such delay.
  enum class RelativeSyncDelayType { AUTO, NO_DELAY };
  RelativeSyncDelayType relativeSyncDelay = RelativeSyncDelayType::AUTO;

  // Throws invalid_machine_model where there is no such chip, or it has fewer tiles.
  Device createDevice(OptionFlags options = {}) const;
};

} // namespace poplar
