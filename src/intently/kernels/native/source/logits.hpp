// The logits of one block of rows over one block of keys, queries in lanes.
//
// A block is S[key][query], ROWS floats to a key, and holds z · log2 e, so that weights are powers of
// two. The queries are scaled as they are turned.
#pragma once
#include "gemm.hpp"
#include "mask.hpp"

namespace {

struct Blocks {
  static constexpr int64_t FEW = 3;
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
  bool partial;        // whether `bits` hold
  bool holes;          // whether a key of the block is seen by none of its queries
  uint64_t bits[KEYS];

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

  // Asks the memory for the head of a later task, whose queries, keys and values are few.
  void fetch(int64_t lead) const {
    if (lead >= c.leads) return;
    int64_t next[AXES];
    unravel(c, lead, next);
    const Array* every[] = {&c.q, &c.k, &c.v};
    for (const Array* a : every) {
      const char* p = base(*a, c, next);
      int64_t rows = a == &c.q ? c.t : c.s, width = (a == &c.v ? c.e : c.d) * (a->col ? a->col : 4);
      if (rows > KEYS) continue;
      for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += 64) __builtin_prefetch(p + r * a->row + i);
    }
  }

  // Asks the memory for what the next block of keys needs, where the hardware does not foresee it:
  // keys and values that few queries read only once, and rows of biases and masks far apart.
  void ahead(int64_t key) const {
    int64_t keys = least(KEYS, c.s - key);
    if (keys <= 0) return;
    if (rows <= 16) {
      lines(k + key * c.k.row, c.k.row, keys, c.d * (c.k.col ? c.k.col : 4));
      if (v) lines(v + key * c.v.row, c.v.row, keys, c.e * (c.v.col ? c.v.col : 4));
    }
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

  static void lines(const char* p, int64_t step, int64_t count, int64_t bytes) {
    for (int64_t r = 0; r < count; r++, p += step)
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
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

  // Where the next block of keys ends: half a block where the first half of the rows does not see the
  // second half of the keys, as on the diagonal of a causal mask.
  int64_t next(int64_t key) const {
    int64_t end = least(key + KEYS, hi), half = key + KEYS / 2;
    if (!masked || half >= end || rows <= ROWS / 2) return end;
    return mask.state(row0, row0 + ROWS / 2 - 1, half, end - 1) == EMPTY ? half : end;
  }

  // Computes the block of keys at key0; false where no query of the block sees any of them.
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
    int64_t stride;
    const float* x = rows_of(c.k, k, key0, n, c.d, c.d, keys, &stride);
    if (few)
      for (int64_t r = 0; r < rows; r++) dots(x, stride, copy + r * c.d, S + r);
    else
      gemm(n, to - from, {x, stride, 1}, qt + from, ROWS, c.d, S + from, ROWS, PUT);
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
    while (!(some >> from & ((1ull << W) - 1))) from += W;
    while (!(some >> (to - W) & ((1ull << W) - 1))) to -= W;
    return true;
  }

  void hide(float* S) {
    I one;
    for (int i = 0; i < W; i++) one[i] = (int32_t)(1u << i);
    for (int64_t j = 0; j < n; j++) {
      if (bits[j] == ~0ull) continue;
      for (int64_t r = from; r < to; r += W) {
        I word = I{} + (int32_t)(uint32_t)(bits[j] >> r);
        float* p = S + j * ROWS + r;
        store(p, select((word & one) == 0, splat(-INF), load(p)));
      }
    }
  }

  // z = softcap · tanh(scale · product / softcap) + biases
  void shape(float* S, float* tanhs) {
    if (c.softcap > 0)
      for (int64_t j = 0; j < n; j++)
        for (int64_t r = from; r < to; r += W) {
          V x = tanhv(load(S + j * ROWS + r));
          if (tanhs) store(tanhs + j * ROWS + r, x);
          store(S + j * ROWS + r, x * (c.softcap * LOG2E));
        }
    for (int i = 0; i < c.biases; i++) add(c.bias[i], base(c.bias[i], c, index), S);
    for (int i = 0; i < c.profiles; i++) {
      const float* p = (const float*)base(c.profile[i], c, index);
      for (int64_t j = 0; j < n; j++) {
        const float* at = p + row0 - (key0 + j) + c.s - 1;
        int64_t r = from, end = least(rows, to);
        for (; r + W <= end; r += W)
          store(S + j * ROWS + r, load(S + j * ROWS + r) + powers(load(at + r)));
        for (; r < end; r++) S[j * ROWS + r] += powers(splat(at[r]))[0];
      }
    }
  }

  // A bias in powers of two. The lowest numbers stay as they are, for times log2 e they would be −∞
  // and hide what no mask forbids.
  static V powers(V x) { return select(x < splat(-2.358e38f), x, x * LOG2E); }

  void add(const Array& a, const char* p, float* S) {
    p += row0 * a.row + key0 * a.col;
    if (a.row == 0) {
      for (int64_t j = 0; j < n; j++) {
        V x = powers(splat(number(a, p + j * a.col)));
        for (int64_t r = from; r < to; r += W)
          store(S + j * ROWS + r, load(S + j * ROWS + r) + x);
      }
      return;
    }
    float some[W * W];
    for (int64_t r = from; r < to; r += W)
      for (int64_t j = 0; j < n; j += W) {
        int64_t wide = least(W, n - j);
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
    for (int64_t j = 0; j < n; j++)
      for (int64_t r = from; r < to; r += W) {
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
