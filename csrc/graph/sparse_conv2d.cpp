#include "graph/sparse_conv2d.hpp"

#include "graph/shared_blocks.hpp"
#include "graph/spread.hpp"
#include "graph/vertex_name.hpp"

#include "neuron/sparse.hpp"

#include <algorithm>
#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

using poplar::Tensor;
using poplar::program::Execute;
using poplar::program::Sequence;

// A tile works on as many rows at a time as fit into this: their spikes, and their maps with the channels last.
constexpr std::size_t mapBytesAtOnce = 64 * 1024;
// Of the weights that tiles have in common, each holds at least so many inputs.
constexpr std::size_t leastMapInputs = 2;

struct MapRange {
  std::size_t begin, end;

  std::size_t size() const { return end - begin; }
};

// Of `all`, the shares of `size`.
std::vector<MapRange> sharesOf(std::size_t all, std::size_t size) {
  std::vector<MapRange> shares;
  for (std::size_t begin = 0; begin < all; begin += size)
    shares.push_back({begin, std::min(all, begin + size)});
  return shares;
}

void checkPlan(const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan) {
  const auto refuse = [](const std::string &what) { throw std::invalid_argument("sparse_conv2d: " + what); };
  checkMaps("sparse_conv2d", sizes.in, sizes.out, sizes.kernel);
  if (sizes.groups == 0 || sizes.in.channels % sizes.groups != 0 || sizes.out.channels % sizes.groups != 0)
    refuse("groups must divide the channels of input and output");
  if (plan.channels == 0 || plan.channels > blockLanes || plan.lines == 0 || plan.rows == 0)
    refuse("plan must have from 1 to 64 channels, and 1 or more lines and rows");
}

// Which tile does what.
struct MapDivision {
  std::vector<Block> blocks; // output channels; tile: without those of the parts before
  std::vector<MapRange> bands, shares;
  std::size_t tiles;

  MapDivision(const poplar::Graph &graph, const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan,
              std::size_t rows)
      : bands(sharesOf(sizes.out.height, plan.lines)), shares(sharesOf(rows, plan.rows)),
        tiles(graph.getTarget().getNumTiles()) {
    const std::size_t own = sizes.out.channels / sizes.groups;
    for (std::size_t group = 0; group < sizes.groups; ++group)
      for (const MapRange &channels : sharesOf(own, plan.channels))
        blocks.push_back({0, group * own + channels.begin, channels.size(), (channels.size() + 1) / 2 * 2});
  }

  std::size_t tile(std::size_t share, std::size_t band, std::size_t block) const {
    return ((share * bands.size() + band) * blocks.size() + block) % tiles;
  }
  std::vector<Block> blocksOn(std::size_t share, std::size_t band) const {
    std::vector<Block> own = blocks;
    for (std::size_t i = 0; i < own.size(); ++i)
      own[i].tile = tile(share, band, i);
    return own;
  }
  // body(share, band, blocks with their tiles) for all.
  template <typename Body> void forParts(const Body &body) const {
    for (std::size_t share = 0; share < shares.size(); ++share)
      for (std::size_t band = 0; band < bands.size(); ++band)
        body(share, band, blocksOn(share, band));
  }

  // The blocks of all parts: with what the tiles that have the same channels hold in common.
  SharedBlocks ofParts() const {
    std::vector<std::vector<Block>> parts;
    forParts([&](std::size_t, std::size_t, const std::vector<Block> &own) { parts.push_back(own); });
    return SharedBlocks(parts, leastMapInputs);
  }
};

struct ConvLayout {
  const SparseConv2dSizes &sizes;
  std::size_t steps, batch, slots, rows;
  RowSpread spread;
  MapDivision division;
  Tensor places, values, counts; // [rows][...]; values in float

