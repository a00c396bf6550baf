// y = softmax(z) v with the keys streaming past a block of queries.
//
// Each block of keys moves the running maximum m and sum l of every query; the sum P v of a block
// starts from zero, and the block of results is rescaled once as it is added.
//
// Source: Dao 2023, "FlashAttention-2", algorithm 1.
#pragma once
#include "logits.hpp"

namespace {

struct Sums {  // one number for every query of a block
  float m[ROWS], l[ROWS], alpha[ROWS];

  void start(const Blocks& b, bool with_sink) {
    for (int i = 0; i < ROWS; i++) {
      m[i] = with_sink ? b.sink : -INF;
      l[i] = m[i] > -INF ? 1 : 0;
    }
  }

  // S becomes exp(z − m); m (in powers of two), l and alpha = exp(old m − m) follow.
  void take(float* S, const Blocks& b) {
    if (b.gaps())
      for (int64_t r = 0; r < ROWS; r += W) store(alpha + r, splat(1));
    b.each([&](const Part& p, int64_t r) { take(S + p.first * ROWS, p.last - p.first, r); });
  }

  // The same for the whole block, whose entries outside all parts are −∞.
  void whole(float* S, const Blocks& b) {
    for (int64_t r = 0; r < ROWS; r += W) store(alpha + r, splat(1));
    for (int64_t r = b.from; r < b.to; r += W) take(S, b.n, r);
  }

 private:
  void take(float* S, int64_t n, int64_t r) {
    float* p = S + r;
    V top = load(p), other = top;
    int64_t j = 1;
    for (; j + 1 < n; j += 2) {
      top = larger(load(p + j * ROWS), top);
      other = larger(load(p + (j + 1) * ROWS), other);
    }
    if (j < n) top = larger(load(p + j * ROWS), top);
    V old = load(m + r), now = larger(larger(top, other), old);
    V safe = select(now == splat(-INF), V{}, now);
    V a = exp2v(old - safe), sum = V{}, more = V{};
    for (j = 0; j + 1 < n; j += 2) {
      V x = exp2v(load(p + j * ROWS) - safe);
      V y = exp2v(load(p + (j + 1) * ROWS) - safe);
      store(p + j * ROWS, x);
      store(p + (j + 1) * ROWS, y);
      sum += x;
      more += y;
    }
    if (j < n) {
      V x = exp2v(load(p + j * ROWS) - safe);
      store(p + j * ROWS, x);
      sum += x;
    }
    store(m + r, now);
    store(alpha + r, a);
    store(l + r, load(l + r) * a + (sum + more));
  }
};

inline float logsum(float m, float l) {
  if (l == 0) return -INF;
  return m < -3.3e38f ? m : m * LN2 + std::log(l);  // see `powers`
}

struct Product {
  static int64_t blocks(const Call& c) { return (c.t + ROWS - 1) / ROWS; }
  static int64_t wide(const Call& c) { return up(c.e, W); }
  static int64_t partial(const Call& c) { return 4 * (ROWS * wide(c) + 2 * ROWS); }

  static int64_t scratch(const Call& c) {
    return up(Blocks::memory(c), 64) + 4 * (ROWS * ROWS + KEYS * wide(c) + ROWS * wide(c)) + 64;
  }

  // Values of one vector or less are multiplied with queries in lanes, and turned at the end: rows of
  // few lanes would spend more time on loading than on multiplying.
  static bool narrow(const Call& c) { return c.e <= W; }

