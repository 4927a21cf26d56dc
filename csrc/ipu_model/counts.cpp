// Written by csrc/ipu_model/popc/counts.py from what Clang makes of csrc/vertices; not to be edited.
// clang-format off
#include "ipu_model/counts.hpp"

namespace snnipu {
namespace ipu_model {

const std::map<std::string, unsigned> instructionsOfCodelet = {
    {"snnipu::Above<float>", 127},
    {"snnipu::Above<half>", 128},
    {"snnipu::Advance", 12},
    {"snnipu::Ascending", 46},
    {"snnipu::Cast<float,half>", 42},
    {"snnipu::Cast<half,float>", 43},
    {"snnipu::ClampUnit<float>", 35},
    {"snnipu::FloatsOfIds", 29},
    {"snnipu::GatherSlots<float>", 48},
    {"snnipu::GatherSlots<half>", 51},
    {"snnipu::IdsOfFloats", 39},
    {"snnipu::InsideUnit<float>", 42},
    {"snnipu::LoadStep<float>", 38},
    {"snnipu::LoadStep<int>", 35},
    {"snnipu::MergeBits", 64},
    {"snnipu::NeuronBackward<float,snnipu::Alpha,snnipu::Variant::V0>", 2712},
    {"snnipu::NeuronBackward<float,snnipu::Alpha,snnipu::Variant::V1>", 2703},
    {"snnipu::NeuronBackward<float,snnipu::Alpha,snnipu::Variant::V2>", 2691},
    {"snnipu::NeuronBackward<float,snnipu::DeltaLeaky,snnipu::Variant::V0>", 2020},
    {"snnipu::NeuronBackward<float,snnipu::Lapicque,snnipu::Variant::V0>", 2200},
    {"snnipu::NeuronBackward<float,snnipu::Lapicque,snnipu::Variant::V1>", 2196},
    {"snnipu::NeuronBackward<float,snnipu::Lapicque,snnipu::Variant::V2>", 2108},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V0>", 1852},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V1>", 1937},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V2>", 1918},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V3>", 1933},
    {"snnipu::NeuronBackward<float,snnipu::Leaky,snnipu::Variant::V4>", 1902},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V0>", 2179},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V1>", 2400},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V2>", 2183},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V3>", 2393},
    {"snnipu::NeuronBackward<float,snnipu::Rleaky,snnipu::Variant::V4>", 2229},
    {"snnipu::NeuronBackward<float,snnipu::Rsynaptic,snnipu::Variant::V0>", 2626},
    {"snnipu::NeuronBackward<float,snnipu::Rsynaptic,snnipu::Variant::V1>", 2628},
    {"snnipu::NeuronBackward<float,snnipu::Rsynaptic,snnipu::Variant::V2>", 2677},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V0>", 2182},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V1>", 2406},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V2>", 2182},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V3>", 2399},
    {"snnipu::NeuronBackward<float,snnipu::Synaptic,snnipu::Variant::V4>", 2120},
    {"snnipu::NeuronBackward<half,snnipu::Alpha,snnipu::Variant::V0>", 2852},
    {"snnipu::NeuronBackward<half,snnipu::Alpha,snnipu::Variant::V1>", 2846},
    {"snnipu::NeuronBackward<half,snnipu::Alpha,snnipu::Variant::V2>", 2765},
    {"snnipu::NeuronBackward<half,snnipu::DeltaLeaky,snnipu::Variant::V0>", 2399},
    {"snnipu::NeuronBackward<half,snnipu::Lapicque,snnipu::Variant::V0>", 2297},
    {"snnipu::NeuronBackward<half,snnipu::Lapicque,snnipu::Variant::V1>", 2300},
    {"snnipu::NeuronBackward<half,snnipu::Lapicque,snnipu::Variant::V2>", 2243},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V0>", 2000},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V1>", 2104},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V2>", 2018},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V3>", 2110},
    {"snnipu::NeuronBackward<half,snnipu::Leaky,snnipu::Variant::V4>", 1890},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V0>", 2546},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V1>", 2454},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V2>", 2583},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V3>", 2446},
    {"snnipu::NeuronBackward<half,snnipu::Rleaky,snnipu::Variant::V4>", 2348},
    {"snnipu::NeuronBackward<half,snnipu::Rsynaptic,snnipu::Variant::V0>", 2728},
    {"snnipu::NeuronBackward<half,snnipu::Rsynaptic,snnipu::Variant::V1>", 2773},
    {"snnipu::NeuronBackward<half,snnipu::Rsynaptic,snnipu::Variant::V2>", 2710},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V0>", 2581},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V1>", 2515},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V2>", 2618},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V3>", 2510},
    {"snnipu::NeuronBackward<half,snnipu::Synaptic,snnipu::Variant::V4>", 2427},
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
    {"snnipu::ScatterSlots<float>", 63},
    {"snnipu::ScatterSlots<half>", 60},
    {"snnipu::SelectSpikes<float>", 560},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::ATan>", 160},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::FastSigmoid>", 174},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::LeakyStep>", 146},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::Sigmoid>", 332},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::SpikeRateEscape>", 324},
    {"snnipu::SelectSpikesBackward<float,snnipu::SurrogateKind::Triangular>", 152},
    {"snnipu::SparseLifBackward<float,snnipu::Reset::None>", 157},
    {"snnipu::SparseLifBackward<float,snnipu::Reset::Subtract>", 237},
    {"snnipu::SparseLifBackward<float,snnipu::Reset::Zero>", 265},
    {"snnipu::SparseLifForward<float,unsigned int,snnipu::Reset::None>", 1617},
    {"snnipu::SparseLifForward<float,unsigned int,snnipu::Reset::Subtract>", 1613},
    {"snnipu::SparseLifForward<float,unsigned int,snnipu::Reset::Zero>", 1619},
    {"snnipu::SparseLifForward<float,unsigned short,snnipu::Reset::None>", 1617},
    {"snnipu::SparseLifForward<float,unsigned short,snnipu::Reset::Subtract>", 1613},
    {"snnipu::SparseLifForward<float,unsigned short,snnipu::Reset::Zero>", 1619},
    {"snnipu::SparseLifForward<half,unsigned int,snnipu::Reset::None>", 1655},
    {"snnipu::SparseLifForward<half,unsigned int,snnipu::Reset::Subtract>", 1647},
    {"snnipu::SparseLifForward<half,unsigned int,snnipu::Reset::Zero>", 1653},
    {"snnipu::SparseLifForward<half,unsigned short,snnipu::Reset::None>", 1655},
    {"snnipu::SparseLifForward<half,unsigned short,snnipu::Reset::Subtract>", 1647},
    {"snnipu::SparseLifForward<half,unsigned short,snnipu::Reset::Zero>", 1653},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::ATan>", 183},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::FastSigmoid>", 189},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::LeakyStep>", 176},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::Sigmoid>", 248},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::SpikeRateEscape>", 246},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::None,snnipu::SurrogateKind::Triangular>", 178},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::ATan>", 192},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::FastSigmoid>", 198},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::LeakyStep>", 185},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::Sigmoid>", 257},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::SpikeRateEscape>", 255},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Subtract,snnipu::SurrogateKind::Triangular>", 187},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::ATan>", 189},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::FastSigmoid>", 195},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::LeakyStep>", 182},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::Sigmoid>", 254},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::SpikeRateEscape>", 252},
    {"snnipu::SparseLifStepBackward<float,snnipu::Reset::Zero,snnipu::SurrogateKind::Triangular>", 184},
    {"snnipu::SparseLinearForward<float,unsigned int>", 645},
    {"snnipu::SparseLinearForward<float,unsigned short>", 660},
    {"snnipu::SparseLinearForward<half,unsigned int>", 668},
    {"snnipu::SparseLinearForward<half,unsigned short>", 686},
    {"snnipu::SparseLinearValueGradient<float,unsigned int>", 475},
    {"snnipu::SparseLinearValueGradient<float,unsigned short>", 509},
    {"snnipu::SparseLinearValueGradient<half,unsigned int>", 585},
    {"snnipu::SparseLinearValueGradient<half,unsigned short>", 608},
    {"snnipu::SparseLinearWeightGradient<float>", 316},
    {"snnipu::SparseLinearWeightGradient<half>", 316},
    {"snnipu::SparseLinearWeightUpdate<float>", 116},
    {"snnipu::StoreStep<float>", 32},
    {"snnipu::StoreStep<int>", 32},
    {"snnipu::SumParts<float>", 48},
    {"snnipu::SumRows<float>", 45},
    {"snnipu::SumSlots<float>", 77},
    {"snnipu::SurrogateSpike<float>", 50},
    {"snnipu::SurrogateSpike<half>", 60},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::ATan>", 70},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::FastSigmoid>", 74},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::LeakyStep>", 57},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::Sigmoid>", 186},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::SpikeRateEscape>", 185},
    {"snnipu::SurrogateSpikeBackward<float,snnipu::SurrogateKind::Triangular>", 58},
    {"snnipu::SurrogateSpikeBackward<half,snnipu::SurrogateKind::ATan>", 77},
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
    {"ClampUnit", 12}, // arithmetic 2, branch 1, compare 4, integer 3, load 1, store 1
    {"FloatsOfIds", 7}, // branch 1, convert 1, integer 3, load 1, store 1
    {"IdsOfFloats", 13}, // arithmetic 2, branch 1, compare 4, convert 1, integer 3, load 1, store 1
    {"InsideUnit", 17}, // arithmetic 4, branch 1, compare 6, integer 3, load 2, store 1
    {"LoadStep", 8}, // arithmetic 1, branch 1, integer 4, load 1, store 1
    {"NeuronBackward_Alpha_V0", 241}, // arithmetic 92, branch 7, compare 11, convert 1, division 20, integer 29, load 48, select 24, store 9
    {"NeuronBackward_Alpha_V1", 240}, // arithmetic 91, branch 7, compare 11, convert 1, division 20, integer 31, load 46, select 24, store 9
    {"NeuronBackward_Alpha_V2", 233}, // arithmetic 80, branch 7, compare 10, convert 1, division 20, integer 30, load 52, select 24, store 9
    {"NeuronBackward_DeltaLeaky_V0", 193}, // arithmetic 73, branch 7, compare 11, convert 1, division 20, integer 21, load 28, select 27, store 5
    {"NeuronBackward_Lapicque_V0", 200}, // arithmetic 83, branch 7, compare 11, convert 1, division 20, integer 18, load 28, select 24, store 8
    {"NeuronBackward_Lapicque_V1", 199}, // arithmetic 81, branch 7, compare 11, convert 1, division 20, integer 18, load 29, select 24, store 8
    {"NeuronBackward_Lapicque_V2", 206}, // arithmetic 79, branch 7, compare 10, convert 1, division 20, integer 23, load 34, select 24, store 8
    {"NeuronBackward_Leaky_V0", 182}, // arithmetic 73, branch 7, compare 11, convert 1, division 20, integer 19, load 22, select 24, store 5
    {"NeuronBackward_Leaky_V1", 193}, // arithmetic 79, branch 7, compare 11, convert 1, division 20, integer 19, load 27, select 24, store 5
    {"NeuronBackward_Leaky_V2", 183}, // arithmetic 69, branch 7, compare 11, convert 1, division 20, integer 19, load 27, select 24, store 5
    {"NeuronBackward_Leaky_V3", 192}, // arithmetic 78, branch 7, compare 11, convert 1, division 20, integer 19, load 27, select 24, store 5
    {"NeuronBackward_Leaky_V4", 179}, // arithmetic 68, branch 7, compare 10, convert 1, division 20, integer 19, load 25, select 24, store 5
    {"NeuronBackward_Rleaky_V0", 200}, // arithmetic 74, branch 7, compare 11, convert 1, division 20, integer 22, load 34, select 24, store 7
    {"NeuronBackward_Rleaky_V1", 214}, // arithmetic 86, branch 7, compare 11, convert 1, division 20, integer 22, load 36, select 24, store 7
    {"NeuronBackward_Rleaky_V2", 201}, // arithmetic 74, branch 7, compare 11, convert 1, division 20, integer 22, load 35, select 24, store 7
    {"NeuronBackward_Rleaky_V3", 213}, // arithmetic 85, branch 7, compare 11, convert 1, division 20, integer 22, load 36, select 24, store 7
    {"NeuronBackward_Rleaky_V4", 195}, // arithmetic 70, branch 7, compare 10, convert 1, division 20, integer 22, load 34, select 24, store 7
    {"NeuronBackward_Rsynaptic_V0", 226}, // arithmetic 80, branch 7, compare 11, convert 1, division 20, integer 34, load 39, select 24, store 10
    {"NeuronBackward_Rsynaptic_V1", 218}, // arithmetic 79, branch 7, compare 11, convert 1, division 20, integer 23, load 41, select 24, store 12
    {"NeuronBackward_Rsynaptic_V2", 222}, // arithmetic 76, branch 7, compare 10, convert 1, division 20, integer 30, load 45, select 24, store 9
    {"NeuronBackward_Synaptic_V0", 209}, // arithmetic 77, branch 7, compare 11, convert 1, division 20, integer 24, load 38, select 24, store 7
    {"NeuronBackward_Synaptic_V1", 221}, // arithmetic 86, branch 7, compare 11, convert 1, division 20, integer 25, load 40, select 24, store 7
    {"NeuronBackward_Synaptic_V2", 209}, // arithmetic 76, branch 7, compare 11, convert 1, division 20, integer 24, load 39, select 24, store 7
    {"NeuronBackward_Synaptic_V3", 219}, // arithmetic 85, branch 7, compare 11, convert 1, division 20, integer 25, load 39, select 24, store 7
    {"NeuronBackward_Synaptic_V4", 204}, // arithmetic 73, branch 7, compare 10, convert 1, division 20, integer 24, load 38, select 24, store 7
    {"NeuronBackward_half", 81}, // arithmetic 21, branch 6, compare 3, convert 6, integer 20, load 17, select 3, store 5
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
    {"SparseLinearWeightUpdate", 8}, // arithmetic 2, branch 1, integer 2, load 2, store 1
    {"StoreStep", 5}, // branch 1, integer 2, load 1, store 1
    {"SumParts", 6}, // arithmetic 1, branch 1, integer 3, load 1
    {"SumRows", 5}, // arithmetic 1, branch 1, integer 2, load 1
    {"SumSlots", 16}, // arithmetic 1, branch 2, integer 11, load 1, store 1
    {"SurrogateSpike", 9}, // arithmetic 1, branch 1, compare 1, integer 4, load 1, store 1
    {"SurrogateSpikeBackward_ATan", 23}, // arithmetic 5, branch 1, division 10, integer 4, load 2, store 1
    {"Zero", 4}, // branch 1, integer 2, store 1
    {"gather_1", 7}, // arithmetic 1, branch 1, integer 3, load 2
    {"gather_1_values", 9}, // arithmetic 2, branch 1, integer 3, load 3
    {"gather_4", 13}, // arithmetic 4, branch 1, integer 3, load 5
    {"gather_4_half", 21}, // arithmetic 8, branch 1, convert 4, integer 3, load 5
    {"gather_4_values", 18}, // arithmetic 8, branch 1, integer 3, load 6
};

} // namespace ipu_model
} // namespace snnipu
