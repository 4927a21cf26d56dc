// Layers of leaky neurons on spikes, and sums of weighted spikes, for any connection: arguments of a call, their
// checks, and sums of the parameters' gradients.
//
// A connection, FullyConnected or Convolution, defines which neurons a spike reaches:
//
//   Connection<C>(call)
//   idsByRow                  true if it checks the ids itself, row by row
//   inputs(), neurons(), and units(), with a bias, beta and threshold each: neurons, or channels
//   blocks                    of units: count(), first(block), held(block), lanes(block)
//   additions(spikes, rows)   estimate for a layer's pass; sets the number of threads
//   currents(...), gradients(...)   sums of weighted spikes, and their gradients
//
// The two passes of its layers are:
//
//   Forward<C>(connection, layer, spikes, call)
//     integrate(threads), fullestRow(), select(call)   all steps; slots of the fullest row; the spikes' slots
//   Backward<C>(connection, layer, spikes, threads)
//     run(), parameterSums                             [block][any number of parts]
#pragma once

#include "host/sparse.hpp"
#include "neuron/leaky.hpp"

#include <limits>

namespace snnipu {

inline bool knownReset(int32_t reset) { return reset >= SNNIPU_RESET_SUBTRACT && reset <= SNNIPU_RESET_NONE; }

// Return beta clamped to [0, 1].
template <typename C> C clamped(C beta) { return clampUnit(SingleLane<C>{beta})[0]; }

// A parameter (beta, threshold, ...): one value, or one for each unit.
template <typename C> struct PerUnit {
  const C *values;
  size_t size;

  PerUnit(const C *v, size_t s) : values(v), size(s) {}
  PerUnit(const Call<C> &a, const void *v, int64_t s) : values(a.in(v)), size(static_cast<size_t>(s)) {}

  // Write a block's values, and `padding` in its other lanes.
  template <typename Blocks> void copyTo(C *to, const Blocks &blocks, size_t block, C padding) const {
    for (size_t lane = 0; lane < blocks.lanes(block); ++lane)
      to[lane] = lane >= blocks.held(block) ? padding : values[size > 1 ? blocks.first(block) + lane : 0];
  }
};

// Write a block's beta, clamped.
template <typename C, typename Blocks>
void copyBeta(const PerUnit<C> &beta, C *to, const Blocks &blocks, size_t block, C padding) {
  beta.copyTo(to, blocks, block, padding);
  std::transform(to, to + blocks.lanes(block), to, clamped<C>);
}

template <typename C> struct LayerForward {
  Spikes<C> spikes;
  const C *bias;
  PerUnit<C> beta, threshold;
  bool second;
  C gradThreshold, inputScale;
  C *mem; // may be null
  size_t delay;
  int32_t reset, maxThreads;

  LayerForward(const Call<C> &a, size_t inputs)
      : spikes(a.spikes(inputs)), bias(a.in(a.c.bias)), beta(a, a.c.beta, a.c.beta_size),
        threshold(a, a.c.threshold, a.c.threshold_size), second(a.c.has_second_threshold != 0),
        gradThreshold(a.number(a.c.second_threshold)), inputScale(a.number(a.c.input_scale)), mem(a.out(a.c.mem)),
        delay(size(a.c.delay)), reset(a.reset()), maxThreads(a.threads()) {}
};

// The parameters of a block, except its weights.
template <typename C> struct BlockParameters {
  alignas(64) C bias[blockLanes], beta[blockLanes], threshold[blockLanes], gradThreshold[blockLanes];

  template <typename Blocks> BlockParameters(const LayerForward<C> &a, const Blocks &blocks, size_t block) {
    // A lane of padding never reaches this threshold.
    constexpr C never = std::numeric_limits<C>::max();
    copyBeta(a.beta, beta, blocks, block, C(0));
    a.threshold.copyTo(threshold, blocks, block, never);
    PerUnit<C>(&a.gradThreshold, 1).copyTo(gradThreshold, blocks, block, never);
    std::fill_n(bias, blockLanes, C(0));
    if (a.bias)
      std::copy_n(a.bias + blocks.first(block), blocks.held(block), bias);
  }
};

template <typename C> struct LayerBackward {
  const C *grad;
  Spikes<C> spikes, outputs; // values of outputs are 1
  PerUnit<C> beta, threshold;
  const C *slotMem, *neuronThreshold;
  const uint32_t *fired;
  const C *mem;
  C *gradValues, *gradWeight, *gradBias, *gradRecurrent, *gradBeta, *gradThreshold, *gradCurrent;
  C inputScale;
  size_t delay;
  int32_t reset;
  int64_t surrogate;
  C surrogateA, surrogateB;
  int32_t maxThreads;

  LayerBackward(const Call<C> &a, size_t inputs, size_t neurons)
      : grad(a.in(a.c.grad)), spikes(a.spikes(inputs)), outputs(a.outputSpikes(neurons)),
        beta(a, a.c.beta, a.c.beta_size), threshold(a, a.c.threshold, a.c.threshold_size), slotMem(a.in(a.c.slot_mem)),
        neuronThreshold(a.in(a.c.neuron_threshold)), fired(a.c.fired), mem(a.in(a.c.mem)),
        gradValues(a.out(a.c.grad_values)), gradWeight(a.out(a.c.grad_weight)), gradBias(a.out(a.c.grad_bias)),
        gradRecurrent(a.out(a.c.grad_recurrent)), gradBeta(a.out(a.c.grad_beta)),
        gradThreshold(a.out(a.c.grad_threshold)), gradCurrent(a.out(a.c.grad_current)),
        inputScale(a.number(a.c.input_scale)), delay(size(a.c.delay)), reset(a.reset()), surrogate(a.c.surrogate),
        surrogateA(a.number(a.c.surrogate_a)), surrogateB(a.number(a.c.surrogate_b)), maxThreads(a.threads()) {}

  // Write the gradient through the spike function to `through`, for rows of `slots` slots. slot: index of the first
  // slot. grad: gradient of the slots' values.
  void throughSpikes(const C *grad, size_t slot, const int32_t *counts, size_t rows, size_t slots, C *through,
                     unsigned threads) const {
    const SpikeGradient<C> arguments{grad,  slotMem + slot,     neuronThreshold, outputs.ids + slot, counts,    through,
                                     slots, threshold.size > 1, surrogate,       surrogateA,         surrogateB};
    spikeGradient(arguments, rows, threads);
  }
};

// Sums over time and samples for one block: in the compute type within a step, in double over the steps.
template <typename C> struct ParameterSums {
  enum Parameter { Bias, Beta, Threshold };
  alignas(64) C step[3][blockLanes] = {};
  double total[3][blockLanes] = {};

  void endStep() {
    for (int i = 0; i < 3; ++i)
      for (size_t lane = 0; lane < blockLanes; ++lane) {
        total[i][lane] += static_cast<double>(step[i][lane]);
        step[i][lane] = C(0);
      }
  }
};

// The gradient of beta is 0 outside [0, 1], where beta is clamped.
template <typename C> void zeroOutsideUnitInterval(const C *beta, C *gradBeta, size_t size) {
  for (size_t i = 0; gradBeta && i < size; ++i)
    if (!(beta[i] >= C(0) && beta[i] <= C(1)))
      gradBeta[i] = C(0);
}

// Add up sums [block][part], in an order that does not depend on the number of threads.
template <typename Connection, typename C>
void finishParameters(const Connection &connection, const LayerBackward<C> &a,
                      const std::vector<ParameterSums<C>> &sums) {
  const auto &blocks = connection.blocks;
  const size_t parts = sums.size() / std::max<size_t>(1, blocks.count());
  using Sums = ParameterSums<C>;
  const auto finish = [&](typename Sums::Parameter which, C *result, size_t size) {
    if (!result)
      return;
    double sum = 0;
    for (size_t block = 0; block < blocks.count(); ++block)
      for (size_t lane = 0; lane < blocks.held(block); ++lane) {
        double total = 0;
        for (size_t part = 0; part < parts; ++part)
          total += sums[block * parts + part].total[which][lane];
        sum += total;
        if (size > 1)
          result[blocks.first(block) + lane] = static_cast<C>(total);
      }
    if (size == 1)
      result[0] = static_cast<C>(sum);
  };
  finish(Sums::Bias, a.gradBias, connection.units());
  finish(Sums::Beta, a.gradBeta, a.beta.size);
  zeroOutsideUnitInterval(a.beta.values, a.gradBeta, a.beta.size);
  finish(Sums::Threshold, a.gradThreshold, a.threshold.size);
}

// Check the counts, and the ids if the connection does not. Return true if they are valid.
template <typename Connection, typename C>
bool spikesValid(const Connection &connection, CheckedSpikes<C> &spikes, int32_t maxThreads) {
  return connection.idsByRow ? spikes.countsFit() : spikes.fill(maxThreads);
}

// ---- bodies of the C functions

template <template <typename> class Forward, typename C> int layerForward(const Call<C> &a) {
  const typename Forward<C>::Connection connection(a);
  const LayerForward<C> layer(a, connection.inputs());
  if (!knownReset(layer.reset))
    return Unknown;
  CheckedSpikes<C> spikes(layer.spikes, 0, !connection.idsByRow);
  if (!spikesValid(connection, spikes, layer.maxThreads))
    return BadSpikes;
  Forward<C> forward(connection, layer, spikes, a);
  const size_t additions = connection.additions(spikes.total(0), layer.spikes.rows());
  const int status = forward.integrate(threadsFor(additions, layer.maxThreads));
  if (status != Done)
    return status;
  if (a.c.output_slots < 0)
    a.c.output_slots = static_cast<int64_t>(forward.fullestRow());
  a.c.most = 0;
  a.c.room(&a.c);
  return a.c.most == 1 ? forward.select(a) : NoRoom;
}

template <template <typename> class Backward, typename C> int layerBackward(const Call<C> &a) {
  const typename Backward<C>::Connection connection(a);
  const LayerBackward<C> layer(a, connection.inputs(), connection.neurons());
  CheckedSpikes<C> spikes(layer.spikes, 1, false), outputs(layer.outputs, 1, false);
  if (!spikesValid(connection, spikes, layer.maxThreads) || !spikesValid(connection, outputs, layer.maxThreads))
    return BadSpikes;
  if (!isSurrogate(layer.surrogate) || !knownReset(layer.reset))
    return Unknown;
  const size_t additions = connection.additions(spikes.total(0), layer.spikes.rows());
  Backward<C> backward(connection, layer, spikes, threadsFor(additions, layer.maxThreads));
  const int status = backward.run();
  if (status == Done)
    finishParameters(connection, layer, backward.parameterSums);
  return status;
}

template <template <typename> class Connection, typename C> int currentsForward(const Call<C> &a) {
  const Connection<C> connection(a);
  const Spikes<C> spikes = a.spikes(connection.inputs());
  CheckedSpikes<C> checked(spikes, 0, !connection.idsByRow);
  if (!spikesValid(connection, checked, a.threads()))
    return BadSpikes;
  return connection.currents(spikes, checked, a.in(a.c.bias), a.out(a.c.out), a.threads());
}

template <template <typename> class Connection, typename C> int currentsBackward(const Call<C> &a) {
  const Connection<C> connection(a);
  const Spikes<C> spikes = a.spikes(connection.inputs());
  CheckedSpikes<C> checked(spikes, 1, false);
  if (!spikesValid(connection, checked, a.threads()))
    return BadSpikes;
  return connection.gradients(spikes, checked, a.in(a.c.grad), a.out(a.c.grad_values), a.out(a.c.grad_weight),
                              a.out(a.c.grad_bias), a.threads());
}

} // namespace snnipu
