// Host side of lif_sequence: cache-sized blocks of elements, each one call of a vertex.
#include "host/parallel.hpp"
#include "host/snnipu.h"
#include "host/workers.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <vector>

// The codelet file itself: its templates are instantiated here for the host's storage types.
#include "vertices/lif.cpp"

namespace snnipu {
namespace {

// Elements of a block: state, parameters and sums of a block stay in the first-level cache.
constexpr std::size_t blockElements = 1024;
// Bytes of membranes that a block of the backward pass recomputes: they stay in the second-level cache.
constexpr std::size_t recomputedBytes = 256 * 1024;
// Neuron updates that are worth a thread: waking one costs microseconds.
constexpr std::size_t updatesPerThread = 32768;

// As many threads as the work feeds, and no more than were offered.
unsigned usefulThreads(std::size_t steps, std::size_t elements, std::int32_t offered) {
  const std::size_t fed = steps * elements / updatesPerThread + 1;
  return offered > 0 && fed > static_cast<std::size_t>(offered) ? static_cast<unsigned>(offered)
                                                                : static_cast<unsigned>(fed);
}

template <typename C> struct Parameter {
  const C *values;
  std::size_t size;

  // The values of elements [begin, begin + count), one each.
  void expand(C *to, std::size_t begin, std::size_t count) const {
    std::size_t from = begin % size;
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = values[from];
      if (++from == size)
        from = 0;
    }
  }
};

template <typename C> struct Parameters {
  Parameter<C> beta, threshold, graded;

  bool perElement() const { return beta.size > 1 || threshold.size > 1 || graded.size > 1; }
};

// A block's parameters: expanded where any of them is per element, else the single values.
template <typename C> struct BlockParameters {
  C expanded[3][blockElements];

  template <typename Vertex>
  void connect(Vertex &vertex, const Parameters<C> &p, std::size_t begin, std::size_t count) {
    vertex.perElement = p.perElement();
    if (!vertex.perElement) {
      vertex.beta.connect(p.beta.values);
      vertex.threshold.connect(p.threshold.values);
      vertex.graded.connect(p.graded.values);
      return;
    }
    p.beta.expand(expanded[0], begin, count);
    p.threshold.expand(expanded[1], begin, count);
    p.graded.expand(expanded[2], begin, count);
    vertex.beta.connect(expanded[0]);
    vertex.threshold.connect(expanded[1]);
    vertex.graded.connect(expanded[2]);
  }
};

template <typename S> struct ForwardArgs {
  using C = Compute<S>;
  const S *x;
  const C *mem0;
  Parameters<C> parameters;
  S *spk, *mem, *preReset;
  std::size_t steps, elements;
  bool constantInput;
  unsigned threads;
};

// One block of the forward pass. Outputs point at the block's first element; spk or mem may be null.
template <typename Vertex, typename S>
void forwardBlock(const ForwardArgs<S> &a, std::size_t begin, std::size_t count, S *spk, S *mem, S *preReset,
                  std::size_t memStride, const WorkerOrder &order) {
  using C = Compute<S>;
  alignas(64) C state[blockElements];
  alignas(64) BlockParameters<C> parameters;
  if (a.mem0)
    std::copy_n(a.mem0 + begin, count, state);
  else
    std::fill_n(state, count, C(0));
  Vertex vertex;
  vertex.x.connect(a.x + begin);
  vertex.state.connect(state);
  vertex.spk.connect(spk);
  vertex.mem.connect(mem);
  vertex.preReset.connect(preReset);
  vertex.storeSpk = spk != nullptr;
  vertex.storeMem = mem != nullptr;
  vertex.storePreReset = preReset != nullptr;
  vertex.steps = static_cast<unsigned>(a.steps);
  vertex.size = static_cast<unsigned>(count);
  vertex.xStride = a.constantInput ? 0 : static_cast<unsigned>(a.elements);
  vertex.spkStride = static_cast<unsigned>(a.elements);
  vertex.memStride = static_cast<unsigned>(memStride);
  parameters.connect(vertex, a.parameters, begin, count);
  runVertex(vertex, order);
}

template <typename Vertex, typename S> void forward(const ForwardArgs<S> &a) {
  const WorkerOrder order = workerOrder();
  const auto at = [](S *array, std::size_t begin) { return array ? array + begin : nullptr; };
  parallelFor((a.elements + blockElements - 1) / blockElements, a.threads, [&](std::size_t block) {
    const std::size_t begin = block * blockElements;
    const std::size_t count = std::min(blockElements, a.elements - begin);
    forwardBlock<Vertex>(a, begin, count, at(a.spk, begin), at(a.mem, begin), at(a.preReset, begin), a.elements, order);
  });
}

template <typename S> struct BackwardArgs {
  using C = Compute<S>;
  const S *gradSpk, *gradMem, *mem, *preReset;
  ForwardArgs<S> forward; // inputs of the forward pass: x is read only where mem is null
  S *gradX;
  C *gradMem0;
  C *gradParameters[3]; // beta, threshold, graded; each may be null
  bool gradSpkConstant, gradMemConstant;
  C surrogateA, surrogateB;
};

// Sums over elements of one parameter's gradient. A single parameter: a double for each block. One per element: the
// elements' sums are kept and those of the same neuron added up at the end. Either way the order does not depend on
// the threads.
template <typename C> class ParameterSum {
public:
  ParameterSum(C *result, std::size_t size, std::size_t elements, std::size_t blocks)
      : result_(result), size_(size), elements_(elements) {
    if (result)
      size == 1 ? blockSums_.resize(blocks) : elementSums_.resize(elements);
  }

  void addBlock(std::size_t block, const C *sums, std::size_t begin, std::size_t count) {
    if (!result_)
      return;
    if (size_ > 1) {
      std::copy_n(sums, count, elementSums_.data() + begin);
      return;
    }
    double total = 0;
    for (std::size_t i = 0; i < count; ++i)
      total += static_cast<double>(sums[i]);
    blockSums_[block] = total;
  }

  void finish() {
    if (!result_)
      return;
    if (size_ == 1) {
      double total = 0;
      for (const double sum : blockSums_)
        total += sum;
      result_[0] = static_cast<C>(total);
      return;
    }
    std::vector<double> totals(size_);
    for (std::size_t row = 0; row < elements_; row += size_)
      for (std::size_t i = 0; i < size_; ++i)
        totals[i] += static_cast<double>(elementSums_[row + i]);
    std::transform(totals.begin(), totals.end(), result_, [](double total) { return static_cast<C>(total); });
  }

private:
  C *result_;
  std::size_t size_, elements_;
  std::vector<double> blockSums_;
  std::vector<C> elementSums_;
};

// Returns 0, or 2 where memory could not be had.
template <typename Forward, typename Backward, typename S> int backward(const BackwardArgs<S> &a) {
  using C = Compute<S>;
  const ForwardArgs<S> &f = a.forward;
  const WorkerOrder order = workerOrder();
  const bool recompute = a.mem == nullptr;
  constexpr std::size_t arrays = Forward::delaysReset ? 1 : 2;
  std::size_t blockSize = blockElements;
  if (recompute) {
    constexpr std::size_t least = 2 * registerLanes<C>;
    const std::size_t fitting = recomputedBytes / (f.steps * arrays * sizeof(S)) / least * least;
    blockSize = std::min(blockElements, std::max(least, fitting));
  }
  const std::size_t blocks = (f.elements + blockSize - 1) / blockSize;
  const Parameter<C> *const parameter[3] = {&f.parameters.beta, &f.parameters.threshold, &f.parameters.graded};
  std::vector<ParameterSum<C>> sums;
  bool parameterGradients = false;
  for (int i = 0; i < 3; ++i) {
    sums.emplace_back(a.gradParameters[i], parameter[i]->size, f.elements, blocks);
    parameterGradients = parameterGradients || a.gradParameters[i];
  }
  std::atomic<bool> outOfMemory{false};
  parallelFor(blocks, f.threads, [&](std::size_t block) {
    alignas(64) C gradState[blockElements];
    alignas(64) C gradConstant[blockElements];
    alignas(64) C zeros[blockElements];
    alignas(64) C parameterSums[3][blockElements];
    alignas(64) BlockParameters<C> parameters;
    const std::size_t begin = block * blockSize;
    const std::size_t count = std::min(blockSize, f.elements - begin);
    const auto at = [begin](const auto *array) { return array ? array + begin : nullptr; };
    Backward vertex;
    std::unique_ptr<S[]> recomputed;
    if (recompute) {
      recomputed.reset(new (std::nothrow) S[arrays * f.steps * count]);
      if (!recomputed) {
        outOfMemory = true;
        return;
      }
      S *const preReset = arrays == 2 ? recomputed.get() + f.steps * count : nullptr;
      forwardBlock<Forward>(f, begin, count, static_cast<S *>(nullptr), recomputed.get(), preReset, count, order);
      vertex.mem.connect(recomputed.get());
      vertex.preReset.connect(preReset);
    } else {
      vertex.mem.connect(at(a.mem));
      vertex.preReset.connect(at(a.preReset));
    }
    std::fill_n(gradState, count, C(0));
    if (f.constantInput)
      std::fill_n(gradConstant, count, C(0));
    if (!f.mem0)
      std::fill_n(zeros, count, C(0));
    if (parameterGradients)
      for (auto &sum : parameterSums)
        std::fill_n(sum, count, C(0));
    vertex.hasGradSpk = a.gradSpk != nullptr;
    vertex.hasGradMem = a.gradMem != nullptr;
    vertex.parameterGradients = parameterGradients;
    vertex.constantInput = f.constantInput;
    vertex.gradSpk.connect(at(a.gradSpk));
    vertex.gradMem.connect(at(a.gradMem));
    vertex.memInitial.connect(f.mem0 ? f.mem0 + begin : zeros);
    vertex.gradX.connect(a.gradX + begin);
    vertex.gradConstant.connect(gradConstant);
    vertex.gradState.connect(gradState);
    vertex.gradBeta.connect(parameterSums[0]);
    vertex.gradThreshold.connect(parameterSums[1]);
    vertex.gradGraded.connect(parameterSums[2]);
    vertex.surrogateA = a.surrogateA;
    vertex.surrogateB = a.surrogateB;
    vertex.steps = static_cast<unsigned>(f.steps);
    vertex.size = static_cast<unsigned>(count);
    vertex.gradXStride = static_cast<unsigned>(f.elements);
    vertex.gradSpkStride = a.gradSpkConstant ? 0 : vertex.gradXStride;
    vertex.gradMemStride = a.gradMemConstant ? 0 : vertex.gradXStride;
    vertex.memStride = recompute ? vertex.size : vertex.gradXStride;
    parameters.connect(vertex, f.parameters, begin, count);
    runVertex(vertex, order);
    if (f.constantInput)
      for (std::size_t i = 0; i < count; ++i)
        store(a.gradX + begin + i, SingleLane<C>{gradConstant[i]});
    if (a.gradMem0)
      std::copy_n(gradState, count, a.gradMem0 + begin);
    if (parameterGradients)
      for (int i = 0; i < 3; ++i)
        sums[i].addBlock(block, parameterSums[i], begin, count);
  });
  for (auto &sum : sums)
    sum.finish();
  return outOfMemory ? 2 : 0;
}

template <typename S, Reset R, typename Spike> void forwardDelay(const ForwardArgs<S> &a, bool resetDelay) {
  if (resetDelay)
    forward<LifForward<S, R, true, Spike>>(a);
  else
    forward<LifForward<S, R, false, Spike>>(a);
}

template <typename Spike, typename S> int forwardReset(const ForwardArgs<S> &a, int reset, bool resetDelay) {
  switch (reset) {
  case SNNIPU_RESET_SUBTRACT:
    forwardDelay<S, Reset::Subtract, Spike>(a, resetDelay);
    return 0;
  case SNNIPU_RESET_ZERO:
    forwardDelay<S, Reset::Zero, Spike>(a, resetDelay);
    return 0;
  case SNNIPU_RESET_NONE:
    forwardDelay<S, Reset::None, Spike>(a, resetDelay);
    return 0;
  default:
    return 1;
  }
}

template <typename S, Reset R, template <typename> class Surrogate, typename Spike>
int backwardDelay(const BackwardArgs<S> &a, bool resetDelay) {
  if (resetDelay)
    return backward<LifForward<S, R, true, Spike>, LifBackward<S, R, true, Surrogate, Spike>>(a);
  return backward<LifForward<S, R, false, Spike>, LifBackward<S, R, false, Surrogate, Spike>>(a);
}

template <template <typename> class Surrogate, typename Spike, typename S>
int backwardReset(const BackwardArgs<S> &a, int reset, bool resetDelay) {
  switch (reset) {
  case SNNIPU_RESET_SUBTRACT:
    return backwardDelay<S, Reset::Subtract, Surrogate, Spike>(a, resetDelay);
  case SNNIPU_RESET_ZERO:
    return backwardDelay<S, Reset::Zero, Surrogate, Spike>(a, resetDelay);
  case SNNIPU_RESET_NONE:
    return backwardDelay<S, Reset::None, Surrogate, Spike>(a, resetDelay);
  default:
    return 1;
  }
}

template <typename S> int backwardSurrogate(const BackwardArgs<S> &a, int reset, bool resetDelay, int surrogate) {
  switch (surrogate) {
  case SNNIPU_LEAKY_STEP:
    return backwardReset<LeakyStep, HardSpike>(a, reset, resetDelay);
  case SNNIPU_TRIANGULAR:
    return backwardReset<Triangular, HardSpike>(a, reset, resetDelay);
  case SNNIPU_FAST_SIGMOID:
    return backwardReset<FastSigmoid, HardSpike>(a, reset, resetDelay);
  case SNNIPU_ATAN:
    return backwardReset<ATan, HardSpike>(a, reset, resetDelay);
  case SNNIPU_SIGMOID:
    return backwardReset<Sigmoid, HardSpike>(a, reset, resetDelay);
  case SNNIPU_SPIKE_RATE_ESCAPE:
    return backwardReset<SpikeRateEscape, HardSpike>(a, reset, resetDelay);
  default:
    return 1;
  }
}

} // namespace
} // namespace snnipu

