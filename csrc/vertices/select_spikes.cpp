// Which neurons get a slot, from one bit a neuron, and the surrogate gradient at the slots.
#include "neuron/surrogate.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Spikes first, then neurons that only carry gradient; among each, what fits is taken from id `start` on in cyclic
// order and stored by ascending id. Padding holds id 0 and value 0.
template <typename C> class SelectSpikes : public poplar::MultiVertex {
public:
  In<unsigned> fired;   // [rows][words]
  In<unsigned> carried; // [rows][words]; includes fired
  Out<int> ids;         // [rows][slots]
  Out<C> values;        // [rows][slots]
  Out<int> counts;      // [rows][2]
  Out<int> dropped;     // [rows][2]
  In<unsigned> start;   // of one element: a graph's loop over time moves it on
  unsigned rows;
  unsigned words;
  unsigned slots;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    for (unsigned row = range.begin; row < range.end; ++row) {
      const unsigned *const spikes = &fired[static_cast<std::size_t>(row) * words];
      const unsigned *const all = &carried[static_cast<std::size_t>(row) * words];
      int *const id = slots ? &ids[static_cast<std::size_t>(row) * slots] : nullptr;
      C *const value = slots ? &values[static_cast<std::size_t>(row) * slots] : nullptr;
      const auto fired = [=](unsigned word) { return spikes[word]; };
      const auto others = [=](unsigned word) { return all[word] & ~spikes[word]; };
      unsigned foundFired = 0, found = 0;
      for (unsigned word = 0; word < words; ++word) {
        foundFired += static_cast<unsigned>(__builtin_popcount(spikes[word]));
        found += static_cast<unsigned>(__builtin_popcount(all[word]));
      }
      const unsigned keptFired = foundFired < slots ? foundFired : slots;
      const unsigned kept = found < slots ? found : slots;
      if (found <= slots) {
        // Two words at a time: fewer loops of few turns.
        int *to[2] = {id + foundFired, id};
        for (unsigned word = 0; word < words; word += 2) {
          const uint64_t isSpike = pairOf(spikes, word);
          for (uint64_t bits = pairOf(all, word); bits != 0; bits &= bits - 1) {
            const unsigned bit = static_cast<unsigned>(__builtin_ctzll(bits));
            *to[isSpike >> bit & 1]++ = static_cast<int>(32 * word + bit);
          }
        }
      } else {
        emit(fired, foundFired, keptFired, id);
        emit(others, found - foundFired, kept - keptFired, id + keptFired);
      }
      for (unsigned slot = 0; slot < slots; ++slot)
        value[slot] = slot < keptFired ? C(1) : C(0);
      for (unsigned slot = kept; slot < slots; ++slot)
        id[slot] = 0;
      counts[2 * row] = static_cast<int>(keptFired);
      counts[2 * row + 1] = static_cast<int>(kept);
      dropped[2 * row] = static_cast<int>(foundFired - keptFired);
      dropped[2 * row + 1] = static_cast<int>(found - kept);
    }
  }

private:
  uint64_t pairOf(const unsigned *bits, unsigned word) const {
    return bits[word] | (word + 1 < words ? static_cast<uint64_t>(bits[word + 1]) << 32 : 0);
  }

  // Bits from id `from` on.
  template <typename Bits> unsigned count(const Bits &bits, unsigned from) const {
    unsigned total = 0;
    for (unsigned word = from / 32; word < words; ++word)
      total +=
          static_cast<unsigned>(__builtin_popcount(word == from / 32 ? bits(word) & (~0u << from % 32) : bits(word)));
    return total;
  }

  template <typename Bits> void emit(const Bits &bits, unsigned found, unsigned keep, int *to) const {
    // What comes first in cyclic order: from `start` on; what then still fits: from id 0 on.
    const unsigned first = start[0];
    unsigned ahead = 0, behind = keep;
    if (found > keep && first != 0) {
      const unsigned from = count(bits, first);
      behind = from < keep ? from : keep;
      ahead = keep - behind;
      to = emitFrom(bits, 0, ahead, to);
      emitFrom(bits, first, behind, to);
    } else {
      emitFrom(bits, 0, keep, to);
    }
  }

  template <typename Bits> int *emitFrom(const Bits &bits, unsigned from, unsigned keep, int *to) const {
    for (unsigned word = from / 32; keep > 0; ++word) {
      unsigned left = word == from / 32 ? bits(word) & (~0u << from % 32) : bits(word);
      for (; left != 0 && keep > 0; left &= left - 1, --keep)
        *to++ = static_cast<int>(32 * word + static_cast<unsigned>(__builtin_ctz(left)));
    }
    return to;
  }
};

// through = grad * surrogate'(mem - threshold) at every carried slot, 0 in padding.
template <typename C, template <typename> class Surrogate> class SelectSpikesBackward : public poplar::MultiVertex {
public:
  In<C> grad;      // [rows][slots]
  In<C> mem;       // [rows][slots]
  In<C> threshold; // of one element, or of each neuron
  In<int> ids;     // [rows][slots]
  In<int> counts;  // [rows][2]
  Out<C> through;  // [rows][slots]
  C surrogateA;
  C surrogateB;
  unsigned rows;
  unsigned slots;
  bool perNeuron;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), rows);
    const Surrogate<C> surrogate{surrogateA, surrogateB};
    for (unsigned row = range.begin; row < range.end; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * slots;
      const unsigned carried = static_cast<unsigned>(counts[2 * row + 1]);
      unsigned slot = 0;
      for (; slot + registerLanes<C> <= carried; slot += registerLanes<C>)
        run<Register<C>>(surrogate, first + slot);
      for (; slot < carried; ++slot)
        run<SingleLane<C>>(surrogate, first + slot);
      for (; slot < slots; ++slot)
        through[first + slot] = C(0);
    }
  }

private:
  template <typename V> void run(const Surrogate<C> &surrogate, std::size_t at) {
    V thr = splat<V>(threshold[0]);
    if (perNeuron)
      for (unsigned i = 0; i < lanes<V>; ++i)
        thr[i] = threshold[static_cast<std::size_t>(ids[at + i])];
    store(&through[at], surrogate.gradient(load<V>(&mem[at]) - thr, load<V>(&grad[at])));
  }
};

#define SNNIPU_SELECT_SPIKES_BACKWARD(C)                                                                               \
  template class SelectSpikesBackward<C, LeakyStep>;                                                                   \
  template class SelectSpikesBackward<C, Triangular>;                                                                  \
  template class SelectSpikesBackward<C, FastSigmoid>;                                                                 \
  template class SelectSpikesBackward<C, ATan>;                                                                        \
  template class SelectSpikesBackward<C, Sigmoid>;                                                                     \
  template class SelectSpikesBackward<C, SpikeRateEscape>;

#if defined(__POPC__)
template class SelectSpikes<float>;
SNNIPU_SELECT_SPIKES_BACKWARD(float)
#endif

} // namespace snnipu
