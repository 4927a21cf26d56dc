// poputil::mapTensorLinearly: the one function of PopLibs that Poplar's own tutorials need.
#pragma once

#include <poplar/Graph.hpp>

namespace poputil {

// Elements in order over the tiles, in equal shares: whole vectors, and at least 128 bytes where no numbers are given.
void mapTensorLinearly(poplar::Graph &graph, const poplar::Tensor &tensor, unsigned minElementsPerTile,
                       unsigned grainSize);
void mapTensorLinearly(poplar::Graph &graph, const poplar::Tensor &tensor);

} // namespace poputil
