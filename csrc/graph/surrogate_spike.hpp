// Poplar programs for the spike of a membrane, spk = H(u), with a surrogate gradient.
#pragma once

#include "graph/vertex_name.hpp"

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

namespace snnipu {
namespace graph {

// Return spk in u's shape and type. u: FLOAT or HALF, any shape with at least one element. Throw std::invalid_argument
// otherwise.
poplar::Tensor surrogateSpike(poplar::Graph &graph, const poplar::Tensor &u, poplar::program::Sequence &prog,
                              const poplar::DebugContext &debug);

// Return the gradient of u.
poplar::Tensor surrogateSpikeGrad(poplar::Graph &graph, const poplar::Tensor &gradSpk, const poplar::Tensor &u,
                                  poplar::program::Sequence &prog, Surrogate surrogate, float a, float b,
                                  const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
