#include <poplar/Graph.hpp>

#include <cctype>
#include <iterator>
#include <tuple>

#include "state.hpp"

namespace poplar {
namespace detail {

void Variable::map(std::size_t begin, std::size_t end, unsigned tile) {
  if (begin == end)
    return;
  // Intervals that cross the borders are split there, so that those between the borders can be removed.
  const auto splitAt = [&](std::size_t at) {
    auto after = mapping.upper_bound(at);
    if (after == mapping.begin())
      return;
    const auto before = std::prev(after);
    if (before->first < at && before->second.end > at) {
      const MappedInterval remaining = before->second;
      before->second.end = at;
      mapping.emplace_hint(after, at, remaining);
    }
  };
  splitAt(begin);
  splitAt(end);
  mapping.erase(mapping.lower_bound(begin), mapping.lower_bound(end));
  auto next = mapping.lower_bound(begin);
  if (next != mapping.begin()) {
    const auto before = std::prev(next);
    if (before->second.end == begin && before->second.tile == tile) {
      begin = before->first;
      mapping.erase(before);
    }
  }
  if (next != mapping.end() && next->first == end && next->second.tile == tile) {
    end = next->second.end;
    next = mapping.erase(next);
  }
  mapping.emplace_hint(next, begin, MappedInterval{end, tile});
}

std::string VertexState::describe() const {
  return codelet->name + " (vertex " + std::to_string(id) + (mapped ? ", tile " + std::to_string(tile) : "") + ")";
}

Tensor GraphState::add(Type type, const std::vector<std::size_t> &shape, bool constant, const std::string &name) {
  sizeOf(type);
  const unsigned var = static_cast<unsigned>(variables.size());
  variables.push_back({name, type, shape, product(shape), constant, {}, {}, {}});
  auto view = std::make_shared<View>();
  view->graph = this;
  view->type = type;
  view->shape = shape;
  view->numElements = product(shape);
  view->var = var;
  view->strides.resize(shape.size());
  std::ptrdiff_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    view->strides[d] = stride;
    stride *= static_cast<std::ptrdiff_t>(shape[d]);
  }
  return TensorAccess::make(view);
}

std::string GraphState::describe(unsigned var) const {
  const Variable &variable = variables[var];
  return (variable.constant ? "constant \"" : "variable \"") + variable.name + "\" (" + variable.type.toString() +
         shapeText(variable.shape) + ")";
}

namespace {

struct CodeletFile {
  std::map<std::string, Codelet> codelets;
  std::vector<std::function<void(Graph &)>> estimators;
};

std::map<std::string, CodeletFile> &codeletFiles() {
  static std::map<std::string, CodeletFile> files;
  return files;
}

} // namespace
} // namespace detail
} // namespace poplar

namespace snnipu {
namespace ipu_model {

std::string normaliseVertexName(const std::string &name) {
  const auto isWord = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  std::string result;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!std::isspace(static_cast<unsigned char>(name[i]))) {
      result += name[i];
      continue;
    }
    std::size_t next = name.find_first_not_of(" \t\n", i);
    if (!result.empty() && next != std::string::npos && isWord(result.back()) && isWord(name[next]))
      result += ' ';
    i = next == std::string::npos ? name.size() : next - 1;
  }
  // "unsigned" alone means "unsigned int".
  const std::string word = "unsigned";
  for (std::size_t at = result.find(word); at != std::string::npos; at = result.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool whole = (at == 0 || !isWord(result[at - 1])) && (end == result.size() || !isWord(result[end]));
    if (whole && (end == result.size() || result[end] != ' '))
      result.insert(end, " int");
  }
  return result;
}

void addField(Codelet &codelet, const char *name, Direction direction, Layout layout, poplar::Type type,
              unsigned minAlign, std::ptrdiff_t offset) {
  codelet.fields.push_back({name, direction, layout, type, minAlign, static_cast<std::size_t>(offset)});
}

void registerCodelets(const char *file, std::vector<Codelet> codelets) {
  auto &known = poplar::detail::codeletFiles()[file].codelets;
  for (Codelet &codelet : codelets) {
    codelet.name = normaliseVertexName(codelet.name);
    std::string name = codelet.name;
    known.emplace(std::move(name), std::move(codelet));
  }
}

