#include "graph/sparse_network.hpp"

#include "graph/shared_blocks.hpp"
#include "graph/spread.hpp"
#include "graph/vertex_builder.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

namespace snnipu {
namespace graph {
namespace {

using poplar::ComputeSet;
using poplar::Tensor;
using poplar::program::Execute;
using poplar::program::Sequence;

// Padding never reaches its threshold.
constexpr float never = std::numeric_limits<float>::max();
// Tiles whose numbers are summed up at once.
constexpr std::size_t fewPartials = 16;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument("sparse_network: " + what); }

// Samples of the batch over tiles.
class Samples {
public:
  struct Piece {
    std::size_t tile, begin, end;
  };

  Samples() = default;
  Samples(const std::vector<std::size_t> &rows, std::size_t firstTile) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      pieces_.push_back({firstTile + i, batch_, batch_ + rows[i]});
      batch_ += rows[i];
    }
  }

  std::size_t batch() const { return batch_; }
  const std::vector<Piece> &pieces() const { return pieces_; }

  // [steps][batch * width]; what a tile has of it lies together, step after step.
  Tensor variable(poplar::Graph &graph, const poplar::Type &type, std::size_t steps, std::size_t width,
                  const poplar::DebugContext &debug) const {
    const Tensor all = graph.addVariable(type, {steps * batch_ * width}, debug);
    std::vector<Tensor> parts;
    for (const Piece &piece : pieces_) {
      const Tensor part = all.slice(steps * piece.begin * width, steps * piece.end * width);
      graph.setTileMapping(part, static_cast<unsigned>(piece.tile));
      parts.push_back(part.reshape({steps, (piece.end - piece.begin) * width}));
    }
    return parts.size() == 1 ? parts[0] : concat(parts, 1);
  }
  Tensor part(const Tensor &of, const Piece &piece, std::size_t width) const {
    return of.slice(piece.begin * width, piece.end * width, 1).flatten();
  }

private:
  std::vector<Piece> pieces_;
  std::size_t batch_ = 0;
};

std::vector<std::size_t> shares(std::size_t total, std::size_t parts) {
  std::vector<std::size_t> counts;
  const std::size_t share = (total + parts - 1) / parts;
  for (std::size_t begin = 0; begin < total; begin += share)
    counts.push_back(std::min(share, total - begin));
  return counts;
}

// The step that it is, on every tile that asks.
class StepCounters {
public:
  explicit StepCounters(poplar::Graph &graph, const poplar::DebugInfo &info) : graph_(graph), info_(info) {}

  Tensor at(std::size_t tile) {
    Tensor &counter = counters_[tile];
    if (!counter.valid())
      counter = variableOn(graph_, tile, poplar::UNSIGNED_INT, {1}, {info_, "step"});
    return counter;
  }
  void advance(ComputeSet cs, unsigned by) {
    for (const auto &counter : counters_)
      addAdvance(cs, counter.second, by, 0, counter.first);
  }
  void addAdvance(ComputeSet cs, const Tensor &value, unsigned by, std::size_t modulo, std::size_t tile) {
    VertexBuilder(graph_, cs, "snnipu::Advance", tile)
        .connect("value", value)
        .set("by", modulo ? static_cast<unsigned>(by % modulo) : by)
        .count("modulo", modulo);
  }
  // At the beginning of a program.
  void set(std::size_t value, Sequence &prog) {
    std::vector<Tensor> all;
    for (const auto &counter : counters_)
      all.push_back(counter.second);
    const Tensor constant =
        graph_.addConstant(poplar::UNSIGNED_INT, {1}, static_cast<unsigned>(value), {info_, "firstStep"});
    graph_.setTileMapping(constant, 0);
    prog.add(poplar::program::Copy(constant.broadcast(static_cast<unsigned>(all.size()), 0), concat(all)));
  }

private:
  poplar::Graph &graph_;
  const poplar::DebugInfo &info_;
  std::map<std::size_t, Tensor> counters_;
};

// Slots on the tiles of some samples: the whole sequence, and what a step has of it.
struct SlotSequence {
  Samples samples;
  std::size_t slots = 0;
  Tensor ids, counts, values; // [steps][batch * ...]; INT, INT, FLOAT. values may be invalid
  Tensor order;               // INT [steps][batch]: which rows ascend; invalid where all do

  // What `step - back` has, in variables of its own.
  SlotSequence load(poplar::Graph &graph, ComputeSet cs, StepCounters &step, unsigned back,
                    const poplar::DebugContext &debug) const {
    SlotSequence now{samples, slots, {}, {}, {}, {}};
    now.ids = loadOne(graph, cs, step, ids, slots, back, debug);
    now.counts = loadOne(graph, cs, step, counts, 2, back, debug);
    if (values.valid())
      now.values = loadOne(graph, cs, step, values, slots, back, debug);
    if (order.valid())
      now.order = loadOne(graph, cs, step, order, 1, back, debug);
    return now;
  }

private:
  Tensor loadOne(poplar::Graph &graph, ComputeSet cs, StepCounters &step, const Tensor &from, std::size_t width,
                 unsigned back, const poplar::DebugContext &debug) const {
    const Tensor to = samples.variable(graph, from.elementType(), 1, width, debug);
    for (const Samples::Piece &piece : samples.pieces())
      VertexBuilder(graph, cs, vertexName("LoadStep", from.elementType()), piece.tile)
          .connect("from", samples.part(from, piece, width))
          .connect("step", step.at(piece.tile))
          .connect("to", samples.part(to, piece, width))
          .set("back", back)
          .count("size", (piece.end - piece.begin) * width);
    return to;
  }
};

