// Sizes of convolutions and pools of maps, and spike ids as places of maps.
#pragma once

#include "graph/slots.hpp"
#include "graph/vertex_builder.hpp"

#include <cstdint>

namespace snnipu {
namespace graph {

struct MapSizes {
  std::size_t channels, height, width;

  std::size_t neurons() const { return channels * height * width; }
  std::size_t places() const { return height * width; }
};

// A kernel or a window, and how it goes over the maps: vertical first.
struct KernelSizes {
  std::size_t height, width, strideY, strideX, paddingY, paddingX, dilationY, dilationX;

  std::size_t taps() const { return height * width; }
};

// Throws std::invalid_argument, which names `op`, for sizes that are not positive, ids above 2^24, or an output that is
// not what the kernel makes of the input.
void checkMaps(const char *op, const MapSizes &in, const MapSizes &out, const KernelSizes &kernel);

// UNSIGNED_INT [rows][slots] of the ids of maps, FLOAT [rows][slots].
poplar::Tensor placesOfFloats(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &ids,
                              const MapSizes &maps, poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// The fields of a vertex that has a kernel, and the size of its input's maps.
void setKernel(VertexBuilder &vertex, const KernelSizes &kernel, const MapSizes &in);

} // namespace graph
} // namespace snnipu
