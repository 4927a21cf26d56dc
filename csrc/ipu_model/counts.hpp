// Instruction counts of the vertices as Clang compiles them, in instructions of a tile. csrc/ipu_model/popc/counts.py
// writes counts.cpp.
#pragma once

#include <map>
#include <string>

namespace snnipu {
namespace ipu_model {

// Instructions of each codelet, by its name without spaces.
extern const std::map<std::string, unsigned> instructionsOfCodelet;
// Instructions of one iteration of the vertices' inner loops, by probe (csrc/ipu_model/popc/probes.cpp).
extern const std::map<std::string, unsigned> instructionsOfLoop;

} // namespace ipu_model
} // namespace snnipu
