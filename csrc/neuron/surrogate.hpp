// Surrogate gradients of the spike S = H(u), u = mem - threshold, which replace dS/du in the backward pass.
//
// snnipu/_generator prints a struct for each surrogate of snnipu/equations.py, and their lists SurrogateKind and
// SNNIPU_SURROGATES. `gradient(u, g)` is g * dS/du. A vertex names a surrogate by its SurrogateKind: popc's spelling of
// a template template argument is not documented.
#pragma once

#include "generated_surrogates.hpp"
#include "neuron/lanes.hpp"

namespace snnipu {

constexpr long long numSurrogates = static_cast<long long>(SurrogateKind::Any);
constexpr bool isSurrogate(long long number) { return number >= 0 && number < numSurrogates; }

template <typename C> struct SurrogateFirst { using First = C; };

// A surrogate chosen at run time: slightly slower, and a sixth of the code.
template <typename C> struct AnySurrogate {
  struct First {
    C value;
    SurrogateKind kind;
  } first;
  C second;
  template <typename V> V gradient(V u, V g) const {
    switch (first.kind) {
#define SNNIPU_CASE(Name)                                                                                              \
  case SurrogateKind::Name:                                                                                            \
    return Name<C>{first.value, second}.gradient(u, g);
      SNNIPU_SURROGATES(SNNIPU_CASE)
#undef SNNIPU_CASE
    case SurrogateKind::Any:
      break;
    }
    return splat<V>(C(__builtin_nanf(""))); // no surrogate: NaN is never taken for a gradient
  }
};

// The struct of a kind.
template <SurrogateKind K, typename C> struct SurrogateOfKind;
#define SNNIPU_OF_KIND(Name)                                                                                           \
  template <typename C> struct SurrogateOfKind<SurrogateKind::Name, C> { using Type = Name<C>; };
SNNIPU_SURROGATES(SNNIPU_OF_KIND)
#undef SNNIPU_OF_KIND
template <typename C> struct SurrogateOfKind<SurrogateKind::Any, C> { using Type = AnySurrogate<C>; };
template <SurrogateKind K, typename C> using SurrogateOf = typename SurrogateOfKind<K, C>::Type;

// The type of a surrogate's first parameter in a vertex.
template <SurrogateKind K, typename C>
using FirstParameter = typename std::conditional_t<K == SurrogateKind::Any, AnySurrogate<C>, SurrogateFirst<C>>::First;

} // namespace snnipu
