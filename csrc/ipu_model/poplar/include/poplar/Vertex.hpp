// A replacement for Poplar's <poplar/Vertex.hpp> on the host, in which the field types of a codelet are plain pointers.
// It follows the Poplar API reference ("Writing vertices in C++"). It is never on popc's include path.
#pragma once

#include <cstddef>

#if defined(__POPC__)
#include <poplar/HalfFloat.hpp>
#endif

namespace poplar {

enum class VectorLayout { SPAN, ONE_PTR };

// A field of `size()` consecutive elements. ONE_PTR fields do not know their size, as on the device.
template <typename T, VectorLayout Layout = VectorLayout::SPAN, unsigned MinAlign = alignof(T)> class Vector {
public:
  using value_type = T;
};

namespace detail {

// An edge of a vertex with one element.
template <typename T> class Field {
public:
  void connect(T *data) { data_ = data; }
  T &operator*() const { return *data_; }
  operator T &() const { return *data_; }

private:
  T *data_ = nullptr;
};

template <typename T> class PointerField {
public:
  // data may be null if there are no elements. The field gets an address anyway, as on the device, because a vertex may
  // form the address of an element that it does not access.
  void connect(T *data) { data_ = data ? data : reinterpret_cast<T *>(alignof(std::max_align_t)); }
  T &operator[](std::size_t index) const { return data_[index]; }
  T *data() const { return data_; }

protected:
  T *data_ = nullptr;
};

template <typename T> class SpanField : public PointerField<T> {
public:
  void connect(T *data, std::size_t size) {
    this->data_ = data;
    size_ = size;
  }
  std::size_t size() const { return size_; }
  T *begin() const { return this->data_; }
  T *end() const { return this->data_ + size_; }

private:
  std::size_t size_ = 0;
};

} // namespace detail

template <typename T> class Output : public detail::Field<T> {
public:
  T &operator=(const T &value) const { return **this = value; }
};
template <typename T> class InOut : public Output<T> {
public:
  using Output<T>::operator=;
};
template <typename T> class Input : public detail::Field<const T> {};

template <typename T, unsigned A>
class Input<Vector<T, VectorLayout::ONE_PTR, A>> : public detail::PointerField<const T> {};
template <typename T, unsigned A> class Output<Vector<T, VectorLayout::ONE_PTR, A>> : public detail::PointerField<T> {};
template <typename T, unsigned A> class InOut<Vector<T, VectorLayout::ONE_PTR, A>> : public detail::PointerField<T> {};
template <typename T, unsigned A> class Input<Vector<T, VectorLayout::SPAN, A>> : public detail::SpanField<const T> {};
template <typename T, unsigned A> class Output<Vector<T, VectorLayout::SPAN, A>> : public detail::SpanField<T> {};
template <typename T, unsigned A> class InOut<Vector<T, VectorLayout::SPAN, A>> : public detail::SpanField<T> {};

// csrc/ipu_model/popc finds a codelet by this base class, and its fields by their types.
class Vertex {};

// compute(workerId) runs once for each of numWorkers() workers: six on a tile, one in a host thread.
class MultiVertex : public Vertex {
public:
  static unsigned numWorkers() { return workers(); }
  static void setNumWorkers(unsigned count) { workers() = count; }

private:
  static unsigned &workers() {
    static thread_local unsigned count = 1;
    return count;
  }
};

} // namespace poplar