std::vector<std::string> codeletNames(const char *file) {
  std::vector<std::string> names;
  for (const auto &entry : poplar::detail::codeletFiles()[file].codelets)
    names.push_back(entry.first);
  return names;
}

void registerEstimators(const char *file, std::function<void(poplar::Graph &)> addTo) {
  poplar::detail::codeletFiles()[file].estimators.push_back(std::move(addTo));
}

} // namespace ipu_model
} // namespace snnipu

namespace poplar {

using namespace detail;
using snnipu::ipu_model::normaliseVertexName;

Graph::Graph(const Target &target) : state_(std::make_shared<GraphState>(target)), target_(target) {
  if (target.getNumTiles() == 0)
    throw graph_object_creation_error("a graph needs a target: Target::createIPUTarget, or IPUModel::createDevice");
}
Graph::Graph(std::shared_ptr<GraphState> state, const Target &target, std::vector<unsigned> tiles)
    : state_(std::move(state)), target_(target), tiles_(std::move(tiles)) {}
Graph::~Graph() = default;
Graph::Graph(Graph &&) noexcept = default;
Graph &Graph::operator=(Graph &&) noexcept = default;

const Target &Graph::getTarget() const { return target_; }

Graph Graph::createVirtualGraph(const std::vector<unsigned> &perIpuTiles) {
  const unsigned tilesPerIPU = target_.getTilesPerIPU(), ipus = target_.getNumIPUs();
  std::vector<unsigned> tiles;
  for (unsigned ipu = 0; ipu < ipus; ++ipu)
    for (unsigned tile : perIpuTiles) {
      if (tile >= tilesPerIPU)
        throw invalid_tile_mapping("a virtual graph with tile " + std::to_string(tile) + " of an IPU that has " +
                                   std::to_string(tilesPerIPU));
      tiles.push_back(globalTile(ipu * tilesPerIPU + tile, "a virtual graph"));
    }
  if (perIpuTiles.empty())
    throw invalid_tile_mapping("a virtual graph needs a tile");
  const Target target = Target::createIPUTarget(ipus, static_cast<unsigned>(perIpuTiles.size()),
                                                StringRef(target_.getTargetArchString()));
  return Graph(state_, target, std::move(tiles));
}

Graph Graph::createVirtualGraph(unsigned lowerTile, unsigned upperTile) {
  if (lowerTile >= upperTile || upperTile > target_.getNumTiles())
    throw invalid_tile_mapping("a virtual graph of tiles [" + std::to_string(lowerTile) + ", " +
                               std::to_string(upperTile) + ") of " + std::to_string(target_.getNumTiles()));
  std::vector<unsigned> tiles;
  for (unsigned tile = lowerTile; tile < upperTile; ++tile)
    tiles.push_back(globalTile(tile, "a virtual graph"));
  const unsigned count = upperTile - lowerTile, tilesPerIPU = target_.getTilesPerIPU();
  const bool wholeIPUs = lowerTile % tilesPerIPU == 0 && count % tilesPerIPU == 0;
  if (!wholeIPUs && lowerTile / tilesPerIPU != (upperTile - 1) / tilesPerIPU)
    throw invalid_tile_mapping("a virtual graph is of whole IPUs, or of tiles of one IPU");
  const Target target = Target::createIPUTarget(wholeIPUs ? count / tilesPerIPU : 1, wholeIPUs ? tilesPerIPU : count,
                                                StringRef(target_.getTargetArchString()));
  return Graph(state_, target, std::move(tiles));
}

unsigned Graph::globalTile(unsigned tile, const char *what) const {
  const unsigned tiles = target_.getNumTiles();
  if (tile >= tiles)
    throw invalid_tile_mapping("tile " + std::to_string(tile) + " of " + what + " does not exist: the target has " +
                               std::to_string(target_.getNumIPUs()) + " x " + std::to_string(target_.getTilesPerIPU()) +
                               " tiles, 0 to " + std::to_string(tiles - 1));
  return tiles_.empty() ? tile : tiles_[tile];
}

bool Graph::addCodelets(StringRef src, CodeletFileType, StringRef, StringRef) {
  const std::string path = src;
  const std::size_t slash = path.find_last_of('/');
  std::string stem = slash == std::string::npos ? path : path.substr(slash + 1);
  stem = stem.substr(0, stem.find('.'));
  const auto file = codeletFiles().find(stem);
  if (file == codeletFiles().end()) {
    std::string known;
    for (const auto &entry : codeletFiles())
      known += (known.empty() ? "" : ", ") + entry.first;
    throw file_load_error("no codelets \"" + stem + "\" (" + path + ") are built into the IPU model, which has: " +
                          (known.empty() ? "none" : known) + "; csrc/ipu_model/popc makes a table of a codelet file");
  }
  if (!state_->files.insert(stem).second)
    return true;
  for (const auto &entry : file->second.codelets)
    state_->codelets[entry.first] = &entry.second;
  for (const auto &addTo : file->second.estimators)
    addTo(*this);
  return true;
}

Tensor Graph::addVariable(const Type &type, ArrayRef<std::size_t> shape, const DebugContext &debugContext) {
  return state_->add(type, shape, false, debugContext.getPathName());
}

Tensor Graph::addVariable(const Type &type, ArrayRef<std::size_t> shape, VariableMappingMethod method,
                          const DebugContext &debugContext) {
  const Tensor tensor = addVariable(type, shape, debugContext);
  if (method == VariableMappingMethod::LINEAR) {
    const std::size_t elements = tensor.numElements(), tiles = target_.getNumTiles();
    const std::size_t share = (elements + tiles - 1) / tiles;
    for (std::size_t begin = 0, tile = 0; begin < elements; begin += share, ++tile)
      setTileMapping(tensor.flatten().slice(begin, std::min(elements, begin + share)), static_cast<unsigned>(tile));
  }
  return tensor;
}

Tensor Graph::addConstantFrom(const Type &type, ArrayRef<std::size_t> shape, const std::vector<double> &values,
                              const DebugContext &debugContext) {
  const std::size_t elements = product(shape);
  if (values.size() != elements && values.size() != 1)
    throw tensor_creation_error("a constant of shape " + shapeText(shape) + " from " + std::to_string(values.size()) +
                                " values");
  const std::size_t size = sizeOf(type);
  std::vector<unsigned char> bytes(elements * size);
  for (std::size_t i = 0; i < elements; ++i)
    numberTo(values.size() == 1 ? values[0] : values[i], type, &bytes[i * size]);
  return addConstant(type, shape, static_cast<const void *>(bytes.data()), debugContext);
}

Tensor Graph::addConstant(const Type &type, ArrayRef<std::size_t> shape, const void *values,
                          const DebugContext &debugContext) {
  const Tensor tensor = state_->add(type, shape, true, debugContext.getPathName());
  Variable &variable = state_->variables.back();
  const unsigned char *const from = static_cast<const unsigned char *>(values);
  variable.initial.assign(from, from + variable.numElements * sizeOf(type));
  variable.hasInitial.assign(variable.numElements, true);
  return tensor;
}

Tensor Graph::clone(const Type &type, const Tensor &tensor, const DebugContext &debugContext, TensorCloneMethod) {
  const std::string name = debugContext.getPathName();
  const Tensor copy =
      state_->add(type, tensor.shape(), false,
                  name.empty() ? state_->variables[viewOf(tensor).strided ? viewOf(tensor).var : 0].name : name);
  // The copy is mapped as the original, element by element.
  Variable &variable = state_->variables.back();
  std::size_t position = 0;
  viewOf(tensor).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
    const auto &mapping = state_->variables[var].mapping;
    auto at = mapping.upper_bound(begin);
    if (at != mapping.begin())
      --at;
    for (; at != mapping.end() && at->first < end; ++at) {
      const std::size_t from = std::max(begin, at->first), to = std::min(end, at->second.end);
      if (from < to)
        variable.map(position + (from - begin), position + (to - begin), at->second.tile);
    }
    position += end - begin;
  });
  return copy;
}