  ConvLayout(poplar::Graph &graph, const SparseConv2dInputs &in, const SparseConv2dSizes &sizes_,
             const SparseConv2dPlan &plan, Sequence &prog, const poplar::DebugInfo &info)
      : sizes((check(in, sizes_, plan), sizes_)), steps(in.spikes.ids.dim(0)), batch(in.spikes.ids.dim(1)),
        slots(in.spikes.ids.dim(2)), rows(steps * batch), spread(graph, rows), division(graph, sizes, plan, rows) {
    places = placesOfFloats(graph, spread, in.spikes.ids.reshape({rows, slots}), sizes.in, prog,
                            {info, "spikes of all steps"});
    counts = idsOfFloats(graph, spread, in.spikes.counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
    values = inType(graph, spread, in.spikes.values.reshape({rows, slots}), poplar::FLOAT, prog,
                    {info, "values of all steps"});
    std::size_t lanes = 0;
    for (const Block &block : division.blocks)
      lanes = std::max(lanes, block.lanes);
    const std::size_t row = 8 * slots + 12 + 4 * placesOf(0) * lanes;
    chunk_ = std::min(division.shares[0].size(), std::max<std::size_t>(1, mapBytesAtOnce / row));
  }

  std::size_t placesOf(std::size_t band) const { return division.bands[band].size() * sizes.out.width; }

  // Rows that a tile works on at a time.
  std::size_t chunk() const { return chunk_; }
  // body(first) until all shares are through, at rows `first` of their own.
  template <typename Body> void forChunks(const Body &body) const {
    for (std::size_t first = 0; first < division.shares[0].size(); first += chunk_)
      body(first);
  }
  // What a share has at such a time.
  MapRange chunkOf(std::size_t share, std::size_t first) const {
    const MapRange own = division.shares[share];
    return {std::min(own.end, own.begin + first), std::min(own.end, own.begin + first + chunk_)};
  }

  // FLOAT [chunk][places][lanes] for each part: maps with the channels last.
  std::vector<std::vector<Tensor>> maps(poplar::Graph &graph, const poplar::DebugContext &debug) const {
    std::vector<std::vector<Tensor>> parts;
    division.forParts([&](std::size_t, std::size_t band, const std::vector<Block> &blocks) {
      parts.emplace_back();
      for (const Block &block : blocks)
        parts.back().push_back(
            variableOn(graph, block.tile, poplar::FLOAT, {chunk_, placesOf(band), block.lanes}, debug));
    });
    return parts;
  }
  std::size_t part(std::size_t share, std::size_t band) const { return share * division.bands.size() + band; }

  // What the vertices of the convolution have in common.
  void setSizes(VertexBuilder &vertex, const Block &block, std::size_t band, std::size_t held) const {
    const std::size_t group = block.first / (sizes.out.channels / sizes.groups);
    setKernel(vertex, sizes.kernel, sizes.in);
    vertex.count("dilationY", sizes.kernel.dilationY)
        .count("dilationX", sizes.kernel.dilationX)
        .count("rows", held)
        .count("slots", slots)
        .count("lanes", block.lanes)
        .count("firstChannel", group * sizes.groupInputs())
        .count("channels", sizes.groupInputs())
        .count("firstLine", division.bands[band].begin)
        .count("lines", division.bands[band].size())
        .count("width", sizes.out.width);
  }

private:
  static void check(const SparseConv2dInputs &in, const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan) {
    checkSlots("sparse_conv2d", in.spikes);
    checkPlan(sizes, plan);
    const auto refuse = [](const std::string &what) { throw std::invalid_argument("sparse_conv2d: " + what); };
    const poplar::Type type = in.weight.elementType();
    const std::vector<std::size_t> shape = {sizes.out.channels, sizes.groupInputs(), sizes.kernel.height,
                                            sizes.kernel.width};
    if (in.weight.shape() != shape || (type != poplar::FLOAT && type != poplar::HALF))
      refuse("weight must be FLOAT or HALF [out, in / groups, height, width], as the geometry says, got " +
             type.toString() + " " + in.weight.shapeToString());
    if (in.bias.valid() && (in.bias.elementType() != poplar::FLOAT || in.bias.numElements() != sizes.out.channels))
      refuse("bias must be FLOAT, of as many elements as there are output channels, " +
             std::to_string(sizes.out.channels) + ", got " + in.bias.elementType().toString() + " " +
             in.bias.shapeToString());
  }

  std::size_t chunk_ = 1;
};

Tensor mapRowsOf(const Tensor &of, MapRange rows) { return of.slice(rows.begin, rows.end, 0).flatten(); }

// The weights of the blocks, on the tiles of each part.
std::vector<std::vector<Tensor>> kernelsIn(poplar::Graph &graph, const ConvLayout &layout, const Tensor &weight,
                                           Copies &copies, const poplar::DebugInfo &info) {
  const Tensor byInput = weight.reshape({layout.sizes.out.channels, layout.sizes.inputs()}).transpose();
  std::vector<std::vector<Tensor>> parts;
  layout.division.forParts([&](std::size_t, std::size_t, const std::vector<Block> &blocks) {
    parts.push_back(blocksIn(graph, blocks, byInput, 0.0f, copies, {info, "kernels"}));
  });
  return parts;
}

} // namespace

