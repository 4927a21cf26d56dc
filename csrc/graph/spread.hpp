// Arrays spread over the tiles, and the small programs that work on them.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <cstddef>
#include <vector>

namespace snnipu {
namespace graph {

// Elements in equal shares over all tiles of a graph, at least `grain` to a tile and in multiples of it.
class Spread {
public:
  Spread(const poplar::Graph &graph, std::size_t elements, std::size_t grain);

  std::size_t elements() const { return elements_; }
  // Tiles that hold any.
  std::size_t tiles() const { return (elements_ + share_ - 1) / share_; }
  std::size_t begin(std::size_t tile) const { return tile * share_; }
  std::size_t end(std::size_t tile) const { return begin(tile) + count(tile); }
  std::size_t count(std::size_t tile) const;

  // A variable [rows][elements]. What a tile has of it lies together, row after row.
  poplar::Tensor variable(poplar::Graph &graph, const poplar::Type &type, std::size_t rows,
                          const poplar::DebugContext &debug) const;
  // What `tile` works on of an array [rows][elements], flattened.
  poplar::Tensor part(const poplar::Tensor &rows, std::size_t tile) const;

private:
  std::size_t elements_, share_;
};

// A grain that leaves a whole 64-bit word to each tile.
std::size_t wordGrain(const poplar::Type &type);

// Elements [begin, begin + count) of the endless repetition of a flattened tensor.
poplar::Tensor cyclic(const poplar::Tensor &tensor, std::size_t begin, std::size_t count);

// One element that is on no tile: what a field is connected to that is not read.
poplar::Tensor nothing(poplar::Graph &graph, const poplar::Type &type);

// Sets what lies on each tile to 0.
void zero(poplar::Graph &graph, const Spread &spread, const std::vector<poplar::Tensor> &arrays,
          poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// Copies numbers of one type to numbers of another, FLOAT and HALF, on a tile.
void addCast(poplar::Graph &graph, poplar::ComputeSet cs, const poplar::Tensor &from, const poplar::Tensor &to,
             std::size_t tile);

// out[column] = scale * the sum of in [rows][columns] over the rows, on a tile.
void addSumRows(poplar::Graph &graph, poplar::ComputeSet cs, const poplar::Tensor &in, std::size_t rows,
                const poplar::Tensor &out, float scale, std::size_t tile);

// scale * the sum of a vector, as [1]: level by level where it is long, as a sum of one number keeps one worker busy.
poplar::Tensor sumOfAll(poplar::Graph &graph, const poplar::Tensor &vector, float scale,
                        poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// The same of parts[tile], each of which lies on its tile: few numbers leave it.
poplar::Tensor sumOfTiles(poplar::Graph &graph, const std::vector<poplar::Tensor> &parts, float scale,
                          poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// scale * the sum of sums[i] over all i that are the same modulo the size of `like`: a tensor of its shape. sums:
// [1][elements].
poplar::Tensor sumModulo(poplar::Graph &graph, const Spread &spread, const poplar::Tensor &sums,
                         const poplar::Tensor &like, float scale, poplar::program::Sequence &prog,
                         const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
