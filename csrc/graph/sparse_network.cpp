#include "graph/sparse_network.hpp"

#include "graph/shared_blocks.hpp"
#include "graph/tile_mapping.hpp"
#include "graph/vertex_builder.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace snnipu {
namespace graph {
namespace {

// A lane of padding never reaches this threshold.
constexpr float never = std::numeric_limits<float>::max();
// The most partial sums that a tile adds in one stage.
constexpr size_t fewPartials = 16;

constexpr const char *network = "sparse_network";

// The distribution of the batch's samples over tiles.
class Samples {
public:
  struct Piece {
    size_t tile, begin, end;
  };

  Samples() = default;
  Samples(const std::vector<size_t> &rows, size_t firstTile) {
    for (size_t i = 0; i < rows.size(); ++i) {
      pieces_.push_back({firstTile + i, batch_, batch_ + rows[i]});
      batch_ += rows[i];
    }
  }

  size_t batch() const { return batch_; }
  const std::vector<Piece> &pieces() const { return pieces_; }

  // Return a variable [steps][batch * width]. A tile's part of it is contiguous, step after step.
  Tensor variable(Graph &graph, const Type &type, size_t steps, size_t width, const DebugContext &debug) const {
    const Tensor all = graph.addVariable(type, {steps * batch_ * width}, debug);
    std::vector<Tensor> parts;
    for (const Piece &piece : pieces_) {
      const Tensor part = all.slice(steps * piece.begin * width, steps * piece.end * width);
      graph.setTileMapping(part, static_cast<unsigned>(piece.tile));
      parts.push_back(part.reshape({steps, (piece.end - piece.begin) * width}));
    }
    return parts.size() == 1 ? parts[0] : concat(parts, 1);
  }
  Tensor part(const Tensor &of, const Piece &piece, size_t width) const {
    return of.slice(piece.begin * width, piece.end * width, 1).flatten();
  }

private:
  std::vector<Piece> pieces_;
  size_t batch_ = 0;
};

std::vector<size_t> shares(size_t total, size_t parts) {
  std::vector<size_t> counts;
  const size_t share = (total + parts - 1) / parts;
  for (size_t begin = 0; begin < total; begin += share)
    counts.push_back(std::min(share, total - begin));
  return counts;
}

// A counter of the step on every tile that needs it.
class StepCounters {
public:
  explicit StepCounters(Graph &graph, const DebugInfo &info) : graph_(graph), info_(info) {}

  Tensor at(size_t tile) {
    Tensor &counter = counters_[tile];
    if (!counter.valid())
      counter = variableOn(graph_, tile, UNSIGNED_INT, {1}, {info_, "step"});
    return counter;
  }
  void advance(ComputeSet cs, unsigned by) {
    for (const auto &counter : counters_)
      addAdvance(cs, counter.second, by, 0, counter.first);
  }
  void addAdvance(ComputeSet cs, const Tensor &value, unsigned by, size_t modulo, size_t tile) {
    VertexBuilder(graph_, cs, "snnipu::Advance", tile)
        .connect("value", value)
        .set("by", modulo ? static_cast<unsigned>(by % modulo) : by)
        .count("modulo", modulo);
  }
  // Set the counters at the start of a program.
  void set(size_t value, Sequence &prog) {
    std::vector<Tensor> all;
    for (const auto &counter : counters_)
      all.push_back(counter.second);
    const Tensor constant = graph_.addConstant(UNSIGNED_INT, {1}, static_cast<unsigned>(value), {info_, "firstStep"});
    graph_.setTileMapping(constant, 0);
    prog.add(Copy(constant.broadcast(static_cast<unsigned>(all.size()), 0), concat(all)));
  }

private:
  Graph &graph_;
  const DebugInfo &info_;
  std::map<size_t, Tensor> counters_;
};

// Slots on the tiles of some samples, of a whole sequence or of one step.
struct SlotSequence {
  Samples samples;
  size_t slots = 0;
  Tensor ids, counts, values; // [steps][batch * ...]; INT, INT, FLOAT. values may be invalid
  Tensor order;               // INT [steps][batch]: 1 for rows whose ids ascend; invalid if all do

