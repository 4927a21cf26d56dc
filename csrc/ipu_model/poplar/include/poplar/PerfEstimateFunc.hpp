#pragma once

#include <poplar/VertexIntrospector.hpp>