void storeStep(poplar::Graph &graph, ComputeSet cs, StepCounters &step, const Tensor &from, const Tensor &to,
               unsigned back, std::size_t tile) {
  VertexBuilder(graph, cs, vertexName("StoreStep", from.elementType()), tile)
      .connect("from", from)
      .connect("step", step.at(tile))
      .connect("to", to)
      .set("back", back)
      .count("size", from.numElements());
}

// Tiles that have all neurons of a layer, for samples [begin, end) of the batch.
struct Group {
  std::size_t begin, end;
  std::vector<Block> blocks;
  std::vector<Tensor> weight, recurrentWeight, bias, beta, threshold, gradThreshold; // of each block

  std::size_t rows() const { return end - begin; }
  // Of a tensor [1][batch * width], flattened.
  Tensor part(const Tensor &of, std::size_t width) const { return of.slice(begin * width, end * width, 1).flatten(); }
};

struct Layer {
  NetworkLayer what;
  std::vector<Group> groups;
  Samples selection;
};

// In the names of what it has on the tiles, which messages about memory show.
std::string nameOf(std::size_t layer) { return "layer " + std::to_string(layer + 1); }

std::vector<Group> groupsOf(const LayerPlan &plan) {
  std::vector<Group> groups;
  std::size_t begin = 0, tile = plan.firstTile;
  for (const std::size_t rows : plan.groups) {
    groups.push_back({begin, begin + rows, blocksOf(plan.neurons, tile), {}, {}, {}, {}, {}, {}});
    begin += rows;
    tile += plan.neurons.size();
  }
  return groups;
}

// [steps * rows][neurons] of each group, as [steps, batch, neurons].
Tensor wholeOf(const std::vector<BlockArray> &arrays, std::size_t steps) {
  std::vector<Tensor> parts;
  for (const BlockArray &array : arrays) {
    const Tensor part = array.whole();
    parts.push_back(part.reshape({steps, part.dim(0) / steps, part.dim(1)}));
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 1);
}

std::size_t total(const std::vector<std::size_t> &counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t(0));
}

void checkPlan(const SparseNetworkOptions &options, std::size_t tiles, std::size_t batch) {
  if (options.plan.size() != options.layers.size())
    refuse("the plan must have an entry for each layer");
  for (std::size_t l = 0; l < options.plan.size(); ++l) {
    const LayerPlan &at = options.plan[l];
    const std::string name = "layer " + std::to_string(l) + ": the plan must give each ";
    const std::string one = " to one of " + std::to_string(tiles) + " tiles";
    if (total(at.neurons) != options.layers[l].neurons || at.firstTile + at.groups.size() * at.neurons.size() > tiles)
      refuse(name + "of its neurons" + one);
    if (total(at.groups) != batch)
      refuse(name + "sample of the batch to one of the groups of tiles");
    if (total(at.rows) != batch || at.firstSelectionTile + at.rows.size() > tiles)
      refuse(name + "sample of the batch" + one);
  }
}

// The groups' blocks: with what they hold in common.
SharedBlocks sharedBlocks(const std::vector<Group> &groups) {
  std::vector<std::vector<Block>> blocks;
  for (const Group &group : groups)
    blocks.push_back(group.blocks);
  return SharedBlocks(blocks);
}

class Network {
public:
  std::size_t steps, batch;
  std::vector<Layer> layers;

  Network(poplar::Graph &graph, const SlotTensors &input, const std::vector<NetworkParameters> &parameters,
          const SparseNetworkOptions &options) {
    checkSlots("sparse_network", input);
    steps = input.ids.dim(0);
    batch = input.ids.dim(1);
    const std::size_t tiles = graph.getTarget().getNumTiles();
    if (options.layers.empty() || parameters.size() != options.layers.size())
      refuse("there must be a layer, and parameters for each");
    checkPlan(options, tiles, batch);
    const std::vector<LayerPlan> &plan = options.plan;
    for (std::size_t l = 0; l < plan.size(); ++l) {
      const NetworkLayer &what = options.layers[l];
      const NetworkParameters &own = parameters[l];
      const std::string name = "layer " + std::to_string(l) + ": ";
      if (own.weight.elementType() != poplar::FLOAT && own.weight.elementType() != poplar::HALF)
        refuse(name + "weight must be FLOAT or HALF");
      for (const Tensor *tensor : {&own.beta, &own.threshold, &own.bias})
        if (tensor->valid() && tensor->elementType() != poplar::FLOAT)
          refuse(name + "beta, threshold and bias must be FLOAT");
      if (own.weight.shape() != std::vector<std::size_t>{what.neurons, what.inputs} || own.weight.numElements() == 0)
        refuse(name + "weight must have shape [neurons, inputs], got " + own.weight.shapeToString());
      if (l > 0 && what.inputs != options.layers[l - 1].neurons)
        refuse(name + "its inputs are the neurons of the layer before");
      for (const Tensor *tensor : {&own.beta, &own.threshold})
        if (tensor->numElements() != 1 && tensor->numElements() != what.neurons)
          refuse(name + "beta and threshold must have one element, or one for each neuron, got " +
                 tensor->shapeToString());
      if (own.bias.valid() && own.bias.numElements() != what.neurons)
        refuse(name + "bias must have an element for each neuron, got " + own.bias.shapeToString());
      if (what.slots == 0)
        refuse(name + "slots must be 1 or more");
      const Tensor &recurrent = own.recurrentWeight;
      if (recurrent.valid() != what.recurrent)
        refuse(name + "a recurrent layer, and no other, has a recurrent weight");
      if (what.recurrent && (recurrent.shape() != std::vector<std::size_t>{what.neurons, what.neurons} ||
                             recurrent.elementType() != own.weight.elementType()))
        refuse(name + "the recurrent weight must have shape [neurons, neurons] and the type of the weight, got " +
               recurrent.shapeToString());
      const LayerPlan &at = plan[l];
      Layer layer;
      layer.what = what;
      layer.groups = groupsOf(at);
      layer.selection = Samples(at.rows, at.firstSelectionTile);
      layers.push_back(layer);
    }
    // The input on the tiles behind the layers; where there are too few, on the last ones.
    const std::vector<std::size_t> rows = shares(batch, std::min(batch, tiles));
    std::size_t end = 0;
    for (const LayerPlan &at : plan)
      end =
          std::max({end, at.firstTile + at.groups.size() * at.neurons.size(), at.firstSelectionTile + at.rows.size()});
    inputSamples = Samples(rows, std::min(end, tiles - rows.size()));
  }

