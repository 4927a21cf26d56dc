// Operators and their registries.
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/devicex.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/shapeinference.hpp>

#include "ipu_model/popart/graph.hpp"

namespace popart {

Op::Op(const OperatorIdentifier &opid_, const Settings &settings_) : opid(opid_), settings(settings_) {}
Op::Op(const Op &other) : opid(other.opid), settings(other.settings) {}
Op::~Op() = default;

void Op::setup() { throw error("{} has no setup()", debugName()); }
std::vector<std::unique_ptr<Op>> Op::getGradOps() { return {}; }
const std::vector<GradInOutMapper> &Op::gradInputInfo() const {
  throw error("{} is not a gradient operator: it has no gradInputInfo()", debugName());
}
const std::map<int, int> &Op::gradOutToNonGradIn() const {
  throw error("{} is not a gradient operator: it has no gradOutToNonGradIn()", debugName());
}

void Op::appendAttributes(OpSerialiserBase &to) const { to.appendAttribute("opid", opid); }
void Op::appendOutlineAttributes(OpSerialiserBase &to) const { to.appendAttribute("opid", opid); }

view::Regions Op::modifies(InIndex index) const { return {view::Region::getEmpty(inRank(index))}; }
view::Regions Op::aliases(InIndex in, OutIndex) const { return {view::Region::getEmpty(inRank(in))}; }

bool Op::hasInput(InIndex index) const { return inputs_.count(index) != 0; }
bool Op::hasOutput(OutIndex index) const { return outputs_.count(index) != 0; }

TensorId Op::inId(InIndex index) const {
  if (!hasInput(index))
    throw error("{} has no input {}", debugName(), index);
  return inputs_.at(index);
}

TensorId Op::outId(OutIndex index) const {
  if (!hasOutput(index))
    throw error("{} has no output {}", debugName(), index);
  return outputs_.at(index);
}

TensorInfo &Op::inInfo(InIndex index) { return settings.graph->info(inId(index)); }
const TensorInfo &Op::inInfo(InIndex index) const { return settings.graph->info(inId(index)); }
TensorInfo &Op::outInfo(OutIndex index) { return settings.graph->info(outId(index)); }
const TensorInfo &Op::outInfo(OutIndex index) const { return settings.graph->info(outId(index)); }

std::string Op::str() const { return opid.domain + "." + opid.type + ":" + std::to_string(opid.version); }
std::string Op::debugName() const { return settings.name.empty() ? str() : str() + " (" + settings.name + ")"; }

// Registries. Static objects of other files fill them, so they are constructed on first use.
namespace {

using OpMap = std::map<OperatorIdentifier, OpManager::OpInfo, OperatorIdentifierLess>;
OpMap &ops() {
  static OpMap map;
  return map;
}

std::map<OperatorIdentifier, popx::OpxManager::OpxFactoryFunc, OperatorIdentifierLess> &opxs() {
  static std::map<OperatorIdentifier, popx::OpxManager::OpxFactoryFunc, OperatorIdentifierLess> map;
  return map;
}

std::map<OperatorIdentifier, ShapeInferenceFunction, OperatorIdentifierLess> &shapeFunctions() {
  static std::map<OperatorIdentifier, ShapeInferenceFunction, OperatorIdentifierLess> map;
  return map;
}

} // namespace

void OpManager::registerOp(const OpInfo &info) { ops().emplace(info.id, info); }

std::unique_ptr<Op> OpManager::createOp(const OperatorIdentifier &opid, Graph &graph, const std::string &name,
                                        const Attributes &attributes) {
  const auto found = ops().find(opid);
  if (found == ops().end())
    throw error("There is no operator {}: is the library loaded that registers it?", opid);
  const OpManager::OpInfo &info = found->second;
  // An empty definition accepts any attribute.
  const OpDefinition &known = info.details;
  const bool hasDefinition = !known.inputs.empty() || !known.outputs.empty() || !known.attributes.empty();
  for (const auto &attribute : attributes.values())
    if (hasDefinition && !known.attributes.count(attribute.first))
      throw error("{} has no attribute {}", opid, attribute.first);
  return info.factory(OpCreatorInfo(info.id, Op::Settings(graph, name), attributes));
}

OpDefinitions OpManager::getSupportedOperationsDefinition(bool includePrivate) {
  OpDefinitions definitions;
  for (const auto &op : ops())
    if (op.second.isPublic || includePrivate)
      definitions.emplace(op.first, op.second.details);
  return definitions;
}

void ShapeInferenceFunctions::registerFunction(const OperatorIdentifier &opid, ShapeInferenceFunction function) {
  shapeFunctions().emplace(opid, std::move(function));
}
bool ShapeInferenceFunctions::hasFunction(const OperatorIdentifier &opid) { return shapeFunctions().count(opid) != 0; }
ShapeInferenceFunction ShapeInferenceFunctions::getFunction(const OperatorIdentifier &opid) {
  if (!hasFunction(opid))
    throw error("{} has no shape inference", opid);
  return shapeFunctions().at(opid);
}
RegisterShapeInferenceFunction::RegisterShapeInferenceFunction(const OperatorIdentifier &opid,
                                                               ShapeInferenceFunction function) {
  ShapeInferenceFunctions::registerFunction(opid, std::move(function));
}

namespace popx {

void OpxManager::registerOpx(const OperatorIdentifier &opid, OpxFactoryFunc factory) {
  opxs().emplace(opid, std::move(factory));
}

std::unique_ptr<Opx> OpxManager::createOpx(Op *op, Devicex *devicex) {
  const auto found = opxs().find(op->opid);
  if (found == opxs().end())
    throw error("There is no Opx for {}: an OpxCreator registers one", op->opid);
  return found->second(op, devicex);
}

Opx::~Opx() = default;
void Opx::grow(poplar::program::Sequence &) const { throw error("The Opx of {} has no grow()", op_p->debugName()); }
poplar::Tensor Opx::createInputTensor(InIndex index, const poplar::DebugNameAndId &) const {
  throw error("The Opx of {} does not create its input {}", op_p->debugName(), index);
}
poplar::Graph &Opx::graph() const { return dv_p->graph; }

static const poplar::Tensor &tensorOf(const Devicex &devicex, const TensorId &id) {
  const auto found = devicex.tensors.find(id);
  if (found == devicex.tensors.end())
    throw error("Tensor {} has not been grown", id);
  return found->second;
}

const poplar::Tensor &Opx::getInTensor(InIndex index) const { return tensorOf(*dv_p, inId(index)); }
const poplar::Tensor &Opx::getOutTensor(OutIndex index) const { return tensorOf(*dv_p, outId(index)); }
void Opx::setOutTensor(OutIndex index, const poplar::Tensor &tensor) const {
  const std::vector<std::size_t> expected = outInfo(index).shape_szt();
  if (tensor.shape() != expected)
    throw error("Output {} of {} has shape {}, and its Opx sets a tensor of shape {}", index, op_p->debugName(),
                outInfo(index), tensor.shapeToString());
  dv_p->tensors[outId(index)] = tensor;
}
void Opx::insert(const TensorId &id, const poplar::Tensor &tensor) const {
  for (int index = 0; index < static_cast<int>(op_p->outTensorCount()); ++index)
    if (outId(index) == id)
      return setOutTensor(index, tensor);
  throw error("{} is not an output of {}", id, op_p->debugName());
}
poplar::DebugContext Opx::debugContext(const std::string &name) const {
  return {poplar::DebugNameAndId(op_p->settings.name.empty() ? op_p->opid.type : op_p->settings.name), name};
}

} // namespace popx
} // namespace popart
