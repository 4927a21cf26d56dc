// Written by csrc/ipu_model/popc/popc.py from vertices/lif.cpp; not to be edited.
// clang-format off
#define __POPC__ 1
#if !defined(SNNIPU_LANE_BYTES)
#define SNNIPU_LANE_BYTES 8
#endif
#include "vertices/lif.cpp"

#include "ipu_model/codelet.hpp"

#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)

namespace {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::CodeletOf;

template <typename V> Codelet fieldsOfSnnipuLifForward(const char *name) {
  return CodeletOf<V>(name)
      .field("x", &V::x)
      .field("beta", &V::beta)
      .field("threshold", &V::threshold)
      .field("graded", &V::graded)
      .field("state", &V::state)
      .field("spk", &V::spk)
      .field("mem", &V::mem)
      .field("preReset", &V::preReset)
      .field("steps", &V::steps)
      .field("size", &V::size)
      .field("xStride", &V::xStride)
      .field("spkStride", &V::spkStride)
      .field("memStride", &V::memStride)
      .field("perElement", &V::perElement)
      .field("storeSpk", &V::storeSpk)
      .field("storeMem", &V::storeMem)
      .field("storePreReset", &V::storePreReset)
      .field("streaming", &V::streaming);
}

template <typename V> Codelet fieldsOfSnnipuLifBackward(const char *name) {
  return CodeletOf<V>(name)
      .field("gradSpk", &V::gradSpk)
      .field("gradMem", &V::gradMem)
      .field("mem", &V::mem)
      .field("preReset", &V::preReset)
      .field("memInitial", &V::memInitial)
      .field("beta", &V::beta)
      .field("threshold", &V::threshold)
      .field("graded", &V::graded)
      .field("gradX", &V::gradX)
      .field("gradConstant", &V::gradConstant)
      .field("gradState", &V::gradState)
      .field("gradBeta", &V::gradBeta)
      .field("gradThreshold", &V::gradThreshold)
      .field("gradGraded", &V::gradGraded)
      .field("surrogateA", &V::surrogateA)
      .field("surrogateB", &V::surrogateB)
      .field("steps", &V::steps)
      .field("size", &V::size)
      .field("gradSpkStride", &V::gradSpkStride)
      .field("gradMemStride", &V::gradMemStride)
      .field("memStride", &V::memStride)
      .field("gradXStride", &V::gradXStride)
      .field("perElement", &V::perElement)
      .field("hasGradSpk", &V::hasGradSpk)
      .field("hasGradMem", &V::hasGradMem)
      .field("parameterGradients", &V::parameterGradients)
      .field("constantInput", &V::constantInput)
      .field("streaming", &V::streaming);
}

const snnipu::ipu_model::CodeletRegistration registrationOf_lif("snnipu", {
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<float, snnipu::Reset::Subtract, true, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<float, snnipu::Reset::Subtract, false, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<float, snnipu::Reset::Zero, true, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<float, snnipu::Reset::Zero, false, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, true, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, true, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, true, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, true, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, true, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, true, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, false, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, false, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, false, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, false, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, false, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::Zero, false, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<float, snnipu::Reset::None, true, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<float, snnipu::Reset::None, false, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, true, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, true, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, true, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, true, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, true, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, true, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, false, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, false, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, false, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, false, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, false, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<float, snnipu::Reset::None, false, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<half, snnipu::Reset::Subtract, true, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<half, snnipu::Reset::Subtract, false, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, true, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Subtract, false, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<half, snnipu::Reset::Zero, true, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<half, snnipu::Reset::Zero, false, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, true, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, true, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, true, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, true, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, true, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, true, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, false, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, false, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, false, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, false, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, false, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::Zero, false, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<half, snnipu::Reset::None, true, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifForward, snnipu::LifForward<half, snnipu::Reset::None, false, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, true, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, true, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, true, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, true, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, true, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, true, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, false, snnipu::SurrogateKind::LeakyStep, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, false, snnipu::SurrogateKind::Triangular, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, false, snnipu::SurrogateKind::FastSigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, false, snnipu::SurrogateKind::ATan, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, false, snnipu::SurrogateKind::Sigmoid, snnipu::HardSpike>),
    SNNIPU_CODELET(fieldsOfSnnipuLifBackward, snnipu::LifBackward<half, snnipu::Reset::None, false, snnipu::SurrogateKind::SpikeRateEscape, snnipu::HardSpike>),
});

} // namespace
