// The fully connected connection: blocks of neurons, each with its weights in the cache while it goes through all rows.
#pragma once

#include "host/sparse_layer.hpp"

namespace snnipu {

template <typename C> struct FullyConnected {
  static constexpr bool idsByRow = false;
  Blocks blocks;
  const C *packed, *recurrent;

  explicit FullyConnected(const Call<C> &a)
      : blocks{size(a.c.neurons), size(a.c.inputs)}, packed(a.in(a.c.weight)), recurrent(a.in(a.c.recurrent_weight)) {}

  size_t inputs() const { return blocks.inputs; }
  size_t neurons() const { return blocks.neurons; }
  size_t units() const { return blocks.neurons; }
  size_t additions(size_t spikes, size_t rows) const { return (spikes + 4 * rows) * blocks.neurons; }

  int currents(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *bias, C *out,
               int32_t maxThreads) const;
  int gradients(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *grad, C *gradValues, C *gradWeight,
                C *gradBias, int32_t maxThreads) const;
};

} // namespace snnipu
