// Written by csrc/ipu_model/popc/popc.py from adder_codelets.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "adder_codelets.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfAdderVertex(const char *name) {
  return CodeletOf<V>(name)
      .field("x", &V::x)
      .field("y", &V::y)
      .field("sum", &V::sum);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_adder_codelets("adder_codelets", {
    SNNIPU_CODELET(fieldsOfAdderVertex, AdderVertex),
});

} // namespace
