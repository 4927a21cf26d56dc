// Written by csrc/ipu_model/popc/popc.py from vertices/tile.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/tile.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuZero(const char *name) {
  return CodeletOf<V>(name)
      .field("out", &V::out)
      .field("size", &V::size);
}

template <typename V> Codelet fieldsOfSnnipuCast(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("to", &V::to)
      .field("size", &V::size);
}

template <typename V> Codelet fieldsOfSnnipuSumParts(const char *name) {
  return CodeletOf<V>(name)
      .field("in", &V::in)
      .field("out", &V::out)
      .field("size", &V::size)
      .field("parts", &V::parts);
}

template <typename V> Codelet fieldsOfSnnipuSumRows(const char *name) {
  return CodeletOf<V>(name)
      .field("in", &V::in)
      .field("out", &V::out)
      .field("scale", &V::scale)
      .field("rows", &V::rows)
      .field("columns", &V::columns);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_tile("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuZero, snnipu::Zero<float>),
    SNNIPU_CODELET(fieldsOfSnnipuCast, snnipu::Cast<float, half>),
    SNNIPU_CODELET(fieldsOfSnnipuCast, snnipu::Cast<half, float>),
    SNNIPU_CODELET(fieldsOfSnnipuSumParts, snnipu::SumParts<float>),
    SNNIPU_CODELET(fieldsOfSnnipuSumRows, snnipu::SumRows<float>),
});

} // namespace
