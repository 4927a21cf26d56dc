#include "operator.hpp"

#include <poplar/Graph.hpp>

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#if !defined(SNNIPU_VERSION)
#define SNNIPU_VERSION "unknown"
#endif

// The version of the package that this was built for; the package refuses a library of another version.
extern "C" const char *snnipu_popart_version() { return SNNIPU_VERSION; }

namespace snnipu {
namespace ops {

void addCodelets(poplar::Graph &graph) {
  std::string path;
  if (const char *const set = std::getenv("SNNIPU_CODELETS")) {
    path = set;
  } else {
    // The path is not relative to the working directory, which belongs to the user.
    Dl_info info;
    if (dladdr(reinterpret_cast<const void *>(&addCodelets), &info) == 0 || info.dli_fname == nullptr)
      throw popart::error("snnipu: cannot tell where its library is; set SNNIPU_CODELETS to the path of snnipu.gp");
    const std::string library = info.dli_fname;
    path = library.substr(0, library.find_last_of('/') + 1) + "snnipu.gp";
  }
  graph.addCodelets(path);
}

void DescribedOp::appendAttributes(popart::OpSerialiserBase &to) const {
  popart::Op::appendAttributes(to);
  append(to);
}

void DescribedOp::appendOutlineAttributes(popart::OpSerialiserBase &to) const {
  popart::Op::appendOutlineAttributes(to);
  append(to);
}

void DescribedForward::setup() {
  const Fields all = fields();
  for (int i = 0; i <= static_cast<int>(all.size()); ++i)
    check(all, i);
  checkInputs();
  const Infos outputs = infos();
  for (std::size_t o = 0; o < outputs.size(); ++o)
    outInfo(static_cast<int>(o)) = outputs[o];
}

std::set<popart::InIndex> DescribedForward::optionalInputs() const {
  std::set<popart::InIndex> optional;
  const Fields all = fields();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].optional)
      optional.insert(static_cast<int>(i));
  return optional;
}

void DescribedForward::check(const Fields &fields, int index) const {
  const bool known = index < static_cast<int>(fields.size()), exists = hasInput(index);
  if (exists != known && !(known && fields[static_cast<std::size_t>(index)].optional)) {
    std::string names;
    for (const Field &field : fields)
      names += (names.empty() ? "" : ", ") + std::string(field.name);
    throw popart::error("{} takes {}: input {} is {}", opid, names, index, known ? "missing" : "too many");
  }
  if (!exists)
    return;
  const Field &field = fields[static_cast<std::size_t>(index)];
  const popart::DataType type = inInfo(index).dataType();
  if (type != popart::DataType::FLOAT && (field.types == Float || type != popart::DataType::FLOAT16))
    throw popart::error("{}: {} must be FLOAT{}", opid, field.name, field.types == Float ? "" : " or FLOAT16");
}

DescribedGradient::DescribedGradient(const popart::OperatorIdentifier &opid, const popart::Op &forward,
                                     const Gradient &gradient)
    : DescribedOp(opid, forward.settings) {
  for (const Source &source : gradient.reads) {
    if (source.kind == popart::GradOpInType::In && !forward.hasInput(source.index))
      continue;
    const int inputIndex = static_cast<int>(sources_.size());
    inputs_.emplace_back(inputIndex, source.index, source.kind);
    sources_.push_back(source);
    if (source.optional)
      optional_.insert(inputIndex);
  }
  for (const int index : gradient.of)
    if (forward.hasInput(index)) {
      outputs_.emplace(static_cast<int>(infos_.size()), index);
      infos_.push_back(forward.inInfo(index));
    }
}

void DescribedGradient::setup() {
  for (const auto &gradient : outputs_) {
    const int inputIndexOfForward = inputIndex(ops::input(gradient.second));
    outInfo(gradient.first) =
        inputIndexOfForward < 0 ? infos_[static_cast<std::size_t>(gradient.first)] : inInfo(inputIndexOfForward);
  }
}

int DescribedGradient::inputIndex(const Source &source) const {
  const auto found = std::find(sources_.begin(), sources_.end(), source);
  return found == sources_.end() ? -1 : static_cast<int>(found - sources_.begin());
}

int DescribedGradient::outputIndex(int index) const {
  for (const auto &gradient : outputs_)
    if (gradient.second == index)
      return gradient.first;
  return -1;
}

DescribedLowering::DescribedLowering(popart::Op *op, popart::popx::Devicex *devicex)
    : popart::popx::Opx(op, devicex), op_(getOp<DescribedOp>()) {
  addCodelets(graph());
}

poplar::DebugContext DescribedLowering::label() const {
  std::string name = op_.opid.type;
  name[0] = static_cast<char>(std::tolower(name[0]));
  return debugContext(name);
}

void DescribedLowering::set(int index, const poplar::Tensor &tensor) const {
  if (op_.outputIndex(index) >= 0)
    setOutTensor(op_.outputIndex(index), tensor);
}

void DescribedLowering::setSlots(int first, const graph::SlotTensors &slots) const {
  set(first, slots.ids);
  set(first + 1, slots.values);
  set(first + 2, slots.counts);
}

void DescribedLowering::setZeros(int index) const {
  const popart::TensorInfo &info = outputInfo(index);
  std::string name = fields()[static_cast<std::size_t>(index)].name;
  name[0] = static_cast<char>(std::toupper(name[0]));
  set(index, graph::zeros(graph(), info.shape_szt(), debugContext("grad" + name), poplarType(info)));
}

} // namespace ops
} // namespace snnipu
