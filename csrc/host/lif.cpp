// Host side of lif_sequence: cache-sized blocks of elements, each one call of a vertex.
#include "host/blocks.hpp"
#include "host/snnipu.h"
#include "host/workers.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "vertices/vertex.hpp"

namespace snnipu {
// Networks are trained in float: the other types take most of the time to compile away.
template <> constexpr bool compactCode<double> = true;
template <> constexpr bool compactCode<Float16> = true;
template <> constexpr bool compactCode<BFloat16> = true;
} // namespace snnipu

// The codelet file itself: its templates are instantiated here for the host's storage types.
#include "vertices/lif.cpp"

namespace snnipu {
namespace {

template <typename C> struct Parameters {
  Parameter<C> beta, threshold, graded;

  bool perElement() const { return beta.size > 1 || threshold.size > 1 || graded.size > 1; }
};

// A block's parameters: one of each, or one of each for every element where any of them is per element.
template <typename C> struct BlockParameters {
  const C *beta, *threshold, *graded;
  bool perElement;

  BlockParameters(const Parameters<C> &p, std::size_t begin, std::size_t count, Scratch &scratch)
      : beta(p.beta.values), threshold(p.threshold.values), graded(p.graded.values), perElement(p.perElement()) {
    if (!perElement)
      return;
    const auto expanded = [&](const Parameter<C> &parameter) {
      C *const to = scratch.take<C>(count);
      parameter.expand(to, begin, count);
      return to;
    };
    beta = expanded(p.beta);
    threshold = expanded(p.threshold);
    graded = expanded(p.graded);
  }

  template <typename Vertex> void connect(Vertex &vertex) const {
    vertex.perElement = perElement;
    vertex.beta.connect(beta);
    vertex.threshold.connect(threshold);
    vertex.graded.connect(graded);
  }
};

template <typename S> struct ForwardArgs {
  using C = Compute<S>;
  const S *x;
  const C *mem0;
  Parameters<C> parameters;
  S *spk, *mem, *preReset;
  C *last;
  std::size_t steps, elements;
  bool constantInput;
  unsigned threads;

  std::size_t rowBytes() const { return elements * sizeof(S); }
};

// What a forward vertex is given for one block. Outputs point at the block's first element; each may be null.
template <typename S> struct ForwardBlock {
  using C = Compute<S>;
  const ForwardArgs<S> &args;
  const BlockParameters<C> &parameters;
  C *state;
  std::size_t begin, count;
  S *spk, *mem, *preReset;
  std::size_t memStride;
  bool streaming;
};

// Of each vertex, only this is compiled: what leads to it is the same for all of a storage type.
template <typename S> using ForwardKernel = void (*)(const ForwardBlock<S> &, const WorkerOrder &);

template <typename Vertex, typename S> void runForward(const ForwardBlock<S> &b, const WorkerOrder &order) {
  Vertex vertex;
  vertex.x.connect(b.args.x + b.begin);
  vertex.state.connect(b.state);
  vertex.spk.connect(b.spk);
  vertex.mem.connect(b.mem);
  vertex.preReset.connect(b.preReset);
  vertex.storeSpk = b.spk != nullptr;
  vertex.storeMem = b.mem != nullptr;
  vertex.storePreReset = b.preReset != nullptr;
  vertex.streaming = b.streaming;
  vertex.steps = static_cast<unsigned>(b.args.steps);
  vertex.size = static_cast<unsigned>(b.count);
  vertex.xStride = b.args.constantInput ? 0 : static_cast<unsigned>(b.args.elements);
  vertex.spkStride = static_cast<unsigned>(b.args.elements);
  vertex.memStride = static_cast<unsigned>(b.memStride);
  b.parameters.connect(vertex);
  runVertex(vertex, order);
}

template <typename S> void forwardBlock(ForwardKernel<S> kernel, const ForwardBlock<S> &b, const WorkerOrder &order) {
  if (b.args.mem0)
    std::copy_n(b.args.mem0 + b.begin, b.count, b.state);
  else
    std::fill_n(b.state, b.count, Compute<S>(0));
  kernel(b, order);
}

template <typename S> int forward(const ForwardArgs<S> &a, ForwardKernel<S> kernel) {
  if (!kernel)
    return 1;
  using C = Compute<S>;
  const WorkerOrder order = workerOrder();
  const std::size_t bytes = sizeof(C) * (1 + (a.parameters.perElement() ? 3 : 0));
  const std::size_t sequences = 1 + (a.constantInput ? 0 : 1) + (a.mem ? 1 : 0) + (a.preReset ? 1 : 0);
  const bool streaming = sequences * a.steps * a.rowBytes() > cachedBytes && rowsAligned(a.spk, a.rowBytes()) &&
                         rowsAligned(a.mem, a.rowBytes());
  return forBlocks(
      a.elements, a.threads, blockElements, bytes, [&](std::size_t begin, std::size_t count, Scratch &scratch) {
        const auto at = [begin](S *array) { return array ? array + begin : nullptr; };
        const BlockParameters<C> parameters(a.parameters, begin, count, scratch);
        C *const state = scratch.take<C>(count);
        forwardBlock<S>(
            kernel, {a, parameters, state, begin, count, at(a.spk), at(a.mem), at(a.preReset), a.elements, streaming},
            order);
        if (a.last)
          std::copy_n(state, count, a.last + begin);
        if (streaming)
          streamFence();
      });
}

template <typename S> struct BackwardArgs {
  using C = Compute<S>;
  const S *gradSpk, *gradMem;
  const C *gradLast;
  const S *mem, *preReset;
  ForwardArgs<S> forward; // inputs of the forward pass: x is read only where mem is null
  S *gradX;
  C *gradMem0;
  C *gradParameters[3]; // beta, threshold, graded; each may be null
  bool gradSpkConstant, gradMemConstant;
  SurrogateKind surrogate;
  C surrogateA, surrogateB;
};

// What a backward vertex is given for one block; all point at the block's first element.
template <typename S> struct BackwardBlock {
  using C = Compute<S>;
  const BackwardArgs<S> &args;
  const BlockParameters<C> &parameters;
  std::size_t begin, count;
  const S *mem, *preReset;
  std::size_t memStride;
  const C *memInitial;
  C *gradConstant, *gradState;
  C *const *parameterSums; // three; null without gradients of parameters
  bool parameterGradients, streaming;
};

template <typename S> using BackwardKernel = void (*)(const BackwardBlock<S> &, const WorkerOrder &);

template <typename Vertex, typename S> void runBackward(const BackwardBlock<S> &b, const WorkerOrder &order) {
  const BackwardArgs<S> &a = b.args;
  const auto at = [&b](const auto *array) { return array ? array + b.begin : nullptr; };
  Vertex vertex;
  vertex.mem.connect(b.mem);
  vertex.preReset.connect(b.preReset);
  vertex.memInitial.connect(b.memInitial);
  vertex.hasGradSpk = a.gradSpk != nullptr;
  vertex.hasGradMem = a.gradMem != nullptr;
  vertex.parameterGradients = b.parameterGradients;
  vertex.constantInput = a.forward.constantInput;
  vertex.streaming = b.streaming;
  vertex.gradSpk.connect(at(a.gradSpk));
  vertex.gradMem.connect(at(a.gradMem));
  vertex.gradX.connect(a.gradX + b.begin);
  vertex.gradConstant.connect(b.gradConstant);
  vertex.gradState.connect(b.gradState);
  vertex.gradBeta.connect(b.parameterSums[0]);
  vertex.gradThreshold.connect(b.parameterSums[1]);
  vertex.gradGraded.connect(b.parameterSums[2]);
  if constexpr (std::is_same_v<decltype(vertex.surrogateA), Compute<S>>)
    vertex.surrogateA = a.surrogateA;
  else
    vertex.surrogateA = {a.surrogateA, a.surrogate};
  vertex.surrogateB = a.surrogateB;
  vertex.steps = static_cast<unsigned>(a.forward.steps);
  vertex.size = static_cast<unsigned>(b.count);
  vertex.gradXStride = static_cast<unsigned>(a.forward.elements);
  vertex.gradSpkStride = a.gradSpkConstant ? 0 : vertex.gradXStride;
  vertex.gradMemStride = a.gradMemConstant ? 0 : vertex.gradXStride;
  vertex.memStride = static_cast<unsigned>(b.memStride);
  b.parameters.connect(vertex);
  runVertex(vertex, order);
}

// How one choice of options runs. The backward pass recomputes membranes by the forward kernel; readsPreReset: it needs
// those before the reset too.
template <typename S> struct BackwardKernels {
  ForwardKernel<S> forward;
  BackwardKernel<S> backward;
  bool readsPreReset;
};

template <typename S> int backward(const BackwardArgs<S> &a, const BackwardKernels<S> &kernels) {
  using C = Compute<S>;
  if (!kernels.forward || !kernels.backward)
    return 1;
  const ForwardArgs<S> &f = a.forward;
  const WorkerOrder order = workerOrder();
  const Parameter<C> *const parameter[3] = {&f.parameters.beta, &f.parameters.threshold, &f.parameters.graded};
  std::vector<ParameterSum<C>> sums;
  bool parameterGradients = false;
  for (int i = 0; i < 3; ++i) {
    sums.emplace_back(a.gradParameters[i], parameter[i]->size, f.elements);
    parameterGradients = parameterGradients || a.gradParameters[i];
  }
  const bool recompute = a.mem == nullptr;
  const std::size_t recomputedArrays = kernels.readsPreReset ? 2 : 1;
  const std::size_t recomputedPerElement = recompute ? recomputedArrays * f.steps * sizeof(S) : 0;
  const std::size_t most = recompute ? std::min(blockElements, recomputedBytes / recomputedPerElement) : blockElements;
  const std::size_t bytes = sizeof(C) * (3 + (f.parameters.perElement() ? 3 : 0) + (parameterGradients ? 3 : 0));
  const std::size_t sequences =
      1 + (a.gradSpk && !a.gradSpkConstant) + (a.gradMem && !a.gradMemConstant) + !f.constantInput;
  const bool streaming =
      !f.constantInput && sequences * f.steps * f.rowBytes() > cachedBytes && rowsAligned(a.gradX, f.rowBytes());
  const auto block = [&](std::size_t begin, std::size_t count, Scratch &scratch) {
    const auto at = [begin](const auto *array) { return array ? array + begin : nullptr; };
    const auto zeros = [&] {
      C *const array = scratch.take<C>(count);
      std::fill_n(array, count, C(0));
      return array;
    };
    const BlockParameters<C> parameters(f.parameters, begin, count, scratch);
    const S *mem = at(a.mem), *preReset = at(a.preReset);
    if (recompute) {
      S *const memAgain = scratch.take<S>(f.steps * count);
      S *const preResetAgain = kernels.readsPreReset ? scratch.take<S>(f.steps * count) : nullptr;
      C *const state = scratch.take<C>(count);
      forwardBlock<S>(kernels.forward,
                      {f, parameters, state, begin, count, nullptr, memAgain, preResetAgain, count, false}, order);
      mem = memAgain;
      preReset = preResetAgain;
    }
    C *const gradState = a.gradMem0 ? a.gradMem0 + begin : scratch.take<C>(count);
    if (a.gradLast)
      std::copy_n(a.gradLast + begin, count, gradState);
    else
      std::fill_n(gradState, count, C(0));
    C *const gradConstant = f.constantInput ? zeros() : nullptr;
    C *parameterSums[3] = {};
    if (parameterGradients)
      for (auto &sum : parameterSums)
        sum = zeros();
    const C *const memInitial = f.mem0 ? f.mem0 + begin : zeros();
    kernels.backward({a, parameters, begin, count, mem, preReset, recompute ? count : f.elements, memInitial,
                      gradConstant, gradState, parameterSums, parameterGradients, streaming},
                     order);
    if (streaming)
      streamFence();
    if (f.constantInput)
      for (std::size_t i = 0; i < count; ++i)
        store(a.gradX + begin + i, SingleLane<C>{gradConstant[i]});
    if (parameterGradients)
      for (int i = 0; i < 3; ++i)
        sums[i].addBlock(parameterSums[i], begin, count);
  };
  // In recomputing, the state of the forward pass and, without mem0, its zeros come on top of the gradient's.
  const int status = forBlocks(f.elements, f.threads, most, bytes + sizeof(C) + recomputedPerElement, block);
  for (auto &sum : sums)
    sum.finish();
  return status;
}

// body(std::integral_constant of the reset), or a value-initialised result for an unknown one.
template <typename Body> auto forReset(int reset, const Body &body) {
  using Result = decltype(body(std::integral_constant<Reset, Reset::Subtract>{}));
  switch (reset) {
  case SNNIPU_RESET_SUBTRACT:
    return body(std::integral_constant<Reset, Reset::Subtract>{});
  case SNNIPU_RESET_ZERO:
    return body(std::integral_constant<Reset, Reset::Zero>{});
  case SNNIPU_RESET_NONE:
    return body(std::integral_constant<Reset, Reset::None>{});
  default:
    return Result{};
  }
}

template <typename S, typename Spike> ForwardKernel<S> forwardKernel(int reset, bool resetDelay) {
  return forReset(reset, [=](auto r) -> ForwardKernel<S> {
    constexpr Reset R = decltype(r)::value;
    if (resetDelay)
      return runForward<LifForward<S, R, true, Spike>, S>;
    return runForward<LifForward<S, R, false, Spike>, S>;
  });
}

template <typename S, SurrogateKind K, typename Spike> BackwardKernels<S> backwardKernels(int reset, bool resetDelay) {
  return forReset(reset, [=](auto r) -> BackwardKernels<S> {
    constexpr Reset R = decltype(r)::value;
    const ForwardKernel<S> forward = forwardKernel<S, Spike>(reset, resetDelay);
    // Without a reset the membrane before it is the membrane.
    if constexpr (R != Reset::None)
      if (!resetDelay)
        return {forward, runBackward<LifBackward<S, R, false, K, Spike>, S>, true};
    return {forward, runBackward<LifBackward<S, R, true, K, Spike>, S>, false};
  });
}

template <typename S> BackwardKernels<S> backwardKernels(SurrogateKind surrogate, int reset, bool resetDelay) {
  if constexpr (compactCode<S>) {
    return surrogate <= SurrogateKind::SpikeRateEscape
               ? backwardKernels<S, SurrogateKind::Any, HardSpike>(reset, resetDelay)
               : BackwardKernels<S>{};
  } else {
    switch (surrogate) {
    case SurrogateKind::LeakyStep:
      return backwardKernels<S, SurrogateKind::LeakyStep, HardSpike>(reset, resetDelay);
    case SurrogateKind::Triangular:
      return backwardKernels<S, SurrogateKind::Triangular, HardSpike>(reset, resetDelay);
    case SurrogateKind::FastSigmoid:
      return backwardKernels<S, SurrogateKind::FastSigmoid, HardSpike>(reset, resetDelay);
    case SurrogateKind::ATan:
      return backwardKernels<S, SurrogateKind::ATan, HardSpike>(reset, resetDelay);
    case SurrogateKind::Sigmoid:
      return backwardKernels<S, SurrogateKind::Sigmoid, HardSpike>(reset, resetDelay);
    case SurrogateKind::SpikeRateEscape:
      return backwardKernels<S, SurrogateKind::SpikeRateEscape, HardSpike>(reset, resetDelay);
    default:
      return {};
    }
  }
}

} // namespace
} // namespace snnipu

