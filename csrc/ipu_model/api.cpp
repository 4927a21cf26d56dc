// The C interface of the model: requests, compiled programs and reports.
#include "ipu_model/snnipu_ipu_model.h"

#include "ipu_model/popart/executable.hpp"
#include "ipu_model/report.hpp"

#include <popart/opmanager.hpp>
#include <popart/shapeinference.hpp>

#include <poplar/exceptions.hpp>

#include <algorithm>
#include <new>
#include <sstream>
#include <stdexcept>

#if !defined(SNNIPU_VERSION)
#define SNNIPU_VERSION "unknown"
#endif

using popart::TensorId;

struct snnipu_ipu_request {
  popart::OperatorIdentifier opid;
  std::vector<popart::TensorInfo> inputs; // not set: the input is missing
  int outputs = -1;
  popart::Attributes attributes;
  snnipu::ipu_model::Machine machine;
  bool gradient = false;
  std::vector<int> outputsWithGradient;
};

struct snnipu_ipu_program {
  struct Source {
    int kind, index;
  };
  popart::Graph graph;
  std::unique_ptr<snnipu::ipu_model::Executable> executable;
  std::vector<Source> inputs;
  std::vector<popart::TensorInfo> outputs;
  std::vector<std::string> outputTypes;
  std::vector<int> targets;
  std::string report;
};

