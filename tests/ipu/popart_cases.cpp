// Cases for tests/ipu/test_popart.py, named in the table at the end: operators with a fault, and chains of snnipu's
// operators. A case that raises an error prints its message.
#include "ipu_model/popart/executable.hpp"

#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>

#include <poplar/HalfFloat.hpp>

#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>

using namespace popart;

namespace {

// The faults of the test operator, from the command's arguments after the case.
std::set<std::string> faults;
bool fault(const char *name) { return faults.count(name) != 0; }

OperatorIdentifier faultyId() { return {"test", "Faulty", 1, {1, 2}, 2}; }
OperatorIdentifier faultyGradId() { return {"test", "FaultyGrad", 1, 3, 1}; }

// The test operator: two outputs, scale * x each, unless a fault changes them.
class FaultyGrad : public Op {
public:
  FaultyGrad(const Op &forward, float scale) : Op(faultyGradId(), forward.getSettings()), scale_(scale) {
    inputs_ = {{0, 0, GradOpInType::GradOut}, {1, 1, GradOpInType::GradOut}, {2, 0, GradOpInType::In}};
    if (!fault("noGradientForIds"))
      outputs_ = {{0, 0}};
  }
  std::unique_ptr<Op> clone() const override { return std::make_unique<FaultyGrad>(*this); }
  void setup() override {
    if (!outputs_.empty())
      outInfo(0) = inInfo(2);
  }
  const std::vector<GradInOutMapper> &gradInputInfo() const override { return inputs_; }
  const std::map<int, int> &gradOutToNonGradIn() const override { return outputs_; }
  std::set<InIndex> optionalInputs() const override {
    return fault("needsEveryGradient") ? std::set<InIndex>{} : std::set<InIndex>{0, 1};
  }
  void appendAttributes(OpSerialiserBase &to) const override {
    Op::appendAttributes(to);
    if (!fault("gradForgetsInAttributes"))
      to.appendAttribute("scale", scale_);
  }
  void appendOutlineAttributes(OpSerialiserBase &to) const override {
    Op::appendOutlineAttributes(to);
    if (!fault("gradForgetsAttribute"))
      to.appendAttribute("scale", scale_);
  }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }

private:
  float scale_;
  std::vector<GradInOutMapper> inputs_;
  std::map<int, int> outputs_;
};

class Faulty : public Op {
public:
  Faulty(const OperatorIdentifier &opid, const Settings &settings, float scale) : Op(opid, settings), scale_(scale) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<Faulty>(*this); }
  void setup() override {
    outInfo(0) = {fault("integerOutput") ? DataType::INT32 : inInfo(0).dataType(), inShape(0)};
    outInfo(1) = inInfo(0);
  }
  std::vector<std::unique_ptr<Op>> getGradOps() override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<FaultyGrad>(*this, scale_));
    return ops;
  }
  view::Regions modifies(InIndex index) const override {
    return {fault("declaresWrite") ? view::Region::getFull(inShape(index)) : view::Region::getEmpty(inRank(index))};
  }
  view::Regions aliases(InIndex index, OutIndex) const override {
    return {fault("declaresAlias") ? view::Region::getFull(inShape(index)) : view::Region::getEmpty(inRank(index))};
  }
  void appendAttributes(OpSerialiserBase &to) const override {
    Op::appendAttributes(to);
    if (!fault("forgetsInAttributes"))
      to.appendAttribute("scale", scale_);
  }
  void appendOutlineAttributes(OpSerialiserBase &to) const override {
    Op::appendOutlineAttributes(to);
    if (!fault("forgetsAttribute"))
      to.appendAttribute("scale", scale_);
  }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }

private:
  float scale_;
};

