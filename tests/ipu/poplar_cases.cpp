// Cases for tests/ipu/test_poplar.py: each CASE is a program of the model's Poplar that prints its results. A case that
// raises an error prints the error's class and message.
#include <poplar/DeviceManager.hpp>
#include <poplar/Engine.hpp>
#include <poplar/IPUModel.hpp>
#include <poputil/TileMapping.hpp>

#include "ipu_model/codelet.hpp"
#include "ipu_model/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <string>

using namespace poplar;
using namespace poplar::program;
using snnipu::ipu_model::CodeletOf;
using snnipu::ipu_model::estimate;
using snnipu::ipu_model::report;

// --- codelets

template <typename T> using In = Input<Vector<T, VectorLayout::ONE_PTR>>;
template <typename T> using Out = Output<Vector<T, VectorLayout::ONE_PTR>>;

// to[i] = from[i] + by, computed by all workers.
template <typename T> class AddTo : public MultiVertex {
public:
  In<T> from;
  Out<T> to;
  T by;
  unsigned size;

  void compute(unsigned worker) {
    for (unsigned i = worker; i < size; i += numWorkers())
      to[i] = from[i] + by;
  }
};

// snnipu's vertices call checkAlignment before they load or store two numbers at once.
namespace snnipu {
void checkAlignment(const void *address, unsigned bytes);
}
class Pairs : public Vertex {
public:
  Input<Vector<float, VectorLayout::ONE_PTR, 8>> from;
  Output<Vector<float, VectorLayout::ONE_PTR, 8>> to;
  unsigned skip;
  bool compute() {
    for (unsigned i = 0; i < 4; i += 2) {
      snnipu::checkAlignment(&from[i + skip], 8);
      to[i] = from[i];
      to[i + 1] = from[i + 1];
    }
    return true;
  }
};

// Every worker writes its number to the same element, so the result depends on their order.
class LastWorker : public MultiVertex {
public:
  Output<unsigned> last;
  void compute(unsigned worker) { *last = worker; }
};

// Workers write `together` elements in turn; with an odd number, two workers write the halves of a word.
class InTurns : public MultiVertex {
public:
  Out<half> to;
  unsigned size;
  unsigned together;
  void compute(unsigned worker) {
    for (unsigned i = 0; i < size; ++i)
      if (i / together % numWorkers() == worker)
        to[i] = half(static_cast<float>(i));
  }
};

class TooFar : public MultiVertex {
public:
  Out<int> to;
  unsigned size;
  void compute(unsigned worker) {
    if (worker == 0)
      for (unsigned i = 0; i <= size; ++i)
        to[i] = 7;
  }
};

class Sum : public Vertex {
public:
  Input<Vector<float>> values;
  Output<float> sum;
  bool compute() {
    *sum = std::accumulate(values.begin(), values.end(), 0.0f);
    return true;
  }
};

class Increment : public Vertex {
public:
  InOut<int> value;
  bool compute() {
    *value += 1;
    return true;
  }
};

class Below : public Vertex {
public:
  Input<int> value;
  Input<int> limit;
  Output<bool> below;
  bool compute() {
    *below = *value < *limit;
    return true;
  }
};

const snnipu::ipu_model::CodeletRegistration registration(
    "cases", {CodeletOf<AddTo<float>>("AddTo<float>")
                  .field("from", &AddTo<float>::from)
                  .field("to", &AddTo<float>::to)
                  .field("by", &AddTo<float>::by)
                  .field("size", &AddTo<float>::size),
              CodeletOf<AddTo<half>>("AddTo< half >")
                  .field("from", &AddTo<half>::from)
                  .field("to", &AddTo<half>::to)
                  .field("size", &AddTo<half>::size),
              CodeletOf<Pairs>("Pairs").field("from", &Pairs::from).field("to", &Pairs::to).field("skip", &Pairs::skip),
              CodeletOf<LastWorker>("LastWorker").field("last", &LastWorker::last),
              CodeletOf<InTurns>("InTurns")
                  .field("to", &InTurns::to)
                  .field("size", &InTurns::size)
                  .field("together", &InTurns::together),
              CodeletOf<TooFar>("TooFar").field("to", &TooFar::to).field("size", &TooFar::size),
              CodeletOf<Sum>("Sum").field("values", &Sum::values).field("sum", &Sum::sum),
              CodeletOf<Increment>("Increment").field("value", &Increment::value),
              CodeletOf<Below>("Below")
                  .field("value", &Below::value)
                  .field("limit", &Below::limit)
                  .field("below", &Below::below)});

// --- helpers

struct Machine {
  Device device;
  Graph graph;
  ComputeSet set; // of cases that need one

