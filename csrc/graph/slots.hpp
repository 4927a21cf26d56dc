// Spikes in slots, and rows of (step, sample) spread over the tiles: what the operators on spike ids share.
//
// Between operators ids, counts and dropped are FLOAT, since PopART's autodiff passes over integers; within one they
// are INT. Values are FLOAT or HALF between operators, and FLOAT within one.
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
  poplar::Tensor counts;  // [steps, batch, 2]: spikes, carried slots
  poplar::Tensor dropped; // [steps, batch, 2]; an output only
};

// Throws std::invalid_argument, which names `op`, where their types do not fit or their shapes do not belong together.
void checkSlots(const char *op, const SlotTensors &spikes);

// Consecutive rows, in equal shares over all tiles.
class RowSpread {
public:
  RowSpread(const poplar::Graph &graph, std::size_t rows);

  std::size_t rows() const { return rows_; }
  std::size_t tiles() const { return (rows_ + share_ - 1) / share_; }
  std::size_t begin(std::size_t tile) const { return tile * share_; }
  std::size_t end(std::size_t tile) const { return tile + 1 < tiles() ? (tile + 1) * share_ : rows_; }
  std::size_t count(std::size_t tile) const { return end(tile) - begin(tile); }

  // [rows][width]
  poplar::Tensor variable(poplar::Graph &graph, const poplar::Type &type, std::size_t width,
                          const poplar::DebugContext &debug) const;
  // Of a tensor of rows, flattened.
  poplar::Tensor part(const poplar::Tensor &rows, std::size_t tile) const {
    return rows.slice(begin(tile), end(tile), 0).flatten();
  }

private:
  std::size_t rows_, share_;
};

// A vertex for the rows of a tile.
class RowVertex : public VertexBuilder {
public:
  RowVertex(poplar::Graph &graph, poplar::ComputeSet cs, const std::string &name, const RowSpread &spread,
            std::size_t tile)
      : VertexBuilder(graph, cs, name, tile), held(spread.count(tile)), spread_(spread), tile_(tile) {}

  const std::size_t held; // rows

  // What the tile has of a tensor of rows.
  poplar::Tensor part(const poplar::Tensor &of) const { return spread_.part(of, tile_); }
  RowVertex &rows(const char *field, const poplar::Tensor &of) {
    connect(field, part(of));
    return *this;
  }

private:
  const RowSpread &spread_;
  std::size_t tile_;
};

// Runs a vertex on each tile of the rows; body(vertex) sets its fields.
template <typename Body>
void runOnRows(poplar::Graph &graph, const RowSpread &spread, const std::string &name, poplar::program::Sequence &prog,
               const poplar::DebugContext &debug, const Body &body) {
  const poplar::ComputeSet cs = graph.addComputeSet(debug);
  for (std::size_t tile = 0; tile < spread.tiles(); ++tile) {
    RowVertex vertex(graph, cs, name, spread, tile);
    body(vertex);
  }
  prog.add(poplar::program::Execute(cs));
}

// Spikes as they are between operators, of `neurons`, as rows: ids and counts in integers, and values, where they are
// valid, in FLOAT.
SlotTensors rowsOfSlots(poplar::Graph &graph, const RowSpread &spread, const SlotTensors &spikes, std::size_t neurons,
                        poplar::program::Sequence &prog, const poplar::DebugInfo &info);
// And back: [steps, batch, ...], values in `type`. dropped may be invalid.
SlotTensors slotsOfRows(poplar::Graph &graph, const RowSpread &spread, const SlotTensors &rows, std::size_t batch,
                        const poplar::Type &type, poplar::program::Sequence &prog, const poplar::DebugInfo &info);

// The rows [rows][width] in another type, FLOAT or HALF; themselves where they have it.
poplar::Tensor inType(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &rows,
                      const poplar::Type &type, poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// FLOAT [rows][width] -> INT, held to [0, limit), and back.
poplar::Tensor idsOfFloats(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &from, std::size_t limit,
                           poplar::program::Sequence &prog, const poplar::DebugContext &debug);
poplar::Tensor floatsOfIds(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &from,
                           poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// values[row][slot] = dense[row][id], 0 in padding. dense: FLOAT or HALF; values: FLOAT; ids, counts: INT.
poplar::Tensor gatherSlots(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &dense,
                           const poplar::Tensor &ids, const poplar::Tensor &counts, poplar::program::Sequence &prog,
                           const poplar::DebugContext &debug);
// dense[row][id] += values[row][slot], from 0: of `type`, FLOAT or HALF.
poplar::Tensor scatterSlots(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &values,
                            const poplar::Tensor &ids, const poplar::Tensor &counts, std::size_t neurons,
                            const poplar::Type &type, poplar::program::Sequence &prog,
                            const poplar::DebugContext &debug);

// out = scale * the sum of partial [parts][rows * slots] over the parts, and upstream [rows * slots], which may be
// invalid, at the carried slots of rows with these counts, 0 in padding. out: [rows * slots], which is put on the tiles
// that sum it. tileOf(i): the i-th of `tiles` that share it.
void addSumSlots(poplar::Graph &graph, poplar::ComputeSet cs, const poplar::Tensor &partial,
                 const poplar::Tensor &counts, std::size_t slots, const poplar::Tensor &out, std::size_t tiles,
                 const std::function<std::size_t(std::size_t)> &tileOf, const poplar::Tensor &upstream = {},
                 float scale = 1.0f);

// INT [rows][1]: whether the ids of a row's spikes ascend.
poplar::Tensor ascendingRows(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &ids,
                             const poplar::Tensor &counts, poplar::program::Sequence &prog,
                             const poplar::DebugContext &debug);

// fired, carried: UNSIGNED_INT [rows][words]. Slots of [steps * batch] rows, ids, counts and dropped INT.
SlotTensors slotsOfBits(poplar::Graph &graph, const RowSpread &spread, const poplar::Tensor &fired,
                        const poplar::Tensor &carried, std::size_t batch, std::size_t neurons, std::size_t capacity,
                        bool rotate, poplar::program::Sequence &prog, const poplar::DebugContext &debug);

// A tensor of zeros that takes no memory to speak of: the gradient of ids and counts.
poplar::Tensor zeros(poplar::Graph &graph, const std::vector<std::size_t> &shape, const poplar::DebugContext &debug,
                     const poplar::Type &type = poplar::FLOAT);

} // namespace graph
} // namespace snnipu
