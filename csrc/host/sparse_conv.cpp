// Host side of convolutional layers on spike ids: blocks of output channels, whose map stays in the cache while the
// time steps of a sample pass over it.
#include "host/sparse_conv.hpp"
#include "host/bits.hpp"
#include "host/transpose.hpp"
#include "neuron/leaky.hpp"

#include <limits>

namespace snnipu {
namespace {

// One value, or one for each output channel.
template <typename C> struct PerChannel {
  const C *values;
  size_t size;

  C operator[](size_t channel) const { return values[size > 1 ? channel : 0]; }
};

// Neurons of one block and sample that carry gradient, and their membranes. Step after step: those that fired, by
// ascending id, then the others.
template <typename C> struct KeptEvents {
  Stream<uint32_t> ids;
  Stream<C> mem;
  std::vector<uint32_t> begin; // [2 * steps + 1]
  // With a pool `ids` are those of its windows, and there are: the neuron of each that is seen through it, all that
  // fired, where a step's end, and how many carried gradient in it.
  Stream<uint32_t> source, fired;
  std::vector<uint32_t> firedEnd, carried;
};

// Windows of maps, side by side, of whose neurons the first that fires is seen, else the first that carries gradient.
struct SideBySide {
  static constexpr uint32_t none = ~uint32_t{0};
  size_t count = 0;              // of a map; 0: no pool
  std::vector<uint32_t> ofPlace; // which one a place is in, or none

  // kernel: height and width; may be null
  SideBySide(const ConvSizes &sizes, const int64_t *kernel) {
    if (!kernel)
      return;
    const size_t height = static_cast<size_t>(kernel[0]), width = static_cast<size_t>(kernel[1]);
    const size_t rows = sizes.outHeight / height, columns = sizes.outWidth / width;
    count = rows * columns;
    for (size_t y = 0; y < sizes.outHeight; ++y)
      for (size_t x = 0; x < sizes.outWidth; ++x)
        ofPlace.push_back(
            y / height < rows && x / width < columns ? static_cast<uint32_t>(y / height * columns + x / width) : none);
  }
};

template <typename C> struct KeptConv {
  ConvSizes sizes;
  size_t blocks, steps, batch;
  std::vector<KeptEvents<C>> events; // [block][sample]
};

template <typename C> struct ConvForward {
  Spikes<C> spikes;
  const Convolution<C> &convolution;
  const C *bias;
  PerChannel<C> beta, threshold;
  bool second;
  C gradThreshold, inputScale;
  C *mem; // may be null
  size_t delay;
  int32_t reset, offered;
  SideBySide windows;
};

template <typename C> C unitClamped(C value) { return clampUnit(SingleLane<C>{value})[0]; }

// All steps of one sample for one block.
template <typename C> class SampleForward {
public:
  SampleForward(const ConvForward<C> &a, size_t block)
      : a_(a), block_(block), lanes_(a.convolution.blocks.lanes(block)), held_(a.convolution.blocks.held(block)),
        first_(a.convolution.blocks.first(block)) {
    // Padding never reaches its threshold.
    constexpr C never = std::numeric_limits<C>::max();
    for (size_t lane = 0; lane < lanes_; ++lane) {
      const bool real = lane < held_;
      bias_[lane] = real && a.bias ? a.bias[first_ + lane] : C(0);
      beta_[lane] = real ? unitClamped(a.beta[first_ + lane]) : C(0);
      threshold_[lane] = real ? a.threshold[first_ + lane] : never;
      gradThreshold_[lane] = real ? a.gradThreshold : never;
    }
  }

  void run(size_t sample, bool unit, KeptEvents<C> &kept) {
    static thread_local ThreadBuffer<C> states, nextStates;
    const ConvSizes &sizes = a_.convolution.sizes;
    const size_t places = sizes.places(), batch = a_.spikes.batch;
    // Membranes, and what the step after them makes of them without its current.
    C *map = states.zeros(places * lanes_), *next = nextStates.reserve(places * lanes_);
    constexpr size_t perWord = 64 / registerLanes<C>;
    words_.resize((places + perWord - 1) / perWord);
    kept.begin.push_back(0);
    for (unsigned lane = 0; lane < lanes_; lane += registerLanes<C>)
      step(map, next, places, lane);
    for (size_t t = 0; t < a_.spikes.steps; ++t) {
      std::swap(map, next);
      if (t >= a_.delay) {
        const size_t row = (t - a_.delay) * batch + sample, at = row * a_.spikes.slots;
        a_.convolution.addCurrents(block_, a_.spikes.ids + at, unit ? nullptr : a_.spikes.values + at,
                                   static_cast<size_t>(a_.spikes.counts[2 * row]), a_.inputScale, map);
      }
      for (unsigned lane = 0; lane < held_; lane += registerLanes<C>) {
        step(map, next, places, lane);
        list(lane, places);
      }
      if (a_.mem)
        for (size_t place = 0; place < places; ++place)
          std::copy_n(map + place * lanes_, held_,
                      a_.mem + ((t * batch + sample) * places + place) * sizes.outChannels + first_);
      if (a_.windows.count > 0)
        keepSeen(kept, map, places);
      else
        keep(kept, map, places);
    }
  }

private:
  // Which of the neurons of some neighbouring places, some lanes of each, fired and which carry gradient.
  struct Word {
    uint64_t fired, carried;
  };
  // Of some lanes at all places: who fired and who carries gradient, and the membranes of the next step but for its
  // current.
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
    constexpr unsigned together = 64 / registerLanes<C>;
    const LeakyParameters<V> parameters{load<V>(beta_ + lane), load<V>(threshold_ + lane)};
    const V bias = load<V>(bias_ + lane), second = load<V>(gradThreshold_ + lane);
    const size_t lanes = lanes_;
    const auto update = [=](size_t place, uint64_t &fired, uint64_t &carried, unsigned shift) {
      const V u = load<V>(map + place * lanes + lane);
      store(next + place * lanes + lane, leakyMembrane<R>(parameters, bias, u));
      fired |= bitsAbove(u - parameters.threshold, splat<V>(0)) << shift;
      carried |= bitsAbove(u, second) << shift;
    };
    size_t first = 0, word = 0;
    for (; first + together <= places; first += together, ++word) {
      uint64_t fired = 0, carried = 0;
#pragma GCC unroll 4
      for (unsigned i = 0; i < together; ++i)
        update(first + i, fired, carried, i * registerLanes<C>);
      words_[word] = {fired, carried};
    }
    if (first < places) {
      uint64_t fired = 0, carried = 0;
      for (unsigned i = 0; first + i < places; ++i)
        update(first + i, fired, carried, i * registerLanes<C>);
      words_[word] = {fired, carried};
    }
  }