  explicit Machine(unsigned tiles = 4, unsigned ipus = 1, const char *version = "ipu2")
      : device(make(tiles, ipus, version)), graph(device.getTarget()), set(graph.addComputeSet("set")) {
    graph.addCodelets("somewhere/cases.gp");
  }
  static Device make(unsigned tiles, unsigned ipus, const char *version) {
    IPUModel model(version);
    model.tilesPerIPU = tiles;
    model.numIPUs = ipus;
    return model.createDevice();
  }
  // Add a variable on one tile, which the host may read and write.
  Tensor variable(Type type, std::vector<std::size_t> shape, const std::string &name, unsigned tile) {
    const Tensor tensor = graph.addVariable(type, shape, name);
    graph.setTileMapping(tensor, tile);
    graph.createHostWrite(name, tensor);
    graph.createHostRead(name, tensor);
    return tensor;
  }
  Tensor floats(const std::string &name, std::size_t size, unsigned tile = 0) {
    return variable(FLOAT, {size}, name, tile);
  }
  VertexRef vertex(ComputeSet cs, const std::string &name, const std::vector<ConnectionDesc> &fields, unsigned tile,
                   unsigned cycles = 100) {
    const VertexRef ref = graph.addVertex(cs, name, fields);
    graph.setTileMapping(ref, tile);
    graph.setPerfEstimate(ref, cycles);
    return ref;
  }
  VertexRef addTo(ComputeSet cs, const Tensor &from, const Tensor &to, float by, unsigned tile, unsigned cycles = 100) {
    return vertex(
        cs, "AddTo<float>",
        {{"from", from.flatten()}, {"to", to.flatten()}, {"by", by}, {"size", static_cast<unsigned>(to.numElements())}},
        tile, cycles);
  }
  Engine engine(const Program &program, const OptionFlags &options = {}) {
    Engine result(graph, program, options);
    result.load(device);
    return result;
  }
  Engine engineOfSet(const OptionFlags &options = {}) { return engine(Execute(set), options); }
};

template <typename T> void write(Engine &engine, const char *name, const std::vector<T> &values) {
  engine.writeTensor(name, values.data(), values.data() + values.size());
}
template <typename T> std::vector<T> read(Engine &engine, const char *name, std::size_t size) {
  std::vector<T> values(size);
  engine.readTensor(name, values.data(), values.data() + size);
  return values;
}
// Print a line, with blanks between the values.
template <typename... T> void print(const T &...values) {
  const char *before = "";
  ((std::cout << before << values, before = " "), ...);
  std::cout << '\n';
}
template <typename T> void print(const std::vector<T> &values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    std::cout << (i ? " " : "") << values[i];
  std::cout << '\n';
}
void check(bool holds, const std::string &what) {
  if (!holds)
    throw std::runtime_error("not so: " + what);
}
std::vector<float> ramp(std::size_t size) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

// CASE(name, tiles, ipus) defines a case on a machine; `what` is the command's second argument.
std::map<std::string, std::function<void(const std::string &)>> cases;
#define CASE(NAME, ...)                                                                                                \
  void NAME(Machine &, const std::string &);                                                                           \
  const bool NAME##IsACase = cases                                                                                     \
                                 .emplace(#NAME,                                                                       \
                                          [](const std::string &what) {                                                \
                                            Machine m{__VA_ARGS__};                                                    \
                                            NAME(m, what);                                                             \
                                          })                                                                           \
                                 .second;                                                                              \
  void NAME([[maybe_unused]] Machine &m, [[maybe_unused]] const std::string &what)

// --- tensors and mappings

// A tensor with the numbers of the elements that it should have.
struct Twin {
  Tensor tensor;
  std::vector<std::size_t> shape;
  std::vector<std::size_t> elements;

  bool same() const {
    std::vector<std::size_t> seen;
    for (const VariableInterval &region : tensor.getVarRegions())
      for (std::size_t i = region.interval.begin(); i < region.interval.end(); ++i)
        seen.push_back(region.var.id() * 1000 + i);
    return tensor.shape() == shape && tensor.numElements() == elements.size() && seen == elements;
  }
  // Return the view whose element at `index` is this tensor's element at of(index).
  template <typename Of> Twin rebuilt(Tensor t, std::vector<std::size_t> newShape, const Of &of) const {
    Twin twin{std::move(t), newShape, {}};
    std::vector<std::size_t> index(newShape.size(), 0);
    const std::size_t total =
        std::accumulate(newShape.begin(), newShape.end(), std::size_t(1), std::multiplies<std::size_t>());
    for (std::size_t n = 0; n < total; ++n) {
      const std::vector<std::size_t> old = of(index);
      std::size_t position = 0;
      for (std::size_t d = 0; d < shape.size(); ++d)
        position = position * shape[d] + old[d];
      twin.elements.push_back(elements[position]);
      for (std::size_t d = newShape.size(); d-- > 0;) {
        if (++index[d] < newShape[d])
          break;
        index[d] = 0;
      }
    }
    return twin;
  }
};

