// Names of variables, compute sets and programs, as paths that start at the operator.
#pragma once

#include <cstdint>
#include <string>

#include <poplar/StringRef.hpp>

namespace poplar {

using DebugId = std::uint64_t;

class SourceLocation {
public:
  SourceLocation() = default;
  SourceLocation(StringRef function, StringRef file, unsigned line)
      : function_(function.cloneAsString()), file_(file.cloneAsString()), line_(line) {}
  // Used as a default argument, this is the caller's location.
  static SourceLocation Current(const char *function = __builtin_FUNCTION(), const char *file = __builtin_FILE(),
                                unsigned line = __builtin_LINE()) {
    return SourceLocation(function, file, line);
  }

  const std::string &getFunctionName() const { return function_; }
  const std::string &getFileName() const { return file_; }
  unsigned getLineNumber() const { return line_; }
  bool isValid() const { return !file_.empty(); }

private:
  std::string function_;
  std::string file_;
  unsigned line_ = 0;
};

class DebugInfo;

// A name with the path of its parent.
class DebugNameAndId {
public:
  DebugNameAndId(std::string name = "", DebugId id = 0, std::string parentPath = "")
      : path_(join(parentPath, name)), id_(id) {}
  DebugNameAndId(const char *name) : path_(name) {}
  DebugNameAndId(const DebugInfo &parent, std::string name = "");
  DebugNameAndId(const DebugNameAndId &parent, std::string name) : path_(join(parent.path_, name)), id_(parent.id_) {}

  std::string getPathName() const { return path_; }
  DebugId getId() const { return id_; }
  static std::string join(const std::string &parent, const std::string &name) {
    return parent.empty() || name.empty() ? parent + name : parent + "/" + name;
  }

private:
  std::string path_;
  DebugId id_ = 0;
};

// Constructed from a name, or from {parent, name}.
class DebugContext {
public:
  DebugContext(SourceLocation = SourceLocation::Current()) {}
  DebugContext(const char *name, SourceLocation = SourceLocation::Current()) : path_(name) {}
  DebugContext(StringRef name, SourceLocation = SourceLocation::Current()) : path_(name.cloneAsString()) {}
  DebugContext(std::string name, SourceLocation = SourceLocation::Current()) : path_(std::move(name)) {}
  DebugContext(const DebugInfo &parent, std::string name = "", SourceLocation = SourceLocation::Current());
  DebugContext(const DebugNameAndId &parent, std::string name = "", SourceLocation = SourceLocation::Current())
      : path_(DebugNameAndId::join(parent.getPathName(), name)) {}

  std::string getPathName() const { return path_; }

private:
  std::string path_;
};

// A named scope of an operator: the parent of the names inside it.
class DebugInfo {
public:
  DebugInfo(const DebugContext &context, std::string api) : path_(context.getPathName()), api_(std::move(api)) {}
  virtual ~DebugInfo() = default;
  DebugInfo(const DebugInfo &) = delete;
  DebugInfo &operator=(const DebugInfo &) = delete;

  DebugId getId() const { return 0; }
  std::string getPathName() const { return path_; }

private:
  std::string path_;
  std::string api_;
};

inline DebugNameAndId::DebugNameAndId(const DebugInfo &parent, std::string name)
    : path_(join(parent.getPathName(), name)), id_(parent.getId()) {}
inline DebugContext::DebugContext(const DebugInfo &parent, std::string name, SourceLocation)
    : path_(DebugNameAndId::join(parent.getPathName(), name)) {}

} // namespace poplar
