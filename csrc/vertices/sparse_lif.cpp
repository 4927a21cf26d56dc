// A time step of leaky integrate-and-fire neurons on spike ids, and its adjoint, for the block of neurons of one
// tile: csrc/vertices/sparse_linear.cpp followed by the neurons of csrc/neuron/leaky.hpp.
//
// The neurons that fired and those that carry gradient are written as one bit each, 32 in a word, the lowest first. The
// words of row r start at [r * wordStride].
#include "neuron/leaky.hpp"
#include "neuron/sparse.hpp"
#include "neuron/surrogate.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

inline uint64_t readWords(const unsigned *words, unsigned lanes) {
  return words[0] | (lanes > 32 ? static_cast<uint64_t>(words[1]) << 32 : 0);
}

inline void writeWords(unsigned *words, unsigned lanes, uint64_t bits) {
  words[0] = static_cast<unsigned>(bits);
  if (lanes > 32)
    words[1] = static_cast<unsigned>(bits >> 32);
}

// Used instead of an id type: `values` are sums of weights over spikes, [rows][valueSlots]; ids, counts and weights are
// not read.
struct Summed {};

template <typename S, typename Id, Reset R> class SparseLifForward : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> weight;        // [inputs][lanes]
  In<C> bias;          // [lanes]
  In<C> beta;          // [lanes], in [0, 1]
  In<C> threshold;     // [lanes]; the largest number in padding, which therefore never fires
  In<C> gradThreshold; // [lanes]; likewise
  In<Id> ids;          // [rows][slots]; unused without input
  In<C> values;        // [rows][valueSlots]; not read with unitValues: all are 1
  In<int> counts;
  In<S> recurrentWeight; // [neurons of the layer][lanes]; unused without recurrent
  In<int> ownIds;        // [rows][outputSlots]: the layer's spikes of the previous step
  In<int> ownCounts;
  Through<C> state; // [rows][lanes]: membrane
  Out<unsigned> fired;
  Out<unsigned> carried; // fired, or above the second threshold
  C inputScale;
  unsigned rows;
  unsigned slots;
  unsigned valueSlots;
  unsigned outputSlots;
  unsigned lanes;
  unsigned neurons;
  unsigned wordStride;
  bool unitValues;
  bool input; // false before the first input has arrived
  bool recurrent;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    if (unitValues)
      run<true>(range);
    else
      run<false>(range);
  }

private:
  template <bool Unit> void run(WorkerRange range) {
    const C scale = inputScale;
    for (unsigned row = range.begin; row < range.end; ++row) {
      uint64_t fires = 0, carries = 0;
      C *const stateRow = &state[static_cast<std::size_t>(row) * lanes];
      forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
        auto sum = group;
        using V = decltype(group.first);
        sum.clear();
        if constexpr (std::is_same_v<Id, Summed>) {
          sum.loadFrom(&values[static_cast<std::size_t>(row) * valueSlots + lane]);
        } else if (input) {
          gather<Unit>(sum, &weight[lane], lanes, &ids[static_cast<std::size_t>(row) * slots],
                       &values[static_cast<std::size_t>(row) * valueSlots], static_cast<unsigned>(counts[2 * row]));
        }
        if (recurrent) {
          const std::size_t slot = static_cast<std::size_t>(row) * outputSlots;
          gather<true>(sum, &recurrentWeight[lane], lanes, &ownIds[slot], &inputScale,
                       static_cast<unsigned>(ownCounts[2 * row]));
        }
        sum.forEach([&](unsigned offset, V current) {
          const unsigned at = lane + offset;
          const LeakyParameters<V> p{load<V>(&beta[at]), load<V>(&threshold[at])};
          const V u = leakyMembrane<R>(p, current * scale + load<V>(&bias[at]), load<V>(stateRow + at));
          store(stateRow + at, u);
          fires |= bitsAbove(u - p.threshold, splat<V>(0)) << at;
          carries |= bitsAbove(u, load<V>(&gradThreshold[at])) << at;
        });
      });
      const std::size_t word = static_cast<std::size_t>(row) * wordStride;
      writeWords(&fired[word], neurons, fires);
      writeWords(&carried[word], neurons, fires | carries);
    }
  }
};

