// Host implementation of convolutional layers on spike ids: blocks of output channels, whose map stays in the cache
// during all time steps of a sample.
#include "host/sparse_conv.hpp"
#include "host/bits.hpp"
#include "host/transpose.hpp"

#include <cstring>

namespace snnipu {
namespace {

constexpr size_t wordsOf(size_t bits) { return (bits + 63) / 64; }

// The neurons of one block and sample that carry gradient, and their membranes. Each step has those that fired, by
// ascending id, then the others.
template <typename C> struct CarriedNeurons {
  Stream<uint32_t> ids;
  Stream<C> mem;
  std::vector<uint32_t> begin; // [2 * steps + 1]
  // The neurons that fired: a bit for each place, [step][channel][words of 64 places].
  Stream<uint64_t> fired;
  // Only with a pool, where `ids` are those of its windows: the neuron that each window shows, and the number of
  // neurons that carried gradient in each step.
  Stream<uint32_t> source;
  std::vector<uint32_t> carried;
};

// A max pool of windows without overlap. A window shows the first neuron that fires, or else the first that carries
// gradient. Without a pool every place is a window.
struct NonOverlappingPool {
  bool pooled;
  size_t height, width, rows, columns, count;
  unsigned bits = 0;              // of the index of a place in its window
  std::vector<uint32_t> place;    // first place of each window
  std::vector<uint32_t> distance; // from the first place to each other place, by index in the window

  // kernel: height and width; null for no pool.
  NonOverlappingPool(const ConvSizes &sizes, const int64_t *kernel)
      : pooled(kernel != nullptr), height(kernel ? static_cast<size_t>(kernel[0]) : 1),
        width(kernel ? static_cast<size_t>(kernel[1]) : 1), rows(sizes.outHeight / height),
        columns(sizes.outWidth / width), count(rows * columns), place(64 * wordsOf(count)) {
    while (height * width > size_t{1} << bits)
      ++bits;
    for (size_t window = 0; window < count; ++window)
      place[window] = static_cast<uint32_t>(window / columns * height * sizes.outWidth + window % columns * width);
    distance.resize(std::max<size_t>(16, size_t{1} << bits));
    for (size_t number = 0; number < height * width; ++number)
      distance[number] = static_cast<uint32_t>(number / width * sizes.outWidth + number % width);
  }

