// poplar::Target: the machine that a graph is built for.
#pragma once

#include <memory>
#include <string>

#include <poplar/OptionFlags.hpp>
#include <poplar/StringRef.hpp>
#include <poplar/Type.hpp>

namespace poplar {

enum class TargetType { IPU, IPU_MODEL, CPU };

namespace detail {
struct Machine;
}

struct IPUModel;

class Target {
public:
  // systemType: "ipu1" (Mk1), "ipu2" or "ipu21" (Mk2). "bow" (Mk2 at Bow's clock) only exists in this model.
  static Target createIPUTarget(unsigned numIPUs, StringRef systemType, const OptionFlags &options = {});
  static Target createIPUTarget(unsigned numIPUs, unsigned tilesPerIPU, StringRef systemType,
                                const OptionFlags &options = {});

  Target();
  TargetType getTargetType() const { return TargetType::IPU_MODEL; }
  std::string getTargetArchString() const;
  unsigned getNumIPUs() const;
  unsigned getTilesPerIPU() const;
  unsigned getNumTiles() const;
  unsigned getNumWorkerContexts() const;
  // Bytes that two workers must not share to store at the same time.
  unsigned getAtomicStoreGranularity() const { return 4; }
  unsigned getBytesPerTile() const;
  double getTileClockFrequency() const;
  unsigned getExchangeBytesPerCycle() const;
  unsigned getDataPathWidth() const; // bits of one load
  unsigned getMemcpyBytesPerCycle() const;
  unsigned getMinIPUSyncDelay() const;       // cycles
  unsigned getInterIPUBytesPerCycle() const; // of one IPU, in each direction; not in Poplar
  unsigned getGlobalSyncCycles() const;
  unsigned getTypeSize(const Type &type) const;
  // Elements of a vector register: 2 floats, 4 halves.
  unsigned getVectorWidth(const Type &type) const;
  unsigned getFloatVectorWidth() const { return getVectorWidth(FLOAT); }
  unsigned getHalfVectorWidth() const { return getVectorWidth(HALF); }

  friend bool operator==(const Target &a, const Target &b);
  friend bool operator!=(const Target &a, const Target &b) { return !(a == b); }

private:
  friend struct IPUModel;
  std::shared_ptr<const detail::Machine> machine_;
};

bool operator==(const Target &a, const Target &b);

} // namespace poplar
