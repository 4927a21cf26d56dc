// Written by csrc/ipu_model/popc/popc.py from vertices/surrogate_spike.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/surrogate_spike.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuSurrogateSpike(const char *name) {
  return CodeletOf<V>(name)
      .field("u", &V::u)
      .field("spk", &V::spk)
      .field("size", &V::size);
}

template <typename V> Codelet fieldsOfSnnipuSurrogateSpikeBackward(const char *name) {
  return CodeletOf<V>(name)
      .field("u", &V::u)
      .field("gradSpk", &V::gradSpk)
      .field("gradU", &V::gradU)
      .field("surrogateA", &V::surrogateA)
      .field("surrogateB", &V::surrogateB)
      .field("size", &V::size);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_surrogate_spike("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpike, snnipu::SurrogateSpike<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpike, snnipu::SurrogateSpike<half>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<float, snnipu::SurrogateKind::LeakyStep>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<half, snnipu::SurrogateKind::LeakyStep>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<float, snnipu::SurrogateKind::Triangular>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<half, snnipu::SurrogateKind::Triangular>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<float, snnipu::SurrogateKind::FastSigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<half, snnipu::SurrogateKind::FastSigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<float, snnipu::SurrogateKind::Atan>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<half, snnipu::SurrogateKind::Atan>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<float, snnipu::SurrogateKind::Sigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<half, snnipu::SurrogateKind::Sigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<float, snnipu::SurrogateKind::SpikeRateEscape>),
    SNNIPU_CODELET(fieldsOfSnnipuSurrogateSpikeBackward, snnipu::SurrogateSpikeBackward<half, snnipu::SurrogateKind::SpikeRateEscape>),
});

} // namespace