  // A channel: the first ids of its windows and neurons, and its lane of the map.
  struct Channel {
    uint32_t id, neuron, lane, lanes;
  };
  // Output arrays, with room for appendBits to write past the end. offsets: in the map, [place][lane].
  struct Output {
    uint32_t *ids, *neurons, *offsets;
  };
  // Append the places of a channel whose bits are set. Only without a pool.
  Output append(const uint64_t *seen, Channel channel, Output to) const {
    const uint32_t *const begin = to.ids;
    for (size_t word = 0; word < wordsOf(count); ++word)
      to.ids = appendBits(to.ids, seen[word], channel.id + static_cast<uint32_t>(64 * word));
    for (const uint32_t *id = begin; id != to.ids; ++id)
      *to.offsets++ = (*id - channel.id) * channel.lanes + channel.lane;
    return to;
  }
  // Append the windows of a channel whose bits are set, and the neurons that they show. Bit `bit` of the index of a
  // window's neuron is in numbers[bit * numberStride].
  Output append(const uint64_t *seen, const uint64_t *numbers, size_t numberStride, Channel channel, Output to) const {
    for (size_t word = 0; word < wordsOf(count); ++word) {
#if defined(SNNIPU_AVX512)
      if (bits <= 4 && __builtin_popcountll(seen[word]) > 3) {
        to = appendSixteens(seen[word], 64 * word, numbers + word, numberStride, channel, to);
        continue;
      }
#endif
      for (uint64_t left = seen[word]; left; left &= left - 1) {
        const unsigned at = static_cast<unsigned>(__builtin_ctzll(left));
        const size_t window = 64 * word + at;
        size_t number = 0;
        for (unsigned bit = 0; bit < bits; ++bit)
          number |= (numbers[bit * numberStride + word] >> at & 1) << bit;
        const uint32_t from = place[window] + distance[number];
        *to.ids++ = channel.id + static_cast<uint32_t>(window);
        *to.neurons++ = channel.neuron + from;
        *to.offsets++ = from * channel.lanes + channel.lane;
      }
    }
    return to;
  }

#if defined(SNNIPU_AVX512)
private:
  // The same for the windows of a word, 16 at a time. The time does not depend on the number of bits set.
  Output appendSixteens(uint64_t seen, size_t first, const uint64_t *numbers, size_t numberStride, Channel channel,
                        Output to) const {
    const auto all = [](uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); };
    const __m512i table = _mm512_loadu_si512(distance.data());
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // The masked intrinsic is used because the plain one makes GCC 12 warn of undefined values.
    constexpr __mmask16 allLanes = 0xffff;
    for (unsigned part = 0; part < 64; part += 16) {
      const __mmask16 some = static_cast<__mmask16>(seen >> part);
      __m512i number = _mm512_setzero_si512();
      for (unsigned bit = 0; bit < bits; ++bit)
        number = _mm512_mask_add_epi32(number, static_cast<__mmask16>(numbers[bit * numberStride] >> part), number,
                                       all(1u << bit));
      const __m512i from = _mm512_add_epi32(_mm512_loadu_si512(&place[first + part]),
                                            _mm512_maskz_permutexvar_epi32(allLanes, number, table));
      const __m512i window = _mm512_add_epi32(lane, all(static_cast<uint32_t>(first) + part + channel.id));
      const __m512i seenFrom = _mm512_maskz_compress_epi32(some, from);
      _mm512_storeu_si512(to.ids, _mm512_maskz_compress_epi32(some, window));
      _mm512_storeu_si512(to.neurons, _mm512_add_epi32(seenFrom, all(channel.neuron)));
      _mm512_storeu_si512(to.offsets,
                          _mm512_add_epi32(_mm512_mullo_epi32(seenFrom, all(channel.lanes)), all(channel.lane)));
      const unsigned count = static_cast<unsigned>(__builtin_popcount(some));
      to = {to.ids + count, to.neurons + count, to.offsets + count};
    }
    return to;
  }
#endif
};

template <typename C> struct ForwardState {
  ConvSizes sizes;
  ChannelBlocks<C> blocks;
  size_t steps, batch;
  std::vector<CarriedNeurons<C>> events; // [block][sample]

  ForwardState(const Convolution<C> &convolution, const Spikes<C> &spikes)
      : sizes(convolution.sizes), blocks(convolution.blocks), steps(spikes.steps), batch(spikes.batch),
        events(blocks.count() * batch) {}
};

// All steps of one sample for one block.
template <typename C> class SampleForward {
public:
  SampleForward(const Convolution<C> &convolution, const NonOverlappingPool &windows, const LayerForward<C> &a,
                size_t block)
      : convolution_(convolution), windows_(windows), a_(a), block_(block), lanes_(convolution.blocks.lanes(block)),
        held_(convolution.blocks.held(block)), first_(convolution.blocks.first(block)),
        parameters_(a, convolution.blocks, block) {
    const size_t registers = lanes_ / registerLanes<C>;
    fired_.resize(registers * 64 * wordsOf(convolution.sizes.places()) + 2 * atOnce);
    carried_.resize(fired_.size());
    if (windows.pooled)
      firing_.resize(registers * 64 * wordsOf(windows.count) + atOnce);
    others_.resize(firing_.size());
    number_.assign(windows.bits, firing_);
  }

  // Run all steps. Return true if the input ids are valid.
  bool run(size_t sample, CarriedNeurons<C> &state) {
    static thread_local ThreadBuffer<C> states, nextStates;
    const ConvSizes &sizes = convolution_.sizes;
    const size_t places = sizes.places(), batch = a_.spikes.batch;
    // Membranes of this step, and those of the next step without its input current.
    C *map = states.zeros(places * lanes_), *next = nextStates.reserve(places * lanes_);
    state.begin.push_back(0);
    for (unsigned lane = 0; lane < lanes_; lane += registerLanes<C>)
      step(map, next, places, lane);
    for (size_t t = 0; t < a_.spikes.steps; ++t) {
      std::swap(map, next);
      if (!a_.spikes.idsInRange(t * batch + sample))
        return false;
      if (t >= a_.delay) {
        const size_t row = (t - a_.delay) * batch + sample;
        convolution_.addCurrents(block_, a_.spikes.ids + row * a_.spikes.slots, a_.spikes.valuesOf(row),
                                 static_cast<size_t>(a_.spikes.counts[2 * row]), a_.inputScale, map);
      }
      for (unsigned lane = 0; lane < held_; lane += registerLanes<C>)
        step(map, next, places, lane);
      if (a_.mem)
        for (size_t place = 0; place < places; ++place)
          std::copy_n(map + place * lanes_, held_,
                      a_.mem + ((t * batch + sample) * places + place) * sizes.outChannels + first_);
      storeStep(state, map, places);
    }
    return true;
  }

private:
  // A bit for each lane of a register, at one place.
  using Mask = LaneMask<registerLanes<C>>;
  // Masks of all places or windows, for the first register's lanes, then for the next one's. Each register's masks
  // start at a multiple of 64, with zeros between.
  using Masks = std::vector<Mask>;
  static constexpr size_t atOnce = 32 / sizeof(Mask); // windows

  // Compute for some lanes at all places: which neurons fired, which carry gradient, and the membranes of the next
  // step without its current.
  void step(const C *map, C *next, size_t places, unsigned lane) {
    switch (a_.reset) {
    case SNNIPU_RESET_SUBTRACT:
      return stepOf<Reset::Subtract>(map, next, places, lane);
    case SNNIPU_RESET_ZERO:
      return stepOf<Reset::Zero>(map, next, places, lane);
    default:
      return stepOf<Reset::None>(map, next, places, lane);
    }
  }
  template <Reset R> void stepOf(const C *map, C *next, size_t places, unsigned lane) {
    using V = Register<C>;
    const LeakyParameters<V> parameters{load<V>(parameters_.beta + lane), load<V>(parameters_.threshold + lane)};
    const V bias = load<V>(parameters_.bias + lane), second = load<V>(parameters_.gradThreshold + lane);
    const size_t lanes = lanes_, from = lane / registerLanes<C> * 64 * wordsOf(places);
    Mask *const fired = fired_.data() + from, *const carried = carried_.data() + from;
#pragma GCC unroll 4
    for (size_t place = 0; place < places; ++place) {
      const V u = load<V>(map + place * lanes + lane);
      store(next + place * lanes + lane, leakyMembrane<R>(parameters, bias, u));
      const uint64_t fires = bitsAbove(u - parameters.threshold, splat<V>(0));
      fired[place] = static_cast<Mask>(fires);
      carried[place] = static_cast<Mask>(fires | bitsAbove(u, second));
    }
  }

  // Call body(first lane of a register, number of its lanes that are channels, index of its first mask).
  template <typename Body> void forRegisters(size_t cells, const Body &body) const {
    for (unsigned lane = 0; lane < held_; lane += registerLanes<C>)
      body(lane, std::min<unsigned>(registerLanes<C>, held_ - lane), lane / registerLanes<C> * 64 * wordsOf(cells));
  }

  // Transpose the masks of all lanes to [channel][words of 64 places or windows].
  void transpose(const Masks &masks, size_t cells, uint64_t *to) const {
    const size_t words = wordsOf(cells);
    forRegisters(cells, [&](unsigned lane, unsigned real, size_t from) {
      for (size_t word = 0; word < words; ++word)
        transposeBits(masks.data() + from + 64 * word, real, to + lane * words + word, words);
    });
  }

  // For each window find the first neuron that fired, or else the first that carries gradient.
  template <unsigned H, unsigned W> void poolStep(size_t places) {
    const NonOverlappingPool &windows = windows_;
    const size_t height = H > 0 ? H : windows.height, width = W > 0 ? W : windows.width;
    const size_t outWidth = convolution_.sizes.outWidth;
    const size_t numberStride = 64 * wordsOf(windows.count);
    forRegisters(places, [&](unsigned lane, unsigned, size_t from) {
      const size_t first = lane / registerLanes<C> * numberStride;
      for (size_t row = 0; row < windows.rows; ++row) {
        const Mask *const fired = fired_.data() + from + row * height * outWidth;
        const Mask *const carried = carried_.data() + from + row * height * outWidth;
        const size_t to = first + row * windows.columns;
        Mask *const firing = firing_.data() + to, *const others = others_.data() + to;
        Mask *number[8];
        for (unsigned bit = 0; bit < windows.bits; ++bit)
          number[bit] = number_[bit].data() + to;
        const auto at = [&](size_t column, size_t i) { return i / width * outWidth + column * width + i % width; };
        if constexpr (H == 2 && W == 2) {
          // Whole registers of windows are processed. The next row overwrites the surplus.
          Mask *const low = number[0], *const high = number[1];
          for (size_t begin = 0; begin < windows.columns; begin += atOnce)
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
            for (size_t column = begin; column < begin + atOnce; ++column) {
              const unsigned f0 = fired[at(column, 0)], f1 = fired[at(column, 1)], f2 = fired[at(column, 2)];
              const unsigned c0 = carried[at(column, 0)], c1 = carried[at(column, 1)], c2 = carried[at(column, 2)];
              const unsigned f01 = f0 | f1, f012 = f01 | f2, f = f012 | fired[at(column, 3)];
              const unsigned c01 = f | c0 | c1, c012 = c01 | c2, c = c012 | carried[at(column, 3)];
              const unsigned second = (f1 & ~f0) | (c1 & ~(f | c0)), third = (f2 & ~f01) | (c2 & ~c01);
              const unsigned fourth = (f & ~f012) | (c & ~c012);
              firing[column] = static_cast<Mask>(f);
              others[column] = static_cast<Mask>(c & ~f);
              low[column] = static_cast<Mask>(second | fourth);
              high[column] = static_cast<Mask>(third | fourth);
            }
          continue;
        }
        for (size_t column = 0; column < windows.columns; ++column) {
          unsigned seen = 0, shownNumber[8] = {};
          const auto show = [&](const Mask *masks) {
            for (size_t i = 0; i < height * width; ++i) {
              const unsigned here = masks[at(column, i)] & ~seen;
              seen |= here;
              for (unsigned bit = 0; bit < windows.bits; ++bit)
                shownNumber[bit] |= i >> bit & 1 ? here : 0;
            }
          };
          show(fired);
          const unsigned f = seen;
          show(carried);
          firing[column] = static_cast<Mask>(f);
          others[column] = static_cast<Mask>(seen & ~f);
          for (unsigned bit = 0; bit < windows.bits; ++bit)
            number[bit][column] = static_cast<Mask>(shownNumber[bit]);
        }
      }
      std::fill_n(firing_.data() + first + windows.count, numberStride - windows.count, Mask(0));
      std::fill_n(others_.data() + first + windows.count, numberStride - windows.count, Mask(0));
    });
  }

  // Append the neurons of a step that carry gradient, or with a pool the windows that show one.
  void storeStep(CarriedNeurons<C> &state, const C *map, size_t places) {
    if (!a_.second)
      forRegisters(places, [&](unsigned, unsigned real, size_t from) {
        std::fill_n(carried_.data() + from, places, static_cast<Mask>((1u << real) - 1));
      });
    const NonOverlappingPool &windows = windows_;
    const bool pooled = windows.pooled;
    const size_t cells = windows.count, words = wordsOf(cells), size = held_ * words;
    uint64_t *const fired = state.fired.room(held_ * wordsOf(places));
    transpose(fired_, places, fired);
    state.fired.advance(held_ * wordsOf(places));
    bits_.resize((2 + windows.bits) * size);
    uint64_t *const firing = pooled ? bits_.data() : fired, *const others = bits_.data() + size;
    if (pooled) {
      state.carried.push_back(static_cast<uint32_t>(countBits(carried_)));
      windows.height == 2 && windows.width == 2 ? poolStep<2, 2>(places) : poolStep<0, 0>(places);
      transpose(firing_, cells, firing);
      transpose(others_, cells, others);
      for (unsigned bit = 0; bit < windows.bits; ++bit)
        transpose(number_[bit], cells, others + (1 + bit) * size);
    } else {
      transpose(carried_, cells, others);
      for (size_t word = 0; word < size; ++word)
        others[word] &= ~firing[word];
    }
    size_t spikes = 0, total = 0;
    for (size_t word = 0; word < size; ++word) {
      spikes += static_cast<size_t>(__builtin_popcountll(firing[word]));
      total += static_cast<size_t>(__builtin_popcountll(others[word]));
    }
    total += spikes;
    const size_t before = state.ids.size();
    offsets_.resize(std::max(offsets_.size(), total + bitsRoom));
    NonOverlappingPool::Output to{state.ids.room(total + bitsRoom),
                                  pooled ? state.source.room(total + bitsRoom) : nullptr, offsets_.data()};
    for (const uint64_t *bits : {static_cast<const uint64_t *>(firing), static_cast<const uint64_t *>(others)})
      for (size_t channel = 0; channel < held_; ++channel) {
        const NonOverlappingPool::Channel position{static_cast<uint32_t>((first_ + channel) * cells),
                                                   static_cast<uint32_t>((first_ + channel) * places),
                                                   static_cast<uint32_t>(channel), lanes_};
        const uint64_t *const seen = bits + channel * words, *const numbers = others + size + channel * words;
        to = pooled ? windows.append(seen, numbers, size, position, to) : windows.append(seen, position, to);
      }
    C *const mem = state.mem.room(total);
    const uint32_t *const offsets = offsets_.data();
    for (size_t i = 0; i < total; ++i)
      mem[i] = map[offsets[i]];
    state.begin.push_back(static_cast<uint32_t>(before + spikes));
    state.begin.push_back(static_cast<uint32_t>(before + total));
    state.ids.advance(total);
    state.mem.advance(total);
    if (pooled)
      state.source.advance(total);
  }

  static size_t countBits(const Masks &masks) {
    size_t count = 0;
    for (size_t at = 0; at < masks.size(); at += 8 / sizeof(Mask)) {
      uint64_t word;
      std::memcpy(&word, masks.data() + at, sizeof(word));
      count += static_cast<size_t>(__builtin_popcountll(word));
    }
    return count;
  }

  const Convolution<C> &convolution_;
  const NonOverlappingPool &windows_;
  const LayerForward<C> &a_;
  size_t block_;
  unsigned lanes_, held_;
  size_t first_;
  const BlockParameters<C> parameters_;
  Masks fired_, carried_;         // of the places
  Masks firing_, others_;         // of the windows that show a spike, and of the others
  std::vector<Masks> number_;     // bits of the index of the place that a window shows
  std::vector<uint32_t> offsets_; // in the map, of a step's neurons
  std::vector<uint64_t> bits_;    // the same masks channel by channel
};

// Selection of neurons for the free slots: the first in cyclic order, starting with the step's first id.
struct CyclicSelection {
  size_t candidates, slots, smaller; // smaller: candidates with ids below the step's first id

