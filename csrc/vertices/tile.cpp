// What stands between the other vertices on a tile: arrays set to 0, and sums over rows.
#include "vertices/vertex.hpp"

namespace snnipu {

template <typename C> class Zero : public poplar::MultiVertex {
public:
  Out<C> out;
  unsigned size;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 2);
    for (unsigned i = range.begin; i < range.end; ++i)
      out[i] = C(0);
  }
};

// out[column] = scale * the sum over the rows, in their order.
template <typename C> class SumRows : public poplar::MultiVertex {
public:
  In<C> in; // [rows][columns]
  Out<C> out;
  C scale;
  unsigned rows;
  unsigned columns;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), columns);
    for (unsigned column = range.begin; column < range.end; ++column) {
      C total = C(0);
      for (unsigned row = 0; row < rows; ++row)
        total += in[static_cast<std::size_t>(row) * columns + column];
      out[column] = scale * total;
    }
  }
};

#if defined(__POPC__)
template class Zero<float>;
template class SumRows<float>;
#endif

} // namespace snnipu
