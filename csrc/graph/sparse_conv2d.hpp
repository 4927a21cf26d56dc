// A convolution on spike ids and its adjoint, as Poplar programs. Semantics: snnipu.ops.sparse_conv2d.
#pragma once

#include "graph/maps.hpp"

namespace snnipu {
namespace graph {

struct SparseConv2dSizes {
  MapSizes in, out;
  KernelSizes kernel;
  std::size_t groups; // of channels

  std::size_t groupInputs() const { return in.channels / groups; }
  // Weights of an output channel.
  std::size_t inputs() const { return groupInputs() * kernel.taps(); }
};

// How the work is spread over tiles, each of which has a block of output channels of one group of channels, a band of
// their lines, and a share of the rows (time, sample). Parts follow one another over the tiles, and from the last one
// go on at the first.
struct SparseConv2dPlan {
  std::size_t channels; // of a block, up to 64
  std::size_t lines;    // of a band
  std::size_t rows;     // of a share
};

struct SparseConv2dInputs {
  SlotTensors spikes;    // of the maps' neurons
  poplar::Tensor weight; // FLOAT or HALF [out, in / groups, height, width]
  poplar::Tensor bias;   // FLOAT [out], or invalid
};

// The weight laid out as sparseConv2d() works on it: the tiles that have the same channels hold an equal share of the
// inputs.
poplar::Tensor createSparseConv2dWeight(poplar::Graph &graph, const SparseConv2dSizes &sizes,
                                        const SparseConv2dPlan &plan, std::size_t rows, const poplar::Type &type,
                                        const poplar::DebugContext &debug);

// Returns [steps, batch, neurons of the output] in the type of the values; sums are in float.
poplar::Tensor sparseConv2d(poplar::Graph &graph, const SparseConv2dInputs &in, const SparseConv2dSizes &sizes,
                            const SparseConv2dPlan &plan, poplar::program::Sequence &prog,
                            const poplar::DebugContext &debug);

struct SparseConv2dGradients {
  poplar::Tensor values; // invalid where it is not asked for
  poplar::Tensor weight;
  poplar::Tensor bias; // invalid without one
};

// grad: FLOAT or HALF. Gradients are of their inputs' types. needValues: whether that of the values is asked for.
SparseConv2dGradients sparseConv2dGrad(poplar::Graph &graph, const poplar::Tensor &grad, const SparseConv2dInputs &in,
                                       const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan, bool needValues,
                                       poplar::program::Sequence &prog, const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
