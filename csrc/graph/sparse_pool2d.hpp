// Pools of maps on spike ids and their adjoint, as Poplar programs. Semantics: snnipu.ops.sparse_pool2d.
#pragma once

#include "graph/maps.hpp"

namespace snnipu {
namespace graph {

enum class PoolMode : unsigned { Max, Average, Sum };

struct SparsePool2dOptions {
  MapSizes in, out;
  KernelSizes kernel; // the window
  PoolMode mode = PoolMode::Max;
  std::size_t capacity = 0; // slots of a row, which must be enough for what its input's slots reach
};

struct PooledSlots {
  SlotTensors slots;     // without `dropped`
  poplar::Tensor source; // FLOAT [steps, batch, capacity]: of a maximum, the slot of the input that attains it
};

PooledSlots sparsePool2d(poplar::Graph &graph, const SlotTensors &spikes, const SparsePool2dOptions &options,
                         poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// Gradient of the input's values. ids, counts: of the input; made: what the forward pass returned, its values the
// gradient.
poplar::Tensor sparsePool2dGrad(poplar::Graph &graph, const poplar::Tensor &ids, const poplar::Tensor &counts,
                                const PooledSlots &made, const SparsePool2dOptions &options,
                                poplar::program::Sequence &prog, const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
