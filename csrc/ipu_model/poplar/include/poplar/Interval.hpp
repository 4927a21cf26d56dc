// poplar::Interval: [begin, end).
#pragma once

#include <cstddef>
#include <ostream>
#include <tuple>

namespace poplar {

template <typename T> class GenericInterval {
public:
  GenericInterval() = default;
  GenericInterval(T begin, T end) : begin_(begin), end_(end) {}

  const T &begin() const { return begin_; }
  const T &end() const { return end_; }
  T size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }

private:
  T begin_ = T();
  T end_ = T();
};

template <typename T> bool operator==(const GenericInterval<T> &a, const GenericInterval<T> &b) {
  return a.begin() == b.begin() && a.end() == b.end();
}
template <typename T> bool operator!=(const GenericInterval<T> &a, const GenericInterval<T> &b) { return !(a == b); }
template <typename T> bool operator<(const GenericInterval<T> &a, const GenericInterval<T> &b) {
  return std::make_tuple(a.begin(), a.end()) < std::make_tuple(b.begin(), b.end());
}
template <typename T> std::ostream &operator<<(std::ostream &out, const GenericInterval<T> &interval) {
  return out << '[' << interval.begin() << ", " << interval.end() << ')';
}

using Interval = GenericInterval<std::size_t>;

} // namespace poplar
