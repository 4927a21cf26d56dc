// The spike of a membrane, spk = H(u), whose gradient is a surrogate's, as Poplar programs.
#pragma once

#include "graph/vertex_name.hpp"

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

namespace snnipu {
namespace graph {

// u: FLOAT or HALF, of any shape, at least one element. Returns spk of its shape and type.
poplar::Tensor surrogateSpike(poplar::Graph &graph, const poplar::Tensor &u, poplar::program::Sequence &prog,
                              const poplar::DebugContext &debug);

// Gradient of u.
poplar::Tensor surrogateSpikeGrad(poplar::Graph &graph, const poplar::Tensor &gradSpk, const poplar::Tensor &u,
                                  poplar::program::Sequence &prog, Surrogate surrogate, float a, float b,
                                  const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
