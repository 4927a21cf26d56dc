// Elementwise functions on lanes. A neuron's step consists of these and the operators. Functions whose results are
// exact (not exp and its like) equal PyTorch's bit by bit.
#pragma once

#include "neuron/lanes.hpp"

namespace snnipu {

template <typename V> inline V heaviside(V u) { return u > splat<V>(0) ? splat<V>(1) : splat<V>(0); }

template <typename V> inline V sign(V v) { return heaviside(v) - heaviside(-v); }

template <typename V> inline V reciprocal(V v) { return splat<V>(1) / v; }

// Return NaN for NaN.
template <typename V> inline V clamp(V v, V low, V high) {
  const V raised = v < low ? low : v;
  return raised > high ? high : raised;
}

template <typename V> inline V relu(V v) { return v < splat<V>(0) ? splat<V>(0) : v; }

template <typename V> inline V minimum(V a, V b) { return ((a < b) | (a != a)) ? a : b; }
template <typename V> inline V maximum(V a, V b) { return ((a > b) | (a != a)) ? a : b; }

template <typename V, typename Function> inline V eachLane(V v, Function function) {
  V result;
  for (unsigned i = 0; i < lanes<V>; ++i)
    result[i] = function(v[i]);
  return result;
}

template <typename V> inline V sqrt(V v) {
  return eachLane(v, [](Element<V> lane) { return std::sqrt(lane); });
}
template <typename V> inline V log(V v) {
  return eachLane(v, [](Element<V> lane) { return std::log(lane); });
}
// The error is at most 2 ulp for float. Small arguments use a polynomial, because exp would lose digits; others use 1 -
// 2 / (exp(2 |v|) + 1).
template <typename V> inline V tanh(V v) {
  if constexpr (std::is_same_v<Element<V>, float>) {
    const V size = abs(v), square = v * v;
    V p = splat<V>(-5.70498872745e-3f);
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    const V large = splat<V>(1) - splat<V>(2) / (exp(size + size) + splat<V>(1));
    return size < splat<V>(0.625f) ? p * square * v + v : (v < splat<V>(0) ? -large : large);
  } else {
    return eachLane(v, [](Element<V> lane) { return std::tanh(lane); });
  }
}
template <typename V> inline V sin(V v) {
  return eachLane(v, [](Element<V> lane) { return std::sin(lane); });
}
template <typename V> inline V cos(V v) {
  return eachLane(v, [](Element<V> lane) { return std::cos(lane); });
}

template <typename V> inline V sigmoid(V v) { return reciprocal(splat<V>(1) + exp(-v)); }

// Return v to a power known at compile time. PyTorch computes the same exponents by multiplication, square root and
// division.
template <typename V> inline V power(V v, double exponent) {
  if (exponent == 0)
    return splat<V>(1);
  if (exponent == 1)
    return v;
  if (exponent == 2)
    return v * v;
  if (exponent == 3)
    return v * v * v;
  if (exponent == 0.5)
    return sqrt(v);
  if (exponent == -0.5)
    return reciprocal(sqrt(v));
  if (exponent == -1)
    return reciprocal(v);
  if (exponent == -2)
    return reciprocal(v * v);
  return eachLane(v, [exponent](Element<V> lane) { return std::pow(lane, static_cast<Element<V>>(exponent)); });
}

} // namespace snnipu
