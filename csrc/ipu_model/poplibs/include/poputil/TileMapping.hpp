// poputil::mapTensorLinearly, the only function of PopLibs that Poplar's tutorials need. It has its own folder, so that
// PopLibs can replace it.
#pragma once

#include <poplar/Graph.hpp>

#include <algorithm>

namespace poputil {

// Map the elements in order to the tiles, in equal shares: multiples of grainSize, at least minElementsPerTile.
inline void mapTensorLinearly(poplar::Graph &graph, const poplar::Tensor &tensor, unsigned minElementsPerTile,
                              unsigned grainSize) {
  if (grainSize == 0)
    throw poplar::poplar_error("mapTensorLinearly: grainSize must be 1 or more");
  const auto ceilDiv = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  const std::size_t size = tensor.numElements(), tiles = graph.getTarget().getNumTiles();
  const std::size_t least = std::max<std::size_t>({ceilDiv(size, tiles), minElementsPerTile, 1});
  const std::size_t share = ceilDiv(least, grainSize) * grainSize;
  const poplar::Tensor flat = tensor.flatten();
  for (std::size_t begin = 0, tile = 0; begin < size; begin += share, ++tile)
    graph.setTileMapping(flat.slice(begin, std::min(size, begin + share)), static_cast<unsigned>(tile));
}

// The same with vectors as grains, and at least 128 bytes.
inline void mapTensorLinearly(poplar::Graph &graph, const poplar::Tensor &tensor) {
  const poplar::Target &target = graph.getTarget();
  const unsigned bytes = target.getTypeSize(tensor.elementType());
  mapTensorLinearly(graph, tensor, (128 + bytes - 1) / bytes, target.getVectorWidth(tensor.elementType()));
}

} // namespace poputil