CASE(tensors) {
  std::mt19937 random(1);
  const auto upTo = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  unsigned strided = 0;
  for (unsigned round = 0; round < 400; ++round) {
    Machine m;
    Twin twin{m.graph.addVariable(FLOAT, {4, 3, 5}, "v"), {4, 3, 5}, {}};
    for (std::size_t i = 0; i < 60; ++i)
      twin.elements.push_back(i);
    const Twin other{m.graph.addVariable(FLOAT, {4, 3, 5}, "w"), {4, 3, 5}, {}};
    for (unsigned step = 0; step < 6 && twin.elements.size() < 2000; ++step) {
      const std::size_t rank = twin.shape.size();
      const unsigned d = static_cast<unsigned>(upTo(rank));
      auto shape = twin.shape;
      using Index = std::vector<std::size_t>;
      switch (random() % 9) {
      case 0: {
        const std::size_t begin = upTo(shape[d]), end = begin + 1 + upTo(shape[d] - begin);
        shape[d] = end - begin;
        twin = twin.rebuilt(twin.tensor.slice(begin, end, d), shape, [&](Index i) { return i[d] += begin, i; });
        break;
      }
      case 1: {
        std::vector<unsigned> permutation(rank);
        std::iota(permutation.begin(), permutation.end(), 0u);
        std::shuffle(permutation.begin(), permutation.end(), random);
        for (std::size_t k = 0; k < rank; ++k)
          shape[k] = twin.shape[permutation[k]];
        twin = twin.rebuilt(twin.tensor.dimShuffle(permutation), shape, [&](Index i) {
          Index old(rank);
          for (std::size_t k = 0; k < rank; ++k)
            old[permutation[k]] = i[k];
          return old;
        });
        break;
      }
      case 2: {
        twin = {twin.tensor.flatten(), {twin.elements.size()}, twin.elements};
        std::size_t factor = 2;
        while (factor < 6 && twin.elements.size() % factor != 0)
          ++factor;
        if (twin.elements.size() % factor == 0) {
          const Index split = {twin.elements.size() / factor, factor};
          twin = {twin.tensor.reshape(split), split, twin.elements};
        }
        break;
      }
      case 3:
        twin = twin.rebuilt(twin.tensor.reverse(d), shape, [&](Index i) { return i[d] = twin.shape[d] - 1 - i[d], i; });
        break;
      case 4:
        shape[d] = (shape[d] + 1) / 2;
        twin = twin.rebuilt(twin.tensor.subSample(2, d), shape, [&](Index i) { return i[d] *= 2, i; });
        break;
      case 5:
        shape[d] *= 3;
        twin = twin.rebuilt(twin.tensor.broadcast(3, d), shape, [&](Index i) { return i[d] %= twin.shape[d], i; });
        break;
      case 6:
        shape.insert(shape.begin() + d, 1);
        twin = {twin.tensor.expand({d}), shape, twin.elements};
        break;
      case 7: {
        shape[d] *= 2;
        const Tensor twice = concat(twin.tensor, twin.tensor.reverse(d), d);
        twin = twin.rebuilt(twice, shape, [&](Index i) {
          return i[d] = i[d] < twin.shape[d] ? i[d] : 2 * twin.shape[d] - 1 - i[d], i;
        });
        break;
      }
      default:
        if (twin.elements.size() == 60) {
          const Tensor flat = concat(twin.tensor.flatten(), other.tensor.flatten());
          auto elements = twin.elements;
          for (std::size_t i = 0; i < 60; ++i)
            elements.push_back(1000 + i);
          twin = {flat.reshape({10, 12}), {10, 12}, elements};
        }
      }
      check(twin.same(),
            "round " + std::to_string(round) + ", step " + std::to_string(step) + ": " + twin.tensor.shapeToString());
    }
    auto sorted = twin.elements;
    std::sort(sorted.begin(), sorted.end());
    const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
    check(twin.tensor.containsAliases() == twice, "containsAliases, round " + std::to_string(round));
    check(twin.tensor == twin.tensor.flatten().reshape(twin.shape), "==, round " + std::to_string(round));
    strided += twin.tensor.isContiguous();
  }
  check(strided > 0 && strided < 400, "some are contiguous");
  print("ok");
}

