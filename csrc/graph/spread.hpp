// Arrays spread over the tiles, and the small programs that work on them.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <cstddef>
#include <vector>

namespace snnipu {
namespace graph {

// Elements of a type in equal shares over all tiles of a graph, whole 64-bit words to each. What is left over is a
// piece of its own. An odd number would make it two: row after row, vectors would not begin where they may otherwise,
// and workers would share words of two halves, of which one would overwrite what the other wrote.
class Spread {
public:
  Spread(const poplar::Graph &graph, std::size_t elements, const poplar::Type &type);

  std::size_t elements() const { return elements_; }
  std::size_t pieces() const { return begins_.size() - 1; }
  std::size_t tile(std::size_t piece) const { return piece % tiles_; }
  std::size_t begin(std::size_t piece) const { return begins_[piece]; }
  std::size_t end(std::size_t piece) const { return begins_[piece + 1]; }
  std::size_t count(std::size_t piece) const { return end(piece) - begin(piece); }

  // A variable [rows][elements]. What a piece has of it lies together, row after row.
  poplar::Tensor variable(poplar::Graph &graph, const poplar::Type &type, std::size_t rows,
                          const poplar::DebugContext &debug) const;
  // What a piece has of an array [rows][elements], flattened.
  poplar::Tensor part(const poplar::Tensor &rows, std::size_t piece) const;

private:
  std::size_t elements_, share_, tiles_;
  std::vector<std::size_t> begins_;
};

// Elements [begin, begin + count) of the endless repetition of a flattened tensor.
poplar::Tensor cyclic(const poplar::Tensor &tensor, std::size_t begin, std::size_t count);

// One element that is on no tile: what a field is connected to that is not read.
poplar::Tensor nothing(poplar::Graph &graph, const poplar::Type &type);

// A variable on one tile.
poplar::Tensor variableOn(poplar::Graph &graph, std::size_t tile, const poplar::Type &type,
                          poplar::ArrayRef<std::size_t> shape, const poplar::DebugContext &debug = {});

// Copies numbers of one type to numbers of another, FLOAT and HALF, on a tile.
void addCast(poplar::Graph &graph, poplar::ComputeSet cs, const poplar::Tensor &from, const poplar::Tensor &to,
             std::size_t tile);

// out[column] = scale * the sum of in [rows][columns] over the rows, on a tile.
void addSumRows(poplar::Graph &graph, poplar::ComputeSet cs, const poplar::Tensor &in, std::size_t rows,
                const poplar::Tensor &out, float scale, std::size_t tile);

// scale * the sum of a vector, as [1]: level by level where it is long, as a sum of one number keeps one worker busy.
poplar::Tensor sumOfAll(poplar::Graph &graph, const poplar::Tensor &vector, float scale,
                        poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// The same of parts[i], which lie on tile i: few numbers leave it.
poplar::Tensor sumOfTiles(poplar::Graph &graph, const std::vector<poplar::Tensor> &parts, float scale,
                          poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// scale * the sum of sums[i] over all i that are the same modulo the size of `like`: a tensor of its shape. sums:
// [1][elements].
poplar::Tensor sumModulo(poplar::Graph &graph, const Spread &spread, const poplar::Tensor &sums,
                         const poplar::Tensor &like, float scale, poplar::program::Sequence &prog,
                         const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
