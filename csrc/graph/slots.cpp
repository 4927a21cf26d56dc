#include "graph/slots.hpp"

#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"
#include "graph/vertex_name.hpp"

#include <algorithm>

namespace snnipu {
namespace graph {

void checkSlots(const char *op, const SlotTensors &spikes) {
  const std::vector<size_t> shape = spikes.ids.shape();
  if (shape.size() != 3 || spikes.ids.numElements() == 0)
    refuse(op, "ids must have three dimensions and at least one element, got " + spikes.ids.shapeToString());
  if (spikes.values.shape() != shape)
    refuse(op, "values must have the shape of ids, " + spikes.ids.shapeToString() + ", got " +
                   spikes.values.shapeToString());
  if (spikes.counts.shape() != std::vector<size_t>{shape[0], shape[1], 2})
    refuse(op, "counts must have shape [steps, batch, 2] for ids of " + spikes.ids.shapeToString() + ", got " +
                   spikes.counts.shapeToString());
}

RowMapping::RowMapping(const Graph &graph, size_t rows) : rows_(rows) {
  const size_t tiles = graph.getTarget().getNumTiles();
  share_ = std::max<size_t>(1, (rows + tiles - 1) / tiles);
}

Tensor RowMapping::variable(Graph &graph, const Type &type, size_t width, const DebugContext &debug) const {
  const Tensor all = graph.addVariable(type, {rows_, width}, debug);
  for (size_t tile = 0; tile < tiles(); ++tile)
    graph.setTileMapping(all.slice(begin(tile), end(tile), 0), static_cast<unsigned>(tile));
  return all;
}

Tensor castRows(Graph &graph, const RowMapping &mapping, const Tensor &rows, const Type &type, Sequence &prog,
                const DebugContext &debug) {
  if (rows.elementType() == type)
    return rows;
  const ComputeSet cs = graph.addComputeSet(debug);
  const Tensor to = mapping.variable(graph, type, rows.dim(1), debug);
  for (size_t tile = 0; tile < mapping.tiles(); ++tile)
    addCast(graph, cs, mapping.part(rows, tile), mapping.part(to, tile), tile);
  prog.add(Execute(cs));
  return to;
}

Tensor idsOfFloats(Graph &graph, const RowMapping &mapping, const Tensor &from, size_t limit, Sequence &prog,
                   const DebugContext &debug) {
  const Tensor to = mapping.variable(graph, INT, from.dim(1), debug);
  runOnRows(graph, mapping, "snnipu::IdsOfFloats", prog, debug, [&](RowVertex &vertex) {
    vertex.rows("from", from).rows("to", to).count("size", vertex.held * from.dim(1)).count("limit", limit);
  });
  return to;
}

Tensor floatsOfIds(Graph &graph, const RowMapping &mapping, const Tensor &from, Sequence &prog,
                   const DebugContext &debug) {
  const Tensor to = mapping.variable(graph, FLOAT, from.dim(1), debug);
  runOnRows(graph, mapping, "snnipu::FloatsOfIds", prog, debug, [&](RowVertex &vertex) {
    vertex.rows("from", from).rows("to", to).count("size", vertex.held * from.dim(1));
  });
  return to;
}

SlotTensors rowsOfSlots(Graph &graph, const RowMapping &mapping, const SlotTensors &spikes, size_t neurons,
                        Sequence &prog, const DebugInfo &info) {
  const size_t slots = spikes.ids.dim(2);
  SlotTensors rows;
  rows.ids = idsOfFloats(graph, mapping, spikes.ids.reshape({mapping.rows(), slots}), neurons, prog, {info, "ids"});
  rows.counts =
      idsOfFloats(graph, mapping, spikes.counts.reshape({mapping.rows(), 2}), slots + 1, prog, {info, "counts"});
  if (spikes.values.valid())
    rows.values =
        castRows(graph, mapping, spikes.values.reshape({mapping.rows(), slots}), FLOAT, prog, {info, "valuesInFloat"});
  return rows;
}

SlotTensors slotsOfRows(Graph &graph, const RowMapping &mapping, const SlotTensors &rows, size_t batch,
                        const Type &type, Sequence &prog, const DebugInfo &info) {
  const auto bySteps = [&](const Tensor &of) { return of.reshape({mapping.rows() / batch, batch, of.dim(1)}); };
  SlotTensors out;
  out.ids = bySteps(floatsOfIds(graph, mapping, rows.ids, prog, {info, "ids"}));
  out.values = bySteps(castRows(graph, mapping, rows.values, type, prog, {info, "valuesOfType"}));
  out.counts = bySteps(floatsOfIds(graph, mapping, rows.counts, prog, {info, "counts"}));
  if (rows.dropped.valid())
    out.dropped = bySteps(floatsOfIds(graph, mapping, rows.dropped, prog, {info, "dropped"}));
  return out;
}

Tensor gatherSlots(Graph &graph, const RowMapping &mapping, const Tensor &dense, const Tensor &ids,
                   const Tensor &counts, Sequence &prog, const DebugContext &debug) {
  const Tensor values = mapping.variable(graph, FLOAT, ids.dim(1), debug);
  runOnRows(graph, mapping, vertexName("GatherSlots", dense.elementType()), prog, debug, [&](RowVertex &vertex) {
    vertex.rows("dense", dense)
        .rows("ids", ids)
        .rows("counts", counts)
        .rows("values", values)
        .count("rows", vertex.held)
        .count("slots", ids.dim(1))
        .count("neurons", dense.dim(1));
  });
  return values;
}

Tensor scatterSlots(Graph &graph, const RowMapping &mapping, const Tensor &values, const Tensor &ids,
                    const Tensor &counts, size_t neurons, const Type &type, Sequence &prog, const DebugContext &debug) {
  const Tensor dense = mapping.variable(graph, type, neurons, debug);
  runOnRows(graph, mapping, vertexName("ScatterSlots", type), prog, debug, [&](RowVertex &vertex) {
    vertex.rows("values", values)
        .rows("ids", ids)
        .rows("counts", counts)
        .rows("dense", dense)
        .count("rows", vertex.held)
        .count("slots", ids.dim(1))
        .count("neurons", neurons);
  });
  return dense;
}

void addSumSlots(Graph &graph, ComputeSet cs, const Tensor &partial, const Tensor &counts, size_t slots,
                 const Tensor &out, size_t tiles, const std::function<size_t(size_t)> &tileOf, const Tensor &upstream,
                 float scale) {
  const size_t size = out.numElements(), share = 2 * (((size + 1) / 2 + tiles - 1) / tiles);
  const Tensor noUpstream = emptyVariable(graph, FLOAT), rows = counts.reshape({size / slots, 2});
  for (size_t begin = 0, i = 0; begin < size; begin += share, ++i) {
    const size_t end = std::min(size, begin + share), tile = tileOf(i);
    const Tensor to = out.slice(begin, end);
    graph.setTileMapping(to, static_cast<unsigned>(tile));
    VertexBuilder(graph, cs, vertexName("SumSlots", FLOAT), tile)
        .connect("partial", partial.slice(begin, end, 1).flatten())
        .connect("upstream", upstream.valid() ? upstream.slice(begin, end) : noUpstream)
        .connect("counts", rows.slice(begin / slots, (end - 1) / slots + 1, 0).flatten())
        .connect("out", to)
        .set("scale", scale)
        .count("blocks", partial.dim(0))
        .count("size", end - begin)
        .count("slots", slots)
        .count("offset", begin % slots)
        .set("hasUpstream", upstream.valid());
  }
}

Tensor ascendingRows(Graph &graph, const RowMapping &mapping, const Tensor &ids, const Tensor &counts, Sequence &prog,
                     const DebugContext &debug) {
  const Tensor out = mapping.variable(graph, INT, 1, debug);
  runOnRows(graph, mapping, "snnipu::Ascending", prog, debug, [&](RowVertex &vertex) {
    vertex.rows("ids", ids)
        .rows("counts", counts)
        .rows("out", out)
        .count("rows", vertex.held)
        .count("slots", ids.dim(1));
  });
  return out;
}

SlotTensors slotsOfBits(Graph &graph, const RowMapping &mapping, const Tensor &fired, const Tensor &carried,
                        size_t batch, size_t neurons, size_t capacity, bool rotate, Sequence &prog,
                        const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const SlotTensors out = {
      mapping.variable(graph, INT, capacity, {info, "ids"}), mapping.variable(graph, FLOAT, capacity, {info, "values"}),
      mapping.variable(graph, INT, 2, {info, "counts"}), mapping.variable(graph, INT, 2, {info, "dropped"})};
  // The first id of the selection, for each step that has its own.
  const size_t starts = rotate ? mapping.rows() / batch : 1;
  std::vector<unsigned> first(starts);
  for (size_t step = 0; step < starts; ++step)
    first[step] = static_cast<unsigned>(step * capacity % neurons);
  const Tensor start = graph.addConstant(UNSIGNED_INT, {starts}, ArrayRef<unsigned>(first), {info, "start"});
  graph.setTileMapping(start, 0);
  const ComputeSet cs = graph.addComputeSet({info, "select"});
  for (size_t tile = 0; tile < mapping.tiles(); ++tile)
    for (size_t row = mapping.begin(tile); row < mapping.end(tile);) {
      // A vertex has one start, so its rows belong to one step.
      const size_t step = rotate ? row / batch : 0;
      const size_t end = rotate ? std::min(mapping.end(tile), (step + 1) * batch) : mapping.end(tile);
      const auto rows = [&](const Tensor &of) { return of.slice(row, end, 0).flatten(); };
      VertexBuilder(graph, cs, vertexName("SelectSpikes", FLOAT), tile)
          .connect("fired", rows(fired))
          .connect("carried", rows(carried))
          .connect("ids", rows(out.ids))
          .connect("values", rows(out.values))
          .connect("counts", rows(out.counts))
          .connect("dropped", rows(out.dropped))
          .connect("start", start.slice(step, step + 1))
          .count("rows", end - row)
          .count("words", fired.dim(1))
          .count("slots", capacity);
      row = end;
    }
  prog.add(Execute(cs));
  return out;
}

Tensor zeros(Graph &graph, const std::vector<size_t> &shape, const DebugContext &debug, const Type &type) {
  const Tensor zero = graph.addConstant(type, {1}, 0.0f, debug);
  graph.setTileMapping(zero, 0);
  size_t count = 1;
  for (const size_t size : shape)
    count *= size;
  return zero.broadcast(static_cast<unsigned>(count), 0).reshape(shape);
}

} // namespace graph
} // namespace snnipu
