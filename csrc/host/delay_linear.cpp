// A linear layer whose synapses have a time each. All steps of a few neurons and samples lie in the cache, and a spike
// is added there for each neuron at its own time; the way back reads there.
#include "host/sparse_layer.hpp"
#include "host/transpose.hpp"

#include <cstring>

namespace snnipu {

// The spikes of a group of samples by input, each with its place in a neuron's row: steps, sample by sample.
template <typename C> struct PlacedSpikes {
  std::vector<uint32_t> begin, place; // [inputs + 1], [spikes]
  std::vector<C> value;               // empty where all are 1

  // Of the samples [first, last), `length` places of a row each.
  void build(const Spikes<C> &spikes, size_t first, size_t last, size_t length, bool unit) {
    const auto forSpikes = [&](const auto &body) {
      // Step by step, so that few of one sample's stand side by side; every other step first: the taps of two in a row
      // do not overlap then, and no load waits for a store of half its bytes.
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

// Two taps side by side.
template <typename C> struct TapPair {
  VectorN<C, 2> taps;

  static TapPair at(const C *from) {
    TapPair made;
    std::memcpy(&made.taps, from, sizeof made.taps);
    return made;
  }
  void storeTo(C *to) const { std::memcpy(to, &taps, sizeof taps); }
};

// Rows of some neurons, a group's samples one behind the other, each with room for what arrives behind its last step.
template <typename C> class Delayed {
public:
  explicit Delayed(const Call<C> &a)
      : a_(a), inputs_(size(a.c.inputs)), neurons_(size(a.c.neurons)), steps_(size(a.c.steps)), batch_(size(a.c.batch)),
        span_(size(a.c.geometry[0])), taps_(size(a.c.geometry[1])), length_(steps_ + span_),
        together_(std::max<size_t>(1, std::min(batch_, rowsBytes / (block * length_ * sizeof(C))))),
        groups_((batch_ + together_ - 1) / together_), weight_(a.in(a.c.weight)), lags_(a.c.lags) {}

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
                  out + (group * together_ + sample) * neurons_ + first, batch_ * neurons_, C(1));
    });
  }

  // Of the weights alone.
  int gradients() {
    const int status = readSpikes();
    if (status != Done)
      return status;
    C *const gradWeight = a_.out(a_.c.grad_weight);
    std::fill_n(gradWeight, inputs_ * neurons_ * taps_, C(0));
    // A sum is one task's, over the groups in order: how many tasks there are does not matter to it.
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

  // Of the input at every step, zeros too.
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
        transpose(sums + sample * length_, rowSize(), inputs_, steps_, gradX + (group * together_ + sample) * inputs_,
                  batch_ * inputs_, C(1));
    });
  }

