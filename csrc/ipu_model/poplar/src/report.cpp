#include "ipu_model/report.hpp"

#include "engine.hpp"

#include <algorithm>
#include <cstdio>
#include <ostream>

namespace snnipu {
namespace ipu_model {

using poplar::detail::EngineAccess;
using poplar::detail::EngineState;
using poplar::detail::Kind;
using poplar::detail::Planned;
using poplar::detail::StepCost;

namespace {

Report reportOf(const EngineState &state, const std::vector<std::uint64_t> &executions, std::uint64_t hostBytes) {
  Report report;
  const unsigned tiles = state.target.getNumTiles();
  report.target = state.target.getTargetArchString();
  report.ipus = state.target.getNumIPUs();
  report.tilesPerIpu = state.target.getTilesPerIPU();
  report.bytesPerTile = state.target.getBytesPerTile();
  report.clockHz = state.target.getTileClockFrequency();
  report.fits = state.overfull.empty();
  report.tileMemory = state.tileMemory;
  report.tileComputeCycles.resize(tiles);
  report.tileExchangeBytes.resize(tiles);
  report.hostBytes = hostBytes;
  for (std::size_t i = 0; i < state.costs.size(); ++i) {
    const StepCost &cost = state.costs[i];
    const std::uint64_t times = executions[i];
    report.steps.push_back(cost.report);
    report.steps.back().executions = times;
    report.computeCycles += times * cost.report.computeCycles;
    report.exchangeCycles += times * cost.report.exchangeCycles;
    report.syncCycles += times * cost.report.syncCycles;
    report.exchangeBytes += times * cost.report.exchangeBytes;
    report.interIpuBytes += times * cost.report.interIpuBytes;
    report.flops += times * cost.report.flops;
    for (unsigned tile = 0; tile < tiles && times != 0; ++tile) {
      if (!cost.tileCycles.empty())
        report.tileComputeCycles[tile] += times * cost.tileCycles[tile];
      if (!cost.tileReceived.empty())
        report.tileExchangeBytes[tile] += times * cost.tileReceived[tile];
    }
  }
  return report;
}

void count(const Planned &step, std::uint64_t times, std::vector<std::uint64_t> &executions, std::uint64_t &hostBytes) {
  switch (step.kind) {
  case Kind::StreamIn:
  case Kind::StreamOut:
    hostBytes += times * step.node->stream.numElements() * poplar::detail::sizeOf(step.node->stream.elementType());
    executions[step.cost] += times;
    break;
  case Kind::Execute:
  case Kind::Copy:
    executions[step.cost] += times;
    break;
  case Kind::Repeat:
    times *= step.node->count;
    [[fallthrough]];
  default:
    for (const Planned &child : step.children)
      count(child, times, executions, hostBytes);
  }
}

std::string quoted(const std::string &text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

class Json {
public:
  explicit Json(std::string &to) : to_(to) { to_ += '{'; }
  ~Json() { to_ += '}'; }
  Json(const Json &) = delete;
  Json &operator=(const Json &) = delete;

  void name(const char *key) {
    to_ += first_ ? "" : ", ";
    first_ = false;
    to_ += quoted(key) + ": ";
  }
  void add(const char *key, const std::string &text) {
    name(key);
    to_ += quoted(text);
  }
  void add(const char *key, std::uint64_t value) {
    name(key);
    to_ += std::to_string(value);
  }
  void addReal(const char *key, double value) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.9g", value);
    name(key);
    to_ += text;
  }
  template <typename List, typename Of> void list(const char *key, const List &values, const Of &of) {
    name(key);
    to_ += '[';
    bool first = true;
    for (const auto &value : values) {
      to_ += first ? "" : ", ";
      first = false;
      of(value);
    }
    to_ += ']';
  }

private:
  std::string &to_;
  bool first_ = true;
};

} // namespace

unsigned Report::fullestTile() const {
  const auto fullest = std::max_element(tileMemory.begin(), tileMemory.end(),
                                        [](const TileMemory &a, const TileMemory &b) { return a.total() < b.total(); });
  return static_cast<unsigned>(fullest - tileMemory.begin());
}

std::string Report::toJson(bool perTile) const {
  std::string text;
  {
    Json json(text);
    json.add("target", target);
    json.add("ipus", ipus);
    json.add("tiles_per_ipu", tilesPerIpu);
    json.add("tile_memory_bytes", bytesPerTile);
    json.addReal("clock_hz", clockHz);
    json.name("fits");
    text += fits ? "true" : "false";
    json.add("tile_memory_max_bytes", tileMemory.empty() ? 0 : tileMemory[fullestTile()].total());
    json.add("fullest_tile", fullestTile());
    TileMemory sum;
    for (const TileMemory &memory : tileMemory) {
      sum.variables += memory.variables;
      sum.vertexState += memory.vertexState;
      sum.exchangeBuffers += memory.exchangeBuffers;
      sum.code += memory.code;
    }
    const auto memoryJson = [&](const TileMemory &memory) {
      Json inner(text);
      inner.add("variables", memory.variables);
      inner.add("vertex_state", memory.vertexState);
      inner.add("exchange_buffers", memory.exchangeBuffers);
      inner.add("code", memory.code);
    };
    json.name("memory_bytes");
    memoryJson(sum);
    json.name("fullest_tile_bytes");
    memoryJson(tileMemory.empty() ? TileMemory() : tileMemory[fullestTile()]);
    json.add("cycles", cycles());
    json.add("compute_cycles", computeCycles);
    json.add("exchange_cycles", exchangeCycles);
    json.add("sync_cycles", syncCycles);
    json.addReal("seconds", seconds());
    json.add("exchange_bytes", exchangeBytes);
    json.add("inter_ipu_bytes", interIpuBytes);
    json.add("host_bytes", hostBytes);
    json.add("flops", flops);
    json.list("steps", steps, [&](const StepReport &step) {
      Json inner(text);
      inner.add("name", step.name);
      inner.add("kind", step.kind);
      inner.add("executions", step.executions);
      inner.add("vertices", step.vertices);
      inner.add("tiles", step.tiles);
      inner.add("compute_cycles", step.computeCycles);
      inner.addReal("balance", step.balance);
      inner.add("exchange_bytes", step.exchangeBytes);
      inner.add("exchange_cycles", step.exchangeCycles);
      inner.add("inter_ipu_bytes", step.interIpuBytes);
      inner.add("sync_cycles", step.syncCycles);
      inner.add("flops", step.flops);
    });
    if (perTile) {
      const auto number = [&](std::uint64_t value) { text += std::to_string(value); };
      const auto column = [&](const char *key, std::uint64_t TileMemory::*member) {
        json.list(key, tileMemory, [&](const TileMemory &memory) { number(memory.*member); });
      };
      column("tile_variables_bytes", &TileMemory::variables);
      column("tile_vertex_state_bytes", &TileMemory::vertexState);
      column("tile_exchange_buffers_bytes", &TileMemory::exchangeBuffers);
      column("tile_code_bytes", &TileMemory::code);
      json.list("tile_compute_cycles", tileComputeCycles, number);
      json.list("tile_exchange_bytes", tileExchangeBytes, number);
    }
  }
  return text;
}

Report report(const poplar::Engine &engine) {
  const EngineState &state = EngineAccess::state(engine);
  return reportOf(state, state.executions, state.hostBytes);
}

Report estimate(const poplar::Engine &engine, unsigned program) {
  const EngineState &state = EngineAccess::state(engine);
  if (program >= state.planned.size())
    throw poplar::index_error("program " + std::to_string(program) + " of an engine that has " +
                              std::to_string(state.planned.size()));
  std::vector<std::uint64_t> executions(state.costs.size());
  std::uint64_t hostBytes = 0;
  count(state.planned[program], 1, executions, hostBytes);
  return reportOf(state, executions, hostBytes);
}

} // namespace ipu_model
} // namespace snnipu

