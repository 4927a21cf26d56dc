// What Clang makes of the vertices, in instructions of a tile: written into counts.cpp by
// csrc/ipu_model/popc/counts.py.
#pragma once

#include <map>
#include <string>

namespace snnipu {
namespace ipu_model {

// Of each codelet, by its name without blanks.
extern const std::map<std::string, unsigned> instructionsOfCodelet;
// Of one turn of the loops that take the vertices' time: the probes of csrc/ipu_model/popc/probes.cpp.
extern const std::map<std::string, unsigned> instructionsOfLoop;

} // namespace ipu_model
} // namespace snnipu
