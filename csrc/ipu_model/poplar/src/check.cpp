// What the SDK refuses when it compiles a graph, and a tile over its memory.
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

struct Touch {
  unsigned var;
  std::size_t begin, end;
  unsigned vertex;
  unsigned field;
  bool written;
};

// The two touches of the latest ends, of different vertices.
struct Latest {
  const Touch *first = nullptr, *second = nullptr;

  void add(const Touch &touch) {
    if (first && first->vertex == touch.vertex) {
      if (touch.end > first->end)
        first = &touch;
    } else if (!first || touch.end > first->end) {
      second = first;
      first = &touch;
    } else if (!second || touch.end > second->end) {
      second = &touch;
    }
  }
  // One of another vertex that reaches beyond where this one begins.
  const Touch *overlap(const Touch &touch) const {
    const Touch *const other = first && first->vertex != touch.vertex ? first : second;
    return other && other->end > touch.begin ? other : nullptr;
  }
};

} // namespace

void EngineState::checkRaces(unsigned computeSet) const {
  const ComputeSetState &set = graph->computeSets[computeSet];
  std::vector<Touch> touches;
  for (unsigned id : set.vertices) {
    const VertexState &vertex = graph->vertices[id];
    const std::size_t before = touches.size();
    bool writes = false;
    for (unsigned i = 0; i < vertex.edges.size(); ++i) {
      if (!vertex.edges[i].valid())
        continue;
      const bool written = vertex.codelet->fields[i].direction != Direction::Input;
      writes = writes || written;
      viewOf(vertex.edges[i]).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
        touches.push_back({var, begin, end, id, i, written});
      });
    }
    // Fields of one vertex: the compiler may keep a copy of each.
    if (!writes)
      continue;
    std::vector<Touch> own(touches.begin() + static_cast<std::ptrdiff_t>(before), touches.end());
    std::sort(own.begin(), own.end(),
              [](const Touch &a, const Touch &b) { return std::tie(a.var, a.begin) < std::tie(b.var, b.begin); });
    // Among what is sorted by begin, an overlap is one with whichever reaches furthest, read or written.
    const Touch *furthest = nullptr, *furthestWritten = nullptr;
    for (const Touch &touch : own) {
      if (furthest && furthest->var != touch.var)
        furthest = furthestWritten = nullptr;
      const Touch *const other = touch.written ? furthest : furthestWritten;
      if (other && other->end > touch.begin)
        throw graph_program_compilation_error(
            "element " + std::to_string(touch.begin) + " of " + graph->describe(touch.var) + " is in field \"" +
            vertex.codelet->fields[other->field].name + "\" and in field \"" +
            vertex.codelet->fields[touch.field].name + "\" of " + vertex.describe() + " (compute set \"" + set.name +
            "\"), and one of them writes it: an InOut field is one that is read and written");
      if (!furthest || touch.end > furthest->end)
        furthest = &touch;
      if (touch.written && (!furthestWritten || touch.end > furthestWritten->end))
        furthestWritten = &touch;
    }
  }
  std::sort(touches.begin(), touches.end(),
            [](const Touch &a, const Touch &b) { return std::tie(a.var, a.begin) < std::tie(b.var, b.begin); });
  Latest all, written;
  for (std::size_t i = 0; i < touches.size(); ++i) {
    const Touch &touch = touches[i];
    if (i > 0 && touches[i - 1].var != touch.var)
      all = written = Latest();
    if (const Touch *other = (touch.written ? all : written).overlap(touch)) {
      const VertexState &a = graph->vertices[other->vertex], &b = graph->vertices[touch.vertex];
      const auto does = [](const Touch &t) { return t.written ? " writes" : " reads"; };
      throw graph_program_compilation_error("a race in compute set \"" + set.name + "\": element " +
                                            std::to_string(touch.begin) + " of " + graph->describe(touch.var) + ": " +
                                            a.describe() + does(*other) + " it through field \"" +
                                            a.codelet->fields[other->field].name + "\", " + b.describe() + does(touch) +
                                            " it through field \"" + b.codelet->fields[touch.field].name +
                                            "\"; vertices run in no order: put them into two compute sets, or give "
                                            "each its own elements");
    }
    all.add(touch);
    if (touch.written)
      written.add(touch);
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
    remedy = "most of it is copies of what lies on other tiles: exchange less at once, or map vertices where their "
             "inputs lie";
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
