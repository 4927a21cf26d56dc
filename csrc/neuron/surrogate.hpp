// Surrogate gradients of the spike S = H(u), u = mem - threshold: what takes the place of dS/du in the backward pass.
//
// Equations and parameter names are snnTorch 1.0's (snntorch.surrogate). Each is a small struct with up to two
// parameters; `gradient(u, g)` is g * dS/du. A vertex names it by its SurrogateKind: of a template of templates nobody
// can tell for certain how popc spells it.
#pragma once

#include "neuron/lanes.hpp"

namespace snnipu {

// u > 0 ? 1 : slope. straight_through_estimator: slope 1; heaviside: slope 0; LSO: slope.
template <typename C> struct LeakyStep {
  C slope, unused;
  template <typename V> V gradient(V u, V g) const { return u > splat<V>(0) ? g : slope * g; }
};

// u < 0 ? threshold : -threshold.
template <typename C> struct Triangular {
  C threshold, unused;
  template <typename V> V gradient(V u, V g) const {
    const V scaled = g * threshold;
    return u >= splat<V>(0) ? -scaled : scaled;
  }
};

// 1 / (slope |u| + 1)^2 where u > cutoff, else 0. fast_sigmoid: cutoff -inf; SFS: cutoff B.
template <typename C> struct FastSigmoid {
  C slope, cutoff;
  template <typename V> V gradient(V u, V g) const {
    const V base = slope * abs(u) + C(1);
    const V value = g / (base * base);
    return u <= splat<V>(cutoff) ? splat<V>(0) : value;
  }
};

// alpha / 2 / (1 + (pi/2 alpha u)^2).
template <typename C> struct ATan {
  C alpha, unused;
  template <typename V> V gradient(V u, V g) const {
    const V scaled = C(1.57079632679489661923) * alpha * u;
    return (alpha / C(2)) / (C(1) + scaled * scaled) * g;
  }
};

// slope e / (e + 1)^2 with e = exp(-slope |u|): even in u, so that exp never overflows.
template <typename C> struct Sigmoid {
  C slope, unused;
  template <typename V> V gradient(V u, V g) const {
    const V e = exp(-abs(slope * u));
    const V base = e + C(1);
    return g * slope * e / (base * base);
  }
};

// slope exp(-beta |u - 1|).
template <typename C> struct SpikeRateEscape {
  C beta, slope;
  template <typename V> V gradient(V u, V g) const { return g * slope * exp(-beta * abs(u - C(1))); }
};

// The names of the above, as numbers: those of the C interface, csrc/host/sparse.h. Any: told at run time.
enum class SurrogateKind : unsigned { LeakyStep, Triangular, FastSigmoid, ATan, Sigmoid, SpikeRateEscape, Any };

template <typename C> struct SurrogateFirst { using First = C; };

// One of the above, chosen at run time: a little slower, and a sixth of the code.
template <typename C> struct AnySurrogate {
  struct First {
    C value;
    SurrogateKind kind;
  } first;
  C second;
  template <typename V> V gradient(V u, V g) const {
    switch (first.kind) {
    case SurrogateKind::LeakyStep:
      return LeakyStep<C>{first.value, second}.gradient(u, g);
    case SurrogateKind::Triangular:
      return Triangular<C>{first.value, second}.gradient(u, g);
    case SurrogateKind::FastSigmoid:
      return FastSigmoid<C>{first.value, second}.gradient(u, g);
    case SurrogateKind::ATan:
      return ATan<C>{first.value, second}.gradient(u, g);
    case SurrogateKind::Sigmoid:
      return Sigmoid<C>{first.value, second}.gradient(u, g);
    default:
      return SpikeRateEscape<C>{first.value, second}.gradient(u, g);
    }
  }
};

// A kind's struct.
template <SurrogateKind K, typename C> struct SurrogateOfKind;
template <typename C> struct SurrogateOfKind<SurrogateKind::LeakyStep, C> { using Type = LeakyStep<C>; };
template <typename C> struct SurrogateOfKind<SurrogateKind::Triangular, C> { using Type = Triangular<C>; };
template <typename C> struct SurrogateOfKind<SurrogateKind::FastSigmoid, C> { using Type = FastSigmoid<C>; };
template <typename C> struct SurrogateOfKind<SurrogateKind::ATan, C> { using Type = ATan<C>; };
template <typename C> struct SurrogateOfKind<SurrogateKind::Sigmoid, C> { using Type = Sigmoid<C>; };
template <typename C> struct SurrogateOfKind<SurrogateKind::SpikeRateEscape, C> { using Type = SpikeRateEscape<C>; };
template <typename C> struct SurrogateOfKind<SurrogateKind::Any, C> { using Type = AnySurrogate<C>; };
template <SurrogateKind K, typename C> using SurrogateOf = typename SurrogateOfKind<K, C>::Type;

// A surrogate's first parameter, as a vertex holds it.
template <SurrogateKind K, typename C>
using FirstParameter = typename std::conditional_t<K == SurrogateKind::Any, AnySurrogate<C>, SurrogateFirst<C>>::First;

} // namespace snnipu