namespace poplar {

void Engine::printProfileSummary(std::ostream &out, const OptionFlags &) const {
  const snnipu::ipu_model::Report report = snnipu::ipu_model::report(*this);
  const auto memory = report.tileMemory[report.fullestTile()];
  out << "Figures of a model of " << report.ipus << " x " << report.target << ", " << report.tilesPerIpu << " tiles\n"
      << "  fullest tile: " << report.fullestTile() << ", " << memory.total() << " of " << report.bytesPerTile
      << " bytes (variables " << memory.variables << ", vertex state " << memory.vertexState << ", exchange buffers "
      << memory.exchangeBuffers << ", code " << memory.code << ")\n"
      << "  cycles: " << report.cycles() << " (compute " << report.computeCycles << ", exchange "
      << report.exchangeCycles << ", sync " << report.syncCycles << ")\n"
      << "  exchanged: " << report.exchangeBytes << " bytes, " << report.interIpuBytes << " of them between IPUs\n";
  for (const auto &step : report.steps)
    out << "  " << step.executions << " x " << step.kind << " \"" << step.name << "\": compute " << step.computeCycles
        << ", exchange " << step.exchangeCycles << ", sync " << step.syncCycles << " cycles; " << step.vertices
        << " vertices, " << step.tiles << " tiles, balance " << static_cast<int>(step.balance * 100 + 0.5) << " %\n";
}

} // namespace poplar