namespace {

thread_local std::string lastError;

template <typename Body> int guarded(const Body &body) {
  try {
    body();
    return 0;
  } catch (const poplar::poplar_error &error) {
    lastError = std::string(error.name()) + ": " + error.what();
  } catch (const popart::error &error) {
    lastError = std::string("popart_error: ") + error.what();
  } catch (const std::invalid_argument &error) {
    lastError = std::string("invalid_argument: ") + error.what();
  } catch (const std::bad_alloc &) {
    lastError = "bad_alloc: out of memory";
  } catch (const std::exception &error) {
    lastError = std::string("error: ") + error.what();
  }
  return 1;
}

std::string text(const char *value, const char *name) {
  if (value == nullptr)
    throw std::invalid_argument(std::string(name) + " must not be NULL");
  return value;
}

void setAttribute(snnipu_ipu_request *request, const char *name, popart::Attributes::Value value) {
  request->attributes.set(text(name, "the attribute's name"), std::move(value));
}

template <typename Items, typename Write> void writeList(std::ostream &to, const Items &items, const Write &write) {
  to << '[';
  bool first = true;
  for (const auto &item : items) {
    to << (first ? "" : ", ");
    first = false;
    write(item);
  }
  to << ']';
}

std::string operatorsJson() {
  std::ostringstream to(std::ios_base::out);
  const auto tensor = [&](const auto &of) {
    to << "{\"name\": \"" << of.name << "\", \"types\": ";
    writeList(to, of.supportedTensors, [&](popart::DataType type) { to << '"' << type << '"'; });
    to << '}';
  };
  writeList(to, popart::OpManager::getSupportedOperationsDefinition(false), [&](const auto &op) {
    to << "{\"domain\": \"" << op.first.domain << "\", \"name\": \"" << op.first.type
       << "\", \"version\": " << op.first.version << ", \"inputs\": ";
    writeList(to, op.second.inputs, tensor);
    to << ", \"outputs\": ";
    writeList(to, op.second.outputs, tensor);
    to << ", \"attributes\": ";
    writeList(to, op.second.attributes, [&](const auto &attribute) { to << '"' << attribute.first << '"'; });
    to << '}';
  });
  return to.str();
}

std::string indexed(const char *kind, int index) { return std::string(kind) + std::to_string(index); }

// Return the number of outputs by shape inference, which PopTorch's builder uses, or else by the operator's definition.
int outputsOf(const snnipu_ipu_request &request) {
  if (popart::ShapeInferenceFunctions::hasFunction(request.opid)) {
    std::map<int, popart::TensorInfo> inputs;
    for (std::size_t i = 0; i < request.inputs.size(); ++i)
      inputs[static_cast<int>(i)] = request.inputs[i];
    popart::ShapeInferenceContext context(inputs, request.attributes, 0);
    popart::ShapeInferenceFunctions::getFunction(request.opid)(context);
    return static_cast<int>(context.getOutputInfos().size());
  }
  const auto definitions = popart::OpManager::getSupportedOperationsDefinition(true);
  const auto found = definitions.find(request.opid);
  return found == definitions.end() ? 0 : static_cast<int>(found->second.outputs.size());
}

void compile(const snnipu_ipu_request &request, snnipu_ipu_program &program) {
  popart::Graph &graph = program.graph;
  std::vector<TensorId> inputs;
  for (const popart::TensorInfo &info : request.inputs)
    inputs.push_back(info.isSet() ? graph.addInput(indexed("input", static_cast<int>(inputs.size())), info) : "");
  const int outputs = request.outputs >= 0 ? request.outputs : outputsOf(request);
  const std::vector<TensorId> outputIds = graph.addOp(request.opid, request.attributes, inputs, outputs);
  const popart::Op &op = *graph.ops().front();
  std::map<TensorId, snnipu_ipu_program::Source> sources;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    sources[inputs[i]] = {SNNIPU_IPU_IN, static_cast<int>(i)};
  std::vector<TensorId> programInputs, programOutputs;
  std::vector<popart::Op *> lowered;
  if (!request.gradient) {
    for (const TensorId &id : inputs)
      if (!id.empty())
        programInputs.push_back(id);
    programOutputs = outputIds;
    program.targets.assign(outputIds.size(), -1);
    lowered.push_back(graph.ops().front().get());
  } else {
    std::map<TensorId, TensorId> gradients;
    for (const int output : request.outputsWithGradient) {
      const TensorId &of = op.outId(output);
      gradients[of] = graph.addInput(indexed("gradient", output), graph.info(of));
      sources[gradients[of]] = {SNNIPU_IPU_GRAD_OUT, output};
    }
    for (std::size_t i = 0; i < outputIds.size(); ++i)
      sources[outputIds[i]] = {SNNIPU_IPU_OUT, static_cast<int>(i)};
    graph.growGradients(gradients);
    if (graph.ops().size() != 2)
      throw popart::error("{} has {} gradient operators, wanted 1", op.debugName(), graph.ops().size() - 1);
    popart::Op &gradOp = *graph.ops().back();
    lowered.push_back(&gradOp);
    for (int i = 0; i < static_cast<int>(gradOp.gradInputInfo().size()); ++i)
      if (gradOp.hasInput(i) &&
          std::find(programInputs.begin(), programInputs.end(), gradOp.inId(i)) == programInputs.end())
        programInputs.push_back(gradOp.inId(i));
    for (const auto &output : gradOp.gradOutToNonGradIn())
      if (op.hasInput(output.second)) {
        programOutputs.push_back(gradOp.outId(output.first));
        program.targets.push_back(output.second);
      }
  }
  for (const TensorId &id : programInputs)
    program.inputs.push_back(sources.at(id));
  for (const TensorId &id : programOutputs) {
    program.outputs.push_back(graph.info(id));
    std::ostringstream type(std::ios_base::out);
    type << graph.info(id).dataType();
    program.outputTypes.push_back(type.str());
  }
  program.executable =
      std::make_unique<snnipu::ipu_model::Executable>(graph, lowered, programInputs, programOutputs, request.machine);
}

} // namespace

