// The neurons of snnipu/equations.py, by their place in its list. neurons.hpp is what the generator prints for them.
#include "neurons.hpp"
#include "host/neuron.hpp"

namespace snnipu {
// The neuron that most networks are made of, in the dtype they are trained in, with the reset a step after the spike.
template <unsigned Variant> constexpr bool everySurrogate<Leaky, Variant, float> = Variant % 2 == 0;
} // namespace snnipu

SNNIPU_NEURONS(SNNIPU_GENERATED_NEURONS)
