#include "graph/sparse_linear.hpp"

#include "graph/blocks.hpp"
#include "graph/spread.hpp"
#include "graph/vertex_builder.hpp"
#include "graph/vertex_name.hpp"

#include "neuron/sparse.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

using poplar::Tensor;
using poplar::program::Execute;
using poplar::program::Sequence;

// Every tile gets all spikes of its rows, as many rows at a time as fit into this.
constexpr std::size_t bytesAtOnce = 48 * 1024;

// Which tile does what: blocks of neurons, and groups of tiles that each have all blocks and a share of the rows. More
// groups leave fewer spikes to each tile, and need more neurons on it: weights are there once for every group.
struct Division {
  std::vector<Block> blocks; // of the first group
  std::size_t groups = 1, tilesOfGroup = 1;

  Division(const poplar::Graph &graph, std::size_t neurons, std::size_t inputs, std::size_t rows, std::size_t slots,
           const poplar::Type &type) {
    const std::size_t tiles = graph.getTarget().getNumTiles();
    const double weight = type == poplar::HALF ? 2.0 : 4.0;
    // Weights, their gradient, and what is received of the others' gradients: not more than half of a tile.
    const double most = 0.5 * static_cast<double>(graph.getTarget().getBytesPerTile());
    double least = std::numeric_limits<double>::infinity();
    std::size_t share = 0;
    for (std::size_t lanes = 2; lanes <= blockLanes; lanes += 2) {
      const std::size_t count = (neurons + lanes - 1) / lanes;
      if (count > tiles)
        continue;
      const double held = static_cast<double>(inputs * lanes), width = static_cast<double>(lanes);
      for (const std::size_t wanted : {std::min(rows, tiles / count), std::size_t(1)}) {
        const std::size_t own = (rows + wanted - 1) / wanted, ways = (rows + own - 1) / own;
        if (held * (weight + (ways > 1 ? 8.0 : 4.0)) > most)
          continue;
        // Cycles: spikes that arrive and are worked on, forwards and backwards; weights cleared, fetched and summed.
        const double spikes = static_cast<double>(own * slots);
        const double cycles = spikes * (28.0 + 9.5 * width) + held * (4.0 + (ways > 1 ? 6.0 + 0.5 * weight : 0.0));
        if (cycles < least) {
          least = cycles;
          share = lanes;
          groups = ways;
        }
      }
      if (neurons <= lanes)
        break;
    }
    if (share == 0) { // as little to a tile as there is
      blocks = blocksOver(neurons, 0, tiles);
    } else {
      std::vector<std::size_t> counts;
      for (std::size_t first = 0; first < neurons; first += share)
        counts.push_back(std::min(share, neurons - first));
      blocks = blocksOf(counts, 0);
    }
    tilesOfGroup = blocks.back().tile + 1;
  }

  std::vector<Block> blocksOfGroup(std::size_t group, bool padding = true) const {
    std::vector<Block> own = blocks;
    for (Block &block : own) {
      block.tile += group * tilesOfGroup;
      block.lanes = padding ? block.lanes : block.neurons;
    }
    return own;
  }

  // [inputs][lanes] for each block, its inputs in equal shares over the groups.
  std::vector<Tensor> shared(poplar::Graph &graph, const poplar::Type &type, std::size_t inputs, bool padding,
                             const poplar::DebugContext &debug) const {
    std::vector<Tensor> parts;
    for (const Block &block : blocksOfGroup(0, padding)) {
      const Tensor part = graph.addVariable(type, {inputs, block.lanes}, debug);
      forShares(inputs, [&](std::size_t group, std::size_t begin, std::size_t end) {
        graph.setTileMapping(part.slice(begin, end, 0), static_cast<unsigned>(block.tile + group * tilesOfGroup));
      });
      parts.push_back(part);
    }
    return parts;
  }
  // body(group, begin, end) of the inputs.
  template <typename Body> void forShares(std::size_t inputs, const Body &body) const {
    const std::size_t share = (inputs + groups - 1) / groups;
    for (std::size_t begin = 0, group = 0; begin < inputs; begin += share, ++group)
      body(group, begin, std::min(inputs, begin + share));
  }
  // [neurons, inputs] of such parts.
  Tensor whole(const std::vector<Tensor> &parts) const {
    std::vector<Tensor> held;
    for (std::size_t i = 0; i < parts.size(); ++i)
      held.push_back(parts[i].slice(0, blocks[i].neurons, 1));
    return concat(held, 1).transpose();
  }
};

