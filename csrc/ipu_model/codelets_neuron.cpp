// Written by csrc/ipu_model/popc/popc.py from vertices/neuron.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/neuron.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuNeuronForward(const char *name) {
  return CodeletOf<V>(name)
      .field("x", &V::x)
      .field("parameters", &V::parameters)
      .field("state", &V::state)
      .field("spk", &V::spk)
      .field("kept", &V::kept)
      .field("steps", &V::steps)
      .field("size", &V::size)
      .field("keptStates", &V::keptStates)
      .field("perElement", &V::perElement)
      .field("storeSpk", &V::storeSpk);
}

template <typename V> Codelet fieldsOfSnnipuNeuronBackward(const char *name) {
  return CodeletOf<V>(name)
      .field("x", &V::x)
      .field("gradSpk", &V::gradSpk)
      .field("seeds", &V::seeds)
      .field("kept", &V::kept)
      .field("parameters", &V::parameters)
      .field("initial", &V::initial)
      .field("work", &V::work)
      .field("again", &V::again)
      .field("gradX", &V::gradX)
      .field("carry", &V::carry)
      .field("sums", &V::sums)
      .field("surrogateA", &V::surrogateA)
      .field("surrogateB", &V::surrogateB)
      .field("surrogate", &V::surrogate)
      .field("steps", &V::steps)
      .field("segment", &V::segment)
      .field("size", &V::size)
      .field("seedStates", &V::seedStates)
      .field("keptStates", &V::keptStates)
      .field("perElement", &V::perElement)
      .field("hasGradSpk", &V::hasGradSpk)
      .field("recompute", &V::recompute);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_neuron("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Leaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Leaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Leaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Leaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Leaky, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Leaky, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Leaky, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Leaky, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Leaky, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Leaky, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Leaky, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Leaky, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Leaky, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Leaky, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Leaky, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Leaky, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Leaky, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Leaky, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Leaky, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Leaky, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Lapicque, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Lapicque, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Lapicque, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Lapicque, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Lapicque, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Lapicque, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Lapicque, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Lapicque, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Lapicque, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Lapicque, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Lapicque, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Lapicque, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Synaptic, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Synaptic, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Synaptic, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Synaptic, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Synaptic, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Synaptic, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Synaptic, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Synaptic, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Synaptic, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Synaptic, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Synaptic, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Synaptic, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Synaptic, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Synaptic, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Synaptic, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Synaptic, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Synaptic, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Synaptic, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Synaptic, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Synaptic, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Alpha, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Alpha, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Alpha, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Alpha, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Alpha, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Alpha, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Alpha, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Alpha, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Alpha, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Alpha, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Alpha, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Alpha, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Rleaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Rleaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Rleaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Rleaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Rleaky, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Rleaky, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Rleaky, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Rleaky, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Rleaky, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Rleaky, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Rleaky, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Rleaky, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Rleaky, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Rleaky, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Rleaky, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Rleaky, snnipu::Variant::V3>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Rleaky, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Rleaky, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Rleaky, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Rleaky, snnipu::Variant::V4>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Rsynaptic, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Rsynaptic, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Rsynaptic, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Rsynaptic, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Rsynaptic, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Rsynaptic, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Rsynaptic, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Rsynaptic, snnipu::Variant::V1>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::Rsynaptic, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::Rsynaptic, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::Rsynaptic, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::Rsynaptic, snnipu::Variant::V2>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<float, snnipu::DeltaLeaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronForward, snnipu::NeuronForward<half, snnipu::DeltaLeaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<float, snnipu::DeltaLeaky, snnipu::Variant::V0>),
    SNNIPU_CODELET(fieldsOfSnnipuNeuronBackward, snnipu::NeuronBackward<half, snnipu::DeltaLeaky, snnipu::Variant::V0>),
});

} // namespace
