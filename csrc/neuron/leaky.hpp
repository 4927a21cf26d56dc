// The membrane update of Leaky and its adjoint, for the kernels of event-driven layers. Both come from the generated
// code of snnipu/equations.py, with the reset one step after its spike.
#pragma once

#include "generated_neurons.hpp"

namespace snnipu {

enum class Reset : unsigned { Subtract = 0, Zero = 1, None = 2 };

template <typename V> struct LeakyParameters {
  V decay; // beta, in [0, 1]
  V threshold;
};

template <typename V> inline V clampUnit(V beta) { return clamp(beta, splat<V>(0), splat<V>(1)); }

namespace leaky {

// The variant with reset R and reset_delay. Choices of options are in pairs, and reset_delay is true in the first.
template <Reset R> constexpr unsigned variant = Leaky::choices[2 * static_cast<unsigned>(R)];

constexpr bool equal(const char *a, const char *b) {
  for (; *a == *b; ++a, ++b)
    if (!*a)
      return true;
  return false;
}
constexpr unsigned parameterIndex(const char *parameter) {
  for (unsigned p = 0; p < Leaky::parameters; ++p)
    if (equal(Leaky::parameterNames[p], parameter))
      return p;
  return Leaky::parameters;
}
constexpr unsigned threshold = parameterIndex("threshold"), decay = parameterIndex("clamp(beta, 0.0, 1.0)");
static_assert(threshold < Leaky::parameters && decay < Leaky::parameters, "Leaky's parameters have other names");

template <typename V> struct Lane {
  using Vector = V;
  const LeakyParameters<V> &p;
  V memBefore;

  template <unsigned> V before() const { return memBefore; }
  template <unsigned P> V parameter() const {
    return P == threshold ? p.threshold : P == decay ? p.decay : splat<V>(1);
  }
  V stored(V v) const { return v; }
};

template <typename V> struct StepLane : Lane<V> {
  V current;
  V *result;

  V x() const { return current; }
  V spike(V u) const { return heaviside(u); }
  void spk(V) const {}
  template <unsigned> void after(V v) const { *result = v; }
};

} // namespace leaky

// Return the membrane after a step.
template <Reset R, typename V> inline V leakyMembrane(const LeakyParameters<V> &p, V x, V memBefore) {
  V result;
  Leaky::step<leaky::variant<R>>(leaky::StepLane<V>{{p, memBefore}, x, &result});
  return result;
}

// Gradients of a step's input, of the membrane before it, and of the parameters.
template <typename V> struct LeakyGradients {
  V gradX;
  V gradMem;
  V gradDecay;
  V gradThreshold;
};

namespace leaky {

// -0, which does not change any sum, not even one of -0.
template <typename V> inline V negativeZero() { return splat<V>(-0.0); }

// The accessor of an adjoint whose gradient has passed the spike function already and whose reset is known.
template <typename V> struct CarryLane : Lane<V> {
  V reset, fromMem;
  LeakyGradients<V> *result;

  V x() const { return splat<V>(0); }
  template <unsigned> V after() const { return splat<V>(0); }
  V spike(V) const { return reset; }
  V gradSpk() const { return splat<V>(0); }
  template <unsigned> V gradAfter() const { return fromMem; }
  template <unsigned> V seed() const { return negativeZero<V>(); }
  V surrogate(V, V) const { return negativeZero<V>(); }
  bool parameterGradients() const { return true; }
  template <unsigned> bool wants() const { return true; }
  void gradX(V v) const { result->gradX = v; }
  template <unsigned> void gradBefore(V v) const { result->gradMem = v; }
  template <unsigned P> void gradParameter(V v) const {
    if (P == threshold)
      result->gradThreshold = v;
    else if (P == decay)
      result->gradDecay = v;
  }
};

} // namespace leaky

// Return the gradients of a step from gradU, the gradient of its membrane including the part through the spike
// function. memBefore and reset belong to the step before.
template <Reset R, typename V>
inline LeakyGradients<V> leakyCarry(const LeakyParameters<V> &p, V gradU, V memBefore, V reset) {
  LeakyGradients<V> result{};
  Leaky::adjoint<leaky::variant<R>>(leaky::CarryLane<V>{{p, memBefore}, reset, gradU, &result});
  return result;
}

} // namespace snnipu
