// Written by csrc/ipu_model/popc/popc.py from vertices/sparse_network.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/sparse_network.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuAdvance(const char *name) {
  return CodeletOf<V>(name)
      .field("value", &V::value)
      .field("by", &V::by)
      .field("modulo", &V::modulo);
}

template <typename V> Codelet fieldsOfSnnipuMergeBits(const char *name) {
  return CodeletOf<V>(name)
      .field("bits", &V::bits)
      .field("widths", &V::widths)
      .field("out", &V::out)
      .field("rows", &V::rows)
      .field("pieces", &V::pieces)
      .field("words", &V::words);
}

template <typename V> Codelet fieldsOfSnnipuLoadStep(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("step", &V::step)
      .field("to", &V::to)
      .field("back", &V::back)
      .field("size", &V::size);
}

template <typename V> Codelet fieldsOfSnnipuStoreStep(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("step", &V::step)
      .field("to", &V::to)
      .field("back", &V::back)
      .field("size", &V::size);
}

template <typename V> Codelet fieldsOfSnnipuClampUnit(const char *name) {
  return CodeletOf<V>(name)
      .field("values", &V::values)
      .field("size", &V::size);
}

template <typename V> Codelet fieldsOfSnnipuSumSlots(const char *name) {
  return CodeletOf<V>(name)
      .field("partial", &V::partial)
      .field("upstream", &V::upstream)
      .field("counts", &V::counts)
      .field("out", &V::out)
      .field("scale", &V::scale)
      .field("blocks", &V::blocks)
      .field("size", &V::size)
      .field("slots", &V::slots)
      .field("offset", &V::offset)
      .field("hasUpstream", &V::hasUpstream);
}

template <typename V> Codelet fieldsOfSnnipuSparseLinearWeightUpdate(const char *name) {
  return CodeletOf<V>(name)
      .field("ids", &V::ids)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("order", &V::order)
      .field("grad", &V::grad)
      .field("gradWeight", &V::gradWeight)
      .field("scale", &V::scale)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("inputs", &V::inputs)
      .field("lanes", &V::lanes)
      .field("unitValues", &V::unitValues)
      .field("ascending", &V::ascending);
}

template <typename V> Codelet fieldsOfSnnipuSparseLifStepBackward(const char *name) {
  return CodeletOf<V>(name)
      .field("beta", &V::beta)
      .field("threshold", &V::threshold)
      .field("ids", &V::ids)
      .field("counts", &V::counts)
      .field("gradValues", &V::gradValues)
      .field("mem", &V::mem)
      .field("step", &V::step)
      .field("carry", &V::carry)
      .field("grad", &V::grad)
      .field("gradBeta", &V::gradBeta)
      .field("gradThreshold", &V::gradThreshold)
      .field("gradBias", &V::gradBias)
      .field("surrogateA", &V::surrogateA)
      .field("surrogateB", &V::surrogateB)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("lanes", &V::lanes)
      .field("firstId", &V::firstId)
      .field("neurons", &V::neurons);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_sparse_network("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuAdvance, snnipu::Advance),
    SNNIPU_CODELET(fieldsOfSnnipuMergeBits, snnipu::MergeBits),
    SNNIPU_CODELET(fieldsOfSnnipuLoadStep, snnipu::LoadStep<float>),
    SNNIPU_CODELET(fieldsOfSnnipuLoadStep, snnipu::LoadStep<int>),
    SNNIPU_CODELET(fieldsOfSnnipuStoreStep, snnipu::StoreStep<float>),
    SNNIPU_CODELET(fieldsOfSnnipuStoreStep, snnipu::StoreStep<int>),
    SNNIPU_CODELET(fieldsOfSnnipuClampUnit, snnipu::ClampUnit<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSumSlots, snnipu::SumSlots<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLinearWeightUpdate, snnipu::SparseLinearWeightUpdate<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Subtract, snnipu::SurrogateKind::LeakyStep>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Zero, snnipu::SurrogateKind::LeakyStep>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::None, snnipu::SurrogateKind::LeakyStep>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Subtract, snnipu::SurrogateKind::Triangular>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Zero, snnipu::SurrogateKind::Triangular>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::None, snnipu::SurrogateKind::Triangular>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Subtract, snnipu::SurrogateKind::FastSigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Zero, snnipu::SurrogateKind::FastSigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::None, snnipu::SurrogateKind::FastSigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Subtract, snnipu::SurrogateKind::Atan>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Zero, snnipu::SurrogateKind::Atan>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::None, snnipu::SurrogateKind::Atan>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Subtract, snnipu::SurrogateKind::Sigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Zero, snnipu::SurrogateKind::Sigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::None, snnipu::SurrogateKind::Sigmoid>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Subtract, snnipu::SurrogateKind::SpikeRateEscape>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::Zero, snnipu::SurrogateKind::SpikeRateEscape>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifStepBackward, snnipu::SparseLifStepBackward<float, snnipu::Reset::None, snnipu::SurrogateKind::SpikeRateEscape>),
});

} // namespace