  // The events among some lanes, in the order of places: of each twice the number of its bit, and 1 more where the
  // neuron did not fire.
  void list(unsigned lane, size_t places) {
    constexpr unsigned together = 64 / registerLanes<C>;
    const unsigned real = std::min<unsigned>(registerLanes<C>, held_ - lane);
    uint64_t everyone = 0;
    for (unsigned i = 0; i < together; ++i)
      everyone |= (~uint64_t{0} >> (64 - real)) << i * registerLanes<C>;
    const size_t before = begin_[lane / registerLanes<C>];
    events_.resize(std::max(events_.size(), before + 64 * words_.size() + bitsRoom));
    uint32_t *to = events_.data() + before;
    uint32_t first = 0;
    for (const Word word : words_) {
      uint64_t others = a_.second ? word.carried : everyone;
      if (first + 64 > places * registerLanes<C>)
        others &= ~uint64_t{0} >> (64 - (places * registerLanes<C> - first));
      to = appendBits<true>(to, word.fired | others, first, ~word.fired);
      first += 64;
    }
    begin_[lane / registerLanes<C> + 1] = static_cast<size_t>(to - events_.data());
  }

  // Of an event of the lanes from `lane` on: blockLanes more where the neuron did not fire.
  static uint32_t kindOf(uint32_t event, unsigned lane) {
    return lane + (event >> 1) % registerLanes<C> + (event & 1) * blockLanes;
  }

  // The events of a step: places came in order, channels did not.
  void keep(KeptEvents<C> &kept, const C *map, size_t places) {
    uint32_t next[2 * blockLanes] = {}, total = 0;
    const auto forEvents = [&](const auto &body) {
      for (unsigned lane = 0; lane < held_; lane += registerLanes<C>)
        for (size_t at = begin_[lane / registerLanes<C>]; at < begin_[lane / registerLanes<C> + 1]; ++at)
          body(events_[at], lane);
    };
    forEvents([&](uint32_t event, unsigned lane) { ++next[kindOf(event, lane)]; });
    const uint32_t before = static_cast<uint32_t>(kept.ids.size());
    for (size_t kind = 0; kind < 2 * blockLanes; ++kind) {
      if (kind == blockLanes)
        kept.begin.push_back(before + total);
      const uint32_t count = next[kind];
      next[kind] = total;
      total += count;
    }
    uint32_t *const ids = kept.ids.room(total);
    C *const mem = kept.mem.room(total);
    forEvents([&](uint32_t event, unsigned lane) {
      const uint32_t bit = event >> 1, place = bit / registerLanes<C>, own = lane + bit % registerLanes<C>;
      const uint32_t to = next[kindOf(event, lane)]++;
      ids[to] = static_cast<uint32_t>((first_ + own) * places) + place;
      mem[to] = map[place * lanes_ + own];
    });
    kept.ids.advance(total);
    kept.mem.advance(total);
    kept.begin.push_back(before + total);
  }

