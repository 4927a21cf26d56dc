// The model's description of a codelet: its fields, and functions that make and run a vertex. csrc/ipu_model/popc
// writes tables of them.
#pragma once

#include <cstddef>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <poplar/HalfFloat.hpp>
#include <poplar/Type.hpp>
#include <poplar/Vertex.hpp>

namespace poplar {
class Graph;
template <> struct equivalent_device_type<half> { static constexpr Type value = HALF; };
} // namespace poplar

namespace snnipu {
namespace ipu_model {

enum class Direction { Member, Input, Output, InOut };
enum class Layout { Scalar, OnePtr, Span };

struct FieldInfo {
  std::string name;
  Direction direction;
  Layout layout;
  poplar::Type type;
  unsigned minAlign;  // bytes, of the first element
  std::size_t offset; // in the vertex on the host
};

struct Codelet {
  std::string name;
  bool multiVertex;
  std::size_t size, alignment;   // on the host
  std::vector<FieldInfo> fields; // in the order of their declaration
  void (*construct)(void *storage);
  // A MultiVertex: compute(order[0 .. workers)). A Vertex: compute().
  void (*run)(void *vertex, const unsigned *order, unsigned workers);
};

template <typename F> struct FieldTraits {
  static_assert(std::is_arithmetic_v<F>, "a plain member of a codelet is a number");
  static constexpr Direction direction = Direction::Member;
  static constexpr Layout layout = Layout::Scalar;
  static constexpr unsigned minAlign = alignof(F);
  using Element = F;
};
template <Direction D, typename T> struct EdgeTraits {
  static constexpr Direction direction = D;
  static constexpr Layout layout = Layout::Scalar;
  static constexpr unsigned minAlign = alignof(T);
  using Element = T;
};
template <Direction D, typename T, poplar::VectorLayout L, unsigned A> struct EdgeTraits<D, poplar::Vector<T, L, A>> {
  static constexpr Direction direction = D;
  static constexpr Layout layout = L == poplar::VectorLayout::SPAN ? Layout::Span : Layout::OnePtr;
  static constexpr unsigned minAlign = A;
  using Element = T;
};
template <typename T> struct FieldTraits<poplar::Input<T>> : EdgeTraits<Direction::Input, T> {};
template <typename T> struct FieldTraits<poplar::Output<T>> : EdgeTraits<Direction::Output, T> {};
template <typename T> struct FieldTraits<poplar::InOut<T>> : EdgeTraits<Direction::InOut, T> {};

// This is not inline, because a table has a thousand of these calls.
void addField(Codelet &codelet, const char *name, Direction direction, Layout layout, poplar::Type type,
              unsigned minAlign, std::ptrdiff_t offset);

// Describes vertex class V: CodeletOf<V>("name").field("x", &V::x)...
template <typename V> class CodeletOf {
public:
  static constexpr bool multiVertex = std::is_base_of_v<poplar::MultiVertex, V>;

  explicit CodeletOf(const char *name)
      : codelet_{name,
                 multiVertex,
                 sizeof(V),
                 alignof(V),
                 {},
                 [](void *storage) { new (storage) V; },
                 [](void *vertex, const unsigned *order, unsigned workers) {
                   V &v = *static_cast<V *>(vertex);
                   if constexpr (multiVertex) {
                     poplar::MultiVertex::setNumWorkers(workers);
                     for (unsigned i = 0; i < workers; ++i)
                       v.compute(order[i]);
                   } else {
                     (void)order;
                     (void)workers;
                     v.compute();
                   }
                 }} {
    static_assert(std::is_base_of_v<poplar::Vertex, V>, "a codelet derives from poplar::Vertex or poplar::MultiVertex");
    static_assert(std::is_trivially_copyable_v<V>, "the model takes vertices back to how they were");
  }

  template <typename F> CodeletOf &field(const char *name, F V::*member) {
    using Traits = FieldTraits<F>;
    addField(codelet_, name, Traits::direction, Traits::layout,
             poplar::equivalent_device_type<typename Traits::Element>::value, Traits::minAlign,
             reinterpret_cast<const unsigned char *>(&(sample_.*member)) -
                 reinterpret_cast<const unsigned char *>(&sample_));
    return *this;
  }

  operator Codelet() const { return codelet_; }

private:
  Codelet codelet_;
  V sample_{}; // gives the offsets of the fields
};

// Register codelets of a file, named without folders and extensions. Several tables may register codelets of one file.
void registerCodelets(const char *file, std::vector<Codelet> codelets);
// Register a function that is called for every graph that the file's codelets are added to.
void registerEstimators(const char *file, std::function<void(poplar::Graph &)> addTo);

// Return the registered names of a file's codelets.
std::vector<std::string> codeletNames(const char *file);

struct CodeletRegistration {
  CodeletRegistration(const char *file, std::vector<Codelet> codelets) { registerCodelets(file, std::move(codelets)); }
};
struct EstimatorRegistration {
  EstimatorRegistration(const char *file, std::function<void(poplar::Graph &)> addTo) {
    registerEstimators(file, std::move(addTo));
  }
};

// Thrown if a codelet accesses a vector at an address that a tile could not access.
class MisalignedAccess : public std::runtime_error {
public:
  explicit MisalignedAccess(unsigned bytes)
      : std::runtime_error("reads or writes " + std::to_string(bytes) +
                           " bytes at once at an address that is no multiple of them: on a tile that is an exception") {
  }
};

// "a::B< unsigned , c >" -> "a::B<unsigned int,c>".
std::string normaliseVertexName(const std::string &name);

} // namespace ipu_model
} // namespace snnipu
