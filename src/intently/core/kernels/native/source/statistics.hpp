// Statistics of the weights from the same loop over tiles.
//
// In one pass: lse, entropy, the largest weights, mean distance, the mass of some keys. Sums over
// queries need the lse of every row first: their tasks walk the keys of a block of rows twice.
#pragma once
#include "forward.hpp"

namespace {

struct Measure {
  static int64_t scratch(const Call& c) {
    return up(Blocks::memory(c), 64) + 4 * KEYS * ROWS + 64 + 12 * ROWS * most(1, c.top_n);
  }

  struct Row {  // sums of exp(z − m) times something
    float sum[ROWS] = {}, slope[ROWS] = {}, far[ROWS] = {}, mass[ROWS] = {};
    float best[ROWS];
    int32_t where[ROWS];
  };

  static void run(Call& c, int64_t task, char* memory) {
    Blocks b(c);
    float* S = (float*)b.take(memory);
    float* tops = S + KEYS * ROWS;                     // (ROWS, n), largest first
    int32_t* at = (int32_t*)(tops + ROWS * c.top_n);   // their keys
    int64_t blocks = Product::blocks(c), tick = 0;
    b.lead(task / blocks);
    b.block_of_rows((blocks - 1 - task % blocks) * ROWS);
    Sums sums;
    sums.start(b, true);
    Row row;
    for (int i = 0; i < ROWS; i++) row.best[i] = -INF, row.where[i] = -1;
    for (int64_t i = 0; i < ROWS * c.top_n; i++) tops[i] = -INF, at[i] = -1;
    for (int64_t key = b.lo; key < b.hi; key += KEYS) {
      if (!b.at(key, b.hi, S)) continue;
      b.outside(S, -INF);
      if (c.argmax) best(b, S, row);
      if (c.top) insert(b, S, tops, at);
      if (c.entropy)
        entropy(b, S, sums, row);
      else
        sums.whole(S, b);
      if (c.distance || c.mass) weigh(b, S, sums, row);
      if (b.stopped(&tick)) return;
    }
    write(b, sums, row, tops, at);
  }

  static void best(const Blocks& b, const float* S, Row& row) {
    for (int64_t r = b.from; r < b.to; r += W) {
      V top = load(row.best + r);
      I where = *(const I*)(row.where + r);
      for (int64_t j = 0; j < b.n; j++) {
        V x = load(S + j * ROWS + r);
        I more = x > top;
        top = select(more, x, top);
        where = more ? (I{} + (int32_t)(b.key0 + j)) : where;
      }
      store(row.best + r, top);
      *(I*)(row.where + r) = where;
    }
  }

  static void insert(const Blocks& b, const float* S, float* tops, int32_t* at) {
    int64_t n = b.c.top_n;
    float limit[ROWS];
    for (int64_t r = 0; r < ROWS; r++) limit[r] = tops[r * n + n - 1];
    for (int64_t j = 0; j < b.n; j++) {
      const float* x = S + j * ROWS;
      for (int64_t v = b.from; v < b.to; v += W) {
        I more = load(x + v) > load(limit + v);
        if (!any(more)) continue;
        for (int64_t r = v; r < least(v + W, b.rows); r++) {
          if (!(x[r] > limit[r])) continue;
          float* mine = tops + r * n;
          int32_t* keys = at + r * n;
          int64_t i = n - 1;
          for (; i > 0 && mine[i - 1] < x[r]; i--) {
            mine[i] = mine[i - 1];
            keys[i] = keys[i - 1];
          }
          mine[i] = x[r];
          keys[i] = (int32_t)(b.key0 + j);
          limit[r] = mine[n - 1];
        }
      }
    }
  }

  static bool any(I x) {
    int64_t parts[W / 2], sum = 0;
    std::memcpy(parts, &x, sizeof parts);
    for (int i = 0; i < W / 2; i++) sum |= parts[i];
    return sum != 0;
  }

