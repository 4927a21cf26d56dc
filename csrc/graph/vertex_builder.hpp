// A vertex on a tile; methods connect and set its fields.
#pragma once

#include <poplar/Graph.hpp>

#include <string>

namespace snnipu {
namespace graph {

class VertexBuilder {
public:
  VertexBuilder(poplar::Graph &graph, poplar::ComputeSet cs, const std::string &name, std::size_t tile)
      : graph_(graph), vertex_(graph.addVertex(cs, name)) {
    graph.setTileMapping(vertex_, static_cast<unsigned>(tile));
  }

  VertexBuilder &connect(const char *field, const poplar::Tensor &tensor) {
    graph_.connect(vertex_[field], tensor);
    return *this;
  }
  template <typename T> VertexBuilder &set(const char *field, T value) {
    graph_.setInitialValue(vertex_[field], value);
    return *this;
  }
  VertexBuilder &count(const char *field, std::size_t value) { return set(field, static_cast<unsigned>(value)); }

private:
  poplar::Graph &graph_;
  poplar::VertexRef vertex_;
};

} // namespace graph
} // namespace snnipu
