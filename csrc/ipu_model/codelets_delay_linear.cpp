// Written by csrc/ipu_model/popc/popc.py from vertices/delay_linear.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/delay_linear.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuDelayLinearForward(const char *name) {
  return CodeletOf<V>(name)
      .field("weight", &V::weight)
      .field("bias", &V::bias)
      .field("lags", &V::lags)
      .field("ids", &V::ids)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("out", &V::out)
      .field("first", &V::first)
      .field("rows", &V::rows)
      .field("samples", &V::samples)
      .field("steps", &V::steps)
      .field("slots", &V::slots)
      .field("taps", &V::taps)
      .field("lanes", &V::lanes)
      .field("unitValues", &V::unitValues)
      .field("begins", &V::begins);
}

template <typename V> Codelet fieldsOfSnnipuDelayLinearWeightUpdate(const char *name) {
  return CodeletOf<V>(name)
      .field("lags", &V::lags)
      .field("ids", &V::ids)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("order", &V::order)
      .field("grad", &V::grad)
      .field("gradWeight", &V::gradWeight)
      .field("first", &V::first)
      .field("rows", &V::rows)
      .field("samples", &V::samples)
      .field("steps", &V::steps)
      .field("slots", &V::slots)
      .field("inputs", &V::inputs)
      .field("taps", &V::taps)
      .field("lanes", &V::lanes)
      .field("unitValues", &V::unitValues);
}

template <typename V> Codelet fieldsOfSnnipuDelayLinearValueGradient(const char *name) {
  return CodeletOf<V>(name)
      .field("weight", &V::weight)
      .field("lags", &V::lags)
      .field("ids", &V::ids)
      .field("counts", &V::counts)
      .field("grad", &V::grad)
      .field("gradValues", &V::gradValues)
      .field("first", &V::first)
      .field("rows", &V::rows)
      .field("samples", &V::samples)
      .field("steps", &V::steps)
      .field("slots", &V::slots)
      .field("taps", &V::taps)
      .field("lanes", &V::lanes);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_delay_linear("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuDelayLinearForward, snnipu::DelayLinearForward<float>),
    SNNIPU_CODELET(fieldsOfSnnipuDelayLinearForward, snnipu::DelayLinearForward<half>),
    SNNIPU_CODELET(fieldsOfSnnipuDelayLinearWeightUpdate, snnipu::DelayLinearWeightUpdate<float>),
    SNNIPU_CODELET(fieldsOfSnnipuDelayLinearValueGradient, snnipu::DelayLinearValueGradient<float>),
    SNNIPU_CODELET(fieldsOfSnnipuDelayLinearValueGradient, snnipu::DelayLinearValueGradient<half>),
});

} // namespace
