// Sizes of convolutions and pools of maps, and spike ids as packed positions.
#pragma once

#include "graph/slots.hpp"
#include "graph/vertex_builder.hpp"

#include <cstdint>

namespace snnipu {
namespace graph {

struct MapSizes {
  size_t channels, height, width;

  size_t neurons() const { return channels * height * width; }
  size_t places() const { return height * width; }
};

// A kernel or a pooling window with its stride, padding and dilation (Y vertical, X horizontal).
struct KernelSizes {
  size_t height, width, strideY, strideX, paddingY, paddingX, dilationY, dilationX;

  size_t taps() const { return height * width; }
};

// Throw std::invalid_argument, which names `op`, if a size is 0, a map has more than 2^24 neurons, or the output's size
// does not follow from input and kernel.
void checkMaps(const char *op, const MapSizes &in, const MapSizes &out, const KernelSizes &kernel);

// Return the packed positions, UNSIGNED_INT [rows][slots], of ids in maps, FLOAT [rows][slots].
Tensor placesOfFloats(Graph &graph, const RowMapping &mapping, const Tensor &ids, const MapSizes &maps, Sequence &prog,
                      const DebugContext &debug);

// Set the fields of a vertex that describe the kernel and the size of its input's maps.
void setKernel(VertexBuilder &vertex, const KernelSizes &kernel, const MapSizes &in);

} // namespace graph
} // namespace snnipu
