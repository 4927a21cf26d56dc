// poplar::Type: the type of a tensor's elements.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace poplar {

class Type {
public:
  enum class Kind : unsigned char {
    Invalid,
    Bool,
    Char,
    UnsignedChar,
    Short,
    UnsignedShort,
    Int,
    UnsignedInt,
    LongLong,
    UnsignedLongLong,
    Half,
    Float
  };

  constexpr Type() = default;
  constexpr explicit Type(Kind kind) : kind_(kind) {}

  // Return the spelling in a codelet's template argument: "float", "half", "unsigned int", ...
  std::string toString() const;
  constexpr Kind kind() const { return kind_; }
  friend constexpr bool operator==(Type a, Type b) { return a.kind_ == b.kind_; }
  friend constexpr bool operator!=(Type a, Type b) { return a.kind_ != b.kind_; }
  friend constexpr bool operator<(Type a, Type b) { return a.kind_ < b.kind_; }

private:
  Kind kind_ = Kind::Invalid;
};

inline constexpr Type BOOL{Type::Kind::Bool};
inline constexpr Type CHAR{Type::Kind::Char};
inline constexpr Type UNSIGNED_CHAR{Type::Kind::UnsignedChar};
inline constexpr Type SIGNED_CHAR{Type::Kind::Char};
inline constexpr Type SHORT{Type::Kind::Short};
inline constexpr Type UNSIGNED_SHORT{Type::Kind::UnsignedShort};
inline constexpr Type INT{Type::Kind::Int};
inline constexpr Type UNSIGNED_INT{Type::Kind::UnsignedInt};
inline constexpr Type LONGLONG{Type::Kind::LongLong};
inline constexpr Type UNSIGNED_LONGLONG{Type::Kind::UnsignedLongLong};
inline constexpr Type HALF{Type::Kind::Half};
inline constexpr Type FLOAT{Type::Kind::Float};

std::ostream &operator<<(std::ostream &out, const Type &type);

// The device's element type for a type of the host.
template <typename T> struct equivalent_device_type;
template <> struct equivalent_device_type<bool> { static constexpr Type value = BOOL; };
template <> struct equivalent_device_type<char> { static constexpr Type value = CHAR; };
template <> struct equivalent_device_type<signed char> { static constexpr Type value = CHAR; };
template <> struct equivalent_device_type<unsigned char> { static constexpr Type value = UNSIGNED_CHAR; };
template <> struct equivalent_device_type<short> { static constexpr Type value = SHORT; };
template <> struct equivalent_device_type<unsigned short> { static constexpr Type value = UNSIGNED_SHORT; };
template <> struct equivalent_device_type<int> { static constexpr Type value = INT; };
template <> struct equivalent_device_type<unsigned> { static constexpr Type value = UNSIGNED_INT; };
template <> struct equivalent_device_type<long> { static constexpr Type value = sizeof(long) == 8 ? LONGLONG : INT; };
template <> struct equivalent_device_type<unsigned long> {
  static constexpr Type value = sizeof(long) == 8 ? UNSIGNED_LONGLONG : UNSIGNED_INT;
};
template <> struct equivalent_device_type<long long> { static constexpr Type value = LONGLONG; };
template <> struct equivalent_device_type<unsigned long long> { static constexpr Type value = UNSIGNED_LONGLONG; };
template <> struct equivalent_device_type<float> { static constexpr Type value = FLOAT; };
// A double of the host is a float of the device.
template <> struct equivalent_device_type<double> { static constexpr Type value = FLOAT; };

} // namespace poplar
