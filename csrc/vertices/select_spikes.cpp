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

  // Of few rows each has several workers: every one of them counts, and then writes its part.
  void compute(unsigned workerId) {
    const unsigned workers = numWorkers();
    unsigned parts = 1;
    while (rows != 0 && (parts + 1) * rows <= workers)
      ++parts;
    if (parts == 1) {
      const WorkerRange range = workerShare(workerId, workers, rows);
      for (unsigned row = range.begin; row < range.end; ++row)
        select(row, 0, 1);
    } else if (workerId < parts * rows) {
      unsigned row = 0, part = workerId;
      for (; part >= parts; part -= parts)
        ++row;
      select(row, part, parts);
    }
  }

private:
  // Bits that are looked at together: a word of the tile, and two of them on the host, for fewer loops of few turns.
  using Word = std::conditional_t<(SNNIPU_LANE_BYTES > 8), uint64_t, uint32_t>;
  static constexpr unsigned wordsAtOnce = sizeof(Word) / sizeof(unsigned);

  void select(unsigned row, unsigned part, unsigned parts) {
    const unsigned *const spikes = &fired[static_cast<std::size_t>(row) * words];
    const unsigned *const all = &carried[static_cast<std::size_t>(row) * words];
    int *const id = slots ? &ids[static_cast<std::size_t>(row) * slots] : nullptr;
    C *const value = slots ? &values[static_cast<std::size_t>(row) * slots] : nullptr;
    const WorkerRange own = workerShare(part, parts, words, wordsAtOnce), outputSlots = workerShare(part, parts, slots);
    unsigned foundFired = 0, found = 0, firedBefore = 0, before = 0;
    for (unsigned word = 0; word < words; ++word) {
      if (word == own.begin) {
        firedBefore = foundFired;
        before = found;
      }
      foundFired += static_cast<unsigned>(__builtin_popcount(spikes[word]));
      found += static_cast<unsigned>(__builtin_popcount(all[word]));
    }
    const unsigned keptFired = foundFired < slots ? foundFired : slots;
    const unsigned kept = found < slots ? found : slots;
    if (found <= slots) {
      int *to[2] = {id + foundFired + before - firedBefore, id + firedBefore};
      for (unsigned word = own.begin; word < own.end; word += wordsAtOnce) {
        const Word isSpike = wordOf(spikes, word);
        for (Word bits = wordOf(all, word); bits != 0; bits &= bits - 1) {
          const unsigned bit = lowestBit(bits);
          *to[isSpike >> bit & 1]++ = static_cast<int>(32 * word + bit);
        }
      }
    } else if (part == 0) {
      emit([=](unsigned word) { return spikes[word]; }, foundFired, keptFired, id);
      emit([=](unsigned word) { return all[word] & ~spikes[word]; }, found - foundFired, kept - keptFired,
           id + keptFired);
    }
    for (unsigned slot = outputSlots.begin; slot < outputSlots.end; ++slot)
      value[slot] = slot < keptFired ? C(1) : C(0);
    for (unsigned slot = kept > outputSlots.begin ? kept : outputSlots.begin; slot < outputSlots.end; ++slot)
      id[slot] = 0;
    if (part == 0) {
      counts[2 * row] = static_cast<int>(keptFired);
      counts[2 * row + 1] = static_cast<int>(kept);
      dropped[2 * row] = static_cast<int>(foundFired - keptFired);
      dropped[2 * row + 1] = static_cast<int>(found - kept);
    }
  }

  Word wordOf(const unsigned *bits, unsigned word) const {
    Word found = bits[word];
    if constexpr (wordsAtOnce == 2)
      found |= word + 1 < words ? static_cast<Word>(bits[word + 1]) << (32 * (wordsAtOnce - 1)) : 0;
    return found;
  }
  static unsigned lowestBit(Word bits) {
    if constexpr (wordsAtOnce == 2)
      return static_cast<unsigned>(__builtin_ctzll(bits));
    else
      return static_cast<unsigned>(__builtin_ctz(bits));
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
template <typename C, SurrogateKind K> class SelectSpikesBackward : public poplar::MultiVertex {
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
    const SurrogateOf<K, C> surrogate{surrogateA, surrogateB};
    for (unsigned row = range.begin; row < range.end; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * slots;
      const unsigned carried = static_cast<unsigned>(counts[2 * row + 1]);
      unsigned slot = 0;
      // Rows of an odd number of slots do not all begin where a vector may.
      for (; slot < carried && (first + slot) % lanesAlignment<C> != 0; ++slot)
        run<SingleLane<C>>(surrogate, first + slot);
      for (; slot + registerLanes<C> <= carried; slot += registerLanes<C>)
        run<Register<C>>(surrogate, first + slot);
      for (; slot < carried; ++slot)
        run<SingleLane<C>>(surrogate, first + slot);
      for (; slot < slots; ++slot)
        through[first + slot] = C(0);
    }
  }

private:
  template <typename V> void run(const SurrogateOf<K, C> &surrogate, std::size_t at) {
    V thr = splat<V>(threshold[0]);
    if (perNeuron)
      for (unsigned i = 0; i < lanes<V>; ++i)
        thr[i] = threshold[static_cast<std::size_t>(ids[at + i])];
    store(&through[at], surrogate.gradient(load<V>(&mem[at]) - thr, load<V>(&grad[at])));
  }
};

#define SNNIPU_SELECT_SPIKES_BACKWARD(Name) template class SelectSpikesBackward<float, SurrogateKind::Name>;

#if defined(__POPC__)
template class SelectSpikes<float>;
SNNIPU_SURROGATES(SNNIPU_SELECT_SPIKES_BACKWARD)
#endif

} // namespace snnipu
