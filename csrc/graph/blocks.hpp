// Blocks of output neurons and their weights, as the vertices of csrc/vertices/sparse_linear.cpp and sparse_lif.cpp use
// them.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace snnipu {
namespace graph {

// Up to 64 consecutive neurons on one tile. lanes: neurons including padding, a multiple of two floats.
struct Block {
  std::size_t tile, first, neurons, lanes;
};

// Return the blocks of a layer with neurons[i] neurons on tile firstTile + i.
std::vector<Block> blocksOf(const std::vector<std::size_t> &neurons, std::size_t firstTile);

// Collects copies, to run those of one type as one.
class Copies {
public:
  void add(const poplar::Tensor &from, const poplar::Tensor &to);
  // Set all elements to a value.
  void fill(poplar::Graph &graph, float value, const poplar::Tensor &to);
  void run(poplar::program::Sequence &prog, const poplar::DebugContext &debug);

private:
  // The copies of one type. A copy cannot change the type.
  struct Pairs {
    std::vector<poplar::Tensor> from, to;
    std::map<float, poplar::Tensor> constants;
  };
  std::map<std::string, Pairs> types_;
};

// A variable [rows][lanes] for each block, on its tile; as a whole, [rows][neurons of all blocks].
class BlockArray {
public:
  BlockArray(poplar::Graph &graph, const std::vector<Block> &blocks, const poplar::Type &type, std::size_t rows,
             const poplar::DebugContext &debug);

  // [rows][lanes] of a block.
  const poplar::Tensor &operator[](std::size_t block) const { return parts_[block]; }
  // [rows][neurons]
  poplar::Tensor whole() const;
  const std::vector<poplar::Tensor> &parts() const { return parts_; }

private:
  std::vector<Block> blocks_;
  std::vector<poplar::Tensor> parts_;
};

// Return [rows][lanes] of an array [rows][neurons] for each block: the array's own elements if they are on the block's
// tile and need no padding, else a copy there, with `padding` in lanes without a neuron.
std::vector<poplar::Tensor> distribute(poplar::Graph &graph, const std::vector<Block> &blocks,
                                       const poplar::Tensor &array, float padding, Copies &copies,
                                       const poplar::DebugContext &debug);
// Return [lanes] of a parameter for each block, always a copy. The parameter has one element, or one for each neuron.
std::vector<poplar::Tensor> distributeParameter(poplar::Graph &graph, const std::vector<Block> &blocks,
                                                const poplar::Tensor &parameter, float padding, Copies &copies,
                                                const poplar::DebugContext &debug);

// Set all elements, which are on the blocks' tiles, to 0.
void zeroBlocks(poplar::Graph &graph, const std::vector<Block> &blocks, const std::vector<poplar::Tensor> &parts,
                poplar::ComputeSet cs);

} // namespace graph
} // namespace snnipu
