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
//   Forward<C>(connection, layer, spikes)
//     integrate(threads), fullestRow(), select()       all steps; slots of the fullest row; the spikes' slots
//   Backward<C>(connection, layer, spikes, threads)
//     run(), parameterSums                             [block][any number of parts]
#pragma once

#include "host/select_spikes.hpp"
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
  const Call<C> &call;
  const Spikes<C> spikes;
  const C *const bias = call.in(call.c.bias);
  const PerUnit<C> beta{call, call.c.beta, call.c.beta_size}, threshold{call, call.c.threshold, call.c.threshold_size};
  const bool second = call.c.has_second_threshold != 0;
  const C gradThreshold = call.number(call.c.second_threshold), inputScale = call.number(call.c.input_scale);
  C *const mem = call.out(call.c.mem); // may be null
  const size_t delay = size(call.c.delay);
  const int32_t reset = call.reset(), maxThreads = call.threads();
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
  const Call<C> &call;
  const Spikes<C> spikes, outputs; // values of outputs are 1
  const PerUnit<C> beta{call, call.c.beta, call.c.beta_size}, threshold{call, call.c.threshold, call.c.threshold_size};
  const SpikeGradient<C> ofSlots{call, call.c.neuron_threshold};
  const uint32_t *const fired = call.c.fired;
  const C *const grad = call.in(call.c.grad), *const mem = call.in(call.c.mem);
  C *const gradValues = call.out(call.c.grad_values), *const gradWeight = call.out(call.c.grad_weight);
  C *const gradBias = call.out(call.c.grad_bias), *const gradRecurrent = call.out(call.c.grad_recurrent);
  C *const gradBeta = call.out(call.c.grad_beta), *const gradThreshold = call.out(call.c.grad_threshold);
  C *const gradCurrent = call.out(call.c.grad_current);
  const C inputScale = call.number(call.c.input_scale);
  const size_t delay = size(call.c.delay);
  const int32_t reset = call.reset(), maxThreads = call.threads();

  // Write the gradient through the spike function to `through`, for rows of `slots` slots. slot: index of the first
  // slot. grad: gradient of the slots' values.
  void throughSpikes(const C *grad, size_t slot, const int32_t *counts, size_t rows, size_t slots, C *through,
                     unsigned threads) const {
    SpikeGradient<C> arguments = ofSlots;
    arguments.grad = grad;
    arguments.mem += slot;
    arguments.ids += slot;
    arguments.counts = counts;
    arguments.slots = slots;
    arguments.through = through;
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
  const LayerForward<C> layer{a, a.spikes(connection.inputs())};
  if (!knownReset(layer.reset))
    return Unknown;
  CheckedSpikes<C> spikes(layer.spikes, 0, !connection.idsByRow);
  if (!spikesValid(connection, spikes, layer.maxThreads))
    return BadSpikes;
  Forward<C> forward(connection, layer, spikes);
  const size_t additions = connection.additions(spikes.total(0), layer.spikes.rows());
  const int status = forward.integrate(threadsFor(additions, layer.maxThreads));
  if (status != Done)
    return status;
  if (a.c.output_slots < 0)
    a.c.output_slots = static_cast<int64_t>(forward.fullestRow());
  a.c.most = 0;
  a.c.room(&a.c);
  return a.c.most == 1 ? forward.select() : NoRoom;
}

template <template <typename> class Backward, typename C> int layerBackward(const Call<C> &a) {
  const typename Backward<C>::Connection connection(a);
  const LayerBackward<C> layer{a, a.spikes(connection.inputs()), a.outputSpikes(connection.neurons())};
  CheckedSpikes<C> spikes(layer.spikes, 1, false), outputs(layer.outputs, 1, false);
  if (!spikesValid(connection, spikes, layer.maxThreads) || !spikesValid(connection, outputs, layer.maxThreads))
    return BadSpikes;
  if (!isSurrogate(a.c.surrogate) || !knownReset(layer.reset))
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
