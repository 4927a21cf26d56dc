// Blocks of output neurons and their weights, as the vertices of csrc/vertices/sparse_linear.cpp and sparse_lif.cpp use
// them.
#pragma once

#include "graph/poplar.hpp"

#include <map>
#include <string>
#include <vector>

namespace snnipu {
namespace graph {

// Up to 64 consecutive neurons on one tile. lanes: neurons including padding, a multiple of two floats.
struct Block {
  size_t tile, first, neurons, lanes;
};

// Return the blocks of a layer with neurons[i] neurons on tile firstTile + i.
std::vector<Block> blocksOf(const std::vector<size_t> &neurons, size_t firstTile);

// Collects copies, to run those of one type as one.
class Copies {
public:
  void add(const Tensor &from, const Tensor &to);
  // Set all elements to a value.
  void fill(Graph &graph, float value, const Tensor &to);
  void run(Sequence &prog, const DebugContext &debug);

private:
  // The copies of one type. A copy cannot change the type.
  struct Pairs {
    std::vector<Tensor> from, to;
    std::map<float, Tensor> constants;
  };
  std::map<std::string, Pairs> types_;
};

// A variable [rows][lanes] for each block, on its tile; as a whole, [rows][neurons of all blocks].
class BlockArray {
public:
  BlockArray(Graph &graph, const std::vector<Block> &blocks, const Type &type, size_t rows, const DebugContext &debug);

  // [rows][lanes] of a block.
  const Tensor &operator[](size_t block) const { return parts_[block]; }
  // [rows][neurons]
  Tensor whole() const;
  const std::vector<Tensor> &parts() const { return parts_; }

private:
  std::vector<Block> blocks_;
  std::vector<Tensor> parts_;
};

// Return [rows][lanes] of an array [rows][neurons] for each block: the array's own elements if they are on the block's
// tile and need no padding, else a copy there, with `padding` in lanes without a neuron.
std::vector<Tensor> distribute(Graph &graph, const std::vector<Block> &blocks, const Tensor &array, float padding,
                               Copies &copies, const DebugContext &debug);
// Return [lanes] of a parameter for each block, always a copy. The parameter has one element, or one for each neuron.
std::vector<Tensor> distributeParameter(Graph &graph, const std::vector<Block> &blocks, const Tensor &parameter,
                                        float padding, Copies &copies, const DebugContext &debug);

// Set all elements, which are on the blocks' tiles, to 0.
void zeroBlocks(Graph &graph, const std::vector<Block> &blocks, const std::vector<Tensor> &parts, ComputeSet cs);

} // namespace graph
} // namespace snnipu
