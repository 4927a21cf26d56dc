// Neurons of snnipu/equations.py, by their place in its list. neurons.hpp is what the generator prints for them.
#include "neurons.hpp"
#include "host/neuron.hpp"

SNNIPU_NEURONS(SNNIPU_GENERATED_NEURONS)
