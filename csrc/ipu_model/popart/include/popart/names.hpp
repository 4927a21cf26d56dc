// PopART subset: names of the types that operators use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace popart {

using Shape = std::vector<int64_t>;
using Rank = int;
using TensorId = std::string;
using OpDomain = std::string;
using OpType = std::string;
using OpVersion = unsigned;
using OpId = int;
using InIndex = int;
using OutIndex = int;

class Op;
class Graph;

namespace view {
class Region;
using Regions = std::vector<Region>;
} // namespace view

} // namespace popart
