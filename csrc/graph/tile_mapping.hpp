// Arrays distributed over the tiles, and small programs on them.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <cstddef>
#include <vector>

namespace snnipu {
namespace graph {

// Elements of a type in equal shares over all tiles, in whole 64-bit words. Counts stay even: the last element of an
// odd remainder is a separate piece. An odd piece would misalign every second row. Two workers would also share a word
// of halves, where one would overwrite the other's half.
class ElementMapping {
public:
  ElementMapping(const poplar::Graph &graph, std::size_t elements, const poplar::Type &type);

  std::size_t elements() const { return elements_; }
  std::size_t pieces() const { return begins_.size() - 1; }
  std::size_t tile(std::size_t piece) const { return piece % tiles_; }
  std::size_t begin(std::size_t piece) const { return begins_[piece]; }
  std::size_t end(std::size_t piece) const { return begins_[piece + 1]; }
  std::size_t count(std::size_t piece) const { return end(piece) - begin(piece); }

  // Return a variable [rows][elements]. A piece's part of it is contiguous, row after row.
  poplar::Tensor variable(poplar::Graph &graph, const poplar::Type &type, std::size_t rows,
                          const poplar::DebugContext &debug) const;
  // Return a piece's part of an array [rows][elements], flattened.
  poplar::Tensor part(const poplar::Tensor &rows, std::size_t piece) const;

private:
  std::size_t elements_, share_, tiles_;
  std::vector<std::size_t> begins_;
};

// Return the elements [begin, begin + count) of the infinite repetition of a flattened tensor.
poplar::Tensor cyclic(const poplar::Tensor &tensor, std::size_t begin, std::size_t count);

// Return an empty variable, for fields of a vertex that are not read.
poplar::Tensor emptyVariable(poplar::Graph &graph, const poplar::Type &type);

// Return a variable on one tile.
poplar::Tensor variableOn(poplar::Graph &graph, std::size_t tile, const poplar::Type &type,
                          poplar::ArrayRef<std::size_t> shape, const poplar::DebugContext &debug = {});

// Add a vertex that converts between FLOAT and HALF.
void addCast(poplar::Graph &graph, poplar::ComputeSet cs, const poplar::Tensor &from, const poplar::Tensor &to,
             std::size_t tile);

// Add a vertex for out[column] = scale * the sum of in [rows][columns] over the rows.
void addSumRows(poplar::Graph &graph, poplar::ComputeSet cs, const poplar::Tensor &in, std::size_t rows,
                const poplar::Tensor &out, float scale, std::size_t tile);

// Return scale * the sum of a vector, as [1]. Long vectors are summed in several levels, because a single sum keeps
// only one worker busy.
poplar::Tensor sumOfAll(poplar::Graph &graph, const poplar::Tensor &vector, float scale,
                        poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// Return scale * the sum of all parts, where parts[i] is on tile i. Each tile sums its part first, so that few numbers
// are exchanged.
poplar::Tensor sumOfTiles(poplar::Graph &graph, const std::vector<poplar::Tensor> &parts, float scale,
                          poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// Return scale * the sum of sums[i] over all i that are equal modulo the size of `like`, in its shape. sums:
// [1][elements].
poplar::Tensor sumModulo(poplar::Graph &graph, const ElementMapping &mapping, const poplar::Tensor &sums,
                         const poplar::Tensor &like, float scale, poplar::program::Sequence &prog,
                         const poplar::DebugContext &debug);

} // namespace graph
} // namespace snnipu
