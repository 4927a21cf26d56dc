// The vertices' inner loops, for counts.py: each probe is a vertex whose flags the compiler knows. Probes never run.
#include "vertices/delay_linear.cpp"
#include "vertices/neuron.cpp"
#include "vertices/select_spikes.cpp"
#include "vertices/slots.cpp"
#include "vertices/sparse_conv.cpp"
#include "vertices/sparse_lif.cpp"
#include "vertices/sparse_linear.cpp"
#include "vertices/sparse_network.cpp"
#include "vertices/surrogate_spike.cpp"
#include "vertices/tile.cpp"

using namespace snnipu;

// A probe is one function, with all its calls inlined, so that the flags are known everywhere.
#define SNNIPU_PROBE(NAME) extern "C" __attribute__((flatten)) void probe_##NAME

// Every state is saved, and every possible gradient is given.
template <bool Each, typename Vertex> inline void neuronForward(Vertex &v) {
  v.perElement = Each;
  v.storeSpk = Vertex::Neuron::outputState < 0;
  v.keptStates = (1u << Vertex::Neuron::states) - 1;
  v.compute(0);
}
template <typename Vertex> inline void neuronBackward(Vertex &v) {
  v.perElement = v.recompute = false;
  v.hasGradSpk = Vertex::Neuron::outputState < 0;
  v.seedStates = v.hasGradSpk ? 0 : 1u << Vertex::Neuron::outputState;
  v.keptStates = (1u << Vertex::Neuron::states) - 1;
  v.template computeFor<SurrogateKind::Atan>(0);
}

