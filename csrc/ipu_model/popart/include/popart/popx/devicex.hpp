// PopART subset: the Poplar graph that operators are lowered to, and its tensors.
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
  // Poplar tensors of the popart::Graph's tensors that have been grown.
  std::map<TensorId, poplar::Tensor> tensors;
};

} // namespace popx
} // namespace popart