CASE(mappings) {
  std::mt19937 random(2);
  for (unsigned round = 0; round < 100; ++round) {
    Machine m(5);
    const Tensor tensor = m.graph.addVariable(INT, {40}, "v");
    std::vector<int> tiles(40, -1);
    for (unsigned step = 0; step < 12; ++step) {
      const std::size_t begin = random() % 40, end = begin + random() % (41 - begin);
      const unsigned tile = random() % 5;
      m.graph.setTileMapping(tensor.slice(begin, end), tile);
      std::fill(tiles.begin() + static_cast<long>(begin), tiles.begin() + static_cast<long>(end), tile);
    }
    const auto matches = [&](const Tensor &t, const auto &tileOf) {
      bool complete = false;
      const auto mapping = m.graph.getTileMapping(t, &complete);
      std::vector<int> seen(t.numElements(), -1);
      for (std::size_t tile = 0; tile < mapping.size(); ++tile)
        for (const Interval &interval : mapping[tile])
          for (std::size_t i = interval.begin(); i < interval.end(); ++i)
            seen[i] = static_cast<int>(tile);
      bool all = complete == (std::count(seen.begin(), seen.end(), -1) == 0);
      for (std::size_t i = 0; i < seen.size(); ++i)
        all = all && seen[i] == tileOf(i);
      return all;
    };
    check(matches(tensor, [&](std::size_t i) { return tiles[i]; }), "the mapping");
    check(matches(m.graph.clone(tensor), [&](std::size_t i) { return tiles[i]; }), "a clone's");
    check(matches(tensor.reverse(0), [&](std::size_t i) { return tiles[39 - i]; }), "a reversed tensor's");
  }
  const Tensor linear = m.graph.addVariable(FLOAT, {10}, VariableMappingMethod::LINEAR, "linear");
  const auto mapping = m.graph.getTileMapping(linear);
  check(mapping[0][0] == Interval(0, 3) && mapping[3][0] == Interval(9, 10), "a linear mapping");
  print("ok");
}

// --- execution

CASE(runs) {
  const Tensor x = m.variable(FLOAT, {3, 8}, "x", 0), y = m.variable(FLOAT, {3, 8}, "y", 1);
  const ComputeSet cs = m.graph.addComputeSet("columns");
  // The vertices read and write columns, which are not contiguous, and x is on another tile.
  for (unsigned i = 0; i < 4; ++i)
    m.addTo(cs, x.slice(2 * i, 2 * i + 2, 1), y.slice(2 * i, 2 * i + 2, 1), 10.0f * static_cast<float>(i), i);
  for (const char *threads : {"1", "3"}) {
    for (const char *guards : {"false", "true"}) {
      Engine engine = m.engine(Execute(cs), {{"threads", threads}, {"guardFields", guards}, {"workerOrder", "check"}});
      check(std::isnan(read<float>(engine, "y", 24)[0]), "memory starts as NaN");
      write(engine, "x", ramp(24));
      engine.run();
      const std::vector<float> result = read<float>(engine, "y", 24);
      for (std::size_t i = 0; i < 24; ++i)
        check(result[i] == static_cast<float>(i + 1 + 10 * (i % 8 / 2)), "element " + std::to_string(i));
    }
  }
  print("ok");
}

CASE(halves) {
  const Tensor x = m.variable(HALF, {5}, "x", 0), y = m.variable(HALF, {5}, "y", 0);
  m.vertex(m.set, "AddTo<half>", {{"from", x}, {"to", y}, {"size", 5}}, 0);
  m.graph.setInitialValue<float>(x, {0.1f, 65504.0f, 1e-7f, -2.0f, 1e6f});
  Engine engine = m.engineOfSet();
  engine.run();
  for (const half value : read<half>(engine, "x", 5))
    print(value.bits);
  // Convert every bit pattern to float and back.
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float value = half::toFloat(static_cast<std::uint16_t>(bits));
    check(std::isnan(value) || half::fromFloat(value) == bits, "half " + std::to_string(bits));
  }
  check(half::toFloat(1) == 0x1p-24f && half::toFloat(0x3c00) == 1.0f, "values of halves");
  check(half::fromFloat(1.0f + 0x1p-11f) == 0x3c00 && half::fromFloat(1.0f + 0x1.8p-10f) == 0x3c02, "ties to even");
}

