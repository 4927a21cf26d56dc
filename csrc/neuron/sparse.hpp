// Sums of weights by spike id, on the lanes of a block of neurons.
#pragma once

#include "neuron/lanes.hpp"

namespace snnipu {

// The most neurons of a block: one bit each in a 64-bit word.
constexpr unsigned blockLanes = 64;

// Registers of sums that are held together: a block's, with some registers left for the weights.
#if SNNIPU_LANE_BYTES >= 32
template <typename C>
constexpr unsigned groupRegisters = blockLanes / registerLanes<C> < 8 ? blockLanes / registerLanes<C> : 8;
#elif SNNIPU_LANE_BYTES == 16
template <typename C> constexpr unsigned groupRegisters = 8;
#else
template <typename C> constexpr unsigned groupRegisters = 4;
#endif

// Call body(first lane, Registers<V, K>{}) for groups of K registers from `lane` on, then for smaller groups.
template <typename C, unsigned K, typename Body>
inline void forGroupsOf(unsigned lane, unsigned lanes, const Body &body) {
  for (; lane + K * registerLanes<C> <= lanes; lane += K * registerLanes<C>)
    body(lane, Registers<Register<C>, K>{});
  // On a tile, multiples of 16 lanes leave no remainder.
  if constexpr (K > 1)
    forGroupsOf<C, (SNNIPU_LANE_BYTES < 16 ? 1 : K / 2)>(lane, lanes, body);
}

// Call body(first lane, group) for all `lanes`, a multiple of a register's, in the largest groups possible. The second
// argument only carries the type. Two: the body holds two registers for each of the group.
template <typename C, bool Two = false, typename Body> inline void forLaneGroups(unsigned lanes, const Body &body) {
  forGroupsOf<C, (Two && SNNIPU_LANE_BYTES < 64 ? groupRegisters<C> / 2 : groupRegisters<C>)>(0, lanes, body);
}

// sum += value * weight[id] over `count` spikes. weight points at the group's first lane of neuron 0. Unit: every value
// is 1, and values are not read.
template <bool Unit, typename Group, typename S, typename Id, typename C>
inline void gather(Group &sum, const S *weight, unsigned lanes, const Id *ids, const C *values, unsigned count) {
  using V = decltype(sum.first);
  for (unsigned i = 0; i < count; ++i) {
    const S *const from = weight + static_cast<std::size_t>(ids[i]) * lanes;
    if constexpr (Unit)
      sum.add(from);
    else
      sum.addScaled(splat<V>(values[i]), from);
  }
}

// Store v at to[0 .. lanes<V>), without lanes of padding (neurons and beyond); `lane` is v's first.
template <typename V, typename C> inline void storeFirst(C *to, V v, unsigned neurons, unsigned lane) {
  if (lane + lanes<V> <= neurons)
    return store(to, v);
  for (unsigned i = 0; lane + i < neurons; ++i)
    to[i] = v[i];
}

// Load from[lane .. lane + lanes<V>), with 0 in lanes of padding.
template <typename V, typename C> inline V loadFirst(const C *from, unsigned neurons, unsigned lane) {
  if (lane + lanes<V> <= neurons)
    return load<V>(from + lane);
  V v{};
  for (unsigned i = 0; lane + i < neurons; ++i)
    v[i] = from[lane + i];
  return v;
}

} // namespace snnipu
