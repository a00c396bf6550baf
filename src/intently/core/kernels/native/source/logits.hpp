// The logits of one block of rows over one block of keys, queries in lanes.
//
// A block is S[key][query], ROWS floats to a key, and holds z · log2 e, so that weights are powers of
// two. The queries are scaled as they are turned.
#pragma once
#include "gemm.hpp"
#include "mask.hpp"

namespace {

// A rectangle of a block: lanes and the keys that some of them see.
struct Part {
  int64_t from, to, first, last;
};

struct Blocks {
  static constexpr int64_t FEW = 3;
  static constexpr int64_t FAR = 1 << 22;  // bytes of all heads from which they are prefetched
  Call& c;
  float* qt;     // (d, ROWS): the queries of the block, turned
  float* copy;   // (ROWS, padded): rows of q, k or bias where they need converting
  float* keys;   // (KEYS, d): keys where they need converting
  Mask mask;
  int64_t index[AXES];
  const char *q, *k, *v;
  float scale, sink;
  bool masked, few;  // few: queries are taken one by one
  int64_t row0, rows, lanes, lo, hi;
  // the block of keys at hand
  int64_t key0, n;
  int64_t from, to;    // the lanes that see some of them
  Part part[ROWS / STRIP];  // what is computed of the block; nothing outside is seen
  int parts;
  bool partial;        // whether `bits` hold
  bool holes;          // whether a key of the block is seen by none of its queries
  uint64_t bits[KEYS], seen;  // by key, and all of them together

  explicit Blocks(Call& call) : c(call) {}

  static int64_t memory(const Call& c) {
    return 4 * (c.d * ROWS + ROWS * up(c.d, W) + KEYS * c.d + 3 * W * 64);
  }

  char* take(char* scratch) {
    qt = (float*)scratch;
    copy = qt + c.d * ROWS;
    keys = copy + ROWS * up(c.d, W);
    return scratch + up(memory(c), 64);
  }

  void lead(int64_t lead) {
    unravel(c, lead, index);
    q = base(c.q, c, index);
    k = base(c.k, c, index);
    v = c.v ? base(c.v, c, index) : nullptr;
    scale = c.scales ? number(c.scales, base(c.scales, c, index)) : c.scale;
    sink = c.sinks ? number(c.sinks, base(c.sinks, c, index)) * LOG2E : -INF;
    masked = c.mask.ops > 0;
    if (masked) mask.lead(c, c.mask, index);
  }

  // Asks the memory for the head of a later task, whose queries, keys and values are few; where all
  // heads together fit into a cache, there is nothing to wait for.
  void fetch(int64_t lead) const {
    int64_t bytes = 4 * c.leads * (c.t * (c.d + c.e) + c.s * (c.d + c.e));
    if (lead >= c.leads || bytes < FAR) return;
    int64_t next[AXES];
    unravel(c, lead, next);
    const Array* read[] = {&c.q, &c.k, &c.v};
    for (const Array* a : read) {
      int64_t rows = a == &c.q ? c.t : c.s;
      if (rows > KEYS) continue;
      lines(base(*a, c, next), a->row, rows, (a == &c.v ? c.e : c.d) * (a->col ? a->col : 4));
    }
    if (c.t <= KEYS) lines<1>(base(c.y, c, next), c.y.row, c.t, c.e * (c.y.col ? c.y.col : 4));
  }

  // Asks the memory for what the next block of keys needs, where the hardware does not foresee it:
  // keys and values that few queries read only once, and rows of biases and masks far apart.
  void ahead(int64_t key) const {
    int64_t keys = least(KEYS, c.s - key);
    if (keys <= 0) return;
    for (int i = 0; i < c.biases; i++)
      if (c.bias[i].row && c.bias[i].col)
        lines(base(c.bias[i], c, index) + row0 * c.bias[i].row + key * c.bias[i].col,
              c.bias[i].row, rows, keys * c.bias[i].col);
    for (int i = 0; i < c.mask.ops; i++) {
      const Array& x = c.op[c.mask.first + i].x;
      if (c.op[c.mask.first + i].kind == ENTRIES && x.row && x.col)
        lines(base(x, c, index) + row0 * x.row + key, x.row, rows, keys);
    }
  }

  // The empty assembly keeps GCC from dropping the call, since a function that only prefetches has no
  // effect that it knows.
  template <int WRITE = 0>
  static void lines(const char* p, int64_t step, int64_t count, int64_t bytes) {
    for (int64_t r = 0; r < count; r++, p += step)
      for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(p + i, WRITE, 2);
        __asm__ volatile("");
      }
  }

