// Runs a MultiVertex on the host.
#pragma once

#include <poplar/Vertex.hpp>

namespace snnipu {

struct WorkerOrder {
  unsigned workers = 1;
  bool descending = false;
};

// The calling thread's order.
WorkerOrder &workerOrder();

template <typename Vertex> void runVertex(Vertex &vertex, const WorkerOrder &order) {
  poplar::MultiVertex::setNumWorkers(order.workers);
  for (unsigned i = 0; i < order.workers; ++i)
    vertex.compute(order.descending ? order.workers - 1 - i : i);
}

} // namespace snnipu