CASE(loops) {
  const Tensor i = m.variable(INT, {}, "i", 0), limit = m.variable(INT, {}, "limit", 0);
  const Tensor below = m.variable(BOOL, {}, "below", 0), other = m.variable(INT, {}, "other", 1);
  const ComputeSet step = m.graph.addComputeSet("step"), test = m.graph.addComputeSet("test");
  const ComputeSet more = m.graph.addComputeSet("more");
  m.vertex(step, "Increment", {{"value", i}}, 0);
  m.vertex(test, "Below", {{"value", i}, {"limit", limit}, {"below", below}}, 0);
  m.vertex(more, "Increment", {{"value", other}}, 1);
  m.graph.setInitialValue(i, 0);
  m.graph.setInitialValue(other, 0);
  Sequence program;
  program.add(Repeat(3, Execute(step)));
  program.add(RepeatWhileTrue(Execute(test), below, Sequence({Execute(step), Repeat(2, Execute(more))})));
  program.add(If(below, Execute(step), Sequence({Execute(more), Copy(other, limit)})));
  Engine engine = m.engine(program);
  write<int>(engine, "limit", {10});
  engine.run();
  print<int>({read<int>(engine, "i", 1)[0], read<int>(engine, "other", 1)[0], read<int>(engine, "limit", 1)[0]});
  const auto counted = report(engine);
  const auto estimated = estimate(engine);
  for (const auto &entry : counted.steps)
    print(entry.name, entry.executions);
  for (const auto &entry : estimated.steps)
    print(entry.name, entry.executions);
}

CASE(streams) {
  const Tensor x = m.floats("x", 2), y = m.floats("y", 2, 1);
  m.addTo(m.set, x, y, 100, 1);
  const DataStream in = m.graph.addHostToDeviceFIFO("in", FLOAT, 2), out = m.graph.addDeviceToHostFIFO("out", FLOAT, 2);
  Engine engine = m.engine(Repeat(3, Sequence({Copy(in, x), Execute(m.set), Copy(y, out)})));
  std::vector<float> from = {1, 2, 3, 4}, to(6);
  try {
    engine.run();
  } catch (const stream_connection_error &error) {
    print(error.what());
  }
  engine.connectStream("in", from.data(), from.data() + 4);
  engine.connectStream("out", to.data(), to.data() + 6);
  engine.run();
  print(to);
  float next = 0;
  engine.connectStreamToCallback("in", [&](void *buffer) {
    for (int i = 0; i < 2; ++i)
      static_cast<float *>(buffer)[i] = next++;
  });
  engine.run();
  print(to);
  print(report(engine).hostBytes);
}

CASE(constants) {
  const Tensor c = m.graph.addConstant<int>(INT, {3}, {4, 5, 6}, "c"), x = m.variable(INT, {3}, "x", 1);
  m.graph.setTileMapping(c, 0);
  Engine engine = m.engine(Sequence({Copy(c, x), WriteUndef(x.slice(1, 2))}));
  engine.run();
  print(read<int>(engine, "x", 3));
  m.engine(Copy(x, c));
}

CASE(virtualGraph, 8, 2) {
  Graph part = m.graph.createVirtualGraph({2, 5}), second = m.graph.createVirtualGraph(8, 16);
  const Tensor a = part.addVariable(INT, {4}, VariableMappingMethod::LINEAR, "a");
  const Tensor b = second.addVariable(INT, {1}, "b");
  second.setTileMapping(b, 3);
  const auto tiles = m.graph.getTileMapping(a);
  print(part.getTarget().getNumTiles(), second.getTarget().getNumIPUs(), m.graph.getTileMapping(b)[11].size());
  for (std::size_t tile = 0; tile < tiles.size(); ++tile)
    if (!tiles[tile].empty())
      print(tile);
  second.setTileMapping(b, 8);
}

// --- accounts

CASE(accounts, 3, 2) {
  const Tensor x = m.floats("x", 100), y = m.variable(FLOAT, {4, 5}, "y", 1);
  const Tensor z = m.floats("z", 10, 4), w = m.floats("w", 1, 2);
  const ComputeSet all = m.graph.addComputeSet("all"), plain = m.graph.addComputeSet("plain");
  // Tile 1 receives 20 elements of tile 0; tile 4, on the other IPU, receives 10.
  m.addTo(all, x.slice(0, 20), y, 1, 1, 500);
  m.addTo(all, x.slice(5, 15), z, 1, 4, 300);
  // Tile 1 runs a second vertex after the first, whose result is sent to tile 2.
  m.vertex(all, "LastWorker", {{"last", w.reinterpret(UNSIGNED_INT)[0]}}, 1, 50);
  // Six workers run eight plain vertices.
  const Tensor sums = m.floats("sums", 8, 2);
  for (unsigned i = 0; i < 8; ++i)
    m.vertex(plain, "Sum", {{"values", x.slice(0, 4)}, {"sum", sums[i]}}, 2, i == 0 ? 30 : 20);
  Engine engine(m.graph, Repeat(2, Sequence({Execute(all), Execute(plain), Copy(x.slice(0, 8), y.flatten().slice(0, 8)),
                                             Copy(y[0], y[1])})));
  print(estimate(engine).toJson());
  print(report(engine).cycles());
}

