// SIMD lane types and the storage formats they are loaded from.
//
// A neuron's maths is written once, for a vector V of `lanes` elements of float or double. V is a register of the
// host's instruction set, a float2 on the IPU, or a single lane for the elements left over at the end of a row.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// Bytes of a register; 8 is the IPU's float2.
#if !defined(SNNIPU_LANE_BYTES)
#if defined(__AVX512F__)
#define SNNIPU_LANE_BYTES 64
#elif defined(__AVX2__)
#define SNNIPU_LANE_BYTES 32
#elif defined(__x86_64__) || defined(__aarch64__)
#define SNNIPU_LANE_BYTES 16
#else
#define SNNIPU_LANE_BYTES 8
#endif
#endif

// A float2 needs no intrinsics. Their headers have half a megabyte, so they are not included.
#if defined(__SSE2__) && SNNIPU_LANE_BYTES >= 16
#include <immintrin.h>
#define SNNIPU_SSE2 1
#if defined(__AVX__)
#define SNNIPU_AVX 1
#endif
#if defined(__AVX512F__)
#define SNNIPU_AVX512 1
#endif
#endif

namespace snnipu {

template <typename C, unsigned N> struct VectorOf { typedef C type __attribute__((vector_size(N * sizeof(C)))); };
template <typename C, unsigned N> using VectorN = typename VectorOf<C, N>::type;

template <typename C> constexpr unsigned registerLanes = SNNIPU_LANE_BYTES / sizeof(C);
template <typename C> using Register = VectorN<C, registerLanes<C>>;
template <typename C> using SingleLane = VectorN<C, 1>;

template <typename V> using Element = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<V &>()[0])>>;
template <typename V> constexpr unsigned lanes = sizeof(V) / sizeof(Element<V>);

// V{} is 0, and value - 0 is value for either sign of zero.
template <typename V> inline V splat(Element<V> value) { return value - V{}; }

template <typename V> inline V abs(V v) { return v < splat<V>(0) ? -v : v; }

// This is not inlined, because a call for each lane is much code.
template <typename V> __attribute__((noinline)) V exactExp(V v) {
  V result;
  for (unsigned i = 0; i < lanes<V>; ++i)
    result[i] = std::exp(v[i]);
  return result;
}

// Return exp(v). For float: Cody-Waite reduction and a polynomial of degree 6, within 2 ulp; 0 below and inf above
// float's range.
template <typename V> inline V exp(V v) {
  using C = Element<V>;
  if constexpr (std::is_same_v<C, float>) {
    typedef VectorN<int32_t, lanes<V>> Bits;
    const V low = splat<V>(-87.3365447f), high = splat<V>(88.7228394f);
    const V clamped = v < low ? low : (v > high ? high : v);
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const V magic = splat<V>(12582912.0f);
    V n = clamped * 1.44269504f + magic;
    n = n - magic;
    const V r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    V p = splat<V>(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    // 2^n is the product of two powers, because n may be 128.
    const Bits exponent = __builtin_convertvector(n, Bits);
    const Bits halved = exponent >> 1;
    V scale1, scale2;
    const Bits bits1 = (halved + 127) << 23, bits2 = (exponent - halved + 127) << 23;
    std::memcpy(&scale1, &bits1, sizeof(V));
    std::memcpy(&scale2, &bits2, sizeof(V));
    V result = p * scale1 * scale2;
    result = v < low ? splat<V>(0.0f) : result;
    result = v > high ? splat<V>(INFINITY) : result;
    return v != v ? v : result;
  } else {
    return exactExp(v);
  }
}

// 16-bit storage formats of the host. On the IPU, `half` is a type of the compiler.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// The type of arithmetic on storage type S: double for double, else float.
template <typename S> using Compute = std::conditional_t<std::is_same_v<S, double>, double, float>;

template <typename V> struct Convert {
  typedef VectorN<uint32_t, lanes<V>> Bits32;
  typedef VectorN<uint16_t, lanes<V>> Bits16;

  static V fromBits(Bits32 bits) {
    V v;
    std::memcpy(&v, &bits, sizeof(V));
    return v;
  }
  static Bits32 toBits(V v) {
    Bits32 bits;
    std::memcpy(&bits, &v, sizeof(V));
    return bits;
  }

  static V fromBFloat16(Bits16 h) { return fromBits(__builtin_convertvector(h, Bits32) << 16); }
  // Rounds to nearest, ties to even; NaN stays NaN.
  static Bits16 toBFloat16(V v) {
    const Bits32 bits = toBits(v);
    const Bits32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const Bits32 roundedOrNan = v != v ? (bits | 0x400000u) : rounded;
    return __builtin_convertvector(roundedOrNan >> 16, Bits16);
  }

  static V fromFloat16(Bits16 h) {
#if defined(SNNIPU_AVX512)
    if constexpr (lanes<V> == 16)
      return reinterpret_cast<V>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(h)));
#endif
#if defined(SNNIPU_AVX) && defined(__F16C__)
    if constexpr (lanes<V> == 8)
      return reinterpret_cast<V>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(h)));
