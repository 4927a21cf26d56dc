#include "host/parallel.hpp"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
// After windows.h, whose types it needs.
#include <psapi.h>
#else
#include <dlfcn.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif
#endif

#include <cstdint>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace snnipu {
namespace {

#if defined(_WIN32) || defined(__APPLE__)
// On Windows and macOS the OpenMP runtime is LLVM's, or Intel's with the same functions. PyTorch loads it for itself,
// so its functions are searched for in all loaded modules.
#if defined(_WIN32)
void *findLoaded(const char *function) {
  std::vector<HMODULE> modules(64);
  DWORD bytes = 0;
  for (;;) {
    const auto size = static_cast<DWORD>(modules.size() * sizeof(HMODULE));
    if (!EnumProcessModules(GetCurrentProcess(), modules.data(), size, &bytes))
      return nullptr;
    const bool complete = bytes <= size;
    modules.resize(bytes / sizeof(HMODULE));
    if (complete)
      break;
  }
  for (const HMODULE module : modules)
    if (const auto address = GetProcAddress(module, function))
      return reinterpret_cast<void *>(address);
  return nullptr;
}
#else
void *findLoaded(const char *function) {
  for (std::uint32_t i = 0; i < _dyld_image_count(); ++i) {
    const char *const path = _dyld_get_image_name(i);
    void *const image = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    void *const address = image ? dlsym(image, function) : nullptr;
    if (image)
      dlclose(image);
    if (address)
      return address;
  }
  return nullptr;
}
#endif

// ident_t of LLVM's runtime: the place of a parallel region in the source. These values say that it is unknown.
struct Place {
  std::int32_t reserved1, flags, reserved2, reserved3;
  const char *source;
} unknownPlace{0, 2, 0, 0, ";unknown;unknown;0;0;;"};

struct Region {
  ThreadBody body;
  void *data;
};

void runRegion(std::int32_t *, std::int32_t *, void *region) {
  const auto &work = *static_cast<const Region *>(region);
  work.body(work.data);
}

struct OpenMp {
  std::int32_t (*threadNumber)(Place *);
  void (*pushThreads)(Place *, std::int32_t thread, std::int32_t threads);
  void (*fork)(Place *, std::int32_t arguments, decltype(&runRegion), ...);

  OpenMp() {
    threadNumber = reinterpret_cast<decltype(threadNumber)>(findLoaded("__kmpc_global_thread_num"));
    pushThreads = reinterpret_cast<decltype(pushThreads)>(findLoaded("__kmpc_push_num_threads"));
    fork = reinterpret_cast<decltype(fork)>(findLoaded("__kmpc_fork_call"));
  }
  bool isAvailable() const { return threadNumber && pushThreads && fork; }
  void run(ThreadBody body, void *data, unsigned threads) const {
    Region region{body, data};
    pushThreads(&unknownPlace, threadNumber(&unknownPlace), static_cast<std::int32_t>(threads));
    fork(&unknownPlace, 1, runRegion, &region);
  }
};

#else
// The entry point of libgomp's ABI, which LLVM's and Intel's runtimes export, too.
struct OpenMp {
  void (*parallel)(ThreadBody, void *, unsigned threads, unsigned flags);

  OpenMp() { parallel = reinterpret_cast<decltype(parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel")); }
  bool isAvailable() const { return parallel; }
  void run(ThreadBody body, void *data, unsigned threads) const { parallel(body, data, threads, 0); }
};
#endif

const OpenMp &openMp() {
  static const OpenMp runtime;
  return runtime;
}

} // namespace

void runThreads(ThreadBody body, void *data, unsigned threads) {
  if (openMp().isAvailable()) {
    openMp().run(body, data, threads);
    return;
  }
  std::vector<std::thread> others;
  try {
    for (unsigned i = 1; i < threads; ++i)
      others.emplace_back(body, data);
  } catch (const std::system_error &) {
    // The system has no more threads. The started ones and this one do all the work.
  } catch (const std::bad_alloc &) {
    // There is no memory for more threads.
  }
  body(data);
  for (auto &other : others)
    other.join();
}

const char *threadRuntime() { return openMp().isAvailable() ? "openmp" : "std::thread"; }

} // namespace snnipu
