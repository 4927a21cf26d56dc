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
    {"snnipu::LifBackward<float,snnipu::Reset::None,false,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 779},
    {"snnipu::LifBackward<float,snnipu::Reset::None,false,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 799},
    {"snnipu::LifBackward<float,snnipu::Reset::None,false,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 753},
    {"snnipu::LifBackward<float,snnipu::Reset::None,false,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1024},
    {"snnipu::LifBackward<float,snnipu::Reset::None,false,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1018},
    {"snnipu::LifBackward<float,snnipu::Reset::None,false,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 760},
    {"snnipu::LifBackward<float,snnipu::Reset::None,true,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 775},
    {"snnipu::LifBackward<float,snnipu::Reset::None,true,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 795},
    {"snnipu::LifBackward<float,snnipu::Reset::None,true,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 749},
    {"snnipu::LifBackward<float,snnipu::Reset::None,true,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1026},
    {"snnipu::LifBackward<float,snnipu::Reset::None,true,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1012},
    {"snnipu::LifBackward<float,snnipu::Reset::None,true,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 756},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 808},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 829},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 781},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1061},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1054},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 789},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 790},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 811},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 765},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1042},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1022},
    {"snnipu::LifBackward<float,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 771},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,false,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 816},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,false,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 837},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,false,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 788},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,false,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1052},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,false,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1060},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,false,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 797},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,true,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 794},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,true,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 814},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,true,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 769},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,true,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1046},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,true,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1024},
    {"snnipu::LifBackward<float,snnipu::Reset::Zero,true,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 775},
    {"snnipu::LifBackward<half,snnipu::Reset::None,false,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 818},
    {"snnipu::LifBackward<half,snnipu::Reset::None,false,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 838},
    {"snnipu::LifBackward<half,snnipu::Reset::None,false,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 791},
    {"snnipu::LifBackward<half,snnipu::Reset::None,false,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1062},
    {"snnipu::LifBackward<half,snnipu::Reset::None,false,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1056},
    {"snnipu::LifBackward<half,snnipu::Reset::None,false,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 798},
    {"snnipu::LifBackward<half,snnipu::Reset::None,true,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 814},
    {"snnipu::LifBackward<half,snnipu::Reset::None,true,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 834},
    {"snnipu::LifBackward<half,snnipu::Reset::None,true,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 787},
    {"snnipu::LifBackward<half,snnipu::Reset::None,true,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1061},
    {"snnipu::LifBackward<half,snnipu::Reset::None,true,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1055},
    {"snnipu::LifBackward<half,snnipu::Reset::None,true,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 794},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 861},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 885},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 830},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1090},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1086},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,false,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 838},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 840},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 867},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 813},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1086},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1081},
    {"snnipu::LifBackward<half,snnipu::Reset::Subtract,true,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 820},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,false,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 869},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,false,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 893},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,false,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 837},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,false,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1096},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,false,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1090},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,false,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 846},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,true,snnipu::SurrogateKind::ATan,snnipu::HardSpike>", 842},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,true,snnipu::SurrogateKind::FastSigmoid,snnipu::HardSpike>", 862},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,true,snnipu::SurrogateKind::LeakyStep,snnipu::HardSpike>", 813},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,true,snnipu::SurrogateKind::Sigmoid,snnipu::HardSpike>", 1089},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,true,snnipu::SurrogateKind::SpikeRateEscape,snnipu::HardSpike>", 1084},
    {"snnipu::LifBackward<half,snnipu::Reset::Zero,true,snnipu::SurrogateKind::Triangular,snnipu::HardSpike>", 822},
    {"snnipu::LifForward<float,snnipu::Reset::None,false,snnipu::HardSpike>", 457},
    {"snnipu::LifForward<float,snnipu::Reset::None,true,snnipu::HardSpike>", 457},
    {"snnipu::LifForward<float,snnipu::Reset::Subtract,false,snnipu::HardSpike>", 483},
    {"snnipu::LifForward<float,snnipu::Reset::Subtract,true,snnipu::HardSpike>", 476},
    {"snnipu::LifForward<float,snnipu::Reset::Zero,false,snnipu::HardSpike>", 489},
    {"snnipu::LifForward<float,snnipu::Reset::Zero,true,snnipu::HardSpike>", 475},
    {"snnipu::LifForward<half,snnipu::Reset::None,false,snnipu::HardSpike>", 453},
    {"snnipu::LifForward<half,snnipu::Reset::None,true,snnipu::HardSpike>", 455},
    {"snnipu::LifForward<half,snnipu::Reset::Subtract,false,snnipu::HardSpike>", 497},
    {"snnipu::LifForward<half,snnipu::Reset::Subtract,true,snnipu::HardSpike>", 481},
    {"snnipu::LifForward<half,snnipu::Reset::Zero,false,snnipu::HardSpike>", 501},
    {"snnipu::LifForward<half,snnipu::Reset::Zero,true,snnipu::HardSpike>", 479},
    {"snnipu::LoadStep<float>", 38},
    {"snnipu::LoadStep<int>", 35},
    {"snnipu::MergeBits", 64},
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
    {"LifBackward_ATan", 65}, // arithmetic 22, branch 1, compare 3, division 10, integer 14, load 10, store 5
    {"LifBackward_FastSigmoid", 78}, // arithmetic 24, branch 3, compare 5, division 10, integer 15, load 13, select 3, store 5
    {"LifBackward_LeakyStep", 53}, // arithmetic 17, branch 1, compare 3, integer 14, load 10, select 3, store 5
    {"LifBackward_Sigmoid", 132}, // arithmetic 60, branch 1, compare 8, convert 1, division 10, integer 15, load 17, select 15, store 5
    {"LifBackward_half", 82}, // arithmetic 25, branch 5, compare 3, convert 6, division 10, integer 14, load 14, store 5
    {"LifForward", 26}, // arithmetic 7, branch 1, compare 2, integer 11, load 2, store 3
    {"LifForward_half", 31}, // arithmetic 8, branch 1, compare 2, convert 6, integer 8, load 3, store 3
    {"LifForward_immediate", 29}, // arithmetic 10, branch 1, compare 2, integer 11, load 2, store 3
    {"LifForward_none", 22}, // arithmetic 4, branch 1, compare 1, integer 11, load 2, store 3
    {"LifForward_perElement", 36}, // arithmetic 8, branch 1, compare 4, integer 12, load 5, select 3, store 3
    {"LoadStep", 8}, // arithmetic 1, branch 1, integer 4, load 1, store 1
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
