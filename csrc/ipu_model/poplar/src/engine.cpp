#include "engine.hpp"

#include <poplar/Engine.hpp>
#include <poplar/exceptions.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <new>
#include <optional>
#include <ostream>
#include <random>
#include <thread>

namespace poplar {
namespace detail {

namespace {

constexpr std::size_t lineBytes = 64;
// Fill byte of the guards around a field; a vertex is unlikely to write it.
constexpr unsigned char guardByte = 0xa5;

std::size_t roundUp(std::size_t bytes) { return (bytes + lineBytes - 1) / lineBytes * lineBytes; }

// Fill with values that no program should use: NaN, -1, true.
void poison(unsigned char *to, Type type, std::size_t elements) {
  std::memset(to, type == BOOL ? 1 : 0xff, elements * sizeOf(type));
}

template <typename T> T numberOption(const std::string &name, const std::string &value) {
  char *end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0')
    throw invalid_option("option \"" + name + "\" must be a number, got \"" + value + "\"");
  return static_cast<T>(number);
}

bool boolOption(const std::string &name, const std::string &value, const char *yes, const char *no) {
  if (value != yes && value != no)
    throw invalid_option("option \"" + name + "\" must be \"" + yes + "\" or \"" + no + "\", got \"" + value + "\"");
  return value == yes;
}

void copyBytes(unsigned char *to, const unsigned char *from, std::size_t elements, std::ptrdiff_t toStep,
               std::ptrdiff_t fromStep, std::size_t size) {
  const std::ptrdiff_t whole = static_cast<std::ptrdiff_t>(size);
  if (elements == 1 || (toStep == whole && fromStep == whole)) {
    std::memcpy(to, from, elements * size);
    return;
  }
  for (std::size_t i = 0; i < elements; ++i, to += toStep, from += fromStep)
    std::memcpy(to, from, size);
}

} // namespace

void FreeDeleter::operator()(unsigned char *memory) const { std::free(memory); }

Memory allocate(std::size_t bytes) {
  void *const memory = std::aligned_alloc(lineBytes, roundUp(std::max<std::size_t>(bytes, 1)));
  if (!memory)
    throw std::bad_alloc();
  return Memory(static_cast<unsigned char *>(memory));
}

EngineOptions::EngineOptions(const OptionFlags &flags) {
  for (const auto &flag : flags) {
    const std::string &name = flag.first, &value = flag.second;
    if (name == "workerOrder") {
      if (value == "ascending")
        workerOrder = WorkerOrder::Ascending;
      else if (value == "descending")
        workerOrder = WorkerOrder::Descending;
      else if (value == "check")
        workerOrder = WorkerOrder::Check;
      else if (value.compare(0, 9, "shuffled:") == 0) {
        workerOrder = WorkerOrder::Shuffled;
        seed = numberOption<unsigned>(name, value.substr(9));
      } else
        throw invalid_option("option \"workerOrder\" must be ascending, descending, shuffled:SEED or check, got \"" +
                             value + "\"");
    } else if (name == "threads") {
      threads = numberOption<unsigned>(name, value);
      if (threads < 1 || threads > 1024)
        throw invalid_option("option \"threads\" must be in 1..1024, got \"" + value + "\"");
    } else if (name == "tileMemory") {
      enforceTileMemory = boolOption(name, value, "on", "off");
    } else if (name == "guardFields") {
      guardFields = boolOption(name, value, "true", "false");
    } else if (name == "misaligned") {
      refuseMisaligned = boolOption(name, value, "refuse", "copy");
    } else if (name == "estimates") {
      requireEstimates = boolOption(name, value, "required", "default");
    } else if (name == "occupancy") {
      occupancy = numberOption<double>(name, value);
      if (!(occupancy >= 0 && occupancy <= 1))
        throw invalid_option("option \"occupancy\" must be in 0..1, got \"" + value + "\"");
    } else {
      bool known = false;
      for (const char *prefix : {"debug.", "target.", "profiler.", "autoReport.", "exchange.", "opt."})
        known = known || name.compare(0, std::strlen(prefix), prefix) == 0;
      if (!known)
        throw invalid_option(
            "the IPU model has no option \"" + name +
            "\"; it has workerOrder, threads, tileMemory, guardFields, misaligned, estimates, occupancy");
    }
  }
}

EngineState::EngineState(std::shared_ptr<GraphState> graphState, ArrayRef<program::Program> progs,
                         const OptionFlags &flags)
    : graph(std::move(graphState)), options(flags), target(graph->target) {
  for (const program::Program &program : progs)
    programs.push_back(std::make_shared<const ProgramNode>(*ProgramNode::of(program)));
  checkVariables();
  checkVertices();
  for (unsigned set = 0; set < graph->computeSets.size(); ++set)
    checkRaces(set);
  place();
  for (const auto &program : programs)
    planned.push_back(plan(program));
  executions.resize(costs.size());
  countMemory();
  checkMemory();
  for (const auto &stream : graph->streams)
    streams[stream.first];
  for (const auto &handle : graph->writes)
    streams[handle.first];
}

// --- memory

void EngineState::connectVertices() {
  for (const Variable &variable : graph->variables)
    storage.push_back(allocate(variable.numElements * sizeOf(variable.type)));
  for (const auto &entry : computeCost) {
    std::vector<PlacedVertex> &list = placed[entry.first];
    std::size_t bytes = 0;
    for (unsigned id : graph->computeSets[entry.first].vertices) {
      list.push_back({id, graph->vertices[id].tile, nullptr, {}});
      bytes += roundUp(graph->vertices[id].codelet->size);
    }
    // Threads take tiles in this order.
    std::stable_sort(list.begin(), list.end(),
                     [](const PlacedVertex &a, const PlacedVertex &b) { return a.tile < b.tile; });
    objects.push_back(allocate(bytes));
    unsigned char *next = objects.back().get();
    for (PlacedVertex &vertex : list) {
      vertex.object = next;
      next += roundUp(graph->vertices[vertex.id].codelet->size);
    }
  }
}

namespace {

void connectField(unsigned char *object, const FieldInfo &field, unsigned char *data, std::size_t elements) {
  // Fields have the layout of Vertex.hpp: a pointer, in a SPAN followed by its size. The pointer is never null;
  // Vertex.hpp says why.
  if (elements == 0)
    data = reinterpret_cast<unsigned char *>(alignof(std::max_align_t));
  std::memcpy(object + field.offset, &data, sizeof(data));
  if (field.layout == Layout::Span)
    std::memcpy(object + field.offset + sizeof(data), &elements, sizeof(elements));
}

} // namespace

void EngineState::load() {
  if (storage.empty())
    connectVertices();
  for (std::size_t var = 0; var < storage.size(); ++var) {
    const Variable &variable = graph->variables[var];
    const std::size_t size = sizeOf(variable.type);
    poison(storage[var].get(), variable.type, variable.numElements);
    for (std::size_t i = 0; i < variable.hasInitial.size(); ++i)
      if (variable.hasInitial[i])
        std::memcpy(storage[var].get() + i * size, &variable.initial[i * size], size);
  }
  for (auto &entry : placed)
    for (PlacedVertex &vertex : entry.second) {
      const VertexState &state = graph->vertices[vertex.id];
      state.codelet->construct(vertex.object);
      vertex.gathered.clear();
      for (std::size_t i = 0; i < state.codelet->fields.size(); ++i) {
        const FieldInfo &field = state.codelet->fields[i];
        if (field.direction == Direction::Member) {
          std::memcpy(vertex.object + field.offset, state.members[i].data(), state.members[i].size());
          continue;
        }
        const View &view = viewOf(state.edges[i]);
        unsigned char *data = nullptr;
        unsigned parts = 0;
        view.forIntervals([&](unsigned var, std::size_t begin, std::size_t) {
          data = storage[var].get() + begin * sizeOf(field.type);
          ++parts;
        });
        const bool asDeclared = reinterpret_cast<std::uintptr_t>(data) % field.minAlign == 0;
        if (parts <= 1 && asDeclared && !options.guardFields)
          connectField(vertex.object, field, data, view.numElements);
        else
          vertex.gathered.push_back(
              {i, view.numElements, field.direction != Direction::Output, field.direction != Direction::Input});
      }
    }
  loaded = true;
}

void EngineState::gather(const Tensor &tensor, unsigned char *to) const {
  const std::size_t size = sizeOf(tensor.elementType());
  const std::ptrdiff_t step = static_cast<std::ptrdiff_t>(size);
  viewOf(tensor).forRuns([&](const Run &run) {
    copyBytes(to, storage[run.var].get() + run.begin * size, run.count, step, run.step * step, size);
    to += run.count * size;
  });
}

void EngineState::scatter(const Tensor &tensor, const unsigned char *from) const {
  const std::size_t size = sizeOf(tensor.elementType());
  const std::ptrdiff_t step = static_cast<std::ptrdiff_t>(size);
  viewOf(tensor).forRuns([&](const Run &run) {
    copyBytes(storage[run.var].get() + run.begin * size, from, run.count, run.step * step, step, size);
    from += run.count * size;
  });
}

// --- programs

void EngineState::runObject(PlacedVertex &vertex, WorkerOrder order, unsigned seed) {
  const unsigned workers = target.getNumWorkerContexts();
  std::vector<unsigned> sequence(workers);
  for (unsigned i = 0; i < workers; ++i)
    sequence[i] = order == WorkerOrder::Descending ? workers - 1 - i : i;
  if (order == WorkerOrder::Shuffled) {
    // std::shuffle is not used, because its order depends on the standard library.
    std::minstd_rand random(seed * 2654435761u + vertex.id * 40503u + executed + 1);
    random.discard(4);
    for (unsigned i = workers; i > 1; --i)
      std::swap(sequence[i - 1], sequence[random() % i]);
  }
  const VertexState &state = graph->vertices[vertex.id];
  try {
    state.codelet->run(vertex.object, sequence.data(), workers);
  } catch (const snnipu::ipu_model::MisalignedAccess &access) {
    throw runtime_error(state.describe() + " (compute set \"" + graph->computeSets[state.computeSet].name + "\") " +
                        access.what());
  }
}

namespace {

// Memory that a vertex may write: an edge, or its own members.
struct Part {
  unsigned char *data;
  std::size_t bytes;
  std::size_t field;
};

} // namespace

// Run each worker alone and record which words it writes. Two workers must not write elements of one word. That can
// happen if elements are smaller than a word.
static void checkWords(const VertexState &state, const std::string &where, const Target &target,
                       const std::vector<Part> &parts, const std::vector<std::vector<unsigned char>> &before) {
  const auto &fields = state.codelet->fields;
  const unsigned workers = target.getNumWorkerContexts();
  const std::size_t word = target.getAtomicStoreGranularity();
  const auto small = [&](const Part &part) {
    return part.field < fields.size() && sizeOf(fields[part.field].type) < word;
  };
  if (!state.codelet->multiVertex || std::none_of(parts.begin(), parts.end(), small))
    return;
  // For each word: the worker that writes it, or `workers` for none.
  std::vector<std::vector<unsigned>> writers(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (small(parts[i]))
      writers[i].assign((parts[i].bytes + word - 1) / word, workers);
  for (unsigned worker = 0; worker < workers; ++worker) {
    for (std::size_t i = 0; i < parts.size(); ++i)
      std::memcpy(parts[i].data, before[i].data(), parts[i].bytes);
    const std::vector<unsigned> alone(workers, worker);
    state.codelet->run(parts.back().data, alone.data(), workers);
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (std::size_t at = 0; !writers[i].empty() && at < parts[i].bytes; ++at) {
        if (parts[i].data[at] == before[i][at])
          continue;
        unsigned &writer = writers[i][at / word];
        if (writer != workers && writer != worker)
          throw runtime_error("workers " + std::to_string(writer) + " and " + std::to_string(worker) + " of " +
                              state.describe() + " (" + where + ") write into one " + std::to_string(8 * word) +
                              "-bit word of field \"" + fields[parts[i].field].name + "\", at element " +
                              std::to_string(at / sizeOf(fields[parts[i].field].type)) +
                              ": a tile stores whole words, so one overwrites the other's elements; each worker "
                              "needs separate words");
        writer = worker;
      }
  }
}

void EngineState::runVertex(PlacedVertex &vertex, std::vector<unsigned char> &scratch) {
  const VertexState &state = graph->vertices[vertex.id];
  const auto &fields = state.codelet->fields;
  std::size_t bytes = lineBytes;
  for (const Gathered &edge : vertex.gathered)
    bytes += roundUp(edge.elements * sizeOf(fields[edge.field].type)) + 2 * lineBytes;
  if (scratch.size() < bytes)
    scratch.resize(bytes);
  unsigned char *const start =
      scratch.data() + (lineBytes - reinterpret_cast<std::uintptr_t>(scratch.data()) % lineBytes) % lineBytes;
  unsigned char *next = start;
  std::vector<unsigned char *> copies;
  for (const Gathered &edge : vertex.gathered) {
    const FieldInfo &field = fields[edge.field];
    const std::size_t size = edge.elements * sizeOf(field.type);
    std::memset(next, guardByte, lineBytes);
    next += lineBytes;
    if (edge.read)
      gather(state.edges[edge.field], next);
    else
      poison(next, field.type, edge.elements);
    std::memset(next + size, guardByte, roundUp(size) - size + lineBytes);
    connectField(vertex.object, field, next, edge.elements);
    copies.push_back(next);
    next += roundUp(size) + lineBytes;
  }

  if (options.workerOrder != WorkerOrder::Check) {
    runObject(vertex, options.workerOrder, options.seed);
  } else {
    // The memory that the vertex may write: its edges and, last, its own members.
    std::vector<Part> parts;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].direction != Direction::Output && fields[i].direction != Direction::InOut)
        continue;
      const std::size_t elements = state.edges[i].numElements();
      unsigned char *data = nullptr;
      std::memcpy(&data, vertex.object + fields[i].offset, sizeof(data));
      if (elements)
        parts.push_back({data, elements * sizeOf(fields[i].type), i});
    }
    parts.push_back({vertex.object, state.codelet->size, fields.size()});
    const auto snapshot = [&] {
      std::vector<std::vector<unsigned char>> values;
      for (const Part &part : parts)
        values.emplace_back(part.data, part.data + part.bytes);
      return values;
    };
    const auto before = snapshot();
    runObject(vertex, WorkerOrder::Ascending, 0);
    const auto first = snapshot();
    const std::pair<WorkerOrder, unsigned> orders[] = {
        {WorkerOrder::Descending, 0}, {WorkerOrder::Shuffled, 1}, {WorkerOrder::Shuffled, 2}};
    for (const auto &order : orders) {
      for (std::size_t i = 0; i < parts.size(); ++i)
        std::memcpy(parts[i].data, before[i].data(), parts[i].bytes);
      runObject(vertex, order.first, order.second);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (std::memcmp(parts[i].data, first[i].data(), parts[i].bytes) == 0)
          continue;
        std::size_t at = 0;
        while (parts[i].data[at] == first[i][at])
          ++at;
        const bool itself = parts[i].field == fields.size();
        throw runtime_error(
            (itself ? "the members"
                    : "element " + std::to_string(at / sizeOf(fields[parts[i].field].type)) + " of field \"" +
                          fields[parts[i].field].name + "\"") +
            " of " + state.describe() + " (compute set \"" + graph->computeSets[state.computeSet].name +
            "\") depend on the order that its workers run in: on a tile they run at the same time; each worker "
            "needs separate elements");
      }
    }
    checkWords(state, "compute set \"" + graph->computeSets[state.computeSet].name + "\"", target, parts, before);
    for (std::size_t i = 0; i < parts.size(); ++i)
      std::memcpy(parts[i].data, first[i].data(), parts[i].bytes);
  }

  for (std::size_t i = 0; i < vertex.gathered.size(); ++i) {
    const Gathered &edge = vertex.gathered[i];
    const std::size_t size = edge.elements * sizeOf(fields[edge.field].type);
    if (options.guardFields) {
      const unsigned char *const begin = copies[i] - lineBytes, *const end = copies[i] + roundUp(size) + lineBytes;
      for (const unsigned char *byte = begin; byte < end; byte = byte == copies[i] - 1 ? copies[i] + size : byte + 1)
        if (*byte != guardByte)
          throw runtime_error(state.describe() + " (compute set \"" + graph->computeSets[state.computeSet].name +
                              "\") wrote outside of field \"" + fields[edge.field].name + "\", " +
                              std::to_string(edge.elements) + " elements, " +
                              (byte < copies[i] ? "before it" : "after it"));
    }
    if (edge.written)
      scatter(state.edges[edge.field], copies[i]);
  }
}

