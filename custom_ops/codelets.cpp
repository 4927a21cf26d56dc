#include "operator.hpp"

#include <poplar/Graph.hpp>

#include <dlfcn.h>

#include <cstdlib>

#if !defined(SNNIPU_VERSION)
#define SNNIPU_VERSION "unknown"
#endif

// Of the package this was built for, which refuses another's.
extern "C" const char *snnipu_popart_version() { return SNNIPU_VERSION; }

namespace snnipu {
namespace ops {

void addCodelets(poplar::Graph &graph) {
  std::string path;
  if (const char *const set = std::getenv("SNNIPU_CODELETS")) {
    path = set;
  } else {
    // Never relative to the working directory, which is the user's.
    Dl_info info;
    if (dladdr(reinterpret_cast<const void *>(&addCodelets), &info) == 0 || info.dli_fname == nullptr)
      throw popart::error("snnipu: cannot tell where its library is; set SNNIPU_CODELETS to the path of snnipu.gp");
    const std::string library = info.dli_fname;
    path = library.substr(0, library.find_last_of('/') + 1) + "snnipu.gp";
  }
  graph.addCodelets(path);
}

} // namespace ops
} // namespace snnipu
