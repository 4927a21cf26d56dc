// PopART subset: the ability of an Opx to create one of its inputs.
#pragma once

namespace popart {
namespace popx {

enum class InputCreatorType { CanCreate = 0, CanUnwind, CanCreateOrUnwind, Deadend, CanDelegate, CanDelegateOrUnwind };

} // namespace popx
} // namespace popart
