#include <poplar/Tensor.hpp>
#include <poplar/exceptions.hpp>

#include <algorithm>
#include <numeric>

#include "state.hpp"

namespace poplar {
namespace detail {

std::size_t product(const std::vector<std::size_t> &shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t(1), std::multiplies<std::size_t>());
}

std::string shapeText(const std::vector<std::size_t> &shape) {
  std::string text = "{";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "}";
}

void Runs::add(Run run) {
  if (run.count == 0)
    return;
  if (run.count == 1)
    run.step = 1;
  if (!runs_.empty()) {
    Run &last = runs_.back();
    if (last.var == run.var) {
      const std::ptrdiff_t gap = static_cast<std::ptrdiff_t>(run.begin) - static_cast<std::ptrdiff_t>(last.begin);
      if (last.count == 1 && (run.count == 1 || run.step == gap)) {
        last.step = gap;
        last.count += run.count;
        return;
      }
      if (last.count > 1 && gap == static_cast<std::ptrdiff_t>(last.count) * last.step &&
          (run.count == 1 || run.step == last.step)) {
        last.count += run.count;
        return;
      }
    }
  }
  runs_.push_back(run);
}

namespace {

std::vector<std::ptrdiff_t> stridesOf(const std::vector<std::size_t> &shape, std::ptrdiff_t step) {
  std::vector<std::ptrdiff_t> strides(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = step;
    step *= static_cast<std::ptrdiff_t>(shape[d]);
  }
  return strides;
}

Tensor fromRuns(GraphState *graph, Type type, std::vector<std::size_t> shape, std::vector<Run> runs) {
  auto view = std::make_shared<View>();
  view->graph = graph;
  view->type = type;
  view->shape = std::move(shape);
  view->numElements = product(view->shape);
  if (runs.size() <= 1) {
    const Run run = runs.empty() ? Run{0, 0, 0, 1} : runs[0];
    view->var = run.var;
    view->offset = static_cast<std::ptrdiff_t>(run.begin);
    view->strides = stridesOf(view->shape, run.step);
  } else {
    view->strided = false;
    view->starts.reserve(runs.size());
    std::size_t position = 0;
    for (const Run &run : runs) {
      view->starts.push_back(position);
      position += run.count;
    }
    view->runs = std::move(runs);
  }
  return TensorAccess::make(view);
}

// Compute the strides of the same elements in another shape. Return false if there are none.
bool reshapedStrides(const View &view, const std::vector<std::size_t> &shape, std::vector<std::ptrdiff_t> &strides) {
  // Join old dimensions that are adjacent in memory to groups, and split these into new dimensions.
  std::vector<std::size_t> oldShape;
  std::vector<std::ptrdiff_t> oldStrides;
  for (std::size_t d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] == 1)
      continue;
    if (!oldShape.empty() && oldStrides.back() == view.strides[d] * static_cast<std::ptrdiff_t>(view.shape[d])) {
      oldShape.back() *= view.shape[d];
      oldStrides.back() = view.strides[d];
    } else {
      oldShape.push_back(view.shape[d]);
      oldStrides.push_back(view.strides[d]);
    }
  }
  strides.assign(shape.size(), 1);
  std::size_t group = oldShape.size();
  std::size_t remaining = 1;
  std::ptrdiff_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1)
      continue;
    if (remaining == 1) {
      if (group == 0)
        return false;
      --group;
      remaining = oldShape[group];
      stride = oldStrides[group];
    }
    if (remaining % shape[d] != 0)
      return false;
    strides[d] = stride;
    stride *= static_cast<std::ptrdiff_t>(shape[d]);
    remaining /= shape[d];
  }
  return remaining == 1 && group == 0;
}

const View &checked(const Tensor &tensor) {
  if (!tensor.valid())
    throw tensor_creation_error("a default-constructed tensor has no elements");
  return viewOf(tensor);
}

[[noreturn]] void badDimension(const View &view, std::size_t dimension) {
  throw index_error("dimension " + std::to_string(dimension) + " of a tensor of shape " + shapeText(view.shape));
}

void checkDimension(const View &view, std::size_t dimension) {
  if (dimension >= view.shape.size())
    badDimension(view, dimension);
}

std::vector<Run> runsOf(const View &view) {
  Runs runs;
  view.forRuns([&](const Run &run) { runs.add(run); });
  return runs.take();
}

std::shared_ptr<View> copyOf(const View &view) { return std::make_shared<View>(view); }

std::size_t productOf(const std::vector<std::size_t> &shape, std::size_t begin, std::size_t end) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), std::size_t(1),
                         std::multiplies<std::size_t>());
}

} // namespace
} // namespace detail

using namespace detail;

