// PopART subset: the registered operators, and their construction from attributes.
#pragma once

#include <popart/attributes.hpp>
#include <popart/datatype.hpp>
#include <popart/op.hpp>

#include <functional>

namespace popart {

class OpDefinition {
public:
  struct Input {
    std::string name;
    std::vector<DataType> supportedTensors;
    bool constant;
    Input(std::string name_, std::vector<DataType> types, bool constant_ = false)
        : name(std::move(name_)), supportedTensors(std::move(types)), constant(constant_) {}
  };
  struct Output {
    std::string name;
    std::vector<DataType> supportedTensors;
    Output(std::string name_, std::vector<DataType> types)
        : name(std::move(name_)), supportedTensors(std::move(types)) {}
  };
  struct Attribute {
    std::string supportedValuesRegex;
    Attribute(std::string regex) : supportedValuesRegex(std::move(regex)) {}
  };
  using DataTypes = std::vector<DataType>;
  using Inputs = std::vector<Input>;
  using Outputs = std::vector<Output>;
  using Attributes = std::map<std::string, Attribute>;

  OpDefinition() = default;
  OpDefinition(Inputs inputs_, Outputs outputs_, Attributes attributes_)
      : inputs(std::move(inputs_)), outputs(std::move(outputs_)), attributes(std::move(attributes_)) {}

  Inputs inputs;
  Outputs outputs;
  Attributes attributes;
};

using OpDefinitions = std::map<OperatorIdentifier, OpDefinition, OperatorIdentifierLess>;

class OpCreatorInfo {
public:
  OpCreatorInfo(const OperatorIdentifier &opid_, const Op::Settings &settings_, const Attributes &attributes_)
      : opid(opid_), settings(settings_), attributes(attributes_) {}

  const OperatorIdentifier &opid;
  const Op::Settings &settings;
  const Attributes &attributes;
};

class OpManager {
public:
  using OpFactoryFunc = std::function<std::unique_ptr<Op>(const OpCreatorInfo &)>;

  struct OpInfo {
    OperatorIdentifier id;
    bool isPublic;
    OpDefinition details;
    OpFactoryFunc factory;
  };

  static void registerOp(const OpInfo &info);
  // Throw for an operator or attribute that is not registered; pass on exceptions of the factory.
  static std::unique_ptr<Op> createOp(const OperatorIdentifier &opid, Graph &graph, const std::string &name = "",
                                      const Attributes &attributes = {});
  static OpDefinitions getSupportedOperationsDefinition(bool includePrivate);
};

template <class OP> class OpCreator {
public:
  OpCreator(const OpDefinitions &definitions, bool isPublic = true)
      : OpCreator(
            definitions,
            [](const OpCreatorInfo &info) -> std::unique_ptr<Op> {
              return std::unique_ptr<OP>(new OP(info.opid, info.settings));
            },
            isPublic) {}
  OpCreator(const OpDefinitions &definitions, OpManager::OpFactoryFunc factory, bool isPublic = true) {
    for (const auto &definition : definitions)
      OpManager::registerOp({definition.first, isPublic, definition.second, factory});
  }
};

} // namespace popart
