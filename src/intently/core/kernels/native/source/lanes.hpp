// Vectors of the instruction set that this file is compiled for, by the compiler's own vector types,
// and the functions of single numbers that attention needs: exp, tanh, the half types, transposes.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
constexpr int REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr int REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int W = 4;
constexpr int REGISTERS = 32;
#else
constexpr int W = 4;
constexpr int REGISTERS = 16;
#endif

typedef float V __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint32_t U __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint16_t H __attribute__((vector_size(2 * W), aligned(2), may_alias));

constexpr float LOG2E = 1.44269504088896340736f, LN2 = 0.69314718055994530942f;
constexpr float INF = __builtin_inff();

inline V load(const float* p) { return *(const V*)p; }
inline void store(float* p, V x) { *(V*)p = x; }
inline V splat(float x) { return V{} + x; }
inline V select(I where, V yes, V no) { return where ? yes : no; }
inline V larger(V a, V b) { return a > b ? a : b; }
inline int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

inline float total(V x) {
  float sum[W], *p = sum;
  store(p, x);
  for (int n = W / 2; n; n /= 2)
    for (int i = 0; i < n; i++) p[i] += p[i + n];
  return p[0];
}

// 2^x: exactly 0 for −∞ and below 2^−126, NaN for NaN; relative error below 1.5e-7.
// The polynomials are minimax fits of (2^f − 1) / f, of our own.
inline V exp2v(V x) {
#if defined(__AVX512F__)
  V f = (V)_mm512_reduce_ps((__m512)x, 1);  // x − floor x
  V p = splat(0x1.e974fap-10f);
  p = p * f + 0x1.277856p-7f;
  p = p * f + 0x1.c91ce6p-5f;
  p = p * f + 0x1.ebdb56p-3f;
  p = p * f + 0x1.62e4bap-1f;
  p = p * f + 1.0f;
  return (V)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
  V at = larger(x, splat(-126.0f)) + 12582912.0f;  // 1.5 · 2^23: rounds to whole numbers
  V f = x - (at - 12582912.0f);
  V p = splat(0x1.5bba14p-10f);
  p = p * f + 0x1.3cea88p-7f;
  p = p * f + 0x1.c6b752p-5f;
  p = p * f + 0x1.ebf9bcp-3f;
  p = p * f + 0x1.62e42ap-1f;
  p = p * f + 1.0f;
  V r = (V)((U)p + ((U)at << 23));
  r = select(x < splat(-126.0f), V{}, r);
  r = select(x >= splat(128.0f), splat(INF), r);
  return select(x == x, r, x);
#endif
}

// log2 x of weights, which are at most 1; of what is below 2^−126 it is −126. Error below 2e-7.
inline V log2v(V x) {
  x = larger(x, splat(0x1p-126f));
  I bits = (I)x - 0x3f3504f3;  // sqrt(1/2): what remains lies between it and sqrt 2
  V n = __builtin_convertvector(bits >> 23, V), f = (V)((bits & 0x7fffff) + 0x3f3504f3);
  V s = (f - 1.0f) / (f + 1.0f), square = s * s;
  V p = splat(2 / 9.0f * LOG2E);
  p = p * square + 2 / 7.0f * LOG2E;
  p = p * square + 2 / 5.0f * LOG2E;
  p = p * square + 2 / 3.0f * LOG2E;
  p = p * square + 2 * LOG2E;
  return n + p * s;
}

// tanh x by (2^u − 1) / (2^u + 1), u = 2x log2 e, with 2^u − 1 computed without cancellation.
inline V tanhv(V x) {
  V u = x * (2 * LOG2E);
  u = select(u > splat(30.0f), splat(30.0f), select(u < splat(-30.0f), splat(-30.0f), u));
  V at = u + 12582912.0f, n = at - 12582912.0f, f = u - n;
  V q = splat(0x1.41fbbcp-13f);
  q = q * f + 0x1.5f3e52p-10f;
  q = q * f + 0x1.3b2d4cp-7f;
  q = q * f + 0x1.c6aee8p-5f;
  q = q * f + 0x1.ebfbdcp-3f;
  q = q * f + 0x1.62e430p-1f;
  V two = (V)(((U)at << 23) + 0x3f800000u);
  V less = two * (q * f) + (two - 1.0f);
  V r = less / (less + 2.0f);
  return select(x == x, r, x);
}