Tensor::Tensor() = default;
Tensor::Tensor(const Tensor &) = default;
Tensor::Tensor(Tensor &&) noexcept = default;
Tensor &Tensor::operator=(const Tensor &) = default;
Tensor &Tensor::operator=(Tensor &&) noexcept = default;
Tensor::~Tensor() = default;

Type Tensor::elementType() const { return checked(*this).type; }
std::vector<std::size_t> Tensor::shape() const { return checked(*this).shape; }
std::string Tensor::shapeToString() const { return shapeText(checked(*this).shape); }
std::size_t Tensor::rank() const { return checked(*this).shape.size(); }
std::size_t Tensor::dim(unsigned dimension) const {
  checkDimension(checked(*this), dimension);
  return view_->shape[dimension];
}
std::size_t Tensor::numElements() const { return checked(*this).numElements; }

Tensor Tensor::operator[](std::size_t index) const & { return slice(index, index + 1).squeeze({0}); }

Tensor Tensor::index(ArrayRef<std::size_t> indices) const {
  Tensor result = *this;
  for (std::size_t i : indices)
    result = result[i];
  return result;
}

Tensor Tensor::slice(std::size_t begin, std::size_t end, unsigned dimension) const {
  const View &view = checked(*this);
  checkDimension(view, dimension);
  if (begin > end || end > view.shape[dimension])
    throw index_error("slice [" + std::to_string(begin) + ", " + std::to_string(end) + ") of dimension " +
                      std::to_string(dimension) + " of a tensor of shape " + shapeText(view.shape));
  std::vector<std::size_t> shape = view.shape;
  shape[dimension] = end - begin;
  if (view.strided) {
    auto result = copyOf(view);
    result->shape = shape;
    result->numElements = product(shape);
    if (result->numElements)
      result->offset += static_cast<std::ptrdiff_t>(begin) * view.strides[dimension];
    return Tensor(result);
  }
  const std::size_t inner = productOf(view.shape, dimension + 1, view.shape.size());
  const std::size_t outer = productOf(view.shape, 0, dimension), block = view.shape[dimension] * inner;
  Runs runs;
  for (std::size_t i = 0; i < outer; ++i)
    view.forRuns(i * block + begin * inner, i * block + end * inner, [&](const Run &run) { runs.add(run); });
  return fromRuns(view.graph, view.type, shape, runs.take());
}

Tensor Tensor::slice(ArrayRef<std::size_t> begin, ArrayRef<std::size_t> end) const {
  if (begin.size() != end.size() || begin.size() > rank())
    throw index_error("slice with " + std::to_string(begin.size()) + " begins and " + std::to_string(end.size()) +
                      " ends of a tensor of shape " + shapeToString());
  Tensor result = *this;
  for (unsigned d = 0; d < begin.size(); ++d)
    result = result.slice(begin[d], end[d], d);
  return result;
}

Tensor Tensor::slice(const Interval &region, unsigned dimension) const {
  return slice(region.begin(), region.end(), dimension);
}

std::vector<Tensor> Tensor::slices(ArrayRef<Interval> intervals, unsigned dimension) const {
  std::vector<Tensor> result;
  for (const Interval &interval : intervals)
    result.push_back(slice(interval, dimension));
  return result;
}

Tensor Tensor::subSample(unsigned stride, unsigned dimension) const {
  const View &view = checked(*this);
  checkDimension(view, dimension);
  if (stride == 0)
    throw index_error("subSample with a stride of 0");
  const std::size_t size = (view.shape[dimension] + stride - 1) / stride;
  if (view.strided) {
    auto result = copyOf(view);
    result->shape[dimension] = size;
    result->strides[dimension] *= stride;
    result->numElements = product(result->shape);
    return Tensor(result);
  }
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < size; ++i)
    parts.push_back(slice(i * stride, i * stride + 1, dimension));
  return parts.empty() ? *this : concat(parts, dimension);
}

Tensor Tensor::reverse(unsigned dimension) const {
  const View &view = checked(*this);
  checkDimension(view, dimension);
  const std::size_t size = view.shape[dimension];
  if (size < 2)
    return *this;
  if (view.strided) {
    auto result = copyOf(view);
    result->offset += static_cast<std::ptrdiff_t>(size - 1) * view.strides[dimension];
    result->strides[dimension] = -view.strides[dimension];
    return Tensor(result);
  }
  std::vector<Tensor> parts;
  for (std::size_t i = size; i-- > 0;)
    parts.push_back(slice(i, i + 1, dimension));
  return concat(parts, dimension);
}

Tensor Tensor::reshape(ArrayRef<std::size_t> newShape) const {
  const View &view = checked(*this);
  const std::vector<std::size_t> shape = newShape;
  if (product(shape) != view.numElements)
    throw index_error("a tensor of shape " + shapeText(view.shape) + " has no shape " + shapeText(shape));
  if (view.strided) {
    auto result = copyOf(view);
    result->shape = shape;
    if (view.numElements == 0) {
      result->strides = stridesOf(shape, 1);
      return Tensor(result);
    }
    if (reshapedStrides(view, shape, result->strides))
      return Tensor(result);
    return fromRuns(view.graph, view.type, shape, runsOf(view));
  }
  auto result = copyOf(view);
  result->shape = shape;
  return Tensor(result);
}