CASE(messages, 9) {
  const Tensor spread = m.graph.addVariable(FLOAT, {8}, "spread"), there = m.floats("there", 16, 8);
  for (unsigned tile = 0; tile < 8; ++tile)
    m.graph.setTileMapping(spread[tile], tile);
  const Tensor far = m.floats("far", 400), near = m.floats("near", 400, 8);
  Engine engine(m.graph, {Copy(spread, there.slice(0, 8)), Copy(there.subSample(2, 0), spread), Copy(far, near)});
  for (unsigned program = 0; program < 3; ++program)
    print(estimate(engine, program).exchangeCycles);
}

CASE(layout, 2) {
  // Each tile holds some columns of a matrix, contiguously. Parts of its rows are not contiguous.
  const Tensor x = m.graph.addVariable(FLOAT, {4, 6}, "x"), y = m.graph.addVariable(FLOAT, {2, 12}, "y");
  const ComputeSet columns = m.graph.addComputeSet("columns"), row = m.graph.addComputeSet("row");
  for (unsigned tile = 0; tile < 2; ++tile) {
    m.graph.setTileMapping(x.slice(3 * tile, 3 * tile + 3, 1), tile);
    m.graph.setTileMapping(y[tile], tile);
    m.addTo(columns, x.slice(3 * tile, 3 * tile + 3, 1), y[tile], 0, tile);
  }
  m.addTo(row, concat(x[2].slice(0, 2), x[0].slice(0, 2)), y[0].slice(0, 4), 0, 0);
  Engine engine(m.graph, {Execute(columns), Execute(row)});
  for (unsigned program = 0; program < 2; ++program) {
    const auto counts = estimate(engine, program);
    print(counts.exchangeBytes, counts.computeCycles, counts.tileMemory[0].exchangeBuffers);
  }
}

CASE(machines) {
  for (const char *name : {"ipu1", "ipu2", "bow"}) {
    const Target target = Target::createIPUTarget(2, name);
    print(name, target.getNumTiles(), target.getBytesPerTile(), target.getTileClockFrequency());
  }
  Target::createIPUTarget(1, 1473, "ipu2");
}

// The set-up of a model and the mapping of tensors in Graphcore's tutorials.
CASE(tutorials) {
  IPUModel model("ipu2");
  model.tilesPerIPU = 4;
  model.minIPUSyncDelay = 7;
  model.relativeSyncDelay = IPUModel::RelativeSyncDelayType::NO_DELAY;
  const Device device = model.createDevice();
  Graph graph(device);
  const auto printSizes = [&](const Tensor &tensor) {
    std::vector<std::size_t> sizes;
    for (const auto &intervals : graph.getTileMapping(tensor))
      sizes.push_back(intervals.empty() ? 0 : intervals[0].size());
    print(sizes);
  };
  const Tensor large = graph.addVariable(FLOAT, {10, 101}, "large"), small = graph.addVariable(HALF, {70}, "small"),
               other = graph.addVariable(FLOAT, {70}, "other");
  poputil::mapTensorLinearly(graph, large);
  poputil::mapTensorLinearly(graph, small);
  poputil::mapTensorLinearly(graph, other, 1, 10);
  for (const Tensor &tensor : {large, small, other})
    printSizes(tensor);
  Engine engine(graph, Copy(other.slice(0, 1), other.slice(69, 70)));
  print(estimate(engine).syncCycles);
  poputil::mapTensorLinearly(graph, other, 1, 0);
}

CASE(estimators) {
  // Every vertex of the package has an estimator.
  m.graph.addCodelets("snnipu.gp");
  for (const std::string &name : snnipu::ipu_model::codeletNames("snnipu"))
    print(name);
  for (const unsigned size : {12u, 1200u}) {
    Machine machine(1);
    machine.graph.addCodelets("snnipu.gp");
    const Tensor u = machine.variable(FLOAT, {size}, "u", 0), spk = machine.variable(FLOAT, {size}, "spk", 0);
    const VertexRef ref =
        machine.graph.addVertex(machine.set, "snnipu::SurrogateSpike<float>", {{"u", u}, {"spk", spk}, {"size", size}});
    machine.graph.setTileMapping(ref, 0);
    Engine engine(machine.graph, Execute(machine.set));
    print("cycles", estimate(engine).computeCycles);
  }
}