struct Rows {
  std::size_t begin, end;
};

struct BlockLayout {
  std::size_t steps, batch, slots, rows, inputs, neurons;
  RowSpread spread;
  Division division;
  Tensor ids, values, counts; // [rows][...]; ids and counts as integers, values in float

  BlockLayout(poplar::Graph &graph, const SparseLinearInputs &in, bool unitValues, Sequence &prog,
              const poplar::DebugInfo &info)
      : steps((check(in), in.spikes.ids.dim(0))), batch(in.spikes.ids.dim(1)), slots(in.spikes.ids.dim(2)),
        rows(steps * batch), inputs(in.weight.dim(1)), neurons(in.weight.dim(0)), spread(graph, rows),
        division(graph, neurons, inputs, rows, slots, in.weight.elementType()) {
    ids = idsOfFloats(graph, spread, in.spikes.ids.reshape({rows, slots}), inputs, prog, {info, "ids"});
    counts = idsOfFloats(graph, spread, in.spikes.counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
    values = in.spikes.values.reshape({rows, slots});
    if (!unitValues)
      values = inType(graph, spread, values, poplar::FLOAT, prog, {info, "valuesInFloat"});
    share_ = (rows + division.groups - 1) / division.groups;
    chunk_ = std::min(share_, std::max<std::size_t>(1, bytesAtOnce / (8 * slots + 12)));
  }

  Rows rowsOfGroup(std::size_t group) const {
    return {std::min(rows, group * share_), std::min(rows, (group + 1) * share_)};
  }
  // Rows that a tile gets at a time.
  std::size_t chunk() const { return chunk_; }
  // body(first) until all groups are through, at rows `first` of their own.
  template <typename Body> void forChunks(const Body &body) const {
    for (std::size_t first = 0; first < share_; first += chunk_)
      body(first);
  }
  // What a group has at such a time.
  Rows chunkOf(std::size_t group, std::size_t first) const {
    const Rows own = rowsOfGroup(group);
    return {std::min(own.end, own.begin + first), std::min(own.end, own.begin + first + chunk_)};
  }

private:
  static void check(const SparseLinearInputs &in) {
    checkSlots("sparse_linear", in.spikes);
    const auto refuse = [](const std::string &what) { throw std::invalid_argument("sparse_linear: " + what); };
    const poplar::Type type = in.weight.elementType();
    if (in.weight.rank() != 2 || in.weight.numElements() == 0 || (type != poplar::FLOAT && type != poplar::HALF))
      refuse("weight must be FLOAT or HALF [neurons, inputs], with elements, got " + type.toString() + " " +
             in.weight.shapeToString());
    if (in.bias.valid() && (in.bias.elementType() != poplar::FLOAT || in.bias.numElements() != in.weight.dim(0)))
      refuse("bias must be FLOAT, of as many elements as weight has rows, " + std::to_string(in.weight.dim(0)) +
             ", got " + in.bias.elementType().toString() + " " + in.bias.shapeToString());
  }

  std::size_t share_ = 0, chunk_ = 0;
};

Tensor rowsOf(const Tensor &of, Rows rows) { return of.slice(rows.begin, rows.end, 0).flatten(); }

// The weights of the blocks, on the tiles of each group.
std::vector<std::vector<Tensor>> weightsIn(poplar::Graph &graph, const Division &division, const Tensor &weight,
                                           Copies &copies, const poplar::DebugInfo &info) {
  std::vector<std::vector<Tensor>> parts;
  for (std::size_t group = 0; group < division.groups; ++group)
    parts.push_back(blocksIn(graph, division.blocksOfGroup(group), weight.transpose(), 0.0f, copies, {info, "weight"}));
  return parts;
}

} // namespace