class FaultyOpx : public popx::Opx {
public:
  FaultyOpx(Op *op, popx::Devicex *devicex) : popx::Opx(op, devicex) { verifyOp<Faulty>(op, faultyId()); }
  void grow(poplar::program::Sequence &prog) const override {
    const poplar::Tensor in = getInTensor(0);
    const auto like = [&](const char *name) { return graph().clone(in, debugContext(name)); };
    const poplar::Tensor first = fault("aliases") ? in : like("first"), second = like("second");
    if (fault("writes")) {
      const poplar::Tensor constant = graph().addConstant(poplar::FLOAT, {1}, 1.0f);
      graph().setTileMapping(constant, 0);
      prog.add(poplar::program::Copy(constant, in.flatten().slice(0, 1)));
    }
    if (!fault("aliases"))
      prog.add(poplar::program::Copy(in, first));
    prog.add(poplar::program::Copy(in, second));
    setOutTensor(0, fault("wrongShape") ? first.flatten() : first);
    if (!fault("noOutput"))
      insert(fault("insertsOther") ? inId(0) : outId(1), second);
  }
};

const OpCreator<Faulty> creator(
    OpDefinitions({{faultyId(),
                    OpDefinition({{"x", {DataType::FLOAT}}},
                                 {{"first", {DataType::FLOAT}}, {"second", {DataType::FLOAT}}}, {{"scale", {"*"}}})}}),
    [](const OpCreatorInfo &info) {
      return std::make_unique<Faulty>(info.opid, info.settings,
                                      info.attributes.getAttribute<Attributes::Float>("scale"));
    },
    true);
const popx::OpxCreator<FaultyOpx> opxCreator(faultyId());

Attributes scale(float value) {
  Attributes attributes;
  attributes.set("scale", value);
  return attributes;
}

snnipu::ipu_model::Machine fourTiles() {
  snnipu::ipu_model::Machine machine;
  machine.tilesPerIpu = 4;
  return machine;
}

// Run all operators of a graph, and return the values of `outputs`.
template <typename T>
std::vector<std::vector<T>> resultsOf(Graph &graph, const std::vector<TensorId> &inputs,
                                      const std::vector<std::vector<T>> &data, const std::vector<TensorId> &outputs) {
  std::vector<Op *> ops;
  for (const auto &op : graph.ops())
    ops.push_back(op.get());
  snnipu::ipu_model::Executable executable(graph, ops, inputs, outputs, fourTiles());
  std::vector<const void *> from;
  for (const auto &values : data)
    from.push_back(values.data());
  std::vector<std::vector<T>> results;
  for (const TensorId &id : outputs)
    results.emplace_back(static_cast<std::size_t>(graph.info(id).nelms()));
  std::vector<void *> to;
  for (auto &values : results)
    to.push_back(values.data());
  executable.run(from.data(), to.data());
  return results;
}

Attributes surrogate(int64_t code, float a) {
  Attributes attributes;
  attributes.set("surrogate", code);
  attributes.set("surrogate_a", a);
  attributes.set("surrogate_b", 0.0f);
  return attributes;
}

// SurrogateSpike with the straight-through estimator, times `slope` below 0.
TensorId spike(Graph &graph, const TensorId &u, float slope) {
  return graph.addOp({"ai.snnipu", "SurrogateSpike", 1}, surrogate(0, slope), {u}, 1)[0];
}

// Run the test operator on a [2, 3] tensor.
void run() {
  Graph graph;
  const TensorId x = graph.addInput("x", {DataType::FLOAT, {2, 3}});
  const std::vector<TensorId> out = graph.addOp(faultyId(), scale(1.0f), {x}, 2, "faulty");
  snnipu::ipu_model::Executable executable(graph, {graph.ops()[0].get()}, {x}, out, fourTiles());
  float in[6] = {5, 2, 3, 4, 5, 6}, first[6], second[6];
  const void *const inputs[] = {in};
  void *const outputs[] = {first, second};
  executable.run(inputs, outputs);
  std::cout << "ran " << first[1] << ' ' << second[5] << '\n';
}