  // As `Sums::take`, with Σ exp(z − m) · (z − m) kept beside the sum.
  static void entropy(const Blocks& b, float* S, Sums& sums, Row& row) {
    for (int64_t r = b.from; r < b.to; r += W) {
      float* p = S + r;
      V old = load(sums.m + r), now = old;
      for (int64_t j = 0; j < b.n; j++) now = larger(load(p + j * ROWS), now);
      V safe = select(now == splat(-INF), V{}, now);
      V moved = select(old == splat(-INF), V{}, old - safe);
      V a = exp2v(old - safe), before = load(row.sum + r) * a;
      V slope = load(row.slope + r) * a + before * moved, sum = V{};
      for (int64_t j = 0; j < b.n; j++) {
        V x = load(p + j * ROWS) - safe, w = exp2v(x);
        store(p + j * ROWS, w);
        sum += w;
        slope += select(w == V{}, V{}, w * x);
      }
      store(sums.m + r, now);
      store(sums.alpha + r, a);
      store(sums.l + r, load(sums.l + r) * a + sum);
      store(row.sum + r, before + sum);
      store(row.slope + r, slope);
    }
  }

  static void weigh(const Blocks& b, const float* S, const Sums& sums, Row& row) {
    const Call& c = b.c;
    V step;
    for (int i = 0; i < W; i++) step[i] = (float)i;
    for (int64_t r = b.from; r < b.to; r += W) {
      V a = load(sums.alpha + r), far = load(row.far + r) * a, mass = load(row.mass + r) * a;
      V position = step + (float)(b.row0 + r + c.s - c.t - b.key0);
      for (int64_t j = 0; j < b.n; j++) {
        V w = load(S + j * ROWS + r), apart = position - (float)j;
        if (c.distance) far += w * larger(apart, -apart);
        if (c.mass && c.flags.data[b.key0 + j]) mass += w;
      }
      store(row.far + r, far);
      store(row.mass + r, mass);
    }
  }

  static float& cell(const Array& a, const Blocks& b, int64_t r, int64_t i = 0) {
    return *(float*)(base(a, b.c, b.index) + (b.row0 + r) * a.row + i * a.col);
  }

  static void write(const Blocks& b, const Sums& sums, const Row& row, const float* tops,
                    const int32_t* at) {
    const Call& c = b.c;
    for (int64_t r = 0; r < b.rows; r++) {
      float m = sums.m[r], l = sums.l[r], by = l == 0 ? 0 : 1 / l;
      bool unknown = l != l;
      if (c.lse) cell(c.lse, b, r) = logsum(m, l);
      if (c.entropy) {
        float a = row.sum[r] * by;
        cell(c.entropy, b, r) = l == 0 ? 0 : a * std::log(l) - row.slope[r] * by * LN2;
      }
      if (c.distance) cell(c.distance, b, r) = row.far[r] * by;
      if (c.mass) cell(c.mass, b, r) = row.mass[r] * by;
      if (c.argmax) {
        float w = std::exp2(row.best[r] - m) * by;
        int64_t key = unknown || row.where[r] < 0 || w == 0 ? -1 : row.where[r];
        *(int64_t*)(base(c.argmax, c, b.index) + (b.row0 + r) * c.argmax.row) = key;
      }
      for (int64_t i = 0; i < (c.top ? c.top_n : 0); i++) {
        int32_t key = at[r * c.top_n + i];
        float w = key < 0 ? 0 : std::exp2(tops[r * c.top_n + i] - m) * by;
        if (w < 0x1p-126f) w = 0;
        cell(c.top, b, r, i) = unknown ? __builtin_nanf("") : w;
        int64_t* out = (int64_t*)(base(c.top_keys, c, b.index) + (b.row0 + r) * c.top_keys.row +
                                  i * c.top_keys.col);
        *out = unknown || w == 0 ? -1 : key;
      }
    }
  }
};

// The weights of a block of rows, twice over its keys: sums first, then what is asked.
struct Twice {
  Blocks b;
  float* S;
  Sums sums;
  float inverse[ROWS], top[ROWS];

  explicit Twice(Call& c) : b(c) {}

  static int64_t memory(const Call& c) { return up(Blocks::memory(c), 64) + 4 * KEYS * ROWS; }

  char* take(char* scratch) {
    S = (float*)b.take(scratch);
    return scratch + memory(b.c);
  }

  // False once the call is to stop.
  bool block_of_rows(int64_t first, int64_t end, int64_t* tick) {
    b.block_of_rows(first);
    b.rows = least(b.rows, end - first);
    if (b.masked) b.mask.range(first, first + b.rows - 1, &b.lo, &b.hi);
    sums.start(b, true);
    for (int64_t key = b.lo; key < b.hi; key += KEYS) {
      if (!b.at(key, b.hi, S)) continue;
      sums.take(S, b);
      if (b.stopped(tick)) return false;
    }
    for (int64_t r = 0; r < ROWS; r++) {
      bool known = r < b.rows && sums.l[r] != 0;
      inverse[r] = known ? 1 / sums.l[r] : 0;
      top[r] = known && sums.m[r] != -INF ? sums.m[r] : 0;
    }
    return true;
  }

