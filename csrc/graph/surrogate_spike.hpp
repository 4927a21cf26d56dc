// Poplar programs for the spike of a membrane, spk = H(u), with a surrogate gradient.
#pragma once

#include "graph/vertex_name.hpp"

namespace snnipu {
namespace graph {

// Return spk in u's shape and type. u: FLOAT or HALF, any shape with at least one element. Throw std::invalid_argument
// otherwise.
Tensor surrogateSpike(Graph &graph, const Tensor &u, Sequence &prog, const DebugContext &debug);

// Return the gradient of u.
Tensor surrogateSpikeGrad(Graph &graph, const Tensor &gradSpk, const Tensor &u, Sequence &prog, Surrogate surrogate,
                          float a, float b, const DebugContext &debug);

} // namespace graph
} // namespace snnipu
