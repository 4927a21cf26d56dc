#include "graph/slots.hpp"

#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"
#include "graph/vertex_name.hpp"

#include <algorithm>
#include <stdexcept>

namespace snnipu {
namespace graph {

using poplar::Tensor;
using poplar::program::Execute;
using poplar::program::Sequence;

void checkSlots(const char *op, const SlotTensors &spikes) {
  const auto refuse = [&](const std::string &reason) { throw std::invalid_argument(std::string(op) + ": " + reason); };
  for (const auto &named : {std::make_pair("ids", &spikes.ids), std::make_pair("values", &spikes.values),
                            std::make_pair("counts", &spikes.counts)}) {
    const poplar::Type type = named.second->elementType();
    const bool values = named.second == &spikes.values;
    if (type != poplar::FLOAT && !(values && type == poplar::HALF))
      refuse(std::string(named.first) + " must be FLOAT" + (values ? " or HALF" : "") + ", got " + type.toString());
    if (named.second->rank() != 3)
      refuse(std::string(named.first) + " must have three dimensions, got " + named.second->shapeToString());
  }
  const std::vector<std::size_t> shape = spikes.ids.shape();
  if (spikes.values.shape() != shape)
    refuse("values must have the shape of ids, " + spikes.ids.shapeToString() + ", got " +
           spikes.values.shapeToString());
  if (spikes.counts.shape() != std::vector<std::size_t>{shape[0], shape[1], 2})
    refuse("counts must have shape [steps, batch, 2] for ids of " + spikes.ids.shapeToString() + ", got " +
           spikes.counts.shapeToString());
  if (spikes.ids.numElements() == 0)
    refuse("ids must have at least one element, got " + spikes.ids.shapeToString());
}

RowMapping::RowMapping(const poplar::Graph &graph, std::size_t rows) : rows_(rows) {
  const std::size_t tiles = graph.getTarget().getNumTiles();
  share_ = std::max<std::size_t>(1, (rows + tiles - 1) / tiles);
}

Tensor RowMapping::variable(poplar::Graph &graph, const poplar::Type &type, std::size_t width,
                            const poplar::DebugContext &debug) const {
  const Tensor all = graph.addVariable(type, {rows_, width}, debug);
  for (std::size_t tile = 0; tile < tiles(); ++tile)
    graph.setTileMapping(all.slice(begin(tile), end(tile), 0), static_cast<unsigned>(tile));
  return all;
}

Tensor castRows(poplar::Graph &graph, const RowMapping &mapping, const Tensor &rows, const poplar::Type &type,
                Sequence &prog, const poplar::DebugContext &debug) {
  if (rows.elementType() == type)
    return rows;
  const poplar::ComputeSet cs = graph.addComputeSet(debug);
  const Tensor to = mapping.variable(graph, type, rows.dim(1), debug);
  for (std::size_t tile = 0; tile < mapping.tiles(); ++tile)
    addCast(graph, cs, mapping.part(rows, tile), mapping.part(to, tile), tile);
  prog.add(Execute(cs));
  return to;
}

Tensor idsOfFloats(poplar::Graph &graph, const RowMapping &mapping, const Tensor &from, std::size_t limit,
                   Sequence &prog, const poplar::DebugContext &debug) {
  const Tensor to = mapping.variable(graph, poplar::INT, from.dim(1), debug);
  runOnRows(graph, mapping, "snnipu::IdsOfFloats", prog, debug, [&](RowVertex &vertex) {
    vertex.rows("from", from).rows("to", to).count("size", vertex.held * from.dim(1)).count("limit", limit);
  });
  return to;
}

Tensor floatsOfIds(poplar::Graph &graph, const RowMapping &mapping, const Tensor &from, Sequence &prog,
                   const poplar::DebugContext &debug) {
  const Tensor to = mapping.variable(graph, poplar::FLOAT, from.dim(1), debug);
  runOnRows(graph, mapping, "snnipu::FloatsOfIds", prog, debug, [&](RowVertex &vertex) {
    vertex.rows("from", from).rows("to", to).count("size", vertex.held * from.dim(1));
  });
  return to;
}

SlotTensors rowsOfSlots(poplar::Graph &graph, const RowMapping &mapping, const SlotTensors &spikes, std::size_t neurons,
                        Sequence &prog, const poplar::DebugInfo &info) {
  const std::size_t slots = spikes.ids.dim(2);
  SlotTensors rows;
  rows.ids = idsOfFloats(graph, mapping, spikes.ids.reshape({mapping.rows(), slots}), neurons, prog, {info, "ids"});
  rows.counts =
      idsOfFloats(graph, mapping, spikes.counts.reshape({mapping.rows(), 2}), slots + 1, prog, {info, "counts"});
  if (spikes.values.valid())
    rows.values = castRows(graph, mapping, spikes.values.reshape({mapping.rows(), slots}), poplar::FLOAT, prog,
                           {info, "valuesInFloat"});
  return rows;
}

SlotTensors slotsOfRows(poplar::Graph &graph, const RowMapping &mapping, const SlotTensors &rows, std::size_t batch,
                        const poplar::Type &type, Sequence &prog, const poplar::DebugInfo &info) {
  const auto bySteps = [&](const Tensor &of) { return of.reshape({mapping.rows() / batch, batch, of.dim(1)}); };
  SlotTensors out;
  out.ids = bySteps(floatsOfIds(graph, mapping, rows.ids, prog, {info, "ids"}));
  out.values = bySteps(castRows(graph, mapping, rows.values, type, prog, {info, "valuesOfType"}));
  out.counts = bySteps(floatsOfIds(graph, mapping, rows.counts, prog, {info, "counts"}));
  if (rows.dropped.valid())
    out.dropped = bySteps(floatsOfIds(graph, mapping, rows.dropped, prog, {info, "dropped"}));
  return out;
}

Tensor gatherSlots(poplar::Graph &graph, const RowMapping &mapping, const Tensor &dense, const Tensor &ids,
                   const Tensor &counts, Sequence &prog, const poplar::DebugContext &debug) {
  const Tensor values = mapping.variable(graph, poplar::FLOAT, ids.dim(1), debug);
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

Tensor scatterSlots(poplar::Graph &graph, const RowMapping &mapping, const Tensor &values, const Tensor &ids,
                    const Tensor &counts, std::size_t neurons, const poplar::Type &type, Sequence &prog,
                    const poplar::DebugContext &debug) {
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

void addSumSlots(poplar::Graph &graph, poplar::ComputeSet cs, const Tensor &partial, const Tensor &counts,
                 std::size_t slots, const Tensor &out, std::size_t tiles,
                 const std::function<std::size_t(std::size_t)> &tileOf, const Tensor &upstream, float scale) {
  const std::size_t size = out.numElements(), share = 2 * (((size + 1) / 2 + tiles - 1) / tiles);
  const Tensor noUpstream = emptyVariable(graph, poplar::FLOAT), rows = counts.reshape({size / slots, 2});
  for (std::size_t begin = 0, i = 0; begin < size; begin += share, ++i) {
    const std::size_t end = std::min(size, begin + share), tile = tileOf(i);
    const Tensor to = out.slice(begin, end);
    graph.setTileMapping(to, static_cast<unsigned>(tile));
    VertexBuilder(graph, cs, vertexName("SumSlots", poplar::FLOAT), tile)
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

Tensor ascendingRows(poplar::Graph &graph, const RowMapping &mapping, const Tensor &ids, const Tensor &counts,
                     Sequence &prog, const poplar::DebugContext &debug) {
  const Tensor out = mapping.variable(graph, poplar::INT, 1, debug);
  runOnRows(graph, mapping, "snnipu::Ascending", prog, debug, [&](RowVertex &vertex) {
    vertex.rows("ids", ids)
        .rows("counts", counts)
        .rows("out", out)
        .count("rows", vertex.held)
        .count("slots", ids.dim(1));
  });
  return out;
}

SlotTensors slotsOfBits(poplar::Graph &graph, const RowMapping &mapping, const Tensor &fired, const Tensor &carried,
                        std::size_t batch, std::size_t neurons, std::size_t capacity, bool rotate, Sequence &prog,
                        const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const SlotTensors out = {mapping.variable(graph, poplar::INT, capacity, {info, "ids"}),
                           mapping.variable(graph, poplar::FLOAT, capacity, {info, "values"}),
                           mapping.variable(graph, poplar::INT, 2, {info, "counts"}),
                           mapping.variable(graph, poplar::INT, 2, {info, "dropped"})};
  // The first id of the selection, for each step that has its own.
  const std::size_t starts = rotate ? mapping.rows() / batch : 1;
  std::vector<unsigned> first(starts);
  for (std::size_t step = 0; step < starts; ++step)
    first[step] = static_cast<unsigned>(step * capacity % neurons);
  const Tensor start =
      graph.addConstant(poplar::UNSIGNED_INT, {starts}, poplar::ArrayRef<unsigned>(first), {info, "start"});
  graph.setTileMapping(start, 0);
  const poplar::ComputeSet cs = graph.addComputeSet({info, "select"});
  for (std::size_t tile = 0; tile < mapping.tiles(); ++tile)
    for (std::size_t row = mapping.begin(tile); row < mapping.end(tile);) {
      // A vertex has one start, so its rows belong to one step.
      const std::size_t step = rotate ? row / batch : 0;
      const std::size_t end = rotate ? std::min(mapping.end(tile), (step + 1) * batch) : mapping.end(tile);
      const auto rows = [&](const Tensor &of) { return of.slice(row, end, 0).flatten(); };
      VertexBuilder(graph, cs, vertexName("SelectSpikes", poplar::FLOAT), tile)
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

Tensor zeros(poplar::Graph &graph, const std::vector<std::size_t> &shape, const poplar::DebugContext &debug,
             const poplar::Type &type) {
  const Tensor zero = graph.addConstant(type, {1}, 0.0f, debug);
  graph.setTileMapping(zero, 0);
  std::size_t count = 1;
  for (const std::size_t size : shape)
    count *= size;
  return zero.broadcast(static_cast<unsigned>(count), 0).reshape(shape);
}

} // namespace graph
} // namespace snnipu