void EngineState::runCompute(unsigned computeSet) {
  std::vector<PlacedVertex> &list = placed[computeSet];
  ++executed;
  const std::size_t threads = std::min<std::size_t>(options.threads, list.size());
  const auto share = [&](std::size_t begin, std::size_t end) {
    std::vector<unsigned char> scratch;
    for (std::size_t i = begin; i < end; ++i)
      runVertex(list[i], scratch);
  };
  if (threads <= 1)
    return share(0, list.size());
  std::vector<std::thread> pool;
  std::mutex mutex;
  std::optional<runtime_error> failure; // a std::exception_ptr would need the runtime of GCC 11
  std::atomic<std::size_t> next{0};
  const std::size_t block = std::max<std::size_t>(1, list.size() / (threads * 8));
  for (std::size_t thread = 0; thread < threads; ++thread)
    pool.emplace_back([&] {
      const auto failed = [&](const runtime_error &error) {
        next = list.size();
        const std::lock_guard<std::mutex> lock(mutex);
        if (!failure)
          failure.emplace(error);
      };
      try {
        for (std::size_t begin; (begin = next.fetch_add(block)) < list.size();)
          share(begin, std::min(list.size(), begin + block));
      } catch (const runtime_error &error) {
        failed(error);
      } catch (const std::exception &error) {
        failed(runtime_error(error.what()));
      } catch (...) {
        failed(runtime_error("a vertex threw an object that is not a std::exception"));
      }
    });
  for (std::thread &thread : pool)
    thread.join();
  if (failure)
    throw runtime_error(*failure);
}

