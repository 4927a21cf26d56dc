// One time step of leaky integrate-and-fire neurons on spike ids, and its adjoint, for the block of neurons that one
// tile holds: as csrc/vertices/sparse_linear.cpp, with the neurons of csrc/neuron/lif.hpp behind it.
//
// Neurons that fired and neurons that carry gradient leave the block as one bit each, 32 to a word, the lowest bit
// first; row r's words start at [r * wordStride].
#include "neuron/lif.hpp"
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

template <typename S, Reset R> class SparseLifForward : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> weight;        // [inputs][lanes]
  In<C> bias;          // [lanes]
  In<C> beta;          // [lanes], in [0, 1]
  In<C> threshold;     // [lanes]; the largest number in padding, which so never fires
  In<C> gradThreshold; // [lanes]; likewise
  In<int> ids;         // [rows][slots]; unused without input
  In<C> values;        // not read with unitValues: all are 1
  In<int> counts;
  In<S> recurrentWeight; // [neurons of the layer][lanes]; unused without recurrent
  In<int> ownIds;        // [rows][ownSlots]: the layer's spikes of the step before
  In<int> ownCounts;
  Through<C> state; // [rows][lanes]: membrane
  Out<unsigned> fired;
  Out<unsigned> carried; // fired, or above the second threshold
  C inputScale;
  unsigned rows;
  unsigned slots;
  unsigned ownSlots;
  unsigned lanes;
  unsigned neurons;
  unsigned wordStride;
  bool unitValues;
  bool input; // false while nothing has arrived
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
      uint64_t above = 0, aboveSecond = 0;
      C *const stateRow = &state[static_cast<std::size_t>(row) * lanes];
      forLaneGroups<C>(lanes, [&](unsigned lane, auto group) {
        auto sum = group;
        using V = decltype(group.first);
        sum.clear();
        if (input) {
          const std::size_t slot = static_cast<std::size_t>(row) * slots;
          gather<Unit>(sum, &weight[lane], lanes, &ids[slot], &values[slot], static_cast<unsigned>(counts[2 * row]));
        }
        if (recurrent) {
          const std::size_t slot = static_cast<std::size_t>(row) * ownSlots;
          gather<true>(sum, &recurrentWeight[lane], lanes, &ownIds[slot], &inputScale,
                       static_cast<unsigned>(ownCounts[2 * row]));
        }
        sum.forEach([&](unsigned offset, V current) {
          const unsigned at = lane + offset;
          const LifParameters<V> p{load<V>(&beta[at]), load<V>(&threshold[at]), splat<V>(1)};
          const V before = load<V>(stateRow + at);
          const V u = lifIntegrate<R>(p, current * scale + load<V>(&bias[at]), before, heaviside(before - p.threshold));
          store(stateRow + at, u);
          above |= bitsAbove(u - p.threshold, splat<V>(0)) << at;
          aboveSecond |= bitsAbove(u, load<V>(&gradThreshold[at])) << at;
        });
      });
      const std::size_t word = static_cast<std::size_t>(row) * wordStride;
      writeWords(&fired[word], neurons, above);
      writeWords(&carried[word], neurons, above | aboveSecond);
    }
  }
};

// grad[row]: gradient of the membrane, from the later steps (carry) and from the spikes (through).
template <typename C, Reset R> class SparseLifBackward : public poplar::MultiVertex {
public:
  In<C> beta;              // [lanes], in [0, 1]
  In<C> threshold;         // [lanes]
  In<int> ids;             // [rows][slots]: the layer's carried slots, ascending among spikes and among the others
  In<C> through;           // [rows][slots]: gradient behind the spike function
  In<unsigned> begin;      // [rows]: first slot of this block's spikes ...
  In<unsigned> end;        // ... and behind the last
  In<unsigned> beginOther; // likewise, of its slots that only carry gradient
  In<unsigned> endOther;
  In<uint64_t> fired; // [rows]: one bit for each neuron that fired in the step before; unused in the first step
  In<C> memBefore;    // [rows], memStride apart: membrane of the step before; unused without betaGradient
  Through<C> carry;   // [rows][lanes]: from the step after -> for the step before
  Out<C> grad;        // [rows][lanes]
  // One sum over time and samples for each lane.
  Through<C> gradBias;
  Through<C> gradBeta;
  Through<C> gradThreshold;
  unsigned rows;
  unsigned slots;
  unsigned lanes;
  unsigned neurons;
  unsigned firstNeuron;
  unsigned memStride;
  bool firstStep;
  bool betaGradient;

  // Sums over rows: one worker has them all.
  void compute(unsigned workerId) {
    if (workerId != 0)
      return;
    for (unsigned row = 0; row < rows; ++row) {
      C *const gradRow = &grad[static_cast<std::size_t>(row) * lanes];
      C *const carryRow = &carry[static_cast<std::size_t>(row) * lanes];
      const uint64_t bits = firstStep ? 0 : fired[row];
      for (unsigned lane = 0; lane < lanes; ++lane)
        gradRow[lane] = carryRow[lane];
      inject(gradRow, row, begin[row], end[row]);
      inject(gradRow, row, beginOther[row], endOther[row]);
      for (unsigned lane = 0; lane < lanes; lane += registerLanes<C>) {
        using V = Register<C>;
        const LifParameters<V> p{load<V>(&beta[lane]), load<V>(&threshold[lane]), splat<V>(1)};
        const V g = load<V>(gradRow + lane);
        // Before the first step the membrane is 0, which is above a negative threshold.
        const V reset = firstStep ? heaviside(-p.threshold) : lanesOf<V>(bits >> lane);
        const V before = betaGradient && !firstStep
                             ? loadFirst<V>(&memBefore[static_cast<std::size_t>(row) * memStride], neurons, lane)
                             : splat<V>(0);
        const LifCarry<V> out = lifCarry<R>(p, g, before, reset);
        store(carryRow + lane, out.gradMem);
        store(&gradBias[lane], load<V>(&gradBias[lane]) + g);
        if constexpr (R == Reset::Subtract)
          store(&gradThreshold[lane], load<V>(&gradThreshold[lane]) - out.gradThreshold);
        if (betaGradient)
          store(&gradBeta[lane], load<V>(&gradBeta[lane]) + out.gradBeta);
      }
    }
  }

private:
  void inject(C *gradRow, unsigned row, unsigned slot, unsigned last) {
    const std::size_t first = static_cast<std::size_t>(row) * slots;
    for (; slot < last; ++slot) {
      const unsigned lane = static_cast<unsigned>(ids[first + slot]) - firstNeuron;
      gradRow[lane] += through[first + slot];
      gradThreshold[lane] -= through[first + slot];
    }
  }
};

#if defined(__POPC__)
template class SparseLifForward<float, Reset::Subtract>;
template class SparseLifForward<float, Reset::Zero>;
template class SparseLifForward<float, Reset::None>;
template class SparseLifForward<half, Reset::Subtract>;
template class SparseLifForward<half, Reset::Zero>;
template class SparseLifForward<half, Reset::None>;
template class SparseLifBackward<float, Reset::Subtract>;
template class SparseLifBackward<float, Reset::Zero>;
template class SparseLifBackward<float, Reset::None>;
#endif

} // namespace snnipu