#define SNNIPU_NEURON_PROBES(N, W)                                                                                     \
  SNNIPU_PROBE(NeuronForward_##N##_##W)(NeuronForward<float, N, Variant::W> & v) { neuronForward<false>(v); }          \
  SNNIPU_PROBE(NeuronBackward_##N##_##W)(NeuronBackward<float, N, Variant::W> & v) { neuronBackward(v); }
SNNIPU_GENERATED_VARIANTS(SNNIPU_NEURON_PROBES)
SNNIPU_PROBE(NeuronForward_perElement)(NeuronForward<float, Leaky, Variant::V0> &v) { neuronForward<true>(v); }
SNNIPU_PROBE(NeuronForward_half)(NeuronForward<half, Leaky, Variant::V0> &v) { neuronForward<false>(v); }
SNNIPU_PROBE(NeuronBackward_half)(NeuronBackward<half, Leaky, Variant::V0> &v) { neuronBackward(v); }

// A spike: the weights of a group of registers are added.
template <bool Unit, typename S, unsigned K>
inline void gatherRows(Registers<Register<float>, K> &sum, const S *weight, unsigned lanes, const unsigned *ids,
                       const float *values, unsigned count) {
  Registers<Register<float>, K> local = sum;
  gather<Unit>(local, weight, lanes, ids, values, count);
  sum = local;
}
SNNIPU_PROBE(gather_1)
(Registers<Register<float>, 1> &sum, const float *weight, unsigned lanes, const unsigned *ids, const float *values,
 unsigned count) {
  gatherRows<true>(sum, weight, lanes, ids, values, count);
}
SNNIPU_PROBE(gather_4)
(Registers<Register<float>, 4> &sum, const float *weight, unsigned lanes, const unsigned *ids, const float *values,
 unsigned count) {
  gatherRows<true>(sum, weight, lanes, ids, values, count);
}
SNNIPU_PROBE(gather_1_values)
(Registers<Register<float>, 1> &sum, const float *weight, unsigned lanes, const unsigned *ids, const float *values,
 unsigned count) {
  gatherRows<false>(sum, weight, lanes, ids, values, count);
}
SNNIPU_PROBE(gather_4_values)
(Registers<Register<float>, 4> &sum, const float *weight, unsigned lanes, const unsigned *ids, const float *values,
 unsigned count) {
  gatherRows<false>(sum, weight, lanes, ids, values, count);
}
SNNIPU_PROBE(gather_4_half)
(Registers<Register<float>, 4> &sum, const half *weight, unsigned lanes, const unsigned *ids, const float *values,
 unsigned count) {
  gatherRows<true>(sum, weight, lanes, ids, values, count);
}

SNNIPU_PROBE(SparseLinearWeightUpdate)(SparseLinearWeightUpdate<float> &v) {
  v.unitValues = v.ascending = true;
  v.compute(0);
}
// A tap of a delayed synapse.
SNNIPU_PROBE(DelayLinearForward)(const Taps &taps, unsigned arrives, const float *weight, float value, float *current) {
  taps.add(arrives, weight, value, current);
}
SNNIPU_PROBE(DelayLinearForward_half)
(const Taps &taps, unsigned arrives, const half *weight, float value, float *current) {
  taps.add(arrives, weight, value, current);
}
SNNIPU_PROBE(DelayLinearWeightUpdate)
(const Taps &taps, unsigned arrives, float *gradWeight, float value, const float *grad) {
  taps.addBack(arrives, gradWeight, value, grad);
}
SNNIPU_PROBE(DelayLinearValueGradient)
(const Taps &taps, unsigned arrives, const float *weight, const float *grad, float &sum) {
  float local = sum;
  taps.product(arrives, weight, grad, local);
  sum = local;
}
SNNIPU_PROBE(DelayLinearValueGradient_half)
(const Taps &taps, unsigned arrives, const half *weight, const float *grad, float &sum) {
  float local = sum;
  taps.product(arrives, weight, grad, local);
  sum = local;
}
SNNIPU_PROBE(SurrogateSpike)(SurrogateSpike<float> &v) { v.compute(0); }
SNNIPU_PROBE(SurrogateSpikeBackward_Atan)(SurrogateSpikeBackward<float, SurrogateKind::Atan> &v) { v.compute(0); }
SNNIPU_PROBE(Cast_toHalf)(Cast<float, half> &v) { v.compute(0); }
SNNIPU_PROBE(Cast_toFloat)(Cast<half, float> &v) { v.compute(0); }
SNNIPU_PROBE(Zero)(Zero<float> &v) { v.compute(0); }
SNNIPU_PROBE(LoadStep)(LoadStep<float> &v) { v.compute(0); }
SNNIPU_PROBE(StoreStep)(StoreStep<float> &v) { v.compute(0); }
SNNIPU_PROBE(IdsOfFloats)(IdsOfFloats &v) { v.compute(0); }
SNNIPU_PROBE(FloatsOfIds)(FloatsOfIds &v) { v.compute(0); }
SNNIPU_PROBE(SumRows)(SumRows<float> &v) { v.compute(0); }
SNNIPU_PROBE(SumSlots)(SumSlots<float> &v) {
  v.hasUpstream = false;
  v.compute(0);
}
SNNIPU_PROBE(SumParts)(SumParts<float> &v) { v.compute(0); }
SNNIPU_PROBE(ClampUnit)(ClampUnit<float> &v) { v.compute(0); }

// A line of the kernel for one spike, for a group of registers.
#define SNNIPU_KERNEL_LINE(S, K)                                                                                       \
  (float *line, unsigned width, const S *weight, unsigned taps, unsigned step, float value, const KernelAxis &across,  \
   const Quotient &x) {                                                                                                \
    using V = Register<float>;                                                                                         \
    addKernelLine(Registers<V, K>{}, line, width, weight, taps, step, splat<V>(value), across, x);                     \
  }
SNNIPU_PROBE(addKernelLine_1)
SNNIPU_KERNEL_LINE(float, 1)
SNNIPU_PROBE(addKernelLine_2)
SNNIPU_KERNEL_LINE(float, 2)
SNNIPU_PROBE(addKernelLine_3)
SNNIPU_KERNEL_LINE(float, 3)
SNNIPU_PROBE(addKernelLine_4)
SNNIPU_KERNEL_LINE(float, 4)
SNNIPU_PROBE(addKernelLine_1_half)
SNNIPU_KERNEL_LINE(half, 1)
SNNIPU_PROBE(addKernelLine_2_half)
SNNIPU_KERNEL_LINE(half, 2)
SNNIPU_PROBE(addKernelLine_3_half)
SNNIPU_KERNEL_LINE(half, 3)
SNNIPU_PROBE(addKernelLine_4_half)
SNNIPU_KERNEL_LINE(half, 4)
SNNIPU_PROBE(SparseConvWeightUpdate)(SparseConvWeightUpdate<float> &v) { v.compute(0); }
SNNIPU_PROBE(SparseConvValueGradient)(SparseConvValueGradient<float> &v) { v.compute(0); }
SNNIPU_PROBE(SparseConvValueGradient_half)(SparseConvValueGradient<half> &v) { v.compute(0); }
SNNIPU_PROBE(ChannelsFirst)(ChannelsFirst<float> &v) { v.compute(0); }
SNNIPU_PROBE(ChannelsFirst_half)(ChannelsFirst<half> &v) { v.compute(0); }
SNNIPU_PROBE(ChannelsLast)(ChannelsLast<float> &v) { v.compute(0); }
SNNIPU_PROBE(ChannelsLast_half)(ChannelsLast<half> &v) { v.compute(0); }
