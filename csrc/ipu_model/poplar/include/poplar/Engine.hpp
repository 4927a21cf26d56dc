// poplar::Engine: a graph with its programs, checked, placed and ready to run.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>

#include <poplar/ArrayRef.hpp>
#include <poplar/Device.hpp>
#include <poplar/Graph.hpp>
#include <poplar/OptionFlags.hpp>
#include <poplar/Program.hpp>
#include <poplar/StreamCallback.hpp>

namespace poplar {

namespace detail {
struct EngineState;
struct EngineAccess;
} // namespace detail

// Options of the model:
//   workerOrder   "ascending" (default), "descending", "shuffled:SEED", or "check": every vertex runs in several
//   orders,
//                 and an output that differs is an error
//   threads       host threads that run the tiles of a compute set; default 1
//   tileMemory    "on" (default): a tile over its memory is an error; "off": it is reported
//   guardFields   "true": every field is connected to a copy between guard words, and a vertex that writes outside of
//                 it is an error; default "false"
//   misaligned    "copy" (default): a field with contiguous elements that do not start at its alignment is copied on
//                 its tile, and the copy is counted; "refuse": it is an error
//   estimates     "default": a vertex without an estimate of its cycles gets one from its fields, with a warning on
//                 stderr; "required": it is an error
//   occupancy     fraction of the slots for spikes that estimates of cycles assume to be in use; default 1
// Options that only concern the real machine (debug., target., profiler., autoReport., exchange., opt.) do nothing.
class Engine {
public:
  using ProgressFunc = std::function<void(int, int)>;

  // Check the whole graph. Throw graph_connection_error, invalid_tile_mapping, graph_program_compilation_error,
  // graph_memory_allocation_error, missing_perf_estimate, invalid_option.
  Engine(const Graph &graph, const program::Program &prog, const OptionFlags &options = {});
  Engine(const Graph &graph, ArrayRef<program::Program> progs, const OptionFlags &options = {});
  ~Engine();
  Engine(Engine &&) noexcept;
  Engine &operator=(Engine &&) noexcept;

  // Set every variable to its initial value, or else to NaN or -1.
  void load(const Device &device);
  void run(unsigned prog = 0, const std::string &debugName = "");
  void loadAndRun(const Device &device) {
    load(device);
    run(0);
  }

  void writeTensor(StringRef handle, const void *begin, const void *end);
  void readTensor(StringRef handle, void *begin, void *end);
  // A stream reads or writes the buffer from begin to end, then from begin again.
  void connectStream(StringRef handle, void *begin, void *end);
  void connectStream(StringRef handle, void *begin);
  void connectStreamToCallback(StringRef handle, StreamCallbackFunction callback);

  // Set the stream of PrintTensor. It must outlive the engine.
  void setPrintStream(std::ostream &stream);
  void setPrintTensorStream(std::ostream &stream);

  void printProfileSummary(std::ostream &out, const OptionFlags &options = {}) const;

private:
  friend struct detail::EngineAccess;
  std::unique_ptr<detail::EngineState> state_;
};

} // namespace poplar