  // The events of a step that are seen through the pool: of a window's the one that comes first, of those that fired if
  // any did.
  void keepSeen(KeptEvents<C> &kept, const C *map, size_t places) {
    // Of an event: whether it fired, then how early its place comes.
    constexpr uint32_t last = (uint32_t{1} << 31) - 1;
    const size_t windows = a_.windows.count, cells = held_ * windows, words = cells / 64 + 1, lanes = lanes_;
    const uint32_t firstNeuron = static_cast<uint32_t>(first_ * places), each = static_cast<uint32_t>(places);
    const uint32_t *const ofPlace = a_.windows.ofPlace.data();
    seen_.assign(64 * words, 0);
    cells_.resize(cells + 1 + bitsRoom);
    uint32_t *const seen = seen_.data();
    const size_t carried = begin_[(held_ + registerLanes<C> - 1) / registerLanes<C>];
    uint32_t *const fired = kept.fired.room(carried + 1);
    size_t spikes = 0;
    for (unsigned lane = 0; lane < held_; lane += registerLanes<C>) {
      const uint32_t *const end = events_.data() + begin_[lane / registerLanes<C> + 1];
      for (const uint32_t *event = events_.data() + begin_[lane / registerLanes<C>]; event != end; ++event) {
        const uint32_t bit = *event >> 1, fires = ~*event & 1, place = bit / registerLanes<C>;
        const uint32_t own = lane + bit % registerLanes<C>, window = ofPlace[place];
        const size_t cell = window == SideBySide::none ? cells : own * windows + window;
        seen[cell] = std::max(seen[cell], fires << 31 | (last - place));
        // Whether it fired or not: what did not is written over.
        fired[spikes] = firstNeuron + own * each + place;
        spikes += fires;
      }
    }
    kept.fired.advance(spikes);
    kept.firedEnd.push_back(static_cast<uint32_t>(kept.fired.size()));
    kept.carried.push_back(static_cast<uint32_t>(carried));
    seen[cells] = 0; // of no window
    bits_.resize(words);
    uint32_t *end = cells_.data();
    for (size_t word = 0; word < words; ++word) {
      const NumberBits found = numberBits(seen + 64 * word);
      bits_[word] = found.any & ~found.highest;
      end = appendBits(end, found.highest, static_cast<uint32_t>(64 * word));
    }
    const size_t firing = static_cast<size_t>(end - cells_.data());
    for (size_t word = 0; word < words; ++word)
      end = appendBits(end, bits_[word], static_cast<uint32_t>(64 * word));
    const size_t total = static_cast<size_t>(end - cells_.data());
    uint32_t *const ids = kept.ids.room(total), *const source = kept.source.room(total);
    C *const mem = kept.mem.room(total);
    const uint32_t *const cell = cells_.data();
    const uint32_t firstId = static_cast<uint32_t>(first_ * windows);
    const WholeQuotient laneOf(static_cast<uint32_t>(windows));
    for (size_t i = 0; i < total; ++i) {
      const uint32_t own = laneOf(cell[i]), place = last - (seen[cell[i]] & last);
      ids[i] = firstId + cell[i];
      source[i] = firstNeuron + own * each + place;
      mem[i] = map[static_cast<size_t>(place) * lanes + own];
    }
    const size_t before = kept.ids.size();
    kept.begin.push_back(static_cast<uint32_t>(before + firing));
    kept.begin.push_back(static_cast<uint32_t>(before + total));
    kept.ids.advance(total);
    kept.source.advance(total);
    kept.mem.advance(total);
  }

  const ConvForward<C> &a_;
  size_t block_;
  unsigned lanes_, held_;
  size_t first_;
  alignas(64) C bias_[blockLanes], beta_[blockLanes], threshold_[blockLanes], gradThreshold_[blockLanes];
  std::vector<Word> words_;
  std::vector<uint32_t> events_, cells_;
  std::vector<uint32_t> seen_; // of the windows, and of none: what is seen of the events so far
  std::vector<uint64_t> bits_; // of the windows: where one is seen that did not fire
  size_t begin_[blockLanes / registerLanes<C> + 1] = {}; // of each register's lanes' events
};

template <typename C> int convForward(const ConvForward<C> &a, void **kept, int64_t *most) {
  *kept = nullptr;
  if (a.reset < SNNIPU_RESET_SUBTRACT || a.reset > SNNIPU_RESET_NONE)
    return Unknown;
  CheckedSpikes<C> checked(a.spikes, 0, false);
  if (!checked.fill(a.offered))
    return BadSpikes;
  const ConvSizes &sizes = a.convolution.sizes;
  const size_t blocks = a.convolution.blocks.count(), batch = a.spikes.batch, steps = a.spikes.steps;
  auto found = std::make_unique<KeptConv<C>>(
      KeptConv<C>{sizes, blocks, steps, batch, std::vector<KeptEvents<C>>(blocks * batch)});
  const size_t additions = checked.total(0) * sizes.taps() * sizes.outChannels + 2 * a.spikes.rows() * sizes.neurons();
  const int status = parallelTry(blocks * batch, threadsFor(additions, a.offered), [&](size_t task) {
    SampleForward<C> forward(a, task / batch);
    forward.run(task % batch, checked.unitValues(), found->events[task]);
  });
  if (status != Done)
    return status;
  size_t fullest = 0;
  for (size_t sample = 0; sample < batch; ++sample)
    for (size_t t = 0; t < steps; ++t) {
      size_t carried = 0;
      for (size_t block = 0; block < blocks; ++block) {
        const std::vector<uint32_t> &begin = found->events[block * batch + sample].begin;
        carried += begin[2 * t + 2] - begin[2 * t];
      }
      fullest = std::max(fullest, carried);
    }
  *most = static_cast<int64_t>(fullest);
  *kept = found.release();
  return Done;
}

// Slots of the neurons that were kept.
template <typename C> struct ConvSlots {
  int32_t *ids;
  C *values;
  int32_t *counts, *dropped;
  C *mem;
  uint32_t *fired;
  int32_t *source, *neuronCounts; // with a pool
  size_t slots;
  bool rotate;
};

// Which of the neurons that want a slot get one: those that come first in cyclic order from the first id of the step
// on.
struct Turn {
  size_t found, kept, before; // before: those of ids below the first one