  bool at(int64_t key) {
    if (!b.at(key, b.hi, S)) return false;
    b.outside(S, -INF);
    I alive[ROWS / W];
    for (int64_t r = b.from; r < b.to; r += W) alive[r / W] = load(inverse + r) != V{};
    for (int64_t r = b.from; r < b.to; r += W) {
      V m = load(top + r), by = load(inverse + r);
      for (int64_t j = 0; j < b.n; j++) {
        float* p = S + j * ROWS + r;
        V raw = load(p);
        V w = exp2v(raw - m) * by;
        w = select(raw == splat(-INF), V{}, w);  // a masked entry is 0 even for a NaN query
        store(p, select(alive[r / W], w, V{}));
      }
    }
    return true;
  }
};

// Column sums: a task owns a share of the rows of one leading index, and sums of its own.
struct Receive {
  static void run(Call& c, int64_t task, char* memory) {
    Twice x(c);
    x.take(memory);
    Blocks& b = x.b;
    int64_t part = task % c.parts, tick = 0;
    b.lead(task / c.parts);
    double* out = (double*)(c.received.data + task * c.received.row);
    for (int64_t block = part; block < Product::blocks(c); block += c.parts) {
      if (!x.block_of_rows(block * ROWS, c.t, &tick)) return;
      for (int64_t key = b.lo; key < b.hi; key += KEYS) {
        if (!x.at(key)) continue;
        for (int64_t j = 0; j < b.n; j++) {
          V sum = V{};
          for (int64_t r = b.from; r < b.to; r += W) sum += load(x.S + j * ROWS + r);
          out[b.key0 + j] += total(sum);
        }
        if (b.stopped(&tick)) return;
      }
    }
  }
};

// The picture of `pool`: a task owns whole rows of cells, at least ROWS queries where it can.
struct Picture {
  static int64_t edge(int64_t i, int64_t n, int64_t cells) { return (i * n + cells - 1) / cells; }
  static int64_t each(const Call& c) { return most(1, ROWS * c.cells[0] / most(1, c.t)); }
  static int64_t groups(const Call& c) { return (c.cells[0] + each(c) - 1) / each(c); }
  static int64_t tasks(const Call& c) { return c.leads * groups(c); }
  static int64_t scratch(const Call& c) { return Twice::memory(c) + 4 * ROWS * c.cells[1] + 64; }

  static void run(Call& c, int64_t task, char* memory) {
    Twice x(c);
    float* acc = (float*)x.take(memory);  // (columns of cells, ROWS)
    Blocks& b = x.b;
    int64_t tick = 0, group = groups(c) - 1 - task % groups(c);
    b.lead(task / groups(c));
    int64_t cell = group * each(c), last = least(c.cells[0], cell + each(c));
    int64_t begin = edge(cell, c.t, c.cells[0]), end = edge(last, c.t, c.cells[0]);
    for (int64_t row = begin; row < end; row += ROWS) {
      if (!x.block_of_rows(row, end, &tick)) return;
      for (int64_t i = 0; i < ROWS * c.cells[1]; i++) acc[i] = 0;
      for (int64_t key = b.lo; key < b.hi; key += KEYS) {
        if (!x.at(key)) continue;
        for (int64_t j = 0; j < b.n; j++) {
          float* to = acc + (b.key0 + j) * c.cells[1] / c.s * ROWS;
          for (int64_t r = b.from; r < b.to; r += W) {
            V w = load(x.S + j * ROWS + r), old = load(to + r);
            store(to + r, c.largest ? select(w > old, w, select(w == w, old, w)) : old + w);
          }
        }
        if (b.stopped(&tick)) return;
      }
      char* out = base(c.picture, c, b.index);
      for (int64_t r = 0; r < b.rows; r++) {
        char* line = out + (row + r) * c.cells[0] / c.t * c.picture.row;
        for (int64_t i = 0; i < c.cells[1]; i++) {
          float* to = (float*)(line + i * c.picture.col);
          float w = acc[i * ROWS + r];
          *to = !c.largest ? *to + w : w > *to || w != w ? w : *to;
        }
      }
    }
  }
};

}  // namespace