Tensor createSparseConv2dWeight(poplar::Graph &graph, const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan,
                                std::size_t rows, const poplar::Type &type, const poplar::DebugContext &debug) {
  checkPlan(sizes, plan);
  return MapDivision(graph, sizes, plan, rows)
      .ofParts()
      .matrix(graph, type, sizes.inputs(), debug)
      .reshape({sizes.out.channels, sizes.groupInputs(), sizes.kernel.height, sizes.kernel.width});
}

Tensor sparseConv2d(poplar::Graph &graph, const SparseConv2dInputs &in, const SparseConv2dSizes &sizes,
                    const SparseConv2dPlan &plan, Sequence &prog, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const ConvLayout layout(graph, in, sizes, plan, prog, info);
  const MapDivision &division = layout.division;
  const poplar::Type type = in.spikes.values.elementType();
  Copies copies;
  const auto weights = kernelsIn(graph, layout, in.weight, copies, info);
  const Tensor bias = in.bias.valid() ? in.bias : zeros(graph, {1}, {info, "noBias"});
  std::vector<std::vector<Tensor>> biases, out;
  division.forParts([&](std::size_t share, std::size_t band, const std::vector<Block> &blocks) {
    biases.push_back(parameterIn(graph, blocks, bias, 0.0f, copies, {info, "bias"}));
    out.emplace_back();
    for (const Block &block : blocks) {
      out.back().push_back(graph.addVariable(type,
                                             {division.shares[share].size(), block.neurons, layout.placesOf(band)},
                                             {info, "currents of all steps"}));
      graph.setTileMapping(out.back().back(), static_cast<unsigned>(block.tile));
    }
  });
  copies.run(prog, {info, "load"});
  const auto maps = layout.maps(graph, {info, "maps"});
  const std::size_t workers = graph.getTarget().getNumWorkerContexts();
  layout.forChunks([&](std::size_t first) {
    const poplar::ComputeSet cs = graph.addComputeSet({info, "forward"});
    const poplar::ComputeSet order = graph.addComputeSet({info, "channelsFirst"});
    division.forParts([&](std::size_t share, std::size_t band, const std::vector<Block> &blocks) {
      const MapRange rows = layout.chunkOf(share, first);
      const std::size_t held = rows.size(), part = layout.part(share, band);
      if (held == 0)
        return;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Tensor map = maps[part][i].slice(0, held, 0).flatten();
        const std::size_t items = held * ((blocks[i].lanes + 7) / 8);
        VertexBuilder vertex(graph, cs, vertexName("SparseConvForward", in.weight.elementType()), blocks[i].tile);
        layout.setSizes(vertex, blocks[i], band, held);
        vertex.connect("weight", weights[part][i].flatten())
            .connect("bias", biases[part][i])
            .connect("places", mapRowsOf(layout.places, rows))
            .connect("values", mapRowsOf(layout.values, rows))
            .connect("counts", mapRowsOf(layout.counts, rows))
            .connect("out", map)
            .count("shares", std::min(division.bands[band].size(), (workers + items - 1) / items));
        VertexBuilder(graph, order, vertexName("ChannelsFirst", type), blocks[i].tile)
            .connect("from", map)
            .connect("to", mapRowsOf(out[part][i], {first, first + held}))
            .count("rows", held)
            .count("places", layout.placesOf(band))
            .count("lanes", blocks[i].lanes)
            .count("neurons", blocks[i].neurons);
      }
    });
    prog.add(Execute(cs));
    prog.add(Execute(order));
  });
  std::vector<Tensor> wholes;
  for (std::size_t share = 0; share < division.shares.size(); ++share) {
    std::vector<Tensor> channels;
    for (std::size_t i = 0; i < division.blocks.size(); ++i) {
      std::vector<Tensor> lines;
      for (std::size_t band = 0; band < division.bands.size(); ++band)
        lines.push_back(out[layout.part(share, band)][i]);
      channels.push_back(concat(lines, 2));
    }
    wholes.push_back(concat(channels, 1));
  }
  return concat(wholes).reshape({layout.steps, layout.batch, sizes.out.neurons()});
}

