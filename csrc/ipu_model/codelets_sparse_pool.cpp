// Written by csrc/ipu_model/popc/popc.py from vertices/sparse_pool.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/sparse_pool.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuSparsePoolWindows(const char *name) {
  return CodeletOf<V>(name)
      .field("places", &V::places)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("value", &V::value)
      .field("reached", &V::reached)
      .field("source", &V::source)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("channels", &V::channels)
      .field("height", &V::height)
      .field("width", &V::width)
      .field("kernelHeight", &V::kernelHeight)
      .field("kernelWidth", &V::kernelWidth)
      .field("strideY", &V::strideY)
      .field("strideX", &V::strideX)
      .field("paddingY", &V::paddingY)
      .field("paddingX", &V::paddingX)
      .field("inHeight", &V::inHeight)
      .field("inWidth", &V::inWidth)
      .field("shares", &V::shares)
      .field("max", &V::max);
}

template <typename V> Codelet fieldsOfSnnipuSparsePoolBits(const char *name) {
  return CodeletOf<V>(name)
      .field("value", &V::value)
      .field("reached", &V::reached)
      .field("fired", &V::fired)
      .field("carried", &V::carried)
      .field("divisor", &V::divisor)
      .field("rows", &V::rows)
      .field("channels", &V::channels)
      .field("height", &V::height)
      .field("width", &V::width)
      .field("inHeight", &V::inHeight)
      .field("inWidth", &V::inWidth)
      .field("kernelHeight", &V::kernelHeight)
      .field("kernelWidth", &V::kernelWidth)
      .field("strideY", &V::strideY)
      .field("strideX", &V::strideX)
      .field("paddingY", &V::paddingY)
      .field("paddingX", &V::paddingX)
      .field("max", &V::max);
}

template <typename V> Codelet fieldsOfSnnipuSparsePoolGradient(const char *name) {
  return CodeletOf<V>(name)
      .field("places", &V::places)
      .field("counts", &V::counts)
      .field("dense", &V::dense)
      .field("gradValues", &V::gradValues)
      .field("divisor", &V::divisor)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("channels", &V::channels)
      .field("height", &V::height)
      .field("width", &V::width)
      .field("kernelHeight", &V::kernelHeight)
      .field("kernelWidth", &V::kernelWidth)
      .field("strideY", &V::strideY)
      .field("strideX", &V::strideX)
      .field("paddingY", &V::paddingY)
      .field("paddingX", &V::paddingX)
      .field("inHeight", &V::inHeight)
      .field("inWidth", &V::inWidth);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_sparse_pool("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuSparsePoolWindows, snnipu::SparsePoolWindows<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSparsePoolBits, snnipu::SparsePoolBits<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSparsePoolGradient, snnipu::SparsePoolGradient<float>),
});

} // namespace
