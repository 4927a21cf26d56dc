// Operators of a graph, lowered by their Opxs into a Poplar program and ready to run: this model's own interface.
#pragma once

#include "ipu_model/popart/graph.hpp"

#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>

namespace snnipu {
namespace ipu_model {

struct Machine {
  std::string architecture = "mk2"; // "mk1", "mk2" or "bow"
  unsigned tilesPerIpu = 0;         // 0: all of them
  unsigned ipus = 1;
  poplar::OptionFlags engine;
};

class Executable {
public:
  // What the operators read and none of them makes is an input; `outputs` are read back. Throws what the Opxs and
  // Poplar throw, and where an Opx writes into an input, or returns a part of one, that its operator does not declare.
  Executable(popart::Graph &graph, const std::vector<popart::Op *> &ops, const std::vector<popart::TensorId> &inputs,
             const std::vector<popart::TensorId> &outputs, const Machine &machine);

  // Arrays in the order of inputs and outputs, row-major, FLOAT16 in two bytes.
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
