// Checks that the SDK makes when it compiles a graph, and the check of tile memory.
#include "engine.hpp"

#include <poplar/exceptions.hpp>

#include <algorithm>
#include <tuple>

namespace poplar {
namespace detail {

void EngineState::checkVariables() const {
  for (unsigned var = 0; var < graph->variables.size(); ++var) {
    const Variable &variable = graph->variables[var];
    std::size_t next = 0;
    for (const auto &entry : variable.mapping) {
      if (entry.first != next)
        break;
      next = entry.second.end;
    }
    if (next != variable.numElements)
      throw invalid_tile_mapping(graph->describe(var) + (variable.mapping.empty() ? "" : ": element ") +
                                 (variable.mapping.empty() ? std::string() : std::to_string(next)) +
                                 " is mapped to no tile: Graph::setTileMapping maps it");
  }
}

void EngineState::checkVertices() const {
  for (const VertexState &vertex : graph->vertices) {
    const std::string in = " (compute set \"" + graph->computeSets[vertex.computeSet].name + "\")";
    if (!vertex.mapped)
      throw invalid_tile_mapping(vertex.describe() + in + " is on no tile: Graph::setTileMapping maps it");
    for (std::size_t i = 0; i < vertex.edges.size(); ++i) {
      const FieldInfo &field = vertex.codelet->fields[i];
      if (field.direction == Direction::Member ? !vertex.members[i].empty() : vertex.edges[i].valid())
        continue;
      if (field.direction == Direction::Member)
        throw graph_connection_error("field \"" + field.name + "\" of " + vertex.describe() + in +
                                     " has no value: Graph::setInitialValue sets it");
      throw graph_connection_error(
          "field \"" + field.name + "\" of " + vertex.describe() + in +
          " is not connected: Graph::connect connects it, a field that is not used to a tensor "
          "of no elements");
    }
  }
}

namespace {

struct Access {
  unsigned var;
  std::size_t begin, end;
  unsigned vertex;
  unsigned field;
  bool written;
};

// The two accesses with the latest ends, by different vertices.
struct LatestTwo {
  const Access *first = nullptr, *second = nullptr;

  void add(const Access &access) {
    if (first && first->vertex == access.vertex) {
      if (access.end > first->end)
        first = &access;
    } else if (!first || access.end > first->end) {
      second = first;
      first = &access;
    } else if (!second || access.end > second->end) {
      second = &access;
    }
  }
  // Return an access by another vertex that ends after this one begins, or null.
  const Access *overlap(const Access &access) const {
    const Access *const other = first && first->vertex != access.vertex ? first : second;
    return other && other->end > access.begin ? other : nullptr;
  }
};

} // namespace

void EngineState::checkRaces(unsigned computeSet) const {
  const ComputeSetState &set = graph->computeSets[computeSet];
  std::vector<Access> accesses;
  for (unsigned id : set.vertices) {
    const VertexState &vertex = graph->vertices[id];
    const std::size_t before = accesses.size();
    bool writes = false;
    for (unsigned i = 0; i < vertex.edges.size(); ++i) {
      if (!vertex.edges[i].valid())
        continue;
      const bool written = vertex.codelet->fields[i].direction != Direction::Input;
      writes = writes || written;
      viewOf(vertex.edges[i]).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
        accesses.push_back({var, begin, end, id, i, written});
      });
    }
    // Fields of one vertex may not overlap if one is written, because the compiler may keep a copy of each.
    if (!writes)
      continue;
    std::vector<Access> vertexAccesses(accesses.begin() + static_cast<std::ptrdiff_t>(before), accesses.end());
    std::sort(vertexAccesses.begin(), vertexAccesses.end(),
              [](const Access &a, const Access &b) { return std::tie(a.var, a.begin) < std::tie(b.var, b.begin); });
    // Accesses are sorted by begin. A write must not begin before the end of any earlier access, and a read not before
    // the end of any earlier write.
    const Access *furthest = nullptr, *furthestWritten = nullptr;
    for (const Access &access : vertexAccesses) {
      if (furthest && furthest->var != access.var)
        furthest = furthestWritten = nullptr;
      const Access *const other = access.written ? furthest : furthestWritten;
      if (other && other->end > access.begin)
        throw graph_program_compilation_error(
            "element " + std::to_string(access.begin) + " of " + graph->describe(access.var) + " is in field \"" +
            vertex.codelet->fields[other->field].name + "\" and in field \"" +
            vertex.codelet->fields[access.field].name + "\" of " + vertex.describe() + " (compute set \"" + set.name +
            "\"), and one of them writes it: an InOut field is one that is read and written");
      if (!furthest || access.end > furthest->end)
        furthest = &access;
      if (access.written && (!furthestWritten || access.end > furthestWritten->end))
        furthestWritten = &access;
    }
  }
  std::sort(accesses.begin(), accesses.end(),
            [](const Access &a, const Access &b) { return std::tie(a.var, a.begin) < std::tie(b.var, b.begin); });
  LatestTwo all, written;
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    const Access &access = accesses[i];
    if (i > 0 && accesses[i - 1].var != access.var)
      all = written = LatestTwo();
    if (const Access *other = (access.written ? all : written).overlap(access)) {
      const VertexState &a = graph->vertices[other->vertex], &b = graph->vertices[access.vertex];
      const auto does = [](const Access &t) { return t.written ? " writes" : " reads"; };
      throw graph_program_compilation_error(
          "a race in compute set \"" + set.name + "\": element " + std::to_string(access.begin) + " of " +
          graph->describe(access.var) + ": " + a.describe() + does(*other) + " it through field \"" +
          a.codelet->fields[other->field].name + "\", " + b.describe() + does(access) + " it through field \"" +
          b.codelet->fields[access.field].name +
          "\"; vertices run in no order: put them into two compute sets, or give "
          "each its own elements");
    }
    all.add(access);
    if (access.written)
      written.add(access);
  }
}

