// Selection of the neurons that get a slot, from one bit per neuron, and the surrogate gradient at the slots.
#include "neuron/surrogate.hpp"
#include "vertices/vertex.hpp"

namespace snnipu {

// Spikes get slots first, then neurons that only carry gradient. If there are too many of a kind, those first in cyclic
// order from id `start` are selected; they are stored by ascending id. Padding has id 0 and value 0.
template <typename C> class SelectSpikes : public poplar::MultiVertex {
public:
  In<unsigned> fired;   // [rows][words]
  In<unsigned> carried; // [rows][words]; includes fired
  Out<int> ids;         // [rows][slots]
  Out<C> values;        // [rows][slots]
  Out<int> counts;      // [rows][2]
  Out<int> dropped;     // [rows][2]
  In<unsigned> start;   // of one element, which a graph's loop over time advances
  unsigned rows;
  unsigned words;
  unsigned slots;

  // If there are fewer rows than workers, several workers share a row: each counts all bits and writes its part.
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
  // The unit in which bits are read: a word on the tile, and two on the host, where longer loops are faster.
  using Word = std::conditional_t<(SNNIPU_LANE_BYTES > 8), uint64_t, uint32_t>;
  static constexpr unsigned wordsAtOnce = sizeof(Word) / sizeof(unsigned);

  void select(unsigned row, unsigned part, unsigned parts) {
    const unsigned *const spikes = &fired[static_cast<std::size_t>(row) * words];
    const unsigned *const all = &carried[static_cast<std::size_t>(row) * words];
    int *const id = slots ? &ids[static_cast<std::size_t>(row) * slots] : nullptr;
    C *const value = slots ? &values[static_cast<std::size_t>(row) * slots] : nullptr;
    const WorkerRange ownWords = workerShare(part, parts, words, wordsAtOnce),
                      outputSlots = workerShare(part, parts, slots);
    unsigned numFired = 0, numCarried = 0, firedBefore = 0, before = 0;
    for (unsigned word = 0; word < words; ++word) {
      if (word == ownWords.begin) {
        firedBefore = numFired;
        before = numCarried;
      }
      numFired += static_cast<unsigned>(__builtin_popcount(spikes[word]));
      numCarried += static_cast<unsigned>(__builtin_popcount(all[word]));
    }
    const unsigned selectedFired = numFired < slots ? numFired : slots;
    const unsigned selected = numCarried < slots ? numCarried : slots;
    if (numCarried <= slots) {
      int *to[2] = {id + numFired + before - firedBefore, id + firedBefore};
      for (unsigned word = ownWords.begin; word < ownWords.end; word += wordsAtOnce) {
        const Word isSpike = wordOf(spikes, word);
        for (Word bits = wordOf(all, word); bits != 0; bits &= bits - 1) {
          const unsigned bit = lowestBit(bits);
          *to[isSpike >> bit & 1]++ = static_cast<int>(32 * word + bit);
        }
      }
    } else if (part == 0) {
      emitCyclic([=](unsigned word) { return spikes[word]; }, numFired, selectedFired, id);
      emitCyclic([=](unsigned word) { return all[word] & ~spikes[word]; }, numCarried - numFired,
                 selected - selectedFired, id + selectedFired);
    }
    for (unsigned slot = outputSlots.begin; slot < outputSlots.end; ++slot)
      value[slot] = slot < selectedFired ? C(1) : C(0);
    for (unsigned slot = selected > outputSlots.begin ? selected : outputSlots.begin; slot < outputSlots.end; ++slot)
      id[slot] = 0;
    if (part == 0) {
      counts[2 * row] = static_cast<int>(selectedFired);
      counts[2 * row + 1] = static_cast<int>(selected);
      dropped[2 * row] = static_cast<int>(numFired - selectedFired);
      dropped[2 * row + 1] = static_cast<int>(numCarried - selected);
    }
  }

  Word wordOf(const unsigned *bits, unsigned word) const {
    Word result = bits[word];
    if constexpr (wordsAtOnce == 2)
      result |= word + 1 < words ? static_cast<Word>(bits[word + 1]) << (32 * (wordsAtOnce - 1)) : 0;
    return result;
  }
  static unsigned lowestBit(Word bits) {
    if constexpr (wordsAtOnce == 2)
      return static_cast<unsigned>(__builtin_ctzll(bits));
    else
      return static_cast<unsigned>(__builtin_ctz(bits));
  }

  // Return the number of bits from id `from` on.
  template <typename Bits> unsigned countFrom(const Bits &bits, unsigned from) const {
    unsigned total = 0;
    for (unsigned word = from / 32; word < words; ++word)
      total +=
          static_cast<unsigned>(__builtin_popcount(word == from / 32 ? bits(word) & (~0u << from % 32) : bits(word)));
    return total;
  }

  template <typename Bits> void emitCyclic(const Bits &bits, unsigned candidates, unsigned count, int *to) const {
    // First in cyclic order are the ids from `start` on, then those from 0 on.
    const unsigned first = start[0];
    unsigned ahead = 0, fromStart = count;
    if (candidates > count && first != 0) {
      const unsigned from = countFrom(bits, first);
      fromStart = from < count ? from : count;
      ahead = count - fromStart;
      to = emitFrom(bits, 0, ahead, to);
      emitFrom(bits, first, fromStart, to);
    } else {
      emitFrom(bits, 0, count, to);
    }
  }

  template <typename Bits> int *emitFrom(const Bits &bits, unsigned from, unsigned count, int *to) const {
    for (unsigned word = from / 32; count > 0; ++word) {
      unsigned left = word == from / 32 ? bits(word) & (~0u << from % 32) : bits(word);
      for (; left != 0 && count > 0; left &= left - 1, --count)
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
      // With an odd number of slots, some rows do not start at an aligned address.
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
