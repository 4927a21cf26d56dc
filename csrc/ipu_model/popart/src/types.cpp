// Types, shapes, attributes, regions and identifiers of the PopART subset.
#include <popart/attributes.hpp>
#include <popart/datatype.hpp>
#include <popart/error.hpp>
#include <popart/operatoridentifier.hpp>
#include <popart/region.hpp>
#include <popart/tensorinfo.hpp>

#include <ostream>
#include <tuple>

namespace popart {
namespace {

struct TypeRow {
  const char *name;
  int bytes;
};

// In the order of the enumeration.
constexpr TypeRow typeTable[] = {
    {"UINT8", 1},     {"INT8", 1},        {"FLOAT8_143", 1}, {"FLOAT8_152", 1}, {"UINT16", 2},
    {"INT16", 2},     {"INT32", 4},       {"INT64", 8},      {"UINT32", 4},     {"UINT64", 8},
    {"BOOL", 1},      {"FLOAT", 4},       {"FLOAT16", 2},    {"BFLOAT16", 2},   {"DOUBLE", 8},
    {"COMPLEX64", 8}, {"COMPLEX128", 16}, {"STRING", 0},     {"UNDEFINED", 0},
};

const TypeRow &row(DataType type) { return typeTable[static_cast<int>(type)]; }

void writeShape(std::ostream &to, const Shape &shape) {
  to << '[';
  for (std::size_t i = 0; i < shape.size(); ++i)
    to << (i ? ", " : "") << shape[i];
  to << ']';
}

} // namespace

DataType dataTypeFromString(const std::string &name) {
  for (int i = 0; i < static_cast<int>(DataType::UNDEFINED); ++i)
    if (name == typeTable[i].name)
      return static_cast<DataType>(i);
  throw error("There is no type {}", name);
}

std::ostream &operator<<(std::ostream &to, const DataType &type) { return to << row(type).name; }

int64_t TensorInfo::nelms() const {
  int64_t count = 1;
  for (const int64_t size : shape_)
    count *= size;
  return count;
}

int64_t TensorInfo::nbytes() const { return nelms() * row(type_).bytes; }

int64_t TensorInfo::dim(int i) const {
  if (i < 0 || i >= rank())
    throw error("There is no dimension {} of a tensor of rank {}", i, rank());
  return shape_[static_cast<std::size_t>(i)];
}

std::ostream &operator<<(std::ostream &to, const TensorInfo &info) {
  to << info.dataType() << ' ';
  writeShape(to, info.shape());
  return to;
}

bool OperatorIdentifier::operator<(const OperatorIdentifier &other) const {
  return std::tie(domain, type, version) < std::tie(other.domain, other.type, other.version);
}

std::ostream &operator<<(std::ostream &to, const OperatorIdentifier &opid) {
  return to << opid.domain << '.' << opid.type << ':' << opid.version;
}

template <typename T> T Attributes::getAttribute(const std::string &key) const {
  const auto found = values_.find(key);
  if (found == values_.end())
    throw error("There is no attribute {}", key);
  if (const T *const value = std::get_if<T>(&found->second))
    return *value;
  throw error("Attribute {} is of another type than the operator reads", key);
}

template Attributes::Int Attributes::getAttribute(const std::string &) const;
template Attributes::Float Attributes::getAttribute(const std::string &) const;
template Attributes::String Attributes::getAttribute(const std::string &) const;
template Attributes::Ints Attributes::getAttribute(const std::string &) const;
template Attributes::Floats Attributes::getAttribute(const std::string &) const;
template Attributes::Strings Attributes::getAttribute(const std::string &) const;

namespace view {

Region Region::getEmpty(int64_t rank) {
  const std::vector<int64_t> zeros(static_cast<std::size_t>(rank));
  Region region(zeros, zeros);
  region.empty_ = true;
  return region;
}

Region Region::getFull(const Shape &shape) { return Region(Shape(shape.size()), shape); }

int64_t Region::nelms() const {
  int64_t count = empty_ ? 0 : 1;
  for (std::size_t i = 0; i < lower_.size(); ++i)
    count *= upper_[i] - lower_[i];
  return count;
}

} // namespace view
} // namespace popart
