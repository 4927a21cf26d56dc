#include "graph/tile_mapping.hpp"

#include "graph/vertex_builder.hpp"
#include "graph/vertex_name.hpp"

#include <algorithm>

namespace snnipu {
namespace graph {

ElementMapping::ElementMapping(const Graph &graph, size_t elements, const Type &type)
    : elements_(elements), tiles_(graph.getTarget().getNumTiles()) {
  const size_t unit = type == HALF ? 4 : 2, units = (elements + unit - 1) / unit;
  share_ = std::max<size_t>(1, (units + tiles_ - 1) / tiles_) * unit;
  for (size_t begin = 0; begin < elements; begin += share_)
    begins_.push_back(begin);
  const size_t last = elements % share_;
  if (last % 2 != 0 && last > 1)
    begins_.push_back(elements - 1);
  begins_.push_back(elements);
}

Tensor ElementMapping::variable(Graph &graph, const Type &type, size_t rows, const DebugContext &debug) const {
  const Tensor all = graph.addVariable(type, {rows * elements_}, debug);
  for (size_t piece = 0; piece < pieces(); ++piece)
    graph.setTileMapping(all.slice(rows * begin(piece), rows * end(piece)), static_cast<unsigned>(tile(piece)));
  const size_t whole = elements_ / share_;
  std::vector<Tensor> parts;
  if (whole > 0)
    parts.push_back(all.slice(0, rows * share_ * whole)
                        .reshape({whole, rows, share_})
                        .dimShuffle({1, 0, 2})
                        .reshape({rows, whole * share_}));
  for (size_t piece = whole; piece < pieces(); ++piece)
    parts.push_back(all.slice(rows * begin(piece), rows * end(piece)).reshape({rows, count(piece)}));
  return concat(parts, 1);
}

Tensor ElementMapping::part(const Tensor &rows, size_t piece) const {
  return rows.slice(begin(piece), end(piece), 1).flatten();
}

Tensor cyclic(const Tensor &tensor, size_t begin, size_t count) {
  const Tensor flat = tensor.flatten();
  const size_t size = flat.numElements();
  if (size == 1)
    return flat.broadcast(static_cast<unsigned>(count), 0);
  std::vector<Tensor> pieces;
  for (size_t at = begin; at < begin + count;) {
    const size_t from = at % size, length = std::min(size - from, begin + count - at);
    pieces.push_back(flat.slice(from, from + length));
    at += length;
  }
  return concat(pieces);
}

Tensor emptyVariable(Graph &graph, const Type &type) { return variableOn(graph, 0, type, {0}); }

Tensor variableOn(Graph &graph, size_t tile, const Type &type, ArrayRef<size_t> shape, const DebugContext &debug) {
  const Tensor variable = graph.addVariable(type, shape, debug);
  graph.setTileMapping(variable, static_cast<unsigned>(tile));
  return variable;
}

void addSumRows(Graph &graph, ComputeSet cs, const Tensor &in, size_t rows, const Tensor &out, float scale,
                size_t tile) {
  VertexBuilder(graph, cs, vertexName("SumRows", in.elementType()), tile)
      .connect("in", in)
      .connect("out", out)
      .set("scale", scale)
      .count("rows", rows)
      .count("columns", out.numElements());
}

void addCast(Graph &graph, ComputeSet cs, const Tensor &from, const Tensor &to, size_t tile) {
  VertexBuilder(graph, cs, vertexName("Cast", from.elementType(), to.elementType()), tile)
      .connect("from", from.flatten())
      .connect("to", to.flatten())
      .count("size", from.numElements());
}

// Return the sums of parts[i] on tile i: several numbers, one for each worker that has enough to add.
static Tensor sumParts(Graph &graph, const std::vector<Tensor> &parts, Sequence &prog, const DebugContext &debug) {
  const size_t tiles = graph.getTarget().getNumTiles(), workers = graph.getTarget().getNumWorkerContexts();
  std::vector<Tensor> sums;
  const ComputeSet cs = graph.addComputeSet(debug);
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t size = parts[i].numElements(), count = std::min(workers, std::max<size_t>(1, size / 4));
    const Tensor out = variableOn(graph, i % tiles, parts[i].elementType(), {count}, debug);
    VertexBuilder(graph, cs, vertexName("SumParts", parts[i].elementType()), i % tiles)
        .connect("in", parts[i].flatten())
        .connect("out", out)
        .count("size", size)
        .count("parts", count);
    sums.push_back(out);
  }
  prog.add(Execute(cs));
  return concat(sums);
}

Tensor sumOfAll(Graph &graph, const Tensor &vector, float scale, Sequence &prog, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  Tensor remaining = vector.flatten();
  constexpr size_t maxElements = 48, group = 96;
  while (remaining.numElements() > maxElements) {
    std::vector<Tensor> groups;
    for (size_t begin = 0; begin < remaining.numElements(); begin += group)
      groups.push_back(remaining.slice(begin, std::min(remaining.numElements(), begin + group)));
    remaining = sumParts(graph, groups, prog, {info, "groups"});
  }
  const Tensor total = variableOn(graph, 0, remaining.elementType(), {1}, {info, "total"});
  const ComputeSet last = graph.addComputeSet({info, "sum"});
  addSumRows(graph, last, remaining, remaining.numElements(), total, scale, 0);
  prog.add(Execute(last));
  return total;
}

Tensor sumOfTiles(Graph &graph, const std::vector<Tensor> &parts, float scale, Sequence &prog,
                  const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  return sumOfAll(graph, sumParts(graph, parts, prog, {info, "tiles"}), scale, prog, debug);
}

Tensor sumModulo(Graph &graph, const ElementMapping &mapping, const Tensor &sums, const Tensor &like, float scale,
                 Sequence &prog, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const size_t size = like.numElements();
  const Type type = sums.elementType();
  if (size == 1) {
    std::vector<Tensor> parts;
    for (size_t piece = 0; piece < mapping.pieces(); ++piece)
      parts.push_back(mapping.part(sums, piece));
    return sumOfTiles(graph, parts, scale, prog, debug).reshape(like.shape());
  }
  const size_t rows = sums.numElements() / size;
  const Tensor byRow = sums.reshape({rows, size});
  const ElementMapping columns(graph, size, type);
  const Tensor total = columns.variable(graph, type, 1, {info, "total"});
  const ComputeSet cs = graph.addComputeSet({info, "sum"});
  for (size_t piece = 0; piece < columns.pieces(); ++piece)
    addSumRows(graph, cs, columns.part(byRow, piece), rows, columns.part(total, piece), scale, columns.tile(piece));
  prog.add(Execute(cs));
  return total.reshape(like.shape());
}

} // namespace graph
} // namespace snnipu
