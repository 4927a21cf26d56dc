// PopART subset: an operator's attributes as text, by which operators are compared.
#pragma once

#include <popart/names.hpp>

#include <iomanip>
#include <limits>
#include <sstream>

namespace popart {

class OpSerialiserBase {
public:
  virtual ~OpSerialiserBase() = default;

  template <typename T> void appendAttribute(const std::string &key, const T &value) {
    std::ostringstream text(std::ios_base::out);
    text << std::setprecision(std::numeric_limits<double>::max_digits10);
    write(text, value);
    appendText(key, text.str());
  }

private:
  template <typename T> static void write(std::ostream &to, const T &value) { to << value; }
  template <typename T> static void write(std::ostream &to, const std::vector<T> &values) {
    for (const T &value : values)
      to << value << ' ';
  }
  virtual void appendText(const std::string &key, const std::string &value) = 0;
};

} // namespace popart
