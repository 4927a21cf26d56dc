// The model's counts: memory of the tiles, cycles, exchange. This is not part of Poplar.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poplar {
class Engine;
}

namespace snnipu {
namespace ipu_model {

// Memory of one tile, in bytes.
struct TileMemory {
  std::uint64_t variables = 0;   // and constants
  std::uint64_t vertexState = 0; // fields of the vertices, and the tile's list of them
  // Copies of data that is on other tiles or not contiguous: the maximum at any time.
  std::uint64_t exchangeBuffers = 0;
  std::uint64_t code = 0; // estimate: codelets, control program, exchange sequences

  std::uint64_t total() const { return variables + vertexState + exchangeBuffers + code; }
};

// A compute set or a copy. Cycles and bytes are of one execution.
struct StepReport {
  std::string name;
  std::string kind; // "compute", "copy", "host"
  std::uint64_t executions = 0;
  std::uint64_t vertices = 0;
  std::uint64_t tiles = 0;         // with work
  std::uint64_t computeCycles = 0; // of the slowest tile
  double balance = 1;              // mean over all tiles of the target / slowest tile
  std::uint64_t exchangeBytes = 0; // received by all tiles
  std::uint64_t exchangeCycles = 0;
  std::uint64_t interIpuBytes = 0;
  std::uint64_t syncCycles = 0;
  std::uint64_t flops = 0;

  std::uint64_t cycles() const { return computeCycles + exchangeCycles + syncCycles; }
};

struct Report {
  std::string target; // "ipu1", "ipu2", "bow"
  unsigned ipus = 0;
  unsigned tilesPerIpu = 0;
  std::uint64_t bytesPerTile = 0;
  double clockHz = 0;
  bool fits = true;

  std::vector<TileMemory> tileMemory;           // one for each tile
  std::vector<std::uint64_t> tileComputeCycles; // over all executions
  std::vector<std::uint64_t> tileExchangeBytes; // received, over all executions
  std::vector<StepReport> steps;

  // Over all executions.
  std::uint64_t computeCycles = 0;
  std::uint64_t exchangeCycles = 0;
  std::uint64_t syncCycles = 0;
  std::uint64_t exchangeBytes = 0;
  std::uint64_t interIpuBytes = 0;
  std::uint64_t hostBytes = 0;
  std::uint64_t flops = 0;

  std::uint64_t cycles() const { return computeCycles + exchangeCycles + syncCycles; }
  double seconds() const { return clockHz > 0 ? static_cast<double>(cycles()) / clockHz : 0; }
  unsigned fullestTile() const;
  // Return the report as JSON; with `perTile`, with arrays of the tiles' numbers.
  std::string toJson(bool perTile = true) const;
};

// Return the counts of all runs since the engine was constructed.
Report report(const poplar::Engine &engine);
// Return the counts of one run of `program` without running it: a loop whose count depends on data counts as one
// iteration, and both branches of an If are counted.
Report estimate(const poplar::Engine &engine, unsigned program = 0);

} // namespace ipu_model
} // namespace snnipu