  bool takes(size_t index) const { return kept == found || (index + found - before) % found < kept; }
};

// What a row has with a pool.
template <typename C, typename Mark>
void seenRow(const KeptConv<C> &kept, const ConvSlots<C> &to, size_t row, const Mark &mark) {
  const size_t t = row / kept.batch, sample = row % kept.batch;
  int32_t *const counts = to.neuronCounts + 2 * row;
  int32_t *source = to.source + row * to.slots, *const end = source + to.slots;
  counts[0] = counts[1] = 0;
  for (size_t kind = 0; kind < 2; ++kind)
    for (size_t block = 0; block < kept.blocks; ++block) {
      const KeptEvents<C> &events = kept.events[block * kept.batch + sample];
      const uint32_t *const from = events.source.data() + events.begin[2 * t + kind];
      source = std::copy(from, events.source.data() + events.begin[2 * t + kind + 1], source);
      if (kind == 1)
        continue;
      const size_t first = t == 0 ? 0 : events.firedEnd[t - 1];
      mark(events.fired.data() + first, events.firedEnd[t] - first);
      counts[0] += static_cast<int32_t>(events.firedEnd[t] - first);
      counts[1] += static_cast<int32_t>(events.carried[t]);
    }
  std::fill(source, end, 0);
}

template <typename C> void selectRow(const KeptConv<C> &kept, const ConvSlots<C> &to, size_t row) {
  const size_t t = row / kept.batch, sample = row % kept.batch, neurons = kept.sizes.neurons();
  const size_t words = kept.sizes.words();
  const uint32_t start = to.rotate ? static_cast<uint32_t>(t * to.slots % neurons) : 0;
  // body(ids, membranes, count) for each block; kind 0: those that fired.
  const auto forBlocks = [&](size_t kind, const auto &body) {
    for (size_t block = 0; block < kept.blocks; ++block) {
      const KeptEvents<C> &events = kept.events[block * kept.batch + sample];
      const size_t begin = events.begin[2 * t + kind], end = events.begin[2 * t + kind + 1];
      body(events.ids.data() + begin, events.mem.data() + begin, end - begin);
    }
  };
  int32_t *const ids = to.ids + row * to.slots;
  C *const values = to.values + row * to.slots, *const mem = to.mem + row * to.slots;
  uint32_t *const bits = to.fired + row * words;
  std::fill_n(bits, words, 0);
  const auto mark = [bits](const uint32_t *from, size_t count) {
    for (size_t at = 0; at < count; ++at)
      bits[from[at] / 32] |= uint32_t{1} << from[at] % 32;
  };
  if (to.neuronCounts)
    seenRow(kept, to, row, mark);
  else
    forBlocks(0, [&](const uint32_t *from, const C *, size_t count) { mark(from, count); });
  size_t used = 0, spikes = 0, found = 0, fired = 0;
  for (size_t kind = 0; kind < 2; ++kind) {
    Turn turn{};
    forBlocks(kind, [&](const uint32_t *from, const C *, size_t count) {
      turn.found += count;
      turn.before += static_cast<size_t>(std::lower_bound(from, from + count, start) - from);
    });
    turn.kept = std::min(turn.found, to.slots - used);
    size_t seen = 0;
    forBlocks(kind, [&](const uint32_t *from, const C *membranes, size_t count) {
      if (turn.kept == turn.found) {
        std::copy_n(from, count, ids + used);
        std::copy_n(membranes, count, mem + used);
        used += count;
        return;
      }
      for (size_t at = 0; at < count; ++at)
        if (turn.takes(seen++)) {
          ids[used] = static_cast<int32_t>(from[at]);
          mem[used++] = membranes[at];
        }
    });
    found += turn.found;
    if (kind == 0) {
      spikes = used;
      fired = turn.found;
    }
  }
  std::fill(values, values + spikes, C(1));
  std::fill(values + spikes, values + to.slots, C(0));
  std::fill(ids + used, ids + to.slots, 0);
  std::fill(mem + used, mem + to.slots, C(0));
  to.counts[2 * row] = static_cast<int32_t>(spikes);
  to.counts[2 * row + 1] = static_cast<int32_t>(used);
  to.dropped[2 * row] = static_cast<int32_t>(fired - spikes);
  to.dropped[2 * row + 1] = static_cast<int32_t>(found - used);
}

template <typename C> struct ConvBackward {
  const C *grad;
  Spikes<C> spikes, own; // values of own are 1
  const Convolution<C> &convolution;
  PerChannel<C> beta, threshold; // threshold as given: not for each neuron
  const C *slotMem, *neuronThreshold;
  bool thresholdPerNeuron;
  const uint32_t *fired;
  const C *mem;
  C *gradValues, *gradWeight, *gradBias, *gradBeta, *gradThreshold, *gradCurrent;
  C inputScale;
  size_t delay;
  int32_t reset, surrogate;
  C surrogateA, surrogateB;
  int32_t offered;
};

// Sums over time and places of one task: in the compute type within a step, in double over the steps.
template <typename C> struct ChannelSums {
  double total[3][blockLanes] = {}; // bias, beta, threshold
};

template <typename C> class SampleBackward {
public:
  SampleBackward(const ConvBackward<C> &a, const C *through, size_t block, ChannelSums<C> &sums)
      : a_(a), through_(through), lanes_(a.convolution.blocks.lanes(block)), held_(a.convolution.blocks.held(block)),
        first_(a.convolution.blocks.first(block)), places_(a.convolution.sizes.places()), sums_(sums),
        map_(a.convolution.map), end_(map_.end(a.convolution.sizes.outHeight)) {
    padded_.reserve(places_);
    for (size_t y = 0; y < a.convolution.sizes.outHeight; ++y)
      for (size_t x = 0; x < a.convolution.sizes.outWidth; ++x)
        padded_.push_back(static_cast<uint32_t>(map_.place(y, x)));
    for (size_t lane = 0; lane < lanes_; ++lane)
      beta_[lane] = lane < held_ ? unitClamped(a.beta[first_ + lane]) : C(1);
    std::fill_n(scale_, lanes_, C(1));
    std::fill_n(inverse_, lanes_, C(1));
  }

  // toInput(row of the input, gradient of the block's map, what its lanes are to be multiplied by)
  template <typename Body> void run(size_t sample, const Body &toInput) {
    static thread_local ThreadBuffer<C> buffer;
    const size_t batch = a_.spikes.batch, channels = a_.convolution.sizes.outChannels;
    C *const map = buffer.zeros(map_.size * lanes_);
    for (size_t t = a_.spikes.steps; t-- > 0;) {
      const size_t row = t * batch + sample;
      addSlots(row, map);
      if (a_.gradBias)
        addUp(map);
      if (a_.gradBeta && t > 0)
        addBeta(map, row - batch);
      for (size_t place = 0; a_.gradCurrent && place < places_; ++place)
        for (size_t lane = 0; lane < held_; ++lane)
          a_.gradCurrent[(row * places_ + place) * channels + first_ + lane] = at(map, padded_[place], lane);
      if (t >= a_.delay)
        toInput(row - a_.delay * batch, map, scale_);
      if (t > 0)
        before(map, row - batch);
      else if (a_.gradThreshold && a_.reset == SNNIPU_RESET_SUBTRACT)
        atFirst(map);
    }
  }

private:
  // place: of the padded map.
  C at(const C *map, size_t place, size_t lane) const { return scale_[lane] * map[place * lanes_ + lane]; }

  // Of neurons of the block, their places in the padded map and their lanes.
  struct Located {
    std::vector<uint32_t> place, lane;
  };
  const Located &locate(const uint32_t *ids, size_t count) const {
    static thread_local Located found;
    found.place.resize(std::max(found.place.size(), count));
    found.lane.resize(std::max(found.lane.size(), count));
    uint32_t *const place = found.place.data(), *const lane = found.lane.data();
    const uint32_t width = static_cast<uint32_t>(a_.convolution.sizes.outWidth), first = static_cast<uint32_t>(first_);
    const uint32_t height = static_cast<uint32_t>(a_.convolution.sizes.outHeight);
    const uint32_t start = static_cast<uint32_t>(map_.place(0, 0)), stride = static_cast<uint32_t>(map_.stride);
    const WholeQuotient lineOf(width), channelOf(height);
    for (size_t at = 0; at < count; ++at) {
      const uint32_t line = lineOf(ids[at]), channel = channelOf(line);
      place[at] = start + (line - channel * height) * stride + ids[at] - line * width;
      lane[at] = channel - first;
    }
    return found;
  }

  // The gradient behind the spikes that were given a slot.
  void addSlots(size_t row, C *map) {
    const int32_t *const ids = a_.own.ids + row * a_.own.slots;
    const C *const through = through_ + row * a_.own.slots;
    const size_t spikes = static_cast<size_t>(a_.own.counts[2 * row]);
    const size_t carried = static_cast<size_t>(a_.own.counts[2 * row + 1]);
    addSorted(ids, ids + spikes, through, map);
    addSorted(ids + spikes, ids + carried, through + spikes, map);
  }
  void addSorted(const int32_t *begin, const int32_t *end, const C *through, C *map) {
    const int32_t first = static_cast<int32_t>(first_ * places_);
    const int32_t *const from = first == 0 ? begin : std::lower_bound(begin, end, first);
    if (first_ + held_ < a_.convolution.sizes.outChannels)
      end = std::lower_bound(from, end, first + static_cast<int32_t>(held_ * places_));
    const size_t count = static_cast<size_t>(end - from);
    const Located &found = locate(reinterpret_cast<const uint32_t *>(from), count);
    const uint32_t *const place = found.place.data(), *const lane = found.lane.data();
    const size_t lanes = lanes_;
    through += from - begin;
    for (size_t at = 0; at < count; ++at)
      map[place[at] * lanes + lane[at]] += inverse_[lane[at]] * through[at];
    for (size_t at = 0; a_.gradThreshold && at < count; ++at)
      sums_.total[2][lane[at]] -= static_cast<double>(through[at]);
  }

  void addUp(const C *map) {
    using V = Register<C>;
    for (unsigned lane = 0; lane < lanes_; lane += registerLanes<C>) {
      V sum{};
      for (size_t place = map_.place(0, 0); place < end_; ++place)
        sum += load<V>(map + place * lanes_ + lane);
      for (unsigned i = 0; i < registerLanes<C>; ++i)
        sums_.total[0][lane + i] += static_cast<double>(scale_[lane + i] * sum[i]);
    }
  }

  void addBeta(const C *map, size_t rowBefore) {
    const C *const mem = a_.mem + rowBefore * places_ * a_.convolution.sizes.outChannels + first_;
    for (unsigned lane = 0; lane < held_; ++lane) {
      C sum = 0;
      for (size_t place = 0; place < places_; ++place)
        sum += at(map, padded_[place], lane) * mem[place * a_.convolution.sizes.outChannels + lane];
      sums_.total[1][lane] += static_cast<double>(sum);
    }
    if (a_.reset == SNNIPU_RESET_ZERO)
      forFired(rowBefore, [&](size_t padded, size_t lane, size_t neuron) {
        const size_t place = neuron - (first_ + lane) * places_;
        sums_.total[1][lane] -=
            static_cast<double>(at(map, padded, lane) * mem[place * a_.convolution.sizes.outChannels + lane]);
      });
  }

  // The gradient of all neurons times the decay: a pass over the map only where the scale of its lanes, by which the
  // gradients of spikes are divided, would become small, or is not read.
  void decay(C *map) {
    using V = Register<C>;
    constexpr C smallest = C(1) / 1024;
    bool keeps = a_.convolution.sizes.unitSteps();
    for (size_t lane = 0; lane < lanes_; ++lane) {
      scale_[lane] *= beta_[lane];
      keeps = keeps && scale_[lane] >= smallest;
    }
    for (unsigned lane = 0; !keeps && lane < lanes_; lane += registerLanes<C>) {
      const V scale = load<V>(scale_ + lane);
      for (size_t place = map_.place(0, 0); place < end_; ++place) {
        C *const to = map + place * lanes_ + lane;
        store(to, load<V>(to) * scale);
      }
    }
    for (size_t lane = 0; lane < lanes_; ++lane) {
      scale_[lane] = keeps ? scale_[lane] : C(1);
      inverse_[lane] = C(1) / scale_[lane];
    }
  }

  // From a step to the one before it, whose neurons that fired were reset.
  void before(C *map, size_t rowBefore) {
    if (a_.gradThreshold && a_.reset == SNNIPU_RESET_SUBTRACT)
      forFired(rowBefore, [&](size_t place, size_t lane, size_t) {
        sums_.total[2][lane] -= static_cast<double>(at(map, place, lane));
      });
    decay(map);
    if (a_.reset == SNNIPU_RESET_ZERO)
      forFired(rowBefore, [&](size_t place, size_t lane, size_t) { map[place * lanes_ + lane] = C(0); });
  }

  void atFirst(const C *map) {
    for (unsigned lane = 0; lane < held_; ++lane)
      for (size_t place = 0; C(0) - a_.threshold[first_ + lane] > C(0) && place < places_; ++place)
        sums_.total[2][lane] -= static_cast<double>(at(map, padded_[place], lane));
  }

  // body(place of the padded map, lane, neuron) for the block's neurons that fired in a row.
  template <typename Body> void forFired(size_t row, const Body &body) const {
    static thread_local std::vector<uint32_t> fired;
    const uint32_t *const words = a_.fired + row * a_.convolution.sizes.words();
    const size_t first = first_ * places_, end = first + held_ * places_, lastWord = a_.convolution.sizes.words() - 1;
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
    const Located &found = locate(fired.data(), count);
    for (size_t at = 0; at < count; ++at)
      body(found.place[at], found.lane[at], fired[at]);
  }

  const ConvBackward<C> &a_;
  const C *through_;
  unsigned lanes_, held_;
  size_t first_, places_;
  ChannelSums<C> &sums_;
  const PaddedMap map_;
  size_t end_;
  std::vector<uint32_t> padded_; // of a place
  // scale_: what the lanes of the map are to be multiplied by.
  alignas(64) C beta_[blockLanes], scale_[blockLanes], inverse_[blockLanes];
};

template <typename C>
void finishChannels(const ConvBackward<C> &a, const std::vector<ChannelSums<C>> &sums, size_t groups) {
  const ChannelBlocks<C> &blocks = a.convolution.blocks;
  const auto finish = [&](int which, C *result, size_t size) {
    if (!result)
      return;
    double everyone = 0;
    for (size_t block = 0; block < blocks.count(); ++block)
      for (size_t lane = 0; lane < blocks.held(block); ++lane) {
        double total = 0;
        for (size_t group = 0; group < groups; ++group)
          total += sums[block * groups + group].total[which][lane];
        everyone += total;
        if (size > 1)
          result[blocks.first(block) + lane] = static_cast<C>(total);
      }
    if (size == 1)
      result[0] = static_cast<C>(everyone);
  };
  finish(0, a.gradBias, a.convolution.sizes.outChannels);
  finish(1, a.gradBeta, a.beta.size);
  // Outside [0, 1] beta makes no difference.
  for (size_t i = 0; a.gradBeta && i < a.beta.size; ++i)
    if (unitClamped(a.beta.values[i]) != a.beta.values[i])
      a.gradBeta[i] = C(0);
  finish(2, a.gradThreshold, a.threshold.size);
}

template <typename C> int convBackward(const ConvBackward<C> &a) {
  CheckedSpikes<C> checked(a.spikes, 1, false);
  if (!checked.fill(a.offered) || !CheckedSpikes<C>(a.own, 1, false).fill(a.offered))
    return BadSpikes;
  if (!knownSurrogate(a.surrogate) || a.reset < SNNIPU_RESET_SUBTRACT || a.reset > SNNIPU_RESET_NONE)
    return Unknown;
  const ConvSizes &sizes = a.convolution.sizes;
  const size_t batch = a.spikes.batch;
  const size_t additions = checked.total(0) * sizes.taps() * sizes.outChannels + 2 * a.spikes.rows() * sizes.neurons();
  const unsigned threads = threadsFor(additions, a.offered);
  Uninitialised<C> through(a.own.rows() * a.own.slots);
  const SpikeGradient<C> spikes{a.grad,       a.slotMem,      a.neuronThreshold, a.own.ids,
                                a.own.counts, through.data(), a.own.slots,       a.thresholdPerNeuron,
                                a.surrogate,  a.surrogateA,   a.surrogateB};
  if (const int status = spikeGradient(spikes, a.own.rows(), threads))
    return status;
  ConvInputGradient<C> toInput(a.convolution, a.spikes, checked.unitValues(), batch, a.inputScale, a.gradWeight,
                               a.gradValues);
  std::vector<ChannelSums<C>> sums(toInput.tasks());
  const int status = parallelTry(toInput.tasks(), threads, [&](size_t task) {
    SampleBackward<C> backward(a, through.data(), toInput.block(task), sums[task]);
    toInput.start(task);
    for (size_t sample = toInput.begin(task); sample < toInput.end(task); ++sample)
      backward.run(sample, [&](size_t row, const C *grad, const C *scale) { toInput.add(task, row, grad, scale); });
  });
  if (status != Done)
    return status;
  toInput.finish(threads);
  finishChannels(a, sums, toInput.tasks() / a.convolution.blocks.count());
  return Done;
}

// ---- the convolution alone

template <typename C>
int conv2dForward(const Spikes<C> &spikes, const Convolution<C> &convolution, const C *bias, C *out, int32_t offered) {
  CheckedSpikes<C> checked(spikes, 0, false);
  if (!checked.fill(offered))
    return BadSpikes;
  const ConvSizes &sizes = convolution.sizes;
  const size_t places = sizes.places(), rows = spikes.rows(), blocks = convolution.blocks.count();
  constexpr size_t piece = 16;
  const size_t pieces = (rows + piece - 1) / piece;
  const size_t additions = checked.total(0) * sizes.taps() * sizes.outChannels + 2 * rows * sizes.neurons();
  return parallelTry(blocks * pieces, threadsFor(additions, offered), [&](size_t task) {
    static thread_local ThreadBuffer<C> buffer;
    const size_t block = task / pieces, lanes = convolution.blocks.lanes(block), held = convolution.blocks.held(block);
    const size_t first = convolution.blocks.first(block);
    C *const map = buffer.reserve(places * lanes);
    alignas(64) C start[blockLanes] = {};
    if (bias)
      std::copy_n(bias + first, held, start);
    for (size_t row = task % pieces * piece; row < std::min(rows, (task % pieces + 1) * piece); ++row) {
      const size_t at = row * spikes.slots;
      for (size_t place = 0; place < places; ++place)
        std::copy_n(start, lanes, map + place * lanes);
      convolution.addCurrents(block, spikes.ids + at, checked.unitValues() ? nullptr : spikes.values + at,
                              static_cast<size_t>(spikes.counts[2 * row]), C(1), map);
      transpose(map, lanes, places, held, out + row * sizes.neurons() + first * places, places, C(1));
    }
  });
}

template <typename C>
int conv2dBackward(const C *grad, const Spikes<C> &spikes, const Convolution<C> &convolution, C *gradValues,
                   C *gradWeight, C *gradBias, int32_t offered) {
  CheckedSpikes<C> checked(spikes, 1, false);
  if (!checked.fill(offered))
    return BadSpikes;
  const ConvSizes &sizes = convolution.sizes;
  const size_t places = sizes.places(), rows = spikes.rows();
  const size_t additions = checked.total(0) * sizes.taps() * sizes.outChannels + rows * sizes.neurons();
  const unsigned threads = threadsFor(additions, offered);
  ConvInputGradient<C> toInput(convolution, spikes, checked.unitValues(), rows, C(1), gradWeight, gradValues);
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
  const int status = parallelTry(toInput.tasks(), threads, [&](size_t task) {
    static thread_local ThreadBuffer<C> buffer;
    const size_t block = toInput.block(task), lanes = convolution.blocks.lanes(block);
    const size_t held = convolution.blocks.held(block), first = convolution.blocks.first(block);
    const PaddedMap &padded = convolution.map;
    C *const map = buffer.zeros(padded.size * lanes);
    toInput.start(task);
    for (size_t row = toInput.begin(task); row < toInput.end(task); ++row) {
      if (spikes.counts[2 * row + 1] == 0)
        continue;
      const C *const from = grad + row * sizes.neurons() + first * places;
      for (size_t y = 0; y < sizes.outHeight; ++y)
        transpose(from + y * sizes.outWidth, places, held, sizes.outWidth, map + padded.place(y, 0) * lanes, lanes,
                  C(1));
      toInput.add(task, row, map, ones.data());
    }
  });
  if (status != Done)
    return status;
  toInput.finish(threads);
  return Done;
}

} // namespace
} // namespace snnipu

