// Adds two vectors, one element on each tile, with the vertex of adder_codelets.cpp. Only the report is not Poplar's
// API.
#include <poplar/Engine.hpp>
#include <poplar/IPUModel.hpp>

#include "ipu_model/report.hpp"

#include <iostream>
#include <vector>

int main() {
  poplar::IPUModel model; // Mk2
  model.tilesPerIPU = 4;
  const poplar::Device device = model.createDevice();
  poplar::Graph graph(device.getTarget());
  graph.addCodelets("adder_codelets.cpp");

  const poplar::Tensor x = graph.addVariable(poplar::FLOAT, {4}, "x");
  const poplar::Tensor y = graph.addVariable(poplar::FLOAT, {4}, "y");
  const poplar::Tensor sum = graph.addVariable(poplar::FLOAT, {4}, "sum");
  const poplar::ComputeSet add = graph.addComputeSet("add");
  for (unsigned i = 0; i < 4; ++i) {
    const poplar::VertexRef vertex = graph.addVertex(add, "AdderVertex");
    graph.connect(vertex["x"], x[i]);
    graph.connect(vertex["y"], y[i]);
    graph.connect(vertex["sum"], sum[i]);
    graph.setTileMapping(vertex, i);
    graph.setTileMapping(x[i], i);
    graph.setTileMapping(y[i], 0); // all tiles receive y from tile 0
    graph.setTileMapping(sum[i], i);
    graph.setPerfEstimate(vertex, 8);
  }
  graph.createHostWrite("x", x);
  graph.createHostWrite("y", y);
  graph.createHostRead("sum", sum);

  poplar::Engine engine(graph, poplar::program::Execute(add));
  engine.load(device);
  const std::vector<float> first = {1, 2, 3, 4}, second = {10, 20, 30, 40};
  std::vector<float> result(4);
  engine.writeTensor("x", first.data(), first.data() + 4);
  engine.writeTensor("y", second.data(), second.data() + 4);
  engine.run();
  engine.readTensor("sum", result.data(), result.data() + 4);
  for (const float value : result)
    std::cout << value << ' ';
  std::cout << '\n' << snnipu::ipu_model::report(engine).cycles() << " cycles\n";
  engine.printProfileSummary(std::cout);
}
