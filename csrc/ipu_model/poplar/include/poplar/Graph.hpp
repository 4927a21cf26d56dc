// poplar::Graph: variables, compute sets of vertices, and their mapping to tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include <poplar/ArrayRef.hpp>
#include <poplar/CodeletFileType.hpp>
#include <poplar/DataStream.hpp>
#include <poplar/DebugContext.hpp>
#include <poplar/Device.hpp>
#include <poplar/GraphElements.hpp>
#include <poplar/Interval.hpp>
#include <poplar/OptionFlags.hpp>
#include <poplar/StringRef.hpp>
#include <poplar/Target.hpp>
#include <poplar/Tensor.hpp>
#include <poplar/Type.hpp>
#include <poplar/VariableMappingMethod.hpp>
#include <poplar/VertexIntrospector.hpp>
#include <poplar/exceptions.hpp>

namespace poplar {

// A connection of a vertex field: to a tensor, or the value of a plain member.
class ConnectionDesc {
public:
  ConnectionDesc(StringRef field, const Tensor &tensor) : field_(field.cloneAsString()), tensor_(tensor) {}
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  ConnectionDesc(StringRef field, T value)
      : field_(field.cloneAsString()), isValue_(true), value_(static_cast<double>(value)) {}

  const std::string &field() const { return field_; }
  bool isValue() const { return isValue_; }
  const Tensor &tensor() const { return tensor_; }
  double value() const { return value_; }

private:
  std::string field_;
  Tensor tensor_;
  bool isValue_ = false;
  double value_ = 0; // represents every 32-bit integer exactly
};

class Graph {
public:
  // A list of intervals of the flattened tensor for each tile.
  using TileToTensorMapping = std::vector<std::vector<Interval>>;

  explicit Graph(const Target &target);
  explicit Graph(const Device &device) : Graph(device.getTarget()) {}
  ~Graph();
  Graph(Graph &&) noexcept;
  Graph &operator=(Graph &&) noexcept;
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;

  // The target of a virtual graph has only its tiles.
  const Target &getTarget() const;
  // Return a graph over the same variables and vertices whose tile i is tile perIpuTiles[i] of every IPU.
  Graph createVirtualGraph(const std::vector<unsigned> &perIpuTiles);
  Graph createVirtualGraph(unsigned lowerTile, unsigned upperTile);

  // Add the vertices of a codelet file. The model has them compiled in, by the file's name without folders and
  // extensions. Throw file_load_error if there are none of that name.
  bool addCodelets(StringRef src, CodeletFileType type = CodeletFileType::Auto, StringRef compileFlags = "",
                   StringRef targetName = "");

  Tensor addVariable(const Type &type, ArrayRef<std::size_t> shape, const DebugContext &debugContext = {});
  Tensor addVariable(const Type &type, ArrayRef<std::size_t> shape, VariableMappingMethod method,
                     const DebugContext &debugContext = {});
  template <typename T>
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, ArrayRef<T> values,
                     const DebugContext &debugContext = {"<const>"}) {
    const std::vector<double> wide(values.begin(), values.end());
    return addConstantFrom(type, shape, wide, debugContext);
  }
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, T value,
                     const DebugContext &debugContext = {"<const>"}) {
    return addConstantFrom(type, shape, {static_cast<double>(value)}, debugContext);
  }
  // Values in the device's storage format: two bytes for a half.
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, const void *values,
                     const DebugContext &debugContext = {"<const>"});
  Tensor clone(const Type &type, const Tensor &tensor, const DebugContext &debugContext = {},
               TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);
  Tensor clone(const Tensor &tensor, const DebugContext &debugContext = {},
               TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);

  ComputeSet addComputeSet(const DebugContext &debugContext = {});
  VertexRef addVertex(ComputeSet cs, StringRef vertexType);
  VertexRef addVertex(ComputeSet cs, StringRef vertexType, ArrayRef<ConnectionDesc> connections);
  void connect(FieldRef field, const Tensor &tensor);
  // Set the value of a plain member of the vertex.
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  void setInitialValue(FieldRef field, T value) {
    setFieldValue(field, static_cast<double>(value));
  }
  // Set the values that a tensor has when the engine is loaded.
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  void setInitialValue(const Tensor &tensor, T value) {
    setTensorValue(tensor, {static_cast<double>(value)});
  }
  template <typename T> void setInitialValue(const Tensor &tensor, ArrayRef<T> values) {
    setTensorValue(tensor, std::vector<double>(values.begin(), values.end()));
  }

  void setTileMapping(VertexRef vertex, unsigned tileNum);
  void setTileMapping(const Tensor &tensor, unsigned tileNum);
  void setTileMapping(const Tensor &tensor, const TileToTensorMapping &mapping);
  // Throw invalid_tile_mapping if an element is not mapped, unless requireComplete is false.
  TileToTensorMapping getTileMapping(const Tensor &tensor, bool requireComplete = true) const;
  TileToTensorMapping getTileMapping(const Tensor &tensor, bool *isComplete) const;

  // Set the cycles of one run, which replace those of the vertex type's estimator.
  void setPerfEstimate(const VertexRef &vertex, std::uint64_t cycles, std::uint64_t flops = 0);
  void registerPerfEstimator(StringRef vertexTypeName, PerfEstimateFunc estimator);

  void createHostWrite(StringRef handle, const Tensor &tensor, bool rearrangeOnHost = false);
  void createHostRead(StringRef handle, const Tensor &tensor, bool rearrangeOnHost = false);
  DataStream addHostToDeviceFIFO(StringRef handle, const Type &elementType, std::size_t numElements,
                                 ReplicatedStreamMode mode = ReplicatedStreamMode::REPLICATE,
                                 const OptionFlags &options = {});
  DataStream addDeviceToHostFIFO(StringRef handle, const Type &elementType, std::size_t numElements,
                                 const OptionFlags &options = {});

  // Return intervals of the flattened tensor, grouped so that each group is contiguous in memory.
  std::vector<std::vector<Interval>> getSortedContiguousRegions(const Tensor &tensor, ArrayRef<Interval> regions) const;

private:
  friend class Engine;
  Graph(std::shared_ptr<detail::GraphState> state, const Target &target, std::vector<unsigned> tiles);
  Tensor addConstantFrom(const Type &type, ArrayRef<std::size_t> shape, const std::vector<double> &values,
                         const DebugContext &debugContext);
  void setFieldValue(const FieldRef &field, double value);
  void setTensorValue(const Tensor &tensor, const std::vector<double> &values);
  unsigned globalTile(unsigned tile, const char *what) const;

  std::shared_ptr<detail::GraphState> state_;
  Target target_;
  std::vector<unsigned> tiles_; // of a virtual graph: the machine's tile for each of its tiles; else empty
};

} // namespace poplar