void EngineState::copy(const ProgramNode &node) {
  std::vector<unsigned char> values(node.src.numElements() * sizeOf(node.src.elementType()));
  gather(node.src, values.data());
  scatter(node.dst, values.data());
}

namespace {

Stream &connected(std::map<std::string, Stream> &streams, const std::string &handle) {
  Stream &stream = streams[handle];
  if (!stream.begin && !stream.callback)
    throw stream_connection_error("stream \"" + handle + "\" is not connected: Engine::connectStream connects it");
  return stream;
}

// Return the next `bytes` of the buffer.
unsigned char *advance(Stream &stream, const std::string &handle, std::size_t bytes) {
  if (stream.end) {
    if (static_cast<std::size_t>(stream.end - stream.begin) < bytes)
      throw stream_connection_error("the buffer of stream \"" + handle + "\" holds " +
                                    std::to_string(stream.end - stream.begin) + " bytes, and " + std::to_string(bytes) +
                                    " pass at a time");
    if (static_cast<std::size_t>(stream.end - stream.next) < bytes)
      stream.next = stream.begin;
  }
  unsigned char *const at = stream.end ? stream.next : stream.begin;
  stream.next = at + bytes;
  return at;
}

} // namespace

void EngineState::streamIn(const ProgramNode &node) {
  const std::string handle = node.stream.handle();
  Stream &stream = connected(streams, handle);
  const std::size_t bytes = node.stream.numElements() * sizeOf(node.stream.elementType());
  hostBytes += bytes;
  if (!stream.callback)
    return scatter(node.dst, advance(stream, handle, bytes));
  std::vector<unsigned char> values(bytes);
  stream.callback(values.data());
  scatter(node.dst, values.data());
}

