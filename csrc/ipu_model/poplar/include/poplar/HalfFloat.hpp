// half for codelets compiled for the host: 16 bits of storage, arithmetic in float, rounding to nearest even. popc has
// its own type of this name.
#pragma once

#include <cstdint>
#include <cstring>

struct half {
  half() = default;
  half(float value) : bits(fromFloat(value)) {}
  operator float() const { return toFloat(bits); }
  half &operator+=(float value) { return *this = static_cast<float>(*this) + value; }
  half &operator-=(float value) { return *this = static_cast<float>(*this) - value; }
  half &operator*=(float value) { return *this = static_cast<float>(*this) * value; }
  half &operator/=(float value) { return *this = static_cast<float>(*this) / value; }

  static std::uint16_t fromFloat(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    const std::uint32_t sign = word >> 16 & 0x8000u, magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
      return static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u)
      return static_cast<std::uint16_t>(sign | 0x7c00u);
    if (magnitude >= 0x38800000u)
      return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
    // Subnormal: the addition of 0.5 rounds at the right bit.
    float absolute;
    std::memcpy(&absolute, &magnitude, sizeof(absolute));
    absolute += 0.5f;
    std::memcpy(&word, &absolute, sizeof(word));
    return static_cast<std::uint16_t>(sign | (word - 0x3f000000u));
  }
  static float toFloat(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    std::uint32_t word = magnitude << 13;
    float value;
    if (magnitude >= 0x7c00u) {
      word |= 0x7f800000u;
    } else {
      std::memcpy(&value, &word, sizeof(value));
      value *= 0x1p112f;
      std::memcpy(&word, &value, sizeof(word));
    }
    word |= sign;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  }

  std::uint16_t bits;
};
static_assert(sizeof(half) == 2, "half is 16 bits of storage");
