// Placement of variables and vertices, and their costs. docs/reference/ipu-model.md explains the constants.
#include "engine.hpp"

#include "ipu_model/counts.hpp"

#include <poplar/exceptions.hpp>

#include <algorithm>
#include <iostream>
#include <tuple>
#include <unordered_set>

namespace poplar {
namespace detail {

namespace {

// Estimates of code size, in bytes.
constexpr std::uint64_t controlCode = 4096; // of every tile: start-up, sync, supervisor
// Code of a codelet on a tile. Codelets of snnipu have Clang's count of instructions instead, 4 bytes each.
constexpr std::uint64_t codePerCodelet = 1024;
constexpr std::uint64_t instructionBytes = 4;
constexpr std::uint64_t codePerStep = 24;     // of the control program
constexpr std::uint64_t codePerExchanged = 8; // an interval sent or received
// Instructions of a tile for a message, which is an interval from one tile. Receiving takes three: select the source,
// end the selection, set the target address. Sending takes two. They are issued while words arrive and leave, so that
// long messages hide them. Source: the public exchange compiler for Mk2, https://github.com/osmarks/ipu-stack;
// Graphcore has published none.
constexpr std::uint64_t receiveInstructions = 3;
constexpr std::uint64_t sendInstructions = 2;
// Cycles of the supervisor to start workers for plain vertices, and to start a copy on the tile.
constexpr std::uint64_t supervisorCycles = 11;
constexpr std::uint64_t copyCycles = 30;
// A worker's instructions for an element without an estimate: load, arithmetic, store, and the loop.
constexpr std::uint64_t unknownInstructions = 6;

std::uint64_t wordBytes(std::uint64_t bytes) { return (bytes + 3) / 4 * 4; }

// Return the bytes of a vertex on the device: pointers have 4 bytes, a SPAN also a size, and numbers their own size.
std::uint64_t deviceBytes(const Codelet &codelet) {
  std::uint64_t bytes = 0, alignment = 4;
  for (const FieldInfo &field : codelet.fields) {
    std::uint64_t size = field.layout == Layout::Span ? 8 : 4, align = 4;
    if (field.direction == Direction::Member)
      size = align = sizeOf(field.type);
    alignment = std::max(alignment, align);
    bytes = (bytes + align - 1) / align * align + size;
  }
  return (bytes + alignment - 1) / alignment * alignment;
}

std::uint64_t codeOf(const Codelet &codelet) {
  const auto found = snnipu::ipu_model::instructionsOfCodelet.find(codelet.name);
  return found == snnipu::ipu_model::instructionsOfCodelet.end() ? codePerCodelet : found->second * instructionBytes;
}

void mix(std::uint64_t &hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  hash ^= hash >> 29;
}

} // namespace

void EngineState::place() {
  pieces.resize(graph->variables.size());
  std::unordered_map<unsigned, std::size_t> filled;
  for (unsigned var = 0; var < graph->variables.size(); ++var) {
    filled.clear();
    pieces[var].reserve(graph->variables[var].mapping.size());
    for (const auto &entry : graph->variables[var].mapping) {
      std::size_t &local = filled[entry.second.tile];
      pieces[var].push_back({entry.first, entry.second.end, entry.second.tile, local});
      local += entry.second.end - entry.first;
    }
  }
}

Planned EngineState::plan(const std::shared_ptr<const ProgramNode> &node) {
  Planned result{node->kind, node.get(), 0, {}};
  switch (node->kind) {
  case Kind::Execute:
    result.cost = costOfCompute(node->computeSet);
    break;
  case Kind::Copy:
  case Kind::StreamIn:
  case Kind::StreamOut:
    result.cost = costOfCopy(*node);
    break;
  default:
    for (const auto &child : node->children)
      result.children.push_back(plan(child));
  }
  return result;
}

// Add the cost of the moves of one exchange. All tiles receive at the same time, at a number of bytes per cycle. Data
// that several tiles need is sent once. Many short messages take the time of their instructions.
void EngineState::exchange(std::vector<Move> moves, StepCost &cost) const {
  if (moves.empty())
    return;
  const unsigned tiles = target.getNumTiles(), perIpu = target.getTilesPerIPU();
  const auto order = [](const Move &a, const Move &b) {
    return std::tie(a.tile, a.from, a.var, a.begin) < std::tie(b.tile, b.from, b.var, b.begin);
  };
  // Call body(Move) for the union of the intervals of each tile.
  const auto united = [&](std::vector<Move> &all, const auto &body) {
    std::sort(all.begin(), all.end(), order);
    for (std::size_t i = 0; i < all.size();) {
      Move current = all[i];
      for (++i; i < all.size() && all[i].tile == current.tile && all[i].from == current.from &&
                all[i].var == current.var && all[i].begin <= current.end;
           ++i)
        current.end = std::max(current.end, all[i].end);
      body(current);
    }
  };
  const auto bytesOf = [&](const Move &move) {
    return wordBytes((move.end - move.begin) * sizeOf(graph->variables[move.var].type));
  };
  std::vector<std::uint64_t> received(tiles), sent(tiles), instructions(tiles);
  std::vector<std::uint64_t> ipuIn(target.getNumIPUs()), ipuOut(target.getNumIPUs());
  std::vector<Move> sends, crossings; // sends: by sending tile; crossings: from one IPU (`from`) to another (`tile`)
  if (cost.tileCode.empty())
    cost.tileCode.resize(tiles);
  united(moves, [&](const Move &move) {
    received[move.tile] += bytesOf(move);
    cost.tileCode[move.tile] += codePerExchanged;
    const auto send = [&](unsigned from, std::size_t begin, std::size_t end) {
      instructions[move.tile] += receiveInstructions;
      sends.push_back({from, move.var, begin, end});
      if (from / perIpu != move.tile / perIpu)
        crossings.push_back({move.tile / perIpu, move.var, begin, end, from / perIpu});
    };
    if (move.from != home)
      send(move.from, move.begin, move.end);
    else
      forPieces(move.var, move.begin, move.end, [&](const Piece &piece) { send(piece.tile, piece.begin, piece.end); });
  });
  united(sends, [&](const Move &move) {
    sent[move.tile] += bytesOf(move);
    instructions[move.tile] += sendInstructions;
    cost.tileCode[move.tile] += codePerExchanged;
  });
  std::uint64_t interIpu = 0;
  united(crossings, [&](const Move &move) {
    interIpu += bytesOf(move);
    ipuIn[move.tile] += bytesOf(move);
    ipuOut[move.from] += bytesOf(move);
  });
  std::uint64_t most = 0, mostInstructions = 0, total = 0, mostIpu = 0;
  if (cost.tileReceived.empty())
    cost.tileReceived.resize(tiles);
  for (unsigned tile = 0; tile < tiles; ++tile) {
    most = std::max({most, received[tile], sent[tile]});
    mostInstructions = std::max(mostInstructions, instructions[tile]);
    total += received[tile];
    cost.tileReceived[tile] += received[tile];
  }
  for (unsigned ipu = 0; ipu < target.getNumIPUs(); ++ipu)
    mostIpu = std::max({mostIpu, ipuIn[ipu], ipuOut[ipu]});
  const auto cycles = [](std::uint64_t bytes, std::uint64_t perCycle) { return (bytes + perCycle - 1) / perCycle; };
  cost.report.exchangeCycles += std::max({cycles(most, target.getExchangeBytesPerCycle()), mostInstructions,
                                          cycles(mostIpu, target.getInterIPUBytesPerCycle())});
  cost.report.exchangeBytes += total;
  cost.report.interIpuBytes += interIpu;
  cost.report.syncCycles += interIpu ? target.getGlobalSyncCycles() : target.getMinIPUSyncDelay();
}

// Return the estimate of a vertex without one: each element of its fields is read and written once. Print a warning,
// once for each codelet.
VertexPerfEstimate EngineState::unknownEstimate(const VertexState &vertex, const std::string &computeSet) {
  const std::string &name = vertex.codelet->name;
  const std::string advice = "Graph::setPerfEstimate, or Graph::registerPerfEstimator for " + name;
  if (options.requireEstimates)
    throw missing_perf_estimate(vertex.describe() + " (compute set \"" + computeSet +
                                "\") has no estimate of its cycles: " + advice);
  if (unestimated.insert(name).second)
    std::cerr << "IPU model: " << vertex.describe() << " (compute set \"" << computeSet
              << "\") has no estimate of its cycles and is taken for " << unknownInstructions
              << " instructions an element: " << advice << std::endl;
  std::uint64_t elements = 0;
  for (const Tensor &edge : vertex.edges)
    elements += edge.valid() ? edge.numElements() : 0;
  if (!vertex.codelet->multiVertex)
    return {unknownInstructions * elements, 0};
  const std::uint64_t workers = target.getNumWorkerContexts();
  return {supervisorCycles + workers * unknownInstructions * ((elements + workers - 1) / workers), 0};
}

unsigned EngineState::costOfCompute(unsigned computeSet) {
  if (computeSet >= graph->computeSets.size())
    throw graph_program_compilation_error("Execute of a compute set that is not of this graph");
  const auto known = computeCost.find(computeSet);
  if (known != computeCost.end())
    return known->second;
  const ComputeSetState &set = graph->computeSets[computeSet];
  const unsigned tiles = target.getNumTiles(), workers = target.getNumWorkerContexts();
  StepCost cost;
  cost.report.name = set.name;
  cost.report.kind = "compute";
  cost.report.vertices = set.vertices.size();
  cost.tileCycles.resize(tiles);
  cost.tileBuffers.resize(tiles);
  cost.tileCode.resize(tiles);
  std::vector<Move> inputs, outputs;
  std::vector<std::vector<std::uint64_t>> workerCycles(tiles); // of plain vertices
  std::unordered_set<std::uint64_t> buffers;                   // tile and edge
  for (unsigned id : set.vertices) {
    const VertexState &vertex = graph->vertices[id];
    const unsigned tile = vertex.tile;
    VertexPerfEstimate estimate = vertex.estimate;
    if (!vertex.hasEstimate) {
      const auto estimator = graph->estimators.find(vertex.codelet->name);
      if (estimator != graph->estimators.end())
        estimate = estimator->second(VertexIntrospector(vertex, options.occupancy), target);
      else
        estimate = unknownEstimate(vertex, set.name);
    }
    cost.report.flops += estimate.flops;
    if (vertex.codelet->multiVertex) {
      cost.tileCycles[tile] += estimate.cycles;
    } else {
      // The worker that is free first takes the next vertex.
      workerCycles[tile].resize(workers);
      *std::min_element(workerCycles[tile].begin(), workerCycles[tile].end()) += estimate.cycles;
    }
    for (std::size_t i = 0; i < vertex.edges.size(); ++i) {
      if (!vertex.edges[i].valid())
        continue;
      const Direction direction = vertex.codelet->fields[i].direction;
      const std::uint64_t size = sizeOf(vertex.codelet->fields[i].type);
      bool contiguous = true, first = true, misaligned = false;
      unsigned lastVar = 0;
      std::size_t lastLocal = 0;
      std::uint64_t hash = tile, bytesHere = 0, bytesElsewhere = 0;
      const std::size_t inputsBefore = inputs.size(), outputsBefore = outputs.size();
      viewOf(vertex.edges[i]).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
        mix(hash, var);
        mix(hash, begin);
        mix(hash, end);
        forPieces(var, begin, end, [&](const Piece &piece) {
          if (piece.tile == tile) {
            contiguous = contiguous && (first || (lastVar == var && lastLocal == piece.local));
            // A variable starts at a multiple of 8 bytes on every tile.
            misaligned = misaligned || (first && piece.local * size % vertex.codelet->fields[i].minAlign != 0);
            first = false;
            lastVar = var;
            lastLocal = piece.local + (piece.end - piece.begin);
            bytesHere += (piece.end - piece.begin) * size;
            return;
          }
          contiguous = false;
          bytesElsewhere += (piece.end - piece.begin) * size;
          if (direction != Direction::Output)
            inputs.push_back({tile, var, piece.begin, piece.end});
          if (direction != Direction::Input)
            outputs.push_back({piece.tile, var, piece.begin, piece.end, tile});
        });
      });
      if (contiguous && misaligned && options.refuseMisaligned)
        throw graph_program_compilation_error(
            "field \"" + vertex.codelet->fields[i].name + "\" of " + vertex.describe() + " (compute set \"" + set.name +
            "\") asks for a start at a multiple of " + std::to_string(vertex.codelet->fields[i].minAlign) +
            " bytes, and its elements lie elsewhere on tile " + std::to_string(tile) +
            ": let them begin a variable, or a piece of whole 64-bit words of one");
      if (contiguous && !misaligned)
        continue;
      if (!buffers.insert(hash).second && direction == Direction::Input) {
        // Another vertex of the tile has a copy of the same elements already.
        inputs.resize(inputsBefore);
        outputs.resize(outputsBefore);
        continue;
      }
      cost.tileBuffers[tile] += wordBytes(bytesHere + bytesElsewhere);
      if (bytesHere) {
        const std::uint64_t times = direction == Direction::InOut ? 2 : 1;
        cost.tileCycles[tile] +=
            times * (copyCycles + (bytesHere + target.getMemcpyBytesPerCycle() - 1) / target.getMemcpyBytesPerCycle());
      }
    }
  }
  for (unsigned tile = 0; tile < tiles; ++tile)
    if (!workerCycles[tile].empty())
      cost.tileCycles[tile] +=
          supervisorCycles + workers * *std::max_element(workerCycles[tile].begin(), workerCycles[tile].end());
  std::uint64_t sum = 0;
  for (std::uint64_t cycles : cost.tileCycles) {
    cost.report.computeCycles = std::max(cost.report.computeCycles, cycles);
    cost.report.tiles += cycles != 0;
    sum += cycles;
  }
  if (cost.report.computeCycles)
    cost.report.balance = static_cast<double>(sum) / (static_cast<double>(cost.report.computeCycles) * tiles);
  cost.report.syncCycles += target.getMinIPUSyncDelay();
  exchange(std::move(inputs), cost);
  exchange(std::move(outputs), cost);
  const unsigned index = static_cast<unsigned>(costs.size());
  costs.push_back(std::move(cost));
  computeCost[computeSet] = index;
  return index;
}

