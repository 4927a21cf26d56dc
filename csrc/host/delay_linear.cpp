// A linear layer with a delay for each synapse. A task holds all steps of a few neurons and samples in the cache: the
// forward pass adds each spike at its own time for each neuron, and the backward pass reads there.
#include "host/sparse_layer.hpp"
#include "host/transpose.hpp"

#include <cstring>

namespace snnipu {

// The spikes of a group of samples, sorted by input. Each has its place in a neuron's row, which holds the steps of one
// sample after those of another.
template <typename C> struct PlacedSpikes {
  std::vector<uint32_t> begin, place; // [inputs + 1], [spikes]
  std::vector<C> value;               // empty if all are 1

  // Sort the samples [first, last); `length` is a sample's part of a row.
  void build(const Spikes<C> &spikes, size_t first, size_t last, size_t length, bool unit) {
    const auto forSpikes = [&](const auto &body) {
      // Samples are interleaved step by step, even steps before odd ones. The taps of consecutive spikes then do not
      // overlap, and no load waits for a store of half its bytes.
      for (const size_t parity : {0, 1})
        for (size_t at = parity; at < spikes.steps; at += 2)
          for (size_t sample = first; sample < last; ++sample) {
            const size_t row = at * spikes.batch + sample, from = row * spikes.slots;
            for (size_t slot = from; slot < from + static_cast<size_t>(spikes.counts[2 * row]); ++slot)
              body((sample - first) * length + at, slot, static_cast<size_t>(spikes.ids[slot]));
          }
    };
    begin.assign(spikes.neurons + 1, 0);
    forSpikes([&](size_t, size_t, size_t input) { ++begin[input + 1]; });
    for (size_t input = 0; input < spikes.neurons; ++input)
      begin[input + 1] += begin[input];
    place.resize(begin[spikes.neurons]);
    value.resize(unit ? 0 : place.size());
    std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
    forSpikes([&](size_t at, size_t slot, size_t input) {
      const uint32_t spike = next[input]++;
      place[spike] = static_cast<uint32_t>(at);
      if (!unit)
        value[spike] = spikes.values[slot];
    });
  }
};

// Two neighbouring taps.
template <typename C> struct TapPair {
  VectorN<C, 2> taps;

  static TapPair at(const C *from) {
    TapPair pair;
    std::memcpy(&pair.taps, from, sizeof pair.taps);
    return pair;
  }
  void storeTo(C *to) const { std::memcpy(to, &taps, sizeof taps); }
};

// The layer's three passes. A row belongs to a neuron and has a group's samples, each with room for spikes that arrive
// after its last step.
template <typename C> class DelayLinear {
public:
  explicit DelayLinear(const Call<C> &a) : a_(a) {}

  int currents() {
    const int status = readSpikes();
    if (status != Done)
      return status;
    const C *const bias = a_.in(a_.c.bias);
    C *const out = a_.out(a_.c.out);
    return parallelTry(groups_ * blocks(), threads_, [&](size_t task) {
      static thread_local ThreadBuffer<C> buffer;
      const size_t group = task / blocks(), first = task % blocks() * block, held = std::min(block, neurons_ - first);
      C *const rows = buffer.reserve(block * rowSize());
      for (size_t o = 0; o < held; ++o)
        std::fill_n(rows + o * rowSize(), rowSize(), bias ? bias[first + o] : C(0));
      for (size_t input = 0; input < inputs_; ++input)
        forNeurons(group, input, first, held, rows, [&](auto *row, const C *weight, auto count, const auto &spikes) {
          add(row, weight, count, spikes);
        });
      for (size_t sample = 0; sample < samplesOf(group); ++sample)
        transpose(rows + sample * length_, rowSize(), held, steps_,
                  out + (group * groupSize_ + sample) * neurons_ + first, batch_ * neurons_, C(1));
    });
  }

  // Gradients of the weights.
  int gradients() {
    const int status = readSpikes();
    if (status != Done)
      return status;
    C *const gradWeight = a_.out(a_.c.grad_weight);
    std::fill_n(gradWeight, inputs_ * neurons_ * taps_, C(0));
    // A single task computes a sum over all groups in order, so that the result does not depend on the number of tasks.
    const size_t shares = std::max<size_t>(1, std::min((inputs_ + 31) / 32, 4 * threads_ / blocks()));
    return parallelTry(blocks() * shares, threads_, [&](size_t task) {
      static thread_local ThreadBuffer<C> buffer;
      const size_t first = task / shares * block, held = std::min(block, neurons_ - first), share = task % shares;
      C *const rows = buffer.reserve(block * rowSize());
      for (size_t group = 0; group < groups_; ++group) {
        readGradient(group, first, held, rows);
        for (size_t input = share * inputs_ / shares; input < (share + 1) * inputs_ / shares; ++input)
          forNeurons(group, input, first, held, rows, [&](auto *row, const C *weight, auto count, const auto &spikes) {
            sum(row, gradWeight + (weight - weight_), count, spikes);
          });
      }
    });
  }

  // Gradient of the input at every step, also where it is 0.
  int inputGradient() {
    C *const gradX = a_.out(a_.c.grad_x);
    const unsigned threads = threadsFor(steps_ * batch_ * inputs_ * neurons_ * taps_ / 8, a_.threads());
    return parallelTry(groups_, threads, [&](size_t group) {
      static thread_local ThreadBuffer<C> rowsBuffer, sumsBuffer;
      C *const rows = rowsBuffer.reserve(block * rowSize()), *const sums = sumsBuffer.zeros(inputs_ * rowSize());
      for (size_t first = 0; first < neurons_; first += block) {
        const size_t held = std::min(block, neurons_ - first);
        readGradient(group, first, held, rows);
        for (size_t input = 0; input < inputs_; ++input)
          for (size_t o = 0; o < held; ++o)
            for (size_t tap = 0; tap < taps_; tap += 2)
              addBack(input * neurons_ + first + o, tap, rows + o * rowSize(), sums + input * rowSize());
      }
      for (size_t sample = 0; sample < samplesOf(group); ++sample)
        transpose(sums + sample * length_, rowSize(), inputs_, steps_, gradX + (group * groupSize_ + sample) * inputs_,
                  batch_ * inputs_, C(1));
    });
  }

private:
  // block: neurons that are processed together, so that no addition waits for the previous one; a small number, so that
  // one loop covers many samples. rowsBytes: bytes of their rows, which stay in the first-level cache.
  static constexpr size_t block = 8, rowsBytes = 32 * 1024;

  struct InputSpikes {
    const uint32_t *place;
    const C *value; // null if all are 1
    size_t count;
  };

  size_t blocks() const { return (neurons_ + block - 1) / block; }
  size_t rowSize() const { return length_ * groupSize_; }
  size_t samplesOf(size_t group) const { return std::min(groupSize_, batch_ - group * groupSize_); }

  int readSpikes() {
    const Spikes<C> spikes = a_.spikes(inputs_);
    CheckedSpikes<C> checked(spikes, 0, false);
    if (!checked.fill(a_.threads()))
      return BadSpikes;
    threads_ = threadsFor((checked.total(0) * taps_ + batch_ * length_) * neurons_, a_.threads());
    spikes_.resize(groups_);
    return parallelTry(groups_, threads_, [&](size_t group) {
      const size_t first = group * groupSize_;
      spikes_[group].build(spikes, first, first + samplesOf(group), length_, checked.unitValues());
    });
  }

  // For an input's spikes, call body(rows shifted by the synapses' lags, weights, number of neurons as a constant,
  // spikes).
  template <typename Body>
  void forNeurons(size_t group, size_t input, size_t first, size_t held, C *rows, const Body &body) const {
    const PlacedSpikes<C> &placed = spikes_[group];
    const size_t begin = placed.begin[input], count = placed.begin[input + 1] - begin;
    if (count == 0)
      return;
    const InputSpikes spikes{placed.place.data() + begin, placed.value.empty() ? nullptr : placed.value.data() + begin,
                             count};
    const size_t at = input * neurons_ + first;
    const auto callBody = [&](size_t o, auto many) {
      C *row[many];
      for (size_t offset = 0; offset < many; ++offset)
        row[offset] = rows + (o + offset) * rowSize() + lags_[at + o + offset];
      body(row, weight_ + (at + o) * taps_, many, spikes);
    };
    if (held == block)
      return callBody(0, std::integral_constant<size_t, block>());
    for (size_t o = 0; o < held; ++o)
      callBody(o, std::integral_constant<size_t, 1>());
  }

  // Call body(place, scaled) for the spikes; scaled(taps) multiplies by the spike's value, if there is one.
  template <typename Body> static void forScaled(const InputSpikes &spikes, const Body &body) {
    for (size_t spike = 0; spikes.value && spike < spikes.count; ++spike)
      body(spikes.place[spike], [value = spikes.value[spike]](auto taps) { return taps * value; });
    for (size_t spike = 0; !spikes.value && spike < spikes.count; ++spike)
      body(spikes.place[spike], [](auto taps) { return taps; });
  }

  template <typename Count> void add(C *const *row, const C *weight, Count, const InputSpikes &spikes) const {
    if (taps_ != 2) {
      for (size_t spike = 0; spike < spikes.count; ++spike)
        for (size_t o = 0; o < Count::value; ++o)
          for (size_t tap = 0; tap < taps_; ++tap)
            row[o][spikes.place[spike] + tap] += weight[o * taps_ + tap] * (spikes.value ? spikes.value[spike] : C(1));
      return;
    }
    TapPair<C> pairs[Count::value];
    C *to[Count::value];
    for (size_t o = 0; o < Count::value; ++o) {
      pairs[o] = TapPair<C>::at(weight + 2 * o);
      to[o] = row[o];
    }
    forScaled(spikes, [&](size_t place, const auto &scaled) {
      for (size_t o = 0; o < Count::value; ++o)
        TapPair<C>{TapPair<C>::at(to[o] + place).taps + scaled(pairs[o].taps)}.storeTo(to[o] + place);
    });
  }

  template <typename Count> void sum(C *const *row, C *sums, Count, const InputSpikes &spikes) const {
    if (taps_ != 2) {
      for (size_t spike = 0; spike < spikes.count; ++spike)
        for (size_t o = 0; o < Count::value; ++o)
          for (size_t tap = 0; tap < taps_; ++tap)
            sums[o * taps_ + tap] += row[o][spikes.place[spike] + tap] * (spikes.value ? spikes.value[spike] : C(1));
      return;
    }
    TapPair<C> total[Count::value];
    const C *from[Count::value];
    for (size_t o = 0; o < Count::value; ++o) {
      total[o] = TapPair<C>::at(sums + 2 * o);
      from[o] = row[o];
    }
    forScaled(spikes, [&](size_t place, const auto &scaled) {
      for (size_t o = 0; o < Count::value; ++o)
        total[o].taps += scaled(TapPair<C>::at(from[o] + place).taps);
    });
    for (size_t o = 0; o < Count::value; ++o)
      total[o].storeTo(sums + 2 * o);
  }

  // Add two taps of a synapse times a neuron's row to its input's sums. Sums after a sample's last step are not read.
  void addBack(size_t at, size_t tap, const C *row, C *sums) const {
    const C *const weight = weight_ + at * taps_ + tap, *const from = row + static_cast<size_t>(lags_[at]) + tap;
    const C firstWeight = weight[0], secondWeight = tap + 1 < taps_ ? weight[1] : C(0);
    const size_t places = rowSize() - span_;
    for (size_t place = 0; place < places; ++place)
      sums[place] += firstWeight * from[place] + secondWeight * from[place + 1];
  }

  // Read a block's gradient for a group, with zeros after each sample's last step.
  void readGradient(size_t group, size_t first, size_t held, C *rows) const {
    const C *const grad = a_.in(a_.c.grad) + group * groupSize_ * neurons_ + first;
    for (size_t sample = 0; sample < groupSize_; ++sample) {
      const size_t steps = sample < samplesOf(group) ? steps_ : 0;
      C *const to = rows + sample * length_;
      for (size_t o = 0; o < held; ++o)
        std::fill_n(to + o * rowSize() + steps, length_ - steps, C(0));
      if (steps > 0)
        transpose(grad + sample * neurons_, batch_ * neurons_, steps_, held, to, rowSize(), C(1));
    }
  }

  const Call<C> a_;
  const size_t inputs_ = size(a_.c.inputs), neurons_ = size(a_.c.neurons);
  const size_t steps_ = size(a_.c.steps), batch_ = size(a_.c.batch);
  const size_t span_ = size(a_.c.geometry[0]), taps_ = size(a_.c.geometry[1]), length_ = steps_ + span_;
  const size_t groupSize_ = std::max<size_t>(1, std::min(batch_, rowsBytes / (block * length_ * sizeof(C))));
  const size_t groups_ = (batch_ + groupSize_ - 1) / groupSize_;
  const C *const weight_ = a_.in(a_.c.weight);
  const int32_t *const lags_ = a_.c.lags;
  unsigned threads_ = 1;
  std::vector<PlacedSpikes<C>> spikes_;
};

template <typename C> int delayForward(const Call<C> &a) { return DelayLinear<C>(a).currents(); }
template <typename C> int delayBackward(const Call<C> &a) { return DelayLinear<C>(a).gradients(); }
template <typename C> int delayInputBackward(const Call<C> &a) { return DelayLinear<C>(a).inputGradient(); }

} // namespace snnipu

SNNIPU_RUN(delay_linear_fwd, delayForward)
SNNIPU_RUN(delay_linear_bwd, delayBackward)
SNNIPU_RUN(delay_linear_input_bwd, delayInputBackward)
