// Host implementation of select_spikes, dense_to_sparse and sparse_to_dense: rows of (time, sample), distributed over
// threads.
#include "host/select_spikes.hpp"
#include "host/bits.hpp"

namespace snnipu {
namespace {

// Return one bit for each of up to 32 neurons: predicate(neuron).
template <typename Predicate> uint32_t wordOf(size_t neurons, const Predicate &predicate) {
  uint32_t bits = 0;
  for (size_t i = 0; i < neurons; ++i)
    bits |= static_cast<uint32_t>(predicate(i)) << i;
  return bits;
}

// Return one bit for each of 32 neurons: a(lane, V{}) > b(lane, V{}).
template <typename C, typename A, typename B> uint32_t wordAbove(const A &a, const B &b) {
  uint64_t bits = 0;
  for (unsigned lane = 0; lane < 32; lane += registerLanes<C>)
    bits |= bitsAbove(a(lane, Register<C>{}), b(lane, Register<C>{})) << lane;
  return static_cast<uint32_t>(bits);
}

template <typename C>
void aboveRow(const C *x, const C *threshold, bool perNeuron, bool second, C gradThreshold, size_t neurons,
              uint32_t *fired, uint32_t *carried) {
  for (size_t word = 0; 32 * word < neurons; ++word) {
    const C *const at = x + 32 * word;
    const size_t held = std::min<size_t>(32, neurons - 32 * word);
    const uint32_t all = held == 32 ? ~0u : (1u << held) - 1;
    const C *const thr = threshold + (perNeuron ? 32 * word : 0);
    if (held == 32) {
      fired[word] = wordAbove<C>(
          [&](unsigned lane, auto type) {
            using V = decltype(type);
            return load<V>(at + lane) - (perNeuron ? load<V>(thr + lane) : splat<V>(thr[0]));
          },
          [](unsigned, auto type) { return splat<decltype(type)>(0); });
      carried[word] = second ? wordAbove<C>([&](unsigned lane, auto type) { return load<decltype(type)>(at + lane); },
                                            [&](unsigned, auto type) { return splat<decltype(type)>(gradThreshold); })
                             : all;
    } else {
      fired[word] = wordOf(held, [&](size_t i) { return at[i] - thr[perNeuron ? i : 0] > C(0); });
      carried[word] = second ? wordOf(held, [&](size_t i) { return at[i] > gradThreshold; }) : all;
    }
    carried[word] |= fired[word];
  }
}

// The nonzero elements of some rows, one row after another.
template <typename C> struct Nonzero {
  Stream<uint32_t> ids;
  Stream<C> values;

  // Append the nonzero elements of x, a part of a row that starts at id `first`. Return their number.
  size_t append(const C *x, size_t count, uint32_t first) {
    uint32_t indices[atOnce + bitsRoom];
    uint32_t *end = indices;
    for (size_t at = 0; at < count; at += 64) {
      // appendBits is too long for the hardware prefetcher to reach the next elements in time.
      for (size_t line = 0; line < 64 * sizeof(C); line += 64)
        __builtin_prefetch(reinterpret_cast<const char *>(x + at) + ahead + line);
      end = appendBits(end, bitsOfNonzero(x + at, std::min<size_t>(64, count - at)), static_cast<uint32_t>(at));
    }
    const size_t nonzero = static_cast<size_t>(end - indices);
    uint32_t *const id = ids.room(nonzero);
    C *const value = values.room(nonzero);
    for (size_t i = 0; i < nonzero; ++i) {
      id[i] = first + indices[i];
      value[i] = x[indices[i]];
    }
    ids.advance(nonzero);
    values.advance(nonzero);
    return nonzero;
  }
  static constexpr size_t atOnce = 8192; // elements that stay in the first-level cache

private:
  static constexpr size_t ahead = 4096; // bytes

  // Return a bit for each of up to 64 elements.
  static uint64_t bitsOfNonzero(const C *x, size_t count) {
    uint64_t bits = 0;
    size_t at = 0;
    for (; at + registerLanes<C> <= count; at += registerLanes<C>)
      bits |= bitsNonzero(load<Register<C>>(x + at)) << at;
    for (; at < count; ++at)
      bits |= static_cast<uint64_t>(x[at] != C(0)) << at;
    return bits;
  }
};

template <typename C> int denseToSparse(const Call<C> &a) {
  const size_t rows = a.rows(), neurons = size(a.c.neurons);
  const size_t piece = std::max<size_t>(1, 8 * Nonzero<C>::atOnce / neurons), pieces = (rows + piece - 1) / piece;
  const unsigned threads = threadsFor(rows * neurons / 4, a.threads());
  std::vector<Nonzero<C>> nonzero(pieces);
  std::vector<size_t> counts(rows);
  const int status = parallelTry(pieces, threads, [&](size_t part) {
    for (size_t row = part * piece; row < std::min(rows, (part + 1) * piece); ++row)
      for (size_t first = 0; first < neurons; first += Nonzero<C>::atOnce)
        counts[row] +=
            nonzero[part].append(a.in(a.c.x) + row * neurons + first, std::min(Nonzero<C>::atOnce, neurons - first),
                                 static_cast<uint32_t>(first));
  });
  if (status != Done)
    return status;
  if (a.c.output_slots < 0)
    a.c.output_slots = rows ? static_cast<int64_t>(*std::max_element(counts.begin(), counts.end())) : 0;
  a.c.most = 0;
  a.c.room(&a.c);
  if (a.c.most != 1)
    return NoRoom;
  const size_t slots = size(a.c.output_slots);
  parallelFor(pieces, threads, [&](size_t part) {
    const uint32_t *ids = nonzero[part].ids.data();
    const C *values = nonzero[part].values.data();
    for (size_t row = part * piece; row < std::min(rows, (part + 1) * piece); ++row) {
      const size_t count = counts[row], selected = std::min(count, slots);
      // If there are too many, select the first in cyclic order from `start`, written by ascending id.
      const uint32_t start = a.c.rotate ? static_cast<uint32_t>(row / size(a.c.batch) * slots % neurons) : 0;
      const size_t from = count > slots ? static_cast<size_t>(std::lower_bound(ids, ids + count, start) - ids) : 0;
      const size_t numFromStart = std::min(count - from, selected);
      const auto copySelected = [&](const auto *source, auto *to) {
        std::copy_n(source + from, numFromStart, std::copy_n(source, selected - numFromStart, to));
        std::fill(to + selected, to + slots, 0);
      };
      copySelected(ids, a.c.ids_out + row * slots);
      copySelected(values, a.out(a.c.values_out) + row * slots);
      for (size_t which = 2 * row; which < 2 * row + 2; ++which) {
        a.c.counts_out[which] = static_cast<int32_t>(selected);
        a.c.dropped[which] = static_cast<int32_t>(count - selected);
      }
      ids += count;
      values += count;
    }
  });
  return Done;
}

// Rows of slots, which are elements of a dense tensor [cells, neurons]: row r belongs to cell r modulo cells.
template <typename C> struct SlotRows {
  const Call<C> &a;
  const int32_t *const ids = a.c.ids, *const counts = a.c.counts;
  const size_t rows = a.rows(), cells = size(a.c.cells), slots = size(a.c.slots), neurons = size(a.c.neurons);

  // Check that all ids are in range, then call body for pieces of [0, cells). Return BadSpikes if they are not.
  template <typename Body> int forPieces(size_t additions, const Body &body) const {
    if (!CheckedSpikes<C>({ids, nullptr, counts, rows, 1, slots, neurons}, 1, false).fill(a.threads()))
      return BadSpikes;
    parallelPieces(cells, rowsAtOnce, threadsFor(additions, a.threads()), body);
    return Done;
  }
  // Call body(row, cell) for the rows of cells [begin, end), in the order of memory.
  template <typename Body> void forRowsOf(size_t begin, size_t end, const Body &body) const {
    for (size_t first = 0; first < rows; first += cells)
      for (size_t cell = begin; cell < end; ++cell)
        body(first + cell, cell);
  }
  // Call body(id, slot) for the carried slots of a row.
  template <typename Body> void forCarried(size_t row, const Body &body) const {
    for (size_t slot = row * slots; slot < row * slots + static_cast<size_t>(counts[2 * row + 1]); ++slot)
      body(static_cast<size_t>(ids[slot]), slot);
  }

  int toDense() const {
    const C *const values = a.in(a.c.values);
    C *const dense = a.out(a.c.out);
    return forPieces(cells * neurons + rows * slots, [=](size_t begin, size_t end) {
      std::fill(dense + begin * neurons, dense + end * neurons, C(0));
      forRowsOf(begin, end, [=](size_t row, size_t cell) {
        forCarried(row, [=](size_t id, size_t slot) { dense[cell * neurons + id] += values[slot]; });
      });
    });
  }
  int fromDense() const {
    const C *const dense = a.in(a.c.x);
    C *const values = a.out(a.c.values_out);
    return forPieces(4 * rows * slots, [=](size_t begin, size_t end) {
      forRowsOf(begin, end, [=](size_t row, size_t cell) {
        std::fill(values + row * slots, values + (row + 1) * slots, C(0));
        forCarried(row, [=](size_t id, size_t slot) { values[slot] = dense[cell * neurons + id]; });
      });
    });
  }
};

template <typename C> int above(const Call<C> &a) {
  const size_t rows = a.rows(), neurons = size(a.c.neurons), words = (neurons + 31) / 32;
  const bool perNeuron = a.c.threshold_size > 1, second = a.c.has_second_threshold != 0;
  parallelPieces(rows, rowsAtOnce, threadsFor(rows * neurons, a.threads()), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      aboveRow(a.in(a.c.x) + row * neurons, a.in(a.c.threshold), perNeuron, second, a.number(a.c.second_threshold),
               neurons, a.c.fired + row * words, a.c.carried + row * words);
  });
  a.c.most = static_cast<int64_t>(mostBits(a.c.carried, rows, words));
  return Done;
}

template <typename C> int select(const Call<C> &a) {
  selectAll(a, a.c.carried);
  return Done;
}

template <typename C> int selectBackward(const Call<C> &a) {
  const SpikeGradient<C> arguments(a, a.c.threshold);
  return spikeGradient(arguments, a.rows(), threadsFor(4 * a.rows() * arguments.slots, a.threads()));
}

template <typename C> int toDense(const Call<C> &a) { return SlotRows<C>{a}.toDense(); }
template <typename C> int fromDense(const Call<C> &a) { return SlotRows<C>{a}.fromDense(); }

} // namespace
} // namespace snnipu

SNNIPU_RUN(above, above)
SNNIPU_RUN(dense_to_sparse_fwd, denseToSparse)
SNNIPU_RUN(select_spikes_fwd, select)
SNNIPU_RUN(select_spikes_bwd, selectBackward)
SNNIPU_RUN(sparse_to_dense_fwd, toDense)
SNNIPU_RUN(sparse_to_dense_bwd, fromDense)
