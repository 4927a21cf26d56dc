#include "graph/sparse_conv2d.hpp"

#include "graph/shared_blocks.hpp"
#include "graph/tile_mapping.hpp"
#include "graph/vertex_name.hpp"

#include "neuron/sparse.hpp"

#include <algorithm>

namespace snnipu {
namespace graph {
namespace {

constexpr const char *convolution = "sparse_conv2d";
// Memory of a tile, in bytes, for the rows that it handles at a time: their spikes, and maps with channels last.
constexpr size_t mapBytesAtOnce = 64 * 1024;
// The fewest inputs of a share of the weights that several tiles share.
constexpr size_t leastMapInputs = 2;

struct MapRange {
  size_t begin, end;

  size_t size() const { return end - begin; }
};

// Split [0, total) into shares of `size`.
std::vector<MapRange> sharesOf(size_t total, size_t size) {
  std::vector<MapRange> shares;
  for (size_t begin = 0; begin < total; begin += size)
    shares.push_back({begin, std::min(total, begin + size)});
  return shares;
}

void checkPlan(const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan) {
  checkMaps(convolution, sizes.in, sizes.out, sizes.kernel);
  if (sizes.groups == 0 || sizes.in.channels % sizes.groups != 0 || sizes.out.channels % sizes.groups != 0)
    refuse(convolution, "groups must divide the channels of input and output");
  if (plan.channels == 0 || plan.channels > blockLanes || plan.lines == 0 || plan.rows == 0)
    refuse(convolution, "plan must have from 1 to 64 channels, and 1 or more lines and rows");
}

// The assignment of parts to tiles.
struct MapDivision {
  std::vector<Block> blocks; // output channels; `tile` is not set here
  std::vector<MapRange> bands, shares;
  size_t tiles;

  MapDivision(const Graph &graph, const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan, size_t rows)
      : bands(sharesOf(sizes.out.height, plan.lines)), shares(sharesOf(rows, plan.rows)),
        tiles(graph.getTarget().getNumTiles()) {
    const size_t groupChannels = sizes.out.channels / sizes.groups;
    for (size_t group = 0; group < sizes.groups; ++group)
      for (const MapRange &channels : sharesOf(groupChannels, plan.channels))
        blocks.push_back({0, group * groupChannels + channels.begin, channels.size(), (channels.size() + 1) / 2 * 2});
  }

  size_t tile(size_t share, size_t band, size_t block) const {
    return ((share * bands.size() + band) * blocks.size() + block) % tiles;
  }
  std::vector<Block> blocksOn(size_t share, size_t band) const {
    std::vector<Block> result = blocks;
    for (size_t i = 0; i < result.size(); ++i)
      result[i].tile = tile(share, band, i);
    return result;
  }
  // Call body(share, band, blocks with their tiles) for all parts.
  template <typename Body> void forParts(const Body &body) const {
    for (size_t share = 0; share < shares.size(); ++share)
      for (size_t band = 0; band < bands.size(); ++band)
        body(share, band, blocksOn(share, band));
  }

  // Return the blocks of all parts, with the weights that tiles with the same channels share.
  SharedBlocks blocksOfParts() const {
    std::vector<std::vector<Block>> parts;
    forParts([&](size_t, size_t, const std::vector<Block> &partBlocks) { parts.push_back(partBlocks); });
    return SharedBlocks(parts, leastMapInputs);
  }
};

struct ConvLayout {
  const SparseConv2dSizes &sizes;
  size_t steps, batch, slots, rows;
  RowMapping mapping;
  MapDivision division;
  Tensor places, values, counts; // [rows][...]; values in float

