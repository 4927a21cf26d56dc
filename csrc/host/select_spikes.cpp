// Host implementation of select_spikes, dense_to_sparse and sparse_to_dense: rows of (time, sample), distributed over
// threads.
#include "host/bits.hpp"
#include "host/sparse.hpp"

// The codelet file itself: its templates are instantiated here for the host's types.
#include "vertices/select_spikes.cpp"

namespace snnipu {

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

template void selectSteps(const uint32_t *, const uint32_t *, const Slots<float> &, size_t, size_t, unsigned);
template void selectSteps(const uint32_t *, const uint32_t *, const Slots<double> &, size_t, size_t, unsigned);

template <typename C> void selectAll(const Call<C> &a, const uint32_t *carried) {
  const Slots<C> to{a.c.ids_out,     a.out(a.c.values_out),  a.c.counts_out,    a.c.dropped,
                    size(a.c.batch), size(a.c.output_slots), size(a.c.neurons), a.c.rotate != 0};
  const size_t work = a.rows() * (to.neurons / 4 + to.slots);
  selectSteps(a.c.fired, carried, to, 0, size(a.c.steps), threadsFor(work, a.threads()));
}

template void selectAll(const Call<float> &, const uint32_t *);
template void selectAll(const Call<double> &, const uint32_t *);

namespace {

// Rows of a task.
constexpr size_t rowsAtOnce = 64;

// Call body(begin, end) for pieces of [0, rows).
template <typename Body> void forRows(size_t rows, unsigned threads, const Body &body) {
  parallelFor((rows + rowsAtOnce - 1) / rowsAtOnce, threads,
              [&](size_t piece) { body(piece * rowsAtOnce, std::min(rows, (piece + 1) * rowsAtOnce)); });
}

template <SurrogateKind K, typename C> void spikeGradientOf(const SpikeGradient<C> &a, size_t rows, unsigned threads) {
  const WorkerOrder order = workerOrder();
  forRows(rows, threads, [&](size_t begin, size_t end) {
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

} // namespace

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

template int spikeGradient(const SpikeGradient<float> &, size_t, unsigned);
template int spikeGradient(const SpikeGradient<double> &, size_t, unsigned);

size_t mostBits(const uint32_t *bits, size_t rows, size_t words) {
  size_t most = 0;
  for (size_t row = 0; row < rows; ++row) {
    size_t set = 0;
    for (size_t word = 0; word < words; ++word)
      set += static_cast<size_t>(__builtin_popcount(bits[row * words + word]));
    most = std::max(most, set);
  }
  return most;
}

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
  const int32_t *ids, *counts;
  size_t rows, cells, slots, neurons;
  int32_t maxThreads;

  // Check that all ids are in range, then call body for pieces of [0, cells). Return BadSpikes if they are not.
  template <typename Body> int forPieces(size_t additions, const Body &body) const {
    if (!CheckedSpikes<C>({ids, nullptr, counts, rows, 1, slots, neurons}, 1, false).fill(maxThreads))
      return BadSpikes;
    forRows(cells, threadsFor(additions, maxThreads), body);
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

  int toDense(const C *values, C *dense) const {
    return forPieces(cells * neurons + rows * slots, [=](size_t begin, size_t end) {
      std::fill(dense + begin * neurons, dense + end * neurons, C(0));
      forRowsOf(begin, end, [=](size_t row, size_t cell) {
        forCarried(row, [=](size_t id, size_t slot) { dense[cell * neurons + id] += values[slot]; });
      });
    });
  }
  int fromDense(const C *dense, C *values) const {
    return forPieces(4 * rows * slots, [=](size_t begin, size_t end) {
      forRowsOf(begin, end, [=](size_t row, size_t cell) {
        std::fill(values + row * slots, values + (row + 1) * slots, C(0));
        forCarried(row, [=](size_t id, size_t slot) { values[slot] = dense[cell * neurons + id]; });
      });
    });
  }
};

template <typename C>
void above(const C *x, const C *threshold, bool perNeuron, bool second, C gradThreshold, uint32_t *fired,
           uint32_t *carried, int64_t *most, size_t rows, size_t neurons, int32_t maxThreads) {
  const size_t words = (neurons + 31) / 32;
  forRows(rows, threadsFor(rows * neurons, maxThreads), [=](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      aboveRow(x + row * neurons, threshold, perNeuron, second, gradThreshold, neurons, fired + row * words,
               carried + row * words);
  });
  *most = static_cast<int64_t>(mostBits(carried, rows, words));
}

template <typename C> SlotRows<C> slotRows(const Call<C> &a) {
  return {a.c.ids, a.c.counts, a.rows(), size(a.c.cells), size(a.c.slots), size(a.c.neurons), a.threads()};
}

} // namespace
} // namespace snnipu

using snnipu::run;
using snnipu::size;
using std::size_t;

extern "C" {

int snnipu_above(snnipu_sparse_call *call) {
  return run(call, [](auto a) {
    snnipu::above(a.in(a.c.x), a.in(a.c.threshold), a.c.threshold_size > 1, a.c.has_second_threshold != 0,
                  a.number(a.c.second_threshold), a.c.fired, a.c.carried, &a.c.most, a.rows(), size(a.c.neurons),
                  a.threads());
    return snnipu::Done;
  });
}

int snnipu_dense_to_sparse_fwd(snnipu_sparse_call *call) {
  return run(call, [](auto a) { return snnipu::denseToSparse(a); });
}

int snnipu_select_spikes_fwd(snnipu_sparse_call *call) {
  return run(call, [](auto a) {
    snnipu::selectAll(a, a.c.carried);
    return snnipu::Done;
  });
}

int snnipu_select_spikes_bwd(snnipu_sparse_call *call) {
  return run(call, [](auto a) {
    const snnipu::SpikeGradient<std::decay_t<decltype(a.number(0))>> arguments{
        a.in(a.c.grad), a.in(a.c.slot_mem),        a.in(a.c.threshold),      a.c.ids_out,
        a.c.counts_out, a.out(a.c.grad_values),    size(a.c.output_slots),   a.c.threshold_size > 1,
        a.c.surrogate,  a.number(a.c.surrogate_a), a.number(a.c.surrogate_b)};
    return snnipu::spikeGradient(arguments, a.rows(), snnipu::threadsFor(4 * a.rows() * arguments.slots, a.threads()));
  });
}

int snnipu_sparse_to_dense_fwd(snnipu_sparse_call *call) {
  return run(call, [](auto a) { return snnipu::slotRows(a).toDense(a.in(a.c.values), a.out(a.c.out)); });
}

int snnipu_sparse_to_dense_bwd(snnipu_sparse_call *call) {
  return run(call, [](auto a) { return snnipu::slotRows(a).fromDense(a.in(a.c.x), a.out(a.c.values_out)); });
}
}