  // Tasks go from the last block of rows, which under a causal mask has the most keys.
  static void run(Call& c, int64_t task, char* memory) {
    Blocks b(c);
    float* S = (float*)b.take(memory);
    float* V_ = S + KEYS * ROWS;
    int64_t e = wide(c), splits = c.splits;
    float* O = V_ + KEYS * e;
    int64_t part = task % splits, which = task / splits % blocks(c);
    b.lead(task / splits / blocks(c));
    if (blocks(c) == 1 && splits == 1) b.fetch(task + 2);
    b.block_of_rows((blocks(c) - 1 - which) * ROWS);
    Sums sums;
    sums.start(b, part == 0);
    int64_t lo = b.lo, hi = b.hi, tick = 0;
    if (splits > 1) {
      int64_t share = up((b.hi - b.lo + splits - 1) / splits, KEYS);
      lo = b.lo + part * share;
      hi = least(b.hi, lo + share);
    }
    bool first = true;
    bool scattered = b.rows <= 16 || c.biases || c.mask.ops > 1;
    for (int64_t at = lo; at < hi; at += KEYS) {
      if (scattered && at + KEYS < hi) b.ahead(at + KEYS);
      if (!b.at(at, hi, S)) continue;
      sums.take(S, b);
      if (c.rate > 0) b.drop(S);
      int64_t stride;
      const float* v = b.values(c.v, b.v, c.e, V_, &stride);
      if (b.few && !narrow(c)) {
        for (int64_t r = 0; r < b.rows; r++)
          add(S + r, v, stride, b.n, O + r * e, e, first ? 0 : sums.alpha[r]);
        first = false;
        if (b.stopped(&tick)) return;
        continue;
      }
      bool whole = hi - lo <= KEYS && splits == 1;
      if (whole && !narrow(c)) return once(b, S, v, stride, O, sums);
      if (narrow(c))
        upright(b, S, v, stride, O, first, sums.alpha);
      else
        b.weigh(S, v, stride, e, O, e, first ? PUT : SCALED, sums.alpha);

      first = false;
      if (b.stopped(&tick)) return;
    }
    if (first) std::memset(O, 0, 4 * ROWS * e);
    if (narrow(c)) across(b, O, S);
    if (splits > 1) {
      float* out = (float*)(c.shared + task * partial(c));
      std::memcpy(out, O, 4 * ROWS * e);
      std::memcpy(out + ROWS * e, sums.m, 4 * ROWS);
      std::memcpy(out + ROWS * e + ROWS, sums.l, 4 * ROWS);
    } else {
      finish(b, O, sums.m, sums.l);
    }
  }

  // c = c · alpha + Σ over keys of p[key] · v[key] for one query, values read once and in order.
  static void add(const float* p, const float* v, int64_t stride, int64_t n, float* c, int64_t e,
                  float alpha) {
    for (int64_t at = 0; at < e; at += 4 * W) {
      V sum[2][4] = {};
      int64_t some = least(4, (e - at) / W);
      const float* x = v + at;
      if (some == 4) {
        int64_t j = 0;
        for (; j + 1 < n; j += 2, x += 2 * stride)
#pragma GCC unroll 4
          for (int i = 0; i < 4; i++) {
            sum[0][i] += load(x + W * i) * p[j * ROWS];
            sum[1][i] += load(x + stride + W * i) * p[(j + 1) * ROWS];
          }
        if (j < n)
#pragma GCC unroll 4
          for (int i = 0; i < 4; i++) sum[0][i] += load(x + W * i) * p[j * ROWS];
      } else {
        for (int64_t j = 0; j < n; j++, x += stride)
          for (int64_t i = 0; i < some; i++) sum[0][i] += load(x + W * i) * p[j * ROWS];
      }
      for (int64_t i = 0; i < some; i++) {
        float* to = c + at + W * i;
        store(to, (alpha == 0 ? V{} : load(to) * alpha) + (sum[0][i] + sum[1][i]));
      }
    }
  }

  // As `Blocks::weigh`, with queries in lanes: O is (e, ROWS).
  static void upright(const Blocks& b, const float* S, const float* v, int64_t stride, float* O,
                     bool first, const float* alpha) {
    if (first && b.gaps()) std::memset(O, 0, 4 * ROWS * b.c.e);
    for (int i = 0; i < b.parts; i++) {
      const Part& p = b.part[i];
      gemm(b.c.e, p.to - p.from, {v + p.first * stride, 1, stride}, S + p.first * ROWS + p.from, ROWS,
           p.last - p.first, O + p.from, ROWS, first ? PUT : LANES, alpha + p.from);
    }
  }