unsigned EngineState::costOfCopy(const ProgramNode &node) {
  const unsigned tiles = target.getNumTiles();
  StepCost cost;
  cost.report.name = node.name;
  cost.report.kind = node.kind == Kind::Copy ? "copy" : "host";
  if (node.kind == Kind::Copy) {
    cost.tileCycles.resize(tiles);
    std::vector<Move> moves;
    // Split both sides into parts that are contiguous on either side.
    struct Part {
      unsigned var;
      std::size_t begin, end;
    };
    std::vector<Part> from;
    viewOf(node.src).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
      from.push_back({var, begin, end});
    });
    std::size_t next = 0;
    const std::uint64_t size = sizeOf(node.src.elementType());
    viewOf(node.dst).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
      forPieces(var, begin, end, [&](const Piece &piece) {
        for (std::size_t left = piece.end - piece.begin; left > 0;) {
          Part &part = from[next];
          const std::size_t count = std::min(left, part.end - part.begin);
          forPieces(part.var, part.begin, part.begin + count, [&](const Piece &source) {
            if (source.tile == piece.tile)
              cost.tileCycles[piece.tile] += (source.end - source.begin) * size;
            else
              moves.push_back({piece.tile, part.var, source.begin, source.end});
          });
          part.begin += count;
          next += part.begin == part.end;
          left -= count;
        }
      });
    });
    std::uint64_t sum = 0;
    for (std::uint64_t &cycles : cost.tileCycles) {
      if (cycles)
        cycles = copyCycles + (cycles + target.getMemcpyBytesPerCycle() - 1) / target.getMemcpyBytesPerCycle();
      cost.report.computeCycles = std::max(cost.report.computeCycles, cycles);
      cost.report.tiles += cycles != 0;
      sum += cycles;
    }
    if (cost.report.computeCycles)
      cost.report.balance = static_cast<double>(sum) / (static_cast<double>(cost.report.computeCycles) * tiles);
    exchange(std::move(moves), cost);
    if (cost.report.syncCycles == 0)
      cost.report.syncCycles = target.getMinIPUSyncDelay();
  }
  costs.push_back(std::move(cost));
  return static_cast<unsigned>(costs.size() - 1);
}

