// Written by csrc/ipu_model/popc/popc.py from vertices/sparse_linear.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/sparse_linear.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuSparseLinearForward(const char *name) {
  return CodeletOf<V>(name)
      .field("weight", &V::weight)
      .field("bias", &V::bias)
      .field("ids", &V::ids)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("out", &V::out)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("valueSlots", &V::valueSlots)
      .field("lanes", &V::lanes)
      .field("neurons", &V::neurons)
      .field("outStride", &V::outStride)
      .field("unitValues", &V::unitValues);
}

template <typename V> Codelet fieldsOfSnnipuSparseLinearValueGradient(const char *name) {
  return CodeletOf<V>(name)
      .field("weight", &V::weight)
      .field("grad", &V::grad)
      .field("ids", &V::ids)
      .field("counts", &V::counts)
      .field("gradValues", &V::gradValues)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("lanes", &V::lanes);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_sparse_linear("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuSparseLinearForward, snnipu::SparseLinearForward<float, unsigned int>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLinearForward, snnipu::SparseLinearForward<half, unsigned int>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLinearValueGradient, snnipu::SparseLinearValueGradient<float, unsigned int>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseLinearValueGradient, snnipu::SparseLinearValueGradient<half, unsigned int>),
});

} // namespace