using snnipu::BFloat16;
using snnipu::Float16;

#define FORWARD_ARGS(S, SPK, MEM, PRE_RESET, LAST)                                                                     \
  snnipu::ForwardArgs<S> {                                                                                             \
    x, mem0,                                                                                                           \
        {{beta, static_cast<std::size_t>(beta_size)},                                                                  \
         {threshold, static_cast<std::size_t>(threshold_size)},                                                        \
         {graded, static_cast<std::size_t>(graded_size)}},                                                             \
        SPK, MEM, PRE_RESET, LAST, static_cast<std::size_t>(steps), static_cast<std::size_t>(elements),                \
        constant_input != 0 && steps > 1, snnipu::usefulThreads(steps, elements, threads)                              \
  }

#define BACKWARD_ARGS(S)                                                                                               \
  snnipu::BackwardArgs<S> {                                                                                            \
    grad_spk, grad_mem, grad_last, mem, pre_reset, FORWARD_ARGS(S, nullptr, nullptr, nullptr, nullptr), grad_x,        \
        grad_mem0, {grad_beta, grad_threshold, grad_graded}, grad_spk_constant != 0, grad_mem_constant != 0,           \
        static_cast<snnipu::SurrogateKind>(surrogate), static_cast<snnipu::Compute<S>>(surrogate_a),                   \
        static_cast<snnipu::Compute<S>>(surrogate_b)                                                                   \
  }

