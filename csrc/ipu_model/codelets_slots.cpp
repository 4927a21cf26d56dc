// Written by csrc/ipu_model/popc/popc.py from vertices/slots.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/slots.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuAscending(const char *name) {
  return CodeletOf<V>(name)
      .field("ids", &V::ids)
      .field("counts", &V::counts)
      .field("out", &V::out)
      .field("rows", &V::rows)
      .field("slots", &V::slots);
}

template <typename V> Codelet fieldsOfSnnipuIdsOfFloats(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("to", &V::to)
      .field("size", &V::size)
      .field("limit", &V::limit);
}

template <typename V> Codelet fieldsOfSnnipuFloatsOfIds(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("to", &V::to)
      .field("size", &V::size);
}

template <typename V> Codelet fieldsOfSnnipuAbove(const char *name) {
  return CodeletOf<V>(name)
      .field("x", &V::x)
      .field("threshold", &V::threshold)
      .field("fired", &V::fired)
      .field("carried", &V::carried)
      .field("gradThreshold", &V::gradThreshold)
      .field("rows", &V::rows)
      .field("neurons", &V::neurons)
      .field("perNeuron", &V::perNeuron)
      .field("second", &V::second)
      .field("nonzero", &V::nonzero);
}

template <typename V> Codelet fieldsOfSnnipuGatherSlots(const char *name) {
  return CodeletOf<V>(name)
      .field("dense", &V::dense)
      .field("ids", &V::ids)
      .field("counts", &V::counts)
      .field("values", &V::values)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("neurons", &V::neurons);
}

template <typename V> Codelet fieldsOfSnnipuScatterSlots(const char *name) {
  return CodeletOf<V>(name)
      .field("values", &V::values)
      .field("ids", &V::ids)
      .field("counts", &V::counts)
      .field("dense", &V::dense)
      .field("rows", &V::rows)
      .field("slots", &V::slots)
      .field("neurons", &V::neurons);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_slots("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuAscending, snnipu::Ascending),
    SNNIPU_CODELET(fieldsOfSnnipuIdsOfFloats, snnipu::IdsOfFloats),
    SNNIPU_CODELET(fieldsOfSnnipuFloatsOfIds, snnipu::FloatsOfIds),
    SNNIPU_CODELET(fieldsOfSnnipuAbove, snnipu::Above<float>),
    SNNIPU_CODELET(fieldsOfSnnipuAbove, snnipu::Above<half>),
    SNNIPU_CODELET(fieldsOfSnnipuGatherSlots, snnipu::GatherSlots<float>),
    SNNIPU_CODELET(fieldsOfSnnipuGatherSlots, snnipu::GatherSlots<half>),
    SNNIPU_CODELET(fieldsOfSnnipuScatterSlots, snnipu::ScatterSlots<float>),
    SNNIPU_CODELET(fieldsOfSnnipuScatterSlots, snnipu::ScatterSlots<half>),
});

} // namespace
