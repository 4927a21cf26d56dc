// Blocks of neurons that exist in several groups of tiles, and their common weights and gradients.
#pragma once

#include "graph/blocks.hpp"

#include <algorithm>

namespace snnipu {
namespace graph {

// Every group has all blocks, for its own rows. A weight matrix exists once: for each block, every group's tile holds a
// share of the inputs.
class SharedBlocks {
public:
  // leastInputs: the fewest inputs of a share.
  explicit SharedBlocks(std::vector<std::vector<Block>> groups, std::size_t leastInputs = 1)
      : groups_(std::move(groups)), leastInputs_(leastInputs) {}

  std::size_t size() const { return groups_.size(); }
  const std::vector<Block> &operator[](std::size_t group) const { return groups_[group]; }

  // Return a variable for the matrix [neurons, inputs]. It has no padding, because the optimiser updates it.
  poplar::Tensor matrix(poplar::Graph &graph, const poplar::Type &type, std::size_t inputs,
                        const poplar::DebugContext &debug) const;
  // Return the sum of the groups' arrays, FLOAT [inputs][lanes] for each block, as a matrix of `type`. Additions are
  // added to compute set `sum`, conversions to `cast`, which runs after it.
  poplar::Tensor sumOfGroups(poplar::Graph &graph, const std::vector<std::vector<poplar::Tensor>> &arrays,
                             const poplar::Type &type, poplar::ComputeSet sum, poplar::ComputeSet cast,
                             const poplar::DebugContext &debug) const;
  // Return the sum of the groups' arrays, FLOAT [rows][lanes] for each block, over all rows; also over the neurons if
  // `like` has one element.
  poplar::Tensor sumOfRows(poplar::Graph &graph, const std::vector<std::vector<poplar::Tensor>> &arrays,
                           const poplar::Tensor &like, poplar::program::Sequence &prog,
                           const poplar::DebugContext &debug) const;

private:
  // Call body(tile, begin, end) for the shares of a block's inputs.
  template <typename Body> void forShares(std::size_t block, std::size_t inputs, const Body &body) const {
    const std::size_t share = std::max(leastInputs_, (inputs + size() - 1) / size());
    for (std::size_t begin = 0, group = 0; begin < inputs; begin += share, ++group)
      body(groups_[group][block].tile, begin, std::min(inputs, begin + share));
  }
  // Return a variable [inputs][lanes] in these shares.
  poplar::Tensor variable(poplar::Graph &graph, const poplar::Type &type, std::size_t block, std::size_t inputs,
                          std::size_t lanes, const poplar::DebugContext &debug) const;

  std::vector<std::vector<Block>> groups_;
  std::size_t leastInputs_;
};

} // namespace graph
} // namespace snnipu