#define SPARSE_CONV(SUFFIX, C)                                                                                         \
  SNNIPU_SPARSE_CONV2D_FWD(snnipu_sparse_conv2d_fwd_##SUFFIX, C) {                                                     \
    const snnipu::ConvSizes sizes(geometry);                                                                           \
    const snnipu::Spikes<C> spikes{ids, values, counts, snnipu::size(rows), 1, snnipu::size(slots), sizes.inputs()};   \
    SNNIPU_TRY(snnipu::conv2dForward(spikes, snnipu::Convolution<C>(sizes, weight), bias, out, threads))               \
  }                                                                                                                    \
  SNNIPU_SPARSE_CONV2D_BWD(snnipu_sparse_conv2d_bwd_##SUFFIX, C) {                                                     \
    const snnipu::ConvSizes sizes(geometry);                                                                           \
    const snnipu::Spikes<C> spikes{ids, values, counts, snnipu::size(rows), 1, snnipu::size(slots), sizes.inputs()};   \
    SNNIPU_TRY(snnipu::conv2dBackward(grad, spikes, snnipu::Convolution<C>(sizes, weight), grad_values, grad_weight,   \
                                      grad_bias, threads))                                                             \
  }                                                                                                                    \
  SNNIPU_SPARSE_CONV_LIF_SEQUENCE_FWD(snnipu_sparse_conv_lif_sequence_fwd_##SUFFIX, C) {                               \
    const snnipu::ConvSizes sizes(geometry);                                                                           \
    const snnipu::Spikes<C> spikes{                                                                                    \
        ids, values, counts, snnipu::size(steps), snnipu::size(batch), snnipu::size(slots), sizes.inputs()};           \
    SNNIPU_TRY(snnipu::convForward(snnipu::ConvForward<C>{spikes,                                                      \
                                                          snnipu::Convolution<C>(sizes, weight),                       \
                                                          bias,                                                        \
                                                          {beta, snnipu::size(beta_size)},                             \
                                                          {threshold, snnipu::size(threshold_size)},                   \
                                                          has_grad_threshold != 0,                                     \
                                                          static_cast<C>(grad_threshold),                              \
                                                          static_cast<C>(input_scale),                                 \
                                                          mem,                                                         \
                                                          snnipu::size(delay),                                         \
                                                          reset,                                                       \
                                                          threads,                                                     \
                                                          snnipu::SideBySide(sizes, pool)},                            \
                                   kept, most))                                                                        \
  }                                                                                                                    \
  SNNIPU_SPARSE_CONV_SELECT(snnipu_sparse_conv_select_##SUFFIX, C) {                                                   \
    const std::unique_ptr<snnipu::KeptConv<C>> owned(static_cast<snnipu::KeptConv<C> *>(kept));                        \
    if (!owned || !counts)                                                                                             \
      return snnipu::Done;                                                                                             \
    const snnipu::ConvSlots<C> to{                                                                                     \
        ids, values, counts, dropped, slot_mem, fired, source, neuron_counts, snnipu::size(slots), rotate != 0};       \
    const std::size_t rows = owned->steps * owned->batch;                                                              \
    SNNIPU_TRY(snnipu::forRowPieces(rows, snnipu::threadsFor(8 * rows * to.slots, threads),                            \
                                    [&](std::size_t begin, std::size_t end) {                                          \
                                      for (std::size_t row = begin; row < end; ++row)                                  \
                                        snnipu::selectRow(*owned, to, row);                                            \
                                    }))                                                                                \
  }                                                                                                                    \
  SNNIPU_SPARSE_CONV_LIF_SEQUENCE_BWD(snnipu_sparse_conv_lif_sequence_bwd_##SUFFIX, C) {                               \
    const snnipu::ConvSizes sizes(geometry);                                                                           \
    const std::size_t at_steps = snnipu::size(steps), at_batch = snnipu::size(batch);                                  \
    SNNIPU_TRY(snnipu::convBackward(snnipu::ConvBackward<C>{                                                           \
        grad,                                                                                                          \
        {ids, values, counts, at_steps, at_batch, snnipu::size(slots), sizes.inputs()},                                \
        {own_ids, nullptr, own_counts, at_steps, at_batch, snnipu::size(own_slots), sizes.neurons()},                  \
        snnipu::Convolution<C>(sizes, grad_values ? weight : nullptr),                                                 \
        {beta, snnipu::size(beta_size)},                                                                               \
        {threshold, snnipu::size(threshold_size)},                                                                     \
        slot_mem,                                                                                                      \
        neuron_threshold,                                                                                              \
        threshold_size > 1,                                                                                            \
        fired,                                                                                                         \
        mem,                                                                                                           \
        grad_values,                                                                                                   \
        grad_weight,                                                                                                   \
        grad_bias,                                                                                                     \
        grad_beta,                                                                                                     \
        grad_threshold,                                                                                                \
        grad_current,                                                                                                  \
        static_cast<C>(input_scale),                                                                                   \
        snnipu::size(delay),                                                                                           \
        reset,                                                                                                         \
        surrogate,                                                                                                     \
        static_cast<C>(surrogate_a),                                                                                   \
        static_cast<C>(surrogate_b),                                                                                   \
        threads}))                                                                                                     \
  }

extern "C" {

SPARSE_CONV(f32, float)
SPARSE_CONV(f64, double)
}