  ConvLayout(Graph &graph, const SparseConv2dInputs &in, const SparseConv2dSizes &sizes_, const SparseConv2dPlan &plan,
             Sequence &prog, const DebugInfo &info)
      : sizes((check(in, sizes_, plan), sizes_)), steps(in.spikes.ids.dim(0)), batch(in.spikes.ids.dim(1)),
        slots(in.spikes.ids.dim(2)), rows(steps * batch), mapping(graph, rows), division(graph, sizes, plan, rows) {
    places = placesOfFloats(graph, mapping, in.spikes.ids.reshape({rows, slots}), sizes.in, prog,
                            {info, "spikes of all steps"});
    counts = idsOfFloats(graph, mapping, in.spikes.counts.reshape({rows, 2}), slots + 1, prog, {info, "counts"});
    values =
        castRows(graph, mapping, in.spikes.values.reshape({rows, slots}), FLOAT, prog, {info, "values of all steps"});
    size_t lanes = 0;
    for (const Block &block : division.blocks)
      lanes = std::max(lanes, block.lanes);
    const size_t row = 8 * slots + 12 + 4 * placesOf(0) * lanes;
    chunk_ = std::min(division.shares[0].size(), std::max<size_t>(1, mapBytesAtOnce / row));
  }

  size_t placesOf(size_t band) const { return division.bands[band].size() * sizes.out.width; }

  // Rows that a tile handles at a time.
  size_t chunk() const { return chunk_; }
  // Call body(first) for the first row, in its share, of each chunk.
  template <typename Body> void forChunks(const Body &body) const {
    for (size_t first = 0; first < division.shares[0].size(); first += chunk_)
      body(first);
  }
  // Return a share's rows in the chunk that starts at `first`.
  MapRange chunkOf(size_t share, size_t first) const {
    const MapRange rowsOfShare = division.shares[share];
    return {std::min(rowsOfShare.end, rowsOfShare.begin + first),
            std::min(rowsOfShare.end, rowsOfShare.begin + first + chunk_)};
  }

  // Return FLOAT [chunk][places][lanes] for each part: maps with channels last.
  std::vector<std::vector<Tensor>> maps(Graph &graph, const DebugContext &debug) const {
    std::vector<std::vector<Tensor>> parts;
    division.forParts([&](size_t, size_t band, const std::vector<Block> &blocks) {
      parts.emplace_back();
      for (const Block &block : blocks)
        parts.back().push_back(variableOn(graph, block.tile, FLOAT, {chunk_, placesOf(band), block.lanes}, debug));
    });
    return parts;
  }
  size_t part(size_t share, size_t band) const { return share * division.bands.size() + band; }

  // Set the fields that the convolution's vertices have in common.
  void setSizes(VertexBuilder &vertex, const Block &block, size_t band, size_t held) const {
    const size_t group = block.first / (sizes.out.channels / sizes.groups);
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
    checkSlots(convolution, in.spikes);
    checkPlan(sizes, plan);
    const std::vector<size_t> shape = {sizes.out.channels, sizes.groupInputs(), sizes.kernel.height,
                                       sizes.kernel.width};
    if (in.weight.shape() != shape)
      refuse(convolution, "weight must be [out, in / groups, height, width] with the sizes of geometry, got " +
                              in.weight.shapeToString());
    if (in.bias.valid() && in.bias.numElements() != sizes.out.channels)
      refuse(convolution, "bias must be of as many elements as there are output channels, " +
                              std::to_string(sizes.out.channels) + ", got " + in.bias.shapeToString());
  }

