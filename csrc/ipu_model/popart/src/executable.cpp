// Lowering of operators, and the check that they write only to the inputs that they declare.
#include "ipu_model/popart/executable.hpp"

#include <popart/popx/devicex.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>

#include <poplar/IPUModel.hpp>

#include <algorithm>
#include <cstring>

namespace snnipu {
namespace ipu_model {
namespace {

poplar::Device deviceOf(const Machine &machine) {
  poplar::IPUModel model;
  if (machine.architecture == "mk1")
    model.ipuVersion = "ipu1";
  else if (machine.architecture == "mk2")
    model.ipuVersion = "ipu2";
  else if (machine.architecture == "bow")
    model.ipuVersion = "bow";
  else
    throw popart::error("The architecture is mk1, mk2 or bow, not {}", machine.architecture);
  model.numIPUs = machine.ipus;
  model.tilesPerIPU = machine.tilesPerIpu;
  return model.createDevice();
}

poplar::Type poplarType(popart::DataType type) {
  switch (type) {
  case popart::DataType::FLOAT:
    return poplar::FLOAT;
  case popart::DataType::FLOAT16:
    return poplar::HALF;
  case popart::DataType::INT32:
    return poplar::INT;
  case popart::DataType::UINT32:
    return poplar::UNSIGNED_INT;
  case popart::DataType::BOOL:
    return poplar::BOOL;
  default:
    throw popart::error("A tensor on an IPU is FLOAT, FLOAT16, INT32, UINT32 or BOOL, not {}", type);
  }
}

bool anyRegion(const popart::view::Regions &regions) {
  return std::any_of(regions.begin(), regions.end(), [](const auto &region) { return !region.isEmpty(); });
}

// The intervals of a tensor's elements by variable. They are sorted only when needed, because tensors rarely share a
// variable.
class Elements {
public:
  explicit Elements(const poplar::Tensor &tensor) {
    for (const poplar::VariableInterval &region : tensor.getVarRegions()) {
      if (last_ == nullptr || region.var.id() != lastId_) {
        lastId_ = region.var.id();
        last_ = &byVariable_[lastId_];
      }
      last_->push_back(region.interval);
    }
  }

  bool overlaps(Elements &other) {
    for (auto &entry : byVariable_) {
      const auto found = other.byVariable_.find(entry.first);
      if (found != other.byVariable_.end() && overlap(entry.second, found->second))
        return true;
    }
    return false;
  }

private:
  using Intervals = std::vector<poplar::Interval>;

  static bool overlap(Intervals &left, Intervals &right) {
    std::sort(left.begin(), left.end());
    std::sort(right.begin(), right.end());
    for (std::size_t i = 0, j = 0; i < left.size() && j < right.size();) {
      if (left[i].begin() < right[j].end() && right[j].begin() < left[i].end())
        return true;
      ++(left[i].end() <= right[j].end() ? i : j);
    }
    return false;
  }