// --- errors

CASE(unmapped) {
  const Tensor x = m.floats("x", 6), y = m.graph.addVariable(FLOAT, {6}, "forgotten");
  m.graph.setTileMapping(y.slice(0, 4), 0);
  m.addTo(m.set, x, y, 1, 0);
  m.engineOfSet();
}

CASE(race) {
  const Tensor x = m.floats("x", 6), y = m.floats("shared", 6);
  m.addTo(m.set, x.slice(0, 4), y.slice(0, 4), 1, 0);
  m.addTo(m.set, x.slice(0, 3), y.slice(3, 6), 1, 1);
  m.engineOfSet();
}

CASE(readWriteRace) {
  const Tensor x = m.floats("x", 6), y = m.floats("y", 6);
  const Tensor z = m.floats("z", 6);
  m.addTo(m.set, y.reverse(0), z, 1, 0);
  m.addTo(m.set, x.slice(0, 2), y.slice(0, 2), 1, 0);
  m.engineOfSet();
}

CASE(ownRace) {
  const Tensor x = m.floats("x", 6);
  m.addTo(m.set, x.slice(0, 5), x.slice(1, 6), 1, 0);
  m.engineOfSet();
}

// Compare the check of races with its definition, on random intervals.
CASE(racesByDefinition) {
  std::mt19937 random(3);
  unsigned refused = 0;
  for (unsigned round = 0; round < 400; ++round) {
    Machine m;
    const Tensor x = m.graph.addVariable(FLOAT, {30}, "x"), y = m.graph.addVariable(FLOAT, {30}, "y");
    m.graph.setTileMapping(x, 0);
    m.graph.setTileMapping(y, 0);
    std::vector<int> reader(60, -1), writer(60, -1); // -1: no vertex
    bool expected = false;
    for (int vertex = 0; vertex < 4; ++vertex) {
      const std::size_t size = 1 + random() % 4;
      std::size_t from = random() % 27, to = random() % 27;
      const bool fromY = random() % 4 == 0;
      const Tensor in = (fromY ? y : x).slice(from, from + size), out = y.slice(to, to + size);
      from += fromY ? 30 : 0;
      to += 30;
      for (std::size_t i = 0; i < size; ++i)
        for (std::size_t j = 0; j < size; ++j)
          expected = expected || from + i == to + j;
      for (std::size_t i = 0; i < size; ++i) {
        expected = expected || writer[from + i] != -1 || reader[to + i] != -1 || writer[to + i] != -1;
      }
      for (std::size_t i = 0; i < size; ++i) {
        reader[from + i] = vertex;
        writer[to + i] = vertex;
      }
      m.addTo(m.set, in, out, 0, 0);
    }
    bool raised = false;
    try {
      Engine engine(m.graph, Execute(m.set));
    } catch (const graph_program_compilation_error &) {
      raised = true;
    }
    check(raised == expected, "round " + std::to_string(round));
    refused += raised;
  }
  check(refused > 50 && refused < 350, "both occur: " + std::to_string(refused));
  print("ok");
}

CASE(memoryOver, 4) {
  const Tensor x = m.floats("small", 100000, 2), y = m.floats("weights of layer 3", 140000, 2);
  m.addTo(m.set, x.slice(0, 2), y.slice(0, 2), 1, 2);
  Engine engine(m.graph, Execute(m.set), what.empty() ? OptionFlags{} : OptionFlags{{"tileMemory", what}});
  const auto counts = report(engine);
  print(counts.fits, counts.fullestTile(), counts.tileMemory[2].variables);
}

CASE(noSuchTile) { m.floats("x", 1, 4); }

CASE(vertexOnNoSuchTile) {
  const Tensor x = m.floats("x", 1), y = m.floats("y", 1);
  m.addTo(m.set, x, y, 1, 5888);
}

CASE(vertexOnNoTile) {
  const Tensor x = m.variable(INT, {}, "x", 0);
  m.graph.addVertex(m.set, "Increment", {{"value", x}});
  m.engineOfSet();
}

CASE(unconnected) {
  const Tensor x = m.floats("x", 1);
  m.vertex(m.set, "AddTo<float>", {{"from", x}, {"by", 1}, {"size", 1}}, 0);
  m.engineOfSet();
}

CASE(memberNotSet) {
  const Tensor x = m.floats("x", 1), y = m.floats("y", 1);
  m.vertex(m.set, "AddTo<float>", {{"from", x}, {"to", y}, {"by", 1}}, 0);
  m.engineOfSet();
}

CASE(wrongType) {
  const Tensor x = m.variable(HALF, {3}, "x", 0);
  m.graph.connect(m.graph.addVertex(m.set, "AddTo<float>")["from"], x);
}

