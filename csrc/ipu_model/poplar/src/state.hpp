// The state behind the handles of the model's Poplar: variables, views, vertices, programs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <poplar/Tensor.hpp>

#include "ipu_model/codelet.hpp"

namespace poplar {
namespace detail {

using snnipu::ipu_model::Codelet;
using snnipu::ipu_model::Direction;
using snnipu::ipu_model::FieldInfo;
using snnipu::ipu_model::Layout;

// Return the bytes of an element; throw type_error for an invalid type.
unsigned sizeOf(Type type);
// Write a number as the bytes of a type; throw type_error if the type cannot represent it.
void numberTo(double value, Type type, unsigned char *to);
double numberOf(const unsigned char *from, Type type);

struct Machine {
  std::string arch;
  unsigned numIPUs = 1;
  unsigned tilesPerIPU = 0;
  unsigned bytesPerTile = 0;
  double clockHz = 0;
  unsigned minSyncCycles = 100; // an assumption, see docs/reference/ipu-model.md
};

// Elements of a variable at a constant distance `step`.
struct Run {
  unsigned var;
  std::size_t begin;
  std::size_t count;
  std::ptrdiff_t step;

  std::size_t at(std::size_t i) const {
    return static_cast<std::size_t>(static_cast<std::ptrdiff_t>(begin) + static_cast<std::ptrdiff_t>(i) * step);
  }
};

// Collects runs and joins those that continue each other.
class Runs {
public:
  void add(Run run);
  std::vector<Run> take() { return std::move(runs_); }

private:
  std::vector<Run> runs_;
};

// The elements of a tensor, in flattened order: a strided part of one variable, or a list of runs.
struct View {
  GraphState *graph = nullptr;
  Type type;
  std::vector<std::size_t> shape;
  std::size_t numElements = 0;
  bool strided = true;
  unsigned var = 0;
  std::ptrdiff_t offset = 0;
  std::vector<std::ptrdiff_t> strides;
  std::vector<Run> runs;           // if not strided
  std::vector<std::size_t> starts; // index of each run's first element in the flattened tensor

  // Call body(Run) for the flattened elements [begin, end).
  template <typename Body> void forRuns(std::size_t begin, std::size_t end, const Body &body) const;
  template <typename Body> void forRuns(const Body &body) const { forRuns(0, numElements, body); }
  // Call body(var, begin, end) for intervals of step 1; adjacent intervals are joined.
  template <typename Body> void forIntervals(const Body &body) const;
};

struct TensorAccess {
  static Tensor make(std::shared_ptr<const View> view) { return Tensor(std::move(view)); }
  static const View &view(const Tensor &tensor) { return *tensor.view_; }
  static const std::shared_ptr<const View> &pointer(const Tensor &tensor) { return tensor.view_; }
};
inline const View &viewOf(const Tensor &tensor) { return TensorAccess::view(tensor); }

std::size_t product(const std::vector<std::size_t> &shape);
std::string shapeText(const std::vector<std::size_t> &shape);

struct MappedInterval {
  std::size_t end;
  unsigned tile;
};

struct Variable {
  std::string name;
  Type type;
  std::vector<std::size_t> shape;
  std::size_t numElements;
  bool constant;
  std::map<std::size_t, MappedInterval> mapping; // by begin
  // Initial values: the bytes of the whole variable, and a flag for each element that has one (empty: none).
  std::vector<unsigned char> initial;
  std::vector<bool> hasInitial;

  void map(std::size_t begin, std::size_t end, unsigned tile);
};

struct VertexState {
  const Codelet *codelet;
  unsigned computeSet;
  unsigned id;
  bool mapped = false;
  unsigned tile = 0;
  std::vector<Tensor> edges;                       // one for each field of the codelet
  std::vector<std::vector<unsigned char>> members; // likewise; empty: not set
  bool hasEstimate = false;
  VertexPerfEstimate estimate;

  std::string describe() const;
};

struct ComputeSetState {
  std::string name;
  std::vector<unsigned> vertices;
};

struct HostAccess {
  Tensor tensor;
  bool write = false, read = false;
};

struct GraphState {
  explicit GraphState(const Target &target) : target(target) {}

