// Graphs of operators, and the rules of autodiff.
#include "ipu_model/popart/graph.hpp"
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>

#include <algorithm>
#include <type_traits>

namespace popart {
namespace {

class TextSerialiser : public OpSerialiserBase {
public:
  std::string text;

private:
  void appendText(const std::string &key, const std::string &value) override { text += key + '=' + value + '\n'; }
};

using Append = void (Op::*)(OpSerialiserBase &) const;
struct NamedAppend {
  const char *name;
  Append append;
};
constexpr NamedAppend appends[] = {{"appendAttributes()", &Op::appendAttributes},
                                   {"appendOutlineAttributes()", &Op::appendOutlineAttributes}};

std::string textOf(const Op &op, Append append) {
  TextSerialiser to;
  (op.*append)(to);
  return to.text;
}

// Return values other than `value`. The operator may refuse some of them.
std::vector<Attributes::Value> otherValues(const Attributes::Value &value) {
  std::vector<Attributes::Value> others;
  const auto change = [&](const auto &of, const auto &emit) {
    using T = std::decay_t<decltype(of)>;
    if constexpr (std::is_same_v<T, std::string>) {
      emit(of + "x");
    } else {
      for (const int by : {1, -1, 2, -2})
        emit(static_cast<T>(of + static_cast<T>(by)));
      emit(T(0)); // if the number is infinite
    }
  };
  std::visit(
      [&](const auto &held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, Attributes::Ints> || std::is_same_v<T, Attributes::Floats> ||
                      std::is_same_v<T, Attributes::Strings>) {
          for (std::size_t i = 0; i < held.size(); ++i)
            change(held[i], [&](const auto &other) {
              T changed = held;
              changed[i] = other;
              others.push_back(changed);
            });
        } else {
          change(held, [&](const auto &other) { others.push_back(other); });
        }
      },
      value);
  return others;
}

bool onPath(const Op &op, const std::set<TensorId> &toLoss) {
  for (int i = 0; i < static_cast<int>(op.outTensorCount()); ++i)
    if (toLoss.count(op.outId(i)))
      return true;
  return false;
}

} // namespace

bool isFloating(DataType type) {
  switch (type) {
  case DataType::FLOAT:
  case DataType::FLOAT16:
  case DataType::BFLOAT16:
  case DataType::DOUBLE:
  case DataType::FLOAT8_143:
  case DataType::FLOAT8_152:
    return true;
  default:
    return false;
  }
}

TensorInfo &Graph::info(const TensorId &id) {
  const auto found = infos_.find(id);
  if (found == infos_.end())
    throw error("There is no tensor {}", id);
  return found->second;
}

TensorId Graph::addInput(const TensorId &id, const TensorInfo &info) {
  if (!infos_.emplace(id, info).second)
    throw error("There is a tensor {} already", id);
  inputs_.push_back(id);
  return id;
}

void Graph::connect(Op &op, const std::vector<TensorId> &inputs, int outputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].empty()) {
      info(inputs[i]);
      op.inputs_[static_cast<InIndex>(i)] = inputs[i];
    }
  const std::string prefix = op.opid.type + "/" + std::to_string(names_++) + ":";
  for (OutIndex i = 0; i < outputs; ++i) {
    const TensorId id = prefix + std::to_string(i);
    infos_.emplace(id, TensorInfo());
    producers_[id] = &op;
    op.outputs_[i] = id;
  }
  op.setup();
  for (const auto &output : op.outputs_)
    if (!info(output.second).isSet())
      throw error("setup() of {} does not tell the info of output {}", op.debugName(), output.first);
}