  bool selects(size_t index) const {
    return slots == candidates || (index + candidates - smaller) % candidates < slots;
  }
};

// Write the part of a row that only layers with a pool have, except the number of spikes.
template <typename C> void writePooledRow(const ForwardState<C> &state, const Call<C> &a, size_t row) {
  const size_t t = row / state.batch, sample = row % state.batch, slots = size(a.c.output_slots);
  int32_t *source = a.c.source + row * slots, *const end = source + slots;
  for (size_t kind = 0; kind < 2; ++kind)
    for (size_t block = 0; block < state.blocks.count(); ++block) {
      const CarriedNeurons<C> &events = state.events[block * state.batch + sample];
      const uint32_t *const from = events.source.data() + events.begin[2 * t + kind];
      source = std::copy(from, events.source.data() + events.begin[2 * t + kind + 1], source);
    }
  std::fill(source, end, 0);
  int32_t &carried = a.c.neuron_counts[2 * row + 1] = 0;
  for (size_t block = 0; block < state.blocks.count(); ++block)
    carried += static_cast<int32_t>(state.events[block * state.batch + sample].carried[t]);
}

// Write the bits of a row's neurons that fired; return their number.
template <typename C> size_t setFired(const ForwardState<C> &state, size_t row, uint32_t *bits) {
  const size_t t = row / state.batch, sample = row % state.batch, places = state.sizes.places(),
               words = wordsOf(places);
  size_t count = 0;
  BitWriter to(bits);
  for (size_t block = 0; block < state.blocks.count(); ++block) {
    const size_t held = state.blocks.held(block);
    const uint64_t *from = state.events[block * state.batch + sample].fired.data() + t * held * words;
    for (size_t channel = 0; channel < held; ++channel)
      for (size_t first = 0; first < places; first += 64, ++from) {
        count += static_cast<size_t>(__builtin_popcountll(*from));
        to.append(*from, static_cast<unsigned>(std::min<size_t>(64, places - first)));
      }
  }
  to.end();
  return count;
}

template <typename C> void selectRow(const ForwardState<C> &state, const Call<C> &a, size_t row) {
  const size_t t = row / state.batch, sample = row % state.batch, neurons = state.sizes.neurons();
  const size_t slots = size(a.c.output_slots);
  const uint32_t start = a.c.rotate ? static_cast<uint32_t>(t * slots % neurons) : 0;
  // Call body(ids, membranes, count) for each block. kind 0: neurons that fired; 1: the others.
  const auto forBlocks = [&](size_t kind, const auto &body) {
    for (size_t block = 0; block < state.blocks.count(); ++block) {
      const CarriedNeurons<C> &events = state.events[block * state.batch + sample];
      const size_t begin = events.begin[2 * t + kind], end = events.begin[2 * t + kind + 1];
      body(events.ids.data() + begin, events.mem.data() + begin, end - begin);
    }
  };
  int32_t *const ids = a.c.ids_out + row * slots;
  C *const values = a.out(a.c.values_out) + row * slots, *const mem = a.out(a.c.slot_mem) + row * slots;
  const size_t firing = setFired(state, row, a.c.fired + row * state.sizes.words());
  if (a.c.neuron_counts) {
    writePooledRow(state, a, row);
    a.c.neuron_counts[2 * row] = static_cast<int32_t>(firing);
  }
  size_t used = 0, spikes = 0, candidates = 0, fired = 0;
  for (size_t kind = 0; kind < 2; ++kind) {
    CyclicSelection selection{};
    forBlocks(kind, [&](const uint32_t *from, const C *, size_t count) {
      selection.candidates += count;
      selection.smaller += static_cast<size_t>(std::lower_bound(from, from + count, start) - from);
    });
    selection.slots = std::min(selection.candidates, slots - used);
    size_t seen = 0;
    forBlocks(kind, [&](const uint32_t *from, const C *membranes, size_t count) {
      if (selection.slots == selection.candidates) {
        std::copy_n(from, count, ids + used);
        std::copy_n(membranes, count, mem + used);
        used += count;
        return;
      }
      for (size_t at = 0; at < count; ++at)
        if (selection.selects(seen++)) {
          ids[used] = static_cast<int32_t>(from[at]);
          mem[used++] = membranes[at];
        }
    });
    candidates += selection.candidates;
    if (kind == 0) {
      spikes = used;
      fired = selection.candidates;
    }
  }
  std::fill(values, values + spikes, C(1));
  std::fill(values + spikes, values + slots, C(0));
  std::fill(ids + used, ids + slots, 0);
  std::fill(mem + used, mem + slots, C(0));
  a.c.counts_out[2 * row] = static_cast<int32_t>(spikes);
  a.c.counts_out[2 * row + 1] = static_cast<int32_t>(used);
  a.c.dropped[2 * row] = static_cast<int32_t>(fired - spikes);
  a.c.dropped[2 * row + 1] = static_cast<int32_t>(candidates - used);
}

// Run body(task), which returns true if the ids of its rows are valid. Ids are checked when their row is read, because
// a pass over all ids takes as long as that.
template <typename Body> int parallelChecked(size_t tasks, unsigned threads, const Body &body) {
  std::atomic<bool> valid{true};
  const int status = parallelTry(tasks, threads, [&](size_t task) {
    if (!body(task))
      valid = false;
  });
  return valid ? status : BadSpikes;
}

template <typename C> class MapsForward {
public:
  using Connection = Convolution<C>;

  MapsForward(const Connection &convolution, const LayerForward<C> &arguments, const CheckedSpikes<C> &)
      : convolution_(convolution), a_(arguments), windows_(convolution.sizes, a_.call.c.window),
        state_(convolution, a_.spikes) {}

  int integrate(unsigned threads) {
    const size_t batch = state_.batch, places = convolution_.sizes.places();
    LargestSize fullest;
    return parallelChecked(state_.events.size(), threads, [&](size_t task) {
      CarriedNeurons<C> &events = state_.events[task];
      const size_t expected = fullest.expected() + bitsRoom;
      events.ids.room(expected);
      events.mem.room(expected);
      if (windows_.pooled)
        events.source.room(expected);
      events.fired.room(state_.steps * state_.blocks.held(task / batch) * wordsOf(places));
      const bool valid = SampleForward<C>(convolution_, windows_, a_, task / batch).run(task % batch, events);
      fullest.record(events.ids.size());
      return valid;
    });
  }

  size_t fullestRow() const {
    size_t most = 0;
    for (size_t sample = 0; sample < state_.batch; ++sample)
      for (size_t t = 0; t < state_.steps; ++t) {
        size_t carried = 0;
        for (size_t block = 0; block < state_.blocks.count(); ++block) {
          const std::vector<uint32_t> &begin = state_.events[block * state_.batch + sample].begin;
          carried += begin[2 * t + 2] - begin[2 * t];
        }
        most = std::max(most, carried);
      }
    return most;
  }

  int select() const {
    const Call<C> &a = a_.call;
    const size_t rows = a.rows(), work = 8 * rows * size(a.c.output_slots);
    parallelPieces(rows, 16, threadsFor(work, a.threads()), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row)
        selectRow(state_, a, row);
    });
    return Done;
  }