  size_t chunk_ = 1;
};

Tensor mapRowsOf(const Tensor &of, MapRange rows) { return of.slice(rows.begin, rows.end, 0).flatten(); }

// Return the weights of the blocks, on the tiles of each part.
std::vector<std::vector<Tensor>> distributeKernels(Graph &graph, const ConvLayout &layout, const Tensor &weight,
                                                   Copies &copies, const DebugInfo &info) {
  const Tensor byInput = weight.reshape({layout.sizes.out.channels, layout.sizes.inputs()}).transpose();
  std::vector<std::vector<Tensor>> parts;
  layout.division.forParts([&](size_t, size_t, const std::vector<Block> &blocks) {
    parts.push_back(distribute(graph, blocks, byInput, 0.0f, copies, {info, "kernels"}));
  });
  return parts;
}

} // namespace

Tensor createSparseConv2dWeight(Graph &graph, const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan, size_t rows,
                                const Type &type, const DebugContext &debug) {
  checkPlan(sizes, plan);
  return MapDivision(graph, sizes, plan, rows)
      .blocksOfParts()
      .matrix(graph, type, sizes.inputs(), debug)
      .reshape({sizes.out.channels, sizes.groupInputs(), sizes.kernel.height, sizes.kernel.width});
}

Tensor sparseConv2d(Graph &graph, const SparseConv2dInputs &in, const SparseConv2dSizes &sizes,
                    const SparseConv2dPlan &plan, Sequence &prog, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const ConvLayout layout(graph, in, sizes, plan, prog, info);
  const MapDivision &division = layout.division;
  const Type type = in.spikes.values.elementType();
  Copies copies;
  const auto weights = distributeKernels(graph, layout, in.weight, copies, info);
  const Tensor bias = in.bias.valid() ? in.bias : zeros(graph, {1}, {info, "noBias"});
  std::vector<std::vector<Tensor>> biases, out;
  division.forParts([&](size_t share, size_t band, const std::vector<Block> &blocks) {
    biases.push_back(distributeParameter(graph, blocks, bias, 0.0f, copies, {info, "bias"}));
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
  const size_t workers = graph.getTarget().getNumWorkerContexts();
  layout.forChunks([&](size_t first) {
    const ComputeSet cs = graph.addComputeSet({info, "forward"});
    const ComputeSet order = graph.addComputeSet({info, "channelsFirst"});
    division.forParts([&](size_t share, size_t band, const std::vector<Block> &blocks) {
      const MapRange rows = layout.chunkOf(share, first);
      const size_t held = rows.size(), part = layout.part(share, band);
      if (held == 0)
        return;
      for (size_t i = 0; i < blocks.size(); ++i) {
        const Tensor map = maps[part][i].slice(0, held, 0).flatten();
        const size_t items = held * ((blocks[i].lanes + 7) / 8);
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
  for (size_t share = 0; share < division.shares.size(); ++share) {
    std::vector<Tensor> channels;
    for (size_t i = 0; i < division.blocks.size(); ++i) {
      std::vector<Tensor> lines;
      for (size_t band = 0; band < division.bands.size(); ++band)
        lines.push_back(out[layout.part(share, band)][i]);
      channels.push_back(concat(lines, 2));
    }
    wholes.push_back(concat(channels, 1));
  }
  return concat(wholes).reshape({layout.steps, layout.batch, sizes.out.neurons()});
}

SparseConv2dGradients sparseConv2dGrad(Graph &graph, const Tensor &grad, const SparseConv2dInputs &in,
                                       const SparseConv2dSizes &sizes, const SparseConv2dPlan &plan, bool needValues,
                                       Sequence &prog, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  const ConvLayout layout(graph, in, sizes, plan, prog, info);
  const MapDivision &division = layout.division;
  if (grad.numElements() != layout.rows * sizes.out.neurons())
    refuse(convolution, "the gradient must be [steps, batch, neurons], got " + grad.shapeToString());
  const Tensor byChannel = grad.reshape({layout.rows, sizes.out.channels, sizes.out.places()});
  Copies copies;
  std::vector<std::vector<Tensor>> weights;
  if (needValues)
    weights = distributeKernels(graph, layout, in.weight, copies, info);
  copies.run(prog, {info, "load"});
  const ComputeSet clear = graph.addComputeSet({info, "zero"});
  std::vector<std::vector<Tensor>> gradWeights;
  division.forParts([&](size_t, size_t, const std::vector<Block> &blocks) {
    gradWeights.push_back(BlockArray(graph, blocks, FLOAT, sizes.inputs(), {info, "gradients of kernels"}).parts());
    zeroBlocks(graph, blocks, gradWeights.back(), clear);
  });
  prog.add(Execute(clear));
  const auto maps = layout.maps(graph, {info, "maps"});
  const size_t blockCount = division.blocks.size(), bandCount = division.bands.size();
  // Partial gradients of a chunk's values, one for each part of a share.
  const size_t most = layout.chunk() * layout.slots;
  Tensor partials, gradValues;
  if (needValues) {
    gradValues = graph.addVariable(FLOAT, {layout.rows, layout.slots}, {info, "gradValues"});
    partials = graph.addVariable(FLOAT, {division.shares.size(), bandCount * blockCount, most}, {info, "partial"});
    for (size_t share = 0; share < division.shares.size(); ++share)
      for (size_t i = 0; i < bandCount * blockCount; ++i)
        graph.setTileMapping(partials[share][i],
                             static_cast<unsigned>(division.tile(share, i / blockCount, i % blockCount)));
  }
  // A chunk's gradients summed over rows and places, [lanes] each.
  std::vector<std::vector<Tensor>> biasSums(blockCount);
  layout.forChunks([&](size_t first) {
    const ComputeSet order = graph.addComputeSet({info, "channelsLast"});
    const ComputeSet cs = graph.addComputeSet({info, "backward"}), sum = graph.addComputeSet({info, "sum"});
    division.forParts([&](size_t share, size_t band, const std::vector<Block> &blocks) {
      const MapRange rows = layout.chunkOf(share, first), lines = division.bands[band];
      const size_t held = rows.size(), part = layout.part(share, band), places = layout.placesOf(band);
      if (held == 0)
        return;
      const Tensor from = mapRowsOf(layout.places, rows), counts = mapRowsOf(layout.counts, rows);
      for (size_t i = 0; i < blockCount; ++i) {
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
        VertexBuilder update(graph, cs, vertexName("SparseConvWeightUpdate", FLOAT), block.tile);
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
          const Tensor total = variableOn(graph, block.tile, FLOAT, {block.lanes}, {info, "gradBias"});
          addSumRows(graph, cs, map, held * places, total, 1.0f, block.tile);
          biasSums[i].push_back(total);
        }
      }
      // Sum over the parts. Each tile of the share sums a part of the slots.
      if (needValues && band == 0)
        addSumSlots(graph, sum, partials[share].slice(0, held * layout.slots, 1), counts, layout.slots,
                    mapRowsOf(gradValues, rows), partials.dim(1),
                    [&](size_t piece) { return division.tile(share, piece / blockCount, piece % blockCount); });
    });
    prog.add(Execute(order));
    prog.add(Execute(cs));
    if (needValues)
      prog.add(Execute(sum));
  });
  const Type type = in.weight.elementType();
  const SharedBlocks parts = division.blocksOfParts();
  const ComputeSet sumParts = graph.addComputeSet({info, "parts"}),
                   half = graph.addComputeSet({info, "gradients of kernels in half"});
  SparseConv2dGradients out;
  out.weight = parts.sumOfGroups(graph, gradWeights, type, sumParts, half, {info, "gradients of kernels"})
                   .reshape(in.weight.shape());
  if (parts.size() > 1)
    prog.add(Execute(sumParts));
  if (type == HALF)
    prog.add(Execute(half));
  if (needValues)
    out.values =
        castRows(graph, layout.mapping, gradValues, in.spikes.values.elementType(), prog, {info, "gradValuesOfType"})
            .reshape(in.spikes.ids.shape());
  if (in.bias.valid()) {
    const ComputeSet last = graph.addComputeSet({info, "bias"});
    const BlockArray total(graph, division.blocksOn(0, 0), FLOAT, 1, {info, "gradBias"});
    for (size_t i = 0; i < blockCount; ++i)
      addSumRows(graph, last, concat(biasSums[i]), biasSums[i].size(), total[i].flatten(), 1.0f,
                 division.tile(0, 0, i));
    prog.add(Execute(last));
    out.bias = total.whole().reshape(in.bias.shape());
  }
  return out;
}

} // namespace graph
} // namespace snnipu