  std::map<unsigned, Intervals> byVariable_;
  Intervals *last_ = nullptr;
  unsigned lastId_ = 0;
};

std::string handle(const char *kind, std::size_t index) { return std::string(kind) + std::to_string(index); }

} // namespace

Executable::Executable(popart::Graph &graph, const std::vector<popart::Op *> &ops,
                       const std::vector<popart::TensorId> &inputs, const std::vector<popart::TensorId> &outputs,
                       const Machine &machine) {
  const poplar::Device device = deviceOf(machine);
  graph_ = std::make_unique<poplar::Graph>(device.getTarget());
  popart::popx::Devicex devicex(*graph_);
  std::vector<std::unique_ptr<popart::popx::Opx>> opxs;
  for (popart::Op *const op : ops)
    opxs.push_back(popart::popx::OpxManager::createOpx(op, &devicex));
  // The first operator that can create an input creates it.
  for (const popart::TensorId &id : inputs) {
    const popart::TensorInfo &info = graph.info(id);
    Stream stream{id, info, false};
    poplar::Tensor tensor;
    for (const auto &opx : opxs)
      for (popart::InIndex i = 0; opx->op_p->hasInput(i) || opx->op_p->optionalInputs().count(i); ++i) {
        if (!opx->hasInput(i) || opx->inId(i) != id)
          continue;
        readers_.emplace(id, "input " + std::to_string(i) + " of " + opx->op_p->debugName());
        stream.written = stream.written || anyRegion(opx->op_p->modifies(i));
        if (!tensor.valid() && opx->getInputCreatorType(i) == popart::popx::InputCreatorType::CanCreate)
          tensor = opx->createInputTensor(i, poplar::DebugNameAndId(id));
      }
    if (!tensor.valid())
      tensor = graph_->addVariable(poplarType(info.dataType()), info.shape_szt(), poplar::VariableMappingMethod::LINEAR,
                                   {id});
    if (tensor.shape() != info.shape_szt() || tensor.elementType() != poplarType(info.dataType()))
      throw popart::error("createInputTensor() for {} made a tensor of shape {} and type {}, wanted {}",
                          readers_.count(id) ? readers_.at(id) : id, tensor.shapeToString(),
                          tensor.elementType().toString(), info);
    devicex.tensors[id] = tensor;
    inputs_.push_back(stream);
  }
  poplar::program::Sequence program;
  for (const auto &opx : opxs) {
    const popart::Op &op = *opx->op_p;
    opx->grow(program);
    for (popart::OutIndex i = 0; op.hasOutput(i); ++i) {
      const auto found = devicex.tensors.find(op.outId(i));
      if (found == devicex.tensors.end())
        throw popart::error("The Opx of {} does not set its output {}", op.debugName(), i);
      if (found->second.elementType() != poplarType(op.outInfo(i).dataType()))
        throw popart::error("Output {} of {} is {}, and its Opx sets a tensor of type {}", i, op.debugName(),
                            op.outInfo(i), found->second.elementType().toString());
    }
    checkAliases(op, devicex.tensors);
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    graph_->createHostWrite(handle("in", i), devicex.tensors.at(inputs_[i].id));
    graph_->createHostRead(handle("check", i), devicex.tensors.at(inputs_[i].id));
  }
  for (const popart::TensorId &id : outputs) {
    graph_->createHostRead(handle("out", outputs_.size()), devicex.tensors.at(id));
    outputs_.push_back({id, graph.info(id), true});
  }
  engine_ = std::make_unique<poplar::Engine>(*graph_, program, machine.engine);
  engine_->load(device);
}

void Executable::checkAliases(const popart::Op &op, const std::map<popart::TensorId, poplar::Tensor> &tensors) const {
  std::map<popart::InIndex, Elements> inputs;
  for (popart::InIndex in = 0; op.hasInput(in) || op.optionalInputs().count(in); ++in)
    if (op.hasInput(in))
      inputs.emplace(in, Elements(tensors.at(op.inId(in))));
  for (popart::OutIndex out = 0; op.hasOutput(out); ++out) {
    Elements output(tensors.at(op.outId(out)));
    for (auto &input : inputs)
      if (!anyRegion(op.aliases(input.first, out)) && output.overlaps(input.second))
        throw popart::error("Output {} of {} shares elements with its input {}, which aliases() does not declare: "
                            "a write to one changes the other. Copy them, or declare it.",
                            out, op.debugName(), input.first);
  }
}

void Executable::checkUnchanged(const void *const *inputs) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const std::size_t bytes = static_cast<std::size_t>(inputs_[i].info.nbytes());
    if (inputs_[i].written || bytes == 0)
      continue;
    std::vector<char> after(bytes);
    engine_->readTensor(handle("check", i), after.data(), after.data() + bytes);
    if (std::memcmp(after.data(), inputs[i], bytes) != 0)
      throw popart::error("{} has been written to, which modifies() does not declare: its gradient and "
                          "other readers of that tensor would see the new value. Copy it first, or declare it.",
                          readers_.count(inputs_[i].id) ? readers_.at(inputs_[i].id) : inputs_[i].id);
  }
}

void Executable::run(const void *const *inputs, void *const *outputs) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const char *const from = static_cast<const char *>(inputs[i]);
    engine_->writeTensor(handle("in", i), from, from + inputs_[i].info.nbytes());
  }
  engine_->run(0);
  if (!checked_)
    checkUnchanged(inputs);
  checked_ = true;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    char *const to = static_cast<char *>(outputs[i]);
    engine_->readTensor(handle("out", i), to, to + outputs_[i].info.nbytes());
  }
}

} // namespace ipu_model
} // namespace snnipu
