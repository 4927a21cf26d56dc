// Operators of a graph, lowered by their Opxs to a Poplar program. This is an interface of the model, not of PopART.
#pragma once

#include "ipu_model/popart/graph.hpp"

#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>

namespace snnipu {
namespace ipu_model {

struct Machine {
  std::string architecture = "mk2"; // "mk1", "mk2" or "bow"
  unsigned tilesPerIpu = 0;         // 0: all
  unsigned ipus = 1;
  poplar::OptionFlags engine;
};

class Executable {
public:
  // inputs: tensors that the operators read and do not compute. outputs: tensors that run() reads back. Throw the
  // exceptions of Opxs and Poplar. Throw popart::error for undeclared access: an Opx may write to an input, or return a
  // part of one, only if its operator declares it.
  Executable(popart::Graph &graph, const std::vector<popart::Op *> &ops, const std::vector<popart::TensorId> &inputs,
             const std::vector<popart::TensorId> &outputs, const Machine &machine);

  // Run with arrays in the order of inputs and outputs, row-major; FLOAT16 has two bytes.
  void run(const void *const *inputs, void *const *outputs);
  const poplar::Engine &engine() const { return *engine_; }

private:
  struct Stream {
    popart::TensorId id;
    popart::TensorInfo info;
    bool written; // an operator declares that it writes to it
  };

  void checkAliases(const popart::Op &op, const std::map<popart::TensorId, poplar::Tensor> &tensors) const;
  void checkUnchanged(const void *const *inputs);

  std::unique_ptr<poplar::Graph> graph_;
  std::unique_ptr<poplar::Engine> engine_;
  std::vector<Stream> inputs_, outputs_;
  std::map<popart::TensorId, std::string> readers_; // of an input, for messages
  bool checked_ = false;
};

} // namespace ipu_model
} // namespace snnipu