std::vector<TensorId> Graph::addOp(const OperatorIdentifier &opid, const Attributes &attributes,
                                   const std::vector<TensorId> &inputs, int outputs, const std::string &name) {
  ops_.push_back(OpManager::createOp(opid, *this, name, attributes));
  Op &op = *ops_.back();
  const NumInputs &count = op.opid.numInputs;
  const int inputCount = static_cast<int>(inputs.size());
  if (count.max > 0 && (inputCount < count.min || inputCount > count.max))
    throw error("{} takes {} to {} inputs, got {}", op.debugName(), count.min, count.max, inputCount);
  connect(op, inputs, outputs);
  if (!op.getGradOps().empty())
    for (const auto &output : op.outputs_)
      if (!isFloating(info(output.second).dataType()))
        throw error("{} has a gradient, and output {} is {}: an integer output carries none, and PopART would drop the "
                    "gradient of the whole operator silently. Make it FLOAT: integers are exact up to 2^24.",
                    op.debugName(), output.first, info(output.second));
  std::vector<TensorId> ids;
  for (const auto &output : op.outputs_)
    ids.push_back(output.second);
  checkOutlineAttributes(op, attributes, inputs, outputs);
  return ids;
}

// Compare with the same operator after changing one attribute at a time.
void Graph::checkOutlineAttributes(const Op &op, const Attributes &attributes, const std::vector<TensorId> &inputs,
                                   int outputs) const {
  const auto texts = [](Op &of) {
    std::vector<std::string> all;
    for (const NamedAppend &method : appends)
      all.push_back(textOf(of, method.append));
    for (const auto &gradOp : of.getGradOps())
      for (const NamedAppend &method : appends)
        all.push_back(textOf(*gradOp, method.append));
    return all;
  };
  const std::vector<std::string> originalTexts = texts(const_cast<Op &>(op));
  for (const auto &attribute : attributes.values())
    for (const Attributes::Value &value : otherValues(attribute.second)) {
      if (value == attribute.second)
        continue;
      Attributes changed = attributes;
      changed.set(attribute.first, value);
      Graph scratch;
      std::vector<std::string> other;
      try {
        const std::unique_ptr<Op> variant = OpManager::createOp(op.opid, scratch, op.settings.name, changed);
        for (const TensorId &id : inputs)
          if (!id.empty() && !scratch.infos_.count(id))
            scratch.addInput(id, info(id));
        scratch.connect(*variant, inputs, outputs);
        other = texts(*variant);
      } catch (const std::exception &) {
        continue; // the operator refuses the value
      }
      for (std::size_t i = 0; i < std::min(originalTexts.size(), other.size()); ++i)
        if (originalTexts[i] == other[i])
          throw error("{} of {}{} does not append the attribute {}: PopART would take operators that differ in it for "
                      "one and the same",
                      appends[i % 2].name, i < 2 ? "" : "the gradient of ", op.debugName(), attribute.first);
    }
}

Op *Graph::producer(const TensorId &id) const {
  const auto found = producers_.find(id);
  return found == producers_.end() ? nullptr : found->second;
}

Op &Graph::addGradOp(const Op &op, std::unique_ptr<Op> gradOp, const std::map<TensorId, TensorId> &gradients) {
  std::vector<TensorId> inputs;
  for (const GradInOutMapper &from : gradOp->gradInputInfo()) {
    TensorId id;
    switch (from.type) {
    case GradOpInType::In:
      if (op.hasInput(from.iNonGrad))
        id = op.inId(from.iNonGrad);
      else if (!op.optionalInputs().count(from.iNonGrad))
        throw error("{} reads input {} of {}, which is absent and not in its optionalInputs()", gradOp->debugName(),
                    from.iNonGrad, op.debugName());
      break;
    case GradOpInType::Out:
      id = op.outId(from.iNonGrad);
      break;
    case GradOpInType::GradOut: {
      const auto found = gradients.find(op.outId(from.iNonGrad));
      if (found != gradients.end())
        id = found->second;
      else if (!gradOp->optionalInputs().count(from.iGrad))
        throw error("{} needs the gradient of output {} of {}, which is not on the path to the loss: override "
                    "optionalInputs(), and ask hasInput({}) in its Opx",
                    gradOp->debugName(), from.iNonGrad, op.debugName(), from.iGrad);
      break;
    }
    }
    if (static_cast<std::size_t>(from.iGrad) >= inputs.size())
      inputs.resize(static_cast<std::size_t>(from.iGrad) + 1);
    inputs[static_cast<std::size_t>(from.iGrad)] = id;
  }
  int outputs = 0;
  for (const auto &output : gradOp->gradOutToNonGradIn())
    outputs = std::max(outputs, output.first + 1);
  ops_.push_back(std::move(gradOp));
  Op &added = *ops_.back();
  connect(added, inputs, outputs);
  for (const auto &output : added.gradOutToNonGradIn())
    if (op.hasInput(output.second) && info(added.outId(output.first)) != info(op.inId(output.second)))
      throw error("Output {} of {} is {}, and the input whose gradient it is, {} of {}, is {}", output.first,
                  added.debugName(), info(added.outId(output.first)), output.second, op.debugName(),
                  info(op.inId(output.second)));
  return added;
}

