// The neurons of snnipu/equations.py, numbered in its order.
#include "generated_neurons.hpp"
#include "host/neuron.hpp"
#include "host/snnipu.h"

namespace snnipu {

// Most networks are trained in float, and most of those use Leaky.
template <> constexpr bool everySurrogate<Leaky, float> = true;
template <typename Neuron> constexpr bool sharedParameters<Neuron, float> = true;

} // namespace snnipu

SNNIPU_NEURONS(SNNIPU_GENERATED_NEURONS)

extern "C" int64_t snnipu_num_surrogates(void) { return snnipu::numSurrogates; }
