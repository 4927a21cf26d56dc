// PopART subset: whether an Opx lays out one of its inputs.
#pragma once

namespace popart {
namespace popx {

enum class InputCreatorType { CanCreate = 0, CanUnwind, CanCreateOrUnwind, Deadend, CanDelegate, CanDelegateOrUnwind };

} // namespace popx
} // namespace popart