private:
  const Connection &convolution_;
  const LayerForward<C> &a_;
  const NonOverlappingPool windows_;
  ForwardState<C> state_;
};

// All steps of one sample for one block, in reverse. The result equals leakyCarry for each neuron. The decay of neurons
// that did not fire is deferred to a scale per lane. The map is then traversed only when all of it is read.
template <typename C> class SampleBackward {
public:
  SampleBackward(const Convolution<C> &convolution, const LayerBackward<C> &a, size_t block, ParameterSums<C> &sums)
      : convolution_(convolution), a_(a), lanes_(convolution.blocks.lanes(block)),
        held_(convolution.blocks.held(block)), first_(convolution.blocks.first(block)),
        places_(convolution.sizes.places()), sums_(sums), map_(convolution.map),
        end_(map_.end(convolution.sizes.outHeight)) {
    padded_.reserve(places_);
    for (size_t y = 0; y < convolution.sizes.outHeight; ++y)
      for (size_t x = 0; x < convolution.sizes.outWidth; ++x)
        padded_.push_back(static_cast<uint32_t>(map_.place(y, x)));
    copyBeta(a.beta, beta_, convolution.blocks, block, C(1));
    a.threshold.copyTo(threshold_, convolution.blocks, block, C(0));
    std::fill_n(scale_, lanes_, C(1));
    std::fill_n(inverse_, lanes_, C(1));
  }

  // Call toInput(row of the input, gradient of the block's map, scale of its lanes). Return true if all ids are valid.
  template <typename Body> bool run(size_t sample, const Body &toInput) {
    static thread_local ThreadBuffer<C> buffer;
    const size_t batch = a_.spikes.batch, channels = convolution_.sizes.outChannels;
    C *const map = buffer.zeros(map_.size * lanes_);
    for (size_t t = a_.spikes.steps; t-- > 0;) {
      const size_t row = t * batch + sample;
      const bool arrives = t >= a_.delay, leaves = t + a_.delay < a_.spikes.steps;
      if (!a_.outputs.idsInRange(row) || (arrives && !a_.spikes.idsInRange(row - a_.delay * batch)) ||
          (!leaves && !a_.spikes.idsInRange(row)))
        return false;
      addSlots(row, map);
      if (a_.gradBias)
        addBias(map);
      if (a_.gradBeta && t > 0)
        addBeta(map, row - batch);
      for (size_t place = 0; a_.gradCurrent && place < places_; ++place)
        for (size_t lane = 0; lane < held_; ++lane)
          a_.gradCurrent[(row * places_ + place) * channels + first_ + lane] = at(map, padded_[place], lane);
      if (arrives)
        toInput(row - a_.delay * batch, map, scale_);
      if (t > 0)
        stepBack(map, row - batch);
      else if (a_.gradThreshold && a_.reset == SNNIPU_RESET_SUBTRACT)
        addInitialReset(map);
    }
    return true;
  }

private:
  using Sums = ParameterSums<C>;

  // place: of the padded map.
  C at(const C *map, size_t place, size_t lane) const { return scale_[lane] * map[place * lanes_ + lane]; }

  // Places in the padded map, and lanes, of the block's neurons.
  struct Located {
    std::vector<uint32_t> place, lane;
  };
  const Located &locate(const uint32_t *ids, size_t count) const {
    static thread_local Located located;
    located.place.resize(std::max(located.place.size(), count));
    located.lane.resize(std::max(located.lane.size(), count));
    uint32_t *const place = located.place.data(), *const lane = located.lane.data();
    const MapPlaces placeOf(convolution_.sizes.outHeight, convolution_.sizes.outWidth);
    const uint32_t first = static_cast<uint32_t>(first_);
    const uint32_t start = static_cast<uint32_t>(map_.place(0, 0)), stride = static_cast<uint32_t>(map_.stride);
    for (size_t at = 0; at < count; ++at) {
      const auto neuron = placeOf(ids[at]);
      place[at] = start + neuron.y * stride + neuron.x;
      lane[at] = neuron.channel - first;
    }
    return located;
  }

  // Add the gradient through the spikes that have a slot.
  void addSlots(size_t row, C *map) {
    const int32_t *const ids = a_.outputs.ids + row * a_.outputs.slots;
    const size_t spikes = static_cast<size_t>(a_.outputs.counts[2 * row]);
    const size_t carried = static_cast<size_t>(a_.outputs.counts[2 * row + 1]);
    addSorted(ids, ids + spikes, map);
    addSorted(ids + spikes, ids + carried, map);
  }
  void addSorted(const int32_t *begin, const int32_t *end, C *map) {
    const int32_t first = static_cast<int32_t>(first_ * places_);
    const int32_t *const from = first == 0 ? begin : std::lower_bound(begin, end, first);
    if (first_ + held_ < convolution_.sizes.outChannels)
      end = std::lower_bound(from, end, first + static_cast<int32_t>(held_ * places_));
    const size_t count = static_cast<size_t>(end - from);
    const Located &located = locate(reinterpret_cast<const uint32_t *>(from), count);
    const uint32_t *const place = located.place.data(), *const lane = located.lane.data();
    const size_t lanes = lanes_;
    const C *const through = throughSpikes(static_cast<size_t>(from - a_.outputs.ids), count);
    for (size_t at = 0; at < count; ++at)
      map[place[at] * lanes + lane[at]] += inverse_[lane[at]] * through[at];
    for (size_t at = 0; a_.gradThreshold && at < count; ++at)
      sums_.total[Sums::Threshold][lane[at]] -= static_cast<double>(through[at]);
  }

  // Return the gradient through the spikes of `count` consecutive slots.
  const C *throughSpikes(size_t slot, size_t count) const {
    static thread_local ThreadBuffer<C> buffer;
    C *const through = buffer.reserve(count);
    const int32_t counts[2] = {static_cast<int32_t>(count), static_cast<int32_t>(count)};
    a_.throughSpikes(a_.grad + slot, slot, counts, 1, count, through, 1);
    return through;
  }

  void addBias(const C *map) {
    using V = Register<C>;
    for (unsigned lane = 0; lane < lanes_; lane += registerLanes<C>) {
      V sum{};
      for (size_t place = map_.place(0, 0); place < end_; ++place)
        sum += load<V>(map + place * lanes_ + lane);
      for (unsigned i = 0; i < registerLanes<C>; ++i)
        sums_.total[Sums::Bias][lane + i] += static_cast<double>(scale_[lane + i] * sum[i]);
    }
  }

  void addBeta(const C *map, size_t rowBefore) {
    const C *const mem = a_.mem + rowBefore * places_ * convolution_.sizes.outChannels + first_;
    for (unsigned lane = 0; lane < held_; ++lane) {
      C sum = 0;
      for (size_t place = 0; place < places_; ++place)
        sum += at(map, padded_[place], lane) * mem[place * convolution_.sizes.outChannels + lane];
      sums_.total[Sums::Beta][lane] += static_cast<double>(sum);
    }
    if (a_.reset == SNNIPU_RESET_ZERO)
      forFired(rowBefore, [&](size_t padded, size_t lane, size_t neuron) {
        const size_t place = neuron - (first_ + lane) * places_;
        sums_.total[Sums::Beta][lane] -=
            static_cast<double>(at(map, padded, lane) * mem[place * convolution_.sizes.outChannels + lane]);
      });
  }

  // Multiply the gradients of all neurons by the decay. The factor is stored in the lanes' scale, by which gradients of
  // spikes are divided. The map is multiplied if a scale would become small, or if scales are not read.
  void decay(C *map) {
    using V = Register<C>;
    constexpr C smallest = C(1) / 1024;
    bool deferred = convolution_.sizes.unitSteps();
    for (size_t lane = 0; lane < lanes_; ++lane) {
      scale_[lane] *= beta_[lane];
      deferred = deferred && scale_[lane] >= smallest;
    }
    for (unsigned lane = 0; !deferred && lane < lanes_; lane += registerLanes<C>) {
      const V scale = load<V>(scale_ + lane);
      for (size_t place = map_.place(0, 0); place < end_; ++place) {
        C *const to = map + place * lanes_ + lane;
        store(to, load<V>(to) * scale);
      }
    }
    for (size_t lane = 0; lane < lanes_; ++lane) {
      scale_[lane] = deferred ? scale_[lane] : C(1);
      inverse_[lane] = C(1) / scale_[lane];
    }
  }

  // Go from a step to the one before it, at whose end the neurons that fired were reset.
  void stepBack(C *map, size_t rowBefore) {
    if (a_.gradThreshold && a_.reset == SNNIPU_RESET_SUBTRACT)
      forFired(rowBefore, [&](size_t place, size_t lane, size_t) {
        sums_.total[Sums::Threshold][lane] -= static_cast<double>(at(map, place, lane));
      });
    decay(map);
    if (a_.reset == SNNIPU_RESET_ZERO)
      forFired(rowBefore, [&](size_t place, size_t lane, size_t) { map[place * lanes_ + lane] = C(0); });
  }

  void addInitialReset(const C *map) {
    for (unsigned lane = 0; lane < held_; ++lane)
      for (size_t place = 0; C(0) - threshold_[lane] > C(0) && place < places_; ++place)
        sums_.total[Sums::Threshold][lane] -= static_cast<double>(at(map, padded_[place], lane));
  }

  // Call body(place in the padded map, lane, neuron) for the block's neurons that fired in a row.
  template <typename Body> void forFired(size_t row, const Body &body) const {
    static thread_local std::vector<uint32_t> fired;
    const uint32_t *const words = a_.fired + row * convolution_.sizes.words();
    const size_t first = first_ * places_, end = first + held_ * places_, lastWord = convolution_.sizes.words() - 1;
    fired.resize(end - first + bitsRoom);
    uint32_t *listed = fired.data();
    for (size_t word = first / 32; 32 * word < end; word += 2) {
      uint64_t bits = words[word] | (word < lastWord ? uint64_t{words[word + 1]} << 32 : 0);
      if (32 * word < first)
        bits &= ~uint64_t{0} << (first - 32 * word);
      if (32 * word + 64 > end)
        bits &= ~uint64_t{0} >> (32 * word + 64 - end);
      listed = appendBits(listed, bits, static_cast<uint32_t>(32 * word));
    }
    const size_t count = static_cast<size_t>(listed - fired.data());
    const Located &located = locate(fired.data(), count);
    for (size_t at = 0; at < count; ++at)
      body(located.place[at], located.lane[at], fired[at]);
  }

  const Convolution<C> &convolution_;
  const LayerBackward<C> &a_;
  unsigned lanes_, held_;
  size_t first_, places_;
  Sums &sums_;
  const PaddedMap map_;
  size_t end_;
  std::vector<uint32_t> padded_; // place in the padded map, of a place
  // scale_: factor of the lanes of the map; inverse_: its inverse.
  alignas(64) C beta_[blockLanes], threshold_[blockLanes], scale_[blockLanes], inverse_[blockLanes];
};