std::string EngineState::largestVariables(unsigned tile) const {
  std::vector<std::pair<std::size_t, unsigned>> bytes;
  for (unsigned var = 0; var < graph->variables.size(); ++var) {
    std::size_t elements = 0;
    for (const Piece &piece : pieces[var])
      elements += piece.tile == tile ? piece.end - piece.begin : 0;
    if (elements)
      bytes.emplace_back(elements * sizeOf(graph->variables[var].type), var);
  }
  const std::size_t shown = std::min<std::size_t>(4, bytes.size());
  std::partial_sort(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(shown), bytes.end(),
                    [](const auto &a, const auto &b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < shown; ++i)
    text += (i ? ", " : "") + graph->describe(bytes[i].second) + " with " + std::to_string(bytes[i].first) + " bytes";
  return text.empty() ? "no variables" : text;
}

void EngineState::checkMemory() const {
  if (overfull.empty() || !options.enforceTileMemory)
    return;
  const unsigned tile = *std::max_element(overfull.begin(), overfull.end(), [&](unsigned a, unsigned b) {
    return tileMemory[a].total() < tileMemory[b].total();
  });
  const TileMemory &memory = tileMemory[tile];
  std::uint64_t all = 0;
  for (const TileMemory &each : tileMemory)
    all += each.total();
  const std::uint64_t machine = std::uint64_t(target.getBytesPerTile()) * target.getNumTiles();
  std::string remedy;
  if (memory.exchangeBuffers > memory.variables)
    remedy = "most of it is copies of data from other tiles: exchange less at a time, or map vertices to the tiles of "
             "their inputs";
  else if (all * 10 > machine * 8)
    remedy = "the tiles together are " + std::to_string(all * 100 / machine) +
             " % full: use more IPUs, a smaller batch, or half precision";
  else
    remedy = "other tiles have room: map the largest variables over more tiles";
  throw graph_memory_allocation_error(
      "tile " + std::to_string(tile) + " needs " + std::to_string(memory.total()) + " bytes and has " +
      std::to_string(target.getBytesPerTile()) + " (variables " + std::to_string(memory.variables) + ", vertex state " +
      std::to_string(memory.vertexState) + ", exchange buffers " + std::to_string(memory.exchangeBuffers) + ", code " +
      std::to_string(memory.code) + ")" +
      (overfull.size() > 1 ? "; " + std::to_string(overfull.size()) + " tiles are over their memory" : "") +
      "; its largest: " + largestVariables(tile) + "; " + remedy);
}

} // namespace detail
} // namespace poplar