using snnipu::BFloat16;
using snnipu::Float16;

#define FORWARD_ARGS(S, SPK, MEM, PRE_RESET)                                                                           \
  snnipu::ForwardArgs<S> {                                                                                             \
    x, mem0,                                                                                                           \
        {{beta, static_cast<std::size_t>(beta_size)},                                                                  \
         {threshold, static_cast<std::size_t>(threshold_size)},                                                        \
         {graded, static_cast<std::size_t>(graded_size)}},                                                             \
        SPK, MEM, PRE_RESET, static_cast<std::size_t>(steps), static_cast<std::size_t>(elements),                      \
        constant_input != 0 && steps > 1, snnipu::usefulThreads(steps, elements, threads)                              \
  }

#define BACKWARD_ARGS(S)                                                                                               \
  snnipu::BackwardArgs<S> {                                                                                            \
    grad_spk, grad_mem, mem, pre_reset, FORWARD_ARGS(S, nullptr, nullptr, nullptr), grad_x, grad_mem0,                 \
        {grad_beta, grad_threshold, grad_graded}, grad_spk_constant != 0, grad_mem_constant != 0,                      \
        static_cast<snnipu::Compute<S>>(surrogate_a), static_cast<snnipu::Compute<S>>(surrogate_b)                     \
  }

