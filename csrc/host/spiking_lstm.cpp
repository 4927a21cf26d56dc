// A spiking LSTM's step after its matrix products, in one pass over the gates.
#include "host/spiking_lstm.h"

#include "host/dtypes.hpp"
#include "host/parallel.hpp"
#include "neuron/functions.hpp"
#include "neuron/sequence.hpp"

#include <algorithm>

namespace snnipu {
namespace {

// The fewest neurons that are worth a thread.
constexpr size_t neuronsPerBlock = 4096;

// The memory of one row: gates, states and gradients. Missing arrays are null.
template <typename C> class LstmRow {
public:
  LstmRow(const snnipu_lstm_call &call, size_t row)
      : call_(call), width_(static_cast<size_t>(call.width)), at_(row * width_) {}

  void forward() const {
    C *const i = gate(call_.gates, 0), *const f = gate(call_.gates, 1), *const g = gate(call_.gates, tanhGate()),
             *const o = gate(call_.gates, outputGate());
    const C *const synBefore = rowOf(call_.syn_before);
    C *const syn = rowOf(call_.syn), *const mem = rowOf(call_.mem);
    const C threshold = static_cast<C>(call_.threshold);
    each([&](size_t n, auto lanes) {
      using V = decltype(lanes);
      const V in = sigmoid(load<V>(i + n)), forget = sigmoid(load<V>(f + n)), cell = tanh(load<V>(g + n)),
              out = sigmoid(load<V>(o + n));
      const V input = in * cell, after = synBefore ? forget * load<V>(synBefore + n) + input : input;
      const V hidden = out * tanh(after);
      store(i + n, in);
      store(f + n, forget);
      store(g + n, cell);
      store(o + n, out);
      store(syn + n, after);
      const V reset = isReset<V>(n);
      store(mem + n, call_.reset == 0   ? hidden - reset * threshold
                     : call_.reset == 1 ? (reset > splat<V>(0) ? splat<V>(0) : hidden)
                                        : hidden);
    });
  }

  void backward() const {
    const C *const i = gate(call_.gates, 0), *const f = gate(call_.gates, 1), *const g = gate(call_.gates, tanhGate()),
                   *const o = gate(call_.gates, outputGate());
    const C *const synBefore = rowOf(call_.syn_before), *const syn = rowOf(call_.syn);
    const C *const lossGradSyn = rowOf(call_.grad_syn), *const lossGradMem = rowOf(call_.grad_mem),
                   *const carriedSyn = rowOf(call_.carried_syn), *const carriedMem = rowOf(call_.carried_mem);
    C *const gradI = gate(call_.grad_gates, 0), *const gradF = gate(call_.grad_gates, 1),
             *const gradG = gate(call_.grad_gates, tanhGate()), *const gradO = gate(call_.grad_gates, outputGate());
    C *const gradBefore = rowOf(call_.grad_before), *const gradReset = rowOf(call_.grad_reset);
    each([&](size_t n, auto lanes) {
      using V = decltype(lanes);
      const auto sum = [n](const C *a, const C *b) {
        const V first = a ? load<V>(a + n) : V{};
        return b ? first + load<V>(b + n) : first;
      };
      const V one = splat<V>(1), in = load<V>(i + n), forget = load<V>(f + n), cell = load<V>(g + n),
              out = load<V>(o + n), shape = tanh(load<V>(syn + n));
      V gradMem = sum(lossGradMem, carriedMem);
      const V reset = isReset<V>(n);
      if (gradReset)
        store(gradReset + n, -gradMem * reset);
      if (call_.reset == 1)
        gradMem = reset > splat<V>(0) ? splat<V>(0) : gradMem;
      const V gradSyn = sum(lossGradSyn, carriedSyn) + gradMem * out * (one - shape * shape);
      store(gradI + n, gradSyn * cell * in * (one - in));
      store(gradF + n, synBefore ? gradSyn * load<V>(synBefore + n) * forget * (one - forget) : V{});
      store(gradG + n, gradSyn * in * (one - cell * cell));
      store(gradO + n, gradMem * shape * out * (one - out));
      store(gradBefore + n, gradSyn * forget);
    });
  }

private:
  size_t tanhGate() const { return static_cast<size_t>(call_.tanh_gate); }
  size_t outputGate() const { return 5 - tanhGate(); }
  const C *rowOf(const void *rows) const { return rows ? static_cast<const C *>(rows) + at_ : nullptr; }
  C *rowOf(void *rows) const { return rows ? static_cast<C *>(rows) + at_ : nullptr; }
  C *gate(void *gates, size_t which) const { return static_cast<C *>(gates) + 4 * at_ + which * width_; }

  template <typename V> V isReset(size_t n) const {
    const C *const before = rowOf(call_.mem_before);
    return heaviside((before ? load<V>(before + n) : V{}) - splat<V>(static_cast<C>(call_.threshold)));
  }

  template <typename Body> void each(const Body &body) const { forRegisters<C, true>(ElementRange{0, width_}, body); }

  const snnipu_lstm_call &call_;
  const size_t width_, at_;
};

int lstm(const snnipu_lstm_call &call, bool backward) {
  return forType(call.dtype, [&](auto type) {
    const auto rows = static_cast<size_t>(call.rows), width = static_cast<size_t>(call.width);
    const size_t rowsPerBlock = std::max<size_t>(1, neuronsPerBlock / width);
    parallelPieces(rows, rowsPerBlock, static_cast<unsigned>(call.threads), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        const LstmRow<decltype(type)> lstmRow(call, row);
        backward ? lstmRow.backward() : lstmRow.forward();
      }
    });
    return 0;
  });
}

} // namespace
} // namespace snnipu

extern "C" {
int snnipu_lstm_forward(const snnipu_lstm_call *call) { return snnipu::lstm(*call, false); }
int snnipu_lstm_backward(const snnipu_lstm_call *call) { return snnipu::lstm(*call, true); }
int64_t snnipu_lstm_call_size(void) { return sizeof(snnipu_lstm_call); }
}
