// Written by csrc/ipu_model/popc/counts.py from Clang's code of csrc/vertices; not to be edited.
// Sources: 0373f18946afabde78b55cb2b16269b63e8019a6f5c1a9df7cec9c003bd3113d
// clang-format off
#include "ipu_model/counts.hpp"

namespace snnipu {
namespace ipu_model {

const std::map<std::string, unsigned> instructionsOfCodelet = {
    {"snnipu::Above<float>", 117},
    {"snnipu::Above<half>", 118},
    {"snnipu::Advance", 12},
    {"snnipu::Ascending", 46},
    {"snnipu::Cast<float,half>", 42},
    {"snnipu::Cast<half,float>", 43},
    {"snnipu::ChannelsFirst<float>", 70},
    {"snnipu::ChannelsFirst<half>", 72},
    {"snnipu::ChannelsLast<float>", 76},
    {"snnipu::ChannelsLast<half>", 79},
    {"snnipu::ClampUnit<float>", 35},
    {"snnipu::DelayLinearForward<float>", 213},
    {"snnipu::DelayLinearForward<half>", 217},
    {"snnipu::DelayLinearValueGradient<float>", 137},
    {"snnipu::DelayLinearValueGradient<half>", 138},
    {"snnipu::DelayLinearWeightUpdate<float>", 172},
    {"snnipu::FloatsOfIds", 29},
    {"snnipu::GatherSlots<float>", 48},
    {"snnipu::GatherSlots<half>", 51},
    {"snnipu::IdsOfFloats", 39},
    {"snnipu::LoadStep<float>", 38},
    {"snnipu::LoadStep<int>", 35},
    {"snnipu::MergeBits", 64},
    {"snnipu::NeuronBackward<float,snnipu::Alpha,snnipu::Variant::V0>", 2766},
    {"snnipu::NeuronBackward<float,snnipu::Alpha,snnipu::Variant::V1>", 2759},
    {"snnipu::NeuronBackward<float,snnipu::Alpha,snnipu::Variant::V2>", 2732},
    {"snnipu::NeuronBackward<float,snnipu::DeltaLeaky,snnipu::Variant::V0>", 2087},
    {"snnipu::NeuronBackward<float,snnipu::Lapicque,snnipu::Variant::V0>", 2287},
    {"snnipu::NeuronBackward<float,snnipu::Lapicque,snnipu::Variant::V1>", 2271},
    {"snnipu::NeuronBackward<float,snnipu::Lapicque,snnipu::Variant::V2>", 2180},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V0>", 1903},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V1>", 1967},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V2>", 1887},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V3>", 1962},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V4>", 1848},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V0>", 2266},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V1>", 2463},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V2>", 2254},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V3>", 2456},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V4>", 2296},
    {"snnipu::NeuronBackward<float,snnipu::Rsynaptic,snnipu::Variant::V0>", 2656},
    {"snnipu::NeuronBackward<float,snnipu::Rsynaptic,snnipu::Variant::V1>", 2646},
    {"snnipu::NeuronBackward<float,snnipu::Rsynaptic,snnipu::Variant::V2>", 2740},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V0>", 2267},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V1>", 2466},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V2>", 2251},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V3>", 2459},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V4>", 2265},
    {"snnipu::NeuronBackward<half,snnipu::Alpha,snnipu::Variant::V0>", 4152},
    {"snnipu::NeuronBackward<half,snnipu::Alpha,snnipu::Variant::V1>", 4137},
    {"snnipu::NeuronBackward<half,snnipu::Alpha,snnipu::Variant::V2>", 3856},
    {"snnipu::NeuronBackward<half,snnipu::DeltaLeaky,snnipu::Variant::V0>", 2929},
    {"snnipu::NeuronBackward<half,snnipu::Lapicque,snnipu::Variant::V0>", 3258},
    {"snnipu::NeuronBackward<half,snnipu::Lapicque,snnipu::Variant::V1>", 3202},
    {"snnipu::NeuronBackward<half,snnipu::Lapicque,snnipu::Variant::V2>", 3092},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V0>", 2691},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V1>", 2803},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V2>", 2667},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V3>", 2791},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V4>", 2497},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V0>", 3394},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V1>", 3406},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V2>", 3336},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V3>", 3392},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V4>", 3364},
    {"snnipu::NeuronBackward<half,snnipu::Rsynaptic,snnipu::Variant::V0>", 3960},
    {"snnipu::NeuronBackward<half,snnipu::Rsynaptic,snnipu::Variant::V1>", 3913},
    {"snnipu::NeuronBackward<half,snnipu::Rsynaptic,snnipu::Variant::V2>", 3819},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V0>", 3465},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V1>", 3487},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V2>", 3406},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V3>", 3471},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V4>", 3379},
    {"snnipu::NeuronForward<float,snnipu::Alpha,snnipu::Variant::V0>", 652},
    {"snnipu::NeuronForward<float,snnipu::Alpha,snnipu::Variant::V1>", 651},
    {"snnipu::NeuronForward<float,snnipu::Alpha,snnipu::Variant::V2>", 609},
    {"snnipu::NeuronForward<float,snnipu::DeltaLeaky,snnipu::Variant::V0>", 378},
    {"snnipu::NeuronForward<float,snnipu::Lapicque,snnipu::Variant::V0>", 438},
    {"snnipu::NeuronForward<float,snnipu::Lapicque,snnipu::Variant::V1>", 438},
    {"snnipu::NeuronForward<float,snnipu::Lapicque,snnipu::Variant::V2>", 408},
    {"snnipu::NeuronForward<float,snnipu::Leaky,snnipu::Variant::V0>", 345},
    {"snnipu::NeuronForward<float,snnipu::Leaky,snnipu::Variant::V1>", 353},
    {"snnipu::NeuronForward<float,snnipu::Leaky,snnipu::Variant::V2>", 326},
    {"snnipu::NeuronForward<float,snnipu::Leaky,snnipu::Variant::V3>", 353},
    {"snnipu::NeuronForward<float,snnipu::Leaky,snnipu::Variant::V4>", 312},
    {"snnipu::NeuronForward<float,snnipu::Rleaky,snnipu::Variant::V0>", 452},
    {"snnipu::NeuronForward<float,snnipu::Rleaky,snnipu::Variant::V1>", 489},
    {"snnipu::NeuronForward<float,snnipu::Rleaky,snnipu::Variant::V2>", 452},
    {"snnipu::NeuronForward<float,snnipu::Rleaky,snnipu::Variant::V3>", 489},
    {"snnipu::NeuronForward<float,snnipu::Rleaky,snnipu::Variant::V4>", 433},
    {"snnipu::NeuronForward<float,snnipu::Rsynaptic,snnipu::Variant::V0>", 577},
    {"snnipu::NeuronForward<float,snnipu::Rsynaptic,snnipu::Variant::V1>", 577},
    {"snnipu::NeuronForward<float,snnipu::Rsynaptic,snnipu::Variant::V2>", 604},
    {"snnipu::NeuronForward<float,snnipu::Synaptic,snnipu::Variant::V0>", 466},
    {"snnipu::NeuronForward<float,snnipu::Synaptic,snnipu::Variant::V1>", 499},
    {"snnipu::NeuronForward<float,snnipu::Synaptic,snnipu::Variant::V2>", 466},
    {"snnipu::NeuronForward<float,snnipu::Synaptic,snnipu::Variant::V3>", 499},
    {"snnipu::NeuronForward<float,snnipu::Synaptic,snnipu::Variant::V4>", 448},
    {"snnipu::NeuronForward<half,snnipu::Alpha,snnipu::Variant::V0>", 703},
    {"snnipu::NeuronForward<half,snnipu::Alpha,snnipu::Variant::V1>", 703},
    {"snnipu::NeuronForward<half,snnipu::Alpha,snnipu::Variant::V2>", 716},
    {"snnipu::NeuronForward<half,snnipu::DeltaLeaky,snnipu::Variant::V0>", 504},
    {"snnipu::NeuronForward<half,snnipu::Lapicque,snnipu::Variant::V0>", 436},
    {"snnipu::NeuronForward<half,snnipu::Lapicque,snnipu::Variant::V1>", 436},
    {"snnipu::NeuronForward<half,snnipu::Lapicque,snnipu::Variant::V2>", 457},
    {"snnipu::NeuronForward<half,snnipu::Leaky,snnipu::Variant::V0>", 382},
    {"snnipu::NeuronForward<half,snnipu::Leaky,snnipu::Variant::V1>", 422},
    {"snnipu::NeuronForward<half,snnipu::Leaky,snnipu::Variant::V2>", 379},
    {"snnipu::NeuronForward<half,snnipu::Leaky,snnipu::Variant::V3>", 419},
    {"snnipu::NeuronForward<half,snnipu::Leaky,snnipu::Variant::V4>", 359},
    {"snnipu::NeuronForward<half,snnipu::Rleaky,snnipu::Variant::V0>", 542},
    {"snnipu::NeuronForward<half,snnipu::Rleaky,snnipu::Variant::V1>", 572},
    {"snnipu::NeuronForward<half,snnipu::Rleaky,snnipu::Variant::V2>", 542},
    {"snnipu::NeuronForward<half,snnipu::Rleaky,snnipu::Variant::V3>", 572},
    {"snnipu::NeuronForward<half,snnipu::Rleaky,snnipu::Variant::V4>", 471},
    {"snnipu::NeuronForward<half,snnipu::Rsynaptic,snnipu::Variant::V0>", 699},
    {"snnipu::NeuronForward<half,snnipu::Rsynaptic,snnipu::Variant::V1>", 699},
    {"snnipu::NeuronForward<half,snnipu::Rsynaptic,snnipu::Variant::V2>", 708},
    {"snnipu::NeuronForward<half,snnipu::Synaptic,snnipu::Variant::V0>", 540},
    {"snnipu::NeuronForward<half,snnipu::Synaptic,snnipu::Variant::V1>", 571},
    {"snnipu::NeuronForward<half,snnipu::Synaptic,snnipu::Variant::V2>", 540},
    {"snnipu::NeuronForward<half,snnipu::Synaptic,snnipu::Variant::V3>", 571},
    {"snnipu::NeuronForward<half,snnipu::Synaptic,snnipu::Variant::V4>", 493},
    {"snnipu::PlacesOfFloats", 106},
    {"snnipu::ScatterSlots<float>", 63},
    {"snnipu::ScatterSlots<half>", 60},
    {"snnipu::SelectSpikes<float>", 560},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::Atan>", 162},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::FastSigmoid>", 174},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::LeakyStep>", 146},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::Sigmoid>", 332},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::SpikeRateEscape>", 324},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::Triangular>", 152},
    {"snnipu::SparseConvForward<float>", 1267},
    {"snnipu::SparseConvForward<half>", 1310},
    {"snnipu::SparseConvValueGradient<float>", 363},
    {"snnipu::SparseConvValueGradient<half>", 400},
    {"snnipu::SparseConvWeightUpdate<float>", 417},
    {"snnipu::SparseLifForward<float,unsigned int,snnipu::Reset::None>", 1630},
    {"snnipu::SparseLifForward<float,unsigned int,snnipu::Reset::Subtract>", 1615},
    {"snnipu::SparseLifForward<float,unsigned int,snnipu::Reset::Zero>", 1621},
    {"snnipu::SparseLifForward<half,unsigned int,snnipu::Reset::None>", 1668},
    {"snnipu::SparseLifForward<half,unsigned int,snnipu::Reset::Subtract>", 1656},
    {"snnipu::SparseLifForward<half,unsigned int,snnipu::Reset::Zero>", 1662},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::Atan>", 183},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::FastSigmoid>", 189},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::LeakyStep>", 176},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::Sigmoid>", 248},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::SpikeRateEscape>", 246},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::Triangular>", 178},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::Atan>", 194},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::FastSigmoid>", 200},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::LeakyStep>", 187},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::Sigmoid>", 259},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::SpikeRateEscape>", 257},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::Triangular>", 189},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::Atan>", 189},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::FastSigmoid>", 195},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::LeakyStep>", 182},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::Sigmoid>", 254},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::SpikeRateEscape>", 252},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::Triangular>", 184},
    {"snnipu::SparseLinearForward<float,unsigned int>", 635},
    {"snnipu::SparseLinearForward<half,unsigned int>", 661},
    {"snnipu::SparseLinearValueGradient<float,unsigned int>", 460},
    {"snnipu::SparseLinearValueGradient<half,unsigned int>", 565},
    {"snnipu::SparseLinearWeightUpdate<float>", 109},
    {"snnipu::SparsePoolBits<float>", 189},
    {"snnipu::SparsePoolGradient<float>", 273},
    {"snnipu::SparsePoolWindows<float>", 387},
    {"snnipu::StoreStep<float>", 32},
    {"snnipu::StoreStep<int>", 32},
    {"snnipu::SumParts<float>", 48},
    {"snnipu::SumRows<float>", 45},
    {"snnipu::SumSlots<float>", 77},
    {"snnipu::SurrogateSpike<float>", 50},
    {"snnipu::SurrogateSpike<half>", 60},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::Atan>", 68},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::FastSigmoid>", 74},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::LeakyStep>", 57},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::Sigmoid>", 186},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::SpikeRateEscape>", 185},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::Triangular>", 58},
    {"snnipu::SurrogateSpikeBackward<half,snnipu::SurrogateKind::Atan>", 75},
    {"snnipu::SurrogateSpikeBackward<half,snnipu::SurrogateKind::FastSigmoid>", 88},
    {"snnipu::SurrogateSpikeBackward<half,snnipu::SurrogateKind::LeakyStep>", 69},
    {"snnipu::SurrogateSpikeBackward<half,snnipu::SurrogateKind::Sigmoid>", 195},
    {"snnipu::SurrogateSpikeBackward<half,snnipu::SurrogateKind::SpikeRateEscape>", 193},
    {"snnipu::SurrogateSpikeBackward<half,snnipu::SurrogateKind::Triangular>", 70},
    {"snnipu::Zero<float>", 26},
};

