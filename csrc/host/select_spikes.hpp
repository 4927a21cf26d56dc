// Selection of the neurons that get a slot, and the surrogate gradient at the slots.
#pragma once

#include "host/sparse.hpp"

// The codelet file itself: its templates are instantiated here for the host's types.
#include "vertices/select_spikes.cpp"

namespace snnipu {

// Rows of a task.
constexpr size_t rowsAtOnce = 64;

template <typename C> struct Slots {
  int32_t *ids;
  C *values;
  int32_t *counts, *dropped;
  size_t batch, slots, neurons;
  bool rotate;
};

// SelectSpikes for the rows of `steps` time steps from firstStep on.
template <typename C>
void selectSteps(const uint32_t *fired, const uint32_t *carried, const Slots<C> &to, size_t firstStep, size_t steps,
                 unsigned threads) {
  const WorkerOrder order = workerOrder();
  const size_t words = (to.neurons + 31) / 32;
  parallelFor(steps, threads, [&](size_t step) {
    const size_t row = step * to.batch, t = firstStep + step;
    SelectSpikes<C> vertex;
    vertex.fired.connect(fired + row * words);
    vertex.carried.connect(carried + row * words);
    vertex.ids.connect(to.ids + row * to.slots);
    vertex.values.connect(to.values + row * to.slots);
    vertex.counts.connect(to.counts + 2 * row);
    vertex.dropped.connect(to.dropped + 2 * row);
    vertex.rows = static_cast<unsigned>(to.batch);
    vertex.words = static_cast<unsigned>(words);
    vertex.slots = static_cast<unsigned>(to.slots);
    const unsigned start = to.rotate ? static_cast<unsigned>(t * to.slots % to.neurons) : 0;
    vertex.start.connect(&start);
    runVertex(vertex, order);
  });
}

// Select the slots of all steps of a call from its `fired` and from `carried`.
template <typename C> void selectAll(const Call<C> &a, const uint32_t *carried) {
  const Slots<C> to{a.c.ids_out,     a.out(a.c.values_out),  a.c.counts_out,    a.c.dropped,
                    size(a.c.batch), size(a.c.output_slots), size(a.c.neurons), a.c.rotate != 0};
  const size_t work = a.rows() * (to.neurons / 4 + to.slots);
  selectSteps(a.c.fired, carried, to, 0, size(a.c.steps), threadsFor(work, a.threads()));
}

// The arguments of SelectSpikesBackward.
template <typename C> struct SpikeGradient {
  const C *grad, *mem, *threshold;
  const int32_t *ids, *counts;
  C *through;
  size_t slots;
  bool perNeuron;
  int64_t surrogate;
  C a, b;

  SpikeGradient(const Call<C> &call, const void *threshold_)
      : grad(call.in(call.c.grad)), mem(call.in(call.c.slot_mem)), threshold(call.in(threshold_)), ids(call.c.ids_out),
        counts(call.c.counts_out), through(call.out(call.c.grad_values)), slots(size(call.c.output_slots)),
        perNeuron(call.c.threshold_size > 1), surrogate(call.c.surrogate), a(call.number(call.c.surrogate_a)),
        b(call.number(call.c.surrogate_b)) {}
};

template <SurrogateKind K, typename C> void spikeGradientOf(const SpikeGradient<C> &a, size_t rows, unsigned threads) {
  const WorkerOrder order = workerOrder();
  parallelPieces(rows, rowsAtOnce, threads, [&](size_t begin, size_t end) {
    SelectSpikesBackward<C, K> vertex;
    vertex.grad.connect(a.grad + begin * a.slots);
    vertex.mem.connect(a.mem + begin * a.slots);
    vertex.threshold.connect(a.threshold);
    vertex.ids.connect(a.ids + begin * a.slots);
    vertex.counts.connect(a.counts + 2 * begin);
    vertex.through.connect(a.through + begin * a.slots);
    vertex.surrogateA = a.a;
    vertex.surrogateB = a.b;
    vertex.rows = static_cast<unsigned>(end - begin);
    vertex.slots = static_cast<unsigned>(a.slots);
    vertex.perNeuron = a.perNeuron;
    runVertex(vertex, order);
  });
}

// Compute the gradient through the spike function for rows of slots.
template <typename C> int spikeGradient(const SpikeGradient<C> &arguments, size_t rows, unsigned threads) {
  if (!isSurrogate(arguments.surrogate))
    return Unknown;
  switch (static_cast<SurrogateKind>(arguments.surrogate)) {
#define SNNIPU_CASE(Name)                                                                                              \
  case SurrogateKind::Name:                                                                                            \
    spikeGradientOf<SurrogateKind::Name>(arguments, rows, threads);                                                    \
    return Done;
    SNNIPU_SURROGATES(SNNIPU_CASE)
#undef SNNIPU_CASE
  case SurrogateKind::Any:
    break;
  }
  return Unknown;
}

// Return the largest number of bits set in a row of words.
inline size_t mostBits(const uint32_t *bits, size_t rows, size_t words) {
  size_t most = 0;
  for (size_t row = 0; row < rows; ++row) {
    size_t set = 0;
    for (size_t word = 0; word < words; ++word)
      set += static_cast<size_t>(__builtin_popcount(bits[row * words + word]));
    most = std::max(most, set);
  }
  return most;
}

} // namespace snnipu
