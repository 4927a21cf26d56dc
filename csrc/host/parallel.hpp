// Distribution of blocks of work over threads.
#pragma once

#include <atomic>
#include <cstddef>

namespace snnipu {

using ThreadBody = void (*)(void *);

// Run body(data) on up to `threads` threads, including the calling one, and return when all have finished. If the
// process has an OpenMP runtime, its threads are used, so that they do not compete with PyTorch's.
void runThreads(ThreadBody body, void *data, unsigned threads);

const char *threadRuntime();

// Call body(block) for each block of [0, blocks). A thread takes the next block when it has finished one.
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
