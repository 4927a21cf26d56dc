// Estimates of the cycles that our vertices take on a tile.
//
// The estimates count instructions. A worker issues one every 6 cycles of the tile and does not wait for its own
// results, so a vertex takes 6 cycles for each instruction of its slowest worker. Inner loops are counted in Clang's
// code: `iteration` reads counts.cpp, which `make check-counts` compares with the sources. Other code is counted by
// hand, per float2 (two lanes):
//   load, store    1: fields are aligned to 64 bits. Two halves: one access and one conversion
//   arithmetic     1: f32v2add, f32v2mul, ...; a comparison 1, a selection by its mask 3 (and, andc, or), H(u) 2
//   loop           3: branch, index, address
//   division 10, as PopLibs estimates it; exp 62: the polynomial of csrc/neuron/lanes.hpp
// Instructions are assumed not to issue in pairs, although the tile can issue a load with an arithmetic instruction, so
// popc's code takes between half of this and all of it. The code around loops is calibrated by PopLibs' estimates of
// its assembly: 29 instructions for a worker's start and end (float addition, with 3 per float2: two loads and a store
// of 64 bits with the addition in parallel), 11 cycles of the supervisor, and 19 + 2 for each 8 bytes of a gathered row
// (MultiSlice); a spike takes 5 + 3 for each float2 here, per group of 8 lanes.
#include "ipu_model/codelet.hpp"
#include "ipu_model/counts.hpp"
#include "neuron/surrogate.hpp"

#include <poplar/Graph.hpp>

#include <algorithm>
#include <map>

namespace snnipu {
namespace ipu_model {
namespace {

using poplar::Target;
using poplar::VertexIntrospector;
using poplar::VertexPerfEstimate;
using Count = std::uint64_t;

constexpr Count workerInstructions = 29;
constexpr Count supervisorCycles = 11;
constexpr Count move = 1; // a load or a store of two lanes
constexpr Count loop = 3;
constexpr Count select = 3;
constexpr Count heaviside = 2;
constexpr Count clampUnit = 2 * (1 + select);
constexpr Count absolute = 2 + select;
constexpr Count division = 10;
constexpr Count exponential = 62;

Count ceilDiv(Count a, Count b) { return (a + b - 1) / b; }

// Return the instructions of a loop's iteration in Clang's code.
Count iteration(const std::string &loop) { return instructionsOfLoop.at(loop); }
// Return the additional instructions of a loop compared with another.
Count additional(const std::string &loop, const std::string &than) {
  return iteration(loop) > iteration(than) ? iteration(loop) - iteration(than) : 0;
}
Count difference(Count all, Count part) { return all > part ? all - part : 0; }

// Return the instructions of a binary search among n numbers.
Count search(Count n) {
  Count steps = 0;
  for (; n > 0; n /= 2)
    ++steps;
  return 8 + 7 * steps;
}

// Access to the fields of the vertex to be estimated, with common formulas.
struct VertexQuery {
  const VertexIntrospector &vertex;
  const Target &target;

  Count value(const char *field) const { return vertex.getFieldInfo(field).getInitialValue<Count>(target); }
  bool flag(const char *field) const { return value(field) != 0; }
  Count size(const char *field) const { return vertex.getFieldInfo(field).size(); }
  bool is(const char *part) const { return vertex.getVertexName().find(part) != std::string::npos; }
  bool isHalf() const { return is("<half"); }
  // Return the number of a row's slots that are assumed to hold a spike.
  Count used(const char *slots) const { return used(value(slots)); }
  Count used(Count slots) const { return static_cast<Count>(static_cast<double>(slots) * vertex.occupancy() + 0.5); }
  Count workers() const { return target.getNumWorkerContexts(); }
  // Return the largest share of a worker.
  Count share(Count items) const { return ceilDiv(items, workers()); }
  // Return the cycles of the tile if its slowest worker takes these instructions.
  Count cycles(Count instructions) const { return workers() * (workerInstructions + instructions) + supervisorCycles; }

