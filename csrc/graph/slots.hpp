// Common parts of the operators on spike ids: spikes in slots, and rows of (step, sample) distributed over the tiles.
//
// Between operators ids, counts and dropped are FLOAT, because PopART's autodiff skips integer tensors; within an
// operator they are INT. Values are FLOAT or HALF between operators, and FLOAT within one.
#pragma once

#include "graph/vertex_builder.hpp"

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>

#include <cstddef>
#include <functional>
#include <string>

namespace snnipu {
namespace graph {

struct SlotTensors {
  poplar::Tensor ids;     // [steps, batch, slots]
  poplar::Tensor values;  // [steps, batch, slots]
  poplar::Tensor counts;  // [steps, batch, 2]: number of spikes, and of carried slots
  poplar::Tensor dropped; // [steps, batch, 2]; only an output
};

// Throw std::invalid_argument, which names `op`, if types or shapes are wrong.
void checkSlots(const char *op, const SlotTensors &spikes);

// Consecutive rows in equal shares over all tiles.
class RowMapping {
public:
  RowMapping(const poplar::Graph &graph, std::size_t rows);

  std::size_t rows() const { return rows_; }
  std::size_t tiles() const { return (rows_ + share_ - 1) / share_; }
  std::size_t begin(std::size_t tile) const { return tile * share_; }
  std::size_t end(std::size_t tile) const { return tile + 1 < tiles() ? (tile + 1) * share_ : rows_; }
  std::size_t count(std::size_t tile) const { return end(tile) - begin(tile); }

  // Return a variable [rows][width].
  poplar::Tensor variable(poplar::Graph &graph, const poplar::Type &type, std::size_t width,
                          const poplar::DebugContext &debug) const;
  // Return a tile's part of a tensor of rows, flattened.
  poplar::Tensor part(const poplar::Tensor &rows, std::size_t tile) const {
    return rows.slice(begin(tile), end(tile), 0).flatten();
  }

private:
  std::size_t rows_, share_;
};

// A vertex for the rows of a tile.
class RowVertex : public VertexBuilder {
public:
  RowVertex(poplar::Graph &graph, poplar::ComputeSet cs, const std::string &name, const RowMapping &mapping,
            std::size_t tile)
      : VertexBuilder(graph, cs, name, tile), held(mapping.count(tile)), mapping_(mapping), tile_(tile) {}

  const std::size_t held; // rows

  // Return the tile's part of a tensor of rows, flattened.
  poplar::Tensor part(const poplar::Tensor &of) const { return mapping_.part(of, tile_); }
  RowVertex &rows(const char *field, const poplar::Tensor &of) {
    connect(field, part(of));
    return *this;
  }

private:
  const RowMapping &mapping_;
  std::size_t tile_;
};

// Run a vertex on each tile that has rows; body(vertex) sets its fields.
template <typename Body>
void runOnRows(poplar::Graph &graph, const RowMapping &mapping, const std::string &name,
               poplar::program::Sequence &prog, const poplar::DebugContext &debug, const Body &body) {
  const poplar::ComputeSet cs = graph.addComputeSet(debug);
  for (std::size_t tile = 0; tile < mapping.tiles(); ++tile) {
    RowVertex vertex(graph, cs, name, mapping, tile);
    body(vertex);
  }
  prog.add(poplar::program::Execute(cs));
}

// Convert spikes from the format between operators to rows: ids (clamped to `neurons`) and counts as INT, and values,
// if valid, as FLOAT.
SlotTensors rowsOfSlots(poplar::Graph &graph, const RowMapping &mapping, const SlotTensors &spikes, std::size_t neurons,
                        poplar::program::Sequence &prog, const poplar::DebugInfo &info);
// Convert rows to spikes [steps, batch, ...] with values of `type`. dropped may be invalid.
SlotTensors slotsOfRows(poplar::Graph &graph, const RowMapping &mapping, const SlotTensors &rows, std::size_t batch,
                        const poplar::Type &type, poplar::program::Sequence &prog, const poplar::DebugInfo &info);

// Return the rows [rows][width] as `type`, FLOAT or HALF: the same tensor if they have it.
poplar::Tensor castRows(poplar::Graph &graph, const RowMapping &mapping, const poplar::Tensor &rows,
                        const poplar::Type &type, poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// Convert FLOAT [rows][width] to INT, clamped to [0, limit), and back.
poplar::Tensor idsOfFloats(poplar::Graph &graph, const RowMapping &mapping, const poplar::Tensor &from,
                           std::size_t limit, poplar::program::Sequence &prog, const poplar::DebugContext &debug);
poplar::Tensor floatsOfIds(poplar::Graph &graph, const RowMapping &mapping, const poplar::Tensor &from,
                           poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// values[row][slot] = dense[row][id], 0 in padding. dense: FLOAT or HALF; values: FLOAT; ids, counts: INT.
poplar::Tensor gatherSlots(poplar::Graph &graph, const RowMapping &mapping, const poplar::Tensor &dense,
                           const poplar::Tensor &ids, const poplar::Tensor &counts, poplar::program::Sequence &prog,
                           const poplar::DebugContext &debug);
// dense = 0, then dense[row][id] += values[row][slot]. dense: `type`, FLOAT or HALF.
poplar::Tensor scatterSlots(poplar::Graph &graph, const RowMapping &mapping, const poplar::Tensor &values,
                            const poplar::Tensor &ids, const poplar::Tensor &counts, std::size_t neurons,
                            const poplar::Type &type, poplar::program::Sequence &prog,
                            const poplar::DebugContext &debug);

// Add vertices for out = upstream + scale * the sum of partial [parts][rows * slots] over the parts, at the carried
// slots; 0 in padding. upstream [rows * slots] may be invalid. out [rows * slots] is placed on the tiles that sum it:
// share i of `tiles` on tileOf(i).
void addSumSlots(poplar::Graph &graph, poplar::ComputeSet cs, const poplar::Tensor &partial,
                 const poplar::Tensor &counts, std::size_t slots, const poplar::Tensor &out, std::size_t tiles,
                 const std::function<std::size_t(std::size_t)> &tileOf, const poplar::Tensor &upstream = {},
                 float scale = 1.0f);

// Return INT [rows][1]: 1 if the ids of the row's spikes ascend, else 0.
poplar::Tensor ascendingRows(poplar::Graph &graph, const RowMapping &mapping, const poplar::Tensor &ids,
                             const poplar::Tensor &counts, poplar::program::Sequence &prog,
                             const poplar::DebugContext &debug);

// Select slots from bits. fired, carried: UNSIGNED_INT [rows][words]. Return [rows] slots with INT ids, counts and
// dropped.
SlotTensors slotsOfBits(poplar::Graph &graph, const RowMapping &mapping, const poplar::Tensor &fired,
                        const poplar::Tensor &carried, std::size_t batch, std::size_t neurons, std::size_t capacity,
                        bool rotate, poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// Return a tensor of zeros, which are one element repeated: the gradient of ids and counts.
poplar::Tensor zeros(poplar::Graph &graph, const std::vector<std::size_t> &shape, const poplar::DebugContext &debug,
                     const poplar::Type &type = poplar::FLOAT);

} // namespace graph
} // namespace snnipu