void EngineState::countMemory() {
  const unsigned tiles = target.getNumTiles();
  tileMemory.resize(tiles);
  std::vector<std::uint64_t> bytes(tiles);
  for (unsigned var = 0; var < pieces.size(); ++var) {
    const std::uint64_t size = sizeOf(graph->variables[var].type);
    // A variable starts at a multiple of 8 bytes on every tile.
    std::vector<unsigned> touched;
    for (const Piece &piece : pieces[var]) {
      if (bytes[piece.tile] == 0)
        touched.push_back(piece.tile);
      bytes[piece.tile] += (piece.end - piece.begin) * size;
    }
    for (unsigned tile : touched) {
      tileMemory[tile].variables += (bytes[tile] + 7) / 8 * 8;
      bytes[tile] = 0;
    }
  }
  std::vector<std::unordered_set<const Codelet *>> codelets(tiles);
  std::vector<std::uint64_t> buffers(tiles);
  std::unordered_map<const Codelet *, std::uint64_t> stateBytes;
  for (const auto &entry : computeCost)
    for (unsigned id : graph->computeSets[entry.first].vertices) {
      const VertexState &vertex = graph->vertices[id];
      const auto found = stateBytes.find(vertex.codelet);
      const std::uint64_t state =
          found != stateBytes.end() ? found->second : stateBytes[vertex.codelet] = deviceBytes(*vertex.codelet);
      // With the vertex's entry in the tile's list: addresses of the vertex and of its code.
      tileMemory[vertex.tile].vertexState += state + 8;
      codelets[vertex.tile].insert(vertex.codelet);
    }
  for (const StepCost &cost : costs) {
    for (unsigned tile = 0; tile < tiles && !cost.tileBuffers.empty(); ++tile)
      buffers[tile] = std::max(buffers[tile], cost.tileBuffers[tile]);
    for (unsigned tile = 0; tile < tiles && !cost.tileCode.empty(); ++tile)
      tileMemory[tile].code += cost.tileCode[tile];
  }
  for (unsigned tile = 0; tile < tiles; ++tile) {
    TileMemory &memory = tileMemory[tile];
    memory.exchangeBuffers = buffers[tile];
    memory.code += controlCode + codePerStep * costs.size();
    for (const Codelet *const codelet : codelets[tile])
      memory.code += codeOf(*codelet);
    if (memory.total() > target.getBytesPerTile())
      overfull.push_back(tile);
  }
}

} // namespace detail
} // namespace poplar