private:
  // Neurons that are worked on side by side, so that no addition waits for the one before: few, so that many samples'
  // spikes are one loop; and bytes of their rows, which stay in the first-level cache.
  static constexpr size_t block = 8, rowsBytes = 32 * 1024;

  struct PlacesOf {
    const uint32_t *place;
    const C *value; // null where all are 1
    size_t count;
  };

  size_t blocks() const { return (neurons_ + block - 1) / block; }
  size_t rowSize() const { return length_ * together_; }
  size_t samplesOf(size_t group) const { return std::min(together_, batch_ - group * together_); }

  int readSpikes() {
    const Spikes<C> spikes = a_.spikes(inputs_);
    CheckedSpikes<C> checked(spikes, 0, false);
    if (!checked.fill(a_.threads()))
      return BadSpikes;
    threads_ = threadsFor((checked.total(0) * taps_ + batch_ * length_) * neurons_, a_.threads());
    spikes_.resize(groups_);
    return parallelTry(groups_, threads_, [&](size_t group) {
      const size_t first = group * together_;
      spikes_[group].build(spikes, first, first + samplesOf(group), length_, checked.unitValues());
    });
  }

  // body(rows from their lags on, weights, how many neurons as a constant, spikes) for an input's spikes.
  template <typename Body>
  void forNeurons(size_t group, size_t input, size_t first, size_t held, C *rows, const Body &body) const {
    const PlacedSpikes<C> &found = spikes_[group];
    const size_t begin = found.begin[input], count = found.begin[input + 1] - begin;
    if (count == 0)
      return;
    const PlacesOf spikes{found.place.data() + begin, found.value.empty() ? nullptr : found.value.data() + begin,
                          count};
    const size_t at = input * neurons_ + first;
    const auto together = [&](size_t o, auto many) {
      C *row[many];
      for (size_t beside = 0; beside < many; ++beside)
        row[beside] = rows + (o + beside) * rowSize() + lags_[at + o + beside];
      body(row, weight_ + (at + o) * taps_, many, spikes);
    };
    if (held == block)
      return together(0, std::integral_constant<size_t, block>());
    for (size_t o = 0; o < held; ++o)
      together(o, std::integral_constant<size_t, 1>());
  }

  template <typename Count> void add(C *const *row, const C *weight, Count, const PlacesOf &spikes) const {
    if (taps_ != 2) {
      for (size_t spike = 0; spike < spikes.count; ++spike)
        for (size_t o = 0; o < Count::value; ++o)
          for (size_t tap = 0; tap < taps_; ++tap)
            row[o][spikes.place[spike] + tap] += weight[o * taps_ + tap] * (spikes.value ? spikes.value[spike] : C(1));
      return;
    }
    TapPair<C> own[Count::value];
    C *to[Count::value];
    for (size_t o = 0; o < Count::value; ++o) {
      own[o] = TapPair<C>::at(weight + 2 * o);
      to[o] = row[o];
    }
    if (spikes.value) {
      for (size_t spike = 0; spike < spikes.count; ++spike)
        for (size_t o = 0; o < Count::value; ++o) {
          C *const there = to[o] + spikes.place[spike];
          TapPair<C>{TapPair<C>::at(there).taps + own[o].taps * spikes.value[spike]}.storeTo(there);
        }
      return;
    }
    for (size_t spike = 0; spike < spikes.count; ++spike)
      for (size_t o = 0; o < Count::value; ++o) {
        C *const there = to[o] + spikes.place[spike];
        TapPair<C>{TapPair<C>::at(there).taps + own[o].taps}.storeTo(there);
      }
  }

  template <typename Count> void sum(C *const *row, C *sums, Count, const PlacesOf &spikes) const {
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
    if (spikes.value) {
      for (size_t spike = 0; spike < spikes.count; ++spike)
        for (size_t o = 0; o < Count::value; ++o)
          total[o].taps += TapPair<C>::at(from[o] + spikes.place[spike]).taps * spikes.value[spike];
    } else {
      for (size_t spike = 0; spike < spikes.count; ++spike)
        for (size_t o = 0; o < Count::value; ++o)
          total[o].taps += TapPair<C>::at(from[o] + spikes.place[spike]).taps;
    }
    for (size_t o = 0; o < Count::value; ++o)
      total[o].storeTo(sums + 2 * o);
  }

  // Two taps of a synapse, of a neuron's row into its input's sums at every place. What is added behind a sample's last
  // step nobody reads.
  void addBack(size_t at, size_t tap, const C *row, C *sums) const {
    const C *const weight = weight_ + at * taps_ + tap, *const from = row + static_cast<size_t>(lags_[at]) + tap;
    const C one = weight[0], two = tap + 1 < taps_ ? weight[1] : C(0);
    const size_t places = rowSize() - span_;
    for (size_t place = 0; place < places; ++place)
      sums[place] += one * from[place] + two * from[place + 1];
  }

  // A block's gradient of a group, zeros behind a sample's last step.
  void readGradient(size_t group, size_t first, size_t held, C *rows) const {
    const C *const grad = a_.in(a_.c.grad) + group * together_ * neurons_ + first;
    for (size_t sample = 0; sample < together_; ++sample) {
      const size_t steps = sample < samplesOf(group) ? steps_ : 0;
      C *const to = rows + sample * length_;
      for (size_t o = 0; o < held; ++o)
        std::fill_n(to + o * rowSize() + steps, length_ - steps, C(0));
      if (steps > 0)
        transpose(grad + sample * neurons_, batch_ * neurons_, steps_, held, to, rowSize(), C(1));
    }
  }

  const Call<C> a_;
  size_t inputs_, neurons_, steps_, batch_, span_, taps_, length_, together_, groups_;
  const C *weight_;
  const int32_t *lags_;
  unsigned threads_ = 1;
  std::vector<PlacedSpikes<C>> spikes_;
};

} // namespace snnipu

extern "C" {

int snnipu_delay_linear_fwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) { return snnipu::Delayed(a).currents(); });
}

int snnipu_delay_linear_bwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) { return snnipu::Delayed(a).gradients(); });
}

int snnipu_delay_linear_input_bwd(snnipu_sparse_call *call) {
  return snnipu::run(call, [](auto a) { return snnipu::Delayed(a).inputGradient(); });
}
}
