// poplar::ArrayRef: a view of consecutive elements, without ownership.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <vector>

namespace poplar {

template <typename T> class ArrayRef {
public:
  using value_type = T;
  using size_type = std::size_t;
  using const_iterator = const T *;
  using iterator = const_iterator;

  ArrayRef() = default;
  ArrayRef(const T &element) : data_(&element), size_(1) {}
  ArrayRef(const T *data, std::size_t size) : data_(data), size_(size) {}
  ArrayRef(const T *begin, const T *end) : data_(begin), size_(static_cast<std::size_t>(end - begin)) {}
  template <typename A> ArrayRef(const std::vector<T, A> &v) : data_(v.data()), size_(v.size()) {}
  template <std::size_t N> ArrayRef(const std::array<T, N> &a) : data_(a.data()), size_(N) {}
  template <std::size_t N> ArrayRef(const T (&a)[N]) : data_(a), size_(N) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winit-list-lifetime"
#endif
  // Only for arguments: the list lives until the end of the call.
  ArrayRef(const std::initializer_list<T> &list) : data_(list.begin()), size_(list.size()) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

  const T *begin() const { return data_; }
  const T *end() const { return data_ + size_; }
  const T *data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T &front() const { return (*this)[0]; }
  const T &back() const { return (*this)[size_ - 1]; }
  const T &operator[](std::size_t index) const { return data_[index]; }
  const T &at(std::size_t index) const {
    if (index >= size_)
      throw std::out_of_range("poplar::ArrayRef::at");
    return data_[index];
  }
  operator std::vector<T>() const { return std::vector<T>(begin(), end()); }
  std::vector<T> cloneAsVector() const { return std::vector<T>(begin(), end()); }

private:
  const T *data_ = nullptr;
  std::size_t size_ = 0;
};

} // namespace poplar
