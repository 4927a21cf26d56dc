// Arrays distributed over the tiles, and small programs on them.
#pragma once

#include "graph/poplar.hpp"

#include <vector>

namespace snnipu {
namespace graph {

// Elements of a type in equal shares over all tiles, in whole 64-bit words. Counts stay even: the last element of an
// odd remainder is a separate piece. An odd piece would misalign every second row. Two workers would also share a word
// of halves, where one would overwrite the other's half.
class ElementMapping {
public:
  ElementMapping(const Graph &graph, size_t elements, const Type &type);

  size_t elements() const { return elements_; }
  size_t pieces() const { return begins_.size() - 1; }
  size_t tile(size_t piece) const { return piece % tiles_; }
  size_t begin(size_t piece) const { return begins_[piece]; }
  size_t end(size_t piece) const { return begins_[piece + 1]; }
  size_t count(size_t piece) const { return end(piece) - begin(piece); }

  // Return a variable [rows][elements]. A piece's part of it is contiguous, row after row.
  Tensor variable(Graph &graph, const Type &type, size_t rows, const DebugContext &debug) const;
  // Return a piece's part of an array [rows][elements], flattened.
  Tensor part(const Tensor &rows, size_t piece) const;

private:
  size_t elements_, share_, tiles_;
  std::vector<size_t> begins_;
};

// Return the elements [begin, begin + count) of the infinite repetition of a flattened tensor.
Tensor cyclic(const Tensor &tensor, size_t begin, size_t count);

// Return an empty variable, for fields of a vertex that are not read.
Tensor emptyVariable(Graph &graph, const Type &type);

// Return a variable on one tile.
Tensor variableOn(Graph &graph, size_t tile, const Type &type, ArrayRef<size_t> shape, const DebugContext &debug = {});

// Add a vertex that converts between FLOAT and HALF.
void addCast(Graph &graph, ComputeSet cs, const Tensor &from, const Tensor &to, size_t tile);

// Add a vertex for out[column] = scale * the sum of in [rows][columns] over the rows.
void addSumRows(Graph &graph, ComputeSet cs, const Tensor &in, size_t rows, const Tensor &out, float scale,
                size_t tile);

// Return scale * the sum of a vector, as [1]. Long vectors are summed in several levels, because a single sum keeps
// only one worker busy.
Tensor sumOfAll(Graph &graph, const Tensor &vector, float scale, Sequence &prog, const DebugContext &debug);

// Return scale * the sum of all parts, where parts[i] is on tile i. Each tile sums its part first, so that few numbers
// are exchanged.
Tensor sumOfTiles(Graph &graph, const std::vector<Tensor> &parts, float scale, Sequence &prog,
                  const DebugContext &debug);

// Return scale * the sum of sums[i] over all i that are equal modulo the size of `like`, in its shape. sums:
// [1][elements].
Tensor sumModulo(Graph &graph, const ElementMapping &mapping, const Tensor &sums, const Tensor &like, float scale,
                 Sequence &prog, const DebugContext &debug);

} // namespace graph
} // namespace snnipu
