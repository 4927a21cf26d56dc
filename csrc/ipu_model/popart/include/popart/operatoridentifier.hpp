// PopART subset: domain, name and version of an operator.
#pragma once

#include <popart/names.hpp>

#include <iosfwd>

namespace popart {

// The number of inputs that an operator may have. A maximum of 0 means unspecified.
struct NumInputs {
  NumInputs() : min(0), max(0) {}
  NumInputs(int count) : min(count), max(count) {}
  NumInputs(int min_, int max_) : min(min_), max(max_) {}

  int min, max;
};

// Comparisons ignore numInputs and numOutputs.
struct OperatorIdentifier {
  OperatorIdentifier(const OpDomain &domain_, const OpType &type_, OpVersion version_, NumInputs inputs = {},
                     int outputs = 0)
      : domain(domain_), type(type_), version(version_), numInputs(inputs), numOutputs(outputs) {}

  OpDomain domain;
  OpType type;
  OpVersion version;
  NumInputs numInputs;
  int numOutputs;

  bool operator==(const OperatorIdentifier &other) const {
    return domain == other.domain && type == other.type && version == other.version;
  }
  bool operator!=(const OperatorIdentifier &other) const { return !(*this == other); }
  bool operator<(const OperatorIdentifier &other) const;
};

struct OperatorIdentifierLess {
  bool operator()(const OperatorIdentifier &a, const OperatorIdentifier &b) const { return a < b; }
};

std::ostream &operator<<(std::ostream &, const OperatorIdentifier &);

} // namespace popart