// --- booleans -----------------------------------------------------------------------------------

inline uint64_t low_bits_of_8(const char* p) {
  uint64_t eight;
  std::memcpy(&eight, p, 8);
  return (eight & 0x0101010101010101ull) * 0x0102040810204080ull >> 56;
}

// The lowest bits of 64 bytes.
inline uint64_t low_bits(const char* p) {
#if defined(__AVX512BW__)
  return _mm512_test_epi8_mask(_mm512_loadu_si512(p), _mm512_set1_epi8(1));
#elif defined(__AVX2__)
  uint64_t word = 0;
  for (int half = 0; half < 2; half++) {
    __m256i x = _mm256_loadu_si256((const __m256i*)(p + 32 * half));
    word |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(x, 7)) << 32 * half;
  }
  return word;
#else
  uint64_t word = 0;
  for (int i = 0; i < 64; i += 8) word |= low_bits_of_8(p + i) << i;
  return word;
#endif
}

// --- the half types -----------------------------------------------------------------------------

inline V widened(H x, int type) {
  U bits = __builtin_convertvector(x, U);
  if (type == 1) return (V)(bits << 16);  // bfloat16
  U magnitude = (bits & 0x7fffu) << 13;
  V value = (V)magnitude * 0x1p112f;
  U special = (U)((I)(magnitude >= (U{} + 0x0f800000u)));
  U out = ((U)value & ~special) | ((magnitude | 0x7f800000u) & special);
  return (V)(out | ((bits & 0x8000u) << 16));
}

inline float widened(uint16_t x, int type) {
  H h = {};
  h[0] = x;
  return widened(h, type)[0];
}

// To the nearest half, ties to even.
inline uint16_t narrowed(float x, int type) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (type == 1) {
    if (x != x) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  uint32_t sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // rounds to 65536 and more
  if (size < 0x38800000) {                                   // subnormal: add, and read the bits
    float y;
    std::memcpy(&y, &size, 4);
    y += 0.5f;
    std::memcpy(&size, &y, 4);
    return (uint16_t)(sign | (size - 0x3f000000));
  }
  size += 0xc8000fff + ((size >> 13) & 1);
  return (uint16_t)(sign | (size >> 13));
}

// --- transposes ---------------------------------------------------------------------------------

template <int N>
inline void swap_halves(V* x) {  // exchanges blocks of N lanes between vectors N apart
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) {
    if (i & N) continue;
    I low, high;
#pragma GCC unroll 16
    for (int j = 0; j < W; j++) {
      low[j] = j & N ? W + j - N : j;
      high[j] = j & N ? W + j : j + N;
    }
    V a = x[i], b = x[i + N];
#if defined(__clang__)
    V lo, hi;
    for (int j = 0; j < W; j++) lo[j] = low[j] < W ? a[low[j]] : b[low[j] - W];
    for (int j = 0; j < W; j++) hi[j] = high[j] < W ? a[high[j]] : b[high[j] - W];
    x[i] = lo;
    x[i + N] = hi;
#else
    x[i] = __builtin_shuffle(a, b, low);
    x[i + N] = __builtin_shuffle(a, b, high);
#endif
  }
}

// W rows of W numbers, in place.
inline void transpose(V* x) {
  if constexpr (W >= 16) swap_halves<8>(x);
  if constexpr (W >= 8) swap_halves<4>(x);
  swap_halves<2>(x);
  swap_halves<1>(x);
}

}  // namespace