  Samples inputSamples;

  // Brings parameters to their tiles.
  void load(poplar::Graph &graph, const std::vector<NetworkParameters> &parameters, Copies &copies,
            const poplar::DebugInfo &info) {
    const Tensor zero = zeros(graph, {1}, {info, "noBias"});
    for (std::size_t l = 0; l < layers.size(); ++l) {
      Layer &layer = layers[l];
      const NetworkParameters &own = parameters[l];
      for (Group &group : layer.groups) {
        const auto parameter = [&](const Tensor &of, float padding, const char *name) {
          return parameterIn(graph, group.blocks, of, padding, copies, {info, name});
        };
        group.weight =
            blocksIn(graph, group.blocks, own.weight.transpose(), 0.0f, copies, {info, nameOf(l) + "/weights"});
        if (layer.what.recurrent)
          group.recurrentWeight = blocksIn(graph, group.blocks, own.recurrentWeight.transpose(), 0.0f, copies,
                                           {info, nameOf(l) + "/recurrent weights"});
        group.bias = parameter(own.bias.valid() ? own.bias : zero, 0.0f, "bias");
        group.beta = parameter(own.beta, 0.0f, "beta");
        group.threshold = parameter(own.threshold, never, "threshold");
      }
    }
  }

  // A sequence of slots, [steps, batch, ...] in floats, on the tiles of `samples`.
  SlotSequence sequence(poplar::Graph &graph, const Samples &samples, const SlotTensors &from, std::size_t neurons,
                        bool withValues, bool withOrder, Sequence &prog, const poplar::DebugInfo &info) const {
    SlotSequence to;
    to.samples = samples;
    to.slots = from.ids.dim(2);
    const RowSpread spread(graph, steps * batch);
    const auto here = [&](const Tensor &of) {
      const Tensor sequence = samples.variable(graph, poplar::INT, steps, of.dim(1), {info, "spikes of all steps"});
      prog.add(poplar::program::Copy(of.reshape({steps, batch * of.dim(1)}), sequence));
      return sequence;
    };
    const SlotTensors rows = rowsOfSlots(graph, spread, {from.ids, {}, from.counts, {}}, neurons, prog, info);
    to.ids = here(rows.ids);
    to.counts = here(rows.counts);
    if (withOrder)
      to.order = here(ascendingRows(graph, spread, rows.ids, rows.counts, prog, {info, "ascending"}));
    if (withValues)
      to.values = floats(graph, samples, from.values, to.slots, prog, info);
    return to;
  }
  Tensor floats(poplar::Graph &graph, const Samples &samples, const Tensor &from, std::size_t width, Sequence &prog,
                const poplar::DebugInfo &info) const {
    const Tensor here = samples.variable(graph, poplar::FLOAT, steps, width, {info, "values of all steps"});
    const Tensor rows = inType(graph, RowSpread(graph, steps * batch), from.reshape({steps * batch, width}),
                               poplar::FLOAT, prog, {info, "inFloat"});
    prog.add(poplar::program::Copy(rows.reshape({steps, batch * width}), here));
    return here;
  }
};

// Bits of the blocks, [batch][pieces], as words of 32 neurons, [batch][words]. Neighbouring blocks that end with a word
// are merged on the tile of one of them: the tile that selects would take longer for all of them than all else does.
Tensor mergeBits(poplar::Graph &graph, ComputeSet cs, const std::vector<Block> &blocks, const std::vector<Tensor> &bits,
                 std::size_t turn, const poplar::DebugInfo &info) {
  std::vector<Tensor> words;
  for (std::size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    std::vector<Tensor> pieces;
    std::vector<unsigned> widths;
    std::size_t neurons = 0;
    do {
      const Block &block = blocks[end];
      pieces.push_back(bits[end++]);
      for (std::size_t left = block.neurons; left > 0; left -= widths.back())
        widths.push_back(static_cast<unsigned>(std::min<std::size_t>(32, left)));
      neurons += block.neurons;
    } while (neurons % 32 != 0 && end < blocks.size());
    if (end - begin == 1) {
      words.push_back(pieces[0]);
      continue;
    }
    const std::size_t tile = blocks[begin + turn % (end - begin)].tile, batch = pieces[0].dim(0);
    const Tensor out = variableOn(graph, tile, poplar::UNSIGNED_INT, {batch, (neurons + 31) / 32}, {info, "words"});
    const Tensor constant =
        graph.addConstant(poplar::UNSIGNED_INT, {widths.size()}, poplar::ArrayRef<unsigned>(widths), {info, "widths"});
    graph.setTileMapping(constant, static_cast<unsigned>(tile));
    VertexBuilder(graph, cs, "snnipu::MergeBits", tile)
        .connect("bits", concat(pieces, 1).flatten())
        .connect("widths", constant)
        .connect("out", out.flatten())
        .count("rows", batch)
        .count("pieces", widths.size())
        .count("words", out.dim(1));
    words.push_back(out);
  }
  return words.size() == 1 ? words[0] : concat(words, 1);
}

} // namespace

