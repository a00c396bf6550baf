// The one product under everything: c[r][lane] = Σ_i a[r, i] · b[i][lane].
//
// a is read one number at a time and spread over the lanes, so that it may lie in any order; b and c
// have their lanes side by side. Q Kᵀ has keys for rows and queries for lanes, P V has queries for
// rows and values for lanes, and the five products of the backward pass are of the same kind.
#pragma once
#include "lanes.hpp"

namespace {

// c becomes x; c + x; c · alpha[r] + x; x · alpha[r]; c · alpha[lane] + x
enum Into { PUT, ADD, SCALED, TIMES, LANES };

struct Left {  // a[r, i] = p[r · row + i · step]
  const float* p;
  int64_t row, step;
};

template <int NV, int R>
inline void tile(Left a, const float* b, int64_t b_step, int64_t n, float* c, int64_t c_row,
                 Into into, const float* alpha) {
  V sum[R][NV];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) sum[r][v] = V{};
  const float* p = a.p;
  for (int64_t i = 0; i < n; i++) {
    V x[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) x[v] = load(b + W * v);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      float one = p[r * a.row];
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) sum[r][v] += x[v] * one;
    }
    p += a.step;
    b += b_step;
  }
  if (into == PUT) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) store(c + r * c_row + W * v, sum[r][v]);
  } else if (into == TIMES) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) store(c + r * c_row + W * v, sum[r][v] * alpha[r]);
  } else if (into == LANES) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) {
        float* at = c + r * c_row + W * v;
        store(at, load(at) * load(alpha + W * v) + sum[r][v]);
      }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      V by = splat(into == SCALED ? alpha[r] : 1.0f);
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) {
        float* at = c + r * c_row + W * v;
        store(at, load(at) * by + sum[r][v]);
      }
    }
  }
}

template <int NV>
constexpr int TALL = REGISTERS == 32 ? (NV == 4 ? 6 : NV == 3 ? 8 : NV == 2 ? 12 : 16)
                                     : (NV == 2 ? 6 : 8);
constexpr int BROAD = REGISTERS == 32 ? 4 : 2;

template <int NV, int R>
inline void rest(int64_t rows, Left a, const float* b, int64_t bs, int64_t n, float* c, int64_t cr,
                 Into into, const float* alpha) {
  if constexpr (R > 0) {
    if (rows == R) return tile<NV, R>(a, b, bs, n, c, cr, into, alpha);
    rest<NV, R - 1>(rows, a, b, bs, n, c, cr, into, alpha);
  }
}

template <int NV>
void strip(int64_t rows, Left a, const float* b, int64_t bs, int64_t n, float* c, int64_t cr,
           Into into, const float* alpha) {
  constexpr int R = TALL<NV>;
  for (; rows >= R; rows -= R) {
    tile<NV, R>(a, b, bs, n, c, cr, into, alpha);
    a.p += R * a.row;
    c += R * cr;
    if (into == SCALED || into == TIMES) alpha += R;
  }
  rest<NV, R - 1>(rows, a, b, bs, n, c, cr, into, alpha);
}

// rows × lanes (a multiple of W), summed over n.
inline void gemm(int64_t rows, int64_t lanes, Left a, const float* b, int64_t bs, int64_t n, float* c,
                 int64_t cr, Into into, const float* alpha = nullptr) {
  auto lane = [&](int64_t at) { return into == LANES ? alpha + at : alpha; };
  for (int64_t at = 0; at < lanes;) {
    int64_t left = (lanes - at) / W;
    if (left >= BROAD && left != BROAD + 1) {
      strip<BROAD>(rows, a, b + at, bs, n, c + at, cr, into, lane(at));
      at += BROAD * W;
    } else if (BROAD == 4 && left != 1 && left != 2 && left != 4) {
      strip<BROAD == 4 ? 3 : 1>(rows, a, b + at, bs, n, c + at, cr, into, lane(at));
      at += 3 * W;
    } else if (left >= 2) {
      strip<2>(rows, a, b + at, bs, n, c + at, cr, into, lane(at));
      at += 2 * W;
    } else {
      strip<1>(rows, a, b + at, bs, n, c + at, cr, into, lane(at));
      at += W;
    }
  }
}

}  // namespace