std::map<TensorId, TensorId> Graph::growGradients(const std::map<TensorId, TensorId> &outputGradients) {
  std::set<TensorId> toLoss;
  for (const auto &output : outputGradients)
    toLoss.insert(output.first);
  const std::size_t forwardOps = ops_.size();
  for (std::size_t i = forwardOps; i-- > 0;)
    if (onPath(*ops_[i], toLoss))
      for (const auto &input : ops_[i]->inputs_)
        toLoss.insert(input.second);
  std::map<TensorId, std::vector<TensorId>>
      partGradients; // from the loss, and from each operator that reads the tensor
  for (const auto &output : outputGradients)
    partGradients[output.first].push_back(output.second);
  std::map<TensorId, TensorId> gradients;
  // Sum up a tensor's gradients. All operators that read it must have been processed.
  const auto sumGradients = [&](const TensorId &id) {
    const auto all = partGradients.find(id);
    if (all == partGradients.end() || gradients.count(id))
      return;
    gradients[id] = all->second.size() == 1
                        ? all->second[0]
                        : addOp({"ai.onnx", "Sum", 8}, {}, all->second, 1, "gradients of " + id).at(0);
  };
  std::map<TensorId, std::string> failed; // with the reason
  for (std::size_t i = forwardOps; i-- > 0;) {
    const Op &op = *ops_[i];
    if (!onPath(op, toLoss))
      continue;
    std::vector<std::unique_ptr<Op>> gradOps = ops_[i]->getGradOps();
    for (const auto &output : op.outputs_)
      if (!gradOps.empty() && toLoss.count(output.second) && failed.count(output.second))
        throw error(
            "Output {} of {} is on the path to the loss and gets no gradient: {}. PopART would drop the "
            "gradient of the whole operator silently, and operators before it would not train. Let that gradient "
            "operator return a gradient for it, zeros if necessary.",
            output.first, op.debugName(), failed.at(output.second));
    for (const auto &output : op.outputs_)
      sumGradients(output.second);
    std::set<InIndex> inputsWithGradient;
    for (auto &gradOp : gradOps) {
      const Op &added = addGradOp(op, std::move(gradOp), gradients);
      for (const auto &output : added.gradOutToNonGradIn()) {
        if (!op.hasInput(output.second))
          continue;
        inputsWithGradient.insert(output.second);
        partGradients[op.inId(output.second)].push_back(added.outId(output.first));
      }
    }
    for (const auto &input : op.inputs_)
      if (!inputsWithGradient.count(input.first)) {
        std::ostringstream why(std::ios_base::out);
        why << op.debugName() << (gradOps.empty() ? " has no gradient" : " gives none for its input ");
        if (!gradOps.empty())
          why << input.first;
        failed.emplace(input.second, why.str());
      }
  }
  std::map<TensorId, TensorId> result;
  const std::vector<TensorId> inputs = inputs_;
  for (const TensorId &id : inputs)
    if (partGradients.count(id) && !failed.count(id)) {
      sumGradients(id);
      result[id] = gradients.at(id);
    }
  return result;
}

} // namespace popart
