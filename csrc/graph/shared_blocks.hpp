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
  explicit SharedBlocks(std::vector<std::vector<Block>> groups, size_t leastInputs = 1)
      : groups_(std::move(groups)), leastInputs_(leastInputs) {}

  size_t size() const { return groups_.size(); }
  const std::vector<Block> &operator[](size_t group) const { return groups_[group]; }

  // Return a variable for the matrix [neurons, inputs]. It has no padding, because the optimiser updates it.
  Tensor matrix(Graph &graph, const Type &type, size_t inputs, const DebugContext &debug) const;
  // Return the sum of the groups' arrays, FLOAT [inputs][lanes] for each block, as a matrix of `type`. Additions are
  // added to compute set `sum`, conversions to `cast`, which runs after it.
  Tensor sumOfGroups(Graph &graph, const std::vector<std::vector<Tensor>> &arrays, const Type &type, ComputeSet sum,
                     ComputeSet cast, const DebugContext &debug) const;
  // Return the sum of the groups' arrays, FLOAT [rows][lanes] for each block, over all rows; also over the neurons if
  // `like` has one element.
  Tensor sumOfRows(Graph &graph, const std::vector<std::vector<Tensor>> &arrays, const Tensor &like, Sequence &prog,
                   const DebugContext &debug) const;

private:
  // Call body(tile, begin, end) for the shares of a block's inputs.
  template <typename Body> void forShares(size_t block, size_t inputs, const Body &body) const {
    const size_t share = std::max(leastInputs_, (inputs + size() - 1) / size());
    for (size_t begin = 0, group = 0; begin < inputs; begin += share, ++group)
      body(groups_[group][block].tile, begin, std::min(inputs, begin + share));
  }
  // Return a variable [inputs][lanes] in these shares.
  Tensor variable(Graph &graph, const Type &type, size_t block, size_t inputs, size_t lanes,
                  const DebugContext &debug) const;

  std::vector<std::vector<Block>> groups_;
  size_t leastInputs_;
};

} // namespace graph
} // namespace snnipu
