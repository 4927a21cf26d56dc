#include "graph/sparse_linear.hpp"

#include "graph/shared_blocks.hpp"
#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"
#include "graph/vertex_name.hpp"

#include "neuron/sparse.hpp"

#include <algorithm>

namespace snnipu {
namespace graph {
namespace {

// Every tile receives all spikes of its rows, as many rows at a time as fit into this.
constexpr size_t bytesAtOnce = 48 * 1024;

const char *operatorOf(bool delayed) { return delayed ? "delay_linear" : "sparse_linear"; }

// Return the groups of tiles, each with all neurons and a share of the rows. With delays the steps of a sample stay
// together, so the shares consist of samples.
SharedBlocks linearBlocks(const Graph &graph, const SparseLinearPlan &plan, size_t neurons, size_t rows, bool delayed) {
  const size_t tiles = graph.getTarget().getNumTiles();
  if (plan.neurons == 0 || plan.rows == 0)
    refuse(operatorOf(delayed), "plan must have 1 or more neurons and rows");
  std::vector<size_t> counts;
  for (size_t first = 0; first < neurons; first += plan.neurons)
    counts.push_back(std::min(plan.neurons, neurons - first));
  std::vector<std::vector<Block>> groups = {blocksOf(counts, 0)};
  for (size_t first = plan.rows; first < rows; first += plan.rows)
    groups.push_back(blocksOf(counts, groups.size() * counts.size()));
  if (groups.size() * counts.size() > tiles)
    refuse(operatorOf(delayed), "the plan must give neurons and rows to " + std::to_string(tiles) + " tiles, got " +
                                    std::to_string(groups.size() * counts.size()));
  return SharedBlocks(groups);
}

struct Rows {
  size_t begin, end;

  size_t count() const { return end - begin; }
  // Return the rows relative to `first`.
  Rows from(size_t first) const { return {begin - first, end - first}; }
};

struct BlockLayout {
  size_t steps, batch, slots, rows, inputs, neurons;
  size_t taps; // 0: without delays
  RowMapping mapping;
  SharedBlocks blocks;
  // [rows][...], ordered by group; ids, counts and lags as integers, values in float.
  Tensor ids, values, counts, lags;

  BlockLayout(Graph &graph, const SparseLinearInputs &in, const SparseLinearPlan &plan, bool unitValues, Sequence &prog,
              const DebugInfo &info)
      : steps((check(in), in.spikes.ids.dim(0))), batch(in.spikes.ids.dim(1)), slots(in.spikes.ids.dim(2)),
        rows(steps * batch), inputs(in.weight.dim(in.lags.valid() ? 0 : 1)),
        neurons(in.weight.dim(in.lags.valid() ? 1 : 0)), taps(in.lags.valid() ? in.weight.dim(2) : 0),
        mapping(graph, rows), blocks(linearBlocks(graph, plan, neurons, taps ? batch : rows, taps > 0)),
        share_(std::min(plan.rows, taps ? batch : rows)) {
    lines_ = taps ? steps : share_;
    chunk_ = std::min(lines_, std::max<size_t>(1, bytesAtOnce / (8 * slots + 12) / (taps ? share_ : 1)));
    ids = idsOfFloats(graph, mapping, byGroup(in.spikes.ids), inputs, prog, {info, "ids"});
    counts = idsOfFloats(graph, mapping, byGroup(in.spikes.counts), slots + 1, prog, {info, "counts"});
    values = byGroup(in.spikes.values);
    if (!unitValues)
      values = castRows(graph, mapping, values, FLOAT, prog, {info, "valuesInFloat"});
    if (taps)
      lags = idsOfFloats(graph, RowMapping(graph, inputs), in.lags, steps + 1, prog, {info, "lags"});
  }