// SelectSpikes, whose ids are an input of the test operator: its membranes must still get a gradient.
void idsBehind() {
  Graph graph;
  Attributes select = surrogate(0, 1.0f);
  select.set("capacity", int64_t(2));
  for (const char *name : {"rotate", "has_grad_threshold"})
    select.set(name, int64_t(0));
  select.set("grad_threshold", 1.0f);
  const TensorId mem = graph.addInput("mem", {DataType::FLOAT, {1, 2, 5}});
  const TensorId threshold = graph.addInput("threshold", {DataType::FLOAT, {1}});
  const auto spikes = graph.addOp({"ai.snnipu", "SelectSpikes", 1}, select, {mem, threshold}, 4);
  const auto seen = graph.addOp(faultyId(), scale(1.0f), {spikes[0]}, 2);
  graph.addInput("gradValues", graph.info(spikes[1]));
  graph.addInput("gradSeen", graph.info(seen[0]));
  const auto gradients = graph.growGradients({{spikes[1], "gradValues"}, {seen[0], "gradSeen"}});
  std::cout << "gradients " << gradients.count(mem) << ' ' << gradients.count(threshold) << '\n';
}

// Only one output of the test operator is on the path to the loss.
void oneGradient() {
  Graph graph;
  const TensorId x = graph.addInput("x", {DataType::FLOAT, {2, 3}});
  const auto out = graph.addOp(faultyId(), scale(1.0f), {x}, 2, "faulty");
  graph.addInput("grad", graph.info(out[1]));
  std::cout << "gradients " << graph.growGradients({{out[1], "grad"}}).count(x) << '\n';
}

// Three layers of SparseLinear, NeuronSequence and SelectSpikes in one graph, forward and backward in one program.
// Prints for the output and the gradient of each weight if any element is not zero.
void chain() {
  constexpr int64_t steps = 6, batch = 3;
  const std::vector<int64_t> sizes = {20, 16, 12, 8};
  Graph graph;
  std::vector<TensorId> inputs, weights;
  std::vector<std::vector<float>> data;
  std::mt19937 random(1);
  const auto input = [&](const std::string &name, const Shape &shape, const std::function<float()> &value) {
    inputs.push_back(graph.addInput(name, {DataType::FLOAT, shape}));
    data.emplace_back(static_cast<std::size_t>(graph.info(name).nelms()));
    for (float &element : data.back())
      element = value();
    return inputs.back();
  };
  const auto constant = [](float value) { return [value] { return value; }; };
  std::normal_distribution<float> normal;
  std::bernoulli_distribution fires(0.3);
  Attributes lif = surrogate(3, 2.0f), select = surrogate(3, 2.0f), dense, linear;
  lif.set("neuron", std::string("leaky"));
  lif.set("variant", int64_t(0));
  lif.set("states", int64_t(1));
  select.set("rotate", int64_t(0));
  select.set("has_grad_threshold", int64_t(1));
  select.set("grad_threshold", 0.0f);
  linear.set("unit_values", int64_t(0));
  dense.set("capacity", int64_t(12));
  dense.set("rotate", int64_t(0));
  const TensorId x = input("x", {steps, batch, sizes[0]}, [&] { return fires(random) ? 1.0f : 0.0f; });
  std::vector<TensorId> spikes = graph.addOp({"ai.snnipu", "DenseToSparse", 1}, dense, {x}, 4);
  for (std::size_t layer = 1; layer < sizes.size(); ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    const int64_t neurons = sizes[layer];
    // Two tiles divide the neurons, in two groups that divide the rows.
    linear.set("plan", Attributes::Ints{neurons / 2, steps * batch / 2});
    weights.push_back(input(name + ".weight", {neurons, sizes[layer - 1]}, [&] { return 0.7f * normal(random); }));
    const auto current =
        graph.addOp({"ai.snnipu", "SparseLinear", 1}, linear, {spikes[0], spikes[1], spikes[2], weights.back()}, 1);
    const auto membrane = graph.addOp(
        {"ai.snnipu", "NeuronSequence", 1}, lif,
        {current[0], input(name + ".mem0", {batch, neurons}, constant(0)), input(name + ".threshold", {1}, constant(1)),
         input(name + ".decay", {1}, constant(0.9f)), input(name + ".graded", {1}, constant(1))},
        2);
    select.set("capacity", neurons);
    spikes = graph.addOp({"ai.snnipu", "SelectSpikes", 1}, select,
                         {membrane[1], input(name + ".spikeThreshold", {1}, constant(1))}, 4);
  }
  Attributes back;
  back.set("num_neurons", sizes.back());
  const auto out = graph.addOp({"ai.snnipu", "SparseToDense", 1}, back, {spikes[0], spikes[1], spikes[2]}, 1);
  const TensorId upstream = input("upstream", {steps, batch, sizes.back()}, [&] { return normal(random); });
  const auto gradients = graph.growGradients({{out[0], upstream}});
  std::vector<TensorId> outputs = {out[0]};
  for (const TensorId &weight : weights)
    outputs.push_back(gradients.at(weight));
  for (const auto &values : resultsOf<float>(graph, inputs, data, outputs)) {
    float most = 0;
    for (const float value : values)
      most = std::max(most, std::isfinite(value) ? std::fabs(value) : -1.0f);
    std::cout << (most > 0 ? "nonzero " : "zero ");
  }
  std::cout << '\n';
}