Tensor createSparseLinearWeight(poplar::Graph &graph, std::size_t neurons, std::size_t inputs, std::size_t rows,
                                std::size_t slots, const poplar::Type &type, const poplar::DebugContext &debug) {
  const Division division(graph, neurons, inputs, rows, slots, type);
  // Without padding: a tensor of the optimiser's has none.
  return division.whole(division.shared(graph, type, inputs, false, debug));
}

Tensor sparseLinear(poplar::Graph &graph, const SparseLinearInputs &in, bool unitValues, Sequence &prog,
                    const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const BlockLayout layout(graph, in, unitValues, prog, info);
  const Division &division = layout.division;
  Copies copies;
  const auto weights = weightsIn(graph, division, in.weight, copies, info);
  const Tensor noBias = zeros(graph, {1}, {info, "noBias"});
  std::vector<std::vector<Tensor>> biases;
  std::vector<BlockArray> out;
  for (std::size_t group = 0; group < division.groups; ++group) {
    biases.push_back(parameterIn(graph, division.blocksOfGroup(group), in.bias.valid() ? in.bias : noBias, 0.0f, copies,
                                 {info, "bias"}));
    const Rows rows = layout.rowsOfGroup(group);
    out.emplace_back(graph, division.blocksOfGroup(group), poplar::FLOAT, rows.end - rows.begin,
                     poplar::DebugContext{info, "out"});
  }
  copies.run(prog, {info, "load"});
  const Tensor unread = nothing(graph, poplar::FLOAT);
  const std::string name = vertexName("SparseLinearForward", in.weight.elementType(), poplar::UNSIGNED_INT);
  layout.forChunks([&](std::size_t first) {
    const poplar::ComputeSet cs = graph.addComputeSet({info, "forward"});
    for (std::size_t group = 0; group < division.groups; ++group) {
      const Rows rows = layout.chunkOf(group, first);
      const std::size_t count = rows.end - rows.begin;
      if (count == 0)
        continue;
      const Tensor ids = rowsOf(layout.ids, rows).reinterpret(poplar::UNSIGNED_INT);
      const Tensor values = unitValues ? unread : rowsOf(layout.values, rows);
      const Tensor counts = rowsOf(layout.counts, rows);
      const std::vector<Block> blocks = division.blocksOfGroup(group);
      for (std::size_t i = 0; i < blocks.size(); ++i)
        VertexBuilder(graph, cs, name, blocks[i].tile)
            .connect("weight", weights[group][i].flatten())
            .connect("bias", biases[group][i])
            .connect("ids", ids)
            .connect("values", values)
            .connect("counts", counts)
            .connect("out", rowsOf(out[group][i], {first, first + count}))
            .count("rows", count)
            .count("slots", layout.slots)
            .count("valueSlots", layout.slots)
            .count("lanes", blocks[i].lanes)
            .count("neurons", blocks[i].neurons)
            .count("outStride", blocks[i].lanes)
            .set("unitValues", unitValues);
    }
    prog.add(Execute(cs));
  });
  const bool half = in.spikes.values.elementType() == poplar::HALF;
  const poplar::ComputeSet cast = graph.addComputeSet({info, "half"});
  std::vector<Tensor> wholes;
  for (std::size_t group = 0; group < division.groups; ++group) {
    const Rows rows = layout.rowsOfGroup(group);
    if (!half) {
      wholes.push_back(out[group].whole());
      continue;
    }
    const std::vector<Block> held = division.blocksOfGroup(group);
    const BlockArray halves(graph, held, poplar::HALF, rows.end - rows.begin, {info, "outInHalf"});
    for (std::size_t i = 0; i < held.size(); ++i)
      addCast(graph, cast, out[group][i], halves[i], held[i].tile);
    wholes.push_back(halves.whole());
  }
  if (half)
    prog.add(Execute(cast));
  return concat(wholes).reshape({layout.steps, layout.batch, layout.neurons});
}

