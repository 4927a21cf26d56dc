// PopART subset: the graph that operators are lowered into, and the Poplar tensors of its own.
#pragma once

#include <popart/names.hpp>

#include <poplar/Graph.hpp>
#include <poplar/Tensor.hpp>

#include <map>

namespace popart {
namespace popx {

class Devicex {
public:
  explicit Devicex(poplar::Graph &graph_) : graph(graph_) {}

  poplar::Graph &graph;
  // Of the popart::Graph's tensors, as far as they have been grown.
  std::map<TensorId, poplar::Tensor> tensors;
};

} // namespace popx
} // namespace popart