Tensor Tensor::flatten() const { return reshape({numElements()}); }

Tensor Tensor::flatten(unsigned dimBegin, unsigned dimEnd) const {
  return reshapePartial(dimBegin, dimEnd, {productOf(checked(*this).shape, dimBegin, dimEnd)});
}

Tensor Tensor::reshapePartial(unsigned beginIndex, unsigned endIndex, ArrayRef<std::size_t> newDims) const {
  const std::vector<std::size_t> &old = checked(*this).shape;
  if (beginIndex > endIndex || endIndex > old.size())
    badDimension(*view_, endIndex);
  std::vector<std::size_t> shape(old.begin(), old.begin() + beginIndex);
  shape.insert(shape.end(), newDims.begin(), newDims.end());
  shape.insert(shape.end(), old.begin() + endIndex, old.end());
  return reshape(shape);
}

Tensor Tensor::dimShuffle(ArrayRef<unsigned> permutation) const {
  const View &view = checked(*this);
  const std::size_t rank = view.shape.size();
  std::vector<bool> seen(rank, false);
  for (unsigned d : permutation) {
    checkDimension(view, d);
    seen[d] = true;
  }
  if (permutation.size() != rank || std::count(seen.begin(), seen.end(), true) != static_cast<std::ptrdiff_t>(rank))
    throw index_error("dimShuffle of a tensor of shape " + shapeText(view.shape) + " needs each dimension once");
  std::vector<std::size_t> shape(rank);
  for (std::size_t d = 0; d < rank; ++d)
    shape[d] = view.shape[permutation[d]];
  if (view.strided) {
    auto result = copyOf(view);
    result->shape = shape;
    for (std::size_t d = 0; d < rank; ++d)
      result->strides[d] = view.strides[permutation[d]];
    return Tensor(result);
  }
  const std::vector<std::ptrdiff_t> flat = stridesOf(view.shape, 1);
  // Positions in the new order, as a strided view of the flattened elements.
  View positions;
  positions.shape = shape;
  positions.numElements = view.numElements;
  for (std::size_t d = 0; d < rank; ++d)
    positions.strides.push_back(flat[permutation[d]]);
  Runs runs;
  positions.forRuns([&](const Run &run) {
    if (run.step == 1)
      return view.forRuns(run.begin, run.begin + run.count, [&](const Run &part) { runs.add(part); });
    for (std::size_t i = 0; i < run.count; ++i)
      view.forRuns(run.at(i), run.at(i) + 1, [&](const Run &part) { runs.add(part); });
  });
  return fromRuns(view.graph, view.type, shape, runs.take());
}

Tensor Tensor::dimRoll(unsigned dimIdx, unsigned newIdx) const {
  const std::size_t rank = this->rank();
  checkDimension(*view_, dimIdx);
  checkDimension(*view_, newIdx);
  std::vector<unsigned> permutation;
  for (unsigned d = 0; d < rank; ++d)
    if (d != dimIdx)
      permutation.push_back(d);
  permutation.insert(permutation.begin() + newIdx, dimIdx);
  return dimShuffle(permutation);
}

Tensor Tensor::transpose() const {
  if (rank() != 2)
    throw index_error("transpose of a tensor of shape " + shapeToString() + ": it needs two dimensions");
  return dimShuffle({1, 0});
}

Tensor Tensor::expand(ArrayRef<std::size_t> indices) const {
  const std::vector<std::size_t> &old = checked(*this).shape;
  std::vector<std::size_t> sorted = indices, shape;
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty() && sorted.back() > old.size())
    badDimension(*view_, sorted.back());
  std::size_t next = 0;
  for (std::size_t d = 0; d <= old.size(); ++d) {
    for (; next < sorted.size() && sorted[next] == d; ++next)
      shape.push_back(1);
    if (d < old.size())
      shape.push_back(old[d]);
  }
  return reshape(shape);
}

Tensor Tensor::squeeze(ArrayRef<std::size_t> indices) const {
  std::vector<std::size_t> shape = checked(*this).shape;
  std::vector<std::size_t> sorted = indices;
  std::sort(sorted.rbegin(), sorted.rend());
  for (std::size_t d : sorted) {
    if (d >= shape.size() || shape[d] != 1)
      throw index_error("dimension " + std::to_string(d) + " of a tensor of shape " + shapeToString() +
                        " cannot be squeezed");
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(d));
  }
  return reshape(shape);
}