void EngineState::streamOut(const ProgramNode &node) {
  const std::string handle = node.stream.handle();
  Stream &stream = connected(streams, handle);
  const std::size_t bytes = node.stream.numElements() * sizeOf(node.stream.elementType());
  hostBytes += bytes;
  if (!stream.callback)
    return gather(node.src, advance(stream, handle, bytes));
  std::vector<unsigned char> values(bytes);
  gather(node.src, values.data());
  stream.callback(values.data());
}

namespace {

// Print a tensor's numbers as nested lists in brackets.
void printed(std::ostream &to, const std::vector<unsigned char> &values, Type type,
             const std::vector<std::size_t> &shape, std::size_t dimension, std::size_t &at) {
  if (dimension == shape.size()) {
    to << numberOf(&values[at], type);
    at += sizeOf(type);
    return;
  }
  to << (dimension ? "[" : "{");
  for (std::size_t i = 0; i < shape[dimension]; ++i) {
    if (i)
      to << (dimension + 1 < shape.size() ? "\n " : ",");
    printed(to, values, type, shape, dimension + 1, at);
  }
  to << (dimension ? "]" : "}");
}

} // namespace

void EngineState::print(const ProgramNode &node) {
  std::vector<unsigned char> values(node.src.numElements() * sizeOf(node.src.elementType()));
  gather(node.src, values.data());
  std::ostream &to = printTo ? *printTo : std::cerr;
  std::size_t at = 0;
  to << node.name << (node.name.empty() ? "" : ": ");
  printed(to, values, node.src.elementType(), node.src.shape(), 0, at);
  to << std::endl;
}

