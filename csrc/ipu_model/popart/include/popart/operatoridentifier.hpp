// PopART subset: domain, name and version of an operator.
#pragma once

#include <popart/names.hpp>

#include <iosfwd>

namespace popart {

struct OperatorIdentifier {
  OperatorIdentifier(const OpDomain &domain_, const OpType &type_, OpVersion version_)
      : domain(domain_), type(type_), version(version_) {}

  OpDomain domain;
  OpType type;
  OpVersion version;

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
