// Adds a vertex to a graph and sets its fields.
#pragma once

#include "graph/poplar.hpp"
#include <string>

namespace snnipu {
namespace graph {

class VertexBuilder {
public:
  // Add a vertex of class `name` to a compute set and place it on a tile.
  VertexBuilder(Graph &graph, ComputeSet cs, const std::string &name, size_t tile)
      : graph_(graph), vertex_(graph.addVertex(cs, name)) {
    graph.setTileMapping(vertex_, static_cast<unsigned>(tile));
  }

  // Connect a field with a tensor.
  VertexBuilder &connect(const char *field, const Tensor &tensor) {
    graph_.connect(vertex_[field], tensor);
    return *this;
  }
  // Set the initial value of a field.
  template <typename T> VertexBuilder &set(const char *field, T value) {
    graph_.setInitialValue(vertex_[field], value);
    return *this;
  }
  // Set a field of type unsigned.
  VertexBuilder &count(const char *field, size_t value) { return set(field, static_cast<unsigned>(value)); }

private:
  Graph &graph_;
  VertexRef vertex_;
};

} // namespace graph
} // namespace snnipu