bool EngineState::predicate(const Tensor &tensor) const {
  unsigned char value[8];
  gather(tensor, value);
  return numberOf(value, tensor.elementType()) != 0;
}

void EngineState::runPlanned(const Planned &step) {
  const ProgramNode &node = *step.node;
  switch (step.kind) {
  case Kind::Sequence:
    for (const Planned &child : step.children)
      runPlanned(child);
    break;
  case Kind::Execute:
    ++executions[step.cost];
    runCompute(node.computeSet);
    break;
  case Kind::Copy:
    ++executions[step.cost];
    copy(node);
    break;
  case Kind::StreamIn:
    ++executions[step.cost];
    streamIn(node);
    break;
  case Kind::StreamOut:
    ++executions[step.cost];
    streamOut(node);
    break;
  case Kind::Repeat:
    for (unsigned i = 0; i < node.count; ++i)
      runPlanned(step.children[0]);
    break;
  case Kind::While:
    for (;;) {
      runPlanned(step.children[0]);
      if (predicate(node.src) != node.whileTrue)
        break;
      runPlanned(step.children[1]);
    }
    break;
  case Kind::If:
    runPlanned(step.children[predicate(node.src) ? 0 : 1]);
    break;
  case Kind::Print:
    print(node);
    break;
  case Kind::WriteUndef:
    viewOf(node.dst).forRuns([&](const Run &run) {
      const std::size_t size = sizeOf(node.dst.elementType());
      for (std::size_t i = 0; i < run.count; ++i)
        poison(storage[run.var].get() + run.at(i) * size, node.dst.elementType(), 1);
    });
    break;
  }
}

} // namespace detail

