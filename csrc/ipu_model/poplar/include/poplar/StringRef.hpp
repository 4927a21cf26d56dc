// poplar::StringRef: a view of characters, without ownership.
#pragma once

#include <cstddef>
#include <cstring>
#include <ostream>
#include <string>

#include <poplar/ArrayRef.hpp>

namespace poplar {

class StringRef : public ArrayRef<char> {
public:
  StringRef() = default;
  StringRef(const char *text) : ArrayRef<char>(text, std::strlen(text)) {}
  StringRef(const std::string &text) : ArrayRef<char>(text.data(), text.size()) {}
  StringRef(const char *text, std::size_t size) : ArrayRef<char>(text, size) {}

  operator std::string() const { return cloneAsString(); }
  std::string cloneAsString() const { return std::string(begin(), end()); }
};

inline bool operator==(StringRef a, StringRef b) { return a.cloneAsString() == b.cloneAsString(); }
inline bool operator!=(StringRef a, StringRef b) { return !(a == b); }
inline bool operator<(StringRef a, StringRef b) { return a.cloneAsString() < b.cloneAsString(); }
inline std::string operator+(StringRef a, StringRef b) { return a.cloneAsString() + b.cloneAsString(); }
inline std::ostream &operator<<(std::ostream &out, StringRef text) { return out << text.cloneAsString(); }

} // namespace poplar
