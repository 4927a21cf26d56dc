#pragma once

namespace poplar {

enum class VariableMappingMethod { NONE, LINEAR };
enum class TensorCloneMethod { CREATE_NEW_ORDER, PRESERVE_ORDER_UNLESS_ALIASES, PRESERVE_ORDER_AND_ALIASES };
enum class UpdatesRequired { YES, NO };

} // namespace poplar