template <typename C> class MapsBackward {
public:
  using Connection = Convolution<C>;

  MapsBackward(const Connection &convolution, const LayerBackward<C> &arguments, const CheckedSpikes<C> &,
               unsigned threads)
      : convolution_(convolution), a_(arguments), threads_(threads),
        toInput_(convolution, a_.spikes, a_.spikes.batch, a_.inputScale, a_.gradWeight, a_.gradValues, threads) {
    parameterSums.resize(toInput_.tasks());
  }

  int run() {
    const int status = parallelChecked(toInput_.tasks(), threads_, [&](size_t task) {
      SampleBackward<C> backward(convolution_, a_, toInput_.block(task), parameterSums[task]);
      toInput_.start(task);
      bool valid = true;
      const auto toInput = [&](size_t row, const C *grad, const C *scale) { toInput_.add(task, row, grad, scale); };
      for (size_t sample = toInput_.begin(task); sample < toInput_.end(task); ++sample)
        valid = backward.run(sample, toInput) && valid;
      return valid;
    });
    if (status == Done)
      toInput_.finish(threads_);
    return status;
  }

  std::vector<ParameterSums<C>> parameterSums;

private:
  const Connection &convolution_;
  const LayerBackward<C> &a_;
  unsigned threads_;
  ConvInputGradient<C> toInput_;
};

} // namespace