#define LIF_SEQUENCE(SUFFIX, S, C)                                                                                     \
  SNNIPU_LIF_SEQUENCE_FWD(snnipu_lif_sequence_fwd_##SUFFIX, S, C) {                                                    \
    return snnipu::forward(FORWARD_ARGS(S, spk, mem, pre_reset, last),                                                 \
                           snnipu::forwardKernel<S, snnipu::HardSpike>(reset, reset_delay != 0));                      \
  }                                                                                                                    \
  SNNIPU_LIF_SEQUENCE_BWD(snnipu_lif_sequence_bwd_##SUFFIX, S, C) {                                                    \
    try {                                                                                                              \
      const auto arguments = BACKWARD_ARGS(S);                                                                         \
      return snnipu::backward(arguments, snnipu::backwardKernels<S>(arguments.surrogate, reset, reset_delay != 0));    \
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
  return snnipu::forward(FORWARD_ARGS(double, spk, mem, pre_reset, last),
                         snnipu::forwardKernel<double, snnipu::SmoothSpike>(reset, reset_delay != 0));
}
SNNIPU_LIF_SEQUENCE_BWD(snnipu_lif_sequence_bwd_smooth_f64, double, double) {
  if (surrogate != SNNIPU_FAST_SIGMOID)
    return 1;
  try {
    return snnipu::backward(BACKWARD_ARGS(double),
                            snnipu::backwardKernels<double, snnipu::SurrogateKind::FastSigmoid, snnipu::SmoothSpike>(
                                reset, reset_delay != 0));
  } catch (const std::bad_alloc &) {
    return 2;
  }
}
}
