// poplar::program: control programs.
#pragma once

#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <poplar/DataStream.hpp>
#include <poplar/DebugContext.hpp>
#include <poplar/GraphElements.hpp>
#include <poplar/Tensor.hpp>

namespace poplar {
namespace detail {
struct ProgramNode;
}

namespace program {

class Program {
public:
  Program();
  bool isEmpty() const;

protected:
  friend struct detail::ProgramNode;
  std::shared_ptr<detail::ProgramNode> node_;
};

// Programs that run one after another. A copy is independent: adding to one does not change the other.
class Sequence : public Program {
public:
  Sequence(const DebugContext &debugContext = {});
  Sequence(std::initializer_list<Program> programs, const DebugContext &debugContext = {});
  Sequence(const std::vector<Program> &programs, const DebugContext &debugContext = {});
  Sequence(const Sequence &other);
  Sequence &operator=(const Sequence &other);
  void add(const Program &program);
  void add_back(const Program &program) { add(program); }
};

// Run all vertices of a compute set, in no particular order.
class Execute : public Program {
public:
  Execute(ComputeSet cs, const DebugContext &debugContext = {});
};

// Copy element by element, between equal types and numbers of elements.
class Copy : public Program {
public:
  Copy(Tensor src, Tensor dst, bool dontOutline = false, const DebugContext &debugContext = {});
  Copy(const DataStream &stream, Tensor dst, bool optimiseMemory = false, const DebugContext &debugContext = {});
  Copy(Tensor src, const DataStream &stream, bool optimiseMemory = false, const DebugContext &debugContext = {});
};

class Repeat : public Program {
public:
  Repeat(unsigned count, const Program &body, const DebugContext &debugContext = {});
};

// cond runs before each iteration. predicate has one element.
class RepeatWhileTrue : public Program {
public:
  RepeatWhileTrue(const Program &cond, Tensor predicate, const Program &body, const DebugContext &debugContext = {});
};
class RepeatWhileFalse : public Program {
public:
  RepeatWhileFalse(const Program &cond, Tensor predicate, const Program &body, const DebugContext &debugContext = {});
};

class If : public Program {
public:
  If(Tensor predicate, const Program &trueBody, const Program &falseBody, const DebugContext &debugContext = {});
};

// Write a tensor's values to the stream of Engine::setPrintTensorStream, by default std::cerr.
class PrintTensor : public Program {
public:
  PrintTensor(Tensor tensor, const DebugContext &debugContext = {});
  PrintTensor(StringRef title, Tensor tensor, const DebugContext &debugContext = {});
};

// Mark the tensor's values as unused from here on. The model poisons them.
class WriteUndef : public Program {
public:
  WriteUndef(Tensor tensor, const DebugContext &debugContext = {});
};

} // namespace program
} // namespace poplar
