// Written by csrc/ipu_model/popc/popc.py from vertices/sparse_lif.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/sparse_lif.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuSparseLifForward(const char *name) {
  return CodeletOf<V>(name)
      .field("weight", &V::weight)
      .field("bias", &V::bias)
      .field("beta", &V::beta)
      .field("threshold", &V::threshold)
      .field("gradThreshold", &V::gradThreshold)
      .field("ids", &V::ids)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("recurrentWeight", &V::recurrentWeight)
      .field("ownIds", &V::ownIds)
      .field("ownCounts", &V::ownCounts)
      .field("state", &V::state)
      .field("fired", &V::fired)
      .field("carried", &V::carried)
      .field("inputScale", &V::inputScale)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("valueSlots", &V::valueSlots)
      .field("outputSlots", &V::outputSlots)
      .field("lanes", &V::lanes)
      .field("neurons", &V::neurons)
      .field("wordStride", &V::wordStride)
      .field("unitValues", &V::unitValues)
      .field("input", &V::input)
      .field("recurrent", &V::recurrent);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_sparse_lif("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifForward, snnipu::SparseLifForward<float, unsigned int, snnipu::Reset::Subtract>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifForward, snnipu::SparseLifForward<float, unsigned int, snnipu::Reset::Zero>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifForward, snnipu::SparseLifForward<float, unsigned int, snnipu::Reset::None>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifForward, snnipu::SparseLifForward<half, unsigned int, snnipu::Reset::Subtract>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifForward, snnipu::SparseLifForward<half, unsigned int, snnipu::Reset::Zero>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLifForward, snnipu::SparseLifForward<half, unsigned int, snnipu::Reset::None>),
});

} // namespace