const std::map<std::string, unsigned> instructionsOfLoop = {
    {"Cast_toFloat", 9}, // arithmetic 1, branch 1, convert 1, integer 4, load 1, store 1
    {"Cast_toHalf", 8}, // branch 1, convert 1, integer 4, load 1, store 1
    {"ChannelsFirst", 5}, // branch 1, integer 2, load 1, store 1
    {"ChannelsFirst_half", 8}, // branch 1, convert 1, integer 4, load 1, store 1
    {"ChannelsLast", 4}, // branch 1, integer 1, load 1, store 1
    {"ChannelsLast_half", 6}, // branch 1, convert 1, integer 2, load 1, store 1
    {"ClampUnit", 12}, // arithmetic 2, branch 1, compare 4, integer 3, load 1, store 1
    {"DelayLinearForward", 9}, // arithmetic 2, branch 1, integer 3, load 2, store 1
    {"DelayLinearForward_half", 10}, // arithmetic 2, branch 1, convert 1, integer 3, load 2, store 1
    {"DelayLinearValueGradient", 8}, // arithmetic 2, branch 1, integer 3, load 2
    {"DelayLinearValueGradient_half", 9}, // arithmetic 2, branch 1, convert 1, integer 3, load 2
    {"DelayLinearWeightUpdate", 9}, // arithmetic 2, branch 1, integer 3, load 2, store 1
    {"FloatsOfIds", 7}, // branch 1, convert 1, integer 3, load 1, store 1
    {"IdsOfFloats", 13}, // arithmetic 2, branch 1, compare 4, convert 1, integer 3, load 1, store 1
    {"LoadStep", 8}, // arithmetic 1, branch 1, integer 4, load 1, store 1
    {"NeuronBackward_Alpha_V0", 104}, // arithmetic 41, branch 1, compare 2, division 10, integer 18, load 23, store 9
    {"NeuronBackward_Alpha_V1", 109}, // arithmetic 40, branch 1, compare 2, division 10, integer 21, load 24, store 11
    {"NeuronBackward_Alpha_V2", 91}, // arithmetic 29, branch 1, compare 1, division 10, integer 15, load 23, store 12
    {"NeuronBackward_DeltaLeaky_V0", 61}, // arithmetic 20, branch 1, compare 2, division 10, integer 13, load 7, select 3, store 5
    {"NeuronBackward_Lapicque_V0", 81}, // arithmetic 33, branch 1, compare 2, division 10, integer 12, load 15, store 8
    {"NeuronBackward_Lapicque_V1", 78}, // arithmetic 32, branch 1, compare 2, division 10, integer 12, load 13, store 8
    {"NeuronBackward_Lapicque_V2", 74}, // arithmetic 29, branch 1, compare 1, division 10, integer 12, load 13, store 8
    {"NeuronBackward_Leaky_V0", 60}, // arithmetic 21, branch 1, compare 2, division 10, integer 13, load 8, store 5
    {"NeuronBackward_Leaky_V1", 68}, // arithmetic 30, branch 1, compare 2, division 10, integer 13, load 7, store 5
    {"NeuronBackward_Leaky_V2", 58}, // arithmetic 20, branch 1, compare 2, division 10, integer 13, load 7, store 5
    {"NeuronBackward_Leaky_V3", 66}, // arithmetic 28, branch 1, compare 2, division 10, integer 13, load 7, store 5
    {"NeuronBackward_Leaky_V4", 54}, // arithmetic 17, branch 1, compare 1, division 10, integer 13, load 7, store 5
    {"NeuronBackward_Rleaky_V0", 80}, // arithmetic 25, branch 2, compare 2, division 10, integer 17, load 17, store 7
    {"NeuronBackward_Rleaky_V1", 90}, // arithmetic 36, branch 2, compare 2, division 10, integer 17, load 16, store 7
    {"NeuronBackward_Rleaky_V2", 78}, // arithmetic 24, branch 2, compare 2, division 10, integer 17, load 16, store 7
    {"NeuronBackward_Rleaky_V3", 89}, // arithmetic 35, branch 2, compare 2, division 10, integer 17, load 16, store 7
    {"NeuronBackward_Rleaky_V4", 74}, // arithmetic 21, branch 2, compare 1, division 10, integer 17, load 16, store 7
    {"NeuronBackward_Rsynaptic_V0", 92}, // arithmetic 31, branch 2, compare 2, division 10, integer 16, load 22, store 9
    {"NeuronBackward_Rsynaptic_V1", 90}, // arithmetic 30, branch 2, compare 2, division 10, integer 16, load 21, store 9
    {"NeuronBackward_Rsynaptic_V2", 85}, // arithmetic 27, branch 2, compare 1, division 10, integer 16, load 20, store 9
    {"NeuronBackward_Synaptic_V0", 81}, // arithmetic 27, branch 1, compare 2, division 10, integer 18, load 16, store 7
    {"NeuronBackward_Synaptic_V1", 88}, // arithmetic 36, branch 1, compare 2, division 10, integer 18, load 14, store 7
    {"NeuronBackward_Synaptic_V2", 78}, // arithmetic 26, branch 1, compare 2, division 10, integer 18, load 14, store 7
    {"NeuronBackward_Synaptic_V3", 87}, // arithmetic 35, branch 1, compare 2, division 10, integer 18, load 14, store 7
    {"NeuronBackward_Synaptic_V4", 74}, // arithmetic 23, branch 1, compare 1, division 10, integer 18, load 14, store 7
    {"NeuronBackward_half", 81}, // arithmetic 25, branch 4, compare 2, convert 6, division 10, integer 17, load 12, store 5
    {"NeuronForward_Alpha_V0", 47}, // arithmetic 15, branch 3, compare 2, integer 14, load 6, store 7
    {"NeuronForward_Alpha_V1", 47}, // arithmetic 15, branch 3, compare 2, integer 14, load 6, store 7
    {"NeuronForward_Alpha_V2", 37}, // arithmetic 8, branch 3, compare 1, integer 14, load 4, store 7
    {"NeuronForward_DeltaLeaky_V0", 25}, // arithmetic 5, branch 1, compare 1, integer 11, load 2, store 5
    {"NeuronForward_Lapicque_V0", 27}, // arithmetic 10, branch 1, compare 2, integer 9, load 2, store 3
    {"NeuronForward_Lapicque_V1", 27}, // arithmetic 10, branch 1, compare 2, integer 9, load 2, store 3
    {"NeuronForward_Lapicque_V2", 23}, // arithmetic 7, branch 1, compare 1, integer 9, load 2, store 3
    {"NeuronForward_Leaky_V0", 24}, // arithmetic 7, branch 1, compare 2, integer 9, load 2, store 3
    {"NeuronForward_Leaky_V1", 27}, // arithmetic 10, branch 1, compare 2, integer 9, load 2, store 3
    {"NeuronForward_Leaky_V2", 23}, // arithmetic 6, branch 1, compare 2, integer 9, load 2, store 3
    {"NeuronForward_Leaky_V3", 27}, // arithmetic 10, branch 1, compare 2, integer 9, load 2, store 3
    {"NeuronForward_Leaky_V4", 20}, // arithmetic 4, branch 1, compare 1, integer 9, load 2, store 3
    {"NeuronForward_Rleaky_V0", 29}, // arithmetic 9, branch 1, compare 2, integer 10, load 3, store 4
    {"NeuronForward_Rleaky_V1", 32}, // arithmetic 12, branch 1, compare 2, integer 10, load 3, store 4
    {"NeuronForward_Rleaky_V2", 29}, // arithmetic 9, branch 1, compare 2, integer 10, load 3, store 4
    {"NeuronForward_Rleaky_V3", 32}, // arithmetic 12, branch 1, compare 2, integer 10, load 3, store 4
    {"NeuronForward_Rleaky_V4", 25}, // arithmetic 6, branch 1, compare 1, integer 10, load 3, store 4
    {"NeuronForward_Rsynaptic_V0", 42}, // arithmetic 12, branch 1, compare 2, integer 14, load 6, store 7
    {"NeuronForward_Rsynaptic_V1", 42}, // arithmetic 12, branch 1, compare 2, integer 14, load 6, store 7
    {"NeuronForward_Rsynaptic_V2", 39}, // arithmetic 9, branch 1, compare 1, integer 14, load 7, store 7
    {"NeuronForward_Synaptic_V0", 32}, // arithmetic 10, branch 1, compare 2, integer 11, load 3, store 5
    {"NeuronForward_Synaptic_V1", 35}, // arithmetic 13, branch 1, compare 2, integer 11, load 3, store 5
    {"NeuronForward_Synaptic_V2", 32}, // arithmetic 10, branch 1, compare 2, integer 11, load 3, store 5
    {"NeuronForward_Synaptic_V3", 35}, // arithmetic 13, branch 1, compare 2, integer 11, load 3, store 5
    {"NeuronForward_Synaptic_V4", 28}, // arithmetic 7, branch 1, compare 1, integer 11, load 3, store 5
    {"NeuronForward_half", 29}, // arithmetic 8, branch 1, compare 2, convert 6, integer 7, load 2, store 3
    {"NeuronForward_perElement", 30}, // arithmetic 7, branch 1, compare 2, integer 12, load 5, store 3
    {"SparseConvValueGradient", 24}, // arithmetic 8, branch 1, integer 7, load 8
    {"SparseConvValueGradient_half", 31}, // arithmetic 12, branch 1, convert 4, integer 6, load 8
    {"SparseConvWeightUpdate", 28}, // arithmetic 8, branch 1, integer 7, load 8, store 4
    {"SparseLinearWeightUpdate", 8}, // arithmetic 2, branch 1, integer 2, load 2, store 1
    {"StoreStep", 5}, // branch 1, integer 2, load 1, store 1
    {"SumParts", 6}, // arithmetic 1, branch 1, integer 3, load 1
    {"SumRows", 5}, // arithmetic 1, branch 1, integer 2, load 1
    {"SumSlots", 16}, // arithmetic 1, branch 2, integer 11, load 1, store 1
    {"SurrogateSpike", 9}, // arithmetic 1, branch 1, compare 1, integer 4, load 1, store 1
    {"SurrogateSpikeBackward_Atan", 23}, // arithmetic 5, branch 1, division 10, integer 4, load 2, store 1
    {"Zero", 4}, // branch 1, integer 2, store 1
    {"addKernelLine_1", 21}, // arithmetic 2, branch 4, integer 10, load 4, store 1
    {"addKernelLine_1_half", 23}, // arithmetic 3, branch 4, convert 1, integer 10, load 4, store 1
    {"addKernelLine_2", 27}, // arithmetic 4, branch 4, integer 11, load 6, store 2
    {"addKernelLine_2_half", 29}, // arithmetic 6, branch 4, convert 2, integer 10, load 5, store 2
    {"addKernelLine_3", 32}, // arithmetic 6, branch 4, integer 11, load 8, store 3
    {"addKernelLine_3_half", 37}, // arithmetic 9, branch 4, convert 3, integer 11, load 7, store 3
    {"addKernelLine_4", 37}, // arithmetic 8, branch 4, integer 11, load 10, store 4
    {"addKernelLine_4_half", 44}, // arithmetic 12, branch 4, convert 4, integer 11, load 9, store 4
    {"gather_1", 7}, // arithmetic 1, branch 1, integer 3, load 2
    {"gather_1_values", 9}, // arithmetic 2, branch 1, integer 3, load 3
    {"gather_4", 13}, // arithmetic 4, branch 1, integer 3, load 5
    {"gather_4_half", 21}, // arithmetic 8, branch 1, convert 4, integer 3, load 5
    {"gather_4_values", 18}, // arithmetic 8, branch 1, integer 3, load 6
};

} // namespace ipu_model
} // namespace snnipu
