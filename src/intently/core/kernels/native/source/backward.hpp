// Gradients of q, k, v and of biases, from the maxima and sums that the forward pass left.
//
// With P the weights, D = Σ dy·y and drop the factors of dropout: dv = (P∘drop)ᵀ dy and
// dz = P ∘ ((dy vᵀ)∘drop − D); dq = dz k, dk = dzᵀ q. A task owns the keys of one head (or a share of
// its rows, with sums of its own), so that nothing depends on the order in which threads arrive.
//
// Source: Dao 2023, "FlashAttention-2", algorithm 2.
#pragma once
#include "forward.hpp"

namespace {

// P and dz of one block after another, for a block of rows.
struct Slopes {
  Blocks b;
  float *S, *T, *tanhs, *dyt, *dys, *values;
  float m[ROWS], inverse[ROWS], D[ROWS];
  const float* dy;
  int64_t dy_stride;

  explicit Slopes(Call& c) : b(c) {}

  static int64_t memory(const Call& c) {
    int64_t e = up(c.e, W);
    return up(Blocks::memory(c), 64) +
           4 * (3 * KEYS * ROWS + c.e * ROWS + ROWS * e + KEYS * c.e) + 64;
  }

  char* take(char* scratch) {
    const Call& c = b.c;
    S = (float*)b.take(scratch);
    T = S + KEYS * ROWS;
    tanhs = T + KEYS * ROWS;
    dyt = tanhs + KEYS * ROWS;
    dys = dyt + c.e * ROWS;
    values = dys + ROWS * up(c.e, W);
    return scratch + up(memory(c), 64);
  }

  void block_of_rows(int64_t first) {
    const Call& c = b.c;
    b.block_of_rows(first);
    int64_t e = up(c.e, W);
    const char* stats = base(c.stats, c, b.index) + b.row0 * c.stats.row;
    const char* y = base(c.y, c, b.index) + b.row0 * c.y.row;
    const char* given = base(c.dy, c, b.index) + b.row0 * c.dy.row;
    float two[WIDTH + W];
    dy = dys;
    dy_stride = e;
    for (int64_t r = 0; r < ROWS; r++) {
      D[r] = m[r] = inverse[r] = 0;
      if (r >= b.rows) continue;
      const float* x = (const float*)(stats + r * c.stats.row);
      if (x[1] == 0) {  // a row that attends to nothing has no gradient
        std::memset(dys + r * e, 0, 4 * e);
        continue;
      }
      m[r] = x[0] == -INF ? 0 : x[0];
      inverse[r] = 1 / x[1];
      read_row(c.dy, given + r * c.dy.row, c.e, e, dys + r * e);
      read_row(c.y, y + r * c.y.row, c.e, e, two);
      V sum = V{};
      for (int64_t i = 0; i < e; i += W) sum += load(dys + r * e + i) * load(two + i);
      D[r] = total(sum);
    }
    turned(dys, e, b.rows, c.e, 1, dyt);
  }

  // S becomes P, thinned by dropout for dv; T becomes dz, or the slopes of the bare products, which
  // the softcap bends by 1 − tanh² and the scale multiplies. False where the block is empty.
  bool at(int64_t key, bool bare) {
    Call& c = b.c;
    bool soft = bare && c.softcap > 0;
    if (!b.at(key, b.hi, S, soft ? tanhs : nullptr)) return false;
    b.each([&](const Part& own, int64_t r) {
      V top = load(m + r), by = load(inverse + r);
      for (int64_t j = own.first; j < own.last; j++) {
        float* p = S + j * ROWS + r;
        store(p, exp2v(load(p) - top) * by);
      }
    });
    int64_t stride;
    const float* v = rows_of(c.v, b.v, b.key0, b.n, c.e, c.e, values, &stride);
    b.products(v, stride, dyt, c.e, T);
    if (b.partial)  // the values of keys that nobody sees may be anything
      for (int64_t j = 0; j < b.n; j++)
        if (!b.bits[j]) std::memset(T + j * ROWS, 0, 4 * ROWS);
    if (c.rate > 0) b.drop(T);
    b.each([&](const Part& own, int64_t r) {
      V minus = load(D + r), by = splat(bare ? b.scale : 1.0f);
      for (int64_t j = own.first; j < own.last; j++) {
        int64_t i = j * ROWS + r;
        V x = (load(T + i) - minus) * load(S + i) * by;
        if (soft) {
          V t = load(tanhs + i);
          x = select(x == V{}, V{}, x * (1.0f - t * t));
        }
        store(T + i, x);
      }
    });
    if (c.rate > 0) b.drop(S);
    b.outside(S, 0);
    b.outside(T, 0);
    return true;
  }

};

struct Backward {
  static int64_t scratch(const Call& c) {
    int64_t d = up(c.d, W);
    return Slopes::memory(c) + 4 * (2 * ROWS * d + KEYS * d) + 128;
  }

  // A task is one key head under the other leading axes, and one share of the rows.
  static int64_t tasks(const Call& c) { return c.leads / c.groups * c.parts; }