  // Return the slots at step - back, loaded into new variables.
  SlotSequence load(Graph &graph, ComputeSet cs, StepCounters &step, unsigned back, const DebugContext &debug) const {
    SlotSequence loaded{samples, slots, {}, {}, {}, {}};
    loaded.ids = loadOne(graph, cs, step, ids, slots, back, debug);
    loaded.counts = loadOne(graph, cs, step, counts, 2, back, debug);
    if (values.valid())
      loaded.values = loadOne(graph, cs, step, values, slots, back, debug);
    if (order.valid())
      loaded.order = loadOne(graph, cs, step, order, 1, back, debug);
    return loaded;
  }

private:
  Tensor loadOne(Graph &graph, ComputeSet cs, StepCounters &step, const Tensor &from, size_t width, unsigned back,
                 const DebugContext &debug) const {
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

void storeStep(Graph &graph, ComputeSet cs, StepCounters &step, const Tensor &from, const Tensor &to, unsigned back,
               size_t tile) {
  VertexBuilder(graph, cs, vertexName("StoreStep", from.elementType()), tile)
      .connect("from", from)
      .connect("step", step.at(tile))
      .connect("to", to)
      .set("back", back)
      .count("size", from.numElements());
}

// A group of tiles that has all neurons of a layer, for the samples [begin, end) of the batch.
struct Group {
  size_t begin, end;
  std::vector<Block> blocks;
  std::vector<Tensor> weight, recurrentWeight, bias, beta, threshold, gradThreshold; // of each block

  size_t rows() const { return end - begin; }
  // Return the group's part of a tensor [1][batch * width], flattened.
  Tensor part(const Tensor &of, size_t width) const { return of.slice(begin * width, end * width, 1).flatten(); }
};

struct Layer {
  NetworkLayer config;
  std::vector<Group> groups;
  Samples selection;
};

// The layer's name in the names of its variables, which messages about memory show.
std::string nameOf(size_t layer) { return "layer " + std::to_string(layer + 1); }

std::vector<Group> groupsOf(const LayerPlan &plan) {
  std::vector<Group> groups;
  size_t begin = 0, tile = plan.firstTile;
  for (const size_t rows : plan.groups) {
    groups.push_back({begin, begin + rows, blocksOf(plan.neurons, tile), {}, {}, {}, {}, {}, {}});
    begin += rows;
    tile += plan.neurons.size();
  }
  return groups;
}

// Join [steps * rows][neurons] of each group to [steps, batch, neurons].
Tensor wholeOf(const std::vector<BlockArray> &arrays, size_t steps) {
  std::vector<Tensor> parts;
  for (const BlockArray &array : arrays) {
    const Tensor part = array.whole();
    parts.push_back(part.reshape({steps, part.dim(0) / steps, part.dim(1)}));
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 1);
}

size_t total(const std::vector<size_t> &counts) { return std::accumulate(counts.begin(), counts.end(), size_t(0)); }

void checkPlan(const SparseNetworkOptions &options, size_t tiles, size_t batch) {
  for (size_t l = 0; l < options.plan.size(); ++l) {
    const LayerPlan &at = options.plan[l];
    const std::string name = "layer " + std::to_string(l) + ": the plan must give each ";
    const std::string target = " to one of " + std::to_string(tiles) + " tiles";
    if (total(at.neurons) != options.layers[l].neurons || at.firstTile + at.groups.size() * at.neurons.size() > tiles)
      refuse(network, name + "of its neurons" + target);
    if (total(at.groups) != batch)
      refuse(network, name + "sample of the batch to one of the groups of tiles");
    if (total(at.rows) != batch || at.firstSelectionTile + at.rows.size() > tiles)
      refuse(network, name + "sample of the batch" + target);
  }
}

// Return the groups' blocks, with the weights that groups share.
SharedBlocks sharedBlocks(const std::vector<Group> &groups) {
  std::vector<std::vector<Block>> blocks;
  for (const Group &group : groups)
    blocks.push_back(group.blocks);
  return SharedBlocks(blocks);
}

class Network {
public:
  size_t steps, batch;
  std::vector<Layer> layers;

  Network(Graph &graph, const SlotTensors &input, const std::vector<NetworkParameters> &parameters,
          const SparseNetworkOptions &options) {
    checkSlots(network, input);
    steps = input.ids.dim(0);
    batch = input.ids.dim(1);
    const size_t tiles = graph.getTarget().getNumTiles();
    checkPlan(options, tiles, batch);
    const std::vector<LayerPlan> &plan = options.plan;
    for (size_t l = 0; l < plan.size(); ++l) {
      const NetworkLayer &config = options.layers[l];
      const NetworkParameters &layerParameters = parameters[l];
      const std::string name = "layer " + std::to_string(l) + ": ";
      if (layerParameters.weight.shape() != std::vector<size_t>{config.neurons, config.inputs} ||
          layerParameters.weight.numElements() == 0)
        refuse(network,
               name + "weight must have shape [neurons, inputs], got " + layerParameters.weight.shapeToString());
      if (l > 0 && config.inputs != options.layers[l - 1].neurons)
        refuse(network, name + "inputs must be the number of neurons of the previous layer");
      for (const Tensor *tensor : {&layerParameters.beta, &layerParameters.threshold})
        if (tensor->numElements() != 1 && tensor->numElements() != config.neurons)
          refuse(network, name + "beta and threshold must have one element, or one for each neuron, got " +
                              tensor->shapeToString());
      if (layerParameters.bias.valid() && layerParameters.bias.numElements() != config.neurons)
        refuse(network,
               name + "bias must have an element for each neuron, got " + layerParameters.bias.shapeToString());
      const Tensor &recurrent = layerParameters.recurrentWeight;
      if (config.recurrent && (recurrent.shape() != std::vector<size_t>{config.neurons, config.neurons} ||
                               recurrent.elementType() != layerParameters.weight.elementType()))
        refuse(network, name +
                            "the recurrent weight must have shape [neurons, neurons] and the type of the weight, got " +
                            recurrent.shapeToString());
      const LayerPlan &at = plan[l];
      Layer layer;
      layer.config = config;
      layer.groups = groupsOf(at);
      layer.selection = Samples(at.rows, at.firstSelectionTile);
      layers.push_back(layer);
    }
    // Place the input on the tiles after the layers', or on the last tiles if there are too few.
    const std::vector<size_t> rows = shares(batch, std::min(batch, tiles));
    size_t end = 0;
    for (const LayerPlan &at : plan)
      end =
          std::max({end, at.firstTile + at.groups.size() * at.neurons.size(), at.firstSelectionTile + at.rows.size()});
    inputSamples = Samples(rows, std::min(end, tiles - rows.size()));
  }

  Samples inputSamples;

  // Copy the parameters to their tiles.
  void load(Graph &graph, const std::vector<NetworkParameters> &parameters, Copies &copies, const DebugInfo &info) {
    const Tensor zero = zeros(graph, {1}, {info, "noBias"});
    for (size_t l = 0; l < layers.size(); ++l) {
      Layer &layer = layers[l];
      const NetworkParameters &layerParameters = parameters[l];
      for (Group &group : layer.groups) {
        const auto parameter = [&](const Tensor &of, float padding, const char *name) {
          return distributeParameter(graph, group.blocks, of, padding, copies, {info, name});
        };
        group.weight = distribute(graph, group.blocks, layerParameters.weight.transpose(), 0.0f, copies,
                                  {info, nameOf(l) + "/weights"});
        if (layer.config.recurrent)
          group.recurrentWeight = distribute(graph, group.blocks, layerParameters.recurrentWeight.transpose(), 0.0f,
                                             copies, {info, nameOf(l) + "/recurrent weights"});
        group.bias = parameter(layerParameters.bias.valid() ? layerParameters.bias : zero, 0.0f, "bias");
        group.beta = parameter(layerParameters.beta, 0.0f, "beta");
        group.threshold = parameter(layerParameters.threshold, never, "threshold");
      }
    }
  }

  // Return a sequence of slots on the tiles of `samples`. from: [steps, batch, ...] in floats.
  SlotSequence sequence(Graph &graph, const Samples &samples, const SlotTensors &from, size_t neurons, bool withValues,
                        bool withOrder, Sequence &prog, const DebugInfo &info) const {
    SlotSequence to;
    to.samples = samples;
    to.slots = from.ids.dim(2);
    const RowMapping mapping(graph, steps * batch);
    const auto onTiles = [&](const Tensor &of) {
      const Tensor sequence = samples.variable(graph, INT, steps, of.dim(1), {info, "spikes of all steps"});
      prog.add(Copy(of.reshape({steps, batch * of.dim(1)}), sequence));
      return sequence;
    };
    const SlotTensors rows = rowsOfSlots(graph, mapping, {from.ids, {}, from.counts, {}}, neurons, prog, info);
    to.ids = onTiles(rows.ids);
    to.counts = onTiles(rows.counts);
    if (withOrder)
      to.order = onTiles(ascendingRows(graph, mapping, rows.ids, rows.counts, prog, {info, "ascending"}));
    if (withValues)
      to.values = floats(graph, samples, from.values, to.slots, prog, info);
    return to;
  }
  Tensor floats(Graph &graph, const Samples &samples, const Tensor &from, size_t width, Sequence &prog,
                const DebugInfo &info) const {
    const Tensor onTiles = samples.variable(graph, FLOAT, steps, width, {info, "values of all steps"});
    const Tensor rows = castRows(graph, RowMapping(graph, steps * batch), from.reshape({steps * batch, width}), FLOAT,
                                 prog, {info, "inFloat"});
    prog.add(Copy(rows.reshape({steps, batch * width}), onTiles));
    return onTiles;
  }
};

// Join the bits of blocks, [batch][pieces], to words of 32 neurons, [batch][words]. Neighbouring blocks that end at a
// word boundary are merged on the tile of one of them: merging all on the tile that selects would take longer than the
// rest of the step.
Tensor mergeBits(Graph &graph, ComputeSet cs, const std::vector<Block> &blocks, const std::vector<Tensor> &bits,
                 size_t turn, const DebugInfo &info) {
  std::vector<Tensor> words;
  for (size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    std::vector<Tensor> pieces;
    std::vector<unsigned> widths;
    size_t neurons = 0;
    do {
      const Block &block = blocks[end];
      pieces.push_back(bits[end++]);
      for (size_t left = block.neurons; left > 0; left -= widths.back())
        widths.push_back(static_cast<unsigned>(std::min<size_t>(32, left)));
      neurons += block.neurons;
    } while (neurons % 32 != 0 && end < blocks.size());
    if (end - begin == 1) {
      words.push_back(pieces[0]);
      continue;
    }
    const size_t tile = blocks[begin + turn % (end - begin)].tile, batch = pieces[0].dim(0);
    const Tensor out = variableOn(graph, tile, UNSIGNED_INT, {batch, (neurons + 31) / 32}, {info, "words"});
    const Tensor constant =
        graph.addConstant(UNSIGNED_INT, {widths.size()}, ArrayRef<unsigned>(widths), {info, "widths"});
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

Tensor createNetworkWeight(Graph &graph, const SparseNetworkOptions &options, size_t layer, bool recurrent,
                           size_t batch, const Type &type, const DebugContext &debug) {
  checkPlan(options, graph.getTarget().getNumTiles(), batch);
  const NetworkLayer &config = options.layers.at(layer);
  // Each group copies the weight, so it has the layout of its gradient.
  return sharedBlocks(groupsOf(options.plan[layer]))
      .matrix(graph, type, recurrent ? config.neurons : config.inputs, debug);
}

Tensor createNetworkMembranes(Graph &graph, const SparseNetworkOptions &options, size_t layer, size_t steps,
                              size_t batch, const DebugContext &debug) {
  checkPlan(options, graph.getTarget().getNumTiles(), batch);
  std::vector<BlockArray> parts;
  for (const Group &group : groupsOf(options.plan[layer]))
    parts.emplace_back(graph, group.blocks, FLOAT, steps * group.rows(), debug);
  return wholeOf(parts, steps);
}

std::vector<NetworkOutputs> sparseNetwork(Graph &graph, const SlotTensors &input,
                                          const std::vector<NetworkParameters> &parameters, Sequence &prog,
                                          const SparseNetworkOptions &options, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  Network net(graph, input, parameters, options);
  const size_t steps = net.steps, batch = net.batch;
  Copies copies;
  net.load(graph, parameters, copies, info);
  const SlotSequence inputs = net.sequence(graph, net.inputSamples, input, net.layers[0].config.inputs,
                                           !options.unitInput, false, prog, DebugInfo({info, "input"}, "snnipu"));
  StepCounters step(graph, info);
  const ComputeSet prepare = graph.addComputeSet({info, "prepare"}), load = graph.addComputeSet({info, "load"}),
                   lif = graph.addComputeSet({info, "lif"}), merge = graph.addComputeSet({info, "merge"}),
                   select = graph.addComputeSet({info, "select"}), record = graph.addComputeSet({info, "record"});
  const SlotSequence currentInput = inputs.load(graph, load, step, 0, {info, "inputOfStep"});
  const Tensor unused = emptyVariable(graph, FLOAT), noWords = emptyVariable(graph, INT);
  std::vector<NetworkOutputs> outputs;
  std::vector<SlotSequence> spikes; // of the step
  Sequence after;
  const ComputeSet convert = graph.addComputeSet({info, "floatsOfIds"});
  for (Layer &layer : net.layers) {
    const Samples &samples = layer.selection;
    const size_t slots = layer.config.slots;
    spikes.push_back({samples,
                      slots,
                      samples.variable(graph, INT, 1, slots, {info, "ids"}),
                      samples.variable(graph, INT, 1, 2, {info, "counts"}),
                      {},
                      {}});
  }
  for (size_t l = 0; l < net.layers.size(); ++l) {
    Layer &layer = net.layers[l];
    const DebugInfo inLayer({info, nameOf(l)}, "snnipu");
    const Type weightType = layer.groups[0].weight[0].elementType();
    const Tensor noWeight = emptyVariable(graph, weightType);
    const SlotSequence &from = l == 0 ? currentInput : spikes[l - 1];
    const bool unit = l > 0 || options.unitInput, recurrent = layer.config.recurrent;
    std::vector<BlockArray> histories;
    std::vector<Tensor> firedWords, carriedWords; // [rows][words] of each group
    for (size_t g = 0; g < layer.groups.size(); ++g) {
      Group &group = layer.groups[g];
      const std::vector<Block> &blocks = group.blocks;
      for (const Block &block : blocks) {
        const Tensor second = variableOn(graph, block.tile, FLOAT, {block.lanes}, {info, "gradThreshold"});
        // If there is no second threshold, every neuron carries gradient.
        copies.fill(graph, layer.config.second ? layer.config.gradThreshold : -std::numeric_limits<float>::infinity(),
                    second.slice(0, block.neurons));
        if (block.lanes != block.neurons)
          copies.fill(graph, never, second.slice(block.neurons, block.lanes));
        group.gradThreshold.push_back(second);
      }
      const BlockArray state(graph, blocks, FLOAT, group.rows(), {info, "state"});
      histories.emplace_back(graph, blocks, FLOAT, steps * group.rows(),
                             DebugContext{inLayer, "membranes of all steps"});
      zeroBlocks(graph, blocks, state.parts(), prepare);
      std::vector<Tensor> fired, carried; // [rows][words] of each block
      for (size_t i = 0; i < blocks.size(); ++i) {
        const Block &block = blocks[i];
        const size_t words = block.neurons > 32 ? 2 : 1;
        for (std::vector<Tensor> *bits : {&fired, &carried})
          bits->push_back(variableOn(graph, block.tile, UNSIGNED_INT, {group.rows(), words}, {info, "bits"}));
        VertexBuilder(graph, prepare, vertexName("ClampUnit", FLOAT), block.tile)
            .connect("values", group.beta[i])
            .count("size", block.lanes);
        VertexBuilder(graph, lif, vertexName("SparseLifForward", weightType, UNSIGNED_INT, options.reset), block.tile)
            .connect("weight", group.weight[i].flatten())
            .connect("bias", group.bias[i])
            .connect("beta", group.beta[i])
            .connect("threshold", group.threshold[i])
            .connect("gradThreshold", group.gradThreshold[i])
            .connect("ids", group.part(from.ids, from.slots).reinterpret(UNSIGNED_INT))
            .connect("values", unit ? unused : group.part(from.values, from.slots))
            .connect("counts", group.part(from.counts, 2))
            .connect("recurrentWeight", recurrent ? group.recurrentWeight[i].flatten() : noWeight)
            .connect("ownIds", recurrent ? group.part(spikes[l].ids, spikes[l].slots) : noWords)
            .connect("ownCounts", recurrent ? group.part(spikes[l].counts, 2) : noWords)
            .connect("state", state[i].flatten())
            .connect("fired", fired.back().flatten())
            .connect("carried", carried.back().flatten())
            .set("inputScale", layer.config.inputScale)
            .count("rows", group.rows())
            .count("slots", from.slots)
            .count("valueSlots", from.slots)
            .count("outputSlots", recurrent ? spikes[l].slots : 0)
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
    // Selection: each tile selects for its samples.
    const size_t words = (layer.config.neurons + 31) / 32, slots = layer.config.slots;
    const Tensor allFired = concat(firedWords), allCarried = concat(carriedWords);
    const Samples &samples = layer.selection;
    const auto floatsOfSteps = [&](size_t width) {
      return samples.variable(graph, FLOAT, steps, width, {inLayer, "spikes of all steps"});
    };
    const Tensor values = samples.variable(graph, FLOAT, 1, slots, {info, "values"});
    const Tensor dropped = samples.variable(graph, INT, 1, 2, {info, "dropped"});
    const Tensor idsOut = floatsOfSteps(slots), recorded = floatsOfSteps(slots), countsOut = floatsOfSteps(2),
                 droppedOut = floatsOfSteps(2);
    const bool half = input.values.elementType() == HALF;
    const Tensor valuesOut =
        half ? samples.variable(graph, HALF, steps, slots, {inLayer, "spikes of all steps, half"}) : recorded;
    std::vector<Tensor> starts;
    for (const Samples::Piece &piece : samples.pieces()) {
      const size_t rows = piece.end - piece.begin;
      const Tensor start = variableOn(graph, piece.tile, UNSIGNED_INT, {1}, {info, "start"});
      starts.push_back(start);
      const auto part = [&](const Tensor &of, size_t width) { return samples.part(of, piece, width); };
      VertexBuilder(graph, select, vertexName("SelectSpikes", FLOAT), piece.tile)
          .connect("fired", allFired.slice(piece.begin, piece.end, 0).flatten())
          .connect("carried", allCarried.slice(piece.begin, piece.end, 0).flatten())
          .connect("ids", part(spikes[l].ids, slots))
          .connect("values", part(values, slots))
          .connect("counts", part(spikes[l].counts, 2))
          .connect("dropped", part(dropped, 2))
          .connect("start", start)
          .count("rows", rows)
          .count("words", words)
          .count("slots", slots);
      if (options.rotate)
        step.addAdvance(record, start, static_cast<unsigned>(slots), layer.config.neurons, piece.tile);
      storeStep(graph, record, step, part(values, slots), part(recorded, slots), 1, piece.tile);
      if (half)
        addCast(graph, convert, part(recorded, slots), part(valuesOut, slots), piece.tile);
      // Store integers of a step, to be converted to floats after the last step.
      const auto recordAsFloats = [&](const Tensor &integers, const Tensor &out, size_t width) {
        const Tensor sequence =
            variableOn(graph, piece.tile, INT, {steps * rows * width}, {inLayer, "spikes of all steps, integers"});
        storeStep(graph, record, step, part(integers, width), sequence, 1, piece.tile);
        VertexBuilder(graph, convert, "snnipu::FloatsOfIds", piece.tile)
            .connect("from", sequence)
            .connect("to", part(out, width))
            .count("size", sequence.numElements());
      };
      recordAsFloats(spikes[l].ids, idsOut, slots);
      recordAsFloats(spikes[l].counts, countsOut, 2);
      recordAsFloats(dropped, droppedOut, 2);
    }
    const Tensor zeroWord = graph.addConstant(UNSIGNED_INT, {1}, 0u, {info, "zero"});
    graph.setTileMapping(zeroWord, static_cast<unsigned>(samples.pieces()[0].tile));
    const Tensor allStarts = concat(starts), counts = spikes[l].counts.flatten().reinterpret(UNSIGNED_INT);
    // Before the first step no neuron has fired.
    copies.add(
        zeroWord.broadcast(static_cast<unsigned>(allStarts.numElements() + counts.numElements()), 0).reinterpret(FLOAT),
        concat(allStarts, counts).reinterpret(FLOAT));
    outputs.push_back({{idsOut.reshape({steps, batch, slots}), valuesOut.reshape({steps, batch, slots}),
                        countsOut.reshape({steps, batch, 2}), droppedOut.reshape({steps, batch, 2})},
                       wholeOf(histories, steps)});
  }
  // The step is advanced while the neurons compute, because their vertices do not read it.
  step.advance(lif, 1);
  copies.run(prog, {info, "loadParameters"});
  step.set(0, prog);
  prog.add(Execute(prepare));
  prog.add(Repeat(static_cast<unsigned>(steps),
                  Sequence({Execute(load), Execute(lif), Execute(merge), Execute(select), Execute(record)}),
                  {info, "steps"}));
  prog.add(Execute(convert));
  return outputs;
}

NetworkGradients sparseNetworkGrad(Graph &graph, const std::vector<Tensor> &gradValues, const SlotTensors &input,
                                   const std::vector<NetworkParameters> &parameters,
                                   const std::vector<NetworkOutputs> &outputs, Sequence &prog,
                                   const SparseNetworkOptions &options, const DebugContext &debug) {
  const DebugInfo info(debug, "snnipu");
  Network net(graph, input, parameters, options);
  const size_t steps = net.steps, batch = net.batch, count = net.layers.size();
  Copies copies;
  net.load(graph, parameters, copies, info);
  StepCounters step(graph, info);
  const ComputeSet prepare = graph.addComputeSet({info, "prepare"}), load = graph.addComputeSet({info, "load"}),
                   sum = graph.addComputeSet({info, "sum"}), sumAll = graph.addComputeSet({info, "sumAll"}),
                   sumOwn = graph.addComputeSet({info, "sumOwn"}), lif = graph.addComputeSet({info, "lifBackward"}),
                   weights = graph.addComputeSet({info, "weights"}), sumInput = graph.addComputeSet({info, "sumInput"}),
                   sumAllInput = graph.addComputeSet({info, "sumAllInput"}),
                   record = graph.addComputeSet({info, "record"});
  const SlotSequence currentInput = net.sequence(graph, net.inputSamples, input, net.layers[0].config.inputs,
                                                 !options.unitInput, true, prog, DebugInfo({info, "input"}, "snnipu"))
                                        .load(graph, load, step, 0, {info, "inputOfStep"});
  const Tensor unused = emptyVariable(graph, FLOAT), noOrder = emptyVariable(graph, INT);
  const Tensor zero = zeros(graph, {1}, {info, "noGradient"});

  // The layers' spikes of this step, and of the step before for the next layer, with their upstream gradients.
  std::vector<SlotSequence> currentSpikes, previousSpikes;
  std::vector<Tensor> upstream; // of the step, or invalid
  for (size_t l = 0; l < count; ++l) {
    const Layer &layer = net.layers[l];
    const SlotTensors spikes = {outputs[l].spikes.ids, outputs[l].spikes.ids, outputs[l].spikes.counts, {}};
    checkSlots(network, spikes);
    const DebugInfo inLayer({info, nameOf(l)}, "snnipu");
    SlotSequence sequence =
        net.sequence(graph, layer.selection, spikes, layer.config.neurons, false, false, prog, inLayer);
    previousSpikes.push_back(l + 1 < count || layer.config.recurrent
                                 ? sequence.load(graph, load, step, 1, {info, "spikesBefore"})
                                 : SlotSequence());
    if (gradValues[l].valid())
      sequence.values = net.floats(graph, layer.selection, gradValues[l], sequence.slots, prog, inLayer);
    currentSpikes.push_back(sequence.load(graph, load, step, 0, {info, "spikesOfStep"}));
    upstream.push_back(currentSpikes.back().values);
  }

  // Partial gradients of slots' values, from a layer's blocks: the slots of its input, or its own of the step before.
  // For each group [blocks][rows * slots].
  struct PartialGradients {
    size_t layer, slots;
    std::vector<Tensor> groups;
  };
  std::vector<PartialGradients> partial(count), recurrentPartial(count);
  const auto hasInputGradient = [&](size_t l) { return l > 0 || options.inputGradient; };
  const auto partialOf = [&](size_t l, size_t slots) {
    PartialGradients result{l, slots, {}};
    for (const Group &group : net.layers[l].groups) {
      const std::vector<Block> &blocks = group.blocks;
      const Tensor partials = graph.addVariable(FLOAT, {blocks.size(), group.rows() * slots}, {info, "partial"});
      std::vector<Tensor> parts;
      for (size_t i = 0; i < blocks.size(); ++i) {
        graph.setTileMapping(partials[i], static_cast<unsigned>(blocks[i].tile));
        parts.push_back(partials[i]);
      }
      zeroBlocks(graph, blocks, parts, prepare);
      result.groups.push_back(partials);
    }
    return result;
  };
  for (size_t l = 0; l < count; ++l) {
    if (hasInputGradient(l))
      partial[l] = partialOf(l, l == 0 ? currentInput.slots : currentSpikes[l - 1].slots);
    if (net.layers[l].config.recurrent)
      recurrentPartial[l] = partialOf(l, currentSpikes[l].slots);
  }
  // Sum partial gradients over a group's tiles, on the same tiles. Otherwise a tile would receive numbers from every
  // other one, so there are two stages: each of a cluster of tiles sums a share of the slots over the cluster's blocks,
  // then each tile sums a share over the clusters. `first` and `second` are the stages' compute sets.
  const auto addSum = [&](const PartialGradients &of, ComputeSet first, ComputeSet second,
                          const Tensor &upstreamGradient, const Tensor &counts) {
    const size_t l = of.layer, slots = of.slots;
    std::vector<Tensor> outs;
    for (size_t g = 0; g < net.layers[l].groups.size(); ++g) {
      const Group &group = net.layers[l].groups[g];
      const std::vector<Block> &blocks = group.blocks;
      const size_t size = group.rows() * slots;
      const auto forShares = [&](size_t parts, const auto &body) {
        const size_t share = 2 * (((size + 1) / 2 + parts - 1) / parts);
        for (size_t begin = 0, i = 0; begin < size; begin += share, ++i)
          body(i, begin, std::min(size, begin + share));
      };
      Tensor addends = of.groups[g];
      if (blocks.size() > fewPartials) {
        size_t clusterSize = 1;
        while (clusterSize * clusterSize < blocks.size())
          ++clusterSize;
        const size_t clusters = (blocks.size() + clusterSize - 1) / clusterSize;
        const Tensor sums = graph.addVariable(FLOAT, {clusters, size}, {info, "partialOfCluster"});
        for (size_t cluster = 0; cluster < clusters; ++cluster) {
          const size_t begin = cluster * clusterSize, end = std::min(blocks.size(), begin + clusterSize);
          forShares(end - begin, [&](size_t i, size_t from, size_t to) {
            const Tensor part = sums[cluster].slice(from, to);
            graph.setTileMapping(part, static_cast<unsigned>(blocks[begin + i].tile));
            addSumRows(graph, first, addends.slice(begin, end, 0).slice(from, to, 1).flatten(), end - begin, part, 1.0f,
                       blocks[begin + i].tile);
          });
        }
        addends = sums;
      }
      const Tensor out = graph.addVariable(FLOAT, {1, size}, {info, "gradValues"});
      addSumSlots(
          graph, second, addends, group.part(counts, 2), slots, out.flatten(), blocks.size(),
          [&](size_t i) { return blocks[i].tile; },
          upstreamGradient.valid() ? group.part(upstreamGradient, slots) : upstreamGradient,
          net.layers[l].config.inputScale);
      outs.push_back(out);
    }
    return concat(outs, 1);
  };

  // Gradients of each group.
  struct Sums {
    std::vector<std::vector<Tensor>> weight, recurrentWeight, bias, beta, threshold;
  };
  std::vector<Sums> sums(count);
  bool hasThirdSum = false;
  for (size_t l = 0; l < count; ++l) {
    const Layer &layer = net.layers[l];
    const DebugInfo inLayer({info, nameOf(l)}, "snnipu");
    const size_t slots = currentSpikes[l].slots;
    Tensor total;
    const bool recurrent = layer.config.recurrent;
    if (l + 1 < count)
      total = addSum(partial[l + 1], sum, sumAll, upstream[l], currentSpikes[l].counts);
    if (recurrent && total.valid())
      total = addSum(recurrentPartial[l], sum, sumOwn, total, currentSpikes[l].counts);
    else if (recurrent)
      total = addSum(recurrentPartial[l], sum, sumAll, upstream[l], currentSpikes[l].counts);
    else if (!total.valid())
      total = upstream[l].valid() ? upstream[l] : zero.broadcast(static_cast<unsigned>(batch * slots), 0).expand({0});
    hasThirdSum = hasThirdSum || (recurrent && l + 1 < count);
    const SlotSequence &from = l == 0 ? currentInput : previousSpikes[l - 1];
    const bool unit = l > 0 || options.unitInput;
    for (size_t g = 0; g < layer.groups.size(); ++g) {
      const Group &group = layer.groups[g];
      const std::vector<Block> &blocks = group.blocks;
      const auto rowsOfBlocks = [&](size_t rows, const char *name) {
        return BlockArray(graph, blocks, FLOAT, rows, {inLayer, name}).parts();
      };
      Sums &layerSums = sums[l];
      layerSums.weight.push_back(rowsOfBlocks(layer.config.inputs, "weight gradients"));
      if (recurrent) {
        layerSums.recurrentWeight.push_back(rowsOfBlocks(layer.config.neurons, "recurrent weight gradients"));
        zeroBlocks(graph, blocks, layerSums.recurrentWeight.back(), prepare);
      }
      layerSums.bias.push_back(rowsOfBlocks(group.rows(), "gradBias"));
      layerSums.beta.push_back(rowsOfBlocks(group.rows(), "gradBeta"));
      layerSums.threshold.push_back(rowsOfBlocks(group.rows(), "gradThreshold"));
      const std::vector<Tensor> carry = rowsOfBlocks(group.rows(), "carry"), grad = rowsOfBlocks(group.rows(), "grad");
      for (const std::vector<Tensor> &parts :
           {layerSums.weight.back(), layerSums.bias.back(), layerSums.beta.back(), layerSums.threshold.back(), carry})
        zeroBlocks(graph, blocks, parts, prepare);
      const Tensor history =
          outputs[l].mem.slice(group.begin, group.end, 1).reshape({steps * group.rows(), layer.config.neurons});
      const std::vector<Tensor> mem =
          distribute(graph, blocks, history, 0.0f, copies, {inLayer, "membranes of all steps"});
      for (size_t i = 0; i < blocks.size(); ++i) {
        const Block &block = blocks[i];
        VertexBuilder(graph, lif, vertexName("SparseLifStepBackward", FLOAT, options.reset, options.surrogate),
                      block.tile)
            .connect("beta", group.beta[i])
            .connect("threshold", group.threshold[i])
            .connect("ids", group.part(currentSpikes[l].ids, slots))
            .connect("counts", group.part(currentSpikes[l].counts, 2))
            .connect("gradValues", group.part(total, slots))
            .connect("mem", mem[i].flatten())
            .connect("step", step.at(block.tile))
            .connect("carry", carry[i].flatten())
            .connect("grad", grad[i].flatten())
            .connect("gradBeta", layerSums.beta[g][i].flatten())
            .connect("gradThreshold", layerSums.threshold[g][i].flatten())
            .connect("gradBias", layerSums.bias[g][i].flatten())
            .set("surrogateA", options.surrogateA)
            .set("surrogateB", options.surrogateB)
            .count("rows", group.rows())
            .count("slots", slots)
            .count("lanes", block.lanes)
            .count("firstId", block.first)
            .count("neurons", block.neurons);
        // Add the gradients of the weights that spikes gather, and of the spikes' values.
        const auto addWeights = [&](const SlotSequence &spikes, bool unitValues, const Tensor &weight, size_t inputs,
                                    const Tensor &gradWeight, const PartialGradients &partials) {
          VertexBuilder(graph, weights, vertexName("SparseLinearWeightUpdate", FLOAT), block.tile)
              .connect("ids", group.part(spikes.ids, spikes.slots))
              .connect("values", unitValues ? unused : group.part(spikes.values, spikes.slots))
              .connect("counts", group.part(spikes.counts, 2))
              .connect("order", spikes.order.valid() ? group.part(spikes.order, 1) : noOrder)
              .connect("grad", grad[i].flatten())
              .connect("gradWeight", gradWeight.flatten())
              .set("scale", layer.config.inputScale)
              .count("rows", group.rows())
              .count("slots", spikes.slots)
              .count("inputs", inputs)
              .count("lanes", block.lanes)
              .set("unitValues", unitValues)
              .set("ascending", !spikes.order.valid());
          if (!partials.groups.empty())
            VertexBuilder(graph, weights, vertexName("SparseLinearValueGradient", weight.elementType(), UNSIGNED_INT),
                          block.tile)
                .connect("weight", weight.flatten())
                .connect("grad", grad[i].flatten())
                .connect("ids", group.part(spikes.ids, spikes.slots).reinterpret(UNSIGNED_INT))
                .connect("counts", group.part(spikes.counts, 2))
                .connect("gradValues", partials.groups[g][i])
                .count("rows", group.rows())
                .count("slots", spikes.slots)
                .count("lanes", block.lanes);
        };
        addWeights(from, unit, group.weight[i], layer.config.inputs, layerSums.weight[g][i], partial[l]);
        if (recurrent)
          addWeights(previousSpikes[l], true, group.recurrentWeight[i], layer.config.neurons,
                     layerSums.recurrentWeight[g][i], recurrentPartial[l]);
      }
    }
  }
  Sequence body({Execute(load), Execute(sum), Execute(sumAll)});
  // A recurrent layer that is not the last one needs a third sum.
  if (hasThirdSum)
    body.add(Execute(sumOwn));
  body.add(Execute(lif));
  body.add(Execute(weights));
  NetworkGradients out;
  const Type valueType = input.values.elementType();
  out.inputValues = zeros(graph, input.values.shape(), {info, "gradInput"}, valueType);
  const ComputeSet cast = graph.addComputeSet({info, "inHalf"});
  if (options.inputGradient) {
    const Tensor gradInput = addSum(partial[0], sumInput, sumAllInput, {}, currentInput.counts);
    const Tensor all = net.inputSamples.variable(graph, FLOAT, steps, currentInput.slots, {info, "gradInput"});
    for (const Samples::Piece &piece : net.inputSamples.pieces())
      storeStep(graph, record, step, net.inputSamples.part(gradInput, piece, currentInput.slots),
                net.inputSamples.part(all, piece, currentInput.slots), ~0u, piece.tile);
    Tensor converted = all;
    if (valueType == HALF) {
      converted = net.inputSamples.variable(graph, valueType, steps, currentInput.slots, {info, "gradInputInHalf"});
      for (const Samples::Piece &piece : net.inputSamples.pieces())
        addCast(graph, cast, net.inputSamples.part(all, piece, currentInput.slots),
                net.inputSamples.part(converted, piece, currentInput.slots), piece.tile);
    }
    out.inputValues = converted.reshape(input.values.shape());
    body.add(Execute(sumInput));
    body.add(Execute(sumAllInput));
    body.add(Execute(record));
  }
  step.advance(weights, ~0u);
  copies.run(prog, {info, "loadParameters"});
  step.set(steps - 1, prog);
  prog.add(Execute(prepare));
  prog.add(Repeat(static_cast<unsigned>(steps), body, {info, "steps"}));
  const ComputeSet sumGroups = graph.addComputeSet({info, "groups"});
  for (size_t l = 0; l < count; ++l) {
    const SharedBlocks blocks = sharedBlocks(net.layers[l].groups);
    const NetworkParameters &like = parameters[l];
    const auto weightOf = [&](const std::vector<std::vector<Tensor>> &arrays, const Type &type) {
      return blocks.sumOfGroups(graph, arrays, type, sumGroups, cast, {info, "gradWeight"});
    };
    NetworkParameters gradients;
    gradients.weight = weightOf(sums[l].weight, like.weight.elementType());
    if (net.layers[l].config.recurrent)
      gradients.recurrentWeight = weightOf(sums[l].recurrentWeight, like.recurrentWeight.elementType());
    gradients.beta = blocks.sumOfRows(graph, sums[l].beta, like.beta, prog, {info, "beta"});
    gradients.threshold = blocks.sumOfRows(graph, sums[l].threshold, like.threshold, prog, {info, "threshold"});
    if (like.bias.valid())
      gradients.bias = blocks.sumOfRows(graph, sums[l].bias, like.bias, prog, {info, "bias"});
    out.parameters.push_back(gradients);
  }
  prog.add(Execute(sumGroups));
  prog.add(Execute(cast));
  return out;
}

} // namespace graph
} // namespace snnipu