Tensor Graph::clone(const Tensor &tensor, const DebugContext &debugContext, TensorCloneMethod method) {
  return clone(tensor.elementType(), tensor, debugContext, method);
}

ComputeSet Graph::addComputeSet(const DebugContext &debugContext) {
  state_->computeSets.push_back({debugContext.getPathName(), {}});
  return ComputeSet(static_cast<unsigned>(state_->computeSets.size() - 1));
}

VertexRef Graph::addVertex(ComputeSet cs, StringRef vertexType) {
  if (cs.getId() >= state_->computeSets.size())
    throw graph_object_creation_error("vertex " + vertexType.cloneAsString() +
                                      " in a compute set that is not of this graph");
  const std::string name = normaliseVertexName(vertexType);
  const auto codelet = state_->codelets.find(name);
  if (codelet == state_->codelets.end()) {
    const std::string base = name.substr(0, name.find('<'));
    std::string known;
    unsigned others = 0;
    for (const auto &entry : state_->codelets)
      if (entry.first.substr(0, entry.first.find('<')) == base && ++others <= 4)
        known += "\n  " + entry.first;
    std::string message = "no codelet " + name + " has been added to the graph";
    if (state_->files.empty())
      message += "; Graph::addCodelets adds them";
    else if (known.empty())
      message += "; none of that class is in the files that were added";
    else
      message += "; of that class there are " + std::to_string(others) + ", such as" + known;
    throw unknown_vertex_type(message);
  }
  const unsigned id = static_cast<unsigned>(state_->vertices.size());
  VertexState vertex{codelet->second, cs.getId(), id, false, 0, {}, {}, false, {}};
  vertex.edges.resize(codelet->second->fields.size());
  vertex.members.resize(codelet->second->fields.size());
  state_->vertices.push_back(std::move(vertex));
  state_->computeSets[cs.getId()].vertices.push_back(id);
  return VertexRef(id);
}