#endif
    const Bits32 wide = __builtin_convertvector(h, Bits32);
    const Bits32 sign = (wide & 0x8000u) << 16;
    const Bits32 magnitude = wide & 0x7fffu;
    // A multiplication by 2^112 changes the exponent's bias. It is right for subnormals, too.
    const V scaled = fromBits(magnitude << 13) * 0x1p112f;
    const Bits32 special = (magnitude << 13) | 0x7f800000u;
    return fromBits(sign | (magnitude >= 0x7c00u ? special : toBits(scaled)));
  }
  static Bits16 toFloat16(V v) {
#if defined(SNNIPU_AVX512)
    if constexpr (lanes<V> == 16)
      return reinterpret_cast<Bits16>(
          _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#endif
#if defined(SNNIPU_AVX) && defined(__F16C__)
    if constexpr (lanes<V> == 8)
      return reinterpret_cast<Bits16>(_mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#endif
    const Bits32 bits = toBits(v);
    const Bits32 sign = (bits >> 16) & 0x8000u;
    const Bits32 magnitude = bits & 0x7fffffffu;
    // Normal numbers: change the bias, then round to nearest even. Subnormals: the addition of 0.5 rounds.
    const Bits32 normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const Bits32 subnormal = toBits(fromBits(magnitude) + 0.5f) - 0x3f000000u;
    Bits32 result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x477ff000u ? Bits32{} + 0x7c00u : result;
    result = magnitude > 0x7f800000u ? (0x7e00u | ((magnitude >> 13) & 0x3ffu)) : result;
    return __builtin_convertvector(sign | result, Bits16);
  }
};

// Alignment of a vector's first element, in elements. A tile accesses a vector at once: 64 bits, or 32 for two halves.
// The host's registers need no alignment.
#if defined(__POPC__)
template <typename C> constexpr unsigned lanesAlignment = registerLanes<C>;
// The IPU model defines checkAlignment() with SNNIPU_CHECK_ALIGNMENT: it throws if the address is no multiple of
// `bytes`.
#if defined(SNNIPU_CHECK_ALIGNMENT)
void checkAlignment(const void *address, unsigned bytes);
#else
inline void checkAlignment(const void *, unsigned) {}
#endif
template <typename V, typename S> inline S *aligned(S *address) {
  constexpr unsigned bytes = lanes<V> * sizeof(S);
  if constexpr (lanes < V >> 1)
    checkAlignment(address, bytes);
  return static_cast<S *>(__builtin_assume_aligned(address, bytes));
}
#else
template <typename C> constexpr unsigned lanesAlignment = 1;
template <typename V, typename S> inline S *aligned(S *address) { return address; }
#endif

// Load lanes<V> consecutive elements of storage type S as a V; store() is the inverse.
template <typename V, typename S> inline V load(const S *address) {
  const S *const from = aligned<V>(address);
  if constexpr (std::is_same_v<S, Element<V>>) {
    V v;
    std::memcpy(&v, from, sizeof(V));
    return v;
#if defined(__IPU__)
  } else if constexpr (lanes<V> > 1) {
    VectorN<S, lanes<V>> packed;
    std::memcpy(&packed, from, sizeof(packed));
    return __builtin_convertvector(packed, V);
#endif
  } else if constexpr (std::is_same_v<S, Float16> || std::is_same_v<S, BFloat16>) {
    typename Convert<V>::Bits16 bits;
    std::memcpy(&bits, from, sizeof(bits));
    if constexpr (std::is_same_v<S, Float16>)
      return Convert<V>::fromFloat16(bits);
    else
      return Convert<V>::fromBFloat16(bits);
  } else {
    V v{};
    for (unsigned i = 0; i < lanes<V>; ++i)
      v[i] = static_cast<Element<V>>(from[i]);
    return v;
  }
}

template <typename V, typename S> inline void store(S *address, V v) {
  S *const to = aligned<V>(address);
  if constexpr (std::is_same_v<S, Element<V>>) {
    std::memcpy(to, &v, sizeof(V));
#if defined(__IPU__)
  } else if constexpr (lanes<V> > 1) {
    // A single access, because two workers that each write half a word could overwrite each other's half.
    const auto packed = __builtin_convertvector(v, VectorN<S, lanes<V>>);
    std::memcpy(to, &packed, sizeof(packed));
#endif
  } else if constexpr (std::is_same_v<S, Float16>) {
    const auto bits = Convert<V>::toFloat16(v);
    std::memcpy(to, &bits, sizeof(bits));
  } else if constexpr (std::is_same_v<S, BFloat16>) {
    const auto bits = Convert<V>::toBFloat16(v);
    std::memcpy(to, &bits, sizeof(bits));
  } else {
    for (unsigned i = 0; i < lanes<V>; ++i)
      to[i] = static_cast<S>(v[i]);
  }
}

// Return a * b + c, rounded once if the machine has such an instruction, else twice. Both are equal if a is 1.
template <typename V> inline V multiplyAdd(V a, V b, V c) {
#if defined(SNNIPU_AVX512)
  if constexpr (sizeof(V) == 64 && std::is_same_v<Element<V>, float>)
    return reinterpret_cast<V>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
  if constexpr (sizeof(V) == 64 && std::is_same_v<Element<V>, double>)
    return reinterpret_cast<V>(
        _mm512_fmadd_pd(reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#endif
#if defined(SNNIPU_AVX) && defined(__FMA__)
  if constexpr (sizeof(V) == 32 && std::is_same_v<Element<V>, float>)
    return reinterpret_cast<V>(
        _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
  if constexpr (sizeof(V) == 32 && std::is_same_v<Element<V>, double>)
    return reinterpret_cast<V>(
        _mm256_fmadd_pd(reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#endif
  return a * b + c;
}

// K adjacent registers. Each is a separate member, so that the compiler keeps it in a register.
template <typename V, unsigned K> struct Registers {
  V first;
  Registers<V, K - 1> rest;

  // this += factor * from[0 .. K registers)
  template <typename S> void addScaled(V factor, const S *from) {
    first = multiplyAdd(factor, load<V>(from), first);
    rest.addScaled(factor, from + lanes<V>);
  }
  // this += from[0 .. K registers)
  template <typename S> void add(const S *from) {
    first = first + load<V>(from);
    rest.add(from + lanes<V>);
  }
  // Return the sum over the registers of this * from.
  template <typename S> V products(const S *from) const {
    return rest.addProducts(first * load<V>(from), from + lanes<V>);
  }
  template <typename S> V addProducts(V sum, const S *from) const {
    return rest.addProducts(multiplyAdd(first, load<V>(from), sum), from + lanes<V>);
  }
  template <typename S> void loadFrom(const S *from) {
    first = load<V>(from);
    rest.loadFrom(from + lanes<V>);
  }
  template <typename S> void storeTo(S *to) const {
    store(to, first);
    rest.storeTo(to + lanes<V>);
  }
  void clear() {
    first = V{};
    rest.clear();
  }
  // this += others
  void join(const Registers &others) {
    first = first + others.first;
    rest.join(others.rest);
  }
  // Call body(lane offset, register) for each register.
  template <typename Body> void forEach(const Body &body, unsigned lane = 0) {
    body(lane, first);
    rest.forEach(body, lane + lanes<V>);
  }
};

template <typename V> struct Registers<V, 0> {
  template <typename S> void addScaled(V, const S *) {}
  template <typename S> void add(const S *) {}
  template <typename S> V addProducts(V sum, const S *) const { return sum; }
  template <typename S> void loadFrom(const S *) {}
  template <typename S> void storeTo(S *) const {}
  void clear() {}
  void join(const Registers &) {}
  template <typename Body> void forEach(const Body &, unsigned = 0) {}
};

// Return one bit for each lane, the first lane's lowest: set if a > b.
template <typename V> inline uint64_t bitsAbove(V a, V b) {
#if defined(SNNIPU_AVX512)
  if constexpr (sizeof(V) == 64 && std::is_same_v<Element<V>, float>)
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_GT_OQ);
  if constexpr (sizeof(V) == 64 && std::is_same_v<Element<V>, double>)
    return _mm512_cmp_pd_mask(reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), _CMP_GT_OQ);
#endif
#if defined(SNNIPU_AVX)
  if constexpr (sizeof(V) == 32 && std::is_same_v<Element<V>, float>)
    return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(a > b)));
  if constexpr (sizeof(V) == 32 && std::is_same_v<Element<V>, double>)
    return static_cast<unsigned>(_mm256_movemask_pd(reinterpret_cast<__m256d>(a > b)));
#endif
#if defined(SNNIPU_SSE2)
  if constexpr (sizeof(V) == 16 && std::is_same_v<Element<V>, float>)
    return static_cast<unsigned>(_mm_movemask_ps(reinterpret_cast<__m128>(a > b)));
  if constexpr (sizeof(V) == 16 && std::is_same_v<Element<V>, double>)
    return static_cast<unsigned>(_mm_movemask_pd(reinterpret_cast<__m128d>(a > b)));
#endif
  uint64_t bits = 0;
  for (unsigned i = 0; i < lanes<V>; ++i)
    bits |= static_cast<uint64_t>(a[i] > b[i]) << i;
  return bits;
}

// Return 1 in each lane whose bit is set, else 0.
template <typename V> inline V lanesOf(uint64_t bits) {
  using Integer = std::conditional_t<sizeof(Element<V>) == 8, uint64_t, uint32_t>;
  typedef VectorN<Integer, lanes<V>> Bits;
  Bits lane{};
  for (unsigned i = 0; i < lanes<V>; ++i)
    lane[i] = Integer(1) << i;
  const Bits set = (Bits{} + static_cast<Integer>(bits)) & lane;
  return set != Bits{} ? splat<V>(1) : splat<V>(0);
}

// Return the sum of a vector's two halves.
template <typename V> inline VectorN<Element<V>, lanes<V> / 2> addHalves(V v) {
  typedef VectorN<Element<V>, lanes<V> / 2> Half;
#if defined(SNNIPU_AVX512)
  if constexpr (sizeof(V) == 64) {
    const __m512d all = reinterpret_cast<__m512d>(v);
    // The masked intrinsics are used because the plain ones make GCC 12 warn of undefined values.
    return reinterpret_cast<Half>(_mm512_maskz_extractf64x4_pd(0xf, all, 0)) +
           reinterpret_cast<Half>(_mm512_maskz_extractf64x4_pd(0xf, all, 1));
  }
#endif
#if defined(SNNIPU_AVX)
  if constexpr (sizeof(V) == 32) {
    const __m256d all = reinterpret_cast<__m256d>(v);
    return reinterpret_cast<Half>(_mm256_castpd256_pd128(all)) + reinterpret_cast<Half>(_mm256_extractf128_pd(all, 1));
  }
#endif
  Half low, high;
  std::memcpy(&low, &v, sizeof(low));
  std::memcpy(&high, reinterpret_cast<const char *>(&v) + sizeof(low), sizeof(high));
  return low + high;
}

// Return the sum of the lanes, added by halves.
template <typename V> inline Element<V> sumLanes(V v) {
  if constexpr (lanes<V> == 1)
    return v[0];
  else
    return sumLanes(addHalves(v));
}

// to[i] += sum of the lanes of the i-th vector, for i < 4.
template <typename V> inline void addFourSums(Element<V> *to, V a, V b, V c, V d) {
  to[0] += sumLanes(a);
  to[1] += sumLanes(b);
  to[2] += sumLanes(c);
  to[3] += sumLanes(d);
}

// Write a whole register past the caches, to an address that is a multiple of its size. Use it for arrays that are too
// large to stay in a cache until they are read. Call streamFence() before another thread reads them.
template <typename Bits> inline void streamBits(void *to, Bits bits) {
#if defined(SNNIPU_AVX512)
  if constexpr (sizeof(Bits) == 64)
    return _mm512_stream_si512(static_cast<__m512i *>(to), reinterpret_cast<__m512i>(bits));
#endif
#if defined(SNNIPU_AVX)
  if constexpr (sizeof(Bits) == 32)
    return _mm256_stream_si256(static_cast<__m256i *>(to), reinterpret_cast<__m256i>(bits));
#endif
#if defined(SNNIPU_SSE2)
  if constexpr (sizeof(Bits) == 16)
    return _mm_stream_si128(static_cast<__m128i *>(to), reinterpret_cast<__m128i>(bits));
#endif
  std::memcpy(to, &bits, sizeof(Bits));
}

inline void streamFence() {
#if defined(SNNIPU_SSE2)
  _mm_sfence();
#endif
}

template <typename V, typename S> inline void stream(S *to, V v) {
  if constexpr (std::is_same_v<S, Float16> && lanes<V> != 1)
    streamBits(to, Convert<V>::toFloat16(v));
  else if constexpr (std::is_same_v<S, BFloat16> && lanes<V> != 1)
    streamBits(to, Convert<V>::toBFloat16(v));
  else if constexpr (std::is_same_v<S, Element<V>> && lanes<V> != 1)
    streamBits(to, v);
  else
    store(to, v);
}

// Store v, past the caches or not.
template <typename V, typename S> inline void put(S *to, V v, bool pastCaches) {
  if (pastCaches)
    stream(to, v);
  else
    store(to, v);
}

// Ask the caches, if there are any, for an address that will be read soon.
inline void prefetch(const void *address) {
#if defined(__x86_64__) || defined(__aarch64__)
  __builtin_prefetch(address, 0, 2);
#else
  (void)address;
#endif
}

// Return v rounded to storage type S.
template <typename S, typename V> inline V quantise(V v) {
  if constexpr (std::is_same_v<S, Element<V>>) {
    return v;
  } else {
    alignas(V) S stored[lanes<V>];
    store(stored, v);
    return load<V>(stored);
  }
}

} // namespace snnipu
