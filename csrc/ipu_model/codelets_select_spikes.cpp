// Written by csrc/ipu_model/popc/popc.py from vertices/select_spikes.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/select_spikes.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuSelectSpikes(const char *name) {
  return CodeletOf<V>(name)
      .field("fired", &V::fired)
      .field("carried", &V::carried)
      .field("ids", &V::ids)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("dropped", &V::dropped)
      .field("start", &V::start)
      .field("rows", &V::rows)
      .field("words", &V::words)
      .field("slots", &V::slots);
}

template <typename V> Codelet fieldsOfSnnipuSelectSpikesBackward(const char *name) {
  return CodeletOf<V>(name)
      .field("grad", &V::grad)
      .field("mem", &V::mem)
      .field("threshold", &V::threshold)
      .field("ids", &V::ids)
      .field("counts", &V::counts)
      .field("through", &V::through)
      .field("surrogateA", &V::surrogateA)
      .field("surrogateB", &V::surrogateB)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("perNeuron", &V::perNeuron);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_select_spikes("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuSelectSpikes, snnipu::SelectSpikes<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSelectSpikesBackward, snnipu::SelectSpikesBackward<float, snnipu::SurrogateKind::LeakyStep>),
    SNNIPU_CODELET(fieldsOfSnnipuSelectSpikesBackward, snnipu::SelectSpikesBackward<float, snnipu::SurrogateKind::Triangular>),
    SNNIPU_CODELET(fieldsOfSnnipuSelectSpikesBackward, snnipu::SelectSpikesBackward<float, snnipu::SurrogateKind::FastSigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSelectSpikesBackward, snnipu::SelectSpikesBackward<float, snnipu::SurrogateKind::Atan>),
    SNNIPU_CODELET(fieldsOfSnnipuSelectSpikesBackward, snnipu::SelectSpikesBackward<float, snnipu::SurrogateKind::Sigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSelectSpikesBackward, snnipu::SelectSpikesBackward<float, snnipu::SurrogateKind::SpikeRateEscape>),
});

} // namespace
