// Blocks of output neurons and their weights: what the vertices of csrc/vertices/sparse_linear.cpp and sparse_lif.cpp
// work on.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace snnipu {
namespace graph {

// Up to 64 consecutive neurons on one tile; lanes: with padding, a multiple of two floats.
struct Block {
  std::size_t tile, first, neurons, lanes;
};

// neurons[i] of them on tile firstTile + i.
std::vector<Block> blocksOf(const std::vector<std::size_t> &neurons, std::size_t firstTile);

// Copies that are made together.
class Copies {
public:
  void add(const poplar::Tensor &from, const poplar::Tensor &to);
  // One value all over.
  void fill(poplar::Graph &graph, float value, const poplar::Tensor &to);
  void run(poplar::program::Sequence &prog, const poplar::DebugContext &debug);

private:
  // By type: there is no copy between two of them.
  struct Pairs {
    std::vector<poplar::Tensor> from, to;
    std::map<float, poplar::Tensor> constants;
  };
  std::map<std::string, Pairs> types_;
};

// A variable [rows][lanes] for each block, on its tile. Seen as a whole, [rows][neurons of all blocks].
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

// Of an array [rows][neurons], [rows][lanes] for each block: where it lies on the block's tile already, or a copy
// there, with `padding` in the lanes that no neuron has.
std::vector<poplar::Tensor> blocksIn(poplar::Graph &graph, const std::vector<Block> &blocks,
                                     const poplar::Tensor &array, float padding, Copies &copies,
                                     const poplar::DebugContext &debug);
// Likewise of a parameter of one element, or of each neuron: always a copy, [lanes].
std::vector<poplar::Tensor> parameterIn(poplar::Graph &graph, const std::vector<Block> &blocks,
                                        const poplar::Tensor &parameter, float padding, Copies &copies,
                                        const poplar::DebugContext &debug);

// Sets all elements, which lie on the blocks' tiles, to 0.
void zeroBlocks(poplar::Graph &graph, const std::vector<Block> &blocks, const std::vector<poplar::Tensor> &parts,
                poplar::ComputeSet cs);

} // namespace graph
} // namespace snnipu