  // Return the instructions of a surrogate's operations, without those on its parameters alone, which run once.
  static Count surrogate(SurrogateKind kind) {
    switch (kind) {
#define SNNIPU_CASE(Name)                                                                                              \
  case SurrogateKind::Name:                                                                                            \
    return instructions(snnipu::Name<float>::operations);
      SNNIPU_SURROGATES(SNNIPU_CASE)
#undef SNNIPU_CASE
    case SurrogateKind::Any:
      break;
    }
    throw std::invalid_argument("unknown surrogate");
  }
  static Count instructions(const SurrogateOperations &o) {
    return o.plain + o.selects * select + o.absolutes * absolute + o.divisions * division +
           o.exponentials * exponential;
  }
  // The same for a vertex with the surrogate in its name.
  Count surrogate() const {
#define SNNIPU_CASE(Name)                                                                                              \
  if (is("SurrogateKind::" #Name))                                                                                     \
    return surrogate(SurrogateKind::Name);
    SNNIPU_SURROGATES(SNNIPU_CASE)
#undef SNNIPU_CASE
    throw std::invalid_argument("no surrogate in " + vertex.getVertexName());
  }
  Count integrate() const { return is("Reset::None") ? 2 : 4; }
  Count carry() const { return is("Reset::Zero") ? 5 : is("Reset::None") ? 2 : 3; }
};

// Return the name of the loop for a vertex name: "snnipu::NeuronForward<float,snnipu::Alpha,snnipu::Variant::V0>" ->
// "NeuronForward_Alpha_V0".
std::string neuronLoop(const VertexQuery &a, const char *direction) {
  const std::string name = a.vertex.getVertexName(), variant = "::Variant::";
  const std::size_t neuron = name.find(",snnipu::") + 9, end = name.find(',', neuron);
  const std::size_t number = name.find(variant) + variant.size();
  return std::string("Neuron") + direction + "_" + name.substr(neuron, end - neuron) + "_" +
         name.substr(number, name.size() - 1 - number);
}

Count bits(Count mask) {
  Count count = 0;
  for (; mask; mask &= mask - 1)
    ++count;
  return count;
}

Count neuronStates(const VertexQuery &a, const char *field) { return a.size(field) / a.value("size"); }
Count neuronParameters(const VertexQuery &a) {
  return a.size("parameters") / (a.flag("perElement") ? a.value("size") : 1);
}

// Return the instructions of a step of one register that stores `stored` of the states.
Count neuronStep(const VertexQuery &a, Count states, Count stored) {
  const std::string leaky = "NeuronForward_Leaky_V0";
  Count each = iteration(neuronLoop(a, "Forward"));
  each += a.isHalf() ? additional("NeuronForward_half", leaky) + states - 1 : 0;
  each += a.flag("perElement") ? ceilDiv(additional("NeuronForward_perElement", leaky) * neuronParameters(a), 3) : 0;
  return difference(each, (states - std::min(states, stored)) * (move + 1));
}

VertexPerfEstimate neuronForward(const VertexQuery &a) {
  const Count registers = ceilDiv(a.value("size"), 2), states = neuronStates(a, "state");
  const Count each = neuronStep(a, states, bits(a.value("keptStates")));
  const Count rowStart = 12 + 3 * states; // addresses of the rows
  const Count steps = a.value("steps");
  return {a.cycles(18 + steps * (rowStart + a.share(registers) * each)), steps * a.value("size") * 8 * states};
}

VertexPerfEstimate neuronBackward(const VertexQuery &a) {
  const Count registers = ceilDiv(a.value("size"), 2), states = neuronStates(a, "initial"), read = move + 1;
  const Count steps = a.value("steps"), parameters = neuronParameters(a), share = a.share(registers);
  Count each = iteration(neuronLoop(a, "Backward"));
  // The probe has Atan. The vertex chooses its surrogate for every register.
  const Count dispatch = 5;
  each = difference(each + dispatch + VertexQuery::surrogate(static_cast<SurrogateKind>(a.value("surrogate"))),
                    VertexQuery::surrogate(SurrogateKind::Atan));
  each += a.isHalf() ? additional("NeuronBackward_half", "NeuronBackward_Leaky_V0") + 2 * (states - 1) : 0;
  each += a.flag("perElement")
              ? ceilDiv(additional("NeuronForward_perElement", "NeuronForward_Leaky_V0") * parameters, 3)
              : 0;
  each += bits(a.value("seedStates")) * (read + 1);
  const Count rowStart = 20 + 8 * states, begin = share * (parameters + states) * (loop + 2 * move);
  Count all = 28 + begin + steps * (rowStart + share * each);
  if (a.flag("recompute")) {
    const Count forward = 12 + 3 * states + share * neuronStep(a, states, states);
    all += (a.value("segment") < steps ? 2 : 1) * steps * forward;
  }
  return {a.cycles(all), steps * a.value("size") * 20 * states};
}

VertexPerfEstimate surrogateSpike(const VertexQuery &a) {
  const Count registers = ceilDiv(a.value("size"), 2);
  return {a.cycles(3 + a.share(registers) * iteration("SurrogateSpike")), a.value("size")};
}

VertexPerfEstimate surrogateSpikeBackward(const VertexQuery &a) {
  const Count registers = ceilDiv(a.value("size"), 2);
  // The instructions around the surrogate, from the probe with Atan.
  const Count around =
      difference(iteration("SurrogateSpikeBackward_Atan"), VertexQuery::surrogate(SurrogateKind::Atan));
  return {a.cycles(6 + a.share(registers) * (around + a.surrogate())), 8 * a.value("size")};
}

// Lanes are processed in groups of four registers, and the remainder in single ones. Return the sum of of(registers)
// over the groups.
template <typename Of> Count overGroups(Count lanes, const Of &of) {
  const Count registers = ceilDiv(lanes, 2);
  return registers / 4 * of(4) + registers % 4 * of(1);
}

// Return the instructions to gather `spikes` weights, for one row and one group.
Count gather(Count spikes, bool unit, Count registers) {
  return spikes * iteration("gather_" + std::to_string(registers) + (unit ? "" : "_values"));
}

VertexPerfEstimate sparseLinearForward(const VertexQuery &a) {
  const Count rows = a.share(a.value("rows")), spikes = a.used("slots"), lanes = a.value("lanes");
  const bool unit = a.flag("unitValues");
  const Count all = overGroups(lanes, [&](Count registers) {
    return 8 + registers * move + rows * (12 + gather(spikes, unit, registers) + registers * (1 + 2 + move));
  });
  return {a.cycles(11 + all), 2 * a.value("rows") * spikes * lanes};
}

VertexPerfEstimate sparseLinearValueGradient(const VertexQuery &a) {
  const Count rows = a.share(a.value("rows")), slots = a.used("slots"), lanes = a.value("lanes");
  const Count all = overGroups(lanes, [&](Count registers) {
    // For each slot: the product, the sum of two lanes, and its address in gradValues.
    return 8 + rows * (14 + registers * move + slots * (5 + registers * (move + 2) + 6));
  });
  return {a.cycles(9 + all + rows * slots * 2), 2 * a.value("rows") * slots * lanes};
}

VertexPerfEstimate sparseLinearWeightUpdate(const VertexQuery &a) {
  const Count slots = a.used("slots"), registers = ceilDiv(a.value("lanes"), 2);
  // Every worker has a sixth of the spikes. It searches its first spike in every row. The ids of a row are assumed to
  // ascend, as those of SelectSpikes do.
  const Count searches = a.value("rows") * (12 + search(slots));
  const Count updates = a.share(a.value("rows") * slots) * (8 + registers * iteration("SparseLinearWeightUpdate"));
  return {a.cycles(12 + searches + updates), 2 * a.value("rows") * slots * a.value("lanes")};
}

// Return the instructions to add a spike to `lanes` neurons, each with its own delay.
Count delayed(const VertexQuery &a, Count lanes, const std::string &loop) {
  // For each synapse: its lag, two addresses, the comparison of times.
  return 14 + lanes * (9 + a.value("taps") * iteration(a.isHalf() ? loop + "_half" : loop));
}

VertexPerfEstimate delayLinearForward(const VertexQuery &a) {
  const Count samples = a.value("samples"), lanes = a.value("lanes"), rows = a.value("rows"), spikes = a.used("slots");
  // A worker has columns of the currents, possibly of several samples, and reads the spikes of each sample.
  const Count columns = a.share(samples * lanes), visited = ceilDiv(columns, lanes),
              ownCount = ceilDiv(columns, visited);
  const Count first = a.flag("begins") ? a.value("steps") * columns * (loop + 2 * move) : 0;
  const Count all = visited * ceilDiv(rows, samples) * (10 + spikes * delayed(a, ownCount, "DelayLinearForward"));
  return {a.cycles(20 + first + all), 2 * rows * spikes * lanes * a.value("taps")};
}

VertexPerfEstimate delayLinearWeightUpdate(const VertexQuery &a) {
  const Count slots = a.used("slots"), rows = a.value("rows"), lanes = a.value("lanes");
  const Count updates = a.share(rows * slots) * (8 + delayed(a, lanes, "DelayLinearWeightUpdate"));
  return {a.cycles(14 + rows * (14 + search(slots)) + updates), 2 * rows * slots * lanes * a.value("taps")};
}

VertexPerfEstimate delayLinearValueGradient(const VertexQuery &a) {
  const Count slots = a.used("slots"), rows = a.value("rows"), lanes = a.value("lanes");
  const Count all = a.share(rows) * (14 + slots * delayed(a, lanes, "DelayLinearValueGradient"));
  return {a.cycles(14 + all), 2 * rows * slots * lanes * a.value("taps")};
}

VertexPerfEstimate sparseLifForward(const VertexQuery &a) {
  const Count rows = a.share(a.value("rows")), lanes = a.value("lanes");
  const Count spikes = a.flag("input") ? a.used("slots") : 0,
              ownCount = a.flag("recurrent") ? a.used("outputSlots") : 0;
  const bool unit = a.flag("unitValues");
  // Membrane, bias, beta, both thresholds; the step; two bits of each lane in words of 64.
  const Count neuron = 6 * move + 2 + 1 + heaviside + a.integrate() + 3 + 28;
  const Count all = overGroups(lanes, [&](Count registers) {
    return 16 + gather(spikes, unit, registers) + gather(ownCount, true, registers) + registers * neuron;
  });
  return {a.cycles(22 + rows * (20 + all)), 2 * a.value("rows") * (spikes + ownCount + 4) * lanes};
}

VertexPerfEstimate sparseLifStepBackward(const VertexQuery &a) {
  const Count slots = a.value("slots"), rows = a.share(a.value("rows")), registers = ceilDiv(a.value("lanes"), 2);
  // Every block searches its first spike twice. It has at most one spike for each of its neurons.
  const Count used = a.used(slots), ownCount = std::min(used, a.value("neurons"));
  const Count each = loop + 3 * move + clampUnit + 1 + heaviside + a.carry() + 2 * move + 3 * 2 * move + 3 + 1 + select;
  const Count row = 16 + 2 * search(used) + ownCount * (14 + a.surrogate()) + registers * each;
  return {a.cycles(18 + rows * row), a.value("rows") * (ownCount * 10 + a.value("lanes") * 12)};
}

VertexPerfEstimate selectSpikes(const VertexQuery &a) {
  const Count rows = a.value("rows"), words = a.value("words"), slots = a.value("slots"), spikes = a.used(slots);
  // Counting bits, extracting them one by one, then values and padding. If there are few rows, several workers share a
  // row except for the counting.
  const Count parts = rows != 0 ? std::max<Count>(1, a.workers() / rows) : 1;
  const Count row =
      40 + words * 9 + ceilDiv(words, parts) * 6 + ceilDiv(spikes * 10 + slots * 4 + (slots - spikes) * 2, parts);
  return {a.cycles(20 + a.share(rows * parts) * row)};
}

VertexPerfEstimate selectSpikesBackward(const VertexQuery &a) {
  const Count rows = a.share(a.value("rows")), slots = a.value("slots"), carried = a.used(slots);
  const Count each = loop + 3 * move + 1 + a.surrogate() + (a.flag("perNeuron") ? 8 : 0);
  return {a.cycles(11 + rows * (14 + ceilDiv(carried, 2) * each + (slots - carried) * 2)), rows * carried * 10};
}

VertexPerfEstimate above(const VertexQuery &a) {
  const Count neurons = a.value("neurons"), words = ceilDiv(neurons, 32);
  const Count word = 14 + std::min<Count>(neurons, 32) * (12 + (a.flag("perNeuron") ? 1 : 0));
  return {a.cycles(10 + a.share(a.value("rows") * words) * word), 2 * a.value("rows") * neurons};
}

VertexPerfEstimate gatherSlots(const VertexQuery &a) {
  return {a.cycles(7 + a.share(a.value("rows")) * (8 + a.value("slots") * 12))};
}

VertexPerfEstimate scatterSlots(const VertexQuery &a) {
  const Count row = 10 + a.value("neurons") * 2 + a.used("slots") * 10;
  return {a.cycles(7 + a.share(a.value("rows")) * row), a.value("rows") * a.used("slots")};
}

// The loop has an iteration for each element of a worker's share.
VertexPerfEstimate elementwise(const VertexQuery &a) {
  const std::string name = a.vertex.getVertexName().substr(std::string("snnipu::").size());
  return {a.cycles(4 + a.share(a.value("size")) * iteration(name.substr(0, name.find('<')))), a.value("size")};
}

VertexPerfEstimate advance(const VertexQuery &a) { return {a.cycles(12)}; }

VertexPerfEstimate mergeBits(const VertexQuery &a) {
  return {a.cycles(6 + a.share(a.value("rows")) * (10 + a.value("pieces") * 12))};
}

VertexPerfEstimate sumSlots(const VertexQuery &a) {
  return {a.cycles(7 + a.share(a.value("size")) * (8 + a.value("blocks") * 5)), a.value("size") * a.value("blocks")};
}

VertexPerfEstimate sumRows(const VertexQuery &a) {
  return {a.cycles(5 + a.share(a.value("columns")) * (6 + a.value("rows") * iteration("SumRows"))), a.size("in")};
}

VertexPerfEstimate ascending(const VertexQuery &a) {
  return {a.cycles(6 + a.share(a.value("rows")) * (10 + a.used("slots") * 6))};
}

VertexPerfEstimate sumParts(const VertexQuery &a) {
  const Count parts = a.value("parts");
  return {a.cycles(5 + a.share(parts) * (9 + ceilDiv(a.value("size"), parts) * iteration("SumParts"))),
          a.value("size")};
}

VertexPerfEstimate cast(const VertexQuery &a) {
  return {a.cycles(4 + a.share(ceilDiv(a.value("size"), 2)) * iteration(a.isHalf() ? "Cast_toFloat" : "Cast_toHalf"))};
}

// A kernel over maps: the average number of its indices that lead from an input coordinate to a place of the vertex,
// and the cost of the loops over the others.
struct Kernel {
  const VertexQuery &a;
  double down, across;
  Count taps;
  static constexpr double index = 7; // go to the next index and check if it leads to a place

  explicit Kernel(const VertexQuery &query, const char *lines)
      : a(query), down(hits(a.value(lines), a.value("kernelHeight"), a.value("inHeight"))),
        across(hits(a.value("width"), a.value("kernelWidth"), a.value("inWidth"))),
        taps(a.value("kernelHeight") * a.value("kernelWidth")) {}

  static double hits(Count places, Count taps, Count inputs) {
    return std::min(static_cast<double>(taps),
                    static_cast<double>(places * taps) / static_cast<double>(std::max<Count>(1, inputs)));
  }
  // Return the instructions to unpack a position and compute the outputs of the first indices.
  double start() const { return 24 + (a.value("strideY") > 1 ? 12 : 0) + (a.value("strideX") > 1 ? 12 : 0); }
  // Return the instructions for all indices of an input, with `each` for one that leads to a place within the fraction
  // `part` of the lines.
  double over(double each, double part = 1.0) const {
    const double rows = static_cast<double>(a.value("kernelHeight")),
                 columns = static_cast<double>(a.value("kernelWidth"));
    return rows * index + down * part * (8 + columns * index + across * each);
  }
};

// Spikes of other groups of channels, which the vertex skips, are counted as if they were its own.
VertexPerfEstimate sparseConvForward(const VertexQuery &a) {
  const Kernel kernel(a, "lines");
  const Count shares = a.value("shares"), lanes = a.value("lanes"), spikes = a.used("slots");
  const double places = static_cast<double>(a.value("lines") * a.value("width")) / static_cast<double>(shares);
  const auto item = [&](Count registers) {
    const double each =
        static_cast<double>(iteration("addKernelLine_" + std::to_string(registers) + (a.isHalf() ? "_half" : "")));
    const double spike =
        kernel.start() + kernel.over(std::max(0.0, each - kernel.index), 1.0 / static_cast<double>(shares));
    return 20 + places * (3 + static_cast<double>(registers * move)) + static_cast<double>(spikes) * spike;
  };
  const Count groups = ceilDiv(lanes, 8);
  const double row = static_cast<double>(groups - 1) * item(4) + item(ceilDiv(lanes - 8 * (groups - 1), 2));
  const double all =
      static_cast<double>(a.share(a.value("rows") * groups * shares)) * row / static_cast<double>(groups);
  return {
      a.cycles(30 + static_cast<Count>(all)),
      static_cast<Count>(2.0 * static_cast<double>(a.value("rows") * spikes * lanes) * kernel.down * kernel.across)};
}

// Lanes are processed in groups of four registers with `loop` per iteration, and the remainder in single ones, counted
// by hand: two loads, a multiplication and an addition, for a weight's gradient a store, and the loop.
double overLanes(double registers, double loop, Count single) {
  const double groups = static_cast<double>(static_cast<Count>(registers / 4));
  return groups * loop + (registers - 4 * groups) * static_cast<double>(single);
}

VertexPerfEstimate sparseConvWeightUpdate(const VertexQuery &a) {
  const Kernel kernel(a, "lines");
  const Count lanes = a.value("lanes"), groups = ceilDiv(lanes, 8), items = a.share(kernel.taps * groups);
  const double hit = kernel.down * kernel.across / static_cast<double>(kernel.taps);
  const double taps = static_cast<double>(ceilDiv(items, groups));
  const double registers = static_cast<double>(std::min(4 * items, ceilDiv(lanes, 2) * ceilDiv(items, groups))) / taps;
  const double each =
      overLanes(registers, static_cast<double>(iteration("SparseConvWeightUpdate")), loop + 3 * move + 2);
  const double spike = kernel.start() + 6 + taps * (12 + hit * (10 + each));
  const Count spikes = a.value("rows") * a.used("slots");
  return {a.cycles(40 + a.value("rows") * 12 + static_cast<Count>(static_cast<double>(spikes) * spike)),
          static_cast<Count>(2.0 * static_cast<double>(spikes * lanes) * kernel.down * kernel.across)};
}

VertexPerfEstimate sparseConvValueGradient(const VertexQuery &a) {
  const Kernel kernel(a, "lines");
  const Count slots = a.used("slots"), registers = ceilDiv(a.value("lanes"), 2);
  const Count group = iteration(a.isHalf() ? "SparseConvValueGradient_half" : "SparseConvValueGradient");
  const double each = 8 + overLanes(static_cast<double>(registers), static_cast<double>(group), loop + 2 * move + 2);
  const double slot = kernel.start() + 8 + kernel.over(each);
  const double row = 16 + static_cast<double>(a.share(slots)) * slot;
  return {a.cycles(20 + static_cast<Count>(static_cast<double>(a.value("rows")) * row)),
          static_cast<Count>(2.0 * static_cast<double>(a.value("rows") * slots * a.value("lanes")) * kernel.down *
                             kernel.across)};
}

VertexPerfEstimate channelsFirst(const VertexQuery &a) {
  const Count runs = ceilDiv(a.share(a.size("to")), a.value("places")) + 1;
  return {a.cycles(20 + runs * 14 +
                   a.share(a.size("to")) * iteration(a.isHalf() ? "ChannelsFirst_half" : "ChannelsFirst"))};
}

VertexPerfEstimate channelsLast(const VertexQuery &a) {
  const Count each = 14 + a.value("lanes") * iteration(a.isHalf() ? "ChannelsLast_half" : "ChannelsLast");
  return {a.cycles(16 + a.share(a.value("rows") * a.value("places")) * each)};
}

// Two divisions by multiplication, packing, and the clamping.
VertexPerfEstimate placesOfFloats(const VertexQuery &a) { return {a.cycles(30 + a.share(a.value("size")) * 38)}; }

VertexPerfEstimate sparsePoolWindows(const VertexQuery &a) {
  const Kernel kernel(a, "height");
  const double shares = static_cast<double>(a.value("shares")), slots = static_cast<double>(a.used("slots"));
  const double windows = static_cast<double>(a.value("channels") * a.value("height") * a.value("width"));
  // A worker reads all slots of a row, and processes those of its channels.
  const double item = 20 + windows / shares * 4 + slots * 8 + slots / shares * (kernel.start() + kernel.over(14));
  return {a.cycles(16 + static_cast<Count>(static_cast<double>(a.share(a.value("rows") * a.value("shares"))) * item))};
}

VertexPerfEstimate sparsePoolBits(const VertexQuery &a) {
  return {a.cycles(16 + a.share(a.size("fired")) * (14 + 32 * 9))};
}

VertexPerfEstimate sparsePoolGradient(const VertexQuery &a) {
  const Kernel kernel(a, "height");
  const Count used = a.used("slots");
  const double row = 12 + static_cast<double>(a.share(used)) * (kernel.start() + 10 + division + kernel.over(5)) +
                     static_cast<double>(a.share(a.value("slots") - used)) * (6 + division);
  return {a.cycles(16 + static_cast<Count>(static_cast<double>(a.value("rows")) * row))};
}

const std::map<std::string, VertexPerfEstimate (*)(const VertexQuery &)> estimates = {
    {"snnipu::SparseConvForward", sparseConvForward},
    {"snnipu::SparseConvWeightUpdate", sparseConvWeightUpdate},
    {"snnipu::SparseConvValueGradient", sparseConvValueGradient},
    {"snnipu::ChannelsFirst", channelsFirst},
    {"snnipu::ChannelsLast", channelsLast},
    {"snnipu::PlacesOfFloats", placesOfFloats},
    {"snnipu::SparsePoolWindows", sparsePoolWindows},
    {"snnipu::SparsePoolBits", sparsePoolBits},
    {"snnipu::SparsePoolGradient", sparsePoolGradient},
    {"snnipu::NeuronForward", neuronForward},
    {"snnipu::NeuronBackward", neuronBackward},
    {"snnipu::SurrogateSpike", surrogateSpike},
    {"snnipu::SurrogateSpikeBackward", surrogateSpikeBackward},
    {"snnipu::SparseLinearForward", sparseLinearForward},
    {"snnipu::SparseLinearValueGradient", sparseLinearValueGradient},
    {"snnipu::SparseLinearWeightUpdate", sparseLinearWeightUpdate},
    {"snnipu::DelayLinearForward", delayLinearForward},
    {"snnipu::DelayLinearWeightUpdate", delayLinearWeightUpdate},
    {"snnipu::DelayLinearValueGradient", delayLinearValueGradient},
    {"snnipu::SparseLifForward", sparseLifForward},
    {"snnipu::SparseLifStepBackward", sparseLifStepBackward},
    {"snnipu::SelectSpikes", selectSpikes},
    {"snnipu::SelectSpikesBackward", selectSpikesBackward},
    {"snnipu::Above", above},
    {"snnipu::GatherSlots", gatherSlots},
    {"snnipu::ScatterSlots", scatterSlots},
    {"snnipu::IdsOfFloats", elementwise},
    {"snnipu::FloatsOfIds", elementwise},
    {"snnipu::Zero", elementwise},
    {"snnipu::ClampUnit", elementwise},
    {"snnipu::LoadStep", elementwise},
    {"snnipu::StoreStep", elementwise},
    {"snnipu::Advance", advance},
    {"snnipu::MergeBits", mergeBits},
    {"snnipu::SumSlots", sumSlots},
    {"snnipu::SumRows", sumRows},
    {"snnipu::SumParts", sumParts},
    {"snnipu::Cast", cast},
    {"snnipu::Ascending", ascending},
};

const EstimatorRegistration registration("snnipu", [](poplar::Graph &graph) {
  for (const std::string &name : codeletNames("snnipu")) {
    const auto found = estimates.find(name.substr(0, name.find('<')));
    if (found == estimates.end())
      continue;
    const auto estimate = found->second;
    graph.registerPerfEstimator(name, [estimate](const VertexIntrospector &vertex, const Target &target) {
      return estimate(VertexQuery{vertex, target});
    });
  }
});

} // namespace
} // namespace ipu_model

// The function that csrc/neuron/lanes.hpp calls.
void checkAlignment(const void *address, unsigned bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    throw ipu_model::MisalignedAccess(bytes);
}

} // namespace snnipu
