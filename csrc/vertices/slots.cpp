// Conversions between dense rows and slots of spikes: bits of the neurons above a threshold, gather and scatter at the
// slots, and spike ids as floats.
#include "neuron/lanes.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Write bits, 32 in a word, the lowest first. With nonzero: fired and carried if x is not 0. Otherwise fired if x -
// threshold > 0, and carried if x > gradThreshold, or for all neurons without a second threshold.
template <typename S> class Above : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> x;         // [rows][neurons]
  In<C> threshold; // of one element, or of each neuron; unused with nonzero
  Out<unsigned> fired;
  Out<unsigned> carried;
  C gradThreshold;
  unsigned rows;
  unsigned neurons;
  bool perNeuron;
  bool second;
  bool nonzero;

  void compute(unsigned workerId) {
    // A tile may have a single row, so workers share words.
    const unsigned words = (neurons + 31) / 32;
    const WorkerRange range = workerShare(workerId, numWorkers(), rows * words);
    unsigned row = 0, word = range.begin;
    for (; word >= words; word -= words)
      ++row;
    for (unsigned item = range.begin; item < range.end; ++item) {
      const unsigned held = neurons - 32 * word < 32 ? neurons - 32 * word : 32;
      unsigned above = 0, carries = 0;
      for (unsigned i = 0; i < held; ++i) {
        const unsigned neuron = 32 * word + i;
        const C value = static_cast<C>(x[static_cast<std::size_t>(row) * neurons + neuron]);
        const bool spike = nonzero ? value != C(0) : value - threshold[perNeuron ? neuron : 0] > C(0);
        const bool carriesGradient = spike || (!nonzero && (!second || value > gradThreshold));
        above |= static_cast<unsigned>(spike) << i;
        carries |= static_cast<unsigned>(carriesGradient) << i;
      }
      fired[item] = above;
      carried[item] = carries;
      if (++word == words) {
        word = 0;
        ++row;
      }
    }
  }
};

// values = dense at the carried slots, 0 in padding.
template <typename S> class GatherSlots : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<S> dense;    // [rows][neurons]
  In<int> ids;    // [rows][slots]
  In<int> counts; // [rows][2]
  Out<C> values;  // [rows][slots]
  unsigned rows;
  unsigned slots;
  unsigned neurons;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    for (unsigned row = range.begin; row < range.end; ++row)
      for (unsigned slot = 0; slot < slots; ++slot) {
        const std::size_t at = static_cast<std::size_t>(row) * slots + slot;
        values[at] =
            slot < static_cast<unsigned>(counts[2 * row + 1])
                ? static_cast<C>(dense[static_cast<std::size_t>(row) * neurons + static_cast<unsigned>(ids[at])])
                : C(0);
      }
  }
};

// dense = 0, then dense += values at the carried slots.
template <typename S> class ScatterSlots : public poplar::MultiVertex {
public:
  using C = Compute<S>;

  In<C> values;   // [rows][slots]
  In<int> ids;    // [rows][slots]
  In<int> counts; // [rows][2]
  Out<S> dense;   // [rows][neurons]
  unsigned rows;
  unsigned slots;
  unsigned neurons;

  void compute(unsigned workerId) {
    // Two rows of half end at a word boundary, whatever `neurons` is.
    const WorkerRange range = workerShare(workerId, numWorkers(), rows, sizeof(S) < sizeof(float) ? 2 : 1);
    for (unsigned row = range.begin; row < range.end; ++row) {
      S *const to = &dense[static_cast<std::size_t>(row) * neurons];
      for (unsigned neuron = 0; neuron < neurons; ++neuron)
        to[neuron] = S(0);
      for (unsigned slot = 0; slot < static_cast<unsigned>(counts[2 * row + 1]); ++slot) {
        const std::size_t at = static_cast<std::size_t>(row) * slots + slot;
        to[ids[at]] = static_cast<S>(static_cast<C>(to[ids[at]]) + values[at]);
      }
    }
  }
};

// out[row] = 1 if the ids of the row's spikes ascend, else 0. Ids of SelectSpikes do; a user's may not.
class Ascending : public poplar::MultiVertex {
public:
  In<int> ids;    // [rows][slots]
  In<int> counts; // [rows][2]
  Out<int> out;   // [rows]
  unsigned rows;
  unsigned slots;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    for (unsigned row = range.begin; row < range.end; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * slots;
      const unsigned fired = static_cast<unsigned>(counts[2 * row]);
      unsigned slot = 1;
      while (slot < fired && ids[first + slot - 1] <= ids[first + slot])
        ++slot;
      out[row] = slot >= fired;
    }
  }
};

// Convert ids and counts, which are floats between operators. Values are clamped to [0, limit), because an invalid id
// would address memory outside the tensor.
class IdsOfFloats : public poplar::MultiVertex {
public:
  In<float> from;
  Out<int> to;
  unsigned size;
  unsigned limit;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 2);
    const float last = static_cast<float>(limit) - 1.0f;
    for (unsigned i = range.begin; i < range.end; ++i) {
      const float id = from[i];
      // The comparison is written so that NaN becomes 0.
      to[i] = id > 0.0f ? static_cast<int>(id < last ? id : last) : 0;
    }
  }
};

class FloatsOfIds : public poplar::MultiVertex {
public:
  In<int> from;
  Out<float> to;
  unsigned size;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 2);
    for (unsigned i = range.begin; i < range.end; ++i)
      to[i] = static_cast<float>(from[i]);
  }
};

#if defined(__POPC__)
template class Above<float>;
template class Above<half>;
template class GatherSlots<float>;
template class GatherSlots<half>;
template class ScatterSlots<float>;
template class ScatterSlots<half>;
#endif

} // namespace snnipu