VertexRef Graph::addVertex(ComputeSet cs, StringRef vertexType, ArrayRef<ConnectionDesc> connections) {
  const VertexRef vertex = addVertex(cs, vertexType);
  for (const ConnectionDesc &connection : connections) {
    if (connection.isValue())
      setFieldValue(vertex[connection.field()], connection.value());
    else
      connect(vertex[connection.field()], connection.tensor());
  }
  return vertex;
}

namespace {

VertexState &vertexOf(GraphState &state, unsigned id) {
  if (id >= state.vertices.size())
    throw graph_connection_error("a vertex that is not of this graph");
  return state.vertices[id];
}

std::size_t fieldOf(const VertexState &vertex, const std::string &name) {
  const auto &fields = vertex.codelet->fields;
  std::string known;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].name == name)
      return i;
    known += (i ? ", " : "") + fields[i].name;
  }
  throw unknown_field(vertex.describe() + " has no field \"" + name + "\"; it has: " + known);
}

} // namespace

void Graph::connect(FieldRef fieldRef, const Tensor &tensor) {
  VertexState &vertex = vertexOf(*state_, fieldRef.getVertexId());
  const std::size_t index = fieldOf(vertex, fieldRef.getName());
  const FieldInfo &field = vertex.codelet->fields[index];
  const std::string where = "field \"" + field.name + "\" of " + vertex.describe();
  if (field.direction == Direction::Member)
    throw graph_connection_error(where + " is a plain member: it takes setInitialValue, not a tensor");
  if (!tensor.valid())
    throw graph_connection_error(where + " is connected to a default-constructed tensor");
  if (viewOf(tensor).graph != state_.get())
    throw graph_connection_error(where + " is connected to a tensor of another graph");
  if (tensor.elementType() != field.type)
    throw graph_connection_error(where + " holds " + field.type.toString() + ", the tensor " +
                                 tensor.elementType().toString() + tensor.shapeToString());
  if (field.layout == Layout::Scalar ? tensor.numElements() != 1 : tensor.rank() != 1)
    throw graph_connection_error(
        where + (field.layout == Layout::Scalar ? " holds one element" : " holds a vector: a tensor of one dimension") +
        ", not one of shape " + tensor.shapeToString() + (field.layout == Layout::Scalar ? "" : " (Tensor::flatten)"));
  if (vertex.edges[index].valid())
    throw graph_connection_error(where + " is connected already");
  if (field.direction != Direction::Input && tensor.containsConstant())
    throw graph_connection_error(where + " would write to a constant");
  vertex.edges[index] = tensor;
}

