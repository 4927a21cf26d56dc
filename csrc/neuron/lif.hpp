// Leaky integrate-and-fire: one time step and its adjoint, on a vector of neurons.
//
// snnTorch 1.0's Leaky (Eshraghian et al., "Training spiking neural networks using lessons from deep learning", 2023):
//
//   r  = H(mem - thr)                                        reset, carries no gradient
//   u  = beta mem + x - r thr        (subtract)
//        beta ((1 - r) mem) + x      (zero)
//        beta mem + x                (none)
//   s  = H(u - thr),  H(0) = 0                               spike; backward through a surrogate gradient
//   mem' = u                         (delayed reset: it takes place in the next step)
//        = u - (s - r) thr           (immediate, subtract)
//        = u - (s - r) u             (immediate, zero)
//   spk  = graded s
//
// The order of the operations is that of the PyTorch expression, so that results are equal bit by bit in float and
// double where the compiler does not contract multiply and add (-ffp-contract=off).
#pragma once

#include "neuron/functions.hpp"

namespace snnipu {

enum class Reset : unsigned { Subtract = 0, Zero = 1, None = 2 };

template <typename V> struct LifParameters {
  V beta; // in [0, 1]
  V threshold;
  V graded;
};

template <typename V> inline V clampUnit(V beta) {
  const V zero = splat<V>(0), one = splat<V>(1);
  const V low = beta < zero ? zero : beta;
  return low > one ? one : low;
}

// The spike of the forward pass.
struct HardSpike {
  template <typename V> static V value(V u) { return heaviside(u); }
};

// S(u) = u / (1 + 25 |u|), whose derivative is FastSigmoid(25): with it the adjoint can be checked by finite
// differences.
struct SmoothSpike {
  template <typename V> static V value(V u) { return u / (splat<V>(1) + Element<V>(25) * abs(u)); }
};

template <Reset R, typename V> inline V lifIntegrate(const LifParameters<V> &p, V x, V mem, V reset) {
  if constexpr (R == Reset::Subtract)
    return (p.beta * mem + x) - reset * p.threshold;
  else if constexpr (R == Reset::Zero)
    return p.beta * ((splat<V>(1) - reset) * mem) + x;
  else
    return p.beta * mem + x;
}

// The part of the reset that has not been done before the spike, done in the same step.
template <Reset R, typename V> inline V lifResetNow(const LifParameters<V> &p, V u, V spike, V reset) {
  if constexpr (R == Reset::Subtract)
    return u - (spike - reset) * p.threshold;
  else if constexpr (R == Reset::Zero)
    return u - (spike - reset) * u;
  else
    return u;
}

// Gradients of one step, and the sums over time for the parameters.
template <typename V> struct LifAdjoint {
  V gradX;
  V gradMem;
  V gradBeta; // of the clamped beta
  V gradThreshold;
  V gradGraded;
};

// The way of a membrane's gradient to the step before, and the parts of the parameters' gradients on it. memPrev,
// reset: of the step before.
template <typename V> struct LifCarry {
  V gradMem;
  V gradBeta;      // of the clamped beta
  V gradThreshold; // to be subtracted
};

template <Reset R, typename V> inline LifCarry<V> lifCarry(const LifParameters<V> &p, V gradU, V memPrev, V reset) {
  if constexpr (R == Reset::Subtract)
    return {p.beta * gradU, gradU * memPrev, gradU * reset};
  else if constexpr (R == Reset::Zero)
    return {(p.beta * (splat<V>(1) - reset)) * gradU, gradU * ((splat<V>(1) - reset) * memPrev), splat<V>(0)};
  else
    return {p.beta * gradU, gradU * memPrev, splat<V>(0)};
}

// u: membrane before an immediate reset; memPrev, reset: of the step before; gradSpk, gradMem: from the outputs and
// from the next step. Spike is the forward pass's.
template <Reset R, bool ResetDelay, typename Spike, typename V, typename Surrogate>
inline LifAdjoint<V> lifAdjoint(const LifParameters<V> &p, const Surrogate &surrogate, V u, V memPrev, V reset,
                                V gradSpk, V gradMem) {
  LifAdjoint<V> out;
  const V shifted = u - p.threshold;
  const V spike = Spike::value(shifted);
  V gradSpike = gradSpk * p.graded;
  V gradU = gradMem;
  V gradThreshold = splat<V>(0);
  if constexpr (!ResetDelay && R == Reset::Subtract) {
    gradSpike = gradSpike - gradMem * p.threshold;
    gradThreshold = gradThreshold - gradMem * (spike - reset);
  } else if constexpr (!ResetDelay && R == Reset::Zero) {
    gradSpike = gradSpike - gradMem * u;
    gradU = gradMem * (splat<V>(1) - (spike - reset));
  }
  const V throughSpike = surrogate.gradient(shifted, gradSpike);
  gradU = gradU + throughSpike;
  gradThreshold = gradThreshold - throughSpike;
  const LifCarry<V> carry = lifCarry<R>(p, gradU, memPrev, reset);
  if constexpr (R == Reset::Subtract)
    gradThreshold = gradThreshold - carry.gradThreshold;
  out.gradX = gradU;
  out.gradMem = carry.gradMem;
  out.gradBeta = carry.gradBeta;
  out.gradThreshold = gradThreshold;
  out.gradGraded = gradSpk * spike;
  return out;
}

} // namespace snnipu