using namespace detail;

Engine::Engine(const Graph &graph, const program::Program &prog, const OptionFlags &options)
    : Engine(graph, ArrayRef<program::Program>(prog), options) {}
Engine::Engine(const Graph &graph, ArrayRef<program::Program> progs, const OptionFlags &options)
    : state_(std::make_unique<EngineState>(graph.state_, progs, options)) {}
Engine::~Engine() = default;
Engine::Engine(Engine &&) noexcept = default;
Engine &Engine::operator=(Engine &&) noexcept = default;

void Engine::load(const Device &device) {
  if (device.getTarget() != state_->target)
    throw graph_object_load_error("the device is not the target that the graph was built for");
  state_->load();
}

namespace {

void checkLoaded(const EngineState &state) {
  if (!state.loaded)
    throw graph_object_load_error("the engine has not been loaded: Engine::load loads it onto a device");
}

// Return the tensor of a handle. [begin, end) must have its size.
const Tensor &tensorOf(const EngineState &state, const std::map<std::string, HostAccess> &handles,
                       const std::string &handle, const void *begin, const void *end) {
  checkLoaded(state);
  const auto found = handles.find(handle);
  if (found == handles.end())
    throw stream_connection_error("no handle \"" + handle +
                                  "\": Graph::createHostWrite and Graph::createHostRead make one");
  const Tensor &tensor = found->second.tensor;
  const std::ptrdiff_t givenBytes = static_cast<const char *>(end) - static_cast<const char *>(begin);
  const std::size_t expectedBytes = tensor.numElements() * sizeOf(tensor.elementType());
  if (givenBytes < 0 || static_cast<std::size_t>(givenBytes) != expectedBytes)
    throw stream_connection_error("handle \"" + handle + "\" is of " + tensor.elementType().toString() +
                                  tensor.shapeToString() + ", " + std::to_string(expectedBytes) + " bytes, and " +
                                  std::to_string(givenBytes) + " were given");
  return tensor;
}

Stream &streamOf(EngineState &state, const std::string &handle) {
  const auto found = state.streams.find(handle);
  if (found == state.streams.end() || state.graph->streams.count(handle) == 0)
    throw stream_connection_error("no stream \"" + handle + "\"");
  return found->second;
}

} // namespace

