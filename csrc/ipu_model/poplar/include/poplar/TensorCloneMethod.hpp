#pragma once

#include <poplar/VariableMappingMethod.hpp>
