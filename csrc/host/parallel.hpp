// Blocks of work over threads.
#pragma once

#include <atomic>
#include <cstddef>

namespace snnipu {

using ThreadBody = void (*)(void *);

// Runs body(data) on up to `threads` threads at once, the calling one among them, and returns when all are done. Uses
// the OpenMP runtime of the process where there is one, so that its threads (PyTorch's) do not compete with ours.
void runThreads(ThreadBody body, void *data, unsigned threads);

const char *threadRuntime();

// body(block) for each block of [0, blocks), shared out as threads become free.
template <typename Body> void parallelFor(std::size_t blocks, unsigned threads, const Body &body) {
  if (threads <= 1 || blocks <= 1) {
    for (std::size_t block = 0; block < blocks; ++block)
      body(block);
    return;
  }
  struct Shared {
    const Body &body;
    std::size_t blocks;
    std::atomic<std::size_t> next;
  } shared{body, blocks, {0}};
  runThreads(
      [](void *data) {
        auto &work = *static_cast<Shared *>(data);
        for (std::size_t block = work.next++; block < work.blocks; block = work.next++)
          work.body(block);
      },
      &shared, blocks < threads ? static_cast<unsigned>(blocks) : threads);
}

} // namespace snnipu