// ---- the convolution without neurons

template <typename C>
int Convolution<C>::currents(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *bias, C *out,
                             int32_t maxThreads) const {
  const size_t places = sizes.places(), rows = spikes.rows();
  constexpr size_t piece = 16;
  const size_t pieces = (rows + piece - 1) / piece;
  const unsigned threads = threadsFor(additions(checked.total(0), rows), maxThreads);
  return parallelChecked(blocks.count() * pieces, threads, [&](size_t task) {
    static thread_local ThreadBuffer<C> buffer;
    const size_t block = task / pieces, lanes = blocks.lanes(block), held = blocks.held(block);
    const size_t first = blocks.first(block);
    C *const map = buffer.reserve(places * lanes);
    alignas(64) C start[blockLanes] = {};
    if (bias)
      std::copy_n(bias + first, held, start);
    for (size_t row = task % pieces * piece; row < std::min(rows, (task % pieces + 1) * piece); ++row) {
      if (!spikes.idsInRange(row))
        return false;
      const size_t at = row * spikes.slots;
      for (size_t lane = 0; lane < lanes; lane += registerLanes<C>)
        for (size_t place = 0; place < places; ++place)
          store(map + place * lanes + lane, load<Register<C>>(start + lane));
      addCurrents(block, spikes.ids + at, spikes.valuesOf(row), static_cast<size_t>(spikes.counts[2 * row]), C(1), map);
      transpose(map, lanes, places, held, out + row * sizes.neurons() + first * places, places, C(1));
    }
    return true;
  });
}