  static void run(Call& c, int64_t task, char* memory) {
    Slopes s(c);
    Blocks& b = s.b;
    int64_t d = up(c.d, W), e = up(c.e, W), part = task % c.parts, head = task / c.parts;
    float* q_rows = (float*)s.take(memory);
    float* dq = q_rows + ROWS * d;
    float* k_rows = dq + ROWS * d;
    int64_t before = (part * (c.leads / c.groups) + head) * c.s;
    float *dk = (float*)c.dk.data + before * d, *dv = (float*)c.dv.data + before * e;
    int64_t blocks = Product::blocks(c), tick = 0, stride;
    for (int64_t i = 0; i < c.groups; i++) {
      b.lead(head * c.groups + i);
      for (int64_t block = part; block < blocks; block += c.parts) {
        s.block_of_rows(block * ROWS);
        const float* q = rows_of(c.q, b.q, b.row0, b.rows, c.d, d, q_rows, &stride);
        for (int64_t r = 0; r < b.rows; r++)
          if (s.inverse[r] == 0) {
            if (q != q_rows) {
              for (int64_t x = 0; x < b.rows; x++)
                std::memcpy(q_rows + x * d, q + x * stride, 4 * d);
              q = q_rows;
              stride = d;
            }
            std::memset(q_rows + r * d, 0, 4 * d);
          }
        bool first = true;
        for (int64_t at = b.lo; at < b.hi; at += KEYS) {
          if (!s.at(at, true)) continue;
          b.by_keys([&](int64_t key, int64_t end, int64_t from, int64_t to) {
            const float *P = s.S + key * ROWS + from, *dz = s.T + key * ROWS + from;
            gemm(end - key, e, {P, ROWS, 1}, s.dy + from * s.dy_stride, s.dy_stride, to - from,
                 dv + (b.key0 + key) * e, e, ADD);
            gemm(end - key, d, {dz, ROWS, 1}, q + from * stride, stride, to - from,
                 dk + (b.key0 + key) * d, d, ADD);
          });
          int64_t step;
          const float* k = b.values(c.k, b.k, c.d, k_rows, &step);
          b.weigh(s.T, k, step, d, dq, d, first ? PUT : ADD);
          first = false;
          if (b.stopped(&tick)) return;
        }
        char* out = base(c.dq, c, b.index) + b.row0 * c.dq.row;
        for (int64_t r = 0; r < b.rows; r++)
          if (first)
            std::memset(out + r * c.dq.row, 0, 4 * c.d);
          else
            std::memcpy(out + r * c.dq.row, dq + r * d, 4 * c.d);
      }
    }
  }
};

// The gradient of one bias: dz summed over the leading axes, rows and columns that it shares.
// A task owns one leading index of the bias, and one block of rows where it differs by row.
struct BiasBackward {
  static bool owns_rows(const Call& c) { return !c.dbias_profile && c.dbias.row != 0; }

  static int64_t owners(const Call& c) {
    int64_t n = 1;
    for (int i = 0; i < c.axes; i++)
      if (c.dbias.lead[i]) n *= c.size[i];
    return n;
  }

  static int64_t tasks(const Call& c) {
    return owners(c) * (owns_rows(c) ? Product::blocks(c) : 1);
  }

  static void run(Call& c, int64_t task, char* memory) {
    Slopes s(c);
    s.take(memory);
    Blocks& b = s.b;
    int64_t blocks = Product::blocks(c), tick = 0;
    int64_t owner = owns_rows(c) ? task / blocks : task;
    int64_t first = owns_rows(c) ? task % blocks : 0, last = owns_rows(c) ? first + 1 : blocks;
    for (int64_t lead = 0; lead < c.leads; lead++) {
      int64_t index[AXES], mine = 0;
      unravel(c, lead, index);
      for (int i = 0; i < c.axes; i++)
        if (c.dbias.lead[i]) mine = mine * c.size[i] + index[i];
      if (mine != owner) continue;
      b.lead(lead);
      for (int64_t block = first; block < last; block++) {
        s.block_of_rows(block * ROWS);
        for (int64_t at = b.lo; at < b.hi; at += KEYS) {
          if (!s.at(at, false)) continue;
          add(s, base(c.dbias, c, b.index));
          if (b.stopped(&tick)) return;
        }
      }
    }
  }

  static void add(const Slopes& s, char* out) {
    const Blocks& b = s.b;
    const Call& c = b.c;
    if (c.dbias_profile) {
      for (int64_t j = 0; j < b.n; j++) {
        float* p = (float*)out + b.row0 - (b.key0 + j) + c.s - 1;
        const float* x = s.T + j * ROWS;
        int64_t r = b.from, end = least(b.rows, b.to);
        for (; r + W <= end; r += W) store(p + r, load(p + r) + load(x + r));
        for (; r < end; r++) p[r] += x[r];
      }
      return;
    }
    out += b.row0 * c.dbias.row + b.key0 * c.dbias.col;
    for (int64_t j = 0; j < b.n; j++) {
      const float* x = s.T + j * ROWS;
      if (c.dbias.row == 0) {
        V sum = V{};
        for (int64_t r = b.from; r < b.to; r += W) sum += load(x + r);
        *(float*)(out + j * c.dbias.col) += total(sum);
      } else {
        for (int64_t r = b.from; r < least(b.rows, b.to); r++)
          *(float*)(out + r * c.dbias.row + j * c.dbias.col) += x[r];
      }
    }
  }
};

}  // namespace
