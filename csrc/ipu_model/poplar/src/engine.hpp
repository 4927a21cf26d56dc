// An engine: the graph placed on tiles, the cost of every step, and the memory that programs run in.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <poplar/Engine.hpp>

#include "ipu_model/report.hpp"
#include "state.hpp"

namespace poplar {
namespace detail {

using snnipu::ipu_model::Report;
using snnipu::ipu_model::StepReport;
using snnipu::ipu_model::TileMemory;

// Elements [begin, end) of a variable on one tile. local: index of the first among the variable's elements on that
// tile.
struct Piece {
  std::size_t begin, end;
  unsigned tile;
  std::size_t local;
};

constexpr unsigned home = ~0u;

// Elements of a variable that are sent to a tile, from tile `from`, or from the tiles they are on (home).
struct Move {
  unsigned tile;
  unsigned var;
  std::size_t begin, end;
  unsigned from = home;
};

// An edge whose elements are copied before its vertex runs, and copied back afterwards.
struct Gathered {
  std::size_t field;
  std::size_t elements;
  bool read, written;
};

struct PlacedVertex {
  unsigned id;
  unsigned tile;
  unsigned char *object = nullptr;
  std::vector<Gathered> gathered;
};

// The cost of one execution of a step.
struct StepCost {
  StepReport report;
  std::vector<std::uint64_t> tileCycles; // empty: no compute
  std::vector<std::uint64_t> tileReceived;
  std::vector<std::uint64_t> tileBuffers; // bytes
  std::vector<std::uint64_t> tileCode;    // bytes: exchange sequences
};

class FreeDeleter {
public:
  void operator()(unsigned char *memory) const;
};
using Memory = std::unique_ptr<unsigned char[], FreeDeleter>;
// Allocate `bytes` at a multiple of 64.
Memory allocate(std::size_t bytes);

enum class WorkerOrder { Ascending, Descending, Shuffled, Check };

struct EngineOptions {
  WorkerOrder workerOrder = WorkerOrder::Ascending;
  unsigned seed = 0;
  unsigned threads = 1;
  bool enforceTileMemory = true;
  bool guardFields = false;
  bool refuseMisaligned = false;
  bool requireEstimates = false;
  double occupancy = 1;

  explicit EngineOptions(const OptionFlags &flags);
};

// The steps of a program with the indices of their costs.
struct Planned {
  Kind kind;
  const ProgramNode *node;
  unsigned cost = 0;
  std::vector<Planned> children;
};

struct Stream {
  unsigned char *begin = nullptr, *end = nullptr, *next = nullptr;
  StreamCallbackFunction callback;
};

struct EngineState {
  EngineState(std::shared_ptr<GraphState> graph, ArrayRef<program::Program> programs, const OptionFlags &options);

  // check.cpp
  void checkVariables() const;
  void checkVertices() const;
  void checkRaces(unsigned computeSet) const;
  void checkMemory() const;

  // placement.cpp
  void place();
  Planned plan(const std::shared_ptr<const ProgramNode> &node);
  unsigned costOfCompute(unsigned computeSet);
  VertexPerfEstimate unknownEstimate(const VertexState &vertex, const std::string &computeSet);
  unsigned costOfCopy(const ProgramNode &node);
  void exchange(std::vector<Move> moves, StepCost &cost) const;
  void countMemory();
  template <typename Body> void forPieces(unsigned var, std::size_t begin, std::size_t end, const Body &body) const;
  std::string largestVariables(unsigned tile) const;

  // engine.cpp
  void connectVertices();
  void load();
  void runPlanned(const Planned &planned);
  void runCompute(unsigned computeSet);
  void runVertex(PlacedVertex &placed, std::vector<unsigned char> &scratch);
  void runObject(PlacedVertex &placed, WorkerOrder order, unsigned seed);
  void copy(const ProgramNode &node);
  void streamIn(const ProgramNode &node);
  void streamOut(const ProgramNode &node);
  void gather(const Tensor &tensor, unsigned char *to) const;
  void scatter(const Tensor &tensor, const unsigned char *from) const;
  bool predicate(const Tensor &tensor) const;
  void print(const ProgramNode &node);

  std::shared_ptr<GraphState> graph;
  EngineOptions options;
  Target target;
  std::vector<std::shared_ptr<const ProgramNode>> programs;
  std::vector<Planned> planned;
  std::vector<std::vector<Piece>> pieces; // of each variable, by begin
  std::vector<StepCost> costs;
  std::map<unsigned, unsigned> computeCost; // index in costs of a compute set
  std::vector<std::uint64_t> executions;    // of each cost
  std::uint64_t hostBytes = 0;
  std::vector<TileMemory> tileMemory;
  std::vector<unsigned> overfull;
  std::set<std::string> unestimated; // codelets

  std::vector<Memory> storage; // of each variable
  std::vector<Memory> objects; // of the vertices of a compute set
  std::map<unsigned, std::vector<PlacedVertex>> placed;
  std::map<std::string, Stream> streams;
  bool loaded = false;
  std::ostream *printTo = nullptr;
  unsigned executed = 0;
};

struct EngineAccess {
  static const EngineState &state(const Engine &engine) { return *engine.state_; }
};

template <typename Body>
void EngineState::forPieces(unsigned var, std::size_t begin, std::size_t end, const Body &body) const {
  const std::vector<Piece> &all = pieces[var];
  auto at = std::upper_bound(all.begin(), all.end(), begin,
                             [](std::size_t value, const Piece &piece) { return value < piece.begin; });
  if (at != all.begin())
    --at;
  for (; at != all.end() && at->begin < end; ++at) {
    const std::size_t from = std::max(begin, at->begin), to = std::min(end, at->end);
    if (from < to)
      body(Piece{from, to, at->tile, at->local + (from - at->begin)});
  }
}

} // namespace detail
} // namespace poplar
