#include "host/parallel.hpp"

#include <dlfcn.h>

#include <system_error>
#include <thread>
#include <vector>

namespace snnipu {
namespace {

// The entry point of libgomp's ABI, which LLVM's and Intel's runtimes export too.
using GompParallel = void (*)(ThreadBody, void *, unsigned, unsigned);

GompParallel openMp() {
  static const auto entry = reinterpret_cast<GompParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return entry;
}

} // namespace

void runThreads(ThreadBody body, void *data, unsigned threads) {
  if (const auto parallel = openMp()) {
    parallel(body, data, threads, 0);
    return;
  }
  std::vector<std::thread> others;
  try {
    for (unsigned i = 1; i < threads; ++i)
      others.emplace_back(body, data);
  } catch (const std::system_error &) {
    // No more threads to be had: those that started, and this one, do all the work.
  }
  body(data);
  for (auto &other : others)
    other.join();
}

const char *threadRuntime() { return openMp() ? "openmp" : "std::thread"; }

} // namespace snnipu