Tensor createNetworkWeight(poplar::Graph &graph, const SparseNetworkOptions &options, std::size_t layer, bool recurrent,
                           std::size_t batch, const poplar::Type &type, const poplar::DebugContext &debug) {
  checkPlan(options, graph.getTarget().getNumTiles(), batch);
  const NetworkLayer &what = options.layers.at(layer);
  // Each group gets a copy: it lies as its gradient does.
  return sharedBlocks(groupsOf(options.plan[layer])).matrix(graph, type, recurrent ? what.neurons : what.inputs, debug);
}

Tensor createNetworkMembranes(poplar::Graph &graph, const SparseNetworkOptions &options, std::size_t layer,
                              std::size_t steps, std::size_t batch, const poplar::DebugContext &debug) {
  checkPlan(options, graph.getTarget().getNumTiles(), batch);
  std::vector<BlockArray> parts;
  for (const Group &group : groupsOf(options.plan[layer]))
    parts.emplace_back(graph, group.blocks, poplar::FLOAT, steps * group.rows(), debug);
  return wholeOf(parts, steps);
}

std::vector<NetworkOutputs> sparseNetwork(poplar::Graph &graph, const SlotTensors &input,
                                          const std::vector<NetworkParameters> &parameters, Sequence &prog,
                                          const SparseNetworkOptions &options, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  Network net(graph, input, parameters, options);
  const std::size_t steps = net.steps, batch = net.batch;
  Copies copies;
  net.load(graph, parameters, copies, info);
  const SlotSequence inputs =
      net.sequence(graph, net.inputSamples, input, net.layers[0].what.inputs, !options.unitInput, false, prog,
                   poplar::DebugInfo({info, "input"}, "snnipu"));
  StepCounters step(graph, info);
  const ComputeSet prepare = graph.addComputeSet({info, "prepare"}), load = graph.addComputeSet({info, "load"}),
                   lif = graph.addComputeSet({info, "lif"}), merge = graph.addComputeSet({info, "merge"}),
                   select = graph.addComputeSet({info, "select"}), record = graph.addComputeSet({info, "record"});
  const SlotSequence inputNow = inputs.load(graph, load, step, 0, {info, "inputOfStep"});
  const Tensor unread = nothing(graph, poplar::FLOAT), noWords = nothing(graph, poplar::INT);
  std::vector<NetworkOutputs> outputs;
  std::vector<SlotSequence> own; // of the step
  Sequence after;
  const ComputeSet convert = graph.addComputeSet({info, "floatsOfIds"});
  for (Layer &layer : net.layers) {
    const Samples &samples = layer.selection;
    const std::size_t slots = layer.what.slots;
    own.push_back({samples,
                   slots,
                   samples.variable(graph, poplar::INT, 1, slots, {info, "ids"}),
                   samples.variable(graph, poplar::INT, 1, 2, {info, "counts"}),
                   {},
                   {}});
  }
  for (std::size_t l = 0; l < net.layers.size(); ++l) {
    Layer &layer = net.layers[l];
    const poplar::DebugInfo inLayer({info, nameOf(l)}, "snnipu");
    const poplar::Type weightType = layer.groups[0].weight[0].elementType();
    const Tensor noWeight = nothing(graph, weightType);
    const SlotSequence &from = l == 0 ? inputNow : own[l - 1];
    const bool unit = l > 0 || options.unitInput, recurrent = layer.what.recurrent;
    std::vector<BlockArray> histories;
    std::vector<Tensor> firedWords, carriedWords; // [rows][words] of each group
    for (std::size_t g = 0; g < layer.groups.size(); ++g) {
      Group &group = layer.groups[g];
      const std::vector<Block> &blocks = group.blocks;
      for (const Block &block : blocks) {
        const Tensor second = variableOn(graph, block.tile, poplar::FLOAT, {block.lanes}, {info, "gradThreshold"});
        // Without a second threshold every neuron carries gradient.
        copies.fill(graph, layer.what.second ? layer.what.gradThreshold : -std::numeric_limits<float>::infinity(),
                    second.slice(0, block.neurons));
        if (block.lanes != block.neurons)
          copies.fill(graph, never, second.slice(block.neurons, block.lanes));
        group.gradThreshold.push_back(second);
      }
      const BlockArray state(graph, blocks, poplar::FLOAT, group.rows(), {info, "state"});
      histories.emplace_back(graph, blocks, poplar::FLOAT, steps * group.rows(),
                             poplar::DebugContext{inLayer, "membranes of all steps"});
      zeroBlocks(graph, blocks, state.parts(), prepare);
      std::vector<Tensor> fired, carried; // [rows][words] of each block
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Block &block = blocks[i];
        const std::size_t words = block.neurons > 32 ? 2 : 1;
        for (std::vector<Tensor> *bits : {&fired, &carried})
          bits->push_back(variableOn(graph, block.tile, poplar::UNSIGNED_INT, {group.rows(), words}, {info, "bits"}));
        VertexBuilder(graph, prepare, vertexName("ClampUnit", poplar::FLOAT), block.tile)
            .connect("values", group.beta[i])
            .count("size", block.lanes);
        VertexBuilder(graph, lif, vertexName("SparseLifForward", weightType, poplar::UNSIGNED_INT, options.reset),
                      block.tile)
            .connect("weight", group.weight[i].flatten())
            .connect("bias", group.bias[i])
            .connect("beta", group.beta[i])
            .connect("threshold", group.threshold[i])
            .connect("gradThreshold", group.gradThreshold[i])
            .connect("ids", group.part(from.ids, from.slots).reinterpret(poplar::UNSIGNED_INT))
            .connect("values", unit ? unread : group.part(from.values, from.slots))
            .connect("counts", group.part(from.counts, 2))
            .connect("recurrentWeight", recurrent ? group.recurrentWeight[i].flatten() : noWeight)
            .connect("ownIds", recurrent ? group.part(own[l].ids, own[l].slots) : noWords)
            .connect("ownCounts", recurrent ? group.part(own[l].counts, 2) : noWords)
            .connect("state", state[i].flatten())
            .connect("fired", fired.back().flatten())
            .connect("carried", carried.back().flatten())
            .set("inputScale", layer.what.inputScale)
            .count("rows", group.rows())
            .count("slots", from.slots)
            .count("valueSlots", from.slots)
            .count("outputSlots", recurrent ? own[l].slots : 0)
            .count("lanes", block.lanes)
            .count("neurons", block.neurons)
            .count("wordStride", words)
            .set("unitValues", unit)
            .set("input", true)
            .set("recurrent", recurrent);
        storeStep(graph, merge, step, state[i].flatten(), histories[g][i].flatten(), 1, block.tile);
      }
      firedWords.push_back(mergeBits(graph, merge, blocks, fired, 0, info));
      carriedWords.push_back(mergeBits(graph, merge, blocks, carried, 1, info));
    }
    // Selection: each tile for its samples.
    const std::size_t words = (layer.what.neurons + 31) / 32, slots = layer.what.slots;
    const Tensor allFired = concat(firedWords), allCarried = concat(carriedWords);
    const Samples &samples = layer.selection;
    const auto floatsOfSteps = [&](std::size_t width) {
      return samples.variable(graph, poplar::FLOAT, steps, width, {inLayer, "spikes of all steps"});
    };
    const Tensor values = samples.variable(graph, poplar::FLOAT, 1, slots, {info, "values"});
    const Tensor dropped = samples.variable(graph, poplar::INT, 1, 2, {info, "dropped"});
    const Tensor idsOut = floatsOfSteps(slots), recorded = floatsOfSteps(slots), countsOut = floatsOfSteps(2),
                 droppedOut = floatsOfSteps(2);
    const bool half = input.values.elementType() == poplar::HALF;
    const Tensor valuesOut =
        half ? samples.variable(graph, poplar::HALF, steps, slots, {inLayer, "spikes of all steps, half"}) : recorded;
    std::vector<Tensor> starts;
    for (const Samples::Piece &piece : samples.pieces()) {
      const std::size_t rows = piece.end - piece.begin;
      const Tensor start = variableOn(graph, piece.tile, poplar::UNSIGNED_INT, {1}, {info, "start"});
      starts.push_back(start);
      const auto part = [&](const Tensor &of, std::size_t width) { return samples.part(of, piece, width); };
      VertexBuilder(graph, select, vertexName("SelectSpikes", poplar::FLOAT), piece.tile)
          .connect("fired", allFired.slice(piece.begin, piece.end, 0).flatten())
          .connect("carried", allCarried.slice(piece.begin, piece.end, 0).flatten())
          .connect("ids", part(own[l].ids, slots))
          .connect("values", part(values, slots))
          .connect("counts", part(own[l].counts, 2))
          .connect("dropped", part(dropped, 2))
          .connect("start", start)
          .count("rows", rows)
          .count("words", words)
          .count("slots", slots);
      if (options.rotate)
        step.addAdvance(record, start, static_cast<unsigned>(slots), layer.what.neurons, piece.tile);
      storeStep(graph, record, step, part(values, slots), part(recorded, slots), 1, piece.tile);
      if (half)
        addCast(graph, convert, part(recorded, slots), part(valuesOut, slots), piece.tile);
      // Ids leave as floats.
      const auto leave = [&](const Tensor &now, const Tensor &out, std::size_t width) {
        const Tensor sequence = variableOn(graph, piece.tile, poplar::INT, {steps * rows * width},
                                           {inLayer, "spikes of all steps, integers"});
        storeStep(graph, record, step, part(now, width), sequence, 1, piece.tile);
        VertexBuilder(graph, convert, "snnipu::FloatsOfIds", piece.tile)
            .connect("from", sequence)
            .connect("to", part(out, width))
            .count("size", sequence.numElements());
      };
      leave(own[l].ids, idsOut, slots);
      leave(own[l].counts, countsOut, 2);
      leave(dropped, droppedOut, 2);
    }
    const Tensor zeroWord = graph.addConstant(poplar::UNSIGNED_INT, {1}, 0u, {info, "zero"});
    graph.setTileMapping(zeroWord, static_cast<unsigned>(samples.pieces()[0].tile));
    const Tensor allStarts = concat(starts), counts = own[l].counts.flatten().reinterpret(poplar::UNSIGNED_INT);
    // Nothing has fired before the first step.
    copies.add(zeroWord.broadcast(static_cast<unsigned>(allStarts.numElements() + counts.numElements()), 0)
                   .reinterpret(poplar::FLOAT),
               concat(allStarts, counts).reinterpret(poplar::FLOAT));
    outputs.push_back({{idsOut.reshape({steps, batch, slots}), valuesOut.reshape({steps, batch, slots}),
                        countsOut.reshape({steps, batch, 2}), droppedOut.reshape({steps, batch, 2})},
                       wholeOf(histories, steps)});
  }
  // While the neurons of a step work nobody asks which step it is.
  step.advance(lif, 1);
  copies.run(prog, {info, "loadParameters"});
  step.set(0, prog);
  prog.add(Execute(prepare));
  prog.add(poplar::program::Repeat(
      static_cast<unsigned>(steps),
      Sequence({Execute(load), Execute(lif), Execute(merge), Execute(select), Execute(record)}), {info, "steps"}));
  prog.add(Execute(convert));
  return outputs;
}