Tensor Tensor::broadcast(unsigned N, unsigned dimension) const {
  const View &view = checked(*this);
  checkDimension(view, dimension);
  if (view.strided && view.shape[dimension] == 1) {
    auto result = copyOf(view);
    result->shape[dimension] = N;
    result->strides[dimension] = 0;
    result->numElements = product(result->shape);
    return Tensor(result);
  }
  if (N == 0)
    return slice(0, 0, dimension);
  return concat(std::vector<Tensor>(N, *this), dimension);
}

Tensor Tensor::reinterpret(const Type &type) const {
  const View &view = checked(*this);
  if (sizeOf(type) != sizeOf(view.type))
    throw type_error("cannot reinterpret elements of type " + view.type.toString() + " as type " + type.toString() +
                     ": the sizes differ");
  auto result = copyOf(view);
  result->type = type;
  return Tensor(result);
}

bool Tensor::isContiguous() const {
  std::size_t intervals = 0;
  checked(*this).forIntervals([&](unsigned, std::size_t, std::size_t) { ++intervals; });
  return intervals <= 1;
}

bool Tensor::containsAliases() const {
  std::vector<VariableInterval> regions = getVarRegions();
  std::sort(regions.begin(), regions.end(), [](const VariableInterval &a, const VariableInterval &b) {
    return a.var.id() != b.var.id() ? a.var < b.var : a.interval < b.interval;
  });
  for (std::size_t i = 1; i < regions.size(); ++i)
    if (regions[i].var == regions[i - 1].var && regions[i].interval.begin() < regions[i - 1].interval.end())
      return true;
  return false;
}

bool Tensor::containsConstant() const {
  bool constant = false;
  const View &view = checked(*this);
  view.forRuns([&](const Run &run) { constant = constant || view.graph->variables[run.var].constant; });
  return constant;
}

std::vector<Interval> Tensor::getContiguousRegions() const {
  std::vector<Interval> regions;
  std::size_t position = 0;
  checked(*this).forIntervals([&](unsigned, std::size_t begin, std::size_t end) {
    regions.emplace_back(position, position + (end - begin));
    position += end - begin;
  });
  return regions;
}

std::vector<VariableInterval> Tensor::getVarRegions() const {
  std::vector<VariableInterval> regions;
  checked(*this).forIntervals([&](unsigned var, std::size_t begin, std::size_t end) {
    regions.push_back({VariableRef(var), Interval(begin, end)});
  });
  return regions;
}

bool operator==(const Tensor &a, const Tensor &b) {
  if (!a.valid() || !b.valid())
    return a.valid() == b.valid();
  if (viewOf(a).graph != viewOf(b).graph || viewOf(a).type != viewOf(b).type || viewOf(a).shape != viewOf(b).shape)
    return false;
  const auto remaining = a.getVarRegions(), right = b.getVarRegions();
  return std::equal(
      remaining.begin(), remaining.end(), right.begin(), right.end(),
      [](const VariableInterval &x, const VariableInterval &y) { return x.var == y.var && x.interval == y.interval; });
}

Tensor concat(ArrayRef<Tensor> tensors, unsigned dimension) {
  if (tensors.empty())
    throw tensor_creation_error("concat of no tensors");
  const View &first = checked(tensors[0]);
  checkDimension(first, dimension);
  std::vector<std::size_t> shape = first.shape;
  shape[dimension] = 0;
  for (const Tensor &tensor : tensors) {
    const View &view = checked(tensor);
    std::vector<std::size_t> other = view.shape;
    if (other.size() == shape.size())
      other[dimension] = 0;
    const std::size_t size = view.shape.size() == shape.size() ? view.shape[dimension] : 0;
    const std::size_t total = shape[dimension];
    shape[dimension] = 0;
    if (other != shape || view.type != first.type || view.graph != first.graph)
      throw tensor_creation_error("concat along dimension " + std::to_string(dimension) + " of " +
                                  first.type.toString() + shapeText(first.shape) + " and " + view.type.toString() +
                                  shapeText(view.shape) + ": the other dimensions, types and graphs must be the same");
    shape[dimension] = total + size;
  }
  const std::size_t outer = productOf(shape, 0, dimension);
  Runs runs;
  for (std::size_t i = 0; i < outer; ++i)
    for (const Tensor &tensor : tensors) {
      const View &view = viewOf(tensor);
      const std::size_t block = productOf(view.shape, dimension, view.shape.size());
      view.forRuns(i * block, (i + 1) * block, [&](const Run &run) { runs.add(run); });
    }
  return fromRuns(first.graph, first.type, shape, runs.take());
}

Tensor concat(const Tensor &first, const Tensor &second, unsigned dimension) {
  return concat(std::vector<Tensor>{first, second}, dimension);
}

Tensor append(const Tensor &first, const Tensor &second, unsigned dimension) {
  return concat(first, second.expand({dimension}), dimension);
}

} // namespace poplar