  Target target; // the whole machine
  std::vector<Variable> variables;
  std::vector<ComputeSetState> computeSets;
  std::vector<VertexState> vertices;
  std::map<std::string, const Codelet *> codelets;
  std::set<std::string> files;
  std::map<std::string, PerfEstimateFunc> estimators;
  std::map<std::string, HostAccess> writes, reads;
  std::map<std::string, DataStream> streams;

  Tensor add(Type type, const std::vector<std::size_t> &shape, bool constant, const std::string &name);
  std::string describe(unsigned var) const;
};

enum class Kind { Sequence, Execute, Copy, StreamIn, StreamOut, Repeat, While, If, WriteUndef, Print };

struct ProgramNode {
  Kind kind = Kind::Sequence;
  std::string name;
  // Sequence: all; Repeat: body; While: cond, body; If: true, false
  std::vector<std::shared_ptr<const ProgramNode>> children;
  unsigned computeSet = 0;
  unsigned count = 0;
  bool whileTrue = true;
  Tensor src, dst; // src: the predicate of While and If
  DataStream stream;

  static const std::shared_ptr<ProgramNode> &of(const program::Program &p) { return p.node_; }
  static void set(program::Program &p, std::shared_ptr<ProgramNode> node) { p.node_ = std::move(node); }
};

// ---

template <typename Body> void View::forRuns(std::size_t begin, std::size_t end, const Body &body) const {
  if (begin >= end)
    return;
  if (!strided) {
    std::size_t i =
        static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), begin) - starts.begin()) - 1;
    for (std::size_t position = begin; position < end; ++i) {
      const Run &run = runs[i];
      const std::size_t skip = position - starts[i];
      const std::size_t count = std::min(run.count - skip, end - position);
      body(Run{run.var, run.at(skip), count, run.step});
      position += count;
    }
    return;
  }
  const std::size_t rank = shape.size();
  if (rank == 0)
    return body(Run{var, static_cast<std::size_t>(offset), 1, 1});
  // Trailing dimensions that form one run.
  std::size_t last = rank - 1, inner = shape[last];
  while (last > 0 && strides[last - 1] == strides[last] * static_cast<std::ptrdiff_t>(shape[last]))
    inner *= shape[--last];
  const std::ptrdiff_t step = strides[rank - 1];
  std::vector<std::size_t> index(last);
  std::size_t row = begin / inner;
  for (std::size_t d = last; d-- > 0;) {
    index[d] = row % shape[d];
    row /= shape[d];
  }
  std::ptrdiff_t start = offset;
  for (std::size_t d = 0; d < last; ++d)
    start += static_cast<std::ptrdiff_t>(index[d]) * strides[d];
  std::size_t column = begin % inner;
  for (std::size_t position = begin; position < end;) {
    const std::size_t count = std::min(inner - column, end - position);
    body(Run{var, static_cast<std::size_t>(start + static_cast<std::ptrdiff_t>(column) * step), count, step});
    position += count;
    column = 0;
    for (std::size_t d = last; d-- > 0;) {
      start += strides[d];
      if (++index[d] < shape[d])
        break;
      start -= strides[d] * static_cast<std::ptrdiff_t>(shape[d]);
      index[d] = 0;
    }
  }
}

template <typename Body> void View::forIntervals(const Body &body) const {
  unsigned currentVar = 0;
  std::size_t currentBegin = 0, currentEnd = 0;
  const auto add = [&](unsigned v, std::size_t b, std::size_t e) {
    if (currentBegin != currentEnd && v == currentVar && b == currentEnd) {
      currentEnd = e;
      return;
    }
    if (currentBegin != currentEnd)
      body(currentVar, currentBegin, currentEnd);
    currentVar = v;
    currentBegin = b;
    currentEnd = e;
  };
  forRuns([&](const Run &run) {
    if (run.step == 1 || run.count == 1)
      add(run.var, run.begin, run.begin + run.count);
    else
      for (std::size_t i = 0; i < run.count; ++i)
        add(run.var, run.at(i), run.at(i) + 1);
  });
  if (currentBegin != currentEnd)
    body(currentVar, currentBegin, currentEnd);
}

} // namespace detail
} // namespace poplar
