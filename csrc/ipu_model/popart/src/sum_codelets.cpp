// The vertex of sum.cpp. csrc/ipu_model/popc/popc.py writes its table, sum_table.cpp.
#include <poplar/Vertex.hpp>

namespace popart {

// to += from.
template <typename T> class AddInto : public poplar::MultiVertex {
public:
  poplar::Input<poplar::Vector<T, poplar::VectorLayout::ONE_PTR>> from;
  poplar::InOut<poplar::Vector<T, poplar::VectorLayout::ONE_PTR>> to;
  unsigned size;

  void compute(unsigned workerId) {
    // Each worker has whole words.
    const unsigned share = (size + 4 * numWorkers() - 1) / (4 * numWorkers()) * 4;
    const unsigned end = (workerId + 1) * share < size ? (workerId + 1) * share : size;
    for (unsigned i = workerId * share; i < end; ++i)
      to[i] = static_cast<T>(static_cast<float>(to[i]) + static_cast<float>(from[i]));
  }
};

#if defined(__POPC__)
template class AddInto<float>;
template class AddInto<half>;
#endif

} // namespace popart
