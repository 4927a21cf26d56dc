// PopART subset: exceptions, constructed from a format string with {} for each argument.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace popart {

class error : public std::runtime_error {
public:
  template <typename... Args>
  explicit error(const std::string &format, const Args &...args) : std::runtime_error(fill(format, args...)) {}

private:
  static std::string fill(const std::string &format) { return format; }
  template <typename First, typename... Rest>
  static std::string fill(const std::string &format, const First &first, const Rest &...rest) {
    const std::size_t at = format.find("{}");
    if (at == std::string::npos)
      return format;
    std::ostringstream text(std::ios_base::out);
    text << first;
    return format.substr(0, at) + text.str() + fill(format.substr(at + 2), rest...);
  }
};

class internal_error : public error {
public:
  using error::error;
};

} // namespace popart