void Graph::setFieldValue(const FieldRef &fieldRef, double value) {
  VertexState &vertex = vertexOf(*state_, fieldRef.getVertexId());
  const std::size_t index = fieldOf(vertex, fieldRef.getName());
  const FieldInfo &field = vertex.codelet->fields[index];
  if (field.direction != Direction::Member)
    throw graph_connection_error("field \"" + field.name + "\" of " + vertex.describe() +
                                 " is an edge: it is connected to a tensor, which may have an initial value");
  vertex.members[index].resize(sizeOf(field.type));
  try {
    numberTo(value, field.type, vertex.members[index].data());
  } catch (const type_error &error) {
    throw type_error("field \"" + field.name + "\" of " + vertex.describe() + ": " + error.what());
  }
}

void Graph::setTensorValue(const Tensor &tensor, const std::vector<double> &values) {
  const std::size_t elements = tensor.numElements(), size = sizeOf(tensor.elementType());
  if (values.size() != 1 && values.size() != elements)
    throw tensor_creation_error("a tensor of shape " + tensor.shapeToString() + " with " +
                                std::to_string(values.size()) + " initial values");
  if (tensor.containsConstant())
    throw tensor_creation_error("a constant has its value already");
  std::size_t position = 0;
  viewOf(tensor).forRuns([&](const Run &run) {
    Variable &variable = state_->variables[run.var];
    variable.initial.resize(variable.numElements * size);
    variable.hasInitial.resize(variable.numElements, false);
    for (std::size_t i = 0; i < run.count; ++i, ++position) {
      numberTo(values.size() == 1 ? values[0] : values[position], tensor.elementType(),
               &variable.initial[run.at(i) * size]);
      variable.hasInitial[run.at(i)] = true;
    }
  });
}

void Graph::setTileMapping(VertexRef vertexRef, unsigned tileNum) {
  VertexState &vertex = vertexOf(*state_, vertexRef.getId());
  vertex.tile = globalTile(tileNum, vertex.describe().c_str());
  vertex.mapped = true;
}

void Graph::setTileMapping(const Tensor &tensor, unsigned tileNum) {
  if (!tensor.valid())
    throw invalid_tile_mapping("a default-constructed tensor");
  const View &view = viewOf(tensor);
  if (tileNum >= target_.getNumTiles()) {
    std::string name;
    view.forRuns([&](const Run &run) { name = name.empty() ? state_->describe(run.var) : name; });
    globalTile(tileNum, name.c_str());
  }
  const unsigned tile = tiles_.empty() ? tileNum : tiles_[tileNum];
  view.forIntervals(
      [&](unsigned var, std::size_t begin, std::size_t end) { state_->variables[var].map(begin, end, tile); });
}

void Graph::setTileMapping(const Tensor &tensor, const TileToTensorMapping &mapping) {
  const Tensor flat = tensor.flatten();
  for (std::size_t tile = 0; tile < mapping.size(); ++tile)
    for (const Interval &interval : mapping[tile])
      setTileMapping(flat.slice(interval), static_cast<unsigned>(tile));
}

Graph::TileToTensorMapping Graph::getTileMapping(const Tensor &tensor, bool requireComplete) const {
  bool complete = true;
  TileToTensorMapping mapping = getTileMapping(tensor, &complete);
  if (!complete && requireComplete)
    throw invalid_tile_mapping("the tile mapping of a tensor of shape " + tensor.shapeToString() +
                               " is not complete: Graph::setTileMapping maps it");
  return mapping;
}

Graph::TileToTensorMapping Graph::getTileMapping(const Tensor &tensor, bool *isComplete) const {
  TileToTensorMapping result(target_.getNumTiles());
  std::unordered_map<unsigned, unsigned> local;
  for (unsigned i = 0; i < tiles_.size(); ++i)
    local[tiles_[i]] = i;
  std::size_t position = 0, mapped = 0;
  const auto add = [&](unsigned tile, std::size_t begin, std::size_t end) {
    mapped += end - begin;
    if (!tiles_.empty()) {
      const auto found = local.find(tile);
      if (found == local.end())
        return;
      tile = found->second;
    }
    auto &intervals = result[tile];
    if (!intervals.empty() && intervals.back().end() == begin)
      intervals.back() = Interval(intervals.back().begin(), end);
    else
      intervals.emplace_back(begin, end);
  };
  viewOf(tensor).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
    const auto &mapping = state_->variables[var].mapping;
    auto at = mapping.upper_bound(begin);
    if (at != mapping.begin())
      --at;
    for (; at != mapping.end() && at->first < end; ++at) {
      const std::size_t from = std::max(begin, at->first), to = std::min(end, at->second.end);
      if (from < to)
        add(at->second.tile, position + (from - begin), position + (to - begin));
    }
    position += end - begin;
  });
  if (isComplete)
    *isComplete = mapped == position;
  return result;
}