// grad[row] is the gradient of the membrane, from later steps (carry) and from the spikes (through). Used on the host
// only; a tile has SparseLifStepBackward.
template <typename C, Reset R> class SparseLifBackward : public poplar::MultiVertex {
public:
  In<C> beta;         // [lanes], in [0, 1]
  In<C> threshold;    // [lanes]
  In<unsigned> at;    // [slots]: row * lanes + lane of the slot's neuron, for all rows
  In<C> through;      // [slots]: gradient through the spike function
  In<uint64_t> fired; // [rows]: a bit for each neuron that fired in the previous step; unused in the first step
  In<C> memBefore;    // [rows], memStride apart: membrane of the previous step; unused without betaGradient
  Through<C> carry;   // [rows][lanes]: in, from the next step; out, for the previous step
  Out<C> grad;        // [rows][lanes]
  // Sums over time and samples, one for each lane.
  Through<C> gradBias;
  Through<C> gradBeta;
  Through<C> gradThreshold;
  unsigned rows;
  unsigned slots;
  unsigned lanes;
  unsigned neurons;
  unsigned memStride;
  bool firstStep;
  bool betaGradient;
  bool thresholdGradient;

  // A single worker does all of it, because it sums over rows.
  void compute(unsigned workerId) {
    if (workerId != 0)
      return;
    for (unsigned slot = 0; slot < slots; ++slot)
      carry[at[slot]] += through[slot];
    for (unsigned slot = 0; thresholdGradient && slot < slots; ++slot)
      gradThreshold[at[slot] % lanes] -= through[slot];
    for (unsigned lane = 0; lane < lanes; lane += registerLanes<C>) {
      if (betaGradient)
        run<true>(lane);
      else
        run<false>(lane);
    }
  }

private:
  template <bool Beta> void run(unsigned lane) {
    using V = Register<C>;
    const LeakyParameters<V> p{load<V>(&beta[lane]), load<V>(&threshold[lane])};
    // Before the first step the membrane is 0, which is above a negative threshold.
    const V atFirst = heaviside(-p.threshold);
    V sumBias = load<V>(&gradBias[lane]), sumThreshold = load<V>(&gradThreshold[lane]);
    V sumBeta = load<V>(&gradBeta[lane]);
    for (unsigned row = 0; row < rows; ++row) {
      const std::size_t from = static_cast<std::size_t>(row) * lanes + lane;
      const V g = load<V>(&carry[from]);
      const V reset = firstStep ? atFirst : lanesOf<V>(fired[row] >> lane);
      V before = splat<V>(0);
      if (Beta && !firstStep)
        before = loadFirst<V>(&memBefore[static_cast<std::size_t>(row) * memStride], neurons, lane);
      const LeakyGradients<V> out = leakyCarry<R>(p, g, before, reset);
      store(&grad[from], g);
      store(&carry[from], out.gradMem);
      sumBias = sumBias + g;
      if constexpr (R == Reset::Subtract)
        sumThreshold = sumThreshold + out.gradThreshold;
      if constexpr (Beta)
        sumBeta = sumBeta + out.gradDecay;
    }
    store(&gradBias[lane], sumBias);
    store(&gradThreshold[lane], sumThreshold);
    store(&gradBeta[lane], sumBeta);
  }
};

#if defined(__POPC__)
template class SparseLifForward<float, unsigned, Reset::Subtract>;
template class SparseLifForward<float, unsigned, Reset::Zero>;
template class SparseLifForward<float, unsigned, Reset::None>;
template class SparseLifForward<half, unsigned, Reset::Subtract>;
template class SparseLifForward<half, unsigned, Reset::Zero>;
template class SparseLifForward<half, unsigned, Reset::None>;
#endif

} // namespace snnipu