// Three operators and the loss read the output of a fourth. The gradient of SurrogateSpike is the upstream gradient,
// times `slope` where u is not above 0.
template <typename T> void severalConsumers(DataType type) {
  Graph graph;
  const TensorInfo info(type, {2, 5});
  const TensorId x = graph.addInput("x", info), middle = spike(graph, x, 0.5f);
  std::vector<TensorId> inputs = {x}, ends = {middle};
  for (const float slope : {0.25f, 0.5f, 2.0f})
    ends.push_back(spike(graph, middle, slope));
  std::map<TensorId, TensorId> fromLoss;
  for (const TensorId &end : ends) {
    inputs.push_back(graph.addInput("gradient of " + end, info));
    fromLoss[end] = inputs.back();
  }
  std::vector<std::vector<T>> data(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (int element = 0; element < 10; ++element)
      // x is above and below 0; the gradients are 1, 2, 4, ... times the element's number.
      data[i].push_back(i == 0 ? T(element % 2 ? 1.0f : -1.0f)
                               : T(static_cast<float>(1 << i) * static_cast<float>(element)));
  const auto results = resultsOf(graph, inputs, data, {graph.growGradients(fromLoss).at(x)});
  for (const T value : results[0])
    std::cout << static_cast<float>(value) << ' ';
  std::cout << '\n';
}

// Two operators read a tensor, and one gives no gradient for it. The gradient of the other alone would be wrong.
void consumerWithoutGradient() {
  Graph graph;
  const TensorId x = graph.addInput("x", {DataType::FLOAT, {2, 5}});
  const TensorId middle = spike(graph, x, 1.0f), end = spike(graph, middle, 1.0f);
  const TensorId other = graph.addOp(faultyId(), scale(1.0f), {middle}, 2)[0];
  graph.addInput("gradEnd", graph.info(end));
  graph.addInput("gradOther", graph.info(other));
  const auto gradients = graph.growGradients({{end, "gradEnd"}, {other, "gradOther"}});
  std::cout << "gradients " << gradients.count(x) << '\n';
}

void tooManyInputs() {
  Graph graph;
  const TensorId x = graph.addInput("x", {DataType::FLOAT, {2, 3}});
  graph.addOp(faultyId(), scale(1.0f), {x, x, x}, 2, "faulty");
}

void unknownOperator() {
  Graph graph;
  graph.addOp({"ai.snnipu", "Nothing", 1}, {}, {}, 0);
}

} // namespace

int main(int argc, char **argv) {
  const std::map<std::string, std::function<void()>> cases = {
      {"run", run},
      {"idsBehind", idsBehind},
      {"oneGradient", oneGradient},
      {"chain", chain},
      {"severalConsumers", [] { severalConsumers<float>(DataType::FLOAT); }},
      {"severalConsumersInHalf", [] { severalConsumers<half>(DataType::FLOAT16); }},
      {"consumerWithoutGradient", consumerWithoutGradient},
      {"tooManyInputs", tooManyInputs},
      {"unknownOperator", unknownOperator},
  };
  const auto entry = cases.find(argc > 1 ? argv[1] : "");
  if (entry == cases.end())
    return 2;
  faults.insert(argv + 2, argv + argc);
  try {
    entry->second();
  } catch (const std::exception &error) {
    std::cout << error.what() << '\n';
  }
  return 0;
}
