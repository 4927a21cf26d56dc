// poplar::OptionFlags: options by name.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include <poplar/StringRef.hpp>

namespace poplar {

class OptionFlags {
public:
  using OptionFlag = std::pair<const std::string, std::string>;
  using initializer_list = std::initializer_list<OptionFlag>;
  using iterator = std::map<std::string, std::string>::const_iterator;

  OptionFlags() = default;
  OptionFlags(initializer_list flags) : flags_(flags) {}

  void set(StringRef option, StringRef value) { flags_[option] = value.cloneAsString(); }
  void set(initializer_list flags) {
    for (const auto &flag : flags)
      flags_[flag.first] = flag.second;
  }
  // Throw std::out_of_range if the option is not set.
  StringRef at(StringRef option) const { return flags_.at(option); }
  void clear() { flags_.clear(); }
  iterator begin() const { return flags_.begin(); }
  iterator end() const { return flags_.end(); }

private:
  std::map<std::string, std::string> flags_;
};

} // namespace poplar