  // Reorder [steps, batch, n] to [rows, n], and back.
  Tensor byGroup(const Tensor &of) const {
    std::vector<Tensor> parts;
    if (!taps)
      return of.reshape({rows, of.dim(2)});
    for (size_t group = 0; group < blocks.size(); ++group) {
      const Rows range = samplesOfGroup(group);
      parts.push_back(of.slice(range.begin, range.end, 1).reshape({steps * range.count(), of.dim(2)}));
    }
    return concat(parts);
  }
  Tensor bySteps(const Tensor &of) const {
    std::vector<Tensor> parts;
    if (!taps)
      return of.reshape({steps, batch, of.dim(1)});
    for (size_t group = 0; group < blocks.size(); ++group) {
      const Rows range = rowsOfGroup(group);
      parts.push_back(of.slice(range.begin, range.end).reshape({steps, range.count() / steps, of.dim(1)}));
    }
    return concat(parts, 1);
  }

  // Reshape the weight to [inputs * taps, neurons], and back.
  Tensor byInputs(const Tensor &weight) const {
    return taps ? weight.dimShuffle({0, 2, 1}).reshape({inputs * taps, neurons}) : weight.transpose();
  }
  Tensor asWeight(const Tensor &of) const {
    return taps ? of.reshape({inputs, taps, neurons}).dimShuffle({0, 2, 1}) : of.transpose();
  }
  // Return the number of rows of byInputs().
  size_t numWeightRows() const { return inputs * std::max<size_t>(1, taps); }

  Rows rowsOfGroup(size_t group) const {
    if (taps) {
      const Rows range = samplesOfGroup(group);
      return {range.begin * steps, range.end * steps};
    }
    return {std::min(rows, group * share_), std::min(rows, (group + 1) * share_)};
  }
  // Return the samples of a group. Only with delays.
  Rows samplesOfGroup(size_t group) const {
    return {std::min(batch, group * share_), std::min(batch, (group + 1) * share_)};
  }
  // Return the most rows that a tile receives at a time.
  size_t chunk() const { return chunk_ * (taps ? share_ : 1); }
  // Call body(first) for the first row of each chunk in its group, with delays the first step.
  template <typename Body> void forChunks(const Body &body) const {
    for (size_t first = 0; first < lines_; first += chunk_)
      body(first);
  }
  // Return a group's rows in the chunk that starts at `first`.
  Rows chunkOf(size_t group, size_t first) const {
    const Rows range = rowsOfGroup(group);
    const size_t line = taps ? samplesOfGroup(group).count() : 1;
    return {std::min(range.end, range.begin + first * line),
            std::min(range.end, range.begin + (first + chunk_) * line)};
  }

private:
  static void check(const SparseLinearInputs &in) {
    const bool delayed = in.lags.valid();
    const char *const op = operatorOf(delayed);
    checkSlots(op, in.spikes);
    if (in.weight.rank() != (delayed ? 3 : 2) || in.weight.numElements() == 0)
      refuse(op, std::string("weight must be ") + (delayed ? "[inputs, neurons, taps]" : "[neurons, inputs]") +
                     ", with elements, got " + in.weight.shapeToString());
    const size_t neurons = in.weight.dim(delayed ? 1 : 0);
    if (in.bias.valid() && in.bias.numElements() != neurons)
      refuse(op, "bias must have an element for each neuron, " + std::to_string(neurons) + ", got " +
                     in.bias.shapeToString());
    if (delayed && in.lags.shape() != std::vector<size_t>{in.weight.dim(0), neurons})
      refuse(op, "lags must be [inputs, neurons] with the sizes of weight, got " + in.lags.shapeToString());
  }

