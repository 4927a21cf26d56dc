// Poplar programs for pools of maps on spike ids and their adjoint. Semantics: snnipu.ops.sparse_pool2d.
#pragma once

#include "graph/maps.hpp"

namespace snnipu {
namespace graph {

enum class PoolMode : unsigned { Max, Average, Sum };

struct SparsePool2dOptions {
  MapSizes in, out;
  KernelSizes kernel; // the window
  PoolMode mode = PoolMode::Max;
  size_t capacity = 0; // slots of a row, at least as many as there are windows with a carried slot
};

struct PooledSlots {
  SlotTensors slots; // without `dropped`
  Tensor source;     // FLOAT [steps, batch, capacity]: slot of the input that attains a maximum
};

// Return the pooled spikes, [steps, batch, capacity]. Throw std::invalid_argument if the spikes' types or shapes or the
// options are wrong.
PooledSlots sparsePool2d(Graph &graph, const SlotTensors &spikes, const SparsePool2dOptions &options, Sequence &prog,
                         const DebugContext &debug);

// Return the gradient of the input's values. ids, counts: of the input. pooled: result of the forward pass, with the
// gradient in place of its values.
Tensor sparsePool2dGrad(Graph &graph, const Tensor &ids, const Tensor &counts, const PooledSlots &pooled,
                        const SparsePool2dOptions &options, Sequence &prog, const DebugContext &debug);

} // namespace graph
} // namespace snnipu
