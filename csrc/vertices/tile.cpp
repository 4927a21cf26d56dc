// Small vertices: setting arrays to 0, type conversion, and sums over rows.
#include "neuron/lanes.hpp"
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

// Convert between half and float. Workers share whole words: two of them in one word would overwrite each other's half.
template <typename From, typename To> class Cast : public poplar::MultiVertex {
public:
  In<From> from;
  Out<To> to;
  unsigned size;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), size, 4);
    const From *const source = &from[0];
    To *const target = &to[0];
    unsigned i = range.begin;
    for (; i + registerLanes<float> <= range.end; i += registerLanes<float>)
      store(target + i, load<Register<float>>(source + i));
    for (; i < range.end; ++i)
      store(target + i, load<SingleLane<float>>(source + i));
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

// out[p] = the sum of the p-th equal share of `in`, so that several workers can compute one sum.
template <typename C> class SumParts : public poplar::MultiVertex {
public:
  In<C> in;
  Out<C> out; // [parts]
  unsigned size;
  unsigned parts;

  void compute(unsigned workerId) {
    const WorkerRange range = workerShare(workerId, numWorkers(), parts);
    for (unsigned part = range.begin; part < range.end; ++part) {
      const WorkerRange share = workerShare(part, parts, size);
      C total = C(0);
      for (unsigned i = share.begin; i < share.end; ++i)
        total += in[i];
      out[part] = total;
    }
  }
};

#if defined(__POPC__)
template class Zero<float>;
template class Cast<float, half>;
template class Cast<half, float>;
template class SumParts<float>;
template class SumRows<float>;
#endif

} // namespace snnipu