SparseLinearGradients sparseLinearGrad(poplar::Graph &graph, const Tensor &grad, const SparseLinearInputs &in,
                                       bool unitValues, Sequence &prog, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const BlockLayout layout(graph, in, unitValues, prog, info);
  const Division &division = layout.division;
  if ((grad.elementType() != poplar::FLOAT && grad.elementType() != poplar::HALF) ||
      grad.numElements() != layout.rows * layout.neurons)
    throw std::invalid_argument("sparse_linear: the gradient must be FLOAT or HALF [steps, batch, neurons], got " +
                                grad.shapeToString());
  const Tensor order =
      ascendingRows(graph, layout.spread, layout.ids, layout.counts, prog, {info, "ascending"}).flatten();
  Copies copies;
  const auto weights = weightsIn(graph, division, in.weight, copies, info);
  std::vector<std::vector<Tensor>> grads;
  for (std::size_t group = 0; group < division.groups; ++group) {
    const Rows rows = layout.rowsOfGroup(group);
    const Tensor own = grad.reshape({layout.rows, layout.neurons}).slice(rows.begin, rows.end, 0);
    grads.push_back(blocksIn(graph, division.blocksOfGroup(group), own, 0.0f, copies, {info, "grad"}));
  }
  copies.run(prog, {info, "load"});
  const poplar::ComputeSet clear = graph.addComputeSet({info, "zero"}), cast = graph.addComputeSet({info, "float"});
  std::vector<BlockArray> gradWeights;
  for (std::size_t group = 0; group < division.groups; ++group) {
    const std::vector<Block> blocks = division.blocksOfGroup(group);
    gradWeights.emplace_back(graph, blocks, poplar::FLOAT, layout.inputs, poplar::DebugContext{info, "gradWeight"});
    zeroBlocks(graph, blocks, gradWeights[group].parts(), clear);
    for (std::size_t i = 0; grad.elementType() == poplar::HALF && i < blocks.size(); ++i) {
      const Tensor inFloat = graph.addVariable(poplar::FLOAT, grads[group][i].shape(), {info, "gradInFloat"});
      graph.setTileMapping(inFloat, static_cast<unsigned>(blocks[i].tile));
      addCast(graph, cast, grads[group][i], inFloat, blocks[i].tile);
      grads[group][i] = inFloat;
    }
  }
  prog.add(Execute(clear));
  if (grad.elementType() == poplar::HALF)
    prog.add(Execute(cast));
  const Tensor gradValues = graph.addVariable(poplar::FLOAT, {layout.rows, layout.slots}, {info, "gradValues"});
  const Tensor unread = nothing(graph, poplar::FLOAT);
  // What the blocks of a group find for the values of a chunk, one after the other in the same memory.
  const std::size_t count = division.blocks.size(), most = layout.chunk() * layout.slots;
  const Tensor partials = graph.addVariable(poplar::FLOAT, {division.groups, count, most}, {info, "partial"});
  for (std::size_t group = 0; group < division.groups; ++group)
    for (std::size_t i = 0; i < count; ++i)
      graph.setTileMapping(partials[group][i],
                           static_cast<unsigned>(division.blocks[i].tile + group * division.tilesOfGroup));
  const std::string valueGradient =
      vertexName("SparseLinearValueGradient", in.weight.elementType(), poplar::UNSIGNED_INT);
  layout.forChunks([&](std::size_t first) {
    const poplar::ComputeSet cs = graph.addComputeSet({info, "backward"}), sum = graph.addComputeSet({info, "sum"});
    for (std::size_t group = 0; group < division.groups; ++group) {
      const Rows rows = layout.chunkOf(group, first);
      const std::size_t held = rows.end - rows.begin, size = held * layout.slots;
      if (held == 0)
        continue;
      const std::vector<Block> blocks = division.blocksOfGroup(group);
      const Tensor ids = rowsOf(layout.ids, rows), counts = rowsOf(layout.counts, rows);
      const Tensor values = unitValues ? unread : rowsOf(layout.values, rows);
      for (std::size_t i = 0; i < count; ++i) {
        const Tensor gradOut = rowsOf(grads[group][i], {first, first + held});
        VertexBuilder(graph, cs, vertexName("SparseLinearWeightUpdate", poplar::FLOAT), blocks[i].tile)
            .connect("ids", ids)
            .connect("values", values)
            .connect("counts", counts)
            .connect("order", order.slice(rows.begin, rows.end))
            .connect("grad", gradOut)
            .connect("gradWeight", gradWeights[group][i].flatten())
            .set("scale", 1.0f)
            .count("rows", held)
            .count("slots", layout.slots)
            .count("inputs", layout.inputs)
            .count("lanes", blocks[i].lanes)
            .set("unitValues", unitValues)
            .set("ascending", false);
        VertexBuilder(graph, cs, valueGradient, blocks[i].tile)
            .connect("weight", weights[group][i].flatten())
            .connect("grad", gradOut)
            .connect("ids", ids.reinterpret(poplar::UNSIGNED_INT))
            .connect("counts", counts)
            .connect("gradValues", partials[group][i].slice(0, size))
            .count("rows", held)
            .count("slots", layout.slots)
            .count("lanes", blocks[i].lanes)
            .set("accumulate", false);
      }
      // The sum over the blocks, each tile of the group its share of the slots.
      addSumSlots(graph, sum, partials[group].slice(0, size, 1), counts, layout.slots,
                  gradValues.slice(rows.begin, rows.end, 0).flatten(), division.tilesOfGroup,
                  [&](std::size_t tile) { return group * division.tilesOfGroup + tile; });
    }
    prog.add(Execute(cs));
    prog.add(Execute(sum));
  });
  // The sum over the groups, each tile its share of the inputs.
  std::vector<Tensor> totals = gradWeights[0].parts();
  if (division.groups > 1) {
    totals = division.shared(graph, poplar::FLOAT, layout.inputs, true, {info, "gradWeight"});
    const poplar::ComputeSet cs = graph.addComputeSet({info, "groups"});
    for (std::size_t i = 0; i < count; ++i)
      division.forShares(layout.inputs, [&](std::size_t group, std::size_t begin, std::size_t end) {
        std::vector<Tensor> found;
        for (const BlockArray &own : gradWeights)
          found.push_back(own[i].slice(begin, end, 0).flatten());
        addSumRows(graph, cs, concat(found), found.size(), totals[i].slice(begin, end, 0).flatten(), 1.0f,
                   division.blocks[i].tile + group * division.tilesOfGroup);
      });
    prog.add(Execute(cs));
  }
  SparseLinearGradients out;
  if (in.weight.elementType() == poplar::HALF) {
    const std::vector<Tensor> halves =
        division.shared(graph, poplar::HALF, layout.inputs, true, {info, "gradWeightInHalf"});
    const poplar::ComputeSet cs = graph.addComputeSet({info, "gradWeightInHalf"});
    for (std::size_t i = 0; i < count; ++i)
      division.forShares(layout.inputs, [&](std::size_t group, std::size_t begin, std::size_t end) {
        addCast(graph, cs, totals[i].slice(begin, end, 0), halves[i].slice(begin, end, 0),
                division.blocks[i].tile + group * division.tilesOfGroup);
      });
    prog.add(Execute(cs));
    totals = halves;
  }
  out.weight = division.whole(totals);
  out.values =
      inType(graph, layout.spread, gradValues, in.spikes.values.elementType(), prog, {info, "gradValuesOfType"})
          .reshape(in.spikes.ids.shape());
  if (in.bias.valid()) {
    std::vector<BlockArray> sums;
    const poplar::ComputeSet cs = graph.addComputeSet({info, "bias"}), last = graph.addComputeSet({info, "biasGroups"});
    for (std::size_t group = 0; group < division.groups; ++group) {
      const std::vector<Block> blocks = division.blocksOfGroup(group);
      const Rows rows = layout.rowsOfGroup(group);
      sums.emplace_back(graph, blocks, poplar::FLOAT, 1, poplar::DebugContext{info, "gradBias"});
      for (std::size_t i = 0; i < count; ++i)
        addSumRows(graph, cs, grads[group][i].flatten(), rows.end - rows.begin, sums[group][i].flatten(), 1.0f,
                   blocks[i].tile);
    }
    prog.add(Execute(cs));
    const BlockArray total(graph, division.blocks, poplar::FLOAT, 1, {info, "gradBias"});
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<Tensor> found;
      for (const BlockArray &own : sums)
        found.push_back(own[i].flatten());
      addSumRows(graph, last, concat(found), found.size(), total[i].flatten(), 1.0f, division.blocks[i].tile);
    }
    prog.add(Execute(last));
    out.bias = total.whole().reshape(in.bias.shape());
  }
  return out;
}

} // namespace graph
} // namespace snnipu