NetworkGradients sparseNetworkGrad(poplar::Graph &graph, const std::vector<Tensor> &gradValues,
                                   const SlotTensors &input, const std::vector<NetworkParameters> &parameters,
                                   const std::vector<NetworkOutputs> &outputs, Sequence &prog,
                                   const SparseNetworkOptions &options, const poplar::DebugContext &debug) {
  const poplar::DebugInfo info(debug, "snnipu");
  Network net(graph, input, parameters, options);
  const std::size_t steps = net.steps, batch = net.batch, count = net.layers.size();
  if (gradValues.size() != count || outputs.size() != count)
    refuse("there must be a gradient, or none, and outputs for each layer");
  Copies copies;
  net.load(graph, parameters, copies, info);
  StepCounters step(graph, info);
  const ComputeSet prepare = graph.addComputeSet({info, "prepare"}), load = graph.addComputeSet({info, "load"}),
                   sum = graph.addComputeSet({info, "sum"}), sumAll = graph.addComputeSet({info, "sumAll"}),
                   sumOwn = graph.addComputeSet({info, "sumOwn"}), lif = graph.addComputeSet({info, "lifBackward"}),
                   weights = graph.addComputeSet({info, "weights"}), sumInput = graph.addComputeSet({info, "sumInput"}),
                   sumAllInput = graph.addComputeSet({info, "sumAllInput"}),
                   record = graph.addComputeSet({info, "record"});
  const SlotSequence inputNow =
      net.sequence(graph, net.inputSamples, input, net.layers[0].what.inputs, !options.unitInput, true, prog,
                   poplar::DebugInfo({info, "input"}, "snnipu"))
          .load(graph, load, step, 0, {info, "inputOfStep"});
  const Tensor unread = nothing(graph, poplar::FLOAT), noOrder = nothing(graph, poplar::INT);
  const Tensor zero = zeros(graph, {1}, {info, "noGradient"});

  // The layers' own spikes: of the step, of the step before for the layer behind, and their upstream gradients.
  std::vector<SlotSequence> now, before;
  std::vector<Tensor> upstream; // of the step, or invalid
  for (std::size_t l = 0; l < count; ++l) {
    const Layer &layer = net.layers[l];
    const SlotTensors spikes = {outputs[l].spikes.ids, outputs[l].spikes.ids, outputs[l].spikes.counts, {}};
    checkSlots("sparse_network", spikes);
    const poplar::DebugInfo inLayer({info, nameOf(l)}, "snnipu");
    SlotSequence own = net.sequence(graph, layer.selection, spikes, layer.what.neurons, false, false, prog, inLayer);
    before.push_back(l + 1 < count || layer.what.recurrent ? own.load(graph, load, step, 1, {info, "spikesBefore"})
                                                           : SlotSequence());
    if (gradValues[l].valid())
      own.values = net.floats(graph, layer.selection, gradValues[l], own.slots, prog, inLayer);
    now.push_back(own.load(graph, load, step, 0, {info, "spikesOfStep"}));
    upstream.push_back(now.back().values);
  }

  // What the neurons of a layer find for the values of slots, those of their input or their own of the step before: of
  // each group [blocks][rows * slots].
  struct Partial {
    std::size_t layer, slots;
    std::vector<Tensor> found;
  };
  std::vector<Partial> partial(count), partialOwn(count);
  const auto passesOn = [&](std::size_t l) { return l > 0 || options.inputGradient; };
  const auto partialOf = [&](std::size_t l, std::size_t slots) {
    Partial made{l, slots, {}};
    for (const Group &group : net.layers[l].groups) {
      const std::vector<Block> &blocks = group.blocks;
      const Tensor found = graph.addVariable(poplar::FLOAT, {blocks.size(), group.rows() * slots}, {info, "partial"});
      std::vector<Tensor> parts;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        graph.setTileMapping(found[i], static_cast<unsigned>(blocks[i].tile));
        parts.push_back(found[i]);
      }
      zeroBlocks(graph, blocks, parts, prepare);
      made.found.push_back(found);
    }
    return made;
  };
  for (std::size_t l = 0; l < count; ++l) {
    if (passesOn(l))
      partial[l] = partialOf(l, l == 0 ? inputNow.slots : now[l - 1].slots);
    if (net.layers[l].what.recurrent)
      partialOwn[l] = partialOf(l, now[l].slots);
  }
  // The sum of it over a group's tiles, on the same tiles: in two stages, as a tile would hear from every other one
  // otherwise. First each of some tiles sums a share of the slots over as many blocks as there are such tiles, then
  // each of all tiles a share over what they found. `first` and `second` are the stages' compute sets.
  const auto addSum = [&](const Partial &of, ComputeSet first, ComputeSet second, const Tensor &plus,
                          const Tensor &counts) {
    const std::size_t l = of.layer, slots = of.slots;
    std::vector<Tensor> outs;
    for (std::size_t g = 0; g < net.layers[l].groups.size(); ++g) {
      const Group &group = net.layers[l].groups[g];
      const std::vector<Block> &blocks = group.blocks;
      const std::size_t size = group.rows() * slots;
      const auto forShares = [&](std::size_t ways, const auto &body) {
        const std::size_t share = 2 * (((size + 1) / 2 + ways - 1) / ways);
        for (std::size_t begin = 0, i = 0; begin < size; begin += share, ++i)
          body(i, begin, std::min(size, begin + share));
      };
      Tensor found = of.found[g];
      if (blocks.size() > fewPartials) {
        std::size_t wide = 1;
        while (wide * wide < blocks.size())
          ++wide;
        const std::size_t clusters = (blocks.size() + wide - 1) / wide;
        const Tensor sums = graph.addVariable(poplar::FLOAT, {clusters, size}, {info, "partialOfCluster"});
        for (std::size_t cluster = 0; cluster < clusters; ++cluster) {
          const std::size_t begin = cluster * wide, end = std::min(blocks.size(), begin + wide);
          forShares(end - begin, [&](std::size_t i, std::size_t from, std::size_t to) {
            const Tensor part = sums[cluster].slice(from, to);
            graph.setTileMapping(part, static_cast<unsigned>(blocks[begin + i].tile));
            addSumRows(graph, first, found.slice(begin, end, 0).slice(from, to, 1).flatten(), end - begin, part, 1.0f,
                       blocks[begin + i].tile);
          });
        }
        found = sums;
      }
      const Tensor out = graph.addVariable(poplar::FLOAT, {1, size}, {info, "gradValues"});
      addSumSlots(
          graph, second, found, group.part(counts, 2), slots, out.flatten(), blocks.size(),
          [&](std::size_t i) { return blocks[i].tile; }, plus.valid() ? group.part(plus, slots) : plus,
          net.layers[l].what.inputScale);
      outs.push_back(out);
    }
    return concat(outs, 1);
  };

  // Sums of each group.
  struct Sums {
    std::vector<std::vector<Tensor>> weight, recurrentWeight, bias, beta, threshold;
  };
  std::vector<Sums> sums(count);
  bool threeSums = false;
  for (std::size_t l = 0; l < count; ++l) {
    const Layer &layer = net.layers[l];
    const poplar::DebugInfo inLayer({info, nameOf(l)}, "snnipu");
    const std::size_t slots = now[l].slots;
    Tensor total;
    const bool recurrent = layer.what.recurrent;
    if (l + 1 < count)
      total = addSum(partial[l + 1], sum, sumAll, upstream[l], now[l].counts);
    if (recurrent && total.valid())
      total = addSum(partialOwn[l], sum, sumOwn, total, now[l].counts);
    else if (recurrent)
      total = addSum(partialOwn[l], sum, sumAll, upstream[l], now[l].counts);
    else if (!total.valid())
      total = upstream[l].valid() ? upstream[l] : zero.broadcast(static_cast<unsigned>(batch * slots), 0).expand({0});
    threeSums = threeSums || (recurrent && l + 1 < count);
    const SlotSequence &from = l == 0 ? inputNow : before[l - 1];
    const bool unit = l > 0 || options.unitInput;
    for (std::size_t g = 0; g < layer.groups.size(); ++g) {
      const Group &group = layer.groups[g];
      const std::vector<Block> &blocks = group.blocks;
      const auto rowsOfBlocks = [&](std::size_t rows, const char *name) {
        return BlockArray(graph, blocks, poplar::FLOAT, rows, {inLayer, name}).parts();
      };
      Sums &own = sums[l];
      own.weight.push_back(rowsOfBlocks(layer.what.inputs, "weight gradients"));
      if (recurrent) {
        own.recurrentWeight.push_back(rowsOfBlocks(layer.what.neurons, "recurrent weight gradients"));
        zeroBlocks(graph, blocks, own.recurrentWeight.back(), prepare);
      }
      own.bias.push_back(rowsOfBlocks(group.rows(), "gradBias"));
      own.beta.push_back(rowsOfBlocks(group.rows(), "gradBeta"));
      own.threshold.push_back(rowsOfBlocks(group.rows(), "gradThreshold"));
      const std::vector<Tensor> carry = rowsOfBlocks(group.rows(), "carry"), grad = rowsOfBlocks(group.rows(), "grad");
      for (const std::vector<Tensor> &parts :
           {own.weight.back(), own.bias.back(), own.beta.back(), own.threshold.back(), carry})
        zeroBlocks(graph, blocks, parts, prepare);
      const Tensor history =
          outputs[l].mem.slice(group.begin, group.end, 1).reshape({steps * group.rows(), layer.what.neurons});
      const std::vector<Tensor> mem =
          blocksIn(graph, blocks, history, 0.0f, copies, {inLayer, "membranes of all steps"});
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Block &block = blocks[i];
        VertexBuilder(graph, lif, vertexName("SparseLifStepBackward", poplar::FLOAT, options.reset, options.surrogate),
                      block.tile)
            .connect("beta", group.beta[i])
            .connect("threshold", group.threshold[i])
            .connect("ids", group.part(now[l].ids, slots))
            .connect("counts", group.part(now[l].counts, 2))
            .connect("gradValues", group.part(total, slots))
            .connect("mem", mem[i].flatten())
            .connect("step", step.at(block.tile))
            .connect("carry", carry[i].flatten())
            .connect("grad", grad[i].flatten())
            .connect("gradBeta", own.beta[g][i].flatten())
            .connect("gradThreshold", own.threshold[g][i].flatten())
            .connect("gradBias", own.bias[g][i].flatten())
            .set("surrogateA", options.surrogateA)
            .set("surrogateB", options.surrogateB)
            .count("rows", group.rows())
            .count("slots", slots)
            .count("lanes", block.lanes)
            .count("firstId", block.first)
            .count("neurons", block.neurons);
        // What the weights that spikes are read by get, and the spikes' values.
        const auto addWeights = [&](const SlotSequence &spikes, bool ones, const Tensor &weight, std::size_t inputs,
                                    const Tensor &gradWeight, const Partial &partials) {
          VertexBuilder(graph, weights, vertexName("SparseLinearWeightUpdate", poplar::FLOAT), block.tile)
              .connect("ids", group.part(spikes.ids, spikes.slots))
              .connect("values", ones ? unread : group.part(spikes.values, spikes.slots))
              .connect("counts", group.part(spikes.counts, 2))
              .connect("order", spikes.order.valid() ? group.part(spikes.order, 1) : noOrder)
              .connect("grad", grad[i].flatten())
              .connect("gradWeight", gradWeight.flatten())
              .set("scale", layer.what.inputScale)
              .count("rows", group.rows())
              .count("slots", spikes.slots)
              .count("inputs", inputs)
              .count("lanes", block.lanes)
              .set("unitValues", ones)
              .set("ascending", !spikes.order.valid());
          if (!partials.found.empty())
            VertexBuilder(graph, weights,
                          vertexName("SparseLinearValueGradient", weight.elementType(), poplar::UNSIGNED_INT),
                          block.tile)
                .connect("weight", weight.flatten())
                .connect("grad", grad[i].flatten())
                .connect("ids", group.part(spikes.ids, spikes.slots).reinterpret(poplar::UNSIGNED_INT))
                .connect("counts", group.part(spikes.counts, 2))
                .connect("gradValues", partials.found[g][i])
                .count("rows", group.rows())
                .count("slots", spikes.slots)
                .count("lanes", block.lanes);
        };
        addWeights(from, unit, group.weight[i], layer.what.inputs, own.weight[g][i], partial[l]);
        if (recurrent)
          addWeights(before[l], true, group.recurrentWeight[i], layer.what.neurons, own.recurrentWeight[g][i],
                     partialOwn[l]);
      }
    }
  }
  Sequence body({Execute(load), Execute(sum), Execute(sumAll)});
  // Of a recurrent layer with another one behind it.
  if (threeSums)
    body.add(Execute(sumOwn));
  body.add(Execute(lif));
  body.add(Execute(weights));
  NetworkGradients out;
  const poplar::Type valueType = input.values.elementType();
  out.inputValues = zeros(graph, input.values.shape(), {info, "gradInput"}, valueType);
  const ComputeSet cast = graph.addComputeSet({info, "inHalf"});
  if (options.inputGradient) {
    const Tensor gradInput = addSum(partial[0], sumInput, sumAllInput, {}, inputNow.counts);
    const Tensor all = net.inputSamples.variable(graph, poplar::FLOAT, steps, inputNow.slots, {info, "gradInput"});
    for (const Samples::Piece &piece : net.inputSamples.pieces())
      storeStep(graph, record, step, net.inputSamples.part(gradInput, piece, inputNow.slots),
                net.inputSamples.part(all, piece, inputNow.slots), ~0u, piece.tile);
    Tensor made = all;
    if (valueType == poplar::HALF) {
      made = net.inputSamples.variable(graph, valueType, steps, inputNow.slots, {info, "gradInputInHalf"});
      for (const Samples::Piece &piece : net.inputSamples.pieces())
        addCast(graph, cast, net.inputSamples.part(all, piece, inputNow.slots),
                net.inputSamples.part(made, piece, inputNow.slots), piece.tile);
    }
    out.inputValues = made.reshape(input.values.shape());
    body.add(Execute(sumInput));
    body.add(Execute(sumAllInput));
    body.add(Execute(record));
  }
  step.advance(weights, ~0u);
  copies.run(prog, {info, "loadParameters"});
  step.set(steps - 1, prog);
  prog.add(Execute(prepare));
  prog.add(poplar::program::Repeat(static_cast<unsigned>(steps), body, {info, "steps"}));
  const ComputeSet sumGroups = graph.addComputeSet({info, "groups"});
  for (std::size_t l = 0; l < count; ++l) {
    const SharedBlocks blocks = sharedBlocks(net.layers[l].groups);
    const NetworkParameters &like = parameters[l];
    const auto weightOf = [&](const std::vector<std::vector<Tensor>> &arrays, const poplar::Type &type) {
      return blocks.sumOfGroups(graph, arrays, type, sumGroups, cast, {info, "gradWeight"});
    };
    NetworkParameters own;
    own.weight = weightOf(sums[l].weight, like.weight.elementType());
    if (net.layers[l].what.recurrent)
      own.recurrentWeight = weightOf(sums[l].recurrentWeight, like.recurrentWeight.elementType());
    own.beta = blocks.sumOfRows(graph, sums[l].beta, like.beta, prog, {info, "beta"});
    own.threshold = blocks.sumOfRows(graph, sums[l].threshold, like.threshold, prog, {info, "threshold"});
    if (like.bias.valid())
      own.bias = blocks.sumOfRows(graph, sums[l].bias, like.bias, prog, {info, "bias"});
    out.parameters.push_back(own);
  }
  prog.add(Execute(sumGroups));
  prog.add(Execute(cast));
  return out;
}

} // namespace graph
} // namespace snnipu