#define LIF_SEQUENCE(SUFFIX, S, C)                                                                                     \
  SNNIPU_LIF_SEQUENCE_FWD(snnipu_lif_sequence_fwd_##SUFFIX, S, C) {                                                    \
    return snnipu::forwardReset<snnipu::HardSpike>(FORWARD_ARGS(S, spk, mem, pre_reset), reset, reset_delay != 0);     \
  }                                                                                                                    \
  SNNIPU_LIF_SEQUENCE_BWD(snnipu_lif_sequence_bwd_##SUFFIX, S, C) {                                                    \
    try {                                                                                                              \
      return snnipu::backwardSurrogate(BACKWARD_ARGS(S), reset, reset_delay != 0, surrogate);                          \
    } catch (const std::bad_alloc &) {                                                                                 \
      return 2;                                                                                                        \
    }                                                                                                                  \
  }

extern "C" {

LIF_SEQUENCE(f32, float, float)
LIF_SEQUENCE(f64, double, double)
LIF_SEQUENCE(f16, Float16, float)
LIF_SEQUENCE(bf16, BFloat16, float)

// The same vertices with a smooth spike, whose true derivative is the surrogate: for checking the adjoint by finite
// differences.
SNNIPU_LIF_SEQUENCE_FWD(snnipu_lif_sequence_fwd_smooth_f64, double, double) {
  return snnipu::forwardReset<snnipu::SmoothSpike>(FORWARD_ARGS(double, spk, mem, pre_reset), reset, reset_delay != 0);
}
SNNIPU_LIF_SEQUENCE_BWD(snnipu_lif_sequence_bwd_smooth_f64, double, double) {
  if (surrogate != SNNIPU_FAST_SIGMOID)
    return 1;
  try {
    return snnipu::backwardReset<snnipu::FastSigmoid, snnipu::SmoothSpike>(BACKWARD_ARGS(double), reset,
                                                                           reset_delay != 0);
  } catch (const std::bad_alloc &) {
    return 2;
  }
}
}
