// Reading and writing rows of arrays: any strides, any float type, widths padded with zeros.
#pragma once
#include "call.hpp"
#include "lanes.hpp"

namespace {
using namespace intently;

// Where an array begins under a leading index.
inline char* base(const Array& a, const Call& c, const int64_t* index) {
  char* p = a.data;
  for (int i = 0; i < c.axes; i++) p += a.lead[i] * index[i];
  return p;
}

inline void unravel(const Call& c, int64_t lead, int64_t* index) {
  for (int i = c.axes - 1; i >= 0; i--) {
    index[i] = lead % c.size[i];
    lead /= c.size[i];
  }
}

inline float number(const Array& a, const char* p) {
  if (a.type == F32) return *(const float*)p;
  if (a.type == F64) return (float)*(const double*)p;
  return widened(*(const uint16_t*)p, a.type);
}

// One row of `width` numbers as floats, followed by zeros up to `padded`.
inline void read_row(const Array& a, const char* p, int64_t width, int64_t padded, float* out) {
  int64_t i = 0;
  if (a.type == F32 && a.col == 4) {
    std::memcpy(out, p, 4 * width);
    i = width;
  } else if (a.col == 2 && (a.type == BF16 || a.type == F16)) {
    for (; i + W <= width; i += W) store(out + i, widened(*(const H*)(p + 2 * i), a.type));
  }
  for (; i < width; i++) out[i] = number(a, p + i * a.col);
  for (; i < padded; i++) out[i] = 0;
}

// Rows as floats with their numbers side by side: the array itself if it is so, or a copy.
inline const float* rows_of(const Array& a, const char* base, int64_t row0, int64_t n, int64_t width,
                            int64_t padded, float* copy, int64_t* stride) {
  const char* p = base + row0 * a.row;
  if (a.type == F32 && (a.col == 4 || width == 1) && width == padded && a.row % 4 == 0) {
    *stride = a.row / 4;
    return (const float*)p;
  }
  for (int64_t r = 0; r < n; r++) read_row(a, p + r * a.row, width, padded, copy + r * padded);
  *stride = padded;
  return copy;
}

inline void write_row(const Array& a, char* p, int64_t width, const float* x) {
  if (a.type == F32 && a.col == 4) {
    std::memcpy(p, x, 4 * width);
    return;
  }
  for (int64_t i = 0; i < width; i++) {
    char* at = p + i * a.col;
    if (a.type == F32)
      *(float*)at = x[i];
    else
      *(uint16_t*)at = narrowed(x[i], a.type);
  }
}

// A square of x, W rows and columns, becomes columns of out; rows from n on are 0.
template <bool WHOLE>
inline void turned_square(const float* x, int64_t stride, int64_t n, float by, float* out) {
  V tile[W];
#pragma GCC unroll 16
  for (int j = 0; j < W; j++) tile[j] = WHOLE || j < n ? load(x + j * stride) * by : V{};
  transpose(tile);
#pragma GCC unroll 16
  for (int j = 0; j < W; j++) store(out + j * ROWS, tile[j]);
}

// Rows n of x (n, width) become columns of out (width, ROWS); columns from n on are 0.
inline void turned(const float* x, int64_t stride, int64_t n, int64_t width, float by, float* out) {
  for (int64_t r = 0; r < n; r += W, x += W * stride, out += W) {
    int64_t i = 0, left = n - r;
    for (; i + W <= width; i += W)
      if (left >= W)
        turned_square<true>(x + i, stride, left, by, out + i * ROWS);
      else
        turned_square<false>(x + i, stride, left, by, out + i * ROWS);
    for (; i < width; i++)
      for (int j = 0; j < W; j++) out[i * ROWS + j] = j < left ? x[j * stride + i] * by : 0;
  }
}

}  // namespace
