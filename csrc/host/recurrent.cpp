// The time loop of a neuron whose spikes are its input through a fully connected layer one step later.
#include "host/recurrent.h"

#include "host/dtypes.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>

namespace snnipu {
namespace {

// BLAS chooses its kernel, and so its rounding, by the alignment of the operands, in bytes.
constexpr size_t alignment = 64;

template <typename C> class AlignedRow {
public:
  explicit AlignedRow(size_t elements)
      : memory_(new unsigned char[elements * sizeof(C) + alignment]), at_(memory_.get()) {
    at_ += (alignment - reinterpret_cast<std::uintptr_t>(at_) % alignment) % alignment;
  }
  C *get() const { return reinterpret_cast<C *>(at_); }

private:
  std::unique_ptr<unsigned char[]> memory_;
  unsigned char *at_;
};

template <typename C> struct RecurrentLoop {
  const snnipu_recurrent_call &call;
  const snnipu_neuron_call &all;
  const size_t steps, elements;
  const unsigned first; // the first state that is not the layer's output
  snnipu_neuron_call step;
  AlignedRow<C> product, sum, aligned;

  explicit RecurrentLoop(const snnipu_recurrent_call &of)
      : call(of), all(*of.all), steps(static_cast<size_t>(all.steps)), elements(static_cast<size_t>(all.elements)),
        first(of.adds ? 0 : 1), step(*of.all), product(elements), sum(elements), aligned(elements) {
    step.steps = 1;
    std::fill(std::begin(step.states), std::end(step.states), nullptr);
  }

  unsigned states() const { return static_cast<unsigned>(call.num_states); }
  template <typename T> T *row(T *sequence, size_t t) const { return sequence + t * elements; }
  const C *input(size_t t) const {
    const auto *x = static_cast<const C *>(all.x);
    return x && !all.constant_input ? row(x, t) : x;
  }

  // product = weight (or its transpose) times each row, plus product if `add`.
  void multiply(const C *rows, bool back, bool add) const {
    const int features = static_cast<int>(call.features), count = static_cast<int>(elements) / features;
    const C alpha = 1, beta = add ? 1 : 0;
    // BLAS is column-major: the weight's memory is the transposed matrix.
    const char *const transposition = (call.transposed != 0) == back ? "T" : "N";
    call.gemm(transposition, "N", &features, &count, &features, &alpha, call.weight, &features, rows, &features, &beta,
              product.get(), &features);
  }

  // Return the layer's output for the spikes of a step, or null if there are neither spikes nor a bias.
  const C *layerOutput(const C *spikes) const {
    const auto *bias = static_cast<const C *>(call.bias);
    const auto features = static_cast<size_t>(call.features);
    if (bias)
      for (size_t at = 0; at < elements; at += features)
        std::copy_n(bias, features, product.get() + at);
    if (!spikes)
      return bias ? product.get() : nullptr;
    if (reinterpret_cast<std::uintptr_t>(spikes) % alignment)
      spikes = std::copy_n(spikes, elements, aligned.get()) - elements;
    multiply(spikes, false, bias != nullptr);
    return product.get();
  }

  const C *added(const C *a, const C *b) const {
    C *const out = sum.get();
    for (size_t i = 0; i < elements; ++i)
      out[i] = a[i] + b[i];
    return out;
  }
};

// Two rows for each state, used by alternating steps.
template <typename C> struct AlternatingRows {
  std::unique_ptr<AlignedRow<C>> rows[SNNIPU_MOST_STATES][2];

  C *at(unsigned state, size_t t, size_t elements) {
    auto &row = rows[state][t % 2];
    if (!row)
      row = std::make_unique<AlignedRow<C>>(elements);
    return row->get();
  }
};

template <typename C> int recurrentForward(const snnipu_recurrent_call &call) {
  RecurrentLoop<C> loop(call);
  AlternatingRows<C> spare;
  auto &step = loop.step;
  auto *const spk = static_cast<C *>(loop.all.spk), *const incoming = static_cast<C *>(call.incoming);
  const auto *spikes = static_cast<const C *>(call.first);
  for (unsigned s = loop.first; s < loop.states(); ++s)
    step.initial[s] = loop.all.initial[s];
  for (size_t t = 0; t < loop.steps; ++t) {
    const C *const arriving = loop.layerOutput(spikes), *x = loop.input(t);
    if (call.adds && arriving)
      x = loop.added(x, arriving);
    if (incoming) {
      const C *const stored = call.adds ? x : arriving;
      C *const out = loop.row(incoming, t);
      if (stored)
        std::copy_n(stored, loop.elements, out);
      else
        std::fill_n(out, loop.elements, C(0));
    }
    step.x = x;
    if (!call.adds)
      step.initial[0] = arriving;
    for (unsigned s = loop.first; s < loop.states(); ++s)
      step.final[s] =
          loop.all.states[s] ? loop.row(static_cast<C *>(loop.all.states[s]), t) : spare.at(s, t, loop.elements);
    step.spk = loop.row(spk, t);
    if (const int status = call.neuron(&step))
      return status;
    for (unsigned s = loop.first; s < loop.states(); ++s)
      step.initial[s] = step.final[s];
    spikes = loop.row(spk, t);
  }
  for (unsigned s = loop.first; s < loop.states(); ++s)
    if (loop.all.final[s])
      std::copy_n(static_cast<const C *>(step.initial[s]), loop.elements, static_cast<C *>(loop.all.final[s]));
  return 0;
}

template <typename C> int recurrentBackward(const snnipu_recurrent_call &call) {
  RecurrentLoop<C> loop(call);
  AlternatingRows<C> spare;
  auto &step = loop.step;
  const auto &all = loop.all;
  const auto upstream = [&](const void *of, unsigned bit, size_t t) -> const C * {
    const auto *rows = static_cast<const C *>(of);
    return rows && !(all.grad_constant >> bit & 1) ? loop.row(rows, t) : rows;
  };
  std::unique_ptr<AlignedRow<C>> stepGradients[SNNIPU_MOST_PARAMETERS];
  for (unsigned p = 0; p < SNNIPU_MOST_PARAMETERS; ++p)
    if (all.grad_parameters[p]) {
      stepGradients[p] = std::make_unique<AlignedRow<C>>(static_cast<size_t>(all.parameter_sizes[p]));
      step.grad_parameters[p] = stepGradients[p]->get();
    }
  for (unsigned s = loop.first; s < loop.states(); ++s)
    step.grad_final[s] = all.grad_final[s];
  const auto *const spk = static_cast<const C *>(all.spk), *const incoming = static_cast<const C *>(call.incoming);
  const auto *carried = static_cast<const C *>(call.grad_last);
  for (size_t t = loop.steps; t-- > 0;) {
    const C *const spikes = loop.row(spk, t), *const arriving = incoming ? loop.row(incoming, t) : nullptr;
    const C *const x = call.adds ? arriving : loop.input(t);
    step.x = x;
    const C *grad = upstream(all.grad_spk, 0, t);
    if (call.adds && carried)
      grad = grad ? loop.added(grad, carried) : carried;
    step.grad_spk = grad;
    if (!call.adds) {
      step.initial[0] = arriving;
      step.states[0] = const_cast<C *>(spikes);
      step.grad_final[0] = carried;
    }
    for (unsigned s = loop.first; s < loop.states(); ++s) {
      auto *const states = static_cast<C *>(all.states[s]);
      step.initial[s] = t == 0 ? all.initial[s] : states ? loop.row(states, t - 1) : nullptr;
      step.states[s] = states ? loop.row(states, t) : nullptr;
      step.grad_states[s] = upstream(all.grad_states[s], 1 + s, t);
      step.grad_initial[s] = spare.at(s, t, loop.elements);
    }
    C *const gradX = loop.row(static_cast<C *>(all.grad_x), t);
    step.grad_x = gradX;
    if (const int status = call.neuron(&step))
      return status;
    for (unsigned s = loop.first; s < loop.states(); ++s)
      step.grad_final[s] = step.grad_initial[s];
    if (t || call.grad_first) {
      loop.multiply(gradX, true, false);
      carried = loop.product.get();
    }
    for (unsigned p = 0; p < SNNIPU_MOST_PARAMETERS; ++p)
      if (stepGradients[p]) {
        auto *const total = static_cast<C *>(all.grad_parameters[p]);
        for (size_t i = 0; i < static_cast<size_t>(all.parameter_sizes[p]); ++i)
          total[i] += stepGradients[p]->get()[i];
      }
  }
  for (unsigned s = loop.first; s < loop.states(); ++s)
    if (all.grad_initial[s])
      std::copy_n(static_cast<const C *>(step.grad_final[s]), loop.elements, static_cast<C *>(all.grad_initial[s]));
  if (call.grad_first)
    std::copy_n(carried, loop.elements, static_cast<C *>(call.grad_first));
  return 0;
}

int recurrent(const snnipu_recurrent_call &call, bool backward) {
  return forType(call.all->dtype, [&](auto type) {
    return backward ? recurrentBackward<decltype(type)>(call) : recurrentForward<decltype(type)>(call);
  });
}

} // namespace
} // namespace snnipu

extern "C" {
int snnipu_recurrent_forward(const snnipu_recurrent_call *call) { return snnipu::recurrent(*call, false); }
int snnipu_recurrent_backward(const snnipu_recurrent_call *call) { return snnipu::recurrent(*call, true); }
int64_t snnipu_recurrent_call_size(void) { return sizeof(snnipu_recurrent_call); }
}
