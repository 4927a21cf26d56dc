// Host implementation of eventprop_bwd: adjoint variables of neurons with a synaptic current, from the last step to the
// first. Each sample is one piece of work.
#include "host/sparse.hpp"

namespace snnipu {
namespace {

// Return the sum of the products, in partial sums that fill vector registers.
template <typename C> C sumOfProducts(const C *a, const C *b, size_t count) {
  constexpr size_t lanes = 16;
  C partial[lanes] = {};
  size_t at = 0;
  for (; at + lanes <= count; at += lanes)
    for (size_t lane = 0; lane < lanes; ++lane)
      partial[lane] += a[at + lane] * b[at + lane];
  for (; at < count; ++at)
    partial[at % lanes] += a[at] * b[at];
  C sum = 0;
  for (const C part : partial)
    sum += part;
  return sum;
}

template <typename C> class EventProp {
public:
  explicit EventProp(const Call<C> &call) : a_(call) {}

  int run() const {
    if (!CheckedSpikes<C>(spikes_, 1, false).fill(a_.threads()) || !idsAscend())
      return BadSpikes;
    const unsigned threads = threadsFor(4 * spikes_.rows() * spikes_.neurons, a_.threads());
    return parallelTry(spikes_.batch, threads, [&](size_t sample) { runSample(sample); });
  }

private:
  // Return true if no neuron has two spikes, or two other slots, in a step.
  bool idsAscend() const {
    for (size_t row = 0; row < spikes_.rows(); ++row) {
      const int32_t *const ids = spikes_.ids + row * spikes_.slots;
      for (int32_t slot = 1; slot < spikes_.counts[2 * row + 1]; ++slot)
        if (slot != spikes_.counts[2 * row] && ids[slot] <= ids[slot - 1])
          return false;
    }
    return true;
  }

  void runSample(size_t sample) const {
    static thread_local ThreadBuffer<C> buffer;
    const size_t neurons = spikes_.neurons;
    C *const adjoint = buffer.zeros(3 * neurons + spikes_.slots), *const changeAfter = adjoint + 2 * neurons;
    C *const ofTime = changeAfter + neurons;
    const C *after = adjoint + neurons;
    for (size_t t = spikes_.steps; t-- > 0;) {
      const size_t row = t * spikes_.batch + sample, first = row * spikes_.slots;
      const int32_t *const ids = spikes_.ids + first;
      const size_t carried = static_cast<size_t>(spikes_.counts[2 * row + 1]);
      C *const current = gradCurrent_ + row * neurons;
      for (size_t slot = 0; slot < carried; ++slot) {
        C &own = adjoint[ids[slot]];
        ofTime[slot] = grad_[first + slot] - faster_[ids[slot]] * own;
        if (recurrent_)
          ofTime[slot] += sumOfProducts(recurrent_ + static_cast<size_t>(ids[slot]) * neurons, changeAfter, neurons);
        own -= late_[first + slot] * ofTime[slot];
      }
      if (gradMem_)
        for (size_t n = 0; n < neurons; ++n)
          adjoint[n] += gradMem_[row * neurons + n];
      for (size_t n = 0; n < neurons; ++n) {
        current[n] = alpha_[n] * after[n] + adjoint[n];
        adjoint[n] *= beta_[n];
      }
      for (size_t slot = 0; slot < carried; ++slot)
        adjoint[ids[slot]] -= early_[first + slot] * ofTime[slot];
      for (size_t n = 0; recurrent_ && n < neurons; ++n)
        changeAfter[n] = after[n] - current[n];
      for (size_t n = 0; change_ && n < neurons; ++n)
        change_[row * neurons + n] = after[n] - current[n];
      after = current;
    }
  }

  const Call<C> &a_;
  const Spikes<C> spikes_ = a_.outputSpikes(size(a_.c.neurons));
  const C *const grad_ = a_.in(a_.c.grad), *const early_ = a_.in(a_.c.early), *const late_ = a_.in(a_.c.late);
  const C *const alpha_ = a_.in(a_.c.alpha), *const beta_ = a_.in(a_.c.beta), *const faster_ = a_.in(a_.c.threshold);
  const C *const gradMem_ = a_.in(a_.c.mem), *const recurrent_ = a_.in(a_.c.recurrent_weight);
  C *const gradCurrent_ = a_.out(a_.c.grad_current), *const change_ = a_.out(a_.c.out);
};

template <typename C> int eventprop(const Call<C> &a) { return EventProp<C>(a).run(); }

} // namespace
} // namespace snnipu

SNNIPU_RUN(eventprop_bwd, eventprop)
