// Distribution of blocks of work over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace snnipu {

using std::size_t;

using ThreadBody = void (*)(void *);

// Run body(data) on up to `threads` threads, including the calling one, and return when all have finished. If the
// process has an OpenMP runtime, its threads are used, so that they do not compete with PyTorch's.
void runThreads(ThreadBody body, void *data, unsigned threads);

const char *threadRuntime();

// Call body(block) for each block of [0, blocks). A thread takes the next block when it has finished one.
template <typename Body> void parallelFor(size_t blocks, unsigned threads, const Body &body) {
  if (threads <= 1 || blocks <= 1) {
    for (size_t block = 0; block < blocks; ++block)
      body(block);
    return;
  }
  struct Shared {
    const Body &body;
    size_t blocks;
    std::atomic<size_t> next;
  } shared{body, blocks, {0}};
  runThreads(
      [](void *data) {
        auto &work = *static_cast<Shared *>(data);
        for (size_t block = work.next++; block < work.blocks; block = work.next++)
          work.body(block);
      },
      &shared, blocks < threads ? static_cast<unsigned>(blocks) : threads);
}

// Call body(begin, end) for pieces of [0, total) of `piece` items; the last piece may have fewer.
template <typename Body> void parallelPieces(size_t total, size_t piece, unsigned threads, const Body &body) {
  parallelFor((total + piece - 1) / piece, threads,
              [&](size_t part) { body(part * piece, std::min(total, (part + 1) * piece)); });
}

} // namespace snnipu
