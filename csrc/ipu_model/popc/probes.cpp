// The loops that take a vertex's time, for counts.py: a vertex whose flags the compiler knows. Never run.
#include "vertices/lif.cpp"
#include "vertices/select_spikes.cpp"
#include "vertices/slots.cpp"
#include "vertices/sparse_lif.cpp"
#include "vertices/sparse_linear.cpp"
#include "vertices/sparse_network.cpp"
#include "vertices/surrogate_spike.cpp"
#include "vertices/tile.cpp"

using namespace snnipu;

// With all that it calls in one function, where the flags are known.
#define SNNIPU_PROBE(NAME) extern "C" __attribute__((flatten)) void probe_##NAME

template <typename S, Reset R, bool Delay, bool Each> inline void lifForward(LifForward<S, R, Delay> &v) {
  v.perElement = Each;
  v.storeSpk = v.storeMem = true;
  v.storePreReset = v.streaming = false;
  v.compute(0);
}

SNNIPU_PROBE(LifForward)(LifForward<float, Reset::Subtract, true> &v) {
  lifForward<float, Reset::Subtract, true, false>(v);
}
SNNIPU_PROBE(LifForward_perElement)(LifForward<float, Reset::Subtract, true> &v) {
  lifForward<float, Reset::Subtract, true, true>(v);
}
SNNIPU_PROBE(LifForward_immediate)(LifForward<float, Reset::Subtract, false> &v) {
  lifForward<float, Reset::Subtract, false, false>(v);
}
SNNIPU_PROBE(LifForward_none)(LifForward<float, Reset::None, true> &v) {
  lifForward<float, Reset::None, true, false>(v);
}
SNNIPU_PROBE(LifForward_half)(LifForward<half, Reset::Subtract, true> &v) {
  lifForward<half, Reset::Subtract, true, false>(v);
}

template <typename S, Reset R, bool Delay, SurrogateKind K> inline void lifBackward(LifBackward<S, R, Delay, K> &v) {
  v.perElement = v.hasGradMem = v.constantInput = v.streaming = false;
  v.hasGradSpk = v.parameterGradients = true;
  v.compute(0);
}

SNNIPU_PROBE(LifBackward_LeakyStep)(LifBackward<float, Reset::Subtract, true, SurrogateKind::LeakyStep> &v) {
  lifBackward(v);
}
SNNIPU_PROBE(LifBackward_ATan)(LifBackward<float, Reset::Subtract, true, SurrogateKind::ATan> &v) { lifBackward(v); }
SNNIPU_PROBE(LifBackward_FastSigmoid)(LifBackward<float, Reset::Subtract, true, SurrogateKind::FastSigmoid> &v) {
  lifBackward(v);
}
SNNIPU_PROBE(LifBackward_Sigmoid)(LifBackward<float, Reset::Subtract, true, SurrogateKind::Sigmoid> &v) {
  lifBackward(v);
}
SNNIPU_PROBE(LifBackward_half)(LifBackward<half, Reset::Subtract, true, SurrogateKind::ATan> &v) { lifBackward(v); }

// A spike: the weights of a group of registers, to be added.
template <bool Unit, typename S, unsigned K>
inline void gatherRows(Registers<Register<float>, K> &sum, const S *weight, unsigned lanes, const unsigned *ids,
                       const float *values, unsigned count) {
  Registers<Register<float>, K> own = sum;
  gather<Unit>(own, weight, lanes, ids, values, count);
  sum = own;
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
SNNIPU_PROBE(SurrogateSpike)(SurrogateSpike<float> &v) { v.compute(0); }
SNNIPU_PROBE(SurrogateSpikeBackward_ATan)(SurrogateSpikeBackward<float, SurrogateKind::ATan> &v) { v.compute(0); }
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
