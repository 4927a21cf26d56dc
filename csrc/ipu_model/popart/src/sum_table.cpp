// Written by csrc/ipu_model/popc/popc.py from sum_codelets.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "sum_codelets.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfPopartAddInto(const char *name) {
  return CodeletOf<V>(name)
      .field("from", &V::from)
      .field("to", &V::to)
      .field("size", &V::size);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_sum_codelets("sum_codelets", {
    SNNIPU_CODELET(fieldsOfPopartAddInto, popart::AddInto<float>),
    SNNIPU_CODELET(fieldsOfPopartAddInto, popart::AddInto<half>),
});

} // namespace