void Engine::setPrintStream(std::ostream &stream) { state_->printTo = &stream; }
void Engine::setPrintTensorStream(std::ostream &stream) { state_->printTo = &stream; }

void Engine::run(unsigned prog, const std::string &) {
  checkLoaded(*state_);
  if (prog >= state_->planned.size())
    throw index_error("program " + std::to_string(prog) + " of an engine that has " +
                      std::to_string(state_->planned.size()));
  state_->runPlanned(state_->planned[prog]);
}

void Engine::writeTensor(StringRef handle, const void *begin, const void *end) {
  const Tensor &tensor = tensorOf(*state_, state_->graph->writes, handle, begin, end);
  state_->scatter(tensor, static_cast<const unsigned char *>(begin));
  state_->hostBytes += static_cast<std::uint64_t>(static_cast<const char *>(end) - static_cast<const char *>(begin));
}

void Engine::readTensor(StringRef handle, void *begin, void *end) {
  const Tensor &tensor = tensorOf(*state_, state_->graph->reads, handle, begin, end);
  state_->gather(tensor, static_cast<unsigned char *>(begin));
  state_->hostBytes += static_cast<std::uint64_t>(static_cast<char *>(end) - static_cast<char *>(begin));
}

void Engine::connectStream(StringRef handle, void *begin, void *end) {
  Stream &stream = streamOf(*state_, handle);
  stream.begin = stream.next = static_cast<unsigned char *>(begin);
  stream.end = static_cast<unsigned char *>(end);
  stream.callback = nullptr;
}

void Engine::connectStream(StringRef handle, void *begin) { connectStream(handle, begin, nullptr); }

void Engine::connectStreamToCallback(StringRef handle, StreamCallbackFunction callback) {
  Stream &stream = streamOf(*state_, handle);
  stream.begin = stream.end = stream.next = nullptr;
  stream.callback = std::move(callback);
}

} // namespace poplar