void Graph::setPerfEstimate(const VertexRef &vertexRef, std::uint64_t cycles, std::uint64_t flops) {
  VertexState &vertex = vertexOf(*state_, vertexRef.getId());
  vertex.hasEstimate = true;
  vertex.estimate = {cycles, flops};
}

void Graph::registerPerfEstimator(StringRef vertexTypeName, PerfEstimateFunc estimator) {
  state_->estimators[normaliseVertexName(vertexTypeName)] = std::move(estimator);
}

namespace {

void addHandle(std::map<std::string, HostAccess> &handles, const std::string &name, const Tensor &tensor) {
  if (!tensor.valid())
    throw stream_connection_error("handle \"" + name + "\" of a default-constructed tensor");
  if (!handles.emplace(name, HostAccess{tensor, false, false}).second)
    throw stream_connection_error("handle \"" + name + "\" exists already");
}

} // namespace

void Graph::createHostWrite(StringRef handle, const Tensor &tensor, bool) {
  addHandle(state_->writes, handle, tensor);
  if (tensor.containsConstant())
    throw stream_connection_error("handle \"" + handle.cloneAsString() + "\" would write to a constant");
}

void Graph::createHostRead(StringRef handle, const Tensor &tensor, bool) { addHandle(state_->reads, handle, tensor); }

DataStream Graph::addHostToDeviceFIFO(StringRef handle, const Type &elementType, std::size_t numElements,
                                      ReplicatedStreamMode, const OptionFlags &) {
  const DataStream stream(handle, elementType, numElements, DataStreamType::HostToDeviceFIFO);
  if (!state_->streams.emplace(handle, stream).second)
    throw stream_connection_error("stream \"" + handle.cloneAsString() + "\" exists already");
  return stream;
}

DataStream Graph::addDeviceToHostFIFO(StringRef handle, const Type &elementType, std::size_t numElements,
                                      const OptionFlags &) {
  const DataStream stream(handle, elementType, numElements, DataStreamType::DeviceToHostFIFO);
  if (!state_->streams.emplace(handle, stream).second)
    throw stream_connection_error("stream \"" + handle.cloneAsString() + "\" exists already");
  return stream;
}

std::vector<std::vector<Interval>> Graph::getSortedContiguousRegions(const Tensor &tensor,
                                                                     ArrayRef<Interval> regions) const {
  struct Piece {
    unsigned var;
    std::size_t at;
    Interval interval;
  };
  std::vector<Piece> pieces;
  const Tensor flat = tensor.flatten();
  for (const Interval &region : regions) {
    std::size_t position = region.begin();
    viewOf(flat.slice(region)).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
      pieces.push_back({var, begin, Interval(position, position + (end - begin))});
      position += end - begin;
    });
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece &a, const Piece &b) { return std::tie(a.var, a.at) < std::tie(b.var, b.at); });
  std::vector<std::vector<Interval>> result;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool follows =
        i > 0 && pieces[i - 1].var == pieces[i].var && pieces[i - 1].at + pieces[i - 1].interval.size() == pieces[i].at;
    if (!follows)
      result.emplace_back();
    auto &group = result.back();
    if (follows && group.back().end() == pieces[i].interval.begin())
      group.back() = Interval(group.back().begin(), pieces[i].interval.end());
    else
      group.push_back(pieces[i].interval);
  }
  return result;
}

const std::string &VertexIntrospector::getVertexName() const { return vertex_.codelet->name; }

FieldData VertexIntrospector::getFieldInfo(const std::string &name) const {
  const std::size_t index = fieldOf(vertex_, name);
  FieldData data;
  data.type_ = vertex_.codelet->fields[index].type;
  data.size_ = vertex_.edges[index].valid() ? vertex_.edges[index].numElements() : 1;
  data.initialValue_ = vertex_.members[index];
  return data;
}

} // namespace poplar