template <typename C>
int Convolution<C>::gradients(const Spikes<C> &spikes, const CheckedSpikes<C> &checked, const C *grad, C *gradValues,
                              C *gradWeight, C *gradBias, int32_t maxThreads) const {
  const size_t places = sizes.places(), rows = spikes.rows();
  const unsigned threads = threadsFor(additions(checked.total(0), rows), maxThreads);
  ConvInputGradient<C> toInput(*this, spikes, rows, C(1), gradWeight, gradValues, threads);
  if (gradBias)
    parallelFor(sizes.outChannels, threads, [&](size_t channel) {
      double total = 0;
      for (size_t row = 0; row < rows; ++row) {
        const C *const from = grad + (row * sizes.outChannels + channel) * places;
        for (size_t place = 0; place < places; ++place)
          total += static_cast<double>(from[place]);
      }
      gradBias[channel] = static_cast<C>(total);
    });
  if (!gradValues && !gradWeight)
    return Done;
  const std::vector<C> ones(blockLanes, C(1));
  const int status = parallelChecked(toInput.tasks(), threads, [&](size_t task) {
    static thread_local ThreadBuffer<C> buffer;
    const size_t block = toInput.block(task), lanes = blocks.lanes(block);
    const size_t held = blocks.held(block), first = blocks.first(block);
    C *const to = buffer.zeros(map.size * lanes);
    toInput.start(task);
    for (size_t row = toInput.begin(task); row < toInput.end(task); ++row) {
      if (spikes.counts[2 * row + 1] == 0)
        continue;
      if (!spikes.idsInRange(row))
        return false;
      const C *const from = grad + row * sizes.neurons() + first * places;
      for (size_t y = 0; y < sizes.outHeight; ++y)
        transpose(from + y * sizes.outWidth, places, held, sizes.outWidth, to + map.place(y, 0) * lanes, lanes, C(1));
      toInput.add(task, row, to, ones.data());
    }
    return true;
  });
  if (status == Done)
    toInput.finish(threads);
  return status;
}

} // namespace snnipu

SNNIPU_RUN(sparse_conv2d_fwd, currentsForward<snnipu::Convolution>)
SNNIPU_RUN(sparse_conv2d_bwd, currentsBackward<snnipu::Convolution>)
SNNIPU_RUN(sparse_conv_lif_sequence_fwd, layerForward<snnipu::MapsForward>)
SNNIPU_RUN(sparse_conv_lif_sequence_bwd, layerBackward<snnipu::MapsBackward>)
