// Common parts of the operators on spike ids: spikes in slots, and rows of (step, sample) distributed over the tiles.
//
// Between operators ids, counts and dropped are FLOAT, because PopART's autodiff skips integer tensors; within an
// operator they are INT. Values are FLOAT or HALF between operators, and FLOAT within one.
#pragma once

#include "graph/vertex_builder.hpp"

#include <functional>
#include <string>

namespace snnipu {
namespace graph {

struct SlotTensors {
  Tensor ids;     // [steps, batch, slots]
  Tensor values;  // [steps, batch, slots]
  Tensor counts;  // [steps, batch, 2]: number of spikes, and of carried slots
  Tensor dropped; // [steps, batch, 2]; only an output
};

// Throw std::invalid_argument, which names `op`, if shapes are wrong.
void checkSlots(const char *op, const SlotTensors &spikes);

// Consecutive rows in equal shares over all tiles.
class RowMapping {
public:
  RowMapping(const Graph &graph, size_t rows);

  size_t rows() const { return rows_; }
  size_t tiles() const { return (rows_ + share_ - 1) / share_; }
  size_t begin(size_t tile) const { return tile * share_; }
  size_t end(size_t tile) const { return tile + 1 < tiles() ? (tile + 1) * share_ : rows_; }
  size_t count(size_t tile) const { return end(tile) - begin(tile); }

  // Return a variable [rows][width].
  Tensor variable(Graph &graph, const Type &type, size_t width, const DebugContext &debug) const;
  // Return a tile's part of a tensor of rows, flattened.
  Tensor part(const Tensor &rows, size_t tile) const { return rows.slice(begin(tile), end(tile), 0).flatten(); }

private:
  size_t rows_, share_;
};

// A vertex for the rows of a tile.
class RowVertex : public VertexBuilder {
public:
  RowVertex(Graph &graph, ComputeSet cs, const std::string &name, const RowMapping &mapping, size_t tile)
      : VertexBuilder(graph, cs, name, tile), held(mapping.count(tile)), mapping_(mapping), tile_(tile) {}

  const size_t held; // rows

  // Return the tile's part of a tensor of rows, flattened.
  Tensor part(const Tensor &of) const { return mapping_.part(of, tile_); }
  RowVertex &rows(const char *field, const Tensor &of) {
    connect(field, part(of));
    return *this;
  }

private:
  const RowMapping &mapping_;
  size_t tile_;
};

// Run a vertex on each tile that has rows; body(vertex) sets its fields.
template <typename Body>
void runOnRows(Graph &graph, const RowMapping &mapping, const std::string &name, Sequence &prog,
               const DebugContext &debug, const Body &body) {
  const ComputeSet cs = graph.addComputeSet(debug);
  for (size_t tile = 0; tile < mapping.tiles(); ++tile) {
    RowVertex vertex(graph, cs, name, mapping, tile);
    body(vertex);
  }
  prog.add(Execute(cs));
}

// Convert spikes from the format between operators to rows: ids (clamped to `neurons`) and counts as INT, and values,
// if valid, as FLOAT.
SlotTensors rowsOfSlots(Graph &graph, const RowMapping &mapping, const SlotTensors &spikes, size_t neurons,
                        Sequence &prog, const DebugInfo &info);
// Convert rows to spikes [steps, batch, ...] with values of `type`. dropped may be invalid.
SlotTensors slotsOfRows(Graph &graph, const RowMapping &mapping, const SlotTensors &rows, size_t batch,
                        const Type &type, Sequence &prog, const DebugInfo &info);

// Return the rows [rows][width] as `type`, FLOAT or HALF: the same tensor if they have it.
Tensor castRows(Graph &graph, const RowMapping &mapping, const Tensor &rows, const Type &type, Sequence &prog,
                const DebugContext &debug);

// Convert FLOAT [rows][width] to INT, clamped to [0, limit), and back.
Tensor idsOfFloats(Graph &graph, const RowMapping &mapping, const Tensor &from, size_t limit, Sequence &prog,
                   const DebugContext &debug);
Tensor floatsOfIds(Graph &graph, const RowMapping &mapping, const Tensor &from, Sequence &prog,
                   const DebugContext &debug);

// values[row][slot] = dense[row][id], 0 in padding. dense: FLOAT or HALF; values: FLOAT; ids, counts: INT.
Tensor gatherSlots(Graph &graph, const RowMapping &mapping, const Tensor &dense, const Tensor &ids,
                   const Tensor &counts, Sequence &prog, const DebugContext &debug);
// dense = 0, then dense[row][id] += values[row][slot]. dense: `type`, FLOAT or HALF.
Tensor scatterSlots(Graph &graph, const RowMapping &mapping, const Tensor &values, const Tensor &ids,
                    const Tensor &counts, size_t neurons, const Type &type, Sequence &prog, const DebugContext &debug);

// Add vertices for out = upstream + scale * the sum of partial [parts][rows * slots] over the parts, at the carried
// slots; 0 in padding. upstream [rows * slots] may be invalid. out [rows * slots] is placed on the tiles that sum it:
// share i of `tiles` on tileOf(i).
void addSumSlots(Graph &graph, ComputeSet cs, const Tensor &partial, const Tensor &counts, size_t slots,
                 const Tensor &out, size_t tiles, const std::function<size_t(size_t)> &tileOf,
                 const Tensor &upstream = {}, float scale = 1.0f);

// Return INT [rows][1]: 1 if the ids of the row's spikes ascend, else 0.
Tensor ascendingRows(Graph &graph, const RowMapping &mapping, const Tensor &ids, const Tensor &counts, Sequence &prog,
                     const DebugContext &debug);

// Select slots from bits. fired, carried: UNSIGNED_INT [rows][words]. Return [rows] slots with INT ids, counts and
// dropped.
SlotTensors slotsOfBits(Graph &graph, const RowMapping &mapping, const Tensor &fired, const Tensor &carried,
                        size_t batch, size_t neurons, size_t capacity, bool rotate, Sequence &prog,
                        const DebugContext &debug);

// Return a tensor of zeros, which are one element repeated: the gradient of ids and counts.
Tensor zeros(Graph &graph, const std::vector<size_t> &shape, const DebugContext &debug, const Type &type = FLOAT);

} // namespace graph
} // namespace snnipu
