#include <poplar/Program.hpp>
#include <poplar/exceptions.hpp>

#include "state.hpp"

namespace poplar {
namespace program {

using detail::Kind;
using detail::ProgramNode;

namespace {

std::shared_ptr<ProgramNode> make(Kind kind, const DebugContext &debugContext) {
  auto node = std::make_shared<ProgramNode>();
  node->kind = kind;
  node->name = debugContext.getPathName();
  return node;
}

// Return the program in its current state, so that a sequence can be extended later without changing programs that
// contain it.
std::shared_ptr<const ProgramNode> frozen(const Program &program) {
  const auto &node = ProgramNode::of(program);
  return node->kind == Kind::Sequence ? std::make_shared<const ProgramNode>(*node) : node;
}

std::string text(const Tensor &tensor) { return tensor.elementType().toString() + tensor.shapeToString(); }

void checkWritten(const Tensor &dst, const char *what) {
  if (!dst.valid())
    throw graph_program_compilation_error(std::string(what) + " a default-constructed tensor");
  if (dst.containsConstant())
    throw graph_program_compilation_error(std::string(what) + " a constant, " + text(dst));
  if (dst.containsAliases())
    throw graph_program_compilation_error(std::string(what) + " a tensor that holds an element twice, " + text(dst));
}

void checkPredicate(const Tensor &predicate) {
  if (!predicate.valid() || predicate.numElements() != 1)
    throw graph_program_compilation_error("a predicate is a tensor of one element");
}

void checkStream(const DataStream &stream, const Tensor &tensor) {
  if (stream.elementType() != tensor.elementType() || stream.numElements() != tensor.numElements())
    throw graph_program_compilation_error("Copy between stream \"" + stream.handle() + "\", " +
                                          std::to_string(stream.numElements()) + " of " +
                                          stream.elementType().toString() + ", and a tensor " + text(tensor));
}

} // namespace

Program::Program() : node_(std::make_shared<ProgramNode>()) {}
bool Program::isEmpty() const { return node_->kind == Kind::Sequence && node_->children.empty(); }

Sequence::Sequence(const DebugContext &debugContext) { node_ = make(Kind::Sequence, debugContext); }
Sequence::Sequence(std::initializer_list<Program> programs, const DebugContext &debugContext)
    : Sequence(std::vector<Program>(programs), debugContext) {}
Sequence::Sequence(const std::vector<Program> &programs, const DebugContext &debugContext) : Sequence(debugContext) {
  for (const Program &program : programs)
    add(program);
}
Sequence::Sequence(const Sequence &other) : Program() { node_ = std::make_shared<ProgramNode>(*other.node_); }
Sequence &Sequence::operator=(const Sequence &other) {
  node_ = std::make_shared<ProgramNode>(*other.node_);
  return *this;
}
void Sequence::add(const Program &program) { node_->children.push_back(frozen(program)); }

Execute::Execute(ComputeSet cs, const DebugContext &debugContext) {
  node_ = make(Kind::Execute, debugContext);
  node_->computeSet = cs.getId();
}

Copy::Copy(Tensor src, Tensor dst, bool, const DebugContext &debugContext) {
  if (!src.valid())
    throw graph_program_compilation_error("Copy from a default-constructed tensor");
  checkWritten(dst, "Copy to");
  if (src.elementType() != dst.elementType() || src.numElements() != dst.numElements())
    throw graph_program_compilation_error("Copy from " + text(src) + " to " + text(dst) +
                                          ": types and numbers of elements must be the same");
  node_ = make(Kind::Copy, debugContext);
  node_->src = src;
  node_->dst = dst;
}

Copy::Copy(const DataStream &stream, Tensor dst, bool, const DebugContext &debugContext) {
  checkWritten(dst, "Copy to");
  checkStream(stream, dst);
  if (stream.type() != DataStreamType::HostToDeviceFIFO)
    throw graph_program_compilation_error("Copy from stream \"" + stream.handle() + "\", which leads to the host");
  node_ = make(Kind::StreamIn, debugContext);
  node_->stream = stream;
  node_->dst = dst;
}

Copy::Copy(Tensor src, const DataStream &stream, bool, const DebugContext &debugContext) {
  if (!src.valid())
    throw graph_program_compilation_error("Copy from a default-constructed tensor");
  checkStream(stream, src);
  if (stream.type() != DataStreamType::DeviceToHostFIFO)
    throw graph_program_compilation_error("Copy to stream \"" + stream.handle() + "\", which comes from the host");
  node_ = make(Kind::StreamOut, debugContext);
  node_->stream = stream;
  node_->src = src;
}

Repeat::Repeat(unsigned count, const Program &body, const DebugContext &debugContext) {
  node_ = make(Kind::Repeat, debugContext);
  node_->count = count;
  node_->children = {frozen(body)};
}

RepeatWhileTrue::RepeatWhileTrue(const Program &cond, Tensor predicate, const Program &body,
                                 const DebugContext &debugContext) {
  checkPredicate(predicate);
  node_ = make(Kind::While, debugContext);
  node_->src = predicate;
  node_->children = {frozen(cond), frozen(body)};
}

RepeatWhileFalse::RepeatWhileFalse(const Program &cond, Tensor predicate, const Program &body,
                                   const DebugContext &debugContext) {
  checkPredicate(predicate);
  node_ = make(Kind::While, debugContext);
  node_->whileTrue = false;
  node_->src = predicate;
  node_->children = {frozen(cond), frozen(body)};
}

If::If(Tensor predicate, const Program &trueBody, const Program &falseBody, const DebugContext &debugContext) {
  checkPredicate(predicate);
  node_ = make(Kind::If, debugContext);
  node_->src = predicate;
  node_->children = {frozen(trueBody), frozen(falseBody)};
}

PrintTensor::PrintTensor(Tensor tensor, const DebugContext &debugContext)
    : PrintTensor(debugContext.getPathName(), tensor, debugContext) {}
PrintTensor::PrintTensor(StringRef title, Tensor tensor, const DebugContext &debugContext) {
  if (!tensor.valid())
    throw graph_program_compilation_error("PrintTensor of a default-constructed tensor");
  node_ = make(Kind::Print, debugContext);
  node_->name = title;
  node_->src = tensor;
}

WriteUndef::WriteUndef(Tensor tensor, const DebugContext &debugContext) {
  checkWritten(tensor, "WriteUndef of");
  node_ = make(Kind::WriteUndef, debugContext);
  node_->dst = tensor;
}

} // namespace program
} // namespace poplar