SparseConv2dGradients sparseConv2dGrad(poplar::Graph &graph, const Tensor &grad, const SparseConv2dInputs &in,
                                       const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan, bool needValues,
                                       Sequence &prog, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  const ConvLayout layout(graph, in, sizes, plan, prog, info);
  const MapDivision &division = layout.division;
  if ((grad.elementType() != poplar::FLOAT && grad.elementType() != poplar::HALF) ||
      grad.numElements() != layout.rows * sizes.out.neurons())
    throw std::invalid_argument("sparse_conv2d: the gradient must be FLOAT or HALF [steps, batch, neurons], got " +
                                grad.shapeToString());
  const Tensor byChannel = grad.reshape({layout.rows, sizes.out.channels, sizes.out.places()});
  Copies copies;
  std::vector<std::vector<Tensor>> weights;
  if (needValues)
    weights = kernelsIn(graph, layout, in.weight, copies, info);
  copies.run(prog, {info, "load"});
  const poplar::ComputeSet clear = graph.addComputeSet({info, "zero"});
  std::vector<std::vector<Tensor>> gradWeights;
  division.forParts([&](std::size_t, std::size_t, const std::vector<Block> &blocks) {
    gradWeights.push_back(
        BlockArray(graph, blocks, poplar::FLOAT, sizes.inputs(), {info, "gradients of kernels"}).parts());
    zeroBlocks(graph, blocks, gradWeights.back(), clear);
  });
  prog.add(Execute(clear));
  const auto maps = layout.maps(graph, {info, "maps"});
  const std::size_t blockCount = division.blocks.size(), bandCount = division.bands.size();
  // What the parts of a share find for the values of a chunk.
  const std::size_t most = layout.chunk() * layout.slots;
  Tensor partials, gradValues;
  if (needValues) {
    gradValues = graph.addVariable(poplar::FLOAT, {layout.rows, layout.slots}, {info, "gradValues"});
    partials =
        graph.addVariable(poplar::FLOAT, {division.shares.size(), bandCount * blockCount, most}, {info, "partial"});
    for (std::size_t share = 0; share < division.shares.size(); ++share)
      for (std::size_t i = 0; i < bandCount * blockCount; ++i)
        graph.setTileMapping(partials[share][i],
                             static_cast<unsigned>(division.tile(share, i / blockCount, i % blockCount)));
  }
  // Sums of a chunk's gradients over rows and places, [lanes] each.
  std::vector<std::vector<Tensor>> biasSums(blockCount);
  layout.forChunks([&](std::size_t first) {
    const poplar::ComputeSet order = graph.addComputeSet({info, "channelsLast"});
    const poplar::ComputeSet cs = graph.addComputeSet({info, "backward"}), sum = graph.addComputeSet({info, "sum"});
    division.forParts([&](std::size_t share, std::size_t band, const std::vector<Block> &blocks) {
      const MapRange rows = layout.chunkOf(share, first), lines = division.bands[band];
      const std::size_t held = rows.size(), part = layout.part(share, band), places = layout.placesOf(band);
      if (held == 0)
        return;
      const Tensor from = mapRowsOf(layout.places, rows), counts = mapRowsOf(layout.counts, rows);
      for (std::size_t i = 0; i < blockCount; ++i) {
        const Block &block = blocks[i];
        const Tensor map = maps[part][i].slice(0, held, 0).flatten();
        VertexBuilder(graph, order, vertexName("ChannelsLast", grad.elementType()), block.tile)
            .connect("from", byChannel.slice(rows.begin, rows.end, 0)
                                 .slice(block.first, block.first + block.neurons, 1)
                                 .slice(lines.begin * sizes.out.width, lines.end * sizes.out.width, 2)
                                 .flatten())
            .connect("to", map)
            .count("rows", held)
            .count("places", places)
            .count("lanes", block.lanes)
            .count("neurons", block.neurons);
        VertexBuilder update(graph, cs, vertexName("SparseConvWeightUpdate", poplar::FLOAT), block.tile);
        layout.setSizes(update, block, band, held);
        update.connect("places", from)
            .connect("values", mapRowsOf(layout.values, rows))
            .connect("counts", counts)
            .connect("grad", map)
            .connect("gradWeight", gradWeights[part][i].flatten());
        if (needValues) {
          VertexBuilder back(graph, cs, vertexName("SparseConvValueGradient", in.weight.elementType()), block.tile);
          layout.setSizes(back, block, band, held);
          back.connect("weight", weights[part][i].flatten())
              .connect("places", from)
              .connect("counts", counts)
              .connect("grad", map)
              .connect("gradValues", partials[share][band * blockCount + i].slice(0, held * layout.slots));
        }
        if (in.bias.valid()) {
          const Tensor total = variableOn(graph, block.tile, poplar::FLOAT, {block.lanes}, {info, "gradBias"});
          addSumRows(graph, cs, map, held * places, total, 1.0f, block.tile);
          biasSums[i].push_back(total);
        }
      }
      // The sum over the parts, each tile of the share a part of the slots.
      if (needValues && band == 0)
        addSumSlots(graph, sum, partials[share].slice(0, held * layout.slots, 1), counts, layout.slots,
                    mapRowsOf(gradValues, rows), partials.dim(1),
                    [&](std::size_t piece) { return division.tile(share, piece / blockCount, piece % blockCount); });
    });
    prog.add(Execute(order));
    prog.add(Execute(cs));
    if (needValues)
      prog.add(Execute(sum));
  });
  const poplar::Type type = in.weight.elementType();
  const SharedBlocks parts = division.ofParts();
  const poplar::ComputeSet sumParts = graph.addComputeSet({info, "parts"}),
                           half = graph.addComputeSet({info, "gradients of kernels in half"});
  SparseConv2dGradients out;
  out.weight = parts.sumOfGroups(graph, gradWeights, type, sumParts, half, {info, "gradients of kernels"})
                   .reshape(in.weight.shape());
  if (parts.size() > 1)
    prog.add(Execute(sumParts));
  if (type == poplar::HALF)
    prog.add(Execute(half));
  if (needValues)
    out.values =
        inType(graph, layout.spread, gradValues, in.spikes.values.elementType(), prog, {info, "gradValuesOfType"})
            .reshape(in.spikes.ids.shape());
  if (in.bias.valid()) {
    const poplar::ComputeSet last = graph.addComputeSet({info, "bias"});
    const BlockArray total(graph, division.blocksOn(0, 0), poplar::FLOAT, 1, {info, "gradBias"});
    for (std::size_t i = 0; i < blockCount; ++i)
      addSumRows(graph, last, concat(biasSums[i]), biasSums[i].size(), total[i].flatten(), 1.0f,
                 division.tile(0, 0, i));
    prog.add(Execute(last));
    out.bias = total.whole().reshape(in.bias.shape());
  }
  return out;
}

} // namespace graph
} // namespace snnipu