  void block_of_rows(int64_t first) {
    row0 = first;
    rows = least(ROWS, c.t - row0);
    lanes = up(rows, W);
    int64_t stride;
    const float* x = rows_of(c.q, q, row0, rows, c.d, c.d, copy, &stride);
    float by = c.softcap > 0 ? scale / c.softcap : scale * LOG2E;
    few = rows <= FEW && c.d % W == 0;
    if (few)
      for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < c.d; i += W)
          store(copy + r * c.d + i, load(x + r * stride + i) * by);
    else
      turned(x, stride, rows, c.d, by, qt);
    lo = 0;
    hi = c.s;
    if (masked) mask.range(row0, row0 + rows - 1, &lo, &hi);
  }

  // Computes the parts of the block of keys at `first`; false where no query sees any of them.
  // key0 and n shrink to the keys that some query sees.
  bool at(int64_t first, int64_t end, float* S, float* tanhs = nullptr) {
    key0 = first;
    n = least(KEYS, end - first);
    partial = holes = false;
    from = 0;
    to = lanes;
    if (masked) {
      State state = mask.state(row0, row0 + rows - 1, key0, key0 + n - 1);
      if (state == EMPTY) return false;
      if (state == PARTIAL && !see()) return false;
    }
    parts = 0;
    if (partial && !few)
      cut();
    else
      part[parts++] = {from, to, 0, n};
    int64_t stride;
    const float* x = rows_of(c.k, k, key0, n, c.d, c.d, keys, &stride);
    if (few) {
      for (int64_t j = 0; j < n; j++) store(S + j * ROWS, splat(-INF));  // lanes of no query
      for (int64_t r = 0; r < rows; r++) dots(x, stride, copy + r * c.d, S + r);
    } else {
      products(x, stride, qt, c.d, S);
    }
    if (c.softcap > 0 || c.biases || c.profiles) shape(S, tanhs);
    if (partial) hide(S);
    return true;
  }

  // One query with every key: keys are read once, in order, as fast as memory gives them.
  void dots(const float* x, int64_t stride, const float* query, float* S) const {
    for (int64_t j = 0; j < n; j += W) {
      V sum[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) {
        const float* key = x + (j + i < n ? j + i : j) * stride;
        V one = load(key) * load(query), two = V{};
        int64_t at = W;
        for (; at + W < c.d; at += 2 * W) {
          two += load(key + at) * load(query + at);
          one += load(key + at + W) * load(query + at + W);
        }
        if (at < c.d) two += load(key + at) * load(query + at);
        sum[i] = one + two;
      }
      transpose(sum);
      V total = sum[0];
#pragma GCC unroll 16
      for (int i = 1; i < W; i++) total += sum[i];
      for (int i = 0; i < W && j + i < n; i++) S[(j + i) * ROWS] = total[i];
    }
  }

  bool see() {
    mask.bits(row0, row0 + rows - 1, key0, key0 + n - 1, bits);
    uint64_t all = rows == 64 ? ~0ull : (1ull << rows) - 1, every = all;
    int64_t first = 0, last = n;
    while (last > 0 && !bits[last - 1]) last--;
    if (!last) return false;
    while (!bits[first]) first++;
    uint64_t some = 0;
    for (int64_t j = first; j < last; j++) {
      some |= bits[j];
      every &= bits[j];
      holes |= !bits[j];
      bits[j - first] = bits[j];
    }
    key0 += first;
    n = last - first;
    partial = every != all;
    seen = some;
    while (!(some >> from & ((1ull << W) - 1))) from += W;
    while (!(some >> (to - W) & ((1ull << W) - 1))) to -= W;
    return true;
  }

  // Cuts the lanes into strips. On the diagonal of a causal mask each sees 16 keys more than the one
  // before; neighbours that see the same keys stay together.
  void cut() {
    for (int64_t at = from / STRIP * STRIP; at < to; at += STRIP) {
      Part p = {most(from, at), least(to, at + STRIP), 0, n};
      uint64_t mine = Mask::below(p.to) & ~Mask::below(p.from);
      while (p.last > 0 && !(bits[p.last - 1] & mine)) p.last--;
      if (!p.last) continue;
      while (!(bits[p.first] & mine)) p.first++;
      Part* before = parts ? &part[parts - 1] : nullptr;
      if (before && before->to == p.from && before->first == p.first && before->last == p.last)
        before->to = p.to;
      else
        part[parts++] = p;
    }
  }

  // Calls f(part, lane) for each vector of lanes of each part.
  template <class F>
  void each(F f) const {
    for (int i = 0; i < parts; i++)
      for (int64_t r = part[i].from; r < part[i].to; r += W) f(part[i], r);
  }

  // Whether some lanes belong to no part.
  bool gaps() const {
    int64_t covered = 0;
    for (int i = 0; i < parts; i++) covered += part[i].to - part[i].from;
    return covered < lanes;
  }

  // out[key][lane] = the product of row `key` of x and column `lane` of turned, for all parts.
  void products(const float* x, int64_t stride, const float* turned, int64_t width,
                float* out) const {
    for (int i = 0; i < parts; i++) {
      const Part& p = part[i];
      gemm(p.last - p.first, p.to - p.from, {x + p.first * stride, stride, 1}, turned + p.from, ROWS,
           width, out + p.first * ROWS + p.from, ROWS, PUT);
    }
  }

  // out[query] = Σ over keys of S[key][query] · v[key] for all parts. Rows outside stay as they are,
  // or become 0 where the others are put.
  void weigh(const float* S, const float* v, int64_t stride, int64_t e, float* out, int64_t row,
             Into into, const float* alpha = nullptr) const {
    if (into == PUT && gaps())
      for (int64_t r = 0; r < rows; r++) std::memset(out + r * row, 0, 4 * e);
    for (int i = 0; i < parts; i++) {
      const Part& p = part[i];
      gemm(least(rows, p.to) - p.from, e, {S + p.first * ROWS + p.from, 1, ROWS},
           v + p.first * stride, stride, p.last - p.first, out + p.from * row, row, into,
           alpha ? alpha + p.from : nullptr);
    }
  }

  // Hides the entries of all parts that the mask forbids.
  void hide(float* S) const {
    I one;
    for (int i = 0; i < W; i++) one[i] = (int32_t)(1u << i);
    for (int i = 0; i < parts; i++) {
      const Part& p = part[i];
      uint64_t every = Mask::below(p.to) & ~Mask::below(p.from);
      for (int64_t j = p.first; j < p.last; j++) {
        if ((bits[j] & every) == every) continue;
        for (int64_t r = p.from; r < p.to; r += W) {
          I word = I{} + (int32_t)(uint32_t)(bits[j] >> r);
          float* at = S + j * ROWS + r;
          store(at, select((word & one) == 0, splat(-INF), load(at)));
        }
      }
    }
  }

  // Fills what lies outside all parts, among the lanes that see some key.
  void outside(float* S, float x) const {
    int i = 0;
    for (int64_t r = from; r < to; r += W) {
      while (i < parts && part[i].to <= r) i++;
      bool in = i < parts && part[i].from <= r;
      for (int64_t j = 0, end = in ? part[i].first : n; j < end; j++) store(S + j * ROWS + r, splat(x));
      for (int64_t j = in ? part[i].last : n; j < n; j++) store(S + j * ROWS + r, splat(x));
    }
  }

  // Whether a query sees some key of a partial block.
  bool sees(int64_t r) const { return seen >> r & 1; }

  // Calls f(first, last, from, to) for strips of keys with the queries that see some of them.
  template <class F>
  void by_keys(F f) const {
    if (!partial) return f(0, n, 0, rows);
    int64_t first = 0, from = 0, to = 0;
    for (int64_t key = 0; key < n; key += STRIP) {
      uint64_t some = 0;
      for (int64_t j = key; j < least(n, key + STRIP); j++) some |= bits[j];
      int64_t low = some ? __builtin_ctzll(some) : 0, high = some ? 64 - __builtin_clzll(some) : 0;
      if (key && low == from && high == to) continue;
      if (to > from) f(first, key, from, to);
      first = key;
      from = low;
      to = high;
    }
    if (to > from) f(first, n, from, to);
  }

  // z = softcap · tanh(scale · product / softcap) + biases
  void shape(float* S, float* tanhs) {
    for (int i = 0; i < parts; i++) shape(part[i], S, tanhs);
  }

  void shape(const Part& own, float* S, float* tanhs) {
    if (c.softcap > 0)
      for (int64_t j = own.first; j < own.last; j++)
        for (int64_t r = own.from; r < own.to; r += W) {
          V x = tanhv(load(S + j * ROWS + r));
          if (tanhs) store(tanhs + j * ROWS + r, x);
          store(S + j * ROWS + r, x * (c.softcap * LOG2E));
        }
    for (int i = 0; i < c.biases; i++) add(own, c.bias[i], base(c.bias[i], c, index), S);
    for (int i = 0; i < c.profiles; i++) {
      const float* p = (const float*)base(c.profile[i], c, index);
      for (int64_t j = own.first; j < own.last; j++) {
        const float* at = p + row0 - (key0 + j) + c.s - 1;
        int64_t r = own.from, end = least(rows, own.to);
        for (; r + W <= end; r += W)
          store(S + j * ROWS + r, load(S + j * ROWS + r) + powers(load(at + r)));
        for (; r < end; r++) S[j * ROWS + r] += powers(splat(at[r]))[0];
      }
    }
  }

  // A bias in powers of two. The lowest numbers stay as they are, for times log2 e they would be −∞
  // and hide what no mask forbids.
  static V powers(V x) { return select(x < splat(-2.358e38f), x, x * LOG2E); }

  void add(const Part& own, const Array& a, const char* p, float* S) const {
    p += row0 * a.row + key0 * a.col;
    if (a.row == 0) {
      for (int64_t j = own.first; j < own.last; j++) {
        V x = powers(splat(number(a, p + j * a.col)));
        for (int64_t r = own.from; r < own.to; r += W)
          store(S + j * ROWS + r, load(S + j * ROWS + r) + x);
      }
      return;
    }
    float some[W * W];
    for (int64_t r = own.from; r < own.to; r += W)
      for (int64_t j = own.first; j < own.last; j += W) {
        int64_t wide = least(W, own.last - j);
        V x[W];
        for (int i = 0; i < W; i++) {
          const char* at = p + (r + i) * a.row + j * a.col;
          if (r + i >= rows) {
            x[i] = V{};
          } else if (wide == W && a.type == F32 && a.col == 4) {
            x[i] = load((const float*)at);
          } else {
            read_row(a, at, wide, W, some);
            x[i] = load(some);
          }
        }
        transpose(x);
        for (int i = 0; i < wide; i++) {
          float* at = S + (j + i) * ROWS + r;
          store(at, load(at) + powers(x[i]));
        }
      }
  }

  // Rows of v (or k) at hand, lanes side by side, 0 where no query of the block looks.
  const float* values(const Array& a, const char* from, int64_t width, float* out,
                      int64_t* stride) const {
    int64_t padded = up(width, W);
    const float* x = rows_of(a, from, key0, n, width, padded, out, stride);
    if (!partial || !holes) return x;
    for (int64_t j = 0; j < n; j++) {
      if (!bits[j])
        std::memset(out + j * padded, 0, 4 * padded);
      else if (x != out)
        std::memcpy(out + j * padded, x + j * *stride, 4 * padded);
    }
    *stride = padded;
    return out;
  }

  // Multiplies what stays by 1 / (1 − rate), and what is dropped by 0 (see dropping.py).
  void drop(float* P) const {
    const char* mine = base(c.drop_rows, c, index) + row0 * c.drop_rows.row;
    const int32_t* cols = (const int32_t*)c.drop_cols.data + key0;
    int32_t own[ROWS] = {};
    for (int64_t r = 0; r < rows; r++) own[r] = *(const int32_t*)(mine + r * c.drop_rows.row);
    int64_t limit = (int64_t)std::nearbyint((double)c.rate * 4294967296.0) - 2147483648ll;
    float stays = (float)(1 / (1 - (double)c.rate));
    for (int i = 0; i < parts; i++)
      for (int64_t j = part[i].first; j < part[i].last; j++)
        for (int64_t r = part[i].from; r < part[i].to; r += W) {
          U x = *(const U*)(own + r) + (uint32_t)cols[j];
          x ^= x >> 16;
          x *= 0x7feb352du;
          x ^= x >> 15;
          x *= 0x846ca68bu;
          x ^= x >> 16;
          float* p = P + j * ROWS + r;
          store(p, select((I)x >= (I{} + (int32_t)limit), load(p) * stays, V{}));
        }
  }

  bool stopped(int64_t* tick) const {
    if (c.pulse && (++*tick & 7) == 0 && c.pulse(c.pulse_data))
      c.stop.store(true, std::memory_order_relaxed);
    return c.stop.load(std::memory_order_relaxed);
  }
};

}  // namespace
