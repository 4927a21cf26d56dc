// The type of a call's tensors.
#pragma once

#include "host/neuron.h"

#include <new>

namespace snnipu {

// Call body(C()) with the type C of a dtype, float or double, and return its result. Return 1 for other dtypes, and 2
// if out of memory.
template <typename Body> int forType(int64_t dtype, const Body &body) {
  try {
    if (dtype == SNNIPU_F32)
      return body(float());
    return dtype == SNNIPU_F64 ? body(double()) : 1;
  } catch (const std::bad_alloc &) {
    return 2;
  }
}

} // namespace snnipu