extern "C" {

const char *snnipu_ipu_version(void) { return SNNIPU_VERSION; }
const char *snnipu_ipu_error(void) { return lastError.c_str(); }

const char *snnipu_ipu_operators(void) {
  static const std::string json = operatorsJson();
  return json.c_str();
}

snnipu_ipu_request *snnipu_ipu_request_new(const char *domain, const char *op, int version) {
  snnipu_ipu_request *request = nullptr;
  guarded([&] {
    request = new snnipu_ipu_request{
        {text(domain, "domain"), text(op, "op"), static_cast<popart::OpVersion>(version)}, {}, -1, {}, {}, false, {}};
  });
  return request;
}
void snnipu_ipu_request_free(snnipu_ipu_request *request) { delete request; }

int snnipu_ipu_request_input(snnipu_ipu_request *request, const char *type, const int64_t *shape, int rank) {
  return guarded([&] {
    if (type == nullptr)
      request->inputs.emplace_back();
    else
      request->inputs.emplace_back(popart::dataTypeFromString(type), popart::Shape(shape, shape + rank));
  });
}
int snnipu_ipu_request_outputs(snnipu_ipu_request *request, int outputs) {
  request->outputs = outputs;
  return 0;
}
int snnipu_ipu_request_int(snnipu_ipu_request *request, const char *name, int64_t value) {
  return guarded([&] { setAttribute(request, name, value); });
}
int snnipu_ipu_request_float(snnipu_ipu_request *request, const char *name, double value) {
  return guarded([&] { setAttribute(request, name, static_cast<float>(value)); });
}
int snnipu_ipu_request_string(snnipu_ipu_request *request, const char *name, const char *value) {
  return guarded([&] { setAttribute(request, name, text(value, "the attribute's value")); });
}
int snnipu_ipu_request_ints(snnipu_ipu_request *request, const char *name, const int64_t *values, int count) {
  return guarded([&] { setAttribute(request, name, popart::Attributes::Ints(values, values + count)); });
}
int snnipu_ipu_request_floats(snnipu_ipu_request *request, const char *name, const double *values, int count) {
  return guarded([&] { setAttribute(request, name, popart::Attributes::Floats(values, values + count)); });
}
int snnipu_ipu_request_target(snnipu_ipu_request *request, const char *architecture, int tiles_per_ipu, int ipus) {
  return guarded([&] {
    if (tiles_per_ipu < 0 || ipus < 1)
      throw std::invalid_argument("tiles_per_ipu must be 0 or more and ipus 1 or more");
    request->machine.architecture = text(architecture, "architecture");
    request->machine.tilesPerIpu = static_cast<unsigned>(tiles_per_ipu);
    request->machine.ipus = static_cast<unsigned>(ipus);
  });
}
int snnipu_ipu_request_option(snnipu_ipu_request *request, const char *name, const char *value) {
  return guarded([&] { request->machine.engine.set(text(name, "the option's name"), text(value, "the option")); });
}
int snnipu_ipu_request_gradient(snnipu_ipu_request *request, const int *outputs_with_gradient, int count) {
  return guarded([&] {
    request->gradient = true;
    request->outputsWithGradient.assign(outputs_with_gradient, outputs_with_gradient + count);
  });
}

int snnipu_ipu_compile(const snnipu_ipu_request *request, snnipu_ipu_program **out) {
  *out = nullptr;
  return guarded([&] {
    auto program = std::make_unique<snnipu_ipu_program>();
    compile(*request, *program);
    *out = program.release();
  });
}
void snnipu_ipu_program_free(snnipu_ipu_program *program) { delete program; }

int snnipu_ipu_outputs(const snnipu_ipu_program *program) { return static_cast<int>(program->outputs.size()); }
int snnipu_ipu_output_rank(const snnipu_ipu_program *program, int output) {
  return program->outputs[static_cast<std::size_t>(output)].rank();
}
const int64_t *snnipu_ipu_output_shape(const snnipu_ipu_program *program, int output) {
  return program->outputs[static_cast<std::size_t>(output)].shape().data();
}
const char *snnipu_ipu_output_type(const snnipu_ipu_program *program, int output) {
  return program->outputTypes[static_cast<std::size_t>(output)].c_str();
}
int snnipu_ipu_inputs(const snnipu_ipu_program *program) { return static_cast<int>(program->inputs.size()); }
int snnipu_ipu_input_source(const snnipu_ipu_program *program, int input, int *kind, int *index) {
  return guarded([&] {
    const auto &source = program->inputs.at(static_cast<std::size_t>(input));
    *kind = source.kind;
    *index = source.index;
  });
}
int snnipu_ipu_gradient_target(const snnipu_ipu_program *program, int output) {
  return program->targets[static_cast<std::size_t>(output)];
}

int snnipu_ipu_run(snnipu_ipu_program *program, const void *const *inputs, void *const *outputs) {
  return guarded([&] { program->executable->run(inputs, outputs); });
}
const char *snnipu_ipu_report(snnipu_ipu_program *program) {
  return guarded([&] { program->report = snnipu::ipu_model::report(program->executable->engine()).toJson(); })
             ? nullptr
             : program->report.c_str();
}
const char *snnipu_ipu_estimate(snnipu_ipu_program *program) {
  return guarded([&] { program->report = snnipu::ipu_model::estimate(program->executable->engine()).toJson(); })
             ? nullptr
             : program->report.c_str();
}
}
