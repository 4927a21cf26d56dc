// Poplar programs for a convolution on spike ids and its adjoint. Semantics: snnipu.ops.sparse_conv2d.
#pragma once

#include "graph/maps.hpp"

namespace snnipu {
namespace graph {

struct SparseConv2dSizes {
  MapSizes in, out;
  KernelSizes kernel;
  size_t groups; // of channels

  size_t groupInputs() const { return in.channels / groups; }
  // Return the weights of an output channel.
  size_t inputs() const { return groupInputs() * kernel.taps(); }
};

// Distribution over tiles. A part of the work is a block of output channels of one group, a band of their lines, and a
// share of the rows (time, sample). Parts are assigned to consecutive tiles, again from tile 0 after the last one.
struct SparseConv2dPlan {
  size_t channels; // of a block, up to 64
  size_t lines;    // of a band
  size_t rows;     // of a share
};

struct SparseConv2dInputs {
  SlotTensors spikes; // of the input maps' neurons
  Tensor weight;      // FLOAT or HALF [out, in / groups, height, width]
  Tensor bias;        // FLOAT [out], or invalid
};

// Return a variable for the weight in the layout of sparseConv2d(): the tiles with the same channels each hold an equal
// share of the inputs.
Tensor createSparseConv2dWeight(Graph &graph, const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan, size_t rows,
                                const Type &type, const DebugContext &debug);

// Return [steps, batch, neurons of the output] in the type of the values; sums are in float. Throw
// std::invalid_argument for wrong shapes, types or plans.
Tensor sparseConv2d(Graph &graph, const SparseConv2dInputs &in, const SparseConv2dSizes &sizes,
                    const SparseConv2dPlan &plan, Sequence &prog, const DebugContext &debug);

struct SparseConv2dGradients {
  Tensor values; // invalid unless requested
  Tensor weight;
  Tensor bias; // invalid if there is no bias
};

// Return gradients in the types of their inputs. grad: FLOAT or HALF. needValues: request the gradient of the values.
SparseConv2dGradients sparseConv2dGrad(Graph &graph, const Tensor &grad, const SparseConv2dInputs &in,
                                       const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan, bool needValues,
                                       Sequence &prog, const DebugContext &debug);

} // namespace graph
} // namespace snnipu
