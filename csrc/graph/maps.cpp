#include "graph/maps.hpp"

namespace snnipu {
namespace graph {

void checkMaps(const char *op, const MapSizes &in, const MapSizes &out, const KernelSizes &kernel) {
  for (const size_t size : {in.channels, in.height, in.width, out.channels, kernel.height, kernel.width, kernel.strideY,
                            kernel.strideX, kernel.dilationY, kernel.dilationX})
    if (size == 0)
      refuse(op, "sizes of maps, kernels, strides and dilations must be 1 or more");
  const auto outputSize = [&](size_t size, size_t padding, size_t taps, size_t stride, size_t dilation) -> size_t {
    const size_t padded = size + 2 * padding, reach = (taps - 1) * dilation + 1;
    return padded < reach ? 0 : (padded - reach) / stride + 1;
  };
  const size_t height = outputSize(in.height, kernel.paddingY, kernel.height, kernel.strideY, kernel.dilationY);
  const size_t width = outputSize(in.width, kernel.paddingX, kernel.width, kernel.strideX, kernel.dilationX);
  if (height == 0 || width == 0 || height != out.height || width != out.width)
    refuse(op, "a kernel of these sizes makes maps of " + std::to_string(height) + " x " + std::to_string(width) +
                   ", not of " + std::to_string(out.height) + " x " + std::to_string(out.width));
  // Ids are floats between operators, which are exact up to 2^24.
  if (in.neurons() > size_t(1) << 24 || out.neurons() > size_t(1) << 24)
    refuse(op, "maps must have at most 2^24 neurons");
}

Tensor placesOfFloats(Graph &graph, const RowMapping &mapping, const Tensor &ids, const MapSizes &maps, Sequence &prog,
                      const DebugContext &debug) {
  const Tensor to = mapping.variable(graph, UNSIGNED_INT, ids.dim(1), debug);
  runOnRows(graph, mapping, "snnipu::PlacesOfFloats", prog, debug, [&](RowVertex &vertex) {
    vertex.rows("from", ids)
        .rows("to", to)
        .count("size", vertex.held * ids.dim(1))
        .count("channels", maps.channels)
        .count("height", maps.height)
        .count("width", maps.width);
  });
  return to;
}

void setKernel(VertexBuilder &vertex, const KernelSizes &kernel, const MapSizes &in) {
  vertex.count("kernelHeight", kernel.height)
      .count("kernelWidth", kernel.width)
      .count("strideY", kernel.strideY)
      .count("strideX", kernel.strideX)
      .count("paddingY", kernel.paddingY)
      .count("paddingX", kernel.paddingX)
      .count("inHeight", in.height)
      .count("inWidth", in.width);
}

} // namespace graph
} // namespace snnipu