  // share_: rows of a group, with delays samples. lines_, chunk_: rows of a group and of a chunk, with delays steps.
  size_t share_ = 0, lines_ = 0, chunk_ = 0;
};

Tensor rowsOf(const Tensor &of, Rows rows) { return of.slice(rows.begin, rows.end, 0).flatten(); }

// Return an array [rows][neurons] in the blocks of each group.
std::vector<std::vector<Tensor>> distributeToGroups(Graph &graph, const SharedBlocks &groups, const Tensor &array,
                                                    Copies &copies, const DebugContext &debug) {
  std::vector<std::vector<Tensor>> parts;
  for (size_t group = 0; group < groups.size(); ++group)
    parts.push_back(distribute(graph, groups[group], array, 0.0f, copies, debug));
  return parts;
}

} // namespace

Tensor createSparseLinearWeight(Graph &graph, size_t neurons, size_t inputs, size_t rows, const SparseLinearPlan &plan,
                                const Type &type, const DebugContext &debug) {
  return linearBlocks(graph, plan, neurons, rows, false).matrix(graph, type, inputs, debug);
}

Tensor sparseLinear(Graph &graph, const SparseLinearInputs &in, const SparseLinearPlan &plan, bool unitValues,
                    Sequence &prog, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const BlockLayout layout(graph, in, plan, unitValues, prog, info);
  const SharedBlocks &groups = layout.blocks;
  Copies copies;
  const auto weights = distributeToGroups(graph, groups, layout.byInputs(in.weight), copies, {info, "weight"});
  std::vector<std::vector<Tensor>> lags;
  if (layout.taps)
    lags = distributeToGroups(graph, groups, layout.lags, copies, {info, "lags"});
  const Tensor noBias = zeros(graph, {1}, {info, "noBias"});
  std::vector<std::vector<Tensor>> biases;
  std::vector<BlockArray> out;
  for (size_t group = 0; group < groups.size(); ++group) {
    biases.push_back(
        distributeParameter(graph, groups[group], in.bias.valid() ? in.bias : noBias, 0.0f, copies, {info, "bias"}));
    out.emplace_back(graph, groups[group], FLOAT, layout.rowsOfGroup(group).count(), DebugContext{info, "out"});
  }
  copies.run(prog, {info, "load"});
  const Tensor unused = emptyVariable(graph, FLOAT);
  const std::string name = layout.taps ? vertexName("DelayLinearForward", in.weight.elementType())
                                       : vertexName("SparseLinearForward", in.weight.elementType(), UNSIGNED_INT);
  layout.forChunks([&](size_t first) {
    const ComputeSet cs = graph.addComputeSet({info, "forward"});
    for (size_t group = 0; group < groups.size(); ++group) {
      const Rows rows = layout.chunkOf(group, first);
      if (rows.count() == 0)
        continue;
      const Tensor ids = rowsOf(layout.ids, rows);
      const Tensor values = unitValues ? unused : rowsOf(layout.values, rows);
      const Tensor counts = rowsOf(layout.counts, rows);
      const std::vector<Block> &blocks = groups[group];
      for (size_t i = 0; i < blocks.size(); ++i) {
        VertexBuilder vertex(graph, cs, name, blocks[i].tile);
        vertex.connect("weight", weights[group][i].flatten())
            .connect("bias", biases[group][i])
            .connect("values", values)
            .connect("counts", counts)
            .count("rows", rows.count())
            .count("slots", layout.slots)
            .count("lanes", blocks[i].lanes)
            .set("unitValues", unitValues);
        if (layout.taps)
          vertex.connect("lags", lags[group][i].flatten())
              .connect("ids", ids)
              .connect("out", out[group][i].flatten())
              .count("first", first)
              .count("samples", layout.samplesOfGroup(group).count())
              .count("steps", layout.steps)
              .count("taps", layout.taps)
              .set("begins", first == 0);
        else
          vertex.connect("ids", ids.reinterpret(UNSIGNED_INT))
              .connect("out", rowsOf(out[group][i], rows.from(layout.rowsOfGroup(group).begin)))
              .count("valueSlots", layout.slots)
              .count("neurons", blocks[i].neurons)
              .count("outStride", blocks[i].lanes);
      }
    }
    prog.add(Execute(cs));
  });
  const bool half = in.spikes.values.elementType() == HALF;
  const ComputeSet cast = graph.addComputeSet({info, "half"});
  std::vector<Tensor> wholes;
  for (size_t group = 0; group < groups.size(); ++group) {
    if (!half) {
      wholes.push_back(out[group].whole());
      continue;
    }
    const std::vector<Block> &blocks = groups[group];
    const BlockArray halves(graph, blocks, HALF, layout.rowsOfGroup(group).count(), {info, "outInHalf"});
    for (size_t i = 0; i < blocks.size(); ++i)
      addCast(graph, cast, out[group][i], halves[i], blocks[i].tile);
    wholes.push_back(halves.whole());
  }
  if (half)
    prog.add(Execute(cast));
  return layout.bySteps(concat(wholes));
}

SparseLinearGradients sparseLinearGrad(Graph &graph, const Tensor &grad, const SparseLinearInputs &in,
                                       const SparseLinearPlan &plan, bool unitValues, Sequence &prog,
                                       const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const BlockLayout layout(graph, in, plan, unitValues, prog, info);
  const SharedBlocks &groups = layout.blocks;
  if (grad.numElements() != layout.rows * layout.neurons)
    refuse(operatorOf(layout.taps > 0), "the gradient must be [steps, batch, neurons], got " + grad.shapeToString());
  const Tensor order =
      ascendingRows(graph, layout.mapping, layout.ids, layout.counts, prog, {info, "ascending"}).flatten();
  Copies copies;
  const auto weights = distributeToGroups(graph, groups, layout.byInputs(in.weight), copies, {info, "weight"});
  std::vector<std::vector<Tensor>> grads, lags;
  if (layout.taps)
    lags = distributeToGroups(graph, groups, layout.lags, copies, {info, "lags"});
  const Tensor rowsOfGrad = layout.byGroup(grad.reshape({layout.steps, layout.batch, layout.neurons}));
  for (size_t group = 0; group < groups.size(); ++group) {
    const Rows rows = layout.rowsOfGroup(group);
    grads.push_back(
        distribute(graph, groups[group], rowsOfGrad.slice(rows.begin, rows.end), 0.0f, copies, {info, "grad"}));
  }
  copies.run(prog, {info, "load"});
  const ComputeSet clear = graph.addComputeSet({info, "zero"}), cast = graph.addComputeSet({info, "float"});
  std::vector<std::vector<Tensor>> gradWeights;
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<Block> &blocks = groups[group];
    gradWeights.push_back(BlockArray(graph, blocks, FLOAT, layout.numWeightRows(), {info, "gradWeight"}).parts());
    zeroBlocks(graph, blocks, gradWeights[group], clear);
    for (size_t i = 0; grad.elementType() == HALF && i < blocks.size(); ++i) {
      const Tensor inFloat = variableOn(graph, blocks[i].tile, FLOAT, grads[group][i].shape(), {info, "gradInFloat"});
      addCast(graph, cast, grads[group][i], inFloat, blocks[i].tile);
      grads[group][i] = inFloat;
    }
  }
  prog.add(Execute(clear));
  if (grad.elementType() == HALF)
    prog.add(Execute(cast));
  const Tensor gradValues = graph.addVariable(FLOAT, {layout.rows, layout.slots}, {info, "gradValues"});
  const Tensor unused = emptyVariable(graph, FLOAT);
  // Partial gradients of a chunk's values, one for each block of a group. Chunks reuse the memory.
  const size_t count = groups[0].size(), most = layout.chunk() * layout.slots;
  const Tensor partials = graph.addVariable(FLOAT, {groups.size(), count, most}, {info, "partial"});
  for (size_t group = 0; group < groups.size(); ++group)
    for (size_t i = 0; i < count; ++i)
      graph.setTileMapping(partials[group][i], static_cast<unsigned>(groups[group][i].tile));
  const std::string update = vertexName(layout.taps ? "DelayLinearWeightUpdate" : "SparseLinearWeightUpdate", FLOAT);
  const std::string valueGradient =
      layout.taps ? vertexName("DelayLinearValueGradient", in.weight.elementType())
                  : vertexName("SparseLinearValueGradient", in.weight.elementType(), UNSIGNED_INT);
  layout.forChunks([&](size_t first) {
    const ComputeSet cs = graph.addComputeSet({info, "backward"}), sum = graph.addComputeSet({info, "sum"});
    for (size_t group = 0; group < groups.size(); ++group) {
      const Rows rows = layout.chunkOf(group, first);
      const size_t blockRows = rows.count(), size = blockRows * layout.slots;
      if (blockRows == 0)
        continue;
      const std::vector<Block> &blocks = groups[group];
      const Tensor ids = rowsOf(layout.ids, rows), counts = rowsOf(layout.counts, rows);
      const Tensor values = unitValues ? unused : rowsOf(layout.values, rows);
      // With delays spikes may arrive at any step.
      const Rows arriving = layout.taps ? layout.rowsOfGroup(group) : rows;
      for (size_t i = 0; i < count; ++i) {
        const Tensor gradOut = rowsOf(grads[group][i], arriving.from(layout.rowsOfGroup(group).begin));
        VertexBuilder weightUpdate(graph, cs, update, blocks[i].tile),
            ofValues(graph, cs, valueGradient, blocks[i].tile);
        weightUpdate.connect("ids", ids)
            .connect("values", values)
            .connect("counts", counts)
            .connect("order", order.slice(rows.begin, rows.end))
            .connect("grad", gradOut)
            .connect("gradWeight", gradWeights[group][i].flatten())
            .count("rows", blockRows)
            .count("slots", layout.slots)
            .count("inputs", layout.inputs)
            .count("lanes", blocks[i].lanes)
            .set("unitValues", unitValues);
        ofValues.connect("weight", weights[group][i].flatten())
            .connect("grad", gradOut)
            .connect("counts", counts)
            .connect("gradValues", partials[group][i].slice(0, size))
            .count("rows", blockRows)
            .count("slots", layout.slots)
            .count("lanes", blocks[i].lanes);
        if (layout.taps) {
          ofValues.connect("ids", ids);
          for (VertexBuilder *vertex : {&weightUpdate, &ofValues})
            vertex->connect("lags", lags[group][i].flatten())
                .count("first", first)
                .count("samples", layout.samplesOfGroup(group).count())
                .count("steps", layout.steps)
                .count("taps", layout.taps);
        } else {
          weightUpdate.set("scale", 1.0f).set("ascending", false);
          ofValues.connect("ids", ids.reinterpret(UNSIGNED_INT));
        }
      }
      // Sum over the blocks. Each tile of the group sums its share of the slots.
      addSumSlots(graph, sum, partials[group].slice(0, size, 1), counts, layout.slots,
                  gradValues.slice(rows.begin, rows.end, 0).flatten(), blocks.back().tile + 1 - blocks[0].tile,
                  [&](size_t tile) { return blocks[0].tile + tile; });
    }
    prog.add(Execute(cs));
    prog.add(Execute(sum));
  });
  const Type type = in.weight.elementType();
  const ComputeSet sum = graph.addComputeSet({info, "groups"}), half = graph.addComputeSet({info, "gradWeightInHalf"});
  SparseLinearGradients out;
  out.weight =
      layout.asWeight(groups.sumOfGroups(graph, gradWeights, type, sum, half, {info, "gradWeight"}).transpose());
  if (groups.size() > 1)
    prog.add(Execute(sum));
  if (type == HALF)
    prog.add(Execute(half));
  out.values = layout.bySteps(
      castRows(graph, layout.mapping, gradValues, in.spikes.values.elementType(), prog, {info, "gradValuesOfType"}));
  if (in.bias.valid())
    out.bias = groups.sumOfRows(graph, grads, in.bias, prog, {info, "bias"});
  return out;
}

} // namespace graph
} // namespace snnipu
