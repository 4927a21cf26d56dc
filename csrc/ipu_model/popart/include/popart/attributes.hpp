// PopART subset: an operator's attributes. PopART reads them from ONNX; here set() adds them.
#pragma once

#include <popart/names.hpp>

#include <map>
#include <variant>

namespace popart {

class Attributes {
public:
  using Ints = std::vector<int64_t>;
  using Int = int64_t;
  using Floats = std::vector<float>;
  using Float = float;
  using Strings = std::vector<std::string>;
  using String = std::string;
  // Only in this model.
  using Value = std::variant<Int, Float, String, Ints, Floats, Strings>;

  void set(const std::string &key, Value value) { values_[key] = std::move(value); }
  const std::map<std::string, Value> &values() const { return values_; }

  bool hasAttribute(const std::string &key) const { return values_.count(key) != 0; }
  // Throw if the attribute does not exist and there is no default, or if it has another type.
  template <typename T> T getAttribute(const std::string &key) const;
  template <typename T> T getAttribute(const std::string &key, const T &otherwise) const {
    return hasAttribute(key) ? getAttribute<T>(key) : otherwise;
  }

private:
  std::map<std::string, Value> values_;
};

} // namespace popart