CASE(wrongRank) {
  const Tensor x = m.variable(FLOAT, {3, 2}, "x", 0);
  m.graph.connect(m.graph.addVertex(m.set, "AddTo<float>")["from"], x);
}

CASE(wrongValue) { m.graph.setInitialValue(m.graph.addVertex(m.set, "AddTo<float>")["size"], -1); }

CASE(unknownField) { m.graph.setInitialValue(m.graph.addVertex(m.set, "AddTo<float>")["sise"], 1); }

CASE(unknownVertex) { m.graph.addVertex(m.set, "AddTo<double>"); }

CASE(unknownCodelets) { m.graph.addCodelets("/opt/others.gp"); }

void estimateOf(const OptionFlags &options) {
  Machine m;
  for (const char *name : {"x", "y"})
    m.graph.setTileMapping(m.graph.addVertex(m.set, "Increment", {{"value", m.variable(INT, {}, name, 0)}}), 0);
  Engine engine = m.engineOfSet(options);
  print("cycles", estimate(engine).computeCycles);
}
CASE(noEstimate) { estimateOf({{"estimates", "required"}}); }
CASE(defaultEstimate) { estimateOf({}); }

// A field needs an alignment of 8 bytes, and begins 4 bytes after the start of a variable.
CASE(misaligned) {
  const Tensor x = m.floats("x", 5), y = m.floats("y", 4);
  const VertexRef vertex = m.graph.addVertex(m.set, "Pairs", {{"from", x.slice(1, 5)}, {"to", y}});
  m.graph.setTileMapping(vertex, 0);
  m.graph.setInitialValue(vertex["skip"], what == "access" ? 1u : 0u);
  m.graph.setPerfEstimate(vertex, 100);
  Engine engine = m.engineOfSet({{"misaligned", what == "refuse" ? "refuse" : "copy"}});
  print("cycles", estimate(engine).computeCycles);
  write<float>(engine, "x", {0, 1, 2, 3, 4});
  engine.run();
  print(read<float>(engine, "y", 4));
}

CASE(printed) {
  const Device device = DeviceManager::createDeviceManager().getDevices(TargetType::IPU, 1)[0];
  print(DeviceManager::createDeviceManager().getDevices(TargetType::CPU, 1).size(), device.attach(),
        device.getTarget().getNumTiles());
  Graph graph(device.getTarget());
  const float values[4] = {1, 2, 3, 4.5f};
  const Tensor x = graph.addConstant(FLOAT, {2, 2}, values);
  graph.setTileMapping(x, 0);
  Engine engine(graph, Sequence({PrintTensor("x", x), PrintTensor(x[1])}));
  engine.setPrintTensorStream(std::cout);
  engine.load(device);
  engine.run();
}

CASE(unknownOption) { m.engine(Sequence(), {{"treads", "2"}}); }

CASE(notLoaded) {
  Engine engine(m.graph, Sequence());
  engine.run();
}

CASE(copyOfOtherSize) {
  const Tensor x = m.variable(INT, {3}, "x", 0);
  Copy(x, x.slice(0, 2));
}

// --- workers

CASE(lastWorker) {
  const Tensor x = m.variable(UNSIGNED_INT, {}, "x", 3);
  m.vertex(m.set, "LastWorker", {{"last", x}}, 3);
  Engine engine = m.engineOfSet({{"workerOrder", what}});
  engine.run();
  print(read<unsigned>(engine, "x", 1));
}

CASE(inTurns) {
  const Tensor x = m.variable(HALF, {7}, "x", 0);
  m.vertex(m.set, "InTurns", {{"to", x}, {"size", 7}, {"together", std::stoi(what)}}, 0);
  Engine engine = m.engineOfSet({{"workerOrder", "check"}});
  engine.run();
  print(read<half>(engine, "x", 7));
}

CASE(guards) {
  const Tensor x = m.variable(INT, {4}, "x", 0);
  m.vertex(m.set, "TooFar", {{"to", x.slice(0, 3)}, {"size", 3}}, 0);
  m.engineOfSet().run();
  m.engineOfSet({{"guardFields", "true"}}).run();
}

int main(int argc, char **argv) {
  const auto entry = cases.find(argc > 1 ? argv[1] : "");
  if (entry == cases.end())
    return 2;
  try {
    entry->second(argc > 2 ? argv[2] : "");
  } catch (const poplar_error &error) {
    std::cout << error.name() << ": " << error.what() << '\n';
  } catch (const std::exception &error) {
    print(error.what());
    return 1;
  }
  return 0;
}
