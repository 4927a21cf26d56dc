// A minimal codelet, which popc could compile for a tile.
#include <poplar/Vertex.hpp>

class AdderVertex : public poplar::Vertex {
public:
  poplar::Input<float> x;
  poplar::Input<float> y;
  poplar::Output<float> sum;

  bool compute() {
    *sum = *x + *y;
    return true;
  }
};