  // O (e, ROWS) becomes (ROWS, W).
  static void across(const Blocks& b, float* O, float* scratch) {
    turned(O, ROWS, b.c.e, ROWS, 1, scratch);
    for (int64_t r = 0; r < ROWS; r++) std::memcpy(O + r * W, scratch + r * ROWS, 4 * W);
  }

  // One block of keys is all that the rows see: the product goes to y at once, already divided.
  static void once(const Blocks& b, const float* S, const float* v, int64_t stride, float* O,
                   Sums& sums) {
    const Call& c = b.c;
    int64_t e = wide(c);
    bool direct = c.y.type == F32 && c.y.col == 4 && e == c.e && c.y.row;
    char* y = base(c.y, c, b.index) + b.row0 * c.y.row;
    float* out = direct ? (float*)y : O;
    int64_t row = direct ? c.y.row / 4 : e;
    for (int64_t r = 0; r < b.lanes; r += W) {
      V l = load(sums.l + r);
      store(sums.alpha + r, select(l == V{}, V{}, 1.0f / l));
    }
    b.weigh(S, v, stride, e, out, row, TIMES, sums.alpha);
    if (b.partial)
      for (int64_t r = 0; r < b.rows; r++)
        if (!b.sees(r)) std::memset(out + r * row, 0, 4 * e);
    if (!direct) written(b, O);
    kept(b, sums.m, sums.l);
  }

  static void finish(const Blocks& b, float* O, const float* m, const float* l) {
    int64_t e = wide(b.c);
    for (int64_t r = 0; r < b.rows; r++) {
      float* x = O + r * e;
      if (l[r] == 0) {
        std::memset(x, 0, 4 * e);
        continue;
      }
      V by = splat(1 / l[r]);
      for (int64_t i = 0; i < e; i += W) store(x + i, load(x + i) * by);
    }
    written(b, O);
    kept(b, m, l);
  }

  static void written(const Blocks& b, const float* O) {
    const Call& c = b.c;
    char* y = base(c.y, c, b.index) + b.row0 * c.y.row;
    for (int64_t r = 0; r < b.rows; r++) write_row(c.y, y + r * c.y.row, c.e, O + r * wide(c));
  }

  static void kept(const Blocks& b, const float* m, const float* l) {
    const Call& c = b.c;
    if (c.stats) {
      char* p = base(c.stats, c, b.index) + b.row0 * c.stats.row;
      for (int64_t r = 0; r < b.rows; r++, p += c.stats.row) {
        ((float*)p)[0] = m[r];
        ((float*)p)[1] = l[r];
      }
    }
    if (c.lse) {
      char* p = base(c.lse, c, b.index) + b.row0 * c.lse.row;
      for (int64_t r = 0; r < b.rows; r++)
        *(float*)(p + r * c.lse.row) = logsum(m[r], l[r]);
    }
  }

  // Joins the parts of a block of rows by their maxima.
  static void merge(Call& c, int64_t task, char* memory) {
    Blocks b(c);
    b.take(memory);
    b.lead(task / blocks(c));
    b.row0 = (blocks(c) - 1 - task % blocks(c)) * ROWS;
    b.rows = least(ROWS, c.t - b.row0);
    int64_t e = wide(c);
    char* parts = c.shared + task * c.splits * partial(c);
    float* O = (float*)parts;
    float *m = O + ROWS * e, *l = m + ROWS;
    for (int64_t part = 1; part < c.splits; part++) {
      float* X = (float*)(parts + part * partial(c));
      float *mx = X + ROWS * e, *lx = mx + ROWS;
      for (int64_t r = 0; r < b.rows; r++) {
        float top = m[r] > mx[r] ? m[r] : mx[r], safe = top == -INF ? 0 : top;
        float old = std::exp2(m[r] - safe), add = std::exp2(mx[r] - safe);
        m[r] = top;
        l[r] = l[r] * old + lx[r] * add;
        for (int64_t i = 0; i < e; i += W)
          store(O + r * e + i, load(O + r * e + i) * old + load(X + r * e + i) * add);
      }
    }
    finish(b, O, m, l);
  }
};

}  // namespace
