// Written by csrc/ipu_model/popc/popc.py from vertices/sparse_conv.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/sparse_conv.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuPlacesOfFloats(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("to", &V::to)
      .field("size", &V::size)
      .field("channels", &V::channels)
      .field("height", &V::height)
      .field("width", &V::width);
}

template <typename V> Codelet fieldsOfSnnipuSparseConvForward(const char *name) {
  return CodeletOf<V>(name)
      .field("weight", &V::weight)
      .field("bias", &V::bias)
      .field("places", &V::places)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("out", &V::out)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("lanes", &V::lanes)
      .field("firstChannel", &V::firstChannel)
      .field("channels", &V::channels)
      .field("firstLine", &V::firstLine)
      .field("lines", &V::lines)
      .field("width", &V::width)
      .field("kernelHeight", &V::kernelHeight)
      .field("kernelWidth", &V::kernelWidth)
      .field("strideY", &V::strideY)
      .field("strideX", &V::strideX)
      .field("paddingY", &V::paddingY)
      .field("paddingX", &V::paddingX)
      .field("dilationY", &V::dilationY)
      .field("dilationX", &V::dilationX)
      .field("inHeight", &V::inHeight)
      .field("inWidth", &V::inWidth)
      .field("shares", &V::shares);
}

template <typename V> Codelet fieldsOfSnnipuSparseConvWeightUpdate(const char *name) {
  return CodeletOf<V>(name)
      .field("places", &V::places)
      .field("values", &V::values)
      .field("counts", &V::counts)
      .field("grad", &V::grad)
      .field("gradWeight", &V::gradWeight)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("lanes", &V::lanes)
      .field("firstChannel", &V::firstChannel)
      .field("channels", &V::channels)
      .field("firstLine", &V::firstLine)
      .field("lines", &V::lines)
      .field("width", &V::width)
      .field("kernelHeight", &V::kernelHeight)
      .field("kernelWidth", &V::kernelWidth)
      .field("strideY", &V::strideY)
      .field("strideX", &V::strideX)
      .field("paddingY", &V::paddingY)
      .field("paddingX", &V::paddingX)
      .field("dilationY", &V::dilationY)
      .field("dilationX", &V::dilationX)
      .field("inHeight", &V::inHeight)
      .field("inWidth", &V::inWidth);
}

template <typename V> Codelet fieldsOfSnnipuSparseConvValueGradient(const char *name) {
  return CodeletOf<V>(name)
      .field("weight", &V::weight)
      .field("places", &V::places)
      .field("counts", &V::counts)
      .field("grad", &V::grad)
      .field("gradValues", &V::gradValues)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("lanes", &V::lanes)
      .field("firstChannel", &V::firstChannel)
      .field("channels", &V::channels)
      .field("firstLine", &V::firstLine)
      .field("lines", &V::lines)
      .field("width", &V::width)
      .field("kernelHeight", &V::kernelHeight)
      .field("kernelWidth", &V::kernelWidth)
      .field("strideY", &V::strideY)
      .field("strideX", &V::strideX)
      .field("paddingY", &V::paddingY)
      .field("paddingX", &V::paddingX)
      .field("dilationY", &V::dilationY)
      .field("dilationX", &V::dilationX)
      .field("inHeight", &V::inHeight)
      .field("inWidth", &V::inWidth);
}

template <typename V> Codelet fieldsOfSnnipuChannelsFirst(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("to", &V::to)
      .field("rows", &V::rows)
      .field("places", &V::places)
      .field("lanes", &V::lanes)
      .field("neurons", &V::neurons);
}

template <typename V> Codelet fieldsOfSnnipuChannelsLast(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("to", &V::to)
      .field("rows", &V::rows)
      .field("places", &V::places)
      .field("lanes", &V::lanes)
      .field("neurons", &V::neurons);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_sparse_conv("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuPlacesOfFloats, snnipu::PlacesOfFloats),
    SNNIPU_CODELET(fieldsOfSnnipuSparseConvForward, snnipu::SparseConvForward<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseConvForward, snnipu::SparseConvForward<half>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseConvWeightUpdate, snnipu::SparseConvWeightUpdate<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseConvValueGradient, snnipu::SparseConvValueGradient<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSparseConvValueGradient, snnipu::SparseConvValueGradient<half>),
    SNNIPU_CODELET(fieldsOfSnnipuChannelsFirst, snnipu::ChannelsFirst<float>),
    SNNIPU_CODELET(fieldsOfSnnipuChannelsFirst, snnipu::ChannelsFirst<half>),
    SNNIPU_CODELET(fieldsOfSnnipuChannelsLast, snnipu::ChannelsLast<float>),
    SNNIPU_CODELET(fieldsOfSnnipuChannelsLast, snnipu::ChannelsLast<half>),
});

} // namespace
